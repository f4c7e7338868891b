"""Loads weights from anywhere that `init=` names; exports an encoder in timm's format, which timm
and transformers read without this package."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import timm
from safetensors.torch import load_file, save
from timm.models import adapt_input_conv
from torch import Tensor, nn

from .. import hub_files
from ..errors import NOT_FINITE, UserError
from ..recipe import export_files, timm_models
from ..recipe.export_files import encoder_options, normalisation
from ..recipe.init_source import InitSource
from ..recipe.model import TRANSFORMERS
from ..recipe.schema import Data, Model
from ..recipe.timm_models import sizes_of_state
from ..runs.files import replacing, sweep
from . import interop
from .architectures import architecture, is_eva, timm_args
from .encoder import Backbone, Encoder
from .position_weights import POSITIONS, exported_state, fit_positions, kind_there

FIRST = "patch_embed.proj.weight"
# of pre-training: left behind (paper, 3.2)
HEADS = ("head.", "head_dist.", "attn_pool.", "pre_logits.")


def load_init(encoder: Backbone, init: InitSource, exported: bool = True) -> dict[str, Any]:
    """Load initial weights, unless `init` is scratch. An encoder that will be `exported` keeps the
    eps of its own layer norms, because timm's config.json cannot state another.

    Returns:
        For environment.json: `init`, a hash of the weights and their `InitSource.identity`, so that
        resume notices a change; `before`, the cost of the run that made them.

    Raises:
        UserError: as `load_weights`, or the folder of the run that made the weights is damaged.
    """
    if init.is_scratch:
        return {}
    own = _norm_eps(encoder)
    before = init.upstream_cost()  # first: a damaged folder is an error before the work, not after
    weights_hash = load_weights(encoder, init)
    eps = _norm_eps(encoder)
    if exported and own is not None and eps != own:
        set_eps(encoder, own)
        if os.environ.get("RANK", "0") == "0":
            print(
                f"warning: {init.option}: layer_norm_eps={eps:g} there; training uses {own:g},"
                " as timm's exports do"
            )
    return {"init": {"weights": weights_hash} | init.identity(), "before": before}


def _norm_eps(encoder: Backbone) -> float | None:
    return getattr(getattr(encoder.backbone, "norm", None), "eps", None)


def set_eps(encoder: Backbone, eps: float) -> None:
    """Give the encoder's layer norms that eps."""
    for module in encoder.backbone.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps


def load_weights(encoder: Backbone, init: InitSource) -> str:
    """Load weights into the encoder, with position embeddings interpolated to its grid and the eps
    of the weights' own layer norms.

    Returns:
        A hash of the weights.

    Raises:
        UserError: they are missing, damaged, or another model's; it names the sizes or names that
            differ.
    """
    try:
        return _load_state(encoder, init, _open(init))
    except UserError:
        raise
    except Exception as error:  # whatever a file written by others or a network causes
        raise UserError(f"{init.option}: {' '.join(str(error).split())[:300]}") from None


def _load_state(encoder: Backbone, init: InitSource, loaded: "LoadedWeights") -> str:
    backbone = encoder.backbone
    state = {name: value for name, value in loaded.state.items() if not name.startswith(HEADS)}
    if damaged := export_files.first_nonfinite(state.items()):
        raise UserError(f"{init.option}: {damaged} {NOT_FINITE}")
    if not _adapt_channels(encoder, init, state):
        _check_normalisation(encoder, init, loaded)
    here = sizes_of_state(backbone.state_dict()) | timm_models.unseen(backbone)
    # sizes first: "model.width=192 here, 384 there" tells more than a list of shapes
    _check_sizes(init.option, sizes_of_state(state) | loaded.unseen, here)
    needed = backbone.state_dict()
    if isinstance(encoder, Encoder):
        _check_positions(encoder, init, state, loaded)
        needed = exported_state(encoder)
    _check_names(init.option, state, needed)
    if isinstance(encoder, Encoder):
        state = fit_positions(state, encoder, loaded.timms_rule)
    kept = backbone.state_dict().keys()
    backbone.load_state_dict({name: value for name, value in state.items() if name in kept})
    if loaded.eps is not None:
        set_eps(encoder, loaded.eps)
    return fingerprint(state)


def copy_weights(source: Backbone, target: Backbone) -> None:
    """The weights of a network in another of the same architecture, with positions interpolated to
    its grid, as loading an export of them would do."""
    state = source.backbone.state_dict()
    if isinstance(source, Encoder) and isinstance(target, Encoder):
        state = fit_positions(exported_state(source), target)
    kept = target.backbone.state_dict().keys()
    target.backbone.load_state_dict({name: state[name] for name in kept if name in state})


def _adapt_channels(encoder: Backbone, init: InitSource, state: dict[str, Tensor]) -> bool:
    """Bring the first layer of weights for RGB to the encoder's channels, where
    model.adapt_channels asks for it; whether it did.

    Raises:
        UserError: the weights are of other channels, and it does not ask, or they are not of RGB.
    """
    first, own = state.get(FIRST), encoder.backbone.state_dict().get(FIRST)
    if first is None or own is None or own.shape[1] != encoder.channels:
        return False  # not of pixels
    if first.shape[1] == encoder.channels:
        return False
    there = first.shape[1]
    if there != 3 or not encoder.adapt_channels:
        rule = "; model.adapt_channels=true repeats its first layer" if there == 3 else ""
        here = f"data.channels={encoder.channels}"
        raise UserError(f"{here}: {init.option} was made with {there}{rule}")
    state[FIRST] = adapt_input_conv(encoder.channels, first)
    return True


def _check_positions(
    encoder: Encoder, init: InitSource, state: Mapping[str, Tensor], loaded: "LoadedWeights"
) -> None:
    """Check that the weights' positions are of the encoder's kind. Without positions and with
    rotary ones weights have the same names.

    Raises:
        UserError: they are not.
    """
    here = encoder.positions.kind
    there = kind_there(state, loaded.positions)
    table = "learned" if here in ("learned_2d", "sincos_2d") else here
    if there not in (None, here, table):
        raise UserError(f"{init.option}: another model: model.positions={here} here, {there} there")


def _check_normalisation(encoder: Backbone, init: InitSource, loaded: "LoadedWeights") -> None:
    """Check that the encoder normalises pixels as the weights expect, where their files state it.

    Raises:
        UserError: it does not; it names the option to add.
    """
    data = encoder.data
    for key, expected, given in (
        ("mean", loaded.mean, data.mean),
        ("std", loaded.std, data.std),
    ):
        # rounded, because published values have 3 or 4 decimals
        current = [round(value, 4) for value in given]
        if expected is not None and [round(value, 4) for value in expected] != current:
            typed = ",".join(map(str, expected))
            raise UserError(
                f"data.{key}={current}: {init.option} was made with {list(expected)};"
                f" add data.{key}=[{typed}]"
            )


class LoadedWeights(NamedTuple):
    """Weights in timm's names; None for what their files do not state."""

    state: dict[str, Tensor]
    mean: list[float] | None  # of the pixels, in [0, 1]
    std: list[float] | None
    unseen: dict[str, Any]  # as `timm_models.unseen`
    eps: float | None = None  # of the layer norms
    positions: str | None = None  # as model.positions, for what the names do not show
    timms_rule: dict[str, Any] | None = None  # of what timm made, for `fit_positions`


def _open(init: InitSource) -> LoadedWeights:
    folder = init.fetch_export("config.json", "preprocessor_config.json", "model.safetensors")
    if init.is_timm:
        return _of_timm(init)
    return _from_npz(init) if folder is None else _from_export(folder, init.option)


def _of_timm(init: InitSource) -> LoadedWeights:
    """timm's own weights, without the classifier. The safetensors are downloaded from timm's
    repository here, because timm itself may fall back to unpickling."""
    known = timm_models.published(init.timm_name)
    files = ["config.json", "model.safetensors"]
    folder = hub_files.fetch(str(known.hf_hub_id), init.option, files)
    loaded = _from_export(folder, init.option)
    classifiers: Any = known.classifier
    if not isinstance(classifiers, tuple | list):  # some architectures have two
        classifiers = (classifiers,)
    prefixes = tuple(f"{name}." for name in classifiers if name)
    state = {key: value for key, value in loaded.state.items() if not key.startswith(prefixes)}
    return loaded._replace(state=state)


def _from_export(folder: Path, option: str) -> LoadedWeights:
    if not (folder / "model.safetensors").exists():
        raise UserError(
            f"{option}: the repository is no encoder that can be read: it has no model.safetensors"
        )
    export_files.check_digest(folder, "model.safetensors", option)
    config = export_files.read(folder)
    norm = normalisation(folder)
    mean = norm.get("mean")
    std = norm.get("std")
    state = load_file(folder / "model.safetensors")
    if config.get("model_type") == "vit":
        state = interop.from_transformers(state)
        heads = {"model.heads": config["num_attention_heads"]}
        return LoadedWeights(state, mean, std, heads, export_files.norm_eps(config))
    name = config["architecture"]
    net = None
    if name.startswith(TRANSFORMERS):
        net = timm_models.network(name, config.get("model_args") or {})
    positions = "none" if getattr(net, "rope", None) is None else "rotary"
    timms_rule = None
    if export_files.is_timms(config):
        timms_rule = timm_models.table_rule(name)
        sides = export_files.image_sides(config)
        if POSITIONS in state and len(set(sides)) > 1:
            text = f"its positions are of images of {' x '.join(map(str, sides))} pixels"
            raise UserError(f"{option}: {text}; expected a square")
    return LoadedWeights(state, mean, std, timm_models.unseen(net), None, positions, timms_rule)


def _from_npz(init: InitSource) -> LoadedWeights:
    """A checkpoint of google-research/vision_transformer (flax names), read by timm into a backbone
    of the file's own size."""
    positions = "Transformer/posembed_input/pos_embedding"
    with np.load(init.place) as arrays:  # allow_pickle stays False
        if positions not in arrays or arrays["embedding/kernel"].shape[2] != 3:
            raise UserError(
                f"{init.option}: expected a Vision Transformer on patches of pixels; Google's other"
                " files cannot be read"
            )
        tokens = arrays[positions].shape[1]
        patch, _, _, width = arrays["embedding/kernel"].shape
        depth = sum(name.endswith("LayerNorm_0/scale") for name in arrays.files)
        mlp = arrays["Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"].shape[1]
        query = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
        heads = arrays[query].shape[1]
    size = patch * round((tokens - 1) ** 0.5)
    model = Model(patch=patch, width=width, depth=depth, heads=heads, mlp=mlp)
    backbone: Any = timm.create_model(model.timm, num_classes=0, **timm_args(model, size))
    backbone.load_pretrained(init.place)
    return LoadedWeights(backbone.state_dict(), [0.5] * 3, [0.5] * 3, {"model.heads": heads})


def _check_sizes(option: str, loaded: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    differ = []
    for key, value in loaded.items():
        here = model.get(key, value)
        if here != value:
            differ.append(f"{key}={str(here).lower()} here, {str(value).lower()} there")
    if differ:
        raise UserError(f"{option}: another model: {', '.join(differ)}")


def _check_names(option: str, loaded: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> None:
    """Check that no tensor is missing, left over or quantised, and that shapes agree, except those
    of positions that are interpolated."""
    for text, names in (
        ("lacks", model.keys() - loaded.keys()),
        ("has beyond this model", loaded.keys() - model.keys()),
    ):
        if names:
            listed = ", ".join(sorted(names)[:5])
            if len(names) > 5:
                listed += f" and {len(names) - 5} more"
            raise UserError(f"{option}: {text} {listed}")
    for name, value in loaded.items():
        if not name.endswith(POSITIONS) and value.shape != model[name].shape:
            shapes = f"{tuple(model[name].shape)} here, {tuple(value.shape)} there"
            raise UserError(f"{option}: {name} is {shapes}")
        if model[name].is_floating_point() and not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(f"{option}: {name} is {kind}; floating-point weights are read")


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """A hash of names and values."""
    digest = hashlib.sha256()
    for name in sorted(state):
        values = state[name].detach().float().cpu().contiguous().numpy()
        digest.update(name.encode() + values.tobytes())
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
    """Write config.json and model.safetensors, as timm's "local-dir:" reads them, and
    heads.safetensors; config.json has the digests of both. An existing folder is replaced once the
    new one is written.

    Args:
        folder: where to.
        encoder: what is exported.
        heads: the objective's parameters besides the encoder's.
        model, data: what config.json says of the architecture and the preprocessing.
        pool: timm's feature of an image: "token" or "avg" (the mean of the patches, for an encoder
            whose class token is not trained).
        classes: names of the classes, for a classifier whose linear layer is head.weight and
            head.bias of `heads`; empty: no classifier.
    """
    sweep(folder.parent, re.compile(re.escape(folder.name)), delete=shutil.rmtree)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder, export_files.WRITTEN) as beside:
        beside.mkdir()
        config = _config(encoder, model, data, pool, classes)
        state = exported_state(encoder)
        if classes:
            state |= heads
        files = {"model.safetensors": _packed(state), "heads.safetensors": _packed(heads)}
        for name, content in files.items():
            (beside / name).write_bytes(content)
        config = export_files.with_digests(config, files)
        (beside / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _config(
    encoder: Backbone, model: Model, data: Data, pool: str, classes: Sequence[str]
) -> dict[str, Any]:
    """The content of config.json."""
    args = timm_args(model, data.size, data.channels)
    crops = data.eval_mode == "crop"
    pretrained: dict[str, Any] = {
        "input_size": [data.channels, data.size, data.size],
        "interpolation": "bilinear",
        "crop_pct": data.eval_crop if crops else 1.0,  # timm would crop after a squash too
        "crop_mode": "center" if crops else "squash",
        "mean": list(data.mean),
        "std": list(data.std),
        "num_classes": len(classes),
    }
    if not model.convolutional:
        args["global_pool"] = pool
        pretrained |= {"first_conv": "patch_embed.proj", "classifier": "head"}
        if data.channels != 3:  # timm would draw the first layer that it names at random
            del pretrained["first_conv"]
        # where the final norm was when it was trained: before the pooling, or after it
        norm_after = timm_models.has_fc_norm(encoder.backbone)
        if pool == "avg" or norm_after or is_eva(model):
            args[timm_models.fc_norm_argument(encoder.backbone)] = norm_after
    config: dict[str, Any] = {"architecture": architecture(model), "num_classes": len(classes)}
    if classes:
        config["label_names"] = list(classes)
    if not data.is_rgb:
        config["pixels"] = {"channels": data.channels, "range": list(data.pixel_range)}
    options = encoder_options(model)
    if options:
        config["encoder"] = options
    return config | {
        "num_features": encoder.width,
        "global_pool": pool,
        "model_args": args,
        "pretrained_cfg": pretrained,
    }


def _packed(tensors: dict[str, Tensor]) -> bytes:
    packed = {name: value.contiguous().cpu() for name, value in tensors.items()}
    return save(packed, {"format": "pt"})
