"""The tuning of study/worth: its numbers and its best settings, and small copies of finished runs.

python results/worth.py numbers RUNS > results/worth_tuning.json
python results/worth.py table results/worth_tuning.json
python results/worth.py long RUNS > recipes/study/worth_tuning_long.yaml
python results/worth.py keep RUNS FILE.tar.xz
python results/worth.py restore RUNS FILE.tar.xz

RUNS is the study's folder. `numbers` prints every finished task; `table` each arm's best setting of
the tries that they list, as Markdown; `long` the study of each arm's
best three settings at three times the length; `keep` packs what a finished run of a sweep needs to
count as finished elsewhere, and `restore` unpacks it: no weights, so encoders are trained again.
"""

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import yaml

KEPT = ("recipe.yaml", "environment.json", "result.json")
BEST = 3
TIMES = 3  # the long fine-tuning against the short one


def finished(runs: Path) -> dict[str, dict[str, Any]]:
    """The finished tasks of the plan, each with its result."""
    tasks = json.loads((runs / "study.json").read_text())["tasks"]
    results = {task["name"]: runs / task["name"] / "result.json" for task in tasks}
    return {
        task["name"]: task | {"result": json.loads(results[task["name"]].read_text())}
        for task in tasks
        if results[task["name"]].exists()
    }


def numbers(runs: Path) -> list[dict[str, Any]]:
    """One row for each finished task: what it was, what it took and its metrics."""
    return [
        {key: task[key] for key in ("name", "part", "arm", "seed", "values")}
        | {
            "options": [one for one in task["options"] if not one.startswith("data.path=")],
            "seconds": round(task["result"]["seconds"]),
            "exaflop": task["result"]["exaflop"],
            "metrics": task["result"]["metrics"],
        }
        for task in finished(runs).values()
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """The best setting of each arm at either length, the higher one in brackets, and what its tries
    cost; with the learning rates that end the grid marked."""
    tries = [row for row in rows if row["part"] in ("sweep", "long")]
    lines = ["| arm | tries | short | long | device-minutes |", "|---|---|---|---|---|"]
    rates = {row["values"]["optim.lr"] for row in tries}
    for arm in dict.fromkeys(row["arm"] for row in tries):
        own = [row for row in tries if row["arm"] == arm]
        best = {
            part: max((row for row in own if row["part"] == part), key=accuracy_of)
            for part in dict.fromkeys(row["part"] for row in own)
        }
        chosen = max(best.values(), key=accuracy_of)
        cells = []
        for row in best.values():
            rate, mixup = row["values"]["optim.lr"], row["values"]["data.mixup"]
            end = ", an end of the grid" if rate in (min(rates), max(rates)) else ""
            text = f"{100 * accuracy_of(row):.1f}: {rate:g}{' mixed' if mixup else ''}{end}"
            cells.append(f"[{text}]" if row is chosen else text)
        minutes = sum(row["seconds"] for row in own) / 60
        lines.append(f"| {arm} | {len(own)} | {' | '.join(cells)} | {minutes:.0f} |")
    return "\n".join(lines)


def accuracy_of(row: dict[str, Any]) -> float:
    """On the held-out images, which no share contains; of a row of `numbers` or a result."""
    found = row["metrics"]["accuracy"]
    assert found["split"] == "validation", found
    return float(found["value"])


def best_settings(runs: Path) -> dict[str, list[dict[str, Any]]]:
    """{arm: the values of its best runs, best first; of equals the first in the plan}.

    Raises:
        SystemExit: the sweep is not finished.
    """
    planned = json.loads((runs / "study.json").read_text())["tasks"]
    done = finished(runs)
    sweep = [task for task in planned if task["part"] == "sweep"]
    missing = [task["name"] for task in sweep if task["name"] not in done]
    if missing:
        sys.exit(f"error: not finished: {', '.join(missing)}")
    arms = dict.fromkeys(task["arm"] for task in sweep)
    ranked = {
        arm: sorted(
            (done[task["name"]] for task in sweep if task["arm"] == arm),
            key=lambda task: accuracy_of(task["result"]),
            reverse=True,
        )
        for arm in arms
    }
    return {arm: [task["values"] for task in tasks[:BEST]] for arm, tasks in ranked.items()}


def long_study(runs: Path) -> dict[str, Any]:
    """study/worth_tuning with a part `long`: the best settings of each arm."""
    settings = best_settings(runs)
    source = Path(__file__).parent.parent / "recipes" / "study" / "worth_tuning.yaml"
    sweep = yaml.safe_load(source.read_text())["parts"]["sweep"]
    long = {
        "extends": "sweep",
        "options": {"optim.steps": TIMES * sweep["options"]["optim.steps"]},
        "grid": {"setting": next(iter(settings.values()))},
        "grid_by_arm": {arm: {"setting": values} for arm, values in settings.items()},
        "by_arm": sweep["by_arm"],
    }
    title = "What is pre-training worth against a tuned baseline? Tuning, the long fine-tuning"
    return {"title": title, "extends": "study/worth_tuning", "parts": {"long": long}}


def keep(runs: Path, file: Path) -> None:
    """Pack the small files of the finished fine-tunings."""
    with tarfile.open(file, "w:xz") as packed:
        for name, task in finished(runs).items():
            if task["tool"] == "finetune":
                for part in KEPT:
                    packed.add(runs / name / part, f"{name}/{part}")


def main(verb: str, runs: Path, file: Path | None = None) -> None:
    if verb == "numbers":
        print(json.dumps(numbers(runs), indent=1))
    elif verb == "table":
        print(table(json.loads(runs.read_text())))
    elif verb == "long":
        print(yaml.safe_dump(long_study(runs), sort_keys=False, width=100), end="")
    elif verb == "keep" and file:
        keep(runs, file)
    elif verb == "restore" and file:
        with tarfile.open(file) as packed:
            packed.extractall(runs, filter="data")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], *map(Path, sys.argv[2:]))
