"""The run folder: one recipe, one set of images and one writer to a folder, and no text half
written."""

import copy
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import filelock
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.disk import full_disk
from helpers.options import FREE
from ssl_vit.errors import UserError
from ssl_vit.recipe.operation import Compute
from ssl_vit.recipe.records.run import Measured, Result
from ssl_vit.recipe.schema import Data, Model, Optim, Recipe, all_keys
from ssl_vit.runs import environment, files
from ssl_vit.runs import lock as locking
from ssl_vit.runs.folder import Run
from ssl_vit.runs.identity import recipe_hash

FACTS = {"data": {"train": "aa", "validation": "bb"}, "device": "cpu"}


@pytest.mark.parametrize(
    ("bound", "variables", "share"),
    [
        (64, {}, 64),
        (64, {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"}, 8),
        (4, {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "8"}, 1),
        # srun: 8 processes of 6 cores each, bound to these, or to none
        (6, {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16", "SLURM_NTASKS": "16"}, 6),
        (64, {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16", "SLURM_NTASKS": "16"}, 6),
        # a launcher inside of SLURM's one task of a machine, of two
        (64, {"LOCAL_WORLD_SIZE": "3", "WORLD_SIZE": "6", "SLURM_NTASKS": "2"}, 2),
        (64, {"SLURM_NTASKS": "1"}, 6),
        (2, {"SLURM_NTASKS": "1"}, 2),
    ],
)
def test_cores_of_one_process_of_several(bound, variables, share, monkeypatch):
    """By hand; SLURM's job has 6 cores a task."""
    names = ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    of_job = {"SLURM_CPUS_PER_TASK": "6"} if "SLURM_NTASKS" in variables else {}
    for name, value in (variables | of_job).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(bound)), raising=False)
    assert environment.process_cores() == share


def test_cores_where_the_system_binds_no_process(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert environment.cores() == 6


def recipe(out, **words):
    return Recipe(name="it", out=str(out), **words)


def another(key, value):
    """Another value of the key's type."""
    known = all_keys()[key]
    if bool in known.types:
        return not value
    if dict in known.types:
        return {**value, "layers": [1]}
    if known.choices is not None:
        found = next(one for one in known.choices if value not in (one, [one]))
        return [found] if known.is_list else found
    if known.is_list:
        return [x / 2 for x in value[:-1]] if value else [7, 8]
    return f"{value}x" if str in known.types else (value or 0) + 1


def the_error(act, *words):
    """The text of the UserError that a call gives, checked to be one line."""
    with pytest.raises(UserError) as caught:
        act(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def take(run):
    with run.lock():
        pass


HOLD = """
import os, sys, time
from pathlib import Path
from ssl_vit.recipe.schema import Recipe
from ssl_vit.runs import folder, lock
with folder.Run(Recipe(name="it", out=sys.argv[1])).lock():
    read, write = os.pipe()
    child = os.fork() if sys.argv[2] == "with a child" else 1
    if not child:
        os.write(write, b"x")  # it has done what follows a fork
        time.sleep(60)
        os._exit(0)
    if child != 1:
        os.read(read, 1)
    if sys.argv[2] == "which reads":
        assert lock.is_held(Path(sys.argv[1]) / "it")
        (Path(sys.argv[1]) / "it" / "lock").read_text()
    print(child, flush=True)
    sys.stdin.read()
"""
TAKE = """
import sys
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Recipe
from ssl_vit.runs import folder
try:
    with folder.Run(Recipe(name="it", out=sys.argv[1])).lock():
        print("taken")
except UserError as error:
    print(error)
"""


def variables():
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def holder(out, how=""):
    """(A process that holds the lock of the run `it` until its input closes, the number of its own
    child)."""
    words = [sys.executable, "-c", HOLD, str(out), how]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables()
    ) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def taken_by_another_process(out):
    """What another process says that tries to take the lock of the run `it`."""
    words = [sys.executable, "-c", TAKE, str(out)]
    done = subprocess.run(words, capture_output=True, text=True, env=variables(), check=True)
    return done.stdout


def test_the_hash_tells_what_is_computed_and_nothing_else():
    plain = Recipe().values()
    assert set(all_keys()) > FREE
    for key, value in plain.items():
        changed = Recipe()
        group, _, name = key.rpartition(".")
        setattr(changed.value(group) if group else changed, name, another(key, value))
        assert (recipe_hash(changed) == recipe_hash(Recipe())) == (key in FREE), key


def test_the_hash_is_the_same_tomorrow():
    code = (
        "from ssl_vit.recipe.schema import Recipe; from ssl_vit.runs.identity import "
        "recipe_hash; print(recipe_hash(Recipe()))"
    )
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"}
    output = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == recipe_hash(Recipe())


def test_a_run_that_is_not_there_yet_is_taken_as_said(tmp_path):
    requested = recipe(tmp_path, resume=False)
    assert Run(requested).reconcile() is requested and requested.compute.precision == "auto"
    assert list(tmp_path.iterdir()) == []


numbers = st.floats(1e-12, 1e3)


@settings(max_examples=25)
@given(
    lr=numbers,
    decay=numbers | st.just(0.0),
    clip=st.none() | numbers,
    betas=st.tuples(*[st.floats(0, 0.999999)] * 2).map(list),
    validation=st.none()
    | st.floats(1e-6, 0.999)
    | st.sampled_from(["validation", "test-A", "prüfung", "val 2"]),
    seed=st.integers(0, 2**62),
)
def test_a_recipe_finds_its_own_folder_again(
    tmp_path_factory, lr, decay, clip, betas, validation, seed
):
    out = tmp_path_factory.mktemp("out")
    requested = recipe(
        out, seed=seed, data=Data(validation=validation), compute=Compute(precision="float32")
    )
    requested.optim = Optim(lr=lr, weight_decay=decay, clip=clip, betas=betas)
    Run(copy.deepcopy(requested)).open(FACTS)
    again = Run(copy.deepcopy(requested)).reconcile()
    assert again == requested and recipe_hash(again) == recipe_hash(requested)


def test_a_folder_of_another_recipe_is_refused_and_every_difference_named(tmp_path):
    Run(recipe(tmp_path, compute=Compute(precision="float32"))).open(FACTS)
    other = recipe(
        tmp_path, seed=3, optim=Optim(lr=0.5), compute=Compute(precision="float32", workers=5)
    )
    text = the_error(Run(other).reconcile)
    assert text.startswith(f"name=it: {tmp_path}/it holds another recipe: ")
    assert "seed (0 there, 3 here)" in text and "optim.lr (0.0002 there, 0.5 here)" in text
    assert text.count(" here)") == 2


def test_a_folder_is_not_gone_on_with_where_that_is_forbidden(tmp_path):
    Run(recipe(tmp_path)).open(FACTS)
    assert the_error(Run(recipe(tmp_path, resume=False)).reconcile).startswith("resume=false: ")


@pytest.mark.parametrize("settled", ["float32", "bfloat16"])
def test_an_automatic_precision_is_the_folders(tmp_path, settled):
    Run(recipe(tmp_path, compute=Compute(precision=settled))).open(FACTS)
    assert Run(recipe(tmp_path)).reconcile().compute.precision == settled
    other = "bfloat16" if settled == "float32" else "float32"
    text = the_error(Run(recipe(tmp_path, compute=Compute(precision=other))).reconcile)
    assert f"compute.precision ({settled} there, {other} here)" in text


def test_images_may_move(tmp_path):
    for place in ("old", "new"):
        (tmp_path / place).mkdir()
    Run(recipe(tmp_path, data=Data(name="mine", path=str(tmp_path / "old")))).open(FACTS)
    (tmp_path / "old").rmdir()
    moved = Run(recipe(tmp_path, data=Data(name="mine", path=str(tmp_path / "new")))).reconcile()
    assert moved.data.path == str(tmp_path / "new")


def test_other_images_are_refused_and_the_same_ones_are_not(tmp_path):
    Run(recipe(tmp_path)).open(FACTS)
    before = {path: path.read_text() for path in (tmp_path / "it").glob("*.*")}
    text = the_error(
        Run(recipe(tmp_path)).open, FACTS | {"data": {"train": "aa", "validation": "cc"}}
    )
    assert text.startswith("data=shapes: ") and "images" in text and str(tmp_path / "it") in text
    assert {path: path.read_text() for path in (tmp_path / "it").glob("*.*")} == before
    Run(recipe(tmp_path)).open(FACTS | {"device": "another"})
    assert json.loads((tmp_path / "it" / "environment.json").read_text())["device"] == "another"


def test_what_is_opened_says_the_recipe(tmp_path):
    run = Run(recipe(tmp_path, model=Model(name="vit_x", width=99)))
    run.open(FACTS)
    text = (run.folder / "recipe.yaml").read_text()
    assert "name: vit_x" in text and "width: 99" in text
    recorded = json.loads((run.folder / "environment.json").read_text())
    assert FACTS.items() <= recorded.items() and recorded["recipe"] == recipe_hash(run.recipe)


@pytest.mark.parametrize("act", [take, lambda run: run.open(FACTS)])
@pytest.mark.parametrize("place", ["", "it"])
def test_a_file_where_the_folder_should_be_is_said(tmp_path, act, place):
    out = tmp_path / "out"
    out.mkdir() if place else out.write_text("a file")
    if place:
        (out / place).write_text("a file")
    text = the_error(act, Run(recipe(out)))
    assert text.startswith(f"out={out}: {out}/it cannot be written: ")


def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path):
    run = Run(recipe(tmp_path))
    with holder(tmp_path) as (process, _):
        text = the_error(take, run)
        assert (
            text.startswith("name=it: ")
            and f"process {process.pid} on {socket.gethostname()}" in text
        )
        assert str(process.pid) in the_error(take, run)  # the first refusal took nothing away
        process.stdin.close()
        assert process.wait() == 0
    take(run)


@pytest.mark.parametrize("child", ["", "with a child"])
def test_a_killed_writer_holds_nothing(tmp_path, child):
    """Not even through a process that it forked, as a loader's worker is, and that lives on."""
    with holder(tmp_path, child) as (process, number):
        the_error(take, Run(recipe(tmp_path)))
        process.kill()
        process.wait()
        try:
            if child:
                os.kill(number, 0)  # it is there
            with Run(recipe(tmp_path)).lock():
                assert f'"pid": {os.getpid()}' in (tmp_path / "it" / "lock").read_text()
        finally:
            if child:
                os.kill(number, signal.SIGKILL)


def test_one_writer_also_after_the_folder_was_read(tmp_path):
    """As list_runs and report do in the process that trains: a POSIX lock goes when any descriptor
    of its file is closed."""
    with holder(tmp_path, "which reads"):
        assert "is being written by process" in the_error(take, Run(recipe(tmp_path)))


def test_a_second_thread_is_refused_and_the_first_keeps_its_lock(tmp_path):
    said = []
    with Run(recipe(tmp_path)).lock():
        thread = threading.Thread(
            target=lambda: said.append(the_error(take, Run(recipe(tmp_path))))
        )
        thread.start()
        thread.join()
        said.append(the_error(take, Run(recipe(tmp_path))))  # nor the same thread twice
        assert f"process {os.getpid()} on" in taken_by_another_process(tmp_path)
    assert len(said) == 2 and all("is being written by this process; wait" in one for one in said)


def test_of_two_that_start_at_once_one_says_who_writes(tmp_path):
    """The other may not have written its line yet, and what is there may be a killed one's."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = tmp_path / "it"
    folder.mkdir()
    stale = json.dumps({"host": socket.gethostname(), "pid": ended.pid})
    with filelock.FileLock(folder / "lock"):
        (folder / "lock").write_text(stale)
        line = {"host": "there", "pid": 7, "since": "2026-11-27 06:00:00"}
        later = threading.Timer(0.05, (folder / "lock").write_text, [json.dumps(line)])
        later.start()
        text = the_error(take, Run(recipe(tmp_path)))
        assert "is being written by process 7 on there since 2026-11-27 06:00:00; wait" in text
        (folder / "lock").write_text(stale)
        assert "by another process; wait" in the_error(take, Run(recipe(tmp_path)))
    take(Run(recipe(tmp_path)))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, number):
    def flock(*values):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    text = the_error(take, Run(recipe(tmp_path)))
    assert text.startswith(f"out={tmp_path}: {tmp_path}/it/lock: {os.strerror(number)}; ")
    assert "a file system that has locks" in text


@pytest.mark.parametrize(
    ("line", "held"),
    [
        ({"host": "elsewhere", "pid": 41}, "process 41 on elsewhere"),
        ({"host": socket.gethostname(), "pid": os.getppid()}, f"process {os.getppid()} on "),
        ({"host": socket.gethostname(), "pid": os.getpid()}, None),  # one of the same number
        ({"host": socket.gethostname(), "pid": 2**40}, None),
        ({"host": socket.gethostname(), "pid": 0}, None),
        ({"host": socket.gethostname(), "pid": "x"}, None),
        ([], None),
    ],
)
def test_who_writes_is_read_from_the_file_and_a_free_folder_is_taken(tmp_path, line, held):
    """Whatever the line says: only the lock itself keeps a writer out."""
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "lock").write_text(json.dumps(line))
    found = locking.writer(tmp_path / "it")
    assert found is None if held is None else found.startswith(held)
    with Run(recipe(tmp_path)).lock():
        assert locking.writer(tmp_path / "it") == "this process"
    assert not locking.is_held(tmp_path / "it")


def test_a_failing_body_lets_go(tmp_path):
    run = Run(recipe(tmp_path))
    with pytest.raises(KeyError), run.lock():
        raise KeyError
    assert (run.folder / "lock").read_text() == ""
    take(run)


def test_rows_come_back_as_written_without_a_torn_last_one(tmp_path):
    run = Run(recipe(tmp_path))
    assert run.rows() == []
    run.folder.mkdir()
    rows = [{"step": step, "loss": 1 / step} for step in (10, 20, 30)]
    for row in rows:
        run.append(row)
    whole = run.metrics.read_bytes()
    assert run.rows() == rows
    two = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for cut in range(two, len(whole) - 1):
        run.metrics.write_bytes(whole[:cut])
        assert run.rows() == rows[:2], whole[two:cut]


def test_cutting_back_keeps_the_rows_up_to_the_step(tmp_path):
    run = Run(recipe(tmp_path))
    run.folder.mkdir()
    rows = [{"step": step, "loss": 0.1 * step} for step in (10, 20, 30)]
    for row in rows:
        run.append(row)
    with run.metrics.open("a") as file:
        file.write('{"step": 4')
    assert run.truncate_metrics(20) == run.rows() == rows[:2]
    run.append({"step": 21})
    assert run.rows() == [*rows[:2], {"step": 21}]
    assert run.truncate_metrics(0) == [] == run.rows()


def test_there_is_nothing_to_cut_back_in_a_new_run(tmp_path):
    run = Run(recipe(tmp_path))
    run.folder.mkdir()
    assert run.truncate_metrics(0) == []


def test_a_result_is_there_once_the_run_is_finished(tmp_path):
    run = Run(recipe(tmp_path))
    assert run.result() is None
    run.folder.mkdir()
    loss = Measured(value=0.1, split="validation")
    result = Result(steps=5, seconds=1.5, metrics={"loss": loss}, finished="then")
    run.finish(result)
    assert run.result() == result
    assert result["metrics"]["loss"]["value"] == 0.1  # as scripts of users read it
    with pytest.raises(KeyError):
        result["mertics"]


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "3", '{"steps": 5}', "\xff"])
def test_a_damaged_result_is_named(tmp_path, text):
    run = Run(recipe(tmp_path))
    run.folder.mkdir()
    (run.folder / "result.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"^[^\n]*result\.json is damaged"):
        run.result()


@pytest.mark.parametrize("text", ["garbage", "[]", "3", pytest.param("[" * 9999, id="deep")])
def test_a_lock_with_other_text_is_taken(tmp_path, text):
    run = Run(recipe(tmp_path))
    run.folder.mkdir()
    (run.folder / "lock").write_text(text)
    with run.lock():
        assert "pid" in (run.folder / "lock").read_text()


@pytest.mark.parametrize("line", ['{"a": 1}', "3", "\xff", '{"step": "x"}'])
def test_a_line_that_is_no_row_is_passed_over(tmp_path, line):
    run = Run(recipe(tmp_path))
    run.folder.mkdir()
    text = f'{{"step": 1}}\n{line}\n{{"step": 2}}\n'.encode("latin-1")
    run.metrics.write_bytes(text)
    assert run.truncate_metrics(2) == run.rows() == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_text(tmp_path, monkeypatch, fails):
    def fail(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "text"
    files.write_atomically(path, "old\n")
    monkeypatch.setattr(*((files.os, "fsync") if fails == "fsync" else (Path, "replace")), fail)
    with pytest.raises(OSError, match="No space"):
        files.write_atomically(path, "new\n")
    assert path.read_text() == "old\n" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_text_and_nothing_beside_it(tmp_path):
    path = tmp_path / "text"
    files.write_atomically(path, "old\n")
    with full_disk(), pytest.raises(OSError, match="too large") as caught:
        files.write_atomically(path, "new\n" * 1000)
    assert caught.value.filename == str(path)
    with full_disk(), pytest.raises(OSError, match="too large"), files.replacing(path) as beside:
        beside.mkdir()
        (beside / "part").write_text("new\n" * 1000)
    assert path.read_text() == "old\n" and list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_goes_when_the_lock_is_taken(tmp_path):
    """Not what a report may be writing now, and nothing of another form."""
    folder = tmp_path / "it"
    folder.mkdir()
    left = [folder / ".recipe.yaml.4711", folder / ".result.json.4712"]
    others = [".recipe.yaml.old", ".notes.txt.4711", ".report.html.4711"]
    for path in (*left, *(folder / name for name in others)):
        path.write_text("half")
    (folder / ".log.txt.4713").mkdir()
    with Run(recipe(tmp_path)).lock():
        assert {path.name for path in folder.iterdir()} == {*others, ".log.txt.4713", "lock"}


@settings(max_examples=20)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")))
def test_a_text_is_written_whole(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("text") / "text"
    files.write_atomically(path, "something longer that was there before " * 3)
    files.write_atomically(path, text)
    assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_notes_are_dated_lines_that_add_up(tmp_path):
    run = Run(recipe(tmp_path))
    run.folder.mkdir()
    run.write_log("one")
    run.write_log("two")
    lines = run.log.read_text().splitlines()
    assert [line[20:] for line in lines] == ["one", "two"]
    assert all(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S") for line in lines)


def test_the_environment_names_versions_and_the_revision():
    facts = environment.environment({"threads": 2})
    assert facts["threads"] == 2 and facts["packages"]["numpy"] == np.__version__
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=Path(environment.__file__).parent,
        capture_output=True,
        text=True,
    )
    assert (facts["revision"] or "").rstrip("+") == head.stdout.strip()
    assert json.loads(json.dumps(facts)) == facts


def test_a_link_to_the_whole_folder_is_taken(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "it").symlink_to(tmp_path / "elsewhere")
    take(Run(recipe(tmp_path)))
    assert (tmp_path / "elsewhere" / "lock").exists()


@pytest.mark.parametrize("inner", ["tensorboard", "anywhere/deep"])
def test_a_run_inside_another_runs_folder_is_refused(tmp_path, inner):
    outer = Run(recipe(tmp_path))
    outer.open(FACTS)
    within = Run(Recipe(name=f"it/{inner}", out=str(tmp_path)))
    text = the_error(take, within)
    assert (
        text.startswith(f"name=it/{inner}: ")
        and f"lies inside another run's folder, {tmp_path}/it;" in text
    )
    assert not within.folder.exists() or not list(within.folder.iterdir())
    take(outer)


def test_a_folder_that_is_moved_is_noticed_and_not_written(tmp_path):
    run, reasons = Run(recipe(tmp_path)), []
    with run.lock(reasons.append):
        run.append({"step": 1})
        run.folder.rename(tmp_path / "new")
        (tmp_path / "it").mkdir()  # another run's
        with pytest.raises(FileNotFoundError):
            run.append({"step": 2})
        assert reasons == [f"the loss of its folder {tmp_path}/it"]
        text = f"name=it: {tmp_path}/it was moved or removed while the run wrote it; "
        assert the_error(run.check_not_moved).startswith(text)
    assert [row["step"] for row in Run(Recipe(name="new", out=str(tmp_path))).rows()] == [1]
    assert not list((tmp_path / "it").iterdir())


def test_a_folder_that_is_removed_is_told(tmp_path):
    run = Run(recipe(tmp_path))
    with run.lock():
        (run.folder / "lock").unlink()
        run.folder.rmdir()
        text = f"name=it: {tmp_path}/it was moved or removed while the run wrote it; "
        assert the_error(lambda: run.finish({})).startswith(text)
    assert not run.folder.exists()
