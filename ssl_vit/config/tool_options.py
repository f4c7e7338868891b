"""The command line of a tool: a dataclass of options, of which its parser, its errors, its --help
and its part of docs/options.md (docs/make_reference.py) come. No torch here.

Those of the engine's tools are in tools.py, those of the lab's in lab/lab_tools.py.
"""

import dataclasses
import re
import textwrap
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from ..errors import UserError, suggest
from ..formatting import option_text
from . import parsing, recipe_files, values
from .fields import FLAG, REQUIRED, WORD, Option, options_of
from .options import WIDTH, describe, heading_lines, indented, option_lines
from .options import help_text as recipe_text
from .resolve import resolve
from .schema import options as recipe_options

# Whether the tool takes keys of recipes besides those that it `uses`
ALL, ALSO = "all, which its help lists", "all"

VALUES = {**dict.fromkeys(("recipe", "data", "model"), "NAME"), "PLACE": "PATH"}
IDENTIFIER = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)


class RecipeKeys(NamedTuple):
    """Keys of recipes that a tool uses; `data.*` is each key of a group, `data` the row of its
    table."""

    names: tuple[str, ...]
    meaning: str

    @property
    def heading(self) -> str:
        """How they are typed."""
        typed = [f"{name}={VALUES.get(name, '')}" for name in self.names]
        return ", ".join(typed).replace(".*=", ".KEY=VALUE")


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """What a tool was given. A subclass declares the tool; its fields (fields.option) are the
    options.

    Attributes:
        summary: a line of the list of all tools.
        command: MODULE:FUNCTION below ssl_vit, which takes the arguments and returns the exit
            status or None.
        lasting: whether it goes on where standard output can no longer be written.
        purpose: what --help begins with.
        examples: commands.
        uses: keys of recipes that it takes besides.
        recipes: ALSO or ALL where it takes every key of recipes.
        positional: the key whose value may stand alone: `runs/mpp` for `init=runs/mpp`.
        command_line_only: own keys that the tool's function in Python does not take.
        overrides: {key: text} of the given keys of recipes, checked for their names alone.
    """

    summary: ClassVar[str]
    command: ClassVar[str]
    lasting: ClassVar[bool] = False
    purpose: ClassVar[str]
    examples: ClassVar[tuple[str, ...]]
    uses: ClassVar[tuple[RecipeKeys, ...]] = ()
    recipes: ClassVar[str] = ""
    positional: ClassVar[str] = ""
    command_line_only: ClassVar[tuple[str, ...]] = ()
    overrides: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def options(cls) -> dict[str, Option]:
        """{key: the option}, in the order they are declared in."""
        return options_of(cls)


T = TypeVar("T", bound=ToolOptions)


def parse(kind: type[T], arguments: Sequence[str]) -> T:
    """The options of a command line, typed and checked; nothing is looked up.

    Raises:
        UserError: one is unknown, missing, given twice or out of bounds.
    """
    own, rest = split(kind, arguments)
    overrides = values.parse(rest)
    _check_names(kind, overrides)
    return build(kind, own, overrides)


def split(
    kind: type[ToolOptions], arguments: Iterable[str], leave: Collection[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """{key: text} of the tool's own options, and the other arguments as they are, a word of them
    as the positional option.

    Args:
        kind: the tool's options.
        arguments: the command line.
        leave: own keys that mean something else in this command.

    Raises:
        UserError: an own option is given twice, several words are no key=value, or one with dashes
            is unknown.
    """
    found = {key: one for key, one in kind.options().items() if key not in leave}
    own, rest, words = [], [], []
    for argument in arguments:
        typed, equals, text = argument.partition("=")
        key = typed.removeprefix("--")
        option = found.get(key)
        if option and typed == option_name(option) and bool(equals) == (option.form != FLAG):
            own.append(f"{key}={text if equals else 'true'}")
        elif typed.startswith("--"):
            raise UserError(
                f"{argument}: unknown; {suggest(typed, map(option_name, found.values()))}"
            )
        elif kind.positional and not _is_option(kind, argument):
            words.append(argument)
        else:
            rest.append(argument)
    if len(words) > 1:
        raise UserError(f"{' '.join(words)}: expected one {_word(kind)}")
    place = own if kind.positional in found else rest
    place += [f"{kind.positional}={word}" for word in words]
    return values.parse(own), rest


def _is_option(kind: type[ToolOptions], argument: str) -> bool:
    """Whether an argument is key=value, and no path with an equals sign in it."""
    key, equals, _ = argument.partition("=")
    if not equals:
        return False
    known = any(fnmatchcase(key, name) for keys in kind.uses for name in keys.names)
    return known or bool(IDENTIFIER.fullmatch(key) and not parsing.exists(argument))


def _check_names(kind: type[ToolOptions], overrides: Mapping[str, str]) -> None:
    """Check that keys are those of recipes that the tool uses.

    Raises:
        UserError: one is not.
    """
    used = [name for keys in kind.uses for name in keys.names]
    groups = {name.partition(".")[0] for name in used}
    for key, text in overrides.items():
        if key.partition(".")[0] in groups and key not in used:
            values.check_key(key)
        if any(fnmatchcase(key, name) for name in used):
            continue
        choices = [*map(option_name, kind.options().values()), *used]
        wrong = "has no use here" if key in recipe_options() else "unknown"
        raise UserError(f"{key}={text}: {wrong}; {suggest(key, choices)}")


def build(kind: type[T], own: Mapping[str, str], overrides: dict[str, str] | None = None) -> T:
    """The options, from the texts of those that are given.

    Raises:
        UserError: one is missing, of another type or out of bounds.
    """
    found = kind.options()
    if missing := [one for key, one in found.items() if one.required and key not in own]:
        _raise_missing(kind, missing[0])
    given = {key: read(found[key], text) for key, text in own.items()}
    return _nested(kind, given, overrides or {})


def _nested(kind: type[T], given: dict[str, Any], overrides: dict[str, str]) -> T:
    """The dataclass, with those of its groups."""
    parts = {key: value for key, value in given.items() if "." not in key}
    for field in dataclasses.fields(kind):
        if "group" in field.metadata:
            prefix = f"{field.name}."
            members = {
                key.removeprefix(prefix): value
                for key, value in given.items()
                if key.startswith(prefix)
            }
            parts[field.name] = typing.cast(type, field.type)(**members)
    return kind(**parts, overrides=overrides)


def _raise_missing(kind: type[ToolOptions], option: Option) -> typing.NoReturn:
    if option.form == WORD:
        raise UserError(f"no {option.metavar}; expected one {_word(kind)}")
    raise UserError(
        f"{option.key}= is missing; expected {describe(option)}, as in {kind.examples[0]}"
    )


def _word(kind: type[ToolOptions]) -> str:
    """What stands alone, with an example."""
    option = kind.options().get(kind.positional) or recipe_options()[kind.positional]
    return f"{option.metavar or option.key}, as in {kind.examples[0]}"


def read(option: Option, text: str) -> Any:
    """An option's text as its type.

    Raises:
        UserError: it is of another type or out of bounds.
    """
    key = option_name(option)
    if option.kind in (Path, Path | None):
        return parsing.parse_path(text, key)
    if option.is_list:
        value = read_list(key, text)
        for one in value:
            if option.choices is not None and one not in option.choices:
                raise UserError(f"{key}={one}: unknown; {suggest(one, option.choices)}")
        return value
    if option.is_mapping:
        return read_mapping(key, text)
    try:
        value = values.convert(option, text)
    except UserError:
        pass
    else:
        if option.allows(value):
            return value
    if option.choices is not None:
        raise UserError(f"{key}={text}: unknown; {suggest(text, option.choices)}")
    raise UserError(f"{key}={text}: expected {describe(option)}")


def read_list(key: str, text: str) -> list[str]:
    """The texts of an option: one, several with commas, or a list in brackets, where a text with a
    comma can be quoted. A text that is a path that exists is one.

    Raises:
        UserError: one is empty, or the brackets hold no list.
    """
    found = [text] if parsing.exists(text) else text.split(",")
    if text.startswith("["):
        try:
            found = parsing.yaml_texts(text)
        except ValueError:
            found = []
    if not found or not all(found):
        raise UserError(f"{key}={text}: expected one, several as in a,b, or a list such as [a,b]")
    return found


def read_mapping(key: str, text: str) -> dict[str, str]:
    """The texts of an option {name: text, name: text}.

    Raises:
        UserError: it is no such mapping, or has a name twice.
    """
    try:
        return parsing.yaml_text_mapping(text)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        expected = "expected {NAME: VALUE, NAME: VALUE}, with a blank after each colon"
        raise UserError(f"{key}={text}: {reason}; {expected}") from None


def help_text(kind: type[ToolOptions], arguments: Sequence[str] = ()) -> str:
    """The tool's purpose, examples and options; with the values of the recipe that `arguments`
    name, if they do.

    Raises:
        UserError: an argument is wrong.
    """
    lines = [*textwrap.wrap(kind.purpose, WIDTH), ""]
    lines += [f"  {example}" for example in kind.examples]
    lines += ["", "Options:"]
    options = kind.options().values()
    for option in (one for one in options if one.required):
        lines += option_lines(option, heading(option))
    for keys in kind.uses:
        lines += [*heading_lines(keys.heading), *indented(keys.meaning)]
    for option in (one for one in options if not one.required):
        lines += option_lines(option, heading(option))
    if kind.recipes == ALSO:
        lines += ["", "All keys of recipes are accepted too: pretrain --help lists them."]
    if kind.recipes == ALL:
        lines += ["", _recipe_keys(arguments)]
    return "\n".join(lines)


def option_name(option: Option) -> str:
    """An option's name as it is typed: with dashes where it has them."""
    return f"--{option.key}" if option.form == FLAG else option.key


def heading(option: Option) -> str:
    """How an option is typed: with its default, or where it has none with a word for its value."""
    if option.form == FLAG:
        return option_name(option)
    if option.form == WORD:
        return option.metavar
    value = option.metavar if option.default in (None, REQUIRED) else option_text(option.default)
    return f"{option_name(option)}={value}"


def _recipe_keys(arguments: Sequence[str]) -> str:
    """Every key of a recipe, with the values of the arguments where there are any, and the recipes
    that the one they name is based on."""
    overrides = [argument for argument in arguments if "=" in argument]
    if not overrides:
        return "Keys of a recipe, with their defaults:\n\n" + recipe_text()
    recipe = resolve(overrides, here=False)
    named = [one.removeprefix("recipe=") for one in overrides if one.startswith("recipe=")]
    bases = recipe_files.bases(recipe_files.find_recipe(named[0] if named else None))
    based_on = f" (base: {', '.join(bases)})" if bases else ""
    title = f"Keys of a recipe, with the values of {' '.join(overrides)}{based_on}:"
    return f"{title}\n\n{recipe_text(recipe)}"
