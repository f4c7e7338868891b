"""Plan the tasks of a study: each task is a run of a tool with a name per axis and a seed."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...formatting import option_text, some
from ...recipe.schema import build, sources
from .. import engine
from .read import REFERENCE, SEED, Study, needs, references, settings_at

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
        options: `{key: text}`, where `{TASK}` in a text stands for the folder of another task.
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
    options: dict[str, str]
    tried: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    best: tuple[tuple[str, ...], str] | None = None
    despite: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)


Tasks = dict[str, Task]  # {name: task}, each task after the tasks that it needs


def where(run: str, at: Mapping[str, str]) -> str:
    """Return a place of a study for error messages, such as `run final, arm mpp`."""
    return ", ".join([f"run {run}", *(f"{axis} {name}" for axis, name in at.items())])


def plain_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that refer to no further task and no place that is not set."""
    return {key: text for key, text in options.items() if not REFERENCE.search(text)}


def words_of(options: Mapping[str, str]) -> list[str]:
    """Return options as words of a command line."""
    return [f"{key}={text}" for key, text in options.items()]


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
        lacking: dict[str, str] = {}
        for name, settings in names.items():
            reasons_here = (
                _lacks(setting.options, places, missing) for setting in settings.values()
            )
            if reason := next(filter(None, reasons_here), ""):
                lacking[name] = reason
        axes[axis] = {
            name: settings_of_name
            for name, settings_of_name in names.items()
            if name not in lacking
        }
        if not axes[axis]:
            reasons = some([*dict.fromkeys(lacking.values())])
            raise UserError(f"axis {axis}: none of the names can run: {reasons}")
        lines += [f"{axis} {name} is left out: {why}" for name, why in lacking.items()]
    for name, run in study.runs.items():
        for place in sorted(references(study.options | run.options) & missing):
            raise UserError(f"{place}= is missing. Run {name} needs {place}=VALUE.")
    report, left = study.report, study.model_copy(update={"axes": axes})
    compared = {
        "pairs": tuple(pair for pair in report.pairs if {*pair} <= {*left.compared}),
        "baseline": report.baseline if report.baseline in left.compared else None,
    }
    return left.model_copy(update={"report": report.model_copy(update=compared)}), lines


def _lacks(options: Mapping[str, str], places: Mapping[str, str], missing: set[str]) -> str:
    """Return why a name cannot be run, or `""` if the name can be run."""
    for place in sorted(references(options) & missing):
        return f"{place}= is missing"
    for text in options.values():
        place, _, below = text.partition("}/")
        folder = Path(places.get(place[1:], "")) / below
        if place.startswith("{") and place[1:] in places and below and not folder.exists():
            return f"{folder} does not exist"
    return ""


def plan(study: Study, places: Mapping[str, str], texts: Mapping[str, str]) -> Tasks:
    """Plan the tasks of a study.

    Args:
        study: Study as `without_missing` returns it.
        places: `{place: path}` that replaces `{place}` in options; every place of the study is a
            key.
        texts: Options of the command line. Each overrides the tasks that use the option.

    Raises:
        UserError: No task uses an option, a run tries the values of a given option, a needed run
            does not exist, steps cannot be matched, or a name cannot be a folder's name.
    """
    seeds = _seeds(study)
    tasks: Tasks = {}
    unused = dict(texts)
    for run, declared in study.runs.items():
        axes = [[(axis, name) for name in study.names(run, axis)] for axis in declared.over]
        for at in map(dict, itertools.product(*axes)):
            options, tries = settings_at(study, run, at)
            options = _filled(options, places)
            merged = {**options, **texts}
            used = {
                key: text for key, text in texts.items() if engine.uses(declared.tool, key, merged)
            }
            unused = {key: text for key, text in unused.items() if key not in used}
            for key in tries.keys() & used.keys():
                text = f"run {run} tries several values of this key. Leave {key}= out."
                raise UserError(f"{key}={used[key]}: {text}")
            options |= used
            if study.match and study.match.exaflop in declared.over and declared.tool == "pretrain":
                others = {axis: at[axis] for axis in declared.over if axis != study.match.exaflop}
                base = _filled(settings_at(study, run, others).options, places) | used
                options |= _matched(base, options, f"match: {where(run, at)}")
            for seed, *values in itertools.product(seeds[run], *tries.values()):
                tried = dict(zip(tries, values, strict=True))
                task = _task(study, run, at, seed, tried, options, tasks)
                build({"name": task.name})  # which checks it
                if task.name in tasks:
                    text = "two names or values give this folder name. Rename either of the two."
                    raise UserError(f"run {run}: {task.name}: {text}")
                tasks[task.name] = task
    for key, text in unused.items():
        raise UserError(f"{key}={text}: no run of the study uses {key}. Leave {key}= out.")
    return tasks


def _filled(options: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    """Replace `{PLACE}` in options and keep all other names in braces."""
    return {
        key: REFERENCE.sub(lambda match: places.get(match[1], match[0]), text)
        for key, text in options.items()
    }


def _seeds(study: Study) -> dict[str, list[int]]:
    """Return the seeds of each run.

    A run without seeds of its own uses the study's seeds and the seeds of all runs that need the
    run.
    """
    seeds_of_runs = {name: {*(run.seeds or study.seeds)} for name, run in study.runs.items()}
    for name in reversed(study.runs):
        for needed in needs(study, name):
            if study.runs[needed].seeds is None:
                seeds_of_runs[needed] |= seeds_of_runs[name]
    return {name: sorted(seeds) for name, seeds in seeds_of_runs.items()}


def _matched(base: Mapping[str, str], options: Mapping[str, str], place: str) -> dict[str, str]:
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
    whole = engine.cost(words_of(plain_options(base)), f"{place}, without the axis")
    own_cost = engine.cost(words_of(plain_options(options)), place)
    wanted = whole.steps * whole.exaflop_a_step / own_cost.exaflop_a_step
    count = max(1, round(wanted))
    if abs(count / wanted - 1) > TOLERANCE:
        text = f"no number of steps gives the same exaFLOP ({count} give {count / wanted:.0%})"
        raise UserError(f"{place}: {text}. Use more optim.steps=.")
    warmup = min(count - 1, round(own_cost.warmup * count / own_cost.steps))
    return {"optim.steps": str(count), "optim.warmup": str(warmup)}


def _task(
    study: Study,
    run: str,
    at: dict[str, str],
    seed: int,
    tried: dict[str, Any],
    options: Mapping[str, str],
    tasks: Tasks,
) -> Task:
    """Build a task. `tasks` already holds all tasks that the new task needs."""
    texts = {key: option_text(value) for key, value in tried.items()}
    options = {**options, **texts}
    named, best = references(options), study.runs[run].best
    among: tuple[str, ...] = ()
    if best:
        among = tuple(task.name for task in _runs_of(run, best.of, at, tasks))
    for tried_task in among:  # a tried value may name a run
        named |= references(
            {key: option_text(text) for key, text in tasks[tried_task].tried.items()}
        )
    filled, needed = {SEED: str(seed)}, [*among]
    # a place without a path stays in braces
    for name in sorted(named - {SEED, *study.places}):
        needed_tasks = _runs_of(run, name, at, tasks)
        same = next((task.name for task in needed_tasks if task.seed == seed), needed_tasks[0].name)
        filled[name] = f"{{{same}}}"
        needed.append(same)
    # in the folder's name each tried value has the last word of the key: lr=0.1
    values = [f"{key.rpartition('.')[2]}={text}" for key, text in texts.items()]
    name = PLAIN.sub("_", "-".join([run, *at.values(), str(seed), *values]))
    options = _filled(options, filled)
    if "hub.repo" in options:  # a repository for each run
        options["hub.repo"] = engine.repository_beside(options["hub.repo"], name)
    chosen = (among, best.by or "accuracy") if best else None
    despite, tool = best.despite if best else (), study.runs[run].tool
    return Task(name, run, tool, at, seed, options, tried, tuple(needed), chosen, despite)


def _runs_of(run: str, needed: str, at: Mapping[str, str], tasks: Tasks) -> list[Task]:
    """Return the tasks of a needed run that have the same axis names.

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
        raise UserError(f"{where(run, at)}: {text}. Check `only` of run {needed}.")
    return matching


def origins(tasks: Tasks, name: str) -> list[str]:
    """Return the tasks whose weights the task continues from, directly or through further tasks.

    Tasks that only serve to choose the best tried values are not included.
    """
    among = (tasks[name].best or [()])[0]
    direct = [need for need in tasks[name].needs if need not in among]
    return list(dict.fromkeys([*direct, *(far for need in direct for far in origins(tasks, need))]))


def tried_otherwise(tasks: Tasks) -> list[str]:
    """Warn about tasks that take the best values from tries of a different experiment.

    The best value of another experiment need not be the best here. Differences in the tried keys,
    in held-out images and in the keys of `despite` give no warning.

    Returns:
        One line for each kind of difference, with the first place where the difference occurs.
    """
    texts: dict[str, str] = {}
    for task in tasks.values():
        tried = tasks[task.best[0][0]] if task.best else task
        tried_values, here = (compared.values | _weights(compared) for compared in (tried, task))
        apart = {*tried.tried, *NOT_CHOSEN_FOR, *task.despite, *(tried_values.keys() ^ here.keys())}
        every = engine.differences(tried_values, here, apart)
        if differ := [str(difference) for difference in every if engine.counts(difference.key)]:
            text = f"takes the best {' and '.join(tried.tried)} from run {tried.run}, which differs"
            text += f" in {', '.join(differ)}. For this run, another value may be better."
            texts.setdefault(text, where(task.run, task.at))
    return [f"{place}: {text}" for text, place in texts.items()]


def _weights(task: Task) -> dict[str, str]:
    """Return `{key: place}` of a task's weights, with the run's name for weights of other tasks."""
    named = sources({"init": engine.SCRATCH} | task.options)
    return {key: OF_RUN.sub(r"\1", source.place) for key, source in named.items()}


def unreachable(task: Task, tasks: Tasks, failed: Sequence[str]) -> str | None:
    """Return a failed task that prevents this task, or None if the task can run.

    Among the tasks to choose from, one finished task is enough, because some tries may diverge.
    """
    among = task.best[0] if task.best else ()
    missing = [name for name in task.needs if name in failed]
    if not {*among} <= {*failed}:
        missing = [name for name in missing if name not in among]
    return missing[0] if missing else None
