"""Trackers: metrics.jsonl, log.txt and TensorBoard. TensorBoard's file is rewritten from the rows
when a run resumes, so that both agree."""

import io
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..callbacks import Callback, Row
from .files import append
from .folder import Run

EVENTS = "events.out.tfevents."  # how TensorBoard knows its files


class _RetryingWriter(Callback):
    """Writes in order; what a full disk rejects is retried with the next write."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def close(self) -> None:
        self._write(lambda: None)

    def _write(self, one: Callable[[], None]) -> None:
        self.waiting.append(one)
        while self.waiting:
            try:
                self.waiting[0]()
            except OSError:
                return
            self.waiting.pop(0)


class WarningLog(_RetryingWriter):
    """Writes warnings to log.txt, from any process."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def on_warning(self, text: str) -> None:
        self._write(lambda: self.run.write_log(f"warning: {text}"))


class MetricsLog(WarningLog):
    """Writes notes and warnings to log.txt and rows to metrics.jsonl."""

    def on_note(self, text: str) -> None:
        self._write(lambda: self.run.write_log(text))

    def on_row(self, row: Row) -> None:
        self._write(lambda: self.run.append(row))


def tagged(row: Row) -> dict[str, Any]:
    """A row's values by the names that trackers show; those of training are train/NAME."""
    return {
        name if "/" in name else f"train/{name}": value
        for name, value in row.items()
        if name != "step"
    }


class _EventFile(_RetryingWriter):
    """Writes TensorBoard events to a new file of a folder.

    Not with SummaryWriter: on a full disk its thread ends with a traceback, and closing it may
    hang.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / f"{EVENTS}{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._add(file_version="brain.Event:2")

    def add_values(self, step: int, values: list[dict[str, Any]]) -> None:
        """Add one event; `values` are the arguments of TensorBoard's Summary.Value."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # a second of imports

        summary = Summary(value=[Summary.Value(**value) for value in values])
        self._add(step=step, summary=summary)

    def _add(self, **event: Any) -> None:
        """Write one event, whole."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        made = io.BytesIO()
        RecordWriter(made).write(Event(wall_time=time.time(), **event).SerializeToString())

        def write() -> None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append(self.path, made.getvalue())

        self._write(write)


class TensorBoard(_EventFile):
    """Writes rows as TensorBoard events; those of an earlier start are written anew from `rows`."""

    def __init__(self, folder: Path, rows: list[Row]) -> None:
        for before in folder.glob(f"{EVENTS}*"):
            with suppress(OSError):
                before.unlink()
        super().__init__(folder)
        for row in rows:
            self.on_row(row)

    def on_row(self, row: Row) -> None:
        values = [{"tag": tag, "simple_value": value} for tag, value in tagged(row).items()]
        self.add_values(row["step"], values)


def add_figures(folder: Path, step: int, figures: list[Path]) -> None:
    """Show PNG figures in TensorBoard, each under its file's name."""
    from PIL import Image  # not needed to start

    events = _EventFile(folder)
    for path in figures:
        with Image.open(path) as image:
            size = {"width": image.width, "height": image.height, "colorspace": 3}
        figure = size | {"encoded_image_string": path.read_bytes()}
        events.add_values(step, [{"tag": f"figures/{path.stem}", "image": figure}])
    events.close()
