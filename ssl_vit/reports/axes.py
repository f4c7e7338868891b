"""What a study varied, as axes: which key lies along a curve, which tells curves apart, and how
their values are written."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

DECADE = 10.0  # from the smallest value to the largest, at which a logarithmic axis is thought of


class Axes(NamedTuple):
    """`x` lies along the curves; empty: the settings themselves, as categories. `lines` tells
    curves apart; empty: one curve. `places` {arm: (its place along x, its curve)}; a place is a
    number, or a category's index in `ticks`."""

    x: str
    lines: str
    places: dict[str, tuple[float, str]]
    ticks: list[str]
    log: bool

    @property
    def categories(self) -> bool:
        return bool(self.ticks)


def axes(settings: Mapping[str, Mapping[str, Any]], wanted: str | None = None) -> Axes:
    """The axes of these settings: of one key that all have, of two whose every combination is
    there, or of `asked`."""
    keys = list(dict.fromkeys(key for setting in settings.values() for key in setting))
    full = all(len(setting) == len(keys) for setting in settings.values())
    lines = ""
    if full and len(keys) == 2 and _product(settings, keys):
        wanted = wanted or keys[0]
        (lines,) = (key for key in keys if key != wanted)
    elif wanted is None and full and len(keys) == 1:
        wanted = keys[0]
    values = [setting.get(wanted) if wanted else arm for arm, setting in settings.items()]
    label = [
        f"{lines}={format_value(setting[lines])}" if lines else "" for setting in settings.values()
    ]
    if wanted and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    ):
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        return Axes(
            wanted,
            lines,
            dict(zip(settings, zip(numbers, label, strict=True), strict=True)),
            [],
            logarithmic(numbers),
        )
    ticks = list(dict.fromkeys(format_value(value) for value in values))
    spots = [float(ticks.index(format_value(value))) for value in values]
    return Axes(
        wanted or "",
        lines,
        dict(zip(settings, zip(spots, label, strict=True), strict=True)),
        ticks,
        False,
    )


def _product(settings: Mapping[str, Mapping[str, Any]], keys: Sequence[str]) -> bool:
    counts = [len({format_value(setting[key]) for setting in settings.values()}) for key in keys]
    return min(counts) > 1 and math.prod(counts) == len(settings)


def logarithmic(values: Iterable[float]) -> bool:
    """Whether values span decades: DECADE from end to end, and spread more evenly by ratios than by
    differences."""
    found = sorted(set(values))
    if not found or found[0] <= 0 or found[-1] < DECADE * found[0]:
        return False
    plain, ratio = _unevenness(found), _unevenness([math.log(value) for value in found])
    return ratio < plain or (len(found) == 2 and found[-1] >= DECADE**2 * found[0])


def _unevenness(values: Sequence[float]) -> float:
    gaps = [after - before for before, after in itertools.pairwise(values)]
    return max(gaps) / min(gaps)


def format_value(value: Any) -> str:
    """A value in few characters."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def label(arm: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    """An arm in words: its values where they name it, else its own name."""
    setting = settings.get(arm, {})
    keys = {key for one in settings.values() for key in one}
    short = setting and len(keys) <= 2 and all(len(one) == len(keys) for one in settings.values())
    return (
        ", ".join(f"{key}={format_value(value)}" for key, value in setting.items())
        if short
        else arm
    )
