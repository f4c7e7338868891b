"""Objectives: modules with `objective(batch) -> Step`. A new one is a file here, a line in `build` and in recipe.OBJECTIVES."""

from ..encoder import Encoder
from ..recipe import Recipe
from .base import Objective, Step
from .mpp import MaskedPatchPrediction

__all__ = ["MaskedPatchPrediction", "Objective", "Step", "build"]


def build(recipe: Recipe, encoder: Encoder) -> Objective:
    """The objective that the recipe names, around `encoder`."""
    hit = recipe.corruption
    return MaskedPatchPrediction(encoder, rate=hit.rate, mask=hit.mask, random=hit.random, source=hit.source)
