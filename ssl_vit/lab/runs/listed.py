"""Describe a run for lists of runs: the state, the columns, and which values are comparable.

The module does not import torch.
"""

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
from ...formatting import format_bytes, format_duration, format_value, text_line
from ...measurements import UNTRAINED, Row, flat_name, read_flat_name, rows_of_run, use_plugin_rows
from ...metrics import has_direction, in_order, is_frozen_metric
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
from ...recipe.records.run import Environment
from ...recipe.schema import defaults
from ...runs import seen_text
from ...runs.identity import keys_of_prediction

NONE = "-"  # shown for a missing value
WHAT_IS_COMPARABLE = (
    "Accuracies of frozen encoders on the same images are comparable between objectives. Losses and"
    " other accuracies are comparable only between runs of one objective, target and data set."
)
CAUTION = (
    "A difference between two runs may be chance. To judge it, run a study, which compares several"
    " seeds and gives intervals."
)
# name of a fact: the number of images whose labels the initial weights had learned
LEARNED = "labels learned before"


@dataclass(frozen=True, eq=False)
class ListedRun:
    """Run in a list. Values from the run's files are read once, on first use.

    Attributes:
        name: Path of the run's folder from the listed folder.
        record: Content of the run's folder.
    """

    name: str
    record: RunRecord

    @cached_property
    def settings(self) -> Values:
        """`{key: value}` of the recipe, completed with defaults.

        Defaults are added for the groups of the recipe's keys. For example, a recipe with
        `optim.lr` also gets the default of `optim.warmup`. There are two exceptions. An evaluation
        has no `optim.*`, because it trains nothing. `probe.pool` is the pooling that was used. The
        settings are empty if the recipe cannot be read.
        """
        values, result = self.record.values, self.record.result
        if not values:
            return {}
        # the group of `optim.lr` is `optim`, and a key without a dot has no group
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
        """Missing or damaged files of the run and of the export, in words, or an empty text."""
        problems = list(self.record.problems)
        values = self.record.values
        # an unfinished run and an evaluation (the objective `probe`) have no export
        if self.record.result is not None and values and values.get("objective") != "probe":
            problems.append(export_problem(self.record.folder / "export"))
        return "; ".join(filter(None, problems))

    @cached_property
    def disk(self) -> int:
        """Bytes that the run's folder occupies."""
        return disk_use(self.record.folder)

    @property
    def state(self) -> str:
        """State in words, such as "finished" or "running at step 1,200 of 5,000".

        A damaged run has the reason: "damaged: recipe.yaml is missing". A stopped run resumes if
        its command is repeated: "stopped, resumes after step 1,000 of 5,000".
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
        """Time when the run finished. For an unfinished run, the time of the last written file."""
        if self.record.result:
            with suppress(ValueError):
                moment = datetime.fromisoformat(self.record.result.finished)
                return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        return self.record.updated

    @property
    def rows(self) -> list[Row]:
        """Definitions of the run's metrics and baselines (`measurements.rows_of_run`)."""
        measured = [measurement.key for measurement in self.record.measurements()]
        return rows_of_run(self.record.environment.plugin_rows, measured)

    @cached_property
    def measured(self) -> dict[str, MetricReading]:
        """Finite metrics with baselines, by name."""
        with use_plugin_rows(self.record.environment.plugin_rows):
            with_baselines = read_metrics(self.record.measurements(), self.record.measured_on)
        return {reading.name: reading for reading in with_baselines if math.isfinite(reading.value)}

    def has_direction(self, metric: str) -> bool:
        """Return whether it is known if higher or lower values of a metric are better."""
        with use_plugin_rows(self.rows):
            return has_direction(read_flat_name(metric))

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
            (baseline.value for baseline in baselines if baseline.substitute == UNTRAINED), None
        )

    def best_baseline(self, metric: str) -> float | None:
        """Return the value of the best baseline on the same images, or None without a baseline.

        Baselines are, for example, always naming the commonest class, or k-NN on raw pixels.
        Untrained weights do not count, because lists of runs have a separate text for them.
        """
        reading = self.measured.get(metric)
        if reading is None:
            return None
        # `substitute` says what replaces the encoder in the baseline
        values = [
            baseline.value for baseline in reading.comparisons if baseline.substitute != UNTRAINED
        ]
        best = max if reading.row.higher else min
        return best(values, default=None)

    def count_learned(self, split: str) -> int:
        """Return the number of images of a split whose labels the initial weights had learned.

        The result is 0 if the number is not recorded.
        """
        return seen_text.learned_labels(self.record.seen, split)

    def _in_order(self) -> list[MetricReading]:
        """Return the measured metrics, the most important first.

        The caller must have entered `use_plugin_rows(self.rows)`, so that the order includes the
        metrics of the run's plugin.
        """
        keys = in_order(reading.key for reading in self.measured.values())
        return [self.measured[flat_name(key)] for key in keys]

    def frozen(self) -> str | None:
        """Describe the frozen encoder's accuracy and the difference from untrained weights.

        The accuracy and the difference each have a 95% interval. The accuracy is the most important
        metric of the frozen encoder, preferably on test images. The result is None if the run did
        not measure the frozen encoder.
        """
        with use_plugin_rows(self.rows):
            readings = [reading for reading in self._in_order() if is_frozen_metric(reading.key)]
            if not readings:
                return None
            reading = min(readings, key=lambda reading: reading.split != "test")
            # `largest=reading` leaves out the note on the number of images
            metric_name = measure_text(reading, largest=reading)
            return f"{metric_name} {value_with_fresh(reading)}{_caveats(self, reading)}"

    def first_metric(self, test: bool) -> str | None:
        """Describe the most important metric of the trained model, or return None without any.

        Metrics of the frozen encoder do not count. Metrics that a plugin declares do count.

        Args:
            test: Whether to take a metric of test images (True) or of other images (False).
        """
        with use_plugin_rows(self.rows):
            for reading in self._in_order():
                is_tested = reading.split == "test"
                if is_tested == test and not is_frozen_metric(reading.key):
                    return f"{reading.name} {metric_text(self, reading.name)}"
        return None

    def content(self) -> dict[str, Any]:
        """Return the run for `--json`: columns, metrics, time in seconds and disk use in bytes.

        Only the columns of SORTED_BY are included. The other columns are texts about metrics, and
        `measurements` has the numbers of these metrics. `seen` counts the test and held-out images
        that the run, or a run that its weights come from, was trained on.
        """
        return {
            **{key: COLUMNS[key].value(self) for key in SORTED_BY},
            "ended": self.ended and self.ended.isoformat(timespec="seconds"),
            "folder": str(self.record.folder),
            "steps": self.record.steps,
            "measurements": [measurement.content() for measurement in self.record.measurements()],
            "seen": [images.content() for images in self.record.seen],
        }


def list_run(folder: Path, record: RunRecord) -> ListedRun:
    """Name a run for a list of runs: by the path from the listed folder to the run's folder.

    If the listed folder is the run itself, the run has the name of the folder.

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
    """Return the recipe keys that differ between runs and change the computation.

    Some runs lack a key. An evaluation, for example, has no learning rate. A run that lacks a key
    of ssl_vit is ignored for this key. A run that lacks a key of a plugin was made without the
    plugin, so it differs from the runs with this key. Runs whose recipe cannot be read are always
    ignored.

    Returns:
        `{key: value of each run as text}`, in the order of the recipes.
    """
    all_settings = [run.settings for run in runs if run.settings]
    default_values = defaults()
    # keys of plugins that do not change the computation, as declared by the plugins
    free_keys = {key for run in runs for key in run.record.environment.free}
    keys = dict.fromkeys(key for settings in all_settings for key in settings)
    values_by_key = {}
    for key in keys:
        is_of_plugin = key not in default_values
        # A run without this key is ignored if the key belongs to ssl_vit. If the key belongs to a
        # plugin, the run has the value NONE
        compared = [settings for settings in all_settings if key in settings or is_of_plugin]
        values = {format_value(settings.get(key, NONE)) for settings in compared}
        if len(values) > 1 and schema.changes_experiment(key, free_keys):
            values_by_key[key] = [format_value(run.settings.get(key, NONE)) for run in runs]
    return values_by_key


def export_problem(export: Path) -> str:
    """Return why an exported encoder cannot be loaded, or an empty text.

    config.json is read completely. Of the weights, only the header is read.
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
    """Return the bytes that a folder occupies, counted like `du` and without following links.

    A file with several names in the folder (hard links) counts once.
    """
    sizes = {}  # {(device, inode): bytes}
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
            backwards: Sort texts from Z to A, and numbers from low to high.
        """
        with_value = [run for run in runs if self.value(run) is not None]
        is_text = bool(with_value) and isinstance(self.value(with_value[0]), str)
        # with `backwards`: texts from Z to A, numbers from low to high
        # without `backwards`: texts from A to Z, numbers from high to low
        is_descending = backwards == is_text
        with_value.sort(key=self.value, reverse=is_descending)
        return with_value + [run for run in runs if self.value(run) is None]


def recipe_column(*keys: str) -> Callable[[ListedRun], Any]:
    """Return a function that returns a run's value of the first of these recipe keys that is set.

    The function returns the value as text, or None if the run has none of the keys.
    """

    def value(run: ListedRun) -> str | None:
        candidates = (run.record.values.get(key) for key in keys)
        return next((format_value(item) for item in candidates if item is not None), None)

    return value


def result_column(name: str) -> Callable[[ListedRun], float | None]:
    """Return a function that returns a number in the result.json of a run.

    For an unfinished run, the function returns None.
    """
    return lambda run: getattr(run.record.result, name, None)


# {value of sort=: column} of the terminal and the notebook
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
    "total_exaflop": Column(
        "exaFLOP with pre-training", result_column("total_exaflop"), "{:.3g}".format
    ),
    "time": Column("time", result_column("seconds"), format_duration),
    "disk": Column("disk", lambda run: run.disk, format_bytes),
    "ended": Column("ended, UTC", lambda run: run.ended, "{:%Y-%m-%d %H:%M}".format),
    "warnings": Column("warnings", lambda run: run.record.warning_count, str),
}
UNSORTED = ("frozen", "held out", "test")
SORTED_BY = [key for key in COLUMNS if key not in UNSORTED]
IN_TERMINAL = [key for key in COLUMNS if key not in ("model", "warnings")]


def metric_text(run: ListedRun, metric: str) -> str:
    """Describe a metric of a run for a table cell: `76.5% (n = 400); untrained 41.0%`.

    The text has the value, the number of images, the values of untrained weights and of the best
    other baseline, and the limits of the metric (`_caveats`).
    """
    reading = run.measured[metric]
    untrained_value, baseline_value = run.fresh_value(metric), run.best_baseline(metric)
    text = reading.row.text(reading.value, page=True)
    if reading.images:
        text += f" (n = {reading.count_text})"
    if untrained_value is not None:
        text += f"; untrained {reading.row.text(untrained_value, page=True)}"
    if baseline_value is not None:
        text += f"; to beat {reading.row.text(baseline_value, page=True)}"
    return text + _caveats(run, reading)


def _caveats(run: ListedRun, reading: MetricReading) -> str:
    """Return the limits of a metric, to follow the metric's value, or an empty text.

    The limits are, in this order:
    - the metric is no better than always naming the commonest class,
    - the encoder has learned labels of the measured images (this makes the value worthless, so the
      further limits are then left out),
    - it is unknown whether the encoder has seen the images,
    - the images are training images.
    """
    text = "; not shown to be better than the commonest class" if is_no_better(reading) else ""
    if run.count_learned(reading.split):
        return f"{text} (do not compare: {LEARNED})"
    if any(seen.unknown for seen in run.record.seen):
        text += " (unknown whether the encoder was trained on these images)"
    if reading.split == "train":
        text += " (on training images)"
    return text


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

    Some metrics have their best value if all features are equal (`may_be_collapsed`). Runs are left
    out if this is possible for the metric and the run's objective.

    Returns:
        The largest group first, and in each group the best run first. All runs of a group have the
            same facts (`_ranking_facts`), such as the data set, the split and the measured images.
    """
    runs_by_facts: dict[tuple[tuple[str, str], ...], list[ListedRun]] = {}
    runs_to_rank = [
        run
        for run in runs
        if metric in run.measured and run.state == "finished" and not may_be_collapsed(run, metric)
    ]

    def badness(run: ListedRun) -> float:
        reading = run.measured[metric]
        return -reading.value if reading.row.higher else reading.value

    for run in sorted(runs_to_rank, key=badness):
        facts = tuple(_ranking_facts(run, metric).items())
        runs_by_facts.setdefault(facts, []).append(run)
    groups = [RankedGroup(dict(shared), members) for shared, members in runs_by_facts.items()]
    return sorted(groups, key=lambda group: -len(group.runs))


def _comparable_facts(run: ListedRun, split: str, count: int | None) -> dict[str, str]:
    """Return the facts that two runs must share for their metrics on a split to be comparable.

    Args:
        run: Run that has measured something on the split.
        split: Name of the split.
        count: Number of measured images, or None if unknown.

    Returns:
        `{fact: value}`: the objective, the data set (`data`), the image size (`data.size`), the
            number of measured images (`n`) and the fingerprint of the split's images (`images`).
            Unknown facts are left out.
    """
    facts = {
        "objective": run.record.values.get("objective"),
        "data": run.record.values.get("data.name"),
        "data.size": run.record.values.get("data.size"),
        "n": f"{count:,}" if count else None,
        "images": _images_fingerprint(run.record.environment, split),
    }
    return {key: format_value(value) for key, value in facts.items() if value is not None}


def _images_fingerprint(environment: Environment, split: str) -> str | None:
    """Return the fingerprint of a split's images from a run's environment.json, or None.

    If a share of the training images is held out as the validation split, the fingerprint is that
    of this share, and not that of all training images.
    """
    if split == "validation" and environment.held_out:
        return environment.held_out
    return environment.data.get(split)


def _ranking_facts(run: ListedRun, metric: str) -> dict[str, str]:
    """Return the facts that two runs must share for their values of a metric to be comparable.

    For all metrics, the facts include the data set, the image size, the split, the measured images,
    and the number of these images whose labels the weights have learned. The other facts depend on
    the metric:

    - A metric of a frozen encoder, such as `knn`: the number of labelled images that the probe was
      fitted to. The objectives may differ.
    - Any other metric on test images: the objective.
    - Any other metric on held-out images, such as a loss: the objective, and the keys that make the
      training task easier or more difficult.
    - Any other metric on training images: the same facts as on held-out images, and also the keys
      that choose the training images.

    Returns:
        `{fact: value}`.
    """
    reading, environment = run.measured[metric], run.record.environment
    split = reading.split
    learned = run.count_learned(split)
    facts = {"split": split, **_comparable_facts(run, split, run.count(metric))}
    # a run with unknown images is not comparable with any other run
    facts.setdefault("images", f"unknown images of {run.name}")
    facts[LEARNED] = f"{learned:,}" if learned else NONE
    if is_frozen_metric(reading.key):
        facts.pop("objective", None)
        num_fitted = environment.images.get("train")
        if reading.key.is_probe:  # measured by a training run, on fewer images
            num_fitted = run.record.result.learned_from if run.record.result else None
        facts["training images"] = f"{num_fitted:,}" if num_fitted else NONE
        return facts
    if split == "test":
        return facts
    keys = keys_of_prediction(run.record.values)
    if split == "train":
        keys += PART  # keys such as `data.share`, which choose a part of the training images
    settings = {key: run.settings.get(key) for key in keys}
    # leave out keys that change no result: `environment.free` has such keys of the run's plugin
    deciding = schema.experiment_values(settings, environment.free)
    return facts | {key: format_value(deciding[key]) for key in sorted(deciding)}


def may_be_collapsed(run: ListedRun, metric: str) -> bool:
    """Return whether collapsed features (equal for all images) could give a metric's best value."""
    values = run.record.values
    return declaration.may_reward_collapse(
        metric, str(values.get("objective")), str(values.get("target"))
    )
