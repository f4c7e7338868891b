"""The classifier that a run or an export has trained, on the test images: its classes are found in
the images by their names."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..data.class_numbers import MOST_BY_HIGHEST
from ..data.labels import WHOLE
from ..data.source import Source
from ..errors import UserError, suggest
from ..evaluation import classify
from ..evaluation.images import Images
from ..formatting import some
from ..models.encoder import Backbone
from ..objectives.base import Objective
from ..recipe import export_files
from ..recipe.init_source import InitSource
from ..recipe.records.run import Environment
from ..runs.identity import read_record
from .heads import load_classifier


class Head(NamedTuple):
    """A trained classifier; and for each class of the images its number there, None where labels go
    by their number."""

    objective: Objective
    number_C: np.ndarray | None


def load(net: Backbone, init: InitSource, test: Source) -> Head:
    """That of the run or export that made the weights.

    Raises:
        UserError: it made none, or test images are of a class that it does not know.
    """
    objective = load_classifier(init, net, "probe.measures=top1")
    return Head(objective, numbers_in_head(names_of_head(init), test, init.place))


def measure(head: Head, images: Images) -> dict[str, tuple[float, int]]:
    """{name: (value, n)}: top-1, top-5 and, with eval.real, ReaL.

    Raises:
        UserError: labels go by their number, and there are more than the head knows.
    """
    recipe, test, accelerator = images.recipe, images.test, images.accelerator
    objective = head.objective.to(accelerator.device).eval()
    with images.autocast():
        found = classify.predict(objective, images.batches(test), accelerator)
    found = found._replace(label=renumber(found.label, head.number_C))
    if found.label.max() >= found.classes:
        text = f"knows {found.classes} classes, data={recipe.data.name} has labels up to"
        text = f"the head of init={recipe.init} {text} {found.label.max()}"
        raise UserError(f"probe.measures=top1: {text}")
    metrics = classify.accuracies(found, found.classes)
    if recipe.eval.real:
        metrics |= classify.real_accuracy(found, test, recipe.eval.real)
    return metrics


def names_of_head(init: InitSource) -> list[str]:
    """The classes that the head of a run or an export knows, in the order of its outputs; empty
    where its labels had no names.

    Raises:
        UserError: the run's environment.json is missing or damaged.
    """
    located = init.locate()
    if located.run is not None:
        return read_record(located.run / "environment.json", Environment).classes or []
    folder = located.export if init.is_local else init.fetch_export("config.json")
    names = (folder and export_files.read(folder).get("label_names")) or []
    # an export numbers classes without names
    return [] if names == [str(number) for number in range(len(names))] else names


def numbers_in_head(names: Sequence[str], images: Source, place: str) -> np.ndarray | None:
    """For each class of the images its number in the head, -1 for one that the head does not know
    and no image has (C,); None where either has labels without names, which go by their number.

    Args:
        names: of the head's classes, in order.
        images: that the head is to classify.
        place: where the head is from, as init=.

    Raises:
        UserError: images are of a class that the head does not know.
    """
    if not names and images.classes and all(map(WHOLE.fullmatch, images.classes)):
        return np.array([int(name) for name in images.classes], np.int64)
    classes = _class_names(names, images)
    if not names or not classes:
        return None
    number = {name: label for label, name in enumerate(names)}
    found = np.unique(images.label_of(np.arange(len(images))))
    used = [classes[label] if label < len(classes) else str(label) for label in found if label >= 0]
    if unknown := [name for name in used if name not in number]:
        raise UserError(
            f"probe.measures=top1: test images are of {some(unknown)}, which the head of"
            f" init={place} does not know; {suggest(unknown[0], names)}"
        )
    return np.array([number.get(name, -1) for name in classes], np.int64)


def _class_names(names: Sequence[str], images: Source) -> list[str]:
    """The names of the images' classes. Where they have none, and all of the head's are whole
    numbers, as of folders 0 to 9, each number is the class of that name."""
    highest = images.labels.lowest_and_highest[1]
    if images.classes or not all(map(WHOLE.fullmatch, names)) or highest >= MOST_BY_HIGHEST:
        return images.classes
    named = {int(name): name for name in names}
    return [named.get(label, str(label)) for label in range(highest + 1)]


def renumber(label: np.ndarray, number_C: np.ndarray | None) -> np.ndarray:
    """Labels of images, of any shape, as the head's numbers; below 0 (no label) as they are."""
    if number_C is None:
        return label
    return np.where(label >= 0, number_C[np.maximum(label, 0)], label)
