"""Whole runs on a device by the tools: what they do beside the arithmetic."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from gpu import ROOT, Check
from safetensors.torch import load_file

STEPS = 20
LIMIT = 400  # seconds of a process
COMMON = {
    "recipe": "mpp",
    "optim.steps": str(STEPS),
    "optim.warmup": "2",
    "log.every": "1",
    "eval.every": "10",
    "eval.images": "256",
    "checkpoint.every": "10",
    "compute.compile": "false",
}
TINY = {"model": "vit_n8", "data.size": "32", "optim.batch": "32"}
SMALL = {"model": "vit_s8", "data.size": "64", "optim.batch": "256"}
# In a run of its own: what the steps between rows may not do
WATCHED = """
import json, sys
import torch
from ssl_vit import callbacks
from ssl_vit.config.resolve import resolve
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
breaks = sum(counters["graph_break"].values())
with open(out, "w") as file:
    json.dump({"graphs": graphs, "breaks": breaks}, file)
"""


def checks(device: str, out: Path, models: list[str] | None) -> dict[str, Check]:
    size = SMALL if device == "cuda" else TINY
    runs = Runs(device, out / "runs", COMMON | size)
    return {
        "no synchronisation": runs.no_synchronisation,
        "nothing recompiled": runs.nothing_recompiled,
        "the same run twice": lambda: runs.twice({}),
        "the same run twice, no random patches": lambda: runs.twice(
            {"corruption.mask": "0.9", "corruption.random": "0"}
        ),
        "stopped and resumed": runs.resumed,
        "ZeRO 2 on one process": lambda: runs.launched("zero2"),
        "FSDP2 on one process": lambda: runs.launched("fsdp2"),
        "memory": runs.memory,
    }


class Runs:
    """Runs in one folder with the same options."""

    def __init__(self, device: str, out: Path, options: dict[str, str]) -> None:
        self.device = device
        self.out = out
        self.options = options
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)

    def arguments(self, name: str, own: dict[str, str]) -> list[str]:
        options = self.options | own | {"out": str(self.out), "name": name}
        return [f"{key}={value}" for key, value in options.items()]

    def environment(self) -> dict[str, str]:
        hidden = {}
        if self.device == "cpu":
            hidden = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
        return os.environ | hidden | {"PYTHONPATH": str(ROOT)}

    def start(self, command: list[str]) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, process: subprocess.Popen, expected: int = 0) -> None:
        output, _ = process.communicate(timeout=LIMIT)
        if process.returncode != expected:
            raise RuntimeError(f"status {process.returncode}: {output[-400:]}")

    def train(self, name: str, own: dict[str, str] | None = None) -> Path:
        """The folder of a finished run; made where it is not there yet."""
        folder = self.out / name
        if not (folder / "result.json").exists():
            self.finish(self.start(["-m", "ssl_vit", "pretrain", *self.arguments(name, own or {})]))
        return folder

    def watched(self, name: str, first: int, last: int, own: dict[str, str]) -> dict[str, Any]:
        facts = self.out / f"{name}.json"
        command = ["-c", WATCHED, str(facts), str(first), str(last), *self.arguments(name, own)]
        self.finish(self.start(command))
        return json.loads(facts.read_text())

    def no_synchronisation(self) -> dict[str, Any]:
        """Five steps without a row between them, in which any synchronisation is an error."""
        rare = {"log.every": "10", "compute.workers": "2"}
        self.watched("no_sync", 3, 8, rare)
        return {"holds": True, "steps": "4 to 8", "on": self.device}

    def nothing_recompiled(self) -> dict[str, Any]:
        """Graphs after step 2 and at the end, with evaluations between: all compiled at once."""
        facts = self.watched("compiled", 0, 0, {"compute.compile": "true"})
        graphs = {int(step): count for step, count in facts["graphs"].items()}
        found = {
            "after step 2": graphs[2],
            "at the end": graphs[STEPS],
            "breaks": facts["breaks"],
        }
        return found | {"holds": graphs[2] == graphs[STEPS] and facts["breaks"] == 0}

    def twice(self, own: dict[str, str]) -> dict[str, Any]:
        """Not a fault where it fails: CUDA adds gradients of shared patches in no fixed order."""
        names = [f"{'twice' if not own else 'twice_masked'}_{number}" for number in (1, 2)]
        return apart(*(self.train(name, own) for name in names))

    def resumed(self) -> dict[str, Any]:
        """Stopped by SIGTERM after step 5 or later; against the unbroken run."""
        whole = self.train("twice_1")
        name = "resumed"
        process = self.start(["-m", "ssl_vit", "pretrain", *self.arguments(name, {})])
        log = self.out / name / "metrics.jsonl"
        while process.poll() is None and (
            not log.exists() or len(log.read_text().splitlines()) < 5
        ):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT)
        stopped = process.returncode
        steps = len(log.read_text().splitlines())
        return apart(whole, self.train(name)) | {"status": stopped, "stopped after row": steps}

    def launched(self, way: str) -> dict[str, Any]:
        """One process under a launcher's configuration, against the plain run's losses."""
        whole = losses(self.train("twice_1"))
        file = str(ROOT / "launch" / f"{way}.yaml")
        launcher = ["-m", "accelerate.commands.launch", "--config_file", file]
        launcher += ["--num_processes", "1", *(["--cpu"] if self.device == "cpu" else [])]
        tool = [str(ROOT / "tools" / "pretrain.py"), *self.arguments(way, {})]
        self.finish(self.start([*launcher, *tool]))
        theirs = losses(self.out / way)
        worst = max(abs(a / b - 1) for a, b in zip(whole, theirs, strict=True))
        recorded = json.loads((self.out / way / "environment.json").read_text())["sharding"]
        sharded = self.device == "cpu" or recorded["strategy"] != "none"  # one CPU has no shards
        return {
            "holds": sharded and worst < 1e-3,
            "loss, relative": worst,
            "strategy": recorded["strategy"],
        }

    def memory(self) -> dict[str, Any]:
        """The peak of a run against what tools/plan.py expects."""
        rows = (self.train("twice_1") / "metrics.jsonl").read_text().splitlines()
        peak = max(json.loads(row)["memory_gib"] for row in rows if "memory_gib" in row)
        options = {key: value for key, value in self.options.items() if key != "log.every"}
        arguments = [f"{key}={value}" for key, value in options.items()]
        batch = f"compute.batch={self.options['optim.batch']}"
        command = [sys.executable, "-m", "ssl_vit", "plan", *arguments, batch, "--json"]
        made = subprocess.run(
            command, cwd=ROOT, env=self.environment(), capture_output=True, text=True, check=True
        )
        planned = json.loads(made.stdout.strip().splitlines()[-1])
        expected = sum(planned["tensor_bytes"]["DDP"].values()) / 2**30
        return {"peak, GiB": peak, "planned, GiB": round(expected, 3)}


def losses(folder: Path) -> list[float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def apart(one: Path, other: Path) -> dict[str, Any]:
    """The largest difference of two runs' losses and weights; zero if they are bit for bit the
    same."""
    pairs = zip(losses(one), losses(other), strict=True)
    weights = [load_file(folder / "export" / "model.safetensors") for folder in (one, other)]
    return {
        "losses": max(abs(a - b) for a, b in pairs),
        "weights": max(
            float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0]
        ),
        "equal": all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0]),
    }
