"""Time of a training step's passes over that of the matrix products and the attention of all tokens
in all blocks (the floor), measured in the same process; beside what a user would pick instead.

    python benchmarks/step.py models=vit_s16 size=224 batch=4 processes=6 rounds=5 device=cpu \
        save=false memory=kept

`models` lists models of this project, `recipes` objectives (a recipe, or recipe+KEY=VALUE), `peers`
others on an encoder of the same shape: timm (supervised), transformers (ViTForMaskedImageModeling),
vit_pytorch (its MPP; 1.15.0, later ones raise an error), stable_pretraining (its SimMIM). Each way
does forward and backward passes of the same number of images; all take turns, and ratios are taken
within a round. CPU time on one thread, or CUDA events. On a CPU all ways run with the memory that
the tools keep, or as glibc has it with memory=default. `update` is an AdamW step on this project's
weights over the same floor; `counted` is what the recipe's multiply-adds would cost over those of
the whole encoder.

What a process has from its start on, such as where its memory lies, all its rounds share. So the
rounds are repeated in `processes` new ones, one after the other: a ratio is the median of a
process's rounds, and what is reported are median and 95% interval over the processes, of which
there must be 6 for an interval. `over floor`
has every way over the floor, `over peers` every recipe over every peer; `over peers, per
multiply-add` divides these by `counted`, as peers compute the whole encoder. `rounds, ms` has every
measurement. One JSON object comes out; save=true adds its cases to results/step.json.
"""

import importlib
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
import timm
import torch
from scipy import special
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_vit import costs, resolve
from ssl_vit.data.batching import Batch
from ssl_vit.models import encoder
from ssl_vit.models.trained_part import freeze_untrained
from ssl_vit.objectives import building
from ssl_vit.recipe.schema import Recipe
from ssl_vit.stats import TAIL
from ssl_vit.training.allocator import keep_freed_memory

ROOT = Path(__file__).resolve().parent.parent
CLASSES = 1000
RECIPES = "mpp,mpp+target=grid_color,mpp+target=pixels,simmim,mae,moco_v3,supervised"
PEERS = "timm,transformers,vit_pytorch,stable_pretraining"
DEFAULTS = {
    "models": "vit_s16",
    "size": "224",
    "batch": "4",
    "processes": "6",
    "rounds": "5",
    "device": "cpu",
    "precision": "float32",
    "recipes": RECIPES,
    "peers": PEERS,
    "memory": "kept",
    "save": "false",
}
Way = Callable[[], None]  # forward and backward passes of one batch


class Timed(NamedTuple):
    """What one process measured.

    Attributes:
        rounds_ms: {way: its time in each round}.
        counted: {recipe: its multiply-adds over those of the whole encoder}.
        memory: {way: peak GiB}, on a GPU alone.
    """

    rounds_ms: dict[str, list[float]]
    counted: dict[str, float]
    memory: dict[str, float]


def given_options(known: dict[str, str], words: list[str]) -> dict[str, str]:
    """The defaults with KEY=VALUE of the command line over them."""
    found = dict(known)
    for word in words:
        key, _, value = word.partition("=")
        if key not in known:
            sys.exit(f"{key}=: expected one of {', '.join(known)}")
        found[key] = value
    return found


def spread(values: list[float]) -> dict[str, Any]:
    """Their median, its 95% interval, the least and the most.

    The interval goes from one value to another in order of size (the sign test's): of 6 to 8 values
    from the least to the most, of 9 to 11 from the second to the last but one. None of fewer than
    6, which are all on one side of the median in more than 1 of 20 cases.
    """
    n = len(values)
    ordered = sorted(values)
    outside = [k for k in range(n // 2) if special.bdtr(k, n, 0.5) <= TAIL]
    ends = [ordered[outside[-1]], ordered[n - 1 - outside[-1]]] if outside else None
    return {
        "median": round(statistics.median(values), 3),
        "95%": [round(end, 3) for end in ends] if ends else None,
        "least": round(ordered[0], 3),
        "most": round(ordered[-1], 3),
    }


def paired(times: list[float], others: list[float]) -> float:
    """The median over rounds of one way's time over another's in the same round: what slows a whole
    round down slows both."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def commit() -> str:
    """The revision measured, with a + where files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()


def finish(report: dict[str, Any], name: str, save: bool, libraries: list[Any]) -> None:
    """Print the report, with machine, versions and revision, as one JSON object; with `save` it is
    added to results/NAME."""
    path = ROOT / "results" / name
    before = json.loads(path.read_text()) if save and path.exists() else {}
    report = before | report
    report |= {"load": round(os.getloadavg()[0], 1), "cores": psutil.cpu_count()}
    report["capability"] = torch.backends.cpu.get_cpu_capability()
    report["versions"] = {library.__name__: library.__version__ for library in libraries}
    text = json.dumps(report | {"commit": commit()}, indent=2)
    # lists of numbers on one line
    text = re.sub(r"\[\s+([^][{}]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    print(text)
    if save:
        path.write_text(text + "\n")


class Floor(nn.Module):
    """The matrix products and the attention of all blocks on all tokens, and nothing else."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        model = recipe.model
        self.heads = model.heads
        sizes = [(model.width, 3 * model.width), (model.width, model.width)]
        sizes += [(model.width, model.mlp), (model.mlp, model.width)]
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(*size, bias=False) for size in sizes)
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


def resolved(words: list[str], model: str, size: int, batch: int, precision: str) -> Recipe:
    own = [f"model={model}", f"data.size={size}", f"optim.batch={batch}"]
    return resolve([*words, *own, f"compute.precision={precision}"])


def ours(recipe: Recipe, device: str) -> tuple[nn.Module, Way]:
    """An objective of this project on bytes, as the loop calls it."""
    torch.manual_seed(0)
    net = encoder.build_encoder(recipe.model, recipe.data)
    objective = building.build_objective(building.Settings.from_recipe(recipe), net, CLASSES).to(
        device
    )
    freeze_untrained(net)
    count = recipe.optim.batch
    side = recipe.data.size
    pixels = torch.randint(0, 256, (2, count, 3, side, side), dtype=torch.uint8, device=device)
    index = torch.arange(count, device=device)
    label = torch.randint(0, CLASSES, (count,), device=device)
    views = pixels.transpose(0, 1) if recipe.objective == "moco_v3" else None
    batch = Batch(pixels[0], label, index, index, views=views)
    return objective, passes(objective, lambda: objective(batch).loss, recipe, device)


def timms_encoder(recipe: Recipe, classes: int) -> nn.Module:
    model = recipe.model
    return timm.create_model(
        "vit_small_patch16_224",
        img_size=recipe.data.size,
        patch_size=model.patch,
        embed_dim=model.width,
        depth=model.depth,
        num_heads=model.heads,
        mlp_ratio=model.mlp / model.width,
        num_classes=classes,
    )


def timms(recipe: Recipe, device: str) -> tuple[nn.Module, Way]:
    """timm's Vision Transformer with a linear classifier and cross entropy."""
    net = timms_encoder(recipe, CLASSES).to(device)
    image, label = images(recipe, device)
    return net, passes(net, lambda: F.cross_entropy(net(image), label), recipe, device)


def transformers(recipe: Recipe, device: str) -> tuple[nn.Module, Way]:
    """Masked image modelling of transformers: half of the patches masked, their pixels predicted."""
    from transformers import ViTConfig, ViTForMaskedImageModeling

    model = recipe.model
    config = ViTConfig(
        hidden_size=model.width,
        num_hidden_layers=model.depth,
        num_attention_heads=model.heads,
        intermediate_size=model.mlp,
        image_size=recipe.data.size,
        patch_size=model.patch,
        encoder_stride=model.patch,
    )
    net: Any = ViTForMaskedImageModeling(config).to(device)
    image, _ = images(recipe, device)
    masked = torch.rand(len(image), recipe.patches, device=device) < 0.5
    return net, passes(net, lambda: net(image, bool_masked_pos=masked).loss, recipe, device)


def vit_pytorch(recipe: Recipe, device: str) -> tuple[nn.Module, Way]:
    """Masked patch prediction of vit-pytorch, at the paper's rates."""
    from vit_pytorch import ViT
    from vit_pytorch.mpp import MPP

    model = recipe.model
    net = ViT(
        image_size=recipe.data.size,
        patch_size=model.patch,
        num_classes=CLASSES,
        dim=model.width,
        depth=model.depth,
        heads=model.heads,
        dim_head=model.width // model.heads,
        mlp_dim=model.mlp,
    )
    rates = {"mask_prob": 0.5, "random_patch_prob": 0.1, "replace_prob": 0.9}
    mpp = MPP(net, patch_size=model.patch, dim=model.width, **rates).to(device)
    image, _ = images(recipe, device)
    return mpp, passes(mpp, lambda: mpp(image), recipe, device)


def stable_pretraining(recipe: Recipe, device: str) -> tuple[nn.Module, Way]:
    """SimMIM of stable-pretraining on timm's encoder, half of the patches masked."""
    from stable_pretraining.methods.simmim import SimMIM

    sizes = {"patch_size": recipe.model.patch, "image_size": recipe.data.size}
    net: Any = SimMIM(timms_encoder(recipe, 0), mask_ratio=0.5, **sizes).to(device)
    image, _ = images(recipe, device)
    return net, passes(net, lambda: net(image).loss, recipe, device)


OTHERS = {
    "timm": timms,
    "transformers": transformers,
    "vit_pytorch": vit_pytorch,
    "stable_pretraining": stable_pretraining,
}


def images(recipe: Recipe, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised images and labels, for those that take no bytes."""
    side = recipe.data.size
    image = torch.rand(recipe.optim.batch, 3, side, side, device=device)
    return image, torch.randint(0, CLASSES, (recipe.optim.batch,), device=device)


def floor(recipe: Recipe, device: str) -> Way:
    net = Floor(recipe).to(device)
    shape = (recipe.optim.batch, recipe.patches + 1 + recipe.model.registers, recipe.model.width)
    x_BTD = torch.randn(shape, device=device, requires_grad=True)
    return passes(net, lambda: net(x_BTD).float().sum(), recipe, device)


def passes(module: nn.Module, loss: Callable[[], torch.Tensor], recipe: Recipe, device: str) -> Way:
    half = recipe.compute.precision == "bfloat16"

    def run() -> None:
        module.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=half):
            found = loss()
        found.backward()

    return run


def update(module: nn.Module, run: Way) -> Way:
    """torch's AdamW on the gradients of one batch."""
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    run()
    gradients = [p.grad for p in trained]

    def step() -> None:
        for p, gradient in zip(trained, gradients, strict=True):
            p.grad = gradient
        optimizer.step()

    return step


def milliseconds(way: Way, device: str) -> float:
    if device == "cpu":
        before = time.process_time()
        way()
        return 1000 * (time.process_time() - before)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    way()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def build_ways(
    given: dict[str, str], model: str, peers: list[str]
) -> tuple[dict[str, Way], dict[str, float]]:
    """The floor, every recipe, the update and the peers; and what of each recipe is counted."""
    device = given["device"]
    fixed = (model, int(given["size"]), int(given["batch"]), given["precision"])
    plain = resolved(["recipe=mpp"], *fixed)
    ways = {"floor": floor(plain, device)}
    counted = {}
    whole = 6 * costs.compute_network_cost(plain).features / 1e18
    for words in given["recipes"].split(","):
        name, *own = words.split("+")
        recipe = resolved([f"recipe={name}", *own], *fixed)
        module, ways[words] = ours(recipe, device)
        counted[words] = round(costs.exaflop(recipe, 1) / whole, 3)
        if "update" not in ways:
            ways["update"] = update(module, ways[words])
    return ways | {peer: OTHERS[peer](plain, device)[1] for peer in peers}, counted


def timed(given: dict[str, str], model: str, peers: list[str]) -> Timed:
    """All ways of one model in turn, in this process."""
    torch.set_num_threads(1)
    device = given["device"]
    if device == "cpu" and given["memory"] == "kept":
        keep_freed_memory()
    ways, counted = build_ways(given, model, peers)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    memory = {}
    for turn in range(-1, int(given["rounds"])):
        order = list(ways) if turn % 2 else list(ways)[::-1]
        for name in order:
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            took = milliseconds(ways[name], device)
            if device == "cuda":
                memory[name] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
            if turn >= 0:  # the first one warms up
                taken[name].append(round(took, 3))
    return Timed(taken, counted, memory)


def in_processes(given: dict[str, str], model: str, peers: list[str]) -> list[Timed]:
    """Measured in new processes, one after the other."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        turns = range(int(given["processes"]))
        return [pool.submit(timed, given, model, peers).result() for _ in turns]


def summarized(found: list[Timed], peers: list[str]) -> dict[str, Any]:
    """Ratios within rounds, their medians and intervals over processes."""

    def over(way: str, other: str, work: float = 1) -> dict[str, Any]:
        pairs = [(one.rounds_ms[way], one.rounds_ms[other]) for one in found]
        return spread([paired(*pair) / work for pair in pairs])

    first = found[0]
    ways = [name for name in first.rounds_ms if name != "floor"]
    rounds_ms = {name: [one.rounds_ms[name] for one in found] for name in first.rounds_ms}
    report: dict[str, Any] = {
        "took, ms": {
            name: spread([statistics.median(rounds) for rounds in taken])
            for name, taken in rounds_ms.items()
        },
        "over floor": {name: over(name, "floor") for name in ways},
        "over peers": {
            recipe: {peer: over(recipe, peer) for peer in peers} for recipe in first.counted
        },
        "over peers, per multiply-add": {
            recipe: {peer: over(recipe, peer, work) for peer in peers}
            for recipe, work in first.counted.items()
        },
        "counted": first.counted,
        "rounds, ms": rounds_ms,
    }
    if first.memory:
        report["peak memory with all models on the device, GiB"] = first.memory
    return report


def installed(peers: str) -> list[str]:
    """The peers that are there; the others are named."""
    wanted = list(filter(None, peers.split(",")))
    found = [peer for peer in wanted if importlib.util.find_spec(peer)]
    for peer in wanted:
        if peer not in found:
            print(f"{peer}: not installed, left out", file=sys.stderr)
    return found


def main() -> None:
    given = given_options(DEFAULTS, sys.argv[1:])
    peers = installed(given["peers"])
    fixed = ", ".join(given[key] for key in ("device", "precision"))
    # of each case, as those that were measured before stay in the file
    origin: dict[str, Any] = {key: int(given[key]) for key in ("processes", "rounds")}
    origin |= {"load": round(os.getloadavg()[0], 1), "commit": commit()}
    report: dict[str, Any] = {
        f"{model}, {given['size']} px, batch {given['batch']}, {fixed}": origin
        | summarized(in_processes(given, model, peers), peers)
        for model in given["models"].split(",")
    }
    libraries = [torch, timm]
    libraries += [importlib.import_module("transformers")] if "transformers" in peers else []
    report |= {"threads": 1, "memory": given["memory"]}
    finish(report, "step.json", given["save"] == "true", libraries)


if __name__ == "__main__":
    main()
