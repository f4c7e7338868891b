"""A teacher: a running average of parts of an objective, which gets no gradient. The strategy moves
it (`Objective.averages`)."""

import math
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Self, TypeVar

from torch import nn

from ..models.encoder import Encoder

M = TypeVar("M", bound=nn.Module)
# What `Objective.averages` gives
Averages = tuple[float, Iterable[tuple[nn.Parameter, nn.Parameter]]]


def copy_of(part: M) -> M:
    """A copy of a module that gets no gradient."""
    return deepcopy(part).requires_grad_(False)


class Teacher(nn.Module):
    """The running average of an encoder, always in evaluation mode: without dropout and drop path,
    as the authors'."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = copy_of(encoder)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(False)


def pairs(*copies: tuple[nn.Module, nn.Module]) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """(average, weight) of each weight that is trained, of pairs (copy, its source) of modules."""
    for copy, source in copies:
        for average, p in zip(copy.parameters(), source.parameters(), strict=True):
            if p.requires_grad:
                yield average, p


def linear_momentum(first: float, progress: float, last: float = 1.0) -> float:
    """From `first` to `last` in proportion to the share of the run (Assran et al., 2023, section 4;
    Baevski et al., 2022, section 3.2)."""
    return first + (last - first) * progress


def cosine_momentum(first: float, progress: float) -> float:
    """From `first` to 1 along half a cosine: 1 - (1 - m) (1 + cos(pi p)) / 2 (MoCo v3's
    main_moco.py, `adjust_moco_momentum`; DINO's utils.py, `cosine_scheduler`)."""
    return 1 - (1 - first) * (1 + math.cos(math.pi * progress)) / 2
