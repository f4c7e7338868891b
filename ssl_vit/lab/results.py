"""Collect the measurements of a study's finished runs in a table, without importing torch.

Results that are left out have no row in the table, so no table or figure can show them. Legend: M
labelled test images, L labels of an image.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..errors import UserError
from ..formatting import format_count
from ..measurements import UNTRAINED, flat_name
from ..recipe import records
from ..recipe.records.run import CountedResult, RunEnvironment, independent_cases
from ..runs import identity
from ..runs.identity import STUDY_HINT
from .compare import PredictionOutcomes, parse_number
from .study import hours, launch, record
from .study.read import COLUMNS
from .study.record import StudyRecord
from .study.tasks import Task, Tasks, weight_sources

PREDICTED = "top1"  # metric that a run's stored predictions reproduce
# value of the column `folder` for untrained weights that a task has measured
FRESH_FOLDER = "untrained weights measured by {}"


class FinishedRun(NamedTuple):
    """Content of result.json and environment.json of a finished run."""

    result: CountedResult
    environment: RunEnvironment


@dataclass(frozen=True)
class Results:
    """Results of the finished runs of a study.

    Attributes:
        folder: Folder of the study.
        plan: Content of study.json.
        table: One row for each metric of a finished run. The columns are `run`; one column for each
            axis (empty if the run has no name on the axis); `seed`; `tried` (such as
            "optim.lr=0.001" for a run of a hyperparameter search, else empty); `split`; `metric`;
            `value`; `n` (number of images); `exaflop` and `device_hours` (of the run and of all
            runs that its weights came from); `fingerprint` (of the images of the split);
            `feature_pool` (pooling of an evaluation, else empty); `folder` (of the run); and
            `origin` (names of the tasks that the weights came from, separated by blanks). A run may
            also measure its network with untrained weights. These measurements are rows of the run
            UNTRAINED with the metric's plain name, FRESH_FOLDER as folder, and no cost.
        finished: `{task: run}` of the tasks in the table.
        missing: Tasks without a result, except tasks that the hours left no time for.
        foreign: `{task: why the run in its folder is left out}`.
        lengthened: How often the study got more hours after a task had finished.
    """

    folder: Path
    plan: StudyRecord
    table: pd.DataFrame
    finished: dict[str, FinishedRun] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    foreign: dict[str, str] = field(default_factory=dict)
    lengthened: int = 0

    @property
    def ends(self) -> int:
        """Number of planned ends so far. The study makes claims at each planned end."""
        return self.plan.ends + self.lengthened

    @property
    def untested(self) -> list[str]:
        """Names of compared tasks that have no usable result yet."""
        return [name for name in self.plan.compared_tasks if name in (*self.missing, *self.foreign)]

    def rows(
        self,
        run: str | None = None,
        metric: str | None = None,
        split: str | None = None,
        untrained_by: str | None = None,
    ) -> pd.DataFrame:
        """Select rows of `table` with finite values.

        Runs of a hyperparameter search are left out, because they only test values. Another run
        uses the best of these values.

        Args:
            run: Only rows of this run, or None for all runs.
            metric: Only rows of this metric, or None for all metrics.
            split: Only rows of this split, or None for all splits.
            untrained_by: Only rows of untrained weights that tasks of this run have measured, or
                None for all rows.
        """
        is_wanted = (self.table["tried"] == "") & np.isfinite(self.table["value"])
        for column, value in (("run", run), ("metric", metric), ("split", split)):
            if value is not None:
                is_wanted &= self.table[column] == value
        if untrained_by is not None:
            folders = [
                FRESH_FOLDER.format(task.name)
                for task in self.plan.tasks
                if task.run == untrained_by
            ]
            is_wanted &= self.table["folder"].isin(folders)
        return self.table[is_wanted]

    def load_outcomes(self, tasks: Collection[str]) -> dict[str, PredictionOutcomes]:
        """Return `{task: outcomes on the test images}` of the tasks that have stored predictions.

        Args:
            tasks: Names of tasks.

        Raises:
            UserError: A file of predictions is damaged or does not reproduce the top-1 accuracy in
                result.json. Or the files of two tasks have different test images or labels, but
                environment.json has the same fingerprint of the test images for both tasks.
        """
        by_task: dict[str, PredictionOutcomes] = {}
        # {fingerprint: name, indices and labels of the first task with these images}
        first_by_images: dict[str, tuple[str, np.ndarray, np.ndarray]] = {}
        # the folder of a run has the name of the task
        is_of_tasks = self.table["folder"].isin(tasks)
        rows = self.table[is_of_tasks & (self.table["metric"] == PREDICTED)]
        for name, value, images in rows[["folder", "value", "fingerprint"]].itertuples(index=False):
            path = self.folder / name / "predictions.npz"
            if not path.exists():
                continue
            index_M, label_ML, outcomes = read_predictions(path)
            first_name, first_index_M, first_label_ML = first_by_images.setdefault(
                images, (name, index_M, label_ML)
            )
            is_same_index = np.array_equal(index_M, first_index_M)
            if not is_same_index or not np.array_equal(label_ML, first_label_ML):
                raise UserError(
                    f"{path}: the test images or their labels differ from {first_name}, so"
                    f" {STUDY_HINT}"
                )
            is_labelled_M = (label_ML >= 0).any(1)
            by_task[name] = PredictionOutcomes(*(array[is_labelled_M] for array in outcomes))
            top1 = by_task[name].correct_M.mean()
            if abs(top1 - value) > 1e-6:
                raise UserError(
                    f"{path}: top1 is {top1:.4f} in predictions.npz and {value:.4f} in result.json,"
                    f" so {STUDY_HINT}"
                )
        return by_task


def load(folder: Path) -> Results:
    """Read the results in a study's folder.

    Raises:
        UserError: The folder is not a study, a file in it is damaged, or no task has finished. Or
            two runs have the same options for training images, but were trained on different
            images.
    """
    if not (folder / record.FILE).exists():
        raise UserError(f"{folder}: this folder has no study.json. Name the folder of a study.")
    plan = _sort_by_axes(record.read(folder))
    tasks = plan.by_name
    finished: dict[str, FinishedRun] = {}
    training_images: dict[str, tuple[str, ...]] = {}
    missing: list[str] = []
    foreign: dict[str, str] = {}
    ledger = hours.read(folder)
    left_out = ledger.left_out if ledger else {}
    for name, task in tasks.items():
        if not (folder / name / "result.json").exists():
            if name not in left_out:
                missing.append(name)
            continue
        options, undecided = launch.planned_options(task, tasks, folder)
        reason = identity.why_not_planned(folder / name, task.values, options, undecided)
        foreign_need = next((need for need in task.needs if need in foreign), None)
        if not reason and foreign_need:
            reason = f"it uses the result of {foreign_need}, which is left out as well"
        if reason:
            foreign[name] = reason
            continue
        training_images[name] = identity.training_images(folder / name)
        finished[name] = FinishedRun(
            records.require(folder / name / "result.json", CountedResult, STUDY_HINT),
            records.require(folder / name / "environment.json", RunEnvironment, STUDY_HINT),
        )
    if not finished:
        left_out_texts = "".join(
            f". {name} is left out: {reason}" for name, reason in foreign.items()
        )
        raise UserError(
            f"{folder}: there are no results yet ({len(missing)} of"
            f" {format_count(len(tasks), 'tasks')} not finished){left_out_texts}"
        )
    _check_training_images(folder, finished, training_images)
    rows = [row for name, run in finished.items() for row in _metric_rows(tasks[name], run, tasks)]
    rows.sort(key=lambda row: bool(row["run"] == UNTRAINED))  # untrained weights are last
    table = frame(rows, list(plan.axes))
    lengthened = ledger.lengthened if ledger else 0
    return Results(folder, plan, table, finished, missing, foreign, lengthened)


def _sort_by_axes(plan: StudyRecord) -> StudyRecord:
    """Sort the names on each axis, and the tasks by run and by their names on the axes.

    If all names on an axis are numbers, they ascend: "10%", "1%" becomes "1%", "10%". Other names
    keep the order of the study file. The rows of the results and of the report's tables follow this
    order.
    """
    axes = dict(plan.axes)
    for axis, names in axes.items():
        with suppress(ValueError):  # not all names are numbers
            axes[axis] = sorted(names, key=parse_number)
    runs = [*dict.fromkeys(task.run for task in plan.tasks)]

    def position(task: Task) -> list[int]:
        positions = (axes[axis].index(name) for axis, name in task.at.items())
        return [runs.index(task.run), *positions]

    return plan.model_copy(update={"axes": axes, "tasks": sorted(plan.tasks, key=position)})


def _metric_rows(task: Task, run: FinishedRun, tasks: Tasks) -> Iterable[dict[str, Any]]:
    """Yield a row of `Results.table` for each metric of a finished run.

    A run may also measure its network with untrained weights. Such a metric, for example
    `fresh_knn`, becomes a row of the run UNTRAINED with the plain name `knn` and without a cost.
    """
    shared = {
        "run": task.run,
        **task.at,  # `{axis: name}`, such as "share": "1%"
        "seed": task.seed,
        "tried": ", ".join(f"{key}={value}" for key, value in task.tried.items()),
        "exaflop": run.result.total_exaflop,
        "device_hours": run.result.total_device_hours,
        "feature_pool": run.result.pool or "",
        "folder": task.name,
        "origin": " ".join(weight_sources(tasks, task.name)),
    }
    fingerprints = dict(run.environment.data)  # {split: fingerprint of the images}
    if run.environment.held_out:
        fingerprints["validation"] = run.environment.held_out
    measured_on = run.result.measured_on or run.environment.measured_on
    untrained_columns = {
        "run": UNTRAINED,
        "exaflop": None,
        "device_hours": None,
        "folder": FRESH_FOLDER.format(task.name),
        "origin": "",
    }
    for entry in run.result.measurements:
        key, run_columns = entry.key, {}
        if key.subject == UNTRAINED:
            key, run_columns = key.of_model, untrained_columns
        measured = {"split": entry.split, "metric": flat_name(key), "value": entry.value}
        # all patches of an image count as one case, because they are alike
        n = entry.n and independent_cases(entry.n, entry.split, measured_on)
        fingerprint = fingerprints.get(entry.split, "")
        yield shared | run_columns | measured | {"n": n, "fingerprint": fingerprint}


def frame(rows: Iterable[Mapping[str, Any]], axes: Sequence[str]) -> pd.DataFrame:
    """Return a table with the columns of `Results.table`.

    A missing text becomes an empty text. A missing number becomes NaN.

    Args:
        rows: `{column: value}` of each row.
        axes: Axes of the study, each of which gets a column.
    """
    run_column, *other_columns = COLUMNS  # the axes come after the column `run`
    columns = [run_column, *axes, *other_columns]
    table = pd.DataFrame(list(rows), columns=columns, dtype=object)
    text_columns = [*axes, *(name for name, kind in COLUMNS.items() if kind == "str")]
    table[text_columns] = table[text_columns].fillna("")
    return table.astype(COLUMNS | dict.fromkeys(axes, "str"))


def _check_training_images(
    folder: Path,
    finished: Mapping[str, FinishedRun],
    training_images: Mapping[str, tuple[str, ...]],
) -> None:
    """Check that runs with the same data options were trained on the same images.

    Args:
        folder: Folder of the study.
        finished: `{task: run}`.
        training_images: `{task: options that choose the training images}`. The options are empty
            for a stream of images, which is not checked.

    Raises:
        UserError: Two runs with the same options have different training images. For example, a run
            was made on another machine, or the images changed between the runs.
    """
    # {options: name and images of the first run with these options}
    first_runs: dict[tuple[str, ...], tuple[str, str]] = {}
    for name, run in finished.items():
        options, images = training_images[name], run.environment.data
        if options and "train" in images:
            first_name, first_images = first_runs.setdefault(options, (name, images["train"]))
            if first_images != images["train"]:
                raise UserError(
                    f"{folder / first_name} and {folder / name}: these two runs have the same data"
                    " options, but were trained on different images. Remove the folder of the run"
                    " with the wrong images, and type the study's command again."
                )


def read_predictions(path: Path) -> tuple[np.ndarray, np.ndarray, PredictionOutcomes]:
    """Read the predictions.npz of a run.

    Returns:
        For M test images: the index of each image in the data set, shape (M,); the L labels of each
            image, shape (M, L); and the outcomes. For each image, the outcomes say whether the
            top-1 prediction is one of the image's labels. They also have a hash of the image's
            content, because copies have equal hashes.

    Raises:
        UserError: The file is damaged.
    """
    # A damaged file can raise many kinds of errors in numpy and zipfile. Any such error, and any
    # array of the wrong type or shape, leads to the UserError at the end.
    with suppress(Exception), path.open("rb") as file, np.load(file) as arrays:
        columns = [arrays[name] for name in ("index", "label", "top5", "content")]
        index_M, label, top5, content_M = columns
        are_integers = all(np.issubdtype(array.dtype, np.integer) for array in columns)
        top1_M = top5[:, 0]
        # all four arrays must have the same number of images
        if are_integers and index_M.shape == label.shape[:1] == top1_M.shape == content_M.shape:
            label_ML = label.reshape(len(index_M), -1)
            is_correct_M = (top1_M[:, None] == label_ML).any(1)
            return index_M, label_ML, PredictionOutcomes(is_correct_M, content_M)
    raise UserError(f"{path} is damaged, so {STUDY_HINT}")
