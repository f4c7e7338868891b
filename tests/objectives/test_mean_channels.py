"""The target of images of any channels and bits: against hand-worked values, the 512 classes of
RGB, and exact fractions; pixel targets of 16 bits against the same shares in 8."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.built import built
from ssl_vit.objectives.targets import patch_targets


def target(name: str, patch: int, *words: str) -> patch_targets.Target:
    """The target of images of four channels."""
    four = "data.channels=4", f"data.mean={[0.5] * 4}", f"data.std={[0.25] * 4}"
    return built(f"target={name}", f"model.patch={patch}", *four, *words).target


def made() -> patch_targets.Target:
    """Bins of 100."""
    return target("mean_channels", 2, "data.range=[100,900]")


def image() -> torch.Tensor:
    """4 channels of 16 bits, 2 x 4 px: two patches of 2 x 2."""
    levels = [
        [[100, 100, 900, 900], [100, 100, 900, 900]],  # the lowest and the highest value
        [[199, 201, 300, 301], [200, 200, 299, 299]],  # means of 200, an edge, and of 299.75
        [[0, 0, 5000, 5000], [0, 0, 5000, 5000]],  # beyond both ends
        [[500, 500, 450, 450], [500, 499, 550, 550]],  # 499.75 and 500
    ]
    return torch.tensor(levels, dtype=torch.int32)[None]


def test_hand_worked_classes() -> None:
    assert made().ground_truth(image()).tolist() == [[[0, 1, 0, 3], [7, 1, 7, 4]]]


def test_the_loss_is_the_mean_of_the_channels_cross_entropies() -> None:
    truth = made().ground_truth(image())
    output = torch.zeros(1, 2, 4, 8)
    for channel, right in enumerate(truth[0, 0]):
        output[0, 0, channel, right] = math.log(channel + 1)  # odds of 1, 2, 3, 4 to 1 each
    metrics = made().metrics(output.flatten(2), truth)
    losses = [-math.log((c + 1) / (c + 8)) for c in range(4)]
    assert metrics["loss"][0].tolist() == pytest.approx([sum(losses) / 4, math.log(8)])
    # equal scores: class 0 is predicted, which channels 0 and 2 of the first patch have
    assert metrics["accuracy"][0].tolist() == [1.0, 0.0]


def test_hand_worked_baselines() -> None:
    target = made()
    target.fit_baselines([image()])
    hidden = torch.tensor([[True, False]])
    found = target.baselines(image(), hidden)
    # channels 0, 2 and 3 have two classes once each, channel 1 one class twice
    assert found["entropy"][0].tolist() == pytest.approx([0.75 * math.log(2)] * 2)
    # ties go to the lower class, that of the first patch
    assert found["commonest"][0].tolist() == [1.0, 0.25]
    # of the hidden one the other patch's classes: channel 1 alone
    assert found["neighbors"][0, 0] == 0.25


def test_it_is_rendered_by_three_channels_and_is_certain_on_average() -> None:
    target = made()
    truth = target.ground_truth(image())
    assert target.render(truth)[0, 1, 0, 0].tolist() == [239, 47, 239], "middles of 7, 1 and 7"
    chance = target.certainty(torch.zeros(1, 2, 32))
    assert chance.shape == (1, 2, 1, 1) and chance.flatten().tolist() == pytest.approx([1 / 8] * 2)


def test_of_rgb_its_classes_are_the_digits_of_the_512() -> None:
    random = torch.Generator().manual_seed(0)
    rgb = torch.randint(0, 256, (3, 3, 8, 8), generator=random, dtype=torch.uint8)
    found = built("target=mean_channels").target.ground_truth(rgb)
    joined = (found * torch.tensor([64, 8, 1])).sum(-1)
    assert torch.equal(joined, patch_targets.mean_color(rgb, 4))


@given(
    st.integers(0, 65534).flatmap(lambda low: st.tuples(st.just(low), st.integers(low + 1, 65535))),
    st.integers(1, 1024),
    st.data(),
)
def test_bins_are_those_of_exact_fractions(ends: tuple[int, int], pixels: int, drawn) -> None:
    low, high = ends
    total = drawn.draw(st.integers(low * pixels, high * pixels))
    share = Fraction(total - low * pixels, (high - low) * pixels)
    found = patch_targets.channel_bins(torch.tensor([total]), pixels, ends)
    assert found.tolist() == [min(7, math.floor(8 * share))]


@pytest.mark.parametrize("name", ["pixels", "pixels_l1", "normalized_pixels"])
def test_pixels_of_16_bits_are_the_shares_of_8(name: str) -> None:
    """The same image in 257ths has the same truth, baselines and picture."""
    random = np.random.default_rng(0)
    small = torch.from_numpy(random.integers(0, 256, (2, 4, 8, 8)).astype(np.uint8))
    large = small.int() * 257
    one, other = (target(name, 4, f"data.range=[0,{high}]") for high in (255, 65535))
    one.fit_baselines([small])
    other.fit_baselines([large])
    # normalised pixels divide by the variance
    torch.testing.assert_close(
        one.ground_truth(small), other.ground_truth(large), atol=1e-4, rtol=0
    )
    hidden = torch.tensor([[True, False, True, False]] * 2)
    found, wanted = (a.baselines(b, hidden) for a, b in ((other, large), (one, small)))
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, atol=1e-4, rtol=1e-4, check_dtype=False)
    shown = (a.render(a.ground_truth(b)).int() for a, b in ((one, small), (other, large)))
    assert torch.subtract(*shown).abs().max() <= 1, "rounded"
