"""Runs that are made, killed, waited for and compared."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import ssl_vit
from helpers.launching import Process, launch_ranks, outcome
from helpers.options import altered
from helpers.resolving import resolve
from ssl_vit.callbacks import Callback, Row
from ssl_vit.jobs import train as train_job
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


@contextmanager
def with_callbacks(*more: Callback) -> Iterator[None]:
    """Runs have these as well."""
    callbacks = train_job._callbacks
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train_job, "_callbacks", lambda job: [*callbacks(job), *more])
        yield


def cut_off(words: list[str], step: int) -> Path:
    """The folder of a run that was killed after that step."""
    with with_callbacks(Killer(step)), pytest.raises(Killed):
        run(words)
    return Run(resolve(words)).folder


def assert_goes_on_exactly(words: list[str], *steps: int) -> Run:
    """A run, which the same one that is killed after each of these steps ends as."""
    whole, killed = run(altered(words, "name=whole")), altered(words, "name=killed")
    for step in steps:
        cut_off(killed, step)
    assert_same_end(whole.folder, run(killed).folder)
    return whole


def result(folder: Path) -> dict[str, Any]:
    """The content of result.json."""
    return json.loads((folder / "result.json").read_text())


def evaluated_on_one_and_two(words: list[str], out: Path) -> list[dict[str, Any]]:
    """result.json of an evaluation on one process, and on two."""
    ssl_vit.evaluate(altered(words, "name=one"))
    two = altered(words, "name=two", "compute.batch=8")
    statuses, outputs = outcome(launch_ranks(2, "tools/evaluate.py", *two))
    assert statuses == [0, 0], outputs
    return [result(out / name) for name in ("one", "two")]


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
