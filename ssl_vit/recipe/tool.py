"""Define the command line of a tool as a pydantic model of the tool's options.

The parser, the errors, --help and the tool's part of docs/options.md (docs/make_reference.py) are
all generated from this model. The tools of the engine are defined in tools.py, those of the lab in
lab/options.py. This module does not import torch.
"""

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

from pydantic import ConfigDict, PrivateAttr

from ..errors import UserError, suggest
from ..formatting import option_text
from . import parsing, words
from .given import (
    Arguments,
    Given,
    Options,
    Unread,
    add_pairs,
    check_type,
    python_arguments,
    shorten,
)
from .keys import FLAG, WORD, Key, Keys, build_validated, convert, keys_of, section, value_error
from .names import is_path
from .schema import all_keys

# Values of ToolOptions.recipes of a tool that takes every key of recipes, for which --help lists or
# does not list these keys
LISTS_ALL_KEYS, TAKES_ALL_KEYS = "all, which its help lists", "all"
VALUES = {**dict.fromkeys(("recipe", "data", "model"), "NAME"), "PLACE": "PATH"}
IDENTIFIER = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)


class RecipeKeys(NamedTuple):
    """Keys of recipes that a tool uses.

    Attributes:
        names: Names of the keys; `data.*` stands for every key of a group, `data` for a row of its
            table.
        meaning: What the tool does with the keys, for --help.
    """

    names: tuple[str, ...]
    meaning: str

    @property
    def heading(self) -> str:
        """Keys as the user types them."""
        typed = [f"{name}={VALUES.get(name, '')}" for name in self.names]
        return ", ".join(typed).replace(".*=", ".KEY=VALUE")


class ToolOptions(Keys):
    """Options that a tool was given.

    A subclass declares a tool. --help prints the first paragraph of its docstring and the commands
    in the section `Examples`. The fields of the subclass are the options.

    Attributes:
        summary: Line for the list of all tools.
        command: MODULE:FUNCTION below ssl_vit. The function takes the arguments and returns the
            exit status or None.
        uses: Keys of recipes that the tool takes in addition to its options.
        recipes: LISTS_ALL_KEYS or TAKES_ALL_KEYS if the tool takes every key of recipes.
        common_keys: Keys of recipes that users change most often, which --help lists.
        positional: Key whose value may be given without the key: `runs/mpp` for `init=runs/mpp`.
        command_line_only: Options that the tool's Python function does not take.
    """

    model_config = ConfigDict(frozen=True)
    summary: ClassVar[str]
    command: ClassVar[str]
    uses: ClassVar[tuple[RecipeKeys, ...]] = ()
    recipes: ClassVar[str] = ""
    common_keys: ClassVar[tuple[str, ...]] = ()
    positional: ClassVar[str] = ""
    command_line_only: ClassVar[tuple[str, ...]] = ()
    _unread: Unread = PrivateAttr(default_factory=lambda: Unread({}))

    @property
    def unread(self) -> Unread:
        """Keys of recipes that were given with the options of the tool, before they are read."""
        return self._unread

    @property
    def given(self) -> Given:
        """Values of recipes that were given with the options of the tool.

        Raises:
            UserError: As in `Unread.read`.
        """
        return self._unread.read()

    @classmethod
    def examples(cls) -> list[str]:
        """Return the commands in the section `Examples` of the docstring."""
        text = re.sub(r"\n {5,}", " ", section(cls, "Examples"))
        return [line.strip() for line in text.splitlines()]

    @classmethod
    def options(cls) -> dict[str, Key]:
        """Return {name: option}, in the order of declaration."""
        return keys_of(cls)


T = TypeVar("T", bound=ToolOptions)


def parse(kind: type[T], arguments: Arguments) -> T:
    """Return the options of a tool, typed and checked, without looking up files or folders.

    Args:
        kind: Options of the tool.
        arguments: Words of the command line, or arguments of a Python function.

    Raises:
        UserError: An option is unknown, missing, given twice or out of bounds, or exists only on
            the command line.
    """
    known = kind.options()
    texts, rest = _split(kind, known, arguments.words)
    values = {key: _read(known[key], text) for key, text in texts.items()}
    pairs = arguments.pairs
    if pairs is not None:
        for key in (*texts, *dict(pairs)):
            if key in kind.command_line_only:
                raise UserError(f"{key}: only for the command line. Leave out {key}.")
        add_pairs(values, ((key, _take(known[key], value)) for key, value in pairs if key in known))
        # None stands for an option that is not given
        values = {
            key: value
            for key, value in values.items()
            if value is not None or known[key].default is not None
        }
        pairs = [(key, value) for key, value in pairs if key not in known]
    unread = Unread(words.parse(rest), pairs)
    if not kind.recipes:
        _check_names(kind, dict(unread.texts) | dict(pairs or ()))
    for key, option in known.items():
        if option.required and key not in values:
            _raise_missing(kind, option)
    options: T = build_validated(kind, values, known, typed=texts)
    options._unread = unread
    return options


def from_python(kind: type[T], options: Options, keywords: Mapping[str, Any]) -> T:
    """Return the options of a tool from the arguments of a Python function.

    Raises:
        UserError: As in `parse` and `given.python_arguments`.
    """
    return parse(kind, python_arguments(options, keywords, kind.positional))


def _take(option: Key, value: Any) -> Any:
    """Return a value from Python in the type that an option of a tool takes.

    Raises:
        UserError: The option cannot have a value of this type.
    """
    check_type(option.name, value)
    if value is None:
        if option.default is not None:
            raise value_error(option, value)
        return None
    if option.form == FLAG and not isinstance(value, bool):
        raise UserError(f"{option.name}={shorten(value)}: expected True or False")
    if option.is_list:
        if isinstance(value, str):
            return read_list(option.name, value)
        if isinstance(value, os.PathLike):
            return [os.fspath(value)]
        return [option_text(convert(option, item)) for item in value]
    if isinstance(value, str | os.PathLike) and Path in option.types:
        return _read(option, os.fspath(value))
    if isinstance(value, list | tuple) and str in option.types:  # seeds=[0, 2]
        return option_text(value)
    return convert(option, value)


def _split(
    kind: type[ToolOptions], known: Mapping[str, Key], arguments: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the tool's own options as {key: text}, and the remaining words unchanged.

    A word without `=` becomes the positional option.

    Args:
        kind: Options of the tool.
        known: {name: option} of the tool's own options.
        arguments: Words of the command line.

    Raises:
        UserError: An option of the tool is given twice, several words are not key=value, or a word
            with dashes is unknown.
    """
    tool_words, rest, alone = [], [], []
    for argument in arguments:
        typed, equals, text = argument.partition("=")
        key = typed.removeprefix("--")
        option = known.get(key)
        if option and typed == option_name(option) and bool(equals) == (option.form != FLAG):
            tool_words.append(f"{key}={text if equals else 'true'}")
        elif typed.startswith("--"):
            raise UserError(
                f"{argument}: unknown option, {suggest(typed, map(option_name, known.values()))}"
            )
        elif kind.positional and not _is_option(kind, argument):
            alone.append(argument)
        else:
            rest.append(argument)
    if len(alone) > 1:
        raise UserError(f"{' '.join(alone)}: expected a single {_word(kind)}")
    place = tool_words if kind.positional in known else rest
    place += [f"{kind.positional}={word}" for word in alone]
    return words.parse(tool_words), rest


def _is_option(kind: type[ToolOptions], argument: str) -> bool:
    """Return whether an argument is key=value and not a path.

    For a tool that trains, the word for a sweep counts too. A path may have an equals sign in it.
    """
    key, equals, _ = argument.partition("=")
    if not equals:
        return bool(kind.recipes) and argument == words.SWEEP
    known = any(fnmatchcase(key, name) for keys in kind.uses for name in keys.names)
    return known or bool(IDENTIFIER.fullmatch(key) and not parsing.exists(argument))


def _check_names(kind: type[ToolOptions], given: Mapping[str, Any]) -> None:
    """Check that the tool uses all keys of recipes that the user gave.

    Raises:
        UserError: The tool does not use a key.
    """
    used = [name for keys in kind.uses for name in keys.names]
    groups = {name.partition(".")[0] for name in used}
    words.check_keys(key for key in given if key.partition(".")[0] in groups and key not in used)
    choices = [*map(option_name, kind.options().values()), *used]
    wrong = [
        f"{key}={option_text(value)}:"
        f" {'not a key of this tool' if key in all_keys() else 'unknown option'},"
        f" {suggest(key, choices)}"
        for key, value in given.items()
        if not any(fnmatchcase(key, name) for name in used)
    ]
    if wrong:
        raise UserError(" ".join(wrong))


def _raise_missing(kind: type[ToolOptions], option: Key) -> NoReturn:
    if option.form == WORD:
        raise UserError(f"expected a single {_word(kind)}")
    text = f"{option.name}= is missing. Expected {option.expected}"
    raise UserError(", as in ".join([text, *kind.examples()[:1]]))


def _word(kind: type[ToolOptions]) -> str:
    """Return the name of the positional option, with an example."""
    option = kind.options().get(kind.positional)
    name = option.metavar if option else kind.positional
    return ", as in ".join([name, *kind.examples()[:1]])


def _read(option: Key, text: str) -> Any:
    """Convert the text of an option into a value."""
    if option.is_list:
        return read_list(option.name, text)
    if Path in option.types:
        if not is_path(text):
            raise value_error(option, text)
        return Path(text)
    return words.read(option, text)


def read_list(key: str, text: str) -> list[str]:
    """Return the texts of a list option.

    The option may hold a single text, several texts with commas, or a list in brackets, where a
    text with a comma can be quoted. A text that is an existing path counts as a single text.

    Raises:
        UserError: A text is empty, or the brackets hold no list.
    """
    items = [text] if parsing.exists(text) else text.split(",")
    if text.startswith("["):
        try:
            items = parsing.yaml_texts(text)
        except ValueError:
            items = []
    if not items or not all(items):
        raise UserError(f"{key}={text}: expected a value, or several as in a,b or [a,b]")
    return items


def option_name(option: Key) -> str:
    """Return the name of an option as the user types it, with dashes for a flag."""
    return f"--{option.name}" if option.form == FLAG else option.name
