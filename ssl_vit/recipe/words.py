"""Turn the words of a command line, or the arguments of a Python call, into {dotted key: value}.

This module does not import torch.
"""

import difflib
import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
from ..formatting import option_text, typed_command
from . import schema
from .keys import FLAG, Key, Keys, Values, convert, value_error
from .names import NO_CONTROL, has_control
from .parsing import exists, yaml_word

Options = str | os.PathLike[str] | Iterable[str] | Mapping[str, Any]

NULLS = ("null", "none")
# groups whose key `name` is typed as the group: model=NAME sets model.name
PRESETS = ("data", "model")
NAMED = ("recipe", *PRESETS)  # keys whose values name a file or a row of a table
SWEEP = "sweep"
# Characters that a text inside brackets would not keep without quotes
SPECIAL = re.compile(r"^$|[\s,\[\]{}:#'\"&*!|<>%@`\\?]")


def parse(words: Iterable[str]) -> dict[str, str]:
    """Return {key: text} for words of the form key=value.

    The order of words never matters, so no key may have two values.

    Raises:
        UserError: A word is not key=value, a key has two values, or a text cannot be a value.
    """
    texts: dict[str, str] = {}
    words = list(words)
    if SWEEP in words:
        command = typed_command("study", *words)
        raise UserError(f"{SWEEP}: this tool makes a single run. For a sweep, type {command}")
    for word in words:
        if not isinstance(word, str):
            raise UserError(f"{word!r}: expected key=value, as in recipe=mpp")
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"{word}: expected key=value, as in recipe=mpp")
        if has_control(word):
            raise UserError(f"{key}={' '.join(text.split())}: {NO_CONTROL}")
        if texts.setdefault(key, text) != text:
            raise UserError(f"{key} is given twice: {texts[key]} and {text}. Use a single value.")
    return texts


def typed(texts: Mapping[str, str]) -> Values:
    """Convert the texts of keys of a recipe into values, checking only the keys.

    Raises:
        UserError: As in `check_keys`.
    """
    check_keys(texts)
    known = schema.all_keys()
    return {key: read(known[key], text) for key, text in texts.items()}


def read(key: Key, text: str) -> Any:
    """Convert the text of a key into a value, without checking whether the key may have this value.

    A key that takes only texts gets the text. Other keys get what YAML 1.2 reads. A key that takes
    texts and other types gets the text, unless the text is a number, or is true or false and the
    key takes those. An empty text stays an empty text, because a shell produces one from a variable
    that is not set.
    """
    if type(None) in key.types and text.lower() in NULLS:
        return None
    if not text.strip() or (key.types <= {str, Path, type(None)} and not key.is_list):
        return text
    try:
        value = convert(key, yaml_word(text))
    except ValueError:
        return text
    keeps_text = str in key.types and not key.is_list
    others = {int, float} | (key.types & {bool})
    return text if keeps_text and type(value) not in others else value


def check_keys(
    keys: Iterable[str],
    where: str = "",
    known: Collection[str] | None = None,
    others: Collection[str] = (),
) -> None:
    """Check that dotted keys are keys of recipes.

    Args:
        keys: Dotted keys, without the options of the tool.
        where: Start of the error, such as the path of a file.
        known: Keys that may be given; by default all.
        others: Options of the tool, which the user may have meant.

    Raises:
        UserError: Some keys are unknown. The line names each with the nearest key, or with the
            choices.
    """
    known = schema.all_keys() if known is None else known
    typed = ("data.name", "model.name") if not where else ()
    if unknown := [key for key in keys if key not in known or key in typed]:
        named = " ".join(_unknown_key(key, [*others, *known]) for key in unknown)
        raise UserError(f"{where}{named}")


def _unknown_key(key: str, known: Collection[str]) -> str:
    """Return what is wrong with an unknown key, and what to write instead."""
    if key in ("data.name", "model.name"):
        preset = key.split(".")[0]
        return f"{key}: use {preset}=NAME instead."
    siblings = [name for name in known if name.startswith(f"{key.split('.')[0]}.")]
    if "." not in key and siblings:
        return f"{key} is a group of keys. Choose from: {', '.join(siblings)}."
    # for example, lr for optim.lr, or every for the key of several groups
    if near := [name for name in known if name.rpartition(".")[2] == key]:
        return f"unknown key {key}; did you mean {' or '.join(near)}?"
    # names of keys outside groups, and of groups followed by a dot
    tops = {"".join(name.partition(".")[:2]) for name in known}
    near = difflib.get_close_matches(key, known, n=1)
    return f"unknown key {key}; {suggest(key, near or siblings or sorted({*tops, 'recipe'}))}"


def is_null(text: str | None) -> bool:
    """Return whether the text given for a key is missing, empty or null."""
    return text is None or text.lower() in ("", *NULLS)


def from_python(
    options: Options,
    keywords: Mapping[str, Any],
    tool_options: Mapping[str, Key],
    positional: str = "",
) -> list[str]:
    """Return a call from Python as the words of the same command line.

    Args:
        options: A mapping, nested or with dotted keys; words, in a list or in one string, which is
            split like a shell does; or, for a tool that takes one, the path of a file or folder.
        keywords: More keys of the mapping.
        tool_options: {name: key} of the tool's own options.
        positional: Key that a path alone sets; empty for none.

    Raises:
        UserError: A value cannot be written on a command line. The meaning of keys and values is
            not checked.
    """
    mappings = [options, keywords] if isinstance(options, Mapping) else [keywords]
    texts = [] if isinstance(options, Mapping) else _option_words(options, positional)
    place = texts.index(SWEEP) if SWEEP in texts else len(texts)
    plain = [
        word
        for mapping in mappings
        for key, value in _pairs({key: item for key, item in mapping.items() if key != SWEEP})
        for word in _words(key, value, tool_options.get(key))
    ]
    swept = [word for mapping in mappings for word in _sweep_words(mapping.get(SWEEP))]
    # options that hold for all arms come before the word for the sweep
    mark = [SWEEP] if swept and SWEEP not in texts else []
    return [*texts[:place], *plain, *mark, *texts[place:], *swept]


def _option_words(options: Any, positional: str) -> list[str]:
    """Return the words of options that are not a mapping."""
    if isinstance(options, os.PathLike):
        return [f"{positional}={os.fspath(options)}" if positional else os.fspath(options)]
    if not isinstance(options, str):
        if isinstance(options, Keys):
            raise UserError("a Recipe: expected options. Write recipe='runs/NAME/recipe.yaml'.")
        if not isinstance(options, Iterable):
            raise UserError(f"{_shorten(options)}: expected a mapping, a list of words or a text")
        texts = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in options]
        for word in texts:
            if not isinstance(word, str):
                raise UserError(f"{_shorten(word)}: expected key=value, as in recipe=mpp")
        return texts
    if options and (exists(options) or not re.search(r"=|(^|\s)--", options)):
        return [f"{positional}={options}" if positional else options]
    try:
        return shlex.split(options)
    except ValueError as error:
        raise UserError(f"{_shorten(options)}: {error}. Write the options as in a shell.") from None


def _pairs(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values, twice for a key that is given twice.

    A mapping inside a group of keys is a value.
    """
    for key, value in options.items():
        if isinstance(value, Mapping) and "." not in f"{prefix}{key}":
            yield from _pairs(value, f"{prefix}{key}.")
        elif key == "name" and prefix.removesuffix(".") in PRESETS:
            yield prefix.removesuffix("."), value
        else:
            yield f"{prefix}{key}", value


def _words(key: str, value: Any, option: Key | None) -> Iterator[str]:
    """Yield the word of an option, or nothing for a flag that is not set or a tool's option that is
    None by default and None here.

    Raises:
        UserError: The key takes no None, which would become the text null.
    """
    if option is not None and value is None and option.default is None:
        return
    known = option or schema.all_keys().get(key)
    if value is None and known is not None and type(None) not in known.types:
        raise value_error(known, None)
    of_text = known is not None and not known.is_list and known.types <= {str, type(None)}
    if known is not None and option is None and of_text and isinstance(value, bool | list | tuple):
        raise value_error(known, value)
    if value is None and key in NAMED:
        raise UserError(f"{key}=null: expected a name")
    if option is not None and option.form == FLAG:
        if not isinstance(value, bool):
            raise UserError(f"{key}={_shorten(value)}: expected True or False")
        if value:
            yield f"--{key}"
        return
    single = isinstance(value, os.PathLike) and option is not None and option.is_list
    yield f"{key}={_text(key, [value] if single else value)}"


def _sweep_words(swept: Any) -> Iterator[str]:
    """Yield the words of the keys to sweep."""
    if not isinstance(swept, Mapping | None):
        raise UserError(
            f"{SWEEP}={_shorten(swept)}: expected a mapping from keys to lists of values"
        )
    for key, value in _pairs(swept or {}):
        several = value if isinstance(value, list | tuple) else [value]
        yield f"{key}={','.join(_swept_text(key, item) for item in several)}"


def _swept_text(key: str, value: Any) -> str:
    """Return the text of a value among the values of a swept key.

    Raises:
        UserError: The key takes no None, or the text would be read as several values.
    """
    option = schema.all_keys().get(key)
    if value is None and option is not None and type(None) not in option.types:
        raise value_error(option, None, f"{SWEEP}: ")
    text = _text(key, value)
    in_brackets = text[:1] + text[-1:] in ("[]", "{}")
    if "," in text and not in_brackets:
        expected = "expected a list of values without commas"
        raise UserError(f"{SWEEP}: {key}={_shorten(value)}: {expected}")
    return text


def _text(key: str, value: Any) -> str:
    """Return a value in the form that a user would type.

    Raises:
        UserError: The value cannot be typed.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(_element(key, item) for item in value)}]"
    if isinstance(value, Mapping):
        # Texts get quotes: without them, true would be no text.
        pairs = (f"{name}: {_element(key, item, quotes=True)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if getattr(value, "shape", None) == ():  # a NumPy number; str keeps its digits
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return option_text(value)
    text = "expected a text, a number, True, False, None, a path or a list"
    if hasattr(value, "save_to_disk"):
        text = 'expected a path. Call save_to_disk("photos") and use data.path=photos.'
    raise UserError(f"{key}={_shorten(value)}: {text}")


def _element(key: str, value: Any, quotes: bool = False) -> str:
    """Return the text of a value inside brackets, in quotes if needed or if `quotes` is true."""
    text = _text(key, value)
    quoted = isinstance(value, str | os.PathLike) and (quotes or SPECIAL.search(text))
    return json.dumps(text, ensure_ascii=False) if quoted else text


def _shorten(value: Any) -> str:
    return " ".join(repr(value).split())[:60]
