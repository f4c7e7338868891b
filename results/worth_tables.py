"""The tables of docs/results.md and docs/worth.md on what pre-training is worth, and the figure.

python results/worth_tables.py table results
python results/worth_tables.py figure results docs/worth.svg
python results/worth_tables.py right RUNS results/worth_right.npz

The folder has worth.json with worth_right.npz, the tuning's worth_tuning.json and
worth_tuning_10.json, and labels_cifar10.json of the untuned study; for further rows
worth_folds.json, worth_self_training.json and worth_longer.json: a row whose runs are not there
says so. `right` packs, from the folder of study/worth, which test images each fine-tuned run
classifies correctly.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import contrasts
import numpy as np
import tables
import tuning

from ssl_vit import stats
from ssl_vit.formatting import format_share
from ssl_vit.lab.reports import scaling_curve, svg_plots
from ssl_vit.lab.reports.measures import Measure, Result
from ssl_vit.lab.reports.scaling_curve import Estimate, ScalingCurve
from ssl_vit.pages.figure_style import LIGHT

PLANNED = (0.01, 0.1)  # of the labels, with a primary contrast each
BASELINE = "scratch"
DIRECT = "direct"  # the scratch that has the compute of fine-tuning alone
ARMS = {
    BASELINE: "scratch",
    DIRECT: "scratch, fine-tuning alone",
    "mpp": "MPP",
    "mae": "MAE",
    "supervised": "supervised, Tiny ImageNet",
}
WAYS = (BASELINE, "scratch_mixed", "scratch_half", "scratch_half_mixed", DIRECT)
WITHOUT_LABELS = ("mpp", "mae")
UNTRAINED = "random"
FROZEN = {
    UNTRAINED: "untrained",
    BASELINE: "scratch before fine-tuning",
    "mpp": "MPP",
    "mae": "MAE",
    "supervised": "supervised, Tiny ImageNet",
}
UNTUNED = "MPP, against untuned scratch"
AS_TUNED = "as tuned"
GREY = "#8a8a8a"
Scores = dict[float, dict[str, dict[int, float]]]  # {share: {arm: {seed: top-1}}}


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def scores(rows: tables.Rows, key: str = "top1") -> Scores:
    """Of the fine-tuned runs among these; `total_exaflop` in place of the top-1, if so asked."""
    found: Scores = {}
    for row in rows:
        if row["part"].startswith("final"):
            arms = found.setdefault(share_of(row), {})
            value = row["metrics"][key]["value"] if key == "top1" else row[key]
            arms.setdefault(row["arm"], {})[row["seed"]] = value
    return found


def share_of(row: Mapping[str, Any]) -> float:
    """Of the labels that a run has."""
    (share,) = (one for one in row["options"] if one.startswith("data.share="))
    return float(share.partition("=")[2])


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
            reached = tuning.score(row, tuning.WORTH.by)
            if row["arm"] in ARMS and row["arm"] != BASELINE:
                found[row["arm"]].append(reached)
            if row["arm"] in WAYS:
                found[BASELINE].append(reached)
    return found


def table(folder: Path) -> str:
    """Every arm at every share, then what stands beside them at the smallest.

    Raises:
        SystemExit: an arm has not been run at a share.
    """
    rows = read(folder, "worth")
    found, compute = scores(rows), scores(rows, "total_exaflop")
    for share, arms in found.items():
        if missing := [arm for arm in ARMS if arm not in arms]:
            sys.exit(
                f"error: {folder}/worth.json: at {format_share(share)} no {', '.join(missing)}"
            )
    shares = sorted(found)
    factors = {
        (one.arm, worth.share): times(
            worth.factor, (shares[0] / worth.share, shares[-1] / worth.share)
        )
        for one in curve(found).comparisons
        for worth in one.worth
    }
    lines = [
        "| labels | arm | n | top-1, % | sd | minus scratch, points (95%)"
        " | times scratch's labels (95%) | tries | 1e-5 exaFLOP |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for share, arms in sorted(found.items()):
        tried = {arm: len(own) for arm, own in tries(folder, share).items()}
        for arm, title in ARMS.items():
            label = format_share(share) if arm == BASELINE else ""
            own = Row(title, arms[arm], compute[share][arm], str(tried[arm]))
            base = arms[BASELINE] if arm != BASELINE else {}
            lines.append(line(label, own, base, factors.get((arm, share), "")))
        if share == min(found):
            for own in beside(folder, compute[share][BASELINE], tried):
                base = {seed: arms[BASELINE][seed] for seed in own.top1}  # of as many as have run
                lines.append(line("", own, base))
    further = [primary(folder, found), checks(folder, rows), paid(found), frozen(rows)]
    return "\n\n".join(["\n".join(lines), *further])


class Row(NamedTuple):
    """An arm: by seed its top-1 and its exaFLOP with all before it; its tries as they are shown."""

    title: str
    top1: Mapping[int, float]
    compute: Mapping[int, float]
    tries: str


def beside(
    folder: Path, scratch_compute: Mapping[int, float], tried: Mapping[str, int]
) -> Iterator[Row]:
    """The rows of the same share that are no arms of the study; empty where they have not run."""
    for name, title, teaches in (
        ("worth_folds", "MAE, tuned on its own labels", False),
        ("worth_self_training", "self-training from scratch", True),
    ):
        rows = if_run(folder, name)
        before = scratch_compute if teaches else {}  # the teacher is the scratch run
        yield Row(
            title,
            {row["seed"]: row["top1"] for row in rows},
            {row["seed"]: row["total_exaflop"] + before.get(row["seed"], 0) for row in rows},
            f"{tried[BASELINE]} + {tried['mae']}" if teaches else str(tried["mae"]),
        )


def if_run(folder: Path, name: str) -> tables.Rows:
    return read(folder, name) if (folder / f"{name}.json").exists() else []


def line(label: str, row: Row, base: Mapping[int, float], factor: str = "") -> str:
    """An arm, what it is above another in pairs of a seed, and what that is worth."""
    if not row.top1:
        return tables.row([label, row.title, "0", "not run", *[""] * 5])
    value = stats.summarize([100 * one for one in row.top1.values()])
    cells = [label, row.title, str(value.n), f"{value.mean:.2f}"]
    cells.append("" if value.sd is None else f"{value.sd:.2f}")
    cells.append(points(minus(row.top1, base)) if base else "")
    spent = sum(row.compute.values()) / len(row.compute)
    cells += [factor, row.tries, f"{1e5 * spent:.2f}"]
    return tables.row(cells)


def minus(own: Mapping[int, float], base: Mapping[int, float]) -> stats.SeedSummary:
    """Points, in pairs of a seed.

    Raises:
        SystemExit: the seeds are not the same.
    """
    if own.keys() != base.keys():
        sys.exit(f"error: seeds {sorted(own)} and {sorted(base)} are not in pairs")
    return stats.summarize([100 * (own[seed] - base[seed]) for seed in own])


def points(apart: stats.SeedSummary) -> str:
    """A difference with its interval; of one seed it has none."""
    ends = f" ({tables.ends(apart.interval)})" if apart.interval else ""
    return f"{apart.mean:+.2f}{ends}"


def times(factor: Estimate, bounds: tuple[float, float]) -> str:
    """A factor with its interval, open where the shares that were tried do not reach.

    Args:
        factor: of an arm at a share.
        bounds: what the least and the greatest share are of that share.
    """
    if factor.value is None:
        beyond = f"more than {bounds[1]:.3g}" if factor.above else f"less than {bounds[0]:.3g}"
        end = factor.low if factor.above else factor.high
        side = "above" if factor.above else "below"
        return beyond + ("" if end is None else f" (95%: {side} {end:.3g})")
    low = "..." if factor.low is None else f"{factor.low:.3g}"
    high = "..." if factor.high is None else f"{factor.high:.3g}"
    return f"{factor.value:.3g} ({low} to {high})"


def primary(folder: Path, found: Scores) -> str:
    """The planned contrasts: at each share the pre-training without labels of which the tuning
    reached the most, minus scratch.

    Raises:
        SystemExit: a planned share has not been run, or worth_right.npz is of other runs.
    """
    if missing := [share for share in PLANNED if share not in found]:
        sys.exit(f"error: {folder}/worth.json: no runs at {', '.join(map(format_share, missing))}")
    right = np.load(folder / "worth_right.npz")
    lines = [
        "| primary contrast | points (95%) | both together (Bonferroni) | by Holm's procedure"
        " | test images resampled too |",
        "|---|---|---|---|---|",
    ]
    arms = {share: best_without_labels(folder, share) for share in PLANNED}
    apart = [minus(found[share][arm], found[share][BASELINE]) for share, arm in arms.items()]
    decided = contrasts.holm(apart)
    for (share, arm), one, is_apart in zip(arms.items(), apart, decided, strict=True):
        own, base = (
            contrasts.correct(right, share, name, found[share][name]) for name in (arm, BASELINE)
        )
        images = stats.resampled_interval(own.astype(np.int64) - base)
        cells = [f"{ARMS[arm]} minus scratch at {format_share(share)}", points(one)]
        cells.append(tables.ends(stats.simultaneous(one, len(PLANNED))))
        cells.append("distinguished" if is_apart else "not distinguished")
        cells.append(tables.ends(images and stats.Interval(*(100 * end for end in images))))
        lines.append(tables.row(cells))
    return "\n".join(lines)


def best_without_labels(folder: Path, share: float) -> str:
    reached = tries(folder, share)
    return max(WITHOUT_LABELS, key=lambda arm: max(reached[arm]))


def checks(folder: Path, rows: tables.Rows) -> str:
    """Scratch and MAE otherwise than tuned, of study/worth_checks and study/worth_longer, and how
    far that moves the difference between them."""
    lines = [
        "| labels | scratch and MAE | n | scratch, % | MAE, % | MAE minus scratch, points (95%)"
        " | minus that as tuned (95%) |",
        "|---|---|---|---|---|---|---|",
    ]
    longer = if_run(folder, "worth_longer")
    label, tuned = "", dict[int, float]()
    for share, title, part, of in (
        (0.01, AS_TUNED, "final_0.01", rows),
        (0.01, "second-best settings", "second", rows),
        (0.01, "fine-tuned 3 times as long", "long_1", rows),
        (0.01, "trained 3 times as long before fine-tuning", "final", longer),
        (0.1, AS_TUNED, "final_0.1", rows),
        (0.1, "fine-tuned 3 times as long", "long_10", rows),
    ):
        scratch, mae = (by_seed(of, part, arm) for arm in (BASELINE, "mae"))
        cells = ["" if format_share(share) == label else format_share(share), title]
        label = format_share(share)
        if scratch.keys() == mae.keys() and scratch:  # one that goes on shows nothing yet
            means = [f"{100 * sum(own.values()) / len(own):.2f}" for own in (scratch, mae)]
            apart = {seed: mae[seed] - scratch[seed] for seed in mae}
            if title == AS_TUNED:
                tuned, moved = apart, ""
            else:
                moved = points(minus(apart, {seed: tuned[seed] for seed in apart}))
            cells += [str(len(scratch)), *means, points(minus(mae, scratch)), moved]
        else:
            cells += ["0", "not run", "", "", ""]
        lines.append(tables.row(cells))
    return "\n".join(lines)


def by_seed(rows: tables.Rows, part: str, arm: str, metric: str = "top1") -> dict[int, float]:
    """{seed: a metric} of an arm's runs of a part."""
    return {
        row["seed"]: row["metrics"][metric]["value"]
        for row in rows
        if (row["part"], row["arm"]) == (part, arm)
    }


def paid(found: Scores) -> str:
    """What whoever has a pre-trained encoder gains: minus the scratch that is fine-tuned alone."""
    lines = [f"| labels | minus {ARMS[DIRECT]} | n | points (95%) |", "|---|---|---|---|"]
    for share, arms in sorted(found.items()):
        label = format_share(share)
        for arm, title in ARMS.items():
            if arm not in (BASELINE, DIRECT):
                apart = minus(arms[arm], arms[DIRECT])
                lines.append(tables.row([label, title, str(apart.n), points(apart)]))
                label = ""
    return "\n".join(lines)


def frozen(rows: tables.Rows) -> str:
    """The encoders as they are before fine-tuning, each minus the untrained one of its seed."""
    names = [f"{name}, % | minus untrained (95%)" for name in tables.MEASURES.values()]
    lines = [f"| labels | frozen | n | {' | '.join(names)} |", "|---" * (3 + 2 * len(names)) + "|"]
    for share in sorted({share_of(row) for row in rows if row["part"].startswith("frozen")}):
        for arm, title in FROZEN.items():
            label = format_share(share) if arm == UNTRAINED else ""
            cells = []
            for measure in tables.MEASURES:
                top1, base = (
                    by_seed(rows, f"frozen_{share:g}", one, measure) for one in (arm, UNTRAINED)
                )
                apart = points(minus(top1, base)) if arm != UNTRAINED else ""
                cells += [f"{100 * sum(top1.values()) / len(top1):.2f}", apart]
            lines.append(tables.row([label, title, str(len(top1)), *cells]))
    return "\n".join(lines)


def figure(folder: Path) -> str:
    """How many times the labels each arm is worth, tuned; the untuned study in grey."""
    own = curve(scores(read(folder, "worth")))
    lines = {ARMS[one.arm]: one.worth for one in own.comparisons if one.arm != DIRECT}
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
        case ["right", runs, out]:
            contrasts.pack_right(Path(runs), Path(out))
        case _:
            sys.exit(__doc__)
