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
            A dictionary with two keys, or an empty dictionary if the user gave a whole Recipe and
            no file.
            `name`: the recipe's name, or the file name (without folders) of the user's own file.
            `differs`: {dotted key: the file's value} for the keys that have another value in the
                run. The run's name and keys that describe the machine or the user do not count.
        """
        if self.file is None:
            return {}
        name = self.given.values["recipe"]
        # values of the file's recipe and of the run's; a key that one of them lacks has its default
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
    if networks := _describe_networks(recipe, values):
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


def _describe_networks(recipe: Recipe, values: Values) -> Values:
    """Return {`GROUP.network`: description of a network} for keys such as `distill.teacher`.

    `init` and a few other keys name trained weights. For a key other than `init`, the key `network`
    of the same group describes the network of the weights: the values of `model`, and the mean and
    std of the pixels that the network expects. The files of the weights are read only if the user
    gave the key or the recipe file has no description, because a resumed run works without them.

    Raises:
        UserError: As in `InitSource.network_values`.
    """
    networks: Values = {}
    for key, source in recipe.sources().items():
        network_key = source.network_key  # empty for `init`
        if network_key and (key in values or recipe.value(network_key) is None):
            # the recipe's mean and std, unless the files of the weights give others
            pixels = {f"data.{name}": getattr(recipe.data, name) for name in ("mean", "std")}
            networks[network_key] = pixels | source.network_values()
    return networks


def _choose_images(
    layers: _Layers,
    values: Values,
    name: str | None,
    file: recipe_files.FileValues,
    chosen: bool,
) -> str | None:
    """Add the values of `data` for the run's images, and return the name of the images if the user
    chose them.

    The first rule that applies decides:
    1. data=NAME: the images are a row of datasets.yaml.
    2. data.path= or data.hub=, and the recipe file names no images: a name is made from the path.
    3. Nobody chose images, and a run made the initial weights: the images of that run.
    4. Otherwise the recipe file decides.

    Args:
        layers: Values that are completed here: the recipe file's and, later added and therefore
            stronger, presets and initial weights. The user's own values come on top at the end.
        values: {dotted key: value} of the user.
        name: NAME of data=NAME, if the user gave it.
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
        # not new values, but their origin is the file
        layers.put(FILE, {key: file.own[key] for key in images if key in file.own})
        layers.put(ADJUSTED, {"data.name": name})
    elif not chosen:
        images = source.images()
        if images:
            preset, of_run = images_of_run(layers.values, images)
            layers.replace_images(PRESET, preset)
            layers.put(WEIGHTS, of_run)
            # what the file itself says about images wins over the run
            layers.put(FILE, {key: file.own[key] for key in file.own if key.startswith("data.")})
    if values.get("data.hub"):
        # the images of the Hub replace a path in the recipe file
        layers.put(ADJUSTED, {"data.path": None})
    return name


def _choose_model(layers: _Layers, name: str | None, start: Values) -> None:
    """Replace the recipe file's model by the model that the user or the initial weights name.

    Args:
        layers: Values of the recipe file, which are changed here.
        name: NAME of model=NAME, if the user gave it. This model wins over the initial weights.
        start: {dotted key: value} that the initial weights say about their model and images.
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
    """Return a recipe for loading an encoder, without anything to train or measure.

    A recipe needs images. If the user names none, the recipe has the package's generated images
    (EMBEDDED), which are never read. The user's `data.labels` is set after all checks, because a
    recipe for measuring would refuse images without labels.

    Args:
        place: Value of `init=`.
        given: Values of the user.

    Raises:
        UserError: As in `resolve`.
    """
    images = {} if names_images_directly(given.values) else {"data": EMBEDDED}
    task = {"recipe": "evaluate", "init": place}
    others = given.without(["data.labels"])
    # here=False: paths need not exist on this machine
    recipe = resolve(others.with_values(images | others.values | task), here=False).recipe
    if "data.labels" in given.values:
        labels = {"data.labels": given.values["data.labels"]}
        recipe.data.labels = schema.build(labels, typed=given.texts).data.labels
    return recipe


def from_untrusted(path: Path, out: str, name: str | None) -> Recipe:
    """Return the recipe in a file that somebody else wrote, without its private keys.

    Private keys describe the author's machine or the author, such as paths. All relations between
    keys are checked. Whether the images exist on this machine is not checked.

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

    Weights for 3 channels may be adapted to another number of channels (model.adapt_channels).

    Args:
        recipe: Recipe of the run.
        start: {dotted key: value} that the initial weights say about their images; empty for random
            weights. An unknown `data.channels` counts as 3, and an unknown `data.range` as bytes.

    Raises:
        UserError: The images do not fit the initial weights.
    """
    channels = start.get("data.channels", 3)
    if start and channels != recipe.data.channels:
        remedy = f"Use data.channels={channels}"
        if channels == 3:
            if recipe.model.adapt_channels:
                return
            remedy += " or model.adapt_channels=true"
        raise UserError(
            f"data.channels={recipe.data.channels}: init={recipe.init} was trained with another"
            f" number of channels. {remedy}."
        )
    for key in ("range", "mean", "std"):
        expected = start.get(f"data.{key}")
        statistic = getattr(recipe.data, key)
        if expected is not None and list(expected) != statistic:
            remedy = f"Use data.{key}={option_text(list(expected))}"
            raise UserError(
                f"data.{key}={statistic}: init={recipe.init} was trained with other values."
                f" {remedy}."
            )
    # Training may adapt an encoder to another range. A frozen encoder needs its own range: bytes,
    # if nothing says otherwise.
    pixel_range = recipe.data.range
    expects_bytes = start and start.get("data.range") is None
    if recipe.objective == "probe" and expects_bytes and pixel_range not in (None, [*BYTES]):
        raise UserError(
            f"data.range={pixel_range}: init={recipe.init} was trained with 8-bit images. Use"
            " data.range=[0,255]."
        )


def _make_paths_absolute(recipe: Recipe) -> None:
    """Make paths absolute, so that recipe.yaml repeats the run from any folder.

    Affected are the images, the plugin, files with weights, and RUN of `resume=RUN@STEP`, the run
    that this run continues.
    """
    if recipe.data.path:
        recipe.data.path = str(Path(recipe.data.path).resolve())
    if recipe.plugin:
        recipe.plugin = str(Path(recipe.plugin).resolve())
    # `trunk` is RUN and STEP. RUN may not exist yet, if a study makes it later
    if recipe.trunk and recipe.trunk.folder.exists():
        recipe.resume = f"{recipe.trunk.folder.resolve()}@{recipe.trunk.step}"
    for key, source in recipe.sources().items():
        if source.is_local:
            recipe.set(key, str(Path(source.place).resolve()))
