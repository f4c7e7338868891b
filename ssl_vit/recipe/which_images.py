"""Choose the images of a recipe: images that the user names, images of the run that made the
initial weights, or images that the recipe file names.

This module does not import torch.
"""

from collections.abc import Collection

from . import recipe_files, schema
from .images import CROPPING, PIXEL_KEYS, PREPROCESSING, READING, TRAINING, Data
from .init_source import InitSource
from .keys import Values
from .parsing import parse_path
from .recipe_files import FileValues, without_group

PLACES = ("data", "data.path", "data.hub")  # options that choose the images
OTHERS = "give data=, data.path= or data.hub="  # the end of a sentence: "For other images, ..."


def image_keys() -> list[str]:
    """Return the keys of `data` that choose images or change how files are read.

    Examples are `data.path`, `data.share` and `data.channels`. The remaining keys of `data` say how
    images are cropped, mixed and normalised. A run with the images of another run does not take
    over these remaining keys.
    """
    # keep READING: for example, data.channels is preprocessing but also changes how files are read
    excluded = {*TRAINING, *PREPROCESSING} - {*READING}
    return [key for key in schema.all_keys() if key.startswith("data.") and key not in excluded]


def names_images(values: Values) -> bool:
    """Return whether the user or the recipe file chooses the images.

    If neither does, a run with initial weights of another run uses the images of that run.

    Args:
        values: {key: value} of the user, with `recipe` and possibly `data`.

    Raises:
        UserError: The recipe does not exist.
    """
    path = recipe_files.find_recipe(values.get("recipe"))
    return names_images_directly(values) or recipe_files.names_images(path)


def names_images_directly(values: Values) -> bool:
    """Return whether the values of the user name images (data=, data.path= or data.hub=)."""
    return any(values.get(key) for key in PLACES)


def images_taken(source: InitSource, data: Data) -> str | None:
    """Return a notice about the images of a run for which the user named no images.

    - The images of the run that made the initial weights are known: the notice says that they are
      used.
    - These images are unknown: the notice is a warning that the images of the recipe are used.
    - The weights are untrained: None.

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
    """Remove the values of the group `data`, except for TRAINING (such as data.mixup)."""
    return without_group(known, "data") | {key: known[key] for key in TRAINING if key in known}


def other_images(values: Values, known: Values) -> Values:
    """Return the preprocessing and the name (`data.name`) of images that only a path describes.

    The preprocessing (`data.size`, `data.mean` and others) comes from the recipe. The name is made
    from the path: `photos` for data.path=/home/me/photos, and `USER--NAME` for data.hub=USER/NAME.

    Args:
        values: {dotted key: value} of the user, with `data.path` or `data.hub`.
        known: {dotted key: value} of the recipe file.
    """
    name = values.get("data.hub") or ""
    if values.get("data.path"):
        place = parse_path(values["data.path"], "data.path").resolve()
        name = place.stem if place.is_file() else place.name
    return _preprocessing_of(known) | {"data.name": name.replace("/", "--")}


def _preprocessing_of(known: Values) -> Values:
    """Return only the values of the keys in PREPROCESSING, such as `data.size`."""
    return {key: known[key] for key in PREPROCESSING if key in known}


def images_of_run(known: Values, images: Values) -> tuple[Values, Values]:
    """Return the values of `data` that let a new run use the images of another run.

    Args:
        known: {dotted key: value} of the new run's recipe file.
        images: {dotted key: value} of the group `data` of the other run.

    Returns:
        Two mappings {dotted key: value}. The first is the preprocessing (`data.size`, `data.mean`
            and others) from datasets.yaml or, for a data set without a row there, from the recipe
            file. The second has the values of the other run for `image_keys` (`data.path`,
            `data.share` and others).
    """
    name = str(images.get("data.name"))
    preprocessing = _preprocessing_of(known)
    if recipe_files.has_preset("data", name):
        preprocessing = recipe_files.preset("data", name)
    return preprocessing, {key: images[key] for key in image_keys() if key in images}


def preprocessing_from_init(
    start: Values, file: FileValues, values: Values, data: str | None
) -> Values:
    """Return the values for preprocessing that a run takes over from the initial weights.

    - The normalisation (`data.mean`, `data.std`) is always taken over.
    - The cropping (`data.eval_mode`, `data.eval_crop`) is taken over only if the run evaluates a
      frozen encoder, and neither the user nor the recipe file gives a cropping.
    - A training run uses the cropping of the recipe. Then runs with different initial weights crop
      in the same way and can be compared.

    Args:
        start: {dotted key: value} from the initial weights. Keys outside of `data` are ignored.
        file: Values of the recipe file.
        values: {dotted key: value} of the user.
        data: NAME of data=NAME, if the user gave it.
    """
    from_weights = {key: value for key, value in start.items() if key.startswith("data.")}
    objective = values.get("objective", (file.presets | file.own).get("objective"))
    given_keys: Collection[str] = values.keys()
    if data is None:  # with data=NAME, the preset replaces the values of the file
        given_keys = given_keys | file.own.keys()
    gives_cropping = not {*CROPPING}.isdisjoint(given_keys)
    if objective == "probe" and not gives_cropping:
        return from_weights
    return {key: value for key, value in from_weights.items() if key not in CROPPING}


def fitting_channels(start: Values, known: Values, values: Values) -> Values:
    """Return the values from the initial weights, without values that do not fit the run's images.

    If the images have another number of channels than the weights, the keys about pixels
    (`data.channels`, `data.range`, `data.mean`, `data.std`) are left out.

    Args:
        start: {dotted key: value} from the initial weights, about model and images.
        known: {dotted key: value} of the recipe file.
        values: {dotted key: value} of the user.
    """
    channels = start.get("data.channels", 3)
    wanted = (known | values).get("data.channels", channels)
    if not start or wanted == channels:
        return start
    pixel_keys = {f"data.{key}" for key in PIXEL_KEYS}
    return {key: value for key, value in start.items() if key not in pixel_keys}
