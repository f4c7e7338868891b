"""Early warning: whether a run's first steps lie within the range expected of its recipe.

`recipes/tables/expected.yaml` holds the ranges, measured by robustness/expected.py. No torch here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..callbacks import Callback, Row
from ..config.computed import computed_values, keys
from ..config.parsing import load_yaml
from ..config.recipe_files import TABLES
from ..config.resolve import resolve
from ..config.schema import Recipe

PATH = TABLES / "expected.yaml"


class ExpectedCurve(NamedTuple):
    """The ranges of one recipe's first steps.

    Attributes:
        options: the recipe.
        seeds: how many were measured.
        log_every: steps that a row is the mean of.
        steps: {step: {metric: its lowest and highest expected value}}, of the mean over the
            log_every steps that end there.
    """

    options: list[str]
    seeds: int
    log_every: int
    steps: dict[int, dict[str, tuple[float, float]]]


def find(recipe: Recipe, images: int) -> ExpectedCurve | None:
    """The curve of a recipe, whatever its seed, precision and devices; None where there is none.

    Args:
        images: of the training split.
    """
    own = _compared(recipe)
    for entry in load_yaml(PATH).get("curves") or []:
        if entry["images"] != images or entry["log_every"] != recipe.log.every:
            continue
        if _compared(resolve(entry["options"])) == own:
            steps = {
                step: {name: (low, high) for name, (low, high) in ranges.items()}
                for step, ranges in entry["steps"].items()
            }
            return ExpectedCurve(entry["options"], entry["seeds"], recipe.log.every, steps)
    return None


def _compared(recipe: Recipe) -> dict[str, object]:
    """Without what is small beside the seeds (precision), or says where the same images are."""
    ignored = keys(lambda option: not option.curve)
    return {key: value for key, value in computed_values(recipe).items() if key not in ignored}


@dataclass(eq=False, repr=False)
class CurveCheck(Callback):
    """Compares a run's rows with the expected curve.

    Args:
        curve: of the run's recipe.
        start: the step that this process begins at. A row is compared if all its steps are later,
            and none of them was left out.
        note: gets a line at each step that lies within the ranges.
        warn: gets a line where a metric does not.
    """

    curve: ExpectedCurve
    start: int
    note: Callable[[str], None]
    warn: Callable[[str], None]

    def on_row(self, row: Row) -> None:
        ranges = self.curve.steps.get(row["step"], {})
        measured = {name: row[name] for name in ranges if name in row}
        first = row["step"] - self.curve.log_every
        if not measured or first < self.start or row.get("left_out"):
            return
        of = f"{self.curve.seeds} seeds of {' '.join(self.curve.options)}"
        outside = [
            f"{name} {value:.4g} is outside {ranges[name][0]:.4g} to {ranges[name][1]:.4g}"
            for name, value in measured.items()
            if not math.isfinite(value) or not ranges[name][0] <= value <= ranges[name][1]
        ]
        if outside:
            where = f"step {row['step']}: {', '.join(outside)}"
            self.warn(f"{where}, the range expected from {of}; see docs/runs.md")
            return
        inside = [
            f"{name} {value:.4g} ({ranges[name][0]:.4g} to {ranges[name][1]:.4g})"
            for name, value in measured.items()
        ]
        self.note(f"step {row['step']}: {', '.join(inside)} as expected from {of}")
