"""Weights in, from anywhere that `init=` names, and out, as timm and transformers read them with no
code of this project."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import timm
import torch
from einops import rearrange
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional as F

from .. import hub_files
from ..config.export_files import normalisation
from ..config.fields import PLAIN_NAME
from ..config.init_source import InitSource
from ..config.schema import Data, Model
from ..errors import UserError
from . import interop
from .encoder import Backbone, Encoder, timm_args

# a pre-training head: left behind (paper, 3.2)
HEADS = ("head.", "head_dist.", "fc_norm.", "pre_logits.")
POSITIONS = "pos_embed"


def load_init(encoder: Backbone, init: InitSource, exported: bool = True) -> dict[str, Any]:
    """Load first weights, unless `init` is scratch. An encoder that will be `exported` keeps the eps
    of its own layer norms, as timm's exports cannot hold another.

    Returns:
        What environment.json records: under `init` hashes by which a change is noticed, under
        `before` what the run that made the weights took.

    Raises:
        UserError: as `load_weights`, or the folder of the run that made the weights is damaged.
    """
    if init.is_scratch:
        return {}
    own = _norm_eps(encoder)
    before = init.upstream_cost()  # first: a damaged folder is an error before the work, not after
    hashed = load_weights(encoder, init)
    eps = _norm_eps(encoder)
    if exported and own is not None and eps != own:
        _set_eps(encoder, own)
        if os.environ.get("RANK", "0") == "0":
            print(
                f"warning: init={init.place}: layer_norm_eps={eps:g} there; training uses {own:g},"
                " as timm's exports do"
            )
    return {"init": {"weights": hashed, "file": init.weights_hash()}, "before": before}


def _norm_eps(encoder: Backbone) -> float | None:
    return getattr(getattr(encoder.backbone, "norm", None), "eps", None)


def _set_eps(encoder: Backbone, eps: float) -> None:
    for module in encoder.backbone.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps


def load_weights(encoder: Backbone, init: InitSource) -> str:
    """Load the weights that `init` names into the encoder, positions interpolated to its grid; a
    hash of them. Its layer norms get the eps that those weights come with.

    Raises:
        UserError: they are not there, are damaged, or belong to another model; sizes and names that
        differ are told.
    """
    try:
        return _load_state(encoder, init, _open(init))
    except UserError:
        raise
    except Exception as error:  # whatever a foreign file or a network makes of this
        raise UserError(f"init={init.place}: {' '.join(str(error).split())[:300]}") from None


def _load_state(encoder: Backbone, init: InitSource, there: "LoadedWeights") -> str:
    for key, was, now in (("mean", there.mean, encoder.mean), ("std", there.std, encoder.std)):
        here = [round(x, 4) for x in (now.flatten() / 255).tolist()]
        if was is not None and [round(x, 4) for x in was] != here:
            raise UserError(
                f"data.{key}={here}: init={init.place} was made with {list(was)}; add data.{key}={_word(was)}"
            )
    backbone = encoder.backbone
    found = {name: value for name, value in there.state.items() if not name.startswith(HEADS)}
    _check(
        init.place,
        _sizes(found, there.heads),
        _sizes(backbone.state_dict(), _attention_heads(backbone)),
    )
    _check_names(init.place, found, backbone.state_dict())
    if POSITIONS in found and isinstance(encoder, Encoder):
        # of the leading tokens, those that have positions
        prefix = 0 if backbone.no_embed_class else encoder.prefix
        found[POSITIONS] = resize_positions(found[POSITIONS], encoder.grid, prefix)
    backbone.load_state_dict(found)
    if there.eps is not None:
        _set_eps(encoder, there.eps)
    return fingerprint(found)


def _word(values: list[float] | tuple[float, ...]) -> str:
    return f"[{','.join(map(str, values))}]"


class LoadedWeights(NamedTuple):
    """A timm backbone's state; the mean and std of the pixels that it expects, its attention heads
    and the eps of its layer norms, where they are told."""

    state: dict[str, Tensor]
    mean: list[float] | None
    std: list[float] | None
    heads: int | None
    eps: float | None = None


def _open(init: InitSource) -> LoadedWeights:
    folder = init.fetch_export("config.json", "preprocessor_config.json", "model.safetensors")
    if init.is_timm:
        return _of_timm(init.timm_name, init.place)
    return _from_npz(init.place) if folder is None else _from_export(folder, init.place)


def _of_timm(name: str, place: str) -> LoadedWeights:
    """timm's own weights of that name: safetensors from its repository, without the classifier.
    timm itself might unpickle."""
    known = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if known is None or not known.hf_hub_id:
        raise UserError(f"init={place}: timm has no weights of that name on the Hub")
    found = _from_export(
        hub_files.fetch(known.hf_hub_id, f"init={place}", ["config.json", "model.safetensors"]),
        place,
    )
    classifiers = (
        known.classifier if isinstance(known.classifier, tuple | list) else (known.classifier,)
    )
    ends = tuple(f"{part}." for part in classifiers if part)
    return found._replace(
        state={key: value for key, value in found.state.items() if not key.startswith(ends)}
    )


def _attention_heads(backbone: Any) -> int | None:
    return (
        backbone.blocks[0].attn.num_heads
        if hasattr(backbone, "blocks") and hasattr(backbone.blocks[0], "attn")
        else None
    )


def _from_export(folder: Path, place: str) -> LoadedWeights:
    if not (folder / "model.safetensors").exists():
        raise UserError(
            f"init={place}: the repository is no encoder that can be read: it has no model.safetensors"
        )
    config, norm = json.loads((folder / "config.json").read_text()), normalisation(folder)
    state = load_file(folder / "model.safetensors")
    if config.get("model_type") == "vit":
        heads, eps = config["num_attention_heads"], config.get("layer_norm_eps", interop.EPS)
        return LoadedWeights(
            interop.from_transformers(state), norm.get("mean"), norm.get("std"), heads, eps
        )
    heads = (config.get("model_args") or {}).get("num_heads") or _heads_of(config)
    return LoadedWeights(state, norm.get("mean"), norm.get("std"), heads)


def _heads_of(config: dict[str, Any]) -> int | None:
    """Of an export that names timm's architecture only, its attention heads; None of others, whose
    shapes alone are compared.

    Nothing else that the file says reaches timm, which would fetch what a name or an argument asks
    for.
    """
    architecture = str(config.get("architecture"))
    if not PLAIN_NAME.fullmatch(architecture) or not timm.is_model(architecture):
        return None
    with torch.device("meta"):
        return _attention_heads(timm.create_model(architecture, pretrained=False, num_classes=0))


def _from_npz(path: str) -> LoadedWeights:
    """A Google checkpoint (their flax names), through timm's reader into a backbone of the file's
    own grid."""
    with np.load(path) as arrays:  # allow_pickle stays False
        plain = (
            "Transformer/posembed_input/pos_embedding" in arrays
            and arrays["embedding/kernel"].shape[2] == 3
        )
        if not plain:
            raise UserError(
                f"init={path}: of Google's files only Vision Transformers on patches of pixels can be read"
            )
        tokens = arrays["Transformer/posembed_input/pos_embedding"].shape[1]
        patch, _, _, width = arrays["embedding/kernel"].shape
        depth = sum(name.endswith("LayerNorm_0/scale") for name in arrays.files)
        mlp = arrays["Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"].shape[1]
        heads = arrays[
            "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
        ].shape[1]
    size = patch * round((tokens - 1) ** 0.5)
    model = Model(patch=patch, width=width, depth=depth, heads=heads, mlp=mlp)
    backbone: Any = timm.create_model(model.timm, num_classes=0, **timm_args(model, size))
    backbone.load_pretrained(path)
    return LoadedWeights(backbone.state_dict(), [0.5] * 3, [0.5] * 3, heads)


def _sizes(state: Mapping[str, Tensor], heads: int | None) -> dict[str, int]:
    """What a backbone's state tells of its size, by the recipe's keys; and its heads, which shapes
    do not tell."""
    sizes = {} if heads is None else {"model.heads": heads}
    if "patch_embed.proj.weight" in state:
        sizes |= {
            "model.width": state["patch_embed.proj.weight"].shape[0],
            "model.patch": state["patch_embed.proj.weight"].shape[-1],
        }
    if blocks := [int(name.split(".")[1]) for name in state if name.startswith("blocks.")]:
        sizes["model.depth"] = max(blocks) + 1
    if "blocks.0.mlp.fc1.weight" in state:
        sizes["model.mlp"] = state["blocks.0.mlp.fc1.weight"].shape[0]
    return sizes


def _check(place: str, there: Mapping[str, int], here: Mapping[str, int]) -> None:
    if differ := [
        f"{key}={here[key]} here, {value} there"
        for key, value in there.items()
        if here.get(key, value) != value
    ]:
        raise UserError(f"init={place}: another model: {', '.join(differ)}")


def _check_names(place: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """That nothing is missing, nothing left over or quantised, and every shape right but the
    positions', which are interpolated."""
    for text, names in (
        ("lacks", wanted.keys() - found.keys()),
        ("has beyond this model", found.keys() - wanted.keys()),
    ):
        if names:
            listed = ", ".join(sorted(names)[:5]) + (
                f" and {len(names) - 5} more" if len(names) > 5 else ""
            )
            raise UserError(f"init={place}: {text} {listed}")
    for name, value in found.items():
        if name != POSITIONS and value.shape != wanted[name].shape:
            shapes = f"{tuple(wanted[name].shape)} here, {tuple(value.shape)} there"
            raise UserError(f"init={place}: {name} is {shapes}")
        if wanted[name].is_floating_point() and not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(f"init={place}: {name} is {kind}; floating-point weights are read")


def resize_positions(positions_1TD: Tensor, grid: tuple[int, int], prefix: int) -> Tensor:
    """Position embeddings for another grid of patches: 2D interpolation, bilinear with aligned
    corners, as the authors' zoom (paper, 3.2; paper.md, Fine-tuning); those of leading tokens are
    untouched. The old grid is taken to be square."""
    old = positions_1TD.shape[1] - prefix
    side = round(old**0.5)
    if (side, side) == grid:
        return positions_1TD
    if side * side != old:
        raise UserError(f"init: {old} positions are no square grid")
    square = rearrange(positions_1TD[:, prefix:].float(), "1 (h w) d -> 1 d h w", h=side)
    new = rearrange(
        F.interpolate(square, grid, mode="bilinear", align_corners=True), "1 d h w -> 1 (h w) d"
    )
    return torch.cat([positions_1TD[:, :prefix], new.to(positions_1TD)], 1)


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """A hash of names and values."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(
            name.encode() + state[name].detach().float().cpu().contiguous().numpy().tobytes()
        )
    return digest.hexdigest()[:16]


def export(
    folder: Path,
    encoder: Backbone,
    heads: dict[str, Tensor],
    model: Model,
    data: Data,
    pool: str,
    classes: Sequence[str] = (),
) -> None:
    """Write config.json and model.safetensors as timm's "local-dir:" reads them, and
    heads.safetensors beside them.

    With `classes`, their names, it is a classifier whose linear head is `heads`' head.weight and
    head.bias. `pool` is what timm gives as the image's feature: "token" or "avg" (the mean of the
    patches, for an encoder whose class token got no loss). A folder that is there already is
    replaced whole.
    """
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    for left in folder.parent.glob(f".{folder.name}.*"):  # what a kill left
        shutil.rmtree(left)
    beside.mkdir(parents=True)
    try:
        (beside / "config.json").write_text(
            json.dumps(_config(encoder, model, data, pool, classes), indent=2) + "\n"
        )
        (beside / "model.safetensors").write_bytes(
            _packed(encoder.backbone.state_dict() | (heads if classes else {}))
        )
        (beside / "heads.safetensors").write_bytes(_packed(heads))
    except Exception:  # so that a full disk has room again
        shutil.rmtree(beside, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    beside.replace(folder)


def _config(encoder: Backbone, model: Model, data: Data, pool: str, classes: Sequence[str]) -> dict:
    args = timm_args(model, data.size) | ({} if model.convolutional else {"global_pool": pool})
    if args and pool == "avg":
        args["fc_norm"] = False  # the final norm stays before the pooling, where it was trained
    return {
        "architecture": model.timm,
        "num_classes": len(classes),
        **({"label_names": list(classes)} if classes else {}),
        "num_features": encoder.width,
        "global_pool": pool,
        "model_args": args,
        "pretrained_cfg": {
            "input_size": [3, data.size, data.size],
            "interpolation": "bilinear",
            # timm crops after a squash too
            "crop_pct": data.eval_crop if data.eval_mode == "crop" else 1.0,
            "crop_mode": "center" if data.eval_mode == "crop" else "squash",
            "mean": list(data.mean),
            "std": list(data.std),
            "num_classes": len(classes),
            **(
                {}
                if model.convolutional
                else {"first_conv": "patch_embed.proj", "classifier": "head"}
            ),
        },
    }


def _packed(tensors: dict[str, Tensor]) -> bytes:
    return save(
        {name: value.contiguous().cpu() for name, value in tensors.items()}, {"format": "pt"}
    )
