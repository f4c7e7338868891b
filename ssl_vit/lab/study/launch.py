"""Define the interface of a launcher, and what all launchers need to know about a task."""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...errors import UserError
from ...measurements import Row, find_metric, flat_name, read_flat_name, use_plugin_rows
from ...metrics import in_order, is_model_metric, metric_label, score
from ...recipe import records
from ...recipe.keys import Values
from ...recipe.records import Record
from ...recipe.records.run import Environment, Measurement
from ...recipe.schema import Recipe
from ...recipe.words import write_all
from ...runs.identity import STUDY_HINT
from .hours import Group, HoursPlan
from .read import fill_references, find_references
from .tasks import Task, Tasks

RESULT = "result.json"


class TaskResult(Record):
    """Fields of a task's result.json that a study reads. `seconds` may be missing in the file."""

    measurements: list[Measurement]
    seconds: float = 0.0


@dataclass(frozen=True)
class StudyJob:
    """Study that is ready to start.

    Attributes:
        name: Name of the study.
        folder: Folder of the study.
        tasks: All tasks, including finished tasks.
        recipes: `{task: recipe}`.
        words: Arguments name=, out= and plugin= for the command of a SLURM array.
        parallel: Number of tasks at once, or None for as many as fit.
        slurm: Options of sbatch, as on its command line.
        measures: Measures of the report.
        hours: Plan of the hours that limit the study, or None to run all tasks.
        order: Groups of tasks in the order in which they start, both required and optional.
        page_of: Name of a run. After each task of this run, the study's page (the HTML report) is
            written. `""` writes no page.
    """

    name: str
    folder: Path
    tasks: Tasks
    recipes: dict[str, Recipe]
    words: tuple[str, ...] = ()
    parallel: int | None = None
    slurm: str = ""
    measures: tuple[str, ...] = ()
    hours: HoursPlan | None = None
    order: tuple[Group, ...] = ()
    page_of: str = ""

    @property
    def finished(self) -> list[str]:
        """Names of the tasks that have a result by now."""
        return [name for name in self.tasks if has_result(self.folder, name)]


@dataclass(frozen=True)
class LaunchOutcome:
    """Outcome of a study's tasks.

    Attributes:
        finished: Tasks that have a result.
        failed: `{task: reason}` of the tasks that have no result after this call.
        submitted: `{task: number of the job}` of the tasks that this call has submitted. Only for a
            launcher that does not wait.
        left_out: `{task: reason}` of the tasks that do not run because the hours are limited.
    """

    finished: list[str]
    failed: dict[str, str] = field(default_factory=dict)
    submitted: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class Launcher(Protocol):
    """Interface of a launcher.

    A new launcher implements these three methods and has an entry in `LAUNCHERS` (options.py). The
    launcher prints events as they happen. The study tool prints the returned `LaunchOutcome`.
    """

    def check(self, job: StudyJob) -> None:
        """Check a job before the start.

        Raises:
            UserError: The job cannot be started here. Nothing has been written.
        """

    def preview(self, job: StudyJob) -> list[str]:
        """Return lines about what `start` would start.

        The method starts and writes nothing, and works on machines where `start` could not run.

        Raises:
            UserError: An option is wrong.
        """

    def start(self, job: StudyJob) -> LaunchOutcome:
        """Start the unfinished tasks, each after the needed tasks.

        After an interruption, a further call continues the study.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM. Every task that this call has started has ended.
        """


def has_result(folder: Path, name: str) -> bool:
    """Return whether the run of a task has a result."""
    return (folder / name / RESULT).exists()


def read_result(folder: Path, name: str) -> TaskResult:
    """Read the result of a finished task.

    Raises:
        UserError: The file is damaged.
    """
    return records.require(folder / name / RESULT, TaskResult, STUDY_HINT)


def describe_result(job: StudyJob, name: str) -> str:
    """Describe the most important measurement of a finished task, such as "top-1 78.4% (test)".

    The measurement is the first of these that the task has measured:

    1. if this task is one of several tries: the measure by which the best try is chosen,
    2. the measures of the study's report, in order, for example `knn` or `probe_knn`,
    3. the metrics of the model, such as `accuracy`, in the order in which tables of runs show them.

    Args:
        job: Study of the task.
        name: Name of the task.
    """
    # the metrics that plugins declare are known only inside this block
    with use_plugin_rows(*_declared(job.folder, [name])):
        return _describe_result(job, name)


def _describe_result(job: StudyJob, name: str) -> str:
    result = read_result(job.folder, name)
    measurements = {entry.key: entry for entry in result.measurements}
    # the choices that other tasks make among tries, one of which is this task
    choices = [task.best for task in job.tasks.values() if task.best and name in task.tries]
    measures = [*(measure for _, measure in choices), *job.measures]
    listed_metrics = in_order(filter(is_model_metric, measurements))
    for measure in (*map(read_flat_name, measures), *listed_metrics):
        # a probe during training measures `knn` as `probe_knn`
        for metric in (measure, measure._replace(is_probe=True)):
            if entry := measurements.get(metric):
                return (
                    f"{metric_label(metric)} {find_metric(metric).text(entry.value)}"
                    f" ({entry.split})"
                )
    return "nothing measured"


def _declared(folder: Path, names: Iterable[str]) -> Iterator[list[Row]]:
    """Yield the metrics and baselines that the plugin of each finished task declares."""
    for name in names:
        with suppress(OSError, ValueError):  # the file is missing or damaged
            yield records.read(folder / name / "environment.json", Environment).plugin_rows


def best_values(task: Task, tasks: Tasks, folder: Path) -> tuple[dict[str, Any], int, list[str]]:
    """Choose the tried values that have the best measure, averaged over seeds.

    Args:
        task: Task that takes the best values.
        tasks: All tasks of the study.
        folder: Folder of the study.

    Returns:
        Three values: `{key: value}` of the best setting (the first if several are equally good),
            the number of settings that were compared, and the keys whose best value is the lowest
            or highest tried number. For example, `({"optim.lr": 0.3}, 3, ["optim.lr"])` if 0.03,
            0.1 and 0.3 were tried and 0.3 is best.

    Raises:
        UserError: No setting has a finite measure, or the measure is not of held-out images.
    """
    assert task.best is not None
    settings = {str(tasks[name].tried): tasks[name].tried for name in task.tries}
    means = _mean_scores(task, tasks, folder)
    best = settings[max(means, key=lambda setting: means[setting])]
    edges = []  # keys whose best value is the lowest or highest tried number
    for key, value in best.items():
        values = [setting[key] for setting in settings.values()]
        numbers = {number for number in values if type(number) in (int, float)}
        is_switch = len(numbers) == 2 and 0 in numbers  # off and on, such as data.mixup
        if len(numbers) > 1 and not is_switch and value in (min(numbers), max(numbers)):
            edges.append(key)
    return best, len(means), edges


def format_tried_measures(task: Task, tasks: Tasks, folder: Path) -> list[str]:
    """Return the mean measure of each tried setting, the best first, for example `["78.4%"]`.

    Args:
        task: Task that takes the best values.
        tasks: All tasks of the study.
        folder: Folder of the study.

    Raises:
        UserError: No setting has a finite measure, or the measure is not of held-out images.
    """
    assert task.best is not None
    tries, measure = task.best
    # the metrics that plugins declare are known only inside this block
    with use_plugin_rows(*_declared(folder, tries)):
        metric = find_metric(read_flat_name(measure))
    scores = sorted(_mean_scores(task, tasks, folder).values(), reverse=True)
    # a score is the measure itself, or its negative if lower values are better
    return [metric.text(score if metric.higher else -score) for score in scores]


def _mean_scores(task: Task, tasks: Tasks, folder: Path) -> dict[str, float]:
    """Return `{setting: mean score over seeds}` of the tried settings. Higher scores are better.

    A setting is left out if a score is infinite or undefined. A setting is also left out if it has
    fewer finished seeds than another setting, because the missing seeds may be its worst. For
    example, the result is `{"{'optim.lr': 0.1}": 0.78}`.

    Args:
        task: Task that takes the best values.
        tasks: All tasks of the study.
        folder: Folder of the study.

    Raises:
        UserError: No setting is left, or a try has not measured the metric that decides (`best.by`
            of the study file) on held-out images.
    """
    assert task.best is not None
    tries, measure = task.best
    where = f"run {task.run}: best: by={measure}"
    # {tried values as text: a score for each seed}
    scores: dict[str, list[float]] = {str(tasks[name].tried): [] for name in tries}
    # the metrics that plugins declare are known only inside this block
    with use_plugin_rows(*_declared(folder, tries)):
        key = read_flat_name(measure)
        for name in tries:
            if not has_result(folder, name):
                continue
            result = read_result(folder, name)
            measurements = {entry.key: entry for entry in result.measurements}
            if key not in measurements:
                measured = ", ".join(map(flat_name, measurements)) or "no metric"
                raise UserError(f"{where}: task {name} did not measure {measure}, but {measured}.")
            split = measurements[key].split
            if split != "validation":
                raise UserError(
                    f"{where}: task {name} measured {measure} on {split} images, not on held-out"
                    " images"
                )
            scores[str(tasks[name].tried)].append(score(key, measurements[key].value))
    seeds = max(1, *map(len, scores.values()))
    means = {
        setting: sum(values) / seeds
        for setting, values in scores.items()
        if len(values) == seeds and all(map(math.isfinite, values))
    }
    if not means:
        raise UserError(f"{where}: none of the {len(tries)} tries has a finite value of {measure}")
    return means


def tuned_needs(task: Task, tasks: Tasks) -> set[str]:
    """Return the tasks that a task needs only if tuning chooses them.

    For example, the tries may compare `init={mae}` with `init={mpp}`. Then only one of the two
    pre-trainings is needed after the choice, and the result has both. The result is empty for a
    task that takes no best values.
    """
    if task.best is None:
        return set()
    named_in_options = find_references(task.options.values())  # needed whatever tuning chooses
    return {*task.needs} - {*task.tries} - named_in_options


def chosen_needs(task: Task, tasks: Tasks, folder: Path) -> set[str]:
    """Return the tasks that a task needs because tuning has chosen them.

    For example, the tries compare `init={mae}` with `init={mpp}`, and `init={mae}` is best. Then
    the result is the needed task of run `mae`. Call this function once the tries have ended.

    Raises:
        UserError: No setting has a finite measure, or the measure is not of held-out images.
    """
    values, _, _ = best_values(task, tasks, folder)
    chosen_runs = find_references(values.values())
    return {name for name in tuned_needs(task, tasks) if tasks[name].run in chosen_runs}


def task_command(task: Task, tasks: Tasks, folder: Path) -> list[str]:
    """Return the tool and the arguments that run a task. All needed tasks must have finished."""
    chosen: Values = {}
    if task.best:
        chosen, _, _ = best_values(task, tasks, folder)
    return [task.tool, *write_all(_options(task, tasks, folder, chosen))]


def planned_options(task: Task, tasks: Tasks, folder: Path) -> tuple[Values, list[str]]:
    """Return the options of a task that are known so far. Other tasks need not have finished.

    For a task that takes the best of several tried values, these are the best values so far.

    Args:
        task: Task to run.
        tasks: All tasks of the study.
        folder: Folder of the study.

    Returns:
        `{dotted key: value}`, and the keys that have no value yet because no try has finished.
    """
    if task.best is None:
        return _options(task, tasks, folder, {}), []
    try:
        best, _, _ = best_values(task, tasks, folder)
        return _options(task, tasks, folder, best), []
    except UserError:  # no try has a result yet
        tried_keys = [key for name in task.tries for key in tasks[name].tried]
        return _options(task, tasks, folder, {}), [*dict.fromkeys(tried_keys)]


def _options(task: Task, tasks: Tasks, folder: Path, chosen: Values) -> Values:
    """Return the options of a task, with the folders of other tasks in place of names in braces.

    For example, `init={mae-0}` becomes `init=/runs/study/mae-0`.

    Args:
        task: Task to run.
        tasks: All tasks of the study.
        folder: Folder of the study.
        chosen: `{key: value}` that tuning has chosen.
    """
    root = folder.resolve()
    options = task.options | chosen
    # In the task's options, a name in braces is a task, such as {mae-0}. In chosen values it is a
    # run, such as {mae}, and stands for the needed task of this run.
    folders = {name: str(root / name) for name in find_references(options.values())}
    folders |= {tasks[name].run: str(root / name) for name in task.needs}
    options = fill_references(options, folders)
    return options | {"seed": task.seed, "out": str(root), "name": task.name}
