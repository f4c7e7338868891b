"""Numbers that are not finite, disks that are full: what is left out, saved and reported, and
where a run goes on."""

import errno
import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.optim import AdamW

from helpers.hub_runs import refused
from helpers.launching import launch
from helpers.options import TINY, altered
from helpers.runs import Sends, assert_same_end, cut_off, rows, run, with_callbacks
from ssl_vit.data import batching
from ssl_vit.objectives.mpp.network import MaskedPatchPrediction
from ssl_vit.recipe.operation import Checkpoint
from ssl_vit.training import checkpoint
from ssl_vit.training.nonfinite import NonFinitePolicy

LENGTH = 50_000  # training images of the embedded set
BAD = 8  # a step of 12, counted from 0; a checkpoint is saved just before it


def samples(step: int, seed: int = 0) -> list[int]:
    return batching.samples_at(step * 16, 16, LENGTH, seed).index.tolist()


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the loss of every training batch that holds one of the samples no number."""
    forward = MaskedPatchPrediction.forward

    def of(*indices: int, value: float = float("nan")) -> None:
        def poisoned(self, batch):
            step = forward(self, batch)
            if not self.training or not torch.isin(batch.index, torch.tensor(indices)).any():
                return step
            loss = step.loss * value
            metrics = step.metrics | {"loss": (loss, torch.tensor(1.0))}
            return step._replace(loss=loss, metrics=metrics)

        monkeypatch.setattr(MaskedPatchPrediction, "forward", poisoned)

    return of


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run([*TINY, f"out={tmp_path_factory.mktemp('unbroken')}", "name=run"]).folder


def saved_steps(folder: Path) -> list[int]:
    found = checkpoint.list_checkpoints(folder / "checkpoints")
    return [checkpoint.step_of(path) for path in found]


def test_stop_names_the_step_dumps_its_samples_and_keeps_the_checkpoint(
    tiny: list[str], tmp_path: Path, poison: Callable[..., None]
) -> None:
    """With another policy the run goes on."""
    poison(samples(BAD)[3], value=float("inf"))
    line = refused(run, [*tiny, "name=run"])
    assert line.startswith("optim.nonfinite=stop: step 8: ") and "optim.lr=" in line
    folder = tmp_path / "runs" / "run"
    assert json.loads((folder / "not_finite.json").read_text()) == {"steps": {"8": samples(BAD)}}
    assert saved_steps(folder) == [4, 8] and rows(folder)[-1]["step"] == 8
    assert run([*tiny, "name=run", "optim.nonfinite=skip"]).result() is not None


def test_a_loss_that_is_not_finite_before_the_first_update_is_not_the_learning_rates(
    tiny: list[str], tmp_path: Path, poison: Callable[..., None]
) -> None:
    """A lower rate was advised, which changes nothing there; of a plugin its class is named."""
    poison(*samples(0))
    line = refused(run, [*tiny, "name=run"])
    assert line.startswith("optim.nonfinite=stop: step 0: ") and "optim.lr=" not in line
    path = tmp_path / "not_finite.json"
    loss_name = "the loss of own.py: Own"
    policy = NonFinitePolicy("stop", path, samples, lambda text: None, True, loss_name)
    assert "own.py: Own" in refused(policy, [0])
    assert "own.py: Own" not in refused(policy, [3])


def test_skip_leaves_that_update_out_and_nothing_else(tiny, poison, monkeypatch) -> None:
    """As a run whose optimiser does nothing at that step, moments included; its numbers are not in
    the row."""
    with monkeypatch.context() as patch:
        calls, step = [], AdamW.step
        patch.setattr(
            AdamW,
            "step",
            lambda self, *_: calls.append(1) or (len(calls) - 1 != BAD and step(self)) or None,
        )
        wanted = run([*tiny, "name=wanted"]).folder
    poison(samples(BAD)[0])
    folder = run([*tiny, "name=run", "optim.nonfinite=skip"]).folder
    one, other = (load_file(path / "export" / "model.safetensors") for path in (wanted, folder))
    assert all(torch.equal(one[name], other[name]) for name in one)
    last, same = rows(folder)[4], rows(wanted)[4]
    assert last["step"] == 10 and last["left_out"] == 1 and "left_out" not in rows(folder)[5]
    assert last["loss"] != same["loss"] and last["loss"] == pytest.approx(same["loss"], rel=0.1)
    assert json.loads((folder / "not_finite.json").read_text())["steps"].keys() == {"8"}
    assert (
        "step 8: the loss or gradient is not finite (skipped updates: 1)"
        in (folder / "log.txt").read_text()
    )


def test_a_step_that_is_left_out_is_known_after_a_resumption(tiny, poison) -> None:
    """The checkpoint of step 4 lies inside the row of steps 3 to 6."""
    words = altered([*tiny, "optim.nonfinite=skip"], "log.every=6")
    poison(samples(3)[0])
    whole = run([*words, "name=whole"]).folder
    cut_off([*words, "name=run"], 5)
    assert_same_end(whole, run([*words, "name=run"]).folder)
    assert [row["left_out"] for row in rows(whole) if "left_out" in row] == [1]


def full(*steps: int):
    """A writer that finds the disk full at those steps."""
    write = torch.save

    def failing(state, file, **how):
        if state["step"] not in steps:
            write(state, file, **how)
            return
        file.write(b"half")
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            # as torch does: its writer only finds that less was written than it thought
            raise RuntimeError("unexpected pos 64 vs 0")  # noqa: B904

    return failing


@pytest.mark.parametrize("background", ["true", "false"])
def test_a_full_disk_lets_training_go_on_and_keeps_the_checkpoint(
    background, tiny, unbroken, monkeypatch
) -> None:
    words = [*altered(tiny, "checkpoint.every=2"), f"checkpoint.background={background}"]
    monkeypatch.setattr(checkpoint.torch, "save", full(6, 8))
    folder = run([*words, "name=run"]).folder
    assert_same_end(unbroken, folder)
    log = (folder / "log.txt").read_text()
    what = f"step 6 could not be saved in {folder / 'checkpoints'}: No space left on device"
    assert f"{what}. Kept: step-000000002, step-000000004\n" in log
    assert saved_steps(folder) == [10, 12]


def test_a_signal_on_a_full_disk_does_not_say_that_the_run_was_saved(
    tiny, unbroken, monkeypatch, capsys
) -> None:
    """Status 74, so that no scheduler starts it again and again; with room it goes on from the step
    that was saved."""
    with monkeypatch.context() as patch, with_callbacks(Sends(signal.SIGTERM, 6)):
        patch.setattr(checkpoint.torch, "save", full(6))
        with pytest.raises(SystemExit) as left:
            run([*tiny, "name=run"])
    assert left.value.code == 74
    assert (
        "stopped     at step 6 by SIGTERM, saved only up to step 4. The same command resumes"
        in capsys.readouterr().out
    )
    assert_same_end(unbroken, run([*tiny, "name=run"]).folder)


def test_a_damaged_list_of_samples_is_begun_again(
    tiny: list[str], poison: Callable[..., None], tmp_path: Path
) -> None:
    path = tmp_path / "runs" / "run" / "not_finite.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"steps": 3}')
    poison(samples(BAD)[5])
    run([*tiny, "name=run", "optim.nonfinite=skip"])
    assert json.loads(path.read_text()) == {"steps": {str(BAD): samples(BAD)}}


def test_files_that_cannot_grow_are_a_full_disk_to_the_real_writer(tmp_path: Path) -> None:
    """A limit on the size of files that the smallest files pass, but no checkpoint. It ends with
    the run: coverage writes what it measured when the process ends."""

    script = f"""
import resource
from ssl_vit.__main__ import main
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
try:
    main(["pretrain", *{[*TINY, f"out={tmp_path}", "name=run"]!r}])
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
"""
    process = launch("-c", script)
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0 and "Traceback" not in output
    assert f"could not be saved in {tmp_path}/run/checkpoints: File too large. Kept: none" in output
    assert "step     12/12" in output.replace("\r", "\n")


def test_what_is_saved_in_the_background_is_the_state_of_its_step(
    tmp_path: Path, monkeypatch
) -> None:
    """Training changes its tensors while the writer still waits."""
    go, write = threading.Event(), torch.save
    monkeypatch.setattr(
        checkpoint.torch, "save", lambda *args, **how: (go.wait(20), write(*args, **how))
    )
    saver = checkpoint.Saver(tmp_path, Checkpoint(), print, print)
    weight = torch.zeros(3)
    saver.save(1, {"step": 1, "nested": [{"weight": weight}], "text": "a"})
    weight += 1
    go.set()
    saver.wait()
    (path,) = checkpoint.list_checkpoints(tmp_path)
    assert checkpoint.is_intact(path)
    assert checkpoint.load(path)["nested"][0]["weight"].tolist() == [0, 0, 0]
