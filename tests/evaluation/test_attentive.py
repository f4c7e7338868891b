"""The attentive probe against torch's attention and optimiser, and where only attention can help."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers import plain_sgd
from ssl_vit.data.batching import Batch
from ssl_vit.evaluation import attentive, probes
from ssl_vit.evaluation.attentive import AttentiveProbe, TrainingTokens
from ssl_vit.recipe.schema import Probe
from ssl_vit.training.distributed import WatchedAccelerator

CPU = torch.device("cpu")


def overlapping(rows: int = 90, tokens: int = 7, width: int = 6) -> TrainingTokens:
    """Three classes; tokens of very different mean and deviation, as an encoder's are."""
    draw = torch.Generator().manual_seed(0)
    label_N = torch.arange(rows) % 3
    x_NTD = torch.randn(rows, tokens, width, generator=draw) + F.one_hot(label_N, width)[:, None]
    x_NTD = x_NTD * torch.logspace(-1, 1, width) + torch.linspace(-5, 5, width)
    return TrainingTokens(x_NTD.to(attentive.STORAGE_TYPE), label_N)


def fit(tokens: TrainingTokens, *rates: float, steps: int = 30, batch: int = 32) -> AttentiveProbe:
    probe = Probe.model_construct(rates=[*rates], steps=steps, batch=batch)  # also without bounds
    return attentive.train(tokens, 2, 3, probe, CPU)


class Head(nn.Module):
    """torch's attention of one head whose projections do nothing, and a linear layer."""

    def __init__(self, query_D: torch.Tensor, classes: int) -> None:
        super().__init__()
        width = len(query_D)
        self.query_D = nn.Parameter(query_D.clone())
        self.attention = nn.MultiheadAttention(width, 1, batch_first=True)
        self.linear = nn.Linear(width, classes)
        nothing = torch.eye(width).repeat(3, 1)
        self.attention.in_proj_weight = nn.Parameter(nothing, requires_grad=False)
        self.attention.out_proj.weight = nn.Parameter(torch.eye(width), requires_grad=False)
        for bias in (self.attention.in_proj_bias, self.attention.out_proj.bias):
            bias.requires_grad_(False)
        for zero in (self.linear.weight, self.linear.bias):
            nn.init.zeros_(zero)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        query_B1D = self.query_D.expand(len(x_BTD), 1, -1)
        return self.linear(self.attention(query_B1D, x_BTD, x_BTD)[0][:, 0])


@pytest.mark.parametrize("chunk", [2**25, 100])
def test_training_is_torchs_attention_and_sgd_on_the_same_batches(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rate by itself, also where a batch is computed in parts."""
    monkeypatch.setattr(probes, "ELEMENTS", chunk)
    tokens, rates, steps, batch = overlapping(), [0.1, 1.0], 40, 32
    x_NTD = tokens.x_NTD.float()
    flat = x_NTD.double().flatten(0, 1)
    z_NTD = ((x_NTD - flat.mean(0)) / (flat.std(0, correction=0) + 1e-5)).float()
    start = fit(tokens, 1e-30, 1e-30, steps=1)
    ours = fit(tokens, *rates, steps=steps, batch=batch)
    for place, rate in enumerate(rates):
        heads = [Head(query_D, 3) for query_D in start.query_GHD[place]]
        learned = [one for head in heads for one in head.parameters() if one.requires_grad]

        def loss_at(step: int, heads: list[Head] = heads) -> torch.Tensor:
            row_B = probes.rows_of_batch(step, batch, len(z_NTD))
            logits_BC = sum(head(z_NTD[row_B]) for head in heads)
            return F.cross_entropy(logits_BC, tokens.label_N[row_B])

        plain_sgd.train(learned, rate, steps, loss_at)
        close = {"rtol": 1e-3, "atol": 1e-4}
        for number, head in enumerate(heads):
            query_D, weight_AC = ours.query_GHD[place, number], ours.weight_GHAC[place, number]
            assert (query_D - start.query_GHD[place, number]).norm() > 0.01
            torch.testing.assert_close(query_D, head.query_D.detach(), **close)
            torch.testing.assert_close(weight_AC[:-1], head.linear.weight.T.detach(), **close)
            torch.testing.assert_close(weight_AC[-1], head.linear.bias.detach(), **close)
        logits_NC = sum(head(z_NTD) for head in heads).detach()
        torch.testing.assert_close(ours.logits(x_NTD)[:, place], logits_NC, **close)


def test_a_class_that_stands_in_one_token_is_read_by_attention_and_not_from_the_mean() -> None:
    """One token of 8 is marked, and has the class, 1 or -1; four others are such that all images
    have the same mean."""

    def drawn(rows: int, seed: int) -> TrainingTokens:
        draw = torch.Generator().manual_seed(seed)
        label_N = torch.randint(0, 2, (rows,), generator=draw)
        x_NTD = torch.zeros(rows, 8, 2)
        x_NTD[:, 0, 0] = 1
        x_NTD[:, 0, 1] = 2.0 * label_N - 1
        x_NTD[:, 1:5, 1] = (1 - 2.0 * label_N[:, None]) / 4
        order_NT = torch.rand(rows, 8, generator=draw).argsort(1)
        return TrainingTokens(
            x_NTD[torch.arange(rows)[:, None], order_NT].to(attentive.STORAGE_TYPE), label_N
        )

    train, test = drawn(1000, 0), drawn(1000, 1)
    settings = Probe(rates=[0.3], steps=200, batch=128)
    probe = attentive.train(train, 1, 2, settings, CPU)
    found_M = probe.logits(test.x_NTD.float())[:, 0].argmax(1)
    mean_ND, mean_MD = (one.x_NTD.float().mean(1) for one in (train, test))
    tested = (mean_MD, test.label_N)
    seen = {"train": (mean_ND, train.label_N), "validation": tested, "test": tested}
    linear_M = probes.linear_probe(seen, 2, settings)
    assert (found_M == test.label_N).double().mean() > 0.99
    assert (linear_M == test.label_N).double().mean() < 0.6


def test_a_training_image_that_cannot_be_read_is_not_in_the_tokens() -> None:
    """The image that stood in its place counted twice in how tokens are standardised."""
    tokens = overlapping(rows=5)
    index = torch.tensor([0, 1, 4])  # the others cannot be read
    batch = Batch(image=tokens.x_NTD[index], label=tokens.label_N[index], index=index, key=index)
    found = attentive.extract(lambda x: x, [batch], 5, WatchedAccelerator(cpu=True))
    assert found is not None and torch.equal(found.label_N, tokens.label_N[index])
    assert torch.equal(found.x_NTD, tokens.x_NTD[index])


def test_a_rate_that_diverges_spoils_no_other() -> None:
    together = fit(overlapping(), 1e38, 0.1)
    assert not together.weight_GHAC[0].isfinite().all()
    torch.testing.assert_close(together.weight_GHAC[1], fit(overlapping(), 0.1).weight_GHAC[0])
