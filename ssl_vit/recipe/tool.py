"""Define the command line of a tool by a pydantic model of the tool's options.

The parser, the errors, --help and docs/options.md are generated from this model. tools.py and
lab/options.py define the tools. This module does not import torch.
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

# Values of ToolOptions.recipes for tools that take every key of recipes. The --help of a tool with
# LISTS_ALL_KEYS also lists keys of recipes with their values.
LISTS_ALL_KEYS, TAKES_ALL_KEYS = "all, which its help lists", "all"
VALUES = {**dict.fromkeys(("recipe", "data", "model"), "NAME"), "PLACE": "PATH"}
IDENTIFIER = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)


class RecipeKeys(NamedTuple):
    """Keys of recipes that a tool uses.

    Attributes:
        names: Names of the keys. `data.*` means every key of the group, and `data` means data=NAME.
        meaning: What the tool does with the keys, for --help.
    """

    names: tuple[str, ...]
    meaning: str

    @property
    def heading(self) -> str:
        """Keys as the user types them, such as "data=NAME, data.KEY=VALUE"."""
        typed = [f"{name}={VALUES.get(name, '')}" for name in self.names]
        return ", ".join(typed).replace(".*=", ".KEY=VALUE")


class ToolOptions(Keys):
    """Base class for the options of a tool.

    A subclass declares a tool, and an instance holds the options that the user gave. --help prints
    the first paragraph of the subclass's docstring and the commands in the section `Examples`. The
    fields of the subclass are the options.

    Attributes:
        summary: Short description for the list of all tools.
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
        """Return the recipe values that the user gave, without the tool's own options.

        For example {"optim.lr": 0.001} for `ssl-vit pretrain optim.lr=0.001 --json`.

        Raises:
            UserError: As in `Unread.read`.
        """
        return self._unread.read()

    @classmethod
    def examples(cls) -> list[str]:
        """Return the commands in the section `Examples` of the docstring.

        A command that continues on the next line is returned as one line.
        """
        text = re.sub(r"\n {5,}", " ", section(cls, "Examples"))
        return [line.strip() for line in text.splitlines()]

    @classmethod
    def options(cls) -> dict[str, Key]:
        """Return {name: option}, in the order of declaration."""
        return keys_of(cls)


T = TypeVar("T", bound=ToolOptions)


def parse(kind: type[T], arguments: Arguments) -> T:
    """Parse and check the options of a tool, without looking up files or folders.

    Keys of recipes stay unparsed in `ToolOptions.unread`, because a plugin may declare some of
    these keys, and the plugin has not run yet.

    Args:
        kind: Class of the tool's options.
        arguments: Arguments from a command line or a Python function.

    Raises:
        UserError: An option is unknown, missing, given twice or out of bounds, or exists only on
            the command line.
    """
    known = kind.options()
    # the tool's own options as {key: text}, and the arguments with keys of recipes
    texts, recipe_words = _split(kind, known, arguments.words)
    values = {key: _read(known[key], text) for key, text in texts.items()}
    recipe_pairs = None
    if arguments.pairs is not None:  # keys and values from Python
        for key in (*texts, *dict(arguments.pairs)):
            if key in kind.command_line_only:
                raise UserError(f"{key}: only for the command line. Leave out {key}.")
        pairs = arguments.pairs
        add_pairs(values, ((key, _take(known[key], value)) for key, value in pairs if key in known))
        recipe_pairs = [(key, value) for key, value in pairs if key not in known]
        # None means not given, except for an option whose default is another value
        values = {
            key: value
            for key, value in values.items()
            if value is not None or known[key].default is not None
        }
    unread = Unread(words.parse(recipe_words), recipe_pairs)
    if not kind.recipes:  # the tool takes only the keys of recipes in `uses`
        _check_names(kind, dict(unread.texts) | dict(recipe_pairs or ()))
    for key, option in known.items():
        if option.required and key not in values:
            _raise_missing(kind, option)
    options: T = build_validated(kind, values, known, typed=texts)
    options._unread = unread
    return options


def from_python(kind: type[T], options: Options, keywords: Mapping[str, Any]) -> T:
    """Parse the options of a tool from the arguments of a Python function.

    Raises:
        UserError: The arguments have an unknown form, or an option is wrong (see `parse`).
    """
    return parse(kind, python_arguments(options, keywords, kind.positional))


def _take(option: Key, value: Any) -> Any:
    """Convert a value from Python to the type of a tool's option.

    For example, [0, 2] gives ["0", "2"] for an option that takes a list, and "[0,2]" for an option
    that takes a text.

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
        # the elements of a list are texts, so that seeds=[0, 2] is the same as seeds=0,2
        return [option_text(convert(option, item)) for item in value]
    if isinstance(value, str | os.PathLike) and Path in option.types:
        return _read(option, os.fspath(value))
    # for an option that takes a text, a list becomes the text that a user would type: [0,2]
    if isinstance(value, list | tuple) and str in option.types:
        return option_text(value)
    return convert(option, value)


def _split(
    kind: type[ToolOptions], known: Mapping[str, Key], arguments: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """Split arguments into the tool's own options, as {key: text}, and all other arguments.

    For example, ["--json", "optim.lr=0.1"] gives {"json": "true"} and ["optim.lr=0.1"]. An argument
    without `=` is the value of the positional option: `runs/mpp` becomes `init=runs/mpp`. The
    positional option is an option of the tool or a key of recipes.

    Args:
        kind: Class of the tool's options.
        known: {name: option} of the tool's own options.
        arguments: Arguments of the command line.

    Raises:
        UserError: An option of the tool is given twice, several arguments are positional, or an
            argument with dashes is unknown.
    """
    tool_words, other_words, positional_words = [], [], []
    for argument in arguments:
        typed, equals, text = argument.partition("=")
        key = typed.removeprefix("--")
        option = known.get(key)
        # a flag is typed without a value (--json), every other option with a value (out=runs)
        needs_value = option is not None and option.form != FLAG
        if option and typed == option_name(option) and bool(equals) == needs_value:
            tool_words.append(f"{key}={text if equals else 'true'}")
        elif typed.startswith("--"):
            choices = map(option_name, known.values())
            raise UserError(f"{argument}: unknown option, {suggest(typed, choices)}")
        elif kind.positional and not _is_option(kind, argument):
            positional_words.append(argument)
        else:
            other_words.append(argument)
    if len(positional_words) > 1:
        raise UserError(f"{' '.join(positional_words)}: expected a single {_word(kind)}")
    positional_options = [f"{kind.positional}={word}" for word in positional_words]
    if kind.positional in known:
        tool_words += positional_options
    else:
        other_words += positional_options
    return words.parse(tool_words), other_words


def _is_option(kind: type[ToolOptions], argument: str) -> bool:
    """Return whether an argument is key=value (or the word `sweep`), and not a path.

    - Without an equals sign: the argument is a path, except for the word `sweep`, as in
      `ssl-vit study sweep recipe=mpp optim.lr=0.1,0.2`.
    - With an equals sign: the argument is key=value if the tool takes the key, or if KEY could be a
      key and no such path exists. Otherwise the argument is a path, such as `runs/lr=0.1`.
    """
    key, equals, _ = argument.partition("=")
    if not equals:
        return bool(kind.recipes) and argument == words.SWEEP
    is_known = any(fnmatchcase(key, name) for keys in kind.uses for name in keys.names)
    return is_known or bool(IDENTIFIER.fullmatch(key) and not parsing.exists(argument))


def _check_names(kind: type[ToolOptions], given: Mapping[str, Any]) -> None:
    """Check that the tool uses all keys of recipes that the user gave.

    `uses` lists the keys that the tool uses. For example, `data.*` allows all keys of the group.

    Args:
        kind: Class of the tool's options.
        given: {key: value} of the user, without the tool's own options.

    Raises:
        UserError: A key does not exist, or the tool does not use the key.
    """
    # a pattern is a key, or a group such as data.*
    patterns = [name for keys in kind.uses for name in keys.names]
    groups = {pattern.partition(".")[0] for pattern in patterns}
    # First check that keys in the tool's groups exist, because a mistyped key such as data.siz
    # matches the pattern data.*
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
    """Return the positional option with an example: "FOLDER, as in ssl-vit push runs/mpp ..."."""
    option = kind.options().get(kind.positional)
    name = option.metavar if option else kind.positional
    return ", as in ".join([name, *kind.examples()[:1]])


def _read(option: Key, text: str) -> Any:
    """Parse the text typed for a tool's option.

    Raises:
        UserError: The text is no valid list, or no file or folder can have this path.
    """
    if option.is_list:
        return read_list(option.name, text)
    if Path in option.types:
        if not is_path(text):
            raise value_error(option, text)
        return Path(text)
    return words.read(option, text)  # in the same way as for keys of recipes


def read_list(key: str, text: str) -> list[str]:
    """Parse the text of a list option into a list of texts.

    - "a" gives ["a"], and "a,b" gives ["a", "b"].
    - '["a,b",c]' gives ["a,b", "c"]. Only in brackets can an element with a comma be quoted.
    - A path that exists gives a single element, even with a comma.

    Raises:
        UserError: An element is empty, or the brackets contain no valid list.
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
