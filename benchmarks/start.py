"""CPU time until a command answers: --help, a wrong key, and the parts of a run's way to its first row
of metrics. With OTHER, a checkout, also what --help and the wrong key take here over there.

    python benchmarks/start.py data=FOLDER rounds=7 other=OTHER save=false

FOLDER holds tinyimagenet/ as parquet files; the run is recipe=mpp on it at 64 px. One thread, each
time a new process, all in turn; medians with their 95% intervals, ratios within a round. One JSON
object comes out; save=true adds it to results/start.json.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

DEFAULTS = {
    "data": os.environ.get("SSL_VIT_DATA", "data"),
    "rounds": "7",
    "other": "",
    "save": "false",
}
COMMANDS = {
    "import torch": ["-c", "import torch"],
    "--help": ["-m", "ssl_vit", "pretrain", "recipe=mpp", "--help"],
    "a wrong key": ["-m", "ssl_vit", "pretrain", "recipe=mpp", "optim.lrr=1"],
}
# Functions of jobs/train.py whose calls are parts of a run, and the part behind each
STAGES = {
    "set_up": "network and held-out images",
    "_measure_baselines": "baselines",
    "print_banner": "a step's time, of which two are tried",
    "_train": "first step and row",
}


def seconds(words: list[str], checkout: Path = ROOT) -> float:
    """CPU seconds of `python WORDS` with the package of a checkout."""
    before = _children()
    subprocess.run(
        [sys.executable, *words],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        capture_output=True,
    )
    return _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def first_row(data: str) -> dict[str, float]:
    """CPU seconds of this process's parts up to the first row of a run, and of them all."""
    from ssl_vit.jobs import train
    from ssl_vit.recipe.load import resolve
    from ssl_vit.runs.folder import Run
    from ssl_vit.training import loop

    marks = {"imports": time.process_time()}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            marks[name] = time.process_time()
            return function(*args, **kwargs)

        return call

    for name in STAGES:
        setattr(train, name, timed(name, getattr(train, name)))
    loop._row = timed("row", loop._row)
    options = ["recipe=mpp", f"data.path={data}", "data.size=64", "optim.steps=1", "log.every=1"]
    options += ["optim.warmup=0", "compute.threads=1", "compute.precision=float32"]
    with tempfile.TemporaryDirectory() as out:
        train.train(Run(resolve([*options, f"out={out}", "name=run"])))
    ends = list(marks.values())
    names = ["imports", "recipe and images", *STAGES.values()]
    parts = [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]
    return dict(zip(names, parts, strict=True)) | {"first row": ends[-1]}


def main() -> None:
    from step import finish, given_options, spread

    given = given_options(DEFAULTS, sys.argv[1:])
    data = str(Path(given["data"]) / "tinyimagenet")
    took: dict[str, list[float]] = defaultdict(list)
    over: dict[str, list[float]] = defaultdict(list)
    for turn in range(-1, int(given["rounds"])):
        here = {name: seconds(words) for name, words in COMMANDS.items()}
        there = {}
        if given["other"]:
            other = Path(given["other"]).resolve()
            there = {name: seconds(words, other) for name, words in COMMANDS.items()}
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            here |= pool.submit(first_row, data).result()
        if turn >= 0:  # the first round fills the disk's cache
            for name, value in here.items():
                took[name].append(value)
            for name, value in there.items():
                over[name].append(here[name] / value)
    report: dict[str, Any] = {"rounds": int(given["rounds"]), "threads": 1}
    report["CPU s"] = {name: spread(values) for name, values in took.items()}
    report |= {"over other": {name: spread(values) for name, values in over.items()}}
    import torch

    finish(report, "start.json", given["save"] == "true", [torch])


if __name__ == "__main__":
    main()
