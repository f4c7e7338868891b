"""A run of a list: what its folder holds, whether that is whole, the columns of every list of runs,
and which of their values compare. No torch here."""

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
from ...formatting import SPLIT_NAMES, duration, format_bytes, format_value, text_line
from ...metrics import (
    FRESH,
    PROBED,
    SHARE,
    Metric,
    Row,
    has_direction,
    in_order,
    is_of_frozen,
    is_split,
    label,
    own_rows,
    rows_of_run,
)
from ...pages.metric_tables import NO_BETTER, Reading, beside_text, is_no_better, readings
from ...pages.run_record import RunRecord
from ...recipe import declaration, export_files, identity
from ...recipe.images import PART
from ...recipe.keys import Values
from ...recipe.schema import defaults
from ...runs import seen_text
from .. import engine

NONE = "-"  # of what a run has not
COMPARES = (
    "Accuracies of frozen encoders compare between objectives, on the same images. Losses and other"
    " accuracies compare only between runs of one objective, target and data."
)
CAUTION = "A difference of two runs is no result: studies compare over seeds, with intervals."
LEARNED = "labels learned before"  # of how many images the initial weights had learned theirs


@dataclass(frozen=True, eq=False)
class ListedRun:
    """A run of a list. What takes a look at its files is found out once, and if it is asked for.

    Attributes:
        name: its folder, from the listed folder.
    """

    name: str
    record: RunRecord

    @cached_property
    def settings(self) -> Values:
        """{key: value} of its recipe, which has the groups of keys that its objective uses, of a
        key that one lacks the default; of an evaluation without optim.*, and probe.pool as it was
        resolved. Empty where the recipe cannot be read."""
        if not self.record.values:
            return {}
        values, result = self.record.values, self.record.result
        groups = {key.rpartition(".")[0] for key in values} - {""}
        usual = {key: one for key, one in defaults().items() if key.rpartition(".")[0] in groups}
        found = usual | values
        pool = (result and result.pool) or found.get("probe.pool")
        unused = ("probe.pool", "optim.") if found.get("objective") == "probe" else ("probe.pool",)
        used = {key: value for key, value in found.items() if not key.startswith(unused)}
        return used | ({"probe.pool": pool} if pool else {})

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
        """finished, running at step N, stopped and where the same command resumes, or damaged with
        the reason."""
        if self.damage:
            return f"damaged: {self.damage}"
        if self.record.result is not None:
            return "finished"
        of = f" of {self.record.steps:,}" if self.record.steps else ""
        if self.record.running:
            return f"running at step {self.step:,}{of}"
        if self.record.steps == 0:  # an evaluation, which has no checkpoints
            return "stopped"
        if saved := self.record.saved_step:
            return f"stopped, resumes after step {saved:,}{of}"
        return "stopped before its first checkpoint"

    @property
    def step(self) -> int:
        return self.record.result.steps if self.record.result else self.record.step

    @property
    def ended(self) -> datetime | None:
        """When it finished, else when it last wrote."""
        if self.record.result:
            with suppress(ValueError):
                found = datetime.fromisoformat(self.record.result.finished)
                return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        return self.record.updated

    @property
    def rows(self) -> list[Row]:
        """What names mean in this run (`metrics.own_rows`)."""
        return rows_of_run(self.record.environment.own_rows, self.record.metrics())

    @cached_property
    def measured(self) -> dict[str, Reading]:
        """Its metrics beside their baselines, without what is not finite."""
        with own_rows(self.record.environment.own_rows):
            found = readings(self.record.metrics(), self.record.measured_on)
        return {one.name: one for one in found if math.isfinite(one.value)}

    def has_direction(self, metric: str) -> bool:
        """Return whether it is known if higher values of a metric are better."""
        with own_rows(self.rows):
            return has_direction(metric)

    def value(self, metric: str) -> float | None:
        """The value of a metric; None where it was not measured."""
        return self.measured[metric].value if metric in self.measured else None

    def count(self, metric: str) -> int | None:
        """The number of images that a metric was measured on, as far as it is known."""
        return self.measured[metric].images or None

    def fresh(self, metric: str) -> float | None:
        """What fresh weights reach in it on the same images; None where that was not measured."""
        beside = self.measured[metric].beside if metric in self.measured else []
        return next((one.value for one in beside if one.place == FRESH), None)

    def to_beat(self, metric: str) -> float | None:
        """The best of its other baselines on the same images; None where none was measured."""
        one = self.measured.get(metric)
        values = [other.value for other in one.beside if other.place != FRESH] if one else []
        if not one or not values:
            return None
        return max(values) if one.row.higher else min(values)

    def learned(self, split: str) -> int:
        """Of how many images of a split its initial weights had learned the labels; 0 where that is
        not recorded."""
        return seen_text.learned_labels(self.record.seen, split)

    @property
    def frozen_measure(self) -> str | None:
        """The name of the first measure of its frozen encoder, of test images if there are some;
        None without one."""
        with own_rows(self.rows):
            known = [name for name in in_order(self.measured) if is_of_frozen(name)]
        tested = [name for name in known if self.measured[name].split == "test"]
        return next(iter([*tested, *known]), None)

    def frozen(self) -> str | None:
        """Return the accuracy of its frozen encoder and the difference from untrained weights, with
        their intervals; None if it was not measured."""
        if (name := self.frozen_measure) is None:
            return None
        one = self.measured[name]
        fresh = [other for other in one.beside if other.place == FRESH]
        with own_rows(self.rows):
            text = f"{label(name)} {beside_text(one._replace(beside=fresh))}"
        return f"{text}{_caveats(self, one)}"

    def first_metric(self, test: bool) -> str | None:
        """Its first metric of the test split, or of held-out images, and the value, without those
        of its frozen encoder; None without one."""
        with own_rows(self.rows):
            for name in in_order(self.measured):
                one = self.measured[name]
                if (one.split == "test") == test and not is_of_frozen(name):
                    return f"{name} {metric_text(self, name)}"
        return None

    def content(self) -> dict[str, Any]:
        """The run for --json: its columns, time in seconds and disk in bytes, and its metrics."""
        return {
            **{key: COLUMNS[key].value(self) for key in SORTED_BY},
            "ended": self.ended and self.ended.isoformat(timespec="seconds"),
            "folder": str(self.record.folder),
            "steps": self.record.steps,
            "metrics": {name: one.content() for name, one in self.record.metrics().items()},
            "seen": [one.content() for one in self.record.seen],
        }


def named(folder: Path, record: RunRecord) -> ListedRun:
    """A run in or below a folder."""
    inside = record.folder != folder
    return ListedRun(str(record.folder.relative_to(folder)) if inside else record.name, record)


def counted(runs: Sequence[ListedRun]) -> str:
    """How many runs are in each state: 3 finished, 1 running."""
    states = [run.state.split()[0].strip(":,") for run in runs]
    return ", ".join(f"{states.count(state):,} {state}" for state in sorted(set(states)))


def differing(runs: Sequence[ListedRun]) -> dict[str, list[str]]:
    """{key: each run's value}, of the keys that change what is computed and have two values among
    the runs that use them. A recipe that cannot be read counts as no difference."""
    known, default = [run.settings for run in runs if run.settings], defaults()
    free = {key for run in runs for key in run.record.environment.free}
    found = {}
    for key in dict.fromkeys(key for one in known for key in one):  # sorted as in the recipes
        using = [one for one in known if key in one or key not in default]
        texts = {format_value(one.get(key, NONE)) for one in using}
        if len(texts) > 1 and identity.counts(key, free):
            found[key] = [format_value(run.settings.get(key, NONE)) for run in runs]
    return found


def export_problem(export: Path) -> str:
    """Why an export cannot be loaded, as far as sizes and headers show; empty where it can."""
    try:
        export_files.read_config(export)
        # the header has to cover the file to its last byte
        with safe_open(export / "model.safetensors", framework="numpy"):
            return ""
    except UserError:
        return "export/config.json is missing or damaged"
    except (OSError, SafetensorError):
        return "export/model.safetensors is missing or damaged"


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
        value: of a run; None where it has none.
        form: a value as text.
    """

    head: str
    value: Callable[[ListedRun], Any]
    form: Callable[[Any], str] = text_line

    def text(self, run: ListedRun) -> str:
        value = self.value(run)
        return NONE if value is None else self.form(value)

    def ordered(self, runs: Sequence[ListedRun], backwards: bool) -> list[ListedRun]:
        """The runs by their values, texts rising and numbers falling, or the other way round; those
        without a value come last."""
        having = [run for run in runs if self.value(run) is not None]
        rising = bool(having) and isinstance(self.value(having[0]), str)
        having.sort(key=self.value, reverse=rising == backwards)
        return having + [run for run in runs if self.value(run) is None]


def of_recipe(*keys: str) -> Callable[[ListedRun], Any]:
    """The value of the first of these keys of a run's recipe that has one, as text."""

    def value(run: ListedRun) -> str | None:
        found = (run.record.values.get(key) for key in keys)
        return next((format_value(one) for one in found if one is not None), None)

    return value


def of_result(name: str) -> Callable[[ListedRun], float | None]:
    """A number of result.json; None of a run that has not finished."""
    return lambda run: getattr(run.record.result, name, None)


# {what sort= takes: column} of terminal, notebook and page
COLUMNS = {
    "name": Column("run", lambda run: run.name),
    "objective": Column("objective", of_recipe("objective")),
    "data": Column("data", of_recipe("data.name")),
    "model": Column("model", of_recipe("model.name", "model.timm")),
    "state": Column("state", lambda run: run.state),
    "step": Column("steps", lambda run: run.step, "{:,}".format),
    "frozen": Column("frozen encoder", ListedRun.frozen),
    "held out": Column("held out", partial(ListedRun.first_metric, test=False)),
    "test": Column("test", partial(ListedRun.first_metric, test=True)),
    "test images": Column("test images", lambda run: run.record.environment.data.get("test")),
    "learned": Column(
        LEARNED, lambda run: run.learned("test") or None, "of {:,} test images".format
    ),
    "total_exaflop": Column(
        "exaFLOP with pre-training", of_result("total_exaflop"), "{:.3g}".format
    ),
    "time": Column("time", of_result("seconds"), duration),
    "disk": Column("disk", lambda run: run.disk, format_bytes),
    "ended": Column("ended, UTC", lambda run: run.ended, "{:%Y-%m-%d %H:%M}".format),
    "warnings": Column("warnings", lambda run: run.record.warning_count, str),
}
UNSORTED = ("frozen", "held out", "test", "test images", "learned")
SORTED_BY = [key for key in COLUMNS if key not in UNSORTED]
IN_TERMINAL = [key for key in COLUMNS if key not in ("model", "test images", "learned", "warnings")]
# mostly shared
SETTINGS = ("objective", "data", "model", "state", "step", "test images", "learned")


def metric_text(run: ListedRun, metric: str) -> str:
    """The value of a metric, the number of images that it was measured on, what fresh weights and
    the best of its other baselines reach there, and what makes it no measure of new images."""
    one = run.measured[metric]
    text = one.row.text(one.value, page=True) + (f" (n = {one.count_text})" if one.images else "")
    if (fresh := run.fresh(metric)) is not None:
        text = f"{text}; fresh weights {one.row.text(fresh, page=True)}"
    if (best := run.to_beat(metric)) is not None:
        text = f"{text}; to beat {one.row.text(best, page=True)}"
    return f"{text}{_caveats(run, one)}"


def _caveats(run: ListedRun, one: Reading) -> str:
    """Say that a metric is no better than always naming the commonest class, and in brackets why it
    does not measure new images; empty where neither is so."""
    text = f"; {NO_BETTER}" if is_no_better(one) else ""
    if run.learned(one.split):
        return f"{text} ({LEARNED}: no sound comparison)"
    if any(seen.unknown for seen in run.record.seen):
        text = f"{text} (whether it was seen before is not known)"
    return f"{text} (on training images)" if one.split == "train" else text


def of_page(runs: Sequence[ListedRun]) -> tuple[list[Column], dict[str, str]]:
    """The columns of a table of index.html after the run's name, of runs of one objective and data
    set: metrics come first, each of one split; those by kind of patch are the last of them, so that
    a phone shows the others. And what all of its runs share, {head: text}, which needs no
    column."""
    with own_rows(*(run.rows for run in runs)):
        return _of_page(runs)


def _of_page(runs: Sequence[ListedRun]) -> tuple[list[Column], dict[str, str]]:
    measured = {(name, one.split) for run in runs for name, one in run.measured.items()}
    names = {name for name, _ in measured}
    # a name that means different things in these runs has no row of its own here
    shares = {name for run in runs for name, one in run.measured.items() if one.row.unit == SHARE}
    shown = [name for name in dict.fromkeys((*in_order(names), *sorted(shares))) if "/" not in name]
    order = [one for one in itertools.product(shown, SPLIT_NAMES) if one in measured]
    order.sort(key=lambda one: is_split(one[0], names))
    texts = {key: {COLUMNS[key].text(run) for run in runs} for key in SETTINGS}
    shared = {COLUMNS[key].head: min(of) for key, of in texts.items() if len(of) == 1}
    rest = [key for key, of in texts.items() if len(of) > 1]
    columns = [COLUMNS[key] for key in (*rest, "total_exaflop", "time", "ended", "warnings")]
    metrics = [
        column
        for name, split in order
        for row in dict.fromkeys(run.measured[name].row for run in runs if name in run.measured)
        for column in _of_metric(name, split, row, runs)
    ]
    if found := differing(runs):
        lines = [
            "; ".join(f"{key}={values[number]}" for key, values in found.items())
            for number in range(len(runs))
        ]
        by_name = dict(zip([run.name for run in runs], lines, strict=True))
        metrics.append(Column("what differs", lambda run: by_name[run.name]))
    return metrics + columns, {head: text for head, text in shared.items() if text != NONE}


def _of_metric(metric: str, split: str, row: Metric, runs: Sequence[ListedRun]) -> list[Column]:
    """Return the columns of a metric on one split, for the runs in which its name means that row:
    the metric, and next to it the values of fresh weights and of the best other baseline if they
    were measured. The head has the number of images if it is the same in all runs."""
    of = [run for run in runs if metric in run.measured and run.measured[metric].row == row]
    called = metric.removesuffix(row.name) + row.words
    counts = {run.count(metric) for run in of if run.measured[metric].split == split}
    head = f"{called}, {SPLIT_NAMES[split]}"
    if len(counts) == 1 and (n := counts.pop()):
        # of no-break spaces: a narrow column does not part it
        head = f"{head} (n\u00a0=\u00a0{n:,})"

    def value(run: ListedRun) -> float | None:
        entry = run.measured.get(metric)
        return entry.value if entry and entry.row == row and entry.split == split else None

    def fresh(run: ListedRun) -> float | None:
        return None if value(run) is None else run.fresh(metric)

    def to_beat(run: ListedRun) -> float | None:
        return None if value(run) is None else run.to_beat(metric)

    number = partial(row.text, page=True)
    columns = [Column(head, value, number)]
    for what, found in (("of fresh weights", fresh), ("to beat", to_beat)):
        if any(found(run) is not None for run in of):
            columns.append(Column(f"{called} {what}, {SPLIT_NAMES[split]}", found, number))
    return columns


class RankedGroup(NamedTuple):
    """Runs whose values of a metric compare.

    Attributes:
        facts: {what: value} that all of them share.
        runs: the best one first.
    """

    facts: dict[str, str]
    runs: list[ListedRun]


def rank(runs: Sequence[ListedRun], metric: str) -> list[RankedGroup]:
    """The finished and sound runs that have a metric, the best first, in groups that compare, the
    largest group first: one data set and split, measured on the same images and, unless the metric
    is of the frozen encoder, one objective."""
    by_facts: dict[tuple[tuple[str, str], ...], list[ListedRun]] = {}
    known = [
        run
        for run in runs
        if metric in run.measured and run.state == "finished" and not tells_nothing(run, metric)
    ]

    def place(run: ListedRun) -> float:
        one = run.measured[metric]
        return -one.value if one.row.higher else one.value

    for run in sorted(known, key=place):
        by_facts.setdefault(tuple(_facts(run, metric).items()), []).append(run)
    found = [RankedGroup(dict(facts), same) for facts, same in by_facts.items()]
    return sorted(found, key=lambda group: -len(group.runs))


def _comparable(run: ListedRun, split: str, count: int | None) -> dict[str, str]:
    """What has to be equal for what is measured on a split to compare, as far as it is known: the
    objective, and which images, how many, and of what size."""
    environment = run.record.environment
    images = environment.data.get(split)
    if split == "validation":  # of which environment.data names the whole that they are a share of
        images = environment.held_out or images
    facts = {
        "objective": run.record.values.get("objective"),
        "data": run.record.values.get("data.name"),
        "data.size": run.record.values.get("data.size"),
        "n": f"{count:,}" if count else None,
        "images": images,
    }
    return {key: format_value(value) for key, value in facts.items() if value is not None}


def groups(runs: Sequence[ListedRun]) -> list[list[ListedRun]]:
    """The runs that may stand in one table: no two differ in what `_comparable` knows of a split.
    The groups are in the order of their first runs."""
    found: list[tuple[dict[tuple[str, str], str], list[ListedRun]]] = []
    for run in runs:
        counts = run.record.measured_on
        splits = {one.split for one in run.measured.values()} or {"validation"}
        own = {
            (key if key in ("objective", "data", "data.size") else split, key): value
            for split in splits
            for key, value in _comparable(run, split, counts.get(split)).items()
        }
        for known, same in found:
            if all(known.get(fact, value) == value for fact, value in own.items()):
                known |= own
                same.append(run)
                break
        else:
            found.append((own, [run]))
    return [same for _, same in found]


def _facts(run: ListedRun, metric: str) -> dict[str, str]:
    """What has to be equal for the values of a metric to compare. Of images that the objective
    corrupts or crops also how it does, by its own keys: an easier task has a lower loss. A frozen
    encoder is measured in the same way whatever its objective, but probes in a training run learn
    from fewer images if its steps take little work."""
    split, environment = run.measured[metric].split, run.record.environment
    values, learned = run.record.values, run.learned(split)
    facts = {"split": split, **_comparable(run, split, run.count(metric))}
    facts.setdefault("images", f"those of {run.name}, which are not known")
    facts[LEARNED] = f"{learned:,}" if learned else NONE
    if is_of_frozen(metric):
        result, learned_from = run.record.result, environment.images.get("train")
        if metric.startswith(PROBED):
            learned_from = result.learned_from if result else None
        facts["training images"] = f"{learned_from:,}" if learned_from else NONE
        return {key: value for key, value in facts.items() if key != "objective"}
    if split == "test":
        return facts
    keys = [*engine.keys_of_task(values), *(PART if split == "train" else ())]
    counting = identity.counted({key: run.settings.get(key) for key in keys}, environment.free)
    return facts | {key: format_value(counting[key]) for key in sorted(counting)}


def tells_nothing(run: ListedRun, metric: str) -> bool:
    """Whether the best value of a metric may be that of collapsed features."""
    values = run.record.values
    return declaration.tells_nothing(
        metric, str(values.get("objective")), str(values.get("target"))
    )
