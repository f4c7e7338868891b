"""Runs that are made, killed, waited for and compared."""

import json
import os
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.launching import Process
from ssl_vit.callbacks import Callback, Row
from ssl_vit.jobs import train as train_job
from ssl_vit.recipe.load import resolve
from ssl_vit.runs.folder import Run

SLOW = ("images_per_s", "data_wait", "memory_gib", "seconds")


class Killed(BaseException):
    """Stands for SIGKILL inside one process: nothing catches it."""


class Killer(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, step: int) -> None:
        if step == self.step:
            raise Killed


class Sends(Callback):
    def __init__(self, number: int, step: int) -> None:
        self.number, self.step = number, step

    def on_step(self, step: int) -> None:
        if step == self.step:
            os.kill(os.getpid(), self.number)


def run(words: list[str]) -> Run:
    done = Run(resolve(words))
    done.reconcile()
    train_job.train(done)
    return done


def rows(folder: Path) -> list[Row]:
    """metrics.jsonl without what depends on the clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in SLOW} for line in lines]


def assert_same_end(a: Path, b: Path) -> None:
    """Rows and weights of two runs, bit for bit."""
    assert rows(a) == rows(b)
    for name in ("model", "heads"):
        one, other = (load_file(f / "export" / f"{name}.safetensors") for f in (a, b))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[k], other[k]) for k in one)


def wait_for_rows(process: Process, folder: Path) -> None:
    metrics, end = folder / "metrics.jsonl", time.monotonic() + 300
    while not (metrics.exists() and metrics.read_text().count("\n") > 2):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)


def assert_alike(one: list[dict], other: list[dict], rel: float = 1e-6) -> None:
    assert [row["step"] for row in one] == [row["step"] for row in other]
    for a, b in zip(one, other, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=rel), a["step"]
        assert a.get("corrupted") == b.get("corrupted")
