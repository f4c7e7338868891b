"""VTAB-1k's labels and images, made of examples with the features of TFDS's builders. No torch
here.

After the benchmark's own code, google-research/task_adaptation, data/*.py; the numbers are those of
recipes/tables/vtab.yaml.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

VEHICLES = 3  # KITTI's types below it: car, van, truck
DEPTH = 2  # index of the third coordinate: the distance from the camera
Example = Mapping[str, Any]  # {feature: value}; a sequence of objects is {feature: sequence}


def make_label(example: Example, label: str | Mapping[str, Any]) -> int:
    """The class of an example.

    Args:
        example: a feature's value by its name in TFDS.
        label: of a task's row: a feature, or {rule: NAME, its numbers}.

    Raises:
        KeyError: the example lacks a feature.
    """
    if isinstance(label, str):
        return int(example[label])
    arguments = dict(label)
    return RULES[arguments.pop("rule")](example, **arguments)


def count_objects(example: Example, less: int) -> int:
    """CLEVR: the number of objects, 3 to 10, from 0 on."""
    return len(_of_objects(example, "size")) - less


def nearest_object(example: Example, cut: Sequence[float]) -> int:
    """CLEVR: the smallest depth of the objects in pixel coordinates, in classes."""
    return _cut(min(point[DEPTH] for point in _of_objects(example, "pixel_coords")), cut)


def nearest_vehicle(example: Example, cut: Sequence[float]) -> int:
    """KITTI: the distance of the nearest car, van or truck in metres, in classes; the last class is
    images without one."""
    types = _of_objects(example, "type")
    places = _of_objects(example, "location")
    found = [p[DEPTH] for kind, p in zip(types, places, strict=True) if kind < VEHICLES]
    return _cut(min(found), cut) if found else len(cut) + 1


def floor(example: Example, of: str, by: float) -> int:
    """dSprites: neighbouring values of a factor as one class."""
    return int(example[of] // by)


RULES: dict[str, Callable[..., int]] = {
    "objects": count_objects,
    "nearest_object": nearest_object,
    "nearest_vehicle": nearest_vehicle,
    "floor": floor,
}


def pixels(image: np.ndarray) -> np.ndarray:
    """An image uint8 (H, W) or (H, W, C) as (H, W, 3): one channel is repeated, and values 0 and 1
    (dSprites) are 0 and 255."""
    image = image[..., None] if image.ndim == 2 else image
    if image.max(initial=0) == 1:
        image = image * np.uint8(255)
    return np.repeat(image, 3, 2) if image.shape[2] == 1 else image[..., :3]


def _cut(value: float, cut: Sequence[float]) -> int:
    """0 up to the first number, 1 up to the second and so on, the numbers themselves included."""
    return bisect_left(cut, value)


def _of_objects(example: Example, feature: str) -> Sequence[Any]:
    """A feature of an example's objects: of {feature: sequence}, as TFDS has them, or of a list of
    objects, as parquet may."""
    objects = example["objects"]
    if isinstance(objects, Mapping):
        values: Sequence[Any] = objects[feature]
        return values
    return [one[feature] for one in objects]
