"""The embedded set: the same scene however it is asked for, and neither colours nor neighbours give
the answer away."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from ssl_vit import rng
from ssl_vit.data import synthetic


def patch_bins(image_BHWC, patch):
    """3-bit bins of the patches' mean colours, int64 (B, rows, columns, 3), and the byte sums
    behind them."""
    side = image_BHWC.shape[1] // patch
    sums = image_BHWC.reshape(-1, side, patch, side, patch, 3).sum((2, 4), dtype=np.int64)
    return np.minimum(8 * sums // (255 * patch**2), 7), sums


def color_class(bins):
    return bins @ np.array([64, 8, 1])


def figures(index, size):
    """Masks of the shapes alone, as shares of each pixel."""
    key = rng.stream(rng.key(0, index), "outline")
    return synthetic._figure(key, synthetic.labels(index), size)


def linear_accuracy(features, label):
    half = len(label) // 2
    model = LogisticRegression(C=1e-2, max_iter=200).fit(features[:half], label[:half])
    return model.score(features[half:], label[half:])


def test_a_image_is_the_same_alone_in_a_batch_and_again():
    index = np.array([49_999, 3, 3, *range(70)])
    batch = synthetic.render(index, 64)
    assert batch.dtype == np.uint8 and batch.shape == (73, 64, 64, 3)
    for i, alone in enumerate(index[:40]):
        assert np.array_equal(batch[i], synthetic.render(np.array([alone]), 64)[0])


@pytest.mark.parametrize("size", [64, 32, 48])
def test_a_larger_size_shows_the_same_scene(size):
    index = np.arange(50)
    large = synthetic.render(index, 2 * size).reshape(50, size, 2, size, 2, 3).mean((2, 4))
    error = np.abs(large - synthetic.render(index, size))
    assert error.mean() < 1.5  # bytes; only pixels on an edge differ
    assert error.mean() < np.abs(large - synthetic.render(index + 10, size)).mean() / 30


@pytest.mark.parametrize("split", synthetic.SIZES)
def test_labels_are_balanced(split):
    label = synthetic.labels(np.arange(synthetic.SIZES[split]))
    assert label.dtype == np.int64
    assert (
        np.bincount(label).tolist() == [synthetic.SIZES[split] // 10] * len(synthetic.CLASSES)
        and len(synthetic.CLASSES) == 10
    )


def test_no_image_is_in_two_splits():
    images = [
        image.tobytes()
        for split in synthetic.SIZES
        for image in synthetic.render(np.arange(1000), 16, split)
    ]
    assert len(set(images)) == 3000


def test_the_shape_drawn_is_the_labels():
    index = np.arange(2000)
    mask, label = figures(index, 32).reshape(2000, -1), synthetic.labels(index)
    distance = (mask**2).sum(1) - 2 * mask[:200] @ mask.T
    distance[np.arange(200), np.arange(200)] = np.inf
    # of the nearest other mask; chance 0.1
    assert (label[distance.argmin(1)] == label[:200]).mean() > 0.6


def test_every_outline_is_its_own_and_covers_the_unit_area():
    x, y = np.meshgrid(*[(np.arange(400) + 0.5) / 200 - 1] * 2)
    masks = [outline(x * side, y * side) < 0 for outline, side in synthetic.OUTLINES.values()]
    for i, mask in enumerate(masks):
        assert mask.sum() / 200**2 == pytest.approx(1, abs=0.01), synthetic.CLASSES[i]
        assert all((mask ^ other).sum() / 200**2 > 0.15 for other in masks[:i]), synthetic.CLASSES[
            i
        ]


def test_neither_colors_nor_the_figures_share_tell_the_class():
    index = np.arange(6000)
    bins, _ = patch_bins(synthetic.render(index, 32), 1)
    histogram = (
        np.stack([np.bincount(row.ravel(), minlength=512) for row in color_class(bins)]) / 32**2
    )
    share = figures(index, 32).mean((1, 2))[:, None]
    label = synthetic.labels(index)
    assert linear_accuracy(np.sqrt(histogram), label) < 0.13  # chance 0.10, standard error 0.006
    assert linear_accuracy((share - share.mean()) / share.std(), label) < 0.13


def test_patch_colors_are_many_and_neighbors_do_not_tell_them():
    bins, sums = patch_bins(synthetic.render(np.arange(2000), 64), 8)
    share = np.bincount(color_class(bins).ravel(), minlength=512) / bins[..., 0].size
    assert -(share[share > 0] * np.log(share[share > 0])).sum() > 4
    assert share.max() < 0.05
    around = (
        sum(sums[:, a : a + 6, b : b + 6] for a in range(3) for b in range(3)) - sums[:, 1:-1, 1:-1]
    )
    guess = np.minimum(8 * around // (255 * 8 * 64), 7)
    assert (guess == bins[:, 1:-1, 1:-1]).all(-1).mean() < 0.2


def test_colors_stay_in_their_bins_under_the_light():
    bins, _ = patch_bins(synthetic.render(np.arange(200), 64), 1)
    # the rest are pixels on edges
    assert np.isin(color_class(bins), synthetic.PALETTE).mean() > 0.8


@pytest.mark.parametrize("size", [64, 32])
def test_masks_are_of_the_shapes_that_are_drawn(size):
    """The class is the image's; the shape is where the picture's figure covers half a pixel."""
    index = np.arange(70)
    mask = synthetic.masks(index, size)
    assert mask.dtype == np.uint8 and mask.shape == (70, size, size)
    inside = figures(index, size) >= 0.5
    assert np.array_equal(mask > 0, inside)
    for one, label in zip(mask, synthetic.labels(index), strict=True):
        assert set(np.unique(one)) == {0, label + 1}
        assert synthetic.MASK_CLASSES[label + 1] == synthetic.CLASSES[label]
    share = (mask > 0).mean((1, 2))
    assert share.min() > 0.42**2 - 0.02 and share.max() < 0.54**2 + 0.02
    assert np.array_equal(synthetic.masks(index[5:6], size)[0], mask[5])
