"""Objectives as a recipe builds them, without a run."""

import torch

from helpers.options import TINY, altered
from helpers.resolving import resolve
from ssl_vit.models.encoder import build_backbone
from ssl_vit.objectives.base import Objective
from ssl_vit.objectives.building import Settings, build_objective


def built(*words: str, classes: int = 5) -> Objective:
    """The objective of a tiny run with these options, around a fresh encoder."""
    recipe = resolve(altered(TINY, *words, "name=x"))
    torch.manual_seed(0)
    net = build_backbone(recipe.model, recipe.data, 0, recipe.optim.drop_path)
    return build_objective(Settings.from_recipe(recipe), net, classes)
