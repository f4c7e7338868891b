"""Reports of made-up studies whose answer is known."""

import base64
import copy
import functools
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from helpers.arm_studies import (
    ARMS,
    ENVIRONMENT,
    IMAGES,
    REPORT,
    RIGHT,
    TOP1,
    finish,
    predict,
    study,
    task,
)
from helpers.launching import launch
from helpers.reports import Page, altered, do_not_draw, error, table, write
from ssl_vit.config.init_source import InitSource
from ssl_vit.config.parsing import flatten, load_yaml
from ssl_vit.config.resolve import resolve
from ssl_vit.config.schema import dump
from ssl_vit.errors import UserError
from ssl_vit.lab import reports
from ssl_vit.lab.reports import cautions, load
from ssl_vit.lab.studies import record
from ssl_vit.lab.studies.expand import Task
from ssl_vit.metrics import registry
from ssl_vit.runs.identity import recipe_hash, written_hash


@functools.cache
def meant(words):
    return resolve([*words, "name=x", "init=scratch"])


def planned(folder, one, *words):
    """A recipe.yaml of the run that the task's words mean, or of others, and the result's hash with
    it."""
    given = words or [word for word in one["options"] if not word.startswith("seed=")]
    recipe = copy.deepcopy(meant(tuple(given)))
    recipe.seed, recipe.name = one["seed"], one["name"]
    (folder / one["name"] / "recipe.yaml").write_text(dump(recipe))
    altered(folder / one["name"] / "result.json", recipe=recipe_hash(recipe))


def rewritten(folder, old, new):
    """Another value in a run's recipe.yaml, and in the hash of its result.json."""
    path = folder / "recipe.yaml"
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    altered(folder / "result.json", recipe=written_hash(flatten(load_yaml(path))))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished study with its report: read only."""
    folder = study(tmp_path_factory.mktemp("whole") / "gap")
    return folder, reports.write(folder)


@pytest.fixture
def gap(tmp_path):
    """A finished study without a report."""
    return study(tmp_path / "gap")


@pytest.fixture(autouse=True)
def light(request, monkeypatch):
    """No figures where a test does not look at them: they take most of the time."""
    if "whole" not in request.fixturenames:
        do_not_draw(monkeypatch)


def test_the_answer_comes_first_and_is_the_hand_worked_one(whole):
    """mpp - scratch: 20, 18, 22 of 400: 5 points, sd 0.5, half-width 2.4841 x 0.5; of the probes by
    the same counts of 1,000, 800 and 500. supervised - mpp: 80, 86, 80."""
    folder, found = whole
    assert found.answer == (
        "On top-1 after fine-tuning, mpp minus scratch is +5.00 points (95% interval in pairs "
        "+3.76 to +6.24 over 3 seeds, which excludes zero); mpp minus supervised is -20.50 points "
        "(95% interval in pairs -22.65 to -18.35 over 3 seeds, which excludes zero). Of the frozen "
        "encoder, mpp minus scratch: few shot 5 +2.00 points (95% +1.50 to +2.50), few shot 10 "
        "+2.50 points (95% +1.88 to +3.12), linear +4.00 points (95% +3.01 to +4.99)."
    )
    assert (folder / "report.md").read_text().split("\n\n")[:2] == ["# A gap made up", found.answer]


def test_rows_are_what_scipy_says_of_the_counts(whole):
    measure = whole[1].numbers.measure("top1")
    assert [one.arm for one in measure.not_compared] == ["extra: scratch, direct"]
    for one in (*measure.results, *measure.not_compared):
        shares = np.array(RIGHT[one.arm.removeprefix("extra: ").split(",")[0]]) / IMAGES
        theirs = stats.t.interval(0.95, 2, shares.mean(), stats.sem(shares))
        assert one.value.interval == pytest.approx(theirs)
        assert one.resampled.low < one.value.interval.low, "the images widen it"
        assert one.resampled.high > one.value.interval.high


def test_pairs_are_what_scipy_says_of_the_counts(whole):
    pairs = {(pair.arm, pair.other): pair for pair in whole[1].numbers.pairs}
    assert list(pairs) == [("mpp", "scratch"), ("supervised", "scratch"), ("mpp", "supervised")]
    for (arm, other), pair in pairs.items():
        theirs = stats.ttest_rel(np.array(RIGHT[arm]) / IMAGES, np.array(RIGHT[other]) / IMAGES)
        assert pair.difference.interval == pytest.approx(tuple(theirs.confidence_interval()))


def test_arms_table_with_the_paper_beside_and_extra_rows_marked(whole):
    text = (whole[0] / "report.md").read_text()
    rows = table(text, TOP1)
    interval = "95%, seeds"
    assert rows[0] == [
        TOP1,
        *("n", "mean", "sd", interval, "95%, seeds and images"),
        *("minus scratch, points", interval, "paper"),
    ]
    assert [row[0] for row in rows[1:]] == [*RIGHT, "extra: scratch, direct"]
    assert rows[2][:5] == ["mpp", "3", "56.00", "0.87", "53.85 to 58.15"]
    assert [row[-1] for row in rows[1:]] == ["77.91", "79.90", "83.97", "-"]
    assert table(text, "top-5 after fine-tuning, %: arm")[2][:3] == ["mpp", "3", "99.00"]
    assert "- CIFAR-10 in place of ImageNet" in text
    assert all(f"- {arm}: the arm {arm}" in text for arm in RIGHT)
    assert '<tr class="marked">' in (whole[0] / "report.html").read_text()


def test_what_three_seeds_can_show(whole):
    """t(2) = 4.30, 4.30 / sqrt(3) = 2.48, of 0.5 points 1.24; 5 seeds: 2.776 / sqrt(5) x 0.5; 10:
    2.262 / sqrt(10) x 0.5."""
    text = (whole[0] / "report.md").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("With n = 3 seeds"))
    assert "Student's t is 4.30" in line
    assert "2.48 standard deviations" in line
    assert "mpp minus scratch, 0.50, " in line
    assert "above 1.24 points, 0.62 with 5 seeds, 0.36 with 10 seeds." in line


def test_probes_stand_beside_fine_tuning(whole):
    names = ["top1", "top5", "few_shot_5", "few_shot_10", "linear"]
    assert [one.name for one in whole[1].numbers.measures] == names
    assert whole[1].numbers.main == "top1"
    rows = table((whole[0] / "report.md").read_text(), "linear, %: arm")
    assert rows[2] == [
        *("mpp", "3", "44.80", "0.69", "43.08 to 46.52"),
        *("+4.00", "+3.01 to +4.99"),
    ]


def test_held_out_metrics_of_unknown_recipes_are_not_shown(whole):
    """The made-up runs have no recipe.yaml, so nothing says that their losses compare."""
    assert whole[1].numbers.incomparable == {
        "accuracy": ["recipe.yaml (missing)"],
        "loss": ["recipe.yaml (missing)"],
    }
    assert "held-out accuracy, loss" in (whole[0] / "report.md").read_text()


def test_sweeps_mark_the_best_and_warn_of_edges(whole, gap):
    text = (whole[0] / "report.md").read_text()
    assert table(text, "sweep: arm")[1:3] == [
        ["scratch", "(49.00)", "47.00", "40.00"],
        ["mpp", "52.00", "56.00", "(70.00)"],
    ]
    assert "mpp: the best, optim.lr=0.1, is at an end of the grid" in text
    metric = {"accuracy": {"value": 0.9, "n": 1, "split": "validation"}}
    altered(gap / "sweep-mpp-0-lr=0.03" / "result.json", metrics=metric)
    altered(
        gap / "sweep-mpp-0-lr=0.1" / "result.json",
        metrics={"accuracy": metric["accuracy"] | {"value": float("nan")}},
    )
    found = reports.write(gap)
    assert [sweep.edges for sweep in found.numbers.sweeps] == [["optim.lr"], [], ["optim.lr"]]
    assert table((gap / "report.md").read_text(), "sweep: arm")[2] == [
        "mpp",
        "52.00",
        "(90.00)",
        "nan",
    ]
    json.loads(json.dumps(found.content(), allow_nan=False))


def test_a_sweep_is_judged_by_the_metric_of_its_choosers(gap):
    about = json.loads((gap / "study.json").read_text())
    for one in about["tasks"]:
        one |= {"best": "sweep", "by": "speed"} if one["part"] == "final" else {}
        if one["part"] == "sweep":
            entry = {"value": 1 - one["values"]["optim.lr"], "n": 1, "split": "validation"}
            altered(gap / one["name"] / "result.json", metrics={"speed": entry, "loss": entry})
    write(gap / "study.json", about)
    assert [(sweep.by, sweep.best) for sweep in reports.write(gap).numbers.sweeps] == [
        ("speed", 0)
    ] * 3
    for one in about["tasks"]:
        one |= {"by": "loss"} if one["part"] == "final" else {}
    write(gap / "study.json", about)
    found = reports.write(gap).numbers.sweeps
    losses = [[mean for _, mean in sweep.tried] for sweep in found]
    assert [sweep.best for sweep in found] == [one.index(min(one)) for one in losses]
    assert all(sweep.best != 0 for sweep in found)


def test_a_sweep_that_a_run_did_not_measure_is_named_or_left_out(gap):
    """Named where a task chose by it."""
    lacking = gap / "sweep-mpp-0-lr=0.03" / "result.json"
    altered(lacking, metrics={"loss": {"value": 1.0, "n": 1, "split": "validation"}})
    assert [sweep.arm for sweep in reports.write(gap).numbers.sweeps] == ["scratch", "supervised"]
    about = json.loads((gap / "study.json").read_text())
    for one in about["tasks"]:
        one |= {"best": "sweep", "by": "accuracy"} if one["part"] == "final" else {}
    write(gap / "study.json", about)
    line = f"{lacking} has no accuracy, which the report needs of part sweep"
    assert error(gap) == line


def test_compute_is_a_seeds_mean_and_a_sweeps_sum(whole):
    text = (whole[0] / "report.md").read_text()
    rows = [row for row in table(text.split("## Compute")[1], "arm")[1:] if row[0] == "mpp"]
    assert rows == [
        ["mpp", "pre-training", "3", "10", "1,000", "0.02", "0.5"],
        ["mpp", "fine-tuning", "3", "10", "1,000", "0.004", "0.5"],
        ["mpp", "sweep", "3", "-", "3,000", "0.006", "1.5"],
        ["mpp", "all", "12", "-", "12,000", "0.078", "6"],
    ]
    assert "mpp was pre-trained with 1.00 times the exaFLOP of scratch." in text
    (scratch, *_) = whole[1].numbers.measure("top1").results
    assert scratch.exaflop == {seed: pytest.approx(0.024) for seed in range(3)}


def test_hardware_versions_and_dates_are_the_runs(whole):
    text = (whole[0] / "report.md").read_text()
    assert (
        "- 1 x cpu (a processor), 2 threads, precision float32; Python 3.11.9, torch 2.15.0, "
        "timm 1.0.24; revision" in text
    )
    assert "finished between 2026-01-01T00:00:00+00:00 and 2026-01-03T00:00:00+00:00" in text


@pytest.mark.parametrize(
    "how", ["a task before what it needs", "a name twice", "a path for a name"]
)
def test_a_plan_out_of_order_is_damaged(gap, how):
    about = json.loads((gap / "study.json").read_text())
    tasks = about["tasks"]
    if how == "a task before what it needs":
        tasks.insert(0, tasks.pop(next(i for i, one in enumerate(tasks) if one["needs"])))
    elif how == "a name twice":
        tasks.append(tasks[0])
    else:
        tasks[0]["name"] = "../elsewhere"
    write(gap / "study.json", about)
    with pytest.raises(UserError, match=r"study\.json is (missing or )?damaged"):
        reports.write(gap)


def test_commands_are_shown_where_study_json_has_them(gap):
    about = json.loads((gap / "study.json").read_text())
    for one in about["tasks"]:
        one["options"] = ["recipe=finetune", f"seed={one['seed']}"]
        planned(gap, one)
    write(gap / "study.json", about)
    reports.write(gap)
    text = (gap / "report.md").read_text()
    assert text.count("tools/finetune.py recipe=finetune seed=0") == 7, (
        "three sweeps, three final parts, one extra"
    )
    assert "seed=1" not in text


@pytest.mark.parametrize(
    ("copied", "why"),
    [
        ("steps", "its recipe is not the planned one: optim.steps (7 there, 9 here)"),
        ("another task", "its recipe.yaml is of a run called final-mpp-2"),
        ("result", "its result.json is of another recipe than its recipe.yaml"),
        ("none", "its recipe.yaml is missing or damaged"),
    ],
)
def test_a_copied_foreign_run_is_named_and_left_out(gap, copied, why):
    about = json.loads((gap / "study.json").read_text())
    for one in (one for one in about["tasks"] if one["name"].startswith("final-mpp")):
        # of a run of the study, or of weights from elsewhere, which decide the model
        init = "init=runs/other" if one["seed"] == 2 else "init={x}"
        one["options"] = ["recipe=finetune", init, "optim.steps=9", "optim.warmup=1"]
        model = ["model=vit_p8"] if one["seed"] == 2 else []
        planned(gap, one, "recipe=finetune", "optim.steps=9", "optim.warmup=1", *model)
    write(gap / "study.json", about)
    assert "left out" not in (reports.write(gap), (gap / "report.md").read_text())[1]
    place, one = (
        gap / "final-mpp-1",
        next(one for one in about["tasks"] if one["name"] == "final-mpp-1"),
    )
    if copied == "steps":
        planned(gap, one, "recipe=finetune", "optim.steps=7", "optim.warmup=1")
    elif copied == "another task":
        shutil.rmtree(place)
        shutil.copytree(gap / "final-mpp-2", place)
    elif copied == "result":
        altered(place / "result.json", recipe="1" * 16)
    else:
        (place / "recipe.yaml").unlink()
    found = reports.write(gap)
    assert found.numbers.pair("mpp", "scratch").difference.n == 2
    line = f"Not the runs that were planned, and left out: final-mpp-1 ({why})."
    assert f"> **Note:** {line}" in (gap / "report.md").read_text()
    for seed in (0, 2):
        shutil.rmtree(gap / f"final-mpp-{seed}")
    assert f"left out: final-mpp-1 ({why})" in error(gap)


def with_options(gap, *parts):
    """The study with recipes of the tasks of these parts in study.json and in their folders."""
    about = json.loads((gap / "study.json").read_text())
    for one in (one for one in about["tasks"] if one["part"] in parts):
        one["options"] = ["recipe=finetune", "optim.steps=9", "optim.warmup=1"]
        planned(gap, one)
    write(gap / "study.json", about)
    return {one["name"]: one for one in about["tasks"]}


def test_what_depends_on_a_run_that_is_left_out_is_left_out(gap):
    """A pre-training run was replaced by another one after what depends on it was made from it."""
    tasks = with_options(gap, "pretrain")
    whole = reports.write(gap).numbers
    assert whole.left_out == {} and whole.pair("mpp", "scratch").difference.n == 3
    planned(gap, tasks["pretrain-mpp-1"], "recipe=finetune", "optim.steps=7", "optim.warmup=1")
    found = reports.write(gap)
    reason = "its recipe is not the planned one: optim.steps (7 there, 9 here)"
    of_it = dict.fromkeys(("final-mpp-1", "probe-mpp-1"), "it depends on pretrain-mpp-1")
    assert found.numbers.left_out == {"pretrain-mpp-1": reason} | of_it
    assert found.content()["numbers"]["left_out"] == found.numbers.left_out  # of --json
    for name in ("top1", "linear"):
        counts = {one.arm: one.value.n for one in found.numbers.measure(name).results}
        assert counts == {"scratch": 3, "mpp": 2, "supervised": 3}
    assert found.numbers.pair("mpp", "scratch").difference.mean == pytest.approx(0.0525)
    all_runs = {one.arm: one.runs for one in found.numbers.costs if one.stage == "all"}
    assert all_runs["scratch"] - 3 == all_runs["supervised"] == all_runs["mpp"] + 3
    text = (gap / "report.md").read_text()
    assert f"left out: pretrain-mpp-1 ({reason}), final-mpp-1 (it depends on pretrain-" in text


def test_what_a_run_that_is_left_out_reaches_through_others_is_left_out(gap):
    """A run of a sweep that chose, and pre-training behind a run that is not there any more."""
    tasks = with_options(gap, "pretrain", "sweep")
    about = json.loads((gap / "study.json").read_text())
    for one in (one for one in about["tasks"] if one["part"] == "probe"):
        one["needs"] = [f"final-{one['arm']}-{one['seed']}"]
    write(gap / "study.json", about)
    shutil.rmtree(gap / "final-scratch-2")
    for name in ("pretrain-scratch-2", "sweep-supervised-0-lr=0.1"):
        planned(gap, tasks[name], "recipe=finetune", "optim.steps=7", "optim.warmup=1")
    text = error(gap)
    assert "arm supervised, the reference, has no finished run of part final" in text
    assert "probe-scratch-2 (it depends on pretrain-scratch-2)" in text
    for part in ("final", "probe"):
        for seed in range(3):
            of_it = f"{part}-supervised-{seed} (it depends on sweep-supervised-0-lr=0.1)"
            assert of_it in text


@pytest.mark.parametrize("other", [None, "file", "pool"])
def test_a_run_of_other_first_weights_is_left_out(gap: Path, other: str | None) -> None:
    """Its words are those of the plan, which name a run; its weights, or what their files say of an
    image's feature, were another study's."""
    about = json.loads((gap / "study.json").read_text())
    for one in (one for one in about["tasks"] if one["name"].startswith("final-mpp")):
        before = gap / f"pretrain-mpp-{one['seed']}"
        one["options"] = ["recipe=finetune", f"init={{{before.name}}}"]
        planned(gap, one, "recipe=finetune")
        write(before / "environment.json", ENVIRONMENT | {"data": {"train": "t"}})
        (before / "recipe.yaml").write_text("name: x\n")
        (before / "export").mkdir()
        (before / "export" / "config.json").write_text('{"architecture": "vit_base_patch16_224"}')
        (before / "export" / "model.safetensors").write_bytes(before.name.encode())
        init = InitSource(str(before)).identity()
        altered(gap / one["name"] / "environment.json", init=init | ({other: "x"} if other else {}))
    write(gap / "study.json", about)
    reports.write(gap) if other is None else None
    why = "final-mpp-0 (its first weights are not those of pretrain-mpp-0)"
    assert why in error(gap) if other else "left out" not in (gap / "report.md").read_text()


@pytest.mark.parametrize("images", ["its own", "other", "gone"])
def test_a_task_that_names_no_images_has_those_of_the_run_before(
    gap: Path, tmp_path: Path, images: str
) -> None:
    """It was left out, as its recipe's own images were expected."""
    about = json.loads((gap / "study.json").read_text())
    of_run = f"data.path={tmp_path}/a"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for one in (one for one in about["tasks"] if one["name"].startswith("final-mpp")):
        before = gap / f"pretrain-mpp-{one['seed']}"
        one["options"] = ["recipe=finetune", f"init={{{before.name}}}"]
        taken = f"data.path={tmp_path}/b" if images == "other" else of_run
        planned(gap, one, "recipe=finetune", taken, "data.size=32")
        before.mkdir(exist_ok=True)
        (before / "recipe.yaml").write_text(dump(meant(("recipe=mpp", of_run, "data.size=32"))))
        (before / "export").mkdir()
        (before / "export" / "config.json").write_text('{"architecture": "vit_base_patch16_224"}')
        (before / "export" / "model.safetensors").write_bytes(before.name.encode())
        write(before / "environment.json", ENVIRONMENT | {"data": {"train": "t"}})
        init = InitSource(str(before)).identity()
        altered(gap / one["name"] / "environment.json", init=init)
        if images == "gone":
            shutil.rmtree(before)
    write(gap / "study.json", about)
    if images == "other":
        assert "final-mpp-0 (its recipe is not the planned one: data." in error(gap)
    else:
        found = reports.write(gap).numbers.left_out
        assert not any("its recipe is not the planned one" in why for why in found.values())


def test_compute_that_is_not_counted_is_said_and_no_sum_or_axis_has_it(gap: Path) -> None:
    """As of a plugin's objective: the others' stays."""
    for path in gap.glob("*-mpp-*/result.json"):
        altered(path, total_exaflop=None)
        if path.parent.name.startswith("pretrain"):
            altered(path, exaflop=None)
    found = reports.write(gap).numbers
    costs = {(one.arm, one.stage): one.exaflop for one in found.costs}
    assert costs["mpp", "pre-training"] is None and costs["", "all arms"] is None
    assert costs["scratch", "fine-tuning"] is not None
    spent = {one.arm: one.exaflop for one in found.measure(found.main).results}
    assert spent["mpp"] == {} and len(spent["scratch"]) == 3
    text = (gap / "report.md").read_text()
    assert "| not counted |" in text and "times the exaFLOP of scratch" not in text


def test_a_report_runs_no_plugin_that_the_studys_record_names(gap: Path, tmp_path: Path) -> None:
    plugin, ran = tmp_path / "theirs.py", tmp_path / "ran"
    plugin.write_text(f"from pathlib import Path\nPath({str(ran)!r}).write_text('x')\n")
    about = json.loads((gap / "study.json").read_text())
    one = next(one for one in about["tasks"] if one["name"] == "final-mpp-1")
    one["options"] = ["recipe=finetune", f"plugin={plugin}"]
    planned(gap, one, "recipe=finetune")
    write(gap / "study.json", about)
    reports.write(gap)
    assert "left out" not in (gap / "report.md").read_text() and not ran.exists()


def test_a_run_of_an_objective_that_is_not_known_here_is_compared_by_its_options(gap: Path) -> None:
    """As that of a plugin, which no report runs: the keys that the plan names are compared."""
    about = json.loads((gap / "study.json").read_text())
    one = next(one for one in about["tasks"] if one["name"] == "final-mpp-1")
    one["options"] = ["recipe=finetune", "plugin=their.py", "objective=own", "optim.lr=1e-1"]
    planned(gap, one, "recipe=finetune", "optim.lr=0.1")
    rewritten(gap / one["name"], "objective: supervised", "objective: own")
    write(gap / "study.json", about)
    reports.write(gap)
    assert "left out" not in (gap / "report.md").read_text()
    rewritten(gap / one["name"], "lr: 0.1", "lr: 0.2")
    reports.write(gap)
    assert "optim.lr (0.2 there, 0.1 here)" in (gap / "report.md").read_text()


def test_runs_from_before_a_key_was_renamed_count(gap: Path) -> None:
    about = json.loads((gap / "study.json").read_text())
    one = next(one for one in about["tasks"] if one["name"] == "final-mpp-1")
    one["options"] = ["recipe=finetune", "eval.pictures=7", "optim.steps=9", "optim.warmup=1"]
    planned(gap, one, "recipe=finetune", "eval.images=7", "optim.steps=9", "optim.warmup=1")
    path = gap / one["name"] / "recipe.yaml"
    path.write_text(path.read_text().replace("  images: ", "  pictures: "))
    write(gap / "study.json", about)
    reports.write(gap)
    assert "left out" not in (gap / "report.md").read_text()
    planned(gap, one, "recipe=finetune", "eval.images=7", "optim.steps=8", "optim.warmup=1")
    reports.write(gap)
    assert "optim.steps (8 there, 9 here)" in (gap / "report.md").read_text()


FIGURES = [f"figures/{name}.svg" for name in ("measures", "accuracy_exaflop", "learning_curves")]


def test_the_same_study_gives_the_same_bytes(whole, tmp_path):
    folder, _ = whole
    names = ["report.md", "report.html", *FIGURES]
    shutil.copytree(folder, tmp_path / "again")
    for name in names:
        (tmp_path / "again" / name).unlink()
    reports.write(tmp_path / "again")
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_the_page_needs_nothing_beside_it(whole):
    folder, _ = whole
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert not page.open
    assert len(page.linked) == 2, "two figures; learning curves are drawn by the script"
    for linked in page.linked:
        ElementTree.fromstring(base64.b64decode(linked.removeprefix("data:image/svg+xml;base64,")))
    assert not re.search(r"https?:|@import|url\(", text)
    cells = [
        cell
        for line in (folder / "report.md").read_text().splitlines()
        if line.startswith("| ")
        for cell in line.split("|")
    ]
    assert set(page.cells) == {
        cell.strip()
        for cell in cells
        if not re.fullmatch(r"\s*-+:?\s*", cell) or cell.strip() == "-"
    } - {""}


def test_figures_lie_beside_the_markdown(whole):
    folder, _ = whole
    linked = re.findall(r"!\[[^]]*\]\(([^)]*)\)", (folder / "report.md").read_text())
    assert linked == FIGURES
    for name in linked:
        ElementTree.parse(folder / name)


def test_words_of_the_study_cannot_become_markup(tmp_path):
    folder = study(tmp_path / "gap", title="<b>bold</b> & more", arms=ARMS | {"mpp": "<script>"})
    reports.write(folder)
    text = (folder / "report.html").read_text()
    assert "<b>" not in text
    assert "<script>" not in text.partition("</main>")[0], "the page's own come after"
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; more" in text


def test_one_seed_has_no_interval(tmp_path):
    folder = study(tmp_path / "gap", {arm: counts[:1] for arm, counts in RIGHT.items()})
    found = reports.write(folder)
    assert "mpp minus scratch is +5.00 points, on one seed, which gives no interval" in found.answer
    text = (folder / "report.md").read_text()
    assert table(text, TOP1)[1] == ["scratch", "1", "50.00", "-", "-", "-", "77.91"]
    assert "One seed has no standard deviation and no interval" in text


def test_a_loss_and_a_lead_have_their_signs(tmp_path):
    """mpp - scratch: 0.25, -2.5, 0 points: mean -0.75, sd 1.5207, half-width 2.4841 x 1.5207."""
    right = {"scratch": (220, 230, 225), "mpp": (221, 220, 225), "supervised": (200, 201, 203)}
    found = reports.write(study(tmp_path / "gap", right))
    less, more = found.answer.split("; ")
    assert "mpp minus scratch is -0.75 points" in less
    assert "-4.53 to +3.03 over 3 seeds, which includes zero" in less
    assert "mpp minus supervised is +5.17 points (95% interval in pairs +" in more


def test_seeds_that_agree_to_the_last_image_have_no_width(tmp_path):
    found = reports.write(
        study(
            tmp_path / "gap", {"scratch": (200,) * 3, "mpp": (200,) * 3, "supervised": (300,) * 3}
        )
    )
    less, _ = found.answer.split("; ")
    assert "mpp minus scratch is +0.00 points" in less
    assert "+0.00 to +0.00 over 3 seeds, which includes zero" in less


def test_a_study_that_still_runs_is_reported_as_far_as_it_is(gap):
    for name in (
        "final-mpp-2",
        "pretrain-mpp-2",
        "final-scratch-0",
        "direct-scratch-0",
        "direct-scratch-1",
        "direct-scratch-2",
    ):
        shutil.rmtree(gap / name)
    (gap / "probe-mpp-2" / "result.json").unlink()
    found = reports.write(gap)
    text = (gap / "report.md").read_text()
    assert "> **Note:** 7 of 39 tasks are not finished" in text
    assert all(name in text for name in ("pretrain-mpp-2", "final-mpp-2", "probe-mpp-2"))
    pair = found.numbers.pair("mpp", "scratch")
    assert pair.difference.n == 1, "in pairs only of the seed that both have"
    assert [row[1] for row in table(text, TOP1)[1:]] == ["2", "2", "3"]


def test_arms_without_a_seed_in_common(gap):
    for name in ("final-mpp-1", "final-mpp-2", "final-scratch-0"):
        shutil.rmtree(gap / name)
    answer = reports.write(gap).answer
    assert "mpp and scratch have no seed in common yet; mpp minus supervised is" in answer


def test_a_study_may_ask_for_less(tmp_path):
    """No reference, no probes, no extra rows, no paper; two classes, so no top-5."""
    less = {key: REPORT[key] for key in ("final", "baseline", "candidate")}
    folder = study(tmp_path / "gap", report=less)
    for path in folder.glob("final-*/result.json"):
        metrics = json.loads(path.read_text())["metrics"]
        altered(path, metrics={key: entry for key, entry in metrics.items() if key != "top5"})
    found = reports.write(folder)
    assert found.answer.endswith("over 3 seeds, which excludes zero).")
    assert [one.name for one in found.numbers.measures] == ["top1"]
    text = (folder / "report.md").read_text()
    assert "What differs" not in text
    assert "paper" not in table(text, TOP1)[0]


def test_a_folder_that_is_no_study(tmp_path):
    assert error(tmp_path).startswith(f"{tmp_path}: expected a study's folder")


def test_an_arm_without_runs_is_named(gap):
    for path in gap.glob("final-mpp-*"):
        shutil.rmtree(path)
    assert (
        f"{gap}: arm mpp, the candidate, has no finished run of part final; 3 of 39 tasks"
        in error(gap)
    )
    for path in gap.glob("final-*"):
        shutil.rmtree(path)
    assert f"{gap}: no arm has a finished run of part final; 9 of 39 tasks" in error(gap)


@pytest.mark.parametrize("name", ["final-mpp-1", "direct-scratch-0", "probe-mpp-0"])
def test_two_test_sets_in_one_table_are_named(gap, name):
    altered(gap / name / "environment.json", data={"test": "other"})
    message = error(gap)
    assert str(gap / name) in message
    assert str(gap / "final-scratch-0") in message


def test_predictions_that_are_not_the_results_are_named(gap):
    predict(gap / "final-mpp-1", np.ones(IMAGES, bool))
    message = error(gap)
    assert str(gap / "final-mpp-1") in message
    assert "predictions.npz" in message and "result.json" in message


def test_a_foreign_run_is_left_out_where_its_images_are_not_here(gap):
    about = json.loads((gap / "study.json").read_text())
    for one in (one for one in about["tasks"] if one["name"].startswith("final-mpp")):
        one["options"] = ["recipe=finetune", "init={x}", "data.path=/gone/images", "optim.lr=0.5"]
        lr = "0.5" if one["seed"] else "0.25"
        recipe = resolve(
            [
                "recipe=finetune",
                "data.path=/gone/images",
                f"optim.lr={lr}",
                "name=x",
                "init=scratch",
            ],
            here=False,
        )
        recipe.seed, recipe.name = one["seed"], one["name"]
        (gap / one["name"] / "recipe.yaml").write_text(dump(recipe))
        altered(gap / one["name"] / "result.json", recipe=recipe_hash(recipe))
    write(gap / "study.json", about)
    reports.write(gap)
    text = (gap / "report.md").read_text()
    assert (
        "final-mpp-0 (its recipe is not the planned one: optim.lr (0.25 there, 0.5 here))" in text
    )
    assert "final-mpp-1 (" not in text


@pytest.mark.parametrize("seed_1", [[], ["data=cifar10", "data.hub=uoft-cs/cifar10"]])
def test_two_training_sets_under_the_same_options_are_named(gap, seed_1):
    """An arm may be meant to have other images: then its options say so."""
    about = json.loads((gap / "study.json").read_text())
    for one in (one for one in about["tasks"] if one["name"].startswith("final-mpp")):
        planned(gap, one, "recipe=finetune", *(seed_1 if one["seed"] == 1 else []))
    images = {"train": "other", "validation": "v", "test": "x"}
    altered(gap / "final-mpp-1" / "environment.json", data=images)
    if seed_1:
        reports.write(gap)
        return
    path = gap / "final-mpp-1" / "recipe.yaml"
    text = path.read_text()
    path.write_text(text.replace("stream: false", "stream: true"))
    assert "stream: true" in path.read_text()
    reports.write(gap)  # of a stream only the first images are known
    path.write_text(text)
    start = f"{gap}/final-mpp-0 and {gap}/final-mpp-1 were trained on different images"
    assert error(gap).startswith(start)


def test_two_sets_of_labels_in_one_table_are_named(gap):
    predict(gap / "final-mpp-1", np.ones(IMAGES, bool), np.arange(IMAGES) % 7)
    assert error(gap).startswith(
        f"{gap}/final-scratch-0 and {gap}/final-mpp-1 were tested on different images"
    )


def test_images_without_a_label_count_for_nothing(gap):
    """Every other image loses its label in all runs: half of those that one arm alone has right
    count."""
    for path in sorted(gap.glob("*/predictions.npz")):
        with np.load(path) as arrays:
            index, label, top5 = arrays["index"], arrays["label"], arrays["top5"]
        np.savez(path, index=index, label=np.where(index % 2, -1, label), top5=top5)
    correct = load.load_study(gap).correct
    mpp, scratch = correct["final-mpp-0"], correct["final-scratch-0"]
    assert ((mpp & ~scratch).sum(), (scratch & ~mpp).sum()) == (10, 0)


@pytest.mark.parametrize(
    "name",
    [
        "study.json",
        "final-mpp-1/result.json",
        "probe-mpp-0/environment.json",
        "final-mpp-1/predictions.npz",
    ],
)
@pytest.mark.parametrize("harm", ["cut", "other"])
def test_damage_is_named_in_one_line(gap, name, harm):
    content = (gap / name).read_bytes()
    (gap / name).write_bytes(content[: len(content) // 2] if harm == "cut" else b"[]")
    assert str(gap / name) in error(gap)


def test_missing_predictions_and_figures_are_named(gap):
    (gap / "final-mpp-1" / "predictions.npz").unlink()
    assert "final-mpp-1/predictions.npz is missing or damaged" in error(gap)
    predict(gap / "final-mpp-1", np.ones(IMAGES, bool))
    altered(
        gap / "final-mpp-1" / "result.json",
        metrics={"loss": {"value": 1.0, "n": 1, "split": "test"}},
    )
    assert "final-mpp-1/result.json has no top1" in error(gap)


def test_a_probe_that_measured_less_than_others_is_named(gap):
    metrics = {"linear": {"value": 0.5, "n": 1, "split": "test"}}
    altered(gap / "probe-mpp-1" / "result.json", metrics=metrics)
    assert "probe-mpp-1/result.json has no few_shot_5" in error(gap)


def test_a_part_with_several_runs_of_a_seed_is_no_measure(tmp_path):
    """Its values would overwrite one another."""
    message = error(study(tmp_path / "gap", report=REPORT | {"probes": ["probe", "sweep"]}))
    assert "part sweep has a grid (optim.lr)" in message


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"final": "final", "baseline": "scratch"}, "missing: candidate"),
        ({"probes": ["probe"]}, "missing: final"),
    ],
)
def test_a_study_names_what_a_report_needs(tmp_path, about, says):
    assert error(study(tmp_path / "gap", report=about)).endswith(says)


def each_by_itself(folder):
    """A study of two data sets, finished: a sweep of three values and three final runs each."""
    tasks = []
    for arm in ("scratch", "mpp"):
        swept = [
            task("sweep", arm, 0, values={"optim.lr": lr}) | {"best": None, "by": None}
            for lr in (0.01, 0.03, 0.1)
        ]
        needs = [one["name"] for one in swept]
        chosen = {"best": "sweep", "by": "accuracy"}
        tasks += [*swept, *(task("final", arm, seed, needs=needs) | chosen for seed in range(3))]
    about = {"name": "sets", "title": "Two sets", "seeds": [0, 1, 2], "tasks": tasks}
    about |= {"arms": {"scratch": "the first", "mpp": "the second"}}
    about |= {"report": {"final": "final", "paper": {"mpp": 55.5}}}
    folder.mkdir()
    write(folder / "study.json", about)
    for one in tasks:
        finish(folder, one, RIGHT[one["arm"]][one["seed"]])
        images = {"train": one["arm"], "validation": one["arm"], "test": one["arm"]}
        altered(folder / one["name"] / "environment.json", data=images)
        if one["part"] == "final" and one["arm"] == "mpp":  # other test images
            place = folder / one["name"]
            labels = (np.arange(IMAGES) + 3) % 10
            predict(place, np.arange(IMAGES) < RIGHT["mpp"][one["seed"]], labels)
            best = {"metric": "accuracy", "step": 5 + one["seed"], "value": 0.9}
            altered(place / "result.json", best=best)
    return folder


def test_arms_without_a_baseline_are_reported_each_by_itself(tmp_path, monkeypatch):
    """By hand: dev 0.5 - 0.01 and 0.5 + 2 x 0.1; top-1 of 400 images: 204 in the mean and 224, sd 4
    and sqrt(12); t of 2 degrees of freedom 4.30 / sqrt(3)."""
    do_not_draw(monkeypatch)
    folder = each_by_itself(tmp_path / "sets")
    found = reports.write(folder)
    assert found.answer.startswith(
        "Top-1 after fine-tuning: scratch 51.00% (95% 48.52 to 53.48, n ="
    )
    assert "mpp 56.00% (95% 53.85 to 58.15, n = 3; optim.lr=0.1, chosen of 3)." in found.answer
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (folder / "report.md").read_text().splitlines()
        if "| optim.lr=" in line and "arm" not in line
    ]
    none = ["-"] * 3
    assert rows == [
        ["scratch", "optim.lr=0.01", "3", "49.00", "3", "51.00", "1.00", "48.52 to 53.48", *none],
        [
            *("mpp", "optim.lr=0.1", "3", "70.00", "3", "56.00", "0.87", "53.85 to 58.15"),
            *("5, 6, 7", "55.50", "+0.50"),
        ],
    ]
    text = (folder / "report.md").read_text()
    assert "optim.lr=0.1, is at an end of the grid" in text
    assert "no two rows compare" in text and "est with" not in text
    assert found.numbers.pairs == [] and "Differences in pairs" not in text
    (folder / "final-mpp-1" / "environment.json").write_text(
        json.dumps(ENVIRONMENT | {"data": {"train": "mpp", "test": "others"}})
    )
    assert "were tested on different images" in error(folder)


def test_what_a_sweep_chose_is_shown_once_all_of_it_is_there(tmp_path, monkeypatch):
    """Without its run of 0.1, which won, the final runs did not choose the better of the others."""
    do_not_draw(monkeypatch)
    folder = each_by_itself(tmp_path / "sets")
    shutil.rmtree(folder / "sweep-mpp-0-lr=0.1")
    found = reports.write(folder)
    assert "scratch 51.00% (95% 48.52 to 53.48, n = 3; optim.lr=0.01, chosen" in found.answer
    assert "mpp 56.00% (95% 53.85 to 58.15, n = 3)." in found.answer
    text = (folder / "report.md").read_text()
    assert "| mpp | - | 2 of 3 so far | - | 3 | 56.00 |" in re.sub(" +", " ", text)


def test_a_sweep_is_reported_before_its_final_runs(tmp_path, monkeypatch):
    """After a probe and a sweep, the answer is the probe's, which chose nothing."""
    do_not_draw(monkeypatch)
    folder = each_by_itself(tmp_path / "sets")
    plan = json.loads((folder / "study.json").read_text())
    for arm in ARMS:
        for seed in range(3):
            shutil.rmtree(folder / f"final-{arm}-{seed}", ignore_errors=True)
    one = task("probe", "mpp", 0, "evaluate")
    finish(folder, one, RIGHT["mpp"][0])
    about = {"final": "final", "probes": ["probe"]}
    write(folder / "study.json", plan | {"tasks": [one, *plan["tasks"]], "report": about})
    found = reports.write(folder)
    assert "chosen" not in found.answer
    text = re.sub(" +", " ", (folder / "report.md").read_text())
    assert "| mpp | optim.lr=0.1 | 3 | 70.00 |" in text


def test_study_json_holds_what_is_read():
    planned = Task("final-mpp-0", "final", "finetune", "mpp", 0, {}, (), {"recipe": "finetune"})
    assert {*load.TASK, "best", "by", "options"} <= record._record(planned).content().keys()


def tool(*words):
    process = launch("tools/report.py", *words, stderr=True)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def test_the_tool_prints_the_answer_and_one_json_object(whole):
    folder, found = whole
    code, output, errors = tool(str(folder), "--json")
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0] == found.answer
    assert json.loads(lines[-1]) == json.loads(json.dumps(found.content()))


def test_the_tool_answers_a_mistake_in_one_line(tmp_path):
    for words in (["a", "--jso"], [str(tmp_path)]):
        code, output, errors = tool(*words)
        assert (code, output) == (2, "")
        assert errors.startswith("error: ")
        assert errors.count("\n") == 1


def test_a_plan_that_does_not_say_its_tasks_options_is_refused(tmp_path):
    """With which no run could be compared."""
    folder = study(tmp_path / "gap")
    plan = json.loads((folder / "study.json").read_text())
    for one in plan["tasks"]:
        one["words"] = one.pop("options")
    write(folder / "study.json", plan)
    assert "study.json is damaged (tasks.0.options: " in error(folder)


def test_arms_are_compared_by_every_metric_of_test_images(
    gap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row says so, and only where every final run has it."""
    known = dict(registry._metrics)
    monkeypatch.setattr(registry, "_metrics", known)
    registry.register(registry.Metric("class_mean", registry.SHARE, tested="class mean"))
    every = sorted(gap.glob("*/result.json"))  # extra parts stand beside the final one
    finals = [path for path in every if '"top5"' in path.read_text()]
    for place, path in enumerate(finals):
        result = json.loads(path.read_text())
        value = {"value": 0.1 + place / 100, "split": "test", "n": 100}
        altered(path, metrics=result["metrics"] | {"class_mean": value})
    labels = [one.label for one in reports.write(gap).numbers.measures]
    assert "class mean after fine-tuning" in labels and "top-1 after fine-tuning" in labels
    result = json.loads(finals[0].read_text())
    del result["metrics"]["class_mean"]
    altered(finals[0], metrics=result["metrics"])
    assert "class mean after fine-tuning" not in [
        one.label for one in reports.write(gap).numbers.measures
    ]


def test_the_answer_names_encoders_of_other_architectures(gap):
    """A gain of pre-training was one of another model, and nothing said so."""
    assert "architecture" not in reports.write(gap).answer
    for arm, depth in (("scratch", 2), ("mpp", 4), ("supervised", 4)):
        made = {"model": {"depth": depth, "width": 96}}
        (gap / f"final-{arm}-0" / "recipe.yaml").write_text(json.dumps(made))
    says = "scratch (model.depth=2) against mpp, supervised (model.depth=4), and so the models"
    text = "These compare encoders of different architectures, "
    assert text + says in reports.write(gap).answer


def test_the_answer_says_that_arms_did_not_cost_the_same(gap):
    """A gain of ten times the training read as one of the objective."""
    assert "times the exaFLOP" not in reports.write(gap).answer
    for path in gap.glob("final-mpp-*/result.json"):
        spent = json.loads(path.read_text())["total_exaflop"]
        altered(path, total_exaflop=1.05 * spent)
    assert "times the exaFLOP" not in reports.write(gap).answer
    for path in gap.glob("final-mpp-*/result.json"):
        altered(path, total_exaflop=4 * json.loads(path.read_text())["total_exaflop"])
    says = "Pre-training and fine-tuning counted, without sweeps, mpp took 4.20 times the exaFLOP"
    says += " of scratch; mpp took 4.20 times"
    assert says in reports.write(gap).answer


@pytest.mark.parametrize(
    ("init", "compared"), [("scratch", True), ("{pretrain-a-0}", True), ("timm:vit_small", False)]
)
def test_compute_is_not_compared_where_weights_come_from_outside(init, compared):
    """What made them counts as nothing, so that the other arm read as the costlier one."""
    tasks = [
        SimpleNamespace(arm="a", options=["optim.lr=1", f"init={init}"]),
        SimpleNamespace(arm="b", options=["init=scratch"]),
    ]
    study = SimpleNamespace(plan=SimpleNamespace(tasks=tasks))
    results = [SimpleNamespace(arm=arm, exaflop={0: x, 1: x}) for arm, x in (("a", 6), ("b", 2))]
    pair = SimpleNamespace(arm="a", other="b")
    found = cautions.unequal_compute(study, [pair], SimpleNamespace(results=results))
    assert found == ([(pair, 3)] if compared else [])


def test_what_seeds_have_in_common_is_said(gap):
    """One draw of the labels for all, and the seed that chose the learning rates among them."""
    reports.write(gap)
    text = (gap / "report.md").read_text()
    assert "chosen on seed 0, which the means include" in " ".join(text.split())
    plan = json.loads((gap / "study.json").read_text())
    needless = [one | {"needs": []} if one["part"] == "final" else one for one in plan["tasks"]]
    altered(gap / "study.json", tasks=needless)  # sweeps that choose nothing
    reports.write(gap)
    assert "which the means include" not in (gap / "report.md").read_text()
    altered(gap / "study.json", tasks=plan["tasks"])
    assert "All seeds learn the labels of the same images" not in text
    for drawn_by_seed in (False, True):
        for folder in gap.glob("final-*"):
            seed = int(folder.name[-1]) if drawn_by_seed else None
            made = {"data": {"share": 0.1, "share_seed": seed}}
            (folder / "recipe.yaml").write_text(json.dumps(made))
        reports.write(gap)
        text = (gap / "report.md").read_text()
        assert ("All seeds learn the labels of the same images" in text) != drawn_by_seed


def test_runs_that_measured_no_test_images_are_said_to_have(gap):
    """Their predictions were called missing, and making the run again gave none either."""
    for folder in gap.glob("final-*"):
        (folder / "predictions.npz").unlink()
        altered(folder / "result.json", metrics={"accuracy": {"value": 0.9, "split": "train"}})
    assert "final-scratch-0: measured no test images (eval.test=false)" in error(gap)
