"""Numbers on a device against those on the CPU: equal where they are integers, close where not."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from gpu import Check
from torch import Tensor

from ssl_vit.config import declaration
from ssl_vit.config.resolve import resolve
from ssl_vit.data.batching import Batch
from ssl_vit.jobs.setup import objective_settings
from ssl_vit.models.encoder import build_backbone
from ssl_vit.objectives import building, corruption
from ssl_vit.objectives.base import Objective

IMAGES = 64
LARGE = {"model": "vit_s16", "data.size": "224"}
SMALL = {"model": "vit_n8", "data.size": "32"}
WAYS = [
    {"shape": "patches", "side": 1, "source": "image"},
    {"shape": "patches", "side": 2, "source": "batch"},
    {"shape": "blocks", "side": 1, "source": "image"},
]
# Largest relative differences of float32: products are summed in another order
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-3  # of a parameter's gradient, over its norm


def checks(device: str, out: Path, models: list[str] | None) -> dict[str, Check]:
    size = LARGE if device == "cuda" else SMALL
    found: dict[str, Check] = {
        "corruption": lambda: corruption_is_equal(device),
        "targets": lambda: targets_are_equal(device),
    }
    for name in ("mpp", "simmim", "supervised", "joint"):
        found[f"gradients {name}"] = lambda name=name: gradients_are_close(name, size, device)
    return found


def synthetic_batch(count: int, size: int, classes: int = 10) -> Batch:
    """Random images and labels, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    label = torch.randint(classes, (count,), generator=generator)
    index = torch.arange(count)
    key = torch.randint(2**62, (count,), generator=generator)
    return Batch(image, label, index, key)


def on(device: str, batch: Batch) -> Batch:
    return batch.map(lambda values: values.to(device))


def all_equal(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    return all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(one, other, strict=True))


def corruption_is_equal(device: str) -> dict[str, Any]:
    """Drawn on the CPU, on the device, and on the device compiled."""
    key = synthetic_batch(256, 8).key
    compiled = torch.compile(corruption.sample)
    found: dict[str, Any] = {}
    for way in WAYS:
        name = f"{way['shape']} {way['side']} {way['source']}"
        expected = corruption.sample(key, 196, 0.5, **way)
        eager = corruption.sample(key.to(device), 196, 0.5, **way)
        found[name] = all_equal(expected, eager)
        made = compiled(key.to(device), 196, 0.5, **way)
        found[f"{name}, compiled"] = all_equal(expected, made)
    return found | {"holds": all(found.values())}


def targets_are_equal(device: str) -> dict[str, Any]:
    """Ground truths and baselines of every target; the colours' are integers."""
    batch = synthetic_batch(IMAGES, 64)
    hidden = torch.rand(IMAGES, 16, generator=torch.Generator().manual_seed(1)) < 0.5
    found: dict[str, Any] = {}
    for name, declared in declaration.targets().items():
        results = []
        for place in ("cpu", device):
            target = declared.build(16, [0.5] * 3, [0.5] * 3).to(place)
            image = batch.image.to(place)
            target.fit_baselines([image])
            baselines = target.baselines(image, hidden.to(place))
            results.append([target.ground_truth(image), *baselines.values()])
        differences = [
            float((a.cpu().double() - b.cpu().double()).abs().max())
            for a, b in zip(*results, strict=True)
        ]
        found[name] = max(differences)
    colors = found["mean_color"] == found["grid_color"] == 0
    return found | {"holds": colors and max(found.values()) < 1e-5}


def objective_of(recipe_name: str, size: dict[str, str]) -> Objective:
    arguments = [f"{key}={value}" for key, value in size.items()]
    recipe = resolve([f"recipe={recipe_name}", *arguments])
    torch.manual_seed(0)
    network = build_backbone(recipe.model, recipe.data)
    objective = building.build(objective_settings(recipe), network, 10)
    for name, weight in objective.named_parameters():
        if "head" in name:  # begins at zero, which would leave the encoder without a gradient
            torch.nn.init.normal_(weight, std=0.02)
    return objective


def gradients_are_close(name: str, size: dict[str, str], device: str) -> dict[str, Any]:
    """Loss and gradients of one batch in float32 on the CPU and the device, and how far bfloat16 on
    the device is from them."""
    batch = synthetic_batch(16, int(size["data.size"]))
    batch = batch._replace(labels_per_pass=torch.tensor(16.0, dtype=torch.float64))
    loss, gradients = loss_and_gradients(objective_of(name, size), batch)
    found: dict[str, Any] = {"loss": loss}
    for precision in ("float32", "bfloat16"):
        objective = objective_of(name, size).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            there, theirs = loss_and_gradients(objective, on(device, batch))
        apart = {
            key: float((theirs[key].cpu() - value).norm() / value.norm().clamp(min=1e-12))
            for key, value in gradients.items()
        }
        worst = max(apart, key=lambda key: apart[key])
        found[f"{precision}, loss, relative"] = abs(there / loss - 1)
        found[f"{precision}, gradients, relative"] = apart[worst]
        found[f"{precision}, worst"] = worst
    close = found["float32, loss, relative"] < LOSS_TOLERANCE
    return found | {"holds": close and found["float32, gradients, relative"] < GRADIENT_TOLERANCE}


def loss_and_gradients(objective: Objective, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    loss = objective(batch).loss
    loss.backward()
    found = {
        name: weight.grad.float()
        for name, weight in objective.named_parameters()
        if weight.grad is not None
    }
    return float(loss.detach()), found
