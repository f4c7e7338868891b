"""The figure of a model card: a run's losses and accuracies by step. No torch here."""

import io
from typing import Any

from matplotlib.figure import Figure

from ..pages import metric_tables
from ..runs.folder import Run


def draw(run: Run) -> bytes | None:
    """A PNG of the training and held-out loss and of the held-out accuracy by step; None where
    metrics.jsonl has no rows."""
    rows = run.rows()
    names = [
        name
        for name in ("loss", "validation/loss", "validation/accuracy_masked", "validation/accuracy")
        if _points(rows, name)
    ]
    if not names:
        return None
    panels = {
        "loss": [n for n in names if n.endswith("loss")],
        "share right": [n for n in names if not n.endswith("loss")],
    }
    drawn = {label: panel for label, panel in panels.items() if panel}
    figure = Figure(figsize=(4.2 * len(drawn), 3.0), layout="constrained")
    for axis, (label, panel) in zip(
        figure.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True
    ):
        for name in panel:
            axis.plot(*zip(*_points(rows, name), strict=True), label=name)
        for dashes, (name, value) in enumerate(_baselines(run, label == "loss")):
            axis.axhline(value, color="gray", linestyle=("--", ":", "-.")[dashes % 3], label=name)
        axis.set(xlabel="step", ylabel=label)
        # above the axes: where data are few would have to be searched for
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False, fontsize="small")
    file = io.BytesIO()
    # without matplotlib's version: equal curves give equal bytes, which are not uploaded again
    figure.savefig(file, format="png", dpi=120, metadata={"Software": None})
    return file.getvalue()


def _baselines(run: Run, losses: bool) -> list[tuple[str, float]]:
    """Name and value of the baselines of the loss, or of the accuracy. Those of the parts of a
    joint objective, such as mpp/entropy, are not drawn, because the curve is of their sum."""
    metrics = (run.result() or {"metrics": {}})["metrics"]
    return [
        (one.called, one.there)
        for one in metric_tables.comparisons(metrics)
        if "/" not in one.baseline and one.measure.startswith("loss") is losses
    ]


def _points(rows: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(row["step"], row[name]) for row in rows if name in row]
