"""A process that dies, stands still or stays behind is named by the others, who leave; the run goes on afterwards."""

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import TINY, altered, outcome, together

from ssl_vit import checkpoint
from ssl_vit.processes import liveness

WORDS = altered(TINY, "optim.steps=3000", "optim.warmup=2", "checkpoint.every=5", "eval.every=3000", "log.every=1")
SLOW = """
import os, time
from ssl_vit.processes import liveness
from ssl_vit.data import batches
liveness.BEAT = 0.3
fetch, calls = batches.Pictures.__getitems__, []
def late(self, wanted):
    calls.append(1)
    while os.environ["RANK"] == os.environ.get("STUCK") and len(calls) > 20:
        time.sleep(0.1)
    return fetch(self, wanted)
batches.Pictures.__getitems__ = late
from ssl_vit import training
training.pretrain({words!r})
"""


def started(tmp_path: Path, **environment: str):
    words = [*WORDS, f"out={tmp_path}", "name=run", "compute.patience=4"]
    return together(2, "-c", SLOW.replace("{words!r}", repr(words)), **environment)


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(("victim", "number"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_a_process_that_dies_or_stands_still_is_named_and_the_others_leave(tmp_path: Path, victim: int, number: int) -> None:
    pair = started(tmp_path)
    until(lambda: checkpoint.found(tmp_path / "run" / "checkpoints"))
    pair[victim].send_signal(number)
    before = time.monotonic()
    codes, said = outcome([pair[1 - victim]], 60)
    assert time.monotonic() - before < 30
    pair[victim].kill()
    pair[victim].communicate()
    assert codes == [liveness.LOST], said
    assert f"error: process {victim} on {socket.gethostname()} gave no sign of life for" in said[0]
    assert checkpoint.sound(checkpoint.found(tmp_path / "run" / "checkpoints")[-1])


def test_a_process_that_stays_behind_is_named(tmp_path: Path) -> None:
    codes, said = outcome(started(tmp_path, STUCK="1"), 120)
    assert codes == [liveness.LOST] * 2, said
    assert all("error: process 1 on" in text and "has not moved for 4 s; the others wait for it" in text for text in said)


def test_nobody_is_named_where_all_wait_or_have_left() -> None:
    """One that has left at the end is not missed, and equal marks for long are a long evaluation."""
    life = liveness.Life(0, 3, patience=0.05)
    life.marks = 7
    for _ in range(3):
        assert life._judge({1: f"{time.monotonic()} 7 here", 2: liveness.LEFT}) == ""
        time.sleep(0.03)
    life.marks = 8
    assert "process 1 on here has not moved" in life._judge({1: "new 7 here", 2: liveness.LEFT})


def test_one_process_watches_nobody(tmp_path: Path) -> None:
    with liveness.Life(0, 1, 1.0) as life:
        assert list(life.marked([1, 2])) == [1, 2]
    assert not life.thread.is_alive()
