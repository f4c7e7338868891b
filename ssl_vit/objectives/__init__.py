"""Objectives: modules with `objective(batch) -> Step`. A new one is a file here, a line in `build` and in recipe.OBJECTIVES."""

from .. import targets
from ..encoder import Encoder
from ..recipe import Recipe
from .base import Objective, Step
from .joint import Joint
from .mpp import MaskedPatchPrediction
from .supervised import Supervised

__all__ = ["Joint", "MaskedPatchPrediction", "Objective", "Step", "Supervised", "build"]


def build(recipe: Recipe, encoder: Encoder, classes: int) -> Objective:
    """The objective that the recipe names, around `encoder`; `classes` is how many the labels have."""
    builders = {"mpp": lambda: _mpp(recipe, encoder), "supervised": lambda: _supervised(recipe, encoder, classes)}
    if recipe.objective == "joint":
        weights = {"mpp": recipe.joint.mpp, "supervised": recipe.joint.supervised}
        return Joint(encoder, {name: (builders[name](), weight) for name, weight in weights.items()})
    return builders[recipe.objective]()


def _mpp(recipe: Recipe, encoder: Encoder) -> Objective:
    hit, data = recipe.corruption, recipe.data
    target = targets.build(recipe.target, encoder.patch_size, data.mean, data.std)
    return MaskedPatchPrediction(encoder, target, rate=hit.rate, mask=hit.mask, random=hit.random, source=hit.source)


def _supervised(recipe: Recipe, encoder: Encoder, classes: int) -> Objective:
    asked = recipe.supervised
    return Supervised(encoder, classes, loss=asked.loss, smoothing=asked.smoothing, hidden=asked.hidden)
