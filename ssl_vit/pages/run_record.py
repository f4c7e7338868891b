"""Read the folder of a run as far as possible. A run that is in progress, was cut off or has lost
files has a page, too.

This module does not import torch.
"""

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import UserError
from ..measurements import MetricKey, flat_name, read_flat_names, use_plugin_rows
from ..recipe import parsing, recipe_files, records
from ..recipe.keys import Values
from ..recipe.records import Kind
from ..recipe.records.run import (
    Environment,
    Measurement,
    NotFinite,
    Result,
    SeenImages,
    known,
)
from ..recipe.schema import Recipe
from ..runs import lock, seen_text
from ..runs.checkpoint_files import list_checkpoints, step_of
from . import curves
from .curves import Curve, MetricRows

FILES = ("recipe.yaml", "environment.json", "metrics.jsonl", "result.json")
WARNING = re.compile(r"\S+ \S+ warning: (.*)")
STARTED = re.compile(r"(\S+ \S+) started at step (\d+)")
LOG_END = 2**20  # bytes at the end of log.txt that are read


@dataclass(frozen=True, eq=False)
class RunRecord:
    """Content of a run's folder.

    Attributes:
        values: `{dotted key: value}` of recipe.yaml. Empty if the file cannot be read.
        environment: Content of environment.json. Empty if the file cannot be read.
        result: Content of result.json. None if the run has not finished or the file cannot be read.
        rows: Content of metrics.jsonl.
        running: Whether a process is writing to the folder.
        started: Times at which the run was started, as written in log.txt.
        warnings: `{warning: number of times}`, from the end of log.txt.
        not_finite: Steps whose update was skipped.
        problems: Files that are missing or damaged, in words.
        updated: Time at which the newest file was written.
    """

    folder: Path
    values: Values
    environment: Environment
    result: Result | None
    rows: MetricRows
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
        """State in words: "finished", "running" or "not finished"."""
        if self.result is not None:
            return "finished"
        return "running" if self.running else "not finished"

    @property
    def saved_step(self) -> int:
        """Step of the newest checkpoint, after which the run resumes, or 0 without a checkpoint."""
        return max(map(step_of, list_checkpoints(self.folder / "checkpoints")), default=0)

    @property
    def step(self) -> int:
        """Last step with a row of metrics or a checkpoint, or 0 without any."""
        logged = int(self.rows.steps[-1]) if len(self.rows.steps) else 0
        return max(logged, self.saved_step)

    @cached_property
    def recipe(self) -> Recipe | None:
        """Recipe in recipe.yaml, or None if this version cannot read the file."""
        with suppress(UserError):
            return recipe_files.read(self.folder / "recipe.yaml") if self.values else None
        return None

    @cached_property
    def steps_of_bad_loss(self) -> list[int]:
        """Steps at which the training loss or the held-out loss is not finite."""
        names = ("loss", flat_name(MetricKey("loss", is_held_out=True)))
        losses = map(self.rows.curves.get, names)
        steps = [curve.steps[~np.isfinite(curve.values)] for curve in losses if curve]
        return [int(step) for step in np.unique(np.concatenate(steps))] if steps else []

    @property
    def warning_count(self) -> int:
        # skipped updates are one warning together, and so are losses that are not finite
        kinds = bool(self.not_finite) + bool(self.steps_of_bad_loss)
        return len(self.problems) + len(self.warnings) + kinds

    @property
    def steps(self) -> int | None:
        """Number of steps that the run is to make: 0 for an evaluation, None if unknown."""
        if self.values.get("objective") == "probe":
            return 0
        steps = self.values.get("optim.steps")
        return steps if isinstance(steps, int) and not isinstance(steps, bool) else None

    @property
    def measured_on(self) -> dict[str, int]:
        """Number of measured images of each split, as {split: number}."""
        if self.result and self.result.measured_on:
            return self.result.measured_on
        return self.environment.measured_on or {}

    @property
    def seen(self) -> list[SeenImages]:
        """Measured images that this run, or a run that its weights came from, was trained on."""
        return seen_text.recorded(self.result, self.environment)

    def latest(self) -> tuple[int, dict[MetricKey, float]]:
        """Return the last step with held-out metrics, and the values of these metrics at the step.

        The values are `{metric or baseline: value}`, without metrics of probes. Without such a
        step, the result is (0, {}).
        """
        with use_plugin_rows(self.environment.plugin_rows):
            curves_by_key = read_flat_names(self.rows.curves)
        held_out = {
            key._replace(is_held_out=False): curve
            for key, curve in curves_by_key.items()
            if key.is_held_out and not key.is_probe
        }
        last = max((int(curve.steps[-1]) for curve in held_out.values()), default=0)
        values = {
            key: float(curve.values[-1])
            for key, curve in held_out.items()
            if curve.steps[-1] == last
        }
        return last, values

    def measurements(self) -> list[Measurement]:
        """Return the measurements in result.json.

        For an unfinished run, return the last metrics of the held-out images, with the number of
        these images as `n`.
        """
        if self.result is not None:
            return self.result.measurements
        step, values = self.latest()
        images = self.measured_on.get("validation")
        with use_plugin_rows(self.environment.plugin_rows):
            return [
                Measurement(
                    split="validation",
                    value=value,
                    n=images,
                    **known(**key._asdict(), step=step),
                )
                for key, value in values.items()
            ]

    def finite(self, name: str) -> np.ndarray:
        """Return the finite values of a curve, or an empty array if the curve does not exist."""
        values = self.rows.curves.get(name, NO_CURVE).values
        return values[np.isfinite(values)]


NO_CURVE = Curve(np.empty(0, np.int64), np.empty(0))


def is_run(folder: Path) -> bool:
    """Return whether a folder is the folder of a run: whether it has at least one file of FILES.

    The folder of a study is not the folder of a run.
    """
    is_study = (folder / "study.json").exists()
    return not is_study and any((folder / name).is_file() for name in FILES)


def read_run(folder: Path, result: Result | None = None) -> RunRecord:
    """Read the folder of a run.

    `RunRecord.problems` names missing and damaged files.

    Args:
        folder: Folder of the run.
        result: Result of the run if the caller has it, else read from result.json.
    """
    problems: list[str] = []
    values: Values = {}
    if (folder / "recipe.yaml").exists():
        try:
            values = parsing.flatten(parsing.load_yaml(folder / "recipe.yaml"))
        except UserError:
            problems.append("recipe.yaml is damaged")
    else:
        problems.append("recipe.yaml is missing")
    environment = _record(folder / "environment.json", Environment, problems) or Environment()
    if result is None and (folder / "result.json").exists():
        result = _record(folder / "result.json", Result, problems)
    skipped: list[int] = []
    if (folder / "not_finite.json").exists():
        not_finite = _record(folder / "not_finite.json", NotFinite, problems)
        if not_finite is not None:
            skipped = sorted(int(step) for step in not_finite.steps if step.isdecimal())
    log_lines = _log_lines(folder / "log.txt")
    starts = map(STARTED.match, log_lines)
    warnings = map(WARNING.match, log_lines)
    return RunRecord(
        folder=folder,
        values=values,
        environment=environment,
        result=result,
        rows=_rows(folder / "metrics.jsonl", result, problems),
        running=result is None and lock.is_held(folder),
        started=[match[1] for match in starts if match],
        warnings=Counter(match[1] for match in warnings if match),
        not_finite=skipped,
        problems=problems,
        updated=_time_of_last_change(folder),
    )


def _record(path: Path, kind: type[Kind], problems: list[str]) -> Kind | None:
    """Read a JSON file of a run. If reading fails, append the reason to `problems`."""
    try:
        return records.read(path, kind)
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    except ValueError as error:
        problems.append(f"{path.name} is damaged ({error})")
    return None


def _rows(path: Path, result: Result | None, problems: list[str]) -> MetricRows:
    try:
        rows = curves.read(path)
    except OSError as error:
        problems.append(f"metrics.jsonl cannot be read: {error.strerror}")
        return MetricRows(NO_CURVE.steps, {})
    if rows.damaged:
        problems.append(f"metrics.jsonl is damaged (unreadable lines: {rows.damaged:,})")
    elif result is not None and result.steps and not len(rows.steps):
        problems.append("metrics.jsonl has no rows, so there are no curves")
    return rows


def _log_lines(path: Path) -> list[str]:
    if not path.is_file():  # reading a pipe would block
        return []
    with suppress(OSError), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOG_END))
        return file.read().decode(errors="replace").splitlines()
    return []


def _time_of_last_change(folder: Path) -> datetime | None:
    times = []
    for name in (*FILES, "log.txt", "not_finite.json", "figures"):
        with suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return datetime.fromtimestamp(max(times), UTC) if times else None
