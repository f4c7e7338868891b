"""Which images a recipe is about: those that its options name, those of the run that made its
initial weights, or the recipe file's. No torch here."""

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

PLACES = ("data", "data.path", "data.hub")  # options that name images
OTHERS = "give data=, data.path= or data.hub="


def of_images() -> list[str]:
    """Of the keys of a run's data those that say which images they are and how they are read; the
    others say how images are cropped, mixed and normalised, which each recipe does for itself."""
    others = {*MIXING, *PREPROCESSING} - {*READING}
    return [key for key in schema.all_keys() if key.startswith("data.") and key not in others]


def names_images(options: Iterable[str]) -> bool:
    """Whether options, or the recipe file among them, choose their images. Without, what starts
    from a run uses that run's images."""
    given = words.parse(options)
    path = recipe_files.find_recipe(given.get("recipe"))
    return gives_images(given) or recipe_files.names_images(path)


def gives_images(given: Mapping[str, str]) -> bool:
    """Whether options ({key: text}) name images."""
    return not all(words.is_null(given.get(key)) for key in PLACES)


def image_notice(options: Iterable[str], recipe: Recipe) -> str | None:
    """`images_taken` of a recipe; None where its options name the images.

    Args:
        options: those that `resolve` made the recipe of.
        recipe: that recipe.
    """
    return None if names_images(options) else images_taken(recipe.init_source, recipe.data)


def crop_notice(options: Iterable[str], recipe: Recipe) -> str | None:
    """A line that says how a frozen encoder's images are cut where the encoder's own way is not
    known or cannot be had, and nothing chooses one.

    Args:
        options: those that `resolve` made the recipe of.
        recipe: that recipe.
    """
    source, given = recipe.init_source, words.parse(options)
    own = recipe_files.load(recipe_files.find_recipe(given["recipe"])).own
    if recipe.objective != "probe" or source.is_scratch or {*CROPPING} & {*given, *own}:
        return None
    with suppress(UserError):  # of weights that are gone, as of a run that is pulled
        if {*CROPPING} & {*source.described_values(model=False)}:
            return None
    cut = crop_text(recipe.data.eval_mode, recipe.data.eval_crop)
    text = "how its own evaluation cuts images is not known, or not to be had here"
    return f"warning: init={source.place}: {text}; {cut} is used; for another data.eval_crop="


def size_notice(options: Iterable[str], recipe: Recipe) -> str | None:
    """A line that says that the initial weights are of another image size than the run's; None
    where they are not, or options name the size. As `crop_notice`."""
    source = recipe.init_source
    if source.is_scratch or "data.size" in words.parse(options):
        return None
    size = None
    with suppress(UserError, OSError, ValueError):  # of weights that are gone, or another program's
        size = source.image_size()
    if size in (None, recipe.data.size):
        return None
    text = f"of images of {size} px, brought to {recipe.data.size} px"
    return f"size        the weights are {text}; data.size={size} keeps theirs"


def images_taken(source: InitSource, data: Data) -> str | None:
    """A line that says which images are used where none are named: those of the run that made the
    initial weights or, of weights that do not say theirs, others. None for fresh weights."""
    if source.is_scratch:
        return None
    if not source.images():
        text = "which images it was trained on is not known here"
        return (
            f"warning: init={source.place}: {text}; data={data.name} is used; for others {OTHERS}"
        )
    place = data.place
    share = "" if data.share == 1 else f", data.share={data.share:g}"
    return f"images      those of init={source.place}: {place}{share}; for others {OTHERS}"


def without_images(known: Values) -> Values:
    """The values without those of the recipe's images. What training does with any images
    (data.mixup, data.cutmix) stays."""
    return without_group(known, "data") | {key: known[key] for key in MIXING if key in known}


def other_images(given: Values, known: Values) -> Values:
    """The data of images that no preset describes: a name from their place, and the recipe's
    preprocessing."""
    name = given.get("data.hub") or ""
    if given.get("data.path"):
        place = parse_path(given["data.path"], "data.path").resolve()
        name = place.stem if place.is_file() else place.name
    return _preprocessing_of(known) | {"data.name": name.replace("/", "--")}


def _preprocessing_of(known: Values) -> Values:
    """Of the recipe's data, what also holds for other images (data.path= or data.hub= without
    data=)."""
    return {key: known[key] for key in PREPROCESSING if key in known}


def with_images(known: Values, images: Values, file: FileValues) -> Values:
    """The values with a run's images. What is not of the images is as if they had been named: of
    their preset or, where there is none, the recipe's; what the recipe file itself gives stays."""
    name = str(images.get("data.name"))
    rest = _preprocessing_of(known)
    if recipe_files.has_preset("data", name):
        rest = recipe_files.preset("data", name)
    of_run = {key: images[key] for key in of_images() if key in images}
    of_file = {key: value for key, value in file.own.items() if key.startswith("data.")}
    return without_images(known) | rest | of_run | of_file


def preprocessing_from_init(
    start: Values, file: FileValues, given: Values, data: str | None
) -> Values:
    """The preprocessing that initial weights bring along: the normalisation always; for a frozen
    encoder also the evaluation's resizing and cropping, unless the options or the recipe file give
    it. Arms that are trained are evaluated as their recipe says, all alike."""
    brought = {key: value for key, value in start.items() if key.startswith("data.")}
    objective = given.get("objective", (file.presets | file.own).get("objective"))
    explicit: Collection[str] = given.keys()
    if data is None:  # else the preset replaces the file's values
        explicit = explicit | file.own.keys()
    if objective == "probe" and not {*CROPPING} & {*explicit}:
        return brought
    return {key: value for key, value in brought.items() if key not in CROPPING}


def fitting_channels(start: Values, known: Values, given: Values) -> Values:
    """What initial weights say of their images, without what is of other channels than the images
    have."""
    there = start.get("data.channels", 3)
    wanted = (known | given).get("data.channels", there)
    if not start or wanted == there:
        return start
    of_pixels = {f"data.{key}" for key in PIXEL_KEYS}
    return {key: value for key, value in start.items() if key not in of_pixels}
