"""All runs below a folder, one line each: state, metrics, cost, disk use. No torch here."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from ...config import export_files
from ...config.records import Measured, Result
from ...errors import UserError
from ...formatting import NOT_COUNTED, duration, text_line
from ...metrics import is_of_model
from ...pages import metric_tables
from ...pages.run_record import RunRecord, is_run, read_run
from .index_page import NONE, columns, differences

DEEPEST = 8  # levels of folders that are looked through
HEAD = ("run", "objective", "state", "step", "held out", "test", "exaFLOP", "time", "disk", "age")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class ListedRun(NamedTuple):
    """A run of the list.

    Attributes:
        name: its folder, from the listed folder.
        damage: why its files cannot be relied on; empty where they can.
        disk: bytes that its folder occupies.
    """

    name: str
    record: RunRecord
    damage: str
    disk: int

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

    @property
    def exaflop(self) -> float | None:
        """None where they were not counted, and of a run that has not finished."""
        result = self.record.result
        return result.exaflop if result and result.has("exaflop") else None

    @property
    def ended(self) -> datetime | None:
        """When it finished, else when it last wrote."""
        if self.record.result:
            with suppress(ValueError):
                found = datetime.fromisoformat(self.record.result.finished)
                return found if found.tzinfo else found.replace(tzinfo=UTC)
        return self.record.updated

    @property
    def measured(self) -> dict[str, Measured]:
        """Its metrics as RunRecord.metrics, without baselines and what is not finite."""
        return {
            name: entry
            for name, entry in self.record.metrics().items()
            if is_of_model(name) and math.isfinite(entry.value)
        }

    def main_metric(self, test: bool) -> str | None:
        """The name of its first metric, by the order of the index's columns, of the test split or
        of held-out images; None without one."""
        of_split = [name for name, one in self.measured.items() if (one.split == "test") == test]
        for known in columns():
            for name in of_split:
                if name == known or name.endswith(f"/{known}"):
                    return name
        return None


def find_runs(folder: Path) -> list[Path]:
    """The runs in a folder and in the folders below it (studies), by name; of a run's folder the
    run. Folders inside a run are not looked at."""
    return list(_found(folder, set(), DEEPEST))


def _found(folder: Path, seen: set[Path], levels: int) -> Iterator[Path]:
    with suppress(OSError):  # a folder of others
        if folder.resolve() in seen or levels < 0:
            return
        seen.add(folder.resolve())  # links can lead back
        if is_run(folder):
            yield folder
            return
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.name.startswith("."):
                yield from _found(child, seen, levels - 1)


def read_runs(folder: Path) -> list[ListedRun]:
    """The runs in and below a folder.

    Raises:
        UserError: there is none.
    """
    paths = find_runs(folder)
    if not paths:
        raise UserError(f"{folder}: expected a folder with runs in it, at any depth; none is there")
    return [_listed(folder, path) for path in paths]


def _listed(folder: Path, path: Path) -> ListedRun:
    record = read_run(path)
    name = str(path.relative_to(folder)) if path != folder else path.resolve().name
    return ListedRun(name, record, damage(record), disk_use(path))


def damage(record: RunRecord) -> str:
    """What of a run is missing or damaged, its export included; empty where nothing is."""
    problems = list(record.problems)
    if record.result is not None and record.values and record.values.get("objective") != "probe":
        problems += [text for text in [export_problem(record.folder / "export")] if text]
    return "; ".join(problems)


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


def format_bytes(size: int) -> str:
    """Bytes for people: 14.2 MiB."""
    value = float(size)
    for unit in UNITS[:-1]:
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} {UNITS[-1]}"


def differing(runs: Sequence[ListedRun]) -> dict[str, list[str]]:
    """{key: each run's value}, of the keys in which recipes differ; `-` for a run whose recipe
    cannot be read, which counts as no difference."""
    readable = [run.record for run in runs if run.record.values]
    found = differences(readable)
    texts = {id(one): place for place, one in enumerate(readable)}
    return {
        key: [values[texts[id(run.record)]] if run.record.values else NONE for run in runs]
        for key, values in found.items()
    }


def row(run: ListedRun, now: datetime) -> list[str]:
    """A run as the texts of HEAD's columns."""
    result = run.record.result
    steps = f"{run.step:,}"
    if run.record.steps and run.record.values.get("objective") != "probe":
        steps += f" of {run.record.steps:,}"
    seconds = result.seconds if result else math.nan
    return [
        text_line(run.name),
        _objective(run.record),
        text_line(run.state),
        steps,
        _metric(run, test=False),
        _metric(run, test=True),
        _exaflop(result),
        duration(seconds) if math.isfinite(seconds) else NONE,
        format_bytes(run.disk),
        NONE if run.ended is None else _age(now - run.ended),
    ]


def _exaflop(result: Result | None) -> str:
    if result is None or not result.has("exaflop"):
        return NONE
    return NOT_COUNTED if result.exaflop is None else f"{result.exaflop:.3g}"


def _objective(record: RunRecord) -> str:
    """The objective and, of a recipe file with another name, that name."""
    objective = str(record.values.get("objective", NONE))
    recipe = record.environment.recipe_file and record.environment.recipe_file.name
    return text_line(objective if recipe in (None, objective) else f"{objective} ({recipe})")


def _metric(run: ListedRun, test: bool) -> str:
    name = run.main_metric(test)
    if name is None:
        return NONE
    entry = run.measured[name]
    text = f"{name} {metric_tables.with_count(name, entry, run.record.measured_on)}"
    return f"{text} (on training images)" if entry.split == "train" else text


def _age(age: Any) -> str:
    minutes = max(0, int(age.total_seconds() // 60))
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} d"


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table in columns, two blanks apart."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *rows)
    ]
