"""Options as a Python caller gives them -> the words of a command line, for the same parsers. No
torch here."""

import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from numbers import Number
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..formatting import option_text
from . import schema
from .fields import FLAG, Option, type_name
from .parsing import exists
from .tool_options import ToolOptions, option_name

Options = str | os.PathLike[str] | Iterable[str] | Mapping[str, Any]

PRESETS = ("data", "model")  # groups whose `name` is typed as the group itself
SWEEP = "sweep"
# What a list's text in brackets would not keep as it is
SPECIAL = re.compile(r"^$|[\s,\[\]{}:#'\"&*!|<>%@`\\?]")


def words(
    options: Options, keywords: Mapping[str, Any], kind: type[ToolOptions] | None = None
) -> list[str]:
    """The words of the command line that says the same.

    Args:
        options: a mapping, nested or with dotted keys; words as a list or in one string, which is
            divided as a shell does; or the path of a file or folder, of a tool that takes one: for
            it a text without `=` and options with dashes is a path as a whole.
        keywords: more of a mapping. In both, None of a key whose type has no null is as if the key
            were not there.
        kind: the tool's options; None where all are keys of a recipe.

    Raises:
        UserError: an option is for the command line alone, or its value is nothing that a command
            line can say. What a key or a value means is not looked at.
    """
    own = kind.options() if kind else {}
    mappings = [options, keywords] if isinstance(options, Mapping) else [keywords]
    given = [] if isinstance(options, Mapping) else _given(options, kind)
    place = given.index(SWEEP) if SWEEP in given else len(given)
    plain = [word for mapping in mappings for word in _plain(mapping, own)]
    swept = [word for mapping in mappings for word in _swept(mapping.get(SWEEP))]
    # every option of all arms stands before the word for the sweep
    mark = [SWEEP] if swept and SWEEP not in given else []
    found = [*given[:place], *plain, *mark, *given[place:], *swept]
    for key in kind.command_line_only if kind else ():
        if any(_says(word, own[key]) for word in found):
            raise UserError(f"{key}: is for the command line; a function of Python has no {key}=")
    return found


def _says(word: str, option: Option) -> bool:
    """Whether a word gives an option, with the dashes that it has or key=VALUE without them."""
    key, equals, _ = word.partition("=")
    return key == option_name(option) or bool(equals and key == option.key)


def _given(
    options: str | os.PathLike[str] | Iterable[str], kind: type[ToolOptions] | None
) -> list[str]:
    """The words of what is no mapping."""
    positional = kind.positional if kind else ""
    if isinstance(options, os.PathLike):
        return [_place(options, kind)]
    if not isinstance(options, str):
        return [os.fspath(word) for word in options]
    if options and exists(options):
        return [_place(options, kind)]
    if positional and options and "=" not in options and not re.search(r"(^|\s)--", options):
        return [f"{positional}={options}"]
    try:
        return shlex.split(options)
    except ValueError as error:
        raise UserError(f"{_short(options)}: {error}; expected words as a shell takes") from None


def _place(path: str | os.PathLike[str], kind: type[ToolOptions] | None) -> str:
    """The word of a path that stands alone."""
    if not kind or not kind.positional:
        return os.fspath(path)
    own = kind.options().get(kind.positional)
    return f"{kind.positional}={_value(kind.positional, Path(path), own)}"


def _plain(options: Mapping[str, Any], own: Mapping[str, Option]) -> Iterator[str]:
    """The words of a mapping but for what it sweeps."""
    whole = {key for key, option in own.items() if option.is_mapping}
    for key, value in _pairs({key: one for key, one in options.items() if key != SWEEP}, whole):
        yield from _word(key, value, own.get(key))


def _swept(swept: Any) -> Iterator[str]:
    """The words of the keys that are swept."""
    if not isinstance(swept, Mapping | None):
        raise UserError(f"{SWEEP}={_short(swept)}: expected a mapping from keys to lists of values")
    for key, value in _pairs(swept or {}):
        several = value if isinstance(value, list | tuple) else [value]
        yield f"{key}={','.join(_swept_text(key, one) for one in several)}"


def _swept_text(key: str, value: Any) -> str:
    """A value among those of a swept key.

    Raises:
        UserError: the key takes no None, or the text would be read as several values.
    """
    option = schema.options().get(key)
    if value is None and option is not None and not option.is_optional:
        raise UserError(f"{SWEEP}: {key}=None: expected {type_name(option)}")
    text = _text(key, value)
    in_brackets = text.startswith("[") and text.endswith("]")
    if "," in text and not in_brackets:
        expected = "expected a list of values, none with a comma"
        raise UserError(f"{SWEEP}: {key}={_short(value)}: {expected}")
    return text


def _pairs(
    options: Mapping[str, Any], whole: Collection[str] = (), prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values, one that is there twice twice; `whole` are those whose value is
    a mapping itself."""
    for key, value in options.items():
        if isinstance(value, Mapping) and f"{prefix}{key}" not in whole:
            yield from _pairs(value, whole, f"{prefix}{key}.")
        elif key == "name" and prefix.removesuffix(".") in PRESETS:
            yield prefix.removesuffix("."), value
        else:
            yield f"{prefix}{key}", value


def _word(key: str, value: Any, option: Option | None) -> Iterator[str]:
    """The word of an option; none of a flag that is not set, nor of one that None leaves as it
    is."""
    if value is None and _is_left(key, option):
        return
    if option is None or option.form != FLAG:
        yield f"{option_name(option) if option else key}={_value(key, value, option)}"
    elif value is True:
        yield option_name(option)
    elif value is not False:
        raise UserError(f"{key}={_short(value)}: expected True or False")


def _is_left(key: str, option: Option | None) -> bool:
    """Whether None of a key means that it is not given: its type has no null, or null is what a
    tool has without it. A key that is not known is left to the parsers."""
    if option is not None:
        return option.default is None or not option.is_optional
    known = schema.options().get(key)
    return key in ("recipe", *PRESETS) if known is None else not known.is_optional


def _value(key: str, value: Any, option: Option | None) -> str:
    """A value as it is typed; a path as a list of one where the option is a list, whose commas
    would divide it."""
    if isinstance(value, Mapping):
        pairs = (f"{_element(key, name)}: {_element(key, one)}" for name, one in value.items())
        return f"{{{', '.join(pairs)}}}"
    single = isinstance(value, os.PathLike) and option is not None and option.is_list
    return _text(key, [value] if single else value)


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
