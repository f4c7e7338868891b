"""Describe networks of timm by the keys of recipes.

timm and torch are imported only in the functions that need them.
"""

import functools
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from .keys import build_validated, keys_of
from .model import GIVEN, WORDS, Model
from .names import PLAIN_NAME

# Texts that arguments of timm may have: values of global_pool and pos_embed, and WORDS. Other texts
# are refused, because they could name files that timm downloads.
TEXTS = ("", "token", "avg", "max", "avgmax", "map", "prr", "learn", "none", *WORDS)
# Arguments that are ignored, because this package, or a key of `optim` or `data`, sets them
LEFT_OUT = {
    name
    for name, key in GIVEN.items()
    if name != "global_pool" and (key is None or key.startswith(("optim.", "data.")))
}
SIZES = {"patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio"}
# Architectures for which timm resizes position embeddings with align_corners=True
TO_CORNERS = ("base_patch16_radio_v3", "huge_patch16_radio_v3")
# {argument of timm: key of Model, whose bounds are checked}
BOUNDED = {"embed_dim": "width", "depth": "depth", "num_heads": "heads"}


class TimmDescription(NamedTuple):
    """Description of a Vision Transformer or Eva of timm.

    Attributes:
        values: {key of Model: value}.
        pool: How tokens are pooled into one feature: "token" or "avg".
    """

    values: dict[str, Any]
    pool: str


def network(name: str, args: Mapping[str, Any]) -> Any:
    """Build a network of timm without weights (on the meta device) and without a classifier.

    Return None if timm has no architecture with this name. The result is cached: do not change the
    network.

    Args:
        name: Name of the architecture, such as `vit_tiny_patch16_224`.
        args: Arguments of `timm.create_model`. Arguments with the value None or in LEFT_OUT are
            ignored.

    Raises:
        ValueError: timm cannot build the network with these arguments, or an argument is a text
            that is not in TEXTS. Such a text might name a file that timm would download.
    """
    used = {key: value for key, value in args.items() if value is not None and key not in LEFT_OUT}
    # as text, because the arguments of a cached function must be hashable
    return _network(name, json.dumps(used, sort_keys=True))


@functools.lru_cache(8)
def _network(name: str, arguments: str) -> Any:
    """Build the network for arguments given as JSON, such as '{"depth": 2}' (see `network`)."""
    import timm
    import torch

    if not PLAIN_NAME.fullmatch(name) or not timm.is_model(name):
        return None
    args = json.loads(arguments)
    for key, value in args.items():
        items = value if isinstance(value, list) else [value]
        non_numbers = [item for item in items if not isinstance(item, bool | int | float)]
        if not all(item in TEXTS for item in non_numbers):
            words = ", ".join(WORDS)
            text = f"model_args has {key}={value}. Choose a number or one of {words}"
            raise ValueError(text)
    try:
        with torch.device("meta"):
            return timm.create_model(name, pretrained=False, num_classes=0, **args)
    except Exception as error:  # timm raises many kinds of errors for wrong arguments
        text = " ".join((str(error) or repr(error)).split())[:200]
        raise ValueError(f"timm cannot build {name} with these model_args: {text}") from None


def published(name: str) -> Any:
    """Return timm's PretrainedCfg for a name of weights, such as `vit_tiny_patch16_224.augreg`.

    Raises:
        ValueError: timm has no weights with this name on the Hub.
    """
    import timm

    known = None
    with suppress(RuntimeError):  # raised for an unknown tag after a known name
        known = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if known is None or not known.hf_hub_id:
        raise ValueError("timm has no weights with this name on the Hub")
    return known


def why_unsupported(net: Any) -> str | None:
    """Return why a network of timm cannot be an encoder, or None if the network can."""
    from timm.layers import RotaryEmbeddingCat, RotaryEmbeddingDinoV3
    from timm.models.eva import Eva
    from timm.models.vision_transformer import VisionTransformer

    if type(net) not in (VisionTransformer, Eva):
        return f"expected a Vision Transformer or an Eva, not a {type(net).__name__}"
    rope = getattr(net, "rope", None)
    if rope is not None and type(rope) not in (RotaryEmbeddingCat, RotaryEmbeddingDinoV3):
        return f"expected rope_type=cat or dinov3, not a {type(rope).__name__}"
    if getattr(rope, "aug_active", False):
        return "expected rotary positions that training does not shift or scale at random"
    if net.attn_pool is not None or net.global_pool in ("max", "avgmax"):
        return f"expected global_pool=token or avg, not {net.global_pool}"
    if getattr(net, "pool_include_prefix", False):
        return "expected pool_include_prefix=false"
    return None


def describe(name: str, args: Mapping[str, Any]) -> TimmDescription:
    """Describe a Vision Transformer or Eva of timm. The description is cached: do not change it.

    Args:
        name: Name of the architecture, such as `vit_tiny_patch16_224`.
        args: Arguments of `timm.create_model`.

    Raises:
        ValueError: timm has no architecture with this name, or the network cannot be an encoder.
            The message says what is expected.
        UserError: A size is out of bounds.
    """
    # as text, because the arguments of a cached function must be hashable
    return _describe(name, json.dumps(args))


@functools.lru_cache(8)
def _describe(name: str, arguments: str) -> TimmDescription:
    """Describe the network for arguments given as JSON, such as '{"depth": 2}' (see `describe`)."""
    from timm.layers import HybridEmbed

    args = json.loads(arguments)

    # check the sizes first, because timm would build even ten million blocks
    sizes = {key: args[timm_name] for timm_name, key in BOUNDED.items() if timm_name in args}
    build_validated(Model, sizes, keys_of(Model), "model.")
    net = network(name, args)
    unknown = f"model.timm={name}: timm has no architecture with this name"
    reason = unknown if net is None else why_unsupported(net)
    if reason:
        raise ValueError(reason)
    values = {
        key.removeprefix("model."): value for key, value in sizes_of_state(net.state_dict()).items()
    }
    block, embed = net.blocks[0], net.patch_embed
    if "mlp" not in values:
        raise ValueError(
            f"each block must be an attention layer and an MLP, but {name} has other blocks"
        )
    side, width = embed.patch_size
    if side != width:
        raise ValueError(f"expected square patches, not patches of {side} x {width} pixels")
    if isinstance(embed, HybridEmbed):  # patches are cells of a feature map
        side = embed.img_size[0] // embed.grid_size[0]
    values |= {"timm": name, "patch": side, "heads": block.attn.num_heads}
    values["name"] = name
    if SIZES & args.keys():  # the arguments give other sizes than the name of the architecture
        values["name"] = f"vit_{values['width']}x{values['depth']}_p{side}"
    values["positions"] = positions_of(net)
    # A block with norms after the branches has no LayerScale. There, `init_values` is the initial
    # value of these norms.
    init_values = (
        module.init_values for module in block.modules() if getattr(module, "init_values", None)
    )
    values["layer_scale"] = None if values["layer_scale"] == "null" else next(init_values, None)
    values["args"] = {
        key: value for key, value in args.items() if key not in GIVEN and value is not None
    }
    if net.cls_token is None:
        values["args"]["class_token"] = False
    default_net = network(name, {})
    has_norm, has_norm_by_default = has_fc_norm(net), has_fc_norm(default_net)
    # without this argument, timm would choose the norm by the pooling
    if has_norm or has_norm_by_default or net.cls_token is None:
        values["args"][fc_norm_argument(net)] = has_norm
    pool = "avg" if net.global_pool == "avg" or net.cls_token is None else "token"
    return TimmDescription(values, pool)


def find_position_resizing(name: str) -> dict[str, Any]:
    """Return the arguments with which timm resizes position embeddings when it loads weights.

    timm resizes with `resample_abs_pos_embed`. For names with "flexi" or "radio", timm does not use
    the defaults of this function.

    Args:
        name: Name of the architecture.

    Returns:
        {argument of `resample_abs_pos_embed`: value}, empty if timm uses the defaults.
    """
    if "flexi" not in name and "radio" not in name:
        return {}
    corners = any(part in name for part in TO_CORNERS)
    return {"interpolation": "bilinear", "antialias": False, "align_corners": corners}


def has_fc_norm(net: Any) -> bool:
    """Return whether the network has a norm for the pooled feature (`fc_norm`).

    `fc_norm` is an identity without parameters if the network normalises the tokens instead.
    """
    return any(True for _ in net.fc_norm.parameters())


def fc_norm_argument(net: Any) -> str:
    """Return timm's name for the argument that adds `fc_norm`.

    The name is "use_fc_norm" for an Eva and "fc_norm" for a Vision Transformer.
    """
    return "use_fc_norm" if hasattr(net, "rope") else "fc_norm"


def positions_of(net: Any) -> str:
    """Return the value of model.positions for a network of timm.

    An Eva with rotary positions counts as rotary even if it also has a learned table.
    """
    if getattr(net, "rope", None) is not None:
        return "rotary"
    return "none" if getattr(net, "pos_embed", None) is None else "learned"


def sizes_of_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Read the sizes of a Vision Transformer from a state_dict, as {recipe key: value}.

    For example {"model.width": 192, "model.patch": 16, "model.depth": 12, ...}. Only names and
    shapes of the weights are read. The shapes do not show the initial value of LayerScale, so
    `model.layer_scale` is "a value" with LayerScale and "null" without.
    """
    sizes: dict[str, Any] = {}
    if "patch_embed.proj.weight" in state:
        sizes |= {
            "model.width": state["patch_embed.proj.weight"].shape[0],
            "model.patch": state["patch_embed.proj.weight"].shape[-1],
        }
    block_indices = [int(name.split(".")[1]) for name in state if name.startswith("blocks.")]
    if not block_indices:
        return sizes
    sizes["model.depth"] = max(block_indices) + 1
    if "blocks.0.mlp.fc2.weight" in state:
        sizes["model.mlp"] = state["blocks.0.mlp.fc2.weight"].shape[1]
        # a gated MLP has a second first layer, fc1_g, or both matrices in a packed layer
        gated = "blocks.0.mlp.fc1_g.weight" in state or is_packed(state)
        sizes["model.activation"] = "swiglu" if gated else "gelu"
    sizes["model.registers"] = state["reg_token"].shape[1] if "reg_token" in state else 0
    sizes["model.qk_norm"] = "blocks.0.attn.q_norm.weight" in state
    has_scale = {"blocks.0.ls1.gamma", "blocks.0.gamma_1"} & state.keys()
    sizes["model.layer_scale"] = "a value" if has_scale else "null"
    return sizes


def is_packed(state: Mapping[str, Any]) -> bool:
    """Return whether the MLPs are gated and hold both first matrices in one layer.

    Such a first layer (fc1) has twice as many outputs as the second layer (fc2) has inputs.
    """
    first = state.get("blocks.0.mlp.fc1.weight")
    return first is not None and first.shape[0] == 2 * state["blocks.0.mlp.fc2.weight"].shape[1]


def hidden_properties(net: Any) -> dict[str, Any]:
    """Return properties of a Vision Transformer that its weights do not show, as {name: value}.

    For example {"model.heads": 12, "eps of the norms": 1e-6, ...}. Two networks with the same
    weights compute the same features only if these properties are equal. For a network without
    attention blocks, return an empty dictionary.
    """
    block: Any = next(iter(getattr(net, "blocks", ())), None)
    if not hasattr(block, "attn"):
        return {}
    properties: dict[str, Any] = {"model.heads": block.attn.num_heads}
    # true for timm's EvaBlockPostNorm and ResPostBlock
    properties["norms after the branches"] = "Post" in type(block).__name__
    if eps := getattr(getattr(block, "norm1", None), "eps", None):
        properties["eps of the norms"] = eps
    if act := getattr(getattr(block, "mlp", None), "act", None):
        properties["activation"] = repr(act)
    rope = getattr(net, "rope", None)  # rotary positions
    if not rope:
        return properties
    for name, value in vars(rope).items():
        # skip the mode (training or evaluation) and the grid of the last image
        if name in ("training", "feat_shape") or name.startswith("_"):
            continue
        if isinstance(value, bool | int | float | str | tuple | list):
            properties[f"rope.{name}"] = list(value) if isinstance(value, tuple) else value
    return properties
