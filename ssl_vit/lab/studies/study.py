"""A study: its axes, its arms, its parts and what its report compares."""

import dataclasses
import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ...config.records.study import CurvePoint
from ..arms import Settings
from ..lab_tools import MATCHES
from .axes import PLACEHOLDER, Axis, Setting
from .read_axes import CURVES

SEED = "seed"  # {seed} in options: the task's seed


@dataclass(frozen=True)
class Part:
    """One step of a study at one place along its curve, repeated over arms, grid and seeds."""

    name: str
    tool: str
    # arm -> {key: text}, with {place} and {part} in the text
    options: dict[str, dict[str, str]]
    base: dict[str, str]  # options of every arm, before its own
    point: Setting  # along the study's curve; an empty one of a part that does not depend on it
    seeds: tuple[int, ...] | None  # None: the study's
    grids: dict[str, tuple[Axis, ...]]  # arm -> the axes that it is swept over
    best: str | None = None  # the part whose best run gives its grid values
    by: str = ""  # metric that decides

    @property
    def swept(self) -> bool:
        """Whether it has a run for each value of a grid."""
        return any(self.grids.values())

    def references(self, arm: str) -> set[str]:
        """The names in braces in this arm's options, those of its grid too."""
        swept = [one.options for axis in self.grids[arm] for one in axis.settings]
        values = [value for options in (self.options[arm], *swept) for value in options.values()]
        return {name for value in values for name in PLACEHOLDER.findall(str(value))}

    def needs(self) -> set[str]:
        """The places and parts that it names."""
        named = {name for arm in self.options for name in self.references(arm)}
        return named | ({self.best} if self.best else set())


@dataclass(frozen=True)
class Study:
    """What a study's file says.

    Attributes:
        title: what it asks.
        places: names that the command line gives a value.
        seeds: of each task.
        arms: {arm: description}.
        parts: {name: part}, each after those that it needs.
        report: what its report compares; parts along the curve by the names that they have there.
        axes: its curve, and those whose combinations its arms are. Parts have theirs in `grid`.
        settings: {arm: its setting}.
        vary: {arm: {key: value}} of the arms that differ in values of keys.
        match: what these arms have in common.
        points: the places along the curve, as study.json has them.
        benchmark: whose tasks the arms are.
    """

    title: str
    places: tuple[str, ...]
    seeds: tuple[int, ...]
    arms: dict[str, str]
    parts: dict[str, Part]
    report: dict[str, Any]
    axes: tuple[Axis, ...] = ()
    settings: dict[str, Setting] = field(default_factory=dict)
    vary: Settings = field(default_factory=dict)
    match: str = MATCHES[0]
    points: tuple[CurvePoint, ...] = ()
    benchmark: str | None = None

    @property
    def curve(self) -> Axis | None:
        """The axis of shares or lengths along which parts are repeated."""
        return next((axis for axis in self.axes if axis.name in CURVES), None)

    @property
    def chosen_among(self) -> set[str]:
        """The parts of whose runs another part takes the best."""
        return {part.best for part in self.parts.values() if part.best}

    def without(self, arms: Collection[str]) -> "Study":
        """The study without some of its arms, and without the parts that then have none."""
        kept = {
            part.name: {arm: own for arm, own in part.options.items() if arm not in arms}
            for part in self.parts.values()
        }
        return dataclasses.replace(
            self,
            arms={arm: text for arm, text in self.arms.items() if arm not in arms},
            parts={
                name: dataclasses.replace(self.parts[name], options=options)
                for name, options in kept.items()
                if options
            },
        )

    def decided(self) -> dict[str, str]:
        """{key: what sets it} of the recipe's keys that the axes set."""
        grids = [axes for part in self.parts.values() for axes in part.grids.values()]
        every = (*itertools.chain(*grids), *self.axes)
        return {key: axis.decides for axis in every for key in axis.keys}
