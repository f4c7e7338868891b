"""How the words of a command line become a recipe. No torch here.

Order, each over the one before: the schema <- the recipe's presets (a row of models.yaml, of
datasets.yaml) <- the recipe's own values <- presets named on the command line, which replace all
that preset's fields <- every other option. A recipe may name another as its `base`, whose presets
and values stand in for those that it does not give itself.
"""

import copy
import difflib
import hashlib
import importlib.util
import math
import re
import sys
import typing
import unicodedata
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..errors import UserError, suggest
from ..formatting import INSTALLED, PACKAGE, ROOT
from . import uses
from .fields import type_name
from .init_source import InitSource
from .parsing import flatten, has_interpolation, load_yaml, parse_path, yaml_value
from .schema import EMBEDDED, OPTIONS, RENAMED, Recipe, computed_values
from .validate import check, check_place

EVALUATION = {"data.eval_mode", "data.eval_crop"}
TABLES = ("models", "datasets", "vtab")  # files under recipes/ that are none
# Unicode's categories of control characters, of bytes that are no UTF-8, of ends of lines
CONTROL = {"Cc", "Cs", "Zl", "Zp"}
RECIPES = (PACKAGE if INSTALLED else ROOT) / "recipes"


KEYS = {key: option.kind for key, option in OPTIONS.items()}  # dotted key -> type


def _check_key(key: str, where: str) -> None:
    if key in RENAMED:
        raise UserError(f"{where}{key} is called {RENAMED[key]} now")
    if key in ("data.name", "model.name") and not where:
        raise UserError(f"{key} follows from {key.split('.')[0]}=; say that")
    if key in KEYS:
        return
    group = key.split(".")[0] + "."
    siblings = [k for k in KEYS if k.startswith(group)]
    if key + "." == group and siblings:
        raise UserError(f"{where}{key} is a group of keys: {', '.join(siblings)}")
    near = difflib.get_close_matches(key, KEYS, n=1)
    choices = siblings or sorted(
        {k.split(".")[0] + ("." if "." in k else "") for k in KEYS} | {"recipe"}
    )
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(f"{where}unknown key {key}; {hint}choices: {', '.join(choices)}")


def _odd(value: Any) -> bool:
    """Whether a text has characters that a line, or UTF-8, has none of."""
    return isinstance(value, str) and not CONTROL.isdisjoint(map(unicodedata.category, set(value)))


def parse(words: Iterable[str]) -> dict[str, str]:
    """{key: text} of key=value words. The order never matters, so a key may be said once only."""
    given: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"{word}: words are key=value, as in recipe=mpp")
        if has_interpolation(text) or _odd(word):
            raise UserError(f"{key}={' '.join(text.split())}: cannot be taken as a value")
        if given.setdefault(key, text) != text:
            raise UserError(f"{key} is said twice: {given[key]} and {text}")
    return given


def _row(table: str, key: str, name: str) -> dict[str, Any]:
    """One row of models.yaml or datasets.yaml as {dotted key: value}, its name included."""
    rows = load_yaml(RECIPES / table)
    if name not in rows:
        raise UserError(f"{key}={name}: unknown; {suggest(name, rows)}")
    row = {f"{key}.{k}": v for k, v in rows[name].items()} | {f"{key}.name": name}
    for k in row:
        _check_key(k, f"{table}, {name}: ")
    return row


def find_recipe(word: str | None) -> Path:
    """A recipe's file, from its name under recipes/ or its path."""
    names = sorted(str(p.relative_to(RECIPES).with_suffix("")) for p in RECIPES.rglob("*.yaml"))
    names = [n for n in names if n not in TABLES and not n.startswith("study/")]
    if word is None:
        raise UserError(f"recipe= is missing; choices: {', '.join(names)}, or a file's path")
    if word in names:
        return RECIPES / f"{word}.yaml"
    if word.endswith((".yaml", ".yml")):
        if parse_path(word, "recipe").is_file():
            return Path(word)
        raise UserError(f"recipe={word}: no such file")
    if word.startswith("study/"):
        raise UserError(f"recipe={word}: a study is run by tools/study.py")
    raise UserError(f"recipe={word}: unknown; {suggest(word, names)}, or a file's path")


FLOAT = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?\.?(inf|nan)", re.IGNORECASE
)


def _typed(key: str, value: Any) -> Any:
    """A word's text, or a value of a file, as its key's type; 1e6 and 1e6's float are whole numbers
    where one is asked for.

    Raises:
        UserError: it is of another type, or a list with something of another type in it.
    """
    kind = KEYS[key]
    listed = typing.get_origin(kind) is list
    allowed = typing.get_args(kind) or (kind,)
    said = " ".join(str(value).split())
    try:
        if isinstance(value, str):
            value = _of_list(value) if listed else _of_text(value, allowed)
        if not listed:
            return _one(value, allowed)
        if isinstance(value, list):
            return [_one(part, allowed) for part in value]
    except ValueError:
        pass
    raise UserError(f"{key}={said}: expected {type_name(OPTIONS[key])}")


def _of_list(text: str) -> Any:
    """A list's text as YAML reads it; none is endless."""
    if not text.lstrip().startswith("["):
        raise ValueError(text)
    return yaml_value(text)


def _of_text(text: str, allowed: tuple[Any, ...]) -> Any:
    """A word's text as the first of the types that reads it."""
    if text.lower() in ("null", "none") and type(None) in allowed:
        return None
    if bool in allowed and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if int in allowed and re.fullmatch(r"[+-]?[0-9]{1,40}", text):
        return int(text)  # 010 is ten
    if (int in allowed or float in allowed) and FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _one(value: Any, allowed: tuple[Any, ...]) -> Any:
    """A value as one of the types.

    Raises:
        ValueError: it is of none of them.
    """
    if int in allowed and isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is int and int not in allowed and float in allowed:
        return float(value) if abs(value) < 2**1000 else math.inf
    if type(value) in (int, float) and str in allowed and float not in allowed:
        return str(value)  # of a file, which has no quotes around it
    if type(value) not in allowed:
        raise ValueError(value)
    return value


def _build(values: dict[str, Any]) -> Recipe:
    """The typed recipe from {dotted key: value}."""
    config = OmegaConf.structured(Recipe)
    for key, value in values.items():
        if has_interpolation(value) or _odd(value):
            raise UserError(f"{key}={' '.join(str(value).split())}: cannot be taken as a value")
        try:
            OmegaConf.update(config, key, _typed(key, value))
        except OmegaConfBaseException:
            raise UserError(f"{key}={value}: expected {type_name(OPTIONS[key])}") from None
    try:
        return typing.cast(Recipe, OmegaConf.to_object(config))
    except OmegaConfBaseException as error:
        raise UserError(f"the recipe cannot be read: {' '.join(str(error).split())}") from None


def _preset(values: dict[str, Any], key: str, row: dict[str, Any]) -> dict[str, Any]:
    """`values` with every field of the preset `key` replaced by the row's."""
    return {k: v for k, v in values.items() if not k.startswith(key + ".")} | row


def _with_base(path: Path, derived: tuple[Path, ...] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of a recipe file's presets, and its own, as though the lines of its `base: NAME`
    stood in it unless it has others for them. A base's name is not inherited.

    Raises:
        UserError: the bases form a circle.
    """
    raw = load_yaml(path)
    base = raw.pop("base", None)
    rows, own = _read_values(raw, path)
    if base is None:
        return rows, own
    below = find_recipe(str(base))
    if below.resolve() in (path.resolve(), *derived):
        raise UserError(f"{path}: base={base}: bases form a circle")
    base_rows, base_own = _with_base(below, (path.resolve(), *derived))
    base_own.pop("name", None)
    for key in ("data", "model"):
        if f"{key}.name" in rows:
            base_rows = _preset(base_rows, key, {})
    return base_rows | rows, base_own | own


def file_values(path: Path) -> dict[str, Any]:
    """{dotted key: value} of a recipe file and its bases, unchecked."""
    rows, own = _with_base(path)
    return rows | own


def _read_values(raw: dict[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of the presets that a recipe file's mapping names, and its own."""
    rows: dict[str, Any] = {}
    for key, table in (("data", "datasets.yaml"), ("model", "models.yaml")):
        if isinstance(raw.get(key), str):
            rows |= _row(table, key, raw.pop(key))
    own = flatten(raw)
    for key in own:
        _check_key(key, f"{path}: ")
    return rows, own


def resolve(words: Iterable[str], here: bool = True) -> Recipe:
    """The recipe that the words of a command line mean, checked; `here`: its images are on this
    machine, which is checked too.

    Raises:
        UserError: an unknown word, preset or recipe, a value of the wrong type or out of bounds.
    """
    given, own = parse(words), {}
    places = {
        key
        for key in ("data.path", "data.hub")
        if given.get(key, "null") not in ("", "null", "none")
    }
    chosen = {key: given.pop(key, None) for key in ("recipe", "data", "model")}
    for key in given:
        _check_key(key, "")
    if len(places) == 2:
        raise UserError(
            f"data.path={given['data.path']} and data.hub={given['data.hub']}: say one of them"
        )
    path = find_recipe(chosen["recipe"])
    rows, said = _with_base(path)
    values = rows | said
    start = InitSource(given["init"]).described_values() if "init" in given else {}
    if chosen["model"] is not None:
        values = _preset(values, "model", _row("models.yaml", "model", chosen["model"]))
    elif any(key.startswith("model.") for key in start):
        values = _preset(
            values, "model", {k: v for k, v in start.items() if k.startswith("model.")}
        )
    if chosen["data"] is not None:
        values = _preset(values, "data", _row("datasets.yaml", "data", chosen["data"]))
    elif places and values.get("data.name", EMBEDDED) == EMBEDDED:
        values = _preset(values, "data", own := _own_images(given, values))
    if "data.hub" in places:
        values["data.path"] = None
    objective = given.get("objective", values.get("objective"))
    told = given.keys() | (said.keys() if chosen["data"] is None else set())
    values |= _treatment(start, told, frozen=objective == "probe")
    _check_named(given, values.get("plugin"), path)
    _plug(given.get("plugin"))
    before, recipe = _build(values), _build(values | given)
    uses.check(recipe, given)
    _check_normalisation(recipe, start)
    if "name" not in given:
        origin = f"init={Path(given['init'].split(':')[-1]).name}" if "init" in given else None
        parts = [
            before.name or path.stem,
            chosen["data"] or own.get("data.name"),
            chosen["model"],
            origin,
        ]
        before.init = recipe.init
        recipe.name = _default_name(
            [part for part in parts if part], computed_values(before), computed_values(recipe)
        )
    check(recipe)
    if here:
        check_place(recipe.data)
    # absolute, so that the run resumes from any folder
    if recipe.data.path:
        recipe.data.path = str(Path(recipe.data.path).resolve())
    if recipe.plugin:
        recipe.plugin = str(Path(recipe.plugin).resolve())
    if recipe.init_source.is_local:
        recipe.init = str(Path(recipe.init).resolve())
    return recipe


def without_private(recipe: Recipe) -> Recipe:
    """The recipe without what is one machine's or one person's own: neither told to others nor
    taken from them."""
    shown = copy.deepcopy(recipe)
    for key, option in OPTIONS.items():
        if option.private:
            *group, name = key.split(".")
            setattr(getattr(shown, group[0]) if group else shown, name, option.default)
    shown.init = shown.init_source.public_name
    return shown


def read(path: Path) -> Recipe:
    """The recipe of a file as it stands there, typed but not checked; no plugin runs.

    Raises:
        UserError: it is no recipe.
    """
    rows, said = _read_values(load_yaml(path), path)
    return _build(rows | said)


def from_untrusted(path: Path, out: str, name: str | None) -> Recipe:
    """The public part of a recipe that others wrote, checked, but for its images, which may be
    elsewhere.

    Raises:
        UserError: as `resolve`.
    """
    recipe = without_private(read(path))
    recipe.out, recipe.name = out, name or recipe.name.replace("/", "_")
    check(recipe)
    return recipe


def _check_named(given: dict[str, str], plugin: str | None, path: Path) -> None:
    """That the command line names the plugin that a recipe file asks for: files are handed on, and
    a plugin is code.

    Raises:
        UserError: it does not.
    """
    if plugin and "plugin" not in given:
        text = f"{path} asks for it, and a plugin runs only where the command line names it"
        raise UserError(f"plugin={plugin}: {text}; add plugin={plugin} if you trust that file")


def _plug(named: str | None) -> None:
    """Run a plugin's file, once: it adds its names to recipe.OBJECTIVES or recipe.TARGETS, and what
    builds them."""
    if not named or named in ("null", "none"):
        return
    path = parse_path(named, "plugin").resolve()
    name = f"ssl_vit_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"plugin={named}: no such Python file")
    if name not in sys.modules:
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # whatever is wrong in somebody's file
            raise UserError(f"plugin={named}: {' '.join(repr(error).split())}") from None
        sys.modules[name] = module


def _treatment(start: dict[str, Any], told: Collection[str], frozen: bool) -> dict[str, Any]:
    """The preprocessing that comes along with first weights: the normalisation always; the
    evaluation's resizing and cropping for a frozen encoder only, unless the options or the recipe
    file give it. Trained arms are evaluated as their recipe says, all alike."""
    data = {key: value for key, value in start.items() if key.startswith("data.")}
    if frozen and not EVALUATION & set(told):
        return data
    return {key: value for key, value in data.items() if key not in EVALUATION}


def _check_normalisation(recipe: Recipe, start: dict[str, Any]) -> None:
    """That images are normalised as the first weights expect."""
    for key in ("mean", "std"):
        was, now = start.get(f"data.{key}"), list(getattr(recipe.data, key))
        if was is not None and list(was) != now:
            raise UserError(
                f"data.{key}={now}: init={recipe.init} was made with {list(was)}; leave it out"
            )


def _own_images(given: dict[str, str], values: dict[str, Any]) -> dict[str, Any]:
    """The data of someone's own images (data.path= or data.hub= without data=): a name, and the
    recipe's way of cutting."""
    there = parse_path(given.get("data.path") or ".", "data.path")
    name = (
        (there.resolve().stem if there.is_file() else there.resolve().name)
        if "data.path" in given
        else given["data.hub"]
    )
    kept = {
        f"data.{key}"
        for key in ("size", "crop_area", "flip", "eval_mode", "eval_crop", "mean", "std")
    }
    return {k: v for k, v in values.items() if k in kept} | {"data.name": name.replace("/", "--")}


def _default_name(parts: list[str], was: dict[str, Any], now: dict[str, Any]) -> str:
    """The recipe's name, the presets' and the words that change what is computed, in an order of
    their own."""
    parts += [
        f"{key}={_word(now[key])}"
        for key in sorted(now)
        if now[key] != was[key] and key != "data.hub"
    ]
    name = "-".join(parts).replace("/", "_").strip()
    if len(name) <= 120 < len(name.encode(errors="replace")) - 120:  # of letters of several bytes
        return f"{name[:50]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return (
        name
        if len(name) <= 120
        else f"{name[:110]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    )


def _word(value: Any) -> str:
    return (
        str(value).replace(" ", "").lower()
        if isinstance(value, bool | list) or value is None
        else str(value)
    )


def suggest_model(recipe: Recipe) -> str:
    """For images of too few patches: the model nearest in width that cuts them into 16 or more."""
    size, width = recipe.data.size, recipe.model.width
    rows = {name: row for name, row in load_yaml(RECIPES / "models.yaml").items() if "patch" in row}
    fits = {n: r for n, r in rows.items() if size % r["patch"] == 0 and size >= 4 * r["patch"]}
    if not fits:
        return f"try model.patch={next((p for p in range(size // 4, 0, -1) if size % p == 0), 1)}"
    return "try model=" + min(
        fits, key=lambda name: (abs(fits[name]["width"] - width), -fits[name]["patch"])
    )
