"""Weights out: an encoder as timm and transformers read it, with no code of this project."""

import json
import os
import shutil
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from .encoder import Encoder, timm_args
from .recipe import Data, Model


def export(folder: Path, encoder: Encoder, heads: dict[str, Tensor], model: Model, data: Data, pool: str) -> None:
    """Write config.json and model.safetensors as timm's "local-dir:" reads them, and heads.safetensors beside them.

    `pool` is what timm gives as the picture's feature: "token" or "avg" (the mean of the patches, for an encoder whose class
    token got no loss). A folder that is there already is replaced whole.
    """
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    for left in folder.parent.glob(f".{folder.name}.*"):  # what a kill left
        shutil.rmtree(left)
    beside.mkdir(parents=True)
    (beside / "config.json").write_text(json.dumps(_config(encoder, model, data, pool), indent=2) + "\n")
    (beside / "model.safetensors").write_bytes(_packed(encoder.backbone.state_dict()))
    (beside / "heads.safetensors").write_bytes(_packed(heads))
    shutil.rmtree(folder, ignore_errors=True)
    beside.replace(folder)


def _config(encoder: Encoder, model: Model, data: Data, pool: str) -> dict:
    args = timm_args(model, data.size) | {"global_pool": pool}
    if pool == "avg":
        args["fc_norm"] = False  # the final norm stays before the pooling, where it was trained
    return {
        "architecture": model.timm,
        "num_classes": 0,
        "num_features": encoder.width,
        "global_pool": pool,
        "model_args": args,
        "pretrained_cfg": {
            "input_size": [3, data.size, data.size],
            "interpolation": "bilinear",
            "crop_pct": data.eval_crop,
            "mean": list(data.mean),
            "std": list(data.std),
            "num_classes": 0,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }


def _packed(tensors: dict[str, Tensor]) -> bytes:
    return save({name: value.contiguous().cpu() for name, value in tensors.items()}, {"format": "pt"})
