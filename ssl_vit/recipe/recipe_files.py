"""Read recipe files, with the base recipe and the presets that each file names. This module does
not import torch.
"""

import functools
import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError, suggest
from ..formatting import INSTALLED, PACKAGE, ROOT
from . import declaration, schema, words
from .images import EMBEDDED
from .keys import Values
from .parsing import flatten, load_yaml, parse_path
from .schema import Recipe

RECIPES = (PACKAGE if INSTALLED else ROOT) / "recipes"
STUDIES = "study"  # folder inside RECIPES with the studies
TABLES = RECIPES / "tables"  # folder with files that are not recipes
# Each row of this file is a recipe. The functions of this module take PAPER / NAME as the path of
# recipe=paper/NAME, although no such path exists.
PAPER = TABLES / "paper.yaml"
# {key: table}. The value of the key is the name of a row.
PRESET_TABLES = {"data": TABLES / "datasets.yaml", "model": TABLES / "models.yaml"}


class FileValues(NamedTuple):
    """Values of a recipe file as {dotted key: value}.

    Attributes:
        presets: Values of the presets that the file names (rows of PRESET_TABLES).
        own: Values in the file itself, which take precedence over the presets.
    """

    presets: Values
    own: Values


def recipe_names() -> list[str]:
    """Return the names of the package's recipes, as values of `recipe=`."""
    return [name for name in _names() if not name.startswith(f"{STUDIES}/")]


def study_names() -> list[str]:
    """Return the names of the package's studies, as values of `recipe=` of tools/study.py."""
    return [name for name in _names() if name.startswith(f"{STUDIES}/")]


# Cached, because a study needs the names hundreds of times. The package's files do not change.
@functools.cache
def _names() -> list[str]:
    """Return the names of the package's recipes and studies, such as mpp and paper/NAME."""
    names = (str(path.relative_to(RECIPES).with_suffix("")) for path in RECIPES.rglob("*.yaml"))
    file_names = [name for name in names if not name.startswith(f"{TABLES.name}/")]
    return sorted([*file_names, *(f"{PAPER.stem}/{row}" for row in load_yaml(PAPER))])


def first_recipes() -> list[str]:
    """Return the names of the recipes that work without any other option.

    These recipes use the generated images of the package (EMBEDDED).
    """
    return [
        name
        for name in recipe_names()
        if load(find_recipe(name)).presets.get("data.name") == EMBEDDED
    ]


def summary(name: str) -> str:
    """Return a short description of a recipe or a study, for lists.

    - For a recipe file: the first comment up to a colon or full stop.
    - For a recipe that is a row of recipes/tables/paper.yaml: the comment after the name, as in
      "supervised_b16_imagenet:  # ViT-B/16 on ImageNet, 300 epochs".
    - For a study: the title.
    """
    if name in study_names():
        return str(load_yaml(RECIPES / f"{name}.yaml")["title"])
    path = find_recipe(name)
    if path.parent == PAPER:  # a row of the file PAPER has the path PAPER / NAME
        text = PAPER.read_text(encoding="utf-8")
        match = re.search(rf"^{path.name}:.*?# (.*)", text, re.MULTILINE)
        return match[1] if match else ""
    comments = itertools.takewhile(lambda line: line.startswith("#"), path.open(encoding="utf-8"))
    text = " ".join(line.strip("# \n") for line in comments)
    return re.split(r"[.:](?:\s|$)", text, maxsplit=1)[0]


def find_recipe(name: str | None) -> Path:
    """Return the path of a recipe.

    For example, `mpp` gives recipes/mpp.yaml. The recipe paper/NAME is a row of the file PAPER and
    gives PAPER / NAME. No such file exists, but the functions of this module accept the path.

    Args:
        name: Name of a recipe of the package, or path of a recipe file.

    Raises:
        UserError: The name is None, or the recipe does not exist.
    """
    if name is None:
        first = ", ".join(first_recipes())
        raise UserError(
            f"recipe= is missing. Choose from: {first}. `ssl-vit --all` lists all recipes. You can"
            " also give the path of a .yaml file."
        )
    if name in recipe_names():
        folder, _, row = name.partition("/")
        return PAPER / row if folder == PAPER.stem else RECIPES / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")):
        if parse_path(name, "recipe").is_file():
            return Path(name)
        raise UserError(f"recipe={name}: no such file. Check the path.")
    if name.startswith(f"{STUDIES}/"):
        raise UserError(f"recipe={name}: this is a study. Type `ssl-vit study recipe={name}`.")
    choices = suggest(name, recipe_names())
    raise UserError(f"recipe={name}: no such recipe or .yaml file, {choices}")


def preset(key: str, name: str) -> Values:
    """Return {dotted key: value} of the preset data=NAME or model=NAME.

    For example, ("model", "vit_s16") gives {"model.width": 384, ..., "model.name": "vit_s16"}.

    Args:
        key: `data` or `model`.
        name: NAME, which is a row of the table.

    Raises:
        UserError: No preset has this name, or the row has an unknown key.
    """
    table = PRESET_TABLES[key]
    rows = load_yaml(table)
    if name not in rows:
        raise UserError(f"{key}={name}: unknown name, {suggest(name, rows)}")
    row = {f"{key}.{field}": value for field, value in rows[name].items()}
    row[f"{key}.name"] = name
    words.check_keys(row, f"{table.name}, {name}: ")
    return row


def has_preset(key: str, name: str) -> bool:
    """Return whether a preset data=NAME or model=NAME exists."""
    return name in load_yaml(PRESET_TABLES[key])


def without_group(known: Values, group: str) -> Values:
    """Return the values without the keys of one group."""
    return {key: value for key, value in known.items() if not key.startswith(f"{group}.")}


class _Link(NamedTuple):
    """Recipe file in a chain of bases.

    Attributes:
        path: Path of the file.
        base: Value of `base:` in the file, or None.
        values: Values of the file, without the values of the base.
    """

    path: Path
    base: Any
    values: FileValues


def _chain(path: Path) -> list[_Link]:
    """Return a recipe file, then its base, then the base of the base, and so on.

    A recipe file may name another recipe as its base (`base: mpp`), and change values of the base.

    Args:
        path: Path of the recipe from `find_recipe`.

    Raises:
        UserError: A file cannot be read, or a recipe is its own base, directly or indirectly.
    """
    links: list[_Link] = []
    while True:
        mapping = dict(load_yaml(PAPER)[path.name]) if path.parent == PAPER else load_yaml(path)
        base = mapping.pop("base", None)
        links.append(_Link(path, base, _of_mapping(mapping, path)))
        if base is None:
            return links
        base_path = find_base(base, path)
        if base_path.resolve() in [link.path.resolve() for link in links]:
            text = "the base is this file itself, or is in turn based on it. Use another base."
            raise UserError(f"{path}: base={base}: {text}")
        path = base_path


def load(path: Path) -> FileValues:
    """Return the values of a recipe file, including the values of its base.

    Values in the file replace values of the base (`base: NAME`). If the file names a preset, such
    as `model: vit_s16`, this preset replaces the whole model preset of the base. The run name
    (`name`) of the base is not taken over.

    Raises:
        UserError: A file cannot be read, or a recipe is its own base.
    """
    presets: Values = {}
    file_values: Values = {}
    for link in reversed(_chain(path)):
        file_values.pop("name", None)  # drops the `name` of the base
        for key in PRESET_TABLES:
            if f"{key}.name" in link.values.presets:
                presets = without_group(presets, key)
        presets |= link.values.presets
        file_values |= link.values.own
    return FileValues(presets, file_values)


def bases(path: Path) -> list[str]:
    """Return the names of a recipe file's base, of the base of the base, and so on."""
    return [str(link.base) for link in _chain(path) if link.base is not None]


def names_images(path: Path) -> bool:
    """Return whether a recipe file, or a base of the file, chooses images.

    In a recipe of this package, `data: shapes` (EMBEDDED, the generated images) is only a default
    and does not count as a choice. In a file of a user, `data: shapes` counts.
    """
    for link in _chain(path):
        values = link.values.presets | link.values.own
        image_values = {key: values.get(key) for key in ("data.path", "data.hub", "data.name")}
        if any(image_values.values()):  # images of the base do not matter then
            is_of_package = link.path.resolve().is_relative_to(RECIPES.resolve())
            return not is_of_package or image_values["data.name"] != EMBEDDED
    return False


def find_base(base: Any, path: Path) -> Path:
    """Return the path of a recipe file's base.

    Args:
        base: Value of `base:`, which is the name of a recipe, or a path relative to the folder of
            the recipe file.
        path: Path of the recipe file.

    Raises:
        UserError: The base does not exist.
    """
    if not isinstance(base, str):
        raise UserError(f"{path}: base={base}: expected the name of a recipe or the path of a file")
    if base.endswith((".yaml", ".yml")):
        file = path.parent / parse_path(base, f"{path}: base")
        if not file.is_file():
            raise UserError(f"{path}: base={base}: no such file in {path.parent}")
        return file
    try:
        return find_recipe(base)
    except UserError as error:
        raise UserError(f"{path}: base: {str(error).removeprefix('recipe=')}") from None


def _of_mapping(mapping: dict[str, Any], path: Path) -> FileValues:
    """Check the keys of a recipe file, and return the values without the values of the base.

    Args:
        mapping: Content of the file without `base:`. Presets are removed from it.
        path: Path of the file, for errors.

    Raises:
        UserError: A preset or key is unknown, or a key is given both nested and dotted.
    """
    presets: Values = {}
    for key in PRESET_TABLES:
        if isinstance(mapping.get(key), str):
            presets |= preset(key, mapping.pop(key))
    values = flatten(mapping)
    # An unknown objective or target belongs to a plugin that has not run. Keys that the plugin
    # declares are unknown too, so check only the keys and groups that every recipe has.
    known = {"objective": declaration.objectives(), "target": declaration.targets()}
    needs_plugin = any(values.get(key) not in (None, *names) for key, names in known.items())
    checked_keys = list(values)
    if needs_plugin:
        checked_keys = [key for key in values if key.split(".")[0] in Recipe.model_fields]
    words.check_keys(checked_keys, f"{path}: ")
    return FileValues(presets, values)


def file_values(path: Path) -> Values:
    """Return {dotted key: value} of a recipe file and its bases, without checking the values."""
    presets, values = load(path)
    return presets | values


def read(path: Path) -> Recipe:
    """Read a self-contained recipe file, without `base:`, such as the recipe.yaml of a run.

    Each value's type is checked. Relations between values are not checked, and no plugin runs.

    Raises:
        UserError: The file is not a recipe.
    """
    presets, values = _of_mapping(load_yaml(path), path)
    return schema.build(presets | values, f"{path}: ")
