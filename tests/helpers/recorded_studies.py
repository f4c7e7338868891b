"""Studies of which `report --json` is committed (results/*.json): their values by seed, with all that
the reports' own code computes of these."""

import json
import runpy
from functools import cache
from typing import Any, NamedTuple

from helpers.options import ROOT
from ssl_vit import stats
from ssl_vit.lab.reports import measures, scaling_curve
from ssl_vit.lab.reports.measures import Measure, Result
from ssl_vit.lab.reports.scaling_curve import ScalingCurve

AS_VERSION_1 = runpy.run_path(str(ROOT / "docs" / "report_json_v1.py"))["converted"]


class RecordedStudy(NamedTuple):
    """`numbers` as the file has them; measures and curve are computed of its values by seed."""

    numbers: dict[str, Any]
    measures: list[Measure]
    curve: ScalingCurve | None

    def measure(self, name: str, part: str) -> Measure:
        return next(one for one in self.measures if (one.name, one.part) == (name, part))


@cache
def study(name: str) -> RecordedStudy:
    """A study of any version of the JSON."""
    report = json.loads((ROOT / "results" / f"{name}.json").read_text())
    numbers = (AS_VERSION_1(report) if "version" in report else report)["numbers"]
    curve = curve_of(numbers)
    # nulls where no arm is compared with a baseline
    gained = [pair["other"] for pair in numbers["pairs"]]
    baseline = curve["baseline"] if curve else next(iter(gained), None)
    found = [_measure(one, baseline) for one in numbers["measures"]]
    return RecordedStudy(numbers, found, _curve(curve, found) if curve else None)


def curve_of(numbers: dict[str, Any]) -> dict[str, Any] | None:
    """The recorded curve, whose first name was `labels`."""
    return numbers.get("scaling") or numbers.get("labels")


def _measure(recorded: dict[str, Any], baseline: str | None) -> Measure:
    keys = ("label", "part", "percent", "higher", "question_keys")
    results, beside = (
        [_result(one) for one in recorded[key]] for key in ("results", "not_compared")
    )
    metric = recorded["name"].partition(" (")[0]
    found = Measure(recorded["name"], metric, *(recorded[key] for key in keys), results, beside)
    return found if found.question_keys else measures.compared(found, baseline)


def _result(recorded: dict[str, Any]) -> Result:
    seeds = {int(seed): value for seed, value in recorded["seeds"].items()}
    value = stats.summarize(list(seeds.values()))
    return Result(recorded["arm"], [], seeds, value, None, {}, None, None)


def _curve(recorded: dict[str, Any], found: list[Measure]) -> ScalingCurve:
    named = {one.name: one for one in found}
    baseline = recorded["baseline"]
    points = [
        scaling_curve.label_point(
            one["share"], one["images"], named[one["measure"]["name"]], baseline
        )
        for one in recorded["points"]
    ]
    arms = [one["arm"] for one in recorded["comparisons"]]
    return scaling_curve.curve(points, baseline, arms, recorded.get("of", "labels"))
