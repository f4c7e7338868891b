"""Options as a Python caller gives them -> the words of a command line, for the same parsers. No
torch here."""

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

from ..errors import UserError
from ..formatting import option_text
from .fields import FLAG, Option
from .parsing import exists
from .tool_options import ToolOptions, option_name

Options = str | os.PathLike[str] | Iterable[str] | Mapping[str, Any]

PRESETS = ("data", "model")  # groups whose `name` is typed as the group itself
SWEEP = "sweep"
# What a list's text in brackets would not keep as it is
SPECIAL = re.compile(r"^$|[\s,\[\]{}:#'\"&*!|<>%@`\\]")


def words(
    options: Options, keywords: Mapping[str, Any], kind: type[ToolOptions] | None = None
) -> list[str]:
    """The words of the command line that says the same.

    Args:
        options: a mapping, nested or with dotted keys; words as a list or in one string, which is
            divided as a shell does; or the path of a file or folder, of a tool that takes one.
        keywords: more of a mapping.
        kind: the tool's options; None where all are keys of a recipe.

    Raises:
        UserError: an option is for the command line alone, or its value is nothing that a command
            line can say. What a key or a value means is not looked at.
    """
    found = [*_given(options, kind), *_of_mapping(keywords, kind)]
    own = kind.options() if kind else {}
    typed = {option_name(own[key]): key for key in kind.command_line_only} if kind else {}
    for word in found:
        if key := typed.get(word.partition("=")[0]):
            raise UserError(f"{key}: is for the command line; a function of Python has no {key}=")
    return found


def _given(options: Options, kind: type[ToolOptions] | None) -> list[str]:
    if isinstance(options, Mapping):
        return _of_mapping(options, kind)
    positional = kind.positional if kind else ""
    if isinstance(options, os.PathLike) or (
        isinstance(options, str) and options and exists(options)
    ):
        place = os.fspath(options)
        return [f"{positional}={place}" if positional else place]
    if isinstance(options, str):
        return shlex.split(options)
    return [os.fspath(word) for word in options]


def _of_mapping(options: Mapping[str, Any], kind: type[ToolOptions] | None) -> list[str]:
    """The words of a mapping; those that are swept stand last, after the word for it."""
    own = kind.options() if kind else {}
    plain = {key: value for key, value in options.items() if key != SWEEP}
    found = [word for key, value in _pairs(plain) for word in _word(key, value, own.get(key))]
    swept = options.get(SWEEP)
    if swept is None:
        return found
    if not isinstance(swept, Mapping):
        raise UserError(f"{SWEEP}={_short(swept)}: expected a mapping from keys to lists of values")
    for key, value in _pairs(swept):
        several = value if isinstance(value, list | tuple) else [value]
        texts = [_text(key, one) for one in several]
        found += [*([] if SWEEP in found else [SWEEP]), f"{key}={','.join(texts)}"]
    return found


def _pairs(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values, one that is there twice twice."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _pairs(value, f"{prefix}{key}.")
        elif key == "name" and prefix.removesuffix(".") in PRESETS:
            yield prefix.removesuffix("."), value
        else:
            yield f"{prefix}{key}", value


def _word(key: str, value: Any, option: Option | None) -> Iterator[str]:
    """The word of an option; none of a flag that is not set, nor of one left as it is without a
    value."""
    if option is not None and value is None and option.default is None:
        return
    if option is None or option.form != FLAG:
        yield f"{option_name(option) if option else key}={_text(key, value)}"
    elif value is True:
        yield option_name(option)
    elif value is not False:
        raise UserError(f"{key}={_short(value)}: expected True or False")


def _text(key: str, value: Any) -> str:
    """A value as it is typed.

    Raises:
        UserError: it cannot be typed.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(_element(key, one) for one in value)}]"
    if value is None or isinstance(value, str | bool | Number):
        return option_text(value)
    text = "expected a text, a number, True, False, None, a path or a list of them"
    raise UserError(f"{key}={_short(value)}: {text}")


def _element(key: str, value: Any) -> str:
    """A value inside a list's brackets."""
    text = _text(key, value)
    is_text = isinstance(value, str | os.PathLike)
    return json.dumps(text, ensure_ascii=False) if is_text and SPECIAL.search(text) else text


def _short(value: Any) -> str:
    return " ".join(repr(value).split())[:60]
