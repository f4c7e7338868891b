"""Read and write the words of a command line. This module does not import torch."""

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
from ..formatting import option_text, typed_command
from . import schema
from .keys import Key, convert
from .names import NO_CONTROL, has_control
from .parsing import yaml_word

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


def read(key: Key, text: str) -> Any:
    """Convert the text of a key into a value, without checking whether the key may have this value.

    A key that takes only texts gets the text. Other keys get what YAML 1.2 reads. A key that takes
    texts and other types gets the text, unless the text is a number, or is true or false and the
    key takes those. An empty text stays an empty text, because a shell produces one from a variable
    that is not set. Double quotes make a text of null, none, true, false or a number, where the key
    takes both: data.group='"none"'.
    """
    value = _read(key, text)
    inside = text[1:-1]
    is_quoted = str in key.types and inside and text[0] == text[-1] == '"'
    return inside if is_quoted and read(key, inside) != inside else value


def _read(key: Key, text: str) -> Any:
    """Return `read` for a text in which quotes have no meaning."""
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


def write_all(values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that give these values: {dotted key: value}."""
    return [write(key, value) for key, value in values.items()]


def write(key: str, value: Any) -> str:
    """Return the word of a command line that gives a key this value."""
    text = _text(value)
    known = schema.all_keys().get(key)
    if isinstance(value, str) and known and read(known, text) != value:
        text = f'"{text}"'
    return f"{key}={text}"


def _text(value: Any) -> str:
    """Return a value in the form that a user would type."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_element, value))}]"
    if isinstance(value, Mapping):
        pairs = (f"{name}: {_element(item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return option_text(value)


def _element(value: Any) -> str:
    """Return the text of a value inside brackets, in quotes if it would be read as another value
    without quotes.
    """
    text = _text(value)
    needs_quotes = isinstance(value, str) and (SPECIAL.search(text) or yaml_word(text) != text)
    return json.dumps(text, ensure_ascii=False) if needs_quotes else text
