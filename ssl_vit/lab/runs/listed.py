"""Describe a run for lists of runs: the state, the columns, and which values are comparable.

The module does not import torch.
"""

import itertools
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from ...errors import UserError
from ...formatting import SPLIT_NAMES, format_bytes, format_duration, format_value, text_line
from ...metrics import (
    FRESH,
    PROBED,
    SHARE,
    Metric,
    Row,
    has_direction,
    in_order,
    is_frozen_metric,
    is_shown_otherwise,
    rows_of_run,
    use_plugin_rows,
)
from ...pages.metric_tables import (
    MetricReading,
    is_no_better,
    measure_text,
    read_metrics,
    value_with_fresh,
)
from ...pages.run_record import RunRecord
from ...recipe import declaration, export_files, schema
from ...recipe.images import PART
from ...recipe.keys import Values
from ...recipe.schema import defaults
from ...runs import seen_text
from ...runs.identity import keys_of_task

NONE = "-"  # shown for a missing value
COMPARES = (
    "Accuracies of frozen encoders on the same images are comparable between objectives. Losses and"
    " other accuracies are comparable only between runs of one objective, target and data set."
)
CAUTION = (
    "A difference between two runs is not a result. A study compares several seeds, with intervals."
)
# heading: number of images whose labels the initial weights had learned
LEARNED = "labels learned before"


@dataclass(frozen=True, eq=False)
class ListedRun:
    """Run in a list. Values that need the files of the run are read once, on first use.

    Attributes:
        name: Path of the run's folder from the listed folder.
        record: Content of the run's folder.
    """

    name: str
    record: RunRecord

    @cached_property
    def settings(self) -> Values:
        """`{key: value}` of the recipe, with defaults for missing keys of the recipe's groups.

        An evaluation has no `optim.*`, and `probe.pool` is the pooling that was used. Empty if the
        recipe cannot be read.
        """
        values, result = self.record.values, self.record.result
        if not values:
            return {}
        groups = {key.rpartition(".")[0] for key in values} - {""}
        settings = {
            key: default for key, default in defaults().items() if key.rpartition(".")[0] in groups
        }
        settings |= values
        pool = settings.pop("probe.pool", None)
        if result is not None and result.pool:
            pool = result.pool
        if pool:
            settings["probe.pool"] = pool
        if settings.get("objective") == "probe":
            return {key: value for key, value in settings.items() if not key.startswith("optim.")}
        return settings

    @cached_property
    def damage(self) -> str:
        """What is missing or damaged in the run and the export, or an empty text."""
        problems = list(self.record.problems)
        values = self.record.values
        if self.record.result is not None and values and values.get("objective") != "probe":
            problems.append(export_problem(self.record.folder / "export"))
        return "; ".join(filter(None, problems))

    @cached_property
    def disk(self) -> int:
        """Bytes that the run's folder occupies."""
        return disk_use(self.record.folder)

    @property
    def state(self) -> str:
        """State in words: finished, running at a step, stopped, or damaged with the reason.

        A stopped run also says after which step the same command resumes it.
        """
        if self.damage:
            return f"damaged: {self.damage}"
        if self.record.result is not None:
            return "finished"
        total = f" of {self.record.steps:,}" if self.record.steps else ""
        if self.record.running:
            return f"running at step {self.step:,}{total}"
        if self.record.steps == 0:  # an evaluation has no checkpoints
            return "stopped"
        if self.record.saved_step:
            return f"stopped, resumes after step {self.record.saved_step:,}{total}"
        return "stopped before its first checkpoint"

    @property
    def step(self) -> int:
        return self.record.result.steps if self.record.result else self.record.step

    @property
    def ended(self) -> datetime | None:
        """Time when the run finished, else the time of the last written file."""
        if self.record.result:
            with suppress(ValueError):
                moment = datetime.fromisoformat(self.record.result.finished)
                return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        return self.record.updated

    @property
    def rows(self) -> list[Row]:
        """Definitions of the run's metrics and baselines (`metrics.rows_of_run`)."""
        return rows_of_run(self.record.environment.plugin_rows, self.record.metrics())

    @cached_property
    def measured(self) -> dict[str, MetricReading]:
        """Finite metrics with baselines, by name."""
        with use_plugin_rows(self.record.environment.plugin_rows):
            with_baselines = read_metrics(self.record.metrics(), self.record.measured_on)
        return {reading.name: reading for reading in with_baselines if math.isfinite(reading.value)}

    def has_direction(self, metric: str) -> bool:
        """Return whether the better direction of a metric is known, higher or lower."""
        with use_plugin_rows(self.rows):
            return has_direction(metric)

    def value(self, metric: str) -> float | None:
        """Return the value of a metric, or None without a measurement."""
        return self.measured[metric].value if metric in self.measured else None

    def count(self, metric: str) -> int | None:
        """Return the number of images that a metric was measured on, or None if unknown."""
        return self.measured[metric].images or None

    def fresh_value(self, metric: str) -> float | None:
        """Return the value of untrained weights on the same images, or None."""
        baselines = self.measured[metric].comparisons if metric in self.measured else []
        return next(
            (baseline.value for baseline in baselines if baseline.substitute == FRESH), None
        )

    def best_baseline(self, metric: str) -> float | None:
        """Return the best baseline on the same images except untrained weights, or None."""
        reading = self.measured.get(metric)
        if reading is None:
            return None
        values = [
            baseline.value for baseline in reading.comparisons if baseline.substitute != FRESH
        ]
        best = max if reading.row.higher else min
        return best(values, default=None)

    def count_learned(self, split: str) -> int:
        """Return the number of images of a split whose labels the initial weights had learned.

        The number is 0 if it is not recorded.
        """
        return seen_text.learned_labels(self.record.seen, split)

    @property
    def frozen_measure(self) -> str | None:
        """Name of the frozen encoder's most important metric, or None without any.

        Metrics of test images are more important than metrics of other images.
        """
        with use_plugin_rows(self.rows):
            metrics = [name for name in in_order(self.measured) if is_frozen_metric(name)]
        for name in metrics:
            if self.measured[name].split == "test":
                return name
        return metrics[0] if metrics else None

    def frozen(self) -> str | None:
        """Describe the frozen encoder's accuracy and the difference from untrained weights.

        Both have intervals. The result is None if the run did not measure the frozen encoder.
        """
        name = self.frozen_measure
        if name is None:
            return None
        reading = self.measured[name]
        with use_plugin_rows(self.rows):
            values = value_with_fresh(reading)
            return f"{measure_text(reading, reading)} {values}{_caveats(self, reading)}"

    def first_metric(self, test: bool) -> str | None:
        """Describe the most important metric of the trained model, or return None without any.

        Metrics of the frozen encoder do not count.

        Args:
            test: Whether to take a metric of test images (True) or of other images (False).
        """
        with use_plugin_rows(self.rows):
            for name in in_order(self.measured):
                is_tested = self.measured[name].split == "test"
                if is_tested == test and not is_frozen_metric(name):
                    return f"{name} {metric_text(self, name)}"
        return None

    def content(self) -> dict[str, Any]:
        """Return the run for `--json`: columns, metrics, time in seconds and disk use in bytes."""
        return {
            **{key: COLUMNS[key].value(self) for key in SORTED_BY},
            "ended": self.ended and self.ended.isoformat(timespec="seconds"),
            "folder": str(self.record.folder),
            "steps": self.record.steps,
            "metrics": {
                name: measured.content() for name, measured in self.record.metrics().items()
            },
            "seen": [images.content() for images in self.record.seen],
        }


def list_run(folder: Path, record: RunRecord) -> ListedRun:
    """Return a run for a list. The name of the run is the path from the listed folder.

    If the listed folder is the run itself, the name is the name of the folder.

    Args:
        folder: Folder whose runs are listed.
        record: Content of the run's folder.
    """
    if record.folder == folder:
        return ListedRun(record.name, record)
    return ListedRun(str(record.folder.relative_to(folder)), record)


def count_states(runs: Sequence[ListedRun]) -> str:
    """Return the number of runs in each state: "3 finished, 1 running"."""
    states = [run.state.split()[0].strip(":,") for run in runs]
    return ", ".join(f"{states.count(state):,} {state}" for state in sorted(set(states)))


def differing_keys(runs: Sequence[ListedRun]) -> dict[str, list[str]]:
    """Return the recipe keys in which runs differ, if the keys change the computation.

    Runs whose recipe has no such key, and runs whose recipe cannot be read, count as equal to all
    other runs.

    Returns:
        `{key: value of each run as text}`, in the order of the recipes.
    """
    recipes, default = [run.settings for run in runs if run.settings], defaults()
    free = {key for run in runs for key in run.record.environment.free}
    keys = dict.fromkeys(key for settings in recipes for key in settings)
    values_by_key = {}
    for key in keys:
        # a key of a plugin has no default: a run without the plugin differs
        compared = [settings for settings in recipes if key in settings or key not in default]
        values = {format_value(settings.get(key, NONE)) for settings in compared}
        if len(values) > 1 and schema.changes_experiment(key, free):
            values_by_key[key] = [format_value(run.settings.get(key, NONE)) for run in runs]
    return values_by_key


def export_problem(export: Path) -> str:
    """Return why an exported encoder cannot be loaded, or an empty text.

    Only the headers of the files are read.
    """
    try:
        export_files.read_config(export)
        # safe_open fails unless the header describes the file up to its last byte
        with safe_open(export / "model.safetensors", framework="numpy"):
            return ""
    except UserError:
        return "export/config.json is missing or damaged"
    except (OSError, SafetensorError):
        return "export/model.safetensors is missing or damaged"


def disk_use(folder: Path) -> int:
    """Return the bytes that a folder occupies, counted like `du` and without following links."""
    sizes = {}
    for path, _, files in os.walk(folder):
        for entry in (path, *(os.path.join(path, name) for name in files)):  # noqa: PTH118
            with suppress(OSError):  # the file was just removed
                status = os.lstat(entry)
                sizes[status.st_dev, status.st_ino] = 512 * status.st_blocks
    return sum(sizes.values())


class Column(NamedTuple):
    """Column of a list of runs.

    Attributes:
        head: Heading.
        value: Function that returns a run's value, or None if the run has no value.
        form: Function that formats a value.
    """

    head: str
    value: Callable[[ListedRun], Any]
    form: Callable[[Any], str] = text_line

    def text(self, run: ListedRun) -> str:
        value = self.value(run)
        return NONE if value is None else self.form(value)

    def ordered(self, runs: Sequence[ListedRun], backwards: bool) -> list[ListedRun]:
        """Return the runs sorted by this column: texts from A to Z, numbers from high to low.

        Runs without a value come last.

        Args:
            runs: Runs to sort.
            backwards: Sort the other way round.
        """
        with_value = [run for run in runs if self.value(run) is not None]
        is_text = bool(with_value) and isinstance(self.value(with_value[0]), str)
        is_descending = backwards if is_text else not backwards
        with_value.sort(key=self.value, reverse=is_descending)
        return with_value + [run for run in runs if self.value(run) is None]


def recipe_column(*keys: str) -> Callable[[ListedRun], Any]:
    """Return a function that looks up the first of these recipe keys that a run has set."""

    def value(run: ListedRun) -> str | None:
        candidates = (run.record.values.get(key) for key in keys)
        return next((format_value(item) for item in candidates if item is not None), None)

    return value


def result_column(name: str) -> Callable[[ListedRun], float | None]:
    """Return a function from a run to a number in result.json, or None for an unfinished run."""
    return lambda run: getattr(run.record.result, name, None)


# {value of sort=: column} of the terminal, the notebook and the page
COLUMNS = {
    "name": Column("run", lambda run: run.name),
    "objective": Column("objective", recipe_column("objective")),
    "data": Column("data", recipe_column("data.name")),
    "model": Column("model", recipe_column("model.name", "model.timm")),
    "state": Column("state", lambda run: run.state),
    "step": Column("steps", lambda run: run.step, "{:,}".format),
    "frozen": Column("frozen encoder", ListedRun.frozen),
    "held out": Column("held out", partial(ListedRun.first_metric, test=False)),
    "test": Column("test", partial(ListedRun.first_metric, test=True)),
    "test images": Column("test images", lambda run: run.record.environment.data.get("test")),
    "learned": Column(
        LEARNED, lambda run: run.count_learned("test") or None, "of {:,} test images".format
    ),
    "total_exaflop": Column(
        "exaFLOP with pre-training", result_column("total_exaflop"), "{:.3g}".format
    ),
    "time": Column("time", result_column("seconds"), format_duration),
    "disk": Column("disk", lambda run: run.disk, format_bytes),
    "ended": Column("ended, UTC", lambda run: run.ended, "{:%Y-%m-%d %H:%M}".format),
    "warnings": Column("warnings", lambda run: run.record.warning_count, str),
}
UNSORTED = ("frozen", "held out", "test", "test images", "learned")
SORTED_BY = [key for key in COLUMNS if key not in UNSORTED]
IN_TERMINAL = [key for key in COLUMNS if key not in ("model", "test images", "learned", "warnings")]
# columns that often have the same value in all runs of a table
SETTINGS = ("objective", "data", "model", "state", "step", "test images", "learned")


def metric_text(run: ListedRun, metric: str) -> str:
    """Describe a metric of a run for a table cell: `76.5% (n = 400); untrained 41.0%`.

    The text has the value, the number of images, the values of untrained weights and of the best
    other baseline, and the limits of the metric (`_caveats`).
    """
    reading = run.measured[metric]
    fresh, baseline = run.fresh_value(metric), run.best_baseline(metric)
    cell = reading.row.text(reading.value, page=True)
    if reading.images:
        cell += f" (n = {reading.count_text})"
    if fresh is not None:
        cell += f"; untrained {reading.row.text(fresh, page=True)}"
    if baseline is not None:
        cell += f"; to beat {reading.row.text(baseline, page=True)}"
    return cell + _caveats(run, reading)


def _caveats(run: ListedRun, reading: MetricReading) -> str:
    """Return the limits of a metric, to follow the metric's value, or an empty text.

    The limits are that the metric is no better than always naming the commonest class, and that the
    encoder has seen or may have seen the measured images before.
    """
    limits = "; not shown to be better than the commonest class" if is_no_better(reading) else ""
    if run.count_learned(reading.split):
        return f"{limits} (do not compare: {LEARNED})"
    if any(seen.unknown for seen in run.record.seen):
        limits += " (unknown whether these images were seen before)"
    if reading.split == "train":
        limits += " (on training images)"
    return limits


def page_columns(runs: Sequence[ListedRun]) -> tuple[list[Column], dict[str, str]]:
    """Return the columns of a table in index.html, for runs of one objective and data set.

    The metrics come first, then the settings in which the runs differ. Metrics by kind of patch
    are the last metrics, because a phone shows only the first columns.

    Returns:
        The columns after the run's name, and `{heading: value}` of the settings that all runs
            share. These settings have no column.
    """
    with use_plugin_rows(*(run.rows for run in runs)):
        return _page_columns(runs)


def _page_columns(runs: Sequence[ListedRun]) -> tuple[list[Column], dict[str, str]]:
    measured: set[tuple[str, str]] = set()  # (metric, split)
    shares: set[str] = set()
    for run in runs:
        measured |= {(name, reading.split) for name, reading in run.measured.items()}
        shares |= {name for name, reading in run.measured.items() if reading.row.unit == SHARE}
    names = {name for name, _ in measured}
    shown = [name for name in dict.fromkeys((*in_order(names), *sorted(shares))) if "/" not in name]
    order = [pair for pair in itertools.product(shown, SPLIT_NAMES) if pair in measured]
    order.sort(key=lambda pair: is_shown_otherwise(pair[0], names))  # by kind of patch last
    metrics: list[Column] = []
    for name, split in order:
        # a name with different meanings in these runs gets separate columns
        meanings = dict.fromkeys(run.measured[name].row for run in runs if name in run.measured)
        for row in meanings:
            metrics += _metric_columns(name, split, row, runs)
    differing_values = differing_keys(runs)
    if differing_values:
        by_name = {}
        for number, run in enumerate(runs):
            settings = [f"{key}={values[number]}" for key, values in differing_values.items()]
            by_name[run.name] = "; ".join(settings)
        metrics.append(Column("what differs", lambda run: by_name[run.name]))
    columns: list[Column] = []
    shared: dict[str, str] = {}
    for column in (COLUMNS[key] for key in SETTINGS):
        values = {column.text(run) for run in runs}
        if len(values) > 1:
            columns.append(column)
        elif values != {NONE}:
            shared[column.head] = values.pop()
    columns += [COLUMNS[key] for key in ("total_exaflop", "time", "ended", "warnings")]
    return metrics + columns, shared


def _metric_columns(
    metric: str, split: str, row: Metric, runs: Sequence[ListedRun]
) -> list[Column]:
    """Return the columns of a metric: its value, untrained weights, the best baseline.

    Baselines that were not measured have no column. The heading of the metric has the number of
    images if all runs have the same number.

    Args:
        metric: Name of the metric.
        split: Split that the metric was measured on.
        row: Description of the metric. Runs in which the name has another description are left out.
        runs: Runs of the table.
    """
    with_metric = [
        run for run in runs if metric in run.measured and run.measured[metric].row == row
    ]
    words = metric.removesuffix(row.name) + row.words
    counts = {run.count(metric) for run in with_metric if run.measured[metric].split == split}
    n = counts.pop() if len(counts) == 1 else None
    # no-break spaces keep the number of images together in a narrow column
    images = f" (n\u00a0=\u00a0{n:,})" if n else ""
    head = f"{words}, {SPLIT_NAMES[split]}{images}"

    def value(run: ListedRun) -> float | None:
        entry = run.measured.get(metric)
        return entry.value if entry and entry.row == row and entry.split == split else None

    def fresh(run: ListedRun) -> float | None:
        return None if value(run) is None else run.fresh_value(metric)

    def to_beat(run: ListedRun) -> float | None:
        return None if value(run) is None else run.best_baseline(metric)

    number = partial(row.text, page=True)
    columns = [Column(head, value, number)]
    for what, value_of in (("of untrained weights", fresh), ("to beat", to_beat)):
        if any(value_of(run) is not None for run in with_metric):
            columns.append(Column(f"{words} {what}, {SPLIT_NAMES[split]}", value_of, number))
    return columns


class RankedGroup(NamedTuple):
    """Runs with comparable values of a metric.

    Attributes:
        facts: `{fact: value}` that all runs share.
        runs: Runs, the best first.
    """

    facts: dict[str, str]
    runs: list[ListedRun]


def rank(runs: Sequence[ListedRun], metric: str) -> list[RankedGroup]:
    """Rank the finished runs that have measured a metric, in groups of comparable runs.

    Runs whose features may have collapsed are left out if a collapse could give the best value.

    Returns:
        The largest group first, and in each group the best run first. All runs of a group have the
            same facts (`_facts`), such as the data set, the split and the measured images.
    """
    by_facts: dict[tuple[tuple[str, str], ...], list[ListedRun]] = {}
    ranked_runs = [
        run
        for run in runs
        if metric in run.measured and run.state == "finished" and not may_be_collapsed(run, metric)
    ]

    def badness(run: ListedRun) -> float:
        reading = run.measured[metric]
        return -reading.value if reading.row.higher else reading.value

    for run in sorted(ranked_runs, key=badness):
        by_facts.setdefault(tuple(_facts(run, metric).items()), []).append(run)
    groups = [RankedGroup(dict(facts), members) for facts, members in by_facts.items()]
    return sorted(groups, key=lambda group: -len(group.runs))


def _comparable(run: ListedRun, split: str, count: int | None) -> dict[str, str]:
    """Return the facts that must be equal for measurements on a split to be comparable.

    Args:
        run: Run that has measured something on the split.
        split: Name of the split.
        count: Number of measured images, or None if unknown.

    Returns:
        `{fact: value}` of the objective and of the images. Unknown facts are left out.
    """
    environment = run.record.environment
    images = environment.data.get(split)  # fingerprint
    # environment.data names the whole set that the validation images are a share of
    if split == "validation" and environment.held_out:
        images = environment.held_out
    facts = {
        "objective": run.record.values.get("objective"),
        "data": run.record.values.get("data.name"),
        "data.size": run.record.values.get("data.size"),
        "n": f"{count:,}" if count else None,
        "images": images,
    }
    return {key: format_value(value) for key, value in facts.items() if value is not None}


def groups(runs: Sequence[ListedRun]) -> list[list[ListedRun]]:
    """Group the runs that can share a table, because no two runs differ in facts of `_comparable`.

    The groups are in the order of their first runs.
    """
    grouped: list[tuple[dict[tuple[str, str], str], list[ListedRun]]] = []
    for run in runs:
        counts = run.record.measured_on
        splits = {reading.split for reading in run.measured.values()} or {"validation"}
        facts: dict[tuple[str, str], str] = {}
        for split in splits:
            for key, value in _comparable(run, split, counts.get(split)).items():
                is_shared = key in ("objective", "data", "data.size")  # by all splits
                facts["" if is_shared else split, key] = value
        for group_facts, members in grouped:
            if all(group_facts.get(fact, value) == value for fact, value in facts.items()):
                group_facts |= facts
                members.append(run)
                break
        else:
            grouped.append((facts, [run]))
    return [members for _, members in grouped]


def _facts(run: ListedRun, metric: str) -> dict[str, str]:
    """Return `{fact: value}` that must be equal for the values of a metric to be comparable.

    The facts depend on the metric. Metrics of a frozen encoder are comparable between objectives,
    but depend on the number of labelled images that the probe was fitted to. Metrics on test images
    depend on the objective. A loss depends also on the keys of the training task, because an easier
    task has a lower loss.
    """
    split, environment = run.measured[metric].split, run.record.environment
    values, learned = run.record.values, run.count_learned(split)
    facts = {"split": split, **_comparable(run, split, run.count(metric))}
    facts.setdefault("images", f"unknown images of {run.name}")
    facts[LEARNED] = f"{learned:,}" if learned else NONE
    if is_frozen_metric(metric):
        result, learned_from = run.record.result, environment.images.get("train")
        if metric.startswith(PROBED):
            learned_from = result.learned_from if result else None
        facts["training images"] = f"{learned_from:,}" if learned_from else NONE
        return {key: value for key, value in facts.items() if key != "objective"}
    if split == "test":
        return facts
    keys = [*keys_of_task(values), *(PART if split == "train" else ())]
    counting = schema.experiment_values(
        {key: run.settings.get(key) for key in keys}, environment.free
    )
    return facts | {key: format_value(counting[key]) for key in sorted(counting)}


def may_be_collapsed(run: ListedRun, metric: str) -> bool:
    """Return whether collapsed features could give the best value of a metric."""
    values = run.record.values
    return declaration.may_reward_collapse(
        metric, str(values.get("objective")), str(values.get("target"))
    )
