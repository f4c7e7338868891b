"""Define the keys of a recipe and the options of a tool, as fields of pydantic models. This module
does not import torch.

A field declares the type, default, bounds and effect of a key. The docstring of the class explains
the key. --help, docs/options.md and error messages are generated from fields and docstrings.
"""

import inspect
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, core_schema

from ..errors import UserError, suggest
from ..formatting import option_text

# What the value of a key changes. "compute": what a run computes, which is the experiment.
# "result": only how weights are measured. "run": only the machine, the user or the output.
Effect = Literal["compute", "result", "run"]
Values = dict[str, Any]  # a recipe as {dotted key: value}
LONGEST_LIST = 100  # largest number of values in a list
LONGEST_SHOWN = 200  # longest value that an error shows, in characters
# largest bound that help texts mention; larger bounds only prevent mistakes
LARGEST_SHOWN = 2**30
FLAG, WORD = "flag", "word"
# Types with bounds that many keys share. Each maximum lies far above what anybody trains with: a
# larger value is a mistake that would fill the memory.
Share = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(gt=0, le=2**31)]
Steps = Annotated[int, Field(gt=0, le=2**40)]
Width = Annotated[int, Field(gt=0, le=2**14)]  # a square matrix of this width takes 1 GiB
Depth = Annotated[int, Field(gt=0, le=1000)]
TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "object": "a mapping",
    "null": "null",
}
BOUNDS = {
    "exclusiveMinimum": "above",
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


class Keys(BaseModel):
    """Base class for groups of keys, with strict types.

    A text is not converted to a number, true is not 1, and an unknown key is an error. The section
    `Attributes` of a subclass's docstring explains the keys, unless `key(..., help)` does.

    Attributes:
        effect: Effect of the keys that do not set their own.
        from_init: Whether initial weights (`init=`) set the keys, unless a key says otherwise.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True
    )
    effect: ClassVar[Effect] = "compute"
    from_init: ClassVar[bool] = False

    @classmethod
    def __pydantic_init_subclass__(cls, **facts: Any) -> None:
        for name, text in attributes(cls).items():
            if name in cls.model_fields and not cls.model_fields[name].description:
                cls.model_fields[name].description = text


def summary(kind: type) -> str:
    """Return the first paragraph of a class's docstring as one line."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


def section(kind: type, title: str) -> str:
    """Return the content of a section of a class's docstring, with the indentation.

    If the class has no docstring, the docstring of the parent class is read.

    Args:
        kind: Class.
        title: Title of the section, such as `Attributes`.
    """
    return (inspect.getdoc(kind) or "").partition(f"\n{title}:\n")[2].partition("\n\n")[0]


def attributes(kind: type) -> dict[str, str]:
    """Return {attribute: meaning} from the section `Attributes` of a class's docstring.

    For example, {"momentum": "Momentum.", ...}.
    """
    # the split gives ["", name, text, name, text, ...]
    parts = re.split(r"^ {4}(\w+): ", section(kind, "Attributes"), flags=re.MULTILINE)
    return {
        name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def key(
    default: Any,
    help: str = "",
    *,
    effect: Effect | None = None,
    from_init: bool | None = None,
    names_weights: bool = False,
    requires: tuple[Any, ...] | None = None,
    form: str = "",
    metavar: str = "",
    **bounds: Any,
) -> Any:
    """Return the pydantic field for a key of recipes or an option of a tool.

    Args:
        default: Default value, or `...` if the user must give a value.
        help: Meaning of the key. Default: the text in the section `Attributes` of the class.
        effect: What the value of the key changes: "compute" (what a run computes), "result" (only
            how weights are measured) or "run" (only files, speed or the machine). Default: the
            effect of the whole group (`Keys.effect`).
        from_init: Whether initial weights (`init=`) set the key. Default: as for the whole group
            (`Keys.from_init`).
        names_weights: Whether the value names trained weights, as for `init`. If the key is in a
            group, the group must also have a key `network`, which `resolve` sets to a description
            of the network. For example, `distill.teacher` has `distill.network`.
        requires: Condition (dotted key, value, ...), such as ("optim.schedule", "wsd"). The new key
            has an effect only if the key in the condition has one of the values.
        form: How a tool's option is typed, if not as key=VALUE: FLAG (--key) or WORD (VALUE alone).
        metavar: Placeholder in --help for the value of a tool's option without a default.
        bounds: Arguments of pydantic.Field (gt, ge, le, lt; min_length and max_length of a list).
    """
    properties = {
        "effect": effect,
        "from_init": from_init,
        "requires": requires,
        "names_weights": names_weights or None,
        "form": form or None,
        "metavar": metavar or None,
    }
    extra: Any = {name: value for name, value in properties.items() if value is not None}
    if isinstance(default, list):
        return Field(
            default_factory=lambda: list(default),
            description=help or None,
            json_schema_extra=extra,
            **{"min_length": 1, "max_length": LONGEST_LIST, **bounds},
        )
    return Field(default, description=help or None, json_schema_extra=extra, **bounds)


@dataclass(eq=False)
class Allowed:
    """Restriction of a type to some values: Annotated[str, Allowed(is_path, "a path")].

    Attributes:
        check: Function that returns whether a value is allowed.
        expected: Description of the allowed values, for errors and --help.
    """

    check: Callable[[Any], bool]
    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "expected": self.expected}

    def _checked(self, value: Any) -> Any:
        if not self.check(value):
            raise ValueError(self.expected)
        return value


class NamedChoice(Allowed):
    """Restriction of a text to names, which may be added at run time, for example by a plugin.

    Attributes:
        names: Function that returns the allowed names.
        hint: End of the error about an unknown name.
    """

    def __init__(self, names: Callable[[], Iterable[str]], hint: str = "") -> None:
        super().__init__(lambda value: value in names(), "")
        self.names = names
        self.hint = hint

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "enum": [*self.names()], "hint": self.hint}


@dataclass(frozen=True, eq=False)
class Key:
    """Key of a recipe or option of a tool, with the field that declares it.

    Attributes:
        name: Dotted key, or name of the option.
        group, field, info: Class, name and pydantic FieldInfo of the field.
        effect, from_init, names_weights, requires, form, metavar: As in the function `key`.
    """

    name: str
    group: type[Keys]
    field: str
    info: FieldInfo
    effect: Effect
    from_init: bool
    names_weights: bool = False
    requires: tuple[Any, ...] | None = None
    form: str = ""
    metavar: str = ""

    @property
    def required(self) -> bool:
        return self.info.is_required()

    @property
    def default(self) -> Any:
        """Default value, or None if the user must give a value."""
        factory = self.info.default_factory
        # get_default() would inspect the signature of the factory on each call, which is slow
        value = cast(Callable[[], Any], factory)() if factory else self.info.get_default()
        return None if value is PydanticUndefined else value

    @property
    def help(self) -> str:
        return self.info.description or ""

    @property
    def types(self) -> frozenset[Any]:
        """Types that the value may have. For a list, types of the elements."""
        return frozenset(_atoms(self.info.annotation))

    @property
    def is_list(self) -> bool:
        kinds = [typing.get_origin(part) or part for part in _parts(self.info.annotation)]
        return list in kinds

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the value."""
        properties: dict[str, Any] = _properties(self.group)[self.info.alias or self.field]
        return properties

    @property
    def expected(self) -> str:
        """Description of the allowed values, such as "a whole number above 0"."""
        return describe(self.schema, LARGEST_SHOWN)

    @property
    def choices(self) -> list[str] | None:
        """Allowed texts, or None if the key has no fixed choices. For a list, of each element."""
        return _choices(self.schema)


@cache
def _properties(group: type[Keys]) -> dict[str, Any]:
    """Return {field: JSON Schema} for a group. Cached, because building the schema is slow."""
    properties: dict[str, Any] = group.model_json_schema()["properties"]
    return properties


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union: `int | None` gives int and NoneType.

    A type that is no union is yielded itself. The outer Annotated is removed.
    """
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if isinstance(annotation, types.UnionType) or (typing.get_origin(annotation) is typing.Union):
        for argument in typing.get_args(annotation):
            yield from _parts(argument)
    else:
        yield annotation


def _atoms(annotation: Any) -> Iterator[Any]:
    """Yield the types of a value: `int | None` gives int and NoneType.

    For a list, yield the types of the elements. For a Literal, yield str.
    """
    for part in _parts(annotation):
        origin = typing.get_origin(part)
        if origin is Literal:
            yield str
        elif origin is list:
            yield from _atoms(typing.get_args(part)[0])
        else:
            yield origin or part


def keys_of(group: type[Keys], prefix: str = "") -> dict[str, Key]:
    """Return {name: key} for a group, in the order of declaration.

    Args:
        group: Class of the group.
        prefix: Start of each name, such as `optim.`. Empty for keys without a group.
    """
    keys: dict[str, Key] = {}
    for field, info in group.model_fields.items():
        extra: Any = info.json_schema_extra or {}  # arguments of `key`
        name = f"{prefix}{info.alias or field}"
        # arguments of `key` take precedence over the values of the group
        properties = {"effect": group.effect, "from_init": group.from_init} | extra
        keys[name] = Key(name, group, field, info, **properties)
    return keys


def describe(schema: Mapping[str, Any], largest: float = math.inf) -> str:
    """Return a JSON Schema in words, such as `a whole number above 0 and at most 16,384`.

    Args:
        schema: JSON Schema of a value.
        largest: Bounds with a larger absolute value are left out.
    """
    members = schema.get("anyOf", [schema])  # of a union
    texts = [_describe_one(member, largest) for member in members if member.get("type") != "null"]
    if len(texts) < len(members):
        texts.append(TYPES["null"])
    return " or ".join(texts)


def _describe_one(schema: Mapping[str, Any], largest: float) -> str:
    """Return in words the JSON Schema of a type that is no union."""
    if "expected" in schema:
        return str(schema["expected"])
    if "enum" in schema or "const" in schema:
        return ", ".join(schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return _describe_list(schema, largest)
    if schema.get("format") == "path":
        return "a path"
    texts = (
        f"{word} {_number(schema[bound])}"
        for bound, word in BOUNDS.items()
        if abs(schema.get(bound, math.inf)) <= largest and bound in schema
    )
    return f"{TYPES[schema['type']]} {' and '.join(texts)}".strip()


def _describe_list(schema: Mapping[str, Any], largest: float) -> str:
    """Return the JSON Schema of a list in words, such as `a list in brackets of 2 numbers`."""
    fewest, most = schema.get("minItems", 0), schema.get("maxItems", LONGEST_LIST)
    count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    element = schema["items"]
    if "enum" in element:
        return f"a list in brackets: some of {_describe_one(element, largest)}"
    # "a whole number above 0" is split at "number", into "a whole " and " above 0"
    article, _, bounds = _describe_one(element, largest).partition("number")
    kind = {"a ": "numbers", "a whole ": "whole numbers"}.get(article, "values")
    return f"a list in brackets of {count} {kind}{bounds}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _choices(schema: Mapping[str, Any]) -> list[str] | None:
    for option in schema.get("anyOf", [schema]):
        items = option.get("items", option)
        if "enum" in items or "const" in items:
            return list(items.get("enum", [items.get("const")]))
    return None


def build_validated(
    model: type[Keys],
    nested: Mapping[str, Any],
    known: Mapping[str, Key],
    where: str = "",
    typed: Mapping[str, str] | None = None,
) -> Any:
    """Build a pydantic model, and raise errors about values in one line.

    Args:
        model: Class of the model.
        nested: Values. A group of keys is a mapping inside the mapping.
        known: {name: key} for the keys of the model.
        where: Start of the error, such as the path of the file with the value. Left out if the user
            typed the value.
        typed: {name: text} for values that the user typed. The error shows this text.

    Raises:
        UserError: A key does not accept the value.
    """
    try:
        return model.model_validate(nested)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    # pydantic gives a location such as ("optim", "lr", "float"): the group, the key, and the type
    # in a union. The prefixes are "optim", "optim.lr" and "optim.lr.float". The longest prefix that
    # is a key is the wrong key, here "optim.lr".
    parts = [str(part) for part in first["loc"]]
    prefixes = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    keys = [known[name] for name in prefixes if name in known]
    if not keys:
        raise UserError(f"{where}{'.'.join(parts)}: {first['msg']}")
    wrong_key = keys[-1]
    value: Any = nested
    for part in wrong_key.name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    text = (typed or {}).get(wrong_key.name)
    raise value_error(wrong_key, value, where if text is None else "", text)


def value_error(key: Key, value: Any, where: str = "", typed: str | None = None) -> UserError:
    """Return an error about a value that a key does not accept.

    For a key with fixed choices, the error suggests the nearest choice ("model.positions=rotari:
    did you mean rotary?"). For other keys, the error names the expected type and bounds.

    Args:
        key: Key.
        value: Wrong value.
        where: Start of the error, such as the path of a file.
        typed: Text that the user typed, or None for a value from a file or from Python.
    """
    start = f"{where}{key.name}={_shown_value(key, value, typed)}: "
    choices = key.choices
    expects_list = key.is_list and not isinstance(value, list)
    if choices is not None and not expects_list:
        wrong = [value]
        if isinstance(value, list):
            wrong = [item for item in value if item not in choices]
        if wrong and isinstance(wrong[0], str):
            hint = key.schema.get("hint")
            end = f" ({hint})" if hint else ""
            return UserError(f"{start}{suggest(wrong[0], choices)}{end}")
    # Very large bounds are shown only for very large values and NaN. For NaN, every comparison is
    # false, so `not <=` is true but `>` would be false.
    is_large = isinstance(value, int | float) and not abs(value) <= LARGEST_SHOWN
    expected = describe(key.schema, math.inf if is_large else LARGEST_SHOWN)
    return UserError(f"{start}expected {expected}")


def _shown_value(key: Key, value: Any, typed: str | None) -> str:
    """Format a wrong value for an error, in one line and shortened.

    - A value that the user typed is shown as typed.
    - A text for a key that takes no texts is shown in quotes: "3" is not the number 3.
    - Any other value is shown as a user would type it.
    """
    if typed is not None:
        text = typed
    elif isinstance(value, str) and str not in key.types:
        text = f'"{value}"'
    else:
        text = option_text(value)
    line = " ".join(text.split()) or text  # a text of blanks stays as it is
    return f"{line[:60]}..." if len(line) > LONGEST_SHOWN else line


class NumberAsWritten(int):
    """Whole number from a file that keeps the digits as written, such as 007, in `text`.

    A key that takes texts gets `text`, because 007 may be a name.
    """

    text: str


def convert(key: Key, value: Any) -> Any:
    """Convert a value from a file or from Python to the type that a key takes.

    For a key that takes whole numbers, 1e6 becomes 1,000,000. For a key that takes texts, 2024
    becomes "2024", 007 (a `NumberAsWritten`) becomes "007", and a path becomes a text. Tuples
    become lists, and NumPy numbers become Python numbers. Other values stay the same.
    """
    if isinstance(value, list | tuple):
        return [convert(key, item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): convert(key, item) for name, item in value.items()}
    types = key.types
    # NumPy numbers have an empty shape. A float32 of 0.1 must become 0.1 and not 0.100000001.
    if getattr(value, "shape", None) == ():
        value = float(str(value)) if "float" in type(value).__name__ else value.item()
    if isinstance(value, float) and value.is_integer() and int in types and float not in types:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and types <= {str, type(None)}:
        return value.text if isinstance(value, NumberAsWritten) else str(value)
    if isinstance(value, os.PathLike) and Path not in types:
        return os.fspath(value)
    return value
