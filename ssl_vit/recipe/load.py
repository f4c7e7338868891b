"""From the words of a command line to a checked recipe. No torch here.

Layers, later ones win: the defaults, the presets that the recipe file names (rows of models.yaml
and datasets.yaml), the file's own values, presets named on the command line (which replace the
whole group, but for how training mixes images), all other words in any order. They are merged as
{dotted key: value} and validated once. What initial weights bring (their model, normalisation and,
of a run, its images) stands over the file and below the words.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
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
    gives_images,
    names_images,
    other_images,
    preprocessing_from_init,
    with_images,
    without_images,
)

POOL = "supervised.pool"  # the feature of an image that fine-tuning learns from


def resolve(options: Iterable[str], here: bool = True) -> Recipe:
    """The checked recipe that the words of a command line mean.

    Args:
        options: key=value.
        here: check that its images are on this machine.

    Raises:
        UserError: an unknown key, preset or recipe, a value of the wrong type or out of bounds.
    """
    options = list(options)
    texts = words.parse(options)
    run_plugin(texts.get("plugin"))  # whose keys are known from here on
    named = {key: texts.pop(key, None) for key in words.NAMED}
    given = words.typed(texts)
    if given.get("data.path") and given.get("data.hub"):
        both = f"data.path={given['data.path']} and data.hub={given['data.hub']}"
        raise UserError(f"{both}: expected one of them")
    path = recipe_files.find_recipe(named["recipe"])
    file = recipe_files.load(path)
    start: Values = {}
    if "init" in given:
        asks = named["model"] is None and "model.timm" not in given
        start = _described(InitSource(given["init"]), asks)
    known = _with_model(file.presets | file.own, named["model"], start)
    data_name, known = _with_data(known, options, given, named["data"], file)
    fitted = fitting_channels(start, known, given)
    known |= preprocessing_from_init(fitted, file, given, named["data"])
    check_plugin(given, known.get("plugin"), path)
    declaration.objective(str((known | given).get("objective", DEFAULT_OBJECTIVE)))
    declaration.target(str((known | given).get("target", DEFAULT_TARGET)))
    where = "" if start else f"{path}: "  # with init=, a wrong value need not be the file's
    recipe = schema.build(known | given, where, typed=texts)
    if recipe.fine_tunes and POOL not in known and not recipe.model.convolutional:
        known |= {POOL: recipe.init_source.pooling()}  # which the weights were trained to give
        recipe = schema.build(known | given, typed=texts)
    if networks := _networks(recipe, given):
        recipe = schema.build(known | given | networks, typed=texts)
    check_used(recipe, texts)
    if "optim.warmup" not in given and recipe.optim.warmup >= recipe.optim.steps:
        recipe.optim.warmup = recipe.optim.steps // 10  # people shorten recipes
    _check_normalisation(recipe, start)
    if "name" not in given:
        sources = recipe.sources()
        before = schema.build(known)
        parts = [before.name or path.stem, data_name, named["model"]]
        parts += [f"{one.kind}={one.short_name}" for key, one in sources.items() if key in given]
        recipe.name = default_name([part for part in parts if part], before, recipe)
    check(recipe)
    if here:
        check_place(recipe.data)
    _make_paths_absolute(recipe)
    return recipe


def _networks(recipe: Recipe, given: Values) -> Values:
    """{dotted key: network} of what weights are of that keys beside `init` name: of those that the
    words name, and where the recipe's file does not have it. Others may be gone by now.

    Raises:
        UserError: as `InitSource.network_values`.
    """
    found: Values = {}
    for key, source in recipe.sources().items():
        beside = source.network_key
        if beside and (key in given or recipe.value(beside) is None):
            pixels = {f"data.{name}": getattr(recipe.data, name) for name in ("mean", "std")}
            found[beside] = pixels | source.network_values()
    return found


def _with_data(
    known: Values,
    options: list[str],
    given: Values,
    name: str | None,
    file: recipe_files.FileValues,
) -> tuple[str | None, Values]:
    """The name of the images where the words choose them, and the values with those images: of the
    preset that is named, of a place that no preset describes, or of the run that made the initial
    weights."""
    place = given.get("data.path") or given.get("data.hub")
    source = InitSource((known | given).get("init", SCRATCH))
    if name is not None:
        known = without_images(known) | recipe_files.preset("data", name)
    elif place and known.get("data.name", EMBEDDED) == EMBEDDED:
        other = other_images(given, known)
        name = other["data.name"]
        known = without_images(known) | other
    elif not names_images(options) and (images := source.images()):
        known = with_images(known, images, file)
    if given.get("data.hub"):
        known["data.path"] = None
    return name, known


def warmup_notice(options: Iterable[str], recipe: Recipe) -> str | None:
    """A line that says that the warm-up was cut with the steps, or that it was not and takes more
    than a tenth of them now; else None.

    Args:
        options: those that `resolve` made the recipe of.
        recipe: that recipe.
    """
    given = words.parse(options)
    known = recipe_files.file_values(recipe_files.find_recipe(given["recipe"]))
    before, steps, warmup = known.get("optim.warmup", 0), recipe.optim.steps, recipe.optim.warmup
    if "optim.warmup" in given or not recipe.trains:
        return None
    if before != warmup:
        return f"warm-up     {warmup:,} steps, a tenth; the recipe has {before:,} for more"
    if 10 * warmup <= steps or steps >= known.get("optim.steps", 0):
        return None
    text = f"{warmup:,} steps of {steps:,}, as the recipe has for {known['optim.steps']:,}"
    return f"warm-up     {text}; a tenth is optim.warmup={steps // 10}"


def _described(source: InitSource, model: bool) -> Values:
    """What the folder of initial weights says of them; as `InitSource.described_values`.

    Raises:
        UserError: besides, its recipe.yaml has a key of the model that is none.
    """
    found = source.described_values(model)
    for key in found.keys() - schema.all_keys().keys():
        near = suggest(key, [name for name in schema.all_keys() if name.startswith("model.")])
        raise UserError(f"init={source.place}: its recipe.yaml has {key}, which is no key; {near}")
    return found


def resolve_encoder(place: str, options: Mapping[str, str]) -> Recipe:
    """The recipe of an encoder without a task: its images are those that the options name, else
    the embedded ones, which nobody reads.

    Args:
        place: as `init=`.
        options: {key: text}.

    Raises:
        UserError: as `resolve`.
    """
    images = {} if gives_images(options) else {"data": EMBEDDED}
    others = {key: text for key, text in options.items() if key != "data.labels"}
    given = [f"{key}={text}" for key, text in {**images, **others}.items()]
    recipe = resolve(["recipe=evaluate", f"init={place}", *given], here=False)
    if labels := options.get("data.labels"):  # which nothing is measured on here
        recipe.data.labels = schema.build(words.typed({"data.labels": labels})).data.labels
    return recipe


def recipe_file(options: Iterable[str], recipe: Recipe) -> dict[str, Any]:
    """What environment.json records about the recipe file that a run's options name.

    Args:
        options: those that `resolve` made the recipe of.
        recipe: that recipe.

    Returns:
        `name`, without the folder of a file that is not one of recipes/; and `differs`: {dotted
        key: the file's value} of the keys that the run has another value of, but for its name and
        what belongs to one machine or one person.
    """
    name = words.parse(options)["recipe"]
    before = schema.build(recipe_files.file_values(recipe_files.find_recipe(name))).values()
    now, default = recipe.values(), schema.defaults()
    listed = [key for key in {**before, **now} if key != "name" and not schema.is_private(key)]
    there = {key: before.get(key, default.get(key)) for key in listed}
    differs = {
        key: value for key, value in there.items() if value != now.get(key, default.get(key))
    }
    return {
        "name": Path(name).name if name.endswith((".yaml", ".yml")) else name,
        "differs": differs,
    }


def from_untrusted(path: Path, out: str, name: str | None) -> Recipe:
    """The public part of a recipe file that others wrote, checked except for its images, which may
    not be here.

    Raises:
        UserError: as `resolve`.
    """
    recipe = schema.without_private(recipe_files.read(path))
    values = recipe.values() | {"out": out, "name": name or recipe.name.replace("/", "_")}
    recipe = schema.build(values)
    check(recipe)
    return recipe


def _with_model(known: Values, name: str | None, start: Values) -> Values:
    """The values with the model named on the command line, else with that of the initial
    weights."""
    model = {key: value for key, value in start.items() if key.startswith("model.")}
    if name is not None:
        model = recipe_files.preset("model", name)
    return without_group(known, "model") | model if model else known


def _check_normalisation(recipe: Recipe, start: Values) -> None:
    """Check that images have the channels that the initial weights expect, or that these are
    adapted to them, and are normalised as they expect."""
    channels, made = start.get("data.channels", 3), f"init={recipe.init} was made with"
    if start and channels != recipe.data.channels:
        here = f"data.channels={recipe.data.channels}: {made} {channels}"
        if channels != 3:
            raise UserError(f"{here}; leave it out")
        if not recipe.model.adapt_channels:
            raise UserError(f"{here}; model.adapt_channels=true repeats its first layer")
        return
    for key in ("range", "mean", "std"):
        expected = start.get(f"data.{key}")
        found = getattr(recipe.data, key)
        if expected is not None and list(expected) != found:
            raise UserError(f"data.{key}={found}: {made} {list(expected)}; leave it out")
    # a frozen encoder knows bytes; one that is trained may learn another range
    given = recipe.data.range
    bytes_expected = start and start.get("data.range") is None
    if recipe.objective == "probe" and bytes_expected and given not in (None, [*BYTES]):
        raise UserError(f"data.range={given}: {made} {[*BYTES]}; leave it out")


def _make_paths_absolute(recipe: Recipe) -> None:
    """So that recipe.yaml repeats the run from any folder."""
    if recipe.data.path:
        recipe.data.path = str(Path(recipe.data.path).resolve())
    if recipe.plugin:
        recipe.plugin = str(Path(recipe.plugin).resolve())
    if recipe.trunk and recipe.trunk.folder.exists():  # that of a study may not be there yet
        recipe.resume = f"{recipe.trunk.folder.resolve()}@{recipe.trunk.step}"
    for key, source in recipe.sources().items():
        if source.is_local:
            recipe.set(key, str(Path(source.place).resolve()))
