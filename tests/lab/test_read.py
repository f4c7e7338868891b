"""A study's file: what is read of it, and the first mistake in one line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_vit.errors import UserError
from ssl_vit.lab.study.read import build, read, settings_at

PRETRAIN = {"tool": "pretrain", "over": ["arm"], "options": {"recipe": "mpp"}}
FINAL = {
    "tool": "finetune",
    "over": ["arm"],
    "options": {"recipe": "finetune", "init": "{pretrain}"},
}
TUNE = FINAL | {"try": {"optim.lr": [0.1, 0.3]}}
STUDY: dict[str, Any] = {
    "title": "made up",
    "axes": {"arm": {"a": {"pretrain": {"optim.lr": 0.1}}, "b": {"pretrain": {"optim.lr": 0.2}}}},
    "runs": {"pretrain": PRETRAIN, "tune": TUNE, "final": FINAL | {"best": "tune"}},
    "report": {"test": "final", "baseline": "a"},
}


def changed(path: str, value: Any, study: Any = None) -> dict[str, Any]:
    """The study with another value at a/path; ... removes it."""
    key, _, rest = path.partition("/")
    found = dict(STUDY if study is None else study)
    if rest:
        found[key] = changed(rest, value, found.get(key, {}))
    elif value is ...:
        del found[key]
    else:
        found[key] = value
    return found


SHARE = {"1%": {"pretrain": {"data.share": 0.01}}}
OVER_BOTH = FINAL | {"over": ["arm", "share"]}
# (place, value, the key and what is expected), each of the study with that alone changed
MISTAKES: list[tuple[str, Any, str]] = [
    ("titel", "x", "titel: no such key; did you mean title?"),
    ("title", ..., "title: is missing"),
    ("runs", {}, "runs: is missing"),
    ("runs/final/optoins", {}, "runs.final: optoins: no such key; did"),
    ("runs/final/tool", ..., "runs.final.tool: is missing"),
    ("runs/final/tool", "finetun", "runs.final.tool: finetun: expected 'pretrain', 'finetune'"),
    ("runs/final/options/init", "{pretrian}", "runs.final: pretrian: no such run or place; did"),
    ("runs/final/options/init", "{tune}", "runs.final: {tune}: has several runs"),
    ("runs/final/options/seed", 3, "runs.final.options: seed: 3: that is the study's seeds"),
    ("runs/final/best", "tunes", "runs.final.best: tunes: no such run"),
    ("runs/final/best", "pretrain", "runs.final.best: pretrain: expected a run that has `try`"),
    ("runs/final/best", {"by": "loss"}, "runs.final.best.of: is missing"),
    ("runs/final/best", {"of": "tune", "by": "top1"}, "runs.final.best.by: top1: is of the test"),
    ("runs/final/over", ["arms"], "runs.final.over: arms: no such axis; did you"),
    ("runs/final/over", ["arm", "arm"], "runs.final.over: arm is there twice"),
    (
        "runs/final/over",
        [],
        "runs.final: pretrain is over arm, which final is not; expected over: ",
    ),
    ("runs/final/only", {"share": ["x"]}, "runs.final.only: share: no such axis of the run"),
    ("runs/final/only", {"arm": ["c"]}, "runs.final.only.arm: c: no such name of arm; choices: a"),
    ("runs/final/only", {"arm": []}, "runs.final.only.arm: expected names of the axis"),
    ("runs/tune/try", {"optim.lr": 0.1}, "runs.tune.try: optim.lr: expected a list of values"),
    ("runs/tune/try", {"optim.lr": [0.1, 0.1]}, "runs.tune.try: optim.lr: [0.1, 0.1]: a value is"),
    ("runs/tune/seeds", [True], "runs.tune.seeds: [True]: expected how many"),
    ("runs/untrained", PRETRAIN, "runs: untrained: expected another"),  # the run of fresh weights
    (
        "options",
        {"plugin": "own.py"},
        "options: plugin: own.py: that is the command line's (study.py recipe=THIS plugin=FILE)",
    ),
    ("axes", ["arm"], "axes: expected a mapping, not ['arm']"),
    ("axes/arm", {}, "axes.arm: expected names, each with the options of"),
    ("axes/arm/a", {"pretrain": {"out": "x"}}, "axes.arm.a.pretrain: out: x: that is the study's"),
    ("axes/arm/a", {"pretrian": {}}, "axes.arm.a: pretrian: no such run; did you mean pretrain?"),
    ("axes/arm/a", {"final@10%": {}}, "axes.arm.a.final@10%: 10%: no such name of another axis"),
    ("axes/arm/a", {"all@b": {}}, "axes.arm.a: all: no such run"),
    ("axes/arm/a b", {}, "axes.arm: a b: expected a name of letters, digits"),
    ("axes/metric", {"a": {}}, "axes: metric: expected another name"),  # a column of the results
    ("axes/share", {"1%": {}}, "axes.share: no run is over it"),
    (
        "",
        {"axes": STUDY["axes"] | {"share": SHARE}, "runs": STUDY["runs"] | {"final": OVER_BOTH}},
        "axes.share.1%.pretrain: pretrain is not over share, so no run has these options",
    ),
    (
        "",
        {
            "match": {"exaflop": "share"},
            "axes": STUDY["axes"] | {"share": {"1%": {}}},
            "runs": STUDY["runs"] | {"final": OVER_BOTH},
        },
        "match.exaflop: share: no run that pre-trains is over it",
    ),
    ("match", {"steps": "arm"}, "match: steps: no such key; choices: exaflop"),
    ("match", {"exaflop": "arms"}, "match.exaflop: arms: no such axis"),
    ("seeds", 0, "seeds: 0: expected how many"),
    ("seeds", ["a"], "seeds: ['a']: expected how many, or a list of"),
    ("seeds", [1, 1], "seeds: [1, 1]: expected how many, or a list of different"),
    ("seeds", [10**22], f"seeds: [{10**22}]: expected how many, or"),
    ("places", {"a": 1}, "places: expected a list, not {'a': 1}"),
    ("places", ["final"], "places: final is a run too; take another name"),
    ("places", ["seed"], "places: seed: expected another name, of"),
    ("report/test", ..., "report: test: is missing; expected a run"),
    ("report/test", "fianl", "report.test: fianl: no such run; did"),
    ("report/test", "tune", "report.test: tune: tries values, which the"),
    ("report/baseline", "c", "report.baseline: c: no such name that is com"),
    ("report/pairs", ["a:a"], "report.pairs: a:a: expected two different names"),
    ("report/pairs", ["a:c"], "report.pairs: c: no such name that is"),
    ("report/pairs", ["a:b", "b:a"], "report.pairs: b:a: is there the other way"),
    ("report/paper", {"a": "high"}, "report.paper.a: high: expected"),
    ("report/mean_over", "set", "report.mean_over: set: no such axis of"),
    ("report/mean_over", {"arm": {"all": ["a", "c"]}}, "report.mean_over.arm.all: c: no such name"),
    ("report/beside", ["prob"], "report.beside: prob: no such run"),
]


@pytest.mark.parametrize(("path", "value", "says"), MISTAKES, ids=[one[2] for one in MISTAKES])
def test_the_first_mistake_is_one_line_with_its_place(path: str, value: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        build(changed(path, value) if path else STUDY | value, "mine.yaml")
    assert str(caught.value).startswith(f"mine.yaml: {says}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c")])
def test_a_circle_of_runs_is_named(names: tuple[str, ...]) -> None:
    others = zip(names, [*names[1:], names[0]], strict=True)
    runs = {name: {"tool": "evaluate", "options": {"init": f"{{{o}}}"}} for name, o in others}
    with pytest.raises(UserError, match="they need one another in a circle: ") as caught:
        build({"title": "t", "runs": runs | {"aside": {"tool": "pretrain"}}}, "x")
    named = str(caught.value).rpartition(": ")[2].split(" -> ")
    assert {*named} == {*names} and named[0] == named[-1]


def test_names_that_yaml_reads_as_numbers_are_texts(tmp_path: Path) -> None:
    axes = {"rate": {0.15: {"pretrain": {"corruption.rate": 0.15}}, 2: {}, True: {}}}
    runs = {"pretrain": {"tool": "pretrain", "over": "rate", "only": {"rate": [0.15, 2]}}}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"title": "t", "seeds": 3, "axes": axes, "runs": runs}))
    found = read(path)
    assert [*found.axes["rate"]] == ["0.15", "true", "2"]
    assert found.names("pretrain", "rate") == ("0.15", "2") and found.seeds == (0, 1, 2)


def test_options_are_as_on_a_command_line() -> None:
    own = {"optim": {"betas": [0.9, 0.95], "clip": None}, "eval.test": False, "optim.lr": 1.0e-3}
    found = build(changed("runs/pretrain/options", own), "x").runs["pretrain"].options
    shared = {"optim.betas": "[0.9,0.95]", "optim.clip": "null", "eval.test": "false"}
    assert found == shared | {"optim.lr": "0.001"}


def test_the_later_axis_goes_over_the_earlier_and_a_run_at_a_name_over_both() -> None:
    share = {
        "1%": {
            "all": {"data.share": 0.01, "optim.steps": 5},
            "final": {"optim.steps": 6},
            "final@b": {"optim.steps": 7, "try": {"optim.lr": [1, 2]}},
        },
    }
    raw = STUDY | {"axes": STUDY["axes"] | {"share": share}, "report": {}}
    raw["runs"] = {"final": FINAL | {"over": ["share", "arm"]}, "pretrain": PRETRAIN}
    raw["options"] = {"optim.steps": 3, "optim.lr": 9, "data.size": 32}
    found = build(raw, "x")
    assert found.runs["final"].over == ("arm", "share")  # in the order of the axes
    at_a = settings_at(found, "final", {"arm": "a", "share": "1%"})
    assert (at_a.options["optim.steps"], at_a.options["data.share"]) == ("6", "0.01")
    assert (at_a.options["optim.lr"], at_a.tries) == ("9", {})
    at_b = settings_at(found, "final", {"arm": "b", "share": "1%"})
    assert at_b.options["optim.steps"] == "7" and "optim.lr" not in at_b.options
    assert at_b.tries == {"optim.lr": [1, 2]}


def test_an_error_of_yaml_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("title: x\nruns: [\n")
    with pytest.raises(UserError, match=r"mine\.yaml: .*line 3") as caught:
        read(path)
    assert "\n" not in str(caught.value)
