"""A run of a list: what its folder holds, whether that is whole, and its columns in a terminal and
in a page. No torch here."""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from ...config import computed, export_files
from ...config.records.run import Measured
from ...errors import UserError
from ...formatting import NOT_COUNTED, duration, format_bytes, format_value, text_line
from ...metrics import all_metrics, find_metric, is_of_model, is_split
from ...pages import metric_tables
from ...pages.run_record import RunRecord
from ...runs import seen_text

NONE = "-"  # of what a run has not


@dataclass(frozen=True, eq=False)
class ListedRun:
    """A run of a list. What takes a look at its files is found out once, and if it is asked for.

    Attributes:
        name: its folder, from the listed folder.
    """

    name: str
    record: RunRecord

    @cached_property
    def damage(self) -> str:
        """What of it is missing or damaged, its export included; empty where nothing is."""
        problems = list(self.record.problems)
        values = self.record.values
        if self.record.result is not None and values and values.get("objective") != "probe":
            problems.append(export_problem(self.record.folder / "export"))
        return "; ".join(filter(None, problems))

    @cached_property
    def disk(self) -> int:
        """Bytes that its folder occupies."""
        return disk_use(self.record.folder)

    @property
    def state(self) -> str:
        """finished, running, stopped at step N, or damaged with the reason."""
        if self.damage:
            return f"damaged: {self.damage}"
        if self.record.result is None and not self.record.running:
            return f"stopped at step {self.record.step:,}"
        return self.record.state

    @property
    def step(self) -> int:
        return self.record.result.steps if self.record.result else self.record.step

    def cost(self, name: str) -> float | None:
        """exaflop, seconds or device_hours; None where they were not counted, and of a run that has
        not finished."""
        result = self.record.result
        return result[name] if result is not None and name in result else None

    @property
    def ended(self) -> datetime | None:
        """When it finished, else when it last wrote."""
        if self.record.result:
            with suppress(ValueError):
                found = datetime.fromisoformat(self.record.result.finished)
                return found if found.tzinfo else found.replace(tzinfo=UTC)
        return self.record.updated

    @cached_property
    def measured(self) -> dict[str, Measured]:
        """Its metrics as RunRecord.metrics, without baselines and what is not finite."""
        return {
            name: entry
            for name, entry in self.record.metrics().items()
            if is_of_model(name) and math.isfinite(entry.value)
        }

    def value(self, metric: str) -> float | None:
        """The value of a metric; None where it was not measured."""
        return self.measured[metric].value if metric in self.measured else None

    def count(self, metric: str) -> int | None:
        """The number of images that a metric was measured on, as far as it is known."""
        return metric_tables.case_count(self.measured[metric], self.record.measured_on)

    def learned(self, split: str) -> int:
        """Of how many images of a split its first weights had learned the labels; 0 where that is
        not recorded."""
        return seen_text.learned_labels(self.record.environment.seen or (), split)

    def main_metric(self, test: bool) -> str | None:
        """The name of its first metric, by the order of the index's columns, of the test split or
        of held-out images; None without one."""
        of_split = [name for name, one in self.measured.items() if (one.split == "test") == test]
        order = [*metric_heads()]
        known = [name for name in of_split if name.rpartition("/")[2] in order]
        return min(known, key=lambda name: order.index(name.rpartition("/")[2]), default=None)

    def setting(self, key: str) -> str:
        """The value of a key of its recipe as text."""
        values = self.record.values
        return format_value(values[key]) if key in values else NONE

    def content(self) -> dict[str, Any]:
        """The run for --json."""
        return {
            "name": self.name,
            "folder": str(self.record.folder),
            "state": self.state,
            "objective": self.record.values.get("objective"),
            "data": self.record.values.get("data.name"),
            "step": self.step,
            "steps": self.record.steps,
            "metrics": {name: one.content() for name, one in self.record.metrics().items()},
            "held_out": self.main_metric(test=False),
            "test": self.main_metric(test=True),
            "seen": [one.content() for one in self.record.environment.seen or ()],
            "exaflop": self.cost("exaflop"),
            "seconds": self.cost("seconds"),
            "bytes": self.disk,
            "ended": None if self.ended is None else self.ended.isoformat(timespec="seconds"),
        }


def listed(folder: Path, record: RunRecord) -> ListedRun:
    """A run in or below a folder."""
    inside = record.folder != folder
    return ListedRun(str(record.folder.relative_to(folder)) if inside else record.name, record)


def counted(runs: Sequence[ListedRun]) -> str:
    """How many runs are in each state: 3 finished, 1 running."""
    states = [run.state.partition(":")[0].partition(" at ")[0] for run in runs]
    return ", ".join(f"{states.count(state):,} {state}" for state in sorted(set(states)))


def differing(runs: Sequence[ListedRun]) -> dict[str, list[str]]:
    """{key: each run's value}, of the keys that change what is computed and have two values. A
    recipe that cannot be read counts as no difference."""
    known = [run.record.values for run in runs if run.record.values]
    # sorted as in the recipes; a key that one lacks has its default there
    differ = {one.key for values in known[1:] for one in computed.differences(known[0], values)}
    keys = dict.fromkeys(key for values in known for key in values if key in differ)
    free = {key for run in runs for key in run.record.environment.free}
    return {key: [run.setting(key) for run in runs] for key in keys if computed.counts(key, free)}


def export_problem(export: Path) -> str:
    """Why an export cannot be loaded, as far as sizes and headers show; empty where it can."""
    if not export.is_dir():
        return "export/ is missing"
    try:
        export_files.read_config(export)
    except UserError:
        return "export/config.json is missing or damaged"
    for name in ("model.safetensors", "heads.safetensors"):
        try:
            # the header has to cover the file to its last byte
            with safe_open(export / name, framework="numpy") as file:
                tensors = len(list(file.keys()))
        except (OSError, SafetensorError):
            return f"export/{name} is missing or damaged"
        if not tensors and name.startswith("model"):
            return f"export/{name} has no weights"
    return ""


def disk_use(folder: Path) -> int:
    """Bytes that a folder occupies, as du counts them; links are not followed."""
    sizes = {}
    for path, _, files in os.walk(folder):
        for entry in (path, *(os.path.join(path, name) for name in files)):  # noqa: PTH118
            with suppress(OSError):  # a file that is removed meanwhile
                found = os.lstat(entry)
                sizes[found.st_dev, found.st_ino] = 512 * found.st_blocks
    return sum(sizes.values())


class Column(NamedTuple):
    """A column of a list of runs.

    Attributes:
        text: a run's cell.
        value: what runs are sorted by; None where a run has none, and of a column of texts.
        rising: whether the lowest value comes first.
    """

    head: str
    text: Callable[[ListedRun], str]
    value: Callable[[ListedRun], Any] = lambda run: None
    rising: bool = False


def of_metric(metric: str) -> Column:
    """The column of the metric that runs are sorted by."""
    text = partial(_metric_text, metric=metric)
    return Column(
        metric, text, partial(ListedRun.value, metric=metric), not find_metric(metric).higher
    )


def of_page(runs: Sequence[ListedRun]) -> tuple[list[Column], dict[str, str]]:
    """The columns of a table of index.html after the run's name, whose values are numbers: metrics
    come first, those that are split by kind of patch as the last of them, so that a phone shows the
    others. And what all of its runs share, {head: text}, which needs no column."""
    measured = set().union(*(run.record.metrics() for run in runs))
    heads = metric_heads()
    names = sorted(heads.keys() & measured, key=[*heads].index)
    names.sort(key=lambda name: is_split(name, measured))
    shared: dict[str, str] = {}
    rest = []
    for column in SETTINGS:
        texts = {column.text(run) for run in runs}
        if len(texts) > 1:
            rest.append(column)
        elif texts != {NONE}:
            shared[column.head] = texts.pop()
    return [*(_of_metric_on_page(name, heads[name], runs) for name in names), *rest, *COSTS], shared


def _of_metric_on_page(metric: str, head: str, runs: Sequence[ListedRun]) -> Column:
    """With the number of images in the head, where it is one for all runs."""
    counts = {run.count(metric) for run in runs if metric in run.measured}
    value = partial(ListedRun.value, metric=metric)
    if len(counts) != 1 or None in counts:
        return Column(head, partial(_metric_text, metric=metric), value)

    def text(run: ListedRun) -> str:
        known = run.value(metric)
        return NONE if known is None else metric_tables.number(metric, known)

    # of no-break spaces: a narrow column does not part it
    return Column(f"{head} (n\u00a0=\u00a0{counts.pop():,})", text, value)


def ordered(runs: Iterable[ListedRun], column: Column, backwards: bool = False) -> list[ListedRun]:
    """Runs in the order of a column, or the other way round; those without a value come last."""
    runs = list(runs)
    having = [run for run in runs if column.value(run) is not None]
    having.sort(key=column.value, reverse=column.rising == backwards)
    return having + [run for run in runs if column.value(run) is None]


def metric_heads() -> dict[str, str]:
    """{metric: the head of its column in the index}, in their order."""
    return {row.name: row.column for row in all_metrics() if row.column}


def _metric_text(run: ListedRun, metric: str) -> str:
    """The value of a metric and the number of images that it was measured on."""
    if metric not in run.measured:
        return NONE
    return metric_tables.with_count(metric, run.measured[metric], run.record.measured_on)


def _main_metric(run: ListedRun, test: bool) -> str:
    name = run.main_metric(test)
    if name is None:
        return NONE
    text, split = f"{name} {_metric_text(run, name)}", run.measured[name].split
    if run.learned(split):
        return f"{text} (labels learned before)"
    return f"{text} (on training images)" if split == "train" else text


def _objective(run: ListedRun) -> str:
    """The objective and, of a recipe file with another name, that name."""
    objective, file = run.setting("objective"), run.record.environment.recipe_file
    name = file.name if file else objective
    return text_line(objective if name == objective else f"{objective} ({name})")


def _data(run: ListedRun) -> str:
    return run.setting("data.name")


def _steps(run: ListedRun) -> str:
    """The last step and, of a run that trains and has not finished, how many there are to be."""
    training = run.record.result is None and run.setting("objective") != "probe"
    known = training and run.record.steps
    return f"{run.step:,} of {run.record.steps:,}" if known else f"{run.step:,}"


def _exaflop(run: ListedRun) -> str:
    value, result = run.cost("exaflop"), run.record.result
    if value is None:
        return NOT_COUNTED if result is not None and "exaflop" in result else NONE
    return f"{value:.3g}"


def _time(run: ListedRun) -> str:
    seconds = run.cost("seconds")
    return NONE if seconds is None else duration(seconds)


def _ended(run: ListedRun) -> str:
    return NONE if run.ended is None else f"{run.ended.astimezone(UTC):%Y-%m-%d %H:%M}"


def _model(run: ListedRun) -> str:
    values = run.record.values
    return str(values.get("model.name") or values.get("model.timm") or NONE)


def _learned(run: ListedRun) -> str:
    count = run.learned("test")
    return f"of {count:,} images of the test split" if count else NONE


# {what sort= takes: column} of the terminal
COLUMNS = {
    "name": Column("run", lambda run: text_line(run.name), lambda run: run.name, True),
    "objective": Column("objective", _objective, lambda run: run.setting("objective"), True),
    "data": Column("data", lambda run: text_line(_data(run)), _data, True),
    "state": Column("state", lambda run: text_line(run.state), lambda run: run.state, True),
    "step": Column("steps", _steps, lambda run: run.step),
    "held out": Column("held out", partial(_main_metric, test=False)),
    "test": Column("test", partial(_main_metric, test=True)),
    "exaflop": Column("exaFLOP", _exaflop, partial(ListedRun.cost, name="exaflop")),
    "time": Column("time", _time, partial(ListedRun.cost, name="seconds")),
    "disk": Column("disk", lambda run: format_bytes(run.disk), lambda run: run.disk),
    "ended": Column("ended, UTC", _ended, lambda run: run.ended and run.ended.timestamp()),
}
SORTED_BY = [key for key in COLUMNS if key not in ("held out", "test")]
# Of index.html; runs of a study mostly share them
SETTINGS = (
    COLUMNS["state"],
    COLUMNS["objective"],
    COLUMNS["data"],
    Column("model", _model),
    COLUMNS["step"],
    Column("labels learned before", _learned),
    Column("test images", lambda run: str(run.record.environment.data.get("test", NONE))),
)
COSTS = (
    COLUMNS["exaflop"],
    COLUMNS["time"],
    COLUMNS["ended"],
    Column("warnings", lambda run: str(run.record.warning_count)),
)
