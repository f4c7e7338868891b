"""An attentive probe: a learned query weighs an image's tokens, a linear layer reads their mean.

It is efficient probing with one query (Psomas et al., 2026, "Attention, Please!"): tokens are keys
and values. Projections of both, as in CAPI's probe (Darcet et al., 2025), would compute no more:
the query takes up that of the keys, the linear layer that of the values. From a query of zeros it
starts as the linear probe of the mean of all tokens.

Legend: N training images, B images of a batch, T tokens, prefix first, D width, A width and
constant, C classes, G learning rates.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from ..data.batching import Batch
from ..training.distributed import WatchedAccelerator
from . import probes
from .features import SEED, Reader
from .probes import Scale

STORED = torch.bfloat16  # of tokens in memory: of any range, as those before the norm need it


class TrainingTokens(NamedTuple):
    """On the CPU: tokens (N, T, D) in STORED, and labels int64 (N,), -1 for none."""

    x_NTD: Tensor
    label_N: Tensor


class AttentiveProbe(NamedTuple):
    """What was learned at each rate, and how tokens are standardised."""

    scale: Scale
    query_GD: Tensor
    weight_GAC: Tensor

    def to(self, device: torch.device) -> "AttentiveProbe":
        scale = Scale(*(value.to(device) for value in self.scale))
        return AttentiveProbe(scale, self.query_GD.to(device), self.weight_GAC.to(device))

    def only(self, rate: int) -> "AttentiveProbe":
        """What was learned at the rate of this number."""
        kept = slice(rate, rate + 1)
        return AttentiveProbe(self.scale, self.query_GD[kept], self.weight_GAC[kept])

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Each rate's, (B, G, C), of float32 tokens."""
        # of standardised tokens; their mean would move all scores of an image alike
        scaled_GD = self.query_GD / (math.sqrt(x_BTD.shape[2]) * self.scale.std.to(x_BTD))
        mean_BGD = (scaled_GD @ x_BTD.mT).softmax(2) @ x_BTD
        return torch.einsum("bga,gac->bgc", self.scale(mean_BGD, 1.0), self.weight_GAC)


def stored_bytes(images: int, tokens: int, width: int) -> int:
    """Bytes of the tokens of so many training images."""
    return images * tokens * width * STORED.itemsize


def extract(
    read: Reader, batches: Iterable[Batch], images: int, accelerator: WatchedAccelerator
) -> TrainingTokens | None:
    """The tokens of all processes' batches, which are of `images` images, in the order of the
    split: on rank 0, which alone holds all; None elsewhere.

    Args:
        read: uint8 images (B, C, H, W) -> tokens (B, T, D) in STORED.
    """
    parts = [(batch.index, batch.label, read(batch.image).cpu()) for batch in batches]
    found: TrainingTokens | None = None
    # batch by batch, so that no second copy of all is in memory
    for _ in range(max(accelerator.gather_parts([len(parts)]))):
        own, parts = parts[:1], parts[1:]
        for index_B, label_B, x_BTD in accelerator.gather_parts(own):
            if not accelerator.is_main_process:
                continue
            if found is None:
                x_NTD = torch.empty(images, *x_BTD.shape[1:], dtype=STORED)
                found = TrainingTokens(x_NTD, torch.empty(images, dtype=torch.int64))
            found.x_NTD[index_B] = x_BTD
            found.label_N[index_B] = label_B
    return found


def train(
    tokens: TrainingTokens,
    *,
    classes: int,
    rates: Sequence[float],
    steps: int,
    batch: int,
    device: torch.device,
) -> AttentiveProbe:
    """Query and linear layer from zero by SGD with momentum and cosine decay on the mean
    cross-entropy, the rates side by side on the same batches, as the linear probe
    (`probes.train_linear`)."""
    x_NTD, label_N = tokens
    known_L = (label_N >= 0).nonzero().squeeze(1)
    width = x_NTD.shape[2]
    scale = Scale(*(value.to(device) for value in probes.moments(x_NTD.flatten(0, 1))))
    shapes = (width,), (width + 1, classes)
    learned = [
        [torch.zeros(shape, device=device, requires_grad=True) for shape in shapes] for _ in rates
    ]
    groups = [{"params": own, "lr": rate} for own, rate in zip(learned, rates, strict=True)]
    optimiser = torch.optim.SGD(groups, momentum=probes.MOMENTUM)
    schedule = LambdaLR(optimiser, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
    at_once = max(1, probes.ELEMENTS // x_NTD[0].numel())
    for step in range(steps):
        row_B = known_L[probes.rows_of_batch(step, batch, len(known_L), SEED)]
        for part in row_B.split(at_once):
            query_GD, weight_GAC = map(torch.stack, zip(*learned, strict=True))
            probe = AttentiveProbe(scale, query_GD, weight_GAC)
            logits_BGC = probe.logits(x_NTD[part].to(device, torch.float32))
            label_BG = label_N[part, None].to(device).expand(-1, len(rates))
            loss = F.cross_entropy(logits_BGC.mT, label_BG, reduction="sum") / batch
            loss.backward()
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    query_GD, weight_GAC = (torch.stack(own).detach() for own in zip(*learned, strict=True))
    return AttentiveProbe(scale, query_GD, weight_GAC)
