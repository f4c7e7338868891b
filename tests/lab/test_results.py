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
    alter,
    changed,
    counted,
    predict,
    study,
    with_metric,
    write,
)
from helpers.refusals import refusal
from ssl_vit.errors import UserError
from ssl_vit.lab import results
from ssl_vit.lab.study import read
from ssl_vit.recipe import parsing
from ssl_vit.runs.identity import written_hash

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


def replaced(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def replanned(folder, alter):
    """The folder with another study.json: `alter` changes its tasks."""
    plan = json.loads((folder / "study.json").read_text())
    alter(plan["tasks"])
    write(folder / "study.json", plan)


def named(tasks, name):
    return next(task for task in tasks if task["name"] == name)


def test_a_row_is_a_metric_of_a_finished_run(whole):
    found = results.load(whole)
    assert (found.missing, found.foreign) == ([], {})
    rows = found.rows("final", "top1", "test")
    assert rows["arm"].tolist() == ["scratch"] * 3 + ["mpp"] * 3 + ["mae"] * 3
    assert rows["value"].tolist() == [count / IMAGES for arm in RIGHT.values() for count in arm]
    assert rows["seed"].tolist() == [0, 1, 2] * 3
    # scratch starts from nothing; what it chose among is no origin
    starts = [f"pretrain-{arm}-{seed}" for arm in ("mpp", "mae") for seed in range(3)]
    assert rows["origin"].tolist() == [""] * 3 + starts
    assert rows["exaflop"].tolist() == pytest.approx([0.004] * 3 + [0.024] * 6)
    assert {*rows["fingerprint"]} == {"x"} and {*rows["n"]} == {IMAGES}
    # what tries values for another run stands in the table, and in no rows that are compared
    assert found.table["tried"].unique().tolist() == ["", "optim.lr=0.01", "optim.lr=0.03"]
    assert found.rows("sweep").empty and len(found.table[found.table["run"] == "sweep"]) == 6
    assert list(found.table) == ["run", "arm", *list(read.COLUMNS)[1:]]


def test_a_study_that_was_moved_is_the_same(made, tmp_path):
    """Its finals have the rate of the best try, which study.json does not name; no row of metrics is
    read, and no plugin run that the record names."""
    for path in made.glob("*/metrics.jsonl"):
        path.unlink()
    plugin = tmp_path / "plugin.py"
    plugin.write_text("raise SystemExit('it ran')")
    replanned(made, lambda tasks: [task["options"].update(plugin=str(plugin)) for task in tasks])
    assert "lr: 0.03" in (made / "final-mpp-0" / "recipe.yaml").read_text()
    found = results.load(made)
    assert (found.foreign, found.missing) == ({}, [])


def test_what_has_not_finished_is_missing(made):
    (made / "final-mae-2" / "result.json").unlink()
    shutil.rmtree(made / "pretrain-mpp-1")
    found = results.load(made)
    assert found.missing == ["pretrain-mpp-1", "final-mae-2"]
    assert "final-mae-2" not in {*found.table["folder"]}


def test_nothing_finished_and_no_study_are_one_line(made, tmp_path):
    assert "study.json" in refusal(results.load, tmp_path)
    for run in made.iterdir():
        if run.is_dir():
            shutil.rmtree(run)
    assert "21 of 21" in refusal(results.load, made)


def copied(made, name="final-mpp-0"):
    """Another seed's run under this name."""
    run = made / "final-mpp-1"
    shutil.rmtree(run)
    shutil.copytree(made / "final-mpp-0", run)
    replaced(run / "recipe.yaml", "name: final-mpp-0", f"name: {name}")


# {where another run is, or another recipe: what is changed of final-mpp-1, and why it is left out}
FOREIGN = {
    "copied": (copied, "recipe.yaml belongs to a run called final-mpp-0"),
    # whose recipe was given this name too
    "renamed": (
        lambda made: copied(made, "final-mpp-1"),
        "recipe.yaml differs from the plan: seed (0 there, 1 here)",
    ),
    "edited": (
        lambda made: replaced(made / "final-mpp-1" / "recipe.yaml", "steps: 10", "steps: 20"),
        "result.json was made with another recipe.yaml",
    ),
    "removed": (
        lambda made: (made / "final-mpp-1" / "recipe.yaml").unlink(),
        "recipe.yaml is missing or damaged",
    ),
    # study.json was given again with another option, and this run is of before
    "planned otherwise": (
        lambda made: replanned(
            made, lambda tasks: named(tasks, "final-mpp-1")["values"].update({"optim.clip": 2.0})
        ),
        "recipe.yaml differs from the plan: optim.clip (1.0 there, 2.0 here)",
    ),
    # what it started from was made anew since
    "other weights": (
        lambda made: (made / "pretrain-mpp-1" / "export" / "model.safetensors").write_text("other"),
        "the initial weights differ from the weights of pretrain-mpp-1",
    ),
}


@pytest.mark.parametrize(("harm", "why"), FOREIGN.values(), ids=FOREIGN)
def test_a_run_that_is_not_the_planned_one_is_left_out_and_named(made, harm, why):
    harm(made)
    found = results.load(made)
    assert found.foreign == {"final-mpp-1": why}
    assert "final-mpp-1" not in {*found.table["folder"]}
    assert len(found.rows("final", "top1")) == 8


def test_what_depends_on_a_run_that_is_left_out_is_left_out(made):
    """Also what chose among tries of which it is one."""
    replaced(made / "pretrain-mae-2" / "recipe.yaml", "lr:", "lr_:")
    replaced(made / "sweep-mpp-0-lr=0.03" / "recipe.yaml", "lr: 0.03", "lr: 0.05")
    found = results.load(made).foreign
    finals = ["final-mae-2", *(f"final-mpp-{seed}" for seed in range(3))]
    assert sorted(found) == sorted(["pretrain-mae-2", "sweep-mpp-0-lr=0.03", *finals])
    assert found["final-mae-2"] == "it uses the result of pretrain-mae-2, which is left out as well"


def test_values_that_are_not_the_best_any_more_are_left_out(made):
    """As after tries were added of which one failed for good and another is the best by now."""
    failed = {"name": "sweep-mpp-0-lr=9.0", "tried": {"optim.lr": 9.0}}

    def add(tasks):
        for task in tasks:
            if task["run"] == "final" and task["at"] == {"arm": "mpp"}:
                task["best"][0].append(failed["name"])
                task["needs"].append(failed["name"])
        like = named(tasks, "sweep-mpp-0-lr=0.03")
        tasks.insert(tasks.index(like), like | failed)

    replanned(made, add)
    found = results.load(made)
    assert (found.foreign, found.missing) == ({}, ["sweep-mpp-0-lr=9.0"])
    with_metric(made / "sweep-mpp-0-lr=0.01", "accuracy", value=0.9)
    why = "recipe.yaml differs from the plan: optim.lr (0.03 there, 0.01 here)"
    assert results.load(made).foreign == {f"final-mpp-{seed}": why for seed in range(3)}


def test_an_objective_that_is_not_known_here_is_compared_by_its_values(made):
    """As of a plugin."""
    run = made / "pretrain-mpp-0"
    own = {"objective": "mine", "mine.rate": 0.1, "mine.sizes": [1, 2], "seed": 0}
    options = {"objective": "mine", "mine.rate": 0.1, "optim.steps": 10}
    replanned(made, lambda tasks: named(tasks, run.name).update(options=options, values={**own}))
    recipe = own | {"name": run.name, "optim.steps": 10}
    lines = (f"{key}: {json.dumps(value)}\n" for key, value in recipe.items())
    (run / "recipe.yaml").write_text("".join(lines))
    written = parsing.flatten(parsing.load_yaml(run / "recipe.yaml"))
    alter(run / "result.json", recipe=written_hash(written))
    assert run.name not in results.load(made).foreign
    replanned(made, lambda tasks: named(tasks, run.name)["values"].update({"mine.rate": 0.2}))
    assert "mine.rate (0.1 there, 0.2 here)" in results.load(made).foreign[run.name]


@pytest.mark.parametrize("name", ["result.json", "environment.json", "predictions.npz"])
def test_damage_is_named_in_one_line(made, name):
    (made / "final-mpp-1" / name).write_text("{")
    with pytest.raises(UserError, match=f"{name} is damaged.*(R|r)emove the run"):
        results.load(made).load_outcomes(["final-mpp-1"])


def test_a_study_json_that_contradicts_itself_is_damaged(made):
    for harm in ("../elsewhere", "final-mae-0"):  # no folder's name; one that needs others
        replanned(made, lambda tasks, harm=harm: tasks[0].update(name=harm))
        assert "study.json is damaged: task" in refusal(results.load, made)


OTHERS = {"train": "others", "validation": "v", "test": "x"}  # fingerprints


def test_the_same_options_with_other_training_images_are_refused(made):
    """Their difference would be read as that of the arms."""
    alter(made / "final-mpp-1" / "environment.json", data=OTHERS)
    assert "different images" in refusal(results.load, made)


def test_drawn_images_of_two_sizes_share_a_table(tmp_path):
    """Such a study was refused when all its runs had finished."""
    sizes = {str(size): {"all": {"data.size": size}} for size in (16, 32)}
    content = changed(FROZEN, axes__size=sizes)
    del content["options"]["data.size"]
    for run in content["runs"].values():
        run["over"] = ["arm", "size"]
    folder = study(tmp_path / "s", content, lambda task: {"knn": (0.5, "test")})
    for run in folder.glob("*-16-*"):  # they are other images by their fingerprint
        alter(run / "environment.json", data=OTHERS)
    assert {*results.load(folder).rows("probe")["size"]} == {"16", "32"}
    alter(run / "environment.json", data=OTHERS | {"train": "t"})
    assert "different images" in refusal(results.load, folder)


def test_values_that_are_not_finite_are_in_no_mean(made):
    with_metric(made / "final-mpp-1", "top1", value=float("nan"))
    found = results.load(made)
    assert len(found.rows("final", "top1")) == 8 and found.table["value"].isna().sum() == 1


def test_predictions_are_the_results(made):
    found = results.load(made).load_outcomes(["final-mpp-1", "final-mae-0", "pretrain-mpp-0"])
    right = {name: int(one.correct_M.sum()) for name, one in found.items()}
    assert right == {"final-mpp-1": 226, "final-mae-0": 300}
    predict(made / "final-mpp-1", 225)
    with pytest.raises(
        UserError, match=r"top1 is 0\.5625 in predictions\.npz and 0\.5650 in result\.json"
    ):
        results.load(made).load_outcomes(["final-mpp-1"])


def predicted(run, **alter):
    """The run's predictions with arrays that functions of the old ones make."""
    with np.load(run / "predictions.npz") as arrays:
        content = dict(arrays)
    made = {key: function(content[key]) for key, function in alter.items()}
    np.savez(run / "predictions.npz", **content | made)


def test_predictions_of_other_images_are_named(made):
    predicted(made / "final-mpp-1", index=lambda index: index + 1)
    with pytest.raises(UserError, match=r"test images .* differ from final-mpp-0"):
        results.load(made).load_outcomes(["final-mpp-0", "final-mpp-1"])


def test_images_without_a_label_count_for_nothing(made):
    """It had none of the last hundred right."""
    run = made / "final-mpp-1"
    predicted(run, label=lambda label: np.where(np.arange(IMAGES) < IMAGES - 100, label, -1))
    with_metric(run, "top1", value=226 / 300)
    assert len(results.load(made).load_outcomes([run.name])[run.name].correct_M) == 300


def test_fresh_weights_stand_in_the_table(tmp_path):
    right = {**RIGHT, "untrained": (190, 200, 190)}
    found = results.load(study(tmp_path / "s", FROZEN, counted(right, "knn")))
    rows = found.rows("untrained", "knn")
    assert rows["value"].tolist() == [0.475, 0.5, 0.475] * 2
    assert rows["arm"].tolist() == ["mpp"] * 3 + ["mae"] * 3
    assert rows["seed"].tolist() == [0, 1, 2] * 2
    assert rows["folder"].iloc[4] == "untrained weights measured by probe-mae-1"
    assert rows[["exaflop", "device_hours"]].isna().all(axis=None) and {*rows["origin"]} == {""}
    own = found.rows("probe", "knn")
    for column in ("split", "n", "fingerprint"):
        assert rows[column].tolist() == own[column].tolist()
    assert (
        found.rows(untrained_by="probe").equals(rows) and found.rows(untrained_by="pretrain").empty
    )
    assert not found.table["metric"].str.startswith("fresh_").any()
