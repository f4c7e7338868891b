"""Images mixed in pairs: shares and pixels against a slow version, labels weighed as the pixels
are, all from the key."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import beta, kstest

from helpers.labelled_batches import batch, supervised
from helpers.sources import DATA, noisy
from ssl_vit.data import batching, transforms
from ssl_vit.data.batching import Batch
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
    assume(mixup or cutmix)
    image, other, key = pair(16, seed)
    mixed, share = transforms.mix_pairs(image, other, key, mixup, cutmix)
    assert mixed.dtype == torch.uint8 and share.dtype == torch.float32
    assert ((share >= 0) & (share <= 1)).all()
    for i in range(16):
        blend = share[i] * image[i] + (1 - share[i]) * other[i]
        blended = (mixed[i] - blend).abs().max() <= 0.5 + 1e-4
        own, its = (mixed[i] == image[i]).all(0), (mixed[i] == other[i]).all(0)
        is_share = abs(float(its.double().mean()) - (1 - float(share[i]))) < 0.02
        pasted = bool((own | its).all()) and is_share
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


MIXED = DATA.model_copy(update={"mixup": 0.8, "cutmix": 1.0})


def drawn_batch(data: Data, samples: batching.Samples, train: bool = True) -> Batch:
    return batching.ImageDataset(noisy(50), data, train).__getitems__(samples)


def test_a_sample_is_mixed_alike_wherever_it_lies_and_only_in_training() -> None:
    whole = batching.samples_at(0, 12, 50, seed=3)
    a = drawn_batch(MIXED, whole)
    b = drawn_batch(MIXED, batching.Samples(whole.index[[7, 2]], whole.key[[7, 2]]))
    for name in ("image", "label", "partner_label", "mix_lambda"):
        assert torch.equal(getattr(a, name)[[7, 2]], getattr(b, name))
    plain = drawn_batch(DATA, whole)
    assert plain.partner_label is None and torch.equal(plain.label, a.label)
    held_out = drawn_batch(MIXED, whole, train=False)
    assert torch.equal(held_out.image, drawn_batch(DATA, whole, train=False).image)
    assert held_out.mix_lambda is None


def test_the_loss_is_that_of_the_mixed_labels(tmp_path) -> None:
    """Cross-entropy against the soft label, worked out apart."""
    made, drawn = supervised(smoothing=0.1), batch()
    partner, share = drawn.label.flip(0), torch.linspace(0, 1, 6)
    mixed = drawn._replace(partner_label=partner, mix_lambda=share)
    soft = share[:, None] * torch.eye(5)[drawn.label] + (1 - share[:, None]) * torch.eye(5)[partner]
    soft = 0.9 * soft + 0.1 / 5
    wanted = -(soft * made.logits(drawn).log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(made(mixed).loss.float(), wanted, atol=1e-6, rtol=1e-5)


def test_a_batch_maps_all_that_has_an_entry_for_each_sample() -> None:
    x = torch.zeros(2)
    fields = dict.fromkeys(Batch._fields, x) | {"unreadable": ("one",)}
    moved = Batch(**fields).map(lambda t: t + 1)._asdict()
    assert moved.pop("unreadable") == ("one",) and moved.pop("loss_denominator") is x
    assert all(torch.equal(value, x + 1) for value in moved.values())


def test_the_words_reach_the_recipe() -> None:
    assert resolve(["recipe=supervised", "data.mixup=0.8", "data.cutmix=1"]).data.cutmix == 1.0
