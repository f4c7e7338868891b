"""Which keys identify a run: equal values of them are the same run. No torch here."""

from typing import Any

from .schema import RENAMED, Recipe, defaults, options


def not_computed() -> list[str]:
    """Keys that say where, how fast and how often something is done, but not what is computed."""
    return [key for key, option in options().items() if not option.identity]


def in_result() -> list[str]:
    """Keys that are not computed, but part of the result: they may change while a run goes on, not
    once it has finished."""
    return [key for key, option in options().items() if option.in_result]


def counts(key: str) -> bool:
    """Whether a dotted key, also by its name of an earlier version, changes what is computed."""
    found = options().get(RENAMED.get(key, key))
    return found is None or found.identity


def computed_values(recipe: Recipe) -> dict[str, Any]:
    """{dotted key: value} of the keys that change what is computed."""
    return {key: value for key, value in recipe.values().items() if counts(key)}


def differences(there: dict[str, Any], here: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{key: (value there, value here)} of two mappings of keys that count. A key that one side
    lacks has its default there: keys come and go with versions, and with what an objective uses."""
    default = defaults()
    found = {}
    for key in {**there, **here}:
        was, now = (side.get(key, default.get(key, "not known")) for side in (there, here))
        if was != now:
            found[key] = (was, now)
    return found
