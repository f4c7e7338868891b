"""Signals: the run is saved at the next step and goes on as if it had never stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, TINY
from test_job import assert_same_end, run

from ssl_vit import assembly, checkpoint, job
from ssl_vit.engine import Listener
from ssl_vit.processes import stopping


class Sends(Listener):
    def __init__(self, number: int, step: int) -> None:
        self.number, self.step = number, step

    def on_step(self, step: int) -> None:
        if step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run([*TINY, f"out={tmp_path_factory.mktemp('unbroken')}", "name=run"]).folder


@pytest.mark.parametrize("number", stopping.SIGNALS)
@pytest.mark.parametrize("step", [1, 4, 7])
def test_a_signal_saves_at_the_next_step_and_the_run_goes_on(number, step, unbroken, tiny, monkeypatch, capsys) -> None:
    """Also where that step has a checkpoint anyway, or its row is not complete."""
    whole = job._listeners
    monkeypatch.setattr(job, "_listeners", lambda j: [*whole(j), Sends(number, step)])
    handlers = [signal.getsignal(each) for each in stopping.SIGNALS]
    with pytest.raises(SystemExit) as left:
        run([*tiny, "name=run"])
    assert left.value.code == stopping.STOPPED == 75
    assert [signal.getsignal(each) for each in stopping.SIGNALS] == handlers
    folder = Path(tiny[-1].removeprefix("out=")) / "run"
    assert checkpoint.step(checkpoint.found(folder / "checkpoints")[-1]) == step
    assert f"stopped     at step {step} by {signal.Signals(number).name}, saved" in capsys.readouterr().out
    assert not (folder / "result.json").exists()
    monkeypatch.setattr(job, "_listeners", whole)
    assert_same_end(unbroken, run([*tiny, "name=run"]).folder)


def test_a_signal_while_held_out_pictures_are_looked_at(unbroken, tiny, monkeypatch) -> None:
    look = assembly.HeldOut.__call__

    def interrupted(self, step, row, objective):
        os.kill(os.getpid(), signal.SIGTERM)
        yield from look(self, step, row, objective)

    with monkeypatch.context() as patch:
        patch.setattr(assembly.HeldOut, "__call__", interrupted)
        with pytest.raises(SystemExit):
            run([*tiny, "name=run"])
    assert_same_end(unbroken, run([*tiny, "name=run"]).folder)


def test_a_signal_before_the_first_step_leaves_a_run_that_begins_again(unbroken, tiny, monkeypatch) -> None:
    introduce = job.introduce

    def interrupted(made):
        introduce(made)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(job, "introduce", interrupted)
        with pytest.raises(SystemExit):
            run([*tiny, "name=run"])
    assert_same_end(unbroken, run([*tiny, "name=run"]).folder)


def test_a_second_interrupt_leaves_at_once(tmp_path: Path) -> None:
    """The first waits for a step that does not end."""
    script = f"""
import sys, time
from ssl_vit import engine, training
def stuck(*values):
    print("there", flush=True)
    for _ in range(6000):
        time.sleep(0.1)
engine._update = stuck
training.pretrain({[*TINY, f"out={tmp_path}", "name=run"]!r})
"""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert any(line == "there\n" for line in process.stdout)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
