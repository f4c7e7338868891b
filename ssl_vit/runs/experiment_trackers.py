"""Weights & Biases, trackio and MLflow through accelerate's tracker classes. No torch at import.

Each tracker lives in a thread of its own: some libraries bind their run to a thread, and one that
raises or hangs must not hold up training. A failed tracker raises where its callback is notified,
which drops it with one warning (callbacks.Callbacks). Rank 0 alone has trackers.
"""

import importlib.util
import json
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..callbacks import Callback, Row
from ..errors import UserError
from ..recipe.operation import TRACKERS
from ..recipe.schema import without_private
from .files import write_atomically
from .folder import Run
from .trackers import tagged

START = 60.0  # seconds that training waits for a tracker to start
PATIENCE = 120.0  # seconds that one call may take
END = 30.0  # seconds that a run waits for what is still to be written

Call = Callable[[Any], None]


@dataclass(eq=False, repr=False)
class ExperimentTracker(Callback):
    """Passes rows to a tracker in its thread.

    Args:
        name: in log.trackers.
        open_tracker: starts the library's run; called in the thread.
        log_figure: (tracker, step, path of a PNG file).
    """

    name: str
    open_tracker: Callable[[], Any]
    log_figure: Callable[..., None]
    calls: queue.SimpleQueue[Call | None] = field(init=False, default_factory=queue.SimpleQueue)
    error: BaseException | None = field(init=False, default=None)
    dropped: bool = field(init=False, default=False)
    busy_since: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.started = threading.Event()
        self.thread = threading.Thread(target=self._work, name=f"tracker {self.name}", daemon=True)

    def __str__(self) -> str:
        return f"log.trackers=[{self.name}]"

    def start(self) -> None:
        """Start the tracker; the first row reports that it could not."""
        self.thread.start()
        if not self.started.wait(START):
            self.error = TimeoutError(f"not started after {START:.0f} s")

    def on_row(self, row: Row) -> None:
        values = tagged(row)
        self._add(lambda tracker: tracker.log(values, step=row["step"]))

    def finish(self, step: int, metrics: Mapping[str, float], figures: Sequence[Path]) -> None:
        """Log the test metrics and figures of a finished run; raises what the tracker raised."""
        if metrics:
            values = {f"test/{name}": value for name, value in metrics.items()}
            self._add(lambda tracker: tracker.log(values, step=step))
        for path in figures:
            self._add(partial(self.log_figure, step=step, path=path))

    def end(self) -> None:
        """Write what is left, for END seconds at most; raises what the tracker raised."""
        if self.dropped or not self.thread.is_alive():
            self._check()
            return
        self.calls.put(None)
        self.thread.join(END)
        if self.thread.is_alive() and self.error is None:
            self.error = TimeoutError(f"not done {END:.0f} s after the run's end")
        self._check()

    def _add(self, call: Call) -> None:
        since = self.busy_since
        if self.error is None and since is not None and time.monotonic() - since > PATIENCE:
            self.error = TimeoutError(f"no answer for {PATIENCE:.0f} s")
        self._check()
        self.calls.put(call)

    def _check(self) -> None:
        """Raise the tracker's error, once."""
        if self.error is not None and not self.dropped:
            self.dropped = True
            raise self.error if isinstance(self.error, Exception) else RuntimeError(self.error)

    def _work(self) -> None:
        """The thread: every call of the library is made here."""
        try:
            tracker = self.open_tracker()
            self.started.set()
            while (call := self.calls.get()) is not None:
                self.busy_since = time.monotonic()
                call(tracker)
                self.busy_since = None
            tracker.finish()
        except BaseException as error:  # a library may exit the process that cannot log in
            self.error = error
        finally:
            self.started.set()


def check_installed(names: Sequence[str]) -> None:
    """Check that the libraries of log.trackers are there.

    Raises:
        UserError: one is not; it names the package.
    """
    for name in names:
        found = importlib.util.find_spec(name)
        # a folder of that name in the working directory is no library
        if found is None or found.origin is None:
            raise UserError(
                f"log.trackers={name}: expected an installed library; pip install {TRACKERS[name]}"
            )


def start_all(run: Run) -> list[ExperimentTracker]:
    """Start the trackers of a run's recipe; TensorBoard is written by trackers.TensorBoard."""
    names = [name for name in dict.fromkeys(run.recipe.log.trackers or ()) if name in OPENERS]
    found = [
        ExperimentTracker(name, _opener(name, run), FIGURES.get(name, _log_image)) for name in names
    ]
    for tracker in found:
        tracker.start()
    return found


def finish_all(
    trackers: Sequence[ExperimentTracker],
    step: int,
    metrics: Mapping[str, float],
    figures: Sequence[Path],
    warn: Callable[[str], None],
) -> None:
    """Log a finished run's test metrics and figures, and end the trackers."""
    for tracker in trackers:
        _guarded(tracker, lambda one: one.finish(step, metrics, figures), warn)
    end_all(trackers, warn)


def end_all(trackers: Sequence[ExperimentTracker], warn: Callable[[str], None]) -> None:
    """End the trackers that have not ended."""
    for tracker in trackers:
        _guarded(tracker, ExperimentTracker.end, warn)


def _guarded(
    tracker: ExperimentTracker,
    do: Callable[[ExperimentTracker], None],
    warn: Callable[[str], None],
) -> None:
    if tracker.dropped:
        return
    try:
        do(tracker)
    except Exception as error:
        warn(f"{tracker} failed and is left out from here on: {error!r}")


def _opener(name: str, run: Run) -> Callable[[], Any]:
    """A function that starts or continues the run of a tracker."""
    folder = run.folder.resolve() / "trackers"
    known = folder / f"{name}.json"
    project = folder.parent.parent.name or "runs"
    label = run.recipe.name
    config = without_private(run.recipe).values()

    def open_tracker() -> Any:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS  # torch

        folder.mkdir(exist_ok=True)
        before = None
        with suppress(OSError, ValueError, KeyError, TypeError):
            before = str(json.loads(known.read_text())["id"])
        arguments = OPENERS[name](folder, label, before)
        identifier = arguments.pop("identifier", None)
        tracker = LOGGER_TYPE_TO_CLASS[name](project, **arguments)
        tracker.start()
        if name == "mlflow":
            identifier = tracker.tracker.info.run_id
        write_atomically(known, json.dumps({"id": identifier}) + "\n")
        if before is None or name == "trackio":  # it replaces a continued run's configuration
            tracker.store_init_configuration(config)
        return tracker

    return open_tracker


def _wandb(folder: Path, label: str, before: str | None) -> dict[str, Any]:
    """Offline unless WANDB_MODE says otherwise; `wandb sync` joins parts with one id."""
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_CONSOLE", "off")  # it would replace the standard streams
    identifier = before or secrets.token_hex(4)
    return {
        "identifier": identifier,
        "id": identifier,
        "name": label,
        "dir": str(folder),
        "resume": "allow",
    }


def _trackio(folder: Path, label: str, before: str | None) -> dict[str, Any]:
    """Its local database (TRACKIO_DIR) has all runs; nothing is sent without a Space's name."""
    name = before or f"{label}-{secrets.token_hex(2)}"
    return {"identifier": name, "name": name, "resume": "allow", "embed": False}


def _mlflow(folder: Path, label: str, before: str | None) -> dict[str, Any]:
    """A local database unless MLFLOW_TRACKING_URI names a server."""
    import mlflow

    # set_tracking_uri sets the variable too, in which a run before this one left its own
    given = os.environ.get("MLFLOW_TRACKING_URI")
    files = None
    if given is None or given in _mlflow_places:
        place = f"sqlite:///{folder / 'mlflow.db'}"  # MLflow 3 refuses a plain folder
        files = (folder / "mlflow").as_uri()
        _mlflow_places.add(place)
        mlflow.set_tracking_uri(place)
    return {"run_id": before, "run_name": None if before else label, "logging_dir": files}


_mlflow_places: set[str] = set()
OPENERS = {"wandb": _wandb, "trackio": _trackio, "mlflow": _mlflow}


def _log_image(tracker: Any, step: int, path: Path) -> None:
    from PIL import Image

    with Image.open(path) as image:
        tracker.log_images({f"figures/{path.stem}": [image]}, step=step)


def _log_trackio_image(tracker: Any, step: int, path: Path) -> None:
    """accelerate's class has no images."""
    import trackio

    tracker.log({f"figures/{path.stem}": trackio.Image(str(path))}, step=step)


def _log_artifact(tracker: Any, step: int, path: Path) -> None:
    tracker.log_artifact(str(path), "figures")


FIGURES = {"trackio": _log_trackio_image, "mlflow": _log_artifact}
