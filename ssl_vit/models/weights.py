"""Load weights from any source that `init=` names, and export encoders in timm's format.

timm and transformers read the exports without this package.
"""

import hashlib
import json
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
from ..errors import UserError, is_first_process
from ..formatting import list_names
from ..recipe import export_files, timm_models
from ..recipe.export_files import encoder_options, read_normalisation
from ..recipe.init_source import InitSource
from ..recipe.model import TRANSFORMERS
from ..recipe.schema import Data, Model
from ..recipe.timm_models import sizes_of_state
from ..runs.files import replacing, sweep
from . import interop
from .architectures import architecture, build_timm_args, is_eva
from .encoder import Backbone, Encoder
from .position_weights import POSITIONS, exported_state, find_position_kind, fit_positions

FIRST = "patch_embed.proj.weight"
# Heads of pre-training, which are not loaded (paper, 3.2)
HEADS = ("head.", "head_dist.", "attn_pool.", "pre_logits.")


def load_init(encoder: Backbone, init: InitSource, exported: bool = True) -> dict[str, Any]:
    """Load initial weights, unless `init` is scratch.

    Args:
        encoder: The network to load weights into.
        init: Where the weights come from.
        exported: Whether the encoder will be exported. False: the layer norms get the eps with
            which the weights were trained. True: the layer norms keep the encoder's eps, because an
            export in timm's format cannot state another eps. A warning is printed if they differ.

    Returns:
        Entries "init" and "before" for environment.json, empty for scratch. "init" has a hash of
        the weights and `InitSource.identity`. A resumed run compares "init" to notice that the
        weights have changed. "before" has the cost of the run that trained the weights, for example
        {"exaflop": 3.1, "device_hours": 2.0}.

    Raises:
        UserError: The weights are missing, damaged, or for another model, or the folder of the run
            that made the weights is damaged.
    """
    if init.is_scratch:
        return {}
    network_eps = _norm_eps(encoder)
    upstream_cost = init.upstream_cost()  # raises an error for a damaged folder, before the work
    weights_hash = load_weights(encoder, init)
    weights_eps = _norm_eps(encoder)
    if exported and network_eps is not None and weights_eps != network_eps:
        set_eps(encoder, network_eps)
        if is_first_process():
            print(
                f"warning: {init.option}: the weights were trained with"
                f" layer_norm_eps={weights_eps:g}."
                f" Training uses {network_eps:g}, the value of timm's exports."
            )
    return {"init": {"weights": weights_hash} | init.identity(), "before": upstream_cost}


def _norm_eps(encoder: Backbone) -> float | None:
    """Return the eps of the final norm, or None for a network without this norm."""
    return getattr(getattr(encoder.backbone, "norm", None), "eps", None)


def set_eps(encoder: Backbone, eps: float) -> None:
    """Set the eps of the encoder's layer norms."""
    for module in encoder.backbone.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps


def load_weights(encoder: Backbone, init: InitSource) -> str:
    """Load weights into the encoder and return a hash of the weights.

    Position embeddings are interpolated to the encoder's grid. The encoder's layer norms get the
    eps with which the weights were trained, if their files state it.

    Args:
        encoder: The network to load weights into.
        init: Where the weights come from.

    Raises:
        UserError: The weights are missing, damaged, or for another model. The message names the
            sizes or names that differ.
    """
    try:
        return _load_state(encoder, init, _open(init))
    except UserError:
        raise
    except Exception as error:  # files from elsewhere and networks can cause any error
        raise UserError(f"{init.option}: {' '.join(str(error).split())[:300]}") from None


def _load_state(encoder: Backbone, init: InitSource, loaded: "LoadedWeights") -> str:
    """Check weights, load them into an encoder, and return a hash of them.

    The checks are in this order: finite values, channels and normalisation of the pixels, sizes,
    kind of positions, names and shapes. RGB weights may be adapted to other channels, and position
    embeddings are interpolated to the encoder's grid.

    Args:
        encoder: The network to load weights into.
        init: Where the weights come from, for error messages.
        loaded: The weights, and the properties of their network.

    Raises:
        UserError: The weights are not finite, or for another model.
    """
    backbone = encoder.backbone
    state = {name: value for name, value in loaded.state.items() if not name.startswith(HEADS)}
    damaged = export_files.first_nonfinite(state.items())
    if damaged:
        raise UserError(
            f"{init.option}: {damaged} is not finite (NaN or infinite). Use weights of another run"
            " or checkpoint."
        )
    # Adapted weights have mean and std for RGB, which cannot be compared with other channels
    if not _adapt_channels(encoder, init, state):
        _check_normalisation(encoder, init, loaded)
    model_sizes = sizes_of_state(backbone.state_dict()) | timm_models.hidden_properties(backbone)
    # Check sizes before names and shapes: an error about model.width says more than one about
    # shapes of tensors
    _check_sizes(init.option, sizes_of_state(state) | loaded.hidden_properties, model_sizes)
    model_state = backbone.state_dict()
    if isinstance(encoder, Encoder):
        _check_positions(encoder, init, state, loaded)
        model_state = exported_state(encoder)
    _check_names(init.option, state, model_state)
    if isinstance(encoder, Encoder):
        state = fit_positions(state, encoder, loaded.timm_interpolation)
    # If the encoder adds positions itself, `fit_positions` has loaded the position table into the
    # encoder. The backbone has no such tensor, so leave the table out
    names = backbone.state_dict().keys()
    backbone.load_state_dict({name: value for name, value in state.items() if name in names})
    if loaded.eps is not None:
        set_eps(encoder, loaded.eps)
    return fingerprint(state)


def copy_weights(source: Backbone, target: Backbone) -> None:
    """Copy the weights of a network into another network of the same architecture.

    Positions are interpolated to the target's grid, as if an export of the source were loaded.

    Args:
        source: The network to copy from.
        target: The network to copy into.
    """
    state = source.backbone.state_dict()
    if isinstance(source, Encoder) and isinstance(target, Encoder):
        state = fit_positions(exported_state(source), target)
    # If the target adds positions itself, its backbone has no position table, so leave the table
    # out. If a tensor is missing in `state`, load_state_dict raises an error that names the tensor
    names = target.backbone.state_dict().keys()
    target.backbone.load_state_dict({name: state[name] for name in names if name in state})


def _adapt_channels(encoder: Backbone, init: InitSource, state: dict[str, Tensor]) -> bool:
    """Adapt the first layer of RGB weights to an encoder with other channels.

    Args:
        encoder: The network that the weights are for.
        init: Where the weights come from, for the error message.
        state: {name: weight}, changed in place.

    Returns:
        Whether the first layer was adapted.

    Raises:
        UserError: The channels differ, and model.adapt_channels is false or the weights are not for
            RGB.
    """
    stored = state.get(FIRST)
    current = encoder.backbone.state_dict().get(FIRST)
    # In a hybrid, this layer follows a ResNet and reads features instead of pixels
    reads_pixels = current is not None and current.shape[1] == encoder.channels
    if stored is None or not reads_pixels:
        return False
    stored_channels = stored.shape[1]
    if stored_channels == encoder.channels:
        return False
    if stored_channels != 3:
        raise UserError(
            f"data.channels={encoder.channels}: {init.option} was trained with {stored_channels}"
            " channels. Use other weights."
        )
    if not encoder.adapt_channels:
        raise UserError(
            f"data.channels={encoder.channels}: {init.option} was trained with 3 channels. Use"
            " model.adapt_channels=true to adapt RGB weights."
        )
    state[FIRST] = adapt_input_conv(encoder.channels, stored)
    return True


def _check_positions(
    encoder: Encoder, init: InitSource, state: Mapping[str, Tensor], loaded: "LoadedWeights"
) -> None:
    """Check that the weights have the encoder's kind of positions.

    The check uses the kind that the files state, because weights with rotary positions and weights
    without positions have tensors of the same names.

    Args:
        encoder: The network that the weights are for.
        init: Where the weights come from, for the error message.
        state: {name: weight}.
        loaded: The weights' kind of positions, if their files state it.

    Raises:
        UserError: The kinds differ.
    """
    current_kind = encoder.positions.kind
    stored_kind = find_position_kind(state, loaded.positions)
    allowed = [None, current_kind]  # None: the kind of the weights is unknown
    if current_kind in ("learned_2d", "sincos_2d"):
        allowed.append("learned")  # exports hold these positions as a learned table
    if stored_kind not in allowed:
        raise UserError(
            f"{init.option}: the weights have model.positions={stored_kind}, and this run has"
            f" model.positions={current_kind}. Use model.positions={stored_kind}."
        )


def _check_normalisation(encoder: Backbone, init: InitSource, loaded: "LoadedWeights") -> None:
    """Check that the encoder normalises pixels as in the training of the weights.

    Args:
        encoder: The network that the weights are for.
        init: Where the weights come from, for the error message.
        loaded: Has mean and std of the pixels in the training of the weights, or None if the files
            of the weights do not state them.

    Raises:
        UserError: The normalisations differ. The message names the option to add.
    """
    for key in ("mean", "std"):
        expected = getattr(loaded, key)
        if expected is None:
            continue
        # Published values have 3 or 4 decimals, so compare rounded values
        current = [round(value, 4) for value in getattr(encoder.data, key)]
        if [round(value, 4) for value in expected] != current:
            raise UserError(
                f"data.{key}={current}: {init.option} was trained with another value. Use"
                f" data.{key}=[{','.join(map(str, expected))}]."
            )


class LoadedWeights(NamedTuple):
    """Weights with timm's names, and the properties of the network that their files state.

    A property is None if the files do not state it.

    Attributes:
        state: The weights, {timm's name: tensor}.
        mean: Mean of each channel for the normalisation of pixels in [0, 1].
        std: Standard deviation of each channel for the normalisation of pixels in [0, 1].
        hidden_properties: Properties that the names and shapes of the weights do not show, such as
            {"model.heads": 12}.
        eps: The eps of the layer norms.
        positions: Value of model.positions if the names of the tensors do not show it: "rotary" or
            "none".
        timm_interpolation: Arguments with which timm interpolates the position table, for weights
            in timm's format. Empty: timm's defaults. None: interpolate as in the paper's code.
    """

    state: dict[str, Tensor]
    mean: list[float] | None
    std: list[float] | None
    hidden_properties: dict[str, Any]
    eps: float | None = None
    positions: str | None = None
    timm_interpolation: dict[str, Any] | None = None


def _open(init: InitSource) -> LoadedWeights:
    """Read weights from timm (timm:NAME), from an export, or from a .npz file."""
    # For timm:NAME and .npz files, `folder` is None. `fetch_export` raises an error if there is no
    # such source
    folder = init.fetch_export("config.json", "preprocessor_config.json", "model.safetensors")
    if init.is_timm:
        return _from_timm(init)
    if folder is None:
        return _from_npz(init)
    return _from_export(folder, init.option)


def _from_timm(init: InitSource) -> LoadedWeights:
    """Download and read weights that timm has published, without the classifier.

    The weights are read from a safetensors file. `timm.create_model(pretrained=True)` might load a
    pickle file instead, which can run code.

    Args:
        init: Weights that timm has published, timm:NAME.
    """
    published = timm_models.published(init.timm_name)
    files = ["config.json", "model.safetensors"]
    folder = hub_files.fetch(str(published.hf_hub_id), init.option, files)
    loaded = _from_export(folder, init.option)
    # timm states a name, or a tuple of names for an architecture with two classifiers
    classifiers: Any = published.classifier
    if not isinstance(classifiers, tuple | list):
        classifiers = (classifiers,)
    prefixes = tuple(f"{name}." for name in classifiers if name)
    state = {name: value for name, value in loaded.state.items() if not name.startswith(prefixes)}
    return loaded._replace(state=state)


def _from_export(folder: Path, option: str) -> LoadedWeights:
    """Read weights in the format of timm's or transformers' repositories.

    config.json tells the formats apart:
    - transformers' ViT ("model_type": "vit"): names are converted to timm's names.
    - timm: the network's class, positions and interpolation follow from the name of the
      architecture.
    - an export of ssl_vit: as timm, but positions are interpolated as in the paper's code.

    Args:
        folder: Folder with config.json, model.safetensors and perhaps preprocessor_config.json.
        option: The user's init=..., for error messages.

    Raises:
        UserError: A file is missing or was changed, or the weights are for images that are not
            square.
    """
    if not (folder / "model.safetensors").exists():
        raise UserError(
            f"{option}: the repository has no model.safetensors. Name a repository with this file."
        )
    export_files.check_digest(folder, "model.safetensors", option)
    config = export_files.read(folder)
    stated = read_normalisation(folder)
    mean = stated.get("mean")
    std = stated.get("std")
    state = load_file(folder / "model.safetensors")
    if config.get("model_type") == "vit":
        state = interop.from_transformers(state)
        heads = {"model.heads": config["num_attention_heads"]}
        return LoadedWeights(state, mean, std, heads, eps=export_files.norm_eps(config))
    architecture_name = config["architecture"]
    network = None
    if architecture_name.startswith(TRANSFORMERS):
        network = timm_models.network(architecture_name, config.get("model_args") or {})
    positions = "none" if getattr(network, "rope", None) is None else "rotary"
    timm_interpolation = None
    if export_files.is_timm_format(config):
        timm_interpolation = timm_models.find_position_resizing(architecture_name)
        sides = export_files.image_sides(config)
        if POSITIONS in state and len(set(sides)) > 1:  # height and width differ
            raise UserError(
                f"{option}: the weights are for images that are not square"
                f" ({' x '.join(map(str, sides))} pixels). Use weights for square images."
            )
    return LoadedWeights(
        state,
        mean,
        std,
        timm_models.hidden_properties(network),
        positions=positions,
        timm_interpolation=timm_interpolation,
    )


def _from_npz(init: InitSource) -> LoadedWeights:
    """Read a checkpoint of google-research/vision_transformer.

    The tensors have flax's names. timm converts names only while it loads a file into a network.
    Therefore build a network of the same size, load the file, and return the network's weights.

    Args:
        init: The .npz file.
    """
    positions = "Transformer/posembed_input/pos_embedding"
    with np.load(init.place) as arrays:  # allow_pickle stays False
        if positions not in arrays or arrays["embedding/kernel"].shape[2] != 3:
            raise UserError(
                f"{init.option}: this file is not a Vision Transformer on patches of pixels. Use a"
                " file such as ViT-B_16.npz."
            )
        tokens = arrays[positions].shape[1]
        patch, _, _, width = arrays["embedding/kernel"].shape
        depth = sum(name.endswith("LayerNorm_0/scale") for name in arrays.files)
        mlp = arrays["Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"].shape[1]
        query = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
        heads = arrays[query].shape[1]
    grid_side = round((tokens - 1) ** 0.5)  # without the class token
    size = patch * grid_side
    model = Model(patch=patch, width=width, depth=depth, heads=heads, mlp=mlp)
    backbone: Any = timm.create_model(model.timm, num_classes=0, **build_timm_args(model, size))
    backbone.load_pretrained(init.place)
    return LoadedWeights(
        backbone.state_dict(),
        mean=[0.5] * 3,
        std=[0.5] * 3,
        hidden_properties={"model.heads": heads},
    )


def _check_sizes(option: str, loaded: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Check that weights and model have the same sizes.

    Args:
        option: The user's init=..., for error messages.
        loaded: {key of the recipe: value} of the weights.
        model: {key of the recipe: value} of the model.

    Raises:
        UserError: Sizes differ.
    """
    differences = []
    for key, loaded_value in loaded.items():
        model_value = model.get(key, loaded_value)
        if model_value != loaded_value:
            differences.append(
                f"{key}={str(loaded_value).lower()} (in this run {str(model_value).lower()})"
            )
    if differences:
        raise UserError(
            f"{option}: the weights have {', '.join(differences)}. Use the values of the weights."
        )


def _check_names(option: str, loaded: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> None:
    """Check that weights and model have the same tensors, with floating-point values.

    Shapes of positions may differ, because positions are interpolated.

    Args:
        option: The user's init=..., for error messages.
        loaded: {name: tensor} of the weights.
        model: {name: tensor} of the model.

    Raises:
        UserError: A tensor is missing, superfluous or quantised, or has another shape.
    """
    missing = sorted(model.keys() - loaded.keys())
    if missing:
        raise UserError(
            f"{option}: the weights lack {list_names(missing)}. Use weights of the same network."
        )
    superfluous = sorted(loaded.keys() - model.keys())
    if superfluous:
        raise UserError(
            f"{option}: the model of this run lacks {list_names(superfluous)}. Use weights of the"
            " same network."
        )
    for name, value in loaded.items():
        if not name.endswith(POSITIONS) and value.shape != model[name].shape:
            raise UserError(
                f"{option}: {name} has shape {tuple(value.shape)} in the weights and"
                f" {tuple(model[name].shape)} in the model. Use weights of the same network."
            )
        if model[name].is_floating_point() and not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(f"{option}: {name} has the type {kind}. Use floating-point weights.")


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """Return a hash of the names and values of weights, 16 hexadecimal digits."""
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
        folder: The folder to write.
        encoder: The encoder to export.
        heads: The objective's tensors without the encoder, {name: tensor}.
        model: The architecture, for config.json.
        data: The preprocessing of images, for config.json.
        pool: How timm pools tokens into a feature: "token", or "avg" (the mean of the patches) for
            an encoder whose class token is not trained.
        classes: Names of the classes, for a classifier whose linear layer is head.weight and
            head.bias of `heads`. Empty: no classifier.
    """
    # remove what an interrupted export to the same folder has left
    sweep(folder.parent, re.compile(re.escape(folder.name)), delete=shutil.rmtree)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder, export_files.WRITTEN) as new_folder:
        new_folder.mkdir()
        config = _config(encoder, model, data, pool, classes)
        state = exported_state(encoder)
        if classes:  # so that timm can load the classifier; heads.safetensors has it, too
            state |= heads
        files = {"model.safetensors": _packed(state), "heads.safetensors": _packed(heads)}
        for name, content in files.items():
            (new_folder / name).write_bytes(content)
        config = export_files.add_digests(config, files)
        (new_folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _config(
    encoder: Backbone, model: Model, data: Data, pool: str, classes: Sequence[str]
) -> dict[str, Any]:
    """Return the content of config.json, from which timm builds the network and the transforms.

    Args:
        encoder: The encoder that is exported.
        model: The architecture.
        data: The preprocessing of images.
        pool: How timm pools tokens into a feature, "token" or "avg".
        classes: Names of the classes; empty without a classifier.
    """
    args = build_timm_args(model, data.size, data.channels)
    is_cropped = data.eval_mode == "crop"
    pretrained: dict[str, Any] = {
        "input_size": [data.channels, data.size, data.size],
        "interpolation": "bilinear",
        "crop_pct": data.eval_crop if is_cropped else 1.0,  # timm would crop after a squash too
        "crop_mode": "center" if is_cropped else "squash",
        "mean": list(data.mean),
        "std": list(data.std),
        "num_classes": len(classes),
    }
    if not model.convolutional:
        args["global_pool"] = pool
        pretrained |= {"first_conv": "patch_embed.proj", "classifier": "head"}
        if data.channels != 3:  # timm would initialise the layer first_conv at random
            del pretrained["first_conv"]
        # Tell timm whether the final norm was before or after the pooling in training. Only a
        # VisionTransformer with pool="token" and the norm before the pooling needs no argument,
        # because this is timm's default
        is_norm_after = timm_models.has_fc_norm(encoder.backbone)
        if pool == "avg" or is_norm_after or is_eva(model):
            args[timm_models.fc_norm_argument(encoder.backbone)] = is_norm_after
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
    """Return the content of a safetensors file with these tensors."""
    on_cpu = {name: value.contiguous().cpu() for name, value in tensors.items()}
    return save(on_cpu, {"format": "pt"})
