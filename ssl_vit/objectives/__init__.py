"""Objectives: modules with `objective(batch) -> Step`.

To add one: a file here, a line in BUILDERS, and its name with the config groups it uses in
schema.OBJECTIVES. A plugin adds both from outside the package (docs/guide.md).
"""

from collections.abc import Callable

import torch

from ..errors import UserError
from ..models.encoder import Backbone, Encoder
from .base import Objective, ObjectiveSettings, Step
from .joint.network import Joint
from .mae.network import MaskedAutoencoder
from .moco_v3.network import MomentumContrast
from .mpp.network import MaskedPatchPrediction
from .patches import PatchPrediction
from .supervised.network import Supervised
from .targets import patch_targets

__all__ = [
    "BUILDERS",
    "Joint",
    "MaskedAutoencoder",
    "MaskedPatchPrediction",
    "MomentumContrast",
    "Objective",
    "ObjectiveSettings",
    "PatchPrediction",
    "Step",
    "Supervised",
    "build",
]


def _target(settings: ObjectiveSettings, encoder: Encoder) -> patch_targets.Target:
    return patch_targets.BUILDERS[settings.target](encoder.patch_size, settings.mean, settings.std)


def _mae(settings: ObjectiveSettings, encoder: Backbone, classes: int) -> Objective:
    assert isinstance(encoder, Encoder)  # config/validate.py refuses others
    mae = settings.mae
    return MaskedAutoencoder(
        encoder,
        _target(settings, encoder),
        rate=mae.rate,
        width=mae.width,
        depth=mae.depth,
        heads=mae.heads,
    )


def _moco_v3(settings: ObjectiveSettings, encoder: Backbone, classes: int) -> Objective:
    moco = settings.moco
    return MomentumContrast(
        encoder,
        temperature=moco.temperature,
        momentum=moco.momentum,
        hidden=moco.hidden,
        width=moco.width,
        freeze_patches=moco.freeze_patches,
    )


def _mpp(settings: ObjectiveSettings, encoder: Backbone, classes: int) -> Objective:
    assert isinstance(encoder, Encoder)  # config/validate.py refuses others
    corruption = settings.corruption
    return MaskedPatchPrediction(
        encoder,
        _target(settings, encoder),
        rate=corruption.rate,
        mask=corruption.mask,
        random=corruption.random,
        source=corruption.source,
        shape=corruption.shape,
        side=corruption.side,
    )


def _supervised(settings: ObjectiveSettings, encoder: Backbone, classes: int) -> Objective:
    supervised = settings.supervised
    return Supervised(
        encoder,
        classes,
        loss=supervised.loss,
        smoothing=supervised.smoothing,
        hidden=supervised.hidden,
        pool=supervised.pool,
    )


def _joint(settings: ObjectiveSettings, encoder: Backbone, classes: int) -> Objective:
    weights = {"mpp": settings.joint.mpp, "supervised": settings.joint.supervised}
    parts: dict[str, tuple[Objective, float]] = {}
    for name, weight in weights.items():
        # each part starts with the weights that it would have alone
        with torch.random.fork_rng(devices=[]):
            parts[name] = (BUILDERS[name](settings, encoder, classes), weight)
    return Joint(encoder, parts)


BUILDERS: dict[str, Callable[[ObjectiveSettings, Backbone, int], Objective]] = {
    "mpp": _mpp,
    "mae": _mae,
    "moco_v3": _moco_v3,
    "supervised": _supervised,
    "joint": _joint,
}


def build(settings: ObjectiveSettings, encoder: Backbone, classes: int) -> Objective:
    """The objective named by `settings`, around `encoder`, for labels of `classes` classes.

    Raises:
        UserError: a plugin registered the name of an objective or a target without a builder.
    """
    for key, name, builders in (
        ("objective", settings.objective, BUILDERS),
        ("target", settings.target, patch_targets.BUILDERS),
    ):
        if name not in builders:
            raise UserError(f"{key}={name}: no entry in BUILDERS; the plugin must add one")
    return BUILDERS[settings.objective](settings, encoder, classes)
