"""Which folders are runs."""

import os
from pathlib import Path

import pytest

from helpers import arm_studies as arms
from helpers.run_pages import make_run
from ssl_vit.errors import UserError
from ssl_vit.lab.options import RunsOptions
from ssl_vit.lab.runs import listed, search
from ssl_vit.lab.runs import tool as runs_tool


def names(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in search.find_runs(folder)]


def read_runs(folder: Path) -> list[listed.ListedRun]:
    return runs_tool.table(RunsOptions(folder=folder, sort="name")).runs


def test_runs_are_found_once_and_not_in_hidden_folders(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for place in ("b", "sweeps/rate/a", "sweeps/rate/b", ".trash/c"):
        make_run(root / place)
    arms.study(root / "old" / "gap")
    (root / "again").symlink_to(root)
    (root / "a link to b").symlink_to(root / "b")
    found = names(root)
    assert [name for name in found if not name.startswith("old/gap/")] == [
        "b",
        "sweeps/rate/a",
        "sweeps/rate/b",
    ]
    assert len(found) == 3 + 39


def test_of_a_runs_folder_it_is_the_run_and_nothing_inside(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "made")
    make_run(folder / "inside")
    assert search.find_runs(folder) == [folder]
    assert [run.name for run in read_runs(folder)] == ["made"]
    assert names(tmp_path) == ["made"]


def test_runs_are_found_down_to_a_depth(tmp_path: Path) -> None:
    deepest = tmp_path.joinpath(*"12345678")
    make_run(deepest / "too deep")
    with pytest.raises(UserError, match="no run found"):
        search.find_runs(tmp_path)
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


def test_a_recipe_that_cannot_be_read_is_no_difference(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    (tmp_path / "a" / "recipe.yaml").unlink()
    make_run(tmp_path / "b", "corruption.rate=0.25")
    make_run(tmp_path / "c", "corruption.rate=0.75")
    runs = read_runs(tmp_path)
    assert listed.differing_keys(runs) == {"corruption.rate": ["-", "0.25", "0.75"]}
    assert listed.differing_keys(runs[:2]) == {}
