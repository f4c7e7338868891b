"""One process never hangs for ever: data workers that bring nothing are named, and signals are
signalled while it waits."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch.utils.data import Dataset

from helpers.launching import Process, launch
from helpers.options import TINY, altered
from ssl_vit.data import loaders, workers
from ssl_vit.training import checkpoint, heartbeat, preemption

OPTIONS = altered(TINY, "optim.steps=40", "checkpoint.every=40", "eval.every=40", "log.every=1")
OPTIONS.append("compute.workers=2")
SCRIPT = """
import multiprocessing, os, signal, sys, time
from ssl_vit.recipe import schema
from ssl_vit.recipe.operation import Compute
from ssl_vit.data import batching
from ssl_vit.data.workers import PREFETCH
from ssl_vit.jobs import cli
from ssl_vit.training import heartbeat, loop
from torch.utils.data import _utils
_utils.MP_STATUS_CHECK_INTERVAL = 0.5  # instead of 5 s, for each worker that does not end
heartbeat.INTERVAL = 0.2
Compute.model_fields["patience"].metadata.clear()  # bounds
Compute.model_rebuild(force=True)
schema.Recipe.model_rebuild(force=True)
fetch, where, calls = batching.ImageDataset.__getitems__, sys.argv[1], []
update, made = loop._update, multiprocessing.Value("i", 0)  # batches that workers made
def patched(self, wanted):
    calls.append(os.getpid())
    many = calls.count(os.getpid())
    batch = fetch(self, wanted)
    worker = multiprocessing.parent_process() is not None
    if worker and where == "stopped" and many > 8:  # later than what is brought ahead
        os.write(1, b"there\\n")
        os.kill(os.getpid(), signal.SIGSTOP)
    if worker and where == "testing" and not self.train:
        os.write(1, b"there\\n")
        os.kill(os.getpid(), signal.SIGSTOP)
    if not worker and where == "stuck" and self.train and many > 12:
        os.write(1, b"there\\n")
        while True:
            time.sleep(0.1)
    if worker and where == "refused":
        batch = batch._replace(unreadable=(lambda: "no room",))  # as what finds no room, this cannot be handed over
    made.value += worker
    return batch
batching.ImageDataset.__getitems__ = patched
def stopping(state, *rest):
    if where in ("ahead", "unkillable") and state.step == 3:
        while made.value < 3 + PREFETCH:
            time.sleep(0.1)
        (worker,) = multiprocessing.active_children()
        os.kill(worker.pid, signal.SIGSTOP)
        os.write(1, b"there %d\\n" % worker.pid)
    update(state, *rest)
loop._update = stopping
if where == "unkillable":  # as within a system call that does not return
    multiprocessing.process.BaseProcess.kill = lambda self: None
cli.pretrain({options!r})
"""


def started(tmp_path: Path, where: str, *options: str) -> Process:
    """A run on one process, in which something hangs."""
    words = altered(OPTIONS, f"out={tmp_path}", "name=run", *options)
    return launch("-c", SCRIPT.replace("{options!r}", repr(words)), where)


def until_there(process: Process) -> str:
    """It hangs, or is about to; the line that says so."""
    return next(line for line in process.stdout if "there" in line)


def ended(process: Process, status: int) -> str:
    """What a process printed that ended so."""
    output = process.communicate(timeout=300)[0]
    assert process.returncode == status and "Traceback" not in output, output
    return output


def assert_saved(tmp_path: Path) -> None:
    assert checkpoint.is_intact(checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1])


NO_DATA = "error: compute.patience=2: no data arrived in this time"


@pytest.mark.parametrize(
    ("where", "options", "says"),
    [
        ("refused", [], "error: data worker (process "),  # no room in shared memory
        ("stopped", ["compute.patience=2"], NO_DATA),
        ("stuck", ["compute.patience=2", "compute.workers=0"], NO_DATA),
    ],
)
def test_data_that_do_not_come_end_the_run_in_a_line(
    tmp_path: Path, where: str, options: list[str], says: str
) -> None:
    output = ended(started(tmp_path, where, *options), heartbeat.LOST)
    assert output.splitlines()[-1].startswith(says), output
    assert ("could not hand over a batch: " in output) == (where == "refused")


def test_a_signal_while_data_do_not_come_saves_and_leaves(tmp_path: Path) -> None:
    process = started(tmp_path, "stopped")
    until_there(process)
    process.send_signal(signal.SIGTERM)
    assert "by SIGTERM, saved" in ended(process, preemption.STOPPED)
    assert_saved(tmp_path)


@pytest.mark.parametrize("where", ["ahead", "unkillable"])
def test_a_signal_saves_and_leaves_where_a_stopped_worker_has_made_batches(
    tmp_path: Path, where: str
) -> None:
    """Their tensors are fetched from it. One that cannot be killed does not hold the run up."""
    process = started(tmp_path, where, "compute.workers=1")
    worker = int(until_there(process).split()[1])
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=300)
    finally:
        process.kill()
        with suppress(ProcessLookupError):  # it is one of this machine's init by now
            os.kill(worker, signal.SIGKILL)
    # at step 3 or, where the signal comes later, at one of the batches brought ahead
    assert "by SIGTERM, saved" in ended(process, preemption.STOPPED)
    assert_saved(tmp_path)


def test_a_signal_while_test_images_do_not_come_leaves_a_run_to_finish(tmp_path: Path) -> None:
    short = ("recipe=supervised", "eval.test=true", "optim.steps=4", "optim.warmup=1")
    process = started(tmp_path, "testing", *short)
    until_there(process)
    process.send_signal(signal.SIGTERM)
    assert "after the last step by SIGTERM, saved" in ended(process, preemption.STOPPED)
    ended(started(tmp_path, "no fault", *short), 0)
    assert (tmp_path / "run" / "predictions.npz").exists()


class Zeros(Dataset):
    def __getitems__(self, wanted: list[int]) -> torch.Tensor:
        return torch.zeros(1)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker")  # on one core
def test_a_worker_that_is_killed_while_the_workers_are_ended_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is stopped would hold up the end of the process: it waits for its children."""
    found: list[psutil.Process] = []

    def ending(end: Callable[[], None]) -> None:
        found[0].kill()
        while found[0].status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        end()

    loader = loaders.image_loader(Zeros(), [[number] for number in range(99)], 2)
    with workers.InterruptibleLoader(loader) as batches:
        next(iter(batches))
        iterator = batches.iterator
        found += [psutil.Process(worker.pid) for worker in iterator._workers]
        found[1].suspend()
        monkeypatch.setattr(
            iterator, "_shutdown_workers", partial(ending, iterator._shutdown_workers)
        )
    assert not any(worker.is_running() for worker in found)


def test_what_is_left_of_a_wait_is_no_alarm() -> None:
    """Neither a timer nor a handler: an alarm without one would end the process."""
    before = signal.getsignal(signal.SIGALRM)
    loader = loaders.image_loader(Zeros(), [[0], [1]], 1)
    with workers.InterruptibleLoader(loader) as batches:
        assert len(list(batches)) == 2
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == before


@pytest.mark.parametrize(("window", "second"), [(1e6, signal.SIGINT), (0.0, signal.SIGUSR1)])
def test_a_second_signal_leaves_at_once_and_one_that_a_launcher_repeats_is_none(
    monkeypatch: pytest.MonkeyPatch, window: float, second: int
) -> None:
    """Within the window a Ctrl-C alone is another one, after it any."""
    left, signalled = [], threading.Event()
    monkeypatch.setattr(
        preemption, "exit_process", lambda status, text: (left.append(status), signalled.set())
    )
    monkeypatch.setattr(preemption, "REPEAT_WINDOW", window)
    reading, writing = os.pipe()
    thread = threading.Thread(target=preemption._exit_on_second_signal, args=(reading,))
    thread.start()
    repeated = [signal.SIGTERM, signal.SIGUSR1] if window else []
    os.write(writing, bytes([signal.SIGTERM, signal.SIGCHLD, *repeated, second]))
    assert signalled.wait(60)
    os.close(writing)
    thread.join()
    assert left == [preemption.SECOND_SIGNAL + second]


def test_a_second_ctrl_c_leaves_an_interactive_shell_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended a notebook's kernel, and all variables were lost."""
    monkeypatch.setattr(preemption, "exit_process", lambda status, text: os._exit(status))
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), preemption.SignalHandler() as handler:
        signal.raise_signal(signal.SIGINT)
        assert handler.reason == "SIGINT"  # it is to be saved
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_one_process_alone_is_watched_while_it_waits_for_one_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By intervals of 2 s: of training longer than the patience nothing is said, nor where batches
    come slowly."""
    said: list[str] = []
    monkeypatch.setattr(heartbeat, "exit_process", lambda status, text: said.append(text))
    watchdog = heartbeat.Watchdog(0, 1, 10)
    batches = watchdog.track(range(100), 3)

    def slow_batches() -> None:
        watchdog.waits_for_batch = True
        watchdog.batches += 1

    def one_batch() -> None:
        watchdog.waits_for_batch = True

    next(batches)
    for does, times, alarms in (
        (lambda: None, 100, 0),
        (slow_batches, 100, 0),
        (one_batch, 5, 0),
        (one_batch, 7, 1),
    ):
        left = iter(range(times))
        watchdog.done = SimpleNamespace(  # type: ignore[assignment]
            wait=lambda seconds, left=left, does=does: does() or next(left, None) is None
        )
        watchdog._watch_alone()
        assert len(said) == alarms
    assert said[0].startswith("error: compute.patience=10: no data arrived in this time")


def test_the_watch_over_one_process_ends_with_it() -> None:
    with heartbeat.Watchdog(0, 1, 1.0) as watchdog:
        assert list(watchdog.track([1, 2], 0)) == [1, 2] and watchdog.watch.is_alive()
    assert not watchdog.watch.is_alive() and not watchdog.exchange.is_alive()
