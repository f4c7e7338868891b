"""Make a complete, checked recipe from the values that a user gave. This module does not import
torch.

Values are merged in layers of {dotted key: value}. Later layers take precedence:
1. the defaults
2. the presets that the recipe file names (rows of models.yaml and datasets.yaml)
3. the values in the recipe file itself
4. the presets that the user names, which replace a whole group, except for data.mixup and
   data.cutmix
5. all other values of the user

Values from the initial weights (the model and the normalisation) take precedence over the recipe
file, but not over the values of the user. If nobody chose images and a run made the weights, the
images of that run replace the presets of the recipe file, but not the values in the file itself.
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

POOL = "supervised.pool"  # how fine-tuning pools tokens into the feature for the classifier
DEFAULT, PRESET, FILE, WEIGHTS = "default", "preset", "recipe file", "initial weights"
ADJUSTED = "adjusted"


@dataclass(frozen=True)
class Resolved:
    """Recipe, together with where each value comes from.

    Attributes:
        recipe: Complete, checked recipe.
        given: Values that the user gave.
        file: Path of the recipe file, or None if the user gave a whole Recipe.
        file_values: {dotted key: value} of the recipe file and of the presets that the file names.
        origins: {dotted key: origin} of the keys in use. The origin is DEFAULT, PRESET, FILE,
            WEIGHTS, ADJUSTED or `Given.origin`.
        names_images: Whether the user or the recipe file chose the images. Otherwise a run with
            initial weights of another run uses the images of that run.
    """

    recipe: Recipe
    given: Given = field(default_factory=Given)
    file: Path | None = None
    file_values: Values = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    names_images: bool = True

    def recipe_file(self) -> dict[str, Any]:
        """Return the name of the recipe file, and the keys in which the run differs from the file.

        The result is written to environment.json.

        Returns:
            A dictionary with two keys, or an empty dictionary if the user gave a whole Recipe.
            `name`: name of the recipe, or name of the user's file without folders.
            `differs`: {dotted key: value in the file} for keys with another value in the run,
                except for `name` and for keys that describe the machine or the user.
        """
        if self.file is None:
            return {}
        name = self.given.values["recipe"]
        in_file = schema.build(self.file_values).values()
        in_run, default = self.recipe.values(), schema.defaults()
        keys = [
            key for key in {**in_file, **in_run} if key != "name" and not schema.is_private(key)
        ]
        # a key that the file or the run does not use counts as the default there
        values_before = {key: in_file.get(key, default.get(key)) for key in keys}
        differs = {
            key: value
            for key, value in values_before.items()
            if value != in_run.get(key, default.get(key))
        }
        return {
            "name": Path(name).name if name.endswith((".yaml", ".yml")) else name,
            "differs": differs,
        }


class _Layers:
    """Merged values from all sources except the user, with the origin of each value.

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
        """Add values. A new value replaces a present value of the same key."""
        self.values |= values
        self.origins |= dict.fromkeys(values, origin)

    def replace_group(self, group: str, origin: str, values: Values) -> None:
        """Remove all values of a group of keys, then add values."""
        self.values = without_group(self.values, group)
        self.put(origin, values)

    def replace_images(self, origin: str, values: Values) -> None:
        """Remove the values of `data`, except for TRAINING, then add values."""
        self.values = without_images(self.values)
        self.put(origin, values)


def resolve(given: Given, here: bool = True) -> Resolved:
    """Complete the values that a user gave, and return the checked recipe.

    Args:
        given: Values of the user.
        here: Whether to check that the images exist on this machine.

    Raises:
        UserError: A key, preset or recipe is unknown, a value has the wrong type or is out of
            bounds, or values contradict each other.
    """
    # names of a recipe file, a data set and a model, and all other values
    names = {key: given.values.get(key) for key in NAMED}
    values = {key: value for key, value in given.values.items() if key not in NAMED}
    if values.get("data.path") and values.get("data.hub"):
        two_places = f"data.path={values['data.path']} and data.hub={values['data.hub']}"
        raise UserError(f"{two_places}: both name the images. Leave out data.path or data.hub.")
    path = recipe_files.find_recipe(names["recipe"])
    file = recipe_files.load(path)
    init_values: Values = {}
    if "init" in values:
        needs_model = names["model"] is None and "model.timm" not in values
        init_values = _read_description(InitSource(values["init"]), needs_model)
    layers = _Layers(file)
    _choose_model(layers, names["model"], init_values)
    images_are_chosen = names_images(given.values)
    data_name = _choose_images(layers, values, names["data"], file, images_are_chosen)
    fitting_values = fitting_channels(init_values, layers.values, values)
    layers.put(WEIGHTS, preprocessing_from_init(fitting_values, file, values, names["data"]))
    check_plugin(values, layers.values.get("plugin"), path)
    merged = layers.values | values
    # raise an error if the objective or the target is unknown
    declaration.objective(str(merged.get("objective", DEFAULT_OBJECTIVE)))
    declaration.target(str(merged.get("target", DEFAULT_TARGET)))
    # errors name the file, except with init=, where a wrong value may come from the weights
    where = "" if init_values else f"{path}: "
    texts = {key: given.text(key) for key in values}
    recipe = schema.build(merged, where, texts)
    if recipe.fine_tunes and POOL not in layers.values and not recipe.model.convolutional:
        # pool as in the training of the initial weights
        layers.put(WEIGHTS, {POOL: recipe.init_source.pooling()})
        recipe = schema.build(layers.values | values, typed=texts)
    if networks := describe_networks(recipe, values):
        recipe = schema.build(layers.values | values | networks, typed=texts)
    check_used(recipe, given)
    origins = layers.origins | dict.fromkeys(networks, WEIGHTS)
    origins |= dict.fromkeys(values, given.origin)
    if "optim.warmup" not in values and recipe.optim.warmup >= recipe.optim.steps:
        # users often give fewer steps and forget the warm-up
        recipe.optim.warmup = recipe.optim.steps // 10
        origins["optim.warmup"] = ADJUSTED
    _check_normalisation(recipe, init_values)
    if "name" not in values:
        before = schema.build(layers.values)
        name_parts = [before.name or path.stem, data_name, names["model"]]
        name_parts += [
            f"{source.kind}={source.short_name}"
            for key, source in recipe.sources().items()
            if key in values
        ]
        recipe.name = default_name([part for part in name_parts if part], before, recipe)
        origins["name"] = ADJUSTED
    check(recipe)
    if here:
        check_place(recipe.data)
    _make_paths_absolute(recipe)
    origins = {key: origins.get(key, DEFAULT) for key in recipe.values()}
    return Resolved(recipe, given, path, file.presets | file.own, origins, images_are_chosen)


def describe_networks(recipe: Recipe, values: Values) -> Values:
    """Describe the networks of weights other than `init`, such as `distill.teacher`.

    Returns:
        {"distill.network": description}. The description has the values of `model`, and the mean
        and std of the pixels that the network expects. If the recipe already has a description, and
        the user did not give the weights, the description is not made again. Therefore a resumed
        run does not need the files of the weights.

    Raises:
        UserError: Weights do not exist, or no file describes their network.
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
    """Add the values of `data` for the images of the run to the layers.

    The first case that applies decides:
    1. The user gave data=NAME: the images are a row of datasets.yaml.
    2. The user gave data.path= or data.hub=, and the recipe file names no images: the images have
       the preprocessing of the recipe file, and a name made from the path.
    3. Nobody chose images, and a run made the initial weights: the images of that run.
    4. Otherwise the recipe file decides.

    Args:
        layers: Values from all sources except the user, to which values are added.
        values: {dotted key: value} of the user.
        name: NAME of data=NAME, or None if the user did not give data=.
        file: Values of the recipe file.
        chosen: Whether the user or the recipe file chose the images.

    Returns:
        The name of the images in cases 1 and 2, otherwise None.
    """
    place = values.get("data.path") or values.get("data.hub")
    source = InitSource((layers.values | values).get("init", SCRATCH))
    if name is not None:
        layers.replace_images(PRESET, recipe_files.preset("data", name))
    elif place and layers.values.get("data.name", EMBEDDED) == EMBEDDED:
        images = other_images(values, layers.values)
        name = images.pop("data.name")
        layers.replace_images(PRESET, images)
        # these values do not change, but they come from the file itself and not from a preset
        layers.put(FILE, {key: file.own[key] for key in images if key in file.own})
        layers.put(ADJUSTED, {"data.name": name})
    elif not chosen:
        images = source.images()
        if images:
            preset, of_run = images_of_run(layers.values, images)
            layers.replace_images(PRESET, preset)
            layers.put(WEIGHTS, of_run)
            # the values in the file itself take precedence over the values of the other run
            layers.put(FILE, {key: file.own[key] for key in file.own if key.startswith("data.")})
    if values.get("data.hub"):
        # data.hub= of the user replaces a path in the recipe file
        layers.put(ADJUSTED, {"data.path": None})
    return name


def _choose_model(layers: _Layers, name: str | None, start: Values) -> None:
    """Replace the recipe file's model by model=NAME or by the model of the initial weights.

    Args:
        layers: Values of the recipe file, in which the model is replaced.
        name: NAME of model=NAME, or None. This model takes precedence over the initial weights.
        start: {dotted key: value} from the initial weights, about model and images.
    """
    model = {key: value for key, value in start.items() if key.startswith("model.")}
    if name is not None:
        layers.replace_group("model", PRESET, recipe_files.preset("model", name))
    elif model:
        layers.replace_group("model", WEIGHTS, model)


def _read_description(source: InitSource, model: bool) -> Values:
    """Return the description of initial weights, after checking that all keys exist.

    Args:
        source: Initial weights.
        model: Whether timm may build the network to describe the model (see
            `InitSource.read_description`).

    Raises:
        UserError: The recipe.yaml of the weights has an unknown key, or the weights cannot be
            described.
    """
    values = source.read_description(model)
    for key in values.keys() - schema.all_keys().keys():
        near = suggest(key, [name for name in schema.all_keys() if name.startswith("model.")])
        raise UserError(f"init={source.place}: recipe.yaml has the unknown key {key}, {near}")
    return values


def resolve_encoder(place: str, given: Given) -> Recipe:
    """Return a recipe for loading an encoder, not for training or measuring.

    A recipe needs images. If the user names none, the recipe has the package's generated images
    (EMBEDDED), which are never read.

    Args:
        place: Value of `init=`, such as `runs/mpp`.
        given: Values of the user.

    Raises:
        UserError: A value is wrong, or values contradict each other (see `resolve`).
    """
    images = {} if names_images_directly(given.values) else {"data": EMBEDDED}
    task = {"recipe": "evaluate", "init": place}
    others = given.without(["data.labels"])
    # here=False: paths need not exist on this machine
    recipe = resolve(others.with_values(images | others.values | task), here=False).recipe
    if "data.labels" in given.values:
        # set after all checks, because a recipe for measuring must not have data.labels=false
        labels = {"data.labels": given.values["data.labels"]}
        recipe.data.labels = schema.build(labels, typed=given.texts).data.labels
    return recipe


def from_untrusted(path: Path, out: str, name: str | None) -> Recipe:
    """Read a recipe file of another person, and check the relations between its keys.

    Keys that describe the other person's machine, such as paths, are not taken over. The images
    need not exist on this machine.

    Args:
        path: Path of the recipe file.
        out: Folder that holds the runs.
        name: Name of the run. None: the name in the file.

    Raises:
        UserError: The file is not a recipe, or its values contradict each other.
    """
    recipe = schema.without_private(recipe_files.read(path))
    values = recipe.values() | {"out": out, "name": name or recipe.name.replace("/", "_")}
    recipe = schema.build(values)
    check(recipe)
    return recipe


def _check_normalisation(recipe: Recipe, start: Values) -> None:
    """Check that images have the channels and the normalisation that the initial weights expect.

    With `model.adapt_channels=true`, weights for 3 channels may be used for another number.

    Args:
        recipe: Recipe of the run.
        start: {dotted key: value} from the initial weights, about their images. Empty for random
            weights. A missing `data.channels` means 3, and a missing `data.range` means 8 bits.

    Raises:
        UserError: The images do not fit the initial weights.
    """
    channels = start.get("data.channels", 3)
    if start and channels != recipe.data.channels:
        remedies = [f"data.channels={channels}"]
        if channels == 3:
            if recipe.model.adapt_channels:
                return
            remedies.append("model.adapt_channels=true")
        raise UserError(
            f"data.channels={recipe.data.channels}: init={recipe.init} was trained with another"
            f" number of channels. Use {' or '.join(remedies)}."
        )
    for key in ("range", "mean", "std"):
        expected = start.get(f"data.{key}")
        value = getattr(recipe.data, key)
        if expected is not None and list(expected) != value:
            remedy = f"Use data.{key}={option_text(list(expected))}"
            raise UserError(
                f"data.{key}={value}: init={recipe.init} was trained with other values. {remedy}."
            )
    # Weights without a range expect 8 bits. Training can adapt an encoder to another range. A
    # frozen encoder cannot adapt, so an evaluation refuses another range.
    pixel_range = recipe.data.range
    expects_bytes = start and start.get("data.range") is None
    if recipe.objective == "probe" and expects_bytes and pixel_range not in (None, [*BYTES]):
        raise UserError(
            f"data.range={pixel_range}: init={recipe.init} was trained with 8-bit images. Use"
            " data.range=[0,255]."
        )


def _make_paths_absolute(recipe: Recipe) -> None:
    """Make paths in the recipe absolute, so that recipe.yaml repeats the run from any folder.

    The paths are those of the images, the plugin, the weights, and RUN of `resume=RUN@STEP`.
    """
    if recipe.data.path:
        recipe.data.path = str(Path(recipe.data.path).resolve())
    if recipe.plugin:
        recipe.plugin = str(Path(recipe.plugin).resolve())
    # `trunk` is RUN and STEP of `resume=RUN@STEP`. A study may make RUN only later.
    if recipe.trunk and recipe.trunk.folder.exists():
        recipe.resume = f"{recipe.trunk.folder.resolve()}@{recipe.trunk.step}"
    for key, source in recipe.sources().items():
        if source.is_local:
            recipe.set(key, str(Path(source.place).resolve()))
