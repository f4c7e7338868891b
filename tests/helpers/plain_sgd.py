"""Training of probes as torch itself does it, one step after the other."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def train(
    parameters: Iterable[Tensor], rate: float, steps: int, loss_at: Callable[[int], Tensor]
) -> None:
    """SGD with a momentum of 0.9 and a rate that falls by a cosine, on the loss of each step."""
    optimiser = torch.optim.SGD(parameters, lr=rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for step in range(steps):
        optimiser.zero_grad()
        loss_at(step).backward()
        optimiser.step()
        schedule.step()
