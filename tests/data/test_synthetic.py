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
