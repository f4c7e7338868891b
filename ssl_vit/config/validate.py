"""Checks a recipe: each value against the schema, and the relations between keys. No torch here."""

import math
from collections.abc import Mapping
from typing import Any

from ..errors import UserError, suggest
from . import declaration
from .fields import is_path
from .images import EMBEDDED, Data
from .parsing import exists, parse_path
from .rules import RULES, UNUSED
from .schema import Recipe, options

OF_PLUGINS = ("objective", "target")  # keys whose choices a plugin can add to


def check(recipe: Recipe) -> None:
    """Check the bounds of each value, then the relations between values.

    Raises:
        UserError: the first that does not hold.
    """
    # the name last: a default one repeats the other values
    for key, value in sorted(recipe.values().items(), key=lambda item: item[0] == "name"):
        check_value(key, value)
    declared = recipe.declared
    of_objectives = (one.rules for one in (declared, *map(declaration.objective, declared.parts)))
    for rules in (RULES, *of_objectives):
        for rule in rules:
            rule.check(recipe)


def check_used(recipe: Recipe, given: Mapping[str, str]) -> None:
    """Check that the recipe uses every given option, {key: text}.

    Raises:
        UserError: the first that it would ignore.
    """
    for key, text in given.items():
        if reason := _why_unused(recipe, key):
            raise UserError(f"{key}={text}: {reason}")


def has_use(recipe: Recipe, key: str) -> bool:
    """Whether the recipe uses a dotted key."""
    return not _why_unused(recipe, key)


def _why_unused(recipe: Recipe, key: str) -> str:
    """Why the recipe has no use for a key; "" where it has one."""
    option = options()[key]
    reason = next((one.reason for one in UNUSED if one.of(recipe, option)), "")
    return reason if isinstance(reason, str) else reason(recipe, option)


def check_value(key: str, value: Any) -> None:
    """Raises UserError where a key's value is out of the bounds of its schema."""
    option = options()[key]
    if option.allows(value):
        return
    if option.check is is_path:
        parse_path(value, key)
    if isinstance(value, str) and option.choices is not None:
        others = "; plugin=FILE.py adds others" if key in OF_PLUGINS else ""
        raise UserError(f"{key}={value}: {suggest(value, option.choices)}{others}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key}={value}: expected a finite number")
    raise UserError(f"{key}={value}: expected {option.allowed}")


def check_place(data: Data) -> None:
    """Check that the data set has one place, and that it is there.

    Raises:
        UserError: it has none, or nothing is there.
    """
    if data.name == EMBEDDED and (data.path or data.hub):
        raise UserError(
            f"data={EMBEDDED} is generated, not read; leave it out beside data.path= or data.hub="
        )
    if data.path and not exists(data.path):
        raise UserError(f"data.path={data.path}: no such file or folder")
    if not data.path and not data.hub and data.name != EMBEDDED:
        raise UserError(
            f"data={data.name} lies nowhere yet; add data.path= with a local copy (parquet, tars or"
            " image folder)"
        )
