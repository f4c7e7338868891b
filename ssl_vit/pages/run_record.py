"""Reads one run's folder as far as it is there: a run that is going on, was cut off or lost files
has a page too. No torch here."""

import math
import re
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from ..callbacks import Row
from ..config import parsing, records
from ..config.fields import Values
from ..config.records import Kind
from ..config.records.run import Environment, Measured, NotFinite, Result
from ..config.schema import Recipe
from ..errors import UserError
from ..runs import lock
from ..runs.folder import Run

FILES = ("recipe.yaml", "environment.json", "metrics.jsonl", "result.json")
WARNING = re.compile(r"\S+ \S+ warning: (.*)")
STARTED = re.compile(r"(\S+ \S+) started at step (\d+)")
LOG_END = 2**20  # bytes of log.txt that are read, from its end


class RunRecord(NamedTuple):
    """What a run's folder holds.

    Attributes:
        values: {dotted key: value} of recipe.yaml; empty where it cannot be read.
        environment: environment.json; empty where it cannot be read.
        result: result.json; None unless the run has finished.
        rows: of metrics.jsonl, by step; of a step that was made twice the later one.
        running: whether a process writes the folder.
        started: the times at which the run was started, as log.txt has them.
        warnings: {one of the last of log.txt: how often it is there}.
        not_finite: steps whose update was skipped.
        problems: files that are missing or damaged.
        updated: when the newest of its files was written.
    """

    folder: Path
    values: Values
    environment: Environment
    result: Result | None
    rows: list[Row]
    running: bool
    started: list[str]
    warnings: dict[str, int]
    not_finite: list[int]
    problems: list[str]
    updated: datetime | None

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def state(self) -> str:
        if self.result is not None:
            return "finished"
        return "running" if self.running else "not finished"

    @property
    def step(self) -> int:
        """The last step that a row is of; 0 without rows."""
        return self.rows[-1]["step"] if self.rows else 0

    @property
    def steps_of_bad_loss(self) -> list[int]:
        """The steps of the rows whose loss, in training or held out, is not finite."""
        names = ("loss", "validation/loss")
        return [
            row["step"]
            for row in self.rows
            if not all(math.isfinite(row[name]) for name in names if name in row)
        ]

    @property
    def warning_count(self) -> int:
        kinds = bool(self.not_finite) + bool(self.steps_of_bad_loss)
        return len(self.problems) + len(self.warnings) + kinds

    @property
    def steps(self) -> int | None:
        """The steps that it is to make; None where that is not known."""
        steps = self.values.get("optim.steps")
        return steps if isinstance(steps, int) and not isinstance(steps, bool) else None

    @property
    def measured_on(self) -> dict[str, int]:
        """{split: how many of its images metrics are measured on}; empty of an older version."""
        of_result = self.result.measured_on if self.result else None
        return of_result or self.environment.measured_on or {}

    def latest(self) -> tuple[int, dict[str, float]]:
        """The last row with held-out metrics: its step and {name: value}; (0, {}) without one."""
        for row in reversed(self.rows):
            found = {
                name.removeprefix("validation/"): value
                for name, value in row.items()
                if name.startswith("validation/")
            }
            if found:
                return row["step"], found
        return 0, {}

    def metrics(self) -> dict[str, Measured]:
        """Those of result.json; of a run that has not finished those of
        its last row with held-out metrics, whose n are images."""
        if self.result is not None:
            return self.result.metrics
        _, values = self.latest()
        images = self.measured_on.get("validation")
        return {
            name: Measured(value=value, split="validation", n=images)
            for name, value in values.items()
        }


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's, or what is left of one."""
    study = (folder / "study.json").exists()
    return not study and any((folder / name).is_file() for name in FILES)


def read_run(folder: Path) -> RunRecord:
    """The run in a folder; what cannot be read is named in `problems`."""
    problems: list[str] = []
    run = Run(Recipe(out=str(folder.parent), name=folder.name))
    values = _values(folder, problems)
    environment = _record(folder / "environment.json", Environment, problems) or Environment()
    result = None
    if (folder / "result.json").exists():
        result = _record(folder / "result.json", Result, problems)
    rows = _rows(run, result, problems)
    log = _log_lines(run.log)
    return RunRecord(
        folder=folder,
        values=values,
        environment=environment,
        result=result,
        rows=rows,
        running=result is None and lock.is_held(folder),
        started=[found[1] for found in map(STARTED.match, log) if found],
        warnings=Counter(found[1] for found in map(WARNING.match, log) if found),
        not_finite=_not_finite(folder / "not_finite.json", problems),
        problems=problems,
        updated=_updated(folder),
    )


def _values(folder: Path, problems: list[str]) -> Values:
    path = folder / "recipe.yaml"
    if not path.exists():
        problems.append("recipe.yaml is missing")
        return {}
    try:
        return parsing.flatten(parsing.load_yaml(path))
    except UserError:
        problems.append("recipe.yaml is damaged")
        return {}


def _record(path: Path, kind: type[Kind], problems: list[str]) -> Kind | None:
    try:
        return records.read(path, kind)
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    except ValueError as error:
        problems.append(f"{path.name} is damaged ({error})")
    return None


def _rows(run: Run, result: Result | None, problems: list[str]) -> list[Row]:
    """The rows of metrics.jsonl. A run that is resumed removes what it makes again; files put
    together by other means have steps twice, which no curve may join."""
    try:
        # counted first: rows that a running run writes from here on are no damaged lines
        lines = run.metrics.read_bytes().count(b"\n") if run.metrics.is_file() else 0
        found = run.rows()
    except OSError as error:
        problems.append(f"metrics.jsonl cannot be read: {error.strerror}")
        return []
    if lines > len(found):  # a last line that is being written has no end
        problems.append(f"metrics.jsonl is damaged: {lines - len(found):,} lines are no rows")
    elif result is not None and result.steps and not found:
        problems.append("metrics.jsonl has no rows: there are no curves")
    rows: list[Row] = []
    for row in reversed(found):
        if not rows or row["step"] < rows[-1]["step"]:
            rows.append(row)
    if len(rows) < len(found):
        again = len(found) - len(rows)
        problems.append(f"metrics.jsonl has steps twice: {again:,} earlier rows are left out")
    return rows[::-1]


def _log_lines(path: Path) -> list[str]:
    if not path.is_file():  # reading a pipe would block
        return []
    with suppress(OSError), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOG_END))
        return file.read().decode(errors="replace").splitlines()
    return []


def _not_finite(path: Path, problems: list[str]) -> list[int]:
    """The steps of not_finite.json."""
    if not path.exists():
        return []
    found = _record(path, NotFinite, problems) or NotFinite(steps={})
    return sorted(int(step) for step in found.steps if step.isascii() and step.isdigit())


def _updated(folder: Path) -> datetime | None:
    times = []
    for name in (*FILES, "log.txt", "not_finite.json", "figures"):
        with suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return datetime.fromtimestamp(max(times), UTC) if times else None
