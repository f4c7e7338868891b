"""What is read from JSON files that others may have edited, as typed records: the files of run and
study folders, of exports and of checkpoints, a module each. Pydantic checks them, which `--help`
does not import.

A record's fields are what this package reads. More keys may be there: later versions write them.
"""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    TypeAdapter,
    ValidationError,
)

from ...errors import UserError
from ..parsing import read_json

LARGEST = 2**1000  # a whole number above it is no float
Kind = TypeVar("Kind")


def _fits_float(value: int | float) -> int | float:
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise ValueError("expected a number that a float holds")
    return value


def _is_finite(value: int | float) -> int | float:
    if not math.isfinite(_fits_float(value)):
        raise ValueError("expected a finite number")
    return value


def _is_given(value: object) -> object:
    if value is None:
        raise ValueError("expected a value, or no such key")
    return value


Number = Annotated[int | float, AfterValidator(_is_finite)]
Whole = Annotated[int, AfterValidator(_fits_float)]
# Of a key that files may lack, as those of earlier versions, and where null means nothing
MayLack = Annotated[Kind | None, BeforeValidator(_is_given)]


class Record(BaseModel):
    """A JSON object. A bool is no number, and a number no text."""

    model_config = ConfigDict(strict=True, extra="allow")

    def __getitem__(self, name: str) -> Any:
        """A field, or another key: results are mappings in users' scripts.

        Raises:
            KeyError: it is neither; a method is none.
        """
        if name in type(self).model_fields:
            return getattr(self, name)
        return (self.model_extra or {})[name]

    def __contains__(self, name: object) -> bool:
        return name in self.model_fields_set

    def has(self, *names: str) -> bool:
        """Whether the file has all these keys."""
        return self.model_fields_set.issuperset(names)

    def content(self) -> dict[str, Any]:
        """The keys of the file and their values, others than the declared ones too."""
        return self.model_dump(exclude_unset=True)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    strict = None if isinstance(kind, type) and issubclass(kind, BaseModel) else {"strict": True}
    return TypeAdapter(kind, config=strict)  # type: ignore[arg-type]


def check(value: Any, kind: type[Kind]) -> Kind:
    """The value as a record, or as another type with members of such types.

    Raises:
        ValueError: it is none; in one line, which names the first key that is wrong.
    """
    try:
        return cast(Kind, _adapter(kind).validate_python(value))  # type: ignore[arg-type]
    except ValidationError as error:
        raise ValueError(_first_mistake(error.errors(include_url=False))) from None


def read(path: Path, kind: type[Kind]) -> Kind:
    """A JSON file as a record.

    Raises:
        ValueError: as `check`, or it is no JSON.
        OSError: it cannot be read.
    """
    return check(read_json(path), kind)


def require(path: Path, kind: type[Kind], hint: str) -> Kind:
    """As `read`; `hint`, what to do about it, ends the error.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        return read(path, kind)
    except FileNotFoundError:
        state = "is missing"
    except OSError as error:
        state = f"cannot be read: {error.strerror}"
    except ValueError as error:
        state = f"is damaged ({error})"
    raise UserError(f"{path} {state}; {hint}")


def _first_mistake(errors: Sequence[Any]) -> str:
    first = errors[0]
    place = ".".join(map(str, first["loc"]))
    text = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return " ".join(f"{place}: {text}".removeprefix(": ").split())
