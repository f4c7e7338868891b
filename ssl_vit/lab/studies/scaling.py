"""A study over shares of labels, of pre-training images, or over compute: the parts that a file
writes once are repeated for each place along the curve.

`labels: [{share: 0.01, steps: 500}, {share: 0.1, steps: 2000}]` repeats every part with
`{share}` or `{steps}` in its options, or that names such a part, as PART_0.01 and PART_0.1.
`images:` does the same for shares of what is pre-trained on, `compute: [{steps: 100}, ...]` for
lengths of pre-training at which all arms cost the same.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...config.parsing import flatten
from ...formatting import option_text
from .spec_fields import hold, listed, mapping, pretraining, replace

SHARE = "share"
CURVES = {"labels": SHARE, "images": SHARE, "compute": "steps"}  # and what lies along each


class ScalingPoint(NamedTuple):
    """One place along the curve (a share, or steps): the part whose test accuracy is its point, and
    the extra parts beside it."""

    share: float
    final: str
    extra: list[str]


class Scaling(NamedTuple):
    """The places of a study, none of a study without a curve; `keys` are the recipe's keys whose
    values depend on them, `pretraining` those of parts that pre-train; `of` is a name of CURVES."""

    points: tuple[ScalingPoint, ...] = ()
    keys: frozenset[str] = frozenset()
    pretraining: frozenset[str] = frozenset()
    of: str = "labels"


def expand(raw: dict[str, Any], where: str) -> tuple[dict[str, Any], Scaling]:
    """A study's mapping with the parts of each share spelled out. `report.final` becomes that of
    the first share, which the study's answer is about.

    Raises:
        UserError: a share that is no number in (0, 1] or there twice, names that clash, values that
            some shares lack or no part names, or no final part that depends on the share.
    """
    curves = [name for name in CURVES if raw.get(name) is not None]
    if not curves:
        return raw, Scaling()
    of = curves[0]
    hold(len(curves) == 1, where, f"{' and '.join(curves)}: expected one of them")
    along = CURVES[of]
    entries = _entries(raw[of], along, f"{where}: {of}")
    parts = mapping(raw, "parts", where)
    keys = list(entries[0])
    _check_pretraining(of, raw, where)
    _check_keys(of, keys, raw, where)
    repeated = _repeated(parts, keys)
    report = mapping(raw, "report", where)
    final = str(report.get("final"))
    at = f"{where}: report"
    hold(final in repeated, at, f"final: {final}: expected a part with {{{along}}} in its options")
    for name in listed(report, "probes", at):
        hold(
            name not in repeated,
            at,
            f"probes: {name}: has {{{along}}} in its options, which no probe may",
        )
    every = _spell_out(parts, repeated, entries, along, where)
    extra = listed(report, "extra", at)
    beside = [part for part in extra if part not in repeated]
    hold(not beside, at, f"extra: {', '.join(map(str, beside))}: no {{{along}}} in its options")
    points = tuple(
        ScalingPoint(
            float(entry[along]),
            _named(final, entry[along]),
            [_named(part, entry[along]) for part in extra],
        )
        for entry in entries
    )
    report = report | {"final": points[0].final, "extra": [p for one in points for p in one.extra]}
    depend = {name: _dependent(body, keys) for name, body in parts.items()}
    scaling = Scaling(
        points,
        frozenset().union(*depend.values()),
        frozenset().union(*(depend[name] for name in pretraining(parts))),
        of,
    )
    return raw | {"parts": every, "report": report}, scaling


def _spell_out(
    parts: dict[str, Any],
    repeated: Collection[str],
    entries: Sequence[dict[str, Any]],
    along: str,
    where: str,
) -> dict[str, Any]:
    """The parts, each repeated one once for each place and under a name of its own."""
    every: dict[str, Any] = {}
    for name, body in parts.items():
        if name not in repeated:
            every[name] = body
            continue
        for entry in entries:
            names = {other: _named(other, entry[along]) for other in repeated}
            filled = {key: option_text(value) for key, value in entry.items()}
            braces = filled | {other: f"{{{new}}}" for other, new in names.items()}
            new = names[name]
            hold(new not in parts, where, f"parts: {new}: is what {name} is called at that share")
            every[new] = _renamed(replace(body, braces), names)
    return every


def check(
    scaling: Scaling, parts: dict[str, Any], settings: dict[str, dict[str, Any]], where: str
) -> None:
    """Check that each arm of a final or extra part trains on the share that it stands for, and that
    no varied key is one that `labels` sets in pre-training.

    Args:
        parts: {name: Part}.
        settings: {arm: {key: value}} of the arms that differ in values of keys.

    Raises:
        UserError: one does not.
    """
    for key in dict.fromkeys(key for setting in settings.values() for key in setting):
        hold(key not in scaling.pretraining, where, f"vary: {key}: {scaling.of}: sets it")
    if scaling.of != "labels":
        return
    for point in scaling.points:
        for name in (point.final, *point.extra):
            for arm, options in parts[name].options.items():
                given = options.get("data.share")
                text = f"part {name}, arm {arm}: data.share={given}: expected {{{SHARE}}}"
                hold(given is not None and _is(given, point.share), where, text)


def _is(given: str, share: float) -> bool:
    try:
        return float(given) == share
    except ValueError:
        return False


def _check_pretraining(of: str, raw: dict[str, Any], where: str) -> None:
    """Check that what lies along a curve of pre-training is what its parts are given."""
    if of == "labels":
        return
    along = CURVES[of]
    key = {"images": "data.share", "compute": "optim.steps"}[of]
    matched = of != "compute" or raw.get("match") == "exaflop"
    hold(matched, where, "compute: expected match: exaflop, which makes the arms cost the same")
    given = [
        flatten(body.get("options") or {}).get(key)
        for body in pretraining(mapping(raw, "parts", where)).values()
    ]
    fits = given and all(str(value) == f"{{{along}}}" for value in given)
    hold(fits, where, f"{of}: expected {key}: {{{along}}} in the parts that pre-train")


def _check_keys(of: str, keys: list[str], raw: dict[str, Any], where: str) -> None:
    """Check that each value of a curve's places is one that a part names, and is called like
    nothing else."""
    parts = mapping(raw, "parts", where)
    taken = {*parts, *listed(raw, "places", where)}
    for key in keys:
        hold(key not in taken, where, f"{of}: {key}: is also a part or a place; rename it")
        used = any(_contains(body, [key]) for body in parts.values())
        hold(used, where, f"{of}: {key}: no part has {{{key}}} in its options")


def _dependent(body: Any, names: list[str]) -> set[str]:
    """The recipe's keys of a part whose values contain one of the names in braces."""
    if not isinstance(body, dict):
        return set()
    by_arm = body.get("by_arm")
    groups = [body.get("options"), *(by_arm.values() if isinstance(by_arm, dict) else ())]
    return {
        key
        for group in groups
        if isinstance(group, dict)
        for key, value in flatten(group).items()
        if _contains(value, names)
    }


def _entries(entries: Any, along: str, where: str) -> list[dict[str, Any]]:
    complete = isinstance(entries, list) and len(entries) > 1
    places = "shares" if along == SHARE else "lengths"
    example = "0.01" if along == SHARE else "100"
    hold(complete, where, f"expected two {places} or more, each as {{{along}: {example}, ...}}")
    for entry in entries:
        hold(isinstance(entry, dict), where, f"{entry}: expected a mapping with {along}")
        value = entry.get(along)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if along == SHARE:
            fits = number and 0 < value <= 1
            hold(fits, where, f"{SHARE}={value}: expected a number in (0, 1]")
        else:
            whole = number and value > 0 and float(value).is_integer()
            hold(whole, where, f"{along}={value}: expected a whole number above 0")
        lacking = sorted(map(str, entries[0].keys() ^ entry.keys()))
        hold(not lacking, where, f"{', '.join(lacking)}: is missing in some {places}")
    distinct = len({float(entry[along]) for entry in entries}) == len(entries)
    hold(distinct, where, f"{along}: a value is there twice")
    return entries


def _named(part: str, place: float) -> str:
    return f"{part}_{np.format_float_positional(place, trim='-')}"


def _repeated(parts: dict[str, Any], keys: list[str]) -> list[str]:
    """The parts that contain one of the keys in braces, or name such a part."""
    found: list[str] = []
    while True:
        new = [
            name
            for name, body in parts.items()
            if name not in found and (_contains(body, [*keys, *found]) or _names(body, found))
        ]
        if not new:
            return found
        found += new


def _contains(body: Any, names: list[str]) -> bool:
    if isinstance(body, dict):
        return any(_contains(value, names) for value in body.values())
    if isinstance(body, list):
        return any(_contains(value, names) for value in body)
    return any(f"{{{name}}}" in str(body) for name in names)


def _names(body: Any, parts: list[str]) -> bool:
    if not isinstance(body, dict):
        return False
    best = body.get("best")
    named = [body.get("extends"), best.get("of") if isinstance(best, dict) else None]
    return any(isinstance(name, str) and name in parts for name in named)


def _renamed(body: Any, names: dict[str, str]) -> Any:
    """A part whose `extends` and `best` name the parts of its own share."""
    if not isinstance(body, dict):
        return body
    renamed = dict(body)
    other = body.get("extends")
    if isinstance(other, str) and other in names:
        renamed["extends"] = names[other]
    best = body.get("best")
    if isinstance(best, dict) and isinstance(best.get("of"), str) and best["of"] in names:
        renamed["best"] = best | {"of": names[best["of"]]}
    return renamed
