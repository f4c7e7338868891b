"""Estimates the cost of a run or a study as a record. Torch is imported only to measure steps."""

import copy
import dataclasses
import difflib
import json
from functools import cache
from pathlib import Path
from typing import Any

from ... import costs
from ...config.computed import computed_values, keys
from ...config.fields import KEY
from ...config.parsing import exists, load_yaml
from ...config.recipe_images import image_notice
from ...config.resolve import resolve
from ...config.schema import Data, Recipe, defaults
from ...data.batch_layout import BatchLayout
from ...errors import UserError, suggest
from ..lab_tools import PlanOptions
from ..studies.expand import Plan
from ..studies.request import parse_request, with_places
from ..studies.task_recipes import planned_options
from . import budget, paper
from .budget import Device
from .pace import Pace, measure

STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
Record = dict[str, Any]


def device_of(settings: PlanOptions) -> Device | None:
    """The device that device= names; None without it.

    Raises:
        UserError: it is unknown.
    """
    known = budget.devices()
    name = settings.device
    if name is not None and name not in known:
        raise UserError(f"device={name}: unknown; {suggest(name, known)}")
    return None if name is None else known[name]


def run(options: list[str], settings: PlanOptions) -> Record:
    """The estimated cost of one run.

    Raises:
        UserError: an option is wrong.
    """
    known = [*defaults(), "recipe", "data", "model"]
    own = [key for key, option in PlanOptions.options().items() if option.form == KEY]
    for key in (option.partition("=")[0] for option in options):
        if key not in known and (near := difflib.get_close_matches(key, own, n=1)):
            raise UserError(
                f"unknown option {key}; did you mean {near[0]}? choices: {', '.join(own)}, or a "
                f"recipe's key"
            )
    recipe = _resolve(options, settings)
    if settings.epochs is not None:
        recipe = _resolve(
            [*options, f"optim.steps={_steps(options, recipe, settings.epochs, settings.images)}"],
            settings,
        )
    record = estimate(recipe, settings, measure(recipe) if settings.probe else None)
    return record | {"notice": image_notice(options, recipe)}


def _resolve(options: list[str], settings: PlanOptions) -> Recipe:
    """The recipe of the options; its images need to be here only if steps are measured."""
    return resolve(options, here=settings.probe)


def _training_images(data: Data, given: int | None) -> int | None:
    """As costs.training_images; of a local set that is not known, counted."""
    return costs.training_images(data, given) or _counted_here(data, every=False)


def _images_seen(recipe: Recipe, given: int | None) -> int | None:
    """As costs.images_seen; of a local set that is not known, counted."""
    return costs.images_seen(recipe, given) or _counted_here(recipe.data, every=True)


def _counted_here(data: Data, every: bool) -> int | None:
    """As `_counted`; None of images that do not lie on this machine."""
    here = data.path and exists(data.path) and not data.stream
    return _counted(json.dumps(dataclasses.asdict(data)), every) if here else None


@cache  # of a study's tasks many have the same images
def _counted(data: str, every: bool) -> int:
    """The training images of a recipe's data, given as JSON; with `every` also the held-out and the
    test images.

    Raises:
        UserError: as sources.load.
    """
    from ...data import sources  # takes seconds to import

    recipes_data = Data(**json.loads(data))
    splits = sources.load(recipes_data, test=every)
    count = len(splits.train)
    if splits.test:
        held_out = 0 if recipes_data.validation == 0 else len(splits.validation)
        count += held_out + len(splits.test)
    return count


def _steps(options: list[str], recipe: Recipe, epochs: float, images: int | None) -> int:
    """The optimiser steps of a number of epochs."""
    count = _training_images(recipe.data, images)
    if any(option.startswith("optim.steps=") for option in options):
        raise UserError(f"epochs={epochs:g}: optim.steps= is given too; expected one of them")
    if not recipe.declared.trains:
        raise UserError(f"epochs={epochs:g}: an evaluation has none")
    if count is None:
        raise UserError(
            f"epochs={epochs:g}: how many images data={recipe.data.name} has is not known; "
            f"say images="
        )
    return max(1, round(epochs * count / recipe.optim.batch))


def estimate(recipe: Recipe, settings: PlanOptions, pace: Pace | None = None) -> Record:
    """The record of one run, for the given device, else for this machine if its pace was measured.
    Unknown values are None."""
    recipe = copy.deepcopy(recipe)
    device, processes = device_of(settings), settings.processes
    here = pace if device is None else None
    if here:
        recipe.compute.precision = here.precision
    budget.settle_precision(recipe, device)
    fused = not (here and here.device == "cpu")
    trains = recipe.declared.trains
    layout = budget.batch_layout(recipe, processes, device) if trains and not here else None
    if trains and here:
        layout = BatchLayout(recipe.optim.batch, here.device_batch, 0, processes)
    batch = layout.device_batch if layout else None
    tensors = [costs.memory_bytes(recipe, processes, zero, batch or 0, fused) for zero in range(4)]
    return {
        "name": recipe.name,
        "model": recipe.model.name,
        "parameters": costs.parameters(recipe),
        "encoder_parameters": costs.encoder_parameters(recipe),
        "patches": 0 if recipe.model.convolutional else costs.patches(recipe),
        "multiply_adds": costs.multiply_adds(recipe),
        **_length(recipe, settings),
        "precision": recipe.compute.precision,
        "processes": processes,
        "zero": settings.zero,
        "device_batch": batch,
        "image_bytes": costs.activation_bytes(recipe, fused) if trains else 0,
        "tensor_bytes": dict(zip(STAGES, tensors, strict=True)),
        **_spent(recipe, settings, pace),
        "paper": paper.compare(recipe),
        "warnings": list(budget.warnings_for(recipe, processes, device, tensors[settings.zero])),
    }


def _length(recipe: Recipe, settings: PlanOptions) -> Record:
    """Steps, images and epochs, and their exaFLOP; steps are 0 in an evaluation."""
    trains = recipe.declared.trains
    images = _images_seen(recipe, settings.images)
    count = _training_images(recipe.data, settings.images)
    return {
        "steps": recipe.optim.steps if trains else 0,
        "batch": recipe.optim.batch if trains else 0,
        "images": images,
        "training_images": count,
        "epochs": images / count if trains and images and count else None,
        "exaflop": costs.total_exaflop(recipe, images),
    }


def _spent(recipe: Recipe, settings: PlanOptions, pace: Pace | None) -> Record:
    """Time and price: on the given device, else at the measured pace."""
    device = device_of(settings)
    exaflop = costs.total_exaflop(recipe, _images_seen(recipe, settings.images))
    measured = pace.seconds * recipe.optim.steps if pace else None
    hours = None
    processes = 1
    if device is None and measured is not None:
        hours = measured / 3600
    elif device is not None and exaflop is not None:
        hours = budget.hours(exaflop, device, recipe.compute.precision, settings.efficiency)
        processes = settings.processes
    price = None
    if hours is not None and settings.price is not None:
        price = hours * settings.price
    return {
        "device": dataclasses.asdict(device) if device else None,
        "efficiency": settings.efficiency if device else None,
        "seconds": None if hours is None else hours * 3600 / processes,
        "device_hours": hours,
        "price": price,
        "price_per_hour": settings.price,
        "probe": dataclasses.asdict(pace) | {"total_seconds": measured} if pace else None,
    }


def is_study(options: list[str]) -> bool:
    """Whether the options are those of tools/study.py: a study's name or file, or a sweep over a
    recipe."""
    recipes = [option.partition("=")[2] for option in options if option.startswith("recipe=")]
    recipe = recipes[0] if recipes else ""
    if "sweep" in options or recipe.startswith("study/"):
        return True
    is_file = recipe.endswith((".yaml", ".yml")) and exists(recipe)
    return is_file and not {"parts", "extends"}.isdisjoint(load_yaml(Path(recipe)))


def study(options: list[str], settings: PlanOptions) -> Record:
    """What a study will cost, by part and in all: the sums over its tasks.

    Raises:
        UserError: epochs= or images= is said; a mistake in the other options, with the part and the
        arm.
    """
    for key in ("epochs", "images"):
        if (value := getattr(settings, key)) is not None:
            raise UserError(
                f"{key}={value:g}: that is for one recipe; a study's parts say their own lengths"
            )
    device = device_of(settings)
    wanted = parse_request(with_places(options))
    tasks = estimate_tasks(wanted.plan, settings)
    of_part: dict[str, list[Record]] = {part: [] for part in wanted.study.parts}
    for name, record in tasks.items():
        of_part[wanted.plan[name].part].append(record)
    loads = [record["probe"]["load"] for record in tasks.values() if record["probe"]]
    return {
        "name": wanted.name,
        "title": wanted.study.title,
        "device": dataclasses.asdict(device) if device else None,
        "efficiency": settings.efficiency if device else None,
        "price_per_hour": settings.price,
        "parts": {name: _sum(records) for name, records in of_part.items()},
        **_sum(list(tasks.values())),
        "load": max(loads, default=None),
        "warnings": _warnings(of_part),
    }


def _warnings(of_part: dict[str, list[Record]]) -> list[str]:
    """Each warning once, after the parts that it is about."""
    parts_of: dict[str, list[str]] = {}
    for part, records in of_part.items():
        for record in records:
            for text in record["warnings"]:
                parts = parts_of.setdefault(text, [])
                if part not in parts:
                    parts.append(part)
    return [f"{', '.join(parts)}: {text}" for text, parts in parts_of.items()]


def estimate_tasks(plan: Plan, settings: PlanOptions) -> dict[str, Record]:
    """{task: record}; of tasks whose steps are alike, one is measured."""
    recipes: dict[str, Recipe] = {}
    known: dict[tuple[str, ...], tuple[Recipe, Record]] = {}
    paces: dict[str, Pace] = {}
    found: dict[str, Record] = {}
    for task in plan.values():
        swept = (plan[name].values for name in task.needs if plan[name].part == task.best)
        task_options = tuple(planned_options(task, next(swept, {}), plan, recipes))
        if task_options not in known:
            try:
                recipe = _resolve(list(task_options), settings)
                pace = _pace(recipe, paces) if settings.probe else None
                known[task_options] = recipe, estimate(recipe, settings, pace)
            except UserError as error:
                raise UserError(f"part {task.part}, arm {task.arm}: {error}") from None
        recipes[task.name], found[task.name] = known[task_options]
    return found


def _pace(recipe: Recipe, paces: dict[str, Pace]) -> Pace | None:
    """The pace of a recipe, measured once for those alike and kept in `paces`; none of an
    evaluation."""
    if not recipe.declared.trains:
        return None
    ignored = keys(lambda option: not option.pace)
    decisive = {key: value for key, value in computed_values(recipe).items() if key not in ignored}
    alike = json.dumps(decisive, sort_keys=True)
    if alike not in paces:
        paces[alike] = measure(recipe)
    return paces[alike]


def _sum(records: list[Record]) -> Record:
    """Totals of what is known; `untimed` runs have no time; of `uncounted` ones the work is not
    counted, nor is then the sum's; `most_bytes` are the largest run's, in
    one process."""
    total: Record = {"tasks": len(records)}
    for key in ("images", "exaflop", "device_hours", "price"):
        values = [record[key] for record in records if record[key] is not None]
        total[key] = sum(values) if values else None
    total["uncounted"] = sum(
        record["exaflop"] is None and record["images"] is not None for record in records
    )
    if total["uncounted"]:
        total["exaflop"] = None
    needs = [
        sum(record["tensor_bytes"][STAGES[record["zero"]]].values())
        for record in records
        if record["device_batch"] or not record["steps"]
    ]
    total["untimed"] = sum(record["device_hours"] is None for record in records)
    total["most_bytes"] = max(needs) if len(needs) == len(records) else None
    return total
