"""Exports as other programs write them."""

import json
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file


def of_timm(
    folder: Path, name: str = "vit_tiny_patch16_224", crop: float = 1.0, **args: Any
) -> Path:
    """A small encoder that timm made, with a normalisation of its own; `args` of timm's builder."""
    args = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2} | args
    args = {"mlp_ratio": 2.0} | args
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, **args)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    cfg = {"input_size": [3, 16, 16], "mean": [0.4] * 3, "std": [0.2] * 3, "crop_pct": crop}
    config = {"architecture": name, "num_classes": 0, "model_args": args, "pretrained_cfg": cfg}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def forget_digests(export: Path) -> None:
    """Take the digests from an export's config.json, so that its weights may be replaced."""
    path = export / "config.json"
    config = json.loads(path.read_text())
    config.pop("sha256", None)
    path.write_text(json.dumps(config))
