"""study.json, which holds a study's plan; and whether finished tasks are those of the plan."""

import json
from dataclasses import asdict
from pathlib import Path

from ...config import records
from ...config.computed import computed_values, counts, keys
from ...config.init_source import SCRATCH, InitSource
from ...config.parsing import flatten, load_yaml
from ...config.recipe_images import names_images
from ...config.records.study import StudyPlan
from ...config.resolve import resolve
from ...config.schema import Recipe
from ...errors import UserError
from ...jobs import reuse
from ...runs.files import write_atomically
from ...runs.folder import Run
from ...runs.identity import check_unedited, from_init, planned_differences
from ..lab_tools import MATCHES
from .expand import Plan, Task, command
from .study import Study

LISTED = 3  # differences that an error lists


def check_finished(task: Task, plan: Plan, folder: Path) -> list[str]:
    """Check that a finished task's run is what its options mean now: with the recipes, images,
    weights and files of today. Warnings about what could not be checked.

    Raises:
        UserError: it is another; it names the differences.
    """
    path = folder / task.name / "recipe.yaml"
    recipe, ignored = _current_recipe(task, plan, folder)
    if not path.exists():
        raise UserError(f"{path} is missing; remove its folder, or take another name=")
    if recipe.compute.precision == "auto":
        ignored.append("compute.precision")
    there = flatten(load_yaml(path))
    differ = planned_differences(there, computed_values(recipe), ignored)
    if differ:
        text = f"{path.parent} was made otherwise: {'; '.join(differ)}"
        raise UserError(f"{text}; remove it, or take another name=")
    run = Run(recipe)
    check_unedited(run.recipe, run.folder)
    return reuse.check(run)


def _current_recipe(task: Task, plan: Plan, folder: Path) -> tuple[Recipe, list[str]]:
    """The recipe of a finished task's options as they resolve now, and the keys that it does not
    tell, because the initial weights that decide them are no longer here."""
    options = command(task, plan, folder)[1:]
    places = [option.removeprefix("init=") for option in options if option.startswith("init=")]
    source = InitSource(places[0] if places else SCRATCH)
    if source.is_scratch:
        return resolve(options, here=False), []
    if source.weights_hash() is not None:
        return resolve(options, here=False), ["init"]  # the weights themselves are compared
    without = [option for option in options if not option.startswith("init=")]
    undecided = from_init()
    if not names_images(options):
        undecided += keys(lambda option: option.key.startswith("data."))
    return resolve(without, here=False), undecided


def check_plan(name: str, plan: Plan, folder: Path) -> None:
    """Check that the plan in study.json, if it is there, is part of this one: options that change
    no number may differ, and tasks, as of more seeds, may be added.

    Raises:
        UserError: another plan is there; it names the tasks that differ.
    """
    path = folder / "study.json"
    if path.exists() and (differ := _differences(path, plan)):
        more = f" and {len(differ) - LISTED} more" if len(differ) > LISTED else ""
        text = f"{folder} holds another plan: {', '.join(differ[:LISTED])}{more}"
        raise UserError(f"name={name}: {text}; take another name=")


def write_plan(study: Study, name: str, plan: Plan, folder: Path) -> None:
    """Write study.json.

    Raises:
        UserError: as `check_plan`.
    """
    check_plan(name, plan, folder)
    path = folder / "study.json"
    record = {
        "name": name,
        "title": study.title,
        "arms": study.arms,
        "seeds": study.seeds,
        "report": study.report,
    }
    if study.vary:
        record |= {"vary": study.vary}
    if study.vary or study.match != MATCHES[0]:
        record |= {"match": study.match}
    if study.curve:
        record["labels"] = [one.content() for one in study.points]
        if study.curve.name != "labels":
            record["curve"] = study.curve.name
    if study.benchmark:
        record["benchmark"] = study.benchmark
    record |= {
        "parts": list(study.parts),
        "tasks": [_record(task).content() for task in plan.values()],
    }
    content = json.dumps(record, indent=2) + "\n"
    if not path.exists() or path.read_text(errors="replace") != content:
        write_atomically(path, content)


def _record(task: Task) -> records.study.Task:
    """A task as study.json has it; its options as on a command line."""
    values = asdict(task) | {"needs": list(task.needs)}
    values["options"] = [f"{key}={value}" for key, value in task.options.items()]
    return records.study.Task(**values)


def _differences(path: Path, plan: Plan) -> list[str]:
    """Descriptions of the tasks in study.json that differ from the plan's."""
    record = records.require(path, StudyPlan, "remove it, or take another name=")
    now = {name: _record(task) for name, task in plan.items()}
    found = [_difference(task, now.get(task.name)) for task in record.tasks]
    return [text for text in found if text]


def _difference(before: records.study.Task, now: records.study.Task | None) -> str:
    """Description of a task's difference between two plans; empty if there is none."""
    name = before.name
    if now is None:
        return f"{name} (only there)"
    was = _computed_options(before)
    new = _computed_options(now)
    texts = [
        f"{key} {was.get(key, 'not set')} there, {new.get(key, 'not set')} here"
        for key in was | new
        if was.get(key) != new.get(key)
    ]
    texts += [key for key in ("tool", "best", "by", "needs") if before[key] != now[key]]
    return f"{name} ({'; '.join(texts)})" if texts else ""


def _computed_options(task: records.study.Task) -> dict[str, str]:
    """A recorded task's options that change what is computed."""
    pairs = (option.partition("=") for option in task.options or ())
    return {key: value for key, _, value in pairs if counts(key)}
