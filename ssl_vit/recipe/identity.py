"""What a run is computed from, and in what two runs differ. No torch here.

It is one mapping: the keys that count, {dotted key: value}, and facts of the files that they name,
{"KIND:NAME": hash or value}, with the kinds of FACTS. A run folder records the keys in recipe.yaml
and the facts in environment.json, under their kind.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from .keys import Effect, Values
from .schema import Recipe, all_keys, defaults

# Of images, initial weights, the weights of a teacher and a plugin
FACTS = ("data", "init", "teacher", "plugin")
V = TypeVar("V")
UNKNOWN = "not known"  # the value of a key that a side lacks and that has no default


class Difference(NamedTuple):
    """A key, or a fact, and its two values."""

    key: str
    there: Any
    here: Any

    def __str__(self) -> str:
        return f"{self.key} ({self.there} there, {self.here} here)"

    @property
    def kind(self) -> str:
        """The fact's kind; empty for a key."""
        kind, colon, _ = self.key.partition(":")
        return kind if colon else ""

    @property
    def name(self) -> str:
        """The fact's name, or the key."""
        return self.key.rpartition(":")[2]


def counts(key: str, free: Collection[str] = ()) -> bool:
    """Return whether another value of a dotted key is another experiment.

    Args:
        key: the key.
        free: as in `counted`.
    """
    return bool(counted({key: None}, free))


def counted(values: Mapping[str, V], free: Collection[str] = ()) -> dict[str, V]:
    """Return the items of {dotted key: value} of which another value is another experiment.

    Args:
        values: a recipe, or a part of it.
        free: keys of a plugin that is not loaded here, as its run has recorded them: another value
            of these keys is the same experiment.
    """
    known = all_keys()
    return {
        key: value
        for key, value in values.items()
        if (known[key].effect == "compute" if key in known else key not in free)
    }


def of_effect(effect: Effect) -> list[str]:
    """The dotted keys of an effect."""
    return [key for key, one in all_keys().items() if one.effect == effect]


def computed_values(recipe: Recipe) -> Values:
    """{dotted key: value} of the keys that change what is computed."""
    other = {key for key, one in all_keys().items() if one.effect != "compute"}
    return {key: value for key, value in recipe.values().items() if key not in other}


def facts(kind: str, found: Mapping[str, Any] | None) -> dict[str, Any]:
    """{"KIND:NAME": value} of what environment.json has under a kind. Whether a run has a plugin is
    a fact too."""
    named = {f"{kind}:{name}": value for name, value in (found or {}).items()}
    return named | ({"plugin:": bool(found)} if kind == "plugin" else {})


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any], undecided: Collection[str] = ()
) -> list[Difference]:
    """In what two mappings differ.

    A key that one side lacks has its default there: keys come and go with versions, and with what
    an objective uses. A fact compares where both sides have it: earlier versions recorded fewer,
    and of files that are gone there are none.

    Args:
        there, here: of what was made, and of what is wanted.
        undecided: keys that do not count.
    """
    default = defaults()
    found = (
        Difference(key, *(side.get(key, default.get(key, UNKNOWN)) for side in (there, here)))
        for key in {**there, **here}
        if key not in undecided and (":" not in key or (key in there and key in here))
    )
    return [one for one in found if one.there != one.here]
