"""The tables of docs/methods.md and its figure, from the committed runs.

python results/tables.py methods results/methods_64px.json
python results/tables.py ranks results/methods_64px.json docs/methods_rank.svg
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssl_vit import stats
from ssl_vit.lab.reports import svg_plots
from ssl_vit.pages.figure_style import LIGHT
from ssl_vit.stats import Interval

AVERAGE, TOKEN = "random", "random_token"
# {arm: its name, the untrained encoder with the same feature}
ARMS = {
    "mpp": ("MPP", AVERAGE),
    "mae": ("MAE", AVERAGE),
    "ijepa": ("I-JEPA", AVERAGE),
    AVERAGE: ("untrained, mean of the patches", None),
    "moco_v3": ("MoCo v3", TOKEN),
    "dino": ("DINO", TOKEN),
    "ibot": ("iBOT", TOKEN),
    TOKEN: ("untrained, class token", None),
}
CONTRASTS = sum(untrained is not None for _, untrained in ARMS.values())
MEASURES = {"knn": "k-NN", "linear": "linear probe"}
Rows = list[dict[str, Any]]


def by_seed(rows: Rows, arm: str, metric: str) -> dict[int, float]:
    """{seed: %} of the test images."""
    return {
        row["seed"]: 100 * row["metrics"][metric]["value"]
        for row in rows
        if (row["part"], row["arm"]) == ("probe", arm)
    }


def methods(rows: Rows) -> str:
    """One table a measure: each arm, and what it is above its untrained encoder, in pairs of a
    seed."""
    return "\n\n".join(_of_measure(rows, *measure) for measure in MEASURES.items())


def _of_measure(rows: Rows, metric: str, name: str) -> str:
    lines = [
        f"| {name}, % | n | mean | sd | minus untrained | 95% | 95%, all {CONTRASTS} |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, (title, untrained) in ARMS.items():
        own = by_seed(rows, arm, metric)
        found = stats.summarize([*own.values()])
        sd = "" if found.sd is None else f"{found.sd:.2f}"
        cells = [title, str(found.n), f"{found.mean:.2f}", sd]
        if untrained:
            others = by_seed(rows, untrained, metric)
            apart = stats.summarize([own[seed] - others[seed] for seed in own])
            cells += [f"{apart.mean:+.2f}", ends(apart.interval)]
            cells.append(ends(stats.simultaneous(apart, CONTRASTS)))
        else:
            cells += ["", "", ""]
        lines.append(row(cells))
    return "\n".join(lines)


def row(cells: Sequence[str]) -> str:
    """Of a table in Markdown."""
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def ends(interval: Interval | None) -> str:
    return f"{interval.low:+.2f} to {interval.high:+.2f}" if interval else ""


def rank_lines(rows: Rows) -> dict[str, list[svg_plots.Point]]:
    """{objective: its effective rank as a multiple of that of its first weights, by the share of
    its steps}."""
    lines = {}
    for arm, (title, _) in ARMS.items():
        curves = [
            {int(step): rank for step, rank in row["effective_rank"].items()}
            for row in rows
            if (row["part"], row["arm"]) == ("pretrain", arm)
        ]
        steps = sorted(curves[0]) if curves else []
        if steps:
            shares = [[step / steps[-1]] * len(curves) for step in steps]
            times = [[one[step] / one[0] for one in curves] for step in steps]
            lines[title] = [
                svg_plots.Point(*both, None) for both in zip(shares, times, strict=True)
            ]
    return lines


def ranks(rows: Rows) -> str:
    """The figure of rank_lines, as SVG."""
    lines = rank_lines(rows)
    panel = svg_plots.Panel("effective rank, times that at step 0", lines, {})
    x = svg_plots.XAxis("share of the steps")
    return svg_plots.svg(svg_plots.points([panel], x, [*lines], LIGHT))


def main(file: Path, out: Path | None = None) -> None:
    try:
        rows = json.loads(file.read_text())
    except OSError as error:
        sys.exit(f"error: {error}")
    missing = [arm for arm in ARMS if not by_seed(rows, arm, "knn")]
    if missing:
        sys.exit(f"error: {file}: no probes of {', '.join(missing)}")
    if out:
        out.write_text(ranks(rows))
    else:
        print(methods(rows))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["methods", file]:
            main(Path(file))
        case ["ranks", file, out]:
            main(Path(file), Path(out))
        case _:
            sys.exit(__doc__)
