"""Estimate in advance what a study will cost, run by run."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...formatting import NOT_COUNTED, format_bytes, plain_table, some
from .. import engine, estimate
from ..compare import FEWEST, scope
from ..options import PlanOptions
from .read import references
from .record import rule_of
from .request import Request
from .tasks import Task, origins

if TYPE_CHECKING:
    from ...jobs.step_time import StepTime

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
        asked: Options of the tool that asked for the estimate.
        device: Device of `device=`, or None.
        runs: `{run: total cost of the run's tasks}`; see `sum_up`.
        in_all: Total cost of all tasks.
        compared: Lines that say what the report will compare and to which cases the comparison does
            not extend. Empty if the report compares nothing.
        warnings: Common mistakes, one line each, with the runs that make the mistake.
        opening: Lines to print first.
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
        shown = {key: one for key, one in COLUMNS.items() if self.in_all[key] is not None}
        head = ["run", *(title for title, _ in shown.values())]
        rows = [
            [name, *(text(part[key]) for key, (_, text) in shown.items())]
            for name, part in {**self.runs, "in all": self.in_all}.items()
        ]
        lines = [*self.opening, f"study       {self.name}: {self.title}", *plain_table(head, rows)]
        return estimate.as_lines(lines, self._rows(), self.warnings)

    def _rows(self) -> Iterator[tuple[str, str]]:
        for number, text in enumerate(self.compared):
            yield "" if number else "compared", text
        timed, uncounted = self.in_all["device_hours"] is not None, self.in_all["uncounted"]
        if self.device:
            yield "time", f"on {self.device.name}: {estimate.assumed(self.asked)} of its peak"
        elif timed:
            yield "time", "measured here, one task after the other"
        elif not self.opening:  # the opening already gives measured hours
            yield "time", estimate.no_time()
        if timed and (untimed := self.in_all["untimed"]):
            yield "left out", f"the time of {untimed} tasks, which is not known"
        if uncounted:
            yield "left out", f"the exaFLOP of {uncounted} tasks, which are {NOT_COUNTED}"


def of_request(request: Request, own: PlanOptions) -> StudyEstimate:
    """Estimate the cost of a study.

    With `own.probe`, the step time is measured once for all tasks whose steps are alike.

    Raises:
        UserError: `lab.estimate.estimate` refuses a task.
    """
    found: dict[str, estimate.RunEstimate] = {}
    by_run: dict[str, list[estimate.RunEstimate]] = {}
    by_key: dict[str, StepTime] = {}
    warned: dict[str, dict[str, None]] = {}  # {warning: runs}
    for name, recipe in request.recipes.items():
        run, step = request.tasks[name].run, None
        if own.probe and recipe.trains:
            alike = engine.timing_key(recipe)
            step = by_key[alike] = by_key.get(alike) or engine.measure(recipe)
        found[name] = estimate.estimate(recipe, own, step)
        by_run.setdefault(run, []).append(found[name])
        for text in found[name].warnings:
            warned.setdefault(text, {})[run] = None
    lines = [f"{', '.join(runs)}: {text}" for text, runs in warned.items()]
    return StudyEstimate(
        name=request.name,
        title=request.study.title,
        asked=own,
        device=estimate.find_device(own.device),
        runs={run: sum_up(ones) for run, ones in by_run.items()},
        in_all=sum_up([*found.values()]),
        compared=_compared(request, found),
        warnings=[*request.cautions, *lines],
        opening=request.opening,
    )


def _compared(request: Request, found: Mapping[str, estimate.RunEstimate]) -> list[str]:
    """Return the lines of `StudyEstimate.compared`."""
    from pandas import DataFrame  # pandas is slow to import and only needed here

    rule, tasks = rule_of(request.study), request.tasks
    if rule is None or not rule.asked:
        return []
    asked = f"{some([str(one) for one in rule.asked])}, of {rule.test}"
    first = "the first figure that it measures (another: report.measures)"
    asked += f" by {rule.measure or first}"
    tested = [task for task in tasks.values() if task.run == rule.test]
    seeds = len({task.seed for task in tested})
    if seeds < FEWEST:
        asked += f"; too few seeds to claim anything: {seeds}, of {FEWEST} at least"
    rows = [{"run": one.run, **one.at, "exaflop": _spent(one, request, found)} for one in tested]
    return [asked, *scope(DataFrame(rows), rule)]


def _spent(task: Task, request: Request, found: Mapping[str, estimate.RunEstimate]) -> float:
    """Return the exaFLOP of a task and of everything that the weights come from.

    The sum uses the estimates of the study's tasks, and the recorded cost of weights from outside
    the study. A run that resumes another run's trunk counts with its whole length, and the trunk
    itself does not count. The result is NaN if any part was not counted.
    """
    names = [task.name, *origins(request.tasks, task.name)]
    options = {name: request.tasks[name].options for name in names}
    trunks = references({name: own.get("resume", "") for name, own in options.items()})
    spent = 0.0
    for name in names:
        if name not in trunks:
            one = found[name]
            whole = 1 + one.begins_at / max(1, one.steps)  # includes the steps of the trunk
            spent += math.nan if one.exaflop is None else one.exaflop * whole
        if not references({"init": options[name].get("init", "")}):
            before = request.recipes[name].init_source.upstream_cost()["exaflop"]
            spent += math.nan if before is None else before
    return spent


def sum_up(found: Sequence[estimate.RunEstimate]) -> dict[str, Any]:
    """Sum the cost of several tasks.

    Returns:
        Number of tasks, exaFLOP, device-hours, price and bytes on disk, then the number of tasks
            with unknown time (`untimed`) and with unknown exaFLOP (`uncounted`). A sum is None if
            no task's value is known, and the exaFLOP is None if any task's is unknown.
    """
    uncounted = sum(one.exaflop is None and one.images is not None for one in found)
    return {
        "tasks": len(found),
        "exaflop": None if uncounted else _total(one.exaflop for one in found),
        "device_hours": _total(one.device_hours for one in found),
        "price": _total(one.price for one in found),
        "disk_bytes": sum(one.disk_bytes for one in found),
        "untimed": sum(one.device_hours is None for one in found),
        "uncounted": uncounted,
    }


def _total(values: Iterable[float | None]) -> float | None:
    """Sum the known values. Return None if no value is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
