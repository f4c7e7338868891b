"""Lists of runs: in what they differ, and as which runs compare."""

import json
from pathlib import Path

import pytest

from helpers.run_pages import make_run
from ssl_vit.lab.runs import listed
from ssl_vit.pages.run_record import read_run


def runs(folder: Path) -> list[listed.ListedRun]:
    return [listed.list_run(folder, read_run(path)) for path in sorted(folder.iterdir())]


def test_a_key_that_a_recipe_lacks_has_its_default(tmp_path: Path) -> None:
    """A dash for a value that the runs were told apart by."""
    make_run(tmp_path / "a")
    path = tmp_path / "a" / "recipe.yaml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if line.strip() != "rate: 0.5"))
    make_run(tmp_path / "b", "corruption.rate=0.25")
    assert listed.differing_keys(runs(tmp_path)) == {"corruption.rate": ["0.5", "0.25"]}


def test_what_an_objective_does_not_use_is_no_setting_of_its_runs(tmp_path: Path) -> None:
    """A fine-tuning from MAE's weights had mae.rate=0.75, which was not that of the weights."""
    make_run(tmp_path / "first", "objective=mae", "mae.rate=0.5")
    make_run(tmp_path / "tuned", "objective=supervised")
    first, tuned = runs(tmp_path)
    assert first.settings["mae.rate"] == 0.5 and "supervised.loss" not in first.settings
    assert not {"mae.rate", "mae.width", "target", "corruption.rate"} & tuned.settings.keys()
    assert listed.differing_keys([first, tuned]).keys() == {"objective"}


def test_a_list_has_what_is_to_be_beaten_beside_each_figure(tmp_path: Path) -> None:
    """The best of several losses looked good, though a trivial prediction beat it."""
    make_run(tmp_path / "a")
    (one,) = runs(tmp_path)  # 50%; the commonest colour 7%, the neighbours' mean 45%
    assert one.best_baseline("accuracy_masked") == 0.45 and one.best_baseline("loss") is None
    assert listed.metric_text(one, "accuracy_masked").endswith("; to beat 45.00%")


@pytest.mark.parametrize(
    ("saved", "resumes", "reached"),
    [((), "before its first checkpoint", 200), ((50, 150), "150", 200), ((203,), "203", 203)],
)
def test_a_stopped_run_says_where_it_resumes(
    saved: tuple[int, ...], resumes: str, reached: int, tmp_path: Path
) -> None:
    """It named the last logged step, 200: of a run that was killed too late a one, of one that had
    saved on a signal too early a one."""
    folder = make_run(tmp_path / "a", finished=False)
    for step in saved:
        (folder / "checkpoints" / f"step-{step:09}").mkdir(parents=True)
    (run,) = runs(tmp_path)
    assert run.state.startswith("stopped") and resumes in run.state
    assert run.step == reached and listed.count_states([run]) == "1 stopped"


def test_a_list_has_the_compute_of_all_that_the_weights_came_through(tmp_path: Path) -> None:
    """A fine-tuning and a training from scratch looked equal, though one had a pre-training."""
    for name, total in (("scratch", 1.5e-5), ("tuned", 1.5e-3)):
        path = make_run(tmp_path / name) / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"total_exaflop": total}))
    shown = runs(tmp_path)
    column = listed.COLUMNS["total_exaflop"]
    assert [column.text(run) for run in shown] == ["1.5e-05", "0.0015"]
    assert "total_exaflop" in listed.IN_TERMINAL


def test_a_list_counts_labelled_images_as_the_page_does(tmp_path: Path) -> None:
    """Two counts of one k-NN, of the whole split here and of its labelled images there."""
    environment = {"measured_on": {"test": 10_000}}
    found = {"knn": {"value": 0.5, "split": "test", "n": 4_000}}
    make_run(tmp_path / "a", found=found, environment=environment)
    (run,) = runs(tmp_path)
    assert run.count("knn") == 4_000 and listed.metric_text(run, "knn") == "50.00% (n = 4,000)"


def test_an_objective_that_is_not_known_is_told_apart_by_its_keys(tmp_path: Path) -> None:
    """Runs of a plugin's easier task in one ranking with those of a harder one; its learning rate
    makes it no other task."""
    for name, rate, lr in (("a", 1, 0.1), ("b", 2, 0.1), ("c", 1, 0.2)):
        folder = make_run(tmp_path / name)
        text = f"objective: mine\nmine.rate: {rate}\noptim.lr: {lr}\nname: {name}\n"
        (folder / "recipe.yaml").write_text(text)
        held_out = '{"python": "3", "data": {"train": "t", "validation": "v"}}'
        (folder / "environment.json").write_text(held_out)
        (folder / "export").mkdir()
    facts = [listed._ranking_facts(run, "loss") for run in runs(tmp_path)]
    assert facts[0] == facts[2] and facts[0]["mine.rate"] == "1" and facts[1]["mine.rate"] == "2"


def test_evaluations_differ_in_their_pooling_and_not_in_what_only_training_uses(
    tmp_path: Path,
) -> None:
    """Two poolings of the same weights were ranked together without a word, and listed as of 1000
    steps each."""
    for name, pool, steps in (
        ("a", "avg", 0),
        ("b", "token", 0),
        ("c", None, 500),
        ("d", None, 500),
    ):
        folder = make_run(tmp_path / name)
        objective = "probe" if pool else "mpp"
        (folder / "recipe.yaml").write_text(f"objective: {objective}\noptim.lr: {ord(name)}\n")
        result = json.loads((folder / "result.json").read_text())
        result |= {"steps": steps} | ({"pool": pool} if pool else {})
        (folder / "result.json").write_text(json.dumps(result))
    found = runs(tmp_path)
    assert listed.differing_keys(found[:2]) == {"probe.pool": ["avg", "token"]}
    assert listed.differing_keys(found)["optim.lr"] == ["-", "-", "99", "100"]
    assert "optim.lr" not in listed.differing_keys(found[:3])
    assert [run.content()["steps"] for run in found[:2]] == [0, 0]
