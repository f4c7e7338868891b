"""Lists of runs: which folders are runs, in what they differ, and as which runs compare."""

import os
from pathlib import Path

import pytest

import ssl_vit
from helpers import arm_studies
from helpers.made_studies import alter
from helpers.run_pages import make_run, with_export
from ssl_vit.errors import UserError


def names(folder: Path) -> list[str]:
    return [run.name for run in ssl_vit.list_runs(folder, sort="name").runs]


def differing(folder: Path) -> dict[str, str]:
    """{key in which the listed runs differ: its values}."""
    lines = ssl_vit.list_runs(folder, sort="name").lines
    found = (line.split(maxsplit=1)[1] for line in lines if line.startswith("differs "))
    return dict(text.split(": ") for text in found)


# ---- which folders are runs


def test_runs_are_found_once_and_not_in_hidden_folders(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for place in ("b", "sweeps/rate/a", "sweeps/rate/b", ".trash/c"):
        make_run(root / place)
    arm_studies.study(root / "old" / "gap")
    (root / "again").symlink_to(root)
    (root / "a link to b").symlink_to(root / "b")
    found = names(root)
    others = [name for name in found if not name.startswith("old/gap/")]
    assert others == ["b", "sweeps/rate/a", "sweeps/rate/b"] and len(found) == 3 + 39


def test_of_a_runs_folder_it_is_the_run_and_nothing_inside(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "made")
    make_run(folder / "inside")
    assert names(folder) == names(tmp_path) == ["made"]


def test_runs_are_found_down_to_a_depth(tmp_path: Path) -> None:
    deepest = tmp_path.joinpath(*"12345678")
    make_run(deepest / "too deep")
    with pytest.raises(UserError, match="no run found"):
        names(tmp_path)
    make_run(deepest.parent / "run")
    assert names(tmp_path) == ["1/2/3/4/5/6/7/run"]


def test_a_link_out_of_the_folder_is_followed_and_a_run_has_one_name(tmp_path: Path) -> None:
    make_run(tmp_path / "disk" / "made")
    make_run(tmp_path / "runs" / "z" / "own")
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "disk")
    (tmp_path / "runs" / "m").symlink_to(tmp_path / "disk" / "made")
    (tmp_path / "runs" / "best").symlink_to(tmp_path / "runs" / "z" / "own")
    assert names(tmp_path / "runs") == ["linked/made", "z/own"]


def test_a_folder_that_may_not_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "of others/b", "c"):
        make_run(tmp_path / name)
    scandir = os.scandir

    def refused(folder: Path) -> object:
        if Path(folder).name == "of others":
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refused)
    assert names(tmp_path) == ["a", "c"]


# ---- in what they differ


def test_a_recipe_that_cannot_be_read_is_no_difference(tmp_path: Path) -> None:
    (make_run(tmp_path / "a") / "recipe.yaml").unlink()
    make_run(tmp_path / "b", "corruption.rate=0.25")
    assert differing(tmp_path) == {}
    make_run(tmp_path / "c", "corruption.rate=0.75")
    assert differing(tmp_path) == {"corruption.rate": "-, 0.25, 0.75"}


def test_a_key_that_a_recipe_lacks_has_its_default(tmp_path: Path) -> None:
    """A dash for a value that the runs were told apart by."""
    path = make_run(tmp_path / "a") / "recipe.yaml"
    path.write_text(path.read_text().replace("  rate: 0.5\n", ""))
    make_run(tmp_path / "b", "corruption.rate=0.25")
    assert differing(tmp_path) == {"corruption.rate": "0.5, 0.25"}


def test_what_an_objective_does_not_use_is_no_setting_of_its_runs(tmp_path: Path) -> None:
    """A fine-tuning from MAE's weights had mae.rate=0.75, which was not that of the weights."""
    make_run(tmp_path / "first", "objective=mae", "mae.rate=0.5")
    make_run(tmp_path / "tuned", "objective=supervised")
    first, tuned = ssl_vit.list_runs(tmp_path, sort="name").runs
    assert first.settings["mae.rate"] == 0.5 and "supervised.loss" not in first.settings
    assert not {"mae.rate", "mae.width", "target", "corruption.rate"} & tuned.settings.keys()
    assert differing(tmp_path).keys() == {"objective"}


def test_evaluations_differ_in_their_pooling_and_not_in_what_only_training_uses(
    tmp_path: Path,
) -> None:
    """Two poolings of the same weights were ranked together without a word, and listed as of 1000
    steps each."""

    def make(name: str, objective: str, **result: object) -> None:
        folder = make_run(tmp_path / name)
        (folder / "recipe.yaml").write_text(f"objective: {objective}\noptim.lr: {ord(name)}\n")
        alter(folder / "result.json", **result)

    make("a", "probe", pool="avg", steps=0)
    make("b", "probe", pool="token", steps=0)
    assert differing(tmp_path) == {"probe.pool": "avg, token"}
    assert [*ssl_vit.list_runs(tmp_path).frame["steps"]] == [0, 0]
    make("c", "mpp", steps=500)
    assert "optim.lr" not in differing(tmp_path)
    make("d", "mpp", steps=500)
    assert differing(tmp_path)["optim.lr"] == "-, 99, 100"


# ---- what is shown of a run


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
    found = ssl_vit.list_runs(tmp_path)
    (run,) = found.runs
    assert run.state.startswith("stopped") and resumes in run.state
    assert run.step == reached and found.lines[1].endswith(": 1 stopped")


def shown(folder: Path, head: str) -> list[str]:
    """The cells of a column of the terminal."""
    heads, *rows = ssl_vit.list_runs(folder, sort="name").rows
    return [row[heads.index(head)] for row in rows]


def test_a_list_has_the_compute_of_all_that_the_weights_came_through(tmp_path: Path) -> None:
    """A fine-tuning and a training from scratch looked equal, though one had a pre-training."""
    for name, total in (("scratch", 1.5e-5), ("tuned", 1.5e-3)):
        alter(make_run(tmp_path / name) / "result.json", total_exaflop=total)
    assert shown(tmp_path, "exaFLOP with pre-training") == ["1.5e-05", "0.0015"]


def ranked_text(folder: Path, metric: str) -> str:
    with_export(folder)
    return "\n".join(ssl_vit.list_runs(folder, best=metric).lines)


def test_a_list_has_what_is_to_be_beaten_beside_each_figure(tmp_path: Path) -> None:
    """The best of several losses looked good, though a trivial prediction beat it."""
    folder = make_run(tmp_path / "a")  # 50%; the commonest colour 7%, the neighbours' mean 45%
    text = ranked_text(folder, "accuracy_masked")
    assert "; to beat 45.00% " in text
    assert "to beat" not in "\n".join(ssl_vit.list_runs(folder, best="loss").lines)


def test_a_list_counts_labelled_images_as_the_page_does(tmp_path: Path) -> None:
    """Two counts of one k-NN, of the whole split here and of its labelled images there."""
    environment = {"measured_on": {"test": 10_000}}
    found = {"knn": {"value": 0.5, "split": "test", "n": 4_000}}
    folder = make_run(tmp_path / "a", found=found, environment=environment)
    assert "50.00% (n = 4,000)" in ranked_text(folder, "knn")


# ---- as which runs compare


def ranked(folder: Path, metric: str) -> list[list[str]]:
    groups = ssl_vit.list_runs(folder, best=metric).groups
    return [[run.name for run in group.runs] for group in groups]


def test_an_objective_that_is_not_known_is_told_apart_by_its_keys(tmp_path: Path) -> None:
    """Runs of a plugin's easier task in one ranking with those of a harder one; its learning rate
    makes it no other task."""
    data = {"train": "t", "validation": "v"}
    for name, rate, lr in (("a", 1, 0.1), ("b", 2, 0.1), ("c", 1, 0.2)):
        folder = with_export(make_run(tmp_path / name, environment={"data": data}))
        text = f"objective: mine\nmine.rate: {rate}\noptim.lr: {lr}\nname: {name}\n"
        (folder / "recipe.yaml").write_text(text)
    assert [sorted(group) for group in ranked(tmp_path, "loss")] == [["a", "c"], ["b"]]


def made(folder: Path, objective: str, accuracy: float, **result: object) -> None:
    """A pre-training whose k-NN was measured on held-out images, 5 points above untrained weights."""
    above = {"mean": 0.05, "low": 0.01, "high": 0.09}
    of_validation = {"n": 500, "split": "validation"}
    found = {
        "probe_knn": {"value": accuracy} | of_validation,
        "fresh_probe_knn": {"value": accuracy - 0.05, "difference": above} | of_validation,
    }
    environment = {"data": {"train": "t", "validation": "v"}, "held_out": "h"}
    make_run(folder, f"objective={objective}", found=found, environment=environment)
    alter(with_export(folder) / "result.json", **result)


def test_encoders_of_several_objectives_are_listed_and_ranked_by_their_features(
    tmp_path: Path,
) -> None:
    """They were listed by losses that cannot be compared, and k-NN was missing."""
    for objective, accuracy in (("mpp", 0.30), ("mae", 0.50), ("ibot", 0.40)):
        made(tmp_path / objective, objective, accuracy)
    cells = dict(zip(names(tmp_path), shown(tmp_path, "frozen encoder"), strict=True))
    assert all(cell.startswith("k-NN") for cell in cells.values())
    assert cells["mae"].startswith("k-NN 50.0% (45.6 to 54.4) of 500 held-out images")
    assert "untrained 45.0%: +5.0 (+1.0 to +9.0)" in cells["mae"]
    assert ranked(tmp_path, "probe_knn") == [["mae", "ibot", "mpp"]]
    assert {len(group) for group in ranked(tmp_path, "loss")} == {1}


def test_frozen_encoders_whose_probes_learn_from_fewer_images_are_not_ranked_with_others(
    tmp_path: Path,
) -> None:
    """A training run's probes take a share of its work, so cheap objectives have fewer images."""
    for objective, learned_from in (("mpp", 4000), ("mae", 1000), ("ibot", 4000)):
        made(tmp_path / objective, objective, 0.3, learned_from=learned_from)
    groups = ssl_vit.list_runs(tmp_path, best="probe_knn").groups
    assert [len(group.runs) for group in groups] == [2, 1]
    assert groups[1].facts["training images"] == "1,000"
