"""Provide teachers: running averages of parts of an objective, without gradients.

After each optimiser step, training/strategy.py moves the averages that `Objective.averages` names.
"""

import math
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Self, TypeVar

from torch import Tensor, nn

from ..models.encoder import Encoder
from ..models.trained_part import low_rank_layers

M = TypeVar("M", bound=nn.Module)
# Result of `Objective.averages`: a momentum and pairs (running average, averaged weight)
Averages = tuple[float, Iterable[tuple[nn.Parameter, Tensor]]]


def frozen_copy(module: M) -> M:
    """Return a copy of a module that gets no gradient."""
    return deepcopy(module).requires_grad_(False)


class Teacher(nn.Module):
    """Running average of an encoder, always in evaluation mode.

    So the teacher has no dropout and no drop path.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = frozen_copy(encoder)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(False)


def pair_parameters(
    *copies: tuple[nn.Module, nn.Module],
) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield the pairs (running average, weight that it follows) of all trained weights.

    A weight with a trained low-rank update is followed as a whole: the average of the two factors
    would not be the average of their product.

    Args:
        *copies: Pairs (copy, source) of modules with the same architecture. A source may also have
            low-rank updates.
    """
    for copy, source in copies:
        updated = low_rank_layers(source)
        weights = dict(source.named_parameters())
        for name, average in copy.named_parameters():
            if name in updated:
                yield average, updated[name].merged_weight()
            elif weights[name].requires_grad:
                yield average, weights[name]


def linear_momentum(first: float, progress: float, last: float = 1.0) -> float:
    """Return a momentum that changes linearly from `first` to `last` during the run.

    I-JEPA (Assran et al., 2023, section 4) and data2vec (Baevski et al., 2022, section 3.2) use
    this schedule.

    Args:
        first: Momentum at the beginning of the run.
        progress: Share of the run that is done, from 0 to 1.
        last: Momentum at the end of the run.
    """
    return first + (last - first) * progress


def cosine_momentum(first: float, progress: float) -> float:
    """Return a momentum that rises from `first` to 1 along half a cosine during the run.

    MoCo v3 (main_moco.py, `adjust_moco_momentum`) and DINO (utils.py, `cosine_scheduler`) use this
    schedule.

    Args:
        first: Momentum at the beginning of the run.
        progress: Share of the run that is done, from 0 to 1.
    """
    return 1 - (1 - first) * (1 + math.cos(math.pi * progress)) / 2
