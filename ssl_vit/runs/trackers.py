"""Write a run's rows to metrics.jsonl, log.txt, and trackers. No torch at import.

The trackers are TensorBoard, Weights & Biases, trackio and MLflow, through accelerate's tracker
classes.
"""

import json
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import methodcaller
from pathlib import Path
from typing import Any

from ..callbacks import Callback, Row
from ..errors import UserError
from ..extras import describe_missing, is_installed
from ..recipe.schema import without_private
from .files import write_atomically
from .folder import Run

CALL_SECONDS = 120.0  # most seconds for a call of a tracker
END_SECONDS = 30.0  # most seconds that a run waits at the end until trackers have finished

Call = Callable[[Any], None]


class WarningLog(Callback):
    """Callback that writes warnings to log.txt, from any process.

    A line that cannot be written, for example to a full disk, is kept and tried again before the
    next line.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.waiting: list[Callable[[], None]] = []

    def on_warning(self, text: str) -> None:
        self._write(lambda: self.run.write_log(f"warning: {text}"))

    def close(self) -> None:
        self._write(lambda: None)

    def _write(self, write: Callable[[], None]) -> None:
        """Call the functions that have failed before, then `write`. Stop at the first OSError."""
        self.waiting.append(write)
        with suppress(OSError):
            while self.waiting:
                self.waiting[0]()
                self.waiting.pop(0)


class MetricsLog(WarningLog):
    """Callback that writes notes and warnings to log.txt and rows to metrics.jsonl."""

    def on_note(self, text: str) -> None:
        self._write(lambda: self.run.write_log(text))

    def on_row(self, row: Row) -> None:
        self._write(lambda: self.run.append(row))


def tag_values(row: Row) -> dict[str, Any]:
    """Return `{name in trackers: value}` of a row, without the step.

    Training metrics get the prefix `train/`: `loss` becomes `train/loss`. A name with a slash, such
    as `validation/loss`, stays.
    """
    return {
        name if "/" in name else f"train/{name}": value
        for name, value in row.items()
        if name != "step"
    }


class Trackers(Callback):
    """Callback that passes rows to the trackers of log.trackers, on rank 0.

    Each tracker is called in a separate thread, because some libraries bind their run to a thread,
    and no tracker may hold up training. If a tracker raises an error or takes longer than
    CALL_SECONDS, the callback warns once and no longer calls this tracker.

    Args:
        run: Run in whose folder the trackers write.
        warn: Function that is called with a warning, in the thread that uses this object.
    """

    def __init__(self, run: Run, warn: Callable[[str], None]) -> None:
        self.run = run
        self.warn = warn
        names = dict.fromkeys(run.recipe.log.trackers or ())
        self.workers = {name: _Worker(name, run) for name in names}

    def on_row(self, row: Row) -> None:
        self._call(lambda tracker: tracker.log(tag_values(row), step=row["step"]))

    def finish(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the test metrics of a finished run, and end the trackers."""
        if metrics:
            tested = {f"test/{name}": value for name, value in metrics.items()}
            self._call(lambda tracker: tracker.log(dict(tested), step=step))
        self.end()

    def end(self) -> None:
        """Write the remaining rows, for at most END_SECONDS, and end the trackers.

        A tracker that takes longer counts as failed and causes a warning.
        """
        # `_call` returns at once, because it only queues the call for each tracker's thread
        self._call(methodcaller("finish"))
        deadline = time.monotonic() + END_SECONDS
        for worker in self.workers.values():
            worker.end(deadline - time.monotonic())
            if worker.thread.is_alive() and worker.error is None:
                worker.error = TimeoutError(
                    f"the tracker was still busy {END_SECONDS:.0f} s after the end of the run"
                )
        self._drop_failed()
        self.workers = {}

    def _call(self, call: Call) -> None:
        """Drop the trackers that hang or failed, and queue a call for each other tracker."""
        for worker in self.workers.values():
            began = worker.busy_since  # read once, because the thread may set 0 at any time
            if began and time.monotonic() - began > CALL_SECONDS:
                worker.error = TimeoutError(f"no answer for {CALL_SECONDS:.0f} s")
        self._drop_failed()
        for worker in self.workers.values():
            worker.calls.put(call)

    def _drop_failed(self) -> None:
        """Remove the trackers that have failed, with a warning."""
        for name, worker in list(self.workers.items()):
            if worker.error is None:
                continue
            del self.workers[name]
            worker.is_dropped = True
            worker.calls.put(None)
            if not self.run.is_moved:  # if the folder was moved, the run itself reports the move
                self.warn(f"log.trackers=[{name}] failed and is no longer used: {worker.error!r}")


class _Worker:
    """Thread that opens and calls a tracker, until the tracker fails.

    Args:
        name: Name of the tracker in log.trackers.
        run: Run in whose folder the tracker writes.
    """

    def __init__(self, name: str, run: Run) -> None:
        self.name, self.run = name, run
        self.calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.is_dropped = False  # if True, the thread makes no further call
        self.busy_since = time.monotonic()  # start of the current call; 0 between calls
        rows = run.rows()  # not read in the thread, where this would race with the next row
        self.first_step = rows[-1]["step"] + 1 if rows else 0
        self.thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self.thread.start()

    def end(self, seconds: float) -> None:
        """Wait until all calls are done, for at most `seconds`."""
        self.calls.put(None)
        self.thread.join(max(0.0, seconds))

    def _work(self) -> None:
        """Open the tracker, and make the queued calls until None is queued."""
        try:
            tracker = _open(self.name, self.run, self.first_step)
            self.busy_since = 0.0
            while (call := self.calls.get()) is not None:
                if not self.run.is_moved and not self.is_dropped:
                    self.busy_since = time.monotonic()
                    call(tracker)
                    self.busy_since = 0.0
        except BaseException as error:  # a library may raise SystemExit if it cannot log in
            self.error = error
            self.busy_since = 0.0


def check_installed(names: Sequence[str]) -> None:
    """Check that the libraries of log.trackers are installed.

    Raises:
        UserError: A library is missing; the message names the package.
    """
    for name in names:
        if not is_installed(name):
            raise UserError(f"log.trackers={name}: {describe_missing(name)}")


def _open(name: str, run: Run, first_step: int) -> Any:
    """Start a tracker of accelerate, or continue the record of a resumed run.

    Each tracking library, such as MLflow, identifies the record of a run by an identifier. The
    identifier is stored in trackers/NAME.json of the run's folder, for the case that the run is
    resumed. TensorBoard needs no identifier, because it appends to the files in its folder.

    Args:
        name: Name of the tracker in log.trackers.
        run: Run in whose folder the tracker writes.
        first_step: Step at which this process starts or resumes the run. TensorBoard drops the
            earlier values of this step and of later steps.
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    if name == "tensorboard":
        folders = {"run_name": run.tensorboard.name, "logging_dir": run.folder}
        tracker = LOGGER_TYPE_TO_CLASS[name](**folders, purge_step=first_step)
        tracker.start()
        return tracker
    run_folder = run.folder.resolve()
    folder = run_folder / "trackers"
    id_file = folder / f"{name}.json"
    folder.mkdir(exist_ok=True)
    identifier_before = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        identifier_before = str(json.loads(id_file.read_text())["id"])
    # `arguments` are for the tracker's class. If we choose the identifier and not the library, they
    # also have the key "identifier".
    arguments = OPENERS[name](folder, run.recipe.name, identifier_before)
    identifier = arguments.pop("identifier", None)
    project = run_folder.parent.name or "runs"
    tracker = LOGGER_TYPE_TO_CLASS[name](project, **arguments)
    tracker.start()
    if name == "mlflow":  # MLflow chooses the identifier
        identifier = tracker.tracker.info.run_id
    write_atomically(id_file, json.dumps({"id": identifier}) + "\n")
    # store the recipe's values once, but again in trackio, which loses the values of a resumed run
    if identifier_before is None or name == "trackio":
        tracker.store_init_configuration(without_private(run.recipe).values())
    return tracker


def _wandb(folder: Path, label: str, before: str | None) -> dict[str, Any]:
    """Return the arguments of a Weights & Biases run, offline unless WANDB_MODE is set.

    Offline, each start of the run writes a separate folder. `wandb sync` joins the folders, because
    all starts have the same id.

    Args:
        folder: Folder to write to.
        label: Name of the run.
        before: Identifier from an earlier start of the run, or None.
    """
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_CONSOLE", "off")  # wandb would replace the standard streams
    identifier = before or secrets.token_hex(4)
    return {
        "identifier": identifier,
        "id": identifier,
        "name": label,
        "dir": str(folder),
        "resume": "allow",
    }


def _trackio(folder: Path, label: str, before: str | None) -> dict[str, Any]:
    """Return the arguments of a trackio run.

    trackio writes to a local database (TRACKIO_DIR). Nothing is sent without the name of a Space.
    """
    name = before or f"{label}-{secrets.token_hex(2)}"
    return {"identifier": name, "name": name, "resume": "allow", "embed": False}


def _mlflow(folder: Path, label: str, before: str | None) -> dict[str, Any]:
    """Return the arguments of an MLflow run.

    If the user set MLFLOW_TRACKING_URI to a server, the run is recorded on the server, otherwise in
    a local database in the run's folder.

    Args:
        folder: Folder to write to.
        label: Name of the run.
        before: Identifier from an earlier start of the run, or None.
    """
    import mlflow

    address = os.environ.get("MLFLOW_TRACKING_URI")
    files_uri = None
    # An earlier run of this process may have set MLFLOW_TRACKING_URI, because set_tracking_uri
    # below sets this variable. So a database in _mlflow_databases is no choice of the user
    if address is None or address in _mlflow_databases:
        database = f"sqlite:///{folder / 'mlflow.db'}"  # MLflow 3 refuses a plain folder
        files_uri = (folder / "mlflow").as_uri()
        _mlflow_databases.add(database)
        mlflow.set_tracking_uri(database)
    return {"run_id": before, "run_name": None if before else label, "logging_dir": files_uri}


_mlflow_databases: set[str] = set()
OPENERS = {"wandb": _wandb, "trackio": _trackio, "mlflow": _mlflow}
