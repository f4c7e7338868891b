"""Reads what users and other programs wrote: paths, YAML, and the JSON of run and study folders. No
torch here.

Size and depth are checked before parsing, since deep nesting makes the parsers of YAML and JSON
exhaust the stack. What a JSON file has to hold is a record (recipe/records).
"""

import copy
import functools
import json
import re
import stat
from pathlib import Path
from typing import Any, ClassVar, cast

import yaml

from ..errors import UserError
from .keys import OddNumber, Values
from .names import LONGEST_NAME, is_path

DEEPEST = 32  # levels of a YAML value; a recipe has three
LARGEST = 2**26  # bytes of a YAML or JSON file
MOST_VALUES = 100_000  # of a YAML file
SHOWN = 60  # characters of a path that cannot be


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Plain scalars of YAML 1.2: 2e-4 is a number and 010 is ten; no, 12:30 and 2026-01-01 are
    texts. A key that is there twice is an error."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_document(self, node: yaml.Node) -> Any:
        """
        Raises:
            ConstructorError: the aliases of a few lines stand for more values than memory holds.
        """
        waiting, count = [node], 0
        while waiting:
            one = waiting.pop()
            count += 1
            if count > MOST_VALUES:
                text = f"more than {MOST_VALUES:,} values, with what its aliases stand for"
                raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
            if isinstance(one, yaml.SequenceNode):
                waiting += one.value
            if isinstance(one, yaml.MappingNode):
                waiting += [child for pair in one.value for child in pair]
        return super().construct_document(node)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Take in what `<<` merges. Before that no key is there twice."""
        looked_at = self.__dict__.setdefault("looked_at", {})  # nodes stay alive in it
        if id(node) not in looked_at:
            looked_at[id(node)] = node
            known: set[str] = set()
            for key, _ in node.value:
                if str(key.value) in known:
                    text = f"{key.value} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, text, key.start_mark)
                known.add(str(key.value))
        super().flatten_mapping(node)

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        found = OddNumber(str(node.value))
        found.text = str(node.value)
        return int(found) if found.text == str(int(found)) else found


class _Dumper(yaml.SafeDumper):
    """Quotes texts that `_Loader`, or another program by YAML 1.1, would read as something else."""


for _kind, _form, _first in (
    ("merge", "<<", ["<"]),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_form})$"), _first
        )
_Dumper.add_representer(OddNumber, _Dumper.represent_int)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole)


def parse_path(text: str, key: str) -> Path:
    """The path that an option gives; its key opens the error.

    Raises:
        UserError: no file or folder can have that name.
    """
    if not is_path(text):
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        names = f"of names of at most {LONGEST_NAME} bytes"
        raise UserError(f"{key}={shown!r}: expected a path {names}")
    return Path(text)


def exists(path: str | Path) -> bool:
    """Whether a path is there. No path of that name can be: it is not."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # no permission, a name too long, a null character
        return False


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        UserError: it cannot be read, is no mapping or has a key twice.
    """
    try:
        loaded = copy.deepcopy(_parsed(_text(path)))
    except Exception as error:  # whatever YAML finds wrong
        text = str(error).replace('in "<unicode string>", ', "at ")  # the parser got a text
        raise UserError(f"{path}: {' '.join(text.split())[:300]}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: expected a mapping")
    try:
        flatten(loaded)  # no key is there both nested and dotted
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return cast(dict[str, Any], loaded)


# Resolving one recipe reads the presets several times; a study's report each run's recipe twice
@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    _check_depth(text)
    found = yaml.load(text, Loader=_Loader)
    return {} if found is None else found


def yaml_text(content: dict[str, Any]) -> str:
    """A mapping as `load_yaml` reads it."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def flatten(node: Any, prefix: str = "") -> Values:
    """A nested mapping as {dotted key: value}. A mapping inside of a group of keys is a value.

    Raises:
        UserError: a key is there both nested and dotted.
    """
    flat: Values = {}
    for key, value in node.items():
        name = f"{prefix}{key}"
        is_group = isinstance(value, dict) and "." not in name
        below = flatten(value, f"{name}.") if is_group else {name: value}
        for one in below:
            if one in flat:
                raise UserError(f"{one} is given twice: {flat[one]} and {below[one]}")
        flat |= below
    return flat


def nested(values: Values) -> dict[str, Any]:
    """{dotted key: value} as a nested mapping; the reverse of `flatten`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        group, dot, name = key.partition(".")
        if dot:
            found.setdefault(group, {})[name] = value
        else:
            found[group] = value
    return found


def yaml_value(text: str, loader: Any = _Loader) -> Any:
    """A text as YAML reads it; scalars by that loader.

    Raises:
        ValueError: it is no YAML value, or a nested one of more than DEEPEST levels.
    """
    try:
        _check_depth(text)
        return yaml.load(text, Loader=loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None


def yaml_word(text: str) -> Any:
    """A word of a command line as YAML reads a plain scalar, or the list or mapping in brackets
    that it is. What only a document has (comments, tags, anchors, blanks around) is none of it.

    Raises:
        ValueError: as `yaml_value`.
    """
    if text[:1] + text[-1:] in ("[]", "{}"):
        return yaml_value(text)
    loader = _Loader("")
    if text == "<<":  # which merges in a mapping alone
        return text
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    return loader.construct_object(yaml.ScalarNode(tag, text))


def yaml_texts(text: str) -> list[str]:
    """A list's text, as YAML writes lists, as the texts of its elements: 010 stays 010.

    Raises:
        ValueError: it is no list of texts.
    """
    found = yaml_value(text, yaml.BaseLoader)  # texts, lists and mappings only
    if not (isinstance(found, list) and all(isinstance(one, str) for one in found)):
        raise ValueError("not a list of texts")
    return cast(list[str], found)


def _text(path: Path) -> str:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("not a regular file")  # reading a pipe would block
    if path.stat().st_size > LARGEST:
        raise ValueError(f"larger than {LARGEST} bytes")
    return path.read_text(encoding="utf-8")


def _check_depth(text: str) -> None:
    """Raises ValueError where YAML nests deeper than DEEPEST. The parser's events are produced
    without recursion, so counting them is safe."""
    depth = 0
    too_deep = f"nested deeper than {DEEPEST} levels"
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > DEEPEST:
                raise ValueError(too_deep)
    except yaml.scanner.ScannerError as error:
        if "nesting depth" in str(error):  # newer libyaml: 1,000 levels, seen before any event
            raise ValueError(too_deep) from None
        raise


def read_json(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        ValueError: it is no JSON, or has a key twice.
        OSError: it cannot be read.
    """
    return parse_json(_text(path))


def parse_json(text: str) -> Any:
    """A JSON text's value.

    Raises:
        ValueError: it is no JSON, or has a key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. One that was put together by hand may have a key twice, and the last one
    would win in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{twice[:60]!r} is given twice")
    return found
