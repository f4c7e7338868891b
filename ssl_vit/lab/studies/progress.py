"""The progress display of a study: a line for each running task and the total, redrawn on a
terminal and in a notebook; elsewhere plain lines."""

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...callbacks import Row
from ...config.parsing import flatten, load_yaml
from ...config.records import Metric, Whole, fits
from ...errors import UserError
from ...formatting import duration
from ...metrics import HELD_OUT, all_metrics, format_metrics
from ...runs import notebook
from .expand import Plan

QUIET = 15.0  # seconds between plain lines
REFRESH = 0.5  # and between two looks at the runs, on a terminal
TAIL = 8192  # bytes of metrics.jsonl that are read


def last_rows(path: Path) -> Row:
    """The newest value of each metric near the end of metrics.jsonl; empty without rows."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return {}
    newest: Row = {}
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        newest |= row if fits(row, dict[str, Metric]) else {}
    return newest


@dataclass
class Running:
    """The progress of a run, read from its folder."""

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
        return self.folder.name, f"step {step}{of}", _metrics(row), self._left(step)

    def _steps(self) -> int:
        path = self.folder / "recipe.yaml"
        if not self.steps and path.exists():
            with suppress(UserError):
                steps = flatten(load_yaml(path)).get("optim.steps", 0)
                self.steps = steps if fits(steps, Whole) else 0
        return self.steps

    def _left(self, step: int) -> str:
        """Estimated from the first step seen here; a resumed run may be behind it."""
        now = time.monotonic()
        if self.first is None or step < self.first[0]:
            self.first = step, now
        first_step, first_time = self.first
        taken = step - first_step
        if not taken or not self.steps:
            return ""
        seconds = (now - first_time) / taken * max(0, self.steps - step)
        return f"left {duration(seconds)}"


def _metrics(row: Row) -> str:
    """The loss and one other metric, preferably of held-out images and masked patches."""
    short = [one.name for one in all_metrics() if one.short]
    others = [*(f"{HELD_OUT}{name}" for name in short), *short]
    names = ["loss", *[name for name in others if name in row][:1]]
    return format_metrics(
        {name: row[name] for name in names if isinstance(row.get(name), int | float)}
    )


def time_left(
    plan: Plan,
    took: Mapping[str, float],
    elapsed: Mapping[str, float],
    over: Collection[str],
    parallel: int,
) -> str:
    """How long the rest of a study will take, from the tasks of the same part, if there are some of
    the same arm, that have finished; empty where nothing is known.

    Args:
        plan: the study's tasks.
        took: {task: seconds} of finished ones, 0 where that is not known.
        elapsed: {task: seconds} of running ones.
        over: tasks that have finished or will not run.
        parallel: how many run at once.
    """
    known: dict[tuple[str, ...], list[float]] = {}
    for name, seconds in took.items():
        task = plan[name]
        for alike in ((task.part, task.arm), (task.part,)) if seconds else ():
            known.setdefault(alike, []).append(seconds)
    left: list[float] = []
    unknown: list[str] = []
    for name, task in plan.items():
        if name in over:
            continue
        times = known.get((task.part, task.arm)) or known.get((task.part,))
        if times is None:
            unknown.append(task.part)
            continue
        left.append(max(0.0, sum(times) / len(times) - elapsed.get(name, 0.0)))
    if not left:
        return ""
    seconds = max(max(left), sum(left) / parallel)
    if unknown:
        parts = ", ".join(dict.fromkeys(unknown))
        more = f"{len(unknown)} tasks of {parts}, of which none has finished"
        return f"left about {duration(seconds)} and {more}"
    return f"left about {duration(seconds)}"


class ProgressScreen:
    """Context manager that prints the lines of a study and its progress."""

    def __init__(self) -> None:
        # of a notebook too, where its lines would be elements with a font of their own
        self.console = Console(file=sys.stdout, force_jupyter=False)
        self.output = notebook.RedrawnOutput() if notebook.in_notebook() else None
        self.live = (
            Live(console=self.console, auto_refresh=False, transient=True)
            if self.console.is_terminal and not self.output
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
        """Print a line that stays."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(
        self, running: list[Any], done: int, total: int, failed: int, left: Callable[[], str]
    ) -> None:
        """Show the running tasks, the total and the time left (`time_left`), at most every REFRESH
        or QUIET seconds."""
        redrawn = self.live or self.output
        if time.monotonic() - self.shown < (REFRESH if redrawn else QUIET):
            return
        self.shown = time.monotonic()
        cells = [child.cells() for child in running]
        total_line = f"{done} of {total} finished"
        if failed:
            total_line = f"{total_line}, {failed} failed or left out"
        if text := left():
            total_line = f"{total_line}; {text}"
        if self.live is None:
            lines = ["running   " + "  ".join(cell for cell in line if cell) for line in cells]
            self._print([*lines, total_line])
            return
        table = Table.grid(padding=(0, 2))
        for line in cells:
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in line))
        self.live.update(Group(table, Text(total_line)), refresh=True)

    def _print(self, lines: list[str]) -> None:
        if self.output:
            self.output.draw(notebook.lines_html(lines))
            return
        for line in lines:
            self.say(line)
