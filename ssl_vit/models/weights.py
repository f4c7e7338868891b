"""Load weights from any source that `init=` names, and export encoders in timm's format.

timm and transformers read the exports without this package.
"""

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
# Heads of pre-training, which are not loaded (paper, 3.2)
HEADS = ("head.", "head_dist.", "attn_pool.", "pre_logits.")


def load_init(encoder: Backbone, init: InitSource, exported: bool = True) -> dict[str, Any]:
    """Load initial weights, unless `init` is scratch.

    Args:
        encoder: the network to load weights into.
        init: where the weights come from.
        exported: whether the encoder will be exported. If so, its layer norms keep their eps,
            because timm's config.json cannot state another.

    Returns:
        Entries of environment.json: `init`, a hash of the weights and the `InitSource.identity`, so
        that a resumed run notices a change, and `before`, the cost of the run that made the
        weights.

    Raises:
        UserError: see `load_weights`, or the folder of the run that made the weights is damaged.
    """
    if init.is_scratch:
        return {}
    norm_eps = _norm_eps(encoder)
    before = init.upstream_cost()  # first, so that a damaged folder is noticed before the work
    weights_hash = load_weights(encoder, init)
    eps = _norm_eps(encoder)
    if exported and norm_eps is not None and eps != norm_eps:
        set_eps(encoder, norm_eps)
        if os.environ.get("RANK", "0") == "0":
            print(
                f"warning: {init.option}: the weights were trained with layer_norm_eps={eps:g}."
                f" Training uses {norm_eps:g}, the value of timm's exports."
            )
    return {"init": {"weights": weights_hash} | init.identity(), "before": before}


def _norm_eps(encoder: Backbone) -> float | None:
    return getattr(getattr(encoder.backbone, "norm", None), "eps", None)


def set_eps(encoder: Backbone, eps: float) -> None:
    """Set the eps of the encoder's layer norms."""
    for module in encoder.backbone.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps


def load_weights(encoder: Backbone, init: InitSource) -> str:
    """Load weights into the encoder and return a hash of the weights.

    Position embeddings are interpolated to the encoder's grid. The encoder's layer norms get the
    eps of the weights.

    Raises:
        UserError: the weights are missing, damaged, or for another model. The message names the
            sizes or names that differ.
    """
    try:
        return _load_state(encoder, init, _open(init))
    except UserError:
        raise
    except Exception as error:  # files from elsewhere and networks can cause any error
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
    """Copy the weights of a network into another network of the same architecture.

    Positions are interpolated to the target's grid, as if an export were loaded.
    """
    state = source.backbone.state_dict()
    if isinstance(source, Encoder) and isinstance(target, Encoder):
        state = fit_positions(exported_state(source), target)
    kept = target.backbone.state_dict().keys()
    target.backbone.load_state_dict({name: state[name] for name in kept if name in state})


def _adapt_channels(encoder: Backbone, init: InitSource, state: dict[str, Tensor]) -> bool:
    """Adapt the first layer of RGB weights to the encoder's channels, if model.adapt_channels is
    true.

    Returns:
        Whether the first layer was adapted.

    Raises:
        UserError: the channels differ, and model.adapt_channels is false or the weights are not for
            RGB.
    """
    first, needed = state.get(FIRST), encoder.backbone.state_dict().get(FIRST)
    if first is None or needed is None or needed.shape[1] != encoder.channels:
        return False  # the first layer does not read pixels
    if first.shape[1] == encoder.channels:
        return False
    stored_channels = first.shape[1]
    if stored_channels != 3 or not encoder.adapt_channels:
        remedy = "model.adapt_channels=true to adapt RGB" if stored_channels == 3 else "other"
        raise UserError(
            f"data.channels={encoder.channels}: {init.option} was trained with {stored_channels}"
            f" channels. Use {remedy} weights."
        )
    state[FIRST] = adapt_input_conv(encoder.channels, first)
    return True


def _check_positions(
    encoder: Encoder, init: InitSource, state: Mapping[str, Tensor], loaded: "LoadedWeights"
) -> None:
    """Check that the weights have the encoder's kind of positions.

    Names alone do not tell: weights with rotary positions and without positions have the same
    names.

    Raises:
        UserError: the kinds differ.
    """
    here = encoder.positions.kind
    stored_kind = kind_there(state, loaded.positions)
    table = "learned" if here in ("learned_2d", "sincos_2d") else here
    if stored_kind not in (None, here, table):
        raise UserError(
            f"{init.option}: the weights have model.positions={stored_kind}, and this run has"
            f" model.positions={here}. Use model.positions={stored_kind}."
        )


def _check_normalisation(encoder: Backbone, init: InitSource, loaded: "LoadedWeights") -> None:
    """Check that the encoder normalises pixels as the files of the weights state.

    Raises:
        UserError: the normalisations differ. The message names the option to add.
    """
    data = encoder.data
    for key, expected, of_images in (
        ("mean", loaded.mean, data.mean),
        ("std", loaded.std, data.std),
    ):
        # rounded, because published values have 3 or 4 decimals
        current = [round(value, 4) for value in of_images]
        if expected is not None and [round(value, 4) for value in expected] != current:
            typed = ",".join(map(str, expected))
            raise UserError(
                f"data.{key}={current}: {init.option} was trained with another value."
                f" Use data.{key}=[{typed}]."
            )


class LoadedWeights(NamedTuple):
    """Weights with timm's names, and what the files state about the weights.

    Attributes are None if the files do not state a value.

    Attributes:
        state: the weights.
        mean, std: normalisation of pixels in [0, 1].
        unseen: see `timm_models.unseen`.
        eps: eps of the layer norms.
        positions: value of model.positions, if names of tensors do not show it.
        timms_rule: for weights made by timm, see `fit_positions`.
    """

    state: dict[str, Tensor]
    mean: list[float] | None
    std: list[float] | None
    unseen: dict[str, Any]
    eps: float | None = None
    positions: str | None = None
    timms_rule: dict[str, Any] | None = None


def _open(init: InitSource) -> LoadedWeights:
    folder = init.fetch_export("config.json", "preprocessor_config.json", "model.safetensors")
    if init.is_timm:
        return _of_timm(init)
    return _from_npz(init) if folder is None else _from_export(folder, init.option)


def _of_timm(init: InitSource) -> LoadedWeights:
    """Load timm's weights, without the classifier.

    The safetensors are downloaded here from timm's repository, because timm may fall back to
    unpickling.
    """
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
            f"{option}: the repository has no model.safetensors. Name a repository with this file."
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
            text = f"the weights are for images of {' x '.join(map(str, sides))} pixels"
            raise UserError(f"{option}: {text}. Use weights for square images.")
    return LoadedWeights(state, mean, std, timm_models.unseen(net), None, positions, timms_rule)


def _from_npz(init: InitSource) -> LoadedWeights:
    """Load a checkpoint of google-research/vision_transformer (flax names).

    timm reads the checkpoint into a backbone of the file's size.
    """
    positions = "Transformer/posembed_input/pos_embedding"
    with np.load(init.place) as arrays:  # allow_pickle stays False
        if positions not in arrays or arrays["embedding/kernel"].shape[2] != 3:
            raise UserError(
                f"{init.option}: not a Vision Transformer on patches of pixels. Use a file such"
                " as ViT-B_16.npz."
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
            differ.append(f"{key}={str(value).lower()} (in this run {str(here).lower()})")
    if differ:
        text = f"the weights have {', '.join(differ)}"
        raise UserError(f"{option}: {text}. Use the values of the weights.")


def _check_names(option: str, loaded: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> None:
    """Check that no tensor is missing, left over or quantised, and that shapes agree.

    Shapes of positions may differ, because positions are interpolated.

    Raises:
        UserError: a tensor differs.
    """
    for text, names in (
        ("the weights lack", model.keys() - loaded.keys()),
        ("the model of this run lacks", loaded.keys() - model.keys()),
    ):
        if names:
            listed = ", ".join(sorted(names)[:5])
            if len(names) > 5:
                listed += f" and {len(names) - 5} more"
            raise UserError(f"{option}: {text} {listed}. Use weights of the same network.")
    for name, value in loaded.items():
        if not name.endswith(POSITIONS) and value.shape != model[name].shape:
            shapes = f"{tuple(value.shape)} in the weights, {tuple(model[name].shape)} in the model"
            raise UserError(
                f"{option}: {name} has shape {shapes}. Use weights of the same network."
            )
        if model[name].is_floating_point() and not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(f"{option}: {name} is {kind}. Use floating-point weights.")


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """Return a hash of names and values."""
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
    """Write an encoder as config.json, model.safetensors and heads.safetensors.

    timm reads the first two as "local-dir:". config.json has the digests of both other files. An
    existing folder is replaced after the new folder is complete.

    Args:
        folder: the folder to write.
        encoder: the encoder to export.
        heads: the objective's parameters without the encoder.
        model, data: architecture and preprocessing, for config.json.
        pool: how timm pools a feature: "token", or "avg" (the mean of the patches) for an encoder
            whose class token is not trained.
        classes: names of the classes, for a classifier whose linear layer is head.weight and
            head.bias of `heads`. Empty: no classifier.
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
    """Return the content of config.json."""
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
        if data.channels != 3:  # timm would initialise the layer first_conv at random
            del pretrained["first_conv"]
        # Tell timm whether the final norm was before or after the pooling in training
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
