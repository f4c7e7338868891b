"""The `report:` of a study's file, in the names that parts and arms have in the study."""

from collections.abc import Collection

from ...config.records.study import CurvePoint
from ...errors import suggest
from ..arms import Settings, find_arm
from . import study_keys
from .axes import Axis, name_at
from .mistakes import Mistakes, Node, likely_meant, listed, mapping, require


def read(
    raw: Node,
    vary: Settings,
    curve: Axis | None,
    repeated: Collection[str],
    where: str,
    mistakes: Mistakes,
) -> tuple[Node, tuple[CurvePoint, ...]]:
    """The report's keys with the names that parts and arms have in the study, and the points of its
    axis of shares or lengths. `final` becomes the part at the first of them, which the study's
    answer is about; probes those at all of them; the values of a claim the arms that have them."""
    report = mistakes.read_or(mapping, {}, raw, "report", where)
    at = f"{where}: report"
    claim = report.get("claim")
    if vary and isinstance(claim, dict):
        report = report | {"claim": claim | _claimed(claim, vary, f"{at}: claim", mistakes)}
    if curve is None:
        return report, ()
    final = str(report.get("final"))
    extra = mistakes.read_or(listed, [], report, "extra", at)
    points = tuple(
        CurvePoint(
            share=float(point.coordinates[curve.name]),
            final=name_at(final, point, repeated),
            extra=[name_at(str(part), point, repeated) for part in extra],
        )
        for point in curve.settings
    )
    report = report | {"final": points[0].final, "extra": [p for one in points for p in one.extra]}
    if "probes" in report:
        probes = mistakes.read_or(listed, [], report, "probes", at)
        every = [name_at(str(part), one, repeated) for part in probes for one in curve.settings]
        report |= {"probes": list(dict.fromkeys(every))}
    return report, points


def _claimed(claim: Node, vary: Settings, where: str, mistakes: Mistakes) -> dict[str, str]:
    """The arms that a claim is about.

    Raises:
        UserError: it has none, no arm has that value alone, or both are one.
    """
    arms: dict[str, str] = {}
    for role in ("better", "worse"):
        with mistakes.of():
            if role not in claim and role in likely_meant(claim, study_keys.CLAIM):
                continue
            require(role in claim, where, f"{role}: is missing")
            arm = find_arm(claim[role], vary)
            choices = suggest(str(claim[role]), vary)
            require(arm, where, f"{role}={claim[role]}: is not varied; {choices}")
            arms[role] = str(arm)
    alike = len(arms) == 2 and arms["better"] == arms["worse"]
    mistakes.require(not alike, where, f"better and worse are both {claim.get('better')}")
    return arms
