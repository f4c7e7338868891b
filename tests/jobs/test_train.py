"""Whole runs: what they leave behind, that they resume exactly, that they spread over processes."""

import copy
import json
import random
import shutil
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from helpers.launching import interpreter, launch, outcome
from helpers.options import TINY, altered
from helpers.runs import Killed, Killer, assert_same_end, rows, run
from ssl_vit.callbacks import Callback, Row
from ssl_vit.data import loaders
from ssl_vit.errors import UserError
from ssl_vit.jobs import train as train_job
from ssl_vit.recipe.load import resolve
from ssl_vit.training import checkpoint, distributed
from ssl_vit.training.loop import Scheduled
from ssl_vit.training.state import State


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run([*TINY, f"out={tmp_path_factory.mktemp('unbroken')}", "name=run"]).folder


def test_a_run_leaves_what_the_design_says(unbroken: Path) -> None:
    names = {
        "recipe.yaml",
        "environment.json",
        "metrics.jsonl",
        "log.txt",
        "result.json",
        "export",
        "figures",
        "checkpoints",
        "report.html",
    }
    assert names <= {p.name for p in unbroken.iterdir()}
    result = json.loads((unbroken / "result.json").read_text())
    assert result["steps"] == 12 and result["images"] == 12 * 16
    assert result["metrics"]["loss"]["n"] == 24 * 8, (
        "24 held-out images of 16 patches, half of them hit"
    )
    assert [r["step"] for r in rows(unbroken)] == [2, 4, 6, 8, 10, 12]
    assert "validation/loss" in rows(unbroken)[1] and "validation/loss" not in rows(unbroken)[0]
    assert [p.name for p in checkpoint.list_checkpoints(unbroken / "checkpoints")] == [
        "step-000000008",
        "step-000000012",
    ]
    with Image.open(unbroken / "figures" / "predictions.png") as image:
        assert image.width > 300 and len(set(image.convert("RGB").get_flattened_data())) > 50


def test_the_recipe_of_a_run_repeats_it(unbroken: Path, tmp_path: Path) -> None:
    again = run([f"recipe={unbroken}/recipe.yaml", f"out={tmp_path}", "name=again"])
    assert_same_end(unbroken, again.folder)


@pytest.mark.parametrize("step", [1, 4, 5, 7, 8, 11])
def test_a_run_cut_off_after_any_step_ends_as_the_unbroken_one(
    step: int, unbroken: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_job._callbacks
    monkeypatch.setattr(train_job, "_callbacks", lambda j: [*whole(j), Killer(step)])
    with pytest.raises(Killed):
        run([*tiny, "name=run"])
    monkeypatch.setattr(train_job, "_callbacks", whole)
    assert_same_end(unbroken, run([*tiny, "name=run"]).folder)


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with averaged weights, and the same that was cut off after its first checkpoint."""
    out, callbacks = tmp_path_factory.mktemp("broken"), train_job._callbacks
    words = [*TINY, "optim.average=0.9", f"out={out}"]
    whole = run([*words, "name=whole"]).folder
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(train_job, "_callbacks", lambda j: [*callbacks(j), Killer(6)])
        run([*words, "name=run"])
    return whole, out


FORGOTTEN = {
    "nothing": lambda saved, state: {},
    "the optimiser": lambda saved, state: {
        "moments": {
            p: {k: torch.zeros_like(v) for k, v in values.items()}
            for p, values in saved["moments"].items()
        }
    },
    "the schedule": lambda saved, state: {"schedule": state.schedule.state_dict()},
    "the averaged weights": lambda saved, state: {
        "average": copy.deepcopy(state.average.state_dict())
    },
}


def resumed(folders: tuple[Path, Path], out: Path) -> None:
    """Go on with the run that was cut off, and ask for the unbroken one's end."""
    whole, broken = folders
    shutil.copytree(broken / "run", out / "run")
    assert_same_end(whole, run([*TINY, "optim.average=0.9", f"out={out}", "name=run"]).folder)


@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_resumption_that_forgets_does_not_end_alike(
    what: str, broken_off, tmp_path: Path, monkeypatch
) -> None:
    """The control of all tests of resuming: they would notice."""
    load = State.load
    monkeypatch.setattr(State, "load", lambda s, saved: load(s, saved | FORGOTTEN[what](saved, s)))
    with pytest.raises(AssertionError) if what != "nothing" else nullcontext():
        resumed(broken_off, tmp_path)


def test_a_resumption_with_samples_from_the_beginning_does_not_end_alike(
    broken_off, tmp_path: Path, monkeypatch
) -> None:
    training = loaders.training_loader
    monkeypatch.setattr(
        loaders, "training_loader", lambda *a: training(*a[:4], 0, a[5] - a[4], a[6])
    )  # as many, of the first steps
    with pytest.raises(AssertionError):
        resumed(broken_off, tmp_path)


# It stays at its end, so that it can be killed on any machine before it is over.
VICTIM = """
import sys, time
from ssl_vit.jobs import cli
from ssl_vit.jobs import train as train_job
finish = train_job.finish.finish

def stay(job):
    finish(job)
    time.sleep(600)

train_job.finish.finish = stay
cli.pretrain(sys.argv[1:])
"""


def test_sigkill_at_a_random_moment_loses_nothing(
    unbroken: Path, tiny: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "run"
    victim = launch("-c", VICTIM, *tiny, "name=run")
    # rows seen before the kill; a different moment each time, inside saves and at the end too
    last = random.randint(1, 6)
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < last:
        assert victim.poll() is None, victim.communicate()
        time.sleep(0.002)
    time.sleep(random.random() / 20)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    again = launch("tools/pretrain.py", *tiny, "name=run")
    out, _ = again.communicate(timeout=300)
    assert again.returncode == 0, out
    assert_same_end(unbroken, folder)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    unbroken: Path,
    tiny: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = train_job._callbacks
    monkeypatch.setattr(train_job, "_callbacks", lambda j: [*whole(j), Killer(10)])
    with pytest.raises(Killed):
        run([*tiny, "name=run"])
    monkeypatch.setattr(train_job, "_callbacks", whole)
    newest = (
        checkpoint.list_checkpoints(Path(tiny[-1].removeprefix("out=")) / "run" / "checkpoints")[-1]
        / "state.pt"
    )
    torn = bytearray(newest.read_bytes())
    torn[len(torn) // 2] ^= 1
    newest.write_bytes(torn)
    folder = run([*tiny, "name=run"]).folder
    assert f"{newest.parent} is damaged" in capsys.readouterr().out
    assert_same_end(unbroken, folder)


def cut_off(words: list[str], step: int) -> Path:
    """A run that was killed at that step."""
    callbacks = train_job._callbacks
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(train_job, "_callbacks", lambda j: [*callbacks(j), Killer(step)])
        run(words)
    recipe = resolve(words)
    return Path(recipe.out) / recipe.name


def test_a_checkpoint_without_its_manifest_is_damaged_not_unseen(
    unbroken: Path, tiny: list[str], capsys
) -> None:
    words = [*tiny, "name=run"]
    folder = cut_off(words, 10)
    (folder / "checkpoints" / "step-000000008" / checkpoint.MANIFEST).unlink()
    (folder / "checkpoints" / "step-000000004" / checkpoint.MANIFEST).rename(folder / "kept")
    before = (folder / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match="is damaged; remove them to begin again"):
        run(words)
    assert (folder / "metrics.jsonl").read_text() == before
    (folder / "kept").rename(folder / "checkpoints" / "step-000000004" / checkpoint.MANIFEST)
    assert_same_end(unbroken, run(words).folder)
    assert "step-000000008 is damaged; using the one before it" in capsys.readouterr().out


@pytest.mark.parametrize("other", ["seed=1", "model.width=16"])
def test_a_checkpoint_of_another_run_is_refused(tiny: list[str], other: str) -> None:
    folder, foreign = (
        cut_off([*tiny, "name=run"], 6),
        cut_off([*altered(tiny, other), "name=other"], 6),
    )
    shutil.rmtree(folder / "checkpoints")
    shutil.copytree(foreign / "checkpoints", folder / "checkpoints")
    with pytest.raises(UserError, match="step-000000004 is another run's"):
        run([*tiny, "name=run"])


def test_a_finished_run_answers_with_its_result_and_trains_no_more(unbroken: Path) -> None:
    before = (unbroken / "metrics.jsonl").stat().st_mtime_ns
    again = launch("tools/pretrain.py", *TINY, f"out={unbroken.parent}", "name=run")
    out, _ = again.communicate(timeout=120)
    assert again.returncode == 0 and "12 steps" in out
    assert (unbroken / "metrics.jsonl").stat().st_mtime_ns == before


def test_observers_and_their_failures_leave_the_training_alone(
    unbroken: Path, tiny: list[str], monkeypatch
) -> None:
    def nosy(step: int, row: Row, objective: torch.nn.Module):
        assert not objective.training and not torch.is_grad_enabled()
        torch.rand(7)
        yield "nosy/step", step
        if step == 6:
            raise RuntimeError("an observer's own trouble")

    train = train_job.loop.train

    def with_nosy(state, loader, settings, evaluators, *others):
        train(state, loader, settings, [Scheduled(nosy, 3), *evaluators], *others)

    monkeypatch.setattr(train_job.loop, "train", with_nosy)
    folder = run([*tiny, "name=run"]).folder
    seen = [{k: v for k, v in r.items() if not k.startswith("nosy")} for r in rows(folder)]
    assert [r for r in seen if "loss" in r] == rows(unbroken)
    # what it had measured at step 6 before it failed stays
    assert [r["nosy/step"] for r in rows(folder) if "nosy/step" in r] == [3, 6, 9, 12]
    assert "an observer's own trouble" in (folder / "log.txt").read_text()


def test_a_listener_that_fails_is_left_out_and_training_goes_on(
    unbroken: Path, tiny: list[str], monkeypatch
) -> None:
    class Broken(Callback):
        def on_row(self, row: Row) -> None:
            raise OSError("a tracker's own trouble")

    whole = train_job._callbacks
    monkeypatch.setattr(train_job, "_callbacks", lambda j: [Broken(), *whole(j)])
    folder = run([*tiny, "name=run"]).folder
    assert_same_end(unbroken, folder)
    assert (folder / "log.txt").read_text().count("a tracker's own trouble") == 1


def test_all_checkpoints_damaged_is_said_and_nothing_removed(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_job._callbacks
    monkeypatch.setattr(train_job, "_callbacks", lambda j: [*whole(j), Killer(6)])
    with pytest.raises(Killed):
        run([*tiny, "name=run"])
    monkeypatch.setattr(train_job, "_callbacks", whole)
    folder = Path(tiny[-1].removeprefix("out=")) / "run"
    (only,) = checkpoint.list_checkpoints(folder / "checkpoints")
    (only / "state.pt").write_bytes(b"")
    before = rows(folder)
    with pytest.raises(UserError, match="is damaged"):
        run([*tiny, "name=run"])
    assert rows(folder) == before and only.exists()


def test_an_error_of_the_first_process_is_said_once_and_ends_all(
    tiny: list[str], tmp_path: Path
) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    command = (*torchrun, "tools/pretrain.py", *tiny, "name=two")
    (status,), (output,) = outcome([launch(*command, PYTHON_EXEC=interpreter())])
    assert status != 0 and output.count("cannot be written") == 1, output
    assert 'tools/pretrain.py", line' not in output, "no traceback of ours"


def test_dropout_is_drawn_per_step_and_chunk_so_that_resuming_repeats_it(
    tiny: list[str], monkeypatch
) -> None:
    words = [*tiny, "optim.dropout=0.5"]
    whole = train_job._callbacks
    one = run([*words, "name=one"]).folder
    monkeypatch.setattr(train_job, "_callbacks", lambda j: [*whole(j), Killer(7)])
    with pytest.raises(Killed):
        run([*words, "name=two"])
    monkeypatch.setattr(train_job, "_callbacks", whole)
    assert_same_end(one, run([*words, "name=two"]).folder)


def test_accumulation_trains_as_one_pass(unbroken: Path, tiny: list[str]) -> None:
    split = rows(run([*tiny, "compute.batch=4", "name=split"]).folder)
    for a, b in zip(rows(unbroken), split, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)


def test_processes_that_do_not_find_one_another_are_refused(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    alone = {"_shared_state": {}, "num_processes": 1, "__init__": lambda self, **options: None}
    monkeypatch.setattr(distributed, "PartialState", type("Alone", (), alone))
    with pytest.raises(UserError, match="WORLD_SIZE=4: only 1 of the launched processes"):
        run(tiny)


def test_real_images_train(real_images: Path, tiny: list[str]) -> None:
    for name in ("cifar10", "tinyimagenet"):
        words = [w for w in tiny if not w.startswith("data.size")]
        place = f"data.path={real_images / name}"
        done = run(altered(words, f"data={name}", place, "optim.steps=3", "model.patch=8"))
        assert done.result()["metrics"]["loss"]["value"] < 6.3, "ln 512 is 6.24"


def test_tensorboard_says_what_metrics_jsonl_says(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = altered(tiny, "log.trackers=[tensorboard]", "name=run")
    whole = train_job._callbacks
    monkeypatch.setattr(train_job, "_callbacks", lambda j: [*whole(j), Killer(7)])
    with pytest.raises(Killed):
        run(words)
    monkeypatch.setattr(train_job, "_callbacks", whole)
    done = run(words)
    events = EventAccumulator(str(done.tensorboard))
    events.Reload()
    points = [(e.step, e.value) for e in events.Scalars("train/loss")]
    assert points == [(r["step"], pytest.approx(r["loss"])) for r in done.rows()]


@pytest.mark.parametrize(
    "words",
    [
        ["recipe=supervised"],
        ["recipe=joint"],
        ["target=grid_color"],
        ["recipe=simmim"],
        ["recipe=mae"],
        ["recipe=moco_v3", "optim.average=0.5"],
    ],
)
def test_every_objective_and_target_trains_resumes_and_is_exported(
    words: list[str], tiny: list[str], monkeypatch
) -> None:
    words = altered(tiny, *words)
    one = run([*words, "name=one"]).folder
    whole = train_job._callbacks
    monkeypatch.setattr(train_job, "_callbacks", lambda j: [*whole(j), Killer(7)])
    with pytest.raises(Killed):
        run([*words, "name=two"])
    monkeypatch.setattr(train_job, "_callbacks", whole)
    assert_same_end(one, run([*words, "name=two"]).folder)
    loss = [row["loss"] for row in rows(one)]
    assert loss[-1] < loss[0]
    heads = load_file(one / "export" / "heads.safetensors")
    assert heads and not any("encoder." in name or "backbone" in name for name in heads)


def test_unreadable_images_are_named_and_too_many_stop_the_run(
    tiny: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for n in range(60):
        Image.new("RGB", (16, 16), (4 * n, 99, 255 - 4 * n)).save(folder / f"{n:02}.png")
    (folder / "07.png").write_bytes((folder / "07.png").read_bytes()[:60])
    words = [
        *(w for w in tiny if not w.startswith("eval.images")),
        f"data.path={folder}",
        "data.validation=0.2",
    ]
    done = run([*words, "name=some", "data.unreadable=0.1"])
    assert "07.png" in (done.folder / "log.txt").read_text()
    with pytest.raises(
        UserError, match=r"data\.unreadable=0\.0: 1 of .* cannot be read.*; .*07\.png"
    ):
        run([*words, "name=none", "data.unreadable=0"])
    # a training image, in each of the 4 epochs; its third read is more than two of 1,000
    (folder / "08.png").write_bytes(b"")
    with pytest.raises(
        UserError, match=r": 3 of .* \(different ones .*: 1\); .* data\.unreadable=; "
    ):
        run([*words, "name=again", "data.unreadable=0.002"])


@pytest.mark.parametrize(
    "own",
    [
        ["optim.dropout=0.1"],
        ["optim.drop_path=0.1"],
        ["corruption.source=batch"],
        ["corruption.source=batch", "recipe=joint"],
        [],
    ],
)
def test_what_a_device_batch_draws_needs_the_same_device_batch_on_resuming(
    tiny: list[str], own: list[str]
) -> None:
    """Without such an option a run resumes with any device batch."""
    short = altered(tiny, *own, "optim.steps=4", "compute.batch=8", "name=run")
    folder = run(short).folder
    (folder / "result.json").unlink()
    before = (folder / "metrics.jsonl").read_text()
    if own:
        text = rf"compute\.batch=4: .* 8 images a pass, .*{own[0]} .*compute\.batch=8"
        with pytest.raises(UserError, match=text):
            run(altered(short, "compute.batch=4"))
        assert (folder / "metrics.jsonl").read_text() == before
        run(short)
    else:
        run(altered(short, "compute.batch=4"))
    assert (folder / "result.json").exists()


def test_a_folder_moved_while_it_is_written_stops_the_run_at_its_checkpoint(
    unbroken: Path, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made where the folder was, and the run goes on where it is now."""
    place, new = tmp_path / "runs" / "run", tmp_path / "runs" / "new"

    class Mover(Callback):
        def on_step(self, step: int) -> None:
            if step == 5:  # the checkpoint of step 4 is written in the background
                while not checkpoint.list_checkpoints(place / "checkpoints"):
                    time.sleep(0.01)
                place.rename(new)

    whole = train_job._callbacks
    with monkeypatch.context() as patch, pytest.raises(UserError) as caught:
        patch.setattr(train_job, "_callbacks", lambda made: [*whole(made), Mover()])
        run([*tiny, "name=run"])
    text = f"name=run: {place} was moved or removed while the run wrote it; "
    assert str(caught.value).startswith(text) and not place.exists()
    assert checkpoint.step_of(checkpoint.list_checkpoints(new / "checkpoints")[-1]) == 4
    assert_same_end(unbroken, run([*tiny, "name=new"]).folder)
