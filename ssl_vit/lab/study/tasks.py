"""A study's tasks: each is one run of a tool, at names of its run's axes, with a seed."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...formatting import option_text, some
from .. import engine
from . import match_compute
from .read import REFERENCE, SEED, Run, Study, needs, references, settings_at

# what a name of a run's folder may hold as it is
PLAIN = re.compile(r"[^A-Za-z0-9_.%=,+-]")


@dataclass(frozen=True)
class Task:
    """One run of a tool.

    Attributes:
        name: the folder of its run.
        run: of the study.
        tool: pretrain, finetune or evaluate.
        at: {axis: name}.
        seed: of the run.
        options: {key: text}; {TASK} in a text is the folder of another task's run.
        tried: {key: value} that it tries.
        needs: names of the tasks that have to finish before it.
        best: among which tasks, and by which measure, it takes the values that were tried.
    """

    name: str
    run: str
    tool: str
    at: dict[str, str]
    seed: int
    options: dict[str, str]
    tried: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    best: tuple[tuple[str, ...], str] | None = None


Tasks = dict[str, Task]  # by name, each after those that it needs


def where(run: str, at: Mapping[str, str]) -> str:
    """A place of a study, for errors: run final, arm mpp."""
    return ", ".join([f"run {run}", *(f"{axis} {name}" for axis, name in at.items())])


def without_missing(study: Study, places: Mapping[str, str]) -> tuple[Study, list[str]]:
    """The study without the names whose place is not given, or has no such folder in it; and a line
    for each of them.

    Raises:
        UserError: a place is missing that all need, or an axis has no name left.
    """
    if not study.places:
        return study, []
    missing = [place for place in study.places if place not in places]
    axes, lines = dict(study.axes), []
    for axis in study.axes.values():
        lacking: dict[str, str] = {}
        for name, settings in axis.settings.items():
            found = (_lacks(one.options, places, missing) for one in settings.values())
            if reason := next(filter(None, found), ""):
                lacking[name] = reason
        if lacking and len(lacking) == len(axis.settings):
            reasons = some([*dict.fromkeys(lacking.values())])
            raise UserError(f"{axis.name}: none of its names can be run: {reasons}")
        lines += [f"{axis.name} {name} is left out: {why}" for name, why in lacking.items()]
        kept = {name: one for name, one in axis.settings.items() if name not in lacking}
        axes[axis.name] = replace(axis, settings=kept)
    runs = {name: _without(run, axes) for name, run in study.runs.items()}
    for run in runs.values():
        for place in sorted(references(run.options) & {*missing}):
            raise UserError(f"{place}= is missing: run {run.name} needs it")
    report = study.report
    arms = {name for axis in axes.values() for name in axis.settings}
    pairs = tuple(pair for pair in report.pairs if {*pair} <= arms)
    baseline = report.baseline if report.baseline in arms else None
    report = replace(report, pairs=pairs, baseline=baseline)
    return replace(study, axes=axes, runs=runs, report=report), lines


def _lacks(options: Mapping[str, str], places: Mapping[str, str], missing: Sequence[str]) -> str:
    """Why a name cannot be run; "" where it can."""
    named = references(options)
    if place := next((one for one in missing if one in named), None):
        return f"{place}= is missing"
    for text in options.values():
        place, _, below = text.partition("}/")
        folder = Path(places.get(place[1:], "")) / below
        if place.startswith("{") and place[1:] in places and below and not folder.exists():
            return f"no {folder}"
    return ""


def _without(run: Run, axes: Mapping[str, Any]) -> Run:
    only = {
        axis: tuple(name for name in names if name in axes[axis].settings)
        for axis, names in run.only.items()
    }
    return replace(run, only=only)


def plan(study: Study, places: Mapping[str, str], given: Mapping[str, str]) -> Tasks:
    """The tasks of a study all of whose places are given.

    Args:
        study: as `without_missing` gives it.
        places: {name: what stands for {name}}.
        given: options of the command line; each goes over those of the tasks that use it.

    Raises:
        UserError: an option that no task uses or that one tries, a run that another needs and
            that is not there, steps that cannot be matched, or a name that no folder can have.
    """
    seeds = _seeds(study)
    tasks: Tasks = {}
    unused = dict(given)
    for run in study.runs.values():
        axes = [[(axis, name) for name in study.names(run, axis)] for axis in run.over]
        for cell in itertools.product(*axes):
            at = dict(cell)
            setting = settings_at(study, run, at)
            placed = _filled(setting.options, places)
            used = {key: text for key, text in given.items() if engine.uses(run.tool, key, placed)}
            unused = {key: text for key, text in unused.items() if key not in used}
            for key in setting.tries.keys() & used.keys():
                raise UserError(f"{key}={used[key]}: run {run.name} tries it; leave it out")
            options = placed | used
            if study.match in run.over and run.tool == "pretrain":
                base = _filled(settings_at(study, run, _except(at, study.match)).options, places)
                place = f"match: {where(run.name, at)}"
                options |= match_compute.steps(base | used, options, place)
            for seed in seeds[run.name]:
                for values in itertools.product(*setting.tries.values()):
                    tried = dict(zip(setting.tries, values, strict=True))
                    task = _task(study, run, at, seed, tried, options, tasks)
                    engine.check_name(task.name)
                    if task.name in tasks:
                        text = "two names or values give the same name of a folder"
                        raise UserError(f"run {run.name}: {task.name}: {text}; write one otherwise")
                    tasks[task.name] = task
    for key, text in unused.items():
        raise UserError(f"{key}={text}: no run of the study uses it")
    return tasks


def _except(at: Mapping[str, str], axis: str | None) -> dict[str, str]:
    return {one: name for one, name in at.items() if one != axis}


def _filled(options: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    """The options with {PLACE} replaced; other names in braces stay."""
    return {
        key: REFERENCE.sub(lambda found: places.get(found[1], found[0]), text)
        for key, text in options.items()
    }


def _seeds(study: Study) -> dict[str, tuple[int, ...]]:
    """The seeds of each run: its own, else the study's and those of the runs that need it."""
    found: dict[str, list[int]] = {
        run.name: list(run.seeds or study.seeds) for run in study.runs.values()
    }
    for run in reversed(study.runs.values()):
        for other in needs(study, run):
            if study.runs[other].seeds is None:
                found[other] += [seed for seed in found[run.name] if seed not in found[other]]
    return {name: tuple(sorted(seeds)) for name, seeds in found.items()}


def _task(
    study: Study,
    run: Run,
    at: dict[str, str],
    seed: int,
    tried: dict[str, Any],
    options: Mapping[str, str],
    tasks: Tasks,
) -> Task:
    """One task; those that it needs are in `tasks`."""
    options = dict(options) | {key: option_text(value) for key, value in tried.items()}
    needed: list[str] = []
    best = None
    if run.best:
        of, by = run.best
        among = tuple(task.name for task in _runs_of(study, run, of, at, tasks))
        needed += among
        best = among, by
    names, named = {SEED: str(seed)}, references(options)
    for one in best[0] if best else ():  # a value that was tried may name a run
        named |= references({key: option_text(text) for key, text in tasks[one].tried.items()})
    # a place that is not given yet stays as it is
    for name in sorted(named - {SEED, *study.places}):
        found = _runs_of(study, run, name, at, tasks)
        same = next((task.name for task in found if task.seed == seed), found[0].name)
        names[name] = f"{{{same}}}"
        needed.append(same)
    # the values that it tries by the last word of their keys: lr=0.1
    values = [f"{key.rpartition('.')[2]}={option_text(value)}" for key, value in tried.items()]
    labels = [run.name, *at.values(), str(seed), *values]
    name = PLAIN.sub("_", "-".join(labels))
    filled = _filled(options, names)
    if "hub.repo" in filled:  # a repository for each run
        filled["hub.repo"] = engine.repository_beside(filled["hub.repo"], name)
    return Task(name, run.name, run.tool, at, seed, filled, tried, tuple(needed), best)


def _runs_of(study: Study, run: Run, name: str, at: Mapping[str, str], tasks: Tasks) -> list[Task]:
    """The tasks of a run at the same names, which another needs.

    Raises:
        UserError: there are none.
    """
    here = {axis: at[axis] for axis in study.runs[name].over}
    found = [task for task in tasks.values() if task.run == name and task.at == here]
    if not found:
        raise UserError(f"{where(run.name, at)}: needs {name}, which is not there; see its `only`")
    return found


def unreachable(task: Task, tasks: Tasks, failed: Sequence[str]) -> str | None:
    """A task that this one needs and that failed, if any. Of those that it chooses among, some of
    which may diverge, one that finished is enough."""
    among = task.best[0] if task.best else ()
    missing = [name for name in task.needs if name in failed]
    if not {*among} <= {*failed}:
        missing = [name for name in missing if name not in among]
    return missing[0] if missing else None
