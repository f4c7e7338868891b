"""Run folders of this checkout that later ones must still read, report, load and resume: one that
finished, one of each of four objectives stopped by SIGTERM, and a stopped study.

    python robustness/baseline.py make FOLDER only=runs       into FOLDER/runs
    python robustness/baseline.py resume FOLDER               with the code of a later checkout
    python robustness/old_runs.py                             makes tests/golden/runs again

Beside a stopped run lies NAME.json with the rows of the same run that was never stopped; the
resumed run has the same ones, to the last bit where torch and the processor are the same.
"""

import json
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from small_studies import CALM, MODEL
from tree import ROOT, cpu, environment, tool

GOLDEN = ROOT / "tests" / "golden" / "runs"
OBJECTIVES = {
    "mpp": ["recipe=mpp"],
    "mae": ["recipe=mae", "mae.width=8", "mae.depth=1", "mae.heads=1"],
    "moco_v3": ["recipe=moco_v3", "moco.hidden=16", "moco.width=8"],
    "supervised": ["recipe=supervised"],
}
STEPS = 240  # enough for a signal to come while the run is at work
LENGTH = {
    "optim.steps": STEPS,
    "optim.warmup": 2,
    "optim.batch": 4,
    "checkpoint.every": STEPS,
    "eval.every": STEPS // 2,
    "eval.images": 8,
    "log.every": 8,
    "log.tensorboard": False,
}
STOPPED = 75  # exit status of a run that a signal stopped
CLOCK = ("images_per_s", "data_wait", "memory_gib", "seconds")
STUDY = {
    "title": "a study that was stopped",
    "seeds": [0, 1],
    "vary": {"corruption.rate": [0.25, 0.5]},
    "match": "steps",
    "options": {"data": "shapes", **CALM},
    "parts": {"pretrain": {"tool": "pretrain", "options": {"recipe": "mpp", **MODEL, **LENGTH}}},
}


def options(objective: str) -> list[str]:
    values = {"data": "shapes", **MODEL, **LENGTH, **CALM}
    return [*OBJECTIVES[objective], *(f"{key}={_text(value)}" for key, value in values.items())]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def measure(folder: Path, given: dict[str, str]) -> dict[str, Any]:
    """{run: its rows without what a clock says}; the folders themselves are in FOLDER/runs.
    With runs=mpp,study only these."""
    place = folder / "runs"
    names = given["runs"].split(",") if "runs" in given else [*OBJECTIVES, "study"]
    found = {}
    for name in names:
        if name == "study":
            found[name] = _study(place)
            continue
        found[name] = _whole(name, place / f"finished_{name}")
        if name != "mpp":  # one finished run is enough
            shutil.rmtree(place / f"finished_{name}")
        stop("pretrain", *options(name), f"out={place}", f"name=stopped_{name}", folder=place)
        _expect(place / f"stopped_{name}.json", found[name])
    return found


def _whole(objective: str, folder: Path) -> list[dict[str, Any]]:
    """Rows of a run that is not stopped."""
    shutil.rmtree(folder, ignore_errors=True)
    tool("pretrain", *options(objective), f"out={folder.parent}", f"name={folder.name}")
    return rows(folder)


def _study(place: Path) -> dict[str, Any]:
    """{task: rows} of the study, never stopped; the stopped one is left in `place`."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY, sort_keys=False))
    with tempfile.TemporaryDirectory() as temporary:
        tool("study", f"recipe={path}", f"out={temporary}", "name=study", "parallel=1")
        found = task_rows(Path(temporary) / "study")
    words = (f"recipe={path}", f"out={place}", "name=stopped_study", "parallel=1")
    stop("study", *words, folder=place)
    _expect(place / "stopped_study.json", found)
    return found


def stop(name: str, *words: str, folder: Path) -> None:
    """Run a tool, and send SIGTERM when the run, or the study's second one, has its first row.

    Raises:
        RuntimeError: it had ended before, or did not stop as it should.
    """
    place = folder / next(w for w in words if w.startswith("name=")).removeprefix("name=")
    shutil.rmtree(place, ignore_errors=True)
    wanted = 2 if name == "study" else 1
    command = [sys.executable, "-m", "ssl_vit", name, *words]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=ROOT, env=environment(), text=True, **quiet) as process:
        while process.poll() is None and _begun(place) < wanted:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        output = process.communicate()[0]
    results = list(place.rglob("result.json"))
    if process.returncode == 0 or len(results) != wanted - 1:
        raise RuntimeError(f"{place}: status {process.returncode}: {output[-2000:]}")
    if name != "study" and process.returncode != STOPPED:
        raise RuntimeError(f"{place}: status {process.returncode}: {output[-2000:]}")


def _begun(place: Path) -> int:
    """Runs of a folder, or the folder itself, that have rows."""
    return sum(path.stat().st_size > 0 for path in place.rglob("metrics.jsonl"))


def rows(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what depends on the clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in CLOCK} for line in lines]


def task_rows(folder: Path) -> dict[str, Any]:
    return {path.parent.name: rows(path.parent) for path in sorted(folder.glob("*/result.json"))}


def made_on() -> dict[str, str]:
    """What numbers are identical on."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__.split("+")[0], "cpu": f"{cpu()} {capability}"}


def _expect(path: Path, value: Any) -> None:
    path.write_text(json.dumps({"environment": made_on(), "rows": value}) + "\n")


def differences(expected: Path, now: Any) -> list[str]:
    """What a resumed run has that the unbroken one has not, a line each."""
    record = json.loads(expected.read_text())
    tolerance = 0.0 if record["environment"] == made_on() else 1e-3
    return list(_differences(record["rows"], now, tolerance, expected.stem))


def _differences(old: Any, new: Any, tolerance: float, place: str) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        found = [f"{place}: {key} is on one side" for key in sorted(old.keys() ^ new.keys())]
        pairs = [(f"{place}/{key}", old[key], new[key]) for key in old if key in new]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        found = []
        pairs = [(f"{place}/{i}", a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    elif isinstance(old, float) and isinstance(new, float | int):
        close = old == new or math.isclose(old, new, rel_tol=tolerance)
        return [] if close else [f"{place}: {old} -> {new}"]
    else:
        return [] if old == new else [f"{place}: {old} -> {new}"]
    return found + [line for name, a, b in pairs for line in _differences(a, b, tolerance, name)]


def resume(place: Path) -> int:
    """List, report, load and resume copies of the run folders with this checkout; print what
    fails; the exit status."""
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        copies = Path(temporary) / "runs"
        shutil.copytree(place, copies)
        problems += check_reading(copies)
        for expected in sorted(copies.glob("stopped_*.json")):
            folder = copies / expected.stem
            if expected.stem == "stopped_study":
                words = [f"recipe={copies}/study.yaml", "parallel=1"]
                tool("study", *words, f"out={copies}", f"name={folder.name}")
                found = differences(expected, task_rows(folder))
            else:
                tool("pretrain", f"recipe={folder}/recipe.yaml", f"out={copies}",
                     f"name={folder.name}")  # fmt: skip
                found = differences(expected, rows(folder))
            print(f"resumed     {folder.name}: {len(found)} differences", flush=True)
            problems += found
            problems += _loads(folder) if expected.stem != "stopped_study" else []
    for line in problems:
        print(line)
    return int(bool(problems))


def check_reading(place: Path) -> list[str]:
    """Problems of listing and reporting the runs, and of loading the encoder of a finished one."""
    problems = []
    listed = json.loads(tool("runs", str(place), "--json").splitlines()[-1])
    text = json.dumps(listed)
    for path in sorted(place.rglob("recipe.yaml")):
        folder = path.parent
        if str(folder.relative_to(place)) not in text:
            problems.append(f"{folder.name}: not in the list of runs")
        record = json.loads(tool("report", str(folder), "--json").splitlines()[-1])
        if record["warnings"] or record["steps"] != STEPS:
            problems.append(f"{folder.name}: its report says {record}")
        if (folder / "result.json").exists():
            problems += _loads(folder)
    for path in sorted(place.rglob("study.json")):
        tool("report", str(path.parent), "--json")
    return problems


def _loads(folder: Path) -> list[str]:
    """Problems of loading a finished run's encoder by the interface of Python."""
    code = (
        "import sys, torch, ssl_vit; encoder = ssl_vit.load_encoder(sys.argv[1]);"
        "image = torch.zeros(2, 3, 8, 8, dtype=torch.uint8);"
        "assert encoder.feature(image, 'avg').isfinite().all();"
        "assert ssl_vit.load_run(sys.argv[1]).result()['metrics']"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env=environment(),
        capture_output=True,
        text=True,
    )
    return [] if done.returncode == 0 else [f"{folder.name}: {done.stderr[-500:]}"]


def make_golden() -> None:
    """The two that are committed: a finished run and a stopped one, without pages and figures,
    which are made again from the rest, and without this machine's name."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        measure(place, {"runs": "mpp"})
        shutil.rmtree(GOLDEN, ignore_errors=True)
        leave = shutil.ignore_patterns("report.html", "figures", "lock")
        shutil.copytree(place / "runs", GOLDEN, ignore=leave)
    shutil.rmtree(GOLDEN / "finished_mpp" / "checkpoints")
    for path in GOLDEN.rglob("*"):
        if path.suffix in (".yaml", ".txt", ".json"):
            path.write_text(path.read_text().replace(temporary, "/made"))
    for path in GOLDEN.rglob("environment.json"):
        record = json.loads(path.read_text())
        record["host"]["system"] = "Linux"
        path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    make_golden()
