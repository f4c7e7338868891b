"""Where rows go: metrics.jsonl and log.txt, and TensorBoard, which replays the rows when a run resumes so that both agree."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .engine import Listener, Row
from .runs import Run


class Notes(Listener):
    """Warnings to log.txt, from any process. What a full disk does not take is written as soon as it does."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.waiting: list[Callable[[], None]] = []

    def on_warning(self, text: str) -> None:
        self._write(lambda: self.run.note(f"warning: {text}"))

    def close(self) -> None:
        self._write(lambda: None)

    def _write(self, line: Callable[[], None]) -> None:
        self.waiting.append(line)
        while self.waiting:
            try:
                self.waiting[0]()
            except OSError:
                return
            self.waiting.pop(0)


class Record(Notes):
    """Rows to metrics.jsonl too."""

    def on_row(self, row: Row) -> None:
        self._write(lambda: self.run.append(row))


class TensorBoard(Listener):
    def __init__(self, folder: Path, rows: list[Row]) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a second of imports

        shutil.rmtree(folder, ignore_errors=True)
        self.writer: Any = SummaryWriter(str(folder))
        for row in rows:
            self.on_row(row)

    def on_row(self, row: Row) -> None:
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name if "/" in name else f"train/{name}", value, row["step"])

    def close(self) -> None:
        self.writer.close()
