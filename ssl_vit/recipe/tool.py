"""The command line of a tool: a model of its options, of which its parser, its errors, its --help
and its part of docs/options.md (docs/make_reference.py) come. No torch here.

Those of the engine's tools are in tools.py, those of the lab's in lab/options.py.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

from pydantic import ConfigDict, PrivateAttr

from ..errors import UserError, suggest
from . import parsing, words
from .keys import FLAG, WORD, Key, Keys, keys_of, refused, section, validated
from .names import is_path
from .schema import all_keys
from .words import Options

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


class ToolOptions(Keys):
    """What a tool was given. A subclass declares the tool: its docstring is what --help prints,
    with commands under `Examples`, and its fields are the options.

    Attributes:
        summary: a line of the list of all tools.
        command: MODULE:FUNCTION below ssl_vit, which takes the arguments and returns the exit
            status or None.
        uses: keys of recipes that it takes besides.
        recipes: ALSO or ALL where it takes every key of recipes.
        most: keys of recipes that its users turn most, which --help lists.
        positional: the key whose value may stand alone: `runs/mpp` for `init=runs/mpp`.
        command_line_only: own keys that the tool's function in Python does not take.
    """

    model_config = ConfigDict(frozen=True)
    summary: ClassVar[str]
    command: ClassVar[str]
    uses: ClassVar[tuple[RecipeKeys, ...]] = ()
    recipes: ClassVar[str] = ""
    most: ClassVar[tuple[str, ...]] = ()
    positional: ClassVar[str] = ""
    command_line_only: ClassVar[tuple[str, ...]] = ()
    _overrides: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def overrides(self) -> dict[str, str]:
        """{key: text} of the given keys of recipes, checked for their names alone."""
        return self._overrides

    @classmethod
    def examples(cls) -> list[str]:
        """Commands, as its docstring has them."""
        text = re.sub(r"\n {5,}", " ", section(cls, "Examples"))
        return [line.strip() for line in text.splitlines()]

    @classmethod
    def options(cls) -> dict[str, Key]:
        """{name: the option}, in the order in which they are declared."""
        return keys_of(cls)


T = TypeVar("T", bound=ToolOptions)


def parse(kind: type[T], arguments: Sequence[str]) -> T:
    """The options of a command line, typed and checked; nothing is looked up.

    Raises:
        UserError: one is unknown, missing, given twice or out of bounds.
    """
    own, rest = split(kind, arguments)
    overrides = words.parse(rest)
    _check_names(kind, overrides)
    return build(kind, own, overrides)


def from_python(
    kind: type[ToolOptions], options: Options, keywords: Mapping[str, Any]
) -> list[str]:
    """The words of the command line that says what a call from Python does, as
    `words.from_python`.

    Raises:
        UserError: besides, an option is for the command line alone.
    """
    found = words.from_python(options, keywords, kind.options(), kind.positional)
    for word in found:
        key = word.removeprefix("--").partition("=")[0]
        if key in kind.command_line_only and (word.startswith("--") or "=" in word):
            raise UserError(f"{key}: is for the command line; a function of Python has no {key}=")
    return found


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
    own, rest, alone = [], [], []
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
            alone.append(argument)
        else:
            rest.append(argument)
    if len(alone) > 1:
        raise UserError(f"{' '.join(alone)}: expected one {_word(kind)}")
    place = own if kind.positional in found else rest
    place += [f"{kind.positional}={word}" for word in alone]
    return words.parse(own), rest


def _is_option(kind: type[ToolOptions], argument: str) -> bool:
    """Return whether an argument is key=value, or of a tool that trains the word for a sweep.

    A path may have an equals sign in it.
    """
    key, equals, _ = argument.partition("=")
    if not equals:
        return bool(kind.recipes) and argument == words.SWEEP
    known = any(fnmatchcase(key, name) for keys in kind.uses for name in keys.names)
    return known or bool(IDENTIFIER.fullmatch(key) and not parsing.exists(argument))


def _check_names(kind: type[ToolOptions], overrides: Mapping[str, str]) -> None:
    """Check that keys are those of recipes that the tool uses.

    Raises:
        UserError: one is not.
    """
    used = [name for keys in kind.uses for name in keys.names]
    groups = {name.partition(".")[0] for name in used}
    words.check_keys(
        key for key in overrides if key.partition(".")[0] in groups and key not in used
    )
    choices = [*map(option_name, kind.options().values()), *used]
    wrong = [
        f"{key}={text}: {'has no use here' if key in all_keys() else 'unknown'}; "
        f"{suggest(key, choices)}"
        for key, text in overrides.items()
        if not any(fnmatchcase(key, name) for name in used)
    ]
    if wrong:
        raise UserError(" ".join(wrong))


def build(kind: type[T], own: Mapping[str, str], overrides: dict[str, str] | None = None) -> T:
    """The options, from the texts of those that are given.

    Raises:
        UserError: one is missing, of another type or out of bounds.
    """
    known = kind.options()
    if missing := [one for key, one in known.items() if one.required and key not in own]:
        _raise_missing(kind, missing[0])
    values = {key: _read(known[key], text) for key, text in own.items()}
    found: T = validated(kind, values, known, typed=own)
    found._overrides = overrides or {}
    return found


def _raise_missing(kind: type[ToolOptions], option: Key) -> NoReturn:
    if option.form == WORD:
        raise UserError(f"no {option.metavar}; expected one {_word(kind)}")
    text = f"{option.name}= is missing; expected {option.expected}"
    raise UserError(", as in ".join([text, *kind.examples()[:1]]))


def _word(kind: type[ToolOptions]) -> str:
    """What stands alone, with an example."""
    option = kind.options().get(kind.positional)
    name = option.metavar if option else kind.positional
    return ", as in ".join([name, *kind.examples()[:1]])


def _read(option: Key, text: str) -> Any:
    """The value that an option's text stands for."""
    if option.is_list:
        return read_list(option.name, text)
    if Path in option.types:
        if not is_path(text):
            raise refused(option, text)
        return Path(text)
    return words.read(option, text)


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


def option_name(option: Key) -> str:
    """An option's name as it is typed: with dashes where it has them."""
    return f"--{option.name}" if option.form == FLAG else option.name
