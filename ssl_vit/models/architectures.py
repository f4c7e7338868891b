"""timm's name and arguments for a model of the recipe."""

import math
from collections.abc import Mapping
from typing import Any

import timm
import torch
from timm.layers import HybridEmbed, LayerScale
from timm.models import PretrainedCfg
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ..errors import UserError
from ..formatting import option_text
from ..recipe.init_source import InitSource
from ..recipe.model import CLASSIC
from ..recipe.names import PLAIN_NAME
from ..recipe.schema import Model
from . import resnet  # noqa: F401  adds its architectures to timm's
from .positions import STD

# timm's registered architectures without an option of their own that the arguments could not undo:
# create_model drops an argument of None
SWIGLU = "vit_giant_patch14_dinov2"
ROTARY = "eva_giant_patch14_224"
TEMPERATURE = 100.0  # of rotary positions (Heo et al., 2024, section 3.2)


def architecture(model: Model) -> str:
    """The name that timm.create_model takes."""
    if model.positions == "rotary":
        return ROTARY
    if model.activation == "swiglu" and model.timm == CLASSIC:
        return SWIGLU
    return model.timm


def timm_class(model: Model) -> type[nn.Module]:
    """The class of what timm.create_model makes of `architecture`."""
    return Eva if model.positions == "rotary" else VisionTransformer


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
    if model.positions == "rotary":
        return args | _rotary(model)
    if model.activation == "swiglu":
        # timm's packed layer counts both matrices; 0: no LayerScale, which SWIGLU has
        args |= {"mlp_ratio": _ratio(2 * model.mlp, model.width), "init_values": 0.0}
    if model.layer_scale is not None:
        args["init_values"] = model.layer_scale
    if model.registers:
        args["reg_tokens"] = model.registers
    if model.positions == "none" or (not exported and model.positions.endswith("_2d")):
        args["pos_embed"] = "none"
    return args


def _ratio(hidden: int, width: int) -> float:
    """mlp_ratio from which timm computes int(width * mlp_ratio) = hidden."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def _rotary(model: Model) -> dict[str, Any]:
    """Arguments of Eva, which counts one matrix of SwiGLU in mlp_ratio."""
    args: dict[str, Any] = {
        "global_pool": "token",
        "use_fc_norm": False,
        "attn_type": "rope",
        "use_abs_pos_emb": False,
        "use_rot_pos_emb": True,
        "rope_grid_indexing": "xy",
        "rope_temperature": TEMPERATURE,
        "swiglu_mlp": model.activation == "swiglu",
        "num_reg_tokens": model.registers,
    }
    if model.layer_scale is not None:
        args["init_values"] = model.layer_scale
    return args


def first_registers(backbone: Any) -> None:
    """Draw registers as timm's Eva does. At timm's 1e-6 in VisionTransformer equal registers would
    get equal gradients."""
    if getattr(backbone, "reg_token", None) is not None:
        nn.init.normal_(backbone.reg_token, std=STD)


# timm's arguments that change an architecture -> the recipe's keys
NUMBERS = {
    "patch_size": "patch",
    "embed_dim": "width",
    "depth": "depth",
    "num_heads": "heads",
    "reg_tokens": "registers",
}


def registered(name: str) -> Any:
    """timm's network of that name, without weights; None where it has none.

    Nothing but the name, which a file may state, is passed to timm: some names and arguments make
    it download.
    """
    if not PLAIN_NAME.fullmatch(name) or not timm.is_model(name):
        return None
    with torch.device("meta"):
        return timm.create_model(name, pretrained=False, num_classes=0)


def published(init: InitSource) -> PretrainedCfg:
    """What timm knows of the weights that init=timm:NAME names.

    Raises:
        UserError: it has none of that name on the Hub.
    """
    known = timm.get_pretrained_cfg(init.timm_name) if timm.is_model(init.timm_name) else None
    if known is None or not known.hf_hub_id:
        raise UserError(f"init={init.place}: timm has no weights of that name on the Hub")
    return known


def values_of_timm(name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """{key of Model: value} of a Vision Transformer as timm makes it of a name and arguments.

    Raises:
        ValueError: timm has none of that name, or it is another kind of network.
    """
    net = registered(name)
    if net is None:
        raise ValueError(f"timm has no architecture {name}")
    if type(net) is not VisionTransformer:
        raise ValueError(f"expected a Vision Transformer; {name} is a {type(net).__name__}")
    attention: Any = net.blocks[0].attn
    found = sizes_of_state(net.state_dict(), attention.num_heads)
    values = {key.removeprefix("model."): value for key, value in found.items()}
    values |= {"name": name, "timm": name}
    values["positions"] = "none" if net.pos_embed is None else "learned"
    scales = [one.init_values for one in net.modules() if isinstance(one, LayerScale)]
    values["layer_scale"] = scales[0] if scales else None
    embed = net.patch_embed
    if isinstance(embed, HybridEmbed):
        values["patch"] = embed.img_size[0] // embed.grid_size[0]
    ratio = args.get("mlp_ratio", values["mlp"] / values["width"])
    values |= {NUMBERS[key]: args[key] for key in NUMBERS.keys() & args.keys()}
    values["mlp"] = round(ratio * values["width"])
    return values


def sizes_of_state(state: Mapping[str, Tensor], heads: int | None) -> dict[str, Any]:
    """{key: value} of a Vision Transformer, in the recipe's keys, from the names and shapes of its
    state; and its heads, which no shape shows. Of LayerScale whether it has one."""
    sizes: dict[str, Any] = {} if heads is None else {"model.heads": heads}
    if "patch_embed.proj.weight" in state:
        sizes |= {
            "model.width": state["patch_embed.proj.weight"].shape[0],
            "model.patch": state["patch_embed.proj.weight"].shape[-1],
        }
    blocks = [int(name.split(".")[1]) for name in state if name.startswith("blocks.")]
    if not blocks:
        return sizes
    sizes["model.depth"] = max(blocks) + 1
    if "blocks.0.mlp.fc1.weight" in state:
        wide = state["blocks.0.mlp.fc1.weight"].shape[0]
        sizes["model.mlp"] = state["blocks.0.mlp.fc2.weight"].shape[1]
        # timm's packed layer holds both matrices
        sizes["model.activation"] = "swiglu" if wide == 2 * sizes["model.mlp"] else "gelu"
    sizes["model.registers"] = state["reg_token"].shape[1] if "reg_token" in state else 0
    sizes["model.qk_norm"] = "blocks.0.attn.q_norm.weight" in state
    has_scale = {"blocks.0.ls1.gamma", "blocks.0.gamma_1"} & state.keys()
    sizes["model.layer_scale"] = "a value" if has_scale else "null"
    return sizes


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
    keys = ("registers", "layer_scale", "qk_norm", "activation")
    found = sizes_of_state(backbone.state_dict(), None)
    # parallel blocks show no activation
    there = {key: found[f"model.{key}"] for key in keys if f"model.{key}" in found}
    check_sizes(there | {"patch": patch_size}, model)
