"""Read what a user gave for a recipe: arguments key=value of a command line, or Python values.

The text of an argument is parsed here, and only here. This module does not import torch.
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
Pairs = list[tuple[str, Any]]  # dotted keys and values; a key that is given twice has two pairs

COMMAND_LINE, PYTHON = "command line", "Python"


@dataclass(frozen=True)
class Given:
    """Values that a user gave for a recipe.

    Attributes:
        values: {dotted key: value}, and the names of a recipe file (`recipe`) and of presets
            (`data`, `model`).
        texts: {dotted key: text as typed}, for error messages. Only for values given as key=value.
        origin: COMMAND_LINE or PYTHON.
    """

    values: Values = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    origin: str = PYTHON

    @property
    def words(self) -> list[str]:
        """Values as arguments key=value, as the user typed or would type them."""
        return [f"{key}={self.text(key)}" for key in self.values]

    def text(self, key: str) -> str:
        """Return the value of a key as the user typed it, or as the user would type it.

        For a value from Python, True gives "true".
        """
        if key in self.texts:
            return self.texts[key]
        return words.write(key, self.values[key]).removeprefix(f"{key}=")

    def with_values(self, values: Values) -> "Given":
        """Return a copy with more values. A new value replaces a present value of the same key."""
        texts = {key: text for key, text in self.texts.items() if key not in values}
        return replace(self, values=self.values | values, texts=texts)

    def without(self, keys: Iterable[str]) -> "Given":
        """Return a copy without some keys."""
        left_out = {*keys}
        values = {key: self.values[key] for key in self.values if key not in left_out}
        return replace(self, values=values)


class Arguments(NamedTuple):
    """Arguments of a tool, from a command line or from a Python function.

    Attributes:
        words: Arguments such as "recipe=mpp". A Python function also accepts them.
        pairs: Keys and values from Python. None on the command line.
    """

    words: list[str]
    pairs: Pairs | None = None

    def split(self, keys: Collection[str]) -> tuple["Arguments", "Arguments"]:
        """Split the arguments into arguments that set some keys, and all other arguments.

        For example, ["recipe=mpp", "--json"] with the keys ["json"] gives ["--json"] and
        ["recipe=mpp"].
        """
        words_of_keys = [word for word in self.words if word.lstrip("-").partition("=")[0] in keys]
        other_words = [word for word in self.words if word not in words_of_keys]
        if self.pairs is None:
            return Arguments(words_of_keys), Arguments(other_words)
        pairs_of_keys = [(key, value) for key, value in self.pairs if key in keys]
        other_pairs = [(key, value) for key, value in self.pairs if key not in keys]
        return Arguments(words_of_keys, pairs_of_keys), Arguments(other_words, other_pairs)


class Unread(NamedTuple):
    """Keys of recipes that a user gave, unchecked, because the plugin that declares them may not
    have run yet.

    Attributes:
        texts: {dotted key: text as typed}.
        pairs: Keys and values from Python. None on the command line.
    """

    texts: dict[str, str]
    pairs: Pairs | None = None

    @property
    def keys(self) -> list[str]:
        """Dotted keys that the user gave."""
        return [*self.texts, *dict(self.pairs or ())]

    def text(self, key: str) -> str:
        """Return the value of a key as text, as the user typed or would type it."""
        return self.texts[key] if key in self.texts else option_text(dict(self.pairs or ())[key])

    def run_plugin(self) -> None:
        """Run the plugin that the user named with `plugin=`, if any.

        The plugin declares objectives or targets, and the keys of recipes for them.

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
        """Split off some keys, and return {key: text} and the remaining keys.

        Studies split off keys that belong to no recipe. For example, the file of a study may have a
        placeholder `encoder`, and the user gives the value with `encoder=runs/mpp`.

        Raises:
            UserError: A key has two different values, or a value is neither a text nor a path.
        """
        taken: Values = {key: text for key, text in self.texts.items() if key in keys}
        pairs = [(key, value) for key, value in self.pairs or () if key in keys]
        for key, value in pairs:
            if not isinstance(value, str | os.PathLike | None):
                raise UserError(f"{key}={shorten(value)}: expected a text or a path")
        add_pairs(taken, ((key, os.fspath(value)) for key, value in pairs if value is not None))
        return taken, self.keep([key for key in self.keys if key not in keys])

    def keep(self, keys: Collection[str]) -> "Unread":
        """Return a copy with only some keys."""
        texts = {key: text for key, text in self.texts.items() if key in keys}
        if self.pairs is None:
            return Unread(texts)
        return Unread(texts, [(key, value) for key, value in self.pairs if key in keys])

    def with_absolute_plugin(self) -> "Unread":
        """Return a copy in which the path of the plugin is absolute, if the plugin exists."""
        texts, others = self.take(("plugin",))
        if not texts or not exists(texts["plugin"]):
            return self
        return others._replace(texts=others.texts | {"plugin": os.path.realpath(texts["plugin"])})

    def read(self) -> Given:
        """Run the plugin that the user named, then return the values.

        Values are converted to the types of the keys. `load.resolve` checks bounds later.

        Raises:
            UserError: The plugin raises an error, a key is unknown or has two different values, a
                value has a type that no key can have, or the key `sweep` asks for several runs.
        """
        if SWEEP in self.keys:
            text = "this function makes a single run. For a sweep, use ssl_vit.study"
            raise UserError(f"{SWEEP}: {text}.")
        self.run_plugin()
        words.check_keys(key for key in self.keys if key not in NAMED)
        known = schema.all_keys()
        # values of NAMED are names of a recipe file, a data set and a model, which stay texts
        values: Values = {
            key: text if key in NAMED else words.read(known[key], text)
            for key, text in self.texts.items()
        }
        add_pairs(values, ((key, plain_value(key, value)) for key, value in self.pairs or ()))
        return Given(values, self.texts, COMMAND_LINE if self.pairs is None else PYTHON)


def from_words(options: Iterable[str]) -> Given:
    """Read the values of a recipe from arguments such as ["recipe=mpp", "optim.lr=0.1"].

    Raises:
        UserError: An argument is not key=value, or as in `Unread.read`.
    """
    return Unread(words.parse(options)).read()


def from_values(values: Mapping[str, Any]) -> Given:
    """Read the values of a recipe from {dotted key: value}, such as {"optim.lr": 0.1}.

    Raises:
        UserError: As in `Unread.read`.
    """
    return Unread({}, [*values.items()]).read()


def from_python(options: Options, keywords: Mapping[str, Any]) -> Given:
    """Read the values of a recipe from the arguments of a Python function.

    Args:
        options: First argument of the function, such as "recipe=mpp" (see `python_arguments`).
        keywords: Keyword arguments of the function, such as recipe="mpp".

    Raises:
        UserError: `options` has an unknown form, or as in `Unread.read`.
    """
    arguments = python_arguments(options, keywords)
    return Unread(words.parse(arguments.words), arguments.pairs).read()


def python_arguments(
    options: Options, keywords: Mapping[str, Any], positional: str = ""
) -> Arguments:
    """Return the arguments of a Python function, such as `ssl_vit.pretrain`, in a uniform form.

    Args:
        options: First argument of the function, in one of these forms:
            - a mapping, nested or with dotted keys: {"recipe": "mpp", "optim": {"steps": 100}}
            - a list of arguments key=value: ["recipe=mpp", "optim.steps=100"]
            - a string, which is split as in a shell: "recipe=mpp optim.steps=100"
            - the path of a file or folder, for a function with `positional`: "runs/mpp"
        keywords: Keyword arguments of the function, such as recipe="mpp", optim={"steps": 100}.
        positional: Key that a path sets, such as `init`. Empty if the function takes no path.

    Raises:
        UserError: `options` has none of these forms.
    """
    if isinstance(options, Mapping):
        return Arguments([], [*dotted_pairs(options), *dotted_pairs(keywords)])
    return Arguments(_option_words(options, positional), [*dotted_pairs(keywords)])


def add_pairs(values: Values, pairs: Iterable[tuple[str, Any]]) -> None:
    """Add keys and values to a dictionary, in place.

    Raises:
        UserError: A key already has another value. The same value is no error.
    """
    for key, value in pairs:
        if key in values and values[key] != value:
            both = f"{option_text(values[key])} and {option_text(value)}"
            raise UserError(f"{key} is given twice: {both}. Use a single value.")
        values[key] = value


def plain_value(key: str, value: Any) -> Any:
    """Convert a value from Python to the type of a key (`keys.convert`), without checking bounds.

    For example, a NumPy float of 0.1 gives 0.1, and a Path gives a text.

    Raises:
        UserError: The value has a type that no key can have, is None for a key that does not take
            None, or is no text for a key that takes only texts.
    """
    check_type(key, value)
    if key in NAMED:  # the name of a recipe, data set or model, or the path of a recipe file
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
    """Check that a value from Python has a type that a key can have.

    Raises:
        UserError: The value has another type.
    """
    if isinstance(value, list | tuple):
        for item in value:
            check_type(key, item)
    elif isinstance(value, Mapping):
        for item in value.values():
            check_type(key, item)
    # anything that is neither one of these types nor a NumPy number, which has an empty shape
    elif not (
        isinstance(value, str | bool | int | float | os.PathLike | None)
        or getattr(value, "shape", None) == ()
    ):
        text = "expected a text, a number, True, False, None, a path or a list"
        if hasattr(value, "save_to_disk"):
            text = 'expected a path. Call save_to_disk("photos") and use data.path=photos.'
        raise UserError(f"{key}={shorten(value)}: {text}")


def _option_words(options: Any, positional: str) -> list[str]:
    """Convert options that are a path, a string or a list of strings to arguments key=value.

    For example, "recipe=mpp seed=1" gives ["recipe=mpp", "seed=1"]. With `positional="init"`,
    "runs/mpp" gives ["init=runs/mpp"].

    Args:
        options: Options that are not a mapping.
        positional: Key that a path sets, such as `init`. If it is empty, a path is returned
            unchanged.
    """
    if isinstance(options, os.PathLike):
        return [f"{positional}={os.fspath(options)}" if positional else os.fspath(options)]
    if not isinstance(options, str):
        if isinstance(options, Keys):
            raise UserError(
                "a Recipe: this function takes options, not a Recipe object. Write"
                " recipe='runs/NAME/recipe.yaml'."
            )
        if not isinstance(options, Iterable):
            raise UserError(f"{shorten(options)}: expected a mapping, a list of words or a text")
        typed = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in options]
        for word in typed:
            if not isinstance(word, str):
                raise UserError(f"{shorten(word)}: expected key=value, as in recipe=mpp")
        return typed
    # a string is a path if the path exists, or if the string has no key=value and no --option
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

    - {"optim": {"lr": 1}} gives ("optim.lr", 1).
    - {"model": {"args": {"dim": 8}}} gives ("model.args", {"dim": 8}), as there is only one level
      of groups.
    - {"model": {"name": "vit_s16"}} gives ("model", "vit_s16"), as in model=NAME and data=NAME.
    - {"sweep": {...}} gives ("sweep", {...}), because the mapping has values to try.

    Args:
        options: Nested mapping, whose keys may also be dotted.
        prefix: Start of each dotted key, used in the recursion.
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
    """Return the repr of a value in one line of at most 60 characters, for an error."""
    return " ".join(repr(value).split())[:60]
