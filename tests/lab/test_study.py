"""The study tool: its options, sweeps, what a study's folder keeps when the study changes, and tiny
studies to their end."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import ssl_vit
from helpers.images import put
from helpers.made_studies import alter, with_metric
from helpers.options import LOADED, ROOT
from helpers.refusals import refusal
from helpers.resolving import parse_python, parse_request
from helpers.serial_launcher import Serial
from ssl_vit.errors import UserError
from ssl_vit.lab import compare, results
from ssl_vit.lab.study import record, tool
from ssl_vit.lab.study.launch import LaunchOutcome, best_values
from ssl_vit.lab.study.options import LAUNCHERS, LauncherEntry
from ssl_vit.recipe import declaration
from ssl_vit.recipe.given import Arguments, from_words

LOADED_OPTIONS = from_words(LOADED).values
TINY = {"model.patch": 4, "model.width": 32, "model.depth": 1, "model.heads": 2, "model.mlp": 32}
SHORT = {"optim.steps": 2, "optim.batch": 8, "optim.warmup": 1, "eval.every": 2, "eval.images": 24}
TUNED = {"recipe": "finetune", "init": "{pretrain}", "data.share": 0.02, **SHORT}
TUNE = {
    "tool": "finetune",
    "over": ["arm"],
    "try": {"optim.lr": [1.0e-9, 1.0e-8]},
    "options": TUNED | {"data.validation": "validation", "eval.test": False},
}
STUDY: dict[str, Any] = {
    "title": "tiny",
    "axes": {"arm": {"mpp": {"pretrain": {"recipe": "mpp", "corruption.rate": 0.2}}}},
    "options": {"data.size": 16, **LOADED_OPTIONS},
    "runs": {
        "pretrain": {"tool": "pretrain", "over": ["arm"], "options": {**TINY, **SHORT}},
        "tune": TUNE,
        "final": {"tool": "finetune", "over": ["arm"], "best": "tune", "options": TUNED},
        "frozen": {
            "tool": "evaluate",
            "over": ["arm"],
            "options": {"recipe": "evaluate", "init": "{pretrain}", "data.share": 0.02}
            | {"probe.measures": ["knn"], "probe.neighbors": 2},
        },
    },
    "report": {"test": "frozen", "measures": ["knn"]},
}
TRIES = ["tune-mpp-0-lr=1e-09", "tune-mpp-0-lr=1e-08"]
NAMES = ["pretrain-mpp-0", *TRIES, "final-mpp-0", "frozen-mpp-0"]


@pytest.fixture(autouse=True)
def serial(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tasks that were run."""
    monkeypatch.setitem(LAUNCHERS, "local", LauncherEntry("helpers.serial_launcher:Serial", True))
    monkeypatch.setattr(Serial, "started", [])
    return Serial.started


def written(folder: Path, study: dict[str, Any]) -> list[str]:
    """The words that start a study from its file."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(study))
    return [f"recipe={path}", f"out={folder}"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny study, run to its end."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LAUNCHERS, "local", LauncherEntry("helpers.serial_launcher:Serial", True))
        outcome = tool.study(Arguments(written(folder, STUDY)))
    assert outcome.failed == {} and sorted(outcome.finished) == sorted(NAMES)
    return folder


@pytest.fixture
def ended(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, in another place."""
    shutil.copytree(finished / "tiny", tmp_path / "tiny")
    return tmp_path


# {words: the key and what is expected}; of the tiny study where they name no recipe
WRONG = {
    "paralel=2": "did you mean parallel?",
    "optim.step=2": "did you mean optim.steps?",
    "optim.lr=1": "optim.lr=1: run tune ",
    "optim.steps=0": "run pretrain, arm mpp: optim.steps=0",
    "optim.steps=0 --check": "run pretrain, arm mpp: optim.steps=0",
    "ibot.own_head=--x": "ibot.own_head=--x: no run",
    "data.path={final}": "data.path={final}: ",
    "seed=1": "seed=1: ",
    "seed=0,1": "seeds=0,1",
    "init=scratch": "key init",
    "seeds=0": "seeds=0: ",
    "seeds=1,1": "seeds=1,1: ",
    "seeds=1000000000": "seeds=1000000000: ",
    "seeds=x": "seeds=x: ",
    "launcher=slrm": "did you mean slurm?",
    "slurm=--time=1": "slurm=--time=1: is of another launcher",
    "match=exaflop": "match=exaflop: ",
    "only=final": "only= and index= ",
    "index=0": "only= and index= ",
    "name=../x": "name=../x",
    "recipe=study/ga": "did you mean study/gap?",
    "recipe=/no/such.yaml": "recipe=/no/such.yaml: ",
    "recipe=mpp": "recipe=mpp: ",
    "recipe=mpp sweep corruption.rat=1,2": "did you mean corruption.rate?",
    "recipe=mpp sweep supervised.smoothing=0,0.1": "supervised.smoothing=0: has no effect with objective=mpp",
    "recipe=mpp sweep corruption.rate=0.1": "corruption.rate=0.1: ",
    "recipe=mpp sweep corruption.rate=0.1,0.1": "corruption.rate=0.1,0.1: a value appears twice",
    "recipe=mpp sweep corruption.rate=0.1,": "corruption.rate=0.1,: ",
    "recipe=mpp sweep corruption.rate=a,b": "corruption.rate=a: ",
    "recipe=mpp sweep corruption.rate=0.5,7": "corruption.rate 7: corruption.rate=7",
    "recipe=mpp sweep seeds=2": "sweep: ",
    "recipe=study/gap sweep optim.lr=1,2": "recipe=study/gap: ",
    "recipe=evaluate sweep probe.layer=1,2": "recipe=evaluate: ",
    "recipe=study/gap hours=3": "hours=3: only recipe=study/worth ",
    "recipe=study/worth dry=true": "recipe=study/worth: ",
    "recipe=study/worth device=h100 --check": "device=h100: ",
}


@pytest.mark.parametrize(("words", "says"), WRONG.items(), ids=WRONG)
def test_a_mistake_is_one_line_and_starts_nothing(
    words: str, says: str, tmp_path: Path, serial: list[str]
) -> None:
    tiny = written(tmp_path, STUDY)
    tiny = tiny[1:] if "recipe=" in words else tiny
    assert says in refusal(tool.main, [*tiny, *words.split()])
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"] and serial == []


def test_studies_are_found_by_name_or_by_file() -> None:
    assert parse_request(["recipe=study/gap"]).name == "gap"
    said = refusal(parse_request, [])
    assert said.startswith("recipe= ") and ": study/figure4, " in said


@pytest.mark.parametrize(("text", "seeds"), [("3", {0, 1, 2}), ("0,2", {0, 2}), ("5,", {5})])
def test_seeds(text: str, seeds: set[int], tmp_path: Path) -> None:
    found = parse_request([*written(tmp_path, STUDY), f"seeds={text}"])
    assert {task.seed for task in found.tasks.values()} == seeds


def test_places_are_whole_paths_and_null_is_none_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "enc").mkdir()
    words = ["recipe=study/table4", "init=enc", "cifar10=enc", "imagenet=null"]
    assert f"init={tmp_path}/enc: " in refusal(parse_request, words)
    said = refusal(parse_request, written(tmp_path, STUDY | {"places": ["out"]}))
    assert said.startswith("places: out: ")


def test_mistakes_are_answered_in_one_line_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('torch is imported')\n")
    words = ["recipe=study/masking_rate", "optim.steps=0", f"out={tmp_path}/runs"]
    command = [sys.executable, "tools/study.py", *words]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: run pretrain, rate 0.05: optim.steps=0")


# ---- sweeps


def swept(*words: str) -> Any:
    return parse_request(["recipe=mpp", *words])


def test_a_sweep_pre_trains_and_measures_each_value() -> None:
    words = ["optim.steps=200", "probe.shots=[5]", "sweep", "corruption.rate=0.15,0.3,0.5"]
    found = swept(*words, "seeds=2", "compute.threads=1")
    assert found.name == "mpp-optim.steps=200-sweep-corruption.rate"
    assert len(found.tasks) == 2 * 3 * 2 and found.study.report.test == "probe"
    for task in found.tasks.values():
        rate, is_trained = task.at["corruption.rate"], task.run == "pretrain"
        assert task.options.get("corruption.rate") == (float(rate) if is_trained else None)
        assert ("probe.shots" in task.options) != is_trained
    shared = {"recipe": "evaluate", "data": "shapes", "probe.shots": [5], "compute.threads": 1}
    assert found.tasks["probe-0.3-1"].options == shared | {"init": "{pretrain-0.3-1}"}


def test_several_keys_are_several_axes() -> None:
    """Also a list, a preset, and the arguments of a builder, whose braces name no run."""
    betas = "optim.betas=[0.9,0.95],[0.9,0.999]"
    found = swept("sweep", betas, "model=vit_n8,vit_p8", "seeds=1")
    assert found.name == "mpp-sweep-optim.betas-model"
    trained = [task.options for task in found.tasks.values() if task.run == "pretrain"]
    assert {(*one["optim.betas"], one["model"]) for one in trained} == {
        (0.9, beta, model) for beta in (0.95, 0.999) for model in ("vit_n8", "vit_p8")
    }
    assert found.study.names("probe", "optim.betas") == ("0.9,0.95", "0.9,0.999")
    values = [{"qkv_bias": True, "layers": [1, 2]}, {"qkv_bias": False}]
    sweep = {"model": {"args": values}}
    tasks = parse_python(recipe="mpp", seeds=1, sweep=sweep).tasks.values()
    assert [task.options["model.args"] for task in tasks if not task.needs] == values


def test_what_measures_reads_all_of_the_recipes_images(tmp_path: Path) -> None:
    """Also those that the recipe's file names; the share that is trained on and the crop are the
    pre-training's own."""
    for kind in ("cat", "dog"):
        put(tmp_path / "images" / kind, 20)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        f"objective: mpp\nmodel: vit_n8\ndata: {{name: mine, path: {tmp_path}/images, size: 48, "
        f"test: 0.2, share: 0.5}}\n"
        "optim: {steps: 9, lr: 1.0e-3, batch: 8}\n"
    )
    found = parse_request([f"recipe={recipe}", "sweep", "data.crop_area=0.1,0.5"])
    options = found.tasks["probe-0.1-0"].options
    data = {key: value for key, value in options.items() if key.startswith("data")}
    own = {"data.size": 48, "data.test": 0.2, "data.eval_crop": 0.875}
    assert data == own | {"data.path": f"{tmp_path}/images"}


def test_where_images_have_no_labels_the_held_out_loss_is_compared(tmp_path: Path) -> None:
    put(tmp_path / "images", 30)
    words = [f"data.path={tmp_path / 'images'}", "data.validation=0.2"]
    found = swept(*words, "sweep", "optim.lr=0.001,0.003")
    assert [*found.tasks] == ["pretrain-0.001-0", "pretrain-0.003-0"]
    assert found.study.report.test == "pretrain" and found.study.report.measures == ("loss",)


OWN = """
from ssl_vit.recipe.declaration import declare
from ssl_vit.objectives.mpp import DECLARATION, MppDeclaration

class Own(MppDeclaration):
    name = "own_of_sweeps"

    def build(self, settings, encoder, classes):
        return DECLARATION.build(settings, encoder, classes)

declare(Own())
"""


def test_a_sweep_takes_the_plugin_that_the_command_line_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found again from any folder; what is measured needs none."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    words = ["plugin=own.py", "objective=own_of_sweeps", "sweep", "corruption.rate=0.15,0.5"]
    try:
        found = swept(*words)
    finally:
        declaration.withdraw("own_of_sweeps")
    own = str(tmp_path / "own.py")
    plugins = {(task.run, task.options.get("plugin")) for task in found.tasks.values()}
    assert plugins == {("pretrain", own), ("probe", None)}


# ---- --check


def test_a_check_prints_tasks_and_hours_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], serial: list[str]
) -> None:
    """Also of a place that is not on this machine, of which it says what was not checked."""
    options = STUDY["options"] | {"data.path": "{images}"}
    words = written(tmp_path, STUDY | {"places": ["images"], "options": options})
    # one that is not given is missed as by the start
    for more in ([], ["--check"]):
        assert "images= is missing" in refusal(tool.main, [*words, *more])
    away = f"images={tmp_path}/nothing"
    assert tool.main([*words, away, "seeds=2", "--check", "device=h100"]) == 0
    text = capsys.readouterr().out
    rows = {row[0]: row[1:] for row in map(str.split, text.splitlines())}
    assert [rows[run][0] for run in ("pretrain", "tune", "final", "frozen")] == [*"2422"]
    assert float(rows["pretrain"][2]) > 0 and rows["in"][:2] == ["all", "10"]
    assert not (tmp_path / "tiny").exists() and serial == []
    assert "warning: splits, labels and numbers of images were not checked" in text
    assert "nothing: " in refusal(tool.main, [*words, away])


def test_a_check_says_what_will_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the axis that stands first in the file, whatever the order of `over`."""
    axes = {"kind": {name: {"probe": {}} for name in "ab"}, "rate": {"1": {}, "2": {}}}
    axes["kind"]["a"]["probe"]["probe.neighbors"] = 3  # type: ignore[index]
    axes["rate"]["1"] = {"probe": {"data.share": 0.1}}
    options = {"recipe": "evaluate", "init": "scratch", "model": "vit_p8", "data": "shapes"}
    probe = {"tool": "evaluate", "over": ["rate", "kind"], "options": options}
    study = {"title": "t", "axes": axes, "runs": {"probe": probe}, "report": {"test": "probe"}}
    assert tool.main([*written(tmp_path, study), "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("compared ")]
    assert "a minus b at 1, a minus b at 2" in line and "1 minus 2" not in line
    assert "claims a difference only with 3 or more seeds" in line and "report.measures" in line
    assert any("axis rate are not compared" in line for line in lines)


def test_initial_weights_that_are_not_given_yet_are_no_fresh_ones(tmp_path: Path) -> None:
    """Nor are their encoders compared."""
    arms = {"start": {"final": {"init": "{start}"}}, "on": {"final": {"init": "{pretrain}"}}}
    final = {"tool": "finetune", "over": ["arm"], "options": {"recipe": "finetune"}}
    pretrain = {"tool": "pretrain", "options": {"recipe": "mpp", "init": "{start}"}}
    study = {"title": "t", "places": ["start"], "axes": {"arm": arms}, "report": {"test": "final"}}
    study["runs"] = {"pretrain": pretrain, "final": final}
    assert parse_request(written(tmp_path, study), stand_ins=True).cautions == []


# ---- a study to its end


def test_a_tiny_study_to_its_end(finished: Path, ended: Path, serial: list[str]) -> None:
    """And again, in another folder: nothing is run twice."""
    found = {
        path.parent.name: json.loads(path.read_text())
        for path in (finished / "tiny").glob("*/result.json")
    }
    assert sorted(found) == sorted(NAMES)
    assert found["final-mpp-0"]["total_exaflop"] > found["final-mpp-0"]["exaflop"]
    plan = record.read(finished / "tiny")
    assert {*plan.by_name} == {*NAMES} and plan.rule is not None
    values = plan.by_name["pretrain-mpp-0"].values
    assert (values["corruption.rate"], values["model.width"], values["seed"]) == (0.2, 32, 0)
    assert "optim.lr" not in plan.by_name["final-mpp-0"].values
    assert (plan.typed_in, plan.words[0]) == (str(Path.cwd()), f"recipe={finished / 'tiny.yaml'}")
    outcome = ssl_vit.study(written(ended, STUDY))
    assert (outcome.name, outcome.folder, outcome.failed) == ("tiny", ended / "tiny", {})
    report = html.escape((ended / "tiny" / "report.html").read_text())
    assert outcome._repr_html_().count(report) == 1  # what a notebook shows
    assert sorted(outcome.finished) == sorted(NAMES) and serial == []


def test_a_study_that_compares_nothing_says_why_it_has_no_report(
    tmp_path: Path, serial: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain = {"tool": "pretrain", "options": {"recipe": "mpp", "eval.knn": False, **SHORT}}
    options = {"data": "shapes", "data.size": 16, **TINY, **LOADED_OPTIONS}
    content = {"title": "alone", "options": options, "runs": {"pretrain": pretrain}}
    outcome = ssl_vit.study(written(tmp_path, content))
    assert outcome.finished == serial == ["pretrain-0"] and not outcome.failed
    assert "\nno report   " in capsys.readouterr().out
    assert outcome._repr_html_() is None


# Runs of 4 and 8 steps that share their first 2 and 4 steps with one that decays from 4 on
LENGTHS: dict[str, Any] = {
    "4": {"length": {"optim.steps": 4, "resume": "{trunk}@2"}},
    "8": {"length": {"optim.steps": 8, "resume": "{trunk}@4"}},
}
OF_LENGTHS: dict[str, Any] = {
    "title": "lengths",
    "seeds": 2,
    "axes": {"steps": LENGTHS},
    "options": {"recipe": "mpp", "optim.schedule": "wsd", "optim.decay": 0.5, "data.size": 16}
    | {**LOADED_OPTIONS, **TINY, **SHORT, "eval.knn": False},
    "runs": {
        "trunk": {
            "tool": "pretrain",
            "options": {"optim.steps": 8, "checkpoint.every": 2, "checkpoint.keep": 4},
        },
        "length": {"tool": "pretrain", "over": ["steps"]},
    },
    "report": {"test": "length", "measures": ["loss"]},
}


def test_lengths_that_share_a_trunk_are_pairs_of_it_and_take_its_steps_once(
    tmp_path: Path, serial: list[str]
) -> None:
    """As many independent pairs as trunks, and the work that was planned: 8, 2 and 4 steps of 8
    images of each seed."""
    words = written(tmp_path, OF_LENGTHS)
    assert ssl_vit.study(words).failed == {} and serial[:2] == ["trunk-0", "trunk-1"]
    found = results.load(tmp_path / "tiny")
    shown = found.rows(run="length", metric="loss")
    assert {*shown["origin"]} == {"trunk-0", "trunk-1"}
    apart = compare.compare(shown, "steps", compare.Comparison("8", "4"))
    assert apart is not None and apart.n == 2
    # of a length the whole work
    work = shown.groupby("steps")["exaflop"].mean()
    assert work["8"] == pytest.approx(2 * work["4"])
    took = sum(run.result.exaflop or 0 for run in found.finished.values())
    assert took == pytest.approx(2 * (8 + 2 + 4) / 8 * work["8"])
    plan = ssl_vit.plan(words)
    assert plan.in_all["exaflop"] == pytest.approx(took)
    assert "steps: the compute differs by a factor of up to 2," in str(plan)


NO_LENGTHS: dict[str, dict[str, Any]] = {
    "run length, steps 4: resume=trunk-0@3: ... checkpoint.every=3 checkpoint.keep=": {
        "4": {"resume": "{trunk}@3", "optim.decay": 0.1}
    },
    "run length, steps 8: resume=trunk-0@4: ... different recipes: optim.lr (": {
        "8": {"optim.lr": 0.1}
    },
    "run length, steps 8: this run has the same options as run length, steps 4": {
        "8": {"optim.steps": 4, "resume": "{trunk}@1"}
    },
}


@pytest.mark.parametrize("says", NO_LENGTHS)
def test_what_shares_no_beginning_is_refused_before_anything_starts(
    says: str, tmp_path: Path
) -> None:
    axis = {
        name: {"length": one["length"] | NO_LENGTHS[says].get(name, {})}
        for name, one in LENGTHS.items()
    }
    with pytest.raises(UserError) as caught:
        parse_request(written(tmp_path, OF_LENGTHS | {"axes": {"steps": axis}}))
    assert all(part in str(caught.value) for part in says.split("... "))


def test_a_length_of_a_seed_that_no_trunk_has_is_refused(tmp_path: Path) -> None:
    runs = {**OF_LENGTHS["runs"], "trunk": {**OF_LENGTHS["runs"]["trunk"], "seeds": [0]}}
    with pytest.raises(UserError, match=r"run length, .*: resume=\S+: .*\bseed 1\b"):
        parse_request(written(tmp_path, OF_LENGTHS | {"runs": runs}))


def would_run(
    folder: Path, capsys: pytest.CaptureFixture[str], study: dict[str, Any], *words: str
) -> tuple[list[str], dict[str, str]]:
    """The tasks that a changed study would run, and {folder that is none of its tasks': why}."""
    capsys.readouterr()
    before = (folder / "tiny" / "study.json").read_text()
    tool.main([*written(folder, study), *words, "dry=true"])
    assert (folder / "tiny" / "study.json").read_text() == before
    lines = capsys.readouterr().out.splitlines()
    kept = (line.split(maxsplit=1)[1] for line in lines if line.startswith("kept"))
    runs = [line.split()[-1] for line in lines if line.startswith("would run")]
    return runs, dict(line.split(": ", 1) for line in kept)


def with_arms(**arms: dict[str, Any]) -> dict[str, Any]:
    return STUDY | {"axes": {"arm": arms}}


def at_rate(rate: float) -> dict[str, Any]:
    return {"pretrain": {"recipe": "mpp", "corruption.rate": rate}}


def test_a_changed_study_keeps_the_runs_that_it_still_asks_for(
    ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # what no number depends on
    assert would_run(ended, capsys, STUDY, "log.every=1", "checkpoint.every=1") == ([], {})
    tool.main([*written(ended, STUDY), "probe.neighbors=3", "--check"])
    assert "kept        finished: 4 of 5 tasks\n" in capsys.readouterr().out
    # another probe: the pre-training stays, and what was fine-tuned
    runs, others = would_run(ended, capsys, STUDY, "probe.neighbors=3")
    assert runs == ["frozen-mpp-0-2"] and others.keys() == {"frozen-mpp-0"}
    assert "probe.neighbors (2 there, 3 here)" in others["frozen-mpp-0"]
    # a pre-training that differs takes with it all that starts from it
    runs, others = would_run(ended, capsys, with_arms(mpp=at_rate(0.3)))
    assert {*runs} == {f"{name}-2" for name in NAMES} and others.keys() == {*NAMES}
    assert "corruption.rate (0.2 there, 0.3 here)" in others["pretrain-mpp-0"]
    assert others["frozen-mpp-0"].startswith("the initial weights come from init=pretrain-mpp-0")
    # more seeds and arms, then others
    more = with_arms(**STUDY["axes"]["arm"], most=at_rate(0.9)) | {"seeds": [0, 1]}
    runs, others = would_run(ended, capsys, more)
    assert others == {} and len(runs) == 2 * 2 * len(NAMES) - len(NAMES)
    assert not {*runs} & {*NAMES}
    runs, others = would_run(ended, capsys, with_arms(most=at_rate(0.9)))
    assert (len(runs), others.keys()) == (len(NAMES), {*NAMES})
    # a recipe that is gone, and a result that asks for more
    (ended / "tiny" / "frozen-mpp-0" / "recipe.yaml").unlink()
    tune = TUNE | {"options": TUNE["options"] | {"eval.images": 30}}
    runs, others = would_run(ended, capsys, STUDY | {"runs": STUDY["runs"] | {"tune": tune}})
    assert sorted(runs) == ["frozen-mpp-0-2", *sorted(f"{name}-2" for name in TRIES)]
    assert "recipe.yaml" in others["frozen-mpp-0"]
    assert "eval.images (24 there, 30 here)" in others[TRIES[0]]


def test_tries_that_are_added_may_change_what_is_best(
    ended: Path, serial: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then what had the best of fewer is made again, in the same call. A try that failed beside
    them kept the old choice."""
    finetune = ssl_vit.finetune

    def diverging(words: list[str]) -> Any:
        if "optim.lr=5.0" in words:
            raise UserError("it diverged")
        return finetune(words)

    monkeypatch.setattr(ssl_vit, "finetune", diverging)
    for path in (ended / "tiny").glob("tune-mpp*"):  # as if they were at chance
        with_metric(path, "accuracy", value=0.0)
    tune = TUNE | {"try": {"optim.lr": [1.0e-9, 1.0e-8, 3.0, 5.0]}}
    outcome = tool.study(
        Arguments(written(ended, STUDY | {"runs": STUDY["runs"] | {"tune": tune}}))
    )
    tries = ["tune-mpp-0-lr=3.0", "tune-mpp-0-lr=5.0"]
    assert serial == [*tries, tries[1], "final-mpp-0-2"]  # what failed is tried again
    assert [*outcome.failed] == ["tune-mpp-0-lr=5.0"]
    assert {"final-mpp-0-2", "frozen-mpp-0"} <= {*outcome.finished}
    (final,) = [task for task in record.read(ended / "tiny").tasks if task.run == "final"]
    tasks = record.read(ended / "tiny").by_name
    chosen = best_values(final, tasks, ended / "tiny")
    assert final.name == "final-mpp-0-2" and chosen[:2] == ({"optim.lr": 3.0}, 3)


def test_images_that_have_changed_since_end_the_study(ended: Path, serial: list[str]) -> None:
    """Nothing is trained again for a folder that may have changed by mistake."""
    path = ended / "tiny" / "pretrain-mpp-0" / "environment.json"
    alter(path, data=json.loads(path.read_text())["data"] | {"train": "other"})
    with pytest.raises(
        UserError,
        match=r"the run in .*pretrain-mpp-0 have different images \(train\)\.",
    ):
        tool.study(Arguments(written(ended, STUDY)))
    assert serial == []


class Became(Exception):
    pass


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that this process would have become."""
    lines: list[list[str]] = []

    def become(path: str, line: list[str], environment: dict[str, str]) -> None:
        lines.append(line)
        raise Became

    monkeypatch.setattr(tool.os, "execve", become)
    return lines


def test_one_task_as_an_element_of_a_job_array_has_it(
    ended: Path, became: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """It reads study.json alone, so that every element means the same tasks."""
    words, both = ["name=tiny", f"out={ended}"], "only=frozen-mpp-0/final-mpp-0"
    with pytest.raises(Became):
        tool.main([*words, both, "index=1"])
    assert "final-mpp-0" in capsys.readouterr().out
    assert became[0][-3:] == ["seed=0", f"out={ended}/tiny", "name=final-mpp-0"]
    assert f"init={ended}/tiny/pretrain-mpp-0" in became[0]
    assert any(word.startswith("optim.lr=1e-0") for word in became[0])
    (ended / "tiny" / "pretrain-mpp-0" / "result.json").unlink()
    for only, index, says in (
        ("only=final-mp-0", 0, "only=final-mp-0: "),
        (both, 4, "index=4: "),
        (both, 1, "only=final-mpp-0: this task needs pretrain-mpp-0"),
    ):
        with pytest.raises(UserError, match=re.escape(says)):
            tool.main([*words, only, f"index={index}"])


def test_an_element_of_an_array_keeps_its_task_when_the_study_is_widened(
    ended: Path, became: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number in the run was another task's then, which ran twice."""
    monkeypatch.setattr(Serial, "start", lambda self, job: LaunchOutcome([]))
    tool.study(Arguments(written(ended, with_arms(first=at_rate(0.1), **STUDY["axes"]["arm"]))))
    now = [task.name for task in record.read(ended / "tiny").tasks if task.run == "pretrain"]
    assert now == ["pretrain-first-0", "pretrain-mpp-0"]
    with pytest.raises(Became):
        tool.main(["name=tiny", f"out={ended}", "only=pretrain-mpp-0", "index=0"])
    assert became[0][-1] == "name=pretrain-mpp-0"


def test_a_mapping_is_a_study(tmp_path: Path, serial: list[str]) -> None:
    options = {"recipe": "mpp", **TINY, **SHORT, **LOADED_OPTIONS, "data.size": 16}
    study = {"title": "t", "runs": {"pretrain": {"tool": "pretrain", "options": options}}}
    planned = ssl_vit.study(study, name="mine", out=tmp_path, check=True)
    assert planned.in_all["tasks"] == 1 and serial == [] and not (tmp_path / "mine").exists()
    outcome = ssl_vit.study(study, name="mine", out=tmp_path, recipe=None)
    assert (outcome.name, outcome.finished, serial) == ("mine", ["pretrain-0"], ["pretrain-0"])
    with pytest.raises(UserError, match="needs name="):
        ssl_vit.study(study)
    with pytest.raises(UserError, match=r"^the study: titel: "):
        ssl_vit.study(study | {"titel": 1}, name="mine")


def test_a_study_that_is_being_written_is_refused(tmp_path: Path, serial: list[str]) -> None:
    words = written(tmp_path, STUDY)
    with record.lock(tmp_path / "tiny"):
        with pytest.raises(UserError, match="is being written by this process"):
            tool.study(Arguments(words))
        assert tool.main([*words, "--check"]) == 0
    assert serial == []
