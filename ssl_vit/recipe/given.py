"""Read what a user gave for a recipe: words of a command line, or values from Python.

Words become values here, once. Everything after this module works with values. This module does not
import torch.
"""

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..errors import UserError
from ..formatting import option_text
from . import schema, words
from .keys import Keys, Values, convert, value_error
from .parsing import exists
from .plugins import run_plugin
from .words import NAMED, PRESETS, SWEEP

Options = str | os.PathLike[str] | Iterable[str] | Mapping[str, Any]
Pairs = list[tuple[str, Any]]  # dotted keys and values; a key that is given twice comes twice

COMMAND_LINE, PYTHON = "command line", "Python"


@dataclass(frozen=True)
class Given:
    """Values that a user gave for a recipe.

    Attributes:
        values: {dotted key: value}. `recipe`, `data` and `model` name a file and presets.
        texts: {dotted key: text} of the values that were typed, for error messages.
        origin: COMMAND_LINE or PYTHON.
    """

    values: Values = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    origin: str = PYTHON

    @property
    def words(self) -> list[str]:
        """Words of a command line with these values, as the user typed them if they were typed."""
        return [f"{key}={self.text(key)}" for key in self.values]

    def text(self, key: str) -> str:
        """Return the value of a key as the user typed it or would type it."""
        if key in self.texts:
            return self.texts[key]
        return words.write(key, self.values[key]).removeprefix(f"{key}=")

    def with_values(self, values: Values) -> "Given":
        """Return these values together with other values, which win."""
        texts = {key: text for key, text in self.texts.items() if key not in values}
        return replace(self, values=self.values | values, texts=texts)

    def without(self, keys: Iterable[str]) -> "Given":
        """Return these values without some keys."""
        left_out = {*keys}
        return replace(
            self, values={key: self.values[key] for key in self.values if key not in left_out}
        )


class Arguments(NamedTuple):
    """Arguments of a tool: words of a command line, or the arguments of a Python function.

    Attributes:
        words: Words, such as recipe=mpp. A Python function may also be called with words.
        pairs: Keys and values from Python; None on the command line.
    """

    words: list[str]
    pairs: Pairs | None = None

    def split(self, keys: Collection[str]) -> tuple["Arguments", "Arguments"]:
        """Return the arguments that set some keys, and all other arguments.

        Both kinds of arguments are split: `words` ("seed=1", typed) and `pairs` (("seed", 1), from
        Python).
        """
        taken = [word for word in self.words if word.lstrip("-").partition("=")[0] in keys]
        others = [word for word in self.words if word not in taken]
        if self.pairs is None:
            return Arguments(taken), Arguments(others)
        return (
            Arguments(taken, [pair for pair in self.pairs if pair[0] in keys]),
            Arguments(others, [pair for pair in self.pairs if pair[0] not in keys]),
        )


class Unread(NamedTuple):
    """Keys of recipes that a user gave, before the plugin has run that may declare them.

    Attributes:
        texts: {dotted key: text} as typed.
        pairs: Keys and values from Python; None on the command line.
    """

    texts: dict[str, str]
    pairs: Pairs | None = None

    @property
    def keys(self) -> list[str]:
        """Dotted keys that the user gave."""
        return [*self.texts, *dict(self.pairs or ())]

    def text(self, key: str) -> str:
        """Return the value of a key as the user typed it or would type it."""
        return self.texts[key] if key in self.texts else option_text(dict(self.pairs or ())[key])

    def run_plugin(self) -> None:
        """Run the plugin that the user named with `plugin=`, if any.

        The plugin declares an objective or a target, whose keys are keys of recipes from then on.

        Raises:
            UserError: As in `plugins.run_plugin`, or `plugin` cannot be a path.
        """
        pairs = dict(self.pairs or ())
        plugin = plain_value("plugin", pairs.get("plugin"))
        if "plugin" in self.texts:
            plugin = words.read(schema.all_keys()["plugin"], self.texts["plugin"])
        if plugin:
            run_plugin(plugin)

    def take(self, keys: Collection[str]) -> tuple[dict[str, str], "Unread"]:
        """Return the texts of some keys, and everything else that the user gave.

        Studies call this method for keys that belong to no recipe. A study's file may, for example,
        have a placeholder `encoder`, which the user fills with `encoder=runs/mpp`.

        Raises:
            UserError: A key is given twice, or its value is no text and no path.
        """
        taken: Values = {key: text for key, text in self.texts.items() if key in keys}
        pairs = [(key, value) for key, value in self.pairs or () if key in keys]
        for key, value in pairs:
            if not isinstance(value, str | os.PathLike | None):
                raise UserError(f"{key}={shorten(value)}: expected a text or a path")
        add_pairs(taken, ((key, os.fspath(value)) for key, value in pairs if value is not None))
        return taken, self.keep([key for key in self.keys if key not in keys])

    def keep(self, keys: Collection[str]) -> "Unread":
        """Return only some keys."""
        texts = {key: text for key, text in self.texts.items() if key in keys}
        if self.pairs is None:
            return Unread(texts)
        return Unread(texts, [pair for pair in self.pairs if pair[0] in keys])

    def with_absolute_plugin(self) -> "Unread":
        """Return the same keys, with the path of an existing plugin made absolute."""
        path, others = self.take(("plugin",))
        if not path or not exists(path["plugin"]):
            return self
        return others._replace(texts=others.texts | {"plugin": os.path.realpath(path["plugin"])})

    def read(self) -> Given:
        """Return the values, after running the plugin that the user named.

        Values of `recipe`, `data` and `model` (NAMED) stay texts, because they name a file or a row
        of a table. The word `sweep` is refused, because it asks for several runs.

        Raises:
            UserError: A key is unknown or given twice, or a value is of no type that a key can
                have. Whether the key may have this value is checked by `load.resolve`.
        """
        if SWEEP in self.keys:
            text = "this function makes a single run. For a sweep, use ssl_vit.study"
            raise UserError(f"{SWEEP}: {text}.")
        self.run_plugin()
        words.check_keys(key for key in self.keys if key not in NAMED)
        known = schema.all_keys()
        values: Values = {
            key: text if key in NAMED else words.read(known[key], text)
            for key, text in self.texts.items()
        }
        add_pairs(values, ((key, plain_value(key, value)) for key, value in self.pairs or ()))
        return Given(values, self.texts, COMMAND_LINE if self.pairs is None else PYTHON)


def from_words(options: Iterable[str]) -> Given:
    """Return the values of a recipe from words of the form key=value.

    Raises:
        UserError: A word is not key=value, or as in `Unread.read`.
    """
    return Unread(words.parse(options)).read()


def from_values(values: Mapping[str, Any]) -> Given:
    """Return the values of a recipe from {dotted key: value}, such as the options of a task.

    Raises:
        UserError: As in `Unread.read`.
    """
    return Unread({}, [*values.items()]).read()


def from_python(options: Options, keywords: Mapping[str, Any]) -> Given:
    """Return the values of a recipe from the arguments of a Python function.

    Args:
        options, keywords: As in `python_arguments`.

    Raises:
        UserError: `options` holds neither values nor words, a key is unknown or given twice, or a
            value is of no type that a key can have.
    """
    arguments = python_arguments(options, keywords)
    # `read` first runs the plugin, which may declare some of the keys, and then converts the values
    return Unread(words.parse(arguments.words), arguments.pairs).read()


def python_arguments(
    options: Options, keywords: Mapping[str, Any], positional: str = ""
) -> Arguments:
    """Return the arguments of a Python function, such as `ssl_vit.pretrain`, as words and values.

    Args:
        options: The first argument of the function, in one of these forms:
            - a mapping, nested or with dotted keys: {"recipe": "mpp", "optim": {"steps": 100}}
            - words: ["recipe=mpp", "optim.steps=100"], or "recipe=mpp optim.steps=100", which is
              split like a shell does
            - the path of a file or folder, for a function with `positional`: "runs/mpp"
        keywords: Keyword arguments of the function, in the form of the mapping.
        positional: Key that a path alone sets, such as `init`; empty if the function takes no path.

    Raises:
        UserError: `options` holds neither values nor words.
    """
    if isinstance(options, Mapping):
        return Arguments([], [*dotted_pairs(options), *dotted_pairs(keywords)])
    return Arguments(_option_words(options, positional), [*dotted_pairs(keywords)])


def add_pairs(values: Values, pairs: Iterable[tuple[str, Any]]) -> None:
    """Add keys and values to {key: value}.

    Raises:
        UserError: A key has another value already.
    """
    for key, value in pairs:
        if key in values and values[key] != value:
            both = f"{option_text(values[key])} and {option_text(value)}"
            raise UserError(f"{key} is given twice: {both}. Use a single value.")
        values[key] = value


def plain_value(key: str, value: Any) -> Any:
    """Return a value from Python in the type that the key takes.

    `recipe`, `data` and `model` (NAMED) take the name of a recipe, data set or model, or a path.
    Every other key converts the value (`keys.convert`). Bounds are not checked.

    Raises:
        UserError: The value is of no type that a key can have, is None for a key that does not take
            None, or is no text for a key that takes only texts.
    """
    check_type(key, value)
    if key in NAMED:
        if not isinstance(value, str | os.PathLike):
            raise UserError(f"{key}={option_text(value)}: expected a name")
        return os.fspath(value)
    recipe_key = schema.all_keys()[key]
    converted = convert(recipe_key, value)
    takes_text = recipe_key.types <= {str, type(None)} and not recipe_key.is_list
    is_null = converted is None
    if is_null and type(None) not in recipe_key.types:
        raise value_error(recipe_key, None)
    if takes_text and not is_null and not isinstance(converted, str):
        raise value_error(recipe_key, value)
    return converted


def check_type(key: str, value: Any) -> None:
    """Check that a value from Python is of a type that a key can have.

    Raises:
        UserError: It is not.
    """
    if isinstance(value, list | tuple):
        for item in value:
            check_type(key, item)
    elif isinstance(value, Mapping):
        for item in value.values():
            check_type(key, item)
    # a NumPy number has an empty shape
    elif not (
        isinstance(value, str | bool | int | float | os.PathLike | None)
        or getattr(value, "shape", None) == ()
    ):
        text = "expected a text, a number, True, False, None, a path or a list"
        if hasattr(value, "save_to_disk"):
            text = 'expected a path. Call save_to_disk("photos") and use data.path=photos.'
        raise UserError(f"{key}={shorten(value)}: {text}")


def _option_words(options: Any, positional: str) -> list[str]:
    """Return the key=value words of options that are a path, a text or a list of words.

    Args:
        options: Options that are not a mapping.
        positional: Key that a path alone stands for, such as `init` for `runs/mpp`; empty if the
            path stays as it is.
    """
    if isinstance(options, os.PathLike):
        return [f"{positional}={os.fspath(options)}" if positional else os.fspath(options)]
    if not isinstance(options, str):
        if isinstance(options, Keys):
            raise UserError(
                "a Recipe: this function takes options and not a whole Recipe. Write"
                " recipe='runs/NAME/recipe.yaml'."
            )
        if not isinstance(options, Iterable):
            raise UserError(f"{shorten(options)}: expected a mapping, a list of words or a text")
        typed = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in options]
        for word in typed:
            if not isinstance(word, str):
                raise UserError(f"{shorten(word)}: expected key=value, as in recipe=mpp")
        return typed
    # A text is a path if the path exists, or if the text has no key=value and no --option.
    has_options = re.search(r"=|(^|\s)--", options)
    if options and (exists(options) or not has_options):
        return [f"{positional}={options}" if positional else options]
    try:
        return shlex.split(options)
    except ValueError as error:
        raise UserError(
            f"{shorten(options)}: {error}. Write the options as in a shell, for example"
            " 'recipe=mpp name=\"my run\"'."
        ) from None


def dotted_pairs(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and values of a nested mapping.

    {"optim": {"lr": 1}} gives ("optim.lr", 1). A mapping two levels down is the value of a key, as
    in {"model": {"args": {...}}}. {"model": {"name": "vit_s16"}} gives ("model", "vit_s16"),
    because the name of a model or data set is typed as model=NAME or data=NAME. The mapping under
    `sweep` is a value too, because its keys are not keys of the recipe but values to try.

    Args:
        options: The mapping. Its keys may also be dotted.
        prefix: Start of each dotted key, for calls of this function from itself.
    """
    group = prefix.removesuffix(".")
    for key, value in options.items():
        is_group = isinstance(value, Mapping) and "." not in f"{prefix}{key}" and key != SWEEP
        if is_group:
            yield from dotted_pairs(value, f"{prefix}{key}.")
        elif key == "name" and group in PRESETS:
            yield group, value
        else:
            yield f"{prefix}{key}", value


def shorten(value: Any) -> str:
    """Return a value from Python in at most 60 characters, for an error."""
    return " ".join(repr(value).split())[:60]
