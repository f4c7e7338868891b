"""What study/worth says of a plan that differs from what was asked for."""

from pathlib import Path
from typing import Any

import pytest

from helpers.images import put
from ssl_vit.errors import UserError
from ssl_vit.lab.study import worth
from ssl_vit.lab.study.request import requested
from ssl_vit.lab.study.worth import Clock

RUNS = ("pretrain", "own", "tune", "final", "frozen")
SHAPES = ["recipe=study/worth", "data=shapes", "hours=30"]


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many at once the runs were timed with, each time."""
    asked: list[int] = []

    def measure(question: Any, parallel: int, folder: Any, enough: Any) -> dict[str, Clock]:
        asked.append(parallel)
        return dict.fromkeys(RUNS, Clock(1, 10))

    monkeypatch.setattr(worth, "measure", measure)
    return asked


def test_a_plan_goes_on_with_fewer_runs_at_once_and_says_so(
    tmp_path: Path, timed: list[int]
) -> None:
    """Hours of four runs at once that pass for hours of one, after a resume on another machine."""
    first = requested([*SHAPES, f"out={tmp_path}", "parallel=4"])
    assert " hours of 4 runs at once (" in first.study.title
    again = requested([*SHAPES, f"out={tmp_path}", "parallel=1"])
    assert timed == [4] and again.tasks == first.tasks and again.study.title == first.study.title
    line, *others = again.opening
    assert "parallel=4" in line and "parallel=1" in line and others == first.opening


def test_one_run_at_once_needs_no_words(tmp_path: Path) -> None:
    """A title that grows by what is the default."""
    assert "at once" not in requested([*SHAPES, f"out={tmp_path}", "parallel=1"]).study.title


@pytest.mark.parametrize(("given", "said"), [("0.05", True), ("0.5", False)])
def test_another_share_for_validation_than_was_asked_is_said(
    tmp_path: Path, given: str, said: bool
) -> None:
    """A share of a user's that gives way to another one without a word."""
    for name in "ab":
        put(tmp_path / "own" / name, 200)
    words = ["recipe=study/worth", "hours=200", f"data.path={tmp_path}/own", "parallel=1"]
    found = requested([*words, f"data.validation={given}", f"out={tmp_path}"])
    lines = [line for line in found.opening if line.startswith("validation")]
    shares = {recipe.data.validation for recipe in found.recipes.values()}
    assert [line.split()[1] for line in lines] == ([str(*shares)] if said else [])
    assert all(f"data.validation={given}" in line for line in lines)
    assert (shares == {float(given)}) is not said


def test_a_setting_that_it_tries_is_refused() -> None:
    """A user's mixup that vanishes beside the values that are tried."""
    with pytest.raises(UserError, match=r"data\.mixup=0\.5: study/worth tries it itself"):
        worth.ask({"data": "shapes", "data.mixup": "0.5"})
