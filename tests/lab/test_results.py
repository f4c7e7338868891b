"""A study's folder as one table, and which runs stand in it."""

import json
import shutil

import numpy as np
import pytest

from helpers.made_studies import (
    FROZEN,
    IMAGES,
    RIGHT,
    TUNED,
    changed,
    counted,
    predict,
    study,
    write,
)
from ssl_vit.errors import UserError
from ssl_vit.lab import results
from ssl_vit.lab.study import read

TRIES = changed(
    TUNED,
    axes__arm__scratch__sweep=TUNED["axes"]["arm"]["scratch"]["final"],
    runs__sweep={
        "tool": "finetune",
        "over": ["arm"],
        "seeds": [0],
        "try": {"optim.lr": [0.01, 0.03]},
        "options": TUNED["runs"]["final"]["options"],
    },
    runs__final__best="sweep",
)


def measured(task):
    if task.run == "sweep":
        return {"accuracy": (0.5 + task.tried["optim.lr"], "validation")}
    return counted()(task)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return study(tmp_path_factory.mktemp("studies") / "made", TRIES, measured)


@pytest.fixture
def made(whole, tmp_path):
    """A copy whose runs name its own folder, as where a study was moved."""
    return shutil.copytree(whole, tmp_path / "made")


def altered(path, **new):
    write(path, json.loads(path.read_text()) | new)


def error(folder):
    with pytest.raises(UserError) as caught:
        results.load(folder)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_row_is_a_metric_of_a_finished_run(whole):
    found = results.load(whole)
    assert (found.missing, found.foreign) == ([], {})
    rows = found.rows("final", "top1", "test")
    assert rows["arm"].tolist() == ["scratch"] * 3 + ["mpp"] * 3 + ["mae"] * 3
    assert rows["value"].tolist() == [count / IMAGES for arm in RIGHT.values() for count in arm]
    assert rows["seed"].tolist() == [0, 1, 2] * 3
    # scratch starts from nothing; what it chose among is no origin
    assert rows["origin"].tolist() == [""] * 3 + [
        f"pretrain-{arm}-{seed}" for arm in ("mpp", "mae") for seed in range(3)
    ]
    assert rows["exaflop"].tolist() == pytest.approx([0.004] * 3 + [0.024] * 6)
    assert {*rows["fingerprint"]} == {"x"} and {*rows["n"]} == {IMAGES}
    # what tries values for another run stands in the table, and in no rows that are compared
    assert found.table["tried"].unique().tolist() == ["", "optim.lr=0.01", "optim.lr=0.03"]
    assert found.rows("sweep").empty and len(found.table[found.table["run"] == "sweep"]) == 6
    assert list(found.table) == ["run", "arm", *list(results.TYPES)[1:]]


def test_a_study_that_was_moved_is_the_same(made):
    assert results.load(made).foreign == {}


def test_what_has_not_finished_is_missing(made):
    (made / "final-mae-2" / "result.json").unlink()
    shutil.rmtree(made / "pretrain-mpp-1")
    found = results.load(made)
    assert found.missing == ["pretrain-mpp-1", "final-mae-2"]
    assert "final-mae-2" not in {*found.table["folder"]}


def test_nothing_finished_and_no_study_are_one_line(made, tmp_path):
    assert "expected a study's folder, with study.json in it" in error(tmp_path)
    for run in made.iterdir():
        if run.is_dir():
            shutil.rmtree(run)
    assert error(made).endswith("no task has a result to show: 21 of 21 tasks are not finished")


def copied(made):
    """Another seed's run under this name."""
    shutil.rmtree(made / "final-mpp-1")
    shutil.copytree(made / "final-mpp-0", made / "final-mpp-1")


def renamed(made):
    """Another seed's run, whose recipe was given this name too."""
    copied(made)
    path = made / "final-mpp-1" / "recipe.yaml"
    path.write_text(path.read_text().replace("name: final-mpp-0", "name: final-mpp-1"))


def edited(made):
    path = made / "final-mpp-1" / "recipe.yaml"
    path.write_text(path.read_text().replace("steps: 10", "steps: 20"))


def removed(made):
    (made / "final-mpp-1" / "recipe.yaml").unlink()


def planned_otherwise(made):
    """study.json was given again with another option, and this run is of before."""
    plan = json.loads((made / "study.json").read_text())
    (task,) = [one for one in plan["tasks"] if one["name"] == "final-mpp-1"]
    task["values"]["optim.clip"] = 2.0
    write(made / "study.json", plan)


def other_weights(made):
    """What it started from was made anew since."""
    (made / "pretrain-mpp-1" / "export" / "model.safetensors").write_text("others")


FOREIGN = [
    (copied, "its recipe.yaml is of a run called final-mpp-0"),
    (renamed, "its recipe is not the planned one: seed (0 there, 1 here)"),
    (edited, "its result.json is of another recipe than its recipe.yaml"),
    (removed, "its recipe.yaml is missing or damaged"),
    (planned_otherwise, "its recipe is not the planned one: optim.clip (1.0 there, 2.0 here)"),
    (other_weights, "its initial weights are not those of pretrain-mpp-1"),
]


@pytest.mark.parametrize(("harm", "why"), FOREIGN, ids=[harm.__name__ for harm, _ in FOREIGN])
def test_a_run_that_is_not_the_planned_one_is_left_out_and_named(made, harm, why):
    harm(made)
    found = results.load(made)
    assert found.foreign == {"final-mpp-1": why}
    assert "final-mpp-1" not in {*found.table["folder"]}
    assert len(found.rows("final", "top1")) == 8


def test_what_depends_on_a_run_that_is_left_out_is_left_out(made):
    path = made / "pretrain-mae-2" / "recipe.yaml"
    path.write_text(path.read_text().replace("lr:", "lr_:"))
    found = results.load(made).foreign
    assert list(found) == ["pretrain-mae-2", "final-mae-2"]
    assert found["final-mae-2"] == "it depends on pretrain-mae-2"


def test_a_try_that_is_left_out_takes_what_chose_among_it(made):
    path = made / "sweep-mpp-0-lr=0.03" / "recipe.yaml"
    path.write_text(path.read_text().replace("lr: 0.03", "lr: 0.05"))
    assert list(results.load(made).foreign) == [
        "sweep-mpp-0-lr=0.03",
        *(f"final-mpp-{seed}" for seed in range(3)),
    ]


def test_values_that_were_chosen_are_not_planned(made):
    """The finals have the rate of the best try, which study.json does not name."""
    assert "lr: 0.03" in (made / "final-mpp-0" / "recipe.yaml").read_text()
    assert results.load(made).foreign == {}


def test_values_that_are_not_the_best_any_more_are_left_out(made):
    """As after tries were added of which one failed for good and another is the best by now."""
    plan = json.loads((made / "study.json").read_text())
    for task in plan["tasks"]:
        if task["run"] == "final" and task["at"] == {"arm": "mpp"}:
            failed = {"name": "sweep-mpp-0-lr=9.0", "tried": {"optim.lr": 9.0}}
            task["best"][0].append(failed["name"])
            task["needs"].append(failed["name"])
    like = next(task for task in plan["tasks"] if task["name"] == "sweep-mpp-0-lr=0.03")
    plan["tasks"].insert(plan["tasks"].index(like), like | failed)
    write(made / "study.json", plan)
    found = results.load(made)
    assert (found.foreign, found.missing) == ({}, ["sweep-mpp-0-lr=9.0"])
    path = made / "sweep-mpp-0-lr=0.01" / "result.json"
    metrics = json.loads(path.read_text())["metrics"]
    altered(path, metrics=metrics | {"accuracy": {"value": 0.9, "split": "validation", "n": 1}})
    why = "its recipe is not the planned one: optim.lr (0.03 there, 0.01 here)"
    assert results.load(made).foreign == {f"final-mpp-{seed}": why for seed in range(3)}


def test_weights_that_are_gone_are_not_compared(made):
    for seed in range(3):
        shutil.rmtree(made / f"pretrain-mpp-{seed}" / "export")
    assert results.load(made).foreign == {}
    edited(made)
    assert list(results.load(made).foreign) == ["final-mpp-1"]


def test_a_plugin_that_the_record_names_is_not_run(made, tmp_path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text("raise SystemExit('it ran')")
    plan = json.loads((made / "study.json").read_text())
    for task in plan["tasks"]:
        task["options"]["plugin"] = str(plugin)
    write(made / "study.json", plan)
    assert results.load(made).foreign == {}


def test_an_objective_that_is_not_known_here_is_compared_by_its_values(made):
    """As of a plugin."""
    from ssl_vit.recipe import parsing
    from ssl_vit.runs.identity import written_hash

    run, plan = made / "pretrain-mpp-0", json.loads((made / "study.json").read_text())
    (task,) = [one for one in plan["tasks"] if one["name"] == run.name]
    task["options"] = {"objective": "mine", "mine.rate": "1e-1", "optim.steps": "10"}
    task["values"] = {"objective": "mine", "mine.rate": 0.1, "mine.sizes": [1, 2], "seed": 0}
    write(made / "study.json", plan)
    recipe = {
        "name": run.name,
        "seed": 0,
        "objective": "mine",
        "mine.rate": 0.1,
        "mine.sizes": [1, 2],
        "optim.steps": 10,
    }
    (run / "recipe.yaml").write_text(
        "".join(f"{key}: {json.dumps(value)}\n" for key, value in recipe.items())
    )
    written = parsing.flatten(parsing.load_yaml(run / "recipe.yaml"))
    altered(run / "result.json", recipe=written_hash(written))
    assert run.name not in results.load(made).foreign
    task["values"]["mine.rate"] = 0.2
    write(made / "study.json", plan)
    assert "mine.rate (0.1 there, 0.2 here)" in results.load(made).foreign[run.name]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("result.json", "result.json is damaged"),
        ("environment.json", "environment.json is damaged"),
        ("predictions.npz", "predictions.npz: is damaged"),
    ],
)
def test_damage_is_named_in_one_line(made, name, says):
    (made / "final-mpp-1" / name).write_text("{")
    with pytest.raises(UserError, match=says) as caught:
        results.load(made).correct(["final-mpp-1"])
    assert "remove its folder and give the study's command again" in str(caught.value)


def test_a_study_json_that_contradicts_itself_is_damaged(made):
    plan = json.loads((made / "study.json").read_text())
    for harm in ("../elsewhere", "final-mae-0"):  # no folder's name; one that needs others
        plan["tasks"][0]["name"] = harm
        write(made / "study.json", plan)
        assert "study.json is damaged: task" in error(made)


def test_no_axis_is_named_like_a_column():
    assert {*read.COLUMNS} == {*results.TYPES}
    with pytest.raises(UserError, match="axes: metric: expected another name"):
        read.build(changed(FROZEN, axes__metric={"a": {"pretrain": {}}}), "made")


def test_the_same_options_with_other_training_images_are_refused(made):
    """Their difference would be read as that of the arms."""
    altered(
        made / "final-mpp-1" / "environment.json",
        data={"train": "other", "validation": "v", "test": "x"},
    )
    assert "were trained on different images of the same options" in error(made)


def test_drawn_images_of_two_sizes_share_a_table(tmp_path):
    """Such a study was refused when all its runs had finished."""
    sizes = {size: {"all": {"data.size": size}} for size in ("16", "32")}
    content = changed(FROZEN, axes__size=sizes)
    del content["options"]["data.size"]
    for run in content["runs"].values():
        run["over"] = ["arm", "size"]
    folder = study(tmp_path / "s", content, lambda task: {"knn": (0.5, "test")})
    for run in folder.glob("*-16-*"):  # they are other images by their fingerprint
        altered(
            run / "environment.json", data={"train": "small", "validation": "w", "test": "small"}
        )
    assert {*results.load(folder).rows("probe")["size"]} == {"16", "32"}
    altered(run / "environment.json", data={"train": "t", "validation": "v", "test": "x"})
    assert "were trained on different images of the same options" in error(folder)


def test_values_that_are_not_finite_are_in_no_mean(made):
    path = made / "final-mpp-1" / "result.json"
    content = json.loads(path.read_text())
    content["metrics"]["top1"]["value"] = float("nan")
    write(path, content)
    found = results.load(made)
    assert len(found.rows("final", "top1")) == 8 and found.table["value"].isna().sum() == 1


def test_predictions_are_the_results(made):
    found = results.load(made).correct(["final-mpp-1", "final-mae-0", "pretrain-mpp-0"])
    assert {name: int(right.sum()) for name, right in found.items()} == {
        "final-mpp-1": 226,
        "final-mae-0": 300,
    }
    predict(made / "final-mpp-1", 225)
    with pytest.raises(
        UserError, match=r"top1 of 0\.5625, result\.json of 0\.5650: one of them is of another run"
    ):
        results.load(made).correct(["final-mpp-1"])


def test_predictions_of_other_images_are_named(made):
    with np.load(made / "final-mpp-1" / "predictions.npz") as arrays:
        content = dict(arrays)
    np.savez(made / "final-mpp-1" / "predictions.npz", **content | {"index": content["index"] + 1})
    with pytest.raises(UserError, match="its images are not those of final-mpp-0"):
        results.load(made).correct(["final-mpp-0", "final-mpp-1"])


def test_images_without_a_label_count_for_nothing(made):
    with np.load(made / "final-mpp-1" / "predictions.npz") as arrays:
        content = dict(arrays)
    label = content["label"].copy()
    label[-100:] = -1  # of which it had none right
    np.savez(made / "final-mpp-1" / "predictions.npz", **content | {"label": label})
    path = made / "final-mpp-1" / "result.json"
    found = json.loads(path.read_text())
    found["metrics"]["top1"]["value"] = 226 / 300
    write(path, found)
    assert len(results.load(made).correct(["final-mpp-1"])["final-mpp-1"]) == 300


def test_no_row_of_metrics_is_read(made):
    for path in made.glob("*/metrics.jsonl"):
        path.unlink()
    assert results.load(made).missing == []


def test_fresh_weights_stand_in_the_table(tmp_path):
    right = {**RIGHT, "untrained": (190, 200, 190)}
    found = results.load(study(tmp_path / "s", FROZEN, counted(right, "knn")))
    rows = found.rows("untrained", "knn")
    assert rows["value"].tolist() == [0.475, 0.5, 0.475] * 2
    assert rows["arm"].tolist() == ["mpp"] * 3 + ["mae"] * 3
    assert rows["seed"].tolist() == [0, 1, 2] * 2
    assert rows["folder"].iloc[4] == "fresh weights beside probe-mae-1"
    assert rows[["exaflop", "device_hours"]].isna().all(axis=None) and {*rows["origin"]} == {""}
    own = found.rows("probe", "knn")
    for column in ("split", "n", "fingerprint"):
        assert rows[column].tolist() == own[column].tolist()
    assert found.rows(beside="probe").equals(rows) and found.rows(beside="pretrain").empty
    assert not found.table["metric"].str.startswith("fresh_").any()
