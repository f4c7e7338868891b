"""What the peers' scripts share. Each is called with one argument, a JSON object: the keys of this
project's recipe and `images` (table: parquet files, files: train/CLASS/ of image files), `workers`
of its loader, `threads`, `device` and `out`, its folder. It trains for optim.steps steps and prints a
JSON object last: losses, trained parameters, and the library's version."""

import importlib.metadata
import json
import sys
from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import Tensor, nn


def read_given() -> dict[str, Any]:
    """The keys of the command line; torch gets its number of threads."""
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given["threads"])
    torch.manual_seed(0)
    return given


def build_vit(given: dict[str, Any], classes: int = 0, **more: Any) -> nn.Module:
    """timm's Vision Transformer of the recipe's sizes."""
    return timm.create_model(
        "vit_small_patch16_224",
        img_size=given["data.size"],
        patch_size=given["model.patch"],
        embed_dim=given["model.width"],
        depth=given["model.depth"],
        num_heads=given["model.heads"],
        mlp_ratio=given["model.mlp"] / given["model.width"],
        num_classes=classes,
        **more,
    )


def adamw(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of AdamW."""
    return {
        "lr": given["optim.lr"],
        "betas": tuple(given["optim.betas"]),
        "weight_decay": given["optim.weight_decay"],
    }


def lightning_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Of a Trainer: on the device, for so many steps, with rows as often as this project's."""
    half = given["compute.precision"] == "bfloat16"
    return {
        "max_steps": given["optim.steps"],
        "accelerator": "gpu" if given["device"] == "cuda" else "cpu",
        "devices": 1,
        "precision": "bf16-mixed" if half else "32-true",
        "gradient_clip_val": given["optim.clip"],
        "log_every_n_steps": given["log.every"],
        "enable_checkpointing": False,
    }


def loader_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Of a DataLoader."""
    return {
        "batch_size": given["optim.batch"],
        "shuffle": True,
        "drop_last": True,
        "num_workers": given["workers"],
        "persistent_workers": given["workers"] > 0,
        "pin_memory": given["device"] == "cuda",
    }


class Losses(list[float]):
    """The first loss and that of every so many steps."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.step = every, 0

    def note(self, loss: Tensor) -> Tensor:
        """The loss of the next step, as it came."""
        self.step += 1
        if self.step == 1 or self.step % self.every == 0:
            self.append(float(loss.detach()))
        return loss


def trained(module: nn.Module) -> int:
    """The number of parameters that get a gradient."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def finish(library: str, losses: list[float], parameters: int, steps: int) -> None:
    """Print what was trained. `steps` is the number that the library counted."""
    found: dict[str, Any] = {"version": importlib.metadata.version(library), "steps": steps}
    found["trained parameters"] = parameters
    if torch.cuda.is_available():
        found["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    print()
    print(json.dumps(found | {"losses": [round(loss, 4) for loss in losses]}))


def run(ways: dict[str, Callable[[dict[str, Any]], None]]) -> None:
    """The one of the recipe's objective."""
    given = read_given()
    ways[given["objective"]](given)
