"""The JSON files of a study's folder as records."""

from typing import Any

from . import Number, Record, Scalar, Whole


class Task(Record):
    """A task of study.json. Without options it is a study of other means."""

    name: str
    part: str
    tool: str
    arm: str
    seed: Whole
    values: dict[str, Scalar | list[Scalar]]
    needs: list[str]
    best: str | None = None
    by: str | None = None
    options: list[str] | None  # as on a command line
    coordinates: dict[str, Any] | None = None  # {axis: value}; None: of an earlier version


class Report(Record):
    """What the report of a study compares."""

    final: str | None = None
    baseline: str | None = None
    candidate: str | None = None
    reference: str | None = None
    measure: str | None = None
    axis: str | None = None
    extra: list[str] | None = None
    probes: list[str] | None = None
    differs: list[str] | None = None
    paper: dict[str, Number] | None = None
    pairs: list[str] | None = None  # A:B

    @property
    def roles(self) -> dict[str, str]:
        """{role: its arm} of the roles that are given."""
        found = {role: self[role] for role in ("baseline", "candidate", "reference")}
        return {role: arm for role, arm in found.items() if arm}


class CurvePoint(Record):
    """A place along a study's curve: its final part and the parts beside it."""

    share: Number
    final: str
    extra: list[str]


class StudyPlan(Record):
    """study.json."""

    name: str
    title: str
    arms: dict[str, Any]
    report: Report
    tasks: list[Task]
    vary: dict[str, dict[str, Any]] | None = None
    match: str | None = None
    benchmark: str | None = None
    labels: list[CurvePoint] = []
    curve: str = "labels"  # what lies along it
