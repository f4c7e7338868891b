"""What the benchmarks of ratios have in common: options, spread, the committed file they compare
with, and where a figure comes from."""

import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import torch
from scipy import special

from ssl_vit.stats import TAIL, Interval

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
SLOWER = 1.05


def options(known: dict[str, str], words: list[str]) -> dict[str, str]:
    """The defaults with KEY=VALUE of the command line over them."""
    for word in words:
        key, _, value = word.partition("=")
        if key not in known:
            sys.exit(f"{key}=: expected one of {', '.join(known)}")
        known[key] = value
    return known


def paired(times: list[float], others: list[float]) -> float:
    """The median over rounds of one way's time over another's in the same round: what slows a whole
    round down slows both."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def median_interval(values: list[float]) -> Interval | None:
    """The 95% interval of the median, from one value to another in order of size (the sign test's):
    of 6 to 8 values the least and the most, of 9 to 11 the second and the last but one. None of
    fewer than 6, which are all on one side of the median in more than 1 of 20 cases."""
    n = len(values)
    outside = [k for k in range(n // 2) if special.bdtr(k, n, 0.5) <= TAIL]
    if not outside:
        return None
    ordered = sorted(values)
    return Interval(ordered[outside[-1]], ordered[n - 1 - outside[-1]])


def spread(values: list[float]) -> dict[str, Any]:
    """Their median, its 95% interval (None of fewer than 6), the least and the most."""
    interval = median_interval(values)
    return {
        "median": round(statistics.median(values), 3),
        "95%": [round(end, 3) for end in interval] if interval else None,
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


def slower(now: dict[str, Any], before: dict[str, Any], ratio: str) -> list[str]:
    """The ratios whose medians rose by more than 5%, a line each.

    Args:
        now: {case: {ratio: {way: spread}}}, other values beside the cases are left out.
        before: the same, as committed.
        ratio: the name of the ratios within a case.
    """
    found = []
    for case, measured in now.items():
        committed = before.get(case, {}).get(ratio, {})
        for way, found_now in measured[ratio].items():
            if way in committed and found_now["median"] > SLOWER * committed[way]["median"]:
                found.append(f"{case}: {way}: {committed[way]['median']} -> {found_now['median']}")
    return found


def read(path: Path) -> dict[str, Any]:
    """The committed report; empty where there is none yet."""
    return json.loads(path.read_text()) if path.exists() else {}


def finish(report: dict[str, Any], path: Path, save: bool) -> None:
    """Print the report as one JSON object; with `save` it becomes the committed one."""
    text = json.dumps(report, indent=2)
    # lists of numbers on one line
    text = re.sub(r"\[\s+([^][{}]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    print(text)
    if save:
        path.write_text(text + "\n")


def provenance(load: float, libraries: list[Any]) -> dict[str, Any]:
    """Machine, load before and after, versions and revision."""
    return {
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "cores": psutil.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "versions": {library.__name__: library.__version__ for library in libraries},
        "commit": commit(),
    }


def commit() -> str:
    """The revision measured, with a + where files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()
