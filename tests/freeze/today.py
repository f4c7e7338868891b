"""What the freeze asks of the package. This is the only file that a rebuild of the package adapts:
its functions keep their names, arguments and answers, which are plain data.

Options are {dotted key: value}, also of a recipe or a preset: {"recipe": "mpp", "model": "vit_p8"}.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from helpers.options import ROOT
from ssl_vit import costs, stats
from ssl_vit.data import masks, pixel_values, run_splits
from ssl_vit.data.open import open_splits
from ssl_vit.formatting import option_text
from ssl_vit.lab.study import read, tasks
from ssl_vit.recipe import recipe_files
from ssl_vit.recipe.check import TRAINING_KEYS
from ssl_vit.recipe.identity import computed_values, of_effect
from ssl_vit.recipe.images import Data
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.parsing import yaml_value
from ssl_vit.recipe.schema import all_keys

Options = Mapping[str, Any]


class Image(NamedTuple):
    """An image as it is before any crop, integers (H, W, C); None where it cannot be read. Its
    label, -1 for none, or its list of labels; its mask (H, W) where the split has masks."""

    pixels: np.ndarray | None
    label: int | list[int]
    mask: np.ndarray | None


class Split(NamedTuple):
    """A split: the number of its images, the names of its classes, and its first images."""

    count: int
    classes: list[str]
    first: list[Image]


class Task(NamedTuple):
    """A task of a study. `{NAME}` in an option stands for the run of the task of that name.

    Attributes:
        needs: names of the tasks whose runs its options name.
        chosen_from: names of the tasks of which the best gives it the values of `chosen`, keys.
        by: the metric that decides.
    """

    name: str
    tool: str
    seed: int
    options: dict[str, Any]
    needs: list[str]
    chosen_from: list[str]
    chosen: list[str]
    by: str


def recipe_names() -> list[str]:
    """Of all recipes that are no studies; the paper's are paper/NAME."""
    return recipe_files.recipe_names()


def compute_values(options: Options) -> dict[str, Any]:
    """{dotted key: value} of the keys in use that decide what a run computes, or what its result is
    of: another value is another experiment, or another measure of it."""
    recipe = _recipe(options)
    values = recipe.values()
    measured = {*of_effect("result")}
    training = {key for key in all_keys() if {key, key.split(".")[0]} & {*TRAINING_KEYS}}
    unused = training if recipe.objective == "probe" else set()
    found = computed_values(recipe) | {key: values[key] for key in values if key in measured}
    return {key: value for key, value in found.items() if key not in unused}


def cost(options: Options) -> dict[str, Any]:
    """Of a recipe: multiply-adds of one image's forward pass, through the encoder and in all, and
    floating-point operations of one image's training step, rounded, for a batch may not divide
    them; parameters in all, those that are trained and those of the encoder."""
    recipe = _recipe(options)
    found = costs.work(recipe)
    return {
        "features": found.features,
        "forward": None if found.forward is None else round(found.forward),
        "training": None if found.training is None else round(2 * found.training),
        "parameters": found.parameters,
        "trained": found.trained,
        "encoder": found.encoder,
    }


def run_exaflop(options: Options) -> float:
    """10^18 floating-point operations of a whole training run."""
    recipe = _recipe(options)
    found = costs.exaflop(recipe, recipe.optim.steps * recipe.optim.batch)
    assert found is not None
    return found


def _recipe(options: Options) -> Any:
    words = [f"{key}={option_text(value)}" for key, value in options.items()]
    return resolve(words, here=False)


def study_tasks(name: str, places: Mapping[str, str]) -> list[Task]:
    """The tasks of a study of recipes/study/, or of one beside its results, each after those that
    it needs."""
    path = recipe_files.RECIPES / "study" / f"{name}.yaml"
    study = read.read(path if path.exists() else ROOT / "results" / f"{name}.yaml")
    plan = tasks.plan(study, places, {})
    return [_task(task, plan) for task in plan.values()]


def _task(task: tasks.Task, plan: tasks.Tasks) -> Task:
    among, by = task.best or ((), "")
    return Task(
        task.name,
        task.tool,
        task.seed,
        {key: _typed(text) for key, text in task.options.items()},
        [name for name in task.needs if name not in among],
        list(among),
        [*dict.fromkeys(key for name in among for key in plan[name].tried)],
        by,
    )


def _typed(text: str) -> Any:
    return text if text.startswith("{") else yaml_value(text)


def splits(options: Options, most: int) -> dict[str, Split]:
    """Every split of the images that options name, as it is before shares are taken; with at most
    so many first images."""
    data = _data(options)
    found = open_splits(data).splits
    return {name: _split(source, data, most) for name, source in found.items()}


def encoded(options: Options, split: str, rows: int) -> list[bytes]:
    """The first images of a split as they lie in their files, undecoded."""
    source = open_splits(_data(options)).splits[split]
    return [bytes(one) for one in source.fetch(np.arange(min(rows, len(source))))[0]]


def drawn_rows(options: Options) -> dict[str, np.ndarray]:
    """The rows, of the splits that they are taken from, of the training, held-out and test images
    of a run with these options."""
    found = run_splits.load(_data(options), test=True)
    parts = {"train": found.train, "validation": found.validation, "test": found.test}
    return {name: part.store_rows() for name, part in parts.items() if part is not None}


def _data(options: Options) -> Data:
    given = {key.removeprefix("data."): value for key, value in options.items()}
    return Data(**({"name": "own"} | given if "path" in given else given))


def _split(source: Any, data: Data, most: int) -> Split:
    rows = np.arange(min(most, len(source)))
    raw, labels = source.fetch(rows)
    raw_masks = source.fetch_masks(rows) if source.masks.column else [None] * len(rows)
    decode = pixel_values.decoder(data)
    images = [
        Image(
            _pixels(decode, one),
            _label(label),
            None if mask is None else masks.decode(mask).numpy(),
        )
        for one, label, mask in zip(raw, labels.tolist(), raw_masks, strict=True)
    ]
    return Split(len(source), list(source.classes), images)


def _label(label: int | list[int]) -> int | list[int]:
    """Without what fills up a list to the length of the longest."""
    if isinstance(label, int):
        return label
    return -1 if label[0] == -1 else [number for number in label if number != -2]


def _pixels(decode: pixel_values.Decoder, raw: bytes | np.ndarray) -> np.ndarray | None:
    try:
        return decode(raw).permute(1, 2, 0).numpy()
    except ValueError:
        return None


def summary(values: list[float]) -> dict[str, Any]:
    """n, mean, sd and the ends of the mean's 95% t-interval of values over seeds."""
    found = stats.summarize(values)
    low, high = found.interval or (None, None)
    return {"n": found.n, "mean": found.mean, "sd": found.sd, "low": low, "high": high}


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> dict[str, Any]:
    """As `summary`, of the first {seed: value} minus the second, in pairs of a seed."""
    assert first.keys() == second.keys()
    return summary([first[seed] - second[seed] for seed in first])
