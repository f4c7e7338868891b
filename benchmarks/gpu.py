"""The first minutes on a GPU, in one call: what is right, how fast a step is, what whole runs do.

    python benchmarks/gpu.py out=FOLDER                      (FOLDER: $OUT, else runs/gpu)
    python benchmarks/gpu.py out=FOLDER only=vit_s16,corruption limit=540
    python benchmarks/gpu.py device=cpu                      (rehearsal, tiny)

In this order: corruption and targets on the device and compiled against those of the CPU, losses and
gradients in float32 and bfloat16; a step of masked patch prediction with S/16 and B/16 (images/s,
memory, share of the device's rate); runs by the tools (no synchronisation between logging steps,
nothing recompiled, repeated, stopped and resumed, ZeRO 2 and FSDP2 on one process). `only=` takes the
checks with one of these texts in their names. Every result is written to FOLDER/gpu.json at once, so
that a call that is cut off leaves what it measured; a check that raises is recorded and the next one
goes on; after `limit` seconds none is begun.
"""

import dataclasses
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the tools do

import torch
import yaml
from safetensors.torch import load_file
from step import commit, spread
from torch import Tensor

from ssl_vit import costs
from ssl_vit.data.batching import Batch
from ssl_vit.formatting import process_environment
from ssl_vit.jobs.session import session
from ssl_vit.jobs.setup import loop_settings, set_up
from ssl_vit.models.encoder import build_backbone
from ssl_vit.objectives import building, corruption
from ssl_vit.objectives.base import Objective
from ssl_vit.recipe import declaration
from ssl_vit.recipe.load import resolve
from ssl_vit.runs.folder import Run
from ssl_vit.training import loop

ROOT = Path(__file__).resolve().parent.parent
WAYS = [
    {"shape": "patches", "side": 1, "source": "image"},
    {"shape": "patches", "side": 2, "source": "batch"},
    {"shape": "blocks", "side": 1, "source": "image"},
]
OBJECTIVES = ("mpp", "simmim", "supervised", "joint")
# Largest relative differences of float32: products are summed in another order
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-3
# model -> image side and batch; the second size of each fits where the first does not
CASES = {
    ("vit_s16", 1024): 224,
    ("vit_s16", 512): 224,
    ("vit_b16", 512): 224,
    ("vit_b16", 256): 224,
}
REHEARSAL = {("vit_n8", 32): 32}
WARM_UP, TIMED, ROUNDS = 5, 10, 6  # steps; fewer rounds have no 95% interval
STEPS = 20  # of a run
RUN = {"recipe": "mpp", "optim.steps": STEPS, "optim.warmup": 2, "log.every": 1, "eval.every": 10}
RUN |= {"eval.images": 256, "checkpoint.every": 10, "compute.compile": "false"}
SMALL = {"model": "vit_s8", "data.size": 64, "optim.batch": 256}
TINY = {"model": "vit_n8", "data.size": 32, "optim.batch": 32}
# In a run of its own: what the steps between rows may not do
WATCHED = """
import json, sys
import torch
from ssl_vit import callbacks
from ssl_vit.recipe.load import resolve
from ssl_vit.jobs import train
from ssl_vit.runs.folder import Run

out, first, last, *options = sys.argv[1:]
counters = torch._dynamo.utils.counters
graphs = {}

class Watch(callbacks.Callback):
    def on_step(self, step):
        graphs[step] = counters["stats"]["unique_graphs"]
        if torch.cuda.is_available():
            within = int(first) <= step < int(last)
            torch.cuda.set_sync_debug_mode("error" if within else "default")

usual = train._callbacks
train._callbacks = lambda job: [*usual(job), Watch()]
run = Run(resolve(options))
run.reconcile()
train.train(run)
with open(out, "w") as file:
    json.dump({"graphs": graphs, "breaks": sum(counters["graph_break"].values())}, file)
"""
Check = Callable[[], dict[str, Any]]


def batch_of(count: int, size: int) -> Batch:
    """Random images and labels, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    label = torch.randint(10, (count,), generator=generator)
    key = torch.randint(2**62, (count,), generator=generator)
    return Batch(image, label, torch.arange(count), key)


def on(device: str, batch: Batch) -> Batch:
    return batch.map(lambda values: values.to(device))


def corruption_is_equal(device: str) -> dict[str, Any]:
    """Drawn on the CPU, on the device, and on the device compiled."""
    key = batch_of(256, 8).key
    found: dict[str, Any] = {}
    for way in WAYS:
        expected = corruption.sample(key, 196, 0.5, **way)
        for how, sample in (
            ("", corruption.sample),
            (" compiled", torch.compile(corruption.sample)),
        ):
            made = sample(key.to(device), 196, 0.5, **way)
            pairs = zip(expected, made, strict=True)
            found[f"{way}{how}"] = all(torch.equal(a, b.cpu()) for a, b in pairs)
    return found | {"holds": all(found.values())}


def targets_are_equal(device: str) -> dict[str, Any]:
    """The largest differences of every target's ground truths and baselines; colours are integers."""
    batch = batch_of(64, 64)
    hidden = torch.rand(64, 16, generator=torch.Generator().manual_seed(1)) < 0.5
    found: dict[str, Any] = {}
    for name, declared in declaration.targets().items():
        results = []
        for place in ("cpu", device):
            target = declared.build(16, [0.5] * 3, [0.5] * 3).to(place)
            image = batch.image.to(place)
            target.fit_baselines([image])
            baselines = target.baselines(image, hidden.to(place))
            results.append([target.ground_truth(image), *baselines.values()])
        pairs = zip(*results, strict=True)
        found[name] = max(
            float((a.cpu().double() - b.cpu().double()).abs().max()) for a, b in pairs
        )
    colors = found["mean_color"] == found["grid_color"] == 0
    return found | {"holds": colors and max(found.values()) < 1e-5}


def gradients_are_close(name: str, device: str) -> dict[str, Any]:
    """Loss and gradients of one batch in float32 on the CPU and the device, and how far bfloat16 on
    the device is from them."""
    model, size = ("vit_s16", 224) if device == "cuda" else ("vit_n8", 32)
    recipe = resolve([f"recipe={name}", f"model={model}", f"data.size={size}"])
    batch = batch_of(16, size)._replace(loss_denominator=torch.tensor(16.0, dtype=torch.float64))

    def build() -> Objective:
        torch.manual_seed(0)
        network = build_backbone(recipe.model, recipe.data)
        objective = building.build(building.Settings.of(recipe), network, 10)
        for key, weight in objective.named_parameters():
            if "head" in key:  # begins at zero, which would leave the encoder without a gradient
                torch.nn.init.normal_(weight, std=0.02)
        return objective

    loss, gradients = loss_and_gradients(build(), batch)
    found: dict[str, Any] = {"loss": loss}
    for precision in ("float32", "bfloat16"):
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            there, theirs = loss_and_gradients(build().to(device), on(device, batch))
        found[f"{precision}, loss, relative"] = abs(there / loss - 1)
        found[f"{precision}, gradients, relative"] = max(
            float((theirs[key].cpu() - value).norm() / value.norm().clamp(min=1e-12))
            for key, value in gradients.items()
        )
    close = found["float32, loss, relative"] < LOSS_TOLERANCE
    return found | {"holds": close and found["float32, gradients, relative"] < GRADIENT_TOLERANCE}


def loss_and_gradients(objective: Objective, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    loss = objective(batch).loss
    loss.backward()
    weights = objective.named_parameters()
    return float(loss.detach()), {n: w.grad.float() for n, w in weights if w.grad is not None}


def measure_step(model: str, side: int, batch: int, device: str) -> dict[str, Any]:
    """Milliseconds of a step of the training loop, images a second, and the share of the device's
    rate."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"model={model}", f"data.size={side}", f"optim.batch={batch}", "recipe=mpp"]
        words += [f"compute.batch={batch}", f"compute.compile={str(device == 'cuda').lower()}"]
        words += ["compute.precision=bfloat16", "compute.workers=0", f"out={folder}", "name=run"]
        run = Run(resolve(words))
        with session(run) as current:
            splits = current.load_splits(test=False)
            job = set_up(run, current.accelerator, splits)
            images = on(device, batch_of(batch, side))

            def steps(count: int) -> None:
                job.state.step = 0
                settings = dataclasses.replace(
                    loop_settings(job.recipe), steps=count, log_every=count
                )
                batches = itertools.repeat(images)
                loop.train(job.state, batches, settings)

            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            milliseconds(steps, WARM_UP, device)
            times = [milliseconds(steps, TIMED, device) for _ in range(ROUNDS)]
    per_second = 1000 * batch / statistics.median(times)
    found: dict[str, Any] = {
        "step, ms": spread(times),
        "images/s": round(per_second, 1),
        "TFLOP/s": round(costs.exaflop(run.recipe, 1) * per_second * 1e6, 2),
    }
    if device == "cuda":
        found["peak memory, GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        table = yaml.safe_load((ROOT / "ssl_vit/lab/hardware.yaml").read_text())
        name = torch.cuda.get_device_name().lower()
        for key in (key for key in ("h200", "h100") if key in name):
            found["share of the rate"] = round(found["TFLOP/s"] / table[key]["bfloat16"], 3)
    return found


def milliseconds(steps: Callable[[int], None], count: int, device: str) -> float:
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


class Runs:
    """Runs of the tools in one folder, with the same options."""

    def __init__(self, device: str, out: Path) -> None:
        self.device = device
        self.out = out
        self.options = RUN | (SMALL if device == "cuda" else TINY)
        hidden = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"} if device == "cpu" else {}
        self.environment = process_environment() | hidden
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)

    def words(self, name: str, own: dict[str, Any]) -> list[str]:
        return [
            f"{k}={v}" for k, v in (self.options | own | {"out": self.out, "name": name}).items()
        ]

    def start(self, *command: str) -> subprocess.Popen:
        where = {"cwd": ROOT, "env": self.environment, "text": True}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([sys.executable, *command], **where, **pipes)

    def finish(self, process: subprocess.Popen) -> None:
        try:
            output, _ = process.communicate(timeout=400)
        finally:
            process.kill()  # where it took longer
        if process.returncode:
            raise RuntimeError(f"status {process.returncode}: {output[-400:]}")

    def train(self, name: str, own: dict[str, Any] | None = None) -> Path:
        """The folder of a finished run; made where it is not there yet."""
        if not (self.out / name / "result.json").exists():
            words = self.words(name, own or {})
            self.finish(self.start("-m", "ssl_vit", "pretrain", *words))
        return self.out / name

    def watched(self, name: str, within: tuple[int, int], own: dict[str, Any]) -> dict[str, Any]:
        facts = self.out / f"{name}.json"
        given = [str(facts), *map(str, within), *self.words(name, own)]
        self.finish(self.start("-c", WATCHED, *given))
        return json.loads(facts.read_text())

    def no_synchronisation(self) -> dict[str, Any]:
        """Five steps without a row between them, in which any synchronisation is an error."""
        self.watched("no_sync", (3, 8), {"log.every": 10, "compute.workers": 2})
        return {"holds": True, "on": self.device}

    def nothing_recompiled(self) -> dict[str, Any]:
        """Graphs after step 2 and at the end, with evaluations between; and the losses against those
        of the run that is not compiled."""
        facts = self.watched("compiled", (0, 0), {"compute.compile": "true"})
        graphs = [facts["graphs"][step] for step in ("2", str(STEPS))]
        found = {"graphs": graphs, "breaks": facts["breaks"]}
        found["loss, relative"] = relative(self.train("once"), self.out / "compiled")
        return found | {"holds": graphs[0] == graphs[1] and facts["breaks"] == 0}

    def twice(self) -> dict[str, Any]:
        """Not a fault where it fails: CUDA adds gradients of shared patches in no fixed order."""
        return apart(self.train("once"), self.train("twice"))

    def resumed(self) -> dict[str, Any]:
        """Stopped by SIGTERM after step 5 or later; against the unbroken run."""
        whole, log = self.train("once"), self.out / "resumed" / "metrics.jsonl"
        process = self.start("-m", "ssl_vit", "pretrain", *self.words("resumed", {}))
        while process.poll() is None and (not log.exists() or log.read_text().count("\n") < 5):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=400)
        facts = {"status": process.returncode, "stopped after row": log.read_text().count("\n")}
        return apart(whole, self.train("resumed")) | facts

    def launched(self, way: str) -> dict[str, Any]:
        """One process under a launcher's configuration, against the plain run's losses."""
        whole = self.train("once")
        how = ["--config_file", f"launch/{way}.yaml", "--num_processes", "1"]
        how += ["--cpu"] if self.device == "cpu" else []
        tool = ["tools/pretrain.py", *self.words(way, {})]
        self.finish(self.start("-m", "accelerate.commands.launch", *how, *tool))
        record = json.loads((self.out / way / "environment.json").read_text())["sharding"]
        sharded = self.device == "cpu" or record["strategy"] != "none"  # one CPU has no shards
        worst = relative(whole, self.out / way)
        found = {"loss, relative": worst, "strategy": record["strategy"]}
        return found | {"holds": sharded and worst < 1e-3}


def losses(folder: Path) -> list[float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def relative(one: Path, other: Path) -> float:
    return max(abs(a / b - 1) for a, b in zip(losses(one), losses(other), strict=True))


def apart(one: Path, other: Path) -> dict[str, Any]:
    """How far two runs are from the same, bit for bit."""
    whole, theirs = (load_file(folder / "export" / "model.safetensors") for folder in (one, other))
    return {
        "losses, relative": relative(one, other),
        "weights": max(float((whole[name] - theirs[name]).abs().max()) for name in whole),
        "equal": all(torch.equal(whole[name], theirs[name]) for name in whole),
    }


def find_checks(device: str, out: Path) -> dict[str, Check]:
    """All, by name, in their order; small ones on a CPU."""
    checks: dict[str, Check] = {
        "corruption": lambda: corruption_is_equal(device),
        "targets": lambda: targets_are_equal(device),
    }
    for name in OBJECTIVES:
        checks[f"gradients {name}"] = lambda name=name: gradients_are_close(name, device)
    for (model, batch), side in (CASES if device == "cuda" else REHEARSAL).items():
        case = (model, side, batch, device)
        checks[f"step {model}, batch {batch}"] = lambda case=case: measure_step(*case)
    runs = Runs(device, out / "runs")
    return checks | {
        "no synchronisation": runs.no_synchronisation,
        "nothing recompiled": runs.nothing_recompiled,
        "the same run twice": runs.twice,
        "stopped and resumed": runs.resumed,
        "ZeRO 2 on one process": lambda: runs.launched("zero2"),
        "FSDP2 on one process": lambda: runs.launched("fsdp2"),
    }


def run_checks(checks: dict[str, Check], path: Path, device: str, limit: float) -> bool:
    """Run the checks in order and write their results; whether all of them ran and hold."""
    begun = time.perf_counter()
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    report: dict[str, Any] = {"device": name, "torch": torch.__version__, "commit": commit()}
    report |= {"cpus": len(os.sched_getaffinity(0)), "results": {}}
    for name, check in checks.items():
        start = time.perf_counter()
        if start - begun > limit:
            found: dict[str, Any] = {"holds": False, "skipped": "no time left"}
        else:
            try:
                found = check()
            except Exception as error:  # the next check goes on
                found = {"holds": False, "error": f"{type(error).__name__}: {str(error)[:500]}"}
                found["where"] = traceback.format_exc().splitlines()[-6:]
        found["seconds"] = round(time.perf_counter() - start, 1)
        report["results"][name] = found
        path.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{name}: {json.dumps(found)[:400]}", flush=True)
    return all(found.get("holds", True) for found in report["results"].values())


def main(words: Iterable[str]) -> int:
    given = dict(word.split("=", 1) for word in words)
    device = given.get("device", "cuda")
    out = Path(given.get("out") or os.environ.get("OUT") or "runs/gpu").resolve()
    wanted = given.get("only", "").split(",")
    every = find_checks(device, out).items()
    checks = {name: check for name, check in every if any(text in name for text in wanted)}
    holds = run_checks(checks, out / "gpu.json", device, float(given.get("limit", 540)))
    print(f"{out / 'gpu.json'}: {'all hold' if holds else 'NOT all hold'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
