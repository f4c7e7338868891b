"""The first minutes on a GPU, in one call: what is right, how fast a step is, what whole runs do.

    python benchmarks/gpu.py out=FOLDER                      (FOLDER: $OUT, else runs/gpu)
    python benchmarks/gpu.py out=FOLDER only=vit_s16,corruption limit=480
    python benchmarks/gpu.py out=FOLDER images=CIFAR10       (a folder with its train shard, train-*.parquet)
    python benchmarks/gpu.py device=cpu                      (rehearsal, tiny)

In this order: corruption and targets on the device and compiled against those of the CPU, losses and
gradients in float32 and bfloat16; a step of MPP with S/16 and B/16, of MAE with B/16, of DINO with
S/16 and ten crops (images/s, memory, share of the device's rate; beside the same network in a plain
loop, and for MPP the matrix products and the attention alone); a run that reads JPEGs of 500 x 375
(its share of waiting for data); with `images=` a run of MAE with ViT-Ti/4 and its k-NN line; runs by
the tools (no synchronisation between logging steps, nothing recompiled, repeated, stopped and
resumed, ZeRO 2 and FSDP2 on one process). Crops are made on the CPU, whatever the device. `only=`
takes the checks with one of these texts in their names. Every result is written to FOLDER/gpu.json
at once, so that a call that is cut off leaves what it measured; a check that raises is recorded and
the next one goes on; after `limit` seconds none is begun.
"""

import dataclasses
import io
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the tools do

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file
from step import Floor, commit, passes, spread
from torch import Tensor

from ssl_vit import costs, resolve
from ssl_vit.data.batching import Batch
from ssl_vit.formatting import process_environment
from ssl_vit.jobs.session import session
from ssl_vit.jobs.setup import TrainingJob, loop_settings, set_up
from ssl_vit.models.encoder import build_backbone, build_encoder
from ssl_vit.objectives import building, corruption
from ssl_vit.objectives.base import Objective
from ssl_vit.recipe import declaration
from ssl_vit.recipe.schema import Recipe, compared_views
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


class Case(NamedTuple):
    """A step that is timed."""

    recipe: str
    model: str
    side: int  # of an image, in pixels
    batch: int
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.recipe} {self.model}, batch {self.batch}"


MAE = ("mae.width=512", "mae.depth=8", "mae.heads=16")  # He et al., 2022, figure 5
# Ten crops, and prototypes, of Caron et al., 2021: recipes/dino_s16.yaml
DINO = ("views.local=8", "views.local_size=96", "dino.prototypes=65536")
CASES = (
    Case("mpp", "vit_s16", 224, 512),
    Case("mpp", "vit_b16", 224, 256),
    Case("mae", "vit_b16", 224, 512, MAE),
    Case("dino", "vit_s16", 224, 128, DINO),
)
LOCAL = ("views.local=2", "views.local_size=16")
REHEARSAL = (
    Case("mpp", "vit_n8", 32, 32),
    Case("mae", "vit_n8", 32, 32),
    Case("dino", "vit_n8", 32, 32, LOCAL),
)
WARM_UP, TIMED, ROUNDS = 5, {"cuda": 10, "cpu": 1}, 6  # steps; fewer rounds have no 95% interval
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
from ssl_vit import resolve
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
    """The largest differences of every target's ground truths and baselines; colours are integers,
    and a teacher's features those of a network in float32."""
    batch = batch_of(64, 64)
    hidden = torch.rand(64, 16, generator=torch.Generator().manual_seed(1)) < 0.5
    found: dict[str, Any] = {}
    for name in declaration.targets():
        words = [f"target={name}", "model=vit_n8", "model.patch=16", "data.size=64"]
        recipe = resolve(["recipe=mpp", *words])
        results = []
        for place in ("cpu", device):
            torch.manual_seed(0)
            network = build_encoder(recipe.model, recipe.data)
            target = building.Settings.from_recipe(recipe).build_target(network).to(place)
            image = batch.image.to(place)
            target.fit_baselines([image])
            baselines = target.baselines(image, hidden.to(place))
            results.append([target.ground_truth(image), *baselines.values()])
        pairs = zip(*results, strict=True)
        found[name] = max(
            float((a.cpu().double() - b.cpu().double()).abs().max()) for a, b in pairs
        )
    colors = found["mean_color"] == found["grid_color"] == 0
    close = all(one < (1e-3 if name == "teacher" else 1e-5) for name, one in found.items())
    return found | {"holds": colors and close}


def gradients_are_close(name: str, device: str) -> dict[str, Any]:
    """Loss and gradients of one batch in float32 on the CPU and the device, and how far bfloat16 on
    the device is from them."""
    model, size = ("vit_s16", 224) if device == "cuda" else ("vit_n8", 32)
    recipe = resolve([f"recipe={name}", f"model={model}", f"data.size={size}"])
    batch = batch_of(16, size)._replace(loss_denominator=torch.tensor(16.0, dtype=torch.float64))

    def build() -> Objective:
        torch.manual_seed(0)
        network = build_backbone(recipe.model, recipe.data)
        objective = building.build_objective(building.Settings.from_recipe(recipe), network, 10)
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


def batch_for(recipe: Recipe) -> Batch:
    """Random images as the recipe's objective gets them: with views where it compares views."""
    count, side = recipe.optim.batch, recipe.data.size
    batch = batch_of(count, side)
    views = compared_views(recipe)
    if views is None:
        return batch
    made = {"views": batch.image[:, None].repeat(1, 2, 1, 1, 1)}
    if views.local:
        local = batch_of(count * views.local, views.local_size).image
        made["local"] = local.unflatten(0, (count, views.local))
    return batch._replace(**made)


def measure_step(case: Case, device: str) -> dict[str, Any]:
    """Milliseconds of a step of the training loop, of a plain loop of the same network and, for
    MPP, of the matrix products and the attention alone, all taking turns; images a second, and the
    share of the device's rate."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"recipe={case.recipe}", f"model={case.model}", f"data.size={case.side}"]
        words += [f"optim.batch={case.batch}", f"compute.batch={case.batch}", *case.options]
        words += [f"compute.compile={str(device == 'cuda').lower()}", "compute.precision=bfloat16"]
        words += ["compute.workers=0", f"out={folder}", "name=run"]
        run = Run(resolve(words))
        with session(run) as current:
            job = set_up(run, current.accelerator, current.load_splits(test=False))
            images = on(device, batch_for(run.recipe))
            ways = {"step": trained(job, images)}
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            milliseconds(ways["step"], WARM_UP, device)
            memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
            ways["plain loop"] = plain_loop(job, images)
            if case.recipe == "mpp":  # all tokens in all blocks: not what the others compute
                ways["floor"] = floor(run.recipe, device)
            times: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(-1, ROUNDS):
                for name, way in ways.items():
                    took = milliseconds(way, TIMED[device], device)
                    if turn >= 0:  # the first one warms up
                        times[name].append(took)
    per_second = 1000 * case.batch / statistics.median(times["step"])
    found: dict[str, Any] = {f"{name}, ms": spread(taken) for name, taken in times.items()}
    for name in list(times)[1:]:
        ratios = [a / b for a, b in zip(times["step"], times[name], strict=True)]
        found[f"step over {name}"] = spread(ratios)
    found["images/s"] = round(per_second, 1)
    found["TFLOP/s"] = round(costs.exaflop(run.recipe, 1) * per_second * 1e6, 2)
    if device == "cuda":
        found["peak memory, GiB"] = round(memory, 2)
        table = yaml.safe_load((ROOT / "ssl_vit/lab/hardware.yaml").read_text())
        name = torch.cuda.get_device_name().lower()
        for key in (key for key in ("h200", "h100") if key in name):
            found["share of the rate"] = round(found["TFLOP/s"] / table[key]["bfloat16"], 3)
    return found


Steps = Callable[[int], None]  # does so many steps


def trained(job: TrainingJob, images: Batch) -> Steps:
    """Steps of the training loop."""

    def steps(count: int) -> None:
        job.state.step = 0
        settings = dataclasses.replace(loop_settings(job.recipe), steps=count, log_every=count)
        loop.train(job.state, itertools.repeat(images), settings)

    return steps


def plain_loop(job: TrainingJob, images: Batch) -> Steps:
    """What a user would write around the same network, compiled where the run's is: forward and
    backward, the clipped norm, a fused AdamW."""
    objective, precision = job.state.strategy.prepared, job.recipe.compute.precision
    weights = [p for p in objective.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)

    def steps(count: int) -> None:
        for _ in range(count):
            with loop.autocast(precision, job.accelerator):
                loss = objective(images).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return steps


def floor(recipe: Recipe, device: str) -> Steps:
    """The matrix products and the attention of all tokens in all blocks, in bfloat16 throughout."""
    net = Floor(recipe).to(device, torch.bfloat16)
    shape = (recipe.optim.batch, recipe.patches + 1, recipe.model.width)
    x_BTD = torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
    run = passes(net, lambda: net(x_BTD).float().sum(), recipe, device)
    return lambda count: [run() for _ in range(count)] and None


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

    def from_files(self) -> dict[str, Any]:
        """MPP on JPEGs of 500 x 375 with the default number of workers: images a second of the last
        rows, and the share of the time in which the step waited for them."""
        cuda = self.device == "cuda"
        folder = self.out / "photographs"
        size = write_photographs(folder / "train" / "one", 4096 if cuda else 32)
        own = {"data.path": folder, "log.every": 10, "eval.every": 40, "optim.steps": 40}
        own |= {"checkpoint.every": 40}
        if cuda:
            own |= {"model": "vit_s16", "data.size": 224, "optim.batch": 512}
            own |= {"compute.compile": "true"}
        rows = read_rows(self.train("from_files", own))
        rates = [row["images_per_s"] for row in rows if "images_per_s" in row][-2:]
        waits = [row["data_wait"] for row in rows if "data_wait" in row][-2:]
        return {"images/s": rates, "data wait": waits, "bytes an image": size}

    def learns(self, images: str) -> dict[str, Any]:
        """MAE with ViT-Ti/4 on real images, a fifth of them kept apart for the test, and its k-NN
        beside untrained weights: one run, so no claim."""
        own = {"recipe": "mae", "model": "vit_ti4", "data.size": 32, "data.path": images}
        own |= {"data.test": 0.2, "log.every": 100, "checkpoint.every": 10_000}
        steps = 2000 if self.device == "cuda" else 20
        own |= {"optim.steps": steps, "optim.warmup": steps // 10, "optim.batch": 512}
        own |= {"eval.every": steps // 2, "eval.images": 2000, "compute.compile": "true"}
        if self.device == "cpu":
            own |= {"model": "vit_n4", "optim.batch": 32, "compute.compile": "false"}
        result = json.loads((self.train("learns", own) / "result.json").read_text())
        knn = {
            " ".join(filter(None, ("knn", record.get("subject")))): record
            for record in result["measurements"]
            if record["metric"] == "knn"
        }
        return {"seconds of training": result["seconds"], "steps": steps} | knn

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


def write_photographs(folder: Path, count: int) -> int:
    """So many JPEGs of 500 x 375, ImageNet's most frequent size: large shapes with fine detail over
    them, in about as many bytes as its images have (110 kB). Returns the mean number of bytes."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(i: int) -> int:
        random = np.random.default_rng(i)
        layers = []
        for width, height in ((20, 15), (250, 188)):
            pixels = random.integers(256, size=(height, width, 3), dtype=np.uint8)
            layers.append(Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC))
        file = io.BytesIO()
        Image.blend(*layers, 0.35).save(file, "JPEG", quality=90)
        (folder / f"{i:05d}.jpg").write_bytes(file.getvalue())
        return len(file.getvalue())

    with ThreadPoolExecutor() as pool:
        return round(statistics.mean(pool.map(write, range(count))))


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in read_rows(folder) if "loss" in row]


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


def find_checks(device: str, out: Path, images: str = "") -> dict[str, Check]:
    """All, by name, in their order; small ones on a CPU. `images` names a folder of real ones."""
    checks: dict[str, Check] = {
        "corruption": lambda: corruption_is_equal(device),
        "targets": lambda: targets_are_equal(device),
    }
    for name in OBJECTIVES:
        checks[f"gradients {name}"] = lambda name=name: gradients_are_close(name, device)
    for case in CASES if device == "cuda" else REHEARSAL:
        checks[f"step {case}"] = lambda case=case: measure_step(case, device)
    runs = Runs(device, out / "runs")
    checks["from files"] = runs.from_files
    if images:
        checks["learns"] = lambda: runs.learns(images)
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
    every = find_checks(device, out, given.get("images", "")).items()
    checks = {name: check for name, check in every if any(text in name for text in wanted)}
    holds = run_checks(checks, out / "gpu.json", device, float(given.get("limit", 450)))
    print(f"{out / 'gpu.json'}: {'all hold' if holds else 'NOT all hold'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
