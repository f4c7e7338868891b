"""Measure the CPU time until a command answers: --help and a wrong key, and importing torch. With
OTHER, a checkout, also compare with the time of the same commands in that checkout.

    python benchmarks/start.py rounds=7 other=OTHER save=false

Each command runs on one thread in a new process, all commands in turn. The result is a JSON object:
medians with their 95% intervals, and ratios within a round. save=true adds the object to
results/start.json. benchmarks/overhead.py measures where the time of a whole run goes.
"""

import os
import resource
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

DEFAULTS = {
    "rounds": "7",
    "other": "",
    "save": "false",
}
COMMANDS = {
    "import torch": ["-c", "import torch"],
    "--help": ["-m", "ssl_vit", "pretrain", "recipe=mpp", "--help"],
    "a wrong key": ["-m", "ssl_vit", "pretrain", "recipe=mpp", "optim.lrr=1"],
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


def main() -> None:
    from step import finish, given_options, spread

    given = given_options(DEFAULTS, sys.argv[1:])
    took: dict[str, list[float]] = defaultdict(list)
    over: dict[str, list[float]] = defaultdict(list)
    for turn in range(-1, int(given["rounds"])):
        here = {name: seconds(words) for name, words in COMMANDS.items()}
        there = {}
        if given["other"]:
            other = Path(given["other"]).resolve()
            there = {name: seconds(words, other) for name, words in COMMANDS.items()}
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
