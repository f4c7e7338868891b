"""From words to the record of what a run or a study will cost. Torch comes in where steps are
measured."""

import copy
import dataclasses
import difflib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import costs
from ..config.identity import computed_values
from ..config.parsing import load_yaml
from ..config.resolve import resolve
from ..config.schema import Recipe
from ..config.values import KEYS, parse
from ..errors import UserError
from ..studies import command, spec
from ..studies.plan import Plan, Task, known_options, model_options, origin
from . import budget
from .budget import Device
from .pace import Pace, measure

STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
# Of no weight for the time of a step
NOT_PACE = (
    "seed",
    "init",
    "model.name",
    "optim.lr",
    "optim.steps",
    "optim.warmup",
    "data.share",
    "data.validation",
)
# how bounds.py says that images are not there
NOT_HERE = ("lies nowhere yet", "no such file or folder")
Record = dict[str, Any]


@dataclass(frozen=True)
class PlanOptions:
    """The words that are the plan's own."""

    device: Device | None = None
    processes: int = 1
    price: float | None = None  # of a device-hour, in whatever money
    zero: int = 0  # stage of ZeRO; 0: plain DDP
    efficiency: float = 0.4  # share of the device's peak that training reaches
    epochs: float | None = None  # in place of optim.steps
    images: int | None = None  # training images, where the set is not known
    probe: bool = False  # measure the first steps here


OWN = tuple(field.name for field in dataclasses.fields(PlanOptions) if field.name != "probe")


def run(words: list[str], request: PlanOptions) -> Record:
    """What one run will cost.

    Raises:
        UserError: a mistake in the words.
    """
    known = [*KEYS, "recipe", "data", "model"]
    for key in (word.partition("=")[0] for word in words):
        if key not in known and (near := difflib.get_close_matches(key, OWN, n=1)):
            raise UserError(
                f"unknown word {key}; did you mean {near[0]}? choices: {', '.join(OWN)}, or a recipe's key"
            )
    recipe = _resolve(words, request)
    if request.epochs is not None:
        recipe = _resolve(
            [*words, f"optim.steps={_steps(words, recipe, request.epochs, request.images)}"],
            request,
        )
    return estimate(recipe, request, measure(recipe) if request.probe else None)


def _resolve(words: list[str], request: PlanOptions) -> Recipe:
    """The recipe of the words; its images need not be here, unless steps are measured."""
    try:
        return resolve(words)
    except UserError as error:
        if request.probe or not any(text in str(error) for text in NOT_HERE):
            raise
    place = next((word.partition("=")[2] for word in words if word.startswith("data.path=")), "")
    with tempfile.TemporaryDirectory() as folder:
        stand_in = Path(folder) / (Path(place).name or "images")
        stand_in.mkdir()
        return resolve(
            [
                *(word for word in words if not word.startswith("data.path=")),
                f"data.path={stand_in}",
            ]
        )


def _steps(words: list[str], recipe: Recipe, epochs: float, images: int | None) -> int:
    """The optimiser steps of so many epochs."""
    count = costs.training_images(recipe.data, images)
    if any(word.startswith("optim.steps=") for word in words):
        raise UserError(f"epochs={epochs:g}: optim.steps= is said too; say one of them")
    if recipe.objective == "probe":
        raise UserError(f"epochs={epochs:g}: an evaluation has none")
    if count is None:
        raise UserError(
            f"epochs={epochs:g}: how many images data={recipe.data.name} has is not known; say images="
        )
    return max(1, round(epochs * count / recipe.optim.batch))


def estimate(recipe: Recipe, request: PlanOptions, pace: Pace | None = None) -> Record:
    """The record of one run, for the device that is named, else for this machine if its pace was
    measured. None: not known."""
    recipe, on, trains = copy.deepcopy(recipe), request.device, recipe.objective != "probe"
    here = pace if on is None else None
    recipe.compute.precision = here.precision if here else recipe.compute.precision
    budget.settle_precision(recipe, on)
    fused = not (here and here.device == "cpu")
    batch = (
        None
        if not trains
        else here.device_batch
        if here
        else budget.device_batch(recipe, request.processes, on)
    )
    tensors = [
        costs.memory_bytes(recipe, request.processes, zero, batch or 0, fused) for zero in range(4)
    ]
    return {
        "name": recipe.name,
        "model": recipe.model.name,
        "parameters": costs.parameters(recipe),
        "encoder_parameters": costs.encoder_parameters(recipe),
        "patches": 0 if recipe.model.convolutional else costs.tokens(recipe) - 1,
        "multiply_adds": costs.multiply_adds(recipe),
        **_length(recipe, request),
        "precision": recipe.compute.precision,
        "processes": request.processes,
        "zero": request.zero,
        "device_batch": batch,
        "image_bytes": costs.activation_bytes(recipe, fused) if trains else 0,
        "tensor_bytes": dict(zip(STAGES, tensors, strict=True)),
        **_spent(recipe, request, pace),
        "warnings": list(budget.warnings_for(recipe, request.processes, on, tensors[request.zero])),
    }


def _length(recipe: Recipe, request: PlanOptions) -> Record:
    """Steps, images and epochs, and the work in them; steps are 0 in an evaluation."""
    trains, o = recipe.objective != "probe", recipe.optim
    images, count = (
        costs.images_seen(recipe, request.images),
        costs.training_images(recipe.data, request.images),
    )
    return {
        "steps": o.steps if trains else 0,
        "batch": o.batch if trains else 0,
        "images": images,
        "training_images": count,
        "epochs": images / count if trains and images and count else None,
        "exaflop": costs.total_exaflop(recipe, images),
    }


def _spent(recipe: Recipe, request: PlanOptions, pace: Pace | None) -> Record:
    """Time and price: on the device that is named, else at the measured pace."""
    on, exaflop = (
        request.device,
        costs.total_exaflop(recipe, costs.images_seen(recipe, request.images)),
    )
    here = pace.seconds * recipe.optim.steps if pace else None
    hours = here / 3600 if here is not None and on is None else None
    if on and exaflop is not None:
        hours = budget.hours(exaflop, on, recipe.compute.precision, request.efficiency)
    return {
        "device": dataclasses.asdict(on) if on else None,
        "efficiency": request.efficiency if on else None,
        "seconds": hours * 3600 / (request.processes if on else 1) if hours is not None else None,
        "device_hours": hours,
        "price": hours * request.price if hours is not None and request.price is not None else None,
        "price_per_hour": request.price,
        "probe": dataclasses.asdict(pace) | {"total_seconds": here} if pace else None,
    }


def is_study(words: list[str]) -> bool:
    """Whether the words are those of tools/study.py: a study's name or file, or a sweep over a
    recipe."""
    recipe = next((word.partition("=")[2] for word in words if word.startswith("recipe=")), "")
    is_file = recipe.endswith((".yaml", ".yml")) and Path(recipe).is_file()
    return (
        "sweep" in words
        or recipe.startswith("study/")
        or (is_file and not {"parts", "extends"}.isdisjoint(load_yaml(Path(recipe))))
    )


def study(words: list[str], request: PlanOptions) -> Record:
    """What a study will cost, by part and in all: the sums over its tasks.

    Raises:
        UserError: epochs= or images= is said; a mistake in the other words, with the part and the
        arm.
    """
    for key in ("epochs", "images"):
        if (value := getattr(request, key)) is not None:
            raise UserError(
                f"{key}={value:g}: that is for one recipe; a study's parts say their own lengths"
            )
    wanted = command.parse_request(_with_places(words))
    tasks = estimate_tasks(wanted.plan, request)
    of_part = {
        name: [record for key, record in tasks.items() if wanted.plan[key].part == name]
        for name in wanted.study.parts
    }
    loads = [record["probe"]["load"] for record in tasks.values() if record["probe"]]
    return {
        "name": wanted.name,
        "title": wanted.study.title,
        "device": dataclasses.asdict(request.device) if request.device else None,
        "efficiency": request.efficiency if request.device else None,
        "price_per_hour": request.price,
        "parts": {name: _sum(records) for name, records in of_part.items()},
        **_sum(list(tasks.values())),
        "load": max(loads, default=None),
        "warnings": _warnings(of_part),
    }


def _warnings(of_part: dict[str, list[Record]]) -> list[str]:
    """Each warning once, behind the parts that it is for."""
    parts_of: dict[str, dict[str, None]] = {}
    for part, text in (
        (part, text)
        for part, records in of_part.items()
        for record in records
        for text in record["warnings"]
    ):
        parts_of.setdefault(text, {})[part] = None
    return [f"{', '.join(parts)}: {text}" for text, parts in parts_of.items()]


def _with_places(words: list[str]) -> list[str]:
    """The words, and for each of the study's places that they leave out a stand-in: no images are
    read."""
    if "sweep" in words:
        return words
    given = parse(words)
    places = spec.read(spec.find(given.get("recipe"))).places
    return [*words, *(f"{place}={place}" for place in places if place not in given)]


def estimate_tasks(plan: Plan, request: PlanOptions) -> dict[str, Record]:
    """The record of each of a study's tasks by its name. Of tasks whose steps are alike, one is
    measured."""
    recipes: dict[str, Recipe] = {}
    records: dict[tuple[str, ...], tuple[Recipe, Record]] = {}
    paces: dict[str, Pace] = {}
    found: dict[str, Record] = {}
    for task in plan.values():
        words = tuple(_options(task, plan, recipes))
        if words not in records:
            try:
                recipe = _resolve(list(words), request)
                records[words] = (
                    recipe,
                    estimate(recipe, request, _pace(recipe, paces) if request.probe else None),
                )
            except UserError as error:
                raise UserError(f"part {task.part}, arm {task.arm}: {error}") from None
        recipes[task.name], found[task.name] = records[words]
    return found


def _pace(recipe: Recipe, paces: dict[str, Pace]) -> Pace | None:
    """The pace of a recipe, measured once for those alike and kept in `paces`; none of an
    evaluation."""
    if recipe.objective == "probe":
        return None
    alike = json.dumps(
        {key: value for key, value in computed_values(recipe).items() if key not in NOT_PACE},
        sort_keys=True,
    )
    if alike not in paces:
        paces[alike] = measure(recipe)
    return paces[alike]


def _options(task: Task, plan: Plan, recipes: dict[str, Recipe]) -> list[str]:
    """A task's options before the runs that it needs exist (as studies.plan.check): with the model
    of the task that it starts from and, in place of a sweep's best values, its first."""
    options = known_options(task)
    before = origin(task, plan)
    if before is not None and "model" not in options:
        options = model_options(recipes[before.name]) | options
    if task.best:
        swept = next(plan[name].values for name in task.needs if plan[name].part == task.best)
        options |= {key: spec.text(value) for key, value in swept.items()}
    return [f"{key}={value}" for key, value in options.items()]


def _sum(records: list[Record]) -> Record:
    """Totals over runs of what is known; `untimed` of them have no time; `most_bytes` is the
    largest one's in a process."""
    keys = ("images", "exaflop", "device_hours", "price")
    known = {key: [t[key] for t in records if t[key] is not None] for key in keys}
    needs = [
        sum(t["tensor_bytes"][STAGES[t["zero"]]].values())
        for t in records
        if t["device_batch"] or not t["steps"]
    ]
    return {
        "tasks": len(records),
        **{key: sum(values) if values else None for key, values in known.items()},
        "untimed": sum(t["device_hours"] is None for t in records),
        "most_bytes": max(needs) if len(needs) == len(records) else None,
    }
