"""The keys of a recipe and the options of a tool: fields of pydantic models. No torch here.

A field has its type, its default, its bounds and its effect, and its meaning in the docstring of
its class; what --help, docs/options.md and errors say of it comes from these.
"""

import inspect
import math
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

# What another value of a key makes: another experiment; another measurement of the same weights;
# neither, as it is about the machine, the person or the output
Effect = Literal["compute", "result", "run"]
Values = dict[str, Any]  # {dotted key: value} of a recipe
LONGEST_LIST = 100  # values of a list
LONGEST_SHOWN = 200  # characters of a value that an error shows
LARGEST_SHOWN = 2**30  # of bounds: those beyond are there against slips
FLAG, WORD = "flag", "word"
# Bounds that many keys have. A maximum lies far above what anybody trains with: what exceeds it is
# a slip that would fill the memory.
Share = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(gt=0, le=2**31)]
Steps = Annotated[int, Field(gt=0, le=2**40)]
Width = Annotated[int, Field(gt=0, le=2**14)]  # a square matrix of it takes 1 GiB
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
    """A group of keys. A text is no number, true is no 1, and an unknown key is an error. What each
    means stands under `Attributes` in the docstring of its class, or in `key`.

    Attributes:
        effect: of the keys that do not say theirs.
        from_init: the same, whether initial weights bring the key (`init=`).
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
    """A class's docstring up to its first blank line."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


def section(kind: type, title: str) -> str:
    """What stands under a title of a class's docstring, or of that which it inherits; indented."""
    return (inspect.getdoc(kind) or "").partition(f"\n{title}:\n")[2].partition("\n\n")[0]


def attributes(kind: type) -> dict[str, str]:
    """{attribute: what it is} of a class, as its docstring says."""
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
    requires: tuple[str, Any] | None = None,
    form: str = "",
    metavar: str = "",
    **facts: Any,
) -> Any:
    """A field.

    Args:
        default: its value where none is given; `...`: it has to be given.
        help: what it means, where no docstring says it.
        effect, from_init: as of Keys.
        names_weights: whether its value names weights, as `init` does. Another one is a group's
            `teacher`, beside a key `network`, which gets `InitSource.network_values`.
        requires: (dotted key, value) without which it has no effect.
        form: how a tool's option is typed, where not as key=VALUE: FLAG (--key) or WORD (VALUE
            alone).
        metavar: of a tool's option: stands in --help for a value without a default.
        facts: bounds, as pydantic.Field takes them (gt, ge, le, lt; min_length and max_length of a
            list).
    """
    own = {"effect": effect, "from_init": from_init, "requires": requires}
    own["names_weights"] = names_weights or None
    typed = {"form": form or None, "metavar": metavar or None}
    extra: Any = {name: one for name, one in {**own, **typed}.items() if one is not None}
    if isinstance(default, list):
        return Field(
            default_factory=lambda: list(default),
            description=help or None,
            json_schema_extra=extra,
            **{"min_length": 1, "max_length": LONGEST_LIST, **facts},
        )
    return Field(default, description=help or None, json_schema_extra=extra, **facts)


@dataclass(eq=False)
class Only:
    """Which values a type has: Annotated[str, Only(is_path, "a path")].

    Attributes:
        check: whether a value is one.
        expected: what is, in words.
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


class OneOf(Only):
    """That a text is one of the names that are known when it is looked at.

    Attributes:
        names: the names.
        hint: ends the error.
    """

    def __init__(self, names: Callable[[], Iterable[str]], hint: str = "") -> None:
        super().__init__(lambda value: value in names(), "")
        self.names = names
        self.hint = hint

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "enum": [*self.names()], "hint": self.hint}


@dataclass(frozen=True, eq=False)
class Key:
    """A field with the dotted key that it has in a recipe, or the name of a tool's option.

    Attributes:
        group, field, info: where it is declared.
        effect, from_init: as of Keys.
        names_weights, requires, form, metavar: as `key` was given them.
    """

    name: str
    group: type[Keys]
    field: str
    info: FieldInfo
    effect: Effect
    from_init: bool
    names_weights: bool = False
    requires: tuple[str, Any] | None = None
    form: str = ""
    metavar: str = ""

    @property
    def required(self) -> bool:
        return self.info.is_required()

    @property
    def default(self) -> Any:
        """Its default; None of one that has to be given."""
        factory = self.info.default_factory
        # pydantic inspects the factory's signature on each call, which takes longer than all else
        found = cast(Callable[[], Any], factory)() if factory else self.info.get_default()
        return None if found is PydanticUndefined else found

    @property
    def help(self) -> str:
        return self.info.description or ""

    @property
    def types(self) -> frozenset[Any]:
        """The types of its value, of a list those of its elements."""
        return frozenset(_atoms(self.info.annotation))

    @property
    def is_list(self) -> bool:
        kinds = [typing.get_origin(one) or one for one in _parts(self.info.annotation)]
        return list in kinds

    @property
    def schema(self) -> dict[str, Any]:
        """What may be its value, as JSON Schema has it."""
        found: dict[str, Any] = _properties(self.group)[self.info.alias or self.field]
        return found

    @property
    def expected(self) -> str:
        """The values that it may have, in words."""
        return describe(self.schema, LARGEST_SHOWN)

    @property
    def choices(self) -> list[str] | None:
        """The texts that it may have, of a list its elements; None of another key."""
        return _choices(self.schema)


@cache
def _properties(group: type[Keys]) -> dict[str, Any]:
    """{field: its JSON Schema}, built once."""
    found: dict[str, Any] = group.model_json_schema()["properties"]
    return found


def _parts(annotation: Any) -> Iterator[Any]:
    """The members of a union; the type itself."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if isinstance(annotation, types.UnionType) or (typing.get_origin(annotation) is typing.Union):
        for one in typing.get_args(annotation):
            yield from _parts(one)
    else:
        yield annotation


def _atoms(annotation: Any) -> Iterator[Any]:
    for one in _parts(annotation):
        origin = typing.get_origin(one)
        if origin is Literal:
            yield str
        elif origin is list:
            yield from _atoms(typing.get_args(one)[0])
        else:
            yield origin or one


def keys_of(group: type[Keys], prefix: str = "") -> dict[str, Key]:
    """{name: key} of a group, in the order in which they are declared."""
    found: dict[str, Key] = {}
    for field, info in group.model_fields.items():
        own: Any = info.json_schema_extra or {}  # of `key`
        name = f"{prefix}{info.alias or field}"
        facts = {"effect": group.effect, "from_init": group.from_init} | own
        found[name] = Key(name, group, field, info, **facts)
    return found


def describe(schema: Mapping[str, Any], largest: float = math.inf) -> str:
    """A JSON Schema in words: `a whole number above 0 and at most 16,384`; without bounds whose
    size is above `largest`."""
    options = schema.get("anyOf", [schema])
    texts = [_describe_one(one, largest) for one in options if one.get("type") != "null"]
    null = [TYPES["null"]] if len(texts) < len(options) else []
    return " or ".join([*texts, *null])


def _describe_one(schema: Mapping[str, Any], largest: float) -> str:
    if "expected" in schema:
        return str(schema["expected"])
    if "enum" in schema or "const" in schema:
        return ", ".join(schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return _describe_list(schema, largest)
    if schema.get("format") == "path":
        return "a path"
    found = (
        f"{word} {_number(schema[bound])}"
        for bound, word in BOUNDS.items()
        if abs(schema.get(bound, math.inf)) <= largest and bound in schema
    )
    return f"{TYPES[schema['type']]} {' and '.join(found)}".strip()


def _describe_list(schema: Mapping[str, Any], largest: float) -> str:
    fewest, most = schema.get("minItems", 0), schema.get("maxItems", LONGEST_LIST)
    count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    element = schema["items"]
    if "enum" in element:
        return f"a list in brackets: some of {_describe_one(element, largest)}"
    whole, _, bounds = _describe_one(element, largest).partition("number")
    kind = {"a ": "numbers", "a whole ": "whole numbers"}.get(whole, "values")
    return f"a list in brackets of {count} {kind}{bounds}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _choices(schema: Mapping[str, Any]) -> list[str] | None:
    for one in schema.get("anyOf", [schema]):
        found = one.get("items", one)
        if "enum" in found or "const" in found:
            return list(found.get("enum", [found.get("const")]))
    return None


def validated(
    model: type[Keys],
    nested: Mapping[str, Any],
    known: Mapping[str, Key],
    where: str = "",
    typed: Mapping[str, str] | None = None,
) -> Any:
    """A model with values; groups of keys are mappings in the mapping.

    Args:
        model: the model.
        nested: its values.
        known: {name: key} of its keys.
        where: opens the error of a value that was not typed.
        typed: {name: text} of values as they were typed, which the error shows.

    Raises:
        UserError: a value is not what its key expects, in one line.
    """
    try:
        return model.model_validate(nested)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    parts = [str(one) for one in first["loc"]]  # the names of groups, the key, and types of a union
    names = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    found = [known[name] for name in names if name in known]
    if not found:
        raise UserError(f"{where}{'.'.join(parts)}: {first['msg']}")
    name = found[-1].name
    value: Any = nested
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    text = (typed or {}).get(name)
    raise refused(found[-1], value, where if text is None else "", text)


def refused(key: Key, value: Any, where: str = "", typed: str | None = None) -> UserError:
    """The error of a value that a key cannot have; `typed` is its text, if it was typed."""
    if typed is None:  # a text that is no number shows its quotes
        typed = f'"{value}"' if isinstance(value, str) and str not in key.types else None
    text = option_text(value) if typed is None else typed
    text = " ".join(text.split()) or text
    if len(text) > LONGEST_SHOWN:
        text = f"{text[:60]}..."
    start = f"{where}{key.name}={text}: "
    is_large = isinstance(value, int | float) and not abs(value) <= LARGEST_SHOWN
    expected = describe(key.schema, math.inf if is_large else LARGEST_SHOWN)
    choices = key.choices
    if choices is None or (key.is_list and not isinstance(value, list)):
        return UserError(f"{start}expected {expected}")
    wrong = [one for one in value if one not in choices] if isinstance(value, list) else [value]
    if wrong and isinstance(wrong[0], str):
        hint = key.schema.get("hint")
        return UserError(f"{start}{suggest(wrong[0], choices)}" + (f"; {hint}" if hint else ""))
    return UserError(f"{start}expected {expected}")


class OddNumber(int):
    """A whole number of a file whose digits are another text than it has: 007 is a name, too."""

    text: str


def convert(key: Key, value: Any) -> Any:
    """A value of a file or of Python as its key takes it: of a key that is a whole number 1e6 as
    1,000,000, of one that is a text a name such as 2024 as a text, a path as a text."""
    if isinstance(value, list | tuple):
        return [convert(key, one) for one in value]
    types = key.types
    if getattr(value, "shape", None) == ():  # a number of NumPy, float32's with its own digits
        value = float(str(value)) if "float" in type(value).__name__ else value.item()
    if isinstance(value, float) and value.is_integer() and int in types and float not in types:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and types <= {str, type(None)}:
        return value.text if isinstance(value, OddNumber) else str(value)
    if isinstance(value, Path) and Path not in types:
        return str(value)
    return value
