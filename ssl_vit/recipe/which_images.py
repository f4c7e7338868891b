"""Decide which images a recipe uses: images that the options name, images of the run that made the
initial weights, or images of the recipe file.

This module does not import torch.
"""

from collections.abc import Collection

from . import recipe_files, schema
from .images import CROPPING, MIXING, PIXEL_KEYS, PREPROCESSING, READING, Data
from .init_source import InitSource
from .keys import Values
from .parsing import parse_path
from .recipe_files import FileValues, without_group

PLACES = ("data", "data.path", "data.hub")  # options that choose the images
OTHERS = "give data=, data.path= or data.hub="


def image_keys() -> list[str]:
    """Return the keys of `data` that say which images a run uses and how the images are read.

    The other keys of `data` say how images are cropped, mixed and normalised, which each recipe
    decides for itself.
    """
    others = {*MIXING, *PREPROCESSING} - {*READING}
    return [key for key in schema.all_keys() if key.startswith("data.") and key not in others]


def names_images(values: Values) -> bool:
    """Return whether the user, or the recipe file that the user names, chooses the images.

    If they do not, a run that starts from another run uses the images of that run.
    """
    path = recipe_files.find_recipe(values.get("recipe"))
    return names_images_directly(values) or recipe_files.names_images(path)


def names_images_directly(values: Values) -> bool:
    """Return whether {dotted key: value} of a user names images."""
    return any(values.get(key) for key in PLACES)


def images_taken(source: InitSource, data: Data) -> str | None:
    """Return a line that says which images are used if the options name none, or None for untrained
    weights.

    The images are those of the run that made the initial weights. If that run is unknown, the
    recipe's images are used and the line is a warning.
    """
    if source.is_scratch:
        return None
    if not source.images():
        text = f"the training images of this encoder are unknown here, so data={data.name} is used"
        return f"warning: init={source.place}: {text}. For other images, {OTHERS}."
    place = data.place
    share = "" if data.share == 1 else f", data.share={data.share:g}"
    text = f"{place}{share}, the images of init={source.place}"
    return f"images      {text}. For other images, {OTHERS}."


def without_images(known: Values) -> Values:
    """Return the values without the recipe's choice of images.

    What training does with any images (data.mixup, data.cutmix) stays.
    """
    return without_group(known, "data") | {key: known[key] for key in MIXING if key in known}


def other_images(values: Values, known: Values) -> Values:
    """Return the values of `data` for images that no preset describes: a name made from the path,
    and the recipe's preprocessing.
    """
    name = values.get("data.hub") or ""
    if values.get("data.path"):
        place = parse_path(values["data.path"], "data.path").resolve()
        name = place.stem if place.is_file() else place.name
    return _preprocessing_of(known) | {"data.name": name.replace("/", "--")}


def _preprocessing_of(known: Values) -> Values:
    """Return the values of `data` that also hold for new images (data.path= or data.hub= without
    data=).
    """
    return {key: known[key] for key in PREPROCESSING if key in known}


def images_of_run(known: Values, images: Values) -> tuple[Values, Values]:
    """Return how the images of a run are used, and which images they are.

    Returns:
        The values of the images' preset or, without a preset, the recipe's preprocessing; and the
            values of the run that say which images they are and how they are read.
    """
    name = str(images.get("data.name"))
    used = _preprocessing_of(known)
    if recipe_files.has_preset("data", name):
        used = recipe_files.preset("data", name)
    return used, {key: images[key] for key in image_keys() if key in images}


def preprocessing_from_init(
    start: Values, file: FileValues, values: Values, data: str | None
) -> Values:
    """Return the preprocessing that initial weights bring along.

    The normalisation is always taken. For a frozen encoder, the evaluation's resizing and cropping
    are taken as well, unless the options or the recipe file give them. Encoders that are trained
    are all evaluated as their recipe says.
    """
    brought = {key: value for key, value in start.items() if key.startswith("data.")}
    objective = values.get("objective", (file.presets | file.own).get("objective"))
    explicit: Collection[str] = values.keys()
    if data is None:  # with data=NAME, the preset replaces the values of the file
        explicit = explicit | file.own.keys()
    if objective == "probe" and not {*CROPPING} & {*explicit}:
        return brought
    return {key: value for key, value in brought.items() if key not in CROPPING}


def fitting_channels(start: Values, known: Values, values: Values) -> Values:
    """Return what initial weights say about images, without pixel values for a different number of
    channels.
    """
    channels = start.get("data.channels", 3)
    wanted = (known | values).get("data.channels", channels)
    if not start or wanted == channels:
        return start
    of_pixels = {f"data.{key}" for key in PIXEL_KEYS}
    return {key: value for key, value in start.items() if key not in of_pixels}
