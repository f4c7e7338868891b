"""Register augmentations of users, and name them by their code. This module does not import torch.

An augmentation is a callable on an image. It is the value of `augment=` of Python functions, or a
plugin registers it. The recipe holds its name (`data.augment`).
"""

import collections
import enum
import functools
import hashlib
import inspect
import json
import os
import random
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import UserError, suggest

C = TypeVar("C", bound=Callable[..., Any])

LIBRARIES = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "stdlib")]
# Values whose repr says all about them
PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, re.Pattern, os.PathLike)
METHODS = property, functools.cached_property, staticmethod, classmethod
SEQUENCES = list, tuple, collections.deque


class Augmentation(NamedTuple):
    """Augmentation of a user.

    Attributes:
        call: The callable.
        seeded: Objects of albumentations in `call`, each with random generators of its own.
    """

    call: Callable[..., Any]
    seeded: list[Any]


AUGMENTATIONS: dict[str, Augmentation] = {}  # {value of data.augment: augmentation}
PLUGINS: set[str] = set()  # the values that plugins have registered


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
    if name is not None and not re.fullmatch(r"[\w.-]+", name):
        raise UserError(f"augment_name={name}: expected letters, digits, '.', '_' or '-'.")
    walk = _Walk(is_strict=name is None)
    try:
        texts = [*walk.texts(call)]
    except RecursionError:
        raise UserError("augment=: too many levels of objects. Add augment_name=NAME.") from None
    if name is None:
        digest = hashlib.sha256("\0".join(texts).encode(errors="surrogateescape")).hexdigest()[:8]
        name = f"{getattr(call, '__name__', type(call).__name__).strip('<>')}-{digest}"
    AUGMENTATIONS[name] = Augmentation(call, walk.seeded)
    return name


def augmentation(name: str) -> Callable[[C], C]:
    """Register a function, or an object to call, of a plugin as `data.augment=NAME`.

    Write `@augmentation("NAME")` above a function, or call `augmentation("NAME")(OBJECT)`. The
    plugin's file identifies the augmentation, so a run is resumed only with the same file.
    """

    def decorate(call: C) -> C:
        PLUGINS.add(register(call, name))
        return call

    return decorate


def find(name: str | None) -> Augmentation | None:
    """Return the augmentation that `data.augment` names, or None if the name is None.

    Raises:
        UserError: There is no augmentation of this name.
    """
    if name is None or name in AUGMENTATIONS:
        return None if name is None else AUGMENTATIONS[name]
    if AUGMENTATIONS:
        choices = suggest(name, [*AUGMENTATIONS])
        raise UserError(f"data.augment={name}: no such augmentation, {choices}")
    raise UserError(
        f"data.augment={name}: no such augmentation. Name the plugin that registers it"
        " (plugin=FILE.py), or pass the callable to the Python function (augment=)."
    )


class _Walk:
    """Visit an augmentation and everything that it refers to, except the code of libraries.

    Attributes:
        is_strict: Whether a value that cannot be described is an error.
        seeded: Outermost objects of albumentations that were found.
        visited: {id: (number, value)} of the visited values. The values stay alive, so that no id
            is used twice.
    """

    def __init__(self, is_strict: bool) -> None:
        self.is_strict = is_strict
        self.seeded: list[Any] = []
        self.visited: dict[int, tuple[int, Any]] = {}

    def texts(self, value: Any) -> Iterator[str]:
        """Yield texts that differ if a value would augment images differently.

        The texts are the same in every process: they contain no memory address and no hash.

        Raises:
            UserError: The value holds a random generator that cannot be seeded. In a strict walk,
                also if a value cannot be described.
        """
        kind = type(value)
        yield kind.__qualname__
        if isinstance(value, PLAIN) and _is_library(kind):
            yield str(value) if isinstance(value, os.PathLike) else repr(value)
            return
        if id(value) in self.visited:
            number, _ = self.visited[id(value)]
            yield f"visited as number {number}"
            return
        self.visited[id(value)] = len(self.visited), value
        if is_albumentations(value):
            self.seeded.append(value)
            known = len(self.seeded)
            yield from self._albumentations(value)
            del self.seeded[known:]  # the outermost object seeds the objects inside
        elif _is_generator(value):
            raise UserError(
                f"augment=: the augmentation has a {kind.__name__} of its own, which cannot be"
                " seeded for each image. Draw from random, numpy.random or torch directly."
            )
        elif isinstance(value, types.ModuleType):
            yield value.__name__
            if not _is_library(value) and value.__file__:
                yield hashlib.sha256(Path(value.__file__).read_bytes()).hexdigest()
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            yield from self._class(value)
        else:
            yield from self._object(value)

    def _all(self, *values: Any) -> Iterator[str]:
        """Yield the texts of several values, with their number and an end."""
        yield f"[{len(values)}"
        for value in values:
            yield from self.texts(value)
        yield "]"

    def _object(self, value: Any) -> Iterator[str]:
        """Yield the texts of a container, an array or an object with attributes."""
        array = _as_array(value)
        yield from self.texts(type(value))
        if array is not None:
            yield f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
        elif isinstance(value, enum.Enum):
            yield value.name
        elif isinstance(value, SEQUENCES):
            yield from self._all(*value)
        elif isinstance(value, dict | types.MappingProxyType):
            yield from self._all(*value, *value.values())
        elif isinstance(value, set | frozenset):
            yield from sorted("\0".join(_Walk(self.is_strict).texts(item)) for item in value)
        elif isinstance(value, functools.partial):
            yield from self._all(value.func, value.args, value.keywords)
        elif isinstance(value, types.MethodType):
            yield from self._all(value.__func__, value.__self__)
        elif isinstance(value, METHODS) or hasattr(value, "__wrapped__"):
            names = ("fget", "func", "__wrapped__")
            yield from self._all(*(getattr(value, name, None) for name in names))
        elif hasattr(value, "__dict__"):
            yield from self._all(vars(value))
        elif callable(value) and hasattr(value, "__qualname__"):  # compiled, such as np.add
            yield value.__qualname__
        elif " at 0x" not in repr(value):  # such as torch.float32
            yield repr(value)
        elif self.is_strict:
            raise UserError(
                f"augment=: cannot tell whether {value!r:.60} will be the same when a run is"
                " resumed. Add augment_name=NAME. Change the name with each change of the"
                " augmentation."
            )

    def _albumentations(self, value: Any) -> Iterator[str]:
        """Yield the texts of an object of albumentations, and of the user's classes inside."""
        try:
            yield json.dumps(
                value.to_dict(), sort_keys=True, default=lambda item: type(item).__name__
            )
        except (NotImplementedError, ValueError, TypeError):
            yield from self._all(
                {key: item for key, item in vars(value).items() if not _is_generator(item)}
            )
        yield from self.texts(type(value))
        inside = [getattr(value, name, None) for name in ("transforms", "custom_apply_fns")]
        yield from self._all(*inside)

    def _class(self, value: type) -> Iterator[str]:
        """Yield the texts of a class: the name, and everything in it unless it is installed."""
        yield f"{value.__module__}.{value.__qualname__}"
        if not _is_library(value):
            members = {name: item for name, item in vars(value).items() if _is_written(name, item)}
            yield from self._all(*members, *members.values(), *value.__bases__)

    def _function(self, value: types.FunctionType) -> Iterator[str]:
        """Yield the texts of a function: the name, and unless it is installed, its code, defaults,
        and the values of other scopes that it uses."""
        yield f"{value.__module__}.{value.__qualname__}"
        if _is_library(value):
            return
        code = value.__code__
        try:
            yield inspect.getsource(code)
        except (OSError, TypeError):  # made by exec
            yield "no source"
        if value.__name__ == "<lambda>" or code.co_filename.startswith("<"):
            yield from _bytecode(code)  # a line may have several lambdas
        used: dict[str, Any] = {}
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            with_value = cell.cell_contents if _has_value(cell) else None
            used[name] = with_value
        for name in sorted(_names(code) & value.__globals__.keys()):
            used[name] = value.__globals__[name]
        yield from self._all(value.__defaults__, value.__kwdefaults__, used)
        if hasattr(value, "__wrapped__"):
            yield from self._all(value.__wrapped__)


def _bytecode(code: types.CodeType) -> Iterator[str]:
    """Yield the instructions and constants of a function, and of the functions inside it."""
    yield code.co_code.hex()
    yield " ".join(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _bytecode(constant)
        elif not isinstance(constant, frozenset):
            yield repr(constant)


def _names(code: types.CodeType) -> set[str]:
    """Return the names that a function uses, and the functions inside it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _is_written(name: str, member: Any) -> bool:
    """Return whether a member of a class is in its source, and not made by Python."""
    if isinstance(member, (*METHODS, types.FunctionType)):
        return True
    return not (name.startswith(("__", "_abc")) or hasattr(type(member), "__get__"))


def _has_value(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a variable that is not set yet
        return False
    return True


def is_albumentations(value: Any) -> bool:
    """Return whether a value is a transform of albumentations, alone or composed."""
    if isinstance(value, type):
        return False
    packages = {base.__module__.partition(".")[0] for base in type(value).__mro__}
    return "albumentations" in packages and hasattr(value, "set_random_seed")


def _is_generator(value: Any) -> bool:
    """Return whether a value is a random generator of Python, NumPy or torch."""
    name = f"{type(value).__module__}.{type(value).__name__}"
    generators = "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState"
    return isinstance(value, random.Random) or name in (*generators, "torch._C.Generator")


def _as_array(value: Any) -> Any:
    """Return an array or a tensor as a NumPy array, and None for any other value.

    An array of Python objects is such another value.
    """
    import numpy as np  # not at the start of commands such as --help

    if hasattr(value, "detach") and hasattr(value, "numpy"):
        tensor = value.detach().cpu()
        return np.asarray((tensor.float() if tensor.is_floating_point() else tensor).numpy())
    is_array = isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject
    return np.asarray(value) if is_array else None


def _is_library(value: Any) -> bool:
    """Return whether a class, function or module belongs to an installed package or to Python."""
    if isinstance(value, types.FunctionType):
        file: str | None = value.__code__.co_filename
    elif isinstance(value, types.ModuleType):
        file = getattr(value, "__file__", None)
    else:
        module = sys.modules.get(value.__module__)
        if module is None or value.__module__ == "__main__":
            return False
        file = getattr(module, "__file__", None)
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    if str(name).partition(".")[0] == "ssl_vit":
        return True
    if file is None:  # built into Python
        return name != "__main__"
    if file.startswith("<"):  # made by exec, or typed in a notebook
        return str(name) != "__main__" and not file.startswith(("<ipython", "<stdin", "<string"))
    return any(map(Path(file).resolve().is_relative_to, LIBRARIES))
