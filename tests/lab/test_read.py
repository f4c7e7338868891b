"""A study's file: what is read of it, and the first mistake in one line."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.refusals import refusal
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
    ("titel", "x", "titel: "),
    ("title", ..., "title: "),
    ("runs", {}, "runs: "),
    ("runs/final/optoins", {}, "runs.final: optoins: "),
    ("runs/final/tool", ..., "runs.final.tool: "),
    ("runs/final/tool", "finetun", "runs.final.tool: finetun: expected 'pretrain', 'finetune'"),
    ("runs/final/options/init", "{pretrian}", "runs.final: pretrian: "),
    ("runs/final/options/init", "{tune}", "runs.final: {tune}: "),
    ("runs/final/options/seed", 3, "runs.final.options: seed: 3: "),
    ("runs/final/best", "tunes", "runs.final.best: tunes: "),
    ("runs/final/best", "pretrain", "runs.final.best: pretrain: "),
    ("runs/final/best", {"by": "loss"}, "runs.final.best.of: "),
    ("runs/final/best", {"of": "tune", "by": "top1"}, "runs.final.best.by: top1: "),
    ("runs/final/over", ["arms"], "runs.final.over: arms: "),
    ("runs/final/over", ["arm", "arm"], "runs.final.over: arm "),
    ("runs/final/over", [], "runs.final: "),
    ("runs/final/only", {"share": ["x"]}, "runs.final.only: share: "),
    ("runs/final/only", {"arm": ["c"]}, "runs.final.only.arm: c: "),
    ("runs/final/only", {"arm": []}, "runs.final.only.arm: "),
    ("runs/tune/try", {"optim.lr": 0.1}, "runs.tune.try: optim.lr: "),
    ("runs/tune/try", {"optim.lr": [0.1, 0.1]}, "runs.tune.try: optim.lr: [0.1, 0.1]: "),
    ("runs/tune/seeds", [True], "runs.tune.seeds: [True]: "),
    ("runs/untrained", PRETRAIN, "runs: untrained: "),  # the run of untrained weights
    ("options", {"plugin": "own.py"}, "options: plugin: own.py: "),
    ("axes", ["arm"], "axes: "),
    ("axes/arm", {}, "axes.arm: "),
    ("axes/arm/a", {"pretrain": {"out": "x"}}, "axes.arm.a.pretrain: out: x: "),
    ("axes/arm/a", {"pretrian": {}}, "axes.arm.a: pretrian: "),
    ("axes/arm/a", {"final@10%": {}}, "axes.arm.a.final@10%: 10%: "),
    ("axes/arm/a", {"all@b": {}}, "axes.arm.a: all: "),
    ("axes/arm/a b", {}, "axes.arm: a b: "),
    ("axes/metric", {"a": {}}, "axes: metric: "),  # a column of the results
    ("axes/share", {"1%": {}}, "axes.share: "),
    (
        "",
        {"axes": STUDY["axes"] | {"share": SHARE}, "runs": STUDY["runs"] | {"final": OVER_BOTH}},
        "axes.share.1%.pretrain: ",
    ),
    (
        "",
        {
            "match": {"exaflop": "share"},
            "axes": STUDY["axes"] | {"share": {"1%": {}}},
            "runs": STUDY["runs"] | {"final": OVER_BOTH},
        },
        "match.exaflop: share: ",
    ),
    ("match", {"steps": "arm"}, "match: steps: "),
    ("match", {"exaflop": "arms"}, "match.exaflop: arms: "),
    ("seeds", 0, "seeds: 0: "),
    ("seeds", ["a"], "seeds: ['a']: "),
    ("seeds", [1, 1], "seeds: [1, 1]: "),
    ("seeds", [10**22], f"seeds: [{10**22}]: "),
    ("places", {"a": 1}, "places: "),
    ("places", ["final"], "places: final: "),
    ("places", ["seed"], "places: seed: "),
    ("report/test", ..., "report.test: "),
    ("report/test", "fianl", "report.test: fianl: "),
    ("report/test", "tune", "report.test: tune: "),
    ("report/baseline", "c", "report.baseline: c: "),
    ("report/pairs", ["a:a"], "report.pairs: a:a: "),
    ("report/pairs", ["a:c"], "report.pairs: c: "),
    ("report/pairs", ["a:b", "b:a"], "report.pairs: b:a: "),
    ("report/paper", {"a": "high"}, "report.paper.a: high: "),
    ("report/mean_over", "set", "report.mean_over: set: "),
    ("report/mean_over", {"arm": {"all": ["a", "c"]}}, "report.mean_over.arm.all: c: "),
    ("report/beside", ["prob"], "report.beside: prob: "),
]


@pytest.mark.parametrize(("path", "value", "says"), MISTAKES, ids=[one[2] for one in MISTAKES])
def test_the_first_mistake_is_one_line_with_its_place(path: str, value: Any, says: str) -> None:
    content = changed(path, value) if path else STUDY | value
    assert refusal(build, content, "mine.yaml").startswith(f"mine.yaml: {says}")


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c")])
def test_a_circle_of_runs_is_named(names: tuple[str, ...]) -> None:
    others = zip(names, [*names[1:], names[0]], strict=True)
    runs = {name: {"tool": "evaluate", "options": {"init": f"{{{o}}}"}} for name, o in others}
    said = refusal(build, {"title": "t", "runs": runs | {"aside": {"tool": "pretrain"}}}, "x")
    named = said.removeprefix("x: runs: ").rpartition(": ")[2].partition(".")[0].split(" -> ")
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
    shared = {"optim.betas": [0.9, 0.95], "optim.clip": None, "eval.test": False}
    assert found == shared | {"optim.lr": 0.001}


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
    assert (at_a.options["optim.steps"], at_a.options["data.share"]) == (6, 0.01)
    assert (at_a.options["optim.lr"], at_a.tries) == (9, {})
    at_b = settings_at(found, "final", {"arm": "b", "share": "1%"})
    assert at_b.options["optim.steps"] == 7 and "optim.lr" not in at_b.options
    assert at_b.tries == {"optim.lr": [1, 2]}


def test_an_error_of_yaml_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("title: x\nruns: [\n")
    assert re.search(r"mine\.yaml: .*line 3", refusal(read, path))
