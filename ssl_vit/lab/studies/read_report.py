"""The `report:` of a study's file, in the names that parts have in the study."""

from collections.abc import Collection

from ...config.records.study import CurvePoint
from .axes import Axis, name_at
from .mistakes import Node, listed, mapping


def read(
    raw: Node,
    curve: Axis | None,
    repeated: Collection[str],
    where: str,
) -> tuple[Node, tuple[CurvePoint, ...]]:
    """The report's keys with the names that parts have in the study, and the points of its axis of
    shares or lengths. `final` becomes the part at the first of them, which the study's answer is
    about; probes those at all of them."""
    report = mapping(raw, "report", where)
    at = f"{where}: report"
    if curve is None:
        return report, ()
    final = str(report.get("final"))
    extra = listed(report, "extra", at)
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
        probes = listed(report, "probes", at)
        every = [name_at(str(part), one, repeated) for part in probes for one in curve.settings]
        report |= {"probes": list(dict.fromkeys(every))}
    return report, points
