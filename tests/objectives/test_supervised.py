"""Labels: losses against a slow version."""

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from helpers.labelled_batches import DATA, TINY, batch, net, supervised
from ssl_vit.evaluation.held_out import HeldOutEvaluator
from ssl_vit.models import encoder
from ssl_vit.objectives.supervised.network import Supervised
from ssl_vit.training.distributed import WatchedAccelerator


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_softmax_loss_is_the_smoothed_cross_entropy(smoothing: float) -> None:
    objective, given = supervised(smoothing=smoothing), batch()
    log_probability = log_softmax(objective.logits(given).detach().double().numpy(), axis=1)
    wanted = np.full(log_probability.shape, smoothing / 5)
    wanted[np.arange(6), given.label] += 1 - smoothing
    step = objective(given)
    assert step.loss.item() == pytest.approx(-(wanted * log_probability).sum(1).mean(), rel=1e-5)
    assert step.metrics["accuracy"][0] == (log_probability.argmax(1) == given.label.numpy()).sum()


def test_the_sigmoid_loss_sums_over_classes_and_starts_improbable() -> None:
    objective, given = supervised(loss="sigmoid"), batch()
    logits = objective.logits(given).detach().double().numpy()
    sign = np.where(np.arange(5) == given.label.numpy()[:, None], 1, -1)
    assert objective(given).loss.item() == pytest.approx(
        np.log1p(np.exp(-sign * logits)).sum(1).mean(), rel=1e-5
    )
    fresh = Supervised(net(), 5, loss="sigmoid", smoothing=0.0, hidden=True, pool="token")
    assert fresh(given).loss.item() == pytest.approx(
        10 + math.log1p(math.exp(-10)) + 4 * math.log1p(math.exp(-10)), rel=1e-5
    )


def test_the_head_has_a_hidden_tanh_layer_only_where_asked_for() -> None:
    given = batch()
    plain, deep = supervised(hidden=False), supervised(hidden=True)
    assert (
        sum(p.numel() for p in deep.parameters()) - sum(p.numel() for p in plain.parameters())
        == 32 * 32 + 32
    )
    token = deep.encoder(deep.encoder.patch(given.image))[:, 0]
    by_hand = (
        torch.tanh(token @ deep.hidden[0].weight.T + deep.hidden[0].bias) @ deep.head.weight.T
        + deep.head.bias
    )
    torch.testing.assert_close(deep.logits(given), by_hand)


def test_images_without_a_label_take_no_part() -> None:
    objective, given = supervised(), batch(6)
    some = given._replace(label=torch.where(torch.arange(6) % 2 == 0, given.label, -1))
    known = given.map(lambda x: x[::2])
    assert objective(some).loss.item() == pytest.approx(objective(known).loss.item(), rel=1e-6)
    assert objective(some).metrics["loss"][1] == 3
    none = given._replace(label=torch.full((6,), -1))
    assert objective(none).loss == 0


def test_dropout_follows_the_dense_layers_but_qkv_and_the_positions() -> None:
    torch.manual_seed(0)
    backbone = encoder.build_encoder(TINY, DATA, dropout=0.25).backbone
    rates = {name: m.p for name, m in backbone.named_modules() if isinstance(m, torch.nn.Dropout)}
    on = {name for name, rate in rates.items() if rate == 0.25}
    blocks = {
        f"blocks.{i}.{name}"
        for i in range(2)
        for name in ("attn.proj_drop", "mlp.drop1", "mlp.drop2")
    }
    assert on == {"pos_drop"} | blocks
    assert all(rate == 0 for name, rate in rates.items() if name not in on)


@pytest.mark.parametrize(("loss", "classes"), [("softmax", 5), ("sigmoid", 5), ("sigmoid", 1)])
def test_guessing_is_what_an_even_guess_costs(loss: str, classes: int) -> None:
    """By the loss itself, on the logits that say 1 / C of every class."""
    made = Supervised(net(), classes, loss=loss, smoothing=0.0, hidden=False, pool="token")
    even = 0.0 if loss == "softmax" else -math.log(classes - 1) if classes > 1 else 100.0
    torch.nn.init.constant_(made.head.bias, even)
    drawn = batch()._replace(label=torch.tensor([0, -1, 0, 0, 0, 0]))
    total, count = made.baselines(drawn)["chance_loss"]
    assert float(total / count) == pytest.approx(
        float(made(drawn).metrics["loss"][0] / 5), abs=1e-6
    )
    assert float(count) == 5


def test_the_commonest_class_is_that_of_all_images_that_are_measured_on() -> None:
    """Not that of each batch, nor 1 / C: of classes 0 0 1 | 1 1 - it is 1, of 3 of 5."""
    labels = ([0, 0, 1], [1, 1, -1])
    batches = [batch(3)._replace(label=torch.tensor(label)) for label in labels]
    evaluator = HeldOutEvaluator(batches, WatchedAccelerator(cpu=True))
    assert evaluator.measure_baselines(supervised())["majority"] == (3 / 5, 5)
