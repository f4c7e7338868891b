"""Plan the tasks of a study: each task is a run of a tool with a name per axis and a seed."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...formatting import list_names, option_text
from ...hub_files import repository_for_run
from ...recipe.given import Given
from ...recipe.init_source import SCRATCH
from ...recipe.keys import Values
from ...recipe.schema import build, changes_experiment, sources
from ...runs.identity import differences
from .read import SEED, Study, fill_references, find_references, needed_runs, settings_at
from .task_options import cost, tool_uses

# matches the characters that a run folder's name must not hold
PLAIN = re.compile(r"[^A-Za-z0-9_.%=,+-]")
OF_RUN = re.compile(r"\{([\w.]+)-[^{}]*\}")  # captures the study's run from {RUN-REST}
TOLERANCE = 0.25  # relative error in cost that rounding to whole steps may cause
# Keys in which the runs that try values may differ from the run that takes the best value: images
# held out for the choice, the draw of another seed, and keys that only name a network
NOT_CHOSEN_FOR = "data.validation", "data.validation_from", "data.share_seed", "seed", "model.name"
SCALED = ("optim.steps", "optim.warmup")


@dataclass(frozen=True)
class Task:
    """Describe a single run of a tool in a study.

    Attributes:
        name: Name of the run's folder.
        run: Name of the study's run that this task repeats.
        tool: `pretrain`, `finetune` or `evaluate`.
        at: `{axis: name}` of the task.
        seed: Seed of the run.
        options: `{key: value}`, where `{TASK}` in a text stands for the folder of another task.
        tried: `{key: value}` that this task tries.
        needs: Names of the tasks that must finish before this task starts.
        best: Names of the tasks to choose the best tried values from, and the measure that decides.
        despite: Keys in which the tasks of `best` may differ from this task.
        values: `{dotted key: value}` of the resolved recipe that decide what the task computes and
            what the result describes, as far as known before the study starts.
    """

    name: str
    run: str
    tool: str
    at: dict[str, str]
    seed: int
    options: Values
    tried: Values = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    best: tuple[tuple[str, ...], str] | None = None
    despite: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)


Tasks = dict[str, Task]  # {name: task}, each task after the tasks that it needs


def place_text(run: str, at: Mapping[str, str]) -> str:
    """Name a run and its names on the axes for error messages, such as `run final, arm mpp`."""
    return ", ".join([f"run {run}", *(f"{axis} {name}" for axis, name in at.items())])


def plain_options(options: Values) -> Values:
    """Return the options without names in braces, which stand for other tasks or unset places."""
    return {key: value for key, value in options.items() if not find_references([value])}


def without_missing(study: Study, places: Mapping[str, str]) -> tuple[Study, list[str]]:
    """Drop the axis names that need a missing place or a missing folder of a place.

    Args:
        study: Study with all axis names.
        places: `{place: path}` from the command line.

    Returns:
        The study without the dropped names, and one line that explains each dropped name.

    Raises:
        UserError: A run itself needs a missing place, or an axis has no name left.
    """
    missing = {*study.places} - places.keys()
    axes, lines = {}, []
    for axis, names in study.axes.items():
        dropped: dict[str, str] = {}  # {name: reason}
        for name, settings in names.items():
            reasons = (
                _why_missing(setting.options, places, missing) for setting in settings.values()
            )
            reason = next(filter(None, reasons), "")
            if reason:
                dropped[name] = reason
        axes[axis] = {name: settings for name, settings in names.items() if name not in dropped}
        if not axes[axis]:
            text = list_names([*dict.fromkeys(dropped.values())])
            raise UserError(f"axis {axis}: none of the names can run: {text}")
        lines += [f"{axis} {name} is left out: {why}" for name, why in dropped.items()]
    for name, run in study.runs.items():
        for place in sorted(find_references((study.options | run.options).values()) & missing):
            raise UserError(f"{place}= is missing. Run {name} needs {place}=VALUE.")
    report, reduced = study.report, study.model_copy(update={"axes": axes})
    compared = {
        "pairs": tuple(pair for pair in report.pairs if {*pair} <= {*reduced.compared}),
        "baseline": report.baseline if report.baseline in reduced.compared else None,
    }
    return reduced.model_copy(update={"report": report.model_copy(update=compared)}), lines


def _why_missing(options: Values, places: Mapping[str, str], missing: set[str]) -> str:
    """Return why options cannot be used, or an empty text.

    Args:
        options: Options that may begin with a place, such as `data.path={photos}/train`.
        places: `{place: path}` from the command line.
        missing: Places that the command line does not set.
    """
    for place in sorted(find_references(options.values()) & missing):
        return f"{place}= is missing"
    for value in options.values():
        before, _, below = str(value).partition("}/")
        place = before[1:]
        if before.startswith("{") and place in places and below:
            folder = Path(places[place]) / below
            if not folder.exists():
                return f"{folder} does not exist"
    return ""


def plan_tasks(study: Study, places: Mapping[str, str], given: Given) -> Tasks:
    """Plan the tasks of a study: each run at each name of its axes, tried value and seed.

    Args:
        study: Study as `without_missing` returns it.
        places: `{place: path}` of every place of the study, which replaces `{place}` in options.
        given: Values of the user, for all tasks that use the key.

    Raises:
        UserError: No task uses an option, a run tries the values of a given option, a needed run
            does not exist, steps cannot be matched, or a name cannot be a folder's name.
    """
    seeds = _seeds(study)
    tasks: Tasks = {}
    unused = {*given.values}
    for run, declared in study.runs.items():
        axes = [[(axis, name) for name in study.names(run, axis)] for axis in declared.over]
        for at in map(dict, itertools.product(*axes)):
            options, tries = settings_at(study, run, at)
            options = fill_references(options, places)
            merged = options | given.values
            used = {
                key: value
                for key, value in given.values.items()
                if tool_uses(declared.tool, key, merged)
            }
            unused -= used.keys()
            for key in tries.keys() & used.keys():
                text = f"run {run} tries several values of this key. Leave {key}= out."
                raise UserError(f"{key}={given.text(key)}: {text}")
            options |= used
            if study.match and study.match.exaflop in declared.over and declared.tool == "pretrain":
                other_axes = {axis: at[axis] for axis in at if axis != study.match.exaflop}
                base = fill_references(settings_at(study, run, other_axes).options, places) | used
                options |= _match_steps(base, options, f"match: {place_text(run, at)}")
            for seed, *values in itertools.product(seeds[run], *tries.values()):
                tried = dict(zip(tries, values, strict=True))
                task = _task(study, run, at, seed, tried, options, tasks)
                build({"name": task.name})  # checks the name
                if task.name in tasks:
                    text = "two names or values give this folder name. Rename either of the two."
                    raise UserError(f"run {run}: {task.name}: {text}")
                tasks[task.name] = task
    for key in sorted(unused):
        text = f"no run of the study uses {key}. Leave {key}= out."
        raise UserError(f"{key}={given.text(key)}: {text}")
    return tasks


def _seeds(study: Study) -> dict[str, list[int]]:
    """Return the seeds of each run.

    A run without seeds of its own uses the study's seeds and the seeds of all runs that need the
    run.
    """
    seeds_of_runs = {name: {*(run.seeds or study.seeds)} for name, run in study.runs.items()}
    for name in reversed(study.runs):
        for needed in needed_runs(study, name):
            if study.runs[needed].seeds is None:
                seeds_of_runs[needed] |= seeds_of_runs[name]
    return {name: sorted(seeds) for name, seeds in seeds_of_runs.items()}


def _match_steps(base: Values, options: Values, place: str) -> Values:
    """Return the steps and warm-up that give a name of an axis the same exaFLOP as the base run.

    Args:
        base: Options of the run without the axis.
        options: Options of the run with the axis.
        place: Prefix of error messages.

    Raises:
        UserError: Options are wrong, set the matched keys, belong to a run whose work is not
            counted, or match only with an error above `TOLERANCE` because the steps are so few.
    """
    for key in SCALED:
        if options.get(key) != base.get(key):
            text = f"`match` chooses this value. Leave {key} out."
            raise UserError(f"{place}: {key}={options.get(key)}: {text}")
    base_cost = cost(plain_options(base), f"{place}, without the axis")
    own_cost = cost(plain_options(options), place)
    exact_steps = base_cost.steps * base_cost.exaflop_a_step / own_cost.exaflop_a_step
    steps = max(1, round(exact_steps))
    ratio = steps / exact_steps
    if abs(ratio - 1) > TOLERANCE:
        text = f"no number of steps gives the same exaFLOP ({steps} give {ratio:.0%})"
        raise UserError(f"{place}: {text}. Use more optim.steps=.")
    warmup = min(steps - 1, round(own_cost.warmup * steps / own_cost.steps))
    return {"optim.steps": steps, "optim.warmup": warmup}


def _task(
    study: Study,
    run: str,
    at: dict[str, str],
    seed: int,
    tried: Values,
    options: Values,
    tasks: Tasks,
) -> Task:
    """Build a task.

    Args:
        study: Study of the task.
        run: Name of the task's run.
        at: `{axis: name}` of the task.
        seed: Seed of the task.
        tried: `{key: value}` that the task tries.
        options: `{key: value}`, where `{RUN}` stands for a task of another run.
        tasks: All tasks that the new task needs, and further tasks.

    Raises:
        UserError: A needed task does not exist.
    """
    options = options | tried
    best, tool = study.runs[run].best, study.runs[run].tool
    needed_runs = find_references(options.values())
    tries: tuple[str, ...] = ()
    if best:
        tries = tuple(task.name for task in _runs_of(run, best.of, at, tasks))
    for name in tries:  # a tried value may name a run
        needed_runs |= find_references(tasks[name].tried.values())
    filled, needed = {SEED: str(seed)}, [*tries]
    # a place without a path stays in braces
    for needed_run in sorted(needed_runs - {SEED, *study.places}):
        candidates = _runs_of(run, needed_run, at, tasks)
        same_seed = [task.name for task in candidates if task.seed == seed]
        needed_task = same_seed[0] if same_seed else candidates[0].name
        filled[needed_run] = f"{{{needed_task}}}"
        needed.append(needed_task)
    # in the folder's name each tried value has the last word of the key: lr=0.1
    values = [f"{key.rpartition('.')[2]}={option_text(value)}" for key, value in tried.items()]
    name = PLAIN.sub("_", "-".join([run, *at.values(), str(seed), *values]))
    options = fill_references(options, filled)
    if options.get("hub.repo"):  # a repository for each run
        options["hub.repo"] = repository_for_run(options["hub.repo"], name)
    choice = (tries, best.by or "accuracy") if best else None
    despite = best.despite if best else ()
    return Task(name, run, tool, at, seed, options, tried, tuple(needed), choice, despite)


def _runs_of(run: str, needed: str, at: Mapping[str, str], tasks: Tasks) -> list[Task]:
    """Return the tasks of a needed run that have the same names on their axes.

    Args:
        run: Name of the run that needs the other run, for error messages.
        needed: Name of the needed run.
        at: `{axis: name}` of a task of `run`.
        tasks: Tasks planned so far.

    Raises:
        UserError: No such task exists.
    """
    matching = [
        task
        for task in tasks.values()
        if task.run == needed and task.at == {axis: at[axis] for axis in task.at}
    ]
    if not matching:
        text = f"this run needs run {needed}, which does not exist for these names"
        raise UserError(f"{place_text(run, at)}: {text}. Check `only` of run {needed}.")
    return matching


def weight_sources(tasks: Tasks, name: str) -> list[str]:
    """Return the tasks whose weights the task continues from, directly or through further tasks.

    Tasks that only serve to choose the best tried values are not included.
    """
    tries = (tasks[name].best or [()])[0]
    direct = [need for need in tasks[name].needs if need not in tries]
    indirect = [origin for need in direct for origin in weight_sources(tasks, need)]
    return list(dict.fromkeys([*direct, *indirect]))


def warn_about_other_tries(tasks: Tasks) -> list[str]:
    """Warn about tasks that take the best values from tries of a different experiment.

    The best value of another experiment need not be the best here. Differences in the tried keys,
    in held-out images and in the keys of `despite` give no warning.

    Returns:
        One line for each kind of difference, with the first place where the difference occurs.
    """
    texts: dict[str, str] = {}
    for task in tasks.values():
        tried = tasks[task.best[0][0]] if task.best else task
        values_tried, values = (compared.values | _weights(compared) for compared in (tried, task))
        in_one_only = values_tried.keys() ^ values.keys()
        ignored = {*tried.tried, *NOT_CHOSEN_FOR, *task.despite, *in_one_only}
        counting = [
            str(difference)
            for difference in differences(values_tried, values, ignored)
            if changes_experiment(difference.key)
        ]
        if counting:
            text = (
                f"takes the best {' and '.join(tried.tried)} from run {tried.run}, which differs"
                f" in {', '.join(counting)}. For this run, another value may be better"
            )
            texts.setdefault(text, place_text(task.run, task.at))
    return [f"{place}: {text}" for text, place in texts.items()]


def _weights(task: Task) -> dict[str, str]:
    """Return `{key: place}` of a task's weights, with the run's name for weights of other tasks."""
    named = sources({"init": SCRATCH} | task.options)
    return {key: OF_RUN.sub(r"\1", source.place) for key, source in named.items()}


def failed_need(task: Task, tasks: Tasks, failed: Sequence[str]) -> str | None:
    """Return a failed task that prevents this task, or None if the task can run.

    Tasks that try values prevent this task only if all of them have failed, because some tries may
    diverge.
    """
    tries = task.best[0] if task.best else ()
    missing = [name for name in task.needs if name in failed]
    if not {*tries} <= {*failed}:
        missing = [name for name in missing if name not in tries]
    return missing[0] if missing else None
