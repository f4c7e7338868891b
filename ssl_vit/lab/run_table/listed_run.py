"""A run of a table: what its folder holds, whether that is whole, and what it occupies. No torch
here."""

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ...config import computed, export_files
from ...config.records.run import Measured
from ...errors import UserError
from ...formatting import format_value
from ...metrics import all_metrics, is_of_model
from ...pages import metric_tables
from ...pages.run_record import RunRecord, read_run
from ...runs import seen_text
from . import run_search

NONE = "-"  # of what a run has not


@dataclass(frozen=True, eq=False)
class ListedRun:
    """A run of a table. What takes a look at its files is found out once, and if it is asked for.

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

    @property
    def is_unsure(self) -> bool:
        """Whether it is not known which images its first weights were trained on."""
        return any(one.unknown for one in self.record.environment.seen or ())

    def metric_text(self, metric: str) -> str:
        """The value of a metric and the number of images that it was measured on."""
        if metric not in self.measured:
            return NONE
        entry = self.measured[metric]
        return metric_tables.with_count(metric, entry, self.record.measured_on)

    def main_metric(self, test: bool) -> str | None:
        """The name of its first metric, by the order of the index's columns, of the test split or
        of held-out images; None without one."""
        of_split = [name for name, one in self.measured.items() if (one.split == "test") == test]
        for known in metric_columns():
            for name in of_split:
                if name == known or name.endswith(f"/{known}"):
                    return name
        return None

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


def read_runs(folder: Path) -> list[ListedRun]:
    """The runs in and below a folder. Raises as `run_search.find`."""
    return [listed(folder, read_run(path)) for path in run_search.find(folder).runs]


def counted(states: Sequence[str]) -> str:
    """How many runs are in each state: 3 finished, 1 running."""
    return ", ".join(f"{states.count(state):,} {state}" for state in sorted(set(states)))


def metric_columns() -> dict[str, str]:
    """{metric: the head of its column}, in their order; a run of the folder has to have it."""
    return {row.name: row.column for row in all_metrics() if row.column}


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
    total = 0
    seen = set()
    for path, _, files in os.walk(folder):
        for entry in (path, *(os.path.join(path, name) for name in files)):  # noqa: PTH118
            with suppress(OSError):  # a file that is removed meanwhile
                found = os.lstat(entry)
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    total += 512 * found.st_blocks
    return total
