"""The lock of a folder: one writer at a time, whoever else is killed, forked or reads; who it is,
is told; a folder that is moved is not written."""

import errno
import fcntl
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.hub_runs import refused
from helpers.launching import Process, launch, outcome
from ssl_vit.recipe.schema import Recipe
from ssl_vit.runs import lock as locking
from ssl_vit.runs.folder import Run

HERE = socket.gethostname()
HOLD = """
import os, sys, time
from pathlib import Path
from ssl_vit.recipe.schema import Recipe
from ssl_vit.runs import folder, lock
out, how = sys.argv[1:]
with folder.Run(Recipe(name="it", out=out)).lock():
    child = 0
    if how == "forks":
        child = os.fork()
        if not child:
            time.sleep(600)
    if how == "reads":
        assert lock.is_held(Path(out) / "it")
        (Path(out) / "it" / "lock").read_text()
    print(child, flush=True)
    time.sleep(600)
"""
TAKE = """
import sys
from ssl_vit.recipe.schema import Recipe
from ssl_vit.runs import folder
with folder.Run(Recipe(name="it", out=sys.argv[1])).lock():
    print("taken")
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Recipe(name="it", out=str(tmp_path)))


def take(run: Run) -> None:
    with run.lock():
        pass


@contextmanager
def holder(out: Path, how: str = "") -> Iterator[tuple[Process, int]]:
    """(A process that holds the lock of the run `it` until it is killed, the number of its own
    child)."""
    process = launch("-c", HOLD, str(out), how)
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(60)


@pytest.mark.parametrize("how", ["", "forks", "reads"])
def test_a_writer_keeps_others_out_until_it_ends_however_it_ends(run: Run, how: str) -> None:
    """Not through a process that it forked, as a loader's worker is, and that lives on. And a POSIX
    lock would go when any descriptor of its file is closed, as list_runs and report do in the
    process that trains."""
    with holder(run.folder.parent, how) as (process, child):
        for _ in range(2):  # the first refusal takes nothing away
            line = refused(take, run)
            assert line.startswith("name=it: ") and f"process {process.pid} on {HERE}" in line
        process.kill()
        process.wait(60)
        try:
            with run.lock():
                assert f'"pid": {os.getpid()}' in (run.folder / "lock").read_text()
        finally:
            if child:
                os.kill(child, signal.SIGKILL)  # it is there


def test_a_second_thread_is_refused_and_the_first_keeps_its_lock(run: Run) -> None:
    """Nor may the same thread take it twice."""
    lines = []
    with run.lock():
        thread = threading.Thread(target=lambda: lines.append(refused(take, run)))
        thread.start()
        thread.join()
        lines.append(refused(take, run))
        _, (other,) = outcome([launch("-c", TAKE, str(run.folder.parent))])
        assert f"process {os.getpid()} on" in other and "taken" not in other
    assert len(lines) == 2 and all("is being written by this process" in line for line in lines)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_said(
    run: Run, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*values: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    line = refused(take, run)
    assert line.startswith(f"out={run.folder.parent}: {run.folder}/lock: {os.strerror(number)}")


# os.getpid(): of an ended one of the same number
NOBODY = [*({"host": HERE, "pid": pid} for pid in (os.getpid(), 2**40, 0, "x")), []]
LINES: list[tuple[str, str | None]] = [
    (json.dumps({"host": "elsewhere", "pid": 41}), "process 41 on elsewhere"),
    (json.dumps({"host": HERE, "pid": os.getppid()}), f"process {os.getppid()} on {HERE}"),
    *((line, None) for line in (*map(json.dumps, NOBODY), "garbage", "[" * 9999)),
]


@pytest.mark.parametrize(("text", "writer"), LINES, ids=range(len(LINES)))
def test_who_writes_is_read_from_the_file_and_a_free_folder_is_taken(
    run: Run, text: str, writer: str | None
) -> None:
    """Whatever the line says: only the lock itself keeps a writer out."""
    run.folder.mkdir()
    (run.folder / "lock").write_text(text)
    assert locking.writer(run.folder) == writer
    with run.lock():
        assert locking.writer(run.folder) == "this process"
    assert not locking.is_held(run.folder)


def test_a_failing_body_lets_go(run: Run) -> None:
    with pytest.raises(KeyError), run.lock():
        raise KeyError
    assert (run.folder / "lock").read_text() == ""
    take(run)


def test_a_link_to_the_whole_folder_is_taken(run: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    run.folder.symlink_to(tmp_path / "elsewhere")
    take(run)
    assert (tmp_path / "elsewhere" / "lock").exists()


def test_a_run_inside_another_runs_folder_is_refused(run: Run, tmp_path: Path) -> None:
    run.open({})
    within = Run(Recipe(name="it/anywhere/deep", out=str(tmp_path)))
    line = refused(take, within)
    assert line.startswith("name=it/anywhere/deep: ") and f"{run.folder}" in line
    assert not within.folder.exists()
    take(run)


def test_a_folder_that_is_moved_is_noticed_and_not_written(run: Run, tmp_path: Path) -> None:
    reasons: list[str] = []
    with run.lock(reasons.append):
        run.append({"step": 1})
        run.folder.rename(tmp_path / "new")
        run.folder.mkdir()  # another run's
        with pytest.raises(FileNotFoundError):
            run.append({"step": 2})
        assert reasons == [f"the loss of the folder {run.folder}"]
        line = refused(run.check_not_moved)
        assert line.startswith(f"name=it: {run.folder} was moved or removed")
    assert [row["step"] for row in Run(Recipe(name="new", out=str(tmp_path))).rows()] == [1]
    assert not list(run.folder.iterdir())


def test_a_folder_that_is_removed_is_told(run: Run) -> None:
    with run.lock():
        (run.folder / "lock").unlink()
        run.folder.rmdir()
        assert "was moved or removed" in refused(run.finish, {})
    assert not run.folder.exists()


def test_what_a_killed_process_left_goes_when_the_lock_is_taken(run: Run) -> None:
    """Not what a report may be writing now, and nothing of another form."""
    run.folder.mkdir()
    others = [".recipe.yaml.old", ".notes.txt.4711", ".report.html.4711"]
    for name in (".recipe.yaml.4711", ".result.json.4712", *others):
        (run.folder / name).write_text("half")
    (run.folder / ".log.txt.4713").mkdir()
    with run.lock():
        assert {path.name for path in run.folder.iterdir()} == {*others, ".log.txt.4713", "lock"}
