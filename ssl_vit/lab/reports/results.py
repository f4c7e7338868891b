"""What a study's finished runs measured, as one long table, and the queries on it. No torch here.

What depends on a run that is left out is in no row, so nothing that reads the table can show it.

Legend: M labelled test images.
"""

from __future__ import annotations

import functools
import gc
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...config.records.run import CountedResult, Environment
from ...config.records.study import Report, StudyPlan
from ...config.values import scalar
from ...errors import UserError
from ...formatting import option_text
from ...runs.folder import Run
from ..arms import arm_pairs

if TYPE_CHECKING:
    from pandas import DataFrame

# Types of the columns that every table has; coordinates keep their values as they are
TYPES = {
    "part": "str",
    "arm": "str",
    "seed": "int64",
    "setting": "str",
    "split": "str",
    "metric": "str",
    "value": "float64",
    "n": "Int64",
    "measured_on": "Int64",
    "exaflop": "float64",
    "run": "str",
}


def setting_text(values: Mapping[str, Any]) -> str:
    """What a sweep tried, as options; no two settings have one text."""
    return ", ".join(f"{key}={exact_text(value)}" for key, value in values.items())


def exact_text(value: Any) -> str:
    """As option_text; in quotes a text that would be read as another value or as several."""
    if isinstance(value, list):
        return f"[{','.join(map(exact_text, value))}]"
    text = option_text(value)
    plain = bool(text) and scalar(text) == text and not re.search(r'[,"\[\]]|^\s|\s$', text)
    return json.dumps(text) if isinstance(value, str) and not plain else text


class FinishedRun(NamedTuple):
    """A finished task of a study and what its run left."""

    name: str
    part: str
    arm: str
    seed: int
    values: dict[str, Any]  # of the part's grid
    needs: list[str]
    run: Run
    result: CountedResult
    environment: Environment

    @property
    def setting(self) -> str:
        """The values of the part's grid as options; empty without one."""
        return setting_text(self.values)

    def metric(self, name: str, split: str | None = None) -> float:
        """The value of a metric in result.json, of one split or of any.

        Raises:
            UserError: it is not there.
        """
        found = self.result.metrics.get(name)
        if found is None or split not in (None, found.split):
            what = f"{name} of the {split} images" if split else name
            text = f"has no {what}, which the report needs of part {self.part}"
            raise UserError(f"{self.run.folder}/result.json {text}")
        return float(found.value)


def total(spent: Sequence[float | None]) -> float | None:
    """The sum of some runs' exaFLOP; None where those of one were not counted."""
    counted = [one for one in spent if one is not None]
    return sum(counted) if len(counted) == len(spent) else None


class StudyResults(NamedTuple):
    """A study as far as it is finished.

    Attributes:
        plan: study.json.
        finished: {task: its run}.
        missing: tasks without a result.
        foreign: {task: why the run in its folder is left out: it is not the planned one, or it
            needs one that is not, directly or through others}.
        correct: {task: booleans (M,), whether its first class is the label} of the runs whose
            predictions are compared: those of the final part and the extra ones.
        table: their `results`.
    """

    folder: Path
    plan: StudyPlan
    finished: dict[str, FinishedRun]
    missing: list[str]
    foreign: dict[str, str]
    correct: dict[str, np.ndarray]
    table: DataFrame

    @property
    def report(self) -> Report:
        return self.plan.report

    @property
    def final(self) -> str | None:
        """The part whose test predictions are compared."""
        return self.report.final

    @property
    def extra(self) -> list[str]:
        return self.report.extra or []

    @property
    def curve(self) -> str:
        """What lies along the curve of a study that has one: labels, images or compute."""
        return self.plan.curve

    @property
    def points(self) -> dict[str, float]:
        """{final part: its place along the curve, a share or steps}, ascending."""
        points = self.plan.labels or []
        return {one.final: one.share for one in sorted(points, key=lambda one: one.share)}

    @property
    def benchmark(self) -> str | None:
        """The benchmark whose tasks the arms are, each with test images of its own."""
        return self.plan.benchmark

    @property
    def compares(self) -> bool:
        """Whether arms are compared: those of a benchmark's tasks, and of a study that names no
        roles, are each by itself, with test images of its own."""
        return not self.benchmark and bool(self.vary or self.report.roles or self.pairs)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Arms that are asked for: first minus second."""
        return arm_pairs(self.report.pairs or [], self.plan.arms, self.vary)

    @property
    def finals(self) -> dict[str, list[str]]:
        """{final part: the extra parts beside it}; several of a study over shares of labels."""
        if self.plan.labels:
            return {one.final: one.extra for one in self.plan.labels}
        return {self.final: self.extra} if self.final else {}

    @property
    def probes(self) -> list[str]:
        return self.report.probes or []

    @property
    def vary(self) -> dict[str, dict[str, Any]]:
        """{arm: {key: value}} of the arms that differ in values of keys."""
        return self.plan.vary or {}

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """{arm: {key: value}} of the arms that are compared. Of a study that varies no keys these
        are all arms, with nothing but their names."""
        return self.vary or {arm: {} for arm in self.plan.arms}

    @property
    def trained(self) -> list[str]:
        """The parts that pre-train."""
        parts = [task.part for task in self.plan.tasks if task.tool == "pretrain"]
        return list(dict.fromkeys(parts))

    @property
    def reported(self) -> list[str]:
        """The parts that the report is about."""
        return [*self.extra, *self.finals, *self.probes]

    def measured(self, part: str | None, split: str | None = None) -> DataFrame:
        """The rows of a part's runs, of all splits or of one; runs of a grid are left out."""
        rows = self.table
        chosen = (rows["part"] == part) & (rows["setting"] == "")
        return rows[chosen if split is None else chosen & (rows["split"] == split)]

    def measured_by_all(self, part: str | None, metric: str, split: str = "test") -> DataFrame:
        """The rows of one metric of a part's runs on a split; runs of a grid are left out.

        Raises:
            UserError: a run has no such metric of this split.
        """
        for run in self.finished.values():
            if run.part == part and not run.values:
                run.metric(metric, split)
        rows = self.measured(part, split)
        return rows[rows["metric"] == metric]

    def runs(self, part: str | None, arm: str) -> dict[int, FinishedRun]:
        """{seed: finished run} of an arm in a part; runs of a grid are left out."""
        return {
            run.seed: run
            for run in self.finished.values()
            if (run.part, run.arm) == (part, arm) and not run.values
        }

    def before(self, run: FinishedRun) -> dict[str, FinishedRun]:
        """The runs that this one's weights came through; runs of a grid are left out."""
        known = [self.finished[name] for name in run.needs if name in self.finished]
        found = {one.name: one for one in known if not one.values}
        for one in list(found.values()):
            found |= self.before(one)
        return found

    def exaflop(self, run: FinishedRun) -> float | None:
        """The compute of a run and of all that its weights came through; None where it was not
        counted."""
        if run.result.has("total_exaflop"):
            return run.result.total_exaflop
        # not recorded by older runs
        spent = [one.result.exaflop for one in (run, *self.before(run).values())]
        return total(spent)

    def pretraining(self, arm: str, part: str | None = None) -> dict[int, list[FinishedRun]]:
        """{seed: what was trained before its run of a final part}. Without `part`, before that of
        the first one; of an arm without such runs all that was pre-trained of a seed."""
        final = self.runs(part or self.final, arm)
        if final or part:
            return {seed: list(self.before(run).values()) for seed, run in final.items()}
        found: dict[int, list[FinishedRun]] = {}
        for part in self.trained:
            for seed, run in self.runs(part, arm).items():
                found.setdefault(seed, []).append(run)
        return found


def results(study: StudyResults) -> DataFrame:
    """One row a metric of a finished run, in the order of the tasks.

    Columns:
        part, arm: of the task.
        one for each of the study's coordinates; NaN where a run has none.
        seed: of the run.
        setting: what a sweep gave the run, as options; empty of a run that is of no grid.
        split, metric, value: as in result.json.
        n: how many cases the value is of: images, patches or pixels; none of what is not finite.
        measured_on: how many images it is of.
        exaflop: of the run and of all that its weights came through, where it was counted.
        run: the name of its folder.
    """
    tasks = [task for task in study.plan.tasks if task.name in study.finished]
    places = {task.name: task.coordinates or {} for task in tasks}
    axes = dict.fromkeys((axis for place in places.values() for axis in place), math.nan)
    rows = []
    for name, place in places.items():
        run = study.finished[name]
        of_run = {"part": run.part, "arm": run.arm, **axes, **place, "seed": run.seed}
        of_run |= {"setting": run.setting, "exaflop": study.exaflop(run), "run": name}
        images = run.result.measured_on or {}
        for metric, one in run.result.metrics.items():
            of_metric: dict[str, Any] = {"metric": metric, "split": one.split, "value": one.value}
            if math.isfinite(one.value):
                # older runs: n is of cases, which are images but for metrics of patches
                of_metric |= {"n": one.n, "measured_on": images.get(one.split) or one.n}
            rows.append(of_run | of_metric)
    columns = [*list(TYPES)[:2], *axes, *list(TYPES)[2:]]
    return _pandas().DataFrame(rows, columns=columns, dtype=object).astype(TYPES)


@functools.cache
def _pandas() -> Any:
    """The module. It is imported here, as nothing but reports of studies should wait for it."""
    import pandas

    # Modules stay until the process ends. Passing over them in collections of garbage, of which
    # drawing causes many, saves as much of a report's time as the import takes
    gc.freeze()
    return pandas


def axes_of(rows: DataFrame) -> list[str]:
    """The columns that are coordinates."""
    return [column for column in rows if column not in TYPES]


def by_seed(rows: DataFrame, column: str = "value") -> dict[int, Any]:
    """{seed: what the column has} of the rows of one arm on one metric."""
    return dict(zip(rows["seed"].tolist(), rows[column].tolist(), strict=True))


def by_arm(rows: DataFrame, arms: Iterable[str]) -> dict[str, DataFrame]:
    """{arm: its rows} of those of these arms that have some, in their order."""
    found = dict(list(rows.groupby("arm", sort=False)))
    return {arm: found[arm] for arm in arms if arm in found}


def fewest_images(rows: DataFrame) -> int | None:
    """The smallest number of images that one of the rows is of; None where none is known."""
    known = rows.loc[rows["measured_on"] > 0, "measured_on"]
    return int(known.min()) if len(known) else None
