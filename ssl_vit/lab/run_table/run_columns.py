"""The columns of a table of runs, as they stand in a terminal and in a page. No torch here."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from ...formatting import (
    NOT_COUNTED,
    count_of_images,
    duration,
    format_age,
    format_bytes,
    text_line,
)
from ...metrics import find_metric, is_split
from ...pages import metric_tables
from .listed_run import NONE, ListedRun, metric_columns


class Column(NamedTuple):
    """A column of a table of runs.

    Attributes:
        text: a run's cell.
        value: what runs are sorted by; None where a run has none, and of a column of texts.
        key: its name in sort=; empty where it has none.
        rising: whether the lowest value comes first.
    """

    head: str
    text: Callable[[ListedRun], str]
    value: Callable[[ListedRun], Any] = lambda run: None
    key: str = ""
    rising: bool = False


def of_terminal() -> list[Column]:
    """The columns of tools/runs.py."""
    return [
        Column("run", lambda run: text_line(run.name), lambda run: run.name, "name", True),
        Column("objective", _objective, _by_objective, "objective", True),
        Column("state", lambda run: text_line(run.state), _by_state, "state", True),
        Column("step", _step_of_training, lambda run: run.step, "step"),
        Column("held out", partial(_main_metric, test=False)),
        Column("test", partial(_main_metric, test=True)),
        Column("exaFLOP", _exaflop, _cost("exaflop"), "exaflop"),
        Column("time", _time, _cost("seconds"), "time"),
        Column("disk", lambda run: format_bytes(run.disk), lambda run: run.disk, "disk"),
        Column("age", _age, lambda run: run.ended, "age"),
    ]


def of_page(runs: Sequence[ListedRun]) -> tuple[list[Column], dict[str, str]]:
    """The columns of a group of index.html after the run's name, whose values are numbers: metrics
    come first, those that are split by kind of patch as the last of them, so that a phone shows the
    others. And what all of its runs share, {head: text}, which needs no column."""
    measured = set().union(*(run.record.metrics() for run in runs))
    heads = metric_columns()
    names = sorted(heads.keys() & measured, key=[*heads].index)
    names.sort(key=lambda name: is_split(name, measured))
    metrics = [_metric_column(name, heads[name], runs) for name in names]
    texts = {one.head: dict.fromkeys(map(one.text, runs)) for one in SETTINGS}
    shared = {head: next(iter(known)) for head, known in texts.items() if len(known) == 1}
    rest = [
        *(one for one in SETTINGS if one.head not in shared),
        *([TESTED] if len({_test_images(run) for run in runs} - {NONE}) > 1 else []),
        Column("device-hours", _device_hours, _cost("device_hours")),
        Column("last written", _written, _written_at),
        Column("warnings", lambda run: str(run.record.warning_count)),
    ]
    return [*metrics, *rest], shared


def _metric_column(metric: str, head: str, runs: Sequence[ListedRun]) -> Column:
    """With the number of images in the head, where it is one for all runs."""
    counts = {run.count(metric) for run in runs if metric in run.measured}
    if len(counts) != 1 or counts == {None}:
        return Column(head, partial(ListedRun.metric_text, metric=metric), _metric(metric))

    def text(run: ListedRun) -> str:
        value = run.value(metric)
        return NONE if value is None else metric_tables.number(metric, value)

    # of no-break spaces: a narrow column does not part it
    return Column(f"{head} (n\u00a0=\u00a0{counts.pop():,})", text, _metric(metric))


def of_metric(metric: str) -> Column:
    """The column of the metric that runs are sorted by."""

    def text(run: ListedRun) -> str:
        entry = run.measured.get(metric)
        if entry is None:
            return NONE
        return f"{metric_tables.number(metric, entry.value)} ({entry.split})"

    return Column(metric, text, _metric(metric), metric, not find_metric(metric).higher)


def ordered(runs: Sequence[ListedRun], column: Column, backwards: bool) -> list[ListedRun]:
    """Runs in the order of a column, or the other way round; those without a value come last."""
    having = [run for run in runs if column.value(run) is not None]
    having.sort(key=column.value, reverse=column.rising == backwards)
    return having + [run for run in runs if column.value(run) is None]


def _metric(metric: str) -> Callable[[ListedRun], float | None]:
    return partial(ListedRun.value, metric=metric)


def _cost(name: str) -> Callable[[ListedRun], float | None]:
    return partial(ListedRun.cost, name=name)


def _by_objective(run: ListedRun) -> tuple[str, str]:
    return run.setting("objective"), run.name


def _by_state(run: ListedRun) -> tuple[str, str]:
    return run.state, run.name


def _objective(run: ListedRun) -> str:
    """The objective and, of a recipe file with another name, that name."""
    objective, file = run.setting("objective"), run.record.environment.recipe_file
    recipe = file and file.name
    return text_line(objective if recipe in (None, objective) else f"{objective} ({recipe})")


def _step(run: ListedRun, planned: bool) -> str:
    """The last step and, with `planned`, how many there are to be."""
    known = planned and run.record.steps
    return f"{run.step:,} of {run.record.steps:,}" if known else f"{run.step:,}"


def _step_of_training(run: ListedRun) -> str:
    """An evaluation has no steps that it is to make."""
    return _step(run, run.setting("objective") != "probe")


def _main_metric(run: ListedRun, test: bool) -> str:
    name = run.main_metric(test)
    if name is None:
        return NONE
    text = f"{name} {run.metric_text(name)}"
    if run.learned(run.measured[name].split):
        return f"{text} (labels learned before)"
    return f"{text} (on training images)" if run.measured[name].split == "train" else text


def _exaflop(run: ListedRun) -> str:
    value, result = run.cost("exaflop"), run.record.result
    if value is None:
        return NOT_COUNTED if result is not None and "exaflop" in result else NONE
    return f"{value:.3g}"


def _time(run: ListedRun) -> str:
    seconds = run.cost("seconds")
    return NONE if seconds is None or not math.isfinite(seconds) else duration(seconds)


def _age(run: ListedRun) -> str:
    if run.ended is None:
        return NONE
    return format_age((datetime.now(UTC) - run.ended).total_seconds())


def _model(run: ListedRun) -> str:
    values = run.record.values
    return str(values.get("model.name") or values.get("model.timm") or NONE)


def _device_hours(run: ListedRun) -> str:
    hours = run.cost("device_hours")
    return NONE if hours is None else f"{hours:.3g}"


def _written(run: ListedRun) -> str:
    return NONE if run.record.updated is None else f"{run.record.updated:%Y-%m-%d %H:%M}"


def _written_at(run: ListedRun) -> float | None:
    return None if run.record.updated is None else run.record.updated.timestamp()


def _learned(run: ListedRun) -> str:
    count = run.learned("test")
    return f"of {count_of_images(count)} of the test split" if count else NONE


def _test_images(run: ListedRun) -> str:
    return str(run.record.environment.data.get("test", NONE))


# Of index.html, where runs were tested on different images
TESTED = Column("test images", _test_images)
# Of index.html; runs of a study mostly share them
SETTINGS = (
    Column("state", lambda run: run.record.state),
    Column("objective", lambda run: run.setting("objective")),
    Column("data", lambda run: run.setting("data.name")),
    Column("model", _model),
    Column("steps", lambda run: _step(run, run.record.result is None), lambda run: run.step),
    Column("labels learned before", _learned),
)
