"""A study's figures: accuracy against compute, and learning curves. No torch here."""

from collections.abc import Iterable
from typing import NamedTuple

from . import curves
from .finished import Finished, Study
from .numbers import Numbers, Row

# of each run the first of these that its metrics.jsonl tells: the axis, and by what it is
# multiplied
CURVES = {
    "validation/accuracy": ("held-out accuracy, %", 100),
    "validation/loss": ("held-out loss", 1),
    "loss": ("training loss", 1),
}


class Plot(NamedTuple):
    """SVG text for light pages and dark ones. `path` is where the light one lies, from the study's
    folder."""

    path: str
    caption: str
    light: str
    dark: str


def draw(study: Study, numbers: Numbers) -> list[Plot]:
    """Accuracy against exaFLOP, then the learning curves of the final part and of what came before
    it."""
    found = [_compute(study, numbers)]
    panels = list(_panels(study))
    if panels:
        caption = "Learning curves: each seed a thin line, the mean of an arm a thick one. What is pre-trained differs, so each"
        caption += " arm's pre-training has axes of its own."
        order = list(study.about["arms"])
        light, dark = (curves.learning(panels, order, look) for look in (curves.LIGHT, curves.DARK))
        found.append(Plot("figures/learning_curves.svg", caption, light, dark))
    return found


def name(row: Row) -> str:
    """A row's name: its arm, and for an extra one the part."""
    return f"extra: {row.arm}, {row.part}" if row.extra else row.arm


def _compute(study: Study, numbers: Numbers) -> Plot:
    points = []
    for row in numbers.rows:
        ends = (
            (100 * row.top1.interval.low, 100 * row.top1.interval.high)
            if row.top1.interval
            else None
        )
        points.append(
            curves.Point(
                name(row), list(row.exaflop.values()), [100 * x for x in row.seeds.values()], ends
            )
        )
    order = [*study.about["arms"], *(name(row) for row in numbers.rows if row.extra)]
    caption = "Test top-1 against all the compute that went into the network, sweeps left out: each seed a dot, the mean a"
    caption += " diamond with its 95% t-interval over seeds."
    light, dark = (curves.compute(points, order, look) for look in (curves.LIGHT, curves.DARK))
    return Plot("figures/accuracy_exaflop.svg", caption, light, dark)


def _panels(study: Study) -> Iterable[curves.Panel]:
    """The final part with all arms, then for each arm and earlier part the runs that its final ones
    came through."""
    arms = {
        arm: list(study.runs(study.report["final"], arm).values()) for arm in study.about["arms"]
    }
    yield from _panel("fine-tuning", {arm: runs for arm, runs in arms.items() if runs})
    for arm, runs in arms.items():
        earlier = {one.name: one for run in runs for one in study.before(run).values()}
        for part in dict.fromkeys(one.part for one in earlier.values()):
            yield from _panel(
                f"{part}: {arm}", {arm: [one for one in earlier.values() if one.part == part]}
            )


def _panel(title: str, arms: dict[str, list[Finished]]) -> Iterable[curves.Panel]:
    """One panel, of the first measure that all its runs have rows of; none where there is no such
    measure."""
    rows = {run.name: run.run.rows() for runs in arms.values() for run in runs}
    for measure, (label, scale) in CURVES.items():
        known = {run: [row for row in found if measure in row] for run, found in rows.items()}
        if all(known.values()):
            lines = {
                run: curves.Curve([r["step"] for r in f], [scale * r[measure] for r in f])
                for run, f in known.items()
            }
            by_arm = {arm: [lines[run.name] for run in runs] for arm, runs in arms.items()}
            yield curves.Panel(title, _said(label, arms), by_arm)
            return


def _said(label: str, arms: dict[str, list[Finished]]) -> str:
    """The axis, true also of runs that held nothing out and looked at training images in its
    place."""
    entries = [
        entry for runs in arms.values() for run in runs for entry in run.result["metrics"].values()
    ]
    return (
        label
        if any(entry["split"] == "validation" for entry in entries)
        else label.replace("held-out", "training images'")
    )
