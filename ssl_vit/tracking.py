"""TensorBoard, as a listener that replays metrics.jsonl when a run resumes, so that both always say the same."""

import shutil
from pathlib import Path
from typing import Any

from .engine import Row


class TensorBoard:
    def __init__(self, folder: Path, rows: list[Row]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(folder, ignore_errors=True)
        self.writer: Any = SummaryWriter(str(folder))
        for row in rows:
            self.on_row(row)

    def on_step(self, step: int) -> None:
        pass

    def on_row(self, row: Row) -> None:
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name if "/" in name else f"train/{name}", value, row["step"])

    def close(self) -> None:
        self.writer.close()
