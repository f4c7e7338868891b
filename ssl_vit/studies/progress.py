"""What a running study shows: a line for each running task and the total; plain lines where the
output is no terminal."""

import json
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..config.parsing import NUMBER, fits, flatten, load_yaml
from ..errors import UserError
from ..formatting import duration, format_metrics

QUIET = 15.0  # seconds between plain lines
REFRESH = 0.5  # and between two looks at the runs, on a terminal
TAIL = 8192  # bytes of metrics.jsonl that are read


def last_rows(path: Path) -> dict[str, Any]:
    """The newest value of each name near the end of metrics.jsonl, a line that is not whole left
    out; empty without rows."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return {}
    newest: dict[str, Any] = {}
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        newest |= row if fits(row, {str: NUMBER}) else {}
    return newest


@dataclass
class Running:
    """How far a run is, read from its folder."""

    folder: Path
    begun: float = field(default_factory=time.monotonic)
    steps: int = 0
    first: tuple[int, float] | None = None  # the first step seen, and when

    def cells(self) -> tuple[str, str, str, str]:
        """Name, step, loss and accuracy, time left."""
        row = last_rows(self.folder / "metrics.jsonl")
        step = row.get("step")
        if not isinstance(step, int):
            return self.folder.name, "", f"since {duration(time.monotonic() - self.begun)}", ""
        of = f"/{self._steps()}" if self._steps() else ""
        return self.folder.name, f"step {step}{of}", _told(row), self._left(step)

    def _steps(self) -> int:
        path = self.folder / "recipe.yaml"
        if not self.steps and path.exists():
            with suppress(UserError):
                steps = flatten(load_yaml(path)).get("optim.steps", 0)
                self.steps = int(steps) if fits(steps, int) else 0
        return self.steps

    def _left(self, step: int) -> str:
        """From the pace since the first step seen here, which a resumed run may step back
        behind."""
        now = time.monotonic()
        if self.first is None or step < self.first[0]:
            self.first = step, now
        taken = step - self.first[0]
        return (
            f"left {duration((now - self.first[1]) / taken * max(0, self.steps - step))}"
            if taken and self.steps
            else ""
        )


def _told(row: dict[str, Any]) -> str:
    """The loss and one accuracy: of held-out images if there is one, of masked patches before
    others."""
    accuracies = (
        "validation/accuracy_masked",
        "validation/accuracy",
        "accuracy_masked",
        "accuracy",
    )
    names = ["loss", *[name for name in accuracies if name in row][:1]]
    return format_metrics(
        {name: row[name] for name in names if isinstance(row.get(name), int | float)}
    )


class ProgressScreen:
    """Where a study speaks; use it as a context."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stdout)
        self.live = (
            Live(console=self.console, auto_refresh=False, transient=True)
            if self.console.is_terminal
            else None
        )
        self.shown = time.monotonic()

    def __enter__(self) -> "ProgressScreen":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, running: list[Any], done: int, total: int, failed: int) -> None:
        """The running tasks and the total, where the last time is long enough ago."""
        if time.monotonic() - self.shown < (REFRESH if self.live else QUIET):
            return
        self.shown = time.monotonic()
        cells = [child.cells() for child in running]
        sum_up = f"{done} of {total} finished" + (
            f", {failed} failed or left out" if failed else ""
        )
        if self.live is None:
            for line in cells:
                self.say("running   " + "  ".join(cell for cell in line if cell))
            self.say(sum_up)
            return
        table = Table.grid(padding=(0, 2))
        for line in cells:
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in line))
        self.live.update(Group(table, Text(sum_up)), refresh=True)
