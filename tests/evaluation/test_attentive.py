"""The attentive probe against torch's attention and optimiser, and where only attention can help."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ssl_vit.evaluation import attentive, probes
from ssl_vit.evaluation.attentive import AttentiveProbe, TrainingTokens

CPU = torch.device("cpu")


def overlapping(rows: int = 90, tokens: int = 7, width: int = 6) -> TrainingTokens:
    """Three classes; tokens of very different mean and deviation, as an encoder's are."""
    draw = torch.Generator().manual_seed(0)
    label_N = torch.arange(rows) % 3
    x_NTD = torch.randn(rows, tokens, width, generator=draw) + F.one_hot(label_N, width)[:, None]
    x_NTD = x_NTD * torch.logspace(-1, 1, width) + torch.linspace(-5, 5, width)
    return TrainingTokens(x_NTD.to(attentive.STORED), label_N)


def fit(tokens: TrainingTokens, *rates: float, steps: int = 30, batch: int = 32) -> AttentiveProbe:
    return attentive.train(tokens, classes=3, rates=rates, steps=steps, batch=batch, device=CPU)


class Referee(nn.Module):
    """torch's attention of one head whose projections do nothing, and a linear layer."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(1, 1, width))
        self.attention = nn.MultiheadAttention(width, 1, batch_first=True)
        self.linear = nn.Linear(width, classes)
        nothing = torch.eye(width).repeat(3, 1)
        self.attention.in_proj_weight = nn.Parameter(nothing, requires_grad=False)
        self.attention.out_proj.weight = nn.Parameter(torch.eye(width), requires_grad=False)
        for zero in (self.linear.weight, self.linear.bias, self.attention.out_proj.bias):
            nn.init.zeros_(zero)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        query_B1D = self.query.expand(len(x_BTD), -1, -1)
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
    ours = fit(tokens, *rates, steps=steps, batch=batch)
    logits_NGC = ours.logits(x_NTD)
    for place, rate in enumerate(rates):
        referee = Referee(6, 3)
        learned = [one for name, one in referee.named_parameters() if "attention" not in name]
        optimiser = torch.optim.SGD(learned, lr=rate, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for step in range(steps):
            row_B = probes.rows_of_batch(step, batch, len(z_NTD), seed=0)
            loss = F.cross_entropy(referee(z_NTD[row_B]), tokens.label_N[row_B])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        query_D, weight_AC = ours.query_GD[place], ours.weight_GAC[place]
        assert query_D.norm() > 0.01
        torch.testing.assert_close(query_D, referee.query[0, 0].detach(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(
            weight_AC[:-1], referee.linear.weight.T.detach(), rtol=1e-3, atol=1e-4
        )
        torch.testing.assert_close(
            logits_NGC[:, place], referee(z_NTD).detach(), rtol=1e-3, atol=1e-3
        )


def test_a_class_that_stands_in_one_token_is_read_by_attention_and_not_from_the_mean() -> None:
    """One token of 16 is marked, and has the class; the others have a random one."""

    def drawn(rows: int, seed: int) -> TrainingTokens:
        draw = torch.Generator().manual_seed(seed)
        shown_NT = torch.randint(0, 2, (rows, 16), generator=draw)
        marked_N = torch.randint(0, 16, (rows,), generator=draw)
        x_NTD = torch.stack([shown_NT * 2.0 - 1, F.one_hot(marked_N, 16).float()], 2)
        return TrainingTokens(x_NTD.to(attentive.STORED), shown_NT[torch.arange(rows), marked_N])

    train, test = drawn(2000, 0), drawn(1000, 1)
    found = attentive.train(train, classes=2, rates=[0.3], steps=400, batch=128, device=CPU).logits(
        test.x_NTD.float()
    )
    mean_ND, mean_MD = (one.x_NTD.float().mean(1) for one in (train, test))
    settings = {"classes": 2, "rates": [0.3], "steps": 400, "batch": 128, "seed": 0}
    linear = probes.linear_probe(mean_ND, train.label_N, mean_MD, test.label_N, mean_MD, **settings)
    assert (found[:, 0].argmax(1) == test.label_N).double().mean() > 0.98
    assert (linear == test.label_N).double().mean() < 0.7


def test_a_query_of_zeros_is_the_mean_of_all_tokens() -> None:
    x_NTD = overlapping().x_NTD.float()
    probe = fit(overlapping(), 0.1)
    plain = probe._replace(query_GD=torch.zeros_like(probe.query_GD))
    wanted = probe.scale(x_NTD.mean(1), 1.0) @ probe.weight_GAC[0]
    torch.testing.assert_close(plain.logits(x_NTD)[:, 0], wanted, rtol=1e-4, atol=1e-4)


def test_images_without_a_label_teach_nothing() -> None:
    """They count in how tokens are standardised alone, by which here nothing changes."""
    tokens = overlapping()
    wrong = TrainingTokens(
        tokens.x_NTD.repeat(2, 1, 1), torch.cat([tokens.label_N, -torch.ones(90)]).long()
    )
    for ours, other in zip(fit(tokens, 0.1)[1:], fit(wrong, 0.1)[1:], strict=True):
        torch.testing.assert_close(ours, other)


def test_a_rate_that_diverges_spoils_no_other() -> None:
    together = fit(overlapping(), 1e38, 0.1)
    assert not together.weight_GAC[0].isfinite().all()
    torch.testing.assert_close(together.weight_GAC[1], fit(overlapping(), 0.1).weight_GAC[0])
