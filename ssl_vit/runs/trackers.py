"""Trackers: metrics.jsonl, log.txt and TensorBoard. TensorBoard's file is rewritten from the rows
when a run resumes, so that both agree."""

import io
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..callbacks import Callback, Row
from .files import append
from .folder import Run


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


class TensorBoard(_RetryingWriter):
    """Writes rows as TensorBoard events.

    Not with SummaryWriter: on a full disk its thread ends with a traceback, and closing it may
    hang.
    """

    def __init__(self, folder: Path, rows: list[Row]) -> None:
        super().__init__()
        shutil.rmtree(folder, ignore_errors=True)
        self.path = (
            folder / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        )
        self._add(file_version="brain.Event:2")
        for row in rows:
            self.on_row(row)

    def on_row(self, row: Row) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary  # a second of imports

        tags = {name: name if "/" in name else f"train/{name}" for name in row if name != "step"}
        values = [Summary.Value(tag=tag, simple_value=row[name]) for name, tag in tags.items()]
        self._add(step=row["step"], summary=Summary(value=values))

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
