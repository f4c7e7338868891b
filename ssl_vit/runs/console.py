"""Print a run's output on the console.

Output is tables, a progress bar on a terminal and in a notebook, and plain lines elsewhere.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from ..callbacks import Callback, Row
from ..formatting import copies_text, format_duration, format_image_count
from ..measurements import (
    UNTRAINED,
    MetricKey,
    find_metric,
    read_flat_name,
    read_flat_names,
)
from ..metrics import format_metrics, is_model_metric, main_metrics
from ..recipe.records.run import Measurement
from . import notebook

LOSS_KEY = MetricKey("loss")
LINE_INTERVAL = 5.0  # the least seconds between plain lines
# in a long run, a sixtieth of the time so far, so that a day's log or notebook stays readable
LINE_SHARE = 1 / 60
T = TypeVar("T")
REDRAWN_EVERY = 0.5  # the least seconds between two states of a notebook's bar


def table(rows: Iterable[tuple[str, str]]) -> None:
    """Print name and text in two columns."""
    for name, text in rows:
        print(f"{name:<11} {text}", flush=True)


def rows_under(name: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield rows of a table with one name, which is printed on the first row."""
    for i, text in enumerate(texts):
        yield ("" if i else name), text


def _summary(row: Row) -> str:
    """Describe a row of training metrics: loss, first main metric, learning rate and speed.

    A row has no loss if the objective learns labels and no image since the last row had a label.
    """
    parts = ["no labels seen"]
    if "loss" in row:
        parts = [f"loss {find_metric(LOSS_KEY).text(row['loss'])}"]
    names = [name for name in main_metrics() if name in row and name != "loss"]
    for metric in map(find_metric, map(read_flat_name, names[:1])):
        parts.append(f"{metric.words} {metric.text(row[metric.name])}")
    parts.append(f"lr {row['lr']:.1e}")
    parts.append(f"{row['images_per_s']:,.0f} images/s")
    parts.append(f"data wait {row['data_wait']:.0%}")
    if "memory_gib" in row:
        parts.append(f"peak {row['memory_gib']:.1f} GiB")
    return "  ".join(parts)


@dataclass(eq=False, repr=False)
class _Progress(Callback, ABC):
    """Callback that shows the progress of training, made by `progress`.

    Subclasses show the state of training (`_summarise`) and print lines that stay (`_say`).
    """

    start: int
    steps: int
    images: int | None = None
    probed: Callable[[], Iterable[Measurement]] | None = None
    word: str = "step"  # the unit of `start` and `steps`

    def on_row(self, row: Row) -> None:
        if "images_per_s" in row:
            self._summarise(row)
        for text in self._evaluation_lines(row):
            self._say(text)

    def on_note(self, text: str) -> None:
        self._say(text)

    def on_warning(self, text: str) -> None:
        self._say(f"warning: {text}")

    @abstractmethod
    def _summarise(self, row: Row) -> None:
        """Show the state of training from a row of training metrics."""

    def _say(self, text: str) -> None:
        print(text, flush=True)

    def _evaluation_lines(self, row: Row) -> Iterator[str]:
        """Yield a line about a row's held-out metrics, and a line about each probe."""
        step = row["step"]
        columns = read_flat_names(row)
        held_out_values = {
            key._replace(is_held_out=False): value
            for key, value in columns.items()
            if key.is_held_out and not key.is_probe
        }
        if LOSS_KEY in held_out_values:
            n = "" if self.images is None else f" (n = {format_image_count(self.images)})"
            # `held_out_values` contains both the metrics and their baselines
            metrics = format_metrics(held_out_values, baselines=held_out_values)
            yield f"held out at step {step}: {metrics}{n}"
        has_probes = any(key.is_probe for key in columns)
        measured = self.probed() if self.probed and has_probes else ()
        probes = {measurement.key: measurement for measurement in measured}
        for key, probe in probes.items():
            if is_model_metric(key):
                fresh = probes.get(key._replace(subject=UNTRAINED))
                yield f"probe at step {step}: {_probe_text(key, probe, fresh)}"


def _probe_text(key: MetricKey, probe: Measurement, fresh: Measurement | None) -> str:
    """Describe a probe's accuracy: value, 95% interval, value of untrained weights, and images.

    Args:
        key: The metric.
        probe: The probe of the trained encoder.
        fresh: The same probe of untrained weights, or None if it was not measured.
    """
    interval = baseline = ""
    if probe.interval:
        interval = f" ({probe.interval.low:.1%} to {probe.interval.high:.1%})"
    if fresh:
        baseline = f"; untrained weights {fresh.value:.1%}"
    n = f"{format_image_count(probe.n or 0)}{copies_text(probe.copies)}"
    return f"{find_metric(key).words} {probe.value:.1%}{interval}{baseline} (n = {n})"


@dataclass(eq=False, repr=False)
class ProgressBar(_Progress):
    """Callback that draws a progress bar. Call close() before anything else is printed."""

    def __post_init__(self) -> None:
        # on a narrow screen only the summary is truncated
        whole, cut = Column(no_wrap=True, min_width=7), Column(no_wrap=True, overflow="ellipsis")
        columns = (
            BarColumn(10),
            TextColumn("{task.completed}/{task.total}", table_column=whole),
            TimeRemainingColumn(table_column=whole),
            TextColumn("{task.description}", table_column=cut),
        )
        self.progress = Progress(*columns, console=Console(file=sys.stdout))
        self.progress.start()
        self.task = self.progress.add_task("", total=self.steps, completed=self.start)

    def on_step(self, step: int) -> None:
        self.progress.update(self.task, completed=step)

    def _summarise(self, row: Row) -> None:
        self.progress.update(self.task, description=_summary(row))

    def _say(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self.progress.stop()


@dataclass(eq=False, repr=False)
class ProgressLines(_Progress):
    """Callback that prints a line every few seconds, and less often in a long run."""

    def __post_init__(self) -> None:
        self.row, self.row_step = "", self.start
        self.started_at = time.monotonic()
        self.printed_at = self.started_at

    def on_step(self, step: int) -> None:
        # only if rows are further apart than two intervals
        if self._intervals_waited() >= 2:
            self._print(step)

    def _summarise(self, row: Row) -> None:
        self.row, self.row_step = _summary(row), row["step"]
        if self._intervals_waited() >= 1 or row["step"] == self.steps:
            self._print(row["step"])

    def _intervals_waited(self) -> float:
        """Return the time since the last line, in intervals."""
        now = time.monotonic()
        return (now - self.printed_at) / self._interval(now)

    def _interval(self, now: float) -> float:
        """Return the seconds between two lines."""
        return max(LINE_INTERVAL, LINE_SHARE * (now - self.started_at))

    def _print(self, step: int) -> None:
        self.printed_at = time.monotonic()
        seconds_per_step = (self.printed_at - self.started_at) / max(1, step - self.start)
        left = seconds_per_step * (self.steps - step)
        row = self.row
        if row and self.row_step != step:
            row = f"at step {self.row_step}: {row}"
        self._show(step, f"{self.word} {step:>6}/{self.steps}  {row}  left {format_duration(left)}")

    def _show(self, step: int, line: str) -> None:
        print(line, flush=True)


def with_progress(items: Iterable[T], count: int, what: str) -> Iterator[T]:
    """Yield the items of a job that is not training, and print the progress from time to time.

    A printed line looks like `measured    120/500  features of test images  left 40 s`.

    Args:
        items: Items, such as batches of test images.
        count: Number of items.
        what: Description of the job, which stands in each line.
    """
    lines = ProgressLines(0, count, word="measured")
    lines.row = what
    for number, item in enumerate(items, 1):
        # the description holds for every item; for another number, a line says "at step ..."
        lines.row_step = number
        yield item
        lines.on_step(number)


class NotebookBar(ProgressLines):
    """Callback that redraws a bar in a notebook, above all printed lines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        begins = f"step {self.start:>6}/{self.steps}"
        self.output = notebook.show(notebook.progress_html(self.start, self.steps, begins))

    def _interval(self, now: float) -> float:
        return REDRAWN_EVERY

    def _show(self, step: int, line: str) -> None:
        notebook.redraw(self.output, notebook.progress_html(step, self.steps, line))


def progress(
    start: int,
    steps: int,
    images: int | None = None,
    probed: Callable[[], Iterable[Measurement]] | None = None,
) -> ProgressBar | ProgressLines:
    """Return a progress bar on a terminal or in a notebook, else progress lines.

    Args:
        start: The step that training begins at.
        steps: Number of steps of the whole run.
        images: Number of held-out images that metrics are measured on.
        probed: A function that returns the metrics of the probes' last evaluation.
    """
    if notebook.in_notebook():
        return NotebookBar(start, steps, images, probed)
    if sys.stdout.isatty():
        return ProgressBar(start, steps, images, probed)
    return ProgressLines(start, steps, images, probed)
