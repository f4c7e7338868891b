"""Several views of each image: they follow from the sample's key alone, and each transform is the
library's with numbers of the distribution that its option says."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter
from scipy.stats import binomtest, chisquare, kstest
from torchvision.transforms.v2 import functional as F

from helpers.sources import DATA, noisy
from ssl_vit import rng
from ssl_vit.data import augment, loaders, transforms
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.batching import Batch
from ssl_vit.errors import UserError
from ssl_vit.recipe.shared_groups import ViewOptions

OFF = ViewOptions(jitter=0, grayscale=0, blur=[0, 0], solarize=[0, 0])
COUNT = 800
KEYS = rng.key(7, np.arange(COUNT))


def noise(count: int, side: int = 12) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (count, 3, side, side)
    return list(torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator))


def made(images: list[torch.Tensor], **on: object) -> torch.Tensor:
    """ViewOptions (B, V, 3, S, S) with these options, whole images (crops of all of the area), unflipped,
    so that only what is on changes a pixel."""
    views = OFF.model_copy(update=on)
    return augment.random_views(images, KEYS[: len(images)], 12, 1.0, False, views)


def pillow(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def test_a_view_without_changes_is_the_training_crop_of_its_own_key() -> None:
    images = noise(20)
    views = augment.random_views(images, KEYS[:20], 8, 0.08, True, OFF)
    for view in range(2):
        key = augment.view_keys(KEYS[:20], view)
        crops = transforms.train_transform(images, key, 8, 0.08, True)
        assert torch.equal(views[:, view], crops)
    assert not torch.equal(views[:, 0], views[:, 1])
    one = transforms.train_transform(images, KEYS[:20], 8, 0.08, True)
    assert not torch.equal(views[:, 0], one) and not torch.equal(views[:, 1], one)


def share_changed(views: torch.Tensor, view: int, images: list[torch.Tensor]) -> list[bool]:
    pairs = zip(views[:, view], images, strict=True)
    return [not torch.equal(one, image) for one, image in pairs]


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
    drawn = [share_changed(views, view, images) for view in range(2)]
    for one, chance in zip(drawn, chances, strict=True):
        assert binomtest(sum(one), COUNT, chance).pvalue > 1e-4
    if min(chances) > 0:  # by each view on its own
        both = sum(a and b for a, b in zip(*drawn, strict=True))
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


def test_the_blurs_standard_deviation_is_uniform_between_its_bounds() -> None:
    """Found again as the one of 241 whose blurred image is nearest."""
    images = noise(30)
    blurred = made(images, blur=[1.0, 0.0], blur_sigma=[0.5, 1.5])[:, 0]
    tried = np.linspace(0.4, 1.6, 241)
    found = []
    for image, one in zip(images, blurred, strict=True):
        each = [np.array(pillow(image).filter(ImageFilter.GaussianBlur(s))) for s in tried.tolist()]
        away = np.abs(np.stack(each).astype(int) - one.permute(1, 2, 0).numpy()).sum((1, 2, 3))
        assert away.min() < 0.5 * one.numel()
        found.append(tried[away.argmin()])
    assert kstest(np.array(found) - 0.5, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(
    ("name", "enhance", "strength"),
    [
        ("brightness", ImageEnhance.Brightness, 0.4),
        ("contrast", ImageEnhance.Contrast, 0.4),
        ("saturation", ImageEnhance.Color, 0.2),
    ],
)
def test_colours_change_by_uniform_factors(name: str, enhance: type, strength: float) -> None:
    """Pillow's own enhancement at a factor from 1 - strength to 1 + strength."""
    alone = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
    images = noise(30)
    changed = made(images, jitter=1.0, **alone | {name: strength})[:, 0]
    tried = np.linspace(0.5, 1.5, 201)
    found = []
    for image, one in zip(images, changed, strict=True):
        enhanced = [np.array(enhance(pillow(image)).enhance(factor)) for factor in tried]
        away = np.abs(np.stack(enhanced).astype(int) - one.permute(1, 2, 0).numpy())
        assert away.mean((1, 2, 3)).min() < 0.8
        found.append(tried[away.sum((1, 2, 3)).argmin()])
    spread = (np.array(found) - 1 + strength) / (2 * strength)
    assert kstest(spread, "uniform").pvalue > 1e-4


def test_all_orders_of_the_colour_changes_are_drawn() -> None:
    """Each view of a colour is the library's four changes in one order; all 24 come alike."""
    key = rng.stream(augment.view_keys(rng.key(7, np.arange(24 * 200)), 1), "jitter")
    order = rng.integers(key, 1, 24)
    assert chisquare(np.bincount(order, minlength=24)).pvalue > 1e-4
    images = noise(4)
    views = ViewOptions(grayscale=0, blur=[0, 0], solarize=[0, 0], jitter=1.0)
    got = augment.random_views(images, KEYS[:4], 12, 1.0, False, views)[:, 0]
    key = rng.stream(augment.view_keys(KEYS[:4], 0), "jitter")
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


def batches(layout: BatchLayout, views: ViewOptions | None, start: int = 0, workers: int = 0):
    return list(loaders.training_loader(noisy(40), DATA, layout, 0, start, 3, workers, views=views))


def test_views_do_not_depend_on_workers_processes_or_where_it_begins() -> None:
    views = ViewOptions(local=2, local_size=4)
    whole = batches(BatchLayout(12, 12, 0, 1), views)
    assert whole[0].views.shape == (12, 2, 3, 8, 8) and whole[0].local.shape == (12, 2, 3, 4, 4)
    assert torch.equal(whole[0].image, whole[0].views[:, 0])
    halves = [batches(BatchLayout(12, 6, rank, 2), views)[2] for rank in (0, 1)]
    for others in (
        batches(BatchLayout(12, 12, 0, 1), views, workers=2)[2:],
        batches(BatchLayout(12, 12, 0, 1), views, start=2),
        halves,
    ):
        assert torch.equal(torch.cat([batch.views for batch in others]), whole[2].views)
        assert torch.equal(torch.cat([batch.local for batch in others]), whole[2].local)


def test_one_view_is_what_it_was() -> None:
    (first, *_) = batches(BatchLayout(12, 12, 0, 1), None)
    assert first.views is None
    images = [torch.from_numpy(i).permute(2, 0, 1) for i in noisy(40).fetch(first.index)[0]]
    wanted = transforms.train_transform(images, first.key.numpy(), 8, 0.3, True)
    assert torch.equal(first.image, wanted)


@pytest.mark.parametrize(("count", "group"), [(30, 8), (30, 16), (40, 100)])
def test_groups_of_held_out_views_are_the_same_on_any_number_of_processes(
    count: int, group: int
) -> None:
    """While there are at least as many groups as processes; sizes differ by one at most, and
    `image` stays the evaluation's."""

    views = ViewOptions(local=1, local_size=4)

    def groups(processes: int) -> list[Batch]:
        return [
            batch
            for rank in range(processes)
            for batch in loaders.held_out_batches(
                noisy(40), DATA, BatchLayout(8, 4, rank, processes), count, views, group
            )
        ]

    one = groups(1)
    sizes = [len(batch.key) for batch in one]
    assert one[0].local.shape[1:] == (1, 3, 4, 4)
    assert sum(sizes) == count and max(sizes) <= group and max(sizes) - min(sizes) <= 1
    plain = loaders.held_out_batches(noisy(40), DATA, BatchLayout(100, 100, 0, 1), count)
    assert torch.equal(torch.cat([b.image for b in one]), plain[0].image)
    if len(one) > 1:
        by_first = {int(batch.index[0]): batch.views for batch in groups(2)}
        assert len(by_first) == len(one)
        assert all(torch.equal(by_first[int(b.index[0])], b.views) for b in one)
    assert len(groups(3)) == max(3, len(one))


def test_too_few_held_out_views_are_one_line() -> None:
    with pytest.raises(UserError, match=r"^eval.images: 3 held-out images for 2 processes; .*two"):
        loaders.held_out_batches(noisy(40), DATA, BatchLayout(8, 4, 0, 2), 3, ViewOptions(), 8)


def test_local_views_are_small_crops_of_their_own_keys() -> None:
    """Of shares within their bounds; the two others and what they draw stay as they are."""
    images = noise(40, 24)
    local = OFF.model_copy(
        update={"local": 3, "local_size": 6, "local_area": [0.05, 0.4], "local_blur": 0.0}
    )
    found = augment.local_views(images, KEYS[:40], True, local)
    assert found.shape == (40, 3, 3, 6, 6)
    for view in range(3):
        key = augment.view_keys(KEYS[:40], 2 + view)
        crops = transforms.train_transform(images, key, 6, 0.05, True, 0.4)
        assert torch.equal(found[:, view], crops)
    fewer = augment.local_views(images, KEYS[:40], True, local.model_copy(update={"local": 2}))
    assert torch.equal(fewer, found[:, :2])
    side = np.full(COUNT, 1000)
    box = transforms.crop_boxes(augment.view_keys(KEYS, 2), side, side, 0.05, 0.4)
    share = (box[:, 2] * box[:, 3] / 1000**2 - 0.05) / 0.35
    assert kstest(share, "uniform").pvalue > 1e-4
    pairs = [augment.random_views(images, KEYS[:40], 12, 0.3, True, one) for one in (OFF, local)]
    assert torch.equal(*pairs)


def test_local_views_are_blurred_with_their_own_chance_and_never_solarised() -> None:
    images = noise(COUNT, 4)
    whole = {"local": 1, "local_size": 4, "local_area": [1.0, 1.0]}
    for on, chance in (({"local_blur": 0.3}, 0.3), ({"local_blur": 0, "solarize": [1, 1]}, 0.0)):
        views = OFF.model_copy(update={**whole, **on, "blur_sigma": [0.5, 2.0]})
        found = augment.local_views(images, KEYS, False, views)
        changed = sum(share_changed(found, 0, images))
        assert binomtest(changed, COUNT, chance).pvalue > 1e-4
