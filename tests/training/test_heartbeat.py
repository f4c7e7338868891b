"""A process that dies, stands still or stays behind is named by the others, who leave; the run goes
on afterwards."""

import json
import re
import signal
import socket
import time
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest

from helpers.launching import Process, launch_ranks, outcome
from helpers.options import TINY, altered
from ssl_vit.training import checkpoint, heartbeat

PATIENCE = 5  # seconds, which the watchdog counts only once there is something to find
HOST = socket.gethostname()
OPTIONS = [
    *altered(TINY, "optim.steps=3000", "checkpoint.every=5", "eval.every=40", "log.every=1"),
    f"compute.patience={PATIENCE}",
]
SCRIPT = """
import json, os, signal, sys, time
import torch
from datetime import timedelta
from pathlib import Path
from torch.distributed import distributed_c10d
from ssl_vit.recipe import schema
from ssl_vit.recipe.operation import Compute
from ssl_vit.data import batching, run_splits
from ssl_vit.evaluation.held_out import HeldOutEvaluator
from ssl_vit.jobs import cli, evaluate
from ssl_vit.objectives.mpp.network import MaskedPatchPrediction
from ssl_vit.training import checkpoint, heartbeat, strategy
from ssl_vit.errors import UserError
FAULTY = Path(os.environ["FAULTY"])
after_interval = heartbeat.Peer.after_interval

def only_with_a_fault(peer, read):
    return after_interval(peer, read) if FAULTY.exists() else heartbeat.Peer(read)

heartbeat.Peer.after_interval = only_with_a_fault
heartbeat.INTERVAL, heartbeat.BETWEEN_STEPS_FACTOR, heartbeat.STALLED_FACTOR = 0.3, 2, 2
heartbeat.SILENT_AFTER_ERROR = 0.9
Compute.model_fields["patience"].metadata.clear()  # bounds
Compute.model_rebuild(force=True)
schema.Recipe.model_rebuild(force=True)
ERRORS = {"user": UserError("data.some=0: broken"), "system": OSError(5, "no such disk")}
PLACES = {
    "fetch": (batching.ImageDataset, "__getitems__"),
    "forward": (MaskedPatchPrediction, "forward"),
    "held out": (HeldOutEvaluator, "__call__"),
}

def hang():
    FAULTY.touch()
    while True:
        time.sleep(0.1)

def fail_at(place, does):
    owner, name = PLACES[place]
    whole, calls = getattr(owner, name), []

    def patched(*values, **settings):
        calls.append(1)
        if len(calls) > (0 if place == "held out" else 20):
            does()
        return whole(*values, **settings)

    setattr(owner, name, patched)

def fail(kind):
    FAULTY.touch()
    raise ERRORS[kind]

def prepare_slowly():
    load = run_splits.load

    def late(*values):
        group = distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        store = distributed_c10d._get_default_store()
        assert group.options._timeout == store.timeout == timedelta(days=20)
        FAULTY.touch()
        time.sleep(7)
        FAULTY.unlink()
        return load(*values)

    if os.environ["RANK"] == "0":
        run_splits.load = late

def stop_in_evaluation():
    def stopped(*values):
        FAULTY.touch()
        os.kill(os.getpid(), signal.SIGSTOP)

    evaluate._measure = stopped

if os.environ["RANK"] in os.environ["RANKS"]:
    exec(os.environ["FAULT"])
getattr(cli, sys.argv[1])(json.loads(sys.argv[2]))
"""


def start(
    folder: Path, fault: str = "", ranks: str = "01", options: list[str] = OPTIONS, tool="pretrain"
) -> list[Process]:
    """Two processes of a run; `fault`: a statement that `ranks` execute first."""
    folder.mkdir(parents=True, exist_ok=True)
    own = json.dumps([*options, f"out={folder}", "name=run"])
    environment = {"FAULT": fault, "RANKS": ranks, "FAULTY": str(folder / "faulty")}
    return launch_ranks(2, "-c", SCRIPT, tool, own, OMP_NUM_THREADS="1", **environment)


def outcome_of_other(pair: list[Process], victim: int) -> tuple[int, str]:
    """Exit status and output of the process that is left."""
    (status,), (output,) = outcome([pair[1 - victim]])
    pair[victim].kill()
    pair[victim].communicate()
    return status, output


def wait_until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def checkpoints(folder: Path) -> list[Path]:
    return checkpoint.list_checkpoints(folder / "run" / "checkpoints")


KILLS = [(1, signal.SIGKILL), (0, signal.SIGKILL), (0, signal.SIGSTOP)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], tuple]:
    """The folder, and the exit status and output of the process that is left, for each of KILLS.
    All pairs wait at the same time."""
    pairs = {}
    for case in KILLS:
        folder = tmp_path_factory.mktemp("killed")
        pairs[case] = folder, start(folder)
    for (victim, number), (folder, pair) in pairs.items():
        wait_until(lambda folder=folder: checkpoints(folder))
        pair[victim].send_signal(number)
        (folder / "faulty").touch()
    return {
        case: (folder, *outcome_of_other(pair, case[0])) for case, (folder, pair) in pairs.items()
    }


@pytest.mark.parametrize(("victim", "number"), KILLS)
def test_a_process_that_dies_or_stands_still_is_named_and_the_others_leave(
    killed: dict, victim: int, number: int
) -> None:
    folder, status, output = killed[victim, number]
    assert status == heartbeat.LOST, output
    assert re.search(rf"error: process {victim} on {HOST} has been silent for [\d.]+ s", output)
    assert checkpoint.is_intact(checkpoints(folder)[-1])


STARTS = """
import faulthandler, os, signal, sys, time
faulthandler.dump_traceback_later(120, exit=True)
from pathlib import Path
from torch import distributed
from ssl_vit.training import heartbeat
distributed.init_process_group("gloo")
rank, initialised = int(os.environ["RANK"]), Path(sys.argv[1])
if rank == int(sys.argv[2]):  # it leaves once the other has left `init_process_group`, too
    while not initialised.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), int(sys.argv[3])) if sys.argv[3] else os._exit(0)
"""


@pytest.mark.parametrize(("victim", "number"), [(1, signal.SIGSTOP), (0, signal.SIGKILL)])
def test_a_process_lost_before_its_first_heartbeat_is_named(
    tmp_path: Path, victim: int, number: int
) -> None:
    """The errors of `init_process_group` itself are not meant."""
    script = f"""{STARTS}
watchdog = heartbeat.Watchdog(rank, 2, 3)
initialised.touch()
with watchdog:
    time.sleep(300)
"""
    words = str(tmp_path / "there"), str(victim), str(int(number))
    status, output = outcome_of_other(launch_ranks(2, "-c", script, *words), victim)
    assert status == heartbeat.LOST, output
    assert f"error: process {victim} on ? has been silent for 3 s" in output


def test_a_process_leaves_where_the_first_one_has_finished_before_its_first_heartbeat(
    tmp_path: Path,
) -> None:
    """Its connection to the store is tried for minutes then; nobody is lost."""
    script = f"""{STARTS}
heartbeat.SILENT_AFTER_ERROR = 0.5
initialised.touch()
try:
    while True:  # until the store has gone with the first one
        distributed.distributed_c10d._get_default_store().set("here", "")
except distributed.DistError:
    pass
with heartbeat.Watchdog(1, 2, 100):
    pass
os._exit(0)
"""
    words = str(tmp_path / "there"), "0", ""
    statuses, outputs = outcome(launch_ranks(2, "-c", script, *words))
    assert statuses == [0, 0], outputs


# rank, where it hangs, and how often the patience passes before it is named
HANGS = [(1, "fetch", 1), (0, "held out", 2)]


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple]:
    """Exit statuses and outputs of the pairs of HANGS, and of one in which both hang. All wait at
    the same time."""
    cases = [*((str(rank), place) for rank, place, _ in HANGS), ("01", "forward")]
    pairs = {}
    for ranks, place in cases:
        folder = tmp_path_factory.mktemp("hung")
        pairs[ranks, place] = start(folder, f"fail_at({place!r}, hang)", ranks)
    return {case: outcome(pair) for case, pair in pairs.items()}


@pytest.mark.parametrize(("rank", "place", "times"), HANGS)
def test_a_process_that_hangs_is_named(hung: dict, rank: int, place: str, times: int) -> None:
    statuses, outputs = hung[str(rank), place]
    assert statuses == [heartbeat.LOST] * 2, outputs
    named = f"error: process {rank} on {HOST} has not moved for {times * PATIENCE} s"
    assert all(named in output for output in outputs), outputs


def test_all_that_hang_together_leave(hung: dict) -> None:
    statuses, outputs = hung["01", "forward"]
    assert statuses == [heartbeat.LOST] * 2, outputs
    named = f"error: no process has moved for {2 * PATIENCE} s, after step "
    assert all(named in output for output in outputs), outputs


@pytest.mark.parametrize(("rank", "kind"), [(0, "user"), (1, "system")])
def test_an_error_on_one_process_is_reported_by_the_others_in_a_line(
    tmp_path: Path, rank: int, kind: str
) -> None:
    statuses, outputs = outcome(
        start(tmp_path, f"fail_at('fetch', lambda: fail({kind!r}))", str(rank))
    )
    assert (statuses[rank], statuses[1 - rank]) == (2, heartbeat.LOST), outputs
    own = outputs[rank].splitlines()[-1]
    other = outputs[1 - rank].splitlines()[-1]
    if kind == "user":
        assert own == "error: data.some=0: broken"
        assert other == f"error: process 0 on {HOST} ended: data.some=0: broken"
    else:
        assert own == f"error on process 1: out={tmp_path}: {tmp_path}/run: no such disk"
        assert other == f"error: process 1 on {HOST} ended: OSError: [Errno 5] no such disk"
    assert not any("Traceback" in output for output in outputs), outputs
    assert len(outputs[1].splitlines()) == 1, outputs


def test_what_the_first_process_does_before_the_others_may_take_long(tmp_path: Path) -> None:
    """Longer than the patience, and than the timeout that the start of a process group has."""
    few = altered(OPTIONS, "optim.steps=2", "optim.warmup=1")
    statuses, outputs = outcome(start(tmp_path, "prepare_slowly()", options=few))
    assert statuses == [0, 0], outputs


def test_an_evaluation_names_a_lost_process_too(tmp_path: Path) -> None:
    options = ["recipe=evaluate", "init=scratch", *TINY[1:7], f"compute.patience={PATIENCE}"]
    pair = start(tmp_path, "stop_in_evaluation()", "1", options, "evaluate")
    status, output = outcome_of_other(pair, 1)
    assert status == heartbeat.LOST, output
    assert f"error: process 1 on {HOST} has been silent for {PATIENCE} s" in output


def diagnosed(*read: heartbeat.Heartbeat, patience: float = 10, stood: float = 0) -> str:
    """What the first process says of these heartbeats, whose counts have not changed for so
    long."""
    watchdog = heartbeat.Watchdog(0, len(read), patience)
    watchdog.peers = {rank: heartbeat.Peer(one, 0.0, stood) for rank, one in enumerate(read)}
    return watchdog._diagnose()


def test_nobody_is_named_where_all_wait_or_have_left() -> None:
    """One that has left at the end is not missed; equal counts are a long evaluation between steps,
    or a long way to the first."""
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


def test_only_intervals_without_a_change_count() -> None:
    """Not the clock: a run that was suspended has not waited."""
    first, beat = heartbeat.Heartbeat(1, 7), heartbeat.Heartbeat(2, 7)
    peer = heartbeat.Peer(first)
    for read in (first, first, beat):
        peer = peer.after_interval(read)
    assert (peer.silent, peer.idle) == (0, 3 * heartbeat.INTERVAL)
    assert peer.after_interval(heartbeat.Heartbeat(3, 8)) == (heartbeat.Heartbeat(3, 8), 0, 0)
