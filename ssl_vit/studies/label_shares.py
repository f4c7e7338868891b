"""A study over shares of labels: the parts that a file writes once are repeated for each share.

`labels: [{share: 0.01, steps: 500}, {share: 0.1, steps: 2000}]` repeats every part that says
`{share}` or `{steps}`, or names a part that does, as PART_0.01 and PART_0.1.
"""

from typing import Any, NamedTuple

from .spec_fields import hold, listed, mapping, replace, text

SHARE = "share"


class LabelShare(NamedTuple):
    """One share of the labels: the part whose test accuracy is its point of the curve, and the
    extra parts beside it."""

    share: float
    final: str
    extra: list[str]


def expand(raw: dict[str, Any], where: str) -> tuple[dict[str, Any], list[LabelShare]]:
    """A study's mapping with the parts of each share spelled out. `report.final` becomes that of
    the first share, which the study's answer is about.

    Raises:
        UserError: a share that is no number in (0, 1] or there twice, values that some shares lack,
            or no final part that depends on them.
    """
    if "labels" not in raw:
        return raw, []
    entries = _entries(raw, f"{where}: labels")
    parts = mapping(raw, "parts", where)
    repeated = _repeated(parts, list(entries[0]))
    report = mapping(raw, "report", where)
    final = str(report.get("final"))
    at = f"{where}: report"
    hold(final in repeated, at, f"final: {final}: expected a part that says {{{SHARE}}}")
    hold(not set(repeated) & set(listed(report, "probes", at)), at, "probes: one names {share}")
    every: dict[str, Any] = {}
    for name, body in parts.items():
        if name not in repeated:
            every[name] = body
            continue
        for entry in entries:
            names = {other: _named(other, entry) for other in repeated}
            filled = {key: text(value) for key, value in entry.items()}
            braces = filled | {other: f"{{{new}}}" for other, new in names.items()}
            every[names[name]] = _renamed(replace(body, braces), names)
    extra = listed(report, "extra", at)
    points = [
        LabelShare(
            float(entry[SHARE]),
            _named(final, entry),
            [_named(part, entry) for part in extra if part in repeated],
        )
        for entry in entries
    ]
    beside = [part for part in extra if part not in repeated]
    hold(not beside, at, f"extra: {', '.join(map(str, beside))}: says no {{{SHARE}}}")
    report = report | {"final": points[0].final, "extra": [p for one in points for p in one.extra]}
    return raw | {"parts": every, "report": report}, points


def _entries(raw: dict[str, Any], where: str) -> list[dict[str, Any]]:
    entries = raw["labels"]
    complete = isinstance(entries, list) and len(entries) > 1
    hold(complete, where, "expected two shares or more, each as {share: 0.01, ...}")
    for entry in entries:
        hold(isinstance(entry, dict), where, f"{entry}: expected a mapping with {SHARE}")
        share = entry.get(SHARE)
        number = isinstance(share, int | float) and not isinstance(share, bool)
        hold(number and 0 < share <= 1, where, f"{SHARE}={share}: expected a number in (0, 1]")
        lacking = sorted(map(str, entries[0].keys() ^ entry.keys()))
        hold(not lacking, where, f"{', '.join(lacking)}: is not said of every share")
    distinct = len({float(entry[SHARE]) for entry in entries}) == len(entries)
    hold(distinct, where, f"{SHARE}: a value is there twice")
    return entries


def _named(part: str, entry: dict[str, Any]) -> str:
    return f"{part}_{float(entry[SHARE]):g}"


def _repeated(parts: dict[str, Any], keys: list[str]) -> list[str]:
    """The parts that say one of the keys in braces, or name a part that does."""
    found: list[str] = []
    while True:
        new = [
            name
            for name, body in parts.items()
            if name not in found and (_says(body, [*keys, *found]) or _names(body, found))
        ]
        if not new:
            return found
        found += new


def _says(body: Any, names: list[str]) -> bool:
    if isinstance(body, dict):
        return any(_says(value, names) for value in body.values())
    if isinstance(body, list):
        return any(_says(value, names) for value in body)
    return any(f"{{{name}}}" in str(body) for name in names)


def _names(body: Any, parts: list[str]) -> bool:
    if not isinstance(body, dict):
        return False
    best = body.get("best")
    return body.get("extends") in parts or (isinstance(best, dict) and best.get("of") in parts)


def _renamed(body: Any, names: dict[str, str]) -> Any:
    """A part whose `extends` and `best` name the parts of its own share."""
    if not isinstance(body, dict):
        return body
    renamed = dict(body)
    if body.get("extends") in names:
        renamed["extends"] = names[body["extends"]]
    best = body.get("best")
    if isinstance(best, dict) and best.get("of") in names:
        renamed["best"] = best | {"of": names[best["of"]]}
    return renamed
