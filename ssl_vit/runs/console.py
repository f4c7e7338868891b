"""Print a run's output on the console.

The output has tables, and shows progress by a bar (in a terminal or notebook) or by plain lines.
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
from ..errors import is_first_process
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
LINE_INTERVAL = 5.0  # minimum seconds between plain lines
# In a long run, lines are further apart: by this share of the time so far. So the log of a day
# stays readable.
LINE_SHARE = 1 / 60
T = TypeVar("T")
REDRAWN_EVERY = 0.5  # minimum seconds before a notebook's bar is redrawn


def table(rows: Iterable[tuple[str, str]]) -> None:
    """Print rows of name and text in two columns."""
    for name, text in rows:
        print(f"{name:<11} {text}", flush=True)


def rows_under(name: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield table rows for texts that share a name. Only the first row shows the name."""
    for i, text in enumerate(texts):
        yield ("" if i else name), text


def _summary(row: Row) -> str:
    """Describe a row of training metrics: loss, first main metric, learning rate and speed."""
    # A row has no loss if an objective that learns labels has met no labelled image since the last
    # row
    parts = ["no labels seen"]
    if "loss" in row:
        parts = [f"loss {find_metric(LOSS_KEY).text(row['loss'])}"]
    names = [name for name in main_metrics() if name in row and name != "loss"]
    if names:
        metric = find_metric(read_flat_name(names[0]))
        parts.append(f"{metric.words} {metric.text(row[metric.name])}")
    parts.append(f"lr {row['lr']:.1e}")
    parts.append(f"{row['images_per_s']:,.0f} images/s")
    parts.append(f"data wait {row['data_wait']:.0%}")
    if "memory_gib" in row:
        parts.append(f"peak {row['memory_gib']:.1f} GiB")
    return "  ".join(parts)


@dataclass(eq=False, repr=False)
class _Progress(Callback, ABC):
    """Base class of callbacks that show the progress of training. `progress` creates one.

    Subclasses define how the state of training is shown (`_summarise`) and how lines are printed
    (`_say`).
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
        """Yield lines about a row's evaluation: the held-out metrics, and each probe."""
        step = row["step"]
        columns = read_flat_names(row)
        held_out_values = {
            key._replace(is_held_out=False): value
            for key, value in columns.items()
            if key.is_held_out and not key.is_probe
        }
        if LOSS_KEY in held_out_values:
            count = "" if self.images is None else f" (n = {format_image_count(self.images)})"
            # Pass the values twice, because they contain both the metrics and the baselines
            metrics = format_metrics(held_out_values, baselines=held_out_values)
            yield f"held out at step {step}: {metrics}{count}"
        has_probes = any(key.is_probe for key in columns)
        measurements = self.probed() if self.probed and has_probes else ()
        probes = {measurement.key: measurement for measurement in measurements}
        for key, probe in probes.items():
            if is_model_metric(key):
                fresh = probes.get(key._replace(subject=UNTRAINED))
                yield f"probe at step {step}: {_probe_text(key, probe, fresh)}"


def _probe_text(key: MetricKey, probe: Measurement, fresh: Measurement | None) -> str:
    """Describe the value of a probe, with a 95% interval, the baseline and the number of images.

    Args:
        key: The metric.
        probe: The probe of the trained encoder.
        fresh: The same probe of untrained weights (the baseline), or None if not measured.
    """
    row, interval, baseline = find_metric(key), "", ""
    if probe.interval:
        interval = f" ({probe.interval.low:.1%} to {probe.interval.high:.1%})"
    if fresh:
        baseline = f"; untrained weights {row.text(fresh.value)}"
    count = f"{format_image_count(probe.n or 0)}{copies_text(probe.copies)}"
    return f"{row.words} {row.text(probe.value)}{interval}{baseline} (n = {count})"


@dataclass(eq=False, repr=False)
class ProgressBar(_Progress):
    """Callback that draws a progress bar. Call close() before anything else is printed."""

    def __post_init__(self) -> None:
        # on a narrow screen, only the last column (the summary) is truncated
        fixed = Column(no_wrap=True, min_width=7)
        truncated = Column(no_wrap=True, overflow="ellipsis")
        columns = (
            BarColumn(10),
            TextColumn("{task.completed}/{task.total}", table_column=fixed),
            TimeRemainingColumn(table_column=fixed),
            TextColumn("{task.description}", table_column=truncated),
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
        # Usually, a row of metrics triggers a line. Print here only if rows are far apart.
        if self._intervals_waited() >= 2:
            self._print(step)

    def _summarise(self, row: Row) -> None:
        self.row, self.row_step = _summary(row), row["step"]
        if self._intervals_waited() >= 1 or row["step"] == self.steps:
            self._print(row["step"])

    def _intervals_waited(self) -> float:
        """Return the time since the last line, in intervals: 2.0 after two intervals."""
        now = time.monotonic()
        return (now - self.printed_at) / self._interval(now)

    def _interval(self, now: float) -> float:
        """Return the seconds between two lines."""
        return max(LINE_INTERVAL, LINE_SHARE * (now - self.started_at))

    def _print(self, step: int) -> None:
        self.printed_at = time.monotonic()
        seconds_per_step = (self.printed_at - self.started_at) / max(1, step - self.start)
        left = seconds_per_step * (self.steps - step)
        text = self.row
        if text and self.row_step != step:
            text = f"at step {self.row_step}: {text}"
        line = f"{self.word} {step:>6}/{self.steps}  {text}  left {format_duration(left)}"
        self._show(step, line)

    def _show(self, step: int, line: str) -> None:
        print(line, flush=True)


def with_progress(items: Iterable[T], count: int, what: str, word: str = "measured") -> Iterator[T]:
    """Yield items, and print progress on rank 0 from time to time. For work outside of training.

    A printed line looks like `measured    120/500  features of test images  left 40 s`.

    Args:
        items: Items, such as batches of test images.
        count: Number of items.
        what: Description of the items, which each line shows.
        word: First word of the lines.
    """
    lines = ProgressLines(0, count, word=word)
    lines.row = what
    for number, item in enumerate(items, 1):
        # Keep the step of the description up to date. Otherwise, lines would say "at step ...".
        lines.row_step = number
        yield item
        if is_first_process():
            lines.on_step(number)


class NotebookBar(ProgressLines):
    """Callback that redraws a progress bar in a notebook, above all printed lines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        line = f"step {self.start:>6}/{self.steps}"
        self.output = notebook.show(notebook.progress_html(self.start, self.steps, line))

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
    """Return a progress bar in a terminal or notebook, otherwise progress lines.

    Args:
        start: The step at which training begins.
        steps: Number of steps of the whole run.
        images: Number of held-out images on which metrics are measured.
        probed: Function that returns the latest measurements of the probes.
    """
    if notebook.in_notebook():
        return NotebookBar(start, steps, images, probed)
    if sys.stdout.isatty():
        return ProgressBar(start, steps, images, probed)
    return ProgressLines(start, steps, images, probed)
