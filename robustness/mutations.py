"""Altered files of runs and studies, read by every tool that reads them: an answer in one line, or
the right result.

    python robustness/mutations.py count=750 seed=0

A finished run, a stopped one and a study are made once. Each case copies one of them, alters one
file (flipped bits, torn, emptied, values of other types, nested, huge, missing or strange keys,
bytes that are no UTF-8, deep YAML and JSON, and of checkpoints states whose manifest agrees with
them) and lets a tool read it in a forked child. A wrong result is a run that went on to other
weights than the unbroken run's, or told other numbers than its file holds. One JSON object comes
out.
"""

import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from alterations import alter
from forked import ACCEPTED, ANSWERED, HANG, TRACEBACK, outcome
from fuzz import MAINS
from safetensors.torch import load_file

from ssl_vit.hub import push

WORDS = [
    *(
        "recipe=mpp",
        "data.size=16",
        "model.patch=4",
        "model.width=32",
        "model.depth=1",
        "model.heads=2",
        "model.mlp=64",
    ),
    *(
        "optim.steps=4",
        "optim.warmup=1",
        "optim.batch=8",
        "checkpoint.every=2",
        "eval.every=50",
        "eval.images=8",
        "log.every=1",
    ),
    *(
        "log.tensorboard=false",
        "compute.precision=float32",
        "compute.threads=1",
        "compute.compile=false",
        "name=run",
    ),
    "checkpoint.background=false",
]
PROBE = [
    "recipe=evaluate",
    "init=runs/run",
    "probe.measures=[knn]",
    "data.size=16",
    "compute.precision=float32",
]
PROBE += ["compute.threads=1", "name=probed"]


def _pushed(words: list[str]) -> None:
    """tools/push.py as far as it reads the run's folder: all that would go to the Hub is put
    together."""
    from ssl_vit.hub.payload import uploads

    def collect(run: Any, **_: Any) -> None:
        for parcel in uploads(run):
            parcel.files()

    push.push = collect  # type: ignore[assignment]
    MAINS["push"](words)


# What reads which folder: name -> (folder, files that are altered, the call)
READERS: dict[str, tuple[str, tuple[str, ...], Callable[[], Any]]] = {
    "pretrain again": (
        "finished",
        ("recipe.yaml", "environment.json", "result.json"),
        lambda: MAINS["pretrain"]([*WORDS, "out=runs"]),
    ),
    "resume": (
        "stopped",
        (
            "recipe.yaml",
            "environment.json",
            "metrics.jsonl",
            "checkpoints/step-000000002/state.pt",
            "lock",
        )
        + ("checkpoints/step-000000002/manifest.json",) * 2,
        lambda: MAINS["pretrain"]([*WORDS, "out=runs"]),
    ),
    "evaluate init=": (
        "finished",
        ("recipe.yaml", "result.json", "export/config.json", "export/model.safetensors"),
        lambda: MAINS["evaluate"]([*PROBE, "out=runs"]),
    ),
    "recipe=FILE": (
        "finished",
        ("recipe.yaml",),
        lambda: MAINS["plan"](["recipe=runs/run/recipe.yaml", "name=again"]),
    ),
    "export": (
        "finished",
        ("recipe.yaml", "export/config.json", "export/model.safetensors"),
        lambda: MAINS["export"](["runs/run", "format=transformers", "out=there"]),
    ),
    "push": (
        "finished",
        (
            "recipe.yaml",
            "environment.json",
            "result.json",
            "metrics.jsonl",
            "export/config.json",
            "hub.json",
        ),
        lambda: _pushed(["runs/run", "hub.repo=a/b"]),
    ),
    "report": ("study", (), lambda: MAINS["report"](["runs/gap"])),
    "study again": ("planned", (), lambda: MAINS["study"](["recipe=study.yaml", "name=gap"])),
    "study's file": ("planned", (), lambda: MAINS["study"](["recipe=study.yaml", "name=other"])),
}
SHARE = {"resume": 3, "report": 6, "evaluate init=": 2}  # of the cases


def prepare(folder: Path) -> dict[str, Any]:
    """The folders that are altered, and what the unbroken run came to: its weights, and its
    result."""
    (folder / "finished").mkdir(parents=True)
    came = outcome(lambda: MAINS["pretrain"]([*WORDS, "out=runs"]), folder / "finished", 600)
    assert came.kind == ACCEPTED, came.err
    made = folder / "finished" / "runs" / "run"
    assert (
        outcome(lambda: MAINS["evaluate"]([*PROBE, "out=runs"]), folder / "finished", 600).kind
        == ACCEPTED
    )
    probed = json.loads((folder / "finished" / "runs" / "probed" / "result.json").read_text())[
        "metrics"
    ]
    shutil.rmtree(folder / "finished" / "runs" / "probed")
    (made / "hub.json").write_text('{"pushed": {"a/b": {}}}')
    shutil.copytree(folder / "finished", folder / "stopped")
    stopped = folder / "stopped" / "runs" / "run"
    shutil.rmtree(stopped / "checkpoints" / "step-000000004")
    for name in ("result.json", "export", "hub.json"):
        shutil.rmtree(stopped / name) if (stopped / name).is_dir() else (stopped / name).unlink()
    study(folder / "study" / "runs" / "gap")
    planned(folder / "planned")
    return {"weights": load_file(made / "export" / "model.safetensors"), "probed": probed}


STUDY = """
title: A gap
arms: {scratch: from scratch, mpp: with MPP}
parts:
  pretrain: {tool: pretrain, options: {recipe: mpp, optim.steps: 4, optim.warmup: 0}, by_arm: {mpp: {}}}
  final:
    tool: finetune
    options: {recipe: finetune, optim.steps: 4, optim.warmup: 0}
    by_arm: {scratch: {init: scratch}, mpp: {init: "{pretrain}"}}
report: {final: final, baseline: scratch, candidate: mpp}
"""


def planned(folder: Path) -> None:
    """A study's file, and study.json as its command leaves it."""
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(STUDY)
    from ssl_vit.lab import study_tool

    def nothing_run(request: Any, needs: Any) -> study_tool.StudyOutcome:
        return study_tool.StudyOutcome(request.name, request.folder, [])

    study_tool.run_all = nothing_run
    came = outcome(lambda: MAINS["study"](["recipe=study.yaml", "name=gap"]), folder)
    assert came.kind == ACCEPTED, came.err


def study(folder: Path) -> None:
    """A finished study's folder, made up: two arms, two seeds, a sweep, a probe; and one that
    varies a key beside it."""
    folder.mkdir(parents=True)
    tasks = []
    for arm in ("scratch", "mpp"):
        for seed in (0, 1):
            needs = [f"pretrain-{arm}-{seed}"]
            tasks.append(_task("pretrain", arm, seed, "pretrain", {}, []))
            tasks.append(_task("sweep", arm, seed, "finetune", {"optim.lr": 0.1}, needs))
            tasks.append(_task("final", arm, seed, "finetune", {}, needs))
            tasks.append(_task("probe", arm, seed, "evaluate", {}, needs))
    report = {
        "final": "final",
        "probes": ["probe"],
        "baseline": "scratch",
        "candidate": "mpp",
        "paper": {"mpp": 79.9},
    }
    about = {
        "name": "gap",
        "title": "A gap",
        "arms": {"scratch": "a", "mpp": "b"},
        "seeds": [0, 1],
        "report": report,
    }
    (folder / "study.json").write_text(json.dumps(about | {"tasks": tasks}))
    for number, one in enumerate(tasks):
        _finish(folder / one["name"], one, number)


def _task(
    part: str, arm: str, seed: int, tool: str, values: dict[str, Any], needs: list[str]
) -> dict[str, Any]:
    name = f"{part}-{arm}-{seed}"
    words = ["recipe=mpp", "optim.steps=4"]
    report = {
        "part": part,
        "tool": tool,
        "arm": arm,
        "seed": seed,
        "values": values,
        "needs": needs,
        "words": words,
    }
    return {"name": name, **report, "best": None, "by": ""}


def _finish(folder: Path, task: dict[str, Any], number: int) -> None:
    folder.mkdir()
    name, split = (
        ("accuracy", "validation")
        if task["tool"] == "pretrain" or task["values"]
        else ("top1", "test")
    )
    value = {"value": 0.2 + number / 100, "n": 100, "split": split}
    result = {
        "steps": 4,
        "images": 32,
        "exaflop": 0.1,
        "device_hours": 0.5,
        "seconds": 9.0,
        "metrics": {name: value},
    }
    result |= {"recipe": "0" * 16, "finished": "2026-01-01T00:00:00+00:00"}
    (folder / "result.json").write_text(json.dumps(result))
    environment = {
        "packages": {"torch": "2"},
        "revision": "0" * 40,
        "host": {"cpu": "x"},
        "data": {"test": "x", "train": "y"},
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    rows = [{"step": step, "loss": 1 / step, "validation/accuracy": 0.1} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "recipe.yaml").write_text("objective: mpp\n")
    right = np.arange(100) < 20 + number
    label = np.arange(100) % 10
    top5 = (label[:, None] + np.arange(5) + ~right[:, None]) % 10
    np.savez_compressed(folder / "predictions.npz", index=np.arange(100), label=label, top5=top5)


def wrong(reader: str, cwd: Path, wanted: dict[str, Any], how: str, file: str) -> str | None:
    """What an accepted case came to that it must not; None where it is right."""
    run = cwd / "runs" / "run"
    trusted = how == "state" or file in ("recipe.yaml",)  # what says itself that it is whole
    if reader == "resume" and not trusted:
        made = load_file(run / "export" / "model.safetensors")
        if any(not torch.equal(value, made[name]) for name, value in wanted["weights"].items()):
            return "other weights than the unbroken run's"
    if reader == "evaluate init=" and file == "result.json":
        report = json.loads((cwd / "runs" / "probed" / "result.json").read_text())["metrics"]
        if report != wanted["probed"]:
            return "other numbers than of the untouched run"
    return None


def mutations(seed: int, count: int, folder: Path, only: str = "") -> dict[str, Any]:
    draw = random.Random(seed)
    wanted = prepare(folder)
    readers = [name for name in READERS for _ in range(SHARE.get(name, 1)) if only in name]
    report: dict[str, Any] = {
        "mutations": 0,
        ANSWERED: 0,
        ACCEPTED: 0,
        TRACEBACK: 0,
        HANG: 0,
        "wrong results": 0,
    }
    by: Counter[str] = Counter()
    found = []
    for number in range(count):
        reader = readers[number % len(readers)]
        kind, files, call = READERS[reader]
        cwd = folder / "case"
        shutil.copytree(folder / kind, cwd)
        path = _chosen(reader, cwd, files, draw)
        how = alter(path, draw)
        after = path.read_bytes()[:400] if path.exists() else b""
        came = outcome(call, cwd)
        report["mutations"] += 1
        report[came.kind] += 1
        by[reader] += 1
        why = wrong(reader, cwd, wanted, how, path.name) if came.kind == ACCEPTED else None
        report["wrong results"] += why is not None
        if came.kind in (TRACEBACK, HANG) or why:
            what = why or f"{came.kind}, status {came.status}: {came.err[-1500:]}"
            where = {
                "reader": reader,
                "file": str(path.relative_to(cwd)),
                "how": how,
                "case": number,
            }
            found.append(where | {"what": what, "after": str(after)})
        shutil.rmtree(cwd)
    return report | {"by": dict(by), "found": found}


def _chosen(reader: str, cwd: Path, files: tuple[str, ...], draw: random.Random) -> Path:
    """The file of a case that is altered."""
    if reader == "report":
        every = sorted(path for path in (cwd / "runs" / "gap").rglob("*") if path.is_file())
        return draw.choice([*every, *[cwd / "runs" / "gap" / "study.json"] * len(every)])
    if reader == "study again":
        return cwd / "runs" / "gap" / "study.json"
    if reader == "study's file":
        return cwd / "study.yaml"
    return cwd / "runs" / "run" / draw.choice(files)


def main() -> None:
    words = dict(word.split("=", 1) for word in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        report = mutations(
            int(words.get("seed", 0)),
            int(words.get("count", 750)),
            Path(folder),
            words.get("only", ""),
        )
    print(json.dumps({"seed": int(words.get("seed", 0)), **report}, indent=2))


if __name__ == "__main__":
    main()
