"""The ranges in recipes/tables/expected.yaml: runs of several seeds, stopped after the last step compared.

    python robustness/expected.py options="recipe=mpp data=cifar10" data.path=FOLDER seeds=0,1,2,3,4
    python robustness/expected.py options="recipe=mpp" seeds=5,6,7 check=true

One entry of the file comes out, to be put under `curves:`; with check=true whether the seeds'
curves lie within the file's ranges. A range is the mean over seeds, plus and minus what a further
seed exceeds in one of 1,000 cases by Student's t: t(n - 1, 0.9995) sd sqrt(1 + 1/n). Runs go to
out= (default runs/expected), one after another, and finished ones are read again.
"""

import json
import math
import shlex
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import yaml
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.callbacks import Callbacks
from ssl_vit.config.computed import keys
from ssl_vit.config.resolve import resolve
from ssl_vit.runs import expected

ROOT = Path(__file__).resolve().parent.parent
METRICS = ("loss", "accuracy")
STEPS = (20, 50, 100)
UNEXPECTED = 1e-3  # share of seeds outside a range
OWN = ("options", "seeds", "check", "out")


def rows(folder: Path) -> dict[int, dict]:
    """{step: row} of a run's metrics so far."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return {}
    lines = path.read_text().splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return {row["step"]: row for row in found if "images_per_s" in row}


def measure(options: list[str], out: Path, name: str) -> dict[int, dict]:
    """The rows of a run up to the last of STEPS."""
    folder = out / name
    if max(STEPS) not in rows(folder):
        command = [sys.executable, "-m", "ssl_vit", "pretrain", *options]
        with subprocess.Popen([*command, f"out={out}", f"name={name}"], cwd=ROOT) as run:
            while run.poll() is None and max(STEPS) not in rows(folder):
                time.sleep(0.2)
            run.send_signal(signal.SIGTERM)
    return rows(folder)


def images_of(folder: Path) -> int:
    return json.loads((folder / "environment.json").read_text())["images"]["train"]


def limits(values: list[float]) -> list[float]:
    """The lowest and highest value expected of another seed."""
    n = len(values)
    reach = float(stats.t.isf(UNEXPECTED / 2, n - 1)) * math.sqrt(1 + 1 / n)
    middle = statistics.mean(values)
    width = reach * statistics.stdev(values)
    lowest = max(0.0, middle - width)  # neither a loss nor an accuracy is negative
    return [float(f"{lowest:.5g}"), float(f"{middle + width:.5g}")]


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    options = shlex.split(given["options"])
    others = [f"{key}={value}" for key, value in given.items() if key not in OWN]
    free = keys(lambda option: not (option.curve and option.identity))
    for key in given:
        if key not in (*OWN, *free):
            sys.exit(f"{key}={given[key]}: changes the curve; expected inside options=")
    seeds = [int(seed) for seed in given["seeds"].split(",")]
    out = Path(given.get("out", "runs/expected")).resolve()
    names = {seed: f"{'-'.join(options)}-{seed}".replace("/", "_") for seed in seeds}
    curves = {
        seed: measure([*options, *others, f"seed={seed}"], out, name)
        for seed, name in names.items()
    }
    recipe = resolve(options)
    images = images_of(out / names[seeds[0]])
    if given.get("check") == "true":
        curve = expected.find(recipe, images)
        assert curve is not None, f"{expected.PATH} has no curve of {' '.join(options)}"
        outside: list[str] = []
        check = expected.CurveCheck(curve, 0, print, outside.append)
        watched = Callbacks([check])
        for found in curves.values():
            for step in STEPS:
                watched.notify(lambda callback, row=found[step]: callback.on_row(row))
        print("\n".join(outside))
        print(json.dumps({"compared": len(seeds) * len(STEPS), "outside": len(outside)}))
        return
    steps = {
        step: {
            metric: limits([found[step][metric] for found in curves.values()]) for metric in METRICS
        }
        for step in STEPS
    }
    entry = {
        "options": options,
        "images": images,
        "log_every": recipe.log.every,
        "seeds": len(seeds),
        "steps": steps,
    }
    print(yaml.safe_dump([entry], sort_keys=False, default_flow_style=None))


if __name__ == "__main__":
    main()
