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
        """Return the values of keys of recipes that the user gave together with the tool's options.

        For example {"optim.lr": 0.001} for `ssl-vit pretrain optim.lr=0.001 --json`.

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

    Keys of recipes among the arguments are kept as they are (`ToolOptions.unread`). They are read
    when the tool needs them, because a plugin may have to run first and declare some of them.

    Args:
        kind: Options of the tool.
        arguments: Words of the command line, or arguments of a Python function.

    Raises:
        UserError: An option is unknown, missing, given twice or out of bounds, or exists only on
            the command line.
    """
    known = kind.options()
    # the tool's own options as {key: text}, and the words with keys of recipes
    texts, rest = _split(kind, known, arguments.words)
    values = {key: _read(known[key], text) for key, text in texts.items()}
    recipe_pairs = None
    if arguments.pairs is not None:  # keys and values from Python
        for key in (*texts, *dict(arguments.pairs)):
            if key in kind.command_line_only:
                raise UserError(f"{key}: only for the command line. Leave out {key}.")
        pairs = arguments.pairs
        add_pairs(values, ((key, _take(known[key], value)) for key, value in pairs if key in known))
        recipe_pairs = [(key, value) for key, value in pairs if key not in known]
        # An option with the value None counts as not given, unless it has another default
        values = {
            key: value
            for key, value in values.items()
            if value is not None or known[key].default is not None
        }
    unread = Unread(words.parse(rest), recipe_pairs)
    if not kind.recipes:  # the tool takes only the keys of recipes that it lists in `uses`
        _check_names(kind, dict(unread.texts) | dict(recipe_pairs or ()))
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
        # the elements of a list option are texts, so that seeds=[0, 2] is the same as seeds=0,2
        return [option_text(convert(option, item)) for item in value]
    if isinstance(value, str | os.PathLike) and Path in option.types:
        return _read(option, os.fspath(value))
    # an option that takes a text gets a list as the text that a user would type, such as [0,2]
    if isinstance(value, list | tuple) and str in option.types:
        return option_text(value)
    return convert(option, value)


def _split(
    kind: type[ToolOptions], known: Mapping[str, Key], arguments: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the tool's own options as {key: text}, and the remaining words unchanged.

    A word without `=`, such as `runs/mpp`, is the value of the positional option: `init=runs/mpp`.
    The positional option may belong to the tool or be a key of recipes, which then is among the
    remaining words.

    Args:
        kind: Options of the tool.
        known: {name: option} of the tool's own options.
        arguments: Words of the command line.

    Raises:
        UserError: An option of the tool is given twice, several words are not key=value, or a word
            with dashes is unknown.
    """
    tool_words, rest, positional_words = [], [], []
    for argument in arguments:
        typed, equals, text = argument.partition("=")
        key = typed.removeprefix("--")
        option = known.get(key)
        # a flag is typed without a value (--json), and every other option with one (out=runs)
        needs_value = option is not None and option.form != FLAG
        if option and typed == option_name(option) and bool(equals) == needs_value:
            tool_words.append(f"{key}={text if equals else 'true'}")
        elif typed.startswith("--"):
            raise UserError(
                f"{argument}: unknown option, {suggest(typed, map(option_name, known.values()))}"
            )
        elif kind.positional and not _is_option(kind, argument):
            positional_words.append(argument)
        else:
            rest.append(argument)
    if len(positional_words) > 1:
        raise UserError(f"{' '.join(positional_words)}: expected a single {_word(kind)}")
    positional_options = [f"{kind.positional}={word}" for word in positional_words]
    if kind.positional in known:
        tool_words += positional_options
    else:
        rest += positional_options
    return words.parse(tool_words), rest


def _is_option(kind: type[ToolOptions], argument: str) -> bool:
    """Return whether an argument is key=value, and not the path of a file or folder.

    An argument without an equals sign is a path. The only exception is the word `sweep`, as in
    `ssl-vit study sweep recipe=mpp optim.lr=0.1,0.2`, for tools that take all keys of recipes.

    A path may also have an equals sign in it, such as `runs/lr=0.1`. An argument with an equals
    sign is key=value if the tool takes the key or, for an unknown key, if no such path exists.
    """
    key, equals, _ = argument.partition("=")
    if not equals:
        return bool(kind.recipes) and argument == words.SWEEP
    known = any(fnmatchcase(key, name) for keys in kind.uses for name in keys.names)
    return known or bool(IDENTIFIER.fullmatch(key) and not parsing.exists(argument))


def _check_names(kind: type[ToolOptions], given: Mapping[str, Any]) -> None:
    """Check that the tool uses all keys of recipes that the user gave.

    The tool names the keys that it uses, with patterns such as `data.*` for every key of a group.

    Args:
        kind: Options of the tool.
        given: {key: value} of the user, without the tool's own options.

    Raises:
        UserError: A key does not exist, or the tool does not use it.
    """
    patterns = [name for keys in kind.uses for name in keys.names]
    groups = {pattern.partition(".")[0] for pattern in patterns}
    # A mistyped key such as data.siz matches the pattern data.*, so the check below would accept
    # it. Therefore first check that the keys in the tool's groups exist. For a key that does not
    # exist, `check_keys` suggests the nearest key of the group.
    words.check_keys(
        key for key in given if key.partition(".")[0] in groups and key not in patterns
    )
    choices = [*map(option_name, kind.options().values()), *patterns]
    errors = []
    for key, value in given.items():
        if not any(fnmatchcase(key, pattern) for pattern in patterns):
            problem = "not a key of this tool" if key in all_keys() else "unknown option"
            errors.append(f"{key}={option_text(value)}: {problem}, {suggest(key, choices)}")
    if errors:
        raise UserError(" ".join(errors))


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
    """Convert the text of a tool's option into a value: a list of texts, a path, or any other type.

    Raises:
        UserError: The text is no list, or no file or folder can have this path.
    """
    if option.is_list:
        return read_list(option.name, text)
    if Path in option.types:
        if not is_path(text):
            raise value_error(option, text)
        return Path(text)
    return words.read(option, text)  # as for a key of recipes


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
