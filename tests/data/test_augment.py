"""Several views of each image: they follow from the sample's key alone, and each transform is the
library's with numbers of the distribution that its option says."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter
from scipy.stats import binomtest, chisquare, kstest
from torchvision.transforms.v2 import functional as F

from helpers.resolving import resolve
from helpers.sources import listed
from ssl_vit import rng
from ssl_vit.data import transforms
from ssl_vit.data.batching import Batch, ImageDataset, Samples
from ssl_vit.recipe.schema import Data

VIEWS = resolve(["recipe=moco_v3"]).groups["views"]
OFF = {"jitter": 0, "grayscale": 0, "blur": [0, 0], "solarize": [0, 0]}
COUNT = 800
KEYS = rng.key(7, np.arange(COUNT))
ORDERS = list(itertools.permutations(range(4)))


def view_keys(view: int, key_B: np.ndarray = KEYS) -> np.ndarray:
    return rng.bits(rng.stream(key_B, "view"), view)


def noise(count: int, side: int = 12) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def batch_of(
    images: np.ndarray, key_B: np.ndarray = KEYS, views: dict | None = None, **data
) -> Batch:
    """Views with these options; by default of whole images (crops of all of the area), unflipped,
    so that only what is on changes a pixel."""
    data = Data(**({"size": 12, "crop_area": 1.0, "flip": False} | data))
    options = None if views is None else VIEWS.model_copy(update=OFF | views)
    rows = np.arange(len(images))
    made = ImageDataset(listed(images), data, train=True, views=options)
    return made.__getitems__(Samples(rows, key_B[: len(images)]))


def first_view(images: np.ndarray, **on: object) -> np.ndarray:
    """(B, H, W, 3)."""
    return batch_of(images, views=on).views[:, 0].permute(0, 2, 3, 1).numpy()


def changed(view_BCHW: torch.Tensor, images: np.ndarray) -> np.ndarray:
    """Which images a view differs from."""
    return (view_BCHW.permute(0, 2, 3, 1).numpy() != images).any((1, 2, 3))


def test_a_view_without_changes_is_the_training_crop_of_its_own_key() -> None:
    images, crop = noise(20), {"size": 8, "crop_area": 0.08, "flip": True}
    views = batch_of(images, views={}, **crop).views
    for view in range(2):
        assert torch.equal(views[:, view], batch_of(images, view_keys(view), **crop).image)
    one = batch_of(images, **crop).image
    for some, others in itertools.combinations((views[:, 0], views[:, 1], one), 2):
        assert not torch.equal(some, others)


@pytest.mark.parametrize(
    ("on", "chances"),
    [
        ({"jitter": 0.8}, (0.8, 0.8)),
        ({"grayscale": 0.2}, (0.2, 0.2)),
        ({"blur": [1.0, 0.1], "blur_sigma": [0.5, 2.0]}, (1.0, 0.1)),
        ({"solarize": [0.0, 0.2]}, (0.0, 0.2)),
    ],
)
def test_each_change_is_drawn_with_its_chance(on: dict, chances: tuple[float, float]) -> None:
    images = noise(COUNT)
    views = batch_of(images, views=on).views
    drawn = [changed(views[:, view], images) for view in range(2)]
    for one, chance in zip(drawn, chances, strict=True):
        assert binomtest(int(one.sum()), COUNT, chance).pvalue > 1e-4
    if min(chances) > 0:  # by each view on its own
        both = int((drawn[0] & drawn[1]).sum())
        assert binomtest(both, COUNT, chances[0] * chances[1]).pvalue > 1e-4


def test_grey_and_solarised_pixels() -> None:
    images = noise(6)
    for one, image in zip(first_view(images, grayscale=1.0), images, strict=True):
        wanted = Image.fromarray(image).convert("L").convert("RGB")
        assert np.array_equal(one, wanted)
    wanted = np.where(images >= 128, 255 - images, images)
    assert np.array_equal(first_view(images, solarize=[1.0, 0.0]), wanted)


def test_the_blur_is_pillows_of_a_uniform_standard_deviation_between_its_bounds() -> None:
    images = noise(8)
    blurred = first_view(images, blur=[1.0, 0.0], blur_sigma=[0.5, 1.5])
    share_B = rng.uniform(rng.stream(view_keys(0), "blur"), 1)
    for one, image, share in zip(blurred, images, share_B[:8], strict=True):
        wanted = Image.fromarray(image).filter(ImageFilter.GaussianBlur(float(0.5 + share)))
        assert np.array_equal(one, wanted)


def test_all_orders_of_the_colour_changes_are_drawn() -> None:
    """Each view of a colour is the library's four changes in one order; all 24 come alike."""
    key = rng.stream(view_keys(1, rng.key(7, np.arange(24 * 200))), "jitter")
    order = rng.integers(key, 1, 24)
    assert chisquare(np.bincount(order, minlength=24)).pvalue > 1e-4
    images = noise(12)
    got = first_view(images, jitter=1.0)
    key = rng.stream(view_keys(0), "jitter")
    for i, image in enumerate(images):
        by = [(2 * rng.uniform(key, 2 + n)[i] - 1) * s for n, s in enumerate((0.4, 0.4, 0.2, 0.1))]
        one = Image.fromarray(image)
        for which in ORDERS[rng.integers(key, 1, 24)[i]]:
            if which == 3:
                one = F.adjust_hue(one, by[3])
            else:
                kind = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[which]
                one = kind(one).enhance(1 + by[which])
        assert np.array_equal(one, got[i])


def test_local_views_are_small_crops_of_their_own_keys() -> None:
    """Of shares within their bounds; the two others and what they draw stay as they are."""
    images, crop = noise(40, 24), {"crop_area": 0.3, "flip": True}
    local = {"local": 3, "local_size": 6, "local_area": [0.05, 0.4], "local_blur": 0.0}
    found = batch_of(images, views=local, **crop)
    given = list(torch.from_numpy(images).permute(0, 3, 1, 2))
    for view in range(3):
        crops = transforms.train_transform(given, view_keys(2 + view)[:40], 6, 0.05, True, 0.4)
        assert torch.equal(found.local[:, view], crops)
    side = np.full(COUNT, 1000)
    box = transforms.crop_boxes(view_keys(2), side, side, 0.05, 0.4)
    share = (box[:, 2] * box[:, 3] / 1000**2 - 0.05) / 0.35
    assert kstest(share, "uniform").pvalue > 1e-4
    assert torch.equal(found.views, batch_of(images, views={}, **crop).views)


@pytest.mark.parametrize(
    ("on", "chance"), [({"local_blur": 0.3}, 0.3), ({"local_blur": 0, "solarize": [1, 1]}, 0.0)]
)
def test_local_views_are_blurred_with_their_own_chance_and_never_solarised(
    on: dict, chance: float
) -> None:
    images = noise(COUNT, 4)
    whole = {"local": 1, "local_size": 4, "local_area": [1.0, 1.0], "blur_sigma": [0.5, 2.0]}
    found = batch_of(images, views=whole | on, size=4).local
    count = int(changed(found[:, 0], images).sum())
    assert binomtest(count, COUNT, chance).pvalue > 1e-4


def test_views_of_16_bits_are_crops_and_the_blur() -> None:
    images = noise(2, 20).astype(np.uint16) * 257
    crop = {"size": 8, "crop_area": 0.3, "flip": True, "range": [0, 65535]}
    on = {"jitter": 1.0, "grayscale": 1.0, "solarize": [1, 1]}
    views = batch_of(images, views=on, **crop).views
    for view in range(2):
        assert torch.equal(views[:, view], batch_of(images, view_keys(view), **crop).image)
    blurred = batch_of(images, views=on | {"blur": [1.0, 0.0]}, **crop).views
    assert torch.equal(blurred[:, 1], views[:, 1]) and blurred.dtype == torch.int32
    spread = [one[:, 0].flatten(2).float().std(-1) for one in (blurred, views)]
    assert (spread[0] < spread[1]).all()
    means = [one[:, 0].float().mean().item() for one in (blurred, views)]
    assert means[0] == pytest.approx(means[1], rel=0.02)
