"""The study tool: its options, sweeps, what a study's folder keeps when the study changes, and tiny
studies to their end."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

import ssl_vit
from helpers.images import put
from helpers.options import LOADED, ROOT
from helpers.serial_launcher import Serial
from ssl_vit.errors import UserError
from ssl_vit.lab import engine
from ssl_vit.lab.study import record, tool
from ssl_vit.lab.study.launch import Outcome
from ssl_vit.lab.study.options import LAUNCHERS
from ssl_vit.lab.study.request import Request, requested
from ssl_vit.recipe import declaration
from ssl_vit.recipe import words as word_module

LOADED_OPTIONS = dict(option.split("=") for option in LOADED)
TINY = {"model.patch": 4, "model.width": 32, "model.depth": 1, "model.heads": 2, "model.mlp": 32}
SHORT = {"optim.steps": 2, "optim.batch": 8, "optim.warmup": 1, "eval.every": 2, "eval.images": 24}
TUNED = {"recipe": "finetune", "init": "{pretrain}", "data.share": 0.02, **SHORT}
STUDY: dict[str, Any] = {
    "title": "tiny",
    "axes": {
        "arm": {
            "mpp": {"pretrain": {"recipe": "mpp"}},
            "mpp_few": {"pretrain": {"recipe": "mpp", "corruption.rate": 0.2}},
        }
    },
    "options": {"data.size": 16, **LOADED_OPTIONS},
    "runs": {
        "pretrain": {"tool": "pretrain", "over": ["arm"], "options": {**TINY, **SHORT}},
        "tune": {
            "tool": "finetune",
            "over": ["arm"],
            "try": {"optim.lr": [1.0e-9, 1.0e-8]},
            "options": TUNED | {"data.validation": "validation", "eval.test": False},
        },
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
NAMES = [
    *(f"pretrain-{arm}-0" for arm in ("mpp", "mpp_few")),
    *(f"tune-{arm}-0-lr={lr}" for arm in ("mpp", "mpp_few") for lr in ("1e-09", "1e-08")),
    *(f"{run}-{arm}-0" for run in ("final", "frozen") for arm in ("mpp", "mpp_few")),
]


@pytest.fixture(autouse=True)
def serial(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tasks that were run."""
    monkeypatch.setitem(LAUNCHERS, "local", "helpers.serial_launcher:Serial")
    monkeypatch.setattr(Serial, "started", [])
    return Serial.started


def written(folder: Path, study: dict[str, Any], name: str = "tiny") -> list[str]:
    """The words that start a study from its file."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(study))
    return [f"recipe={path}", f"out={folder}"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny study, run to its end."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LAUNCHERS, "local", "helpers.serial_launcher:Serial")
        outcome = tool.study(written(folder, STUDY))
    assert outcome.failed == {} and sorted(outcome.finished) == sorted(NAMES)
    return folder


@pytest.fixture
def ended(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, in another place."""
    shutil.copytree(finished / "tiny", tmp_path / "tiny")
    return tmp_path


# ---- what is asked for

# {what is wrong: (words, what the line says)}
WORDS = {
    "an unknown word": (["paralel=2"], "unknown option paralel; did you mean parallel?"),
    "an unknown key": (["optim.step=2"], "unknown option optim.step; did you mean optim.steps?"),
    "what a run tries": (["optim.lr=1"], "optim.lr=1: run tune tries it; leave it out"),
    "what no run uses": (["ibot.own_head=--x"], "ibot.own_head=--x: no run of the study uses it"),
    "seed": (["seed=1"], "seed=1: say seeds=1"),
    "init": (["init=scratch"], "unknown option init;"),
    "no seeds": (["seeds=0"], "seeds: 0: expected how many"),
    "seeds twice": (["seeds=1,1"], "seeds: [1, 1]: expected how many"),
    "too many seeds": (["seeds=1000000000"], "seeds: 1000000000: expected how many"),
    "none at once": (["parallel=0"], "parallel=0: expected a whole number at least 1"),
    "an unknown launcher": (["launcher=slrm"], "launcher=slrm: did you mean slurm?"),
    "only without index": (["only=final"], "only= and index= belong together"),
    "index without only": (["index=0"], "only= and index= belong together"),
    "a name that is none": (["name=../x"], "name=../x: "),
    "a value that is refused": (["optim.steps=0"], "run pretrain, arm mpp: optim.steps=0"),
    "braces": (["data.path={final}"], "data.path={final}: braces are for the study's file"),
    "another launcher's": (["slurm=--time=1"], "slurm=--time=1: is of another launcher"),
    "dashes": (["--chek"], "--chek: unknown; did you mean --check?"),
}


@pytest.mark.parametrize(("words", "says"), WORDS.values(), ids=WORDS)
def test_a_mistaken_word_starts_nothing(
    words: list[str], says: str, tmp_path: Path, serial: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        tool.main([*written(tmp_path, STUDY), *words])
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "tiny").exists() and serial == []


def test_studies_are_found_by_name_or_by_file() -> None:
    for words, says in (
        (["recipe=study/ga"], "recipe=study/ga: no such study; did you mean study/gap?"),
        ([], "recipe= is missing; choices: study/figure4, "),
        (["recipe=/no/such.yaml"], "recipe=/no/such.yaml: no such file"),
        (["recipe=mpp"], "recipe=mpp: is no study; to sweep it, say sweep and keys with several"),
    ):
        with pytest.raises(UserError) as caught:
            requested(words)
        assert str(caught.value).startswith(says)
    assert requested(["recipe=study/gap"]).name == "gap"


@pytest.mark.parametrize(("text", "seeds"), [("3", {0, 1, 2}), ("0,2", {0, 2}), ("5,", {5})])
def test_seeds(text: str, seeds: set[int], tmp_path: Path) -> None:
    found = requested([*written(tmp_path, STUDY), f"seeds={text}"])
    assert {task.seed for task in found.tasks.values()} == seeds


def test_places_are_whole_paths_and_null_is_none_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "enc").mkdir()
    words = ["recipe=study/table4", "init=enc", "cifar10=enc", "imagenet=null"]
    with pytest.raises(UserError, match=f"init={tmp_path}/enc: expected a run"):
        requested(words)
    study = STUDY | {"places": ["out"]}
    with pytest.raises(UserError, match="places: out= means something else already"):
        requested(written(tmp_path, study))


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


def swept(*words: str) -> Request:
    return requested(["recipe=mpp", *words])


def test_a_sweep_pre_trains_and_measures_each_value() -> None:
    words = ["optim.steps=200", "probe.shots=[5]", "sweep", "corruption.rate=0.15,0.3,0.5"]
    found = swept(*words, "seeds=2", "compute.threads=1")
    assert found.name == "mpp-optim.steps=200-sweep-corruption.rate"
    tasks = found.tasks
    assert len(tasks) == 2 * 3 * 2
    rates = {t.at["corruption.rate"]: t for t in tasks.values() if t.run == "pretrain"}
    assert {name: t.options["corruption.rate"] for name, t in rates.items()} == {
        name: name for name in ("0.15", "0.3", "0.5")
    }
    assert all("probe.shots" not in task.options for task in rates.values())
    probe = tasks["probe-0.3-1"]
    shared = {"recipe": "evaluate", "data": "shapes", "probe.shots": "[5]", "compute.threads": "1"}
    assert probe.options == shared | {"init": "{pretrain-0.3-1}"}
    assert record.rule_of(found.study) is not None and found.study.report.test == "probe"


def test_several_keys_are_several_axes() -> None:
    betas = "optim.betas=[0.9,0.95],[0.9,0.999]"
    found = swept("sweep", "corruption.rate=0.15,0.5", betas, "model=vit_n8,vit_p8", "seeds=1")
    assert found.name == "mpp-sweep-corruption.rate-optim.betas-model"
    trained = [task.options for task in found.tasks.values() if task.run == "pretrain"]
    assert {(o["corruption.rate"], o["optim.betas"], o["model"]) for o in trained} == {
        (rate, betas, model)
        for rate in ("0.15", "0.5")
        for betas in ("[0.9,0.95]", "[0.9,0.999]")
        for model in ("vit_n8", "vit_p8")
    }
    assert found.study.names("probe", "optim.betas") == ("0.9,0.95", "0.9,0.999")


def test_arguments_of_a_builder_are_swept_like_any_value() -> None:
    """Braces of a mapping name no run."""
    values = [{"qkv_bias": True, "layers": [1, 2]}, {"qkv_bias": False}]
    words = word_module.from_python({"sweep": {"model": {"args": values}}}, {}, {})
    tasks = swept(*words, "seeds=1").tasks.values()
    found = [task.options["model.args"] for task in tasks if not task.needs]
    assert found[:2] == ["{qkv_bias: true, layers: [1,2]}", "{qkv_bias: false}"]


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
    found = requested([f"recipe={recipe}", "sweep", "data.crop_area=0.1,0.5"])
    options = found.tasks["probe-0.1-0"].options
    assert {key: value for key, value in options.items() if key.startswith("data")} == {
        "data.path": f"{tmp_path}/images",
        "data.size": "48",
        "data.test": "0.2",
        "data.eval_crop": "0.875",
    }


def test_where_images_have_no_labels_the_held_out_loss_is_compared(tmp_path: Path) -> None:
    put(tmp_path / "images", 30)
    words = [f"data.path={tmp_path / 'images'}", "data.validation=0.2"]
    found = swept(*words, "sweep", "optim.lr=0.001,0.003")
    assert [*found.tasks] == ["pretrain-0.001-0", "pretrain-0.003-0"]
    assert found.study.report.test == "pretrain" and found.study.report.measures == ("loss",)


SWEEPS = {
    "an unknown key": (
        ["sweep", "corruption.rat=1,2"],
        "unknown option corruption.rat; did you mean corruption.rate?",
    ),
    "a key without use": (
        ["sweep", "supervised.smoothing=0,0.1"],
        "supervised.smoothing=0: objective=mpp has no use for it",
    ),
    "one value": (["sweep", "corruption.rate=0.1"], "corruption.rate=0.1: expected two values at"),
    "no key": (["sweep", "seeds=2"], "sweep: no key follows"),
    "a value twice": (["sweep", "corruption.rate=0.1,0.1"], "corruption.rate=0.1: is there twice"),
    "an empty value": (["sweep", "corruption.rate=0.1,"], "corruption.rate=0.1,: a value is empty"),
    "a value of another type": (
        ["sweep", "corruption.rate=a,b"],
        "corruption.rate=a: expected a number",
    ),
    "a value out of bounds": (
        ["sweep", "corruption.rate=0.5,7"],
        "run pretrain, corruption.rate 7: corruption.rate=7: expected a number above 0",
    ),
    "seeds": (["sweep", "seed=0,1"], "seed=0,1: say seeds=0,1"),
    "a study": (
        ["recipe=study/gap", "sweep", "optim.lr=1,2"],
        "recipe=study/gap: sweep starts from an ordinary recipe",
    ),
    "what trains nothing": (
        ["recipe=evaluate", "sweep", "probe.layer=1,2"],
        "recipe=evaluate: trains nothing",
    ),
}


@pytest.mark.parametrize(("words", "says"), SWEEPS.values(), ids=SWEEPS)
def test_a_sweeps_mistake_is_one_line(words: list[str], says: str) -> None:
    words = words if any("recipe=" in word for word in words) else ["recipe=mpp", *words]
    with pytest.raises(UserError) as caught:
        requested(words)
    assert says in str(caught.value) and "\n" not in str(caught.value)


OWN = """
from ssl_vit.recipe.declaration import declare
from ssl_vit.objectives.mpp import MppDeclaration

class Own(MppDeclaration):
    name = "own_of_sweeps"

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
    assert {(task.run, task.options.get("plugin")) for task in found.tasks.values()} == {
        ("pretrain", own),
        ("probe", None),
    }


# ---- --check


def test_a_check_prints_tasks_hours_and_disk_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], serial: list[str]
) -> None:
    """Also without its places, and without a torch to measure with."""
    study = STUDY | {"places": ["images"]}
    study["options"] = STUDY["options"] | {"data.path": "{images}"}
    words = written(tmp_path, study)
    assert tool.main([*words, "seeds=2", "--check", "device=h100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert lines[0] == "study       tiny: tiny" and rows["run"] == [
        *("tasks", "exaFLOP", "hours", "disk"),
    ]
    assert [rows[run][0] for run in ("pretrain", "tune", "final", "frozen")] == [*"4844"]
    assert float(rows["pretrain"][2]) > 0
    assert any(line.split()[:3] == ["in", "all", "20"] for line in lines)
    assert not (tmp_path / "tiny").exists() and serial == []
    with pytest.raises(UserError, match=r"run pretrain, arm mpp: optim\.steps=0: "):
        tool.main([*words, "--check", "optim.steps=0"])
    with pytest.raises(UserError, match=r"run pretrain, arm mpp: data\.path=.*no such file or fol"):
        tool.main([*words, "--check", f"images={tmp_path}/nothing"])
    assert tool.main([*words, "--check"]) == 0
    assert "say device= (" in capsys.readouterr().out


def test_initial_weights_that_are_not_given_yet_are_no_fresh_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor are their encoders compared."""
    options = {"recipe": "finetune", "model": "vit_p8"}
    arms = {"a": {"final": {"init": "scratch"}}, "b": {"final": {"init": "{start}"}}}
    run = {"tool": "finetune", "over": ["arm"], "options": options}
    study = {"title": "t", "places": ["start"], "axes": {"arm": arms}, "runs": {"final": run}}
    assert tool.main([*written(tmp_path, study), "--check"]) == 0
    assert tool.main(["recipe=study/further", "--check"]) == 0
    assert "warning" not in capsys.readouterr().out


# ---- a study to its end


def test_a_tiny_study_to_its_end(
    finished: Path, ended: Path, serial: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """And again, in another folder: nothing is run twice."""
    results = {
        path.parent.name: json.loads(path.read_text())
        for path in (finished / "tiny").glob("*/result.json")
    }
    assert sorted(results) == sorted(NAMES)
    assert results["final-mpp-0"]["total_exaflop"] > results["final-mpp-0"]["exaflop"]
    plan = record.read(finished / "tiny")
    assert sorted(task.name for task in plan.tasks) == sorted(NAMES)
    assert plan.rule is not None
    values = {task.name: task.values for task in plan.tasks}
    few = values["pretrain-mpp_few-0"]
    assert (few["corruption.rate"], few["model.width"], few["seed"]) == (0.2, 32, 0)
    final = values["final-mpp-0"]
    assert final["optim.steps"] and "optim.lr" not in final
    outcome = ssl_vit.study(written(ended, STUDY))
    assert (outcome.name, outcome.folder, outcome.failed) == ("tiny", ended / "tiny", {})
    assert sorted(outcome.finished) == sorted(NAMES) and serial == []
    lines = capsys.readouterr().out.splitlines()
    chosen = [line for line in lines if line.startswith("chosen")]
    assert len(chosen) == 2 and re.fullmatch(
        r"chosen      run final, arm mpp: optim\.lr=1e-0[89], the best accuracy of 2 tries; "
        r"optim\.lr is at an edge of those tried: try more beyond it",
        chosen[0],
    )
    assert f"finished    {len(NAMES)} of {len(NAMES)} tasks" in lines[-2]
    assert lines[-1].startswith("next ") and lines[-1].endswith(f"report.py {ended}/tiny")


def would_run(
    folder: Path, capsys: pytest.CaptureFixture[str], study: dict[str, Any], *words: str
) -> tuple[list[str], dict[str, str]]:
    """The tasks that a changed study would run, and {folder that is none of its tasks': why}."""
    capsys.readouterr()
    before = (folder / "tiny" / "study.json").read_text()
    tool.main([*written(folder, study), *words, "dry=true"])
    assert (folder / "tiny" / "study.json").read_text() == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("dry         nothing is written") and "study.json" in lines[-1]
    kept = (line.split(maxsplit=1)[1] for line in lines if line.startswith("kept"))
    runs = [line.split()[-1] for line in lines if line.startswith("would run")]
    return runs, dict(line.split(": ", 1) for line in kept)


def changed(name: str, **options: Any) -> dict[str, Any]:
    """The study with other options of a run."""
    run = STUDY["runs"][name]
    own = {key.replace("__", "."): value for key, value in options.items()}
    return STUDY | {"runs": STUDY["runs"] | {name: run | {"options": run["options"] | own}}}


def test_a_changed_study_keeps_the_runs_that_it_still_asks_for(
    ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert would_run(ended, capsys, STUDY) == ([], {})
    # what no number depends on
    assert would_run(ended, capsys, STUDY, "log.every=1", "checkpoint.every=1") == ([], {})
    # another probe: the pre-trainings stay, and what was fine-tuned
    runs, others = would_run(ended, capsys, STUDY, "probe.neighbors=3")
    assert runs == ["frozen-mpp-0-2", "frozen-mpp_few-0-2"]
    differs = "its recipe is not the planned one"
    assert others["frozen-mpp-0"] == f"{differs}: probe.neighbors (2 there, 3 here)"
    assert len(others) == 2
    runs, others = would_run(ended, capsys, STUDY, "probe.measures=[knn,linear]", "probe.steps=2")
    assert runs == ["frozen-mpp-0-2", "frozen-mpp_few-0-2"]
    assert "probe.measures (['knn'] there, ['knn', 'linear'] here)" in others["frozen-mpp-0"]
    # a pre-training that differs takes with it all that starts from it
    arms = {"mpp": {"pretrain": {"recipe": "mpp", "corruption.rate": 0.3}}}
    axes = {"arm": STUDY["axes"]["arm"] | arms}
    runs, others = would_run(ended, capsys, STUDY | {"axes": axes})
    own = [name for name in NAMES if "-mpp-" in name]
    assert sorted(runs) == sorted(f"{name}-2" for name in own)
    assert others.keys() == {*own}
    assert others["pretrain-mpp-0"] == f"{differs}: corruption.rate (0.5 there, 0.3 here)"
    assert others["frozen-mpp-0"] == "its initial weights are those of init=pretrain-mpp-0"
    # more seeds and arms
    arms = {"mpp_most": {"pretrain": {"recipe": "mpp", "corruption.rate": 0.9}}}
    axes = {"arm": STUDY["axes"]["arm"] | arms}
    runs, others = would_run(ended, capsys, STUDY | {"axes": axes, "seeds": [0, 1]})
    assert others == {} and len(runs) == 2 * len(NAMES) + 5 * 2 - len(NAMES)
    assert not {*runs} & {*NAMES}
    # fewer
    axes = {"arm": {"mpp": STUDY["axes"]["arm"]["mpp"]}}
    runs, others = would_run(ended, capsys, STUDY | {"axes": axes})
    assert (runs, others.keys()) == ([], {name for name in NAMES if "mpp_few" in name})
    assert {*others.values()} == {"the study does not ask for it"}


def test_a_run_whose_recipe_is_gone_or_whose_result_asks_for_more_is_made_anew(
    ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (ended / "tiny" / "frozen-mpp-0" / "recipe.yaml").unlink()
    study = changed("tune", eval__images=30)
    runs, others = would_run(ended, capsys, study)
    tries = [name for name in NAMES if name.startswith("tune")]
    assert sorted(runs) == ["frozen-mpp-0-2", *sorted(f"{name}-2" for name in tries)]
    assert others["frozen-mpp-0"] == "its recipe.yaml is missing or damaged"
    assert "eval.images (24 there, 30 here)" in others[tries[0]]


def test_tries_that_are_added_may_change_what_is_best(
    ended: Path, serial: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Then what had the best of fewer is made again, in the same call."""
    tune = STUDY["runs"]["tune"] | {"try": {"optim.lr": [1.0e-9, 1.0e-8, 3.0]}}
    study = STUDY | {"runs": STUDY["runs"] | {"tune": tune}}
    for path in (ended / "tiny").glob("tune-mpp*/result.json"):  # as if they were at chance
        found = json.loads(path.read_text())
        found["metrics"]["accuracy"]["value"] = 0.0
        path.write_text(json.dumps(found))
    outcome = tool.study(written(ended, study))
    assert serial == [
        *("tune-mpp-0-lr=3.0", "tune-mpp_few-0-lr=3.0"),
        *("final-mpp-0-2", "final-mpp_few-0-2"),
    ]
    assert {"final-mpp-0-2", "frozen-mpp-0"} <= {*outcome.finished}
    plan = record.read(ended / "tiny")
    assert [task.name for task in plan.tasks if task.run == "final"] == [*serial[2:]]
    out = capsys.readouterr().out
    assert "optim.lr=3.0, the best accuracy of 3 tries; optim.lr is at an edge of those" in out


def test_a_try_that_failed_does_not_keep_the_old_choice(
    ended: Path, serial: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finetune = ssl_vit.finetune

    def diverging(words: list[str]) -> Any:
        if "optim.lr=5.0" in words:
            raise UserError("it diverged")
        return finetune(words)

    monkeypatch.setattr(ssl_vit, "finetune", diverging)
    tune = STUDY["runs"]["tune"] | {"try": {"optim.lr": [1.0e-9, 1.0e-8, 3.0, 5.0]}}
    for path in (ended / "tiny").glob("tune-mpp*/result.json"):  # as if they were at chance
        found = json.loads(path.read_text())
        found["metrics"]["accuracy"]["value"] = 0.0
        path.write_text(json.dumps(found))
    outcome = tool.study(written(ended, STUDY | {"runs": STUDY["runs"] | {"tune": tune}}))
    assert [*outcome.failed] == ["tune-mpp-0-lr=5.0", "tune-mpp_few-0-lr=5.0"]
    finals = [task.name for task in record.read(ended / "tiny").tasks if task.run == "final"]
    assert finals == ["final-mpp-0-2", "final-mpp_few-0-2"] == serial[-2:]
    assert {*finals} <= {*outcome.finished}


def test_images_that_have_changed_since_end_the_study(ended: Path, serial: list[str]) -> None:
    """Nothing is trained again for a folder that may have changed by mistake."""
    path = ended / "tiny" / "pretrain-mpp-0" / "environment.json"
    found = json.loads(path.read_text())
    found["data"]["train"] = "other"
    path.write_text(json.dumps(found))
    with pytest.raises(UserError, match="the images of train differ from what"):
        tool.study(written(ended, STUDY))
    assert serial == []


class Became(Exception):
    pass


def becomes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that this process would have become."""
    lines: list[list[str]] = []

    def become(path: str, line: list[str], environment: dict[str, str]) -> None:
        lines.append(line)
        raise Became

    monkeypatch.setattr(tool.os, "execve", become)
    return lines


def test_one_task_as_an_element_of_a_job_array_has_it(
    ended: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reads study.json alone, so that every element means the same tasks."""
    lines = becomes(monkeypatch)
    words, both = ["name=tiny", f"out={ended}"], "only=final-mpp-0/final-mpp_few-0"
    with pytest.raises(Became):
        tool.main([*words, both, "index=1"])
    assert "task        final-mpp_few-0" in capsys.readouterr().out
    assert lines[0][-3:] == ["seed=0", f"out={ended}/tiny", "name=final-mpp_few-0"]
    assert f"init={ended}/tiny/pretrain-mpp_few-0" in lines[0]
    assert any(word.startswith("optim.lr=1e-0") for word in lines[0])
    for wrong, says in (
        (["only=final-mp-0", "index=0"], "only=final-mp-0: the study has no such task; did you"),
        ([both, "index=4"], "index=4: only= has the tasks 0 to 1"),
    ):
        with pytest.raises(UserError, match=re.escape(says)):
            tool.main([*words, *wrong])
    (ended / "tiny" / "pretrain-mpp-0" / "result.json").unlink()
    text = "only=final-mpp-0: it needs pretrain-mpp-0, which is not finished"
    with pytest.raises(UserError, match=text):
        tool.main([*words, both, "index=0"])


def test_an_element_of_an_array_keeps_its_task_when_the_study_is_widened(
    ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number in the run was another task's then, which ran twice."""
    before = record.read(ended / "tiny").by_name
    first = {"first": {"pretrain": {"recipe": "mpp", "corruption.rate": 0.1}}}
    arms = first | STUDY["axes"]["arm"]
    monkeypatch.setattr(Serial, "start", lambda self, job: Outcome([]))
    tool.study(written(ended, STUDY | {"axes": {"arm": arms}}))
    now = [task.name for task in record.read(ended / "tiny").tasks if task.run == "pretrain"]
    assert now == ["pretrain-first-0", "pretrain-mpp-0", "pretrain-mpp_few-0"]
    lines = becomes(monkeypatch)
    queued = [name for name, task in before.items() if task.run == "pretrain"]
    for index in range(2):
        words = ["name=tiny", f"out={ended}", f"only={'/'.join(queued)}", f"index={index}"]
        with pytest.raises(Became):
            tool.main(words)
    assert [line[-1] for line in lines] == ["name=pretrain-mpp-0", "name=pretrain-mpp_few-0"]


def test_a_mapping_is_a_study_also_in_a_thread(tmp_path: Path, serial: list[str]) -> None:
    """It ended with a ValueError of signal."""
    run = {"tool": "pretrain", "options": {**TINY, **SHORT, **LOADED_OPTIONS, "data.size": 16}}
    study = {"title": "t", "runs": {"pretrain": run}}
    found: list[Any] = []

    def start() -> None:
        try:
            found.append(ssl_vit.study(study, name="mine", out=tmp_path, recipe=None))
        except BaseException as error:
            found.append(error)

    run["options"]["recipe"] = "mpp"
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (outcome,) = found
    assert not isinstance(outcome, BaseException), outcome
    assert (outcome.name, outcome.finished, serial) == ("mine", ["pretrain-0"], ["pretrain-0"])
    with pytest.raises(UserError, match="expected name=, the study's folder, beside a mapping"):
        ssl_vit.study(study)
    with pytest.raises(UserError, match=r"^the study: titel: no such key; did you mean title\?"):
        ssl_vit.study(study | {"titel": 1}, name="mine")


def test_a_second_study_in_the_same_folder_is_refused(tmp_path: Path, serial: list[str]) -> None:
    code = (
        "import sys; from pathlib import Path; from ssl_vit.lab import engine\n"
        f"with engine.locked(Path({str(tmp_path)!r}) / 'tiny'):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes)
    assert holder.stdout is not None and holder.stdout.readline()
    try:
        with pytest.raises(UserError, match=r"name=tiny|is being written by process"):
            tool.study(written(tmp_path, STUDY))
    finally:
        holder.communicate()
    assert serial == []


def test_a_second_thread_is_refused_and_the_first_keeps_its_lock(tmp_path: Path) -> None:
    refused: list[str] = []

    def second() -> None:
        with pytest.raises(UserError) as caught, engine.locked(tmp_path / "tiny"):
            pass
        refused.append(str(caught.value))

    with engine.locked(tmp_path / "tiny"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        assert "is being written by this process; wait, or take another name=" in refused[0]
        code = (
            "from pathlib import Path; from ssl_vit.lab import engine\n"
            f"with engine.locked(Path({str(tmp_path)!r}) / 'tiny'): pass"
        )
        other = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
        )
        assert "is being written by process" in other.stderr
    with engine.locked(tmp_path / "tiny"):  # free again
        pass
