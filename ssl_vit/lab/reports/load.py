"""Reads a study's folder: its plan, its finished runs, and which test images they got right. No
torch here.

Everything is checked on the way in: damaged files, runs that are not those of the plan, and runs
that were trained or tested on different images. Legend: M labelled test images.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...config import parsing, records
from ...config.computed import keys
from ...config.records import Environment, Report, Result, RunEnvironment, StudyPlan, Task
from ...config.schema import Recipe
from ...errors import UserError
from ...runs.folder import Run
from ...runs.objective_facts import learn_objective
from ..arms import arm_pairs
from . import study_files
from .comparable import foreign

REQUIRED = ("final", "baseline", "candidate")  # under report: of a study that compares named arms
TASK = ("name", "part", "arm", "seed", "values", "needs")


class FinishedRun(NamedTuple):
    """A finished task of a study and what its run left."""

    name: str
    part: str
    arm: str
    seed: int
    values: dict[str, Any]  # of the part's grid
    needs: list[str]
    run: Run
    result: Result
    environment: Environment

    def metric(self, name: str) -> float:
        """The value of a metric in result.json.

        Raises:
            UserError: it is not there.
        """
        if name not in self.result.metrics:
            text = f"has no {name}, which the report needs of part {self.part}"
            raise UserError(f"{self.run.folder}/result.json {text}")
        return float(self.result.metrics[name].value)

    def images(self, name: str) -> int | None:
        """How many images a metric is of; None where the run did not record it."""
        entry = self.result.metrics[name]
        # older runs: n is of cases, which are images but for metrics of patches
        counts = self.result.measured_on or {}
        return counts.get(entry.split) or entry.n

    def measured(self, split: str) -> list[str]:
        """Names of the metrics that were measured on a split."""
        return [name for name, entry in self.result.metrics.items() if entry.split == split]


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
    """

    folder: Path
    plan: StudyPlan
    finished: dict[str, FinishedRun]
    missing: list[str]
    foreign: dict[str, str]
    correct: dict[str, np.ndarray]

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


def load_study(folder: Path, pairs: Sequence[str] = ()) -> StudyResults:
    """Read a study's folder.

    Args:
        folder: of the study.
        pairs: more arms to compare, as report: pairs: of the study's file.

    Raises:
        UserError: it is no study, a file in it is damaged, no arm is finished, an arm that the
            report names is not, or runs were tested on different images, or trained on different
            ones under the same options; a pair names no arms.
    """
    if not (folder / "study.json").exists():
        raise UserError(
            f"{folder}: expected a study's folder, but there is no study.json; "
            "tools/study.py makes one"
        )
    plan = study_files.read_plan(folder / "study.json")
    if pairs and plan.benchmark:
        reason = "the arms are tasks, each with test images of its own; leave it out"
        raise UserError(f"pairs={','.join(pairs)}: {reason}")
    plan.report.pairs = [*(plan.report.pairs or []), *pairs]
    arm_pairs(plan.report.pairs, plan.arms, plan.vary or {})
    _check_required(folder, plan)
    finished: dict[str, FinishedRun] = {}
    strangers: dict[str, str] = {}
    origin: dict[str, str] = {}  # {task: the run that is not the planned one, it or one it needs}
    missing = []
    for task in plan.tasks:
        name = task.name
        run = _finished_run(folder, task)
        reason = foreign(run.run.folder, task, plan.tasks, run.result) if run else ""
        if reason:
            origin[name] = name
        elif needed := next((one for one in task.needs if one in origin), None):
            origin[name] = origin[needed]
            reason = f"it depends on {origin[name]}"
        if run is None:
            missing.append(name)
        elif reason:
            strangers[name] = reason
        else:
            finished[name] = run
    _choose_final(plan, finished)
    study = StudyResults(folder, plan, finished, missing, strangers, {})
    _check_one_run_per_seed(study)
    _check_arms(study)
    _check_test_images(study)
    _check_training_images(study)
    return study._replace(correct=_correct(study))


def _check_required(folder: Path, plan: StudyPlan) -> None:
    """Check that the study's file says what its report is about: of a study that varies no keys the
    final part and, once it names a role, what the report compares.

    Raises:
        UserError: it does not.
    """
    report = plan.report
    if plan.vary or plan.benchmark:
        return
    needed = REQUIRED if report.roles else REQUIRED[:1]
    lacking = [key for key in needed if not report.has(key)]
    if lacking:
        raise UserError(
            f"{folder}: a report needs report: {', '.join(needed)} in the study's file; "
            f"missing: {', '.join(lacking)}"
        )


def _choose_final(plan: StudyPlan, finished: dict[str, FinishedRun]) -> None:
    """Of a study over shares of labels, let the report be about the first share of which each arm
    in a role has a finished run; about the first of all where there is none."""
    for point in plan.labels or []:
        arms = {run.arm for run in finished.values() if run.part == point.final}
        if arms.issuperset(plan.report.roles.values()):
            plan.report.final = point.final
            return


def _finished_run(folder: Path, task: Task) -> FinishedRun | None:
    run = Run(Recipe(out=str(folder), name=task.name))
    result = run.result()
    if result is None:
        return None
    if not result.has("images", "exaflop", "device_hours"):
        raise study_files.damaged(run.folder / "result.json")
    path = run.folder / "environment.json"
    try:
        environment = records.read(path, RunEnvironment)
    except (OSError, ValueError):
        raise study_files.damaged(path) from None
    learn_objective(environment)
    described = {key: task[key] for key in TASK}
    return FinishedRun(**described, run=run, result=result, environment=environment)


def _check_one_run_per_seed(study: StudyResults) -> None:
    """Raises UserError where a part that the report is about has a grid."""
    for run in study.finished.values():
        if run.part in study.reported and run.values:
            raise UserError(
                f"{study.folder}: part {run.part} has a grid ({', '.join(run.values)}), so several "
                "runs of an arm and a seed; expected one under report:"
            )


def _check_arms(study: StudyResults) -> None:
    """Raises UserError where nothing that is compared is finished, or nothing of an arm that the
    report names."""
    roles = study.report.roles if study.final else {}
    parts = [study.final] if roles else study.reported or study.trained
    arms = {run.arm for run in study.finished.values() if run.part in parts}
    state = f"{len(study.missing)} of {len(study.plan.tasks)} tasks are not finished"
    state += ", see tools/study.py" if study.missing else ""
    state += f"; {left_out(study)}" if study.foreign else ""
    if not arms & study.settings.keys():
        kind = "setting" if study.vary else "arm"
        named = " or ".join(map(str, parts))
        raise UserError(f"{study.folder}: no {kind} has a finished run of part {named}; {state}")
    for role, arm in roles.items():
        if arm not in arms:
            raise UserError(
                f"{study.folder}: arm {arm}, the {role}, has no finished run "
                f"of part {study.final}; {state}"
            )


def left_out(study: StudyResults) -> str:
    """The runs that are in the study's folder and not of its plan, or depend on such a run."""
    found = ", ".join(f"{name} ({reason})" for name, reason in study.foreign.items())
    return f"not the runs that were planned, and left out: {found}"


def _check_test_images(study: StudyResults) -> None:
    """Raises UserError where two reported runs have different fingerprints of the test split; where
    arms are not compared, two of the same arm."""
    firsts: dict[str, FinishedRun] = {}
    for run in study.finished.values():
        test = run.environment.data.get("test")
        if run.part not in study.reported or test is None:
            continue
        first = firsts.setdefault(_test_set(study, run), run)
        if test != first.environment.data["test"]:
            raise _different_images(first, run)


def _test_set(study: StudyResults, run: FinishedRun) -> str:
    """Which test images a run has: runs of one name have the same."""
    return "" if study.compares else run.arm


def _check_training_images(study: StudyResults) -> None:
    """Raises UserError where runs of the same training options had different training images."""
    prints = {name: run.environment.data.get("train") for name, run in study.finished.items()}
    if len(set(prints.values()) - {None}) < 2:
        return
    first: dict[tuple[str, ...], FinishedRun] = {}
    for name, run in study.finished.items():
        place = _training_images(run.run.folder)
        if place is None or prints[name] is None:
            continue
        other = first.setdefault(place, run)
        if prints[other.name] != prints[name]:
            raise UserError(
                f"{other.run.folder} and {run.run.folder} were trained on different images "
                f"of {' '.join(text for text in place if not text.endswith('=None'))}; "
                "they cannot share a table"
            )


def _training_images(folder: Path) -> tuple[str, ...] | None:
    """The options that choose a run's training images and their labels; None where no recipe.yaml
    tells them, and for a stream, of which only the first images are known."""
    try:
        written = parsing.flatten(parsing.load_yaml(folder / "recipe.yaml"))
    except UserError:
        return None
    if written.get("data.stream"):
        return None
    return tuple(f"{key}={written.get(key)}" for key in keys(lambda one: "train" in one.splits))


def _different_images(first: FinishedRun, second: FinishedRun) -> UserError:
    return UserError(
        f"{first.run.folder} and {second.run.folder} were tested on different images; "
        "they cannot share a table"
    )


def _correct(study: StudyResults) -> dict[str, np.ndarray]:
    """{task: booleans (M,), whether its first class is the label} of the final and extra parts.

    Raises:
        UserError: a predictions.npz is missing or damaged, or two are of different images or
            labels.
    """
    parts = [*study.finals, *study.extra]
    runs = [run for run in study.finished.values() if run.part in parts]
    found: dict[str, np.ndarray] = {}
    firsts: dict[str, tuple[FinishedRun, np.ndarray, np.ndarray]] = {}
    for run in runs:
        index, label, correct = study_files.read_predictions(run.run.predictions)
        first = firsts.setdefault(_test_set(study, run), (run, index, label))
        if not np.array_equal(index, first[1]) or not np.array_equal(label, first[2]):
            raise _different_images(first[0], run)
        found[run.name] = correct[(label >= 0).any(1)]
        if abs(found[run.name].mean() - run.metric("top1")) > 1e-6:
            raise UserError(
                f"{run.run.folder}: predictions.npz has a top1 of {found[run.name].mean():.4f}, "
                f"result.json of {run.metric('top1'):.4f}: one of them is of another run"
            )
    return found
