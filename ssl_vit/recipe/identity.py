"""Define what a run is computed from, and how two runs differ. This module does not import torch.

The identity of a run is one mapping. It holds {dotted key: value} for the keys that change what is
computed, and {"KIND:NAME": hash or value} for facts about the files that those keys name; FACTS
lists the kinds. A run folder records the keys in recipe.yaml and the facts in environment.json,
under their kind.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from . import declaration
from .images import PREPROCESSING
from .keys import Effect, Values
from .schema import DEFAULT_TARGET, Recipe, all_keys, defaults, optional_groups

# Kinds of facts: about images, initial weights, the weights of a teacher, and a plugin
FACTS = ("data", "init", "teacher", "plugin")
V = TypeVar("V")
# stands for the value of a key that is missing on one side and has no default
UNKNOWN = "not known"


class Difference(NamedTuple):
    """Key or fact that differs between two runs, with the two values.

    Attributes:
        key: Dotted key, or KIND:NAME of a fact.
        recorded: Value in the run that exists.
        wanted: Value in the run that is wanted.
    """

    key: str
    recorded: Any
    wanted: Any

    def __str__(self) -> str:
        return f"{self.key} ({self.recorded} there, {self.wanted} here)"

    @property
    def kind(self) -> str:
        """Kind of the fact, or an empty string for a key."""
        kind, colon, _ = self.key.partition(":")
        return kind if colon else ""

    @property
    def name(self) -> str:
        """Name of the fact without the kind, or the key."""
        return self.key.rpartition(":")[2]


def changes_experiment(key: str, free: Collection[str] = ()) -> bool:
    """Return whether another value of a dotted key makes another experiment.

    Args:
        key: Dotted key.
        free: As in `experiment_values`.
    """
    return bool(experiment_values({key: None}, free))


def experiment_values(values: Mapping[str, V], free: Collection[str] = ()) -> dict[str, V]:
    """Return the items of {dotted key: value} that make another experiment if they change.

    Args:
        values: The values of a recipe, or of a part of a recipe.
        free: Keys that make no other experiment, as recorded by a run whose plugin is not loaded
            here.
    """
    known = all_keys()
    return {
        key: value
        for key, value in values.items()
        if (known[key].effect == "compute" if key in known else key not in free)
    }


def keys_with_effect(effect: Effect) -> list[str]:
    """Return the dotted keys that have an effect."""
    return [key for key, declared in all_keys().items() if declared.effect == effect]


def computed_values(recipe: Recipe) -> Values:
    """Return {dotted key: value} for the keys that change what is computed."""
    ignored = {key for key, declared in all_keys().items() if declared.effect != "compute"}
    return {key: value for key, value in recipe.values().items() if key not in ignored}


def facts(kind: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return {"KIND:NAME": value} for the facts that environment.json has under a kind.

    Whether a run has a plugin is a fact too.
    """
    named = {f"{kind}:{name}": value for name, value in (values or {}).items()}
    return named | ({"plugin:": bool(values)} if kind == "plugin" else {})


def differences(
    before: Mapping[str, Any], here: Mapping[str, Any], undecided: Collection[str] = ()
) -> list[Difference]:
    """Return how two identities differ.

    A key that is missing on one side counts with its default: keys come and go with versions and
    with objectives. A fact is compared only if both sides have it: earlier versions recorded fewer
    facts, and deleted files have none.

    Args:
        before: Identity of the run that exists.
        here: Identity of the run that is wanted.
        undecided: Keys to leave out of the comparison.
    """
    default = defaults()
    compared = (
        Difference(key, *(side.get(key, default.get(key, UNKNOWN)) for side in (before, here)))
        for key in {**before, **here}
        if key not in undecided and (":" not in key or (key in before and key in here))
    )
    return [difference for difference in compared if difference.recorded != difference.wanted]


def keys_of_task(values: Mapping[str, Any]) -> list[str]:
    """Return the keys that decide what an objective predicts and how difficult the prediction is.

    The keys are those of the objective's groups, the sizes of images and patches, and with several
    views also the batch and the preprocessing. If the objective is unknown, for example because its
    plugin is not loaded, all groups count that only some objectives have.

    Args:
        values: `{dotted key: value}` of the recipe.
    """
    declared = declaration.objectives().get(str(values.get("objective")))
    target = str(values.get("target", DEFAULT_TARGET))
    if declared:
        groups = {*declared.groups_with(target)}
    else:
        groups = optional_groups() & {key.split(".")[0] for key in values}
        # keys that ssl_vit does not know belong to the plugin
        groups |= {key.split(".")[0] for key in values.keys() - all_keys().keys()}
    keys = [key for key in {**defaults(), **values} if key.split(".")[0] in groups]
    keys += ["objective", "data.size", "model.patch"]
    # objectives with views distinguish the images of a batch
    return [*keys, "optim.batch", *PREPROCESSING] if "views" in groups else keys
