"""The plugins of docs/examples that compare two views, against implementations in NumPy after the
papers' pseudo-code. On two processes they are in tests/training/test_spread.py."""

import math
import shutil
import statistics
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from helpers.exactness import shaken
from helpers.options import ROOT, TINY, altered
from helpers.resolving import resolve
from helpers.runs import rows, run
from helpers.view_batches import view_batch
from ssl_vit.models.encoder import build_backbone
from ssl_vit.objectives.base import Objective
from ssl_vit.objectives.building import Settings, build_objective
from ssl_vit.recipe import declaration

IMAGES = 6
# Two views whose similarities decide which views are found, and the loss
Plain = tuple[np.ndarray, np.ndarray, float]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("examples")
    for name in PLAIN:
        shutil.copy(ROOT / "docs" / "examples" / f"{name}.py", folder)
    yield folder
    for name in PLAIN:
        declaration.withdraw(name)


def options(folder: Path, name: str, *more: str) -> list[str]:
    start = ["recipe=moco_v3", f"plugin={folder}/{name}.py", f"objective={name}"]
    return altered(TINY, *start, f"{name}.width=12", "eval.collapse=null", "name=run", *more)


def through(module: nn.Sequential, x: np.ndarray) -> np.ndarray:
    """A projector or predictor, with the statistics of the batch."""
    for layer in module:
        if isinstance(layer, nn.ReLU):
            x = np.maximum(x, 0)
            continue
        weight = layer.weight.detach().numpy()
        if isinstance(layer, nn.Linear):
            x = np.stack([weight @ row for row in x])
        else:
            x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) * weight
        x = x if layer.bias is None else x + layer.bias.detach().numpy()
    return x


def unit(x: np.ndarray) -> np.ndarray:
    return np.stack([row / math.sqrt(sum(row**2)) for row in x])


def vicreg(objective: Objective, a: np.ndarray, b: np.ndarray) -> Plain:
    """Bardes, Ponce and LeCun (2022), algorithm 1."""
    a, b = through(objective.projector, a), through(objective.projector, b)
    width = a.shape[1]
    loss = 25 * statistics.mean(((a - b) ** 2).flatten())
    for z in (a, b):
        for i in range(width):
            deviation = math.sqrt(statistics.variance(z[:, i]) + 1e-4)
            loss += 25 * max(0, 1 - deviation) / width
            others = (j for j in range(width) if j != i)
            loss += sum(statistics.covariance(z[:, i], z[:, j]) ** 2 for j in others) / width
    return a, b, loss


def barlow_twins(objective: Objective, a: np.ndarray, b: np.ndarray) -> Plain:
    """Zbontar et al. (2021), algorithm 1, with the batch norm of the authors' code."""
    a, b = through(objective.projector, a), through(objective.projector, b)
    a, b = ((z - z.mean(0)) / np.sqrt(z.var(0) + 1e-5) for z in (a, b))
    loss = 0.0
    for i, channel in enumerate(a.T):
        for j, other in enumerate(b.T):
            correlation = statistics.mean(channel * other)
            loss += (1 - correlation) ** 2 if i == j else 0.005 * correlation**2
    return a, b, loss


def byol(objective: Objective, a: np.ndarray, b: np.ndarray) -> Plain:
    """Grill et al. (2020), equation 2, for both orders of the views."""
    with torch.no_grad():
        view = view_batch(IMAGES, local=0).views
        teacher = objective.teacher.encoder.float()
        keys = [teacher.feature(view[:, v]).double().numpy() for v in range(2)]
    queries = [unit(through(objective.predictor, through(objective.projector, x))) for x in (a, b)]
    keys = [unit(through(objective.teacher_projector, x)) for x in keys]
    pairs = zip((*queries[0], *queries[1]), (*keys[1], *keys[0]), strict=True)
    return queries[0], keys[1], sum(sum((q - k) ** 2) for q, k in pairs) / IMAGES


def swav(objective: Objective, a: np.ndarray, b: np.ndarray) -> Plain:
    """Caron et al. (2020), `sinkhorn` and the loss of the pseudo-code in appendix A."""
    z = [unit(through(objective.projector, x)) for x in (a, b)]
    prototypes = unit(objective.prototypes.weight.detach().numpy())
    scores = [[[row @ c for c in prototypes] for row in x] for x in z]
    codes = []
    for score in scores:
        q = np.exp(np.array(score).T / 0.05)
        q /= q.sum()
        for _ in range(3):
            for k in range(len(q)):
                q[k] /= len(q) * q[k].sum()
            for n in range(IMAGES):
                q[:, n] /= IMAGES * q[:, n].sum()
        codes.append(q.T * IMAGES)
    loss = 0.0
    for code, score in ((codes[0], scores[1]), (codes[1], scores[0])):
        for q, s in zip(code, score, strict=True):
            total = math.log(sum(math.exp(x / 0.1) for x in s))
            loss -= sum(share * (x / 0.1 - total) for share, x in zip(q, s, strict=True))
    return z[0], z[1], loss / 2 / IMAGES


PLAIN: dict[str, Callable[..., Plain]] = {
    one.__name__: one for one in (vicreg, barlow_twins, byol, swav)
}


@pytest.mark.parametrize("name", PLAIN)
def test_the_loss_is_that_of_a_second_implementation(name: str, folder: Path) -> None:
    recipe = resolve(options(folder, name))
    torch.manual_seed(0)
    encoder = build_backbone(recipe.model, recipe.data, 0, 0)
    objective = shaken(build_objective(Settings.from_recipe(recipe), encoder, 0))
    batch = view_batch(IMAGES, local=0)
    with torch.no_grad():
        features = [objective.encoder.feature(batch.views[:, v]).double().numpy() for v in range(2)]
    output = objective(batch)
    a, b, loss = PLAIN[name](deepcopy(objective).double(), *features)
    total, count = output.metrics["loss"]
    assert output.loss.item() == pytest.approx(loss, rel=1e-5)
    assert count == IMAGES and total.item() / IMAGES == pytest.approx(loss, rel=1e-5)
    nearest = [min(range(IMAGES), key=lambda j: sum((x - b[j]) ** 2)) for x in a]
    assert output.metrics["found"][0].item() == sum(i == j for i, j in enumerate(nearest))
    # In evaluation, also for a last batch with a single image
    alone = objective.eval()(view_batch(1, local=0))
    assert alone.loss.isfinite() and alone.metrics["found"][0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_200_steps_beat_the_baseline(name: str, folder: Path, tmp_path: Path) -> None:
    """Ten times as many views are found as by guessing, and more than by untrained weights."""
    words = ["optim.batch=32", "eval.images=256", "checkpoint.every=200", f"{name}.width=64"]
    words += ["views.jitter=0", "views.grayscale=0", "views.solarize=[0,0]", "data.crop_area=0.3"]
    words += ["swav.prototypes=16"] if name == "swav" else []
    ends = []
    for steps, *length in ((1, "optim.warmup=0", "optim.lr=1e-12"), (200, "optim.warmup=20")):
        length += [f"optim.steps={steps}", f"eval.every={steps}", f"out={tmp_path}/{steps}"]
        ends.append(rows(run(options(folder, name, *words, *length)).folder)[-1])
    untrained, last = ends
    assert last["validation/found"] > 10 * last["validation/guess"]
    assert last["validation/found"] > untrained["validation/found"] + 0.1
    assert last["validation/loss"] < last.get("validation/same_feature", math.inf)
