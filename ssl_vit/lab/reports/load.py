"""Reads a study's folder: its plan, its finished runs and their results, and which test images they
got right. No torch here.

Everything is checked on the way in: damaged files, runs that are not those of the plan, and runs
that were trained or tested on different images. Legend: M labelled test images.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...config import parsing
from ...config.computed import keys
from ...config.records.run import CountedResult, RunEnvironment
from ...config.records.study import StudyPlan, Task
from ...config.schema import Recipe
from ...errors import UserError
from ...runs.folder import Run
from ..arms import arm_pairs
from . import read_files
from .comparable import foreign
from .results import FinishedRun, StudyResults, results

REQUIRED = ("final", "baseline", "candidate")  # under report: of a study that compares named arms
TASK = ("name", "part", "arm", "seed", "values", "needs")


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
    plan = read_files.read_plan(folder / "study.json")
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
        reason = ""
        if run:
            reason = foreign(run.run.folder, task, plan.tasks, run.result, run.environment)
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
    study = StudyResults(folder, plan, finished, missing, strangers, {}, None)
    _check_one_run_per_seed(study)
    _check_arms(study)
    _check_test_images(study)
    _check_training_images(study)
    return study._replace(correct=_correct(study), table=results(study))


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
    path = run.folder / "result.json"
    if not path.exists():
        return None
    result = read_files.read_record(path, CountedResult)
    environment = read_files.read_record(run.folder / "environment.json", RunEnvironment)
    described = {key: task[key] for key in TASK}
    return FinishedRun(**described, run=run, result=result, environment=environment)


def _check_one_run_per_seed(study: StudyResults) -> None:
    """Raises UserError where a part that the report is about has a grid, or study.json a seed of
    one of its arms twice."""
    known: dict[tuple[str, str, int], str] = {}
    for run in study.finished.values():
        if run.part not in study.reported:
            continue
        if run.values:
            raise UserError(
                f"{study.folder}: part {run.part} has a grid ({', '.join(run.values)}), so several "
                "runs of an arm and a seed; expected one under report:"
            )
        other = known.setdefault((run.part, run.arm, run.seed), run.name)
        if other != run.name:
            raise UserError(
                f"{study.folder}/study.json: {other} and {run.name} are both of part {run.part}, "
                f"arm {run.arm}, seed {run.seed}; expected one run of each"
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
    """The options that choose a run's training images, their labels and their groups, of all of
    which the fingerprint is; None where no recipe.yaml tells them, and for a stream, of which only
    the first images are known."""
    try:
        written = parsing.flatten(parsing.load_yaml(folder / "recipe.yaml"))
    except UserError:
        return None
    if written.get("data.stream"):
        return None
    chosen = [*keys(lambda one: "train" in one.splits), "data.group"]
    return tuple(f"{key}={written.get(key)}" for key in chosen)


def _different_images(first: FinishedRun, second: FinishedRun) -> UserError:
    return UserError(
        f"{first.run.folder} and {second.run.folder} were tested on different images; "
        "they cannot share a table"
    )


def _tested(run: FinishedRun) -> bool:
    return any(one.split == "test" for one in run.result.metrics.values())


def _correct(study: StudyResults) -> dict[str, np.ndarray]:
    """{task: booleans (M,), whether its first class is the label} of the final and extra parts.

    Raises:
        UserError: a run measured no test images, a predictions.npz is missing or damaged, or two
            are of different images or labels.
    """
    parts = [*study.finals, *study.extra]
    runs = [run for run in study.finished.values() if run.part in parts]
    found: dict[str, np.ndarray] = {}
    firsts: dict[str, tuple[FinishedRun, np.ndarray, np.ndarray]] = {}
    for run in runs:
        if run.result.metrics and not _tested(run):
            text = f"{run.run.folder}: measured no test images (eval.test=false)"
            raise UserError(f"{text}, which the report compares; take another name= with them")
        index, label, correct = read_files.read_predictions(run.run.predictions)
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
