"""LeJEPA: its loss and gradients against a plain implementation in float64, the statistic against
integrals by scipy and by hand, its directions, and runs."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Tensor

from helpers.built import Objective, built
from helpers.exactness import (
    Unbroken,
    assert_a_killed_run_ends_as,
    assert_is_plain,
    shaken,
)
from helpers.options import TINY, altered
from helpers.self_distillation import plain_tokens
from helpers.view_batches import view_batch
from ssl_vit import rng
from ssl_vit.objectives.lejepa.network import directions, distance_from_normal

SLICES, WIDTH, SEED, PROGRESS = 40, 6, 3, 0.25
LEJEPA = altered(
    TINY, "recipe=lejepa", "views.local_size=8", "lejepa.slices=32", "eval.collapse=null"
)
SIZES = (f"lejepa.slices={SLICES}", "lejepa.hidden=24", f"lejepa.width={WIDTH}")


def made(weight: float = 0.05, seed: int = SEED) -> Objective:
    words = f"lejepa.weight={weight}", f"seed={seed}"
    objective = shaken(built(*LEJEPA, *SIZES, *words))
    objective.start_step(PROGRESS)
    return objective


def plain_directions(width: int, count: int) -> Tensor:
    """By Box and Muller, of the seed and the bits of the share that is done."""
    (step,) = np.array([PROGRESS]).view(np.int64)
    key = rng.stream(rng.key(SEED, step), "directions")
    drawn = rng.uniform(key, np.arange(2 * width * count)).reshape(width, count, 2)
    normal = np.sqrt(-2 * np.log(1 - drawn[..., 0])) * np.cos(2 * np.pi * drawn[..., 1])
    return torch.from_numpy(normal / np.linalg.norm(normal, axis=0))


def plain_sigreg(x: Tensor, slices: Tensor) -> Tensor:
    """Algorithm 1 of the paper."""
    t = torch.linspace(-5, 5, 17, dtype=torch.float64)
    normal = torch.exp(-0.5 * t**2)
    found = torch.exp(1j * (x @ slices)[:, :, None] * t).mean(0)
    return (torch.trapezoid((found - normal).abs().square() * normal, t) * len(x)).mean()


def plain_loss(objective: Objective, views: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Algorithm 2; batch norms have the statistics of all views together. The prediction's part
    and SIGReg's."""
    x = torch.cat([plain_tokens(objective.encoder, view)[:, 0] for view in views])
    first, norm, _, second, other, _, last = objective.projector
    for layer, scale in ((first, norm), (second, other)):
        x = x @ layer.weight.T
        x = (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + 1e-5)
        x = torch.clamp(x * scale.weight + scale.bias, min=0)
    embedded = (x @ last.weight.T + last.bias).unflatten(0, (len(views), -1))
    centre = (embedded[0] + embedded[1]) / 2
    slices = plain_directions(WIDTH, SLICES)
    prediction = torch.stack([(one - centre).square().mean() for one in embedded]).mean()
    return prediction, torch.stack([plain_sigreg(one, slices) for one in embedded]).mean()


@pytest.mark.parametrize(("weight", "local"), [(0.05, 3), (0.6, 0)])
def test_loss_and_gradients_are_those_of_a_plain_implementation(weight: float, local: int) -> None:
    objective, given = made(weight), view_batch(5, local)
    # the projector's first batch norm takes it off: its gradient is rounding
    objective.encoder.backbone.norm.bias.requires_grad_(False)
    views = [*given.views.transpose(0, 1)]
    views += [] if given.local is None else [*given.local.transpose(0, 1)]
    parts: dict[str, Tensor] = {}

    def loss(plain: Objective) -> Tensor:
        parts["prediction_loss"], parts["sigreg"] = plain_loss(plain, views)
        return (1 - weight) * parts["prediction_loss"] + weight * parts["sigreg"]

    metrics = assert_is_plain(objective, given, loss)
    assert metrics.keys() == {"loss", *parts}
    for name, part in parts.items():
        total, count = metrics[name]
        assert count == 5 and float(total / 5) == pytest.approx(part.item(), rel=1e-6), name


@pytest.mark.parametrize("weight", [1e-6, 1 - 1e-6])
def test_each_term_moves_every_view(weight: float) -> None:
    """An implementation that left the global ones out of SIGReg had other figures for months."""
    objective = made(weight)
    held: list[Tensor] = []
    objective.projector.register_forward_hook(lambda _, __, out: held.append(out))
    loss = objective(view_batch(5, 3)).loss
    (gradient,) = torch.autograd.grad(loss, held)
    of_view = gradient.unflatten(0, (5, 5)).norm(dim=(0, 2))
    assert len(of_view) == 5 and (of_view > 0.1 * of_view.max()).all()


def integral(numbers: list[float]) -> float:
    """The statistic's definition, divided by how many there are."""

    def integrand(t: float) -> float:
        normal = math.exp(-t * t / 2)
        found = np.exp(1j * t * np.array(numbers)).mean()
        return abs(found - normal) ** 2 * normal

    return integrate.quad(integrand, -np.inf, np.inf, epsabs=1e-12)[0]


def by_gauss(numbers: list[float]) -> float:
    """The integral solved: that of exp(i t d - t^2 / 2) is sqrt(2 pi) exp(-d^2 / 2), and so on."""
    x = np.array(numbers)
    pairs = np.exp(-((x[:, None] - x) ** 2) / 2).mean()
    return math.sqrt(2 * math.pi) * (
        pairs - math.sqrt(2) * np.exp(-(x**2) / 4).mean() + 1 / math.sqrt(3)
    )


@pytest.mark.parametrize("numbers", [[0.0], [0.5, 0.5], [1.0, -2.0, 0.3], [3.0, 0.1, -0.4, -1.7]])
def test_the_statistic_is_epps_and_pulleys(numbers: list[float]) -> None:
    x_BVM = torch.tensor(numbers)[:, None, None]
    found = distance_from_normal(x_BVM, lambda x: x.mean(0))
    assert found.shape == (1, 1)
    assert integral(numbers) == pytest.approx(by_gauss(numbers), rel=1e-8)
    assert found.item() == pytest.approx(by_gauss(numbers), rel=2e-5)


def test_it_is_least_for_normal_numbers() -> None:
    """Its expectation for these is sqrt(2 pi) (1 - 1 / sqrt(3)) by n numbers; what is collapsed,
    too wide, shifted or of two values has more."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn((256, 1, 200), generator=draw)
    found = {
        name: 256 * distance_from_normal(numbers, lambda x: x.mean(0)).mean().item()
        for name, numbers in {
            "normal": x,
            "collapsed": 0 * x,
            "narrow": 0.7 * x,
            "wide": 1.4 * x,
            "shifted": x + 0.3,
            "two values": x.sign(),
        }.items()
    }
    wanted = math.sqrt(2 * math.pi) * (1 - 1 / math.sqrt(3))
    assert found.pop("normal") == pytest.approx(wanted, rel=0.1)
    assert all(value > 3 * wanted for value in found.values()), found


def test_directions_are_of_seed_and_step() -> None:
    """Others in every step and of every seed; of length 1, and evenly spread."""
    steps, keys = 50, set()
    for seed in (0, 1):
        objective = made(seed=seed)
        for step in range(steps):
            objective.start_step(step / steps)
            keys.add(objective.key_1.item())
    assert len(keys) == 2 * steps
    one = directions(torch.tensor([min(keys)]), 5, 20_000)
    torch.testing.assert_close(one.norm(dim=0), torch.ones(20_000))
    spread = one @ one.T / 20_000  # of each entry the deviation is below 1 / 5 sqrt(20,000)
    torch.testing.assert_close(spread, torch.eye(5) / 5, rtol=0, atol=0.006)
    assert one.mean(1).abs().max() < 0.013
    other = directions(torch.tensor([max(keys)]), 5, 20_000)
    assert (one * other).sum(0).mean().abs() < 0.013


def test_held_out_images_are_measured_along_the_same_directions() -> None:
    """In every step, so that values can be compared."""
    objective, given = made().eval(), view_batch(5, 3)
    before = objective(given).metrics
    objective.start_step(0.75)
    after = objective(given).metrics
    assert all(torch.equal(after[name][0], total) for name, (total, _) in before.items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    return Unbroken.of(LEJEPA, tmp_path_factory.mktemp("lejepa"))


def test_a_killed_run_goes_on_to_the_same_end(whole: Unbroken) -> None:
    assert_a_killed_run_ends_as(whole)
