"""The table of docs/results.md on what pre-training is worth, and its figure.

python results/worth_tables.py table results
python results/worth_tables.py figure results docs/worth.svg

The folder has worth.json, worth_folds.json, worth_self_training.json and worth_longer.json, the
tuning's worth_tuning.json and worth_tuning_10.json, and labels_cifar10.json of the untuned study.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tables
import tuning

from ssl_vit import stats
from ssl_vit.formatting import format_share
from ssl_vit.lab.reports import scaling_curve, svg_plots
from ssl_vit.lab.reports.measures import Measure, Result
from ssl_vit.lab.reports.scaling_curve import Estimate, ScalingCurve
from ssl_vit.pages.figure_style import LIGHT

BASELINE = "scratch"
ARMS = {
    BASELINE: "scratch",
    "mpp": "MPP",
    "mae": "MAE",
    "supervised": "supervised, Tiny ImageNet",
}
WITHOUT_LABELS = ("mpp", "mae")
UNTUNED = "MPP, untuned"
GREY = "#8a8a8a"
Scores = dict[float, dict[str, dict[int, float]]]  # {share: {arm: {seed: top-1}}}


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def scores(rows: tables.Rows) -> Scores:
    """Of the fine-tuned runs among these."""
    found: Scores = {}
    for row in rows:
        if row["part"].startswith("final"):
            (share,) = (one for one in row["options"] if one.startswith("data.share="))
            arms = found.setdefault(float(share.partition("=")[2]), {})
            arms.setdefault(row["arm"], {})[row["seed"]] = row["metrics"]["top1"]["value"]
    return found


def untuned(report: Mapping[str, Any]) -> Scores:
    """Of the study whose report this is."""
    return {
        float(one["part"].partition("_")[2]): {
            own["arm"]: {int(seed): value for seed, value in own["seeds"].items()}
            for own in one["results"]
        }
        for one in report["numbers"]["measures"]
        if one["name"].startswith("top1") and one["part"].startswith("final_")
    }


def curve(found: Scores) -> ScalingCurve:
    """Along the shares, each arm against scratch."""
    points = []
    for share, arms in found.items():
        results = [
            Result(arm, [], own, stats.summarize([*own.values()]), None, {}, None, None)
            for arm, own in arms.items()
        ]
        measure = Measure("top1", "top1", "", f"final_{share:g}", True, True, [], results, [])
        points.append(scaling_curve.label_point(share, None, measure, BASELINE))
    arms = dict.fromkeys(arm for own in found.values() for arm in own)
    return scaling_curve.curve(points, BASELINE, arms, "labels")


def tries(folder: Path, share: float) -> dict[str, list[float]]:
    """{arm: what its tries reached on the dev split}; of scratch in all of its ways."""
    name = "worth_tuning" if share == 0.01 else f"worth_tuning_{100 * share:g}"
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for row in read(folder, name):
        if row["part"] in (tuning.WORTH.short, "long"):
            arm = row["arm"] if row["arm"] in ARMS else BASELINE
            found[arm].append(tuning.score(row, tuning.WORTH.by))
    return found


def table(folder: Path) -> str:
    """Every arm at every share, then what stands beside them at the smallest."""
    found = scores(read(folder, "worth"))
    factors = {
        (one.arm, worth.share): worth.factor
        for one in curve(found).comparisons
        for worth in one.worth
    }
    lines = [
        "| labels | arm | n | top-1, % | sd | minus scratch, points | 95% | times scratch's labels"
        " | tries |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for share, arms in sorted(found.items()):
        tried = tries(folder, share)
        for arm, title in ARMS.items():
            base = arms[BASELINE] if arm != BASELINE else {}
            label = format_share(share) if arm == BASELINE else ""
            factor = factors.get((arm, share))
            lines.append(line(label, title, arms[arm], base, factor, len(tried[arm])))
        if share == min(found):
            lines += beside(folder, arms[BASELINE], len(tried["mae"]))
    return "\n".join([*lines, "", primary(folder, found)])


def primary(folder: Path, found: Scores) -> str:
    """The planned contrasts: at each share the pre-training without labels of which the tuning
    reached the most."""
    chosen = {
        share: max(WITHOUT_LABELS, key=lambda arm: max(tries(folder, share)[arm]))
        for share in sorted(found)
    }
    apart = [minus(found[share][arm], found[share][BASELINE]) for share, arm in chosen.items()]
    texts = [
        f"{ARMS[arm]} at {format_share(share)} {one.mean:+.2f} ({tables.ends(decided) or 'not tested'})"
        for (share, arm), one, decided in zip(chosen.items(), apart, holm(apart), strict=True)
    ]
    return f"Primary contrasts, with the intervals of Holm's procedure: {', '.join(texts)}."


def beside(folder: Path, scratch: Mapping[int, float], tried: int) -> list[str]:
    """The rows of the same share that are no arms of the study."""
    rows = []
    for name, title in (
        ("worth_folds", "MAE, tuned on its own labels"),
        ("worth_self_training", "self-training from scratch"),
    ):
        own = {row["seed"]: row["top1"] for row in read(folder, name)}
        rows.append(line("", title, own, scratch, None, tried))
    (longer,) = scores(read(folder, "worth_longer")).values()
    rows.append(line("", "scratch, three times as long", longer[BASELINE], scratch, None, 0))
    rows.append(
        line("", "MAE, so too, minus that scratch", longer["mae"], longer[BASELINE], None, 0)
    )
    return rows


def line(
    label: str,
    title: str,
    own: Mapping[int, float],
    base: Mapping[int, float],
    factor: Estimate | None,
    tried: int,
) -> str:
    """One row: an arm, what it is above another in pairs of a seed, and what that is worth."""
    value = stats.summarize([100 * one for one in own.values()])
    cells = [label, title, str(value.n), f"{value.mean:.2f}", f"{value.sd:.2f}"]
    if base:
        apart = minus(own, base)
        cells += [f"{apart.mean:+.2f}", tables.ends(apart.interval)]
    else:
        cells += ["", ""]
    cells += [times(factor) if factor else "", str(tried or "")]
    return tables.row(cells)


def minus(own: Mapping[int, float], base: Mapping[int, float]) -> stats.SeedSummary:
    """Points, in pairs of a seed."""
    return stats.summarize([100 * (own[seed] - base[seed]) for seed in own if seed in base])


def times(factor: Estimate) -> str:
    """A factor with its interval, open where the shares that were tried do not reach."""
    if factor.value is None:
        end = factor.low if factor.above else factor.high
        return "" if end is None else f"{'above' if factor.above else 'below'} {end:.2g}"
    low = "..." if factor.low is None else f"{factor.low:.2g}"
    high = "..." if factor.high is None else f"{factor.high:.2g}"
    return f"{factor.value:.2g} ({low} to {high})"


def holm(found: Sequence[stats.SeedSummary]) -> list[stats.Interval | None]:
    """The intervals of a family of differences by which Holm's procedure decides: the clearest as
    one of all, the next as one of those that are left, none after the first that includes zero."""
    clearest = sorted(found, key=lambda one: -abs(one.mean) / (one.sd or 1e-12))
    decided: dict[int, stats.Interval | None] = {}
    going = True
    for number, one in enumerate(clearest):
        interval = stats.simultaneous(one, len(found) - number) if going else None
        going = bool(interval and interval.excludes_zero)
        decided[id(one)] = interval
    return [decided[id(one)] for one in found]


def figure(folder: Path) -> str:
    """How many times the labels each arm is worth, tuned; the untuned study in grey."""
    own = curve(scores(read(folder, "worth")))
    lines = {ARMS[one.arm]: one.worth for one in own.comparisons}
    (old,) = curve(untuned(read(folder, "labels_cifar10"))).comparisons
    lines[UNTUNED] = old.worth
    lines = {
        name: [one._replace(share=100 * one.share) for one in line] for name, line in lines.items()
    }
    ticks = sorted({one.share for line in lines.values() for one in line})
    x = svg_plots.XAxis("labels, % of the training images", log=True, ticks=ticks)
    drawn = svg_plots.factors(lines, x, "times the labels of scratch", [*lines], LIGHT)
    grey = svg_plots.COLOURS[[*lines].index(UNTUNED)]
    return svg_plots.svg(drawn).replace(grey, GREY)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["table", folder]:
            print(table(Path(folder)))
        case ["figure", folder, out]:
            Path(out).write_text(figure(Path(folder)))
        case _:
            sys.exit(__doc__)
