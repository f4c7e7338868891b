"""Decide which images a recipe uses: images that the options name, images of the run that made the
initial weights, or images of the recipe file.

This module does not import torch.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from ..errors import UserError
from ..formatting import crop_text
from . import recipe_files, schema, words
from .images import CROPPING, MIXING, PIXEL_KEYS, PREPROCESSING, READING, Data
from .init_source import InitSource
from .keys import Values
from .parsing import parse_path
from .recipe_files import FileValues, without_group
from .schema import Recipe

PLACES = ("data", "data.path", "data.hub")  # options that choose the images
OTHERS = "give data=, data.path= or data.hub="


def image_keys() -> list[str]:
    """Return the keys of `data` that say which images a run uses and how the images are read.

    The other keys of `data` say how images are cropped, mixed and normalised, which each recipe
    decides for itself.
    """
    others = {*MIXING, *PREPROCESSING} - {*READING}
    return [key for key in schema.all_keys() if key.startswith("data.") and key not in others]


def names_images(options: Iterable[str]) -> bool:
    """Return whether the options, or the recipe file among the options, choose the images.

    If they do not, a run that starts from another run uses the images of that run.
    """
    values = words.parse(options)
    path = recipe_files.find_recipe(values.get("recipe"))
    return names_images_directly(values) or recipe_files.names_images(path)


def names_images_directly(values: Mapping[str, str]) -> bool:
    """Return whether the options ({key: text}) name images."""
    return not all(words.is_null(values.get(key)) for key in PLACES)


def image_notice(options: Iterable[str], recipe: Recipe) -> str | None:
    """Return `images_taken` for a recipe, or None if the options name the images.

    Args:
        options: Options that `resolve` made the recipe from.
        recipe: That recipe.
    """
    return None if names_images(options) else images_taken(recipe.init_source, recipe.data)


def crop_notice(options: Iterable[str], recipe: Recipe) -> str | None:
    """Return a warning about how a frozen encoder's images are cropped, or None if no warning is
    needed.

    The warning is needed if the encoder's own way of cropping is unknown or not available here, and
    nothing else chooses one.

    Args:
        options: Options that `resolve` made the recipe from.
        recipe: That recipe.
    """
    source, values = recipe.init_source, words.parse(options)
    of_file = recipe_files.load(recipe_files.find_recipe(values["recipe"])).own
    if recipe.objective != "probe" or source.is_scratch or {*CROPPING} & {*values, *of_file}:
        return None
    with suppress(UserError):  # the weights may be gone, for example in a run that was pulled
        if {*CROPPING} & {*source.read_description(model=False)}:
            return None
    cut = crop_text(recipe.data.eval_mode, recipe.data.eval_crop)
    text = f"how the images of this encoder were cropped is unknown, so the default is used ({cut})"
    return f"warning: init={source.place}: {text}. To change this, use data.eval_crop=."


def size_notice(options: Iterable[str], recipe: Recipe) -> str | None:
    """Return a line that says that the initial weights were made for another image size.

    Return None if the sizes agree, or if the options name the size.

    Args:
        options: Options that `resolve` made the recipe from.
        recipe: That recipe.
    """
    source = recipe.init_source
    if source.is_scratch or "data.size" in words.parse(options):
        return None
    size = None
    # the weights may be gone, or made by another program
    with suppress(UserError, OSError, ValueError):
        size = source.image_size()
    if size in (None, recipe.data.size):
        return None
    text = f"the weights were trained at {size} px and are adapted to {recipe.data.size} px"
    return f"size        {text}. For {size} px, use data.size={size}."


def images_taken(source: InitSource, data: Data) -> str | None:
    """Return a line that says which images are used if the options name none, or None for fresh
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


def with_images(known: Values, images: Values, file: FileValues) -> Values:
    """Return the values with the images of a run.

    All other keys of `data` are set as if the user had named these images: by their preset, or by
    the recipe if no preset exists. Values that the recipe file itself gives stay.
    """
    name = str(images.get("data.name"))
    rest = _preprocessing_of(known)
    if recipe_files.has_preset("data", name):
        rest = recipe_files.preset("data", name)
    of_run = {key: images[key] for key in image_keys() if key in images}
    of_file = {key: value for key, value in file.own.items() if key.startswith("data.")}
    return without_images(known) | rest | of_run | of_file


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
