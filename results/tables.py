"""The tables of docs/methods.md and its figure, from the committed runs.

python results/tables.py methods results/methods_64px.json results/methods_doubled.json
python results/tables.py ranks results/methods_64px.json results/methods_doubled.json \\
    docs/methods_rank.svg

The first file has the runs of study/methods, the second those of study/methods_doubled, which are
twice as long.
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
DOUBLED = "_doubled"  # ends the arms of the second file
# {arm: its name, the untrained encoder with the same feature}
ARMS = {
    "mpp": ("MPP", AVERAGE),
    "mae": ("MAE", AVERAGE),
    "ijepa": ("I-JEPA", AVERAGE),
    f"ijepa{DOUBLED}": ("I-JEPA, twice as long", f"{AVERAGE}{DOUBLED}"),
    AVERAGE: ("untrained, mean of the patches", None),
    "moco_v3": ("MoCo v3", TOKEN),
    "dino": ("DINO", TOKEN),
    "ibot": ("iBOT", TOKEN),
    TOKEN: ("untrained, class token", None),
}
# the contrasts that were planned: all but what was tried after them
PLANNED = [arm for arm, (_, untrained) in ARMS.items() if untrained and not arm.endswith(DOUBLED)]
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
        f"| {name}, % | n | mean | sd | minus untrained | 95% | 95%, all {len(PLANNED)} |",
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
            together = stats.simultaneous(apart, len(PLANNED)) if arm in PLANNED else None
            cells += [f"{apart.mean:+.2f}", ends(apart.interval), ends(together)]
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
    """{objective: its effective rank as a multiple of that of its first weights, by its steps as a
    multiple of those that it has in study/methods}."""
    lines = {}
    for arm, (title, _) in ARMS.items():
        curves = [
            {int(step): rank for step, rank in row["effective_rank"].items()}
            for row in rows
            if (row["part"], row["arm"]) == ("pretrain", arm)
        ]
        steps = sorted(curves[0]) if curves else []
        if steps:
            length = 2 if arm.endswith(DOUBLED) else 1
            shares = [[length * step / steps[-1]] * len(curves) for step in steps]
            times = [[one[step] / one[0] for one in curves] for step in steps]
            lines[title] = [
                svg_plots.Point(*both, None) for both in zip(shares, times, strict=True)
            ]
    return lines


def ranks(rows: Rows) -> str:
    """The figure of rank_lines, as SVG."""
    lines = rank_lines(rows)
    panel = svg_plots.Panel("effective rank, times that at step 0", lines, {})
    x = svg_plots.XAxis("steps, times those of the confirmation")
    return svg_plots.svg(svg_plots.points([panel], x, [*lines], LIGHT))


def read(file: Path, doubled: Path) -> Rows:
    """The runs of both files, the arms of the second one by names of their own.

    Raises:
        SystemExit: a file cannot be read, has no probes of an arm, or its runs are not as long.
    """
    try:
        first, second = (json.loads(one.read_text()) for one in (file, doubled))
    except OSError as error:
        sys.exit(f"error: {error}")
    rows = first + [row | {"arm": f"{row['arm']}{DOUBLED}"} for row in second]
    arms = dict.fromkeys([*ARMS, *(untrained for _, untrained in ARMS.values() if untrained)])
    missing = [arm for arm in arms if not by_seed(rows, arm, "knn")]
    if missing:
        sys.exit(f"error: {file}, {doubled}: no probes of {', '.join(missing)}")
    for arm in ARMS:
        if arm.endswith(DOUBLED):
            once, twice = (exaflop(rows, one) for one in (arm.removesuffix(DOUBLED), arm))
            if not 1.99 < twice / once < 2.01:
                sys.exit(f"error: {doubled}: {twice / once:.2f} times the compute of {file}'s")
    return rows


def exaflop(rows: Rows, arm: str) -> float:
    """Of one run of pre-training."""
    return next(row["exaflop"] for row in rows if (row["part"], row["arm"]) == ("pretrain", arm))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["methods", *files] if len(files) == 2:
            print(methods(read(*map(Path, files))))
        case ["ranks", *files, out] if len(files) == 2:
            Path(out).write_text(ranks(read(*map(Path, files))))
        case _:
            sys.exit(__doc__)
