"""Measures without labels: each against a second implementation, with more and with fewer images
than channels, and in evaluations and training of images that have no labels."""

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from PIL import Image
from torch import Tensor

import ssl_vit
from helpers.options import LOADED, SHORT, TINY, altered
from helpers.refusals import refusal
from helpers.resolving import resolve
from helpers.runs import evaluated_on_one_and_two, result, run
from helpers.view_batches import image_batch
from ssl_vit.data.batching import Batch
from ssl_vit.evaluation import label_free
from ssl_vit.evaluation.label_free import Views
from ssl_vit.metrics import MEASURES
from ssl_vit.pages.run_verdict import WITHOUT_LABELS
from ssl_vit.recipe.shared_groups import ViewOptions

NAMES = [name for name, measure in MEASURES.items() if measure.reads == "views"]
ALL = f"probe.measures=[{','.join(NAMES)}]"
SIZES = pytest.mark.parametrize(("images", "width"), [(300, 120), (60, 120)])


def features(*shape: int) -> Tensor:
    """Random features of unequal spread, away from 0."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x * torch.linspace(0.1, 2, shape[-1]) + 0.5


def rank(value: np.ndarray) -> float:
    share = value / value.sum() + 1e-7
    return math.exp(-(share * np.log(share)).sum())


@SIZES
def test_rankme_is_of_features_that_are_not_centred(images: int, width: int) -> None:
    x = features(images, width)
    wanted = rank(np.linalg.svd(x.numpy(), compute_uv=False))
    assert label_free.rankme(x) == pytest.approx(wanted, rel=1e-6)
    assert label_free.rankme(x) < label_free.rankme(x - x.mean(0)) <= min(images, width) + 0.01


@SIZES
def test_lidar_is_that_of_the_matrices_of_the_paper(images: int, width: int) -> None:
    """Equations 1 to 3, with scipy's roots of matrices and loops over images and views."""
    x = features(images, 5, width) + 3 * features(images, 1, width)
    total = x.numpy().mean((0, 1))
    between, within = np.zeros((width, width)), 1e-4 * np.eye(width)
    for own in x.numpy():
        mean = own.mean(0)
        between += np.outer(mean - total, mean - total) / images
        for view in own:
            within += np.outer(view - mean, view - mean) / own.shape[0] / images
    root = scipy.linalg.inv(scipy.linalg.sqrtm(within))
    eigenvalues = np.linalg.eigvalsh(root @ between @ root)[::-1][: min(images - 1, width)]
    assert label_free.lidar(x) == pytest.approx(rank(eigenvalues), rel=1e-6)


def test_lidar_counts_the_directions_in_which_images_differ_more_than_their_views() -> None:
    """Four images at the corners of a tetrahedron, in equal noise: three directions of 50."""
    corner = torch.eye(4, 50, dtype=torch.float64)
    noise = 1e-3 * torch.cat([torch.eye(50), -torch.eye(50)]).double()
    assert label_free.lidar(corner[:, None] + noise) == pytest.approx(3, rel=1e-4)


@SIZES
def test_alpha_is_that_of_the_authors_formula(images: int, width: int) -> None:
    """Weighted normal equations of log eigenvalues of the covariance, number 11 to 100."""
    x = features(images, width)
    eigenvalues = np.linalg.eigvalsh(np.cov(x.numpy().T))[::-1]
    number = np.arange(11, min(100, images - 1, width) + 1)
    left = np.stack([-np.log(number), np.ones(len(number))], 1)
    weight = 1 / number[:, None]
    right = np.log(eigenvalues[number - 1])[:, None]
    wanted = np.linalg.solve(left.T @ (left * weight), (weight * left).T @ right)[0, 0]
    assert label_free.alpha_req(x) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("images", "width"), [(200, 40), (41, 300), (90, 300)])
def test_alpha_of_a_power_law_is_its_exponent(images: int, width: int) -> None:
    """There are always 40 directions. Zeros by rounding would change the slope."""
    generator = np.random.default_rng(0)
    centred = scipy.linalg.null_space(np.ones((1, images)))[:, :40]
    directions = scipy.linalg.qr(generator.normal(size=(width, 40)), mode="economic")[0]
    spread = np.arange(1, 41) ** -0.75
    x = torch.from_numpy(centred * spread @ directions.T + 5)
    assert label_free.alpha_req(x.float().double()) == pytest.approx(1.5, rel=1e-4)


def test_alpha_of_too_few_directions_is_nothing() -> None:
    assert math.isnan(label_free.alpha_req(features(20, 64)))
    assert math.isfinite(label_free.alpha_req(features(21, 64)))
    assert math.isnan(label_free.alpha_req(torch.ones(100, 64, dtype=torch.float64)))


def test_uniformity_and_alignment_are_those_of_the_authors_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x_N2D = features(70, 2, 16)
    x, y = torch.nn.functional.normalize(x_N2D, dim=2).unbind(1)
    each = [torch.pdist(view).pow(2).mul(-2).exp().mean().log() for view in (x, y)]
    assert label_free.uniformity(x_N2D) == pytest.approx(float(sum(each)) / 2, rel=1e-6)
    monkeypatch.setattr(label_free, "ROWS", 32)  # in parts
    assert label_free.uniformity(x_N2D) == pytest.approx(float(sum(each)) / 2, rel=1e-6)
    wanted = (x - y).norm(dim=1).pow(2).mean()
    assert label_free.alignment(x_N2D) == pytest.approx(float(wanted), rel=1e-6)


def test_features_that_collapsed_have_one_direction() -> None:
    x = torch.ones(50, 6, 32, dtype=torch.float64)
    assert label_free.rankme(x[:, 0]) == pytest.approx(1, rel=1e-4)
    assert label_free.lidar(x) == pytest.approx(1, rel=1e-3)
    assert label_free.uniformity(x[:, :2]) == pytest.approx(0) == label_free.alignment(x[:, :2])


def test_views_depend_on_the_image_alone() -> None:
    views, batch = Views(ViewOptions(), 0.2, True), image_batch(6)
    whole = [view.image for view in views.draw(batch, 5)]
    assert len(whole) == 5 and not any(torch.equal(whole[0], view) for view in whole[1:])
    part = views.draw(batch.map(lambda values: values[4:]), 5)
    assert all(torch.equal(one[4:], two.image) for one, two in zip(whole, part, strict=True))


def test_views_are_those_of_the_training() -> None:
    """Compared views for MoCo v3. MAE has crops and flips alone, and no colours change."""
    moco = resolve(["recipe=moco_v3", "views.hue=0.3"])
    assert Views.of_training(moco) == Views(moco.group(ViewOptions), 0.08, True)
    grey = image_batch(2)._replace(image=torch.full((2, 3, 16, 16), 77, dtype=torch.uint8))
    crops = Views.of_training(resolve(["recipe=mae"])).draw(grey, 8)
    assert all(torch.equal(view.image, grey.image) for view in crops)
    changed = Views.of_training(moco).draw(grey, 8)
    assert not all(torch.equal(view.image, grey.image) for view in changed)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 images without labels."""
    root, pixels = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(80):
        image = pixels.integers(0, 2 * number + 90, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(image).save(root / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = altered(TINY, *SHORT, f"out={tmp_path_factory.mktemp('runs')}", "name=start")
    return run(given).folder


@pytest.fixture
def words(photos: Path, pretrained: Path, tmp_path: Path) -> list[str]:
    return [
        *("recipe=evaluate", f"init={pretrained}", f"data.path={photos}", "data.test=0.5", ALL),
        *("data.size=16", "data.labels=false", "probe.views=3", *LOADED, f"out={tmp_path}"),
    ]


def test_an_evaluation_needs_no_labels_and_claims_nothing(words: list[str]) -> None:
    found = ssl_vit.evaluate([*words, "name=one"])
    wanted = [name for each in NAMES for name in (each, f"fresh_{each}")]
    assert [*found.metrics] == wanted
    (images,) = {one.n for one in found.metrics.values()}
    assert images == 34  # half of the images, by the hashes of their names
    assert not any(one.interval or one.differences for one in found.metrics.values())
    # RankMe and alpha-ReQ read the image, LiDAR three views, uniformity and alignment two
    assert found.images == (1 + 1 + 3 + 2) * images
    page = (found.folder / "report.html").read_text()
    assert (
        "RankMe (its paper uses 25,600 images)" in page
        and "better than features of untrained" not in page
    )
    assert WITHOUT_LABELS in page
    said = refusal(ssl_vit.list_runs, [str(found.folder.parent), "best=rankme"])
    assert "does not know whether higher or lower" in said


def test_two_processes_measure_as_one(words: list[str], tmp_path: Path) -> None:
    one, two = evaluated_on_one_and_two(words, tmp_path)
    assert one["images"] == two["images"]
    for first, second in zip(one["measurements"], two["measurements"], strict=True):
        assert first.pop("value") == pytest.approx(second.pop("value"), rel=1e-5)
        assert first == second


def test_training_without_labels_is_measured_beside_untrained_weights(
    tiny: list[str], tmp_path: Path
) -> None:
    new = ("data.labels=false", "probe.every=6", ALL, "probe.views=2", "eval.images=60", "name=one")
    found = run(altered(tiny, *new))
    seen = [row for row in found.rows() if "probe/rankme" in row]
    assert [row["step"] for row in seen] == [6, 12]
    for name in NAMES:
        first, last = (row[f"probe/{name}"] for row in seen)
        assert first != last
        assert seen[0][f"probe/fresh_{name}"] == seen[1][f"probe/fresh_{name}"] != first
    written = {one["metric"]: one for one in result(found.folder)["measurements"]}
    assert written["rankme"]["n"] == 60 and "interval" not in written["rankme"]


def test_a_batch_without_readable_images_has_no_views() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    batch = Batch(torch.zeros(0, 3, 8, 8, dtype=torch.uint8), none, none, none)
    views = label_free.Views(label_free.CROPS, 0.5, True)
    assert [len(view.image) for view in views.draw(batch, 3)] == [0, 0, 0]


def test_uniformity_of_features_that_are_zero_is_nothing() -> None:
    x_N2D = torch.randn(50, 2, 8, dtype=torch.float64)
    assert math.isfinite(label_free.uniformity(x_N2D))
    x_N2D[:40] = 0
    assert math.isnan(label_free.uniformity(x_N2D))
