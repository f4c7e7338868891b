"""A process that dies, stands still or stays behind is named by the others, who leave; the run goes
on afterwards."""

import signal
import socket
import time
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest
from conftest import TINY, altered, outcome, together

from ssl_vit.training import checkpoint, heartbeat

PATIENCE = 15  # seconds: more than a healthy process is kept waiting for a core
WORDS = altered(
    TINY, "optim.steps=3000", "optim.warmup=2", "checkpoint.every=5", "eval.every=40", "log.every=1"
)
STUCK = """
import os, time
from ssl_vit.config import validate
from ssl_vit.data import batching
from ssl_vit.evaluation.held_out import HeldOutEvaluator
from ssl_vit.jobs import cli
from ssl_vit.objectives import MaskedPatchPrediction
from ssl_vit.training import checkpoint, heartbeat, strategy
from ssl_vit.errors import UserError
heartbeat.INTERVAL, heartbeat.BETWEEN_STEPS, heartbeat.STALLED = 0.3, 2, 2
del validate.BOUNDS["compute.patience"]
PLACES = {
    "fetch": (batching.ImageDataset, "__getitems__"),
    "forward": (MaskedPatchPrediction, "forward"),
    "backward": (strategy.Strategy, "backward"),
    "look": (HeldOutEvaluator, "__call__"),
    "save": (checkpoint.Saver, "save"),
    "fails": (batching.ImageDataset, "__getitems__"),
}
ERROR = UserError("data.some=0: broken") if os.environ.get("ERROR") == "user" else OSError(5, "no such disk")
def stuck(owner, name):
    whole, calls = getattr(owner, name), []
    def patched(*values, **words):
        calls.append(1)
        if os.environ["PLACE"] == "fails" and len(calls) > 20:
            raise ERROR
        while len(calls) > (0 if name == "__call__" else 20):
            time.sleep(0.1)
        return whole(*values, **words)
    setattr(owner, name, patched)
if os.environ["RANK"] in os.environ.get("WHO", ""):
    stuck(*PLACES[os.environ["PLACE"]])
cli.pretrain({words!r})
"""


def started(tmp_path: Path, **environment: str):
    words = [*WORDS, f"out={tmp_path}", "name=run", f"compute.patience={PATIENCE}"]
    return together(2, "-c", STUCK.replace("{words!r}", repr(words)), **environment)


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("victim", "number"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (0, signal.SIGSTOP)]
)
def test_a_process_that_dies_or_stands_still_is_named_and_the_others_leave(
    tmp_path: Path, victim: int, number: int
) -> None:
    pair = started(tmp_path)
    until(lambda: checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints"))
    pair[victim].send_signal(number)
    codes, outputs = outcome([pair[1 - victim]])
    pair[victim].kill()
    pair[victim].communicate()
    assert codes == [heartbeat.LOST], outputs
    assert (
        f"error: process {victim} on {socket.gethostname()} gave no sign of life for " in outputs[0]
    )
    assert checkpoint.is_intact(checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1])


@pytest.mark.parametrize(("victim", "number"), [(1, signal.SIGSTOP), (0, signal.SIGKILL)])
def test_a_process_lost_before_it_said_anything_is_named(
    tmp_path: Path, victim: int, number: int
) -> None:
    """In a run whose processes next speak in half a minute."""
    script = f"""
import os, signal, time
from datetime import timedelta
from torch import distributed
from ssl_vit.training import heartbeat
distributed.init_process_group("gloo")
heartbeat.DEAD_AFTER = 3
rank = int(os.environ["RANK"])
watchdog = heartbeat.Watchdog(rank, 2, 100)
if rank == {victim}:
    os.kill(os.getpid(), {int(number)})
with watchdog:
    time.sleep(30)
"""
    pair = together(2, "-c", script)
    codes, outputs = outcome([pair[1 - victim]])
    pair[victim].kill()
    pair[victim].communicate()
    assert codes == [heartbeat.LOST], outputs
    assert (
        f"error: process {victim} on" in outputs[0] and "gave no sign of life for 3 s" in outputs[0]
    )


@pytest.mark.parametrize(
    ("who", "place", "times"),
    [(1, "fetch", 1), (1, "forward", 1), (1, "backward", 1), (1, "look", 2), (0, "save", 2)],
)
def test_a_process_that_hangs_is_named(tmp_path: Path, who: int, place: str, times: int) -> None:
    codes, outputs = outcome(started(tmp_path, WHO=str(who), PLACE=place))
    assert codes == [heartbeat.LOST] * 2, outputs
    text = f"error: process {who} on {socket.gethostname()} has not moved for {times * PATIENCE} s; the others wait for it"
    assert all(text in each for each in outputs), outputs


def test_all_that_hang_together_leave(tmp_path: Path) -> None:
    codes, outputs = outcome(started(tmp_path, WHO="01", PLACE="forward"))
    assert codes == [heartbeat.LOST] * 2, outputs
    assert all(
        f"error: no process has moved for {2 * PATIENCE} s, after step " in text for text in outputs
    ), outputs


@pytest.mark.parametrize(("who", "error"), [(0, "user"), (1, "system")])
def test_an_error_on_one_process_is_told_by_the_others_in_a_line(
    tmp_path: Path, who: int, error: str
) -> None:
    codes, outputs = outcome(
        started(tmp_path, WHO=str(who), PLACE="fails", ERROR=error, OMP_NUM_THREADS="1")
    )
    text, line = {
        "user": ("data.some=0: broken", "error: data.some=0: broken"),
        "system": (
            "OSError: [Errno 5] no such disk",
            f"error on process 1: out={tmp_path}: {tmp_path}/run: no such disk",
        ),
    }[error]
    assert (codes[who], codes[1 - who]) == (2, heartbeat.LOST), outputs
    assert outputs[who].splitlines()[-1] == line
    assert (
        outputs[1 - who].splitlines()[-1]
        == f"error: process {who} on {socket.gethostname()} ended: {text}"
    )
    assert not any("Traceback" in each for each in outputs), outputs
    assert len(outputs[1].splitlines()) == 1, outputs


def test_what_the_first_process_does_before_the_others_may_take_long(tmp_path: Path) -> None:
    """Longer than the patience, and than a group of processes waits by itself."""
    slow = """
from datetime import timedelta
from torch.distributed import distributed_c10d
from ssl_vit.data import sources
distributed_c10d.default_pg_timeout = timedelta(seconds=8)
load = sources.load
def late(*values):
    time.sleep(20 if os.environ["RANK"] == "0" else 0)
    return load(*values)
sources.load = late
"""
    words = [
        *altered(TINY, "optim.steps=2", "optim.warmup=1"),
        f"out={tmp_path}",
        "name=run",
        f"compute.patience={PATIENCE}",
    ]
    script = STUCK.replace("cli.pretrain", f"{slow}cli.pretrain").replace("{words!r}", repr(words))
    codes, outputs = outcome(together(2, "-c", script))
    assert codes == [0, 0], outputs


def test_an_evaluation_names_a_lost_process_too(tmp_path: Path) -> None:
    words = [
        "recipe=evaluate",
        "init=scratch",
        *TINY[1:7],
        f"compute.patience={PATIENCE}",
        f"out={tmp_path}",
        "name=run",
    ]
    script = f"""
import os, signal
from ssl_vit.config import validate
from ssl_vit.jobs import cli, evaluate
from ssl_vit.training import heartbeat
heartbeat.INTERVAL = 0.3
del validate.BOUNDS["compute.patience"]
def lost(*values):
    os.kill(os.getpid(), signal.SIGSTOP)
if os.environ["RANK"] == "1":
    evaluate._measured = lost
cli.evaluate({words!r})
"""
    pair = together(2, "-c", script)
    codes, outputs = outcome(pair[:1])
    pair[1].kill()
    pair[1].communicate()
    assert codes == [heartbeat.LOST], outputs
    assert (
        "error: process 1 on" in outputs[0]
        and f"gave no sign of life for {PATIENCE} s" in outputs[0]
    )


def diagnosed(*signs: heartbeat.Heartbeat, patience: float = 10, stood: float = 0) -> str:
    """What the first process says of the processes' signs, the others' marks being so old."""
    watchdog = heartbeat.Watchdog(0, len(signs), patience)
    now = time.monotonic()
    watchdog.peers = {
        rank: heartbeat.PeerStatus(sign, now, now - stood) for rank, sign in enumerate(signs)
    }
    return watchdog._diagnose()


def test_nobody_is_named_where_all_wait_or_have_left() -> None:
    """One that has left at the end is not missed; equal marks are a long look between steps, or a
    long way to the first."""
    within, between = heartbeat.Heartbeat(1, 7, 10, "here"), heartbeat.Heartbeat(1, 7, 60, "here")
    left = heartbeat.Heartbeat(1, 3, 10, "here", heartbeat.FINISHED)
    assert (
        diagnosed(within, within, left, stood=25)
        == diagnosed(between, between, left, stood=1e6)
        == ""
    )
    assert "no process has moved for 30 s" in diagnosed(within, within, left, stood=31)
    assert "process 1 on here has not moved for 10 s" in diagnosed(
        within._replace(ticks=8), within, left, stood=11
    )
    assert diagnosed(within._replace(ticks=8), between, left, stood=11) == ""
    assert "process 0 on here has not moved for 60 s" in diagnosed(
        between, within._replace(ticks=8), left, stood=61
    )
    before = heartbeat.Heartbeat(1, 0, inf, "here")
    assert diagnosed(before, before._replace(ticks=1), stood=1e6) == ""
