"""Convert weights between timm's and transformers' native ViT, both ways, and export ONNX.

All conversions start from an export in timm's format. The files for transformers are written
without this library, so that an export does not need it and all its versions can read the files.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import save
from timm.data import resolve_model_data_config
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ..errors import UserError, reason
from ..extras import require
from ..recipe.export_files import add_digests, check_weights, read_config
from ..recipe.init_source import InitSource
from ..recipe.tools import ExportOptions
from ..runs.files import replacing

# timm's names -> transformers' names, for parts of the network and for parts of a layer
PARTS = {
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
}
LAYER = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
TOKENS = {"cls_token": "embeddings.cls_token", "pos_embed": "embeddings.position_embeddings"}
HEAD = {"head": "classifier"}
KINDS = ("weight", "bias")
QKV = ("query", "key", "value")  # timm has one matrix for all three
RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}  # Pillow's numbers


def _weight_names(depth: int) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return timm's and transformers' names of the weights of a ViT, including the head.

    Args:
        depth: Number of blocks.

    Returns:
        {timm's name: transformers' name}, such as
        {"blocks.0.norm1.bias": "encoder.layer.0.layernorm_before.bias"}, and
        {timm's name: three names} of the tensors in which timm packs queries, keys and values, such
        as {"blocks.0.attn.qkv.bias": ["encoder.layer.0.attention.attention.query.bias", ...]}.
    """
    modules = PARTS | HEAD
    packed_modules = {}
    for number in range(depth):
        block = f"blocks.{number}"
        layer = f"encoder.layer.{number}"
        for timm_part, part in LAYER.items():
            modules[f"{block}.{timm_part}"] = f"{layer}.{part}"
        packed_modules[f"{block}.attn.qkv"] = [f"{layer}.attention.attention.{x}" for x in QKV]
    names = dict(TOKENS)
    packed_names = {}
    for kind in KINDS:  # weight and bias of each module
        for timm_module, module in modules.items():
            names[f"{timm_module}.{kind}"] = f"{module}.{kind}"
        for timm_module, three_modules in packed_modules.items():
            packed_names[f"{timm_module}.{kind}"] = [f"{module}.{kind}" for module in three_modules]
    return names, packed_names


def from_transformers(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert the weights of transformers' native ViT to timm's names.

    For example, "encoder.layer.0.layernorm_before.bias" becomes "blocks.0.norm1.bias". The pooler
    and the mask token, which timm does not have, are dropped.

    Args:
        state: {transformers' name: tensor} of a ViTModel or a ViTForImageClassification.

    Returns:
        {timm's name: tensor}.

    Raises:
        ValueError: A name does not belong to transformers' ViT.
    """
    # in a ViTForImageClassification, the names of the ViTModel begin with "vit."
    tensors = {name.removeprefix("vit."): tensor for name, tensor in state.items()}
    layers = {name.split(".")[2] for name in tensors if name.startswith("encoder.layer.")}
    names, packed_names = _weight_names(len(layers))
    expected = {*names.values()}
    expected.update(*packed_names.values())
    for name in tensors:
        is_dropped = name.startswith("pooler.") or "mask_token" in name
        if name not in expected and not is_dropped:
            raise ValueError(f"transformers' ViT has no tensor {name}")
    converted = {timm_name: tensors[name] for timm_name, name in names.items() if name in tensors}
    for timm_name, query_key_value in packed_names.items():
        query, _, _ = query_key_value
        if query in tensors:  # a network without biases lacks all three
            converted[timm_name] = torch.cat([tensors[name] for name in query_key_value])
    return converted


def to_transformers_state(state: dict[str, Tensor], classifies: bool) -> dict[str, Tensor]:
    """Convert weights with timm's names to the names of transformers' native ViT.

    Args:
        state: {timm's name: tensor}.
        classifies: True for the weights of a ViTForImageClassification. False for the weights of a
            ViTModel. A ViTModel needs a pooler, so the weights get one that returns the class token
            unchanged. (Its activation in config.json is linear.)

    Returns:
        {transformers' name: tensor}.
    """
    blocks = {name.split(".")[1] for name in state if name.startswith("blocks.")}
    names, packed_names = _weight_names(len(blocks))
    converted: dict[str, Tensor] = {}
    for timm_name, tensor in state.items():
        if timm_name in names:
            converted[names[timm_name]] = tensor
        else:  # queries, keys and values, which timm packs into one tensor
            converted |= dict(zip(packed_names[timm_name], tensor.chunk(3), strict=True))
    converted = {name: tensor.contiguous() for name, tensor in converted.items()}
    if classifies:
        head_prefixes = tuple(HEAD.values())
        return {
            name if name.startswith(head_prefixes) else f"vit.{name}": tensor
            for name, tensor in converted.items()
        }
    width = state["cls_token"].shape[-1]
    pooler = {"pooler.dense.weight": torch.eye(width), "pooler.dense.bias": torch.zeros(width)}
    return converted | pooler


def to_transformers(export: Path, out: Path) -> None:
    """Write an export as transformers' native ViT.

    The files are config.json, model.safetensors and preprocessor_config.json. There is no
    preprocessor_config.json for images that are not RGB of 8 bits, because no image processor reads
    such images.

    Args:
        export: Folder of the export.
        out: Folder to create.

    Raises:
        UserError: transformers' ViT cannot represent the network.
    """
    config = read_config(export)
    model = _load(export)
    classes = config["num_classes"]
    why_unsupported = _unsupported(model)
    if why_unsupported:
        raise UserError(
            f"format=transformers: {export} cannot be converted. {why_unsupported} Use the export"
            " as it is, which AutoModel reads through timm."
        )
    if classes and config["global_pool"] != "token":
        raise UserError(
            f"format=transformers: {export} classifies by the mean of the patches, and"
            " transformers' ViT by the class token. Use the export as it is:"
            " AutoModelForImageClassification can read it if timm is installed."
        )
    state = to_transformers_state(model.state_dict(), classes > 0)
    data_config = resolve_model_data_config(model)
    vit_config = _vit_config(config, model)
    processor = None
    pixels = config.get("pixels")
    if pixels:
        normalisation = {key: list(data_config[key]) for key in ("mean", "std")}
        vit_config["pixels"] = pixels | normalisation
    else:
        processor = _processor(data_config)
    out.mkdir(parents=True)
    weights = save(state, {"format": "pt"})
    vit_config = add_digests(vit_config, {"model.safetensors": weights})
    (out / "model.safetensors").write_bytes(weights)
    (out / "config.json").write_text(json.dumps(vit_config, indent=2) + "\n")
    if processor:
        (out / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n")


def _unsupported(model: Any) -> str | None:
    """Say in a sentence why transformers' ViT cannot represent a timm network.

    Args:
        model: timm's network of the export.

    Returns:
        The sentence, or None if transformers' ViT can represent the network.
    """
    if hasattr(model, "blocks") and type(model) is not VisionTransformer:
        return f"The class of the network is {type(model).__name__}, not timm's VisionTransformer."
    if not isinstance(model, VisionTransformer) or not isinstance(model.patch_embed, PatchEmbed):
        embed = type(getattr(model, "patch_embed", None)).__name__
        described = f"{type(model).__name__}, whose patch embedding is {embed}"
        return f"The network is {described}. Expected timm's VisionTransformer and PatchEmbed."
    names, packed_names = _weight_names(len(model.blocks))
    expected = {name for name in (*names, *packed_names) if not name.startswith("head.")}
    present = {name for name in model.state_dict() if not name.startswith("head.")}
    if present - expected:
        return f"transformers' ViT has no {min(present - expected)}."
    if expected - present:
        return f"The network has no {min(expected - present)}."
    if model.no_embed_class:
        return "The network has no position for the class token."
    activations: list[Any] = [block.mlp.act for block in model.blocks]  # type: ignore[union-attr]
    if all(type(gelu) is nn.GELU and gelu.approximate == "none" for gelu in activations):
        return None
    return "The activation of the network is not the exact gelu."


def _load(export: Path) -> Any:
    """Load the network of an export by timm.

    Raises:
        UserError: timm cannot read the folder.
    """
    try:
        return timm.create_model(f"local-dir:{export}", pretrained=True).eval()
    except Exception as error:  # folders from elsewhere can cause any error
        message = " ".join(str(error).split())[:200]
        raise UserError(f"init={export}: timm cannot read this export: {message}") from None


def _vit_config(config: dict[str, Any], model: Any) -> dict[str, Any]:
    """Return the content of transformers' config.json.

    Args:
        config: Content of the export's config.json.
        model: timm's network of the export.
    """
    class_names = config.get("label_names") or []
    architecture = "ViTModel"
    head_entries: dict[str, Any] = {"pooler_act": "linear"}
    if class_names:
        architecture = "ViTForImageClassification"
        head_entries = {
            "id2label": {str(number): name for number, name in enumerate(class_names)},
            "label2id": {name: number for number, name in enumerate(class_names)},
        }
    return {
        "architectures": [architecture],
        "model_type": "vit",
        "image_size": model.patch_embed.img_size[0],
        "patch_size": model.patch_embed.patch_size[0],
        "num_channels": model.patch_embed.proj.in_channels,
        "hidden_size": model.embed_dim,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": model.blocks[0].attn.num_heads,
        "intermediate_size": model.blocks[0].mlp.fc1.out_features,
        "hidden_act": "gelu",
        "layer_norm_eps": model.norm.eps,
        "qkv_bias": True,
        # transformers ignores this key. ssl_vit needs it to pool features in the same way
        "global_pool": config["global_pool"],
        **head_entries,
    }


def _processor(data_config: dict[str, Any]) -> dict[str, Any]:
    """Return the content of preprocessor_config.json.

    The image processor does the same as timm's evaluation transform.

    Args:
        data_config: Result of timm's `resolve_model_data_config`.

    Raises:
        UserError: transformers has no such image processor.
    """
    mode = data_config["crop_mode"]
    interpolation = data_config["interpolation"]
    if mode == "border" or interpolation not in RESAMPLE:
        raise UserError(
            f"format=transformers: transformers has no image processor for crop_mode={mode} and"
            f" interpolation={interpolation} of pretrained_cfg. Use the export as it is, which"
            " AutoImageProcessor reads through timm."
        )
    sides = dict(zip(("height", "width"), data_config["input_size"][1:], strict=True))
    # Sides to which images are resized before the centre is cropped
    resized = {name: math.floor(side / data_config["crop_pct"]) for name, side in sides.items()}
    # "squash" resizes to `resized`, and then crops only if `resized` differs from `sides`. Other
    # modes resize the shorter side and always crop
    if mode == "squash":
        kind = "ViTImageProcessor"
        size = resized
    else:
        # This processor resizes the shorter side and crops the centre, and does nothing else
        kind = "BitImageProcessor"
        size = {"shortest_edge": resized["height"]}
    return {
        "image_processor_type": kind,
        "do_convert_rgb": True,
        "do_resize": True,
        "size": size,
        "resample": RESAMPLE[interpolation],
        "do_center_crop": mode != "squash" or resized != sides,
        "crop_size": sides,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(data_config["mean"]),
        "image_std": list(data_config["std"]),
    }


def to_onnx(export: Path, out: Path) -> None:
    """Write an export as ONNX.

    The network's input is `pixels` (B, 3, H, W), normalised. The output is `features` (B, D), or
    `logits` (B, C) of a classifier.

    Args:
        export: Folder of the export.
        out: File to create.

    Raises:
        UserError: Packages that ONNX needs are not installed.
    """
    require("onnxscript", "format=onnx")
    config = read_config(export)
    model = _load(export)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    out.parent.mkdir(parents=True, exist_ok=True)
    data_config = resolve_model_data_config(model)
    program = torch.onnx.export(
        model,
        (torch.zeros(2, *data_config["input_size"]),),
        dynamo=True,
        input_names=["pixels"],
        output_names=["logits" if config["num_classes"] else "features"],
        dynamic_shapes=({0: torch.export.Dim("B", min=1)},),
        verbose=False,
    )
    assert program is not None
    # Remove the stack traces of nodes, which contain paths of this machine
    for node in program.model.graph:
        node.metadata_props.clear()
    program.model.metadata_props["preprocessing"] = json.dumps(data_config)
    program.save(str(out), external_data=False)


FORMATS: dict[str, Callable[[Path, Path], None]] = {
    "transformers": to_transformers,
    "onnx": to_onnx,
}


def convert(options: ExportOptions, change: Callable[[Path], None] = lambda path: None) -> Path:
    """Write an export in another format, and return the path of the new folder or file.

    Args:
        options: The export (init=), the format, and the path to write (out=).
        change: Changes the written folder or file before it gets the name `out`. If this function
            raises an error, nothing is written.

    Raises:
        UserError: There is no export, the weights of the export were replaced or are not finite,
            `out` exists or cannot be written, or the format cannot represent the network.
    """
    out = options.out
    export = InitSource(options.init).locate().export
    if export is None:
        raise UserError(
            f"init={options.init}: this is not the folder of a run or of an export. Name such a"
            " folder."
        )
    if out.exists() or out.is_symlink():  # is_symlink: a link whose target is missing
        raise UserError(f"out={out}: the path exists already. Use another path.")
    try:
        # raises an error for damaged or replaced weights
        check_weights(export, "model.safetensors", f"init={options.init}", "pt")
    except UserError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"init={export}: cannot read this export: {reason(error)}") from None
    try:
        with replacing(out) as new_path:
            FORMATS[options.format](export, new_path)
            change(new_path)
    except OSError as error:
        raise UserError(f"out={out}: {error.strerror or error}") from None
    return out
