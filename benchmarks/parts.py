"""Where the CPU time of a training step goes: its parts over the floor, which is the matrix products
and the attention of the same step, in their shapes, repeated alone.

    python benchmarks/parts.py data=FOLDER recipes=mpp,mae,dino images=tinyimagenet model=vit_n8 \
        size=64 batch=128 steps=3 processes=6 save=false

FOLDER holds tinyimagenet/ as parquet files; with images=photographs a folder of JPEGs of 500 x 375
is made of them, as benchmarks/loader.py does. One thread, float32, random resized crops and flips.
In each of `processes` new processes a run is set up and its loop makes one step that warms up, then
`steps` measured ones with a row of metrics, and a checkpoint is written.

The time between entering and leaving a function of this project belongs to its part, but for what
is spent in another part within. Operations of torch are timed where they are called, and booked by
kind: `forward` and `backward` are divided so. What is left is `rest`: Python, and the clock itself.
Held-out evaluations, rows and checkpoints stand as often as the recipe makes them. `over floor` has
medians over the processes; `floor within` is the floor's operations as they ran within the step,
`whole` steps without the clock. One JSON object comes out; save=true adds its cases to
results/parts.json.
"""

import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ |= {"OMP_NUM_THREADS": "1"}

import timm
import torch
from loader import photographs, write
from step import commit, finish, given_options, spread
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ssl_vit import resolve
from ssl_vit.data import batching, loaders
from ssl_vit.jobs.session import session
from ssl_vit.jobs.setup import TrainingJob, loop_settings, set_up
from ssl_vit.models.encoder import Encoder
from ssl_vit.recipe.schema import compared_views
from ssl_vit.runs.folder import Run
from ssl_vit.training import checkpoint, loop
from ssl_vit.training.strategy import Strategy

DEFAULTS = {
    "data": os.environ.get("SSL_VIT_DATA", "data"),
    "recipes": "mpp,mae,dino",
    "images": "tinyimagenet",
    "model": "vit_n8",
    "size": "64",
    "batch": "128",
    "steps": "3",
    "processes": "6",
    "save": "false",
}
PHOTOGRAPHS = 256  # images of the folder
# Operations of ATen by how their names begin; others are "elementwise"
KINDS = {
    "products": ("mm", "addmm", "bmm", "baddbmm"),
    "attention": ("_scaled_dot_product",),
    "norms": ("native_layer_norm", "native_group_norm"),
    "GELU": ("gelu",),
    "sums": ("sum", "mean"),
    "copies": ("copy", "_to_copy", "clone", "cat", "stack", "gather", "scatter", "index"),
}
FLOOR = ("products", "attention")
EVALUATION = "held-out evaluation"
DIVIDED = ("forward", "backward")  # parts whose operations are told apart
# {(class or module, its function): the part}
PARTS: dict[tuple[Any, str], str] = {
    (batching.ImageDataset, "fetch"): "reading",
    (batching.ImageDataset, "decode"): "decoding",
    (batching.ImageDataset, "content"): "hash of contents",
    (batching.ImageDataset, "pixel_fields"): "crops and views",
    (loop.Clock, "next_batch"): "rest of loading",
    (loop, "to_device"): "transfer",
    (Encoder, "patch_pixels"): "embedding, forward",
    (Strategy, "run_pass"): "forward",
    (Strategy, "backward"): "backward",
    (Strategy, "update"): "optimiser",
    (Strategy, "update_momentum"): "optimiser",
    (loop, "_accumulate"): "metrics",
    (loop, "_read"): "a row",
    (loop, "_row"): "a row",
    (loop, "evaluate"): EVALUATION,
}


class Like(NamedTuple):
    """In place of a tensor its shape, strides and type."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, value: Any) -> Any:
        is_tensor = isinstance(value, Tensor)
        return cls(tuple(value.shape), value.stride(), value.dtype) if is_tensor else value


class Clock(TorchDispatchMode):
    """CPU seconds by part and kind of operation; the calls of the floor's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: dict[tuple[str, str], float] = defaultdict(float)
        self.calls: list[tuple[Any, Any, Any]] = []
        self.parts = ["rest of the loop"]
        self.since = time.thread_time()

    def _book(self, kind: str) -> None:
        now = time.thread_time()
        self.spent[self.parts[-1], kind] += now - self.since
        self.since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._book("rest")
        inside = EVALUATION in self.parts  # whose parts are not those of a step
        self.parts.append(EVALUATION if inside else name)
        try:
            yield
        finally:
            self._book("rest")
            self.parts.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._book("rest")
        found = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        kinds = [kind for kind, starts in KINDS.items() if name.startswith(starts)]
        self._book((kinds or ["elementwise"])[0])
        if kinds and kinds[0] in FLOOR and EVALUATION not in self.parts:
            # the tensors themselves would keep all memory of the step
            self.calls.append((func, *(_tree_of_tuples(value) for value in (args, kwargs or {}))))
            self.since = time.thread_time()
        return found

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Book the time of a function to a part."""
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(part):
                return function(*args, **kwargs)

        setattr(owner, name, timed)


def _tree_of_tuples(value: Any) -> Any:
    return tree_map(Like.of, value)


def seconds_alone(calls: list[tuple[Any, Any, Any]], rounds: int) -> float:
    """CPU seconds of these calls on tensors of random numbers, the median of some rounds."""
    made: dict[Like, Tensor] = {}

    def tensor(value: Any) -> Any:
        if not isinstance(value, Like):
            return value
        if value not in made:
            made[value] = torch.empty_strided(*value[:2], dtype=value.dtype).normal_()
        return made[value]

    def called() -> float:
        spent = 0.0
        for func, args, kwargs in calls:
            args, kwargs = (
                tree_map(tensor, value, is_leaf=lambda x: isinstance(x, Like))
                for value in (args, kwargs)
            )
            before = time.thread_time()
            func(*args, **kwargs)
            spent += time.thread_time() - before
        return spent

    called()
    return statistics.median(called() for _ in range(rounds))


def measure(given: dict[str, str], recipe: str, folder: str) -> dict[str, float]:
    """Milliseconds of a step by part, in this process; "floor", "floor within" and "whole"."""
    steps = int(given["steps"])
    options = [f"recipe={recipe}", f"data.path={folder}", f"data.size={given['size']}"]
    options += [f"model={given['model']}", f"optim.batch={given['batch']}"]
    options += [f"compute.batch={given['batch']}", "compute.workers=0", "compute.threads=1"]
    options += ["compute.precision=float32", "eval.collapse=null", "eval.knn=false"]
    with tempfile.TemporaryDirectory() as out:
        run = Run(resolve([*options, f"out={out}", "name=run"]))
        with session(run) as current:
            job = set_up(run, current.accelerator, current.load_splits(test=False))
            train(job, 1)
            whole = train(job, steps)
            clock = Clock()
            watch(clock, job)
            train(job, steps, clock)
            before = time.thread_time()
            checkpoint.save(run.checkpoints, 1, job.state.save(), 1)
            saving = time.thread_time() - before
            alone = seconds_alone(clock.calls[: len(clock.calls) // steps], steps)
    times = {
        EVALUATION: 1 / job.recipe.eval.every,
        "a row": 1 / job.recipe.log.every,
    }
    found: dict[str, float] = defaultdict(float)
    for (part, kind), spent in clock.spent.items():
        name = f"{part}: {kind}" if part in DIVIDED else part
        found[name] += 1000 * spent * times.get(part, 1 / steps)
        if kind in FLOOR and part in (*DIVIDED, "embedding, forward"):
            found["floor within"] += 1000 * spent / steps
    found["checkpoint"] = 1000 * saving / job.recipe.checkpoint.every
    return found | {"floor": 1000 * alone, "whole": 1000 * whole / steps}


def watch(clock: Clock, job: TrainingJob) -> None:
    """Book the time of this project's functions to their parts."""
    parts = dict(PARTS)
    if target := getattr(job.objective, "target", None):
        parts |= {(target, name): "truth and loss" for name in ("ground_truth", "metrics")}
        parts[job.objective, "sample_corruption"] = "corruption"
    for (owner, name), part in parts.items():
        clock.wrap(owner, name, part)


def train(job: TrainingJob, steps: int, clock: Clock | None = None) -> float:
    """CPU seconds of steps of the training loop; with a clock the held-out evaluation follows."""
    job.state.step = 0
    given = (job.splits.train, job.recipe.data, job.batch_layout, 0, 0, steps, 0)
    batches = loaders.training_loader(*given, compared_views(job.recipe))
    settings = dataclasses.replace(loop_settings(job.recipe), steps=steps, log_every=steps)
    evaluators = [loop.Scheduled(job.held_out, steps)] if clock else []
    with clock or nullcontext():
        before = time.thread_time()
        loop.train(job.state, batches, settings, evaluators)
        return time.thread_time() - before


def summarized(found: list[dict[str, float]]) -> dict[str, Any]:
    """Of all processes: the floor and whole steps in ms, and all over the floor of the same one."""
    over = {
        name: spread([one[name] / one["floor"] for one in found])
        for name in found[0]
        if name != "floor"
    }
    order = sorted(over.items(), key=lambda pair: -pair[1]["median"])
    ms = {name: spread([one[name] for one in found]) for name in ("floor", "whole")}
    return {"ms": ms, "over floor": dict(order)}


def main() -> None:
    given = given_options(DEFAULTS, sys.argv[1:])
    origin = {"load": round(os.getloadavg()[0], 1), "commit": commit()}
    origin |= {key: int(given[key]) for key in ("steps", "processes")}
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = str(Path(given["data"]) / "tinyimagenet")
        if given["images"] == "photographs":
            write(photographs(Path(given["data"]), PHOTOGRAPHS), Path(made))
            folder = str(Path(made) / "files")
        for recipe in given["recipes"].split(","):
            with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
                turns = range(int(given["processes"]))
                found = [pool.submit(measure, given, recipe, folder).result() for _ in turns]
            case = ", ".join(given[key] for key in ("images", "model", "size", "batch"))
            report[f"{recipe}, {case}"] = origin | summarized(found)
    finish(report | {"threads": 1}, "parts.json", given["save"] == "true", [torch, timm])


if __name__ == "__main__":
    main()
