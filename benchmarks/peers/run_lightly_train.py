"""DINO with lightly-train's one command, pretrain, on timm's encoder."""

import json
from pathlib import Path
from typing import Any

import lightly_train
import torch
from common import build_vit, finish, run


def dino(given: dict[str, Any]) -> None:
    model = build_vit(given, dynamic_img_size=True)
    sizes = ("data.size", "views.local_size")
    size, local_size = ((given[key], given[key]) for key in sizes)
    smallest, largest = given["views.local_area"]
    warm, temperature = given["dino.teacher_temperature"]
    jitter = {name: given[f"views.{name}"] for name in ("brightness", "contrast")}
    jitter |= {name: given[f"views.{name}"] for name in ("saturation", "hue")}
    lightly_train.pretrain(
        out=given["out"],
        data=f"{given['data.path']}/train",
        model=model,
        method="dino",
        method_args={
            "hidden_dim": given["dino.hidden"],
            "bottleneck_dim": given["dino.width"],
            "output_dim": given["dino.prototypes"],
            "student_temp": given["dino.temperature"],
            "warmup_teacher_temp": warm,
            "teacher_temp": temperature,
            "center_momentum": given["dino.centre_momentum"],
            "momentum_start": given["dino.momentum"],
        },
        epochs=1000,  # max_steps ends it
        batch_size=given["optim.batch"],
        num_workers=given["workers"],
        devices=1,
        accelerator="gpu" if given["device"] == "cuda" else "cpu",
        precision="bf16-mixed" if given["compute.precision"] == "bfloat16" else "32-true",
        overwrite=True,
        optim="adamw",
        optim_args={
            "lr": given["optim.lr"],
            "betas": tuple(given["optim.betas"]),
            "weight_decay": given["optim.weight_decay"],
        },
        transform_args={
            "image_size": size,
            "random_resize": {"min_scale": given["data.crop_area"], "max_scale": 1.0},
            "color_jitter": jitter | {"prob": given["views.jitter"], "strength": 1.0},
            "random_gray_scale": given["views.grayscale"],
            "gaussian_blur": None,
            "normalize": {"mean": tuple(given["data.mean"]), "std": tuple(given["data.std"])},
            "global_view_1": {
                "gaussian_blur": None,
                "solarize": {"prob": given["views.solarize"][1], "threshold": 0.5},
            },
            "local_view": {
                "num_views": given["views.local"],
                "view_size": local_size,
                "random_resize": {"min_scale": smallest, "max_scale": largest},
                "gaussian_blur": None,
            },
        },
        trainer_args={
            "max_steps": given["optim.steps"],
            "gradient_clip_val": given["optim.clip"],
            "log_every_n_steps": given["log.every"],
        },
    )
    out = Path(given["out"])
    file = out / "metrics.jsonl"  # not there before its first row
    rows = map(json.loads, file.read_text().splitlines() if file.exists() else [])
    losses = [row["train_loss"] for row in rows if "train_loss" in row]
    # written by this process just before; it holds the model as an object, which needs pickle
    saved = torch.load(out / "checkpoints" / "last.ckpt", weights_only=False, map_location="cpu")
    student = [name for name in saved["state_dict"] if name.startswith("student_")]
    trained = sum(saved["state_dict"][name].numel() for name in student)
    finish("lightly-train", losses, trained, saved["global_step"])


if __name__ == "__main__":
    run({"dino": dino})
