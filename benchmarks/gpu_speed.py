"""A training step of masked patch prediction on synthetic images on the device, against the matrix
products and the attention in it."""

import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import ratios
import torch
import yaml
from gpu import ROOT, Check
from gpu_numbers import on, synthetic_batch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity

from ssl_vit import costs
from ssl_vit.config.resolve import resolve
from ssl_vit.config.schema import Recipe
from ssl_vit.data.batching import Batch
from ssl_vit.jobs import resources
from ssl_vit.jobs.setup import Job, loop_settings, set_up
from ssl_vit.runs.folder import Run
from ssl_vit.training import loop

# model -> image side and the batch sizes tried, largest first
CASES: dict[str, tuple[int, list[int]]] = {
    "vit_b16": (224, [512, 256]),
    "vit_s16": (224, [1024, 512]),
    "vit_ti4": (32, [2048, 1024]),
    "vit_l16": (224, [256, 128]),
}
REHEARSAL: dict[str, tuple[int, list[int]]] = {"vit_n8": (32, [32])}
WARM_UP, STEPS, ROUNDS = 5, 10, 6  # fewer rounds have no 95% interval
TOP = 25  # operations of the profile
Steps: TypeAlias = Callable[[int], None]  # does so many


def checks(device: str, out: Path, models: list[str] | None) -> dict[str, Check]:
    cases = CASES if device == "cuda" else REHEARSAL
    chosen = models or list(cases)
    return {
        f"{model}, batch {batch}": lambda model=model, batch=batch, side=cases[model][0]: measure(
            model, side, batch, device, out
        )
        for model in chosen
        for batch in cases[model][1]
    }


class Floor(nn.Module):
    """The matrix products and the attention of all blocks on all tokens, and nothing else."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        model = recipe.model
        self.heads = model.heads
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                nn.Linear(wide, out, bias=False)
                for wide, out in (
                    (model.width, 3 * model.width),
                    (model.width, model.width),
                    (model.width, model.mlp),
                    (model.mlp, model.width),
                )
            )
            for _ in range(model.depth)
        )
        for layer in self.blocks.modules():
            if isinstance(layer, nn.Linear):  # values neither grow nor shrink to subnormal numbers
                nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def forward(self, x_BTD: Tensor) -> Tensor:
        for qkv, projection, up, down in self.blocks:
            q, k, v = qkv(x_BTD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x_BTD = down(up(projection(mixed)))
        return x_BTD


def measure(model: str, side: int, batch: int, device: str, out: Path) -> dict[str, Any]:
    """Milliseconds of a step and of its floor in turns, images a second, and the share of the
    device's peak rate."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [f"model={model}", f"data.size={side}", f"optim.batch={batch}"]
        arguments += [f"compute.batch={batch}", f"compute.compile={str(device == 'cuda').lower()}"]
        arguments += ["compute.precision=bfloat16", "compute.workers=0", "recipe=mpp"]
        run = Run(resolve([*arguments, f"out={folder}", "name=run"]))
        with resources.run_session(run) as accelerator:
            splits = resources.load_splits(run.recipe, accelerator, test=False)
            job = set_up(run, accelerator, splits)
            images = on(device, synthetic_batch(batch, side))
            step = stepper(job, images)
            floor = floor_stepper(run.recipe, batch, device)
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            times: dict[str, list[float]] = {"step": [], "floor": []}
            for todo in (step, floor):
                milliseconds(todo, WARM_UP, device)
            for _ in range(ROUNDS):
                times["step"].append(milliseconds(step, STEPS, device))
                times["floor"].append(milliseconds(floor, STEPS, device))
            if device == "cuda":
                profile(step, out / f"profile_{model}_{batch}.txt")
    over = [a / b for a, b in zip(times["step"], times["floor"], strict=True)]
    took = statistics.median(times["step"])
    per_second = 1000 * batch / took
    found: dict[str, Any] = {
        "step, ms": round(took, 3),
        "least to most": [round(min(times["step"]), 3), round(max(times["step"]), 3)],
        "floor, ms": round(statistics.median(times["floor"]), 3),
        "over floor": ratios.spread(over),
        "images/s": round(per_second, 1),
        "TFLOP/s": round(costs.exaflop(run.recipe, 1) * per_second * 1e6, 2),
    }
    if device == "cuda":
        found["peak memory, GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        if rate := peak_rate():
            found["share of peak"] = round(found["TFLOP/s"] / rate, 3)
    return found


def stepper(job: Job, images: Batch) -> Steps:
    """Steps of the training loop on one batch, with a row after the last."""

    def steps(count: int) -> None:
        job.state.step = 0
        settings = dataclasses.replace(loop_settings(job.recipe), steps=count, log_every=count)
        batches = itertools.repeat(images)
        loop.train(job.state, batches, settings, job.batch_layout, job.accelerator)

    return steps


def floor_stepper(recipe: Recipe, batch: int, device: str) -> Steps:
    """The same of the floor, with its backward pass."""
    floor = Floor(recipe).to(device)
    tokens = costs.tokens(recipe)
    x_BTD = torch.randn(batch, tokens, recipe.model.width, device=device, requires_grad=True)

    def steps(count: int) -> None:
        for _ in range(count):
            with torch.autocast(device, torch.bfloat16):
                made = floor(x_BTD)
            made.float().sum().backward()
            floor.zero_grad(set_to_none=True)
            x_BTD.grad = None

    return steps


def milliseconds(steps: Steps, count: int, device: str) -> float:
    """Of one step, over so many: by CUDA events, or by the clock."""
    if device == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        steps(count)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / count
    start = time.perf_counter()
    steps(count)
    return 1000 * (time.perf_counter() - start) / count


def profile(steps: Steps, path: Path) -> None:
    """The operations that take the most time on the device."""
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as found:
        steps(3)
        torch.cuda.synchronize()
    table = found.key_averages().table(sort_by="self_cuda_time_total", row_limit=TOP)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table)


def peak_rate() -> float | None:
    """TFLOP/s in bfloat16 of this device's data sheet."""
    name = torch.cuda.get_device_name().lower()
    rows = yaml.safe_load((ROOT / "ssl_vit" / "lab" / "planning" / "hardware.yaml").read_text())
    for key in ("h200", "h100"):
        if key in name:
            return rows[key]["bfloat16"]
    return None
