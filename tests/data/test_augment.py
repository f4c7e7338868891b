"""Several views of each image: they follow from the sample's key alone, and each transform is the
library's with numbers of the distribution that its option says."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter
from scipy.stats import binomtest, chisquare, kstest
from torchvision.transforms.v2 import functional as F

from ssl_vit import rng
from ssl_vit.data import augment, transforms
from ssl_vit.recipe.shared_groups import ViewOptions

OFF = ViewOptions(jitter=0, grayscale=0, blur=[0, 0], solarize=[0, 0])
COUNT = 800
KEYS = rng.key(7, np.arange(COUNT))


def noise(count: int, side: int = 12) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (count, 3, side, side)
    return list(torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator))


def made(images: list[torch.Tensor], **on: object) -> torch.Tensor:
    """Views (B, V, 3, S, S) with these options, whole images (crops of all of the area), unflipped,
    so that only what is on changes a pixel."""
    views = OFF.model_copy(update=on)
    return augment.random_views(images, KEYS[: len(images)], 12, 1.0, False, views)


def pillow(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def changed(view_B: torch.Tensor, images: list[torch.Tensor]) -> np.ndarray:
    """Which images a view differs from."""
    return (view_B != torch.stack(images)).flatten(1).any(1).numpy()


def test_a_view_without_changes_is_the_training_crop_of_its_own_key() -> None:
    images = noise(20)
    views = augment.random_views(images, KEYS[:20], 8, 0.08, True, OFF)
    for view in range(2):
        key = augment.view_keys(KEYS[:20], view)
        crops = transforms.train_transform(images, key, 8, 0.08, True)
        assert torch.equal(views[:, view], crops)
    one = transforms.train_transform(images, KEYS[:20], 8, 0.08, True)
    for some, others in ((views[:, 0], views[:, 1]), (views[:, 0], one), (views[:, 1], one)):
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
    views = made(images, **on)
    drawn = [changed(views[:, view], images) for view in range(2)]
    for one, chance in zip(drawn, chances, strict=True):
        assert binomtest(int(one.sum()), COUNT, chance).pvalue > 1e-4
    if min(chances) > 0:  # by each view on its own
        both = int((drawn[0] & drawn[1]).sum())
        assert binomtest(both, COUNT, chances[0] * chances[1]).pvalue > 1e-4


def test_grey_and_solarised_pixels() -> None:
    images = noise(6)
    grey = made(images, grayscale=1.0)[:, 0]
    for one, image in zip(grey, images, strict=True):
        wanted = torch.from_numpy(np.array(pillow(image).convert("L")))
        assert all(torch.equal(channel, wanted) for channel in one)
    image_B = torch.stack(images)
    wanted_B = torch.where(image_B >= 128, 255 - image_B, image_B)
    assert torch.equal(made(images, solarize=[1.0, 0.0])[:, 0], wanted_B)


def test_the_blur_is_pillows_of_a_uniform_standard_deviation_between_its_bounds() -> None:
    images = noise(8)
    blurred = made(images, blur=[1.0, 0.0], blur_sigma=[0.5, 1.5])[:, 0]
    key = rng.stream(augment.view_keys(KEYS[:8], 0), "blur")
    for one, image, share in zip(blurred, images, rng.uniform(key, 1), strict=True):
        wanted = pillow(image).filter(ImageFilter.GaussianBlur(float(0.5 + share)))
        assert np.array_equal(np.array(wanted), one.permute(1, 2, 0).numpy())


def test_all_orders_of_the_colour_changes_are_drawn() -> None:
    """Each view of a colour is the library's four changes in one order; all 24 come alike."""
    key = rng.stream(augment.view_keys(rng.key(7, np.arange(24 * 200)), 1), "jitter")
    order = rng.integers(key, 1, 24)
    assert chisquare(np.bincount(order, minlength=24)).pvalue > 1e-4
    images = noise(12)
    views = ViewOptions(grayscale=0, blur=[0, 0], solarize=[0, 0], jitter=1.0)
    got = augment.random_views(images, KEYS[:12], 12, 1.0, False, views)[:, 0]
    key = rng.stream(augment.view_keys(KEYS[:12], 0), "jitter")
    for i, image in enumerate(images):
        by = [(2 * rng.uniform(key, 2 + n)[i] - 1) * s for n, s in enumerate((0.4, 0.4, 0.2, 0.1))]
        one = pillow(image)
        for which in augment.ORDERS[rng.integers(key, 1, 24)[i]]:
            if which == 3:
                one = F.adjust_hue(one, by[3])
            else:
                kind = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[which]
                one = kind(one).enhance(1 + by[which])
        assert np.array_equal(np.array(one), got[i].permute(1, 2, 0).numpy())


def test_local_views_are_small_crops_of_their_own_keys() -> None:
    """Of shares within their bounds; the two others and what they draw stay as they are."""
    images = noise(40, 24)
    local = OFF.model_copy(
        update={"local": 3, "local_size": 6, "local_area": [0.05, 0.4], "local_blur": 0.0}
    )
    found = augment.local_views(images, KEYS[:40], True, local)
    for view in range(3):
        key = augment.view_keys(KEYS[:40], 2 + view)
        crops = transforms.train_transform(images, key, 6, 0.05, True, 0.4)
        assert torch.equal(found[:, view], crops)
    side = np.full(COUNT, 1000)
    box = transforms.crop_boxes(augment.view_keys(KEYS, 2), side, side, 0.05, 0.4)
    share = (box[:, 2] * box[:, 3] / 1000**2 - 0.05) / 0.35
    assert kstest(share, "uniform").pvalue > 1e-4
    pairs = [augment.random_views(images, KEYS[:40], 12, 0.3, True, one) for one in (OFF, local)]
    assert torch.equal(*pairs)


@pytest.mark.parametrize(
    ("on", "chance"), [({"local_blur": 0.3}, 0.3), ({"local_blur": 0, "solarize": [1, 1]}, 0.0)]
)
def test_local_views_are_blurred_with_their_own_chance_and_never_solarised(
    on: dict, chance: float
) -> None:
    images = noise(COUNT, 4)
    whole = {"local": 1, "local_size": 4, "local_area": [1.0, 1.0], "blur_sigma": [0.5, 2.0]}
    found = augment.local_views(images, KEYS, False, OFF.model_copy(update={**whole, **on}))
    count = int(changed(found[:, 0], images).sum())
    assert binomtest(count, COUNT, chance).pvalue > 1e-4


def test_views_of_16_bits_are_crops_and_the_blur() -> None:
    images = [one.int() * 257 for one in noise(2, 20)]
    plain = OFF.model_copy()
    views = augment.random_views(images, KEYS[:2], 8, 0.3, True, plain)
    for view in range(augment.VIEWS):
        keys = augment.view_keys(KEYS[:2], view)
        assert torch.equal(views[:, view], transforms.train_transform(images, keys, 8, 0.3, True))
    plain.blur = [1.0, 0.0]
    blurred = augment.random_views(images, KEYS[:2], 8, 0.3, True, plain)
    assert torch.equal(blurred[:, 1], views[:, 1]) and blurred.dtype == torch.int32
    spread = [one[:, 0].flatten(2).float().std(-1) for one in (blurred, views)]
    assert (spread[0] < spread[1]).all()
    means = [one[:, 0].float().mean().item() for one in (blurred, views)]
    assert means[0] == pytest.approx(means[1], rel=0.02)
