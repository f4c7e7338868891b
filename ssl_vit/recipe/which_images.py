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
OTHERS = "give data=, data.path= or data.hub="  # follows "For other images,"


def image_keys() -> list[str]:
    """Return the keys of `data` that say which images a run uses and how the images are read.

    The other keys of `data` say how images are cropped, mixed and normalised, which each recipe
    decides for itself. A few keys for preprocessing, such as `data.channels`, also change how files
    are read (READING) and are therefore returned.
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
    """Return the line that tells the user which images a run uses although the options name none.

    These are the images of the run that made the initial weights. If nothing is known about that
    run, the recipe's images are used, and the line is a warning. Tools print the line when they
    start. Return None for untrained weights, for which nothing needs to be said.

    Args:
        source: Initial weights.
        data: Images that the run uses.
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
    """Return the values of `data` for images that no row of datasets.yaml describes.

    These are the preprocessing of the recipe (`data.size`, `data.mean` and others), and a name made
    from the path: `photos` for data.path=/home/me/photos, and `USER--NAME` for data.hub=USER/NAME.

    Args:
        values: {dotted key: value} of the user, with `data.path` or `data.hub`.
        known: {dotted key: value} of the recipe file. The preprocessing comes from here.
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
    """Return the values of `data` with which a new run uses the images of another run.

    Args:
        known: {dotted key: value} of the new run's recipe file.
        images: {dotted key: value} of the group `data` of the other run.

    Returns:
        Two mappings {dotted key: value}. The first says how images are prepared (`data.size`,
            `data.mean` and others). It comes from the row of the data set in datasets.yaml or,
            without a row, from the recipe file. The second says which images they are and how they
            are read (`data.path`, `data.share` and others). It comes from the other run.
    """
    name = str(images.get("data.name"))
    preprocessing = _preprocessing_of(known)
    if recipe_files.has_preset("data", name):
        preprocessing = recipe_files.preset("data", name)
    return preprocessing, {key: images[key] for key in image_keys() if key in images}


def preprocessing_from_init(
    start: Values, file: FileValues, values: Values, data: str | None
) -> Values:
    """Return the preprocessing of images that a run takes over from its initial weights.

    The normalisation (`data.mean`, `data.std`) is always taken. The evaluation's resizing and
    cropping (`data.eval_mode`, `data.eval_crop`) are taken only for a frozen encoder, and only if
    neither the options nor the recipe file give them. Training uses the recipe's own cropping, so
    that runs with different initial weights can be compared.

    Args:
        start: {dotted key: value} that the initial weights say about their model and images.
        file: Values of the recipe file: of the presets that it names, and its own.
        values: {dotted key: value} of the user.
        data: NAME of data=NAME, if the user gave it.
    """
    from_weights = {key: value for key, value in start.items() if key.startswith("data.")}
    objective = values.get("objective", (file.presets | file.own).get("objective"))
    explicit: Collection[str] = values.keys()
    if data is None:  # with data=NAME, the preset replaces the values of the file
        explicit = explicit | file.own.keys()
    gives_cropping = not {*CROPPING}.isdisjoint(explicit)
    if objective == "probe" and not gives_cropping:
        return from_weights
    return {key: value for key, value in from_weights.items() if key not in CROPPING}


def fitting_channels(start: Values, known: Values, values: Values) -> Values:
    """Return the values from initial weights that also hold for the images of this run.

    The values describe the model and the images of the weights. If the run's images have another
    number of channels than the images of the weights, the keys about pixels (`data.channels`,
    `data.range`, `data.mean`, `data.std`) are left out.

    Args:
        start: {dotted key: value} from the initial weights.
        known: {dotted key: value} of the recipe file.
        values: {dotted key: value} of the user.
    """
    channels = start.get("data.channels", 3)
    wanted = (known | values).get("data.channels", channels)
    if not start or wanted == channels:
        return start
    pixel_keys = {f"data.{key}" for key in PIXEL_KEYS}
    return {key: value for key, value in start.items() if key not in pixel_keys}
