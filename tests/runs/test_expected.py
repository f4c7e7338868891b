"""A run says at a few early steps whether it is where other seeds of its recipe were."""

import json
import math
from pathlib import Path

import pytest
import yaml

from helpers.options import TINY, altered
from ssl_vit.config.resolve import resolve
from ssl_vit.jobs import train as train_job
from ssl_vit.runs import expected
from ssl_vit.runs.folder import Run

IMAGES = 50_000  # of the embedded set


@pytest.fixture
def curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the curve of TINY."""
    path = tmp_path / "expected.yaml"
    entry = {
        "options": TINY,
        "images": IMAGES,
        "log_every": 2,
        "seeds": 5,
        "steps": {4: {"loss": [1.0, 9.0], "accuracy": [0.0, 1.0]}, 8: {"loss": [1.0, 1.5]}},
    }
    path.write_text(yaml.safe_dump({"curves": [entry]}, sort_keys=False))
    monkeypatch.setattr(expected, "PATH", path)
    return path


def checked(row: dict, start: int = 0) -> tuple[list[str], list[str]]:
    """Notes and warnings about a row."""
    curve = expected.find(resolve(TINY), IMAGES)
    assert curve is not None
    notes: list[str] = []
    warnings: list[str] = []
    expected.CurveCheck(curve, start, notes.append, warnings.append).on_row(row)
    return notes, warnings


@pytest.mark.parametrize(
    "options",
    [
        ["seed=7"],
        ["compute.precision=bfloat16"],
        ["name=other", "out=elsewhere", "compute.batch=4", "compute.workers=0"],
    ],
)
def test_seed_precision_and_machine_do_not_matter(curves: Path, options: list[str]) -> None:
    assert expected.find(resolve(altered(TINY, *options)), IMAGES) is not None


@pytest.mark.parametrize(
    "options",
    [["optim.lr=1e-2"], ["corruption.rate=0.4"], ["optim.steps=13"], ["log.every=4"]],
)
def test_another_recipe_has_no_curve(curves: Path, options: list[str]) -> None:
    assert expected.find(resolve(altered(TINY, *options)), IMAGES) is None


def test_other_images_have_no_curve(curves: Path) -> None:
    assert expected.find(resolve(TINY), IMAGES - 1) is None


def test_a_row_is_compared_at_its_step(curves: Path) -> None:
    notes, warnings = checked({"step": 4, "loss": 5.0, "accuracy": 0.2})
    assert len(notes) == 1 and not warnings
    assert "step 4: loss 5 (1 to 9), accuracy 0.2 (0 to 1)" in notes[0]
    assert checked({"step": 6, "loss": 100.0, "accuracy": 0.2}) == ([], [])
    assert checked({"step": 4, "validation/loss": 5.0}) == ([], [])


def test_a_row_of_other_steps_is_not_compared(curves: Path) -> None:
    """The mean over fewer steps, after a resumption, or without steps that were left out."""
    row = {"step": 4, "loss": 5.0, "accuracy": 0.2}
    assert checked(row, start=2)[0] and checked(row, start=3) == ([], [])
    assert checked(row | {"left_out": 1}) == ([], [])


@pytest.mark.parametrize("loss", [0.99, 9.01, math.nan, math.inf])
def test_a_row_outside_is_a_warning(curves: Path, loss: float) -> None:
    notes, warnings = checked({"step": 4, "loss": loss, "accuracy": 0.2})
    assert not notes and len(warnings) == 1
    assert f"step 4: loss {loss:.4g} is outside 1 to 9" in warnings[0]
    assert "accuracy" not in warnings[0]


def test_a_run_notes_it_in_its_log(curves: Path, tmp_path: Path, capsys) -> None:
    run = Run(resolve([*TINY, f"out={tmp_path}", "name=run"]))
    run.reconcile()
    train_job.train(run)
    log = run.log.read_text()
    loss = {
        row["step"]: row["loss"]
        for row in map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    }
    assert f"step 4: loss {loss[4]:.4g} (1 to 9), accuracy" in log
    assert f"warning: step 8: loss {loss[8]:.4g} is outside 1 to 1.5" in log
    assert f"warning: step 8: loss {loss[8]:.4g}" in capsys.readouterr().out


def test_shipped_curves_are_of_shipped_recipes() -> None:
    curves = yaml.safe_load(expected.PATH.read_text())["curves"]
    options = [entry["options"] for entry in curves]
    ours = [["recipe=mpp", "data=cifar10"], ["recipe=mpp"], ["recipe=mpp", "data=tinyimagenet"]]
    assert options == ours  # those of the guide
    for entry in curves:
        found = expected.find(resolve(entry["options"]), entry["images"])
        assert found is not None and found.options == entry["options"]
        for ranges in found.steps.values():
            assert all(low < high for low, high in ranges.values())
