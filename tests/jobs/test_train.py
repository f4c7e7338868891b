"""Whole runs: what they leave behind, that they resume exactly, that they spread over processes."""

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

from helpers.launching import launch
from helpers.measurements import by_name
from helpers.options import TINY, altered
from helpers.runs import (
    assert_goes_on_exactly,
    assert_same_end,
    cut_off,
    result,
    rows,
    run,
    with_callbacks,
)
from ssl_vit.callbacks import Callback, Row
from ssl_vit.data import loaders
from ssl_vit.errors import UserError
from ssl_vit.jobs import train as train_job
from ssl_vit.training import checkpoint
from ssl_vit.training.loop import Scheduled

WORDS = [*TINY, "optim.average=0.9", "name=run"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run([*WORDS, f"out={tmp_path_factory.mktemp('unbroken')}"]).folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut_off([*WORDS, f"out={tmp_path_factory.mktemp('killed')}"], 10)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    return [*WORDS, f"out={tmp_path}"]


@pytest.fixture
def broken_off(killed: Path, tmp_path: Path) -> Path:
    """The same run, which was killed after its checkpoints of steps 4 and 8."""
    return shutil.copytree(killed, tmp_path / "run")


def step_folder(run_folder: Path, step: int) -> Path:
    return checkpoint.folder(run_folder / "checkpoints", step)


def test_a_run_leaves_what_the_design_says(unbroken: Path) -> None:
    files = {"recipe.yaml", "environment.json", "metrics.jsonl", "log.txt", "result.json"}
    folders = {"export", "figures", "checkpoints"}
    assert {*files, *folders, "report.html"} <= {path.name for path in unbroken.iterdir()}
    made = result(unbroken)
    assert made["steps"] == 12 and made["images"] == 12 * 16
    assert by_name(made)["loss"]["n"] == 24 * 8, (
        "24 held-out images of 16 patches, half of them hit"
    )
    assert [row["step"] for row in rows(unbroken)] == [2, 4, 6, 8, 10, 12]
    assert "validation/loss" in rows(unbroken)[1] and "validation/loss" not in rows(unbroken)[0]
    saved = checkpoint.list_checkpoints(unbroken / "checkpoints")
    assert [path.name for path in saved] == ["step-000000008", "step-000000012"]
    with Image.open(unbroken / "figures" / "predictions.png") as image:
        assert image.width > 300 and len(set(image.convert("RGB").get_flattened_data())) > 50


def test_the_recipe_of_a_run_repeats_it(unbroken: Path, tmp_path: Path) -> None:
    again = run([f"recipe={unbroken}/recipe.yaml", f"out={tmp_path}", "name=again"])
    assert_same_end(unbroken, again.folder)


def test_a_run_that_is_killed_again_and_again_ends_as_the_unbroken_one(
    unbroken: Path, words: list[str]
) -> None:
    """Before the first checkpoint, at one, after it, at the next, and before the last."""
    for step in (1, 4, 5, 8, 11):
        folder = cut_off(words, step)
    run(words)
    assert_same_end(unbroken, folder)


@pytest.mark.parametrize(
    "own",
    [
        ["recipe=supervised", "optim.average=0.9", "optim.layer_decay=0.7", "optim.drop_path=0.2"],
        ["recipe=supervised", "data.mixup=0.8"],
        ["recipe=joint", "optim.dropout=0.5"],
        ["recipe=mae"],
        ["recipe=moco_v3", "optim.average=0.5"],
    ],
)
def test_every_kind_of_training_goes_on_exactly_and_exports_its_heads(
    own: list[str], tiny: list[str]
) -> None:
    """What it draws follows from step and image; what it averages is in the checkpoint."""
    whole = assert_goes_on_exactly(altered(tiny, *own), 7)
    heads = load_file(whole.export / "heads.safetensors")
    assert heads and not any("encoder." in name or "backbone" in name for name in heads)


def zero(value: object) -> object:
    return 0 * value if isinstance(value, torch.Tensor | int | float) else value


@pytest.mark.parametrize("part", ["", "moments", "schedule", "average"])
def test_a_resumption_that_forgets_does_not_end_alike(
    part: str, unbroken: Path, broken_off: Path, words: list[str]
) -> None:
    """The control of all tests of resuming: they would notice."""
    saved = checkpoint.load(step_folder(broken_off, 8))
    forgotten = {part: torch.utils._pytree.tree_map(zero, saved[part])} if part else {}
    checkpoint.save(broken_off / "checkpoints", 8, saved | forgotten, 2)
    run(words)
    with pytest.raises(AssertionError) if part else nullcontext():
        assert_same_end(unbroken, broken_off)


def test_a_resumption_with_samples_from_the_beginning_does_not_end_alike(
    unbroken: Path, broken_off: Path, words: list[str], monkeypatch
) -> None:
    training = loaders.training_loader
    monkeypatch.setattr(
        loaders,
        "training_loader",
        lambda *a, **workers: training(*a[:4], 0, a[5] - a[4], **workers),
    )  # as many, of the first steps
    run(words)
    with pytest.raises(AssertionError):
        assert_same_end(unbroken, broken_off)


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
    unbroken: Path, words: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    victim = launch("-c", VICTIM, *words)
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
    again = launch("tools/pretrain.py", *words)
    out, _ = again.communicate(timeout=300)
    assert again.returncode == 0, out
    assert_same_end(unbroken, folder)


def flip_a_bit(saved: Path) -> None:
    torn = bytearray((saved / "state.pt").read_bytes())
    torn[len(torn) // 2] ^= 1
    (saved / "state.pt").write_bytes(torn)


@pytest.mark.parametrize(
    "damage", [flip_a_bit, lambda saved: (saved / checkpoint.MANIFEST).unlink()]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    damage, unbroken: Path, broken_off: Path, words: list[str], capsys: pytest.CaptureFixture
) -> None:
    """Without its manifest too it is damaged, not unseen. Where all are, nothing is removed."""
    newest, older = step_folder(broken_off, 8), step_folder(broken_off, 4)
    damage(newest)
    aside = older.rename(broken_off / "aside")
    before = (broken_off / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match=r"all checkpoints are damaged"):
        run(words)
    assert newest.exists() and (broken_off / "metrics.jsonl").read_text() == before
    aside.rename(older)
    capsys.readouterr()
    run(words)
    assert f"{newest} is damaged" in capsys.readouterr().out
    assert_same_end(unbroken, broken_off)


def test_a_checkpoint_of_another_run_is_refused(broken_off: Path, words: list[str]) -> None:
    foreign = cut_off(altered(words, "seed=1", "name=other"), 6)
    shutil.rmtree(broken_off / "checkpoints")
    shutil.copytree(foreign / "checkpoints", broken_off / "checkpoints")
    with pytest.raises(UserError, match="step-000000004 belongs to another run"):
        run(words)


def test_observers_and_listeners_that_fail_leave_the_training_alone(
    unbroken: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nosy(step: int, row: Row, objective: torch.nn.Module):
        assert not objective.training and not torch.is_grad_enabled()
        torch.rand(7)
        yield "nosy/step", step
        if step == 6:
            raise RuntimeError("an observer's own trouble")

    class Broken(Callback):
        def on_row(self, row: Row) -> None:
            raise OSError("a tracker's own trouble")

    train = train_job.loop.train

    def with_nosy(state, loader, settings, evaluators, *others):
        train(state, loader, settings, [Scheduled(nosy, 3), *evaluators], *others)

    monkeypatch.setattr(train_job.loop, "train", with_nosy)
    with with_callbacks(Broken()):
        folder = run(words).folder
    seen = [{k: v for k, v in row.items() if not k.startswith("nosy")} for row in rows(folder)]
    assert [row for row in seen if "loss" in row] == rows(unbroken)
    exported = [place / "export" / "model.safetensors" for place in (folder, unbroken)]
    assert exported[0].read_bytes() == exported[1].read_bytes()
    # what it had measured at step 6 before it failed stays
    assert [row["nosy/step"] for row in rows(folder) if "nosy/step" in row] == [3, 6, 9, 12]
    log = (folder / "log.txt").read_text()
    assert "an observer's own trouble" in log and log.count("a tracker's own trouble") == 1


def test_real_images_train(real_images: Path, tiny: list[str]) -> None:
    for name in ("cifar10", "tinyimagenet"):
        words = [word for word in tiny if not word.startswith("data.size")]
        place = f"data.path={real_images / name}"
        done = run(altered(words, f"data={name}", place, "optim.steps=3", "model.patch=8"))
        assert done.result().metrics["loss"].value < 6.3, "ln 512 is 6.24"


@pytest.mark.parametrize(
    "own", [["optim.drop_path=0.1"], ["corruption.source=batch", "recipe=joint"]]
)
def test_what_a_device_batch_draws_needs_the_same_device_batch_on_resuming(
    words: list[str], own: list[str]
) -> None:
    short = altered(words, *own, "optim.steps=3", "compute.batch=8")
    folder = cut_off(altered(short, "checkpoint.every=1"), 2)
    before = (folder / "metrics.jsonl").read_text()
    text = rf"compute\.batch=4: .*compute\.batch=8, .*{own[0]} .*compute\.batch=8"
    with pytest.raises(UserError, match=text):
        run(altered(short, "compute.batch=4"))
    assert (folder / "metrics.jsonl").read_text() == before
    run(short)


def test_a_run_that_draws_nothing_by_device_batch_goes_on_with_another(
    broken_off: Path, words: list[str]
) -> None:
    assert run([*words, "compute.batch=4"]).result() is not None


def test_a_folder_moved_while_it_is_written_stops_the_run_at_its_checkpoint(
    unbroken: Path, words: list[str], tmp_path: Path
) -> None:
    """Nothing is made where the folder was, and the run goes on where it is now."""
    place, new = tmp_path / "run", tmp_path / "new"

    class Mover(Callback):
        def on_step(self, step: int) -> None:
            if step == 5:  # the checkpoint of step 4 is written in the background
                while not checkpoint.list_checkpoints(place / "checkpoints"):
                    time.sleep(0.01)
                place.rename(new)

    with with_callbacks(Mover()), pytest.raises(UserError) as caught:
        run(words)
    text = f"name=run: {place} was moved"
    assert str(caught.value).startswith(text) and not place.exists()
    assert checkpoint.step_of(checkpoint.list_checkpoints(new / "checkpoints")[-1]) == 4
    assert_same_end(unbroken, run(altered(words, "name=new")).folder)


# ---- a beginning that runs of several lengths share

LONG = altered(
    WORDS, "optim.schedule=wsd", "optim.decay=0.5", "checkpoint.keep=4", "name=long", "seed=7"
)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 16 steps, the last 8 of which decay; with checkpoints of steps 4, 8, 12 and 16."""
    return run(altered(LONG, "optim.steps=16", f"out={tmp_path_factory.mktemp('long')}")).folder


@pytest.mark.parametrize(("step", "length"), [(4, ["optim.decay=0.3"]), (8, ["optim.decay=0.2"])])
def test_a_run_that_goes_on_from_a_longer_one_ends_as_one_of_its_length(
    long: Path, tmp_path: Path, step: int, length: list[str]
) -> None:
    """Killed on its way, and with the trunk gone by then: it has all that it needs. Its own cost is
    that of its own steps, and the whole is that of the other one."""
    trunk = shutil.copytree(long, tmp_path / "long")
    words = altered(LONG, "optim.steps=10", f"out={tmp_path}", *length)
    whole = run(altered(words, "name=whole")).folder
    begun = altered(words, f"resume={trunk}@{step}", "checkpoint.every=1", "name=begun")
    cut_off(begun, 9)
    shutil.rmtree(trunk)
    wrong = altered(begun, f"resume={tmp_path}/other@{step}")
    line = f"^resume=.*/other@{step}: .* from step {step} of run long"
    with pytest.raises(UserError, match=line):
        run(wrong)
    assert_same_end(whole, run(begun).folder)
    with pytest.raises(UserError, match=line):  # it has finished
        run(wrong)
    one, other = result(whole), result(tmp_path / "begun")
    assert other["trunk"] == {"run": "long", "step": step} and other["recipe"] == one["recipe"]
    assert other["exaflop"] == pytest.approx(one["exaflop"] * (10 - step) / 10)
    for key in ("exaflop", "device_hours"):
        assert other[key] < other[f"total_{key}"]
    assert other["total_exaflop"] == pytest.approx(one["total_exaflop"])
    page = (tmp_path / "begun" / "report.html").read_text()
    assert f"after 10 steps on 160 images, starting at step {step}" in page


NO_TRUNK = {
    "optim.lr=0.5": r"optim.lr \(0.001 there, 0.5 here\)",
    "seed=8": r"seed \(7 there, 8 here\)",
    "resume=LONG@12": "optim.steps=16 optim.decay=0.5, .* from step 8",
    "resume=LONG@6": r"4, 8, 12, 16\. .*checkpoint.every=6 checkpoint.keep=4",
    "resume=LONG/export@4": "holds no run",
}


@pytest.mark.parametrize("other", NO_TRUNK)
def test_a_run_that_took_other_steps_is_no_trunk(long: Path, tmp_path: Path, other: str) -> None:
    words = altered(LONG, "optim.steps=20", f"out={tmp_path}", "name=begun", "optim.decay=0.1")
    words = altered(words, f"resume={long}@8", other.replace("LONG", str(long)))
    with pytest.raises(UserError, match=rf"resume={long}.*@\d+: .*{NO_TRUNK[other]}"):
        run(words)
    assert not (tmp_path / "begun").exists()


def of_another(trunk: Path) -> None:
    saved = checkpoint.load(step_folder(trunk, 8))
    checkpoint.save(trunk / "checkpoints", 8, saved | {"recipe": "another"}, 2)


def of_other_images(trunk: Path) -> None:
    path = trunk / "environment.json"
    path.write_text(path.read_text().replace('"train": "', '"train": "0'))


HARM = {
    "is damaged": lambda trunk: flip_a_bit(step_folder(trunk, 8)),
    "belongs to another run": of_another,
    r"long have different images \(train\)": of_other_images,
}


@pytest.mark.parametrize("why", HARM)
def test_a_trunk_that_is_not_what_it_was_is_refused(long: Path, tmp_path: Path, why: str) -> None:
    trunk = shutil.copytree(long, tmp_path / "long")
    HARM[why](trunk)
    with pytest.raises(UserError, match=why):
        run(altered(LONG, "optim.steps=20", f"out={tmp_path}", f"resume={trunk}@8", "name=begun"))
    assert not (tmp_path / "begun").exists()
