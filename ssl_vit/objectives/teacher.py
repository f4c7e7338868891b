"""Provide teachers: running averages of parts of an objective, without gradients.

The strategy moves the averages (see `Objective.averages`).
"""

import math
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Self, TypeVar

from torch import nn

from ..models.encoder import Encoder

M = TypeVar("M", bound=nn.Module)
# Result of `Objective.averages`: a momentum and pairs (running average, averaged weight)
Averages = tuple[float, Iterable[tuple[nn.Parameter, nn.Parameter]]]


def copy_of(part: M) -> M:
    """Return a copy of a module that gets no gradient."""
    return deepcopy(part).requires_grad_(False)


class Teacher(nn.Module):
    """Running average of an encoder, always in evaluation mode.

    As in the authors' code, there is no dropout and no drop path.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = copy_of(encoder)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(False)


def pairs(*copies: tuple[nn.Module, nn.Module]) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """Yield (average, weight) for each trained weight of pairs (copy, source) of modules."""
    for copy, source in copies:
        for average, p in zip(copy.parameters(), source.parameters(), strict=True):
            if p.requires_grad:
                yield average, p


def linear_momentum(first: float, progress: float, last: float = 1.0) -> float:
    """Return a momentum that rises from `first` to `last` linearly with the share of the run.

    As in Assran et al. (2023, section 4) and Baevski et al. (2022, section 3.2).
    """
    return first + (last - first) * progress


def cosine_momentum(first: float, progress: float) -> float:
    """Return a momentum that rises from `first` to 1 along half a cosine.

    The formula is 1 - (1 - m) (1 + cos(pi p)) / 2 (MoCo v3's main_moco.py, `adjust_moco_momentum`,
    and DINO's utils.py, `cosine_scheduler`).
    """
    return 1 - (1 - first) * (1 + math.cos(math.pi * progress)) / 2
