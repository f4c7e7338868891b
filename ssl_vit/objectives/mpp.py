"""Masked patch prediction (paper, 4.6 and B.1.2): hit half of the patch embeddings, tell each hit patch's mean colour.

Legend: B batch, N patches, K hit patches of each picture, T tokens, D width.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import corruption, targets
from ..data.batches import Batch
from ..encoder import Encoder
from .base import Metrics, Objective, Step

KINDS = {"masked": corruption.MASK, "random": corruption.RANDOM, "kept": corruption.KEEP}


class MaskedPatchPrediction(Objective):
    """One linear head over 512 colours, on the hit patches only; the [mask] embedding is the objective's own."""

    pool = "avg"  # what an export gives as the feature: the class token got no loss
    color_count: Tensor

    def __init__(self, encoder: Encoder, *, rate: float, mask: float, random: float, source: str) -> None:
        super().__init__(encoder)
        self.rate, self.mask, self.random, self.source = rate, mask, random, source
        self.mask_token = nn.Parameter(torch.randn(encoder.width) * 0.02)
        self.head = nn.Linear(encoder.width, targets.COLORS)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.register_buffer("color_count", torch.zeros(targets.COLORS, dtype=torch.int64))

    def describe(self) -> str:
        patches = self.encoder.patches
        hit = corruption.corrupted(self.rate, patches)
        return (
            f"masked patch prediction, {targets.COLORS} colours: {hit} of {patches} patches hit, "
            f"of those {self.mask:.0%} masked, {self.random:.0%} random, {1 - self.mask - self.random:.0%} kept"
        )

    def draw(self, batch: Batch) -> corruption.Corruption:
        """The corruption of this batch's pictures, from their keys."""
        return corruption.draw(batch.key, self.encoder.patches, self.rate, self.mask, self.random, self.source)

    def logits(self, batch: Batch, drawn: corruption.Corruption) -> Tensor:
        """Scores (B, K, 512) of the hit patches' colours."""
        x_BND = corruption.apply(self.encoder.patch(batch.image), drawn, self.mask_token)
        h_BND = self.encoder(x_BND)[:, self.encoder.prefix :]
        return self.head(h_BND.gather(1, drawn.hit_BK[..., None].expand(-1, -1, h_BND.shape[-1])))

    def forward(self, batch: Batch) -> Step:
        drawn = self.draw(batch)
        target_BK = targets.mean_color(batch.image, self.encoder.patch_size).gather(1, drawn.hit_BK)
        logits_BKC = self.logits(batch, drawn).float()
        loss_BK = F.cross_entropy(logits_BKC.flatten(0, 1), target_BK.flatten(), reduction="none").view_as(target_BK)
        right_BK = (logits_BKC.argmax(-1) == target_BK).float()
        metrics = _by_kind("loss", loss_BK.detach(), drawn.kind_BK) | _by_kind("accuracy", right_BK, drawn.kind_BK)
        pictures = torch.tensor(float(len(target_BK)), device=target_BK.device)
        metrics["corrupted"] = (pictures * target_BK.shape[1], pictures)
        return Step(loss_BK.mean(), metrics)

    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        """Count the colours of training pictures: what there is to know without looking at the picture."""
        for batch in batches:
            color_BN = targets.mean_color(batch.image, self.encoder.patch_size)
            self.color_count += torch.bincount(color_BN.flatten(), minlength=targets.COLORS).to(self.color_count)

    def baselines(self, batch: Batch) -> Metrics:
        """What a trained model must beat on this batch, as metrics (design, Objective).

        `entropy`, of the training colours in nats, for the loss; for the accuracy on masked patches, how often the
        training set's commonest colour is right (`commonest`), and the uncorrupted neighbours' mean (`neighbors`).
        """
        drawn, patch = self.draw(batch), self.encoder.patch_size
        hidden_BN = torch.zeros_like(batch.key)[:, None].repeat(1, self.encoder.patches).scatter(1, drawn.hit_BK, 1).bool()
        color_BK = targets.mean_color(batch.image, patch).gather(1, drawn.hit_BK)
        guess_BK = targets.neighbor_color(batch.image, patch, hidden_BN).gather(1, drawn.hit_BK)
        masked_BK = drawn.kind_BK == corruption.MASK
        share = self.color_count.double() / self.color_count.sum()
        entropy = torch.special.entr(share).sum()
        return {
            "entropy": (entropy, torch.ones_like(entropy)),
            "commonest": _mean(color_BK == self.color_count.argmax(), masked_BK),
            "neighbors": _mean(guess_BK == color_BK, masked_BK),
        }

    @torch.no_grad()
    def predict(self, batch: Batch) -> tuple[corruption.Corruption, Tensor]:
        """The corruption drawn and the colour class (B, K) thought most likely for each hit patch."""
        drawn = self.draw(batch)
        return drawn, self.logits(batch, drawn).argmax(-1)


def _mean(value: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """(sum, count) of a value over the places where `where` holds."""
    return (value * where).double().sum(), where.double().sum()


def _by_kind(name: str, value_BK: Tensor, kind_BK: Tensor) -> Metrics:
    """A metric over all hit patches and split by what they became."""
    split = {f"{name}_{kind}": _mean(value_BK, kind_BK == number) for kind, number in KINDS.items()}
    return {name: _mean(value_BK, torch.ones_like(kind_BK, dtype=torch.bool))} | split
