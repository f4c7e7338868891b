"""Which keys identify a run: equal values of them are the same run. No torch here."""

import dataclasses
from typing import Any

from .parsing import flatten
from .schema import OPTIONS, RENAMED, Recipe

# Where, how fast and how often something is done, but not what is computed
NOT_COMPUTED = tuple(key for key, option in OPTIONS.items() if not option.identity)
# Not computed, but part of the result: may change while a run goes on, not once it has finished
IN_RESULT = tuple(key for key, option in OPTIONS.items() if option.in_result)


def counts(key: str) -> bool:
    """Whether a dotted key, also by its name of an earlier version, changes what is computed."""
    return RENAMED.get(key, key) not in NOT_COMPUTED


def computed_values(recipe: Recipe) -> dict[str, Any]:
    """{dotted key: value} of the keys that change what is computed."""
    values = flatten(dataclasses.asdict(recipe))
    return {key: value for key, value in values.items() if counts(key)}
