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

# Architectures of timm for model.activation=swiglu and model.positions=rotary. Arguments can change
# all their presets. In other architectures some presets cannot be switched off, because
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
    """Return the name of the model's architecture in timm."""
    if model.positions == "rotary" and model.timm == CLASSIC:
        return ROTARY
    if model.activation == "swiglu" and model.timm == CLASSIC:
        return SWIGLU
    return model.timm


def is_eva(model: Model) -> bool:
    """Return whether timm.create_model builds an Eva for this model."""
    name = architecture(model)
    # timm defines the class Eva and the functions that build its presets in the same module
    return timm.is_model(name) and timm.models.model_entrypoint(name).__module__ == Eva.__module__


def build_timm_args(
    model: Model, size: int, channels: int = 3, exported: bool = True
) -> dict[str, Any]:
    """Return the keyword arguments with which timm.create_model builds a model.

    Args:
        model: The keys of model=.
        size: Side of the images in pixels.
        channels: Number of channels of the images. A network with a ResNet needs 3.
        exported: Matters only for model.positions=learned_2d and sincos_2d. True: the network has a
            learned table of positions, as in an export. False: the network has no positions,
            because the encoder adds them.
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
        args["swiglu_mlp"] = model.activation == "swiglu"
        args["num_reg_tokens"] = model.registers
        return rotary | args
    if model.registers:
        args["reg_tokens"] = model.registers
    if model.positions == "none" or (not exported and model.positions.endswith("_2d")):
        args["pos_embed"] = "none"
    return args


def _ratio(hidden: int, width: int) -> float:
    """Return the mlp_ratio for which timm's int(width * mlp_ratio) is exactly `hidden`."""
    ratio = hidden / width
    if int(width * ratio) == hidden:
        return ratio
    return math.nextafter(ratio, math.inf)  # the next larger float: the quotient was rounded down


def init_registers(backbone: Any) -> None:
    """Draw the initial values of registers, with the standard deviation of timm's Eva.

    With the standard deviation of 1e-6 of timm's VisionTransformer, all registers would be almost
    equal and get almost equal gradients.
    """
    if getattr(backbone, "reg_token", None) is not None:
        nn.init.normal_(backbone.reg_token, std=STD)


def create(model: Model, expected: str = "", **args: Any) -> Any:
    """Build the timm network that the keys of model= describe, without a classifier.

    Args:
        model: The keys of model=.
        expected: Last sentence of the error message, which says what architectures are possible.
        **args: Arguments of timm.create_model.

    Raises:
        UserError: timm has no such architecture, or the architecture takes other arguments.
    """
    try:
        return timm.create_model(architecture(model), pretrained=False, num_classes=0, **args)
    except Exception as error:  # timm raises many types for unsuitable arguments
        message = " ".join((str(error) or repr(error)).split())[:200].rstrip(".")
        raise UserError(
            f"{_named(model)}: timm cannot build this network ({message}). {expected}".rstrip()
        ) from None


def _named(model: Model) -> str:
    """Return model.timm and model.args as a user would type them."""
    if not model.args:
        return f"model.timm={model.timm}"
    return f"model.timm={model.timm}, model.args={option_text(model.args)}"


def check_sizes(stored: Mapping[str, Any], model: Model) -> None:
    """Check that a network has the sizes that the keys of model= state.

    For model.layer_scale, compare only whether there is a LayerScale ("a value" or "null"). The
    weights of a network do not show the initial value.

    Args:
        stored: {key: value} of the network, such as {"registers": 4, "layer_scale": "null"}.
        model: The keys of model=.

    Raises:
        UserError: The architecture of model.timm has other values.
    """
    for key, network_value in stored.items():
        recipe_value = getattr(model, key)
        if key == "layer_scale":
            recipe_value = "null" if recipe_value is None else "a value"
        if recipe_value != network_value:
            raise UserError(
                f"model.{key}={str(recipe_value).lower()}: in the network of {_named(model)}, {key}"
                f" is {str(network_value).lower()}. Use the value of the network."
            )


def check_architecture(backbone: Any, patch_size: int, model: Model) -> None:
    """Check that the keys of model= describe a timm Vision Transformer correctly.

    The keys are class_token, registers, layer_scale, qk_norm, activation, mlp, positions and patch.
    A key is checked only if the names and shapes of the weights show its value. For example, they
    do not show `mlp` of blocks with parallel branches, so it is not checked.

    Args:
        backbone: The network of timm.
        patch_size: Side of the network's patches in pixels.
        model: The keys of model=.

    Raises:
        UserError: The architecture or model.args of the model have other values.
    """
    args = option_text(model.args)
    if model.class_token and backbone.cls_token is None:
        raise UserError(
            f"model.args={args}: model.timm={model.timm} has no class token. Write"
            " class_token: false in model.args."
        )
    if not model.class_token and backbone.cls_token is not None:
        raise UserError(
            f"model.args={args}: model.timm={model.timm} has a class token. Write"
            " class_token: true in model.args."
        )
    keys = ("registers", "layer_scale", "qk_norm", "activation", "mlp")
    sizes = sizes_of_state(backbone.state_dict())
    stored = {key: sizes[f"model.{key}"] for key in keys if f"model.{key}" in sizes}
    # The encoder adds learned_2d and sincos_2d itself, so the network of timm has no positions
    if not model.positions.endswith("_2d"):
        stored["positions"] = positions_of(backbone)
    check_sizes(stored | {"patch": patch_size}, model)
