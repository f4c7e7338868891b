"""Translate a model of the recipe into timm's name and arguments."""

import math
from collections.abc import Mapping
from typing import Any

import timm
from timm.models.eva import Eva
from torch import nn

from ..errors import UserError
from ..formatting import option_text
from ..recipe.model import CLASSIC
from ..recipe.schema import Model
from ..recipe.timm_models import is_packed, network, positions_of, sizes_of_state
from . import resnet  # noqa: F401  adds its architectures to timm's
from .positions import STD

# Architectures of timm without a preset option that arguments could not undo, because
# create_model drops arguments that are None
SWIGLU = "vit_giant_patch14_dinov2"
ROTARY = "eva_giant_patch14_224"
# Arguments of ROTARY for model.positions=rotary, which model.args may change
ROTARY_ARGS: dict[str, Any] = {
    "global_pool": "token",
    "use_fc_norm": False,
    "attn_type": "rope",
    "use_abs_pos_emb": False,
    "use_rot_pos_emb": True,
    "rope_grid_indexing": "xy",
    "rope_temperature": 100.0,  # Heo et al., 2024, section 3.2
}


def architecture(model: Model) -> str:
    """Return the name that timm.create_model takes."""
    if model.positions == "rotary" and model.timm == CLASSIC:
        return ROTARY
    if model.activation == "swiglu" and model.timm == CLASSIC:
        return SWIGLU
    return model.timm


def is_eva(model: Model) -> bool:
    """Return whether timm.create_model builds an Eva for this model."""
    name = architecture(model)
    return timm.is_model(name) and timm.models.model_entrypoint(name).__module__ == Eva.__module__


def timm_args(model: Model, size: int, channels: int = 3, exported: bool = True) -> dict[str, Any]:
    """Return keyword arguments of timm.create_model.

    Args:
        model: the encoder.
        size: side of the images in pixels.
        channels: channels of the images. A network with a ResNet needs 3.
        exported: treat positions that the encoder adds itself as a learned table of the backbone,
            as in an export.
    """
    if model.convolutional:
        return dict(model.args)
    args: dict[str, Any] = {
        **model.args,
        "img_size": size,
        "embed_dim": model.width,
        "depth": model.depth,
        "num_heads": model.heads,
        "mlp_ratio": _ratio(model.mlp, model.width),
    }
    if not model.hybrid:  # the ResNet of a hybrid determines the patches
        args["patch_size"] = model.patch
    if channels != 3:
        args["in_chans"] = channels
    if model.qk_norm:
        args["qk_norm"] = True
    if not model.class_token:
        args["global_pool"] = "avg"
    if model.activation == "swiglu" and not is_eva(model):  # Eva's ratio is for one matrix
        args["init_values"] = 0.0  # switches off the LayerScale of SWIGLU
        if model.timm == CLASSIC or is_packed(network(model.timm, {}).state_dict()):
            args["mlp_ratio"] = _ratio(2 * model.mlp, model.width)
    if model.layer_scale is not None:
        args["init_values"] = model.layer_scale
    if is_eva(model):
        rotary = ROTARY_ARGS if model.timm == CLASSIC else {}
        more = {"swiglu_mlp": model.activation == "swiglu", "num_reg_tokens": model.registers}
        return rotary | args | more
    if model.registers:
        args["reg_tokens"] = model.registers
    if model.positions == "none" or (not exported and model.positions.endswith("_2d")):
        args["pos_embed"] = "none"
    return args


def _ratio(hidden: int, width: int) -> float:
    """Return an mlp_ratio for which timm computes int(width * mlp_ratio) = hidden."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def first_registers(backbone: Any) -> None:
    """Initialise registers as timm's Eva does.

    With the deviation of 1e-6 that timm's VisionTransformer uses, registers would be equal and get
    equal gradients.
    """
    if getattr(backbone, "reg_token", None) is not None:
        nn.init.normal_(backbone.reg_token, std=STD)


def create(model: Model, expected: str = "", **args: Any) -> Any:
    """Build timm's network of a model, without a classifier.

    Args:
        model: the model.
        expected: which architectures are possible, a sentence for the error message.
        **args: arguments of timm.create_model.

    Raises:
        UserError: timm has no such architecture, or the architecture takes other arguments.
    """
    try:
        return timm.create_model(architecture(model), pretrained=False, num_classes=0, **args)
    except Exception as error:  # timm raises many types for unsuitable arguments
        why = " ".join((str(error) or repr(error)).split())[:200]
        text = f"timm cannot build this network ({why.rstrip('.')}). {expected}".strip()
        raise UserError(f"{_named(model)}: {text}") from None


def _named(model: Model) -> str:
    args = f", model.args={option_text(model.args)}" if model.args else ""
    return f"model.timm={model.timm}{args}"


def check_sizes(stored: Mapping[str, Any], model: Model) -> None:
    """Check that a network has the values of the keys of model=.

    Args:
        stored: {key: value} of the network. For LayerScale, whether the network has it, as in
            `sizes_of_state`.
        model: the keys.

    Raises:
        UserError: the architecture of model.timm has other values.
    """
    for key, value in stored.items():
        here = getattr(model, key)
        if key == "layer_scale":
            here = "null" if here is None else "a value"
        if here != value:
            has = f"{_named(model)} has {str(value).lower()}"
            raise UserError(f"model.{key}={str(here).lower()}: {has}. Use the same value.")


def check_architecture(backbone: Any, patch_size: int, model: Model) -> None:
    """Check that a timm Vision Transformer has the values of the keys of model=.

    Raises:
        UserError: the architecture or model.args of the model have other values.
    """
    if (backbone.cls_token is None) == model.class_token:
        has, says = ("no", "false") if model.class_token else ("a", "true")
        raise UserError(
            f"model.args={option_text(model.args)}: model.timm={model.timm} has {has} class token."
            f" Write class_token: {says} in model.args."
        )
    keys = ("registers", "layer_scale", "qk_norm", "activation", "mlp")
    sizes = sizes_of_state(backbone.state_dict())
    # The state of parallel blocks does not show the width of the MLP
    stored = {key: sizes[f"model.{key}"] for key in keys if f"model.{key}" in sizes}
    if not model.positions.endswith("_2d"):  # the encoder adds 2D positions itself
        stored["positions"] = positions_of(backbone)
    check_sizes(stored | {"patch": patch_size}, model)
