"""Images mixed in pairs: shares and pixels against a slow version, labels weighed as the pixels
are, all from the key."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, kstest

from helpers.labelled_batches import batch, supervised
from ssl_vit.data import batching, transforms
from ssl_vit.data.batching import Batch
from ssl_vit.data.sources import SyntheticImages
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.schema import Data

SIZE = 8


def pair(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    both = rng.integers(0, 256, (2, count, 3, SIZE, SIZE), dtype=np.uint8)
    image, other = torch.from_numpy(both)
    return image, other, rng.integers(-(2**62), 2**62, count)


@settings(max_examples=30)
@given(
    mixup=st.sampled_from([0.0, 0.2, 0.8, 1.0]),
    cutmix=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_every_pixel_is_what_its_share_says(mixup: float, cutmix: float, seed: int) -> None:
    if not mixup and not cutmix:
        return
    image, other, key = pair(16, seed)
    mixed, share = transforms.mix_pairs(image, other, key, mixup, cutmix)
    assert (
        mixed.dtype == torch.uint8
        and share.dtype == torch.float32
        and ((share >= 0) & (share <= 1)).all()
    )
    for i in range(16):
        blend = share[i] * image[i] + (1 - share[i]) * other[i]
        blended = (mixed[i] - blend).abs().max() <= 0.5 + 1e-4
        own, its = (mixed[i] == image[i]).all(0), (mixed[i] == other[i]).all(0)
        pasted = (
            bool((own | its).all())
            and abs(float(its.double().mean()) - (1 - float(share[i]))) < 0.02
        )
        assert (blended and mixup) or (pasted and cutmix)


def test_what_is_pasted_is_one_box() -> None:
    image, other, key = pair(64)
    mixed, share = transforms.mix_pairs(image, other, key, 0.0, 1.0)
    for i in range(64):
        inside = (mixed[i] != image[i]).any(0).numpy()
        rows, columns = inside.any(1), inside.any(0)
        assert (inside == rows[:, None] & columns[None, :]).all()
        for line in (rows, columns):
            assert np.abs(np.diff(line.astype(int))).sum() <= 2  # in one piece
        assert 1 - inside.mean() == pytest.approx(float(share[i]), abs=1e-6)


@pytest.mark.parametrize("a", [0.2, 0.8, 1.0])
def test_shares_are_beta_distributed(a: float) -> None:
    share = transforms._beta(np.random.default_rng(0).integers(-(2**62), 2**62, 4000), a)
    assert kstest(share, beta(a, a).cdf).pvalue > 1e-3


def test_with_both_either_is_as_likely() -> None:
    image, other, key = pair(2000)
    mixed, _ = transforms.mix_pairs(image, other, key, 1.0, 1.0)
    cut = ((mixed == image) | (mixed == other)).all(1).all(1).all(1).double().mean()
    assert 0.46 < cut < 0.54


def test_a_sample_is_mixed_alike_wherever_it_lies() -> None:
    data = Data(size=16, mixup=0.8, cutmix=1.0)
    source = batching.ImageDataset(SyntheticImages("train", 16), data, train=True)
    whole = batching.samples_at(0, 12, 50_000, seed=3)
    some = batching.Samples(whole.index[[7, 2]], whole.key[[7, 2]])
    a, b = source.__getitems__(whole), source.__getitems__(some)
    assert (
        a.mix_lambda is not None
        and a.partner_label is not None
        and b.mix_lambda is not None
        and b.partner_label is not None
    )
    assert torch.equal(a.image[[7, 2]], b.image) and torch.equal(a.mix_lambda[[7, 2]], b.mix_lambda)
    assert torch.equal(a.partner_label[[7, 2]], b.partner_label)
    plain = batching.ImageDataset(
        SyntheticImages("train", 16), Data(size=16), train=True
    ).__getitems__(whole)
    assert plain.partner_label is None and torch.equal(plain.label, a.label)


def test_held_out_images_are_never_mixed() -> None:
    source = batching.ImageDataset(
        SyntheticImages("validation", 16), Data(size=16, mixup=0.8), train=False
    )
    assert source.__getitems__(batching.samples_at(0, 4, 5_000, seed=3)).mix_lambda is None


def test_the_loss_is_that_of_the_mixed_labels(tmp_path) -> None:
    """Cross-entropy against the soft label, worked out apart."""
    made, drawn = supervised(smoothing=0.1), batch()
    partner, share = drawn.label.flip(0), torch.linspace(0, 1, 6)
    mixed = drawn._replace(partner_label=partner, mix_lambda=share)
    soft = share[:, None] * torch.eye(5)[drawn.label] + (1 - share[:, None]) * torch.eye(5)[partner]
    soft = 0.9 * soft + 0.1 / 5
    wanted = -(soft * made.logits(drawn).log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(made(mixed).loss.float(), wanted, atol=1e-6, rtol=1e-5)


def test_a_batch_maps_its_partners_too() -> None:
    x = torch.zeros(2, dtype=torch.int64)
    moved = Batch(x, x, x, x, partner_label=x, mix_lambda=x.float()).map(lambda t: t + 1)
    assert (
        moved.partner_label is not None
        and moved.mix_lambda is not None
        and moved.partner_label.sum() == 2
        and moved.mix_lambda.sum() == 2
    )


def test_the_words_reach_the_recipe() -> None:
    assert resolve(["recipe=supervised", "data.mixup=0.8", "data.cutmix=1"]).data.cutmix == 1.0
