"""A study's tasks: the options of each, and what starts it."""

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import hub_files
from ...config import declaration, records
from ...config.fields import Values
from ...config.recipe_files import file_values, find_recipe
from ...config.records.run import WithMetrics, WithSeconds
from ...config.schema import Recipe, all_groups
from ...errors import UserError
from ...formatting import option_text
from ...metrics import score
from . import match_compute
from .axes import PLACEHOLDER, Setting, fill, product
from .study import SEED, Part, Study

Plan = dict[str, "Task"]  # by name, each task after those that it needs


@dataclass(frozen=True)
class Task:
    """One run of a part.

    In its options {NAME} stands for the folder of the task NAME, so that they do not depend on the
    study's folder.
    """

    name: str
    part: str
    tool: str
    arm: str
    seed: int
    values: Values  # of the grid
    needs: tuple[str, ...]  # names of tasks
    options: dict[str, str]
    best: str | None = None  # part whose best values it takes
    by: str = ""  # metric that decides
    # {axis: value} of the curve, the arm and the grid; of a key that is in two the grid's value
    coordinates: dict[str, Any] = field(default_factory=dict)


def tasks(
    study: Study,
    places: dict[str, str],
    options: dict[str, str],
) -> Plan:
    """The tasks of a study.

    Args:
        study: as read from its file.
        places: {name: path} of the places that the file names.
        options: override those of every task that uses them.

    Raises:
        UserError: an option would set what a part sweeps or the study varies, or arms cannot be
        matched.
    """
    decided = study.decided()
    for key in sorted(decided.keys() & options.keys()):
        raise UserError(f"{key}={options[key]}: {decided[key]} it; leave it out")
    plan: Plan = {}
    for part in study.parts.values():
        for arm in part.options:
            _add_tasks(study, part, arm, places, options, plan)
    return plan


def _add_tasks(
    study: Study,
    part: Part,
    arm: str,
    places: dict[str, str],
    options: dict[str, str],
    plan: Plan,
) -> None:
    """Add the tasks of a part's arm to the plan."""
    arm_options = _arm_options(study, part, arm, places, options)
    here = part.point.beside(study.settings[arm])
    for seed, swept in itertools.product(part.seeds or study.seeds, product(part.grids[arm])):
        task = _task(part, arm, seed, (here, swept), plan, places, arm_options)
        if task.name in plan:
            text = f"two values of its grid give a run the name {task.name}; write one"
            raise UserError(f"part {part.name}, arm {arm}: {text} in another way")
        plan[task.name] = task


def _arm_options(
    study: Study, part: Part, arm: str, places: dict[str, str], overrides: dict[str, str]
) -> dict[str, str]:
    """The options of a part's arm, with those of the command line that it uses.

    Raises:
        UserError: the study's file names a plugin, or the arm cannot be matched.
    """
    own = part.options[arm]
    used = {key: value for key, value in overrides.items() if _is_used(key, part.tool, own)}
    options = own | used
    if study.match == "exaflop" and part.tool == "pretrain":
        options |= match_compute.steps(part, arm, used, places)
    plugin = options.get("plugin")
    if plugin is not None and plugin != overrides.get("plugin"):
        reason = "the study's file names it; plugins run only if the command line names them"
        raise UserError(f"part {part.name}, arm {arm}: plugin={plugin}: {reason}")
    return options


def _task(
    part: Part,
    arm: str,
    seed: int,
    settings: tuple[Setting, Setting],
    plan: Plan,
    places: dict[str, str],
    arm_options: dict[str, str],
) -> Task:
    """One task; those that it needs are in `plan`. Its settings are those of the curve and the arm,
    whose options it has, and of the grid."""
    here, swept = settings
    options = arm_options | {key: option_text(value) for key, value in swept.options.items()}
    needs = [task.name for task in plan.values() if (task.part, task.arm) == (part.best, arm)]
    names = places | {SEED: str(seed)}
    references = {name for value in options.values() for name in PLACEHOLDER.findall(value)}
    for other in sorted(references - names.keys()):
        runs = {one.seed: one.name for one in plan.values() if (one.part, one.arm) == (other, arm)}
        needed = runs.get(seed, next(iter(runs.values())))
        names[other] = f"{{{needed}}}"
        needs.append(needed)
    name = "-".join(filter(None, (part.name, arm, str(seed), swept.label))).replace("/", "_")
    filled = fill(options, names)
    if "hub.repo" in filled:  # one run per repository
        filled["hub.repo"] = hub_files.beside(filled["hub.repo"], name)
    return Task(
        name,
        part.name,
        part.tool,
        arm,
        seed,
        swept.options,
        tuple(needs),
        filled,
        part.best,
        part.by,
        here.coordinates | swept.coordinates,
    )


def _is_used(key: str, tool: str, options: dict[str, str]) -> bool:
    """Whether a task's tool and objective use an option."""
    group = key.split(".")[0]
    if tool == "evaluate" or group == "probe":
        return tool == "evaluate" and group in ("probe", "data", "model", "compute")
    objective = options.get("objective")
    if objective is None:
        objective = file_values(find_recipe(options.get("recipe"))).get(
            "objective", Recipe.objective
        )
    of_objectives = {"target", *(one.name for one in all_groups())}
    declared = declaration.objectives().get(objective)
    return group not in of_objectives or (declared is not None and group in declared.groups)


def unreachable(task: Task, plan: Plan, failed: Collection[str]) -> str | None:
    """A task that this one needs and that failed, if any. Of a sweep, where some learning rates may
    diverge, one finished run is enough."""
    swept = {name for name in task.needs if plan[name].part == task.best}
    missing = [name for name in task.needs if name in failed]
    if not swept <= set(failed):
        missing = [name for name in missing if name not in swept]
    return missing[0] if missing else None


def finished(folder: Path, name: str) -> bool:
    """Whether a task's run has its result."""
    return (folder / name / "result.json").exists()


def seconds_of(folder: Path, name: str) -> float:
    """How long a finished task's run took; 0 where its result does not say."""
    try:
        return float(records.read(folder / name / "result.json", WithSeconds).seconds)
    except (OSError, ValueError):
        return 0.0


def best_values(task: Task, plan: Plan, folder: Path) -> Values:
    """The grid values with the best metric `by`, averaged over seeds; the first among equals.
    Runs without a result are left out.

    Raises:
        UserError: no run has a finite value of that metric, or it is not of held-out images.
    """
    where = f"part {task.part}: best: by={task.by}"
    values: dict[str, Values] = {}
    scores: dict[str, list[float]] = {}
    swept = [plan[name] for name in task.needs if plan[name].part == task.best]
    for run in swept:
        if not finished(folder, run.name):
            continue
        path = folder / run.name / "result.json"
        hint = "remove its folder and give the command again"
        metrics = records.require(path, WithMetrics, hint).metrics
        if task.by not in metrics:
            raise UserError(f"{where}: {run.name} has {', '.join(metrics)}")
        split = metrics[task.by].split
        if split != "validation":
            reason = "nothing is chosen but on held-out ones"
            raise UserError(f"{where}: of {run.name} it is of the {split} images; {reason}")
        values[str(run.values)] = run.values
        scores.setdefault(str(run.values), []).append(metrics[task.by].value)
    means = {
        key: sum(found) / len(found)
        for key, found in scores.items()
        if all(map(math.isfinite, found))
    }
    if not means:
        raise UserError(f"{where}: no run of part {task.best} has a finite one")
    return values[max(means, key=lambda key: score(task.by, means[key]))]


def command(task: Task, plan: Plan, folder: Path) -> list[str]:
    """The tool's name and the options that run a task whose needs are finished."""
    options = dict(task.options)
    if task.best:
        chosen = best_values(task, plan, folder)
        options |= {key: option_text(value) for key, value in chosen.items()}
    root = folder.resolve()
    options = {
        key: PLACEHOLDER.sub(lambda found: str(root / found[1]), value)
        for key, value in options.items()
    }
    options |= {"seed": str(task.seed), "out": str(root), "name": task.name}
    return [task.tool, *(f"{key}={value}" for key, value in options.items())]
