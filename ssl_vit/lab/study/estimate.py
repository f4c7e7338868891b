"""Estimate in advance what a study will cost, run by run."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...formatting import format_bytes, format_count, list_names, plain_table
from ...recipe.schema import Recipe, computed_values
from .. import estimate
from ..compare import FEWEST, list_limits
from ..options import PlanOptions
from .read import find_references
from .record import rule_of
from .request import StudyRequest
from .tasks import Task, weight_sources

if TYPE_CHECKING:
    from ...jobs.step_time import StepTime

# keys that change the experiment but not the time of a step
NOT_TIMED = (
    *("seed", "init", "optim.steps", "optim.lr", "optim.warmup", "model.name"),
    *("data.share", "data.validation", "data.validation_from", "data.group"),
)
# {key: (heading, formatter)} of the table of a study's costs
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "tasks": ("tasks", str),
    "exaflop": ("exaFLOP", estimate.number),
    "device_hours": ("device-hours", estimate.number),
    "price": ("price", estimate.number),
    "disk_bytes": ("disk", format_bytes),
}


@dataclass(frozen=True, kw_only=True)
class StudyEstimate:
    """Estimated cost of a study.

    Attributes:
        name: Name of the study.
        title: Title of the study.
        asked: Options with which the estimate was made.
        device: Device of `device=`, or None.
        runs: `{run: total cost of the run's tasks}`; see `sum_up`.
        in_all: Total cost of all tasks.
        compared: Lines that say what the report will compare, and the limits of the comparison.
            Empty if the report compares nothing.
        warnings: Common mistakes, one line each, with the runs that make the mistake.
        opening: Lines to print first. For `study/worth`, they name the images and the network.
    """

    name: str
    title: str
    asked: PlanOptions
    device: estimate.Device | None
    runs: dict[str, dict[str, Any]]
    in_all: dict[str, Any]
    compared: list[str]
    warnings: list[str]
    opening: list[str]

    def __repr__(self) -> str:
        """Return the text that the command line prints."""
        shown = {key: head for key, head in COLUMNS.items() if self.in_all[key] is not None}
        head = ["run", *(title for title, _ in shown.values())]
        rows = [
            [name, *(form(costs[key]) for key, (_, form) in shown.items())]
            for name, costs in {**self.runs, "in all": self.in_all}.items()
        ]
        lines = [*self.opening, f"study       {self.name}: {self.title}", *plain_table(head, rows)]
        return estimate.as_lines(lines, self._rows(), self.warnings)

    def _rows(self) -> Iterator[tuple[str, str]]:
        for number, sentence in enumerate(self.compared):
            yield "" if number else "compared", sentence
        timed, uncounted = self.in_all["device_hours"] is not None, self.in_all["uncounted"]
        if self.device:
            yield (
                "time",
                f"on {self.device.name}, for computation alone, assuming"
                f" {self.asked.efficiency:.0%} (efficiency=) of the peak speed",
            )
        elif timed:
            yield "time", "measured on this machine, with one task running at a time"
        elif not self.opening:  # the opening already gives measured hours
            yield "time", f"unknown. Add device= (choices: {', '.join(estimate.devices())})"
        if timed and self.in_all["untimed"]:
            untimed = format_count(self.in_all["untimed"], "tasks")
            yield "left out", f"the unknown time of {untimed}"
        if uncounted:
            yield (
                "left out",
                f"the exaFLOP of {format_count(uncounted, 'tasks')}, which ssl_vit cannot count",
            )


def estimate_request(request: StudyRequest, options: PlanOptions) -> StudyEstimate:
    """Estimate the cost of a study, per run and in all.

    With `options.probe`, the step time is measured on this machine, once for all tasks whose steps
    take equally long.

    Args:
        request: Study with its tasks and their recipes.
        options: Options of the plan tool.

    Raises:
        UserError: The cost of a task cannot be estimated, for example because its first steps fail.
    """
    estimates: dict[str, estimate.RunEstimate] = {}
    by_run: dict[str, list[estimate.RunEstimate]] = {}
    step_times: dict[str, StepTime] = {}
    runs_by_warning: dict[str, dict[str, None]] = {}  # {warning: runs as keys, in order}
    for name, recipe in request.recipes.items():
        run, step_time = request.tasks[name].run, None
        if options.probe and recipe.trains:
            key = timing_key(recipe)
            if key not in step_times:
                step_times[key] = _measure(recipe)
            step_time = step_times[key]
        estimates[name] = estimate.estimate(recipe, options, step_time)
        by_run.setdefault(run, []).append(estimates[name])
        for warning in estimates[name].warnings:
            runs_by_warning.setdefault(warning, {})[run] = None
    warnings = [f"{', '.join(runs)}: {warning}" for warning, runs in runs_by_warning.items()]
    return StudyEstimate(
        name=request.name,
        title=request.study.title,
        asked=options,
        device=estimate.find_device(options.device),
        runs={run: sum_up(estimates_of_run) for run, estimates_of_run in by_run.items()},
        in_all=sum_up([*estimates.values()]),
        compared=_compared(request, estimates),
        # first the warnings about the study, then the warnings about the cost of its runs
        warnings=[*request.cautions, *warnings],
        opening=request.opening,
    )


def _compared(request: StudyRequest, estimates: Mapping[str, estimate.RunEstimate]) -> list[str]:
    """Return sentences about what the report compares, and about the limits of the comparison.

    For example, one sentence names the compared arms, and another sentence warns that one arm is
    pre-trained with more exaFLOP. The list is empty if the report compares nothing.
    """
    from pandas import DataFrame  # pandas is slow to import and only needed here

    rule, tasks = rule_of(request.study), request.tasks
    if rule is None or not rule.asked:
        return []
    # the pairs of arms that the report compares, such as "mae minus scratch"
    comparisons = list_names([str(comparison) for comparison in rule.asked])
    measure = rule.measure or "the first measured metric (report.measures=)"
    tested = [task for task in tasks.values() if task.run == rule.test]
    rows = [
        {"run": task.run, **task.at, "exaflop": _spent(task, request, estimates)} for task in tested
    ]
    compared = f"{comparisons}, in run {rule.test} by {measure}."
    seeds = len({task.seed for task in tested})
    if seeds < FEWEST:
        compared += (
            f" The report claims a difference only with {FEWEST} or more seeds. This study has"
            f" {seeds}."
        )
    return [compared, *list_limits(DataFrame(rows), rule)]


def _spent(
    task: Task, request: StudyRequest, estimates: Mapping[str, estimate.RunEstimate]
) -> float:
    """Return the exaFLOP of a task and of all earlier runs that its weights come from.

    The cost of a task of the study is estimated. The cost of weights from outside the study was
    recorded when they were made. A task may resume from a checkpoint of another task (the trunk).
    Such a task counts as if it had trained from the first step. The trunk is then not counted, so
    that no step counts twice.

    Args:
        task: Task of the study.
        request: Study with its tasks and their recipes.
        estimates: `{task: estimate}` of all tasks.

    Returns:
        ExaFLOP, or NaN if the exaFLOP of any of these runs are unknown.
    """
    names = [task.name, *weight_sources(request.tasks, task.name)]
    options = {name: request.tasks[name].options for name in names}
    trunks = find_references(options[name].get("resume") for name in names)
    spent = 0.0
    for name in names:
        if name not in trunks:
            cost = estimates[name]
            # a resumed task begins at step `begins_at`, and `cost` covers only the steps after it
            steps_ratio = 1 + cost.begins_at / max(1, cost.steps)
            spent += math.nan if cost.exaflop is None else cost.exaflop * steps_ratio
        # initial weights from outside the study: add the recorded cost of the run that made them
        if not find_references([options[name].get("init")]):
            upstream = request.recipes[name].init_source.upstream_cost()["exaflop"]
            spent += math.nan if upstream is None else upstream
    return spent


def sum_up(estimates: Sequence[estimate.RunEstimate]) -> dict[str, Any]:
    """Sum the cost of several tasks.

    Returns:
        `{name: sum}`: the number of `tasks`, their `exaflop`, `device_hours`, `price` and
            `disk_bytes`, then the number of tasks with unknown time (`untimed`) and with unknown
            exaFLOP (`uncounted`). Time and price are sums of the known values, or None if no value
            is known. `exaflop` is None if `uncounted` is not 0.
    """
    # A task is uncounted if ssl_vit cannot count the operations per image. An evaluation with an
    # unknown number of images (`images` is None) is not uncounted: the sum only leaves it out.
    uncounted = sum(run.exaflop is None and run.images is not None for run in estimates)
    return {
        "tasks": len(estimates),
        "exaflop": None if uncounted else _total(run.exaflop for run in estimates),
        "device_hours": _total(run.device_hours for run in estimates),
        "price": _total(run.price for run in estimates),
        "disk_bytes": sum(run.disk_bytes for run in estimates),
        "untimed": sum(run.device_hours is None for run in estimates),
        "uncounted": uncounted,
    }


def _total(values: Iterable[float | None]) -> float | None:
    """Sum the known values. Return None if no value is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def timing_key(recipe: Recipe) -> str:
    """Return a key that is equal for recipes whose steps take equally long."""
    values = computed_values(recipe).items()
    return str(sorted((key, str(value)) for key, value in values if key not in NOT_TIMED))


def _measure(recipe: Recipe) -> "StepTime":
    """Time the first steps of a run on this machine.

    Raises:
        UserError: The recipe is an evaluation, or the run cannot start with this recipe.
    """
    from ...jobs import step_time  # imports torch

    return step_time.measure(recipe)
