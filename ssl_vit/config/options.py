"""Lists the config keys, for --help and docs/options.md. No torch here."""

import dataclasses
import textwrap

from ..formatting import option_text
from .fields import FLAG, Option, type_name
from .schema import Recipe, all_groups, defaults, options

WIDTH = 100


def groups() -> dict[str, str]:
    """{name: help} of each group of keys; the keys outside of groups come first, as ''."""
    found = {"": "The run."}
    for field in dataclasses.fields(Recipe):
        if field.name == "groups":
            found |= {one.name: one.about for one in all_groups()}
        if "group" in field.metadata:
            found[field.name] = field.metadata["group"]
    return found


def members(group: str) -> list[Option]:
    """The keys of a group."""
    return [option for key, option in options().items() if key.rpartition(".")[0] == group]


def describe(option: Option) -> str:
    """Type and allowed values: `a whole number: above 0 and at most 16,384`. That a tool's own
    option may be left out is not said: null is no value of it."""
    kind = type_name(option)
    if option.metavar:
        kind = kind.removesuffix(" or null")
    if option.expected:
        return option.expected + (" or null" if kind.endswith(" or null") else "")
    if option.choices is not None:
        return option.allowed
    if option.is_list:
        return option.allowed
    if option.has_bounds:
        return f"{kind}: {option.allowed.removeprefix('a number ')}"
    return kind


def help_text(recipe: Recipe | None = None) -> str:
    """Every key with its value in `recipe`, as far as its objective uses it (default: all keys with
    the schema's values), its allowed values and meaning."""
    values = recipe.values() if recipe else defaults()
    lines = []
    for group, about in groups().items():
        used = [option for option in members(group) if option.key in values]
        if used:
            lines += ["", f"{group or 'run'}: {about}"]
        for option in used:
            lines += option_lines(option, f"{option.key}={option_text(values[option.key])}")
    return "\n".join(lines[1:])


def option_lines(option: Option, heading: str) -> list[str]:
    """An option of --help: a heading with its allowed values, and its meaning."""
    if values := allowed(option):
        heading += f"   ({values})"
    return [*heading_lines(heading), *indented(option.help)]


def allowed(option: Option) -> str:
    """As `describe`; of a tool's option that has neither bounds nor choices its meaning says it."""
    if option.form == FLAG:
        return ""
    bounded = option.choices is not None or option.has_bounds or option.kind is bool
    return describe(option) if not option.metavar or (bounded and not option.expected) else ""


def heading_lines(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent=" " * 10)


def indented(text: str) -> list[str]:
    """What stands below a heading."""
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
