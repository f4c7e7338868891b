"""A study's tasks: each is one run of a tool, at names of its run's axes, with a seed."""

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

# what a name of a run's folder may hold as it is
PLAIN = re.compile(r"[^A-Za-z0-9_.%=,+-]")
OF_RUN = re.compile(r"\{([\w.]+)-[^{}]*\}")  # the run of a task that an option names
TOLERANCE = 0.25  # share of the cost by which whole steps may miss that of the others
# keys in which the runs that try values may be others than the one that takes the best of them:
# images that are held out for it, the draw of another seed, and what only names a network
NOT_CHOSEN_FOR = "data.validation", "data.validation_from", "data.share_seed", "seed", "model.name"
SCALED = ("optim.steps", "optim.warmup")


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
        best: among which tasks, and by which measure, it takes the values that were tried;
            `despite`: keys in which these may be others.
        values: {dotted key: value} of its resolved recipe that decide what it computes and what its
            result is of, as far as they are known before the study starts.
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


Tasks = dict[str, Task]  # by name, each after those that it needs


def where(run: str, at: Mapping[str, str]) -> str:
    """A place of a study, for errors: run final, arm mpp."""
    return ", ".join([f"run {run}", *(f"{axis} {name}" for axis, name in at.items())])


def plain_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that name no other task, and no place that is not given."""
    return {key: text for key, text in options.items() if not REFERENCE.search(text)}


def words_of(options: Mapping[str, str]) -> list[str]:
    """Options as on a command line."""
    return [f"{key}={text}" for key, text in options.items()]


def without_missing(study: Study, places: Mapping[str, str]) -> tuple[Study, list[str]]:
    """The study without the names whose place is not given, or has no such folder in it; and a line
    for each of them.

    Raises:
        UserError: a place is missing that all need, or an axis has no name left.
    """
    missing = {*study.places} - places.keys()
    axes, lines = {}, []
    for axis, names in study.axes.items():
        lacking: dict[str, str] = {}
        for name, settings in names.items():
            found = (_lacks(one.options, places, missing) for one in settings.values())
            if reason := next(filter(None, found), ""):
                lacking[name] = reason
        axes[axis] = {name: one for name, one in names.items() if name not in lacking}
        if not axes[axis]:
            reasons = some([*dict.fromkeys(lacking.values())])
            raise UserError(f"{axis}: none of its names can be run: {reasons}")
        lines += [f"{axis} {name} is left out: {why}" for name, why in lacking.items()]
    for name, run in study.runs.items():
        for place in sorted(references(study.options | run.options) & missing):
            raise UserError(f"{place}= is missing: run {name} needs it")
    report, left = study.report, study.model_copy(update={"axes": axes})
    compared = {
        "pairs": tuple(pair for pair in report.pairs if {*pair} <= {*left.compared}),
        "baseline": report.baseline if report.baseline in left.compared else None,
    }
    return left.model_copy(update={"report": report.model_copy(update=compared)}), lines


def _lacks(options: Mapping[str, str], places: Mapping[str, str], missing: set[str]) -> str:
    """Why a name cannot be run; "" where it can."""
    for place in sorted(references(options) & missing):
        return f"{place}= is missing"
    for text in options.values():
        place, _, below = text.partition("}/")
        folder = Path(places.get(place[1:], "")) / below
        if place.startswith("{") and place[1:] in places and below and not folder.exists():
            return f"no {folder}"
    return ""


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
    for run, own in study.runs.items():
        axes = [[(axis, name) for name in study.names(run, axis)] for axis in own.over]
        for at in map(dict, itertools.product(*axes)):
            options, tries = settings_at(study, run, at)
            options = _filled(options, places)
            both = {**options, **given}
            used = {key: text for key, text in given.items() if engine.uses(own.tool, key, both)}
            unused = {key: text for key, text in unused.items() if key not in used}
            for key in tries.keys() & used.keys():
                raise UserError(f"{key}={used[key]}: run {run} tries it; leave it out")
            options |= used
            if study.match and study.match.exaflop in own.over and own.tool == "pretrain":
                others = {axis: at[axis] for axis in own.over if axis != study.match.exaflop}
                base = _filled(settings_at(study, run, others).options, places) | used
                options |= _matched(base, options, f"match: {where(run, at)}")
            for seed, *values in itertools.product(seeds[run], *tries.values()):
                tried = dict(zip(tries, values, strict=True))
                task = _task(study, run, at, seed, tried, options, tasks)
                build({"name": task.name})  # which checks it
                if task.name in tasks:
                    text = "two names or values give the same name of a folder"
                    raise UserError(f"run {run}: {task.name}: {text}; write one otherwise")
                tasks[task.name] = task
    for key, text in unused.items():
        raise UserError(f"{key}={text}: no run of the study uses it")
    return tasks


def _filled(options: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    """The options with {PLACE} replaced; other names in braces stay."""
    return {
        key: REFERENCE.sub(lambda found: places.get(found[1], found[0]), text)
        for key, text in options.items()
    }


def _seeds(study: Study) -> dict[str, list[int]]:
    """The seeds of each run: its own, else the study's and those of the runs that need it."""
    found = {name: {*(run.seeds or study.seeds)} for name, run in study.runs.items()}
    for name in reversed(study.runs):
        for other in needs(study, name):
            if study.runs[other].seeds is None:
                found[other] |= found[name]
    return {name: sorted(seeds) for name, seeds in found.items()}


def _matched(base: Mapping[str, str], options: Mapping[str, str], place: str) -> dict[str, str]:
    """The options of the steps and the warm-up with which a name of an axis costs as many exaFLOP
    as the run without that axis.

    Args:
        base: options without the axis.
        options: with it.
        place: opens errors.

    Raises:
        UserError: options are wrong, they set what is matched, their work is not counted, or so
            few steps cannot match.
    """
    for key in SCALED:
        if options.get(key) != base.get(key):
            raise UserError(f"{place}: {key}={options.get(key)}: is what is matched; leave it out")
    whole = engine.cost(words_of(plain_options(base)), f"{place}, without it")
    own = engine.cost(words_of(plain_options(options)), place)
    wanted = whole.steps * whole.exaflop_a_step / own.exaflop_a_step
    count = max(1, round(wanted))
    if abs(count / wanted - 1) > TOLERANCE:
        text = f"{count} steps cost {count / wanted:.0%} of the others' and no other number is"
        raise UserError(f"{place}: {text} nearer; expected more optim.steps=")
    warmup = min(count - 1, round(own.warmup * count / own.steps))
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
    """One task; those that it needs are in `tasks`."""
    texts = {key: option_text(value) for key, value in tried.items()}
    options = {**options, **texts}
    named, best = references(options), study.runs[run].best
    among: tuple[str, ...] = ()
    if best:
        among = tuple(task.name for task in _runs_of(run, best.of, at, tasks))
    for one in among:  # a value that was tried may name a run
        named |= references({key: option_text(text) for key, text in tasks[one].tried.items()})
    filled, needed = {SEED: str(seed)}, [*among]
    # a place that is not given yet stays as it is
    for name in sorted(named - {SEED, *study.places}):
        found = _runs_of(run, name, at, tasks)
        same = next((task.name for task in found if task.seed == seed), found[0].name)
        filled[name] = f"{{{same}}}"
        needed.append(same)
    # the values that it tries by the last word of their keys: lr=0.1
    values = [f"{key.rpartition('.')[2]}={text}" for key, text in texts.items()]
    name = PLAIN.sub("_", "-".join([run, *at.values(), str(seed), *values]))
    options = _filled(options, filled)
    if "hub.repo" in options:  # a repository for each run
        options["hub.repo"] = engine.repository_beside(options["hub.repo"], name)
    chosen = (among, best.by or "accuracy") if best else None
    despite, tool = best.despite if best else (), study.runs[run].tool
    return Task(name, run, tool, at, seed, options, tried, tuple(needed), chosen, despite)


def _runs_of(run: str, needed: str, at: Mapping[str, str], tasks: Tasks) -> list[Task]:
    """The tasks of a run at the same names, which another needs.

    Raises:
        UserError: there are none.
    """
    found = [
        task
        for task in tasks.values()
        if task.run == needed and task.at == {axis: at[axis] for axis in task.at}
    ]
    if not found:
        raise UserError(f"{where(run, at)}: needs {needed}, which is not there; see its `only`")
    return found


def origins(tasks: Tasks, name: str) -> list[str]:
    """The tasks that a task's weights come through: not those among which it chooses values."""
    among = (tasks[name].best or [()])[0]
    direct = [one for one in tasks[name].needs if one not in among]
    return list(dict.fromkeys([*direct, *(far for one in direct for far in origins(tasks, one))]))


def tried_otherwise(tasks: Tasks) -> list[str]:
    """Lines about runs that take the best of tries which differ from them in more than what is
    tried and held out, or stands in `despite`: of another experiment another value may be the
    best."""
    found: dict[str, str] = {}
    for task in tasks.values():
        tried = tasks[task.best[0][0]] if task.best else task
        there, here = (one.values | _weights(one) for one in (tried, task))
        apart = {*tried.tried, *NOT_CHOSEN_FOR, *task.despite, *(there.keys() ^ here.keys())}
        every = engine.differences(there, here, apart)
        if differ := [str(one) for one in every if engine.counts(one.key)]:
            text = f"takes {' and '.join(tried.tried)} from the tries of run {tried.run}, which"
            text += f" differ in {', '.join(differ)}: another value may be better here"
            found.setdefault(text, where(task.run, task.at))
    return [f"{place}: {text}" for text, place in found.items()]


def _weights(task: Task) -> dict[str, str]:
    """{key: weights that a task's options name, of those of other tasks the run}."""
    named = sources({"init": engine.SCRATCH} | task.options)
    return {key: OF_RUN.sub(r"\1", one.place) for key, one in named.items()}


def unreachable(task: Task, tasks: Tasks, failed: Sequence[str]) -> str | None:
    """A task that this one needs and that failed, if any. Of those that it chooses among, some of
    which may diverge, one that finished is enough."""
    among = task.best[0] if task.best else ()
    missing = [name for name in task.needs if name in failed]
    if not {*among} <= {*failed}:
        missing = [name for name in missing if name not in among]
    return missing[0] if missing else None
