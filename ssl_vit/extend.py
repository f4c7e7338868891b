"""Import everything that a plugin needs: `from ssl_vit.extend import Objective, Output, declare`.

A plugin is a Python file with an objective or a target of your own (docs/extend.md). The names are:

- The class of your part, and `@declare` above the class: Objective, Target, declare.
- Options (`class Options(Options)` inside your class): Options, option, and the types Share, Count
  and Width.
- Metrics and baselines: Metric, Baseline, and the units SHARE, LOSS and NUMBER.
- Computing a loss: Batch, Output, both_views, sums, full_precision.
- The images of all processes: global_rows, gather, gather_with_gradient, rank, GlobalBatchNorm.
- Teachers: Teacher, frozen_copy, pair_parameters, cosine_momentum, linear_momentum.
- Random numbers that are computed from the keys of images: rng.
- An augmentation of images (`data.augment=NAME`): augmentation.
- Predicting patches: PatchPrediction, CorruptionOptions, corruption, Decoder, selected_count,
  fewer_than.
"""

import inspect
from typing import Any, TypeVar

from . import rng
from .data.batching import Batch
from .errors import UserError, suggest
from .measurements import LOSS, NUMBER, SHARE, Baseline, Metric
from .models.full_precision import full_precision
from .objectives import corruption
from .objectives.base import Objective, Output, both_views, sums
from .objectives.global_batch import (
    GlobalBatchNorm,
    gather,
    gather_with_gradient,
    global_rows,
    rank,
)
from .objectives.mae.network import Decoder
from .objectives.patches import PatchPrediction
from .objectives.targets.patch_targets import Target
from .objectives.teacher import (
    Teacher,
    cosine_momentum,
    frozen_copy,
    linear_momentum,
    pair_parameters,
)
from .recipe import declaration
from .recipe.augmentations import augmentation
from .recipe.declaration import Group, ObjectiveDeclaration, TargetDeclaration
from .recipe.keys import Count, Share, Width
from .recipe.keys import Keys as Options
from .recipe.keys import key as option
from .recipe.shared_groups import CorruptionOptions
from .recipe.split_counts import fewer_than, selected_count

__all__ = [
    "LOSS",
    "NUMBER",
    "SHARE",
    "Baseline",
    "Batch",
    "CorruptionOptions",
    "Count",
    "Decoder",
    "GlobalBatchNorm",
    "Metric",
    "Objective",
    "Options",
    "Output",
    "PatchPrediction",
    "Share",
    "Target",
    "Teacher",
    "Width",
    "augmentation",
    "both_views",
    "corruption",
    "cosine_momentum",
    "declare",
    "fewer_than",
    "frozen_copy",
    "full_precision",
    "gather",
    "gather_with_gradient",
    "global_rows",
    "linear_momentum",
    "option",
    "pair_parameters",
    "rank",
    "rng",
    "selected_count",
    "sums",
]

K = TypeVar("K", bound=type)
# Methods of a declaration that a plugin's class may define as class methods
METHODS = ("build", "check", "check_pass", "check_label_lists")


def declare(kind: K) -> K:
    """Declare an objective or a target, as a decorator of its class.

    The attributes of the class are those of `ObjectiveDeclaration` or `TargetDeclaration`
    (recipe/declaration.py), with two differences:

    - `options` is the class `Options` inside the class. An option is called `NAME.FIELD`.
    - The metrics and baselines of a target are called `rows`, because `metrics` is a method of
      targets.

    `check` and the other methods of a declaration are class methods. By default, the network is
    built as `kind(encoder, **options)`, and with the argument `classes` if `labels` is True. For
    other arguments, define `build(cls, settings, encoder, classes)`.

    Returns:
        The class.

    Raises:
        UserError: The class is no Objective or Target, an attribute is unknown or has the wrong
            type, a method is no class method, or `declaration.declare` refuses the declaration.
    """
    base: Any = ObjectiveDeclaration if _is_subclass(kind, Objective) else TargetDeclaration
    if base is TargetDeclaration and not _is_subclass(kind, Target):
        raise UserError(f"@declare {kind.__name__}: expected a subclass of Objective or of Target")
    # `options` is the class `Options` here, and `parts` is only for sums of objectives
    facts = {name: value for name, value in vars(base).items() if _is_attribute(name, value)}
    facts = {name: value for name, value in facts.items() if name not in ("options", "parts")}
    if base is TargetDeclaration:
        facts["rows"] = facts.pop("metrics")
    _check_attributes(kind, facts)
    values = {name: getattr(kind, name) for name in facts if hasattr(kind, name)}
    if "rows" in values:
        values["metrics"] = values.pop("rows")
    options = getattr(kind, "Options", None)
    if options is not None:
        if not options.__doc__:  # the help of the group
            options.__doc__ = f"{values.get('title') or kind.__name__}."
        values["options"] = Group(values.get("name", ""), options)
    for name in METHODS:
        method = getattr(kind, name, None)
        if method and not inspect.ismethod(method):
            text = "expected a class method. Write @classmethod above the method."
            raise UserError(f"{kind.__name__}.{name}: {text}")
        if method:
            values[name] = staticmethod(method)
    if "build" not in values:
        values["build"] = _builder(kind, options, values.get("labels", False))
    # The module tells which plugin declares the part
    attributes = {**values, "__module__": kind.__module__, "__doc__": kind.__doc__}
    declaration.declare(type(base)(kind.__name__, (base,), attributes)())
    return kind


def _is_subclass(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _is_attribute(name: str, value: Any) -> bool:
    """Return whether a member of a class is data with a public name in lower case."""
    is_method = callable(value) or isinstance(value, property | classmethod | staticmethod)
    return name[0].islower() and not is_method


def _check_attributes(kind: type, facts: dict[str, Any]) -> None:
    """Check the names and types of the attributes in the body of a plugin's class.

    Args:
        kind: Class of the plugin.
        facts: {name: default} of the attributes that a declaration has.

    Raises:
        UserError: An attribute is unknown or has the wrong type.
    """
    start = f"{kind.__name__}: "
    for name, value in vars(kind).items():
        if _is_subclass(value, Options) != (name == "Options"):
            raise UserError(f"{start}class {name}: expected class Options(Options)")
        if name in facts and not isinstance(value, type(facts[name])):
            wanted = type(facts[name]).__name__
            raise UserError(f"{start}{name}={value!r}: expected a {wanted}")
        inherited = any(
            hasattr(parent, name) or name in getattr(parent, "__annotations__", ())
            for parent in kind.__mro__[1:]
        )
        if _is_attribute(name, value) and name not in facts and not inherited:
            raise UserError(
                f"{start}{name}: unknown attribute, {suggest(name, facts)} (Write your own"
                " constants in capitals.)"
            )


def _builder(kind: type, options: type[Options] | None, labels: bool) -> Any:
    """Return the method `build` of a declaration, which calls a plugin's class.

    Args:
        kind: Class of the plugin.
        options: Class of the options, whose values are arguments of `__init__`.
        labels: Whether the number of classes is an argument of `__init__`.

    Raises:
        UserError: `__init__` does not take these arguments.
    """
    names = [*(options.model_fields if options else ()), *(["classes"] if labels else [])]
    try:
        inspect.signature(kind.__init__).bind(None, None, **dict.fromkeys(names))  # type: ignore[misc]
    except TypeError as error:
        arguments = ", ".join(["self", "encoder", *names])
        raise UserError(f"{kind.__name__}: {error}. Write def __init__({arguments}).") from None

    def build(declared: Any, settings: Any, encoder: Any, classes: int = 0) -> Any:
        values = settings.group(options).model_dump() if options else {}
        return kind(encoder, **values, **({"classes": classes} if labels else {}))

    return build
