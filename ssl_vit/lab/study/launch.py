"""What starts a study's tasks: the interface of a launcher, and what all of them know of a task."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...errors import UserError
from ...formatting import option_text
from ...metrics import (
    PROBED,
    Row,
    find_metric,
    in_order,
    is_of_model,
    label,
    own_rows,
    score,
)
from ...recipe import records
from ...recipe.records import Record
from ...recipe.records.run import Environment, Measured
from ...recipe.schema import Recipe
from ..run_folder import HINT
from .hours import Group, Plan
from .read import REFERENCE, references
from .tasks import Task, Tasks

RESULT = "result.json"


class TaskResult(Record):
    """Of a task's result.json what a study needs; a launcher can do without its seconds."""

    metrics: dict[str, Measured]
    seconds: float = 0.0


@dataclass(frozen=True)
class Job:
    """A study that is to be started.

    Attributes:
        name, folder: of the study.
        tasks: all of them, also those that have finished.
        recipes: {task: its recipe}.
        words: of the study's command, without the launcher's own.
        parallel: how many tasks at once; None: as many as fit.
        slurm: options of sbatch, as on its command line.
        measures: of the report.
        hours: The hours that it keeps to, where it may leave tasks out.
        order: The groups of tasks that may be left out, and those that may not.
        page_of: The run after whose tasks the study's page is written; "": after none.
    """

    name: str
    folder: Path
    tasks: Tasks
    recipes: dict[str, Recipe]
    words: tuple[str, ...] = ()
    parallel: int | None = None
    slurm: str = ""
    measures: tuple[str, ...] = ()
    hours: Plan | None = None
    order: tuple[Group, ...] = ()
    page_of: str = ""

    @property
    def finished(self) -> list[str]:
        """The tasks that have a result by now."""
        return [name for name in self.tasks if finished(self.folder, name)]


@dataclass(frozen=True)
class Outcome:
    """What has become of a study's tasks.

    Attributes:
        finished: tasks that have a result.
        failed: {task: why it has none}, of this call.
        submitted: {task: number of the job}, by this call of a launcher that waits for none.
        left_out: {task: why it does not run}, of a study that keeps to its hours.
    """

    finished: list[str]
    failed: dict[str, str] = field(default_factory=dict)
    submitted: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class Launcher(Protocol):
    """Another one implements these three functions and is named in LAUNCHERS of options.py. It
    prints what happens as it happens; the tool that calls it prints the Outcome."""

    def check(self, job: Job) -> None:
        """Check a job that is to be started.

        Raises:
            UserError: the job cannot be started here; nothing has been written.
        """

    def preview(self, job: Job) -> list[str]:
        """Lines of what `start` would start. It starts and writes nothing, and can be asked on a
        machine where `start` could not run.

        Raises:
            UserError: an option is wrong.
        """

    def start(self, job: Job) -> Outcome:
        """Start the tasks that have not finished, each after those that it needs; a call after one
        that was cut off goes on from it.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM; every task that this call runs has ended.
        """


def finished(folder: Path, name: str) -> bool:
    """Whether a task's run has its result."""
    return (folder / name / RESULT).exists()


def result(folder: Path, name: str) -> TaskResult:
    """What a finished task's run has measured.

    Raises:
        UserError: its file is damaged.
    """
    return records.require(folder / name / RESULT, TaskResult, HINT)


def measured(job: Job, name: str) -> str:
    """The value of a finished task's run by which others choose it, else of the first measure of
    the report that it has, by itself or by its probes, else of those that lists of runs show."""
    with own_rows(*_declared(job.folder, [name])):
        return _measured(job, name)


def _measured(job: Job, name: str) -> str:
    metrics = result(job.folder, name).metrics
    chosen = (task.best for task in job.tasks.values() if task.best and name in task.best[0])
    shown = in_order(filter(is_of_model, metrics))
    for metric in (*(by for _, by in chosen), *job.measures, *shown):
        for one in filter(metrics.get, (metric, PROBED + metric)):
            found = metrics[one]
            return f"{label(one)} {find_metric(one).text(found.value)} ({found.split})"
    return "nothing measured"


def _declared(folder: Path, names: Iterable[str]) -> Iterator[list[Row]]:
    """Yield the rows that the plugin of each finished task's run declares."""
    for name in names:
        with suppress(OSError, ValueError):
            yield records.read(folder / name / "environment.json", Environment).own_rows


def best_values(task: Task, tasks: Tasks, folder: Path) -> tuple[dict[str, Any], int, list[str]]:
    """What a task takes of those that it chooses among.

    Returns:
        The values whose measure, averaged over seeds, is best, the first among equals; of how many
        settings that have a finite one; and the keys whose best value is the lowest or the highest
        of the numbers that were tried.

    Raises:
        UserError: no setting has a finite value, or it is not of held-out images.
    """
    assert task.best is not None
    tried = {str(tasks[name].tried): tasks[name].tried for name in task.best[0]}
    means = _mean_scores(task, tasks, folder)
    chosen = tried[max(means, key=lambda setting: means[setting])]
    edges = []
    for key, value in chosen.items():
        numbers = {one[key] for one in tried.values() if type(one[key]) in (int, float)}
        if len(numbers) > 1 and value in (min(numbers), max(numbers)):
            edges.append(key)
    return chosen, len(means), edges


def tried_values(task: Task, tasks: Tasks, folder: Path) -> list[str]:
    """The measure of each setting that `best_values` chooses among, in words, the best first.

    Raises:
        UserError: as `best_values`.
    """
    assert task.best is not None
    with own_rows(*_declared(folder, task.best[0])):
        metric = find_metric(task.best[1])
    means = sorted(_mean_scores(task, tasks, folder).values(), reverse=True)
    return [metric.text(mean if metric.higher else -mean) for mean in means]


def _mean_scores(task: Task, tasks: Tasks, folder: Path) -> dict[str, float]:
    """{setting: its `score`, averaged over seeds} of those that have a finite one. A setting of
    which fewer seeds have finished than of another is left out: it may have failed where it is
    worst.

    Raises:
        UserError: as `best_values`.
    """
    assert task.best is not None
    among, by = task.best
    where = f"run {task.run}: best: by={by}"
    scores: dict[str, list[float]] = {str(tasks[name].tried): [] for name in among}
    with own_rows(*_declared(folder, among)):
        for name in among:
            if not finished(folder, name):
                continue
            metrics = result(folder, name).metrics
            if by not in metrics:
                raise UserError(f"{where}: {name} has {', '.join(metrics)}")
            if (split := metrics[by].split) != "validation":
                reason = "nothing is chosen but on held-out ones"
                raise UserError(f"{where}: of {name} it is of the {split} images; {reason}")
            scores[str(tasks[name].tried)].append(score(by, metrics[by].value))
    seeds = max(1, *map(len, scores.values()))
    means = {
        setting: sum(found) / seeds
        for setting, found in scores.items()
        if len(found) == seeds and all(map(math.isfinite, found))
    }
    if not means:
        raise UserError(f"{where}: none of {len(among)} runs has a finite one")
    return means


def alternatives(task: Task, tasks: Tasks) -> set[str]:
    """Return the tasks of which a task uses those that tuning chooses, and no others."""
    if task.best is None:
        return set()
    return {*task.needs} - {*task.best[0]} - references(task.options)


def chosen_alternatives(task: Task, tasks: Tasks, folder: Path) -> set[str]:
    """Return which of its `alternatives` a task uses, once the tries have ended.

    Raises:
        UserError: as `best_values`.
    """
    values = best_values(task, tasks, folder)[0]
    runs = references({key: option_text(value) for key, value in values.items()})
    return {name for name in alternatives(task, tasks) if tasks[name].run in runs}


def command(task: Task, tasks: Tasks, folder: Path) -> list[str]:
    """The tool's name and the options that run a task whose needs are finished."""
    chosen = best_values(task, tasks, folder)[0] if task.best else {}
    return [task.tool, *_words(task, tasks, folder, chosen)]


def planned(task: Task, tasks: Tasks, folder: Path) -> tuple[list[str], list[str]]:
    """The options that run a task as far as they are known before its needs are finished, with the
    best values of those tries that are, as `command` takes them; and the keys that it will choose
    where none is."""
    if task.best is None:
        return _words(task, tasks, folder, {}), []
    with suppress(UserError):  # there is nothing to choose yet
        chosen = best_values(task, tasks, folder)[0]
        return _words(task, tasks, folder, chosen), []
    tried = [key for one in task.best[0] for key in tasks[one].tried]
    return _words(task, tasks, folder, {}), [*dict.fromkeys(tried)]


def _words(task: Task, tasks: Tasks, folder: Path, chosen: Mapping[str, Any]) -> list[str]:
    root = folder.resolve()
    # a value that was chosen may name a run: its task that this one needs
    of_run = {tasks[name].run: name for name in task.needs}
    options = task.options | {key: option_text(value) for key, value in chosen.items()}
    options = {
        key: REFERENCE.sub(lambda found: str(root / of_run.get(found[1], found[1])), text)
        for key, text in options.items()
    }
    options |= {"seed": str(task.seed), "out": str(root), "name": task.name}
    return [f"{key}={text}" for key, text in options.items()]
