"""The axes of a study. Whatever its parts are repeated over is an `Axis`, a named list of settings:
shares of labels or images, lengths of pre-training, varied keys, a benchmark's tasks, named arms, a
part's grid. A task has one setting of each axis of its part (`product`).
"""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from ...config.fields import Values
from ...config.parsing import flatten
from ...formatting import option_text

PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
# keys that neither an axis nor a part may set
OURS = {"name": "the task's", "out": "the study's folder", "seed": "the study's seeds"}


@dataclass(frozen=True)
class Setting:
    """One setting of an axis, or one of each of several axes.

    Attributes:
        label: what the names of parts, arms and tasks call it.
        coordinates: {axis: value}, where its tasks lie.
        options: {key: value} that it sets in the parts that have its axis.
        placeholders: {name: text} that stands for `{name}` in the options of parts.
        text: of an arm, its description.
    """

    label: str = ""
    coordinates: dict[str, Any] = field(default_factory=dict)
    options: Values = field(default_factory=dict)
    placeholders: dict[str, str] = field(default_factory=dict)
    text: str = ""

    def beside(self, other: "Setting") -> "Setting":
        """This setting together with one of another axis."""
        return Setting(
            "-".join(filter(None, (self.label, other.label))),
            self.coordinates | other.coordinates,
            self.options | other.options,
            self.placeholders | other.placeholders,
        )


@dataclass(frozen=True)
class Axis:
    """A named list of settings.

    Attributes:
        name: as the study's file has it.
        settings: in the order of the file.
        decides: who sets its keys, for errors.
        keys: the recipe's keys whose values depend on the setting.
    """

    name: str
    settings: tuple[Setting, ...]
    decides: str
    keys: frozenset[str]


def product(axes: Iterable[Axis]) -> list[Setting]:
    """Every combination of one setting of each axis; of no axis one empty setting."""
    every = itertools.product(*(axis.settings for axis in axes))
    return [reduce(Setting.beside, chosen, Setting()) for chosen in every]


def keys_axis(name: str, settings: Iterable[Values], decides: str) -> Axis:
    """An axis over values of keys: of the key `name`, or of keys that are set together.

    Args:
        name: of the axis.
        settings: {key: value} of each; in names of tasks lr=0.1-steps=20.
        decides: who sets the keys, for errors.
    """
    found = tuple(Setting(_label(one), one, one) for one in settings)
    return Axis(name, found, decides, frozenset(key for one in found for key in one.options))


def _label(options: Values) -> str:
    pairs = ((key.rpartition(".")[2], option_text(value)) for key, value in options.items())
    return "-".join(f"{name}={value}" for name, value in pairs)


def fill(node: Any, values: Mapping[str, str]) -> Any:
    """A node with `{NAME}` replaced by values[NAME] in its texts; other names stay."""
    if isinstance(node, dict):
        return {key: fill(value, values) for key, value in node.items()}
    if isinstance(node, list):
        return [fill(value, values) for value in node]
    if not isinstance(node, str):
        return node
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), node)


def names_in(node: Any) -> set[str]:
    """The names in braces in a node's texts."""
    if isinstance(node, dict | list):
        inner = node.values() if isinstance(node, dict) else node
        return {name for one in inner for name in names_in(one)}
    return {*PLACEHOLDER.findall(str(node))}


def keys_naming(parts: Mapping[str, Any], names: Iterable[str]) -> frozenset[str]:
    """The recipe's keys of parts, as a study's file has them, whose values have one of the names in
    braces."""
    bodies = [body for body in parts.values() if isinstance(body, dict)]
    arms = [body["by_arm"] for body in bodies if isinstance(body.get("by_arm"), dict)]
    groups = [body.get("options") for body in bodies] + [
        own for arm in arms for own in arm.values()
    ]
    pairs = [pair for group in groups if isinstance(group, dict) for pair in flatten(group).items()]
    return frozenset(key for key, value in pairs if not names_in(value).isdisjoint(names))


def name_at(name: str, point: Setting, repeated: Collection[str]) -> str:
    """The name of a part at a place along the curve: final_0.01; of one that is not repeated its
    own."""
    return f"{name}_{point.label}" if name in repeated else name
