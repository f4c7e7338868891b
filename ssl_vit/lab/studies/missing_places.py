"""Places that are not given: the arms that need one are left out, and named."""

import dataclasses
from collections.abc import Collection

from ...errors import UserError
from ..arms import arm_pairs
from .study import Study


def without_missing(study: Study, given: Collection[str]) -> tuple[Study, list[str]]:
    """The study without the arms that need a place that is not given, and without these places; and
    what is left out, as text. The report names it too.

    Raises:
        UserError: every arm needs a place that is not given, or none uses it; no arm is left, or
            the report compares an arm that is left out.
    """
    missing = [place for place in study.places if place not in given]
    needing = {arm: [place for place in missing if _needs(study, arm, place)] for arm in study.arms}
    uses = {place: sum(place in needs for needs in needing.values()) for place in missing}
    of_some = [place for place in missing if 0 < uses[place] < len(study.arms)]
    if of_all := [place for place in missing if place not in of_some]:
        needed = ", ".join(place for place in study.places if place not in of_some)
        raise UserError(f"{_typed(of_all)} is missing: the study needs the places {needed}")
    out = {arm: places for arm, places in needing.items() if places}
    if not out:
        return study, []
    if len(out) == len(study.arms):
        raise UserError(f"no arm has its places; expected some of {_typed(missing)}")
    for role in ("baseline", "candidate", "reference"):
        arm = study.report.get(role)
        if arm in out:
            raise UserError(f"{_typed(out[arm])} is missing: the report compares arm {arm}")
    left_out = [f"{arm} is left out: {_typed(places)} is missing" for arm, places in out.items()]
    report = study.report | {"differs": [*study.report.get("differs", []), *left_out]}
    if "paper" in report:
        report["paper"] = {arm: at for arm, at in report["paper"].items() if arm not in out}
    if "pairs" in report:
        report["pairs"] = [pair for pair in report["pairs"] if not _has(pair, study, out)]
    places = tuple(place for place in study.places if place not in missing)
    return dataclasses.replace(study.without(out), places=places, report=report), left_out


def _needs(study: Study, arm: str, place: str) -> bool:
    parts = (part for part in study.parts.values() if arm in part.options)
    return any(place in part.references(arm) for part in parts)


def _typed(places: Collection[str]) -> str:
    return ", ".join(f"{place}=" for place in places)


def _has(pair: str, study: Study, arms: Collection[str]) -> bool:
    """Whether one of the arms is in a pair of the report."""
    return any(arm in arms for both in arm_pairs([pair], study.arms, study.vary) for arm in both)
