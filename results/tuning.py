"""Tuning studies in two rounds: their numbers and best settings, the longer round, and small copies
of finished runs.

python results/tuning.py numbers RUNS > results/worth_tuning.json
python results/tuning.py table results/worth_tuning.json
python results/tuning.py long RUNS > recipes/study/worth_tuning_long.yaml
python results/tuning.py keep RUNS FILE.tar.xz
python results/tuning.py restore RUNS FILE.tar.xz

RUNS is the folder of a study of ROUNDS, by whose name it is known. `numbers` prints every finished
task; `table` each arm's best setting of the tries that they list, as Markdown; `long` the study of
each arm's best settings for longer; `keep` packs what a finished run of a short round needs to
count as finished elsewhere, and `restore` unpacks it: no weights.
"""

import json
import sys
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ssl_vit.lab.studies.read_study import read
from ssl_vit.lab.studies.study_file import find

RANK = "features/effective_rank"
KEPT = ("recipe.yaml", "environment.json", "result.json")


class Rounds(NamedTuple):
    """How a study's tries go on.

    Attributes:
        title: of the study with the long round.
        short: the part that tries every setting.
        by: the held-out metric that it is judged by.
        best: how many settings of each arm go on.
        times: the long round's length against the short one's.
        lengths: the keys that are so many times as large.
    """

    title: str
    short: str
    by: str
    best: int
    times: int
    lengths: tuple[str, ...]


WORTH = Rounds(
    "What is pre-training worth against a tuned baseline? Tuning, the long fine-tuning",
    short="sweep",
    by="accuracy",
    best=3,
    times=3,
    lengths=("optim.steps",),
)
ROUNDS = {
    "worth_tuning": WORTH,
    "worth_tuning_10": WORTH._replace(title=f"{WORTH.title}, 10% of the labels"),
    "methods_tuning": Rounds(
        "Which objective, each with a learning rate of its own? Tuning, the long round",
        short="short",
        by="probe_knn",
        best=2,
        times=3,
        lengths=("optim.steps", "optim.warmup"),
    ),
}


def rounds_of(runs: Path) -> tuple[str, Rounds]:
    """The name of the study in a folder, and how its tries go on.

    Raises:
        SystemExit: it is none of ROUNDS.
    """
    name = json.loads((runs / "study.json").read_text())["name"]
    if name not in ROUNDS:
        sys.exit(f"error: {runs}: study {name}; expected one of {', '.join(ROUNDS)}")
    return name, ROUNDS[name]


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
            "total_exaflop": task["result"]["total_exaflop"],
            "metrics": task["result"]["metrics"],
        }
        | ranks(runs / task["name"])
        for task in finished(runs).values()
    ]


def ranks(run: Path) -> dict[str, dict[int, float]]:
    """The effective rank by step, of a run with eval.collapse=; of another nothing."""
    log = run / "metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    found = {row["step"]: round(row[RANK], 2) for row in rows if RANK in row}
    return {"effective_rank": found} if found else {}


def table(rows: list[dict[str, Any]]) -> str:
    """The best setting of each arm at either length, the higher one in brackets, and what its tries
    cost; with the learning rates that end the grid marked."""
    shorts = {rounds.short: rounds for rounds in ROUNDS.values()}
    tries = [row for row in rows if row["part"] in (*shorts, "long")]
    by = next(shorts[row["part"]].by for row in tries if row["part"] in shorts)
    lines = ["| arm | tries | short | long | device-minutes |", "|---|---|---|---|---|"]
    rates = {row["values"]["optim.lr"] for row in tries}
    for arm in dict.fromkeys(row["arm"] for row in tries):
        own = [row for row in tries if row["arm"] == arm]
        best = {
            part: max((row for row in own if row["part"] == part), key=lambda row: score(row, by))
            for part in dict.fromkeys(row["part"] for row in own)
        }
        chosen = max(best.values(), key=lambda row: score(row, by))
        cells = []
        for row in best.values():
            rate, mixup = row["values"]["optim.lr"], row["values"].get("data.mixup")
            end = ", an end of the grid" if rate in (min(rates), max(rates)) else ""
            text = f"{100 * score(row, by):.1f}: {rate:g}{' mixed' if mixup else ''}{end}"
            cells.append(f"[{text}]" if row is chosen else text)
        cells += ["-"] * (2 - len(cells))
        minutes = sum(row["seconds"] for row in own) / 60
        lines.append(f"| {arm} | {len(own)} | {' | '.join(cells)} | {minutes:.0f} |")
    return "\n".join(lines)


def score(row: dict[str, Any], by: str) -> float:
    """On the held-out images, which nothing is trained on; of a row of `numbers` or a result."""
    found = row["metrics"][by]
    assert found["split"] == "validation", found
    return float(found["value"])


def best_settings(runs: Path, rounds: Rounds) -> dict[str, list[dict[str, Any]]]:
    """{arm: the values of its best runs, best first; of equals the first in the plan}.

    Raises:
        SystemExit: the short round is not finished.
    """
    planned = json.loads((runs / "study.json").read_text())["tasks"]
    done = finished(runs)
    short = [task for task in planned if task["part"] == rounds.short]
    missing = [task["name"] for task in short if task["name"] not in done]
    if missing:
        sys.exit(f"error: not finished: {', '.join(missing)}")
    arms = dict.fromkeys(task["arm"] for task in short)
    ranked = {
        arm: sorted(
            (done[task["name"]] for task in short if task["arm"] == arm),
            key=lambda task: score(task["result"], rounds.by),
            reverse=True,
        )
        for arm in arms
    }
    return {arm: [task["values"] for task in tasks[: rounds.best]] for arm, tasks in ranked.items()}


def long_study(runs: Path) -> dict[str, Any]:
    """The study in a folder with a part `long`: the best settings of each arm."""
    name, rounds = rounds_of(runs)
    settings = best_settings(runs, rounds)
    study = read(find(f"study/{name}"))
    short = study.parts[rounds.short]
    long = {
        "extends": rounds.short,
        "options": {key: rounds.times * int(short.base[key]) for key in rounds.lengths},
        "grid": {"setting": next(iter(settings.values()))},
        "grid_by_arm": {arm: {"setting": values} for arm, values in settings.items()},
    }
    return {"title": rounds.title, "extends": f"study/{name}", "parts": {"long": long}}


def keep(runs: Path, file: Path) -> None:
    """Pack the small files of the finished runs from which no other starts."""
    _, rounds = rounds_of(runs)
    with tarfile.open(file, "w:xz") as packed:
        for name, task in finished(runs).items():
            if task["part"] in (rounds.short, "long"):
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
