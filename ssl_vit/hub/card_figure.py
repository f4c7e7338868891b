"""The figure of a model card: a run's losses and accuracies by step. No torch here."""

import io

from ..callbacks import Row
from ..metrics import HELD_OUT, LOSS, NUMBER, SHARE, all_metrics, find_metric
from ..pages import metric_tables
from ..runs.folder import Run

PANELS = {LOSS: "loss", SHARE: "share right", NUMBER: "value"}  # of the metrics of a unit


def draw(run: Run) -> bytes | None:
    """A PNG of the training and held-out loss and of the held-out accuracy by step; None where
    metrics.jsonl has no rows."""
    from matplotlib.figure import Figure  # 0.3 s, also of the list of runs, which imports payload

    rows = run.rows()
    held_out = [f"{HELD_OUT}{row.name}" for row in all_metrics() if row.column]
    names = [name for name in ("loss", *reversed(held_out)) if _points(rows, name)]
    if not names:
        return None
    panels = {unit: [n for n in names if find_metric(n).unit == unit] for unit in PANELS}
    drawn = {unit: panel for unit, panel in panels.items() if panel}
    figure = Figure(figsize=(4.2 * len(drawn), 3.0), layout="constrained")
    for axis, (unit, panel) in zip(
        figure.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True
    ):
        for name in panel:
            axis.plot(*zip(*_points(rows, name), strict=True), label=name)
        for dashes, (name, value) in enumerate(_baselines(run, unit)):
            axis.axhline(value, color="gray", linestyle=("--", ":", "-.")[dashes % 3], label=name)
        axis.set(xlabel="step", ylabel=PANELS[unit])
        # above the axes: where data are few would have to be searched for
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False, fontsize="small")
    file = io.BytesIO()
    # without matplotlib's version: equal curves give equal bytes, which are not uploaded again
    figure.savefig(file, format="png", dpi=120, metadata={"Software": None})
    return file.getvalue()


def _baselines(run: Run, unit: str) -> list[tuple[str, float]]:
    """Name and value of the baselines of metrics of a unit. Those of the parts of a joint
    objective, such as mpp/entropy, are not drawn, because the curve is of their sum."""
    result = run.result()
    metrics = result.metrics if result else {}
    return [
        (one.called, one.there)
        for one in metric_tables.comparisons(metrics)
        if "/" not in one.baseline and find_metric(one.measure).unit == unit
    ]


def _points(rows: list[Row], name: str) -> list[tuple[int, float]]:
    return [(row["step"], row[name]) for row in rows if name in row]
