"""Turn the words of a command line into a checked recipe. This module does not import torch.

Values come in layers, and later layers win: the defaults; the presets that the recipe file names
(rows of models.yaml and datasets.yaml); the values in the file itself; presets named on the command
line, which replace the whole group except for how training mixes images; and all other words, in
any order. The layers are merged as {dotted key: value} and validated once. What initial weights
bring (their model, normalisation and, for a run, its images) lies above the file and below the
words.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
from ..formatting import option_text
from . import declaration, recipe_files, schema, words
from .check import check, check_place, check_used
from .default_name import default_name
from .images import BYTES, EMBEDDED
from .init_source import SCRATCH, InitSource
from .keys import Values
from .plugins import check_plugin, run_plugin
from .recipe_files import without_group
from .schema import DEFAULT_OBJECTIVE, DEFAULT_TARGET, Recipe
from .which_images import (
    fitting_channels,
    names_images,
    names_images_directly,
    other_images,
    preprocessing_from_init,
    with_images,
    without_images,
)

POOL = "supervised.pool"  # how fine-tuning pools tokens into the feature that it learns from


def resolve(options: Iterable[str], here: bool = True) -> Recipe:
    """Return the checked recipe that the words of a command line describe.

    Args:
        options: Words of the form key=value.
        here: Whether to check that the images exist on this machine.

    Raises:
        UserError: A key, preset or recipe is unknown, or a value has the wrong type or is out of
            bounds.
    """
    options = list(options)
    texts = words.parse(options)
    run_plugin(texts.get("plugin"))  # the keys of the plugin are known from here on
    named = {key: texts.pop(key, None) for key in words.NAMED}
    values = words.typed(texts)
    if values.get("data.path") and values.get("data.hub"):
        two_places = f"data.path={values['data.path']} and data.hub={values['data.hub']}"
        raise UserError(f"{two_places}: both name the images. Leave out data.path or data.hub.")
    path = recipe_files.find_recipe(named["recipe"])
    file = recipe_files.load(path)
    start: Values = {}
    if "init" in values:
        asks = named["model"] is None and "model.timm" not in values
        start = _read_description(InitSource(values["init"]), asks)
    known = _choose_model(file.presets | file.own, named["model"], start)
    data_name, known = _choose_images(known, options, values, named["data"], file)
    fitted = fitting_channels(start, known, values)
    known |= preprocessing_from_init(fitted, file, values, named["data"])
    check_plugin(values, known.get("plugin"), path)
    declaration.objective(str((known | values).get("objective", DEFAULT_OBJECTIVE)))
    declaration.target(str((known | values).get("target", DEFAULT_TARGET)))
    where = "" if start else f"{path}: "  # with init=, a wrong value need not be the file's
    recipe = schema.build(known | values, where, typed=texts)
    if recipe.fine_tunes and POOL not in known and not recipe.model.convolutional:
        # the feature that the weights were trained to give
        known |= {POOL: recipe.init_source.pooling()}
        recipe = schema.build(known | values, typed=texts)
    if networks := _networks(recipe, values):
        recipe = schema.build(known | values | networks, typed=texts)
    check_used(recipe, texts)
    if "optim.warmup" not in values and recipe.optim.warmup >= recipe.optim.steps:
        # users shorten recipes and forget the warm-up
        recipe.optim.warmup = recipe.optim.steps // 10
    _check_normalisation(recipe, start)
    if "name" not in values:
        sources = recipe.sources()
        before = schema.build(known)
        parts = [before.name or path.stem, data_name, named["model"]]
        parts += [
            f"{source.kind}={source.short_name}" for key, source in sources.items() if key in values
        ]
        recipe.name = default_name([part for part in parts if part], before, recipe)
    check(recipe)
    if here:
        check_place(recipe.data)
    _make_paths_absolute(recipe)
    return recipe


def _networks(recipe: Recipe, values: Values) -> Values:
    """Return {dotted key: network} for weights named by a key such as `teacher`, not by `init`.

    Weights are read only if the words name them or the recipe file does not describe their network.
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
    known: Values,
    options: list[str],
    values: Values,
    name: str | None,
    file: recipe_files.FileValues,
) -> tuple[str | None, Values]:
    """Return the name of the images if the words choose the images, and the values with the chosen
    images.

    The images are those of a preset that is named, of a place that no preset describes, or of the
    run that made the initial weights.
    """
    place = values.get("data.path") or values.get("data.hub")
    source = InitSource((known | values).get("init", SCRATCH))
    if name is not None:
        known = without_images(known) | recipe_files.preset("data", name)
    elif place and known.get("data.name", EMBEDDED) == EMBEDDED:
        has_other_images = other_images(values, known)
        name = has_other_images["data.name"]
        known = without_images(known) | has_other_images
    elif not names_images(options) and (images := source.images()):
        known = with_images(known, images, file)
    if values.get("data.hub"):
        known["data.path"] = None
    return name, known


def warmup_notice(options: Iterable[str], recipe: Recipe) -> str | None:
    """Return a line about the warm-up of a shortened recipe, or None if there is nothing to say.

    The line says that the warm-up was cut along with the steps, or that it was kept and now takes
    more than a tenth of them.

    Args:
        options: Options that `resolve` made the recipe from.
        recipe: That recipe.
    """
    words_by_key = words.parse(options)
    known = recipe_files.file_values(recipe_files.find_recipe(words_by_key["recipe"]))
    before, steps, warmup = known.get("optim.warmup", 0), recipe.optim.steps, recipe.optim.warmup
    if "optim.warmup" in words_by_key or not recipe.trains:
        return None
    if before != warmup:
        text = f"{warmup:,} steps, a tenth of this run"
        return f"warm-up     {text}. The recipe has {before:,} steps for a longer run."
    if 10 * warmup <= steps or steps >= known.get("optim.steps", 0):
        return None
    text = f"{warmup:,} of {steps:,} steps, as in the recipe for {known['optim.steps']:,} steps"
    return f"warm-up     {text}. For a tenth of this run, use optim.warmup={steps // 10}."


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


def resolve_encoder(place: str, options: Mapping[str, str]) -> Recipe:
    """Return a recipe for loading an encoder without a task.

    The images are those that the options name, or else the embedded ones, which are never read.

    Args:
        place: Value of `init=`.
        options: {key: text}.

    Raises:
        UserError: As in `resolve`.
    """
    images = {} if names_images_directly(options) else {"data": EMBEDDED}
    others = {key: text for key, text in options.items() if key != "data.labels"}
    image_words = [f"{key}={text}" for key, text in {**images, **others}.items()]
    recipe = resolve(["recipe=evaluate", f"init={place}", *image_words], here=False)
    if labels := options.get("data.labels"):  # nothing is measured on labels here
        recipe.data.labels = schema.build(words.typed({"data.labels": labels})).data.labels
    return recipe


def recipe_file(options: Iterable[str], recipe: Recipe) -> dict[str, Any]:
    """Return what environment.json records about the recipe file that the options name.

    Args:
        options: Options that `resolve` made the recipe from.
        recipe: That recipe.

    Returns:
        `name`: the recipe's name; for a file outside recipes/, the file name without its folder.
            `differs`: {dotted key: the file's value} for the keys that have another value in the
            run, except the run's name and keys that describe the machine or the user.
    """
    name = words.parse(options)["recipe"]
    before = schema.build(recipe_files.file_values(recipe_files.find_recipe(name))).values()
    now, default = recipe.values(), schema.defaults()
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


def _choose_model(known: Values, name: str | None, start: Values) -> Values:
    """Return the values with the model named on the command line, or else with the model of the
    initial weights.
    """
    model = {key: value for key, value in start.items() if key.startswith("model.")}
    if name is not None:
        model = recipe_files.preset("model", name)
    return without_group(known, "model") | model if model else known


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
