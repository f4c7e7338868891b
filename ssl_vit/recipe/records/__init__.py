"""Read JSON files as typed records. Users may have edited the files, so pydantic checks them.

The records of run folders, exports and checkpoints have a module each. `--help` does not import
these modules. The fields of a record are the keys that this package reads. A file may have more
keys, which later versions write.
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

LARGEST = 2**1000  # larger whole numbers do not fit into a float
Kind = TypeVar("Kind")


def _fits_float(value: int | float) -> int | float:
    """Return the value. Raise a ValueError if the value is an int too large for a float."""
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise ValueError("expected a smaller number")
    return value


def _is_finite(value: int | float) -> int | float:
    if not math.isfinite(_fits_float(value)):
        raise ValueError("expected a finite number")
    return value


def _is_given(value: object) -> object:
    if value is None:
        raise ValueError("expected a value instead of null")
    return value


Number = Annotated[int | float, AfterValidator(_is_finite)]
Whole = Annotated[int, AfterValidator(_fits_float)]
# Type of a key that may be missing, for example in files of earlier versions, but must not be null
MayLack = Annotated[Kind | None, BeforeValidator(_is_given)]


class Record(BaseModel):
    """JSON object with typed fields. A bool is not accepted as a number, nor a number as a text."""

    model_config = ConfigDict(strict=True, extra="allow")

    def __getitem__(self, name: str) -> Any:
        """Return the value of a key of the file, for example `result["steps"]`.

        The key may be a declared field or another key of the file.

        Raises:
            KeyError: The name is neither a field nor a key of the file.
        """
        if name in type(self).model_fields:
            return getattr(self, name)
        return (self.model_extra or {})[name]

    def __contains__(self, name: object) -> bool:
        return name in self.model_fields_set

    def has(self, *names: str) -> bool:
        """Return whether the file has all of these keys."""
        return self.model_fields_set.issuperset(names)

    def content(self) -> dict[str, Any]:
        """Return the keys and values of the file, including undeclared keys."""
        return self.model_dump(exclude_unset=True)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's validator for a type, in strict mode: a text "1" is not the number 1."""
    # pydantic does not allow `config` for a class that has a config, as every record does
    is_record = isinstance(kind, type) and issubclass(kind, BaseModel)
    config = None if is_record else {"strict": True}
    return TypeAdapter(kind, config=config)  # type: ignore[arg-type]


def check(value: Any, kind: type[Kind]) -> Kind:
    """Check the keys and types of a value from JSON, and return the value as a typed object.

    Args:
        value: Value from JSON, such as a dictionary.
        kind: Expected type: a record (a subclass of `Record`, such as `Result`), or a type that
            contains records, such as `list[Result]`.

    Raises:
        ValueError: The value has another type. The message has one line and names the first wrong
            key, such as "best.step: expected a valid integer".
    """
    try:
        return cast(Kind, _adapter(kind).validate_python(value))  # type: ignore[arg-type]
    except ValidationError as error:
        raise ValueError(_first_mistake(error.errors(include_url=False))) from None


def read(path: Path, kind: type[Kind]) -> Kind:
    """Read a JSON file as a record.

    Raises:
        ValueError: The file is not valid JSON, or a key is missing or has the wrong type.
        OSError: The file cannot be read.
    """
    return check(read_json(path), kind)


def require(path: Path, kind: type[Kind], hint: str) -> Kind:
    """Read a JSON file as a record. On failure, raise an error that says what to do.

    Args:
        path: Path of the file.
        kind: Class of the record.
        hint: What to do about the file, for the end of the error.

    Raises:
        UserError: The file is missing or damaged.
    """
    try:
        return read(path, kind)
    except FileNotFoundError:
        state = "is missing"
    except OSError as error:
        state = f"cannot be read: {error.strerror}"
    except ValueError as error:
        state = f"is damaged ({error})"
    raise UserError(f"{path} {state}. {hint[0].upper()}{hint[1:]}")


def _first_mistake(errors: Sequence[Any]) -> str:
    """Return the first of pydantic's errors in one line.

    For example, "best.step: expected a valid integer".

    Args:
        errors: Dictionaries with the keys `loc` and `msg`, from `ValidationError.errors`.
    """
    first = errors[0]
    place = ".".join(map(str, first["loc"]))
    text = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return " ".join(f"{place}: {text}".removeprefix(": ").split())
