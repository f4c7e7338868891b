"""The axes of what a study compares: which key lies along a curve, which one separates curves, and
how arms and their values are written."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...formatting import format_value

Settings = Mapping[str, Mapping[str, Any]]  # {arm: {key: value}}
CURVE_OF = {"labels": "labels", "images": "pre-training images", "compute": "exaFLOP"}
DECADE = 10.0  # ratio of the largest to the smallest value from which a log axis is considered


class Axes(NamedTuple):
    """Where each arm lies.

    Attributes:
        x: the key along the curves; empty: the arms themselves, as categories.
        lines: the key that separates curves; empty: one curve.
        places: {arm: (its place along x, its curve)}; a place is a number or an index in `ticks`.
        ticks: the names of categories; empty: x is a number.
        log: whether x is logarithmic.
    """

    x: str
    lines: str
    places: dict[str, tuple[float, str]]
    ticks: list[str]
    log: bool


def axes(settings: Settings, wanted: str | None = None) -> Axes:
    """The axes of these settings: a key that all have, two whose every combination is there, the
    key that is `wanted`, or else the arms by name."""
    keys = list(dict.fromkeys(key for setting in settings.values() for key in setting))
    full = all(len(setting) == len(keys) for setting in settings.values())
    lines = ""
    if full and len(keys) == 2 and _product(settings, keys):
        wanted = wanted or keys[0]
        lines = keys[1] if keys[0] == wanted else keys[0]
    elif wanted is None and full and len(keys) == 1:
        wanted = keys[0]
    values = [setting.get(wanted) if wanted else arm for arm, setting in settings.items()]
    ticks: list[str] = []
    log = False
    if wanted and all(map(_is_number, values)):
        places = [float(value) for value in values if value is not None]
        log = logarithmic(places)
    else:
        ticks = list(dict.fromkeys(map(format_value, values)))
        places = [float(ticks.index(format_value(value))) for value in values]
    curves = [
        f"{lines}={format_value(setting[lines])}" if lines else "" for setting in settings.values()
    ]
    arms = dict(zip(settings, zip(places, curves, strict=True), strict=True))
    return Axes(wanted or "", lines, arms, ticks, log)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _product(settings: Settings, keys: Sequence[str]) -> bool:
    counts = [len({format_value(setting[key]) for setting in settings.values()}) for key in keys]
    return min(counts) > 1 and math.prod(counts) == len(settings)


def logarithmic(values: Iterable[float]) -> bool:
    """Whether values span decades: DECADE from end to end, and spread more evenly by ratios than by
    differences."""
    found = sorted(set(values))
    if not found or found[0] <= 0 or found[-1] < DECADE * found[0]:
        return False
    if len(found) == 2:
        return found[-1] >= DECADE**2 * found[0]
    return _unevenness([math.log(value) for value in found]) < _unevenness(found)


def _unevenness(values: Sequence[float]) -> float:
    gaps = [after - before for before, after in itertools.pairwise(values)]
    return max(gaps) / min(gaps)


def arm_label(arm: str, settings: Settings) -> str:
    """An arm as its values where they identify it (one key or two that all settings have), else
    as its name."""
    setting = settings.get(arm, {})
    keys = {key for one in settings.values() for key in one}
    identified = len(keys) <= 2 and all(len(one) == len(keys) for one in settings.values())
    if not setting or not identified:
        return arm
    return ", ".join(f"{key}={format_value(value)}" for key, value in setting.items())
