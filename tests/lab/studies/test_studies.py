"""Studies: files and their mistakes, the plan, processes that fail, are killed and go on; with
stand-in tools."""

import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from rich.console import Console

import ssl_vit
from helpers.launching import launch, outcome
from helpers.options import ROOT, TINY
from helpers.studies import GAP, SMALL, Bench, changed
from ssl_vit import formatting
from ssl_vit.config.resolve import resolve
from ssl_vit.config.schema import dump
from ssl_vit.errors import UserError
from ssl_vit.lab import study_tool
from ssl_vit.lab.studies import expand as plans
from ssl_vit.lab.studies import local as locals_
from ssl_vit.lab.studies import progress as screens
from ssl_vit.lab.studies import record, scheduling, task_recipes
from ssl_vit.lab.studies.read_study import build
from ssl_vit.lab.studies.request import parse_request
from ssl_vit.lab.study_tool import main

NAMES = [
    *("pretrain-scratch-0", "pretrain-scratch-1", "pretrain-mpp-0", "pretrain-mpp-1"),
    *(f"sweep-{arm}-0-lr={lr}" for arm in ("scratch", "mpp") for lr in (0.01, 0.03, 0.1)),
    *(
        f"{part}-{arm}-{seed}"
        for part in ("probe", "final")
        for arm in ("scratch", "mpp")
        for seed in (0, 1)
    ),
]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, GAP)
    monkeypatch.setattr(formatting, "PROGRAM", made.program)
    known = study_tool.check_finished

    def check(task, plan, folder):  # stand-in tools leave no recipe
        return known(task, plan, folder) if (folder / task.name / "recipe.yaml").exists() else []

    monkeypatch.setattr(study_tool, "check_finished", check)
    return made


def check_study(study):
    return task_recipes.check(study, plans.tasks(study, {}, {}))


def altered(*changes):
    """GAP with (path, value) changes; a value of ... removes."""
    return changed(GAP, *changes)


def until(holds, seconds=15.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


# ---- the file


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a", "b", "c")])
def test_a_circle_is_named(names):
    parts = {
        name: {"tool": "evaluate", "options": {"init": f"{{{other}}}"}}
        for name, other in zip(names, [*names[1:], names[0]], strict=True)
    }
    parts["aside"] = {"tool": "pretrain"}
    with pytest.raises(UserError, match="parts in a circle: ") as caught:
        build(altered(("parts", parts), ("report", {})), "x")
    named = str(caught.value).rpartition(": ")[2].split(" -> ")
    assert set(named) == set(names) and named[0] == named[-1] and len(named) == len(names) + 1


@given(st.data())
def test_every_task_comes_after_its_needs(data):
    """Parts in any order in the file, each needing any of those before it in another order."""
    names = data.draw(st.permutations("abcde"))
    needs = {
        name: data.draw(st.lists(st.sampled_from(names[:i]), unique=True)) if i else []
        for i, name in enumerate(names)
    }
    words = {
        name: {f"x{n}": f"{{{need}}}" for n, need in enumerate(needs[name])}
        for name in sorted(names)
    }
    parts = {
        name: {"tool": "evaluate", "options": {"init": "scratch"} | words[name]}
        for name in sorted(names)
    }
    study = build({"title": "t", "seeds": [0, 1], "arms": {"p": "", "q": ""}, "parts": parts}, "x")
    found = plans.tasks(study, {}, {})
    order = list(found)
    assert len(order) == 5 * 2 * 2
    for name, task in found.items():
        assert set(task.needs) == {f"{need}-{task.arm}-{task.seed}" for need in needs[task.part]}
        assert all(order.index(need) < order.index(name) for need in task.needs)


# ---- the plan


def test_the_plan_of_a_gap():
    plan = plans.tasks(build(GAP, "x"), {}, {})
    assert sorted(plan) == sorted(NAMES)
    assert plan["pretrain-mpp-1"].options == {
        "optim.steps": "20",
        "optim.warmup": "2",
        "recipe": "mpp",
    }
    sweep = plan["sweep-mpp-0-lr=0.03"]
    assert (sweep.values, sweep.needs, sweep.options["optim.lr"]) == (
        {"optim.lr": 0.03},
        ("pretrain-mpp-0",),
        "0.03",
    )
    final = plan["final-mpp-1"]
    assert set(final.needs) == {
        "pretrain-mpp-1",
        *(f"sweep-mpp-0-lr={lr}" for lr in (0.01, 0.03, 0.1)),
    }
    assert final.options["init"] == "{pretrain-mpp-1}" and "optim.lr" not in final.options


def test_a_need_without_that_seed_gives_its_first():
    study = build(altered(("parts/pretrain/seeds", [4, 1])), "x")
    plan = plans.tasks(study, {}, {})
    assert plan["probe-mpp-0"].needs == ("pretrain-mpp-4",)
    assert plan["probe-mpp-1"].needs == ("pretrain-mpp-1",)


def test_words_of_an_arm_and_of_the_command_line_come_over_the_parts():
    study = altered(
        ("parts/pretrain/by_arm/mpp", {"recipe": "mpp", "optim.steps": 30}), ("places", ["images"])
    )
    study["parts"]["pretrain"]["options"]["data.path"] = "{images}/x"
    plan = plans.tasks(build(study, "x"), {"images": "/p"}, {"optim.batch": "8"})
    assert plan["pretrain-mpp-0"].options["optim.steps"] == "30"
    assert plan["pretrain-scratch-0"].options["optim.steps"] == "20"
    assert {task.options.get("optim.batch") for task in plan.values() if task.part != "probe"} == {
        "8"
    }
    # which trains nothing
    assert not any("optim.batch" in task.options for task in plan.values() if task.part == "probe")
    assert (
        plan["pretrain-mpp-0"].options["data.path"] == "/p/x" and plan["pretrain-mpp-0"].needs == ()
    )
    over = plans.tasks(build(study, "x"), {"images": "/p"}, {"optim.steps": "5"})
    assert {task.options["optim.steps"] for task in over.values() if task.part != "probe"} == {"5"}


def test_a_seed_in_braces_is_the_tasks_own():
    study = altered(
        ("parts/final/options/data.share", 0.1), ("parts/final/options/data.share_seed", "{seed}")
    )
    plan = plans.tasks(build(study, "x"), {}, {})
    drawn = {task.seed: task.options["data.share_seed"] for task in plan.values() if task.best}
    assert drawn == {0: "0", 1: "1"}
    check_study(build(study, "x"))


def test_every_seed_is_checked_with_its_own_options():
    """Also those that it has from the run that it starts from."""
    drawn = [("data.share", 0.1), ("data.share_seed", "{seed}"), ("optim.lr", "0.{seed}")]
    changes = [(f"parts/pretrain/options/{key}", value) for key, value in drawn]
    study = build(altered(("seeds", [1, 2]), ("parts/sweep/seeds", [1]), *changes), "x")
    recipes = task_recipes.check(study, plans.tasks(study, {}, {}))
    made = [recipes[f"pretrain-mpp-{seed}"] for seed in (1, 2)]
    assert [(one.data.share_seed, one.optim.lr) for one in made] == [(1, 0.1), (2, 0.2)]
    assert [recipes[f"probe-mpp-{seed}"].data.share_seed for seed in (1, 2)] == [1, 2]
    study = build(altered(("seeds", [1, 0]), ("parts/sweep/seeds", [1]), changes[2]), "x")
    with pytest.raises(UserError, match=r"part pretrain, arm scratch: optim\.lr=0"):
        task_recipes.check(study, plans.tasks(study, {}, {}))


def test_a_grid_sweeps_keys_together():
    mixing = [{"data.mixup": 0, "data.cutmix": 0}, {"data": {"mixup": 0.8, "cutmix": 1.0}}]
    study = build(altered(("parts/sweep/grid", {"optim.lr": [0.1, 0.3], "mixing": mixing})), "x")
    plan = plans.tasks(study, {}, {})
    swept = [task for task in plan.values() if (task.part, task.arm) == ("sweep", "mpp")]
    assert [task.values for task in swept] == [
        {"optim.lr": lr, "data.mixup": mixup, "data.cutmix": cutmix}
        for lr in (0.1, 0.3)
        for mixup, cutmix in ((0, 0), (0.8, 1.0))
    ]
    assert swept[1].name == "sweep-mpp-0-lr=0.1-mixup=0.8-cutmix=1.0"
    assert swept[1].options["data.cutmix"] == "1.0" and "mixing" not in swept[1].options
    with pytest.raises(UserError, match=r"data\.cutmix=1: part sweep sweeps it"):
        plans.tasks(study, {}, {"data.cutmix": "1"})


def test_values_are_written_as_on_a_command_line():
    words = {
        "recipe": "mpp",
        "optim": {"betas": [0.9, 0.95], "clip": None},
        "eval.test": False,
        "optim.lr": 1.0e-3,
    }
    study = build(
        {"title": "t", "arms": {"a": ""}, "parts": {"p": {"tool": "pretrain", "options": words}}},
        "x",
    )
    output = plans.tasks(study, {}, {})["p-a-0"].options
    recipe = resolve([f"{key}={value}" for key, value in output.items()])
    assert (recipe.optim.betas, recipe.optim.clip, recipe.eval.test, recipe.optim.lr) == (
        [0.9, 0.95],
        None,
        False,
        1e-3,
    )


def test_refused_words_are_named_with_their_part_and_arm():
    study = altered(("parts/sweep/grid/optim.lr", [0.1, -1.0]))
    with pytest.raises(
        UserError, match=r"part sweep, arm scratch: optim\.lr=-1\.0: expected a number above 0"
    ):
        check_study(build(study, "x"))
    study = altered(("parts/pretrain/by_arm/mpp/corruption.rat", 0.5))
    with pytest.raises(
        UserError, match=r"part pretrain, arm mpp: unknown key corruption\.rat; did you mean"
    ):
        check_study(build(study, "x"))


def test_a_model_comes_from_the_run_that_is_needed():
    """24 pixels suit patches of 8, the needed run's, and not those of 16 that the recipe itself
    would name."""
    study = altered(("parts/pretrain/options", SMALL | {"data.size": 48, "model": "vit_n8"}))
    for part, size in (("final", 24), ("sweep", 24), ("probe", 24)):
        study["parts"][part]["options"]["data.size"] = size
    check_study(build(study, "x"))
    study["parts"]["probe"]["options"]["data.size"] = 20
    with pytest.raises(
        UserError, match=r"part probe, arm scratch: data\.size=20: no multiple .* model\.patch=8"
    ):
        check_study(build(study, "x"))


@given(
    st.lists(
        st.lists(st.sampled_from([0.1, 0.25, 0.5, math.nan]), min_size=2, max_size=2),
        min_size=1,
        max_size=4,
    ),
)
def test_best_is_the_highest_mean_over_seeds(tmp_path_factory, scores):
    """Against a plain search; a run without a finite value never wins, and the first of equals
    does."""
    folder = tmp_path_factory.mktemp("best")
    study = build(
        altered(
            ("parts/sweep/seeds", [0, 1]),
            ("parts/sweep/grid/optim.lr", [i + 1 for i in range(len(scores))]),
        ),
        "x",
    )
    plan = plans.tasks(study, {}, {})
    for (i, row), arm in itertools.product(enumerate(scores), ("mpp", "scratch")):
        for seed, value in enumerate(row):
            run = folder / f"sweep-{arm}-{seed}-lr={i + 1}"
            run.mkdir()
            (run / "result.json").write_text(
                json.dumps(
                    {
                        "metrics": {
                            "accuracy": {
                                "value": value if arm == "mpp" else 0.0,
                                "split": "validation",
                            }
                        }
                    }
                )
            )
    best = None
    for i, (a, b) in enumerate(scores):
        if a + b == a + b and (best is None or a + b > sum(scores[best])):
            best = i
    if best is None:
        with pytest.raises(UserError, match="no run of part sweep has a finite one"):
            plans.best_values(plan["final-mpp-0"], plan, folder)
    else:
        assert plans.best_values(plan["final-mpp-0"], plan, folder) == {"optim.lr": best + 1}


# ---- the command line

WORDS = {
    "an unknown word": (["paralel=2"], "unknown option paralel; did you mean parallel?"),
    "a key by its former name": (["eval.pictures=3"], "eval.pictures is called eval.images now"),
    "an unknown key": (["optim.step=2"], "unknown option optim.step; did you mean optim.steps?"),
    "what a part sweeps": (["optim.lr=1"], "optim.lr=1: part sweep sweeps it"),
    "seed": (["seed=1"], "seed=1: say seeds=1"),
    "init": (["init=scratch"], "unknown option init;"),
    "no seeds": (["seeds=0"], "seeds=0: expected how many"),
    "seeds twice": (["seeds=1,1"], "seeds=1,1: expected how many"),
    "none at once": (["parallel=0"], "parallel=0: expected a whole number: at least 1"),
    "an unknown launcher": (["launcher=slrm"], "launcher=slrm: unknown; did you mean slurm?"),
    "only without index": (["only=final"], "only= and index= belong together"),
    "an unknown part": (["only=finl", "index=0"], "only=finl: no such part; did you mean final?"),
    "an index too far": (["only=final", "index=4"], "index=4: part final has the tasks 0 to 3"),
    "a need not finished": (
        ["only=final", "index=0"],
        "final-scratch-0 needs sweep-scratch-0-lr=0.01",
    ),
    "a name that is none": (["name=../x"], "name=../x: "),
    "a value that is refused": (["optim.steps=0"], "part pretrain, arm scratch: optim.steps=0"),
    "braces": (["data.path={final}"], "braces are for the study's file"),
}


@pytest.mark.parametrize(("words", "says"), WORDS.values(), ids=WORDS)
def test_a_mistaken_word_starts_nothing(words, says, bench):
    with pytest.raises(UserError) as caught:
        main([*bench.words, *words])
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert not bench.runs.exists()


def test_studies_are_found_by_name():
    with pytest.raises(
        UserError, match=r"recipe=study/ga: no such study; did you mean study/gap\?"
    ):
        parse_request(["recipe=study/ga"])
    with pytest.raises(UserError, match=r"recipe= is missing; choices: .*study/gap"):
        parse_request([])
    with pytest.raises(UserError, match=r"recipe=/no/such\.yaml: no such file"):
        parse_request(["recipe=/no/such.yaml"])


def test_a_place_has_a_name_of_its_own(tmp_path):
    made = Bench(tmp_path, altered(("places", ["out"])))
    with pytest.raises(UserError, match="places: out= means something else already"):
        parse_request(made.words)


def test_places_must_be_said(tmp_path):
    made = Bench(
        tmp_path,
        altered(("places", ["images", "more"]), ("parts/pretrain/options/data.path", "{images}")),
    )
    with pytest.raises(
        UserError, match="more= is missing: the study needs the places images, more"
    ):
        parse_request([*made.words, "images=/p"])
    plan = parse_request([*made.words, f"images={os.path.relpath(tmp_path)}", "more=/m"]).plan
    assert plan["pretrain-mpp-0"].options["data.path"] == str(tmp_path)


@pytest.mark.parametrize(("text", "seeds"), [("3", {0, 1, 2}), ("0,2", {0, 2}), ("5,", {5})])
def test_seeds(text, seeds, bench):
    plan = parse_request([*bench.words, f"seeds={text}"]).plan
    assert {task.seed for task in plan.values() if task.part == "final"} == seeds
    assert {task.seed for task in plan.values() if task.part == "sweep"} == {0}


def test_mistakes_are_answered_in_one_line_without_torch(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('torch is imported')\n")
    command = [
        sys.executable,
        "tools/study.py",
        "recipe=study/gap",
        "optim.steps=0",
        f"out={tmp_path}/runs",
    ]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    output = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert (output.returncode, output.stdout) == (2, "")
    (line,) = output.stderr.splitlines()
    assert line.startswith("error: part pretrain, arm scratch: optim.steps=0")


# ---- processes


def test_a_study_runs_each_task_once_and_in_order(bench, capsys):
    assert main([*bench.words, "parallel=2", "eval.every=7"]) == 0
    assert sorted(bench.started()) == sorted(NAMES) == bench.finished()
    # the tool itself refuses an init that is not finished
    for task in parse_request(bench.words).plan.values():
        assert all(
            bench.started().index(need) < bench.started().index(task.name) for need in task.needs
        )
    assert {seed: bench.task_options(f"final-scratch-{seed}")["optim.lr"] for seed in (0, 1)} == {
        0: "0.03",
        1: "0.03",
    }
    task_options = bench.task_options("final-mpp-1")
    assert (task_options["optim.lr"], task_options["seed"], task_options["eval.every"]) == (
        "0.1",
        "1",
        "7",
    )
    assert (
        task_options["init"] == str(bench.runs / "pretrain-mpp-1")
        and int(task_options["compute.threads"]) >= 1
    )
    output = capsys.readouterr().out
    assert f"finished    {len(NAMES)} of {len(NAMES)} tasks" in output
    assert output.splitlines()[-1] == f"next        {sys.executable} tools/report.py {bench.runs}"
    assert (bench.runs / "logs" / "final-mpp-1.txt").read_text().startswith("$ ")

    about = json.loads((bench.runs / "study.json").read_text())
    assert {key: about[key] for key in ("name", "title", "arms", "seeds")} == {"name": "gap"} | {
        key: GAP[key] for key in ("title", "arms", "seeds")
    }
    assert about["report"] == GAP["report"] and about["parts"][0] == "pretrain"
    assert about["tasks"][2]["options"] == [
        "optim.steps=20",
        "optim.warmup=2",
        "recipe=mpp",
        "eval.every=7",
    ]
    keys = {"name", "part", "tool", "arm", "seed", "values", "needs"}
    assert (
        all(keys <= task.keys() for task in about["tasks"])
        and [t["name"] for t in about["tasks"]][:4] == NAMES[:4]
    )

    again = ssl_vit.study([*bench.words, "parallel=2", "eval.every=7"])
    assert (again.name, again.folder, again.failed) == ("gap", bench.runs, {})
    assert sorted(again.finished) == sorted(NAMES)
    assert len(bench.started()) == len(NAMES)
    assert "This study has no report yet" in again._repr_html_()  # of tools that stand in


def test_what_the_report_will_not_show_is_said_as_the_study_starts(bench, capsys):
    more = [
        ("arms/third", "seen nowhere"),
        ("parts/pretrain/by_arm/third", {"recipe": "mae"}),
        *((f"parts/{part}/by_arm", {"scratch": {}, "mpp": {}}) for part in ("sweep", "final")),
        ("parts/probe/by_arm", {"scratch": {}, "mpp": {}}),
    ]
    OmegaConf.save(OmegaConf.create(altered(*more)), bench.folder / "gap.yaml")
    assert main([*bench.words, "parallel=2"]) == 0
    assert "warning: arms third: in no part that the report shows" in capsys.readouterr().out


def test_no_more_at_once_than_asked_for(bench):
    bench.behave(**dict.fromkeys(NAMES[:4], "brief"))
    assert main([*bench.words, "parallel=2"]) == 0
    times = sorted(
        line.split() for line in (bench.runs.parent / "times.txt").read_text().splitlines()
    )
    assert max(itertools.accumulate(int(step) for _, step in times)) == 2


def test_tasks_start_only_as_fast_as_memory_allows(bench, monkeypatch, capsys):
    """Room for one and a half of them: no two at once, the one that waits is told, all get
    there."""
    monkeypatch.setattr(scheduling, "free_memory", lambda: 3 << 29)
    monkeypatch.setattr(scheduling, "memory_need", lambda recipe, gpu: 1 << 30)
    monkeypatch.setattr(locals_, "LOOK", 0.05)
    bench.behave(**dict.fromkeys(NAMES[:4], "brief"))
    assert main([*bench.words, "parallel=4"]) == 0
    times = sorted(
        line.split() for line in (bench.runs.parent / "times.txt").read_text().splitlines()
    )
    assert max(itertools.accumulate(int(step) for _, step in times)) == 1
    assert "it may need 1.0 GiB, more than is free" in capsys.readouterr().out
    assert bench.finished() == sorted(NAMES)


def test_a_task_larger_than_the_machine_is_let_try_alone(bench, monkeypatch):
    monkeypatch.setattr(scheduling, "memory_need", lambda recipe, gpu: 1 << 60)
    monkeypatch.setattr(locals_, "LOOK", 0.05)
    assert main([*bench.words, "parallel=4"]) == 0


def test_what_a_process_has_not_taken_yet_is_kept_for_it(monkeypatch):
    hog = "import sys; x = bytearray(300 << 20); print('there', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", hog], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"there\n"
    monkeypatch.setattr(scheduling, "free_memory", lambda: 1000 << 20)
    try:
        assert 300 << 20 <= scheduling.memory_used(process.pid) < 400 << 20
        assert scheduling.fits(980 << 20, [(process.pid, 300 << 20)])  # it has all that it wants
        assert scheduling.fits(780 << 20, [(process.pid, 500 << 20)])
        # 100 to 200 are still to come
        assert not scheduling.fits(950 << 20, [(process.pid, 500 << 20)])
    finally:
        process.communicate()
    assert scheduling.memory_used(process.pid) == 0


OF_A_JOB = [
    ("0::/job/step", "job", scheduling.VERSION_2),
    ("4:memory:/job", "memory/job", scheduling.VERSION_1),
]


@pytest.mark.parametrize(("line", "folder", "names"), OF_A_JOB)
def test_the_limit_of_a_control_group_counts(line, folder, names, tmp_path, monkeypatch):
    """One around this process's own, of either version."""
    own, group = tmp_path / "own", tmp_path / folder
    group.mkdir(parents=True)
    own.write_text(f"9:cpu:/elsewhere\n{line}\n")
    monkeypatch.setattr(scheduling, "GROUPS", tmp_path)
    monkeypatch.setattr(scheduling, "OWN_GROUPS", own)
    whole = scheduling.free_memory()
    for name, text in zip(
        (*names[:2], "stat"), ("max", "4000", f"anon 1\n{names[2]} 1500\n"), strict=True
    ):
        (group / f"memory.{name}").write_text(text)
    assert scheduling.free_memory() == pytest.approx(whole, rel=0.2)  # no limit
    (group / f"memory.{names[0]}").write_text("10000\n")
    assert scheduling.free_memory() == 7500


def test_an_evaluation_keeps_its_features():
    words = ["recipe=evaluate", "init=scratch", "model=vit_n8"]
    small, large = (
        scheduling.memory_need(resolve([*words, *more]), gpu=False)
        for more in ([], ["model.width=1280"])
    )
    assert large - small > 2 * 4 * (1280 - 128) * 50_000


def test_a_smaller_task_goes_before_one_that_does_not_fit(bench, monkeypatch):
    monkeypatch.setattr(scheduling, "free_memory", lambda: 3 << 30)
    monkeypatch.setattr(
        scheduling,
        "memory_need",
        lambda recipe, gpu: 1 << 60 if recipe.objective == "supervised" else 1 << 30,
    )
    monkeypatch.setattr(locals_, "LOOK", 60.0)
    bench.behave(**dict.fromkeys(NAMES[:4], "brief"))
    assert main([*bench.words, "parallel=4"]) == 0
    assert bench.finished() == sorted(NAMES)


def test_each_value_of_a_grid_has_its_own_need(bench):
    changes = ("parts/sweep/grid", {"optim.batch": [4096, 16]}), ("parts/final/best", ...)
    study = build(altered(*changes), "x")
    plan = plans.tasks(study, {}, {})
    made = task_recipes.check(study, plan)
    assert {
        made[name].optim.batch for name in plan if name.startswith("sweep") and "4096" in name
    } == {4096}
    assert {
        made[name].optim.batch for name in plan if name.startswith("sweep") and "=16" in name
    } == {16}


def test_two_arms_that_train_the_same_are_refused():
    model = {f"model.{key}": 32 for key in ("width", "mlp")} | {
        "model.patch": 8,
        "model.depth": 2,
        "model.heads": 2,
    }
    parts = {"pretrain": {"tool": "pretrain", "options": {"recipe": "mpp", **model}}}
    study = {"title": "t", "vary": {"model": ["vit_p8", "vit_n8"]}, "parts": parts, "report": {}}
    with pytest.raises(
        UserError, match="part pretrain, arm model=vit_n8: computes the very same as arm model="
    ):
        check_study(build(study, "x"))


def test_a_sweep_that_lost_a_run_is_made_again_before_anything_is_called_stale(bench, capsys):
    assert main(bench.words) == 0
    (lost,) = [name for name in NAMES if name == "sweep-mpp-0-lr=0.1"]
    shutil.rmtree(bench.runs / lost)
    assert main(bench.words) == 0
    assert bench.finished() == sorted(NAMES) and bench.started().count(lost) == 2
    assert bench.started().count("final-mpp-0") == 1


def test_a_larger_batch_needs_more_memory():
    small, large = (resolve(["recipe=mpp", f"optim.batch={batch}"]) for batch in (128, 512))
    assert (
        scheduling.BASE
        < scheduling.memory_need(small, gpu=False)
        < scheduling.memory_need(large, gpu=False)
    )
    # its tensors are not here
    assert scheduling.memory_need(small, gpu=True) == scheduling.memory_need(large, gpu=True)


def test_a_failed_task_leaves_out_only_what_needs_it(bench, capsys):
    bench.behave(pretrain_mpp_0="fail")
    assert main([*bench.words, "parallel=2"]) == 1
    kept = {name for name in NAMES if "scratch" in name} | {"pretrain-mpp-1", "probe-mpp-1"}
    assert set(bench.finished()) == kept
    output = capsys.readouterr().out
    assert re.search(
        r"failed    pretrain-mpp-0: it cannot be \(.*logs/pretrain-mpp-0\.txt\)", output
    )
    assert (
        "left out  probe-mpp-0: needs pretrain-mpp-0" in output
        and "left out  sweep-mpp-0-lr=0.1: needs" in output
    )
    assert "left out  final-mpp-1: needs sweep-mpp-0-lr=0.01" in output
    bench.behave()
    assert main([*bench.words, "parallel=2"]) == 0
    assert bench.finished() == sorted(NAMES)
    assert all(bench.started().count(name) == 1 + (name == "pretrain-mpp-0") for name in NAMES)


def fails(bench, *names):
    (bench.folder / "runs" / "behave.json").write_text(json.dumps(dict.fromkeys(names, "fail")))


def test_a_rate_that_diverges_costs_its_arm_nothing_else(bench, capsys):
    sweep = [name for name in NAMES if name.startswith("sweep-mpp")]
    fails(bench, sweep[-1], sweep[0])
    assert main([*bench.words, "parallel=2"]) == 1  # what failed is said
    assert set(NAMES) - set(bench.finished()) == {sweep[-1], sweep[0]}
    words = json.loads((bench.runs / "final-mpp-1" / "words.json").read_text())
    assert f"lr={words['optim.lr']}" in sweep[1]
    fails(bench, *sweep)
    for path in bench.runs.glob("*-mpp-*/result.json"):
        path.unlink()
    assert main([*bench.words, "parallel=2"]) == 1
    assert "left out  final-mpp-0: needs sweep-mpp-0" in capsys.readouterr().out


def test_a_killed_task_is_tried_once_more(bench, capsys):
    bench.behave(pretrain_scratch_0="die once", pretrain_mpp_0="die")
    assert main([*bench.words, "parallel=2"]) == 1
    assert [bench.started().count(f"pretrain-{arm}-0") for arm in ("scratch", "mpp")] == [2, 2]
    assert "failed    pretrain-mpp-0: killed by SIGKILL" in capsys.readouterr().out
    assert "pretrain-scratch-0" in bench.finished()


def test_a_metric_that_is_not_there_fails_what_asks_for_it(bench, capsys):
    study = altered(("parts/final/best/by", "loss"))
    OmegaConf.save(OmegaConf.create(study), bench.folder / "gap.yaml")
    assert main([*bench.words, "parallel=2"]) == 1
    assert (
        "failed    final-mpp-0: part final: best: by=loss: sweep-mpp-0-lr=0.01 has accuracy"
        in capsys.readouterr().out
    )


def test_another_plan_is_refused(bench):
    def keep(*words):
        request = parse_request([*bench.words, *words])
        record.write_plan(request.study, request.name, request.plan, request.folder)

    bench.runs.mkdir()
    keep()
    keep("compute.threads=1", "eval.every=3", "parallel=1")  # computes the same
    with pytest.raises(
        UserError,
        match=r"pretrain-scratch-0 \(optim\.steps 20 there, 10 here\).* and \d+ more; take another "
        r"name=",
    ):
        keep("optim.steps=10")
    keep("seeds=3")  # one more of each
    with pytest.raises(UserError, match=r"another plan: pretrain-scratch-2 \(only there\)"):
        main(bench.words)
    assert bench.started() == []
    OmegaConf.save(OmegaConf.create(altered(("title", "a new title"))), bench.folder / "gap.yaml")
    keep("seeds=3")
    assert json.loads((bench.runs / "study.json").read_text())["title"] == "a new title"
    (bench.runs / "study.json").write_text("{")
    with pytest.raises(UserError, match=r"study\.json is damaged"):
        keep()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux ends the children of a killed process"
)
def test_a_killed_study_goes_on_and_runs_nothing_twice(bench):
    """Killed twice, at different depths; what was finished is not run again, and no process runs on
    unseen."""
    for sleeper in ("sweep-mpp-0-lr=0.03", "final-scratch-1"):
        finished, before = bench.finished(), len(bench.started())
        bench.behave(**{sleeper: "sleep"})
        study = bench.start("parallel=2")
        until((bench.runs / sleeper / "pid").exists)
        study.kill()
        study.communicate()
        pid = (bench.runs / sleeper / "pid").read_text()
        until(lambda pid=pid: not alive(pid), 5)
        assert set(finished) < set(bench.finished()) < set(NAMES)
        assert not set(bench.started()[before:]) & set(finished)
    finished, before = bench.finished(), len(bench.started())
    bench.behave()
    study = bench.start("parallel=2")
    assert "finished" in study.communicate(timeout=60)[0] and study.returncode == 0
    assert bench.finished() == sorted(NAMES)
    assert sorted(bench.started()[before:]) == sorted(set(NAMES) - set(finished))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_passed_on(bench, number):
    bench.behave(pretrain_scratch_0="sleep")
    study = bench.start("parallel=1")
    until((bench.runs / "pretrain-scratch-0" / "pid").exists)
    study.send_signal(number)
    out, err = study.communicate(timeout=120)
    assert study.returncode == 130 and "the same command goes on" in err
    assert not alive((bench.runs / "pretrain-scratch-0" / "pid").read_text())
    assert bench.started() == ["pretrain-scratch-0"], out


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_as_a_task_starts_reaches_it_too(bench, monkeypatch, after):
    """`after`: one that comes when the task has ended, but is not known to have."""
    bench.behave(pretrain_scratch_0="brief" if after else "sleep")
    known = locals_.subprocess.Popen

    def start(*given, **how):
        process = known(*given, **how)
        if after:
            process.wait()
        os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(locals_.subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        main([*bench.words, "parallel=2"])
    assert bench.finished() == (["pretrain-scratch-0"] if after else [])
    assert len(bench.started()) <= 1


def test_no_task_outlives_a_study_that_breaks(bench, monkeypatch):
    bench.behave(pretrain_scratch_0="sleep")
    pid = bench.runs / "pretrain-scratch-0" / "pid"

    def show(self, running, *counts):
        if pid.exists():
            raise RuntimeError("the terminal is gone")

    monkeypatch.setattr(screens.ProgressScreen, "show", show)
    with pytest.raises(RuntimeError, match="the terminal is gone"):
        main([*bench.words, "parallel=1"])
    until(lambda: not alive(pid.read_text()))


def test_a_task_that_leaves_no_result_has_failed(bench, capsys):
    bench.behave(pretrain_scratch_0="leave")
    assert main([*bench.words, "parallel=1"]) == 1
    assert "failed    pretrain-scratch-0: it ended without a result" in capsys.readouterr().out


def test_workers_that_are_given_stay_with_gpus_too(bench, monkeypatch):
    monkeypatch.setattr(locals_, "gpus", lambda: ["0"])
    assert main([*bench.words, "parallel=1", "compute.workers=3", "compute.threads=1"]) == 0
    assert bench.task_options("final-mpp-0")["compute.workers"] == "3"


def test_a_second_study_in_the_same_folder_is_refused(bench):
    bench.behave(pretrain_scratch_0="sleep")
    study = bench.start("parallel=1")
    until((bench.runs / "pretrain-scratch-0" / "pid").exists)
    with pytest.raises(UserError, match=r"name=gap: .* is being written by process"):
        main(bench.words)
    study.terminate()
    study.communicate(timeout=120)


def test_a_folder_that_a_dying_process_holds_is_waited_for(bench, monkeypatch):
    folder = bench.runs / "pretrain-scratch-0"
    folder.mkdir(parents=True)
    code = (
        "import fcntl, sys; f = open('lock', 'a+'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, "
        "flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=folder, **pipes)
    assert holder.stdout.readline()
    looks = []

    def is_locked(place):
        found = known(place)
        looks.append(found)
        if found:
            holder.communicate()  # it ends
        return found

    known = locals_.is_locked
    monkeypatch.setattr(locals_, "is_locked", is_locked)
    assert main([*bench.words, "parallel=2"]) == 0
    assert bench.started().count("pretrain-scratch-0") == 1 and looks[0]


# ---- the screen


def test_rows_that_are_not_whole_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert screens.last_rows(path) == {}
    lines = [json.dumps({"step": step, "loss": step / 1000}) for step in range(1000)]
    path.write_text(
        "\n".join([*lines, '{"step": 1000, "validation/accuracy": 0.25}', '{"step": 10'])
    )
    assert screens.last_rows(path) == {"step": 1000, "loss": 0.999, "validation/accuracy": 0.25}


def a_run(folder, rows):
    """A run's folder with these rows, of 400 steps."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text("optim: {steps: 400}\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_line_for_each_running_task(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(screens.time, "monotonic", lambda: now[0])
    run = screens.Running(a_run(tmp_path / "final-mpp-0", []), begun=0.0)
    now[0] = 12
    assert run.cells() == ("final-mpp-0", "", "since 12 s", "")
    a_run(run.folder, [{"step": 100, "loss": 1.25, "validation/accuracy": 0.5}])
    assert run.cells() == (
        "final-mpp-0",
        "step 100/400",
        "loss 1.250, validation/accuracy 50.0%",
        "",
    )
    now[0] = 22  # 100 steps in 10 s, 200 more to go
    a_run(run.folder, [{"step": 200, "loss": 1.0}])
    assert run.cells() == ("final-mpp-0", "step 200/400", "loss 1.000", "left 20 s")
    a_run(run.folder, [{"step": 40, "loss": 1.0}])  # resumed from a checkpoint
    assert run.cells()[3] == ""


def test_plain_lines_where_there_is_no_terminal(tmp_path, monkeypatch, capsys):
    run = screens.Running(a_run(tmp_path / "a", [{"step": 100, "loss": 1.25}]))
    with screens.ProgressScreen() as screen:
        screen.show([run], 1, 3, 0, str)
        assert capsys.readouterr().out == ""
        monkeypatch.setattr(screens, "QUIET", 0.0)
        screen.show([run], 1, 3, 1, lambda: "left about 2 min")
    assert (
        capsys.readouterr().out == "running   a  step 100/400  loss 1.250\n"
        "1 of 3 finished, 1 failed or left out; left about 2 min\n"
    )


def test_the_time_left_is_that_of_tasks_alike() -> None:
    """Of the same part and arm, else of the part; several at once take turns."""

    def planned(part: str, arm: str, seed: int) -> plans.Task:
        return plans.Task(f"{part}-{arm}-{seed}", part, "pretrain", arm, seed, {}, (), {})

    tasks = [planned("pre", arm, seed) for arm in "ab" for seed in range(3)]
    plan = {task.name: task for task in [*tasks, planned("fin", "a", 0)]}
    took = {"pre-a-0": 100.0, "pre-b-0": 40.0}
    over = set(took)
    rest = "1 tasks of fin, of which none has finished"
    # 2 x 100 and 2 x 40 of the arms, less the 60 s that one has run
    left = screens.time_left(plan, took, {"pre-a-1": 60.0}, over, 1)
    assert left == f"left about {formatting.duration(220)} and {rest}"
    left = screens.time_left(plan, took, {}, over, 2)
    assert left == f"left about {formatting.duration(140)} and {rest}"
    left = screens.time_left(plan, {"pre-a-0": 100.0}, {}, {"pre-a-0"}, 100)
    assert left == f"left about {formatting.duration(100)} and {rest}"
    assert screens.time_left(plan, {"pre-a-0": 0.0}, {}, {"pre-a-0"}, 1) == ""
    assert screens.time_left(plan, took, {}, plan.keys(), 1) == ""


def test_a_live_display_on_a_terminal(tmp_path, monkeypatch):
    console = Console(
        force_terminal=True, width=70, record=True, file=(tmp_path / "screen").open("w")
    )
    monkeypatch.setattr(screens, "Console", lambda **_: console)
    monkeypatch.setattr(screens, "REFRESH", 0.0)
    runs = [
        screens.Running(a_run(tmp_path / name, [{"step": 100, "loss": 1.25}]))
        for name in ("first", "second")
    ]
    with screens.ProgressScreen() as screen:
        screen.say("finished  zeroth in 3 s")
        screen.show(runs, 1, 3, 0, str)
    console.file.close()
    shown = (tmp_path / "screen").read_text()
    for line in ("finished  zeroth", "first", "second", "step 100/400", "1 of 3 finished"):
        assert line in shown


# ---- the real tools


def test_a_tiny_study_with_the_real_tools(tmp_path):
    """Pre-train and sweep (one rate, from scratch, so that both run at once), then fine-tune with
    that rate."""
    words = dict(word.split("=") for word in TINY) | {"optim.steps": 4}
    labels = {"recipe": "finetune", "data.share": 0.02, "data.validation": 0.1, "eval.test": False}
    tuned = words | labels
    parts = {
        "pretrain": {"tool": "pretrain", "options": words},
        "sweep": {
            "tool": "finetune",
            "grid": {"optim.lr": [0.07]},
            "options": tuned | {"init": "scratch"},
        },
        "final": {
            "tool": "finetune",
            "best": {"of": "sweep", "by": "accuracy"},
            "options": {key: value for key, value in tuned.items() if not key.startswith("model.")}
            | {"init": "{pretrain}"},
        },
    }
    OmegaConf.save(
        OmegaConf.create({"title": "t", "arms": {"mpp": "patches"}, "parts": parts}),
        tmp_path / "small.yaml",
    )
    options = [f"recipe={tmp_path}/small.yaml", f"out={tmp_path}", "parallel=2"]
    (status,), (output,) = outcome([launch("tools/study.py", *options)])
    assert status == 0, output
    folder = tmp_path / "small"
    runs = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/result.json")}
    assert set(runs) == {"pretrain-mpp-0", "sweep-mpp-0-lr=0.07", "final-mpp-0"}
    assert runs["final-mpp-0"]["total_exaflop"] > runs["final-mpp-0"]["exaflop"]
    final = resolve([f"recipe={folder}/final-mpp-0/recipe.yaml"])
    assert (final.optim.lr, final.init) == (0.07, str(folder / "pretrain-mpp-0"))


def test_of_a_loss_the_lowest_is_chosen(bench, tmp_path):
    plan = plans.tasks(build(altered(("parts/final/best/by", "loss")), "x"), {}, {})
    swept = [name for name in plan["final-mpp-0"].needs if plan[name].values]
    for place, name in enumerate(swept):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(
            json.dumps({"metrics": {"loss": {"value": 1.0 + place, "split": "validation"}}})
        )
    assert len(swept) > 1
    chosen = plans.best_values(plan["final-mpp-0"], plan, tmp_path)
    assert chosen == plan[swept[0]].values


def test_nothing_is_chosen_but_on_held_out_images(bench, tmp_path):
    with pytest.raises(UserError, match="best: by=top1: that is of the test images"):
        build(altered(("parts/final/best/by", "top1")), "x")
    plan = plans.tasks(build(altered(), "x"), {}, {})
    for name in plan["final-mpp-0"].needs:
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(
            json.dumps({"metrics": {"accuracy": {"value": 0.5, "split": "train"}}})
        )
    with pytest.raises(UserError, match="it is of the train images"):
        plans.best_values(plan["final-mpp-0"], plan, tmp_path)
    (tmp_path / "sweep-mpp-0-lr=0.01" / "result.json").write_text("{")
    with pytest.raises(UserError, match=r"result\.json is damaged"):
        plans.best_values(plan["final-mpp-0"], plan, tmp_path)


@pytest.mark.parametrize(
    ("pretrain", "sweep", "fine"),
    [
        # another cut of the same labels
        ({"data.share": 0.1}, {"data.share": 0.1, "data.validation": 0.1}, False),
        (
            {"data.share": 0.1, "data.validation": 0},
            {"data.share": 0.1, "data.validation": 0.1},
            False,
        ),
        (
            {"data.share": 0.5, "data.validation": 0.1},
            {"data.share": 0.1, "data.validation": 0.1},
            False,
        ),
        (
            {"data.share": 0.1, "data.validation": 0.1},
            {"data.share": 0.1, "data.validation": 0.1},
            True,
        ),
        ({"data.share": 0.1}, {"data.share": 0.1}, True),  # the set's own held-out split
        (
            {"data.share": 0.1, "data.validation": 0.1},
            {"data.share": 0.1, "data.validation": 0},
            False,
        ),
    ],
)
def test_a_sweep_is_judged_on_labels_that_nothing_learned_before(pretrain, sweep, fine):
    study = altered()
    study["parts"]["pretrain"]["by_arm"]["scratch"] |= pretrain
    study["parts"]["sweep"]["options"] |= sweep
    refused = pytest.raises(
        UserError, match=r"arm scratch: data\.validation=.*part pretrain .* learned their labels"
    )
    with nullcontext() if fine else refused:
        check_study(build(study, "x"))


REPORTS = {
    "arms alike": ({"candidate": "scratch"}, "expected different arms"),
    "a final part that is swept": (
        {"final": "sweep"},
        "sweep is no part of tool finetune without a grid",
    ),
    "a final part without a test": ({"final": "pretrain"}, "pretrain is no part of tool finetune"),
    "a paper's figure in words": (
        {"paper": {"mpp": "high"}},
        "paper: mpp: high: expected a number",
    ),
}


@pytest.mark.parametrize(("change", "says"), REPORTS.values(), ids=REPORTS)
def test_a_report_that_could_not_be_made(change, says):
    study = altered()
    study["report"] = study["report"] | change
    with pytest.raises(UserError, match=says):
        build(study, "x")


@pytest.mark.parametrize("lacking", ["final", "baseline", "candidate"])
def test_a_report_without_what_it_needs_is_refused_before_training(lacking):
    study = altered()
    del study["report"][lacking]
    with pytest.raises(UserError, match=f"missing: {lacking}; a report of arms needs final, base"):
        build(study, "x")
    study["report"] = {"differs": ["one"]}
    with pytest.raises(UserError, match=r"missing: final; a report of arms needs final$"):
        build(study, "x")


def test_a_finished_run_of_other_words_is_no_run_of_this_study(bench):
    assert main([*bench.words, "parallel=2"]) == 0
    folder = bench.runs / "pretrain-mpp-0"
    recipe = resolve(json.loads((bench.runs / "study.json").read_text())["tasks"][2]["options"])
    recipe.optim.steps = 77
    (folder / "recipe.yaml").write_text(dump(recipe))
    with pytest.raises(
        UserError,
        match=r"pretrain-mpp-0 was made otherwise: optim\.steps \(77 there, 20 here\); remove it",
    ):
        main([*bench.words, "parallel=2"])


def test_gpus_are_dealt_out(bench, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    for tool in bench.tools.glob("*.py"):
        if tool.stem != "study":
            line = '(folder / "gpu.txt").write_text(os.environ["CUDA_VISIBLE_DEVICES"])\n'
            tool.write_text(tool.read_text().replace("lr = float", line + "lr = float", 1))
    assert main(bench.words) == 0
    used = [(bench.runs / name / "gpu.txt").read_text() for name in NAMES]
    assert set(used) == {"4", "7"} and abs(used.count("4") - used.count("7")) <= 1
