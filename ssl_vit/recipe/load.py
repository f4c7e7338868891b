"""Complete the values that a user gave to a checked recipe. This module does not import torch.

Values come in layers, and later layers win: the defaults; the presets that the recipe file names
(rows of models.yaml and datasets.yaml); the values in the file itself; presets that the user names,
which replace the whole group except for how training mixes images; and all other values of the
user. The layers are merged as {dotted key: value}. What initial weights bring (their model,
normalisation and, for a run, its images) lies above the file and below the user's values.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
from ..formatting import option_text
from . import declaration, recipe_files, schema
from .check import check, check_place, check_used
from .default_name import default_name
from .given import Given
from .images import BYTES, EMBEDDED
from .init_source import SCRATCH, InitSource
from .keys import Values
from .plugins import check_plugin
from .recipe_files import without_group
from .schema import DEFAULT_OBJECTIVE, DEFAULT_TARGET, Recipe
from .which_images import (
    fitting_channels,
    images_of_run,
    names_images,
    names_images_directly,
    other_images,
    preprocessing_from_init,
    without_images,
)
from .words import NAMED

POOL = "supervised.pool"  # how fine-tuning pools tokens into the feature that it learns from
DEFAULT, PRESET, FILE, WEIGHTS = "default", "preset", "recipe file", "initial weights"
ADJUSTED = "adjusted"


@dataclass(frozen=True)
class Resolved:
    """Recipe, together with where each value comes from.

    Attributes:
        recipe: Complete, checked recipe.
        given: Values that the user gave.
        file: Path of the recipe file; None if the user gave a whole Recipe.
        file_values: {dotted key: value} of the recipe file and of the presets that the file names.
        origins: {dotted key: origin} of the keys in use. The origin is DEFAULT, PRESET, FILE,
            WEIGHTS, ADJUSTED or `Given.origin`.
        names_images: Whether the user or the recipe file chose the images. Otherwise a run that
            starts from another run uses the images of that run.
    """

    recipe: Recipe
    given: Given = field(default_factory=Given)
    file: Path | None = None
    file_values: Values = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    names_images: bool = True

    def recipe_file(self) -> dict[str, Any]:
        """Return what environment.json records about the recipe file.

        Returns:
            `name`: the recipe's name; for a file outside recipes/, the file name without its
                folder. `differs`: {dotted key: the file's value} for the keys that have another
                value in the run, except the run's name and keys that describe the machine or the
                user. Empty if the user gave a whole Recipe.
        """
        if self.file is None:
            return {}
        name = self.given.values["recipe"]
        before = schema.build(self.file_values).values()
        now, default = self.recipe.values(), schema.defaults()
        listed = [key for key in {**before, **now} if key != "name" and not schema.is_private(key)]
        values_before = {key: before.get(key, default.get(key)) for key in listed}
        differs = {
            key: value
            for key, value in values_before.items()
            if value != now.get(key, default.get(key))
        }
        return {
            "name": Path(name).name if name.endswith((".yaml", ".yml")) else name,
            "differs": differs,
        }


class _Layers:
    """Values of the layers below the user's values, with the origin of each value.

    Attributes:
        values: {dotted key: value}.
        origins: {dotted key: origin}.
    """

    def __init__(self, file: recipe_files.FileValues) -> None:
        self.values: Values = {}
        self.origins: dict[str, str] = {}
        self.put(PRESET, file.presets)
        self.put(FILE, file.own)

    def put(self, origin: str, values: Values) -> None:
        """Add values above the present values."""
        self.values |= values
        self.origins |= dict.fromkeys(values, origin)

    def replace_group(self, group: str, origin: str, values: Values) -> None:
        """Replace all values of a group of keys."""
        self.values = without_group(self.values, group)
        self.put(origin, values)

    def replace_images(self, origin: str, values: Values) -> None:
        """Replace the choice of images, but not how training mixes images (data.mixup)."""
        self.values = without_images(self.values)
        self.put(origin, values)


def resolve(given: Given, here: bool = True) -> Resolved:
    """Return the complete, checked recipe for the values that a user gave.

    Args:
        given: Values of the user.
        here: Whether to check that the images exist on this machine.

    Raises:
        UserError: A key, preset or recipe is unknown, or a value has the wrong type or is out of
            bounds.
    """
    named = {key: given.values.get(key) for key in NAMED}
    values = {key: value for key, value in given.values.items() if key not in NAMED}
    if values.get("data.path") and values.get("data.hub"):
        two_places = f"data.path={values['data.path']} and data.hub={values['data.hub']}"
        raise UserError(f"{two_places}: both name the images. Leave out data.path or data.hub.")
    path = recipe_files.find_recipe(named["recipe"])
    file = recipe_files.load(path)
    start: Values = {}
    if "init" in values:
        asks_model = named["model"] is None and "model.timm" not in values
        start = _read_description(InitSource(values["init"]), asks_model)
    layers = _Layers(file)
    _choose_model(layers, named["model"], start)
    chosen_images = names_images(given.values)
    data_name = _choose_images(layers, values, named["data"], file, chosen_images)
    fitted = fitting_channels(start, layers.values, values)
    layers.put(WEIGHTS, preprocessing_from_init(fitted, file, values, named["data"]))
    check_plugin(values, layers.values.get("plugin"), path)
    merged = layers.values | values
    declaration.objective(str(merged.get("objective", DEFAULT_OBJECTIVE)))
    declaration.target(str(merged.get("target", DEFAULT_TARGET)))
    where = "" if start else f"{path}: "  # with init=, a wrong value need not be the file's
    texts = {key: given.text(key) for key in values}
    recipe = schema.build(merged, where, texts)
    if recipe.fine_tunes and POOL not in layers.values and not recipe.model.convolutional:
        # the feature that the weights were trained to give
        layers.put(WEIGHTS, {POOL: recipe.init_source.pooling()})
        recipe = schema.build(layers.values | values, typed=texts)
    if networks := _networks(recipe, values):
        recipe = schema.build(layers.values | values | networks, typed=texts)
    check_used(recipe, given)
    origins = layers.origins | dict.fromkeys(networks, WEIGHTS)
    origins |= dict.fromkeys(values, given.origin)
    if "optim.warmup" not in values and recipe.optim.warmup >= recipe.optim.steps:
        # users shorten recipes and forget the warm-up
        recipe.optim.warmup = recipe.optim.steps // 10
        origins["optim.warmup"] = ADJUSTED
    _check_normalisation(recipe, start)
    if "name" not in values:
        before = schema.build(layers.values)
        parts = [before.name or path.stem, data_name, named["model"]]
        parts += [
            f"{source.kind}={source.short_name}"
            for key, source in recipe.sources().items()
            if key in values
        ]
        recipe.name = default_name([part for part in parts if part], before, recipe)
        origins["name"] = ADJUSTED
    check(recipe)
    if here:
        check_place(recipe.data)
    _make_paths_absolute(recipe)
    origins = {key: origins.get(key, DEFAULT) for key in recipe.values()}
    return Resolved(recipe, given, path, file.presets | file.own, origins, chosen_images)


def _networks(recipe: Recipe, values: Values) -> Values:
    """Return {dotted key: network} for weights named by a key such as `teacher`, not by `init`.

    Weights are read only if the user names them or the recipe file does not describe their network.
    Other weights may be gone by now.

    Raises:
        UserError: As in `InitSource.network_values`.
    """
    networks: Values = {}
    for key, source in recipe.sources().items():
        beside = source.network_key
        if beside and (key in values or recipe.value(beside) is None):
            pixels = {f"data.{name}": getattr(recipe.data, name) for name in ("mean", "std")}
            networks[beside] = pixels | source.network_values()
    return networks


def _choose_images(
    layers: _Layers,
    values: Values,
    name: str | None,
    file: recipe_files.FileValues,
    chosen: bool,
) -> str | None:
    """Put the values of the chosen images into the layers, and return the name of the images if the
    user chose them.

    The images are those of a preset that is named, of a place that no preset describes, or of the
    run that made the initial weights.

    Args:
        layers: Layers below the user's values.
        values: {dotted key: value} of the user.
        name: Name of a preset, if the user gave one.
        file: Values of the recipe file.
        chosen: Whether the user or the recipe file chose the images.
    """
    place = values.get("data.path") or values.get("data.hub")
    source = InitSource((layers.values | values).get("init", SCRATCH))
    if name is not None:
        layers.replace_images(PRESET, recipe_files.preset("data", name))
    elif place and layers.values.get("data.name", EMBEDDED) == EMBEDDED:
        images = other_images(values, layers.values)
        name = images.pop("data.name")
        layers.replace_images(PRESET, images)
        layers.put(FILE, {key: file.own[key] for key in images if key in file.own})
        layers.put(ADJUSTED, {"data.name": name})
    elif not chosen and (images := source.images()):
        preset, of_run = images_of_run(layers.values, images)
        layers.replace_images(PRESET, preset)
        layers.put(WEIGHTS, of_run)
        layers.put(FILE, {key: file.own[key] for key in file.own if key.startswith("data.")})
    if values.get("data.hub"):
        layers.put(ADJUSTED, {"data.path": None})
    return name


def _choose_model(layers: _Layers, name: str | None, start: Values) -> None:
    """Put the model that the user names, or else the model of the initial weights, into the
    layers.
    """
    model = {key: value for key, value in start.items() if key.startswith("model.")}
    if name is not None:
        layers.replace_group("model", PRESET, recipe_files.preset("model", name))
    elif model:
        layers.replace_group("model", WEIGHTS, model)


def _read_description(source: InitSource, model: bool) -> Values:
    """Return `InitSource.read_description` after checking that the keys exist.

    Raises:
        UserError: The recipe.yaml of the weights has an unknown key of the model, or an error of
            `InitSource.read_description`.
    """
    values = source.read_description(model)
    for key in values.keys() - schema.all_keys().keys():
        near = suggest(key, [name for name in schema.all_keys() if name.startswith("model.")])
        raise UserError(f"init={source.place}: recipe.yaml has the unknown key {key}, {near}")
    return values


def resolve_encoder(place: str, given: Given) -> Recipe:
    """Return a recipe for loading an encoder without a task.

    The images are those that the user names, or else the embedded ones, which are never read.

    Args:
        place: Value of `init=`.
        given: Values of the user.

    Raises:
        UserError: As in `resolve`.
    """
    images = {} if names_images_directly(given.values) else {"data": EMBEDDED}
    task = {"recipe": "evaluate", "init": place}
    others = given.without(["data.labels"])
    recipe = resolve(others.with_values(images | others.values | task), here=False).recipe
    if "data.labels" in given.values:  # nothing is measured on labels here
        labels = {"data.labels": given.values["data.labels"]}
        recipe.data.labels = schema.build(labels, typed=given.texts).data.labels
    return recipe


def from_untrusted(path: Path, out: str, name: str | None) -> Recipe:
    """Return the public part of a recipe file that somebody else wrote, with all checks except
    those of the images.

    The images may not exist on this machine.

    Args:
        path: Recipe file.
        out: Folder that holds the runs.
        name: Name of the run; None: the recipe's own.

    Raises:
        UserError: As in `resolve`.
    """
    recipe = schema.without_private(recipe_files.read(path))
    values = recipe.values() | {"out": out, "name": name or recipe.name.replace("/", "_")}
    recipe = schema.build(values)
    check(recipe)
    return recipe


def _check_normalisation(recipe: Recipe, start: Values) -> None:
    """Check that images have the channels and the normalisation that the initial weights expect.

    Other channels are allowed if the weights can be adapted to them (model.adapt_channels).
    """
    channels, made = start.get("data.channels", 3), f"init={recipe.init} was trained with"
    if start and channels != recipe.data.channels:
        text = f"data.channels={recipe.data.channels}: {made} another number of channels."
        if channels != 3:
            raise UserError(f"{text} Use data.channels={channels}.")
        if not recipe.model.adapt_channels:
            raise UserError(f"{text} Use data.channels=3 or model.adapt_channels=true.")
        return
    for key in ("range", "mean", "std"):
        expected = start.get(f"data.{key}")
        statistic = getattr(recipe.data, key)
        if expected is not None and list(expected) != statistic:
            use = f"Use data.{key}={option_text(list(expected))}"
            raise UserError(f"data.{key}={statistic}: {made} other values. {use}.")
    # A frozen encoder only knows bytes, but an encoder that is trained may learn another range.
    pixel_range = recipe.data.range
    bytes_expected = start and start.get("data.range") is None
    if recipe.objective == "probe" and bytes_expected and pixel_range not in (None, [*BYTES]):
        raise UserError(f"data.range={pixel_range}: {made} 8-bit images. Use data.range=[0,255].")


def _make_paths_absolute(recipe: Recipe) -> None:
    """Make paths absolute, so that recipe.yaml repeats the run from any folder."""
    if recipe.data.path:
        recipe.data.path = str(Path(recipe.data.path).resolve())
    if recipe.plugin:
        recipe.plugin = str(Path(recipe.plugin).resolve())
    if recipe.trunk and recipe.trunk.folder.exists():  # the trunk in a study may not exist yet
        recipe.resume = f"{recipe.trunk.folder.resolve()}@{recipe.trunk.step}"
    for key, source in recipe.sources().items():
        if source.is_local:
            recipe.set(key, str(Path(source.place).resolve()))
