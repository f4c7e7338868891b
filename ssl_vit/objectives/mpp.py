"""Masked patch prediction (paper, 4.6 and B.1.2): hit half of the patch embeddings, tell what each hit patch was.

Legend: B batch, N patches, K hit patches of each picture, T tokens, D width, A answers to a patch.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .. import corruption
from ..data.batches import Batch
from ..encoder import Encoder
from ..targets import Target
from .base import Metrics, Objective, Step

KINDS = {"masked": corruption.MASK, "random": corruption.RANDOM, "kept": corruption.KEEP}


class MaskedPatchPrediction(Objective):
    """One linear head, on the hit patches only; the [mask] embedding is the objective's own."""

    encoder: Encoder
    pool = "avg"  # the class token got no loss

    def __init__(
        self,
        encoder: Encoder,
        target: Target,
        *,
        rate: float,
        mask: float,
        random: float,
        source: str,
        shape: str = "patches",
        side: int = 1,
    ) -> None:
        super().__init__(encoder)
        self.target = target
        self.rate, self.mask, self.random, self.source = rate, mask, random, source
        self.shape, self.side = shape, side
        self.mask_token = nn.Parameter(torch.randn(encoder.width) * 0.02)
        self.head = nn.Linear(encoder.width, target.answers)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def describe(self) -> str:
        patches = self.encoder.patches
        hit = corruption.corrupted(self.rate, patches)
        together = " in rectangles" if self.shape == "blocks" else f" in squares of {self.side} x {self.side}"
        return (
            f"masked patch prediction, {self.target.answers} answers a patch: {hit} of {patches} patches hit"
            f"{together if self.shape == 'blocks' or self.side > 1 else ''}, "
            f"of those {self.mask:.0%} masked, {self.random:.0%} random, {1 - self.mask - self.random:.0%} kept"
        )

    def draw(self, batch: Batch) -> corruption.Corruption:
        """The corruption of this batch's pictures, from their keys."""
        becomes = (self.mask, self.random, self.source)
        return corruption.draw(batch.key, self.encoder.patches, self.rate, *becomes, self.shape, self.side)

    def tell(self, batch: Batch, drawn: corruption.Corruption) -> Tensor:
        """The head's answers (B, K, A) for the hit patches."""
        x_BND = corruption.apply(self.encoder.patch(batch.image), drawn, self.mask_token)
        return self.head(corruption.pick(self.encoder(x_BND)[:, self.encoder.prefix :], drawn))

    def forward(self, batch: Batch) -> Step:
        drawn = self.draw(batch)
        truth_BK = corruption.pick(self.target.truth(batch.image), drawn)
        scores = self.target.score(self.tell(batch, drawn).float(), truth_BK)
        metrics: Metrics = {}
        for name, score_BK in scores.items():
            metrics |= _by_kind(name, score_BK.detach(), drawn.kind_BK)
        pictures = torch.tensor(float(len(drawn.hit_BK)), device=drawn.hit_BK.device)
        metrics["corrupted"] = (pictures * drawn.hit_BK.shape[1], pictures)
        return Step(scores["loss"].mean(), metrics)

    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        self.target.fit(batch.image for batch in batches)

    def baselines(self, batch: Batch) -> Metrics:
        """How well the target's guesses do on this batch's masked patches (design, Objective)."""
        drawn = self.draw(batch)
        hidden_BN = torch.zeros_like(batch.key)[:, None].repeat(1, self.encoder.patches).scatter(1, drawn.hit_BK, 1).bool()
        guesses = self.target.guesses(batch.image, hidden_BN)
        masked_BK = drawn.kind_BK == corruption.MASK
        return {name: _mean(corruption.pick(guess_BN, drawn), masked_BK) for name, guess_BN in guesses.items()}

    @torch.no_grad()
    def predict(self, batch: Batch) -> tuple[corruption.Corruption, Tensor]:
        """The corruption drawn, and what is told of each hit patch, (B, K, ...) in the form of the target's truth."""
        drawn = self.draw(batch)
        return drawn, self.target.answer(self.tell(batch, drawn))


def _mean(value: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """(sum, count) of a value over the places where `where` holds."""
    return (value * where).double().sum(), where.double().sum()


def _by_kind(name: str, value_BK: Tensor, kind_BK: Tensor) -> Metrics:
    """A metric over all hit patches and split by what they became."""
    split = {f"{name}_{kind}": _mean(value_BK, kind_BK == number) for kind, number in KINDS.items()}
    return {name: _mean(value_BK, torch.ones_like(kind_BK, dtype=torch.bool))} | split
