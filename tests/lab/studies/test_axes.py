"""Studies as products of axes: where each task lies, and what an axis over any key needs."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from helpers.options import ROOT
from ssl_vit.config import records
from ssl_vit.config.records.study import StudyPlan
from ssl_vit.errors import UserError
from ssl_vit.lab.studies import record, task_recipes
from ssl_vit.lab.studies.axes import Setting, keys_axis, product
from ssl_vit.lab.studies.expand import Plan, tasks
from ssl_vit.lab.studies.read_study import build
from ssl_vit.lab.studies.request import parse_request, with_places

STUDIES = sorted(path.stem for path in (ROOT / "recipes" / "study").glob("*.yaml"))
PRETRAIN = {"tool": "pretrain", "options": {"recipe": "mpp"}}
FINAL = {"tool": "finetune", "options": {"recipe": "finetune", "init": "{pretrain}"}}


def planned(raw: dict[str, Any], places: dict[str, str] | None = None) -> Plan:
    return tasks(build({"title": "x"} | raw, "x"), places or {}, {})


def coordinates(plan: Plan) -> dict[str, dict[str, Any]]:
    return {name: task.coordinates for name, task in plan.items()}


def test_a_product_has_every_combination_in_the_order_of_the_file() -> None:
    rate = keys_axis("corruption.rate", [{"corruption.rate": 0.1}, {"corruption.rate": 0.5}], "x")
    both = keys_axis("both", [{"optim.lr": 1, "optim.wd": 0}, {"optim.lr": 2, "optim.wd": 3}], "x")
    found = product([rate, both])
    assert [setting.label for setting in found] == [
        "rate=0.1-lr=1-wd=0",
        "rate=0.1-lr=2-wd=3",
        "rate=0.5-lr=1-wd=0",
        "rate=0.5-lr=2-wd=3",
    ]
    assert found[1].options == {"corruption.rate": 0.1, "optim.lr": 2, "optim.wd": 3}
    assert product([]) == [Setting()]
    assert both.keys == {"optim.lr", "optim.wd"}


def test_a_task_lies_along_the_curve_the_arms_and_the_grid() -> None:
    sweep = FINAL | {"seeds": [0], "grid": {"optim.lr": [0.1, 0.2]}}
    final = FINAL["options"] | {"data.share": "{share}"}
    parts = {
        "pretrain": PRETRAIN,
        "sweep": sweep,
        "final": {"tool": "finetune", "options": final},
    }
    raw = {
        "vary": {"corruption.rate": [0.15, 0.5]},
        "labels": [{"share": 0.1}, {"share": 1}],
        "parts": parts,
        "report": {"final": "final"},
    }
    found = coordinates(planned(raw | {"seeds": [0, 1]}))
    assert len(found) == 2 * 2 + 2 * 2 + 2 * 2 * 2
    assert found["pretrain-rate=0.5-1"] == {"corruption.rate": 0.5}
    assert found["sweep-rate=0.15-0-lr=0.2"] == {"corruption.rate": 0.15, "optim.lr": 0.2}
    assert found["final_0.1-rate=0.15-1"] == {"corruption.rate": 0.15, "labels": 0.1}
    assert found["final_1-rate=0.5-0"] == {"corruption.rate": 0.5, "labels": 1}


@pytest.mark.parametrize(
    ("of", "key", "settings", "match"),
    [
        ("images", "data.share", [{"share": 0.1}, {"share": 1}], "steps"),
        ("compute", "optim.steps", [{"steps": 300}, {"steps": 900}], "exaflop"),
    ],
)
def test_a_curve_of_pre_training_is_an_axis_of_its_name(
    of: str, key: str, settings: list[dict[str, Any]], match: str
) -> None:
    (along,) = settings[0]
    pretrain = {"recipe": "mpp", "optim.warmup": 0, key: f"{{{along}}}"}
    raw = {
        "arms": {"a": "one", "b": "other"},
        "match": match,
        of: settings,
        "parts": {
            "pretrain": {
                "tool": "pretrain",
                "options": pretrain,
                "by_arm": {"a": {}, "b": {"target": "pixels"}},
            },
            "final": FINAL,
        },
        "report": {"final": "final", "baseline": "a", "candidate": "b"},
    }
    plan = planned(raw)
    for setting in settings:
        value = setting[along]
        task = plan[f"final_{value}-b-0"]
        assert task.coordinates == {of: value} and task.needs == (f"pretrain_{value}-b-0",)


def test_named_settings_lie_where_their_keys_say() -> None:
    vary = [{"name": "base"}, {"name": "wide", "model.width": 192, "model.mlp": 768}]
    plan = planned({"vary": vary, "parts": {"pretrain": PRETRAIN}})
    assert coordinates(plan) == {
        "pretrain-base-0": {},
        "pretrain-wide-0": {"model.width": 192, "model.mlp": 768},
    }


def test_varied_keys_can_be_set_together_as_those_of_a_grid() -> None:
    mixing = [{"data.mixup": 0, "data.cutmix": 0}, {"data.mixup": 0.8, "data.cutmix": 1}]
    parts = {"pretrain": {"tool": "pretrain", "options": {"recipe": "supervised"}}}
    plan = planned({"vary": {"optim.lr": [0.1, 0.2], "mixing": mixing}, "parts": parts})
    assert [task.arm for task in plan.values()] == [
        f"lr={lr},mixup={mixup},cutmix={cutmix}"
        for lr in (0.1, 0.2)
        for mixup, cutmix in ((0.0, 0.0), (0.8, 1.0))
    ]


def test_the_tasks_of_a_benchmark_are_an_axis() -> None:
    plan = parse_request(with_places(["recipe=study/vtab", "seeds=1"])).plan
    assert plan["final-dtd-0"].coordinates == {"task": "dtd"}


@pytest.mark.parametrize("name", STUDIES)
def test_part_arm_coordinates_and_seed_tell_tasks_apart(name: str) -> None:
    plan = parse_request(with_places([f"recipe=study/{name}"])).plan
    found = Counter(
        (task.part, task.arm, json.dumps(task.coordinates, sort_keys=True), task.seed)
        for task in plan.values()
    )
    assert set(found.values()) == {1}
    assert all(task.values.items() <= task.coordinates.items() for task in plan.values())


IMAGE_SIZES = """title: how large an image
extends: study/masking_rate
vary: {data.size: [16, 32, 64]}
parts:
  final:
    tool: finetune
    options: {recipe: finetune, init: "{pretrain}", data.size: "{data.size}", optim.steps: 20,
        optim.warmup: 2}
  probe: {options: {data.size: "{data.size}"}}
report: {final: final, probes: [probe], measure: few_shot_100}
"""


def test_an_axis_over_image_sizes_is_a_study_file(tmp_path: Path) -> None:
    (tmp_path / "image_size.yaml").write_text(IMAGE_SIZES)
    request = parse_request([f"recipe={tmp_path}/image_size.yaml", "seeds=1"])
    recipes = task_recipes.check(request.study, request.plan)
    assert {name: recipes[name].data.size for name in recipes} == {
        f"{part}-size={size}-0": size
        for part in ("pretrain", "final", "probe")
        for size in (16, 32, 64)
    }
    assert {name: task.coordinates["data.size"] for name, task in request.plan.items()} == {
        name: recipe.data.size for name, recipe in recipes.items()
    }


def test_a_varied_key_in_braces_is_its_value_unless_a_part_has_its_name() -> None:
    probe = {"tool": "evaluate", "options": {"recipe": "evaluate", "init": "{model}"}}
    vary = {"model": ["vit_n8", "vit_p8"], "data.size": [16, 32]}
    parts = {"model": PRETRAIN, "probe": probe}
    parts["probe"]["options"] |= {"data.size": "{data.size}"}
    plan = planned({"vary": vary, "parts": parts})
    options = plan["probe-model=vit_p8,size=32-0"].options
    assert options["init"] == "{model-model=vit_p8,size=32-0}" and options["data.size"] == "32"


def test_study_json_says_where_a_task_lies_and_goes_on_without(tmp_path: Path) -> None:
    """One of an earlier version has no coordinates."""
    request = parse_request(["recipe=study/labels", "seeds=1"])
    path = tmp_path / "study.json"
    record.write_plan(request.study, "labels", request.plan, tmp_path)
    there = {task.name: task.coordinates for task in records.read(path, StudyPlan).tasks}
    assert there == coordinates(request.plan)
    assert there["final_0.1-mpp-0"] == {"labels": 0.1} and there["pretrain-mpp-0"] == {}
    whole = path.read_text()
    old = json.loads(whole)
    for task in old["tasks"]:
        del task["coordinates"]
    path.write_text(json.dumps(old))
    assert {task.coordinates for task in records.read(path, StudyPlan).tasks} == {None}
    record.write_plan(request.study, "labels", request.plan, tmp_path)
    assert path.read_text() == whole


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"grid": {"data.path": ["q/x", "q_x"]}}, "part sweep, arm a: two values of its grid give"),
        ({"grid": {"seed": [3, 4]}}, "grid: seed: that is the study's seeds; leave it out"),
        ({"grid": {"out": ["a", "b"]}}, "grid: out: that is the study's folder; leave it out"),
    ],
)
def test_a_grid_loses_no_task(raw: dict[str, Any], says: str) -> None:
    """Runs of one name were one run; a grid of seeds had one seed."""
    parts = {"sweep": PRETRAIN | raw}
    with pytest.raises(UserError, match=re.escape(says)):
        planned({"arms": {"a": "x"}, "parts": parts, "seeds": [0]})


@pytest.mark.parametrize("arms", [{1: "x"}, {True: "x", "b": "y"}, {0.5: "x"}])
def test_an_arm_that_yaml_reads_as_a_number_is_one_line(arms: dict[Any, str]) -> None:
    with pytest.raises(UserError, match=r"arms: .*: expected a name of letters"):
        planned({"arms": arms, "parts": {"pretrain": PRETRAIN}})
