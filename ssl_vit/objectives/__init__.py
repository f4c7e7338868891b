"""Declare the objectives: every folder here is an objective, with a network in a file of its own.

To add an objective, add a folder whose `__init__.py` has a `DECLARATION` (recipe/declaration.py
says what a declaration may hold). No list of objectives needs to change. The targets, which say
what is predicted of a patch, are declared in targets/. This file does not import torch.

`build` is the interface for a training loop of the user's own.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from ..recipe.declaration import declare

if TYPE_CHECKING:
    from ..models.encoder import Backbone
    from .of_tensors import ObjectiveOfTensors


def declare_all() -> None:
    """Declare the objectives and targets of this package, without importing their networks."""
    for module_info in pkgutil.iter_modules(__path__):
        if module_info.ispkg:
            module = importlib.import_module(f"{__name__}.{module_info.name}")
            # A folder has DECLARATIONS (such as targets/) or a single DECLARATION
            declarations = getattr(module, "DECLARATIONS", ()) or (module.DECLARATION,)
            for declaration in declarations:
                declare(declaration)


def build(
    name: str, encoder: "Backbone", *, steps: int | None = None, classes: int = 0, **options: Any
) -> "ObjectiveOfTensors":
    """Build an objective for your own training loop, without a run folder, in training mode.

    `objective(images)` returns an output with `.loss`, a scalar with a gradient, and `.metrics`,
    the pair (sum, count) of each metric. The loss is the one that a run computes for the same
    images, keys and weights. `images` is a uint8 tensor (B, 3, H, W) of the encoder's size. An
    objective that compares views makes them from `images`, which may then have any size, or takes
    them as (B, 2, 3, H, W). Objectives that learn labels need `label=`, int64 (B,), with -1 for
    an image without a label.

    All random numbers of an image come from its key. `key=`, int64 (B,), sets the keys. Without
    `key=`, every image of every call gets another key in training. In evaluation, the keys are the
    same in every call.

    `objective.parameters()` are the weights of the encoder and of the objective. A teacher or a
    schedule moves when the optimiser steps. Such objectives need `steps=` and, before the first
    loss, `objective.follow(optimizer)`. `objective.exported` is the encoder to keep: for DINO and
    iBOT the teacher.

    Args:
        name: An objective of ssl_vit, or of a plugin that has run.
        encoder: An encoder from `ssl_vit.load_encoder`. It is trained in place.
        steps: Number of optimiser steps of the whole training, for schedules.
        classes: Number of classes, for objectives that learn labels.
        options: Options of the objective, such as mae={"rate": 0.5}, target="pixels", views={...},
            data={"crop_area": 0.4} for views, or seed=1. The defaults are the values of the recipe
            with the name of the objective. `recipe="simmim"` takes them from another recipe.

    Raises:
        UserError: The objective or an option is unknown, or a value does not suit the encoder.
    """
    # with torch, which `import ssl_vit.objectives` does not import
    of_tensors = importlib.import_module(f"{__name__}.of_tensors")
    built: ObjectiveOfTensors = of_tensors.build(name, encoder, steps, classes, options)
    return built
