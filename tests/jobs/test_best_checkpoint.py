"""checkpoint.best: the evaluation with the best held-out value is kept, tested and exported."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers import runs
from helpers.measurements import by_name
from helpers.options import TINY, altered
from helpers.runs import Killed, result, rows
from ssl_vit import inspection
from ssl_vit.errors import UserError
from ssl_vit.evaluation.held_out import HeldOutEvaluator
from ssl_vit.hub import card, state_io
from ssl_vit.jobs import finish
from ssl_vit.runs.folder import Run
from ssl_vit.training import checkpoint

NAN = float("nan")
# Accuracy at steps 2, 4, ... 12, with a value that is none, and two that are equal
VALUES = dict(zip(range(2, 13, 2), (0.3, NAN, 0.5, 0.5, 0.1, 0.2), strict=True))
BEST = 6
OWN = (
    *("recipe=supervised", "eval.every=2", "eval.test=false", "checkpoint.every=3"),
    *("checkpoint.background=false", "checkpoint.best=accuracy"),
)


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is looked at here, and they take longer than the training."""
    monkeypatch.setattr(inspection, "save_figures", lambda *given: None)
    monkeypatch.setattr(finish, "write_page", lambda *given: None)


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """The accuracies that evaluations while training give; a test may change them."""
    measure = HeldOutEvaluator.__call__
    script = dict(VALUES)

    def scripted(self, step, row, objective):
        for name, value in measure(self, step, row, objective):
            if not row or name != "validation/accuracy":  # no row: the evaluation of the end
                yield name, value
            else:
                yield name, script[step]

    monkeypatch.setattr(HeldOutEvaluator, "__call__", scripted)
    return script


def run(out: Path, *options: str) -> Run:
    return runs.run(altered([*TINY, *OWN, "name=run", f"out={out}"], *options))


def cut_off(out: Path, at: int = 12) -> Path:
    """A run that was killed before the checkpoint of that step was written."""
    save = checkpoint.save

    def dying(root, step, state, *kept):
        if step == at:
            raise Killed
        return save(root, step, state, *kept)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(checkpoint, "save", dying)
        run(out)
    return out / "run"


def kept(folder: Path) -> list[int]:
    saved = checkpoint.list_checkpoints(folder / "checkpoints")
    return [checkpoint.step_of(path) for path in saved]


def assert_best(folder: Path, step: int | None = BEST, value: float | None = VALUES[BEST]) -> None:
    """result.json, the measures in it and the export are those of a step."""
    made = result(folder)
    assert made["best"] == {"metric": "accuracy", "step": step, "value": value}
    assert made["steps"] == 12
    of = step or 12
    row = next(row for row in rows(folder) if row["step"] == of)
    assert by_name(made)["loss"]["value"] == row["validation/loss"]
    saved = checkpoint.load(checkpoint.folder(folder / "checkpoints", of))["objective"]
    name = "patch_embed.proj.weight"
    there = next(value for key, value in saved.items() if key.endswith(name))
    assert torch.equal(load_file(folder / "export" / "model.safetensors")[name], there)


def test_the_first_of_the_best_is_kept_tested_and_exported(values, tmp_path: Path) -> None:
    made = run(tmp_path)
    assert_best(made.folder)
    assert kept(made.folder) == [BEST, 9, 12]  # checkpoint.keep=2 and the best one
    assert f"The weights come from step {BEST}" in card.render(made, made.export)


@pytest.mark.parametrize("at", [BEST, 9])
def test_a_killed_run_finds_the_same_best(values, tmp_path: Path, at: int) -> None:
    folder = cut_off(tmp_path, at)
    assert max(kept(folder)) < at
    run(tmp_path)
    assert_best(folder)


def test_after_damage_the_checkpoint_before_has_its_own_best(values, tmp_path: Path) -> None:
    values[10] = 0.6
    folder = cut_off(tmp_path)
    assert kept(folder) == [BEST, 9, 10]  # that of 10 is its own best one, of 9 the sixth
    (folder / "checkpoints" / "step-000000010" / "state.pt").write_bytes(b"")
    values[10] = 0.1
    run(tmp_path)
    assert_best(folder)


def test_a_best_one_that_could_not_be_saved_is_none(values, tmp_path: Path, monkeypatch) -> None:
    write = checkpoint._write

    def full(folder, step, state):
        if step == BEST:
            raise OSError("No space left on device")
        write(folder, step, state)

    monkeypatch.setattr(checkpoint, "_write", full)
    values[8] = 0.4
    assert_best(run(tmp_path).folder, 8, 0.4)


def test_without_a_finite_value_the_last_step_stays(values, tmp_path: Path, capsys) -> None:
    values.update(dict.fromkeys(values, NAN))
    assert_best(run(tmp_path).folder, None, None)
    assert "checkpoint.best=accuracy: the metric was never finite" in capsys.readouterr().out


def test_of_losses_the_lowest_is_the_best(tmp_path: Path) -> None:
    folder = run(tmp_path, "checkpoint.best=loss", "optim.lr=0.05").folder
    losses = {row["step"]: row["validation/loss"] for row in rows(folder) if row["step"] % 2 == 0}
    best = result(folder)["best"]
    assert best["value"] == min(losses.values()) == losses[best["step"]]


def test_what_a_resumed_run_cannot_choose_among_is_an_error(values, tmp_path: Path) -> None:
    folder = cut_off(tmp_path)
    with pytest.raises(UserError, match=r"^checkpoint.best=loss: .*checkpoint.best=accuracy"):
        run(tmp_path, "checkpoint.best=loss")
    with pytest.raises(UserError, match=r"^checkpoint.best=accuracy: .* eval.images=24"):
        run(tmp_path, "eval.images=20")
    shutil.rmtree(checkpoint.folder(folder / "checkpoints", BEST))
    with pytest.raises(
        UserError, match=r"checkpoint of step 6 is damaged or missing.*checkpoint.bes"
    ):
        run(tmp_path)
    off = run(tmp_path, "checkpoint.best=null")  # as that error says
    assert "best" not in result(off.folder)
    (off.folder / "result.json").unlink()
    with pytest.raises(UserError, match=r"until step 12 .*checkpoint.best=null"):
        run(tmp_path)


def test_a_pushed_state_brings_its_best_one(values, tmp_path: Path) -> None:
    folder = cut_off(tmp_path)
    files = state_io.pack_newest(folder / "checkpoints")
    kinds = ("json", "safetensors")
    assert files.keys() == {f"{name}.{kind}" for name in ("state", "best") for kind in kinds}
    pushed = tmp_path / "pushed"
    pushed.mkdir()
    for name, content in files.items():
        (pushed / name).write_bytes(content)
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").mkdir()
    state_io.unpack_checkpoints(folder / "checkpoints", pushed, "hf-hub:a/b", 12)
    assert kept(folder) == [BEST, 9]
    run(tmp_path)
    assert_best(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["checkpoint.best=acuracy"], "held-out images has this name, did you mean accuracy?"),
        (["checkpoint.best=chance"], "no metric of held-out images"),
        (["checkpoint.best=probe/knn"], "no metric of held-out images"),
        (["data.test=val"], "data.test=val is also the validation split"),
    ],
)
def test_what_cannot_be_chosen_on_is_one_line(tmp_path: Path, options, message: str) -> None:
    with pytest.raises(UserError) as caught:
        run(tmp_path, *options)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith("checkpoint.best=")


def test_a_probe_can_be_chosen_by(tmp_path: Path) -> None:
    options = ("recipe=mpp", "checkpoint.best=probe/knn", "probe.every=4", "probe.images=100")
    folder = run(tmp_path, *options, "probe.measures=[knn]", "eval.every=12").folder
    values = {row["step"]: row["probe/knn"] for row in rows(folder) if "probe/knn" in row}
    assert list(values) == [4, 8, 12]
    first = next(step for step in values if values[step] == max(values.values()))
    made = result(folder)
    assert made["best"] == {"metric": "probe/knn", "step": first, "value": values[first]}
    assert by_name(made)["probe_knn"]["value"] == values[first]
