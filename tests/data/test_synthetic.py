"""The embedded set: the same scene however it is asked for. Its pixels are frozen (tests/freeze)."""

import numpy as np
import pytest

from ssl_vit.data import synthetic


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
