"""Write what --help and docs/options.md say about options. This module does not import torch."""

import textwrap
from collections.abc import Iterable, Sequence

from ..errors import UserError, suggest
from ..formatting import option_text
from . import declaration, recipe_files, schema
from .given import from_words
from .keys import FLAG, WORD, Key, Keys, summary
from .load import Resolved, resolve
from .schema import Recipe, all_groups, all_keys
from .tool import LISTS_ALL_KEYS, TAKES_ALL_KEYS, ToolOptions, option_name

WIDTH = 100
EVERY = "all"  # `--help all` lists every key of recipes
# how an argument begins that names a study, whose values --help cannot list
A_STUDY = f"recipe={recipe_files.STUDIES}/"


def groups() -> dict[str, str]:
    """Return {name of a group of keys: help of the group}, in the order of --help.

    For example {"": "The run.", "data": ..., "model": ..., ...}. The empty name stands for keys
    without a group, such as `seed`.
    """
    summaries = {"": "The run."}
    for name, info in Recipe.model_fields.items():
        # the groups of objectives and targets are no fields of Recipe; list them before `target`
        if name == "target":
            summaries |= {group.name: summary(group.kind) for group in all_groups()}
        if isinstance(info.annotation, type) and issubclass(info.annotation, Keys):
            summaries[name] = info.description or ""
    return summaries


def members(group: str) -> list[Key]:
    """Return the keys of a group.

    Keys that change what a run computes come first. An empty name gives the keys without a group.
    """
    keys_of_group = [
        member for key, member in all_keys().items() if key.rpartition(".")[0] == group
    ]
    return sorted(keys_of_group, key=lambda member: member.effect != "compute")


def meaning(option: Key) -> str:
    """Return the help of an option.

    If the option needs a value of another option, the help ends with a sentence such as "Needs
    optim.schedule=wsd."
    """
    if option.name == "target":
        return declaration.describe_targets()
    if option.requires:
        key, *values = option.requires
        return f"{option.help} Needs {key}={' or '.join(map(option_text, values))}."
    return option.help


def allowed(option: Key) -> str:
    """Return the allowed values of an option in words, such as "a whole number above 0".

    Return an empty string if --help need not list them.
    """
    if option.form == FLAG:
        return ""
    if not option.metavar:
        return option.expected
    # --help shows a placeholder instead of the default, such as N in images=N. The default of such
    # an option is null, which need not be listed.
    if option.choices is not None or {bool, int, float} & option.types:
        return option.expected.removesuffix(" or null")
    return ""  # a placeholder such as FOLDER in out=FOLDER says enough


def heading(option: Key) -> str:
    """Return an option as the user types it, for --help.

    A flag has two dashes (`--json`). A positional option is a placeholder (`RUN`). Any other option
    has the default as value (`out=runs`) or, without a default, a placeholder (`device=NAME`).
    """
    if option.form == FLAG:
        return option_name(option)
    if option.form == WORD:
        return option.metavar
    value = option.metavar if option.default is None else option_text(option.default)
    return f"{option_name(option)}={value}"


def tool_help(kind: type[ToolOptions], arguments: Sequence[str] = ()) -> str:
    """Return the --help of a tool: purpose, examples and options.

    For a tool with LISTS_ALL_KEYS, such as pretrain, also list the keys of recipes that are changed
    most often, with the values of the recipe that the arguments name.

    Args:
        kind: Options of the tool.
        arguments: Other arguments of the command line, such as ["recipe=mpp", "optim"]: key=value,
            and names of groups. If groups are named, only the keys of these groups are listed. The
            name EVERY means all groups.

    Raises:
        UserError: An argument is wrong.
    """
    group_names = [word for word in arguments if "=" not in word]
    if kind.recipes == TAKES_ALL_KEYS and any(word.startswith(A_STUDY) for word in arguments):
        arguments = group_names  # a study is no recipe, so there are no values to list
    resolved, values = None, {}
    if kind.recipes == LISTS_ALL_KEYS or (kind.recipes and group_names):
        # This runs the plugin that the arguments name. After that, `groups` includes its groups.
        resolved = _resolve(arguments)
        values = resolved.recipe.values() if resolved else schema.defaults()
    known = [name for name in group_names if name in groups() or name == EVERY]
    unknown = [name for name in group_names if name not in known]
    if unknown and not kind.positional:
        text = suggest(unknown[0], [EVERY, *filter(None, groups())])
        remedy = "To list the keys of a plugin, add plugin=FILE.py and recipe=NAME to the command."
        raise UserError(f"{unknown[0]}: no group of keys has this name, {text}. {remedy}")
    if known and kind.recipes:
        title = f"Keys of a recipe{_title(resolved)}:"
        return _recipe_keys(title, values, list(groups()) if EVERY in known else known)
    lines = [*textwrap.wrap(summary(kind), WIDTH), ""]
    lines += [f"  {example}" for example in kind.examples()]
    lines += ["", "Options:"]
    options = kind.options().values()
    lines += _lines((option, heading(option)) for option in options if option.required)
    for keys in kind.uses:
        lines += [*_heading_lines(keys.heading), *_indented(keys.meaning)]
    lines += _lines((option, heading(option)) for option in options if not option.required)
    if kind.recipes == LISTS_ALL_KEYS:
        common_keys = [all_keys()[key] for key in kind.common_keys if key in values]
        lines += ["", f"The keys of a recipe that are changed most often{_title(resolved)}:"]
        lines += _lines((option, _key_heading(option, values)) for option in common_keys)
    if kind.recipes in (LISTS_ALL_KEYS, TAKES_ALL_KEYS):
        names = ", ".join(name for name in groups() if name)
        text = (
            f"To list all keys of a recipe, type --help {EVERY}. To list the keys of a group,"
            f" type --help GROUP. The groups are {names}."
        )
        lines += ["", *textwrap.wrap(text, WIDTH)]
    return "\n".join(lines)


def _recipe_keys(title: str, values: dict[str, object], wanted: Sequence[str]) -> str:
    """Return the --help for the keys of some groups.

    Args:
        title: First line.
        values: {dotted key: value} of a recipe. Keys that the recipe does not have are left out.
        wanted: Names of the groups.
    """
    lines = [title]
    for group in wanted:
        used = [option for option in members(group) if option.name in values]
        if used:
            lines += ["", f"{group or 'run'}: {groups()[group]}"]
            lines += _lines((recipe_key, _key_heading(recipe_key, values)) for recipe_key in used)
    return "\n".join(lines)


def _resolve(arguments: Sequence[str]) -> Resolved | None:
    """Resolve the recipe that the arguments name, or return None if no argument is key=value."""
    overrides = [argument for argument in arguments if "=" in argument]
    return resolve(from_words(overrides), here=False) if overrides else None


def _title(resolved: Resolved | None) -> str:
    """Return the end of a heading, such as ", with the values of recipe=mpp (base: NAME)".

    Return an empty string without a recipe.
    """
    if resolved is None:
        return ""
    bases = recipe_files.bases(resolved.file) if resolved.file else []
    based_on = f" (base: {', '.join(bases)})" if bases else ""
    return f", with the values of {' '.join(resolved.given.words)}{based_on}"


def _key_heading(option: Key, values: dict[str, object]) -> str:
    return f"{option.name}={option_text(values[option.name])}"


def _lines(options: Iterable[tuple[Key, str]]) -> list[str]:
    """Return the lines of --help for options.

    Each option has a heading such as "optim.clip=1.0   (a number above 0 or null)", and its meaning
    below the heading.

    Args:
        options: Each option with its heading, such as `optim.lr=0.001`.
    """
    lines = []
    for option, option_heading in options:
        values = allowed(option)
        values_text = f"   ({values})" if values else ""
        lines += [*_heading_lines(option_heading + values_text), *_indented(meaning(option))]
    return lines


def _heading_lines(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent=" " * 10)


def _indented(text: str) -> list[str]:
    """Wrap and indent a text that is printed below a heading."""
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
