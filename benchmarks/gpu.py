"""The first half hour on a GPU, in calls of under ten minutes: what is right, then how fast it is.

    python benchmarks/gpu.py part=numbers out=FOLDER
    python benchmarks/gpu.py part=runs out=FOLDER
    python benchmarks/gpu.py part=speed out=FOLDER models=vit_b16,vit_s16,vit_ti4
    python benchmarks/gpu.py part=numbers out=FOLDER device=cpu        (rehearsal, tiny)

numbers: corruption, targets, losses and gradients on the device against the CPU. runs: whole runs
by the tools (no synchronisation between logging steps, nothing recompiled, repeated, stopped and
resumed, DDP, ZeRO 2 and FSDP2 on one process). speed: a step against the matrix products and the
attention in it. `only=TEXT` takes the checks with that in their names. Every result is written to
FOLDER/PART.json at once, so that a call that is cut off leaves what it measured; a check that
raises is recorded and the next one goes on.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 540.0  # seconds of a call, after which no further check is begun
Check = Callable[[], dict[str, Any]]


def environment(device: str) -> dict[str, Any]:
    """What a figure must stand beside."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "commit": commit.stdout.strip() or None,
        "cpus": len(os.sched_getaffinity(0)),
    }


def run_checks(checks: dict[str, Check], path: Path, device: str, limit: float) -> bool:
    """Run the checks in order and write their results; whether all of them ran and hold.

    Args:
        checks: {name: check}; a check returns its figures, with "holds" where it can fail.
        path: of the JSON file.
        limit: seconds after which none is begun.
    """
    begun = time.perf_counter()
    report: dict[str, Any] = environment(device) | {"results": {}}
    for name, check in checks.items():
        start = time.perf_counter()
        if start - begun > limit:
            found: dict[str, Any] = {"skipped": "no time left"}
        else:
            try:
                found = check()
            except Exception as error:  # the next check goes on
                found = {
                    "holds": False,
                    "error": f"{type(error).__name__}: {str(error)[:500]}",
                    "where": traceback.format_exc().splitlines()[-6:],
                }
        found["seconds"] = round(time.perf_counter() - start, 1)
        report["results"][name] = found
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{name}: {json.dumps(found)[:400]}", flush=True)
    results = report["results"].values()
    return all(found.get("holds", True) and "skipped" not in found for found in results)


def find_checks(
    part: str, device: str, out: Path, models: list[str] | None = None
) -> dict[str, Check]:
    """The checks of a part, by name; small ones on a CPU."""
    import gpu_numbers
    import gpu_runs
    import gpu_speed

    parts = {
        "numbers": gpu_numbers.checks,
        "runs": gpu_runs.checks,
        "speed": gpu_speed.checks,
    }
    return parts[part](device, out, models)


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    device = given.get("device", "cuda")
    out = Path(given["out"]).resolve()
    models = given.get("models", "").split(",") if given.get("models") else None
    every = find_checks(given["part"], device, out, models)
    checks = {name: check for name, check in every.items() if given.get("only", "") in name}
    path = out / f"{given['part']}.json"
    holds = run_checks(checks, path, device, float(given.get("limit", LIMIT)))
    print(f"{path}: {'all hold' if holds else 'NOT all hold'}")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
