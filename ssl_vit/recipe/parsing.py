"""Read files of users and foreign programs: paths, YAML, and the JSON of run and study folders.

Size and depth are checked before parsing, because deep nesting makes the parsers of YAML and JSON
exhaust the stack. The required content of a JSON file is described by a record (recipe/records).
This module does not import torch.
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
from .keys import NumberAsWritten, Values
from .names import LONGEST_NAME, is_path

DEEPEST = 32  # levels of nesting in YAML; a recipe has three
LARGEST = 2**26  # largest YAML or JSON file, in bytes
MOST_VALUES = 100_000  # largest number of values in a YAML file
SHOWN = 60  # characters of an impossible path that an error shows


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML loader with the scalars of YAML 1.2, which refuses duplicate keys.

    For example, 2e-4 is a number, 010 is ten, and no, 12:30 and 2026-01-01 are texts.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_document(self, node: yaml.Node) -> Any:
        """Construct a document, unless the document has too many values.

        In YAML, `*name` (an alias) repeats the value marked with `&name`. If lists repeat lists
        that repeat lists, a file of a few lines can expand to more values than memory holds (an
        "alias bomb"). Therefore a repeated value counts each time.

        Raises:
            ConstructorError: The document has more than MOST_VALUES values.
        """
        waiting, count = [node], 0
        while waiting:
            current = waiting.pop()
            count += 1
            if count > MOST_VALUES:
                text = (
                    f"the file is too large: it has more than {MOST_VALUES:,} values after each"
                    " alias (*NAME) is replaced by the values that it repeats"
                )
                raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
            if isinstance(current, yaml.SequenceNode):
                waiting += current.value
            if isinstance(current, yaml.MappingNode):
                waiting += [child for pair in current.value for child in pair]
        return super().construct_document(node)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge the mappings that `<<` refers to, and refuse duplicate keys.

        A mapping with an alias is passed to this method several times. Only the first time, before
        the merge, are duplicate keys refused. After the merge, a key may be in the mapping twice:
        with the merged value and with the mapping's own value. The own value takes precedence.

        Raises:
            ConstructorError: A key is given twice.
        """
        # {id: node}. Holding the nodes prevents Python from reusing an id for another node.
        checked = self.__dict__.setdefault("checked_nodes", {})
        if id(node) not in checked:
            checked[id(node)] = node
            names: set[str] = set()
            for key, _ in node.value:
                if str(key.value) in names:
                    text = f"{key.value} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, text, key.start_mark)
                names.add(str(key.value))
        super().flatten_mapping(node)

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        """Construct an int.

        12 gives the int 12. 007 gives a `NumberAsWritten`, which is 7 and also keeps "007".
        """
        number = NumberAsWritten(str(node.value))
        number.text = str(node.value)
        return int(number) if number.text == str(int(number)) else number


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes a text if `_Loader`, or a reader of YAML 1.1, would parse another type."""


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
_Dumper.add_representer(NumberAsWritten, _Dumper.represent_int)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole)


def parse_path(text: str, key: str) -> Path:
    """Convert the value of an option to a path.

    Args:
        text: Value of the option.
        key: Key of the option, used as the start of the error.

    Raises:
        UserError: No file or folder can have this path.
    """
    if not is_path(text):
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        names = f"Names in a path have 1 to {LONGEST_NAME} bytes"
        raise UserError(f"{key}={shown!r}: no file or folder can have this path. {names}.")
    return Path(text)


def exists(path: str | Path) -> bool:
    """Return whether a path exists. Return False for a path that the file system refuses."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # no permission, a name too long, a null character
        return False


def load_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        UserError: The file cannot be read, is not a mapping or gives a key twice.
    """
    try:
        # copied, because callers may change the result, and `_parsed` caches its result
        loaded = copy.deepcopy(_parsed(_text(path)))
    except Exception as error:  # any error that YAML raises
        # the parser names its input "<unicode string>", because it is given a text and no file
        text = str(error).replace('in "<unicode string>", ', "at ")
        raise UserError(f"{path}: {' '.join(text.split())[:300]}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: expected lines of the form `key: value`")
    try:
        flatten(loaded)  # checks that no key is given both nested and dotted
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return cast(dict[str, Any], loaded)


# Cached, because resolving a recipe reads the presets several times, and the report of a study
# reads the recipe of each run twice
@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    _check_depth(text)
    value = yaml.load(text, Loader=_Loader)
    return {} if value is None else value


def yaml_text(content: dict[str, Any]) -> str:
    """Return a mapping as YAML, for `load_yaml`."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def flatten(node: Any, prefix: str = "") -> Values:
    """Flatten the nested mapping of a recipe into {dotted key: value}.

    {"seed": 1, "optim": {"lr": 0.1}} becomes {"seed": 1, "optim.lr": 0.1}. There is only one level
    of groups: {"model": {"args": {"dim": 8}}} becomes {"model.args": {"dim": 8}}.

    Args:
        node: Nested mapping, whose keys may also be dotted.
        prefix: Start of each dotted key, used in the recursion.

    Raises:
        UserError: A key is given both nested and dotted.
    """
    flat: Values = {}
    for key, value in node.items():
        name = f"{prefix}{key}"
        is_group = isinstance(value, dict) and "." not in name
        members = flatten(value, f"{name}.") if is_group else {name: value}
        for dotted in members:
            if dotted in flat:
                raise UserError(f"{dotted} is given twice: {flat[dotted]} and {members[dotted]}")
        flat |= members
    return flat


def nested(values: Values) -> dict[str, Any]:
    """Convert {dotted key: value} into a nested mapping. This is the inverse of `flatten`."""
    mapping: dict[str, Any] = {}
    for key, value in values.items():
        group, dot, name = key.partition(".")
        if dot:
            mapping.setdefault(group, {})[name] = value
        else:
            mapping[group] = value
    return mapping


def yaml_value(text: str, loader: Any = _Loader) -> Any:
    """Parse a YAML text into a value.

    Args:
        text: YAML.
        loader: Loader class, which decides the types of scalars.

    Raises:
        ValueError: The text is not valid YAML, or is nested more than DEEPEST levels deep.
    """
    try:
        _check_depth(text)
        return yaml.load(text, Loader=loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None


def yaml_word(text: str) -> Any:
    """Parse a value of a command line: a YAML scalar, or a list or mapping in brackets.

    For example, "0.1" gives 0.1 and "[1,5]" gives [1, 5]. Comments, tags, anchors and surrounding
    blanks of a scalar stay part of the text: "a # b" gives "a # b".

    Raises:
        ValueError: A list or mapping is not valid YAML, or is nested too deeply.
    """
    brackets = text[:1] + text[-1:]
    if brackets in ("[]", "{}"):
        return yaml_value(text)
    loader = _Loader("")
    if text == "<<":  # this text has a special meaning only inside a mapping
        return text
    # The tag is the type that YAML gives the text. (True, False) means a scalar without quotes.
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    return loader.construct_object(yaml.ScalarNode(tag, text))


def yaml_texts(text: str) -> list[str]:
    """Parse a YAML list of texts. A number such as 010 stays the text "010".

    Raises:
        ValueError: The text is not a list of texts.
    """
    texts = yaml_value(text, yaml.BaseLoader)  # this loader parses every scalar as a text
    if not (isinstance(texts, list) and all(isinstance(item, str) for item in texts)):
        raise ValueError("not a list of texts")
    return cast(list[str], texts)


def _text(path: Path) -> str:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("not a regular file")  # reading a pipe would block
    if path.stat().st_size > LARGEST:
        raise ValueError(f"larger than {LARGEST} bytes")
    return path.read_text(encoding="utf-8")


def _check_depth(text: str) -> None:
    """Raise a ValueError if YAML is nested more than DEEPEST levels deep.

    The parser produces events (such as the start of a list) without recursion, so deep nesting
    cannot exhaust the stack here.
    """
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
        # newer versions of libyaml refuse more than 1,000 levels before the first event
        if "nesting depth" in str(error):
            raise ValueError(too_deep) from None
        raise


def read_json(path: Path) -> Any:
    """Return the value in a JSON file.

    Raises:
        ValueError: The file is not valid JSON, or gives a key twice.
        OSError: The file cannot be read.
    """
    return parse_json(_text(path))


def parse_json(text: str) -> Any:
    """Parse a JSON text into a value.

    Raises:
        ValueError: The text is not valid JSON, or gives a key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build the dictionary of a JSON object, and refuse duplicate keys.

    A file that was edited by hand may have a duplicate key. Without this function, `json` would use
    the last value without an error.

    Args:
        pairs: Keys and values of the object, in the order of the file.

    Raises:
        ValueError: A key is given twice.
    """
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{twice[:60]!r} is given twice")
    return mapping
