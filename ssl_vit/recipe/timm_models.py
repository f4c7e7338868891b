"""What timm builds of a name and arguments, in the recipe's keys. timm and torch are imported when
a function needs them."""

import functools
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from .keys import keys_of, validated
from .model import GIVEN, WORDS, Model
from .names import PLAIN_NAME

# Values of global_pool and pos_embed; other texts, which may name what timm downloads, and objects
# are not passed on
TEXTS = ("", "token", "avg", "max", "avgmax", "map", "prr", "learn", "none", *WORDS)
# Arguments of files that decide nothing of a network without a classifier
LEFT_OUT = {
    name
    for name, key in GIVEN.items()
    if name != "global_pool" and (key is None or key.startswith(("optim.", "data.")))
}
SIZES = {"patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio"}
# Whose loading in timm stretches a table of positions to the corners of another grid
TO_CORNERS = ("base_patch16_radio_v3", "huge_patch16_radio_v3")
BOUNDED = {"embed_dim": "width", "depth": "depth", "num_heads": "heads"}


class Described(NamedTuple):
    """A Vision Transformer or an Eva of timm."""

    values: dict[str, Any]  # {key of Model: value}
    pool: str  # an image's feature: "token", or "avg"


def network(name: str, args: Mapping[str, Any]) -> Any:
    """timm's network on the meta device, without a classifier; None where timm has none of that
    name. It is shared: nobody changes it.

    Raises:
        ValueError: timm takes no such argument, or it is none that may be passed on.
    """
    taken = {key: one for key, one in args.items() if one is not None and key not in LEFT_OUT}
    return _network(name, json.dumps(taken, sort_keys=True))


@functools.lru_cache(8)
def _network(name: str, arguments: str) -> Any:
    import timm
    import torch

    if not PLAIN_NAME.fullmatch(name) or not timm.is_model(name):
        return None
    args = json.loads(arguments)
    for key, value in args.items():
        values = value if isinstance(value, list) else [value]
        if not all(one in TEXTS for one in values if not isinstance(one, bool | int | float)):
            words = ", ".join(WORDS)
            raise ValueError(f"model_args has {key}={value}; expected numbers or one of {words}")
    try:
        with torch.device("meta"):
            return timm.create_model(name, pretrained=False, num_classes=0, **args)
    except Exception as error:  # whatever timm makes of arguments
        text = " ".join((str(error) or repr(error)).split())[:200]
        raise ValueError(f"timm builds no {name} of its model_args: {text}") from None


def published(name: str) -> Any:
    """What timm knows of the weights of a name: a PretrainedCfg.

    Raises:
        ValueError: it has none of that name on the Hub.
    """
    import timm

    known = None
    with suppress(RuntimeError):  # of another tag after a name that it has
        known = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if known is None or not known.hf_hub_id:
        raise ValueError("timm has no weights of that name on the Hub")
    return known


def unfit(net: Any) -> str | None:
    """What of a network of timm's an encoder cannot be; None where nothing is."""
    from timm.layers import RotaryEmbeddingCat, RotaryEmbeddingDinoV3
    from timm.models.eva import Eva
    from timm.models.vision_transformer import VisionTransformer

    if type(net) not in (VisionTransformer, Eva):
        return f"expected a Vision Transformer or an Eva; it is a {type(net).__name__}"
    rope = getattr(net, "rope", None)
    if rope is not None and type(rope) not in (RotaryEmbeddingCat, RotaryEmbeddingDinoV3):
        return f"expected rope_type=cat or dinov3; it has a {type(rope).__name__}"
    if getattr(rope, "aug_active", False):
        return "expected rotary positions that training does not shift or scale at random"
    if net.attn_pool is not None or net.global_pool in ("max", "avgmax"):
        return f"expected global_pool=token or avg; it has {net.global_pool}"
    if getattr(net, "pool_include_prefix", False):
        return "expected pool_include_prefix=false"
    return None


def describe(name: str, args: Mapping[str, Any]) -> Described:
    """Describe the Vision Transformer or Eva that timm makes of a name and arguments. The
    description is shared: nobody changes it.

    Raises:
        ValueError: timm has none of that name, or it is another kind of network; what is expected.
        UserError: a size is out of bounds.
    """
    return _describe(name, json.dumps(args))


@functools.lru_cache(8)
def _describe(name: str, arguments: str) -> Described:
    from timm.layers import HybridEmbed

    args = json.loads(arguments)

    # before ten million blocks are built
    sizes = {key: args[given] for given, key in BOUNDED.items() if given in args}
    validated(Model, sizes, keys_of(Model), "model.")
    net = network(name, args)
    unknown = f"model.timm={name}: expected a name of timm's architectures"
    reason = unknown if net is None else unfit(net)
    if reason:
        raise ValueError(reason)
    values = {
        key.removeprefix("model."): value for key, value in sizes_of_state(net.state_dict()).items()
    }
    block, embed = net.blocks[0], net.patch_embed
    if "mlp" not in values:
        raise ValueError(f"expected blocks of attention and an MLP; {name} has other ones")
    side, other = embed.patch_size
    if side != other:
        raise ValueError(f"expected square patches; they are of {side} x {other} pixels")
    if isinstance(embed, HybridEmbed):  # whose patches are cells of its stem's feature map
        side = embed.img_size[0] // embed.grid_size[0]
    values |= {"timm": name, "patch": side, "heads": block.attn.num_heads}
    values["name"] = name
    if SIZES & args.keys():  # timm's name would promise others
        values["name"] = f"vit_{values['width']}x{values['depth']}_p{side}"
    values["positions"] = positions_of(net)
    first = (one.init_values for one in block.modules() if getattr(one, "init_values", None))
    # blocks with norms after their branches begin those with it
    values["layer_scale"] = None if values["layer_scale"] == "null" else next(first, None)
    values["args"] = {key: one for key, one in args.items() if key not in GIVEN and one is not None}
    if net.cls_token is None:
        values["args"]["class_token"] = False
    norms = [has_fc_norm(one) for one in (net, network(name, {}))]
    if any(norms) or net.cls_token is None:  # what timm's builder does without it hangs on pooling
        values["args"][fc_norm_argument(net)] = norms[0]
    pool = "avg" if net.global_pool == "avg" or net.cls_token is None else "token"
    return Described(values, pool)


def table_rule(name: str) -> dict[str, Any]:
    """Arguments of timm's `resample_abs_pos_embed` with which it loads weights of that name."""
    if "flexi" not in name and "radio" not in name:
        return {}
    corners = any(part in name for part in TO_CORNERS)
    return {"interpolation": "bilinear", "antialias": False, "align_corners": corners}


def has_fc_norm(net: Any) -> bool:
    """Whether an image's feature is normalised after the pooling, and not its tokens before it."""
    return any(True for _ in net.fc_norm.parameters())


def fc_norm_argument(net: Any) -> str:
    """The argument of timm's builder for `has_fc_norm`."""
    return "use_fc_norm" if hasattr(net, "rope") else "fc_norm"


def positions_of(net: Any) -> str:
    """The value of model.positions of a network of timm's; an Eva's rotary ones may stand beside a
    learned table."""
    if getattr(net, "rope", None) is not None:
        return "rotary"
    return "none" if getattr(net, "pos_embed", None) is None else "learned"


def sizes_of_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """{key: value} of a Vision Transformer, in the recipe's keys, from the names and shapes of its
    state. Of LayerScale whether it has one."""
    sizes: dict[str, Any] = {}
    if "patch_embed.proj.weight" in state:
        sizes |= {
            "model.width": state["patch_embed.proj.weight"].shape[0],
            "model.patch": state["patch_embed.proj.weight"].shape[-1],
        }
    blocks = [int(name.split(".")[1]) for name in state if name.startswith("blocks.")]
    if not blocks:
        return sizes
    sizes["model.depth"] = max(blocks) + 1
    if "blocks.0.mlp.fc2.weight" in state:
        sizes["model.mlp"] = state["blocks.0.mlp.fc2.weight"].shape[1]
        # timm's packed layer holds both matrices
        gated = "blocks.0.mlp.fc1_g.weight" in state or is_packed(state)
        sizes["model.activation"] = "swiglu" if gated else "gelu"
    sizes["model.registers"] = state["reg_token"].shape[1] if "reg_token" in state else 0
    sizes["model.qk_norm"] = "blocks.0.attn.q_norm.weight" in state
    has_scale = {"blocks.0.ls1.gamma", "blocks.0.gamma_1"} & state.keys()
    sizes["model.layer_scale"] = "a value" if has_scale else "null"
    return sizes


def is_packed(state: Mapping[str, Any]) -> bool:
    """Whether the first layer of an MLP holds two matrices."""
    first = state.get("blocks.0.mlp.fc1.weight")
    return first is not None and first.shape[0] == 2 * state["blocks.0.mlp.fc2.weight"].shape[1]


def unseen(net: Any) -> dict[str, Any]:
    """{name: value} of what neither names nor shapes of a Vision Transformer's weights show; empty
    for another network."""
    block: Any = next(iter(getattr(net, "blocks", ())), None)
    if not hasattr(block, "attn"):
        return {}
    found: dict[str, Any] = {"model.heads": block.attn.num_heads}
    # timm's EvaBlockPostNorm and ResPostBlock
    found["norms after the branches"] = "Post" in type(block).__name__
    if eps := getattr(getattr(block, "norm1", None), "eps", None):
        found["eps of the norms"] = eps
    if act := getattr(getattr(block, "mlp", None), "act", None):
        found["activation"] = repr(act)
    for name, value in vars(getattr(net, "rope", None) or object).items():
        if name in ("training", "feat_shape") or name.startswith("_"):
            continue
        if isinstance(value, bool | int | float | str | tuple | list):
            found[f"rope.{name}"] = list(value) if isinstance(value, tuple) else value
    return found
