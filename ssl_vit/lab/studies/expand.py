"""A study's tasks: the options of each, and what starts it."""

import itertools
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ... import hub_files
from ...config import declaration, records
from ...config.computed import computed_values
from ...config.recipe_files import file_values, find_recipe
from ...config.records import Measured, WithMetrics, WithSeconds
from ...config.resolve import names_images, of_images, resolve
from ...config.schema import Data, Recipe, all_groups, options
from ...data.layout import ROLE
from ...errors import UserError
from ...formatting import option_text
from ...metrics import score
from . import benchmark_images, match_compute
from .spec import PLACEHOLDER, SEED, Part, Study, split_reference
from .spec_fields import Mistakes, combinations, swept_together
from .sweep import image_options

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
    values: dict[str, Any]  # of the grid
    needs: tuple[str, ...]  # names of tasks
    options: dict[str, str]
    best: str | None = None  # part whose best values it takes
    by: str = ""  # metric that decides


def tasks(study: Study, places: dict[str, str], options: dict[str, str]) -> Plan:
    """The tasks of a study.

    Args:
        study: as read from its file.
        places: {name: path} of the places that the file names.
        options: override those of every task that uses them.

    Raises:
        UserError: an option would set what a part sweeps or the study varies, or arms cannot be
        matched.
    """
    _check_overrides(study, options)
    plan: Plan = {}
    for part in study.parts.values():
        for arm in part.options:
            arm_options = _arm_options(study, part, arm, places, options)
            grid = combinations(part.grid_of(arm))
            for seed, values in itertools.product(part.seeds or study.seeds, grid):
                task = _task(part, arm, seed, values, plan, places, arm_options)
                plan[task.name] = task
    return plan


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


def _check_overrides(study: Study, options: dict[str, str]) -> None:
    """Check that no option sets what the study itself does.

    Raises:
        UserError: one does.
    """
    taken: dict[str, str] = {}
    for part in study.parts.values():
        for name, values in part.grid.items():
            taken |= dict.fromkeys(swept_together(name, values), f"part {part.name} sweeps")
    taken |= dict.fromkeys(study.scaling.keys, f"the study's {study.scaling.of} set")
    taken |= dict.fromkeys(benchmark_images.keys(study), "the study's benchmark sets")
    for setting in study.vary.values():
        taken |= dict.fromkeys(setting, "the study varies")
    for key in taken.keys() & options.keys():
        raise UserError(f"{key}={options[key]}: {taken[key]} it; leave it out")


def _task(
    part: Part,
    arm: str,
    seed: int,
    values: dict[str, Any],
    plan: Plan,
    places: dict[str, str],
    arm_options: dict[str, str],
) -> Task:
    """One task; those that it needs are in `plan`."""
    options = arm_options | {key: option_text(value) for key, value in values.items()}
    needs = [task.name for task in plan.values() if (task.part, task.arm) == (part.best, arm)]
    names = places | {SEED: str(seed)}
    references = {name for value in options.values() for name in PLACEHOLDER.findall(value)}
    for other in sorted(references - places.keys() - {SEED}):
        source = split_reference(other, arm)
        runs = {task.seed: task.name for task in plan.values() if (task.part, task.arm) == source}
        needed = runs.get(seed, next(iter(runs.values())))
        names[other] = f"{{{needed}}}"
        needs.append(needed)
    filled = {
        key: PLACEHOLDER.sub(lambda found: names[found[1]], value) for key, value in options.items()
    }
    name = _name(part.name, arm, seed, values)
    if "hub.repo" in filled:  # one run per repository
        filled["hub.repo"] = hub_files.beside(filled["hub.repo"], name)
    return Task(
        name, part.name, part.tool, arm, seed, values, tuple(needs), filled, part.best, part.by
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


def _name(part: str, arm: str, seed: int, values: dict[str, Any]) -> str:
    grid = [f"{key.rpartition('.')[2]}={option_text(value)}" for key, value in values.items()]
    return "-".join([part, arm, str(seed), *grid]).replace("/", "_")


def check(
    study: Study, plan: Plan, mistakes: Mistakes | None = None, here: bool = True
) -> dict[str, Recipe]:
    """Resolve and check every task's options; {task: its recipe}.

    A task that starts from another task's run has that run's model; what else such a run decides is
    checked when it is there.

    Args:
        study, plan: the study and its tasks.
        mistakes: collects those of all parts and arms; what needs a wrong task is left out.
        here: check that images are on this machine.

    Raises:
        UserError: options are wrong, two arms train the same, or weights have learned more labels
            than the share that their part stands for; it names part and arm.
    """
    points = study.scaling.points if study.scaling.of == "labels" else ()
    shares = {part: one.share for one in points for part in (one.final, *one.extra)}
    recipes: dict[str, Recipe] = {}
    resolved: dict[tuple[object, ...], Recipe] = {}  # once for seeds that do not differ
    known: dict[tuple[str, str, str, int], Recipe] = {}
    mistakes = mistakes or Mistakes()
    for task in plan.values():
        before = origin(task, plan)
        if before is not None and before.name not in recipes:
            continue  # its mistake is found
        with mistakes.of():
            if not options()["name"].allows(task.name):
                text = f"the name of its run is too long, {task.name[:80]}..."
                expected = f"expected {options()['name'].allowed}"
                raise UserError(f"part {task.part[:80]}, arm {task.arm[:80]}: {text}; {expected}")
            values = task.values or next((plan[name].values for name in task.needs[:1]), {})
            same = _decisive(task, values, plan, recipes)
            found = resolved.get(same) or _recipe(task, values, plan, recipes, here)
            recipes[task.name] = known[task.part, task.arm, str(values), task.seed] = found
            if same not in resolved:
                resolved[same] = found
                _check_distinct(task, values, known)
            if task.part in shares:
                _check_labels_seen(task, shares[task.part], plan, recipes)
    return recipes


def _decisive(
    task: Task, values: dict[str, Any], plan: Plan, recipes: dict[str, Recipe]
) -> tuple[object, ...]:
    """What decides a task's recipe: its options, and the recipe of the run that it starts from."""
    options = known_options(task)
    options.pop("hub.repo", None)  # one for each task
    before = origin(task, plan)
    start = None if before is None else id(recipes[before.name])
    return task.part, task.arm, str(values), tuple(options.items()), start


def origin(task: Task, plan: Plan) -> Task | None:
    """The task whose weights a task starts from."""
    names = PLACEHOLDER.findall(task.options.get("init", ""))
    return next((plan[name] for name in names if name in plan), None)


def known_options(task: Task) -> dict[str, str]:
    """The options that name no other task."""
    return {key: value for key, value in task.options.items() if not PLACEHOLDER.search(value)}


def options_from(before: Recipe, options: dict[str, str]) -> dict[str, str]:
    """A task's options with what the run brings that it starts from, before that run exists: its
    model and its images, each unless the options name it."""
    brought: dict[str, str] = {}
    if not names_images(f"{key}={value}" for key, value in options.items()):
        brought = image_options(before, of_images())
    if "model" not in options:
        brought |= model_options(before)
    return brought | options


def _recipe(
    task: Task, values: dict[str, Any], plan: Plan, recipes: dict[str, Recipe], here: bool
) -> Recipe:
    options = known_options(task)
    before = origin(task, plan)
    if before is not None:
        options = options_from(recipes[before.name], options)
    if task.best:
        options |= {key: option_text(value) for key, value in values.items()}
    try:
        recipe = resolve([f"{key}={value}" for key, value in options.items()], here)
        if task.values and before is not None:
            _check_unseen(recipes[before.name], recipe, before.part)
    except UserError as error:
        raise UserError(f"part {task.part}, arm {task.arm}: {error}") from None
    return recipe


def _check_distinct(
    task: Task, values: dict[str, Any], known: dict[tuple[str, str, str, int], Recipe]
) -> None:
    """Check that no other arm of a part that pre-trains computes the same.

    Raises:
        UserError: one does.
    """
    if task.tool != "pretrain":
        return
    computed = {
        arm: computed_values(recipe) | {"model.name": ""}
        for (part, arm, other, seed), recipe in known.items()
        if (part, other, seed) == (task.part, str(values), task.seed)
    }
    own = computed.pop(task.arm)
    if own in computed.values():
        raise UserError(
            f"part {task.part}, arm {task.arm}: another arm trains the very same; leave one out"
        )


def model_options(recipe: Recipe) -> dict[str, str]:
    """The options that describe a recipe's model."""
    values = asdict(recipe.model)
    return {f"model.{key}": option_text(value) for key, value in values.items() if key != "name"}


def _check_labels_seen(task: Task, share: float, plan: Plan, recipes: dict[str, Recipe]) -> None:
    """Check that the weights a task starts from have learned no other labels of its images than the
    share of them that it stands for.

    Raises:
        UserError: they have.
    """
    before = origin(task, plan)
    while before is not None:
        recipe = recipes[before.name]
        data = recipes[task.name].data
        learned = min(recipe.data.share, recipe.data.labelled)
        same_cut = _cut(recipe.data, learned) == _cut(data, share)
        if _learned_labels(recipe, data) and (learned > share or (share < 1 and not same_cut)):
            which = f"{learned:g} of the labels" if learned > share else "another share's labels"
            text = f"part {before.part} has learned {which}"
            raise UserError(f"part {task.part}, arm {task.arm}: data.share={share:g}: {text}")
        before = origin(before, plan)


def _learned_labels(recipe: Recipe, data: Data) -> bool:
    """Whether a recipe trains on labels of the images of `data`: those of the same name, wherever
    they are, or in the same place, whatever their name."""
    own = recipe.data
    roles = {ROLE.get(name.lower(), name) for name in (own.train, data.train)}
    paths = {None if path is None else str(Path(path).resolve()) for path in (own.path, data.path)}
    same_place = own.path is not None and len(paths) == 1
    same_images = len(roles) == 1 and (own.name == data.name or same_place)
    return same_images and recipe.declared.labels


def _cut(data: Data, share: float) -> tuple[object, ...]:
    """What decides which images a share of the labels are, and which are held out; these depend on
    the share only where they are cut off it."""
    of = 1 if data.validation_from == "train" else share
    return data.validation, data.window, data.share_seed, of


def _check_unseen(before: Recipe, sweep: Recipe, part: str) -> None:
    """Check that a sweep is not judged on labels that its initial weights were trained on.

    Raises:
        UserError: it is.
    """
    was = before.data
    now = sweep.data
    learned = _learned_labels(before, now)
    same_cut = _cut(was, was.share) == _cut(now, now.share) and now.validation != 0
    if learned and not same_cut and not isinstance(now.validation, str):
        there = f"data.share={was.share:g} data.validation={was.validation}"
        there += f" data.validation_from={was.validation_from} data.window={was.window}"
        there += f" data.share_seed={was.share_seed}"
        text = f"part {part} ({there}) has learned their labels; hold the same ones out there"
        raise UserError(f"data.validation={now.validation}: {text}")


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


def best_values(task: Task, plan: Plan, folder: Path) -> dict[str, Any]:
    """The grid values with the best metric `by`, averaged over seeds; the first among equals.
    Runs without a result are left out.

    Raises:
        UserError: no run has a finite value of that metric, or it is not of held-out images.
    """
    where = f"part {task.part}: best: by={task.by}"
    values: dict[str, dict[str, Any]] = {}
    scores: dict[str, list[float]] = {}
    swept = [plan[name] for name in task.needs if plan[name].part == task.best]
    for run in swept:
        if not finished(folder, run.name):
            continue
        metrics = _metrics(folder / run.name / "result.json")
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


def _metrics(path: Path) -> dict[str, Measured]:
    try:
        return records.read(path, WithMetrics).metrics
    except (OSError, ValueError):
        raise UserError(
            f"{path} is damaged; remove its folder and give the command again"
        ) from None


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
