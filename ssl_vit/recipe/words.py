"""Parse and write arguments of the form key=value. This module does not import torch."""

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
NAMED = ("recipe", *PRESETS)  # keys whose values name a recipe file or a row of a table
SWEEP = "sweep"
# Characters that a text inside brackets would not keep without quotes
SPECIAL = re.compile(r"^$|[\s,\[\]{}:#'\"&*!|<>%@`\\?]")


def parse(words: Iterable[str]) -> dict[str, str]:
    """Parse arguments of the form key=value into {key: text}.

    For example, ["recipe=mpp", "optim.lr=0.1"] gives {"recipe": "mpp", "optim.lr": "0.1"}.

    Args:
        words: Arguments of a command line.

    Raises:
        UserError: An argument is not key=value or has a control character, a key has two different
            values, or the argument is `sweep`, which asks for several runs.
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
    """Parse the text typed for a key into a value, without checking the value.

    - A key that takes only texts gets the text: name=2024 gives "2024".
    - A key that takes no texts gets the value that YAML 1.2 gives: optim.lr=1e-3 gives 0.001.
    - A key that takes texts and numbers gets a number if the text is a number: data.validation=0.1
      gives 0.1, data.validation=val gives "val".
    - null and none give None if the key takes None.
    - An empty text stays an empty text: key=$UNSET in a shell gives "".
    - Double quotes turn null, none, true, false or a number into a text: data.group='"none"' gives
      "none". Quotes around any other text are part of the text.
    """
    value = _read(key, text)
    unquoted = text[1:-1]
    is_quoted = str in key.types and unquoted and text[0] == text[-1] == '"'
    # '"none"' gives "none", because none without quotes gives None. '"mine"' keeps its quotes.
    if is_quoted and read(key, unquoted) != unquoted:
        return unquoted
    return value


def _read(key: Key, text: str) -> Any:
    """Parse a text like `read`, but do not remove double quotes."""
    if type(None) in key.types and text.lower() in NULLS:
        return None  # data.group=none
    takes_only_texts = key.types <= {str, Path, type(None)} and not key.is_list
    if not text.strip() or takes_only_texts:
        return text  # name=2024
    try:
        value = convert(key, yaml_word(text))
    except ValueError:  # the text is not YAML; the later check of the value raises the error
        return text
    if str not in key.types or key.is_list:
        return value  # optim.lr=1e-3 or probe.shots=[1,5]
    # The key takes texts and other types. A number gives a number. true and false give a bool only
    # if the key takes bools. Anything else stays a text.
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
        keys: Dotted keys to check.
        where: Start of the error, such as the path of a file; empty for keys that the user typed.
        known: Allowed keys. Default: all keys of recipes.
        others: More names that the error may suggest, such as options of a tool.

    Raises:
        UserError: Some keys are unknown. For each unknown key, the error suggests the nearest key
            or lists the choices.
    """
    known = schema.all_keys() if known is None else known
    # Users type data=NAME or model=NAME, which sets all keys of the group. Only files have
    # data.name, together with the other keys of the group.
    not_for_users = ("data.name", "model.name") if not where else ()
    unknown = [key for key in keys if key not in known or key in not_for_users]
    if unknown:
        problems = " ".join(_unknown_key(key, [*others, *known]) for key in unknown)
        raise UserError(f"{where}{problems}")


def _unknown_key(key: str, known: Collection[str]) -> str:
    """Return what is wrong with an unknown key, and what to write instead.

    For example, `lr` gives "unknown key lr; did you mean optim.lr?".
    """
    if key in ("data.name", "model.name"):
        preset = key.split(".")[0]
        return f"{key}: use {preset}=NAME instead."
    group = key.split(".")[0]
    siblings = [name for name in known if name.startswith(f"{group}.")]
    if "." not in key and siblings:
        return f"{key} is a group of keys. Choose from: {', '.join(siblings)}."
    # The group may be missing: `lr` for `optim.lr`, or `every` for `eval.every` and `probe.every`
    if same_name := [name for name in known if name.rpartition(".")[2] == key]:
        return f"unknown key {key}; did you mean {' or '.join(same_name)}?"
    # Suggest the nearest key. If no key is near, list the keys of the same group. If the group is
    # unknown too, list keys without a group, such as `seed`, and groups, such as `optim.`.
    nearest = difflib.get_close_matches(key, known, n=1)
    top_level = {"".join(name.partition(".")[:2]) for name in known} | {"recipe"}
    return f"unknown key {key}; {suggest(key, nearest or siblings or sorted(top_level))}"


def write_all(values: Mapping[str, Any]) -> list[str]:
    """Return {dotted key: value} as a list of arguments key=value."""
    return [write(key, value) for key, value in values.items()]


def write(key: str, value: Any) -> str:
    """Return the argument key=value for a value.

    Quote a string that `read` would parse as another value: ("data.group", "none") gives
    data.group="none".
    """
    text = _text(value)
    known = schema.all_keys().get(key)
    if isinstance(value, str) and known and read(known, text) != value:
        text = f'"{text}"'
    return f"{key}={text}"


def _text(value: Any) -> str:
    """Format a value as a user would type it after `key=`.

    Strings inside lists and mappings are quoted where needed: ["a b", "c"] becomes ["a b",c]. The
    function `option_text` never adds such quotes.
    """
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_element, value))}]"
    if isinstance(value, Mapping):
        pairs = (f"{name}: {_element(item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return option_text(value)


def _element(value: Any) -> str:
    """Format a value inside brackets.

    Quote a string that YAML would not read as the same string: "true" and "a,b" need quotes.
    """
    text = _text(value)
    needs_quotes = isinstance(value, str) and (SPECIAL.search(text) or yaml_word(text) != text)
    return json.dumps(text, ensure_ascii=False) if needs_quotes else text
