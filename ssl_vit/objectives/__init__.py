"""Objectives: modules with `objective(batch) -> Step`.

A new one is a file here, a line in BUILDERS, and its name with the keys it uses in recipe.OBJECTIVES; from outside the package
a plugin adds both (docs/guide.md).
"""

from collections.abc import Callable

import torch

from .. import targets
from ..encoder import Backbone, Encoder
from ..recipe import Recipe, UserError
from .base import Objective, Step
from .joint import Joint
from .mpp import MaskedPatchPrediction
from .supervised import Supervised

__all__ = ["BUILDERS", "Joint", "MaskedPatchPrediction", "Objective", "Step", "Supervised", "build"]


def _mpp(recipe: Recipe, encoder: Backbone, classes: int) -> Objective:
    assert isinstance(encoder, Encoder)  # bounds.py refuses others
    hit, data = recipe.corruption, recipe.data
    target = targets.BUILDERS[recipe.target](encoder.patch_size, data.mean, data.std)
    shares = {"rate": hit.rate, "mask": hit.mask, "random": hit.random}
    return MaskedPatchPrediction(encoder, target, **shares, source=hit.source, shape=hit.shape, side=hit.side)


def _supervised(recipe: Recipe, encoder: Backbone, classes: int) -> Objective:
    asked = recipe.supervised
    return Supervised(encoder, classes, loss=asked.loss, smoothing=asked.smoothing, hidden=asked.hidden, pool=asked.pool)


def _joint(recipe: Recipe, encoder: Backbone, classes: int) -> Objective:
    parts: dict[str, tuple[Objective, float]] = {}
    for name, weight in {"mpp": recipe.joint.mpp, "supervised": recipe.joint.supervised}.items():
        with torch.random.fork_rng(devices=[]):  # each begins with the weights that it would have alone
            parts[name] = (BUILDERS[name](recipe, encoder, classes), weight)
    return Joint(encoder, parts)


BUILDERS: dict[str, Callable[[Recipe, Backbone, int], Objective]] = {"mpp": _mpp, "supervised": _supervised, "joint": _joint}


def build(recipe: Recipe, encoder: Backbone, classes: int) -> Objective:
    """The objective that the recipe names, around `encoder`; `classes` is how many the labels have.

    Raises:
        UserError: a plugin named an objective or a target and gave nothing that builds it.
    """
    for key, name, table in (("objective", recipe.objective, BUILDERS), ("target", recipe.target, targets.BUILDERS)):
        if name not in table:
            raise UserError(f"{key}={name}: plugin={recipe.plugin} adds its name but nothing to BUILDERS")
    return BUILDERS[recipe.objective](recipe, encoder, classes)
