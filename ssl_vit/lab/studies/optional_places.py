"""Places that a study can go without: the arms that need one that is not given are left out."""

import dataclasses
from collections.abc import Collection

from ...errors import UserError
from .study import Study


def without_missing(study: Study, given: Collection[str]) -> tuple[Study, list[str]]:
    """The study without the optional places that are not given and the arms that need them; and
    what is left out, as text. The report names it too.

    Raises:
        UserError: no arm is left, or the report compares an arm that is left out.
    """
    missing = [place for place in study.optional if place not in given]
    needing = {
        arm: [f"{place}=" for place in missing if _needs(study, arm, place)] for arm in study.arms
    }
    out = {arm: places for arm, places in needing.items() if places}
    if not out:
        return study, []
    if len(out) == len(study.arms):
        wanted = ", ".join(f"{place}=" for place in missing)
        raise UserError(f"no arm has its places; expected some of {wanted}")
    for role in ("baseline", "candidate", "reference"):
        arm = study.report.get(role)
        if arm in out:
            needed = ", ".join(out[arm])
            raise UserError(f"{needed} is missing: the report compares arm {arm}")
    left_out = [f"{arm} is left out: {', '.join(places)} is missing" for arm, places in out.items()]
    report = study.report | {"differs": [*study.report.get("differs", []), *left_out]}
    if "paper" in report:
        report["paper"] = {arm: at for arm, at in report["paper"].items() if arm not in out}
    places = tuple(place for place in study.places if place not in missing)
    return dataclasses.replace(study.without(out), places=places, report=report), left_out


def _needs(study: Study, arm: str, place: str) -> bool:
    parts = (part for part in study.parts.values() if arm in part.options)
    return any(place in part.references(arm) for part in parts)
