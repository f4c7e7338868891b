"""Which samples form a step, and what is in a batch: known without the past, whatever cannot be
read."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.sources import DATA, noisy
from ssl_vit.data import batching
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.batching import Batch, ImageDataset, Samples, samples_at
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data

MIXED = DATA.model_copy(update={"mixup": 0.8, "cutmix": 1.0})


def drawn(data: Data, samples: Samples, train: bool = True) -> Batch:
    return ImageDataset(noisy(50), data, train).__getitems__(samples)


@settings(max_examples=60)
@given(st.integers(1, 500), st.integers(0, 2**31), st.integers(0, 10**6))
def test_every_epoch_is_a_permutation(length: int, seed: int, epoch: int) -> None:
    stream = samples_at(epoch * length, length, length, seed)
    assert stream.index.dtype == stream.key.dtype == np.int64
    assert np.array_equal(np.sort(stream.index), np.arange(length))


@settings(max_examples=60)
@given(
    st.integers(1, 60), st.integers(0, 300), st.lists(st.integers(1, 40), min_size=1, max_size=8)
)
def test_the_stream_is_the_same_however_it_is_cut(
    length: int, first: int, counts: list[int]
) -> None:
    starts = first + np.cumsum([0, *counts[:-1]])
    parts = [samples_at(at, n, length, 3) for at, n in zip(starts, counts, strict=True)]
    known = samples_at(first, sum(counts), length, 3)
    for joined, right in zip(map(np.concatenate, zip(*parts, strict=True)), known, strict=True):
        assert np.array_equal(joined, right)


def test_epochs_and_seeds_have_their_own_orders_and_keys() -> None:
    streams = [samples_at(epoch * 100, 100, 100, seed) for seed in (0, 1) for epoch in range(3)]
    assert len({key for s in streams for key in s.key.tolist()}) == 600
    moved = [np.mean(a.index == b.index) for a, b in itertools.combinations(streams, 2)]
    assert max(moved) < 0.06  # 0.01 expected


@settings(max_examples=80)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 9))
def test_the_largest_device_batch_that_fits_is_taken(
    share: int, limit: int, processes: int
) -> None:
    got = BatchLayout.divide(share * processes, None, limit, processes - 1, processes)
    assert got[2:] == (processes - 1, processes)
    assert got.device_batch <= limit and share == got.device_batch * got.accumulation_steps
    assert not any(share % d == 0 for d in range(got.device_batch + 1, min(limit, share) + 1))


def test_a_wanted_device_batch_is_taken_whatever_fits_if_it_divides() -> None:
    assert BatchLayout.divide(128, 32, 1, 1, 2) == BatchLayout(128, 32, 1, 2)
    for batch, wanted, processes, key in (
        (10, None, 3, "optim.batch=10"),
        (12, 5, 1, "compute.batch=5"),
        (8, 8, 2, "compute.batch=8"),
    ):
        with pytest.raises(UserError, match=f"^{key}: "):
            BatchLayout.divide(batch, wanted, 100, 0, processes)


def test_a_batch_holds_the_images_that_it_names() -> None:
    """In training, and untouched where nothing is to be cut."""
    samples = samples_at(0, 12, 50, 0)
    batch = drawn(DATA, samples)
    assert batch.image.dtype == torch.uint8 and batch.image.shape == (12, 3, 8, 8)
    assert torch.equal(batch.label, 7 * batch.index + 1)
    assert all(field.dtype == torch.int64 for field in batch[1:4])
    fixed = drawn(DATA, samples, train=False)
    assert np.array_equal(
        fixed.image.permute(0, 2, 3, 1), np.stack(noisy(50).fetch(samples.index)[0])
    )


def test_a_sample_is_mixed_alike_wherever_it_lies_and_only_in_training() -> None:
    whole = samples_at(0, 12, 50, seed=3)
    a = drawn(MIXED, whole)
    b = drawn(MIXED, Samples(whole.index[[7, 2]], whole.key[[7, 2]]))
    for name in ("image", "label", "partner_label", "mix_lambda"):
        assert torch.equal(getattr(a, name)[[7, 2]], getattr(b, name))
    plain = drawn(DATA, whole)
    assert plain.partner_label is None and torch.equal(plain.label, a.label)
    assert not torch.equal(plain.image, a.image)
    held_out = drawn(MIXED, whole, train=False)
    assert torch.equal(held_out.image, drawn(DATA, whole, train=False).image)
    assert held_out.mix_lambda is None


def test_a_larger_share_is_no_remedy_where_no_image_can_be_read() -> None:
    one, all_of_them = (DATA.model_copy(update={"unreadable": share}) for share in (0.01, 1.0))
    batching.check_unreadable(10, 400, one, ["a"])  # of 1,000
    batching.check_unreadable(4, 24, one, ["a"])
    with pytest.raises(UserError, match=r"11 of 400 .* at most 10 .*data\.unreadable=.*: a"):
        batching.check_unreadable(11, 400, one, ["a"])
    with pytest.raises(UserError, match=r"3 of 3 images .*: a"):
        batching.check_unreadable(3, 3, all_of_them, ["a"])
    # the last one alone told nothing of what they have in common
    with pytest.raises(UserError, match=r"0\.png, 1\.png, 2\.png.* more"):
        batching.check_unreadable(37, 1000, DATA, [f"{n}.png" for n in range(37)])
