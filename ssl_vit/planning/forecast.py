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


def run(words: list[str], asked: PlanOptions) -> Record:
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
    recipe = _resolve(words, asked)
    if asked.epochs is not None:
        recipe = _resolve(
            [*words, f"optim.steps={_steps(words, recipe, asked.epochs, asked.images)}"], asked
        )
    return estimate(recipe, asked, measure(recipe) if asked.probe else None)


def _resolve(words: list[str], asked: PlanOptions) -> Recipe:
    """The recipe of the words; its images need not be here, unless steps are measured."""
    try:
        return resolve(words)
    except UserError as error:
        if asked.probe or not any(text in str(error) for text in NOT_HERE):
            raise
    said = next((word.partition("=")[2] for word in words if word.startswith("data.path=")), "")
    with tempfile.TemporaryDirectory() as folder:
        stand_in = Path(folder) / (Path(said).name or "images")
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


def estimate(recipe: Recipe, asked: PlanOptions, pace: Pace | None = None) -> Record:
    """The record of one run, for the device that is named, else for this machine if its pace was
    measured. None: not known."""
    recipe, on, trains = copy.deepcopy(recipe), asked.device, recipe.objective != "probe"
    here = pace if on is None else None
    recipe.compute.precision = here.precision if here else recipe.compute.precision
    budget.settle_precision(recipe, on)
    fused = not (here and here.device == "cpu")
    batch = (
        None
        if not trains
        else here.device_batch
        if here
        else budget.device_batch(recipe, asked.processes, on)
    )
    tensors = [
        costs.memory_bytes(recipe, asked.processes, zero, batch or 0, fused) for zero in range(4)
    ]
    return {
        "name": recipe.name,
        "model": recipe.model.name,
        "parameters": costs.parameters(recipe),
        "encoder_parameters": costs.encoder_parameters(recipe),
        "patches": 0 if recipe.model.convolutional else costs.tokens(recipe) - 1,
        "multiply_adds": costs.multiply_adds(recipe),
        **_length(recipe, asked),
        "precision": recipe.compute.precision,
        "processes": asked.processes,
        "zero": asked.zero,
        "device_batch": batch,
        "image_bytes": costs.activation_bytes(recipe, fused) if trains else 0,
        "tensor_bytes": dict(zip(STAGES, tensors, strict=True)),
        **_spent(recipe, asked, pace),
        "warnings": list(budget.warnings_for(recipe, asked.processes, on, tensors[asked.zero])),
    }


def _length(recipe: Recipe, asked: PlanOptions) -> Record:
    """Steps, images and epochs, and the work in them; steps are 0 in an evaluation."""
    trains, o = recipe.objective != "probe", recipe.optim
    images, count = (
        costs.images_seen(recipe, asked.images),
        costs.training_images(recipe.data, asked.images),
    )
    return {
        "steps": o.steps if trains else 0,
        "batch": o.batch if trains else 0,
        "images": images,
        "training_images": count,
        "epochs": images / count if trains and images and count else None,
        "exaflop": costs.total_exaflop(recipe, images),
    }


def _spent(recipe: Recipe, asked: PlanOptions, pace: Pace | None) -> Record:
    """Time and price: on the device that is named, else at the measured pace."""
    on, exaflop = asked.device, costs.total_exaflop(recipe, costs.images_seen(recipe, asked.images))
    here = pace.seconds * recipe.optim.steps if pace else None
    hours = here / 3600 if here is not None and on is None else None
    if on and exaflop is not None:
        hours = budget.hours(exaflop, on, recipe.compute.precision, asked.efficiency)
    return {
        "device": dataclasses.asdict(on) if on else None,
        "efficiency": asked.efficiency if on else None,
        "seconds": hours * 3600 / (asked.processes if on else 1) if hours is not None else None,
        "device_hours": hours,
        "price": hours * asked.price if hours is not None and asked.price is not None else None,
        "price_per_hour": asked.price,
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


def study(words: list[str], asked: PlanOptions) -> Record:
    """What a study will cost, by part and in all: the sums over its tasks.

    Raises:
        UserError: epochs= or images= is said; a mistake in the other words, with the part and the
        arm.
    """
    for key in ("epochs", "images"):
        if (value := getattr(asked, key)) is not None:
            raise UserError(
                f"{key}={value:g}: that is for one recipe; a study's parts say their own lengths"
            )
    wanted = command.parse_request(_with_places(words))
    tasks = estimate_tasks(wanted.plan, asked)
    of_part = {
        name: [told for key, told in tasks.items() if wanted.plan[key].part == name]
        for name in wanted.study.parts
    }
    loads = [told["probe"]["load"] for told in tasks.values() if told["probe"]]
    return {
        "name": wanted.name,
        "title": wanted.study.title,
        "device": dataclasses.asdict(asked.device) if asked.device else None,
        "efficiency": asked.efficiency if asked.device else None,
        "price_per_hour": asked.price,
        "parts": {name: _sum(told) for name, told in of_part.items()},
        **_sum(list(tasks.values())),
        "load": max(loads, default=None),
        "warnings": _warnings(of_part),
    }


def _warnings(of_part: dict[str, list[Record]]) -> list[str]:
    """Each warning once, behind the parts that it is for."""
    said: dict[str, dict[str, None]] = {}
    for part, text in (
        (part, text)
        for part, told in of_part.items()
        for record in told
        for text in record["warnings"]
    ):
        said.setdefault(text, {})[part] = None
    return [f"{', '.join(parts)}: {text}" for text, parts in said.items()]


def _with_places(words: list[str]) -> list[str]:
    """The words, and for each of the study's places that they leave out a stand-in: no images are
    read."""
    if "sweep" in words:
        return words
    given = parse(words)
    places = spec.read(spec.find(given.get("recipe"))).places
    return [*words, *(f"{place}={place}" for place in places if place not in given)]


def estimate_tasks(plan: Plan, asked: PlanOptions) -> dict[str, Record]:
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
                recipe = _resolve(list(words), asked)
                records[words] = (
                    recipe,
                    estimate(recipe, asked, _pace(recipe, paces) if asked.probe else None),
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


def _sum(told: list[Record]) -> Record:
    """Totals over runs of what is known; `untimed` of them have no time; `most_bytes` is the
    largest one's in a process."""
    keys = ("images", "exaflop", "device_hours", "price")
    known = {key: [t[key] for t in told if t[key] is not None] for key in keys}
    needs = [
        sum(t["tensor_bytes"][STAGES[t["zero"]]].values())
        for t in told
        if t["device_batch"] or not t["steps"]
    ]
    return {
        "tasks": len(told),
        **{key: sum(values) if values else None for key, values in known.items()},
        "untimed": sum(t["device_hours"] is None for t in told),
        "most_bytes": max(needs) if len(needs) == len(told) else None,
    }
