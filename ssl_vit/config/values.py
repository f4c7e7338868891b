"""Reads key=value options, and turns their text into values of the keys' types. No torch here."""

import difflib
import math
import operator
import re
import typing
import unicodedata
from collections.abc import Iterable
from typing import Any

from ..errors import UserError
from . import declaration, schema
from .fields import Option, Values, type_name
from .parsing import yaml_value
from .schema import Recipe

# Unicode's categories of control characters, surrogates (bytes that are no UTF-8) and line ends
CONTROL = {"Cc", "Cs", "Zl", "Zp"}
FLOAT = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?\.?(inf|nan)", re.IGNORECASE
)
NULLS = ("null", "none")
LARGEST_INT = 2**1000  # float() raises OverflowError from 2**1024 on


def parse(options: Iterable[str]) -> dict[str, str]:
    """{key: text} of key=value options. Their order never matters, so no key may have two values.

    Raises:
        UserError: an option is not key=value, a key has two values, or a text cannot be a value.
    """
    given: dict[str, str] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or not key:
            raise UserError(f"{option}: expected key=value, as in recipe=mpp")
        if _has_control(option):
            raise UserError(f"{key}={' '.join(text.split())}: cannot be taken as a value")
        if given.setdefault(key, text) != text:
            raise UserError(f"{key} is given twice: {given[key]} and {text}")
    return given


def check_keys(keys: Iterable[str]) -> None:
    """As `check_key`, of each key; what is wrong with several of them is one error.

    Raises:
        UserError: one is none of the recipe's.
    """
    found: list[str] = []
    listed: set[str] = set()  # choices, each once
    for key in keys:
        try:
            check_key(key)
        except UserError as error:
            text, _, choices = str(error).partition("choices: ")
            found.append(text.rstrip("; ") if choices in listed else str(error))
            listed.add(choices)
    if found:
        raise UserError("; ".join(found))


def check_key(key: str, where: str = "") -> None:
    """Check that a dotted key is one of the recipe's; `where` (a file) opens the error.

    Raises:
        UserError: it is not; it names the nearest key, or the choices.
    """
    if key in ("data.name", "model.name") and not where:
        preset = key.split(".")[0]
        raise UserError(f"{key}: expected {preset}=NAME, which sets it")
    keys = schema.options()
    if key in keys:
        return
    group = key.split(".")[0] + "."
    siblings = [known for known in keys if known.startswith(group)]
    if key + "." == group and siblings:
        raise UserError(f"{where}{key} is a group of keys: {', '.join(siblings)}")
    # lr for optim.lr; every for those of several groups
    near = [known for known in keys if known.rpartition(".")[2] == key]
    near = near or difflib.get_close_matches(key, keys, n=1)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    choices = siblings or sorted({*map(_top_level, keys), "recipe"})
    raise UserError(f"{where}unknown key {key}; {hint}choices: {', '.join(choices)}")


def _top_level(key: str) -> str:
    """A key outside of groups, or its group with a dot."""
    group, dot, _ = key.partition(".")
    return group + dot


def _has_control(value: Any) -> bool:
    """Whether a text has characters that would break a line of a file or a terminal, or that UTF-8
    cannot encode."""
    if not isinstance(value, str):
        return False
    categories = {unicodedata.category(character) for character in set(value)}
    return not CONTROL.isdisjoint(categories)


def is_null(text: str | None) -> bool:
    """Whether what a command line gives for a key, if it does, is nothing."""
    return text is None or text.lower() in ("", *NULLS)


def typed(key: str, value: Any) -> Any:
    """As `convert`, of a key of the recipe."""
    return convert(schema.options()[key], value)


def convert(option: Option, value: Any) -> Any:
    """An option's text, or a value of a file, as the option's type. 1e6, and the float 1e6, are
    whole numbers where the type is one.

    Raises:
        UserError: it is of another type, or a list with an element of another type.
    """
    kind, is_list = option.kind, option.is_list
    text = " ".join(str(value).split())
    if is_list and option.is_optional:
        if value is None or text.lower() in NULLS:
            return None
        kind = next(one for one in typing.get_args(kind) if one is not type(None))
    allowed = typing.get_args(kind) or (kind,)
    try:
        if isinstance(value, str):
            value = _parse_list(value) if is_list else _parse_text(value, allowed)
        if not is_list:
            return _convert(value, allowed)
        if isinstance(value, list):
            return [_convert(element, allowed) for element in value]
    except ValueError:
        pass
    raise UserError(f"{option.key}={text}: expected {type_name(option)}")


def _parse_list(text: str) -> Any:
    """A list's text as YAML reads it.

    Raises:
        ValueError: it is no list.
    """
    if not text.lstrip().startswith("["):
        raise ValueError(text)
    return yaml_value(text)


def _parse_text(text: str, allowed: tuple[Any, ...]) -> Any:
    """An option's text as the first type that can read it; else the text. Not by YAML, which reads
    010 as eight and `no` as false."""
    if text.lower() in NULLS and type(None) in allowed:
        return None
    if bool in allowed and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if int in allowed and re.fullmatch(r"[+-]?[0-9]{1,40}", text):
        return int(text)
    if (int in allowed or float in allowed) and FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def scalar(text: str) -> Any:
    """An option's text as the value of a key whose type is not known."""
    return _parse_text(text, (bool, int, float, str, type(None)))


def _convert(value: Any, allowed: tuple[Any, ...]) -> Any:
    """A value as one of the types.

    Raises:
        ValueError: it is of none of them.
    """
    if int in allowed and isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is int and int not in allowed and float in allowed:
        return float(value) if abs(value) < LARGEST_INT else math.inf
    if type(value) in (int, float) and str in allowed and float not in allowed:
        return str(value)  # a name such as 2024, unquoted in a YAML file
    if type(value) not in allowed:
        raise ValueError(value)
    return value


def build(values: Values) -> Recipe:
    """The typed recipe from {dotted key: text or value}; keys that are absent have their default,
    and those of groups that its objective does not use are checked and left out. Of an objective
    that is not known here, as without its plugin, all groups are taken, and unknown keys as they
    are.

    Raises:
        UserError: a value of another type.
    """
    recipe = Recipe(objective=str(values.get("objective", Recipe.objective)))
    foreign = recipe.objective not in declaration.objectives()
    known = {one.name: one for one in schema.all_groups()}
    for key, value in values.items():
        if _has_control(value):
            raise UserError(f"{key}={' '.join(str(value).split())}: cannot be taken as a value")
        group, _, name = key.rpartition(".")
        if foreign and key not in schema.options():
            recipe.groups.setdefault(group, {})[name] = value
            continue
        value = typed(key, value)
        if foreign and group in known and group not in recipe.groups:
            recipe.groups[group] = known[group].kind()
        if group in recipe.groups or group not in known:
            setattr(operator.attrgetter(group)(recipe) if group else recipe, name, value)
    return recipe
