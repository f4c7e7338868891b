"""Signals: the run is saved at the next step and goes on as if it had never stopped."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from torch import distributed
from torch.utils.data import Dataset

from helpers.launching import Process, launch, launch_ranks, outcome, python
from helpers.options import TINY, altered
from helpers.runs import Sends, assert_same_end, run, wait_for_rows, with_callbacks
from ssl_vit.data import loaders
from ssl_vit.jobs import setup
from ssl_vit.jobs import train as train_job
from ssl_vit.training import checkpoint, preemption

LONG = altered(
    TINY, "optim.steps=30000", "checkpoint.every=20000", "eval.every=20000", "log.every=1"
)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run([*TINY, f"out={tmp_path_factory.mktemp('unbroken')}", "name=run"]).folder


@pytest.mark.parametrize(("number", "step"), [*zip(preemption.SIGNALS, (1, 4, 7), strict=True)])
def test_a_signal_saves_at_the_next_step_and_the_run_goes_on(
    number, step, unbroken, tiny, capsys
) -> None:
    """Also where that step has a checkpoint anyway, or its row is not complete."""
    handlers = [signal.getsignal(each) for each in preemption.SIGNALS]
    with with_callbacks(Sends(number, step)), pytest.raises(SystemExit) as left:
        run([*tiny, "name=run"])
    assert left.value.code == preemption.STOPPED == 75
    assert [signal.getsignal(each) for each in preemption.SIGNALS] == handlers
    folder = Path(tiny[-1].removeprefix("out=")) / "run"
    assert checkpoint.step_of(checkpoint.list_checkpoints(folder / "checkpoints")[-1]) == step
    assert (
        f"stopped     at step {step} by {signal.Signals(number).name}, saved"
        in capsys.readouterr().out
    )
    assert not (folder / "result.json").exists()
    assert_same_end(unbroken, run([*tiny, "name=run"]).folder)


@pytest.mark.parametrize(
    ("owner", "name"), [(setup.HeldOutEvaluator, "__call__"), (train_job, "print_banner")]
)
def test_a_signal_between_steps_or_before_the_first_stops_and_the_run_goes_on(
    owner: object, name: str, unbroken, tiny, monkeypatch, capsys
) -> None:
    """While held-out images are looked at, or before anything is trained. It said "saved" of a run
    that has no checkpoint."""
    whole = getattr(owner, name)

    def interrupted(*given):
        os.kill(os.getpid(), signal.SIGTERM)
        return whole(*given)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(owner, name, interrupted)
        run([*tiny, "name=run"])
    folder = Path(tiny[-1].removeprefix("out=")) / "run"
    saved = checkpoint.list_checkpoints(folder / "checkpoints")
    assert (", saved." in capsys.readouterr().out) == bool(saved)
    assert_same_end(unbroken, run([*tiny, "name=run"]).folder)


def test_all_stop_before_the_same_step_however_far_they_are_apart(monkeypatch) -> None:
    """Three ranks as threads; the one that is signalled after step 12 runs ahead or behind. Few
    votes are kept."""
    for signalled in (0, 2):
        store = distributed.HashStore()
        monkeypatch.setattr(preemption, "key_value_store", lambda purpose, store=store: store)
        stops: dict[int, tuple[int, str]] = {}

        def train(rank: int, signalled: int = signalled, stops: dict = stops) -> None:
            signals = preemption.SignalHandler()
            consensus = preemption.StopConsensus(signals, rank, 3)
            for step in range(3, 100):
                if reason := consensus(step):
                    stops[rank] = step, reason
                    return
                if rank == signalled and step == 12:
                    signals.request_stop("SIGTERM")
                time.sleep(0.001 * rank)

        ranks = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(3)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(300)
        assert stops == dict.fromkeys(range(3), (20, f"SIGTERM on process {signalled}"))
        assert store.num_keys() <= 3 * 3


def until_it_ends(process: Process, number: int) -> None:
    """Send it a signal again and again: of two that come before the first is taken the system makes
    one."""
    end = time.monotonic() + 300
    while process.poll() is None:
        assert time.monotonic() < end
        process.send_signal(number)
        time.sleep(0.2)


def test_a_second_interrupt_leaves_at_once_where_another_process_is_waited_for(
    tmp_path: Path,
) -> None:
    """The main thread is in a collective, and runs no handler."""
    pair = launch_ranks(2, "tools/pretrain.py", *LONG, f"out={tmp_path}", "name=run")
    wait_for_rows(pair[0], tmp_path / "run")
    pair[1].send_signal(signal.SIGSTOP)
    time.sleep(1)
    until_it_ends(pair[0], signal.SIGINT)
    codes, output = outcome(pair[:1])
    pair[1].kill()
    pair[1].communicate()
    assert codes == [preemption.SECOND_SIGNAL + signal.SIGINT], output


def test_nothing_is_left_of_the_handlers() -> None:
    """Also of one inside another, as a tool's around a run's."""

    def held() -> tuple[int, int, int]:
        wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup)
        return wakeup, threading.active_count(), len(list(Path("/dev/fd").iterdir()))

    before = held()
    for _ in range(3):
        with preemption.SignalHandler() as outer, preemption.SignalHandler() as inner:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert (outer.reason, inner.reason) == ("", "SIGUSR1")
    end = time.monotonic() + 300
    while held() != before and time.monotonic() < end:
        time.sleep(0.01)
    assert held() == before


def working(tmp_path: Path) -> tuple[Process, list[psutil.Process]]:
    """A long run with two data workers, in its first steps, and these."""
    words = altered(LONG, "compute.workers=2", f"out={tmp_path}", "name=run")
    process = launch("tools/pretrain.py", *words)
    wait_for_rows(process, tmp_path / "run")
    return process, psutil.Process(process.pid).children()


def test_a_signal_to_the_whole_group_leaves_the_workers_at_work(tmp_path: Path) -> None:
    process, workers = working(tmp_path)
    assert len(workers) == 2
    for each in workers:
        for number in preemption.SIGNALS:
            each.send_signal(number)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == preemption.STOPPED, output
    assert checkpoint.is_intact(checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert not psutil.wait_procs(workers, timeout=300)[1]


def test_workers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    process, workers = working(tmp_path)
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(workers, timeout=300)[1]


def test_a_worker_that_hangs_ends_when_its_own_process_says_so() -> None:
    class Stuck(Dataset):
        def __getitems__(self, wanted: object) -> list[object]:
            time.sleep(600)
            return []

    loader = iter(loaders.image_loader(Stuck(), [[0]], 1))
    (worker,) = loader._workers
    time.sleep(1)
    worker.terminate()
    worker.join(300)
    assert not worker.is_alive()


def test_a_signal_while_torch_is_imported_stops_the_run_at_its_first_step(tmp_path: Path) -> None:
    script = f"""
import os, sys
from importlib.abc import MetaPathFinder
from ssl_vit.jobs import cli
class Signals(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            os.kill(os.getpid(), {int(signal.SIGUSR1)})
assert "torch" not in sys.modules
sys.meta_path.insert(0, Signals())
cli.pretrain({[*TINY, f"out={tmp_path}", "name=run"]!r})
"""
    done = python("-c", script)
    assert done.returncode == preemption.STOPPED, done.stderr
    assert "stopped     at step 0 by SIGUSR1" in done.stdout
