"""Register augmentations of users, and name them by their code. This module does not import torch.

An augmentation is a callable on an image. It is the value of `augment=` of Python functions, or a
plugin registers it. The recipe holds its name (`data.augment`).
"""

import enum
import functools
import hashlib
import inspect
import json
import random
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import UserError, suggest

LIBRARIES = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "stdlib")]
PLAIN = bool | int | float | complex | str | bytes | enum.Enum | None
RENAME = "Add augment_name=NAME, and change the name whenever you change the augmentation."


C = TypeVar("C", bound=Callable[..., Any])


class Augmentation(NamedTuple):
    """Augmentation of a user.

    Attributes:
        call: The callable.
        seeded: Objects of albumentations in `call`, each with random generators of its own.
    """

    call: Callable[..., Any]
    seeded: list[Any]


AUGMENTATIONS: dict[str, Augmentation] = {}  # {value of data.augment: augmentation}


def register(call: Callable[..., Any], name: str | None = None) -> str:
    """Make an augmentation available as `data.augment`, and return the value of this key.

    Args:
        call: The augmentation.
        name: The value. None makes a value of the name of the function or class and a hash of its
            code and parameters, so that a run is not resumed with another augmentation.

    Raises:
        UserError: `call` cannot be called, holds a random generator of its own, or has no name and
            a parameter that cannot be hashed.
    """
    if not callable(call):
        raise UserError(f"augment={call!r:.60}: expected a function, or an object to call.")
    walk = _Walk(is_strict=name is None)
    texts = [*walk.texts(call)]
    if name is None:
        digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]
        name = f"{getattr(call, '__name__', type(call).__name__).strip('<>')}-{digest}"
    AUGMENTATIONS[name] = Augmentation(call, walk.seeded)
    return name


def augmentation(name: str) -> Callable[[C], C]:
    """Register a function, or an object to call, of a plugin as `data.augment=NAME`.

    Write `@augmentation("NAME")` above a function, or call `augmentation("NAME")(OBJECT)`. The
    plugin's file identifies the augmentation, so a run is resumed only with the same file.
    """

    def decorate(call: C) -> C:
        register(call, name)
        return call

    return decorate


def find(name: str | None) -> Augmentation | None:
    """Return the augmentation that `data.augment` names, or None if the name is None.

    Raises:
        UserError: There is no augmentation of this name.
    """
    if name is None or name in AUGMENTATIONS:
        return AUGMENTATIONS.get(name) if name else None
    if AUGMENTATIONS:
        choices = suggest(name, [*AUGMENTATIONS])
        raise UserError(f"data.augment={name}: no such augmentation, {choices}")
    raise UserError(
        f"data.augment={name}: no such augmentation. Name the plugin that registers it"
        " (plugin=FILE.py), or pass the callable to the Python function (augment=)."
    )


class _Walk:
    """Visit an augmentation and everything that it refers to.

    Attributes:
        is_strict: Whether a value that cannot be described is an error.
        seeded: Objects of albumentations that were found.
        visited: {id: value} of the visited values. Keeping the values keeps their ids unique.
    """

    def __init__(self, is_strict: bool) -> None:
        self.is_strict = is_strict
        self.seeded: list[Any] = []
        self.visited: dict[int, Any] = {}

    def texts(self, value: Any) -> Iterator[str]:
        """Yield texts that differ if a value would augment images differently.

        Raises:
            UserError: The value holds a random generator that cannot be seeded. In a strict walk,
                also if a value cannot be described.
        """
        import numpy as np  # not at the start of commands such as --help

        yield type(value).__qualname__
        if isinstance(value, PLAIN):
            yield repr(value)
            return
        if id(value) in self.visited:
            return
        self.visited[id(value)] = value
        kind = type(value)
        if is_albumentations(value):
            self.seeded.append(value)
            yield json.dumps(value.to_dict(), sort_keys=True, default=repr)
        elif isinstance(value, random.Random | np.random.Generator | np.random.RandomState) or (
            (kind.__module__, kind.__name__) == ("torch._C", "Generator")
        ):
            raise UserError(
                f"augment=: the augmentation has a {kind.__name__} of its own, which cannot be"
                " seeded for each image. Draw from random, numpy.random or torch directly."
            )
        elif hasattr(value, "dtype") and hasattr(value, "shape"):  # an array or a tensor
            array = np.asarray(value)
            yield f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
        elif isinstance(value, types.ModuleType):
            yield value.__name__
        elif kind.__module__ in ("torch", "numpy.dtypes"):  # such as torch.float32
            yield repr(value)
        elif isinstance(value, types.FunctionType | type):
            yield from self._code(value)
        elif isinstance(value, set | frozenset):
            yield from sorted("\0".join(_Walk(self.is_strict).texts(item)) for item in value)
        else:
            yield from self._parts(value)

    def _parts(self, value: Any) -> Iterator[str]:
        """Yield the texts of a value's parts: items, attributes, the function of a partial."""
        parts: list[Any]
        if isinstance(value, list | tuple):
            parts = [*value]
        elif isinstance(value, dict):
            parts = [part for pair in value.items() for part in pair]
        elif isinstance(value, functools.partial):
            parts = [value.func, value.args, value.keywords]
        elif isinstance(value, types.MethodType):
            parts = [value.__func__, value.__self__]
        elif _is_library(value) and hasattr(value, "__name__"):  # compiled, such as np.add
            parts = [value.__name__]
        elif hasattr(value, "__dict__"):
            parts = [type(value), vars(value)]
        elif self.is_strict:
            raise UserError(
                f"augment=: cannot tell whether {value!r:.60} will be the same when a run is"
                f" resumed. {RENAME}"
            )
        else:
            parts = []
        for part in parts:
            yield from self.texts(part)

    def _code(self, value: Any) -> Iterator[str]:
        """Yield the texts of a function or class: its name, and the source unless installed."""
        yield f"{value.__module__}.{value.__qualname__}"
        if _is_library(value):
            return
        try:
            yield inspect.getsource(value)
        except (OSError, TypeError):
            if self.is_strict:
                raise UserError(
                    f"augment=: the source of {value.__qualname__} is not available. {RENAME}"
                ) from None
        if isinstance(value, type):
            yield from self._parts([item for item in vars(value).values() if callable(item)])
            yield from self._parts([*value.__bases__])
            return
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
        used = {name: cell.cell_contents for name, cell in cells.items()}
        used |= {
            name: value.__globals__[name]
            for name in _names(value.__code__)
            if name in value.__globals__
        }
        yield from self._parts(
            [value.__defaults__, value.__kwdefaults__, dict(sorted(used.items()))]
        )


def _names(code: types.CodeType) -> set[str]:
    """Return the names that a function uses, and the functions inside it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def is_albumentations(value: Any) -> bool:
    """Return whether a value is a transform of albumentations, alone or composed."""
    is_object = not isinstance(value, type) and hasattr(value, "set_random_seed")
    return is_object and type(value).__module__.partition(".")[0] == "albumentations"


def _is_library(value: Any) -> bool:
    """Return whether a class or function belongs to an installed package or to Python."""
    try:
        file = Path(inspect.getfile(value)).resolve()
    except (OSError, TypeError):  # compiled
        return True
    return any(map(file.is_relative_to, LIBRARIES))
