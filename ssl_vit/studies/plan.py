"""From a study to its tasks, the words of each, and study.json, which holds the plan."""

import itertools
import json
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from .. import hub_files
from ..config import parsing
from ..config.init_source import SCRATCH, InitSource
from ..config.parsing import flatten, load_yaml
from ..config.resolve import file_values, find_recipe, resolve
from ..config.schema import OBJECTIVES, USES_LABELS, Recipe, computed_values, counts
from ..errors import UserError
from ..jobs import reuse
from ..runs.files import write_atomically
from ..runs.folder import Run
from ..runs.identity import FROM_INIT, check_unedited, planned_differences
from . import match_compute
from .spec import PLACEHOLDER, Part, Study
from .spec_fields import text


@dataclass(frozen=True)
class Task:
    """One run of a part. Its words keep {NAME} for the folder of the task NAME, so that they do not
    depend on the place."""

    name: str
    part: str
    tool: str
    arm: str
    seed: int
    values: dict[str, Any]  # of the grid
    needs: tuple[str, ...]  # names of tasks
    words: dict[str, str]
    best: str | None = None
    by: str = ""


def tasks(study: Study, places: dict[str, str], words: dict[str, str]) -> dict[str, Task]:
    """Every task by its name, each after those that it needs. `words` go over their own to all that
    have a use for them.

    Raises:
        UserError: a word would set what a part sweeps or the study varies, or arms cannot be
        matched.
    """
    _check_over(study, words)
    found: dict[str, Task] = {}
    for part in study.parts.values():
        for arm in part.options:
            suits = {
                key: value
                for key, value in words.items()
                if _suits(key, part.tool, part.options[arm])
            }
            said = part.options[arm] | suits
            if study.match == "exaflop" and part.tool == "pretrain":
                said |= match_compute.steps(part, arm, suits, places)
            if "plugin" in said and said["plugin"] != words.get("plugin"):
                text = "the study's file asks for it, and a plugin runs only where the command line names it"
                raise UserError(f"part {part.name}, arm {arm}: plugin={said['plugin']}: {text}")
            for seed, values in itertools.product(
                part.seeds or study.seeds, itertools.product(*part.grid.values())
            ):
                task = _task(
                    part, arm, seed, dict(zip(part.grid, values, strict=True)), found, places, said
                )
                found[task.name] = task
    return found


def _check_over(study: Study, words: dict[str, str]) -> None:
    """That no word sets what the study itself does."""
    swept = {key: f"part {part.name} sweeps" for part in study.parts.values() for key in part.grid}
    swept |= {key: "the study varies" for setting in study.vary.values() for key in setting}
    for key in swept.keys() & words.keys():
        raise UserError(f"{key}={words[key]}: {swept[key]} it; leave it out")


def _task(
    part: Part,
    arm: str,
    seed: int,
    values: dict[str, Any],
    before: dict[str, Task],
    places: dict[str, str],
    words: dict[str, str],
) -> Task:
    """One task; what it needs is in `before`."""
    said = words | {key: text(value) for key, value in values.items()}
    needs = [task.name for task in before.values() if task.part == part.best and task.arm == arm]
    names = dict(places)
    for other in sorted(
        {name for value in said.values() for name in PLACEHOLDER.findall(value)} - places.keys()
    ):
        runs = {
            task.seed: task.name
            for task in before.values()
            if task.part == other and task.arm == arm
        }
        names[other] = f"{{{runs.get(seed, next(iter(runs.values())))}}}"
        needs.append(names[other][1:-1])
    filled = {
        key: PLACEHOLDER.sub(lambda found: names[found[1]], value) for key, value in said.items()
    }
    name = _name(part.name, arm, seed, values)
    if "hub.repo" in filled:  # which holds one run
        filled["hub.repo"] = hub_files.beside(filled["hub.repo"], name)
    return Task(
        name, part.name, part.tool, arm, seed, values, tuple(needs), filled, part.best, part.by
    )


def _suits(key: str, tool: str, words: dict[str, str]) -> bool:
    """Whether a word for the whole study is one for a task: its tool and its objective have a use
    for it."""
    group = key.split(".")[0]
    if tool == "evaluate" or group == "probe":
        return tool == "evaluate" and group in ("probe", "data", "model", "compute")
    objective = words.get("objective")
    if objective is None:
        objective = file_values(find_recipe(words.get("recipe"))).get("objective", "mpp")
    return group not in {
        name for used in OBJECTIVES.values() for name in used
    } or group in OBJECTIVES.get(objective, ())


def _name(part: str, arm: str, seed: int, values: dict[str, Any]) -> str:
    grid = [f"{key.rpartition('.')[2]}={text(value)}" for key, value in values.items()]
    return "-".join([part, arm, str(seed), *grid]).replace("/", "_")


def check(plan: dict[str, Task]) -> dict[str, Recipe]:
    """That the recipe system takes every task's words; the recipe of each task.

    A model that comes from another task's run is that task's; what else such a run decides is left
    to the run itself.

    Raises:
        UserError: the first words that it does not take, or two arms that train the same, with
        their part and arm.
    """
    made: dict[str, Recipe] = {}
    known: dict[tuple[str, str, str], Recipe] = {}  # seeds are alike
    for task in plan.values():
        values = task.values or next((plan[name].values for name in task.needs[:1]), {})
        same = task.part, task.arm, str(values)
        if same not in known:
            known[same] = _checked(task, values, plan, made)
            _check_other(task, values, known)
        made[task.name] = known[same]
    return made


def _checked(
    task: Task, values: dict[str, Any], plan: dict[str, Task], made: dict[str, Recipe]
) -> Recipe:
    said = {key: value for key, value in task.words.items() if not PLACEHOLDER.search(value)}
    origin = next(
        (plan[name] for name in PLACEHOLDER.findall(task.words.get("init", "")) if name in plan),
        None,
    )
    if origin is not None and "model" not in said:
        said = _model(made[origin.name]) | said
    said |= {key: text(value) for key, value in values.items()} if task.best else {}
    try:
        recipe = resolve([f"{key}={value}" for key, value in said.items()])
        if task.values and origin is not None:
            _check_unseen(made[origin.name], recipe, origin.part)
        return recipe
    except UserError as error:
        raise UserError(f"part {task.part}, arm {task.arm}: {error}") from None


def _check_other(
    task: Task, values: dict[str, Any], known: dict[tuple[str, str, str], Recipe]
) -> None:
    """That no other arm of a part that pre-trains is the same network trained in the same way,
    under another name."""
    if task.tool != "pretrain":
        return
    alike = {
        arm: recipe
        for (part, arm, told), recipe in known.items()
        if (part, told) == (task.part, str(values))
    }
    trained = {arm: computed_values(recipe) | {"model.name": ""} for arm, recipe in alike.items()}
    mine = trained.pop(task.arm)
    if mine in trained.values():
        raise UserError(
            f"part {task.part}, arm {task.arm}: another arm trains the very same; leave one out"
        )


def _model(recipe: Recipe) -> dict[str, str]:
    return {
        f"model.{key}": text(value) for key, value in asdict(recipe.model).items() if key != "name"
    }


def _check_unseen(before: Recipe, sweep: Recipe, part: str) -> None:
    """That the labels which a sweep is judged on are none that its first weights learned from."""
    was, now = before.data, sweep.data
    learned = USES_LABELS & set(OBJECTIVES[before.objective]) and (
        was.name,
        was.path,
        was.train,
    ) == (
        now.name,
        now.path,
        now.train,
    )
    cut_alike = (was.share, was.validation) == (now.share, now.validation) and now.validation != 0
    if learned and not cut_alike and not isinstance(now.validation, str):
        there = f"data.share={was.share:g} data.validation={was.validation}"
        raise UserError(
            f"data.validation={now.validation}: part {part} ({there}) has learned their labels; hold the same ones out there"
        )


def unreachable(task: Task, plan: dict[str, Task], failed: Collection[str]) -> str | None:
    """A need of the task that will not come, if any. Of a sweep, whose rates may diverge, one
    finished run is enough."""
    swept = {name for name in task.needs if plan[name].part == task.best}
    return next(
        (
            need
            for need in task.needs
            if need in failed and (need not in swept or swept <= set(failed))
        ),
        None,
    )


def finished(folder: Path, name: str) -> bool:
    """Whether a task's run has its result."""
    return (folder / name / "result.json").exists()


def best_values(task: Task, plan: dict[str, Task], folder: Path) -> dict[str, Any]:
    """The grid values of the combination with the highest metric `by`, the mean over seeds; the
    first among equals. Runs without a result are passed over.

    Raises:
        UserError: the runs have no such metric, or no finite value of it, or it is not of held-out
        images.
    """
    values: dict[str, dict[str, Any]] = {}
    scores: dict[str, list[float]] = {}
    for run in (
        plan[name] for name in task.needs if plan[name].part == task.best and finished(folder, name)
    ):
        metrics = _metrics(folder / run.name / "result.json")
        if task.by not in metrics:
            raise UserError(
                f"part {task.part}: best: by={task.by}: {run.name} has {', '.join(metrics)}"
            )
        if (split := metrics[task.by]["split"]) != "validation":
            text = (
                f"of {run.name} it is of the {split} images; nothing is chosen but on held-out ones"
            )
            raise UserError(f"part {task.part}: best: by={task.by}: {text}")
        values[str(run.values)] = run.values
        scores.setdefault(str(run.values), []).append(metrics[task.by]["value"])
    means = {
        key: sum(found) / len(found)
        for key, found in scores.items()
        if all(map(math.isfinite, found))
    }
    if not means:
        raise UserError(
            f"part {task.part}: best: by={task.by}: no run of part {task.best} has a finite one"
        )
    return values[max(means, key=lambda key: means[key])]


def _metrics(path: Path) -> dict[str, Any]:
    try:
        return cast(
            dict[str, Any], parsing.read_json(path, {"metrics": parsing.METRICS})["metrics"]
        )
    except (OSError, ValueError):
        pass
    raise UserError(f"{path} is damaged; remove its folder and give the command again")


def check_finished(task: Task, plan: dict[str, Task], folder: Path) -> list[str]:
    """That a finished task's run is the one that its words mean now, also after a recipe or a table
    was edited, of the images, weights and files that are there now; what could not be checked, in
    words.

    Raises:
        UserError: it is another; the differences are named.
    """
    path = folder / task.name / "recipe.yaml"
    recipe, left_out = _meant(task, plan, folder)
    if not path.exists():
        raise UserError(f"{path} is missing; remove its folder, or take another name=")
    left_out += ("compute.precision",) if recipe.compute.precision == "auto" else ()
    differ = planned_differences(flatten(load_yaml(path)), computed_values(recipe), left_out)
    if differ:
        raise UserError(
            f"{path.parent} was made otherwise: {'; '.join(differ)}; "
            "remove it, or take another name="
        )
    run = Run(recipe)
    check_unedited(run.recipe, run.folder)
    return reuse.check(run)


def _meant(task: Task, plan: dict[str, Task], folder: Path) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe of a finished task's words as they are read now, and the beginnings of the keys
    that it does not tell: those that come from first weights which are not here any more."""
    words = command(task, plan, folder)[1:]
    places = (word.partition("=")[2] for word in words if word.startswith("init="))
    source = InitSource(next(places, SCRATCH))
    if source.is_scratch:
        return resolve(words, here=False), ()
    if source.weights_hash() is not None:
        return resolve(words, here=False), ("init",)  # whose weights are compared
    return resolve((word for word in words if not word.startswith("init=")), here=False), FROM_INIT


def command(task: Task, plan: dict[str, Task], folder: Path) -> list[str]:
    """What runs a task: the tool's name and its words, `best` looked up now. Its needs are finished."""
    said = task.words | (
        {key: text(value) for key, value in best_values(task, plan, folder).items()}
        if task.best
        else {}
    )
    whole = folder.resolve()
    said = {
        key: PLACEHOLDER.sub(lambda found: str(whole / found[1]), value)
        for key, value in said.items()
    }
    said |= {"seed": str(task.seed), "out": str(whole), "name": task.name}
    return [task.tool, *(f"{key}={value}" for key, value in said.items())]


def write_plan(study: Study, name: str, plan: dict[str, Task], folder: Path) -> None:
    """Write study.json, or see that this plan holds the one that is there. What does not change a
    number may differ, and tasks may come to it, as of more seeds.

    Raises:
        UserError: another plan is there; the tasks that differ are named.
    """
    path = folder / "study.json"
    made = {
        "name": name,
        "title": study.title,
        "arms": study.arms,
        "seeds": study.seeds,
        "report": study.report,
    }
    made |= {"vary": study.vary, "match": study.match} if study.vary else {}
    made |= {"parts": list(study.parts), "tasks": [_record(task) for task in plan.values()]}
    if path.exists():
        try:
            kept = parsing.read_json(path, {"tasks": [{**parsing.TASK, "words": [str]}]})
            before = {task["name"]: task for task in kept["tasks"]}
        except (OSError, ValueError):
            raise UserError(f"{path} is damaged; remove it, or take another name=") from None
        now = {task["name"]: task for task in json.loads(json.dumps(made))["tasks"]}
        if differ := [
            said for key in before | now if (said := _differs(key, before.get(key), now.get(key)))
        ]:
            more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
            raise UserError(
                f"name={name}: {folder} holds another plan: {', '.join(differ[:3])}{more}; take another name="
            )
    content = json.dumps(made, indent=2) + "\n"
    if not path.exists() or path.read_text(errors="replace") != content:
        write_atomically(path, content)


def _record(task: Task) -> dict[str, Any]:
    """A task as study.json has it, its words as on a command line."""
    return asdict(task) | {"words": [f"{key}={value}" for key, value in task.words.items()]}


def _differs(name: str, before: dict[str, Any] | None, now: dict[str, Any] | None) -> str:
    """A task's difference between two plans in words; empty where there is none."""
    if before is None:  # one more, of another seed
        return ""
    if now is None:
        return f"{name} (only there)"
    was, new = (_counts(task["words"]) for task in (before, now))
    keys = [key for key in was | new if was.get(key) != new.get(key)]
    told = [
        f"{key} {was.get(key, 'not said')} there, {new.get(key, 'not said')} here" for key in keys
    ]
    told += [key for key in ("tool", "best", "by", "needs") if before.get(key) != now[key]]
    return f"{name} ({'; '.join(told)})" if told else ""


def _counts(words: list[str]) -> dict[str, str]:
    """Those that change what is computed."""
    said = {key: value for key, _, value in (word.partition("=") for word in words)}
    return {key: value for key, value in said.items() if counts(key)}
