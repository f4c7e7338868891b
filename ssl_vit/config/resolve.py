"""From the options of a command line to a checked recipe. No torch here.

Layers, later ones win: the schema's defaults, the presets that the recipe file names (rows of
models.yaml and datasets.yaml), the file's own values, presets named on the command line (which
replace the whole group, but for how training mixes images), all other options in any order.
"""

import copy
import hashlib
import importlib.util
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
from . import declaration, recipe_files, schema, values
from .computed import computed_values, keys
from .fields import Values
from .images import BYTES, EMBEDDED, OF_PIXELS, Data
from .init_source import SCRATCH, InitSource
from .parsing import parse_path
from .recipe_files import FileValues, without_group
from .schema import Recipe
from .validate import check, check_place, check_used

NULL = ("", "null", "none")  # texts of a null
LONGEST_DEFAULT_NAME = 120  # characters, or bytes more than characters
PLACES = ("data", "data.path", "data.hub")  # options that name images
OTHERS = "give data=, data.path= or data.hub="


def resolve(options: Iterable[str], here: bool = True) -> Recipe:
    """The checked recipe that the options of a command line mean.

    Args:
        options: key=value.
        here: check that its images are on this machine.

    Raises:
        UserError: an unknown key, preset or recipe, a value of the wrong type or out of bounds.
    """
    options = list(options)
    given = values.parse(options)
    run_plugin(given.get("plugin"))  # whose keys are known from here on
    named = {key: given.pop(key, None) for key in ("recipe", "data", "model")}
    for key in given:
        values.check_key(key)
    places = {key for key in ("data.path", "data.hub") if given.get(key, "null") not in NULL}
    if len(places) == 2:
        both = f"data.path={given['data.path']} and data.hub={given['data.hub']}"
        raise UserError(f"{both}: expected one of them")
    path = recipe_files.find_recipe(named["recipe"])
    file = recipe_files.load(path)
    start = _described(InitSource(given["init"])) if "init" in given else {}
    known = _with_model(file.presets | file.own, named["model"], start)
    source = InitSource((known | given).get("init", SCRATCH))
    follows = not names_images(options)
    data_name = named["data"]
    if data_name is not None:
        known = _without_images(known) | recipe_files.preset("data", data_name)
    elif places and known.get("data.name", EMBEDDED) == EMBEDDED:
        other = _other_images(given, known)
        data_name = other["data.name"]
        known = _without_images(known) | other
    elif follows and (images := source.images()):
        known = _with_images(known, images, file)
    if "data.hub" in places:
        known["data.path"] = None
    known |= _preprocessing(_fitting(start, known, given), file, given, named["data"])
    _check_plugin_is_given(given, known.get("plugin"), path)
    before = values.build(known)
    recipe = values.build(known | given)
    check_used(recipe, given)
    _check_normalisation(recipe, start)
    if "name" not in given:
        before.init = recipe.init
        weights = f"init={Path(given['init'].split(':')[-1]).name}" if "init" in given else None
        parts = [before.name or path.stem, data_name, named["model"], weights]
        recipe.name = _default_name([part for part in parts if part], before, recipe)
    check(recipe)
    if here:
        check_place(recipe.data)
    _make_paths_absolute(recipe)
    return recipe


def _described(source: InitSource) -> Values:
    """What the folder of first weights says of them; as `InitSource.described_values`.

    Raises:
        UserError: besides, its recipe.yaml has a key of the model that is none.
    """
    found = source.described_values()
    for key in found.keys() - schema.options().keys():
        near = suggest(key, [name for name in schema.options() if name.startswith("model.")])
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
        recipe.data.labels = values.typed("data.labels", labels)
    return recipe


def of_images() -> list[str]:
    """Of the keys of a run's data those that say which images they are and how they are read; the
    others say how images are cropped, mixed and normalised, which each recipe does for itself."""
    return keys(
        lambda option: (
            option.key.startswith("data.")
            and not option.training
            and (option.reading or not option.preprocessing)
        )
    )


def names_images(options: Iterable[str]) -> bool:
    """Whether options, or the recipe file among them, choose their images. Without, what starts
    from a run uses that run's images."""
    given = values.parse(options)
    path = recipe_files.find_recipe(given.get("recipe"))
    return gives_images(given) or recipe_files.names_images(path)


def gives_images(given: Mapping[str, str]) -> bool:
    """Whether options ({key: text}) name images."""
    return any(given.get(key, "null") not in NULL for key in PLACES)


def image_notice(options: Iterable[str], recipe: Recipe) -> str | None:
    """`images_taken` of a recipe; None where its options name the images.

    Args:
        options: those that `resolve` made the recipe of.
        recipe: that recipe.
    """
    return None if names_images(options) else images_taken(recipe.init_source, recipe.data)


def images_taken(source: InitSource, data: Data) -> str | None:
    """A line that says which images are used where none are named: those of the run that made the
    first weights or, of weights that do not say theirs, others. None for fresh weights."""
    if source.is_scratch:
        return None
    if not source.images():
        text = "which images it was trained on is not known here"
        return (
            f"warning: init={source.place}: {text}; data={data.name} is used; for others {OTHERS}"
        )
    place = data.path or data.hub or f"data={data.name}"
    share = "" if data.share == 1 else f", data.share={data.share:g}"
    return f"images      those of init={source.place}: {place}{share}; for others {OTHERS}"


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
    name = values.parse(options)["recipe"]
    file = recipe_files.load(recipe_files.find_recipe(name))
    before = values.build(file.presets | file.own).values()
    now = recipe.values()
    unlisted = {"name", *(key for key, option in schema.options().items() if option.private)}
    default = schema.defaults()
    keys_of_both = [key for key in {**before, **now} if key not in unlisted]
    files = {key: before.get(key, default.get(key)) for key in keys_of_both}
    differs = {
        key: value for key, value in files.items() if value != now.get(key, default.get(key))
    }
    return {
        "name": Path(name).name if name.endswith((".yaml", ".yml")) else name,
        "differs": differs,
    }


def _with_model(known: Values, name: str | None, start: Values) -> Values:
    """The values with the model named on the command line, else with that of the first weights."""
    model = {key: value for key, value in start.items() if key.startswith("model.")}
    if name is not None:
        model = recipe_files.preset("model", name)
    return without_group(known, "model") | model if model else known


def _without_images(known: Values) -> Values:
    """The values without those of the recipe's images. What training does with any images
    (data.mixup, data.cutmix, data.labelled) stays."""
    kept = keys(lambda option: option.training and option.key.startswith("data."))
    return without_group(known, "data") | {key: known[key] for key in kept if key in known}


def _other_images(given: dict[str, str], known: Values) -> Values:
    """The data of images that no preset describes: a name from their place, and the recipe's
    preprocessing."""
    name = given.get("data.hub", "")
    if "data.path" in given:
        place = parse_path(given["data.path"] or ".", "data.path").resolve()
        name = place.stem if place.is_file() else place.name
    return _preprocessing_of(known) | {"data.name": name.replace("/", "--")}


def _preprocessing_of(known: Values) -> Values:
    """Of the recipe's data, what also holds for other images (data.path= or data.hub= without
    data=)."""
    return {key: known[key] for key in keys(lambda option: option.preprocessing) if key in known}


def _with_images(known: Values, images: Values, file: FileValues) -> Values:
    """The values with a run's images. What is not of the images is as if they had been named: of
    their preset or, where there is none, the recipe's; what the recipe file itself gives stays."""
    name = str(images.get("data.name"))
    rest = _preprocessing_of(known)
    if recipe_files.has_preset("data", name):
        rest = recipe_files.preset("data", name)
    of_run = {key: images[key] for key in of_images() if key in images}
    of_file = {key: value for key, value in file.own.items() if key.startswith("data.")}
    return _without_images(known) | rest | of_run | of_file


def _preprocessing(
    start: Values, file: FileValues, given: dict[str, str], data: str | None
) -> Values:
    """The preprocessing that first weights bring along: the normalisation always; for a frozen
    encoder also the evaluation's resizing and cropping, unless the options or the recipe file give
    it. Arms that are trained are evaluated as their recipe says, all alike."""
    brought = {key: value for key, value in start.items() if key.startswith("data.")}
    objective = given.get("objective", (file.presets | file.own).get("objective"))
    explicit: Collection[str] = given.keys()
    if data is None:  # else the preset replaces the file's values
        explicit = explicit | file.own.keys()
    evaluation = set(keys(lambda option: option.brought == "evaluation"))
    if objective == "probe" and evaluation.isdisjoint(explicit):
        return brought
    return {key: value for key, value in brought.items() if key not in evaluation}


def _fitting(start: Values, known: Values, given: dict[str, str]) -> Values:
    """What first weights say of their images, without what is of other channels than the images
    have."""
    there = start.get("data.channels", 3)
    wanted = known.get("data.channels", there)
    if "data.channels" in given:
        wanted = values.typed("data.channels", given["data.channels"])
    if not start or wanted == there:
        return start
    of_pixels = {f"data.{key}" for key in OF_PIXELS}
    return {key: value for key, value in start.items() if key not in of_pixels}


def _check_plugin_is_given(given: dict[str, str], plugin: str | None, path: Path) -> None:
    """Check that the command line names the plugin that a recipe file names: recipe files are
    passed on, and a plugin is code.

    Raises:
        UserError: it does not.
    """
    if plugin and "plugin" not in given:
        text = f"{path} names it; plugins run only if the command line names them"
        raise UserError(f"plugin={plugin}: {text}; add plugin={plugin} if you trust that file")


def run_plugin(plugin: str | None) -> None:
    """Run a plugin's file, once per process: it declares objectives or targets.

    Raises:
        UserError: there is no such file, or it fails.
    """
    if plugin is None or plugin in NULL:
        return
    path = parse_path(plugin, "plugin").resolve()
    name = f"ssl_vit_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"plugin={plugin}: no such Python file")
    if name in sys.modules:
        return
    module = importlib.util.module_from_spec(spec)
    before = {*declaration.objectives(), *declaration.targets()}
    try:
        spec.loader.exec_module(module)
        schema.options()  # its keys are none of others
    except (Exception, SystemExit) as error:  # whatever is wrong in a user's file
        for declared in {*declaration.objectives(), *declaration.targets()} - before:
            declaration.withdraw(declared)
        text = str(error) if isinstance(error, UserError) else repr(error)
        raise UserError(f"plugin={plugin}: {' '.join(text.split())}") from None
    sys.modules[name] = module


def _check_normalisation(recipe: Recipe, start: Values) -> None:
    """Check that images have the channels that the first weights expect, or that these are adapted
    to them, and are normalised as they expect."""
    channels = start.get("data.channels", 3)
    if start and channels != recipe.data.channels:
        here = f"data.channels={recipe.data.channels}: init={recipe.init} was made with {channels}"
        if channels != 3:
            raise UserError(f"{here}; leave it out")
        if not recipe.model.adapt_channels:
            raise UserError(f"{here}; model.adapt_channels=true repeats its first layer")
        return
    for key in ("range", "mean", "std"):
        expected = start.get(f"data.{key}")
        found = getattr(recipe.data, key)
        if expected is not None and list(expected) != found:
            raise UserError(
                f"data.{key}={found}: init={recipe.init} was made with {list(expected)};"
                " leave it out"
            )
    # a frozen encoder knows bytes; one that is trained may learn another range
    given = recipe.data.range
    bytes_expected = start and start.get("data.range") is None
    if recipe.objective == "probe" and bytes_expected and given not in (None, [*BYTES]):
        raise UserError(
            f"data.range={given}: init={recipe.init} was made with {[*BYTES]}; leave it out"
        )


def _default_name(parts: list[str], before: Recipe, recipe: Recipe) -> str:
    """The name of a run: the recipe's, the presets', and each option that changes what is computed,
    sorted, since their order does not matter. Long ones end in a hash."""
    was = computed_values(before)
    now = computed_values(recipe)
    default = schema.defaults()
    changed = sorted(
        key for key in now if now[key] != was.get(key, default.get(key)) and key != "data.hub"
    )
    words = [*parts, *(f"{key}={_name_text(now[key])}" for key in changed)]
    name = "-".join(words).replace("/", "_").strip()
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    if len(name) > LONGEST_DEFAULT_NAME:
        return f"{name[:110]}-{digest}"
    # Characters of several bytes: file systems count bytes
    if len(name.encode(errors="replace")) - LONGEST_DEFAULT_NAME > LONGEST_DEFAULT_NAME:
        return f"{name[:50]}-{digest}"
    return name


def _name_text(value: Any) -> str:
    text = str(value)
    plain = not isinstance(value, bool | list) and value is not None
    return text if plain else text.replace(" ", "").lower()


def _make_paths_absolute(recipe: Recipe) -> None:
    """So that recipe.yaml repeats the run from any folder."""
    if recipe.data.path:
        recipe.data.path = str(Path(recipe.data.path).resolve())
    if recipe.plugin:
        recipe.plugin = str(Path(recipe.plugin).resolve())
    if recipe.init_source.is_local:
        recipe.init = str(Path(recipe.init).resolve())


def without_private(recipe: Recipe) -> Recipe:
    """The recipe without what belongs to one machine or one person: it is neither published nor
    taken from others."""
    public = copy.deepcopy(recipe)
    for key, option in schema.options().items():
        if option.private:
            *groups, name = key.split(".")
            owner = getattr(public, groups[0]) if groups else public
            setattr(owner, name, option.default)
    public.init = public.init_source.public_name
    return public


def from_untrusted(path: Path, out: str, name: str | None) -> Recipe:
    """The public part of a recipe file that others wrote, checked except for its images, which may
    not be here.

    Raises:
        UserError: as `resolve`.
    """
    recipe = without_private(recipe_files.read(path))
    recipe.out = out
    recipe.name = name or recipe.name.replace("/", "_")
    check(recipe)
    return recipe
