"""The same weights under other names: transformers' native ViT, in and out, and ONNX, out.

transformers' names are those of its files, which all its versions read. Both ways start from an
export, as timm reads it.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from einops import rearrange
from safetensors.torch import save_file
from timm.data import resolve_model_data_config
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ..config.export_files import read_config
from ..config.init_source import InitSource
from ..config.parsing import parse_path
from ..config.values import parse
from ..errors import UserError, suggest

NAMES = {  # transformers' -> timm's
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
    "classifier": "head",
}
LAYER = {
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "attention.output.dense": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}
KINDS = ("weight", "bias")
QKV = ("query", "key", "value")
EPS = 1e-12  # of transformers' layer norms, where a config.json does not say
RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}  # Pillow's numbers


def from_transformers(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's state of a ViTModel's or ViTForImageClassification's; its pooler and mask token, which
    timm has not, are left out.

    Raises:
        ValueError: the names are those of another network.
    """
    plain = {name.removeprefix("vit."): value for name, value in state.items()}
    kept = {
        name: value
        for name, value in plain.items()
        if not name.startswith("pooler.") and "mask_token" not in name
    }
    split = {name: value for name, value in kept.items() if ".attention.attention." in name}
    found = {_to_timm(name): value for name, value in kept.items() if name not in split}
    for first in (name for name in split if ".query." in name):
        layer, kind = re.fullmatch(r"encoder\.layer\.(\d+)\..*\.(weight|bias)", first).groups()  # type: ignore[union-attr]
        found[f"blocks.{layer}.attn.qkv.{kind}"] = torch.cat(
            [split[first.replace("query", part)] for part in QKV]
        )
    return found


def _to_timm(name: str) -> str:
    layer = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)", name)
    if layer and layer[2] in LAYER:
        return f"blocks.{layer[1]}.{LAYER[layer[2]]}.{layer[3]}"
    whole, kind = (
        (name, "") if name in NAMES else (name.rpartition(".")[0], f".{name.rpartition('.')[2]}")
    )
    if whole not in NAMES:
        raise ValueError(f"{name} is no name of transformers' ViT")
    return NAMES[whole] + kind


def to_transformers_state(state: dict[str, Tensor], classifies: bool) -> dict[str, Tensor]:
    """The reverse: a ViTForImageClassification's state, or a ViTModel's, whose pooler gives the
    class token."""
    before = "vit." if classifies else ""
    whole, layer = (
        {timms: theirs for theirs, timms in NAMES.items()},
        {timms: theirs for theirs, timms in LAYER.items()},
    )
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        block = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)
        if block and block[2] == "attn.qkv":
            parts = rearrange(value, "(part d) ... -> part d ...", part=3)
            names = [
                f"{before}encoder.layer.{block[1]}.attention.attention.{part}.{block[3]}"
                for part in QKV
            ]
            found |= {name: part.contiguous() for name, part in zip(names, parts, strict=True)}
        elif block:
            found[f"{before}encoder.layer.{block[1]}.{layer[block[2]]}.{block[3]}"] = value
        else:
            stem, dot, kind = (name, "", "") if name in whole else name.rpartition(".")
            found[("" if stem == "head" else before) + whole[stem] + dot + kind] = value
    if not classifies:
        width = state["cls_token"].shape[-1]
        found |= {"pooler.dense.weight": torch.eye(width), "pooler.dense.bias": torch.zeros(width)}
    return found


def to_transformers(export: Path, out: Path) -> None:
    """Write an export as transformers' native ViT: config.json, model.safetensors and
    preprocessor_config.json.

    Raises:
        UserError: it is something that transformers' ViT cannot be.
    """
    config, model = read_config(export), _load(export)
    classes = config["num_classes"]
    if why := _beyond(model):
        raise UserError(
            f"{export}: transformers' ViT {why}; leave it as it is: AutoModel reads it through timm"
        )
    if classes and config["global_pool"] != "token":
        text = "transformers' ViT classifies by the class token, this by the mean of the patches"
        raise UserError(
            f"{export}: {text}; leave it as it is: AutoModelForImageClassification reads it through timm"
        )
    state, processor = (
        to_transformers_state(model.state_dict(), classes > 0),
        _processor(resolve_model_data_config(model)),
    )
    out.mkdir(parents=True)
    save_file(state, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(_vit_config(config, model), indent=2) + "\n")
    (out / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n")


def _beyond(model: Any) -> str | None:
    """What of a timm network transformers' ViT has not; None where it can say all of it."""
    if not isinstance(model, VisionTransformer) or not isinstance(model.patch_embed, PatchEmbed):
        parts = (model, getattr(model, "patch_embed", None))
        return f"has patches of pixels; this is a {' on a '.join(type(part).__name__ for part in parts)}"
    plain = {
        "cls_token",
        "pos_embed",
        *(f"{name}.{kind}" for name in ("patch_embed.proj", "norm") for kind in KINDS),
    }
    layer = {f"{part}.{kind}" for part in (*LAYER.values(), "attn.qkv") for kind in KINDS}
    plain |= {f"blocks.{i}.{name}" for i in range(len(model.blocks)) for name in layer}
    state = {name for name in model.state_dict() if not name.startswith("head.")}
    for text, names in (("has no", state - plain), ("needs", plain - state)):
        if names:
            return f"{text} {min(names)}"
    acts: list[Any] = [block.mlp.act for block in model.blocks]  # type: ignore[union-attr]
    gelu = all(type(act) is nn.GELU and act.approximate == "none" for act in acts)
    return (
        None
        if gelu and not model.no_embed_class
        else "has gelu and a position of its class token, this has not"
    )


def _load(export: Path) -> Any:
    """The network of an export, by timm's own reader.

    Raises:
        UserError: the folder is none.
    """
    try:
        return timm.create_model(f"local-dir:{export}", pretrained=True).eval()
    except Exception as error:  # whatever timm makes of a foreign folder
        raise UserError(f"{export} is no export: {' '.join(str(error).split())[:200]}") from None


def _vit_config(config: dict[str, Any], model: Any) -> dict[str, Any]:
    names = config.get("label_names") or []
    labels = {str(number): name for number, name in enumerate(names)}
    return {
        "architectures": ["ViTForImageClassification" if names else "ViTModel"],
        "model_type": "vit",
        "image_size": model.patch_embed.img_size[0],
        "patch_size": model.patch_embed.patch_size[0],
        "num_channels": 3,
        "hidden_size": model.embed_dim,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": model.blocks[0].attn.num_heads,
        "intermediate_size": model.blocks[0].mlp.fc1.out_features,
        "hidden_act": "gelu",
        "layer_norm_eps": model.norm.eps,
        "qkv_bias": True,
        **(
            {"id2label": labels, "label2id": {name: int(n) for n, name in labels.items()}}
            if names
            else {"pooler_act": "linear"}
        ),
    }


def _processor(data_config: dict[str, Any]) -> dict[str, Any]:
    """preprocessor_config.json of the transformers processor that does what timm's evaluation
    transform does with the data config `data_config`.

    Raises:
        UserError: none has it.
    """
    mode, interpolation = data_config["crop_mode"], data_config["interpolation"]
    if mode == "border" or interpolation not in RESAMPLE:
        parse_options = f"crop_mode={mode}, interpolation={interpolation}"
        text = f"pretrained_cfg: transformers has no image processor for {parse_options}"
        raise UserError(f"{text}; leave it as it is: AutoImageProcessor reads it through timm")
    sides = dict(zip(("height", "width"), data_config["input_size"][1:], strict=True))
    large = {name: math.floor(side / data_config["crop_pct"]) for name, side in sides.items()}
    if mode == "squash":
        kind = "ViTImageProcessor"
        size = large
    else:
        # of those that resize the shorter side and crop the centre, the plainest
        kind = "BitImageProcessor"
        size = {"shortest_edge": large["height"]}
    return {
        "image_processor_type": kind,
        "do_convert_rgb": True,
        "do_resize": True,
        "size": size,
        "resample": RESAMPLE[interpolation],
        "do_center_crop": mode != "squash" or large != sides,
        "crop_size": sides,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(data_config["mean"]),
        "image_std": list(data_config["std"]),
    }


def to_onnx(export: Path, out: Path) -> None:
    """Write an export as ONNX: `pixels` (B, 3, H, W), normalised, to `features` (B, D), or `logits`
    (B, C) of a classifier.

    Raises:
        UserError: what ONNX needs is not installed.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError(
            "format=onnx: onnx and onnxscript are not installed; type pip install -e '.[onnx]'"
        ) from None
    config, model = read_config(export), _load(export)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    out.parent.mkdir(parents=True, exist_ok=True)
    data_config = resolve_model_data_config(model)
    _export_onnx(
        model,
        torch.zeros(2, *data_config["input_size"]),
        "logits" if config["num_classes"] else "features",
        data_config,
        out,
    )


def _export_onnx(
    model: nn.Module, pixels_B3HW: Tensor, name: str, data_config: dict[str, Any], out: Path
) -> None:
    """`data_config`, timm's words for the preprocessing, become the file's metadata."""
    batch = torch.export.Dim("B", min=1)
    program = torch.onnx.export(
        model,
        (pixels_B3HW,),
        dynamo=True,
        input_names=["pixels"],
        output_names=[name],
        dynamic_shapes=({0: batch},),
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props["preprocessing"] = json.dumps(data_config)
    program.save(str(out), external_data=False)


FORMATS: dict[str, Callable[[Path, Path], None]] = {
    "transformers": to_transformers,
    "onnx": to_onnx,
}


def parse_options(words: list[str]) -> tuple[str, str, Path]:
    """A run's folder or an export's, a format, and where it is to be written.

    Raises:
        UserError: a word is not understood.
    """
    folders, given = (
        [word for word in words if "=" not in word],
        parse(word for word in words if "=" in word),
    )
    if len(folders) != 1 or given.keys() != {"format", "out"}:
        raise UserError(
            "say one folder, format= and out=: tools/export.py runs/mpp format=onnx out=mpp.onnx"
        )
    if given["format"] not in FORMATS:
        raise UserError(f"format={given['format']}: unknown; {suggest(given['format'], FORMATS)}")
    return folders[0], given["format"], parse_path(given["out"], "out")


def main(words: list[str]) -> None:
    """Do what the words of tools/export.py say.

    Raises:
        UserError: as `asked` and the formats; there is no export, or `out` is there already.
    """
    folder, form, out = parse_options(words)
    export = InitSource(folder).locate().export
    if export is None:
        raise UserError(f"{folder}: expected the folder of a run or of an export")
    if out.exists():
        raise UserError(f"out={out}: is there already")
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        FORMATS[form](export, beside)
        beside.replace(out)
    finally:
        shutil.rmtree(beside) if beside.is_dir() else beside.unlink(missing_ok=True)
    print(f"written     {out}")
