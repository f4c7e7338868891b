"""timm's name and arguments for a model of the recipe."""

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

# timm's registered architectures without an option of their own that the arguments could not undo:
# create_model drops an argument of None
SWIGLU = "vit_giant_patch14_dinov2"
ROTARY = "eva_giant_patch14_224"
# of it, for model.positions=rotary; model.args may change them
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
    """The name that timm.create_model takes."""
    if model.positions == "rotary" and model.timm == CLASSIC:
        return ROTARY
    if model.activation == "swiglu" and model.timm == CLASSIC:
        return SWIGLU
    return model.timm


def is_eva(model: Model) -> bool:
    """Whether timm.create_model makes an Eva of `architecture`."""
    name = architecture(model)
    return timm.is_model(name) and timm.models.model_entrypoint(name).__module__ == Eva.__module__


def timm_args(model: Model, size: int, channels: int = 3, exported: bool = True) -> dict[str, Any]:
    """Keyword arguments of timm.create_model for this model and images of side `size` pixels.

    Args:
        model: the encoder.
        size: of the images' side.
        channels: of the images; other than 3 without a ResNet alone.
        exported: positions that the encoder adds itself are a learned table of the backbone.
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
    if not model.hybrid:  # whose patches follow from its ResNet
        args["patch_size"] = model.patch
    if channels != 3:
        args["in_chans"] = channels
    if model.qk_norm:
        args["qk_norm"] = True
    if not model.class_token:
        args["global_pool"] = "avg"
    if model.activation == "swiglu" and not is_eva(model):  # whose ratio is of one matrix
        args["init_values"] = 0.0  # no LayerScale, which SWIGLU has
        if model.timm == CLASSIC or is_packed(network(model.timm, {}).state_dict()):
            args["mlp_ratio"] = _ratio(2 * model.mlp, model.width)
    if model.layer_scale is not None:
        args["init_values"] = model.layer_scale
    if is_eva(model):
        own = ROTARY_ARGS if model.timm == CLASSIC else {}
        more = {"swiglu_mlp": model.activation == "swiglu", "num_reg_tokens": model.registers}
        return own | args | more
    if model.registers:
        args["reg_tokens"] = model.registers
    if model.positions == "none" or (not exported and model.positions.endswith("_2d")):
        args["pos_embed"] = "none"
    return args


def _ratio(hidden: int, width: int) -> float:
    """mlp_ratio from which timm computes int(width * mlp_ratio) = hidden."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def first_registers(backbone: Any) -> None:
    """Draw registers as timm's Eva does. At timm's 1e-6 in VisionTransformer equal registers would
    get equal gradients."""
    if getattr(backbone, "reg_token", None) is not None:
        nn.init.normal_(backbone.reg_token, std=STD)


def create(model: Model, expected: str = "", **args: Any) -> Any:
    """timm's network of a model with those arguments, without a classifier.

    Raises:
        UserError: timm has no such architecture, or it takes other arguments; `expected` is what is
            expected, for the line.
    """
    try:
        return timm.create_model(architecture(model), pretrained=False, num_classes=0, **args)
    except Exception as error:  # whatever timm makes of another architecture's arguments
        why = " ".join((str(error) or repr(error)).split())[:200]
        raise UserError(f"{_named(model)}: {expected}timm: {why}") from None


def _named(model: Model) -> str:
    args = f", model.args={option_text(model.args)}" if model.args else ""
    return f"model.timm={model.timm}{args}"


def check_sizes(there: Mapping[str, Any], model: Model) -> None:
    """Check that a network has the values that the keys of model= say.

    Args:
        there: {key: value} of the network; of LayerScale whether it has one, as `sizes_of_state`.
        model: the keys.

    Raises:
        UserError: model.timm names an architecture with other values.
    """
    for key, value in there.items():
        here = getattr(model, key)
        if key == "layer_scale":
            here = "null" if here is None else "a value"
        if here != value:
            has = f"{_named(model)} has {str(value).lower()}"
            raise UserError(f"model.{key}={str(here).lower()}: {has}")


def check_architecture(backbone: Any, patch_size: int, model: Model) -> None:
    """`check_sizes` of a Vision Transformer of timm; raises as it."""
    if (backbone.cls_token is None) == model.class_token:
        has, says = ("no", "false") if model.class_token else ("a", "true")
        raise UserError(
            f"model.args={option_text(model.args)}: model.timm={model.timm} has {has} class token;"
            f" expected class_token: {says} in it"
        )
    keys = ("registers", "layer_scale", "qk_norm", "activation", "mlp")
    found = sizes_of_state(backbone.state_dict())
    # parallel blocks show no MLP
    there = {key: found[f"model.{key}"] for key in keys if f"model.{key}" in found}
    if not model.positions.endswith("_2d"):  # which the encoder adds itself
        there["positions"] = positions_of(backbone)
    check_sizes(there | {"patch": patch_size}, model)
