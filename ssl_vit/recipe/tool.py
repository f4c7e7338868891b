"""Define the command line of a tool as a pydantic model of the tool's options.

The parser, the errors, --help and the tool's part of docs/options.md (docs/make_reference.py) are
all generated from this model. The tools of the engine are defined in tools.py, those of the lab in
lab/options.py. This module does not import torch.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

from pydantic import ConfigDict, PrivateAttr

from ..errors import UserError, suggest
from . import parsing, words
from .keys import FLAG, WORD, Key, Keys, build_validated, keys_of, section, value_error
from .names import is_path
from .schema import all_keys
from .words import Options

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
    _overrides: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def overrides(self) -> dict[str, str]:
        """Keys of recipes that were given, as {key: text}, with only the names checked."""
        return self._overrides

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


def parse(kind: type[T], arguments: Sequence[str]) -> T:
    """Return the options of a command line, typed and checked, without looking up files or folders.

    Raises:
        UserError: An option is unknown, missing, given twice or out of bounds.
    """
    tool_words, rest = split(kind, arguments)
    overrides = words.parse(rest)
    _check_names(kind, overrides)
    return build(kind, tool_words, overrides)


def from_python(
    kind: type[ToolOptions], options: Options, keywords: Mapping[str, Any]
) -> list[str]:
    """Return a call from Python as the words of a command line, like `words.from_python`.

    Raises:
        UserError: An option exists only on the command line, or an error of `words.from_python`.
    """
    texts = words.from_python(options, keywords, kind.options(), kind.positional)
    for word in texts:
        key = word.removeprefix("--").partition("=")[0]
        if key in kind.command_line_only and (word.startswith("--") or "=" in word):
            raise UserError(f"{key}: only for the command line. Leave out {key}.")
    return texts


def split(
    kind: type[ToolOptions], arguments: Iterable[str], ignored: Collection[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """Return the tool's own options as {key: text}, and the remaining arguments unchanged.

    A word without `=` becomes the positional option.

    Args:
        kind: Options of the tool.
        arguments: Words of the command line.
        ignored: Options of the tool that mean something else in this command.

    Raises:
        UserError: An option of the tool is given twice, several words are not key=value, or a word
            with dashes is unknown.
    """
    known = {key: option for key, option in kind.options().items() if key not in ignored}
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


def _check_names(kind: type[ToolOptions], overrides: Mapping[str, str]) -> None:
    """Check that all keys are keys of recipes that the tool uses.

    Raises:
        UserError: A key is not.
    """
    used = [name for keys in kind.uses for name in keys.names]
    groups = {name.partition(".")[0] for name in used}
    words.check_keys(
        key for key in overrides if key.partition(".")[0] in groups and key not in used
    )
    choices = [*map(option_name, kind.options().values()), *used]
    wrong = [
        f"{key}={text}: {'not a key of this tool' if key in all_keys() else 'unknown option'}, "
        f"{suggest(key, choices)}"
        for key, text in overrides.items()
        if not any(fnmatchcase(key, name) for name in used)
    ]
    if wrong:
        raise UserError(" ".join(wrong))


def build(kind: type[T], texts: Mapping[str, str], overrides: dict[str, str] | None = None) -> T:
    """Return the options, given the texts that the user set.

    Raises:
        UserError: An option is missing, has the wrong type or is out of bounds.
    """
    known = kind.options()
    if missing := [option for key, option in known.items() if option.required and key not in texts]:
        _raise_missing(kind, missing[0])
    values = {key: _read(known[key], text) for key, text in texts.items()}
    made: T = build_validated(kind, values, known, typed=texts)
    made._overrides = overrides or {}
    return made


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
