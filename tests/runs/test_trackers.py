"""Trackers of log.trackers: what they get, that they continue, and that none ends a run."""

import importlib.util
import json
import shutil
import sqlite3
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from accelerate import tracking
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ssl_vit
from helpers.hub_runs import refused
from helpers.options import TINY, altered
from ssl_vit.runs import trackers
from ssl_vit.runs.folder import Run

OPTIONS = altered(
    TINY,
    *("optim.steps=4", "optim.warmup=1", "checkpoint.every=2", "log.every=1", "eval.every=4"),
    "log.trackers=[wandb]",
)


class Fake:
    """In the place of accelerate's class for wandb; it fails in the method that `fails` names."""

    made: ClassVar[list["Fake"]] = []
    fails = ""
    hangs = threading.Event()  # in the call that `fails` names
    hold = threading.Event()

    def __init__(self, project: str, **arguments: Any) -> None:
        self.project, self.arguments = project, arguments
        self.config: dict = {}
        self.rows: list[tuple[int, dict]] = []
        self.finished = False
        Fake.made.append(self)

    def _may_fail(self, method: str) -> None:
        if self.fails == method:
            raise RuntimeError(f"no {method}")
        if self.fails == f"hang in {method}":
            self.hangs.set()
            self.hold.wait(60)

    def start(self) -> None:
        self._may_fail("start")

    def store_init_configuration(self, values: dict) -> None:
        self.config = values

    def log(self, values: dict, step: int) -> None:
        self._may_fail("log")
        self.rows.append((step, values))

    def finish(self) -> None:
        self._may_fail("finish")
        self.finished = True


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    """Accelerate's tracker for wandb, whose package is an empty file."""
    (tmp_path / "wandb.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")  # so that what the run sets is undone
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "wandb", Fake)
    monkeypatch.setattr(Fake, "made", [])
    monkeypatch.setattr(Fake, "hangs", threading.Event())
    monkeypatch.setattr(Fake, "hold", threading.Event())
    return Fake


def trained(folder: Path, *options: str) -> Path:
    ssl_vit.pretrain([*altered(OPTIONS, *options), f"out={folder}/runs", "name=run"])
    return folder / "runs" / "run"


def made(folder: Path, names: str) -> Run:
    """A run with these trackers that has not begun."""
    words = (f"out={folder}", "name=run", f"log.trackers=[{names}]")
    return Run(ssl_vit.resolve(altered(OPTIONS, *words)))


def metrics_rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_tracker_gets_rows_and_recipe_and_continues(fake: type[Fake], tmp_path: Path) -> None:
    folder = trained(tmp_path, "data.path=null", "seed=3")
    (first,) = fake.made
    assert first.finished and first.project == "runs" and first.arguments["name"] == "run"
    assert (first.config["seed"], first.config["optim.steps"]) == (3, 4)
    rows = metrics_rows(folder)
    assert [step for step, _ in first.rows] == [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [values["train/loss"] for _, values in first.rows] == [row["loss"] for row in rows]
    assert first.rows[-1][1]["validation/loss"] == rows[-1]["validation/loss"]
    assert not (folder / "tensorboard").exists()  # log.trackers does not name it
    (folder / "result.json").unlink()
    trained(tmp_path, "seed=3")
    again = fake.made[1]
    assert again.arguments["id"] == first.arguments["id"] and again.finished
    assert again.config == {}  # stored already


NO_ANSWER = "TimeoutError('no answer for 120 s')"


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        *((method, f"RuntimeError('no {method}')") for method in ("start", "log", "finish")),
        ("hang in start", NO_ANSWER),
        ("hang in log", NO_ANSWER),
        ("hang in finish", "TimeoutError('the tracker was still busy"),
    ],
)
def test_a_tracker_that_fails_is_left_out_with_one_warning(
    fails: str,
    says: str,
    fake: type[Fake],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other one, TensorBoard, has every row all the same."""
    monkeypatch.setattr(fake, "fails", fails)
    run = made(tmp_path, "tensorboard,wandb")
    run.folder.mkdir()
    warnings: list[str] = []
    found = trackers.Trackers(run, warnings.append)
    for step in range(1, 5):
        settled(found)
        if hung(found):  # since long ago
            found.workers["wandb"].busy_since = time.monotonic() - 121
        run.append({"step": step, "loss": float(step)})
        found.on_row({"step": step, "loss": float(step)})
    settled(found)
    if fails == "hang in finish":
        monkeypatch.setattr(trackers, "END_SECONDS", 1.0)
    found.finish(4, {"top1": 0.5})
    found.end()
    fake.hold.set()
    (warning,) = warnings
    assert warning.startswith("log.trackers=[wandb] failed") and says in warning
    assert [(one.step, one.value) for one in board_of(run).Scalars("train/loss")] == [
        (step, float(step)) for step in range(1, 5)
    ]


def test_a_tracker_that_was_dropped_is_not_called_again(
    fake: type[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that waited behind a call without an answer were logged once it had returned."""
    monkeypatch.setattr(fake, "fails", "hang in log")
    run = made(tmp_path, "wandb")
    run.folder.mkdir()
    found = trackers.Trackers(run, [].append)
    for step in (1, 2, 3):
        found.on_row({"step": step, "loss": 1.0})
    settled(found)
    worker = found.workers["wandb"]
    worker.busy_since = time.monotonic() - 121
    found.on_row({"step": 4, "loss": 1.0})
    assert found.workers == {}
    fake.hold.set()
    worker.thread.join(60)
    assert not worker.thread.is_alive() and [step for step, _ in fake.made[0].rows] == [1]


def hung(found: trackers.Trackers) -> bool:
    """Return whether the thread hangs in the call that `Fake.fails` names, and is not just busy."""
    return Fake.hangs.is_set() and "wandb" in found.workers


def settled(found: trackers.Trackers) -> None:
    """Wait until each thread has done its calls, has failed, or hangs in a call."""
    until = time.monotonic() + 60
    for name, worker in found.workers.items():
        done = threading.Event()
        worker.calls.put(lambda tracker, done=done: done.set())
        while not done.wait(0.01) and worker.error is None:
            assert time.monotonic() < until
            if name == "wandb" and hung(found):
                break


def board_of(run: Run) -> EventAccumulator:
    found = EventAccumulator(str(run.tensorboard))
    found.Reload()
    return found


def test_tensorboard_has_each_row_once_after_a_resume(tmp_path: Path) -> None:
    """A run of four rows, killed, that resumes from its checkpoint of step 2."""
    run = made(tmp_path, "tensorboard")
    run.folder.mkdir()
    (run.folder / "tensorboard").mkdir()
    (run.folder / "tensorboard" / "notes.txt").write_text("mine")
    warnings: list[str] = []
    for first, last in ((1, 4), (3, 5)):
        run.truncate_metrics(first - 1)
        found = trackers.Trackers(run, warnings.append)
        for step in range(first, last + 1):
            row = {"step": step, "loss": 10.0 * first + step, "validation/loss": float("nan")}
            run.append(row)
            found.on_row(row)
        found.finish(last, {})
        # its files are ordered by the second that they were begun in
        events = max(run.tensorboard.glob("events.*"), key=lambda path: path.stat().st_mtime_ns)
        events.rename(events.with_name(f"events.out.tfevents.{first}"))
    board = board_of(run)
    assert warnings == []
    values = {one.step: one.value for one in board.Scalars("train/loss")}
    assert values == {1: 11.0, 2: 12.0, 3: 33.0, 4: 34.0, 5: 35.0}
    assert len(board.Scalars("train/loss")) == 5
    assert len(board.Scalars("validation/loss")) == 5
    assert (run.folder / "tensorboard" / "notes.txt").read_text() == "mine"


def test_no_tracker_brings_a_folder_back(tmp_path: Path) -> None:
    run = made(tmp_path, "tensorboard")
    warnings: list[str] = []
    with run.lock():
        found = trackers.Trackers(run, warnings.append)
        found.on_row({"step": 1, "loss": 1.0})
        settled(found)
        shutil.rmtree(run.folder)
        found.on_row({"step": 2, "loss": 1.0})
        found.end()
    assert not run.folder.exists() and warnings == []


def test_the_figures_of_the_test_split_are_the_last_row(fake: type[Fake], tmp_path: Path) -> None:
    """They were not looked at: a change that left them out had passed."""
    run = made(tmp_path, "wandb")
    with run.lock():
        found = trackers.Trackers(run, [].append)
        found.finish(4, {"top1": 0.5})
    assert fake.made[0].rows == [(4, {"test/top1": 0.5})] and fake.made[0].finished


def test_a_run_ends_whose_tracker_fails(
    fake: type[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "fails", "log")
    folder = trained(tmp_path)
    assert (folder / "result.json").exists()
    assert [row["step"] for row in metrics_rows(folder)] == [1, 2, 3, 4]
    assert (folder / "log.txt").read_text().count("log.trackers=[wandb] failed") == 1


def test_a_tracker_that_is_not_installed_is_an_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trackio").mkdir()  # a folder in the working directory is no library
    monkeypatch.syspath_prepend(str(tmp_path))
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "trackio" else known(name)
    )
    line = refused(trained, tmp_path, "log.trackers=[tensorboard,trackio]")
    assert line.startswith("log.trackers=trackio: ") and "pip install trackio" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.filterwarnings("default")  # what the libraries warn of
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_libraries_take_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are installed. Not trackio: its database, bound when it is imported, is the user's."""
    pytest.importorskip(name)
    for key in ("WANDB_MODE", "WANDB_CONSOLE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(key, raising=False)
    folder = trained(tmp_path, f"log.trackers=[{name}]")
    first = json.loads((folder / "trackers" / f"{name}.json").read_text())["id"]
    (folder / "result.json").unlink()
    trained(tmp_path, f"log.trackers=[{name}]")
    assert json.loads((folder / "trackers" / f"{name}.json").read_text())["id"] == first
    assert "warning" not in (folder / "log.txt").read_text()
    if name == "wandb":
        assert list((folder / "trackers" / "wandb").glob(f"offline-run-*-{first}"))
    else:
        with closing(sqlite3.connect(folder / "trackers" / "mlflow.db")) as database:
            found = database.execute(
                "SELECT step FROM metrics WHERE key = 'train/loss' AND run_uuid = ?", [first]
            ).fetchall()
        assert sorted(found) == [(1,), (2,), (3,), (4,)]
