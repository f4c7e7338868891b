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
BELOW_PLACE = re.compile(r"\{(?P<place>[^{}]+)\}/(?P<path>.+)", re.DOTALL)  # {photos}/train
TOLERANCE = 0.25  # largest relative error in cost that rounding to whole steps may cause
# Keys that may differ, without a warning, between the run that tries values and the run that takes
# the best value: images held out for the choice, seeds, and keys that only name a network
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
        best: Names of the tasks that try values, and the metric that decides which values are best.
            None if the task takes no best values.
        despite: Keys that may differ, without a warning, between this task and the tasks of `best`.
        values: `{dotted key: value}` of the resolved recipe, for the keys that affect the
            computation or the result. Values that are known only after other tasks have finished
            are missing.
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

    @property
    def tries(self) -> tuple[str, ...]:
        """Names of the tasks that try values for this task to choose from. Can be empty."""
        return self.best[0] if self.best else ()


Tasks = dict[str, Task]  # {name: task}, each task after the tasks that it needs


def place_text(run: str, at: Mapping[str, str]) -> str:
    """Describe a run and its name on each axis for messages, such as `run final, arm mpp`."""
    return ", ".join([f"run {run}", *(f"{axis} {name}" for axis, name in at.items())])


def plain_options(options: Values) -> Values:
    """Return the options whose values have no name in braces.

    For example, `{"init": "{mae}", "seed": 0}` becomes `{"seed": 0}`. A name in braces stands for
    another task, or for a path that the user has not set.
    """
    return {key: value for key, value in options.items() if not find_references([value])}


def without_missing(study: Study, places: Mapping[str, str]) -> tuple[Study, list[str]]:
    """Drop the axis names that need a path that is not set or does not exist.

    A study file refers to such a path by a name in braces, called a place. For example, the name
    `photos` of axis `data` may set `data.path={photos}/train`. It is dropped if the command line
    has no `photos=`, or if that folder has no subfolder `train`.

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
            for setting in settings.values():
                reason = _why_missing(setting.options, places, missing)
                if reason:
                    dropped.setdefault(name, reason)
        axes[axis] = {name: settings for name, settings in names.items() if name not in dropped}
        if not axes[axis]:
            reasons = list_names([*dict.fromkeys(dropped.values())])
            raise UserError(
                f"axis {axis}: no name on this axis can run, because paths are missing: {reasons}."
                " Set the paths that at least one name needs, as in photos=PATH."
            )
        lines += [f"{axis} {name} is left out: {why}" for name, why in dropped.items()]
    for name, run in study.runs.items():
        needed = find_references((study.options | run.options).values())
        for place in sorted(needed & missing):
            raise UserError(f"{place}= is missing. Run {name} needs {place}=VALUE.")
    reduced = study.model_copy(update={"axes": axes})
    # the report compares only names that are left
    arms = reduced.compared
    comparisons = {
        "pairs": tuple(pair for pair in study.report.pairs if {*pair} <= {*arms}),
        "baseline": study.report.baseline if study.report.baseline in arms else None,
    }
    report = study.report.model_copy(update=comparisons)
    return reduced.model_copy(update={"report": report}), lines


def _why_missing(options: Values, places: Mapping[str, str], missing: set[str]) -> str:
    """Describe the first missing path that options need. Return `""` if no path is missing.

    A place is a path that the user sets on the command line. For example, with `photos=/data`, the
    option `data.path={photos}/train` needs the folder `/data/train`.

    Args:
        options: Options that may begin with a place in braces.
        places: `{place: path}` from the command line.
        missing: Places that the command line does not set.
    """
    missing_places = sorted(find_references(options.values()) & missing)
    if missing_places:
        return f"{missing_places[0]}= is missing"
    for value in options.values():
        match = BELOW_PLACE.match(str(value))
        if match and match["place"] in places:
            folder = Path(places[match["place"]]) / match["path"]
            if not folder.exists():
                return f"{folder} does not exist"
    return ""


def plan_tasks(study: Study, places: Mapping[str, str], given: Given) -> Tasks:
    """Plan the tasks of a study.

    A run has a task for each combination of names on its axes, tried values and seeds.

    Args:
        study: Study as `without_missing` returns it.
        places: `{place: path}` of every place of the study, which replaces `{place}` in options.
        given: Recipe values from the user. Each value is set in all tasks whose tool uses the key.

    Raises:
        UserError: One of these mistakes:

            - No task uses a given option, or a run tries several values of this option.
            - A needed run does not exist.
            - The steps cannot be matched.
            - A task's name cannot be a folder's name, or two tasks have the same name.
    """
    seeds_by_run = _seeds(study)
    tasks: Tasks = {}
    unused = {*given.values}
    matched_axis = study.match.exaflop if study.match else None
    for run, definition in study.runs.items():
        axes = [[(axis, name) for name in study.names(run, axis)] for axis in definition.over]
        for at in map(dict, itertools.product(*axes)):
            options, tries = settings_at(study, run, at)
            options = fill_references(options, places)
            merged = options | given.values
            used_values = {
                key: value
                for key, value in given.values.items()
                if tool_uses(definition.tool, key, merged)
            }
            unused -= used_values.keys()
            for key in tries.keys() & used_values.keys():
                raise UserError(
                    f"{key}={given.text(key)}: run {run} tries several values of this key. Leave"
                    f" {key}= out."
                )
            options |= used_values
            if matched_axis in definition.over and definition.tool == "pretrain":
                # options of the same run without the matched axis
                other_axes = {axis: at[axis] for axis in at if axis != matched_axis}
                base_options, _ = settings_at(study, run, other_axes)
                base_options = fill_references(base_options, places) | used_values
                options |= _match_steps(base_options, options, f"match: {place_text(run, at)}")
            for seed, *values in itertools.product(seeds_by_run[run], *tries.values()):
                tried = dict(zip(tries, values, strict=True))
                task = _task(study, run, at, seed, tried, options, tasks)
                build({"name": task.name})  # checks the name
                if task.name in tasks:
                    raise UserError(
                        f"run {run}: two tasks would write into the same folder {task.name}:"
                        f" {_describe_task(tasks[task.name])}; and {_describe_task(task)}. The name"
                        " of a folder has _ for spaces, slashes and other special characters."
                        " Change a name or a value in the study's file, so that the folders get"
                        " different names."
                    )
                tasks[task.name] = task
    for key in sorted(unused):
        raise UserError(
            f"{key}={given.text(key)}: no run of the study uses {key}. Leave {key}= out."
        )
    return tasks


def _describe_task(task: Task) -> str:
    """Describe a task for messages, such as `run tune, arm mae, seed 0, optim.lr=0.1`."""
    values = [f"{key}={option_text(value)}" for key, value in task.tried.items()]
    return ", ".join([place_text(task.run, task.at), f"seed {task.seed}", *values])


def _seeds(study: Study) -> dict[str, list[int]]:
    """Return the seeds of each run.

    A run without seeds of its own uses the study's seeds and the seeds of all runs that need the
    run.

    Returns:
        `{run: seeds in increasing order}`.
    """
    seeds_of_runs = {name: {*(run.seeds or study.seeds)} for name, run in study.runs.items()}
    # In study.runs, each run comes after the runs that it needs. In reverse order, the seeds of a
    # run are complete before they are added to the seeds of the runs that it needs.
    for name in reversed(study.runs):
        for needed in needed_runs(study, name):
            if study.runs[needed].seeds is None:
                seeds_of_runs[needed] |= seeds_of_runs[name]
    return {name: sorted(seeds) for name, seeds in seeds_of_runs.items()}


def _match_steps(base: Values, options: Values, place: str) -> Values:
    """Return the steps and warm-up with which a run costs the same exaFLOP as the base run.

    The base run is the same run without the matched axis. For example, the axis sets a network, and
    a step with this network takes twice the exaFLOP of a step of the base run. Then the result has
    half of the base run's steps. The warm-up keeps its share of the steps.

    Args:
        base: Options of the base run.
        options: Options of the run at a name of the matched axis.
        place: Prefix of error messages.

    Returns:
        `optim.steps` and `optim.warmup`.

    Raises:
        UserError: An option is wrong. Or the axis itself sets the steps or the warm-up. Or ssl_vit
            cannot count the work of the objective. Or there are so few steps that rounding to whole
            steps changes the cost by more than 25%.
    """
    for key in SCALED:
        if options.get(key) != base.get(key):
            raise UserError(
                f"{place}: {key}={options.get(key)}: `match` sets this value, so that all names on"
                f" the axis cost the same. Leave {key} out."
            )
    base_cost = cost(plain_options(base), f"{place}, without the axis")
    cost_with_axis = cost(plain_options(options), place)
    exact_steps = base_cost.steps * base_cost.exaflop_per_step / cost_with_axis.exaflop_per_step
    steps = max(1, round(exact_steps))
    ratio = steps / exact_steps
    if abs(ratio - 1) > TOLERANCE:
        raise UserError(
            f"{place}: with {steps} steps, this run costs {ratio:.0%} of the exaFLOP of the same"
            " run without this axis. Use a larger optim.steps= for a closer match."
        )
    # the warm-up keeps its share of the steps
    warmup = min(steps - 1, round(cost_with_axis.warmup * steps / cost_with_axis.steps))
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
    """Build a task, and find the tasks that it needs.

    Args:
        study: Study of the task.
        run: Name of the task's run.
        at: `{axis: name}` of the task.
        seed: Seed of the task.
        tried: `{key: value}` that the task tries.
        options: `{key: value}`, where `{RUN}` stands for a task of another run.
        tasks: Tasks planned so far, including all tasks that the new task needs.

    Raises:
        UserError: A needed task does not exist.
    """
    options = options | tried
    best, tool = study.runs[run].best, study.runs[run].tool
    references = find_references(options.values())
    tries: tuple[str, ...] = ()
    if best:
        tries = tuple(task.name for task in _runs_of(run, best.of, at, tasks))
    for name in tries:  # a tried value may name a run
        references |= find_references(tasks[name].tried.values())
    replacements, needed = {SEED: str(seed)}, [*tries]
    # All references except {seed} and places are runs. A place without a path stays in braces.
    for needed_run in sorted(references - {SEED, *study.places}):
        candidates = _runs_of(run, needed_run, at, tasks)
        same_seed = [task.name for task in candidates if task.seed == seed]
        needed_task = same_seed[0] if same_seed else candidates[0].name
        replacements[needed_run] = f"{{{needed_task}}}"
        needed.append(needed_task)
    # the folder's name has each tried value with the last part of its key, such as lr=0.1
    values = [f"{key.rpartition('.')[2]}={option_text(value)}" for key, value in tried.items()]
    name = PLAIN.sub("_", "-".join([run, *at.values(), str(seed), *values]))
    options = fill_references(options, replacements)
    if options.get("hub.repo"):  # a repository for each run
        options["hub.repo"] = repository_for_run(options["hub.repo"], name)
    choice = (tries, best.by or "accuracy") if best else None
    despite = best.despite if best else ()
    return Task(name, run, tool, at, seed, options, tried, tuple(needed), choice, despite)


def _runs_of(run: str, needed: str, at: Mapping[str, str], tasks: Tasks) -> list[Task]:
    """Return the tasks of a needed run that have the same names as `at` on the needed run's axes.

    For example, a task at arm `mae` and share `10%` needs run `pretrain`, which has only the axis
    arm. Then the result is the tasks of `pretrain` at arm `mae`, one for each seed.

    Args:
        run: Name of the run that needs the other run, for error messages.
        needed: Name of the needed run.
        at: `{axis: name}` of the task of `run`.
        tasks: Tasks planned so far.

    Raises:
        UserError: No such task exists.
    """
    candidates = [task for task in tasks.values() if task.run == needed]
    matching = [
        task for task in candidates if all(at[axis] == name for axis, name in task.at.items())
    ]
    if not matching:
        raise UserError(
            f"{place_text(run, at)}: this run needs run {needed} with the same names on the axes,"
            f" and the study has no such run. Check `only` of run {needed}."
        )
    return matching


def weight_sources(tasks: Tasks, name: str) -> list[str]:
    """Return the tasks whose weights the task continues from, directly or through further tasks.

    Tasks that only serve to choose the best tried values are not included.
    """
    task = tasks[name]
    direct = [need for need in task.needs if need not in task.tries]
    indirect = [origin for need in direct for origin in weight_sources(tasks, need)]
    return list(dict.fromkeys([*direct, *indirect]))


def warn_about_other_tries(tasks: Tasks) -> list[str]:
    """Warn if a task takes the best values from tries whose other settings differ from the task's.

    For example, the best learning rate of a short training need not be the best learning rate of a
    long training. Differences in these keys cause no warning:

    - the tried keys
    - keys of held-out images and the other keys of `NOT_CHOSEN_FOR`
    - keys that only the task has, or only its tries
    - keys that the study file names under `despite`

    Returns:
        One line for each kind of difference, with the first run that has this difference.
    """
    places: dict[str, str] = {}  # {warning: run and names on the axes}
    for task in tasks.values():
        if not task.tries:
            continue
        first_try = tasks[task.tries[0]]
        # `_weights` adds the weights that a task starts from
        values_of_try = first_try.values | _weights(first_try)
        values = task.values | _weights(task)
        in_one_only = values_of_try.keys() ^ values.keys()
        # NOT_CHOSEN_FOR has keys that may always differ, such as `seed` and `data.validation`
        ignored = {*first_try.tried, *NOT_CHOSEN_FOR, *task.despite, *in_one_only}
        relevant = [
            str(difference)
            for difference in differences(values_of_try, values, ignored)
            if changes_experiment(difference.key)
        ]
        if relevant:
            text = (
                f"this run takes the best {' and '.join(first_try.tried)} from run {first_try.run},"
                f" which differs in {', '.join(relevant)}. For this run, another value may be"
                " better"
            )
            places.setdefault(text, place_text(task.run, task.at))
    return [f"{place}: {text}" for text, place in places.items()]


def _weights(task: Task) -> dict[str, str]:
    """Return where a task's weights come from, as `{key: source}`.

    Weights of another task have the name of its run in place of its folder. For example,
    `init={pretrain-mae-0}` gives `{"init": "pretrain"}`. So two seeds of a run are the same source.
    """
    named_sources = sources({"init": SCRATCH} | task.options)
    return {key: OF_RUN.sub(r"\1", source.place) for key, source in named_sources.items()}


def failed_need(task: Task, tasks: Tasks, failed: Sequence[str]) -> str | None:
    """Return the name of a failed task that prevents this task from running, or None if it can run.

    A task that takes the best of several tries can run if at least one try has not failed, because
    some of the tried values may diverge.

    Args:
        task: Task that may run.
        tasks: All tasks of the study.
        failed: Names of the failed tasks.
    """
    missing = [name for name in task.needs if name in failed]
    # Without tries, this is true, and every failed need prevents the task. With tries, failed tries
    # prevent the task only if all tries have failed.
    have_all_tries_failed = {*task.tries} <= {*failed}
    if not have_all_tries_failed:
        missing = [name for name in missing if name not in task.tries]
    return missing[0] if missing else None
