"""results/tuning.py: the longer round of a tuning study is made of what its short one found."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from helpers.options import ROOT
from ssl_vit.lab.studies.request import parse_request


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tuning", ROOT / "results" / "tuning.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tuning = load()
STUDY = ROOT / "recipes" / "study" / "methods_tuning.yaml"


def finished(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    """A folder of a study whose tasks, as `numbers` gives them, are all finished."""
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps({"name": name, "tasks": rows}))
    for row in rows:
        (folder / row["name"]).mkdir()
        result = {key: row[key] for key in ("seconds", "exaflop", "metrics")}
        (folder / row["name"] / "result.json").write_text(json.dumps(result))
    return folder


def tries(arm: str, found: dict[float, float]) -> list[dict[str, Any]]:
    """Those of the short round of methods_tuning: {learning rate: k-NN}."""
    about = {"part": "short", "arm": arm, "seed": 10, "options": [], "seconds": 60, "exaflop": 1e-6}
    return [
        about
        | {
            "name": f"short-{arm}-10-lr={rate:g}",
            "values": {"optim.lr": rate},
            "metrics": {"probe_knn": {"value": value, "n": 1000, "split": "validation"}},
        }
        for rate, value in found.items()
    ]


@pytest.mark.parametrize("name", ["worth_tuning", "methods_tuning"])
def test_a_long_round_is_the_committed_one(name: str, tmp_path: Path) -> None:
    rows = json.loads((ROOT / "results" / f"{name}.json").read_text())
    short = [row for row in rows if row["part"] == tuning.ROUNDS[name].short]
    made = tuning.long_study(finished(tmp_path / "runs", name, short))
    committed = ROOT / "recipes" / "study" / f"{name}_long.yaml"
    assert made == yaml.safe_load(committed.read_text())


def test_the_best_two_of_each_objective_go_on_for_three_times_as_long(tmp_path: Path) -> None:
    """Of equals the first; the study that is made resolves, at equal exaFLOP."""
    arms = [one["name"] for one in yaml.safe_load(STUDY.read_text())["vary"]]
    rates = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]
    rows = [
        one
        for number, arm in enumerate(arms)
        for one in tries(
            arm, dict(zip(rates, [0.2, 0.4, 0.4, 0.3, 0.5 * (number == 1)], strict=True))
        )
    ]
    runs = finished(tmp_path / "runs", "methods_tuning", rows)
    file = tmp_path / "long.yaml"
    file.write_text(yaml.safe_dump(tuning.long_study(runs)))
    plan = parse_request([f"recipe={file}", f"cifar10={tmp_path}"]).plan
    long = [task for task in plan.values() if task.part == "long"]
    chosen = {arm: [t.values["optim.lr"] for t in long if t.arm == arm] for arm in arms}
    assert chosen == {arm: [3e-4, 1e-3] for arm in arms} | {arms[1]: [1e-2, 3e-4]}
    (mpp, _) = (task.options for task in long if task.arm == "mpp")
    assert (mpp["optim.steps"], mpp["optim.warmup"]) == ("1500", "150")


def test_the_plan_of_methods_has_the_steps_of_its_study(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    (row,) = re.findall(r"\| that is, in steps \| (.*) \|", page)
    named = dict(one.rsplit(" ", 1) for one in row.split(", "))
    plan = parse_request(["recipe=study/methods", f"cifar10={tmp_path}"]).plan
    steps = {
        task.options["recipe"]: f"{int(task.options['optim.steps']):,}"
        for task in plan.values()
        if task.part == "pretrain"
    }
    assert {key.lower().replace(" ", "_").replace("-", ""): n for key, n in named.items()} == steps


def test_the_table_marks_what_was_chosen_and_an_edge() -> None:
    rows = [*tries("dino", {1e-4: 0.21, 1e-3: 0.2}), *tries("mae", {1e-4: 0.1, 1e-3: 0.1})]
    dino, mae = tuning.table(rows).splitlines()[2:]
    assert dino == "| dino | 2 | [21.0: 0.0001, an end of the grid] | - | 2 |"
    assert mae.startswith("| mae | 2 | [10.0: 0.0001")


@pytest.mark.parametrize("name", ["methods_tuning", "gap"])
def test_what_cannot_go_on_is_said_in_one_line(name: str, tmp_path: Path) -> None:
    rows = tries("dino", {1e-4: 0.21, 1e-3: 0.2})
    runs = finished(tmp_path / "runs", name, rows)
    (runs / rows[0]["name"] / "result.json").unlink()
    with pytest.raises(SystemExit) as left:
        tuning.long_study(runs)
    expected = (
        "not finished: short-dino-10-lr=0.0001" if name != "gap" else "study gap; expected one"
    )
    assert expected in str(left.value) and "\n" not in str(left.value)
