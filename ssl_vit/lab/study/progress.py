"""How a study gets on: a line for each task that runs and the total, redrawn on a terminal and in a
notebook; elsewhere plain lines."""

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ...callbacks import Row
from ...config.records import Metric, fits
from ...formatting import duration
from ...metrics import HELD_OUT, all_metrics, format_metrics
from ...runs import notebook
from .tasks import Task, Tasks

QUIET = 15.0  # seconds between plain lines
REFRESH = 0.5  # and between two looks at the runs, where lines are redrawn
TAIL = 8192  # bytes of a file that are read


def tail(path: Path, start: int = 0) -> list[str]:
    """The last lines of a file with something in them, of those from byte `start` on, as a terminal
    shows them; none where there is no file."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - TAIL))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return []
    return [line.rstrip().split("\r")[-1].strip() for line in lines if line.strip()]


def newest_values(path: Path) -> Row:
    """The newest value of each metric near the end of metrics.jsonl; empty without rows."""
    newest: Row = {}
    for line in tail(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # cut off
            continue
        newest |= row if fits(row, dict[str, Metric]) else {}
    return newest


@dataclass
class RunProgress:
    """How a run gets on, read from its folder.

    Attributes:
        folder: of the run.
        steps: that it will have taken at its end.
        begun: when its process was started, by time.monotonic().
        first: the first step that was seen, and when; a resumed run starts behind it.
    """

    folder: Path
    steps: int
    begun: float = field(default_factory=time.monotonic)
    first: tuple[int, float] | None = None

    def elapsed(self) -> float:
        """Seconds since its process was started."""
        return time.monotonic() - self.begun

    def cells(self) -> tuple[str, ...]:
        """Its name, step, loss and another metric, and the time left."""
        row = newest_values(self.folder / "metrics.jsonl")
        step = row.get("step")
        if not isinstance(step, int):
            return "running", self.folder.name, "", f"since {duration(self.elapsed())}", ""
        return (
            "running",
            self.folder.name,
            f"step {step}/{self.steps}",
            _metrics(row),
            self._left(step),
        )

    def _left(self, step: int) -> str:
        now = time.monotonic()
        if self.first is None or step < self.first[0]:
            self.first = step, now
        first_step, first_time = self.first
        if step == first_step:
            return ""
        a_step = (now - first_time) / (step - first_step)
        return f"left {duration(a_step * max(0, self.steps - step))}"


def _metrics(row: Row) -> str:
    """The loss and one other metric, of held-out images where there is one."""
    short = [one.name for one in all_metrics() if one.short]
    others = [*(f"{HELD_OUT}{name}" for name in short), *short]
    names = ["loss", *[name for name in others if name in row][:1]]
    return format_metrics(
        {name: row[name] for name in names if isinstance(row.get(name), int | float)}
    )


def time_left(
    tasks: Tasks,
    took: Mapping[str, float],
    elapsed: Mapping[str, float],
    over: Collection[str],
    parallel: int,
) -> str:
    """How long the rest of a study will take, in words; empty where nothing is known. A task takes
    as long as those of its run, if there are some at the same names of the axes, that have
    finished.

    Args:
        tasks: of the study.
        took: {task: seconds} of finished ones, 0 where that is not known.
        elapsed: {task: seconds} of running ones.
        over: tasks that have finished or will not run.
        parallel: how many run at once.
    """
    known: dict[tuple[object, ...], list[float]] = {}
    for name, seconds in took.items():
        for alike in _alike(tasks[name]) if seconds else ():
            known.setdefault(alike, []).append(seconds)
    left: list[float] = []
    unknown: list[str] = []
    for name, task in tasks.items():
        if name in over:
            continue
        times = next((known[alike] for alike in _alike(task) if alike in known), None)
        if times is None:
            unknown.append(task.run)
        else:
            left.append(max(0.0, sum(times) / len(times) - elapsed.get(name, 0.0)))
    if not left:
        return ""
    text = f"left about {duration(max(max(left), sum(left) / parallel))}"
    if not unknown:
        return text
    runs = ", ".join(dict.fromkeys(unknown))
    return f"{text} and {len(unknown)} tasks of {runs}, of which none has finished"


def _alike(task: Task) -> tuple[tuple[object, ...], ...]:
    """What tasks have in common that take as long, the closest first."""
    return (task.run, *task.at.items()), (task.run,)


class ProgressScreen:
    """Context manager that prints the lines of a study and how it gets on."""

    def __init__(self) -> None:
        # of a notebook too, where its lines would be elements with a font of their own
        self.console = Console(file=sys.stdout, force_jupyter=False)
        self.output = notebook.RedrawnOutput() if notebook.in_notebook() else None
        self.live: Live | None = None
        if self.console.is_terminal and not self.output:
            self.live = Live(console=self.console, auto_refresh=False, transient=True)
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

    def show(self, lines: Callable[[], list[str]]) -> None:
        """Show what `lines` returns; it is called at most every REFRESH or QUIET seconds."""
        every = REFRESH if self.live or self.output else QUIET
        if time.monotonic() - self.shown < every:
            return
        self.shown = time.monotonic()
        if self.live:
            text = Text("\n".join(lines()), no_wrap=True, overflow="ellipsis")
            self.live.update(text, refresh=True)
        elif self.output:
            self.output.draw(notebook.lines_html(lines()))
        else:
            for line in lines():
                self.say(line)
