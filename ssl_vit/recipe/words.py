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

    - A key that takes only texts gets the text: name=2024 gives "2024".
    - A key that takes no texts gets what YAML 1.2 reads: optim.lr=1e-3 gives 0.001.
    - A key that takes texts and other types gets a number for a number, and a text for a text:
      data.validation=0.1 gives 0.1, data.validation=val gives "val".
    - null and none give None if the key takes None.
    - An empty text stays an empty text: key=$UNSET in a shell gives "".
    - Double quotes turn null, none, true, false or a number into a text: data.group='"none"' gives
      "none". Quotes around any other text are part of the text.
    """
    value = _read(key, text)
    inside = text[1:-1]
    is_quoted = str in key.types and inside and text[0] == text[-1] == '"'
    if is_quoted and read(key, inside) != inside:  # without quotes, it would not be a text
        return inside
    return value


def _read(key: Key, text: str) -> Any:
    """Convert the text of a key into a value as `read` does, with quotes as part of the text.

    The result depends on what the key takes:
    - null or none, if the key takes None: None
    - only texts: the text
    - no texts, or a list: what YAML reads
    - texts and other types: a number for a number; true or false if the key takes them; otherwise
      the text

    An empty text, and a text that is not YAML, stay as they are.
    """
    if type(None) in key.types and text.lower() in NULLS:
        return None  # data.group=none
    takes_only_texts = key.types <= {str, Path, type(None)} and not key.is_list
    if not text.strip() or takes_only_texts:
        return text  # name=2024
    try:
        value = convert(key, yaml_word(text))
    except ValueError:  # no YAML; the check of the value names the error
        return text
    if str not in key.types or key.is_list:
        return value  # optim.lr=1e-3 or probe.shots=[1,5]
    # The key takes texts and other types. A number is always read as a number, and true or false
    # only if the key takes them.
    types_before_text = {int, float} | (key.types & {bool})
    return value if type(value) in types_before_text else text


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
    # Users name a data set or model with data=NAME or model=NAME, which also gives the other keys
    # of the group. Only files may have data.name, next to these other keys.
    not_for_users = ("data.name", "model.name") if not where else ()
    unknown = [key for key in keys if key not in known or key in not_for_users]
    if unknown:
        problems = " ".join(_unknown_key(key, [*others, *known]) for key in unknown)
        raise UserError(f"{where}{problems}")


def _unknown_key(key: str, known: Collection[str]) -> str:
    """Return what is wrong with an unknown key, and what to write instead."""
    if key in ("data.name", "model.name"):
        preset = key.split(".")[0]
        return f"{key}: use {preset}=NAME instead."
    siblings = [name for name in known if name.startswith(f"{key.split('.')[0]}.")]
    if "." not in key and siblings:
        return f"{key} is a group of keys. Choose from: {', '.join(siblings)}."
    # the name without its group: `lr` for `optim.lr`, or `every` for `eval.every` and `probe.every`
    if same_name := [name for name in known if name.rpartition(".")[2] == key]:
        return f"unknown key {key}; did you mean {' or '.join(same_name)}?"
    # Suggest the nearest key, or else the keys of the same group, or else the top level: keys
    # outside groups, such as `seed`, and groups with a dot, such as `optim.`
    nearest = difflib.get_close_matches(key, known, n=1)
    top_level = {"".join(name.partition(".")[:2]) for name in known} | {"recipe"}
    return f"unknown key {key}; {suggest(key, nearest or siblings or sorted(top_level))}"


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
    """Return a value in the form that a user would type after `key=`.

    `option_text` does this for simple values. Here, texts inside lists and mappings are also quoted
    where needed: ["a b", "c"] becomes ["a b",c].
    """
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
