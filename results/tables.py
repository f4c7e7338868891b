"""The tables of README.md and docs/ that are computed from results/*.json, as they stand there, and
those of smaller studies, of which docs/results.md has a line each.

python results/tables.py            all, each under its name and its page
python results/tables.py primary    one

Intervals are 95%: Student's t over the seeds, of a difference in pairs of a seed.
"""

import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

FOLDER = Path(__file__).parent
SHARES = {"1%": 0.01, "10%": 0.1}  # of the labels
ARMS = {
    "scratch": "scratch",
    "direct": "scratch, fine-tuning alone",
    "mpp": "MPP",
    "mae": "MAE",
    "supervised": "supervised, Tiny ImageNet",
}
METHODS = {  # {arm: its name, the untrained encoder with the same feature}
    "mpp": ("MPP", "random"),
    "mae": ("MAE", "random"),
    "moco_v3": ("MoCo v3", "random_token"),
    "dino": ("DINO", "random_token"),
    "ibot": ("iBOT", "random_token"),
    "ijepa": ("I-JEPA", "random"),
}
NEWER = {
    "lejepa": ("LeJEPA", "random_token"),
    "dinov2": ("DINOv2's recipe", "random_token"),
    "distill": ("distilled from MAE", "random_token"),
    "hog": ("MPP, HOG", "random"),
    "teacher_features": ("MPP, features of its teacher", "random"),
}
TARGETS = {
    "mae": "MAE",
    "supervised": "supervised, Tiny ImageNet",
    "mpp": "MPP, mean colour",
    "mpp_grid": "MPP, 4 x 4 colours",
    "mpp_pixels": "MPP, all pixels with L2",
    "simmim": "SimMIM",
    "moco_v3": "MoCo v3",
    "scratch": "scratch",
}
HIDDEN = {  # target=
    "mean_color": "mean colour",
    "grid_color": "colours of 4 x 4 cells",
    "mean_channels": "mean of each channel",
    "pixels": "pixels",
    "normalized_pixels": "normalised pixels",
    "hog": "HOG",
    "teacher": "features of its teacher",
}
FEATURES = {"random": "mean of the patches", "random_token": "class token"}
RATES = {1e-4: "1e-4", 3e-4: "3e-4", 1e-3: "1e-3", 3e-3: "3e-3", 1e-2: "1e-2"}
# {row: parts of results/overhead.json}
OVERHEAD = {
    "importing torch": ("import torch",),
    "importing everything else": ("imports",),
    "reading the recipe and the rest": ("recipe and all else", "banner", "summary"),
    "opening and fingerprinting images": ("opening images", "fingerprinting images"),
    "building the network": ("network and optimiser", "untrained network"),
    "counting operations, timing a step": ("counting operations", "timing a step"),
    "baselines and held-out images": (
        *("baselines", "reading held-out images", "held-out evaluation"),
        "reading images of probes",
    ),
    "steps": ("steps",),
    "k-NN and linear probe, untrained weights too": (
        "features and probes, untrained weights included",
    ),
    "test images": ("test images",),
    "figures and page": ("figures", "page"),
    "checkpoints and export": ("checkpoints", "export"),
    "leaving Python": ("leaving Python",),
    "**total**": ("total",),
    "until the first line": ("first line",),
    "until the first step": ("first step",),
}
Try = dict[str, Any]  # a run of a tuning


def table(head: str, rows: Iterable[str]) -> str:
    """In Markdown; cells at the start of a row that are those of the row above are left empty."""
    lines = []
    above: list[Any] = [None]
    for row in (head, *rows):
        cells = [cell.strip() for cell in row.split("|")]
        new = next(i for i, pair in enumerate(zip(cells, above, strict=False)) if len({*pair}) > 1)
        shown = [""] * new + cells[new:]
        lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in shown))
        above = cells
    return "\n".join([lines[0], "|" + "---|" * len(above), *lines[1:]])


@cache
def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


@cache
def runs(study: str) -> pd.DataFrame:
    """A row for each metric of each run: part, arm, metric, value, exaFLOP with all runs before it;
    by seed."""
    found = read(study)
    if isinstance(found, list):
        rows = [
            (one["part"], one["arm"], one["seed"], metric, value["value"], one.get("total_exaflop"))
            for one in found
            for metric, value in one["metrics"].items()
        ]
    else:
        rows = [
            (one["part"], arm["arm"], int(seed), one["name"].split()[0], value, None)
            for one in found["numbers"]["measures"]
            for arm in one["results"]
            for seed, value in arm["seeds"].items()
        ]
    columns = ["part", "arm", "seed", "metric", "value", "exaflop"]
    return pd.DataFrame(rows, columns=columns).set_index("seed")


def of(study: str, part: str, arm: str, metric: str = "top1", column: str = "value") -> pd.Series:
    """By seed."""
    rows = runs(study)
    return rows[(rows.part == part) & (rows.arm == arm) & (rows.metric == metric)][column]


def final(study: str, label: str, arm: str, column: str = "value") -> pd.Series:
    """After fine-tuning on a share of the labels."""
    return of(study, f"final_{SHARES[label]:g}", arm, column=column)


def gain(study: str, label: str, arm: str, other: str = "scratch") -> pd.Series:
    return final(study, label, arm) - final(study, label, other)


def reach(n: int, family: int = 1) -> float:
    """Half the interval of a mean of n values in standard deviations; of `family` intervals that
    hold together (Bonferroni)."""
    return float(stats.t.ppf(1 - 0.025 / family, n - 1)) / n**0.5


def mean(values: pd.Series) -> str:
    return f"{100 * values.mean():.2f}"


def spread(values: pd.Series) -> str:
    return f"{values.count()} | {mean(values)} | {100 * values.std():.2f}"


def ends(values: pd.Series, family: int = 1) -> str:
    half = reach(values.count(), family) * values.std()
    low, high = 100 * (values.mean() - half), 100 * (values.mean() + half)
    return f"{low:+.2f} to {high:+.2f}"


def points(apart: pd.Series) -> str:
    return f"{100 * apart.mean():+.2f} ({ends(apart)})"


def told(apart: pd.Series) -> str:
    """As `points`, and whether the interval includes zero."""
    clear = abs(apart.mean()) > reach(apart.count()) * apart.std()
    return points(apart) + ("" if clear else ": not distinguished")


def zero(apart_SE: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The share at which a difference known at 1% and 10% is zero by its mean, on a line over the
    logarithm; the shares below and above it at which its interval excludes zero."""
    place_X = np.linspace(0, 1, 2001)
    apart_SX = np.outer(apart_SE[:, 0], 1 - place_X) + np.outer(apart_SE[:, 1], place_X)
    half_X = reach(len(apart_SE)) * apart_SX.std(0, ddof=1)
    share_X = 0.01 * 10 ** place_X[np.abs(apart_SX.mean(0)) > half_X]
    first, last = apart_SE.mean(0)
    found = 0.01 * 10 ** (first / (first - last))
    return found, share_X[share_X < found], share_X[share_X > found]


def times(study: str, label: str, arm: str, form: str = ".3g") -> str:
    """How many times the labels scratch would need to be as accurate."""
    scratch = pd.concat([final(study, one, "scratch") for one in SHARES], axis=1).dropna()
    found, below, above = zero((-scratch).add(final(study, label, arm), axis=0).to_numpy())
    if not len(below):  # not even with the fewest that were tried
        least, end = 0.01 / SHARES[label], above.min() / SHARES[label]
        return f"less than {least:.3g} (95%: below {end:.3g})"
    shares = (found, below.max(), above.min())
    value, low, high = (f"{share / SHARES[label]:{form}}" for share in shares)
    return f"{value} ({low} to {high})"


def resampled(label: str) -> str:
    """MAE minus scratch, seeds and test images resampled together (the pigeonhole bootstrap of Owen,
    2007), the seeds' part stretched to the width of Student's t (Hesterberg, 2015)."""
    right = np.load(FOLDER / "worth_right.npz")
    images, seeds = int(right["images"]), final("worth", label, "mae").index
    names = [f"final_{SHARES[label]:g}-{{}}-{seed}" for seed in seeds]
    mae_SM, scratch_SM = (
        np.array([np.unpackbits(right[name.format(arm)], count=images) for name in names], int)
        for arm in ("mae", "scratch")
    )
    column_SU, count_U = np.unique(mae_SM - scratch_SM, axis=1, return_counts=True)
    mean_S, n = column_SU @ count_U / images, len(seeds)
    generator = np.random.default_rng(0)
    seeds_BS = generator.multinomial(n, np.full(n, 1 / n), 10_000) / n
    images_BU = generator.multinomial(images, count_U / images, 10_000) / images
    stretch = (n / (n - 1)) ** 0.5 * reach(n) * n**0.5 / stats.norm.ppf(0.975)
    mean_B = ((seeds_BS @ column_SU) * images_BU).sum(1)
    mean_B += (stretch - 1) * (seeds_BS @ mean_S - mean_S.mean())
    low, high = 100 * np.quantile(mean_B, [0.025, 0.975])
    return f"{low:+.2f} to {high:+.2f}"


def tries(study: str, *parts: str) -> dict[str, list[Try]]:
    """{arm: its tries in these parts of a tuning}."""
    found: dict[str, list[Try]] = {}
    for one in read(study):
        if one["part"] in parts:
            found.setdefault(one["arm"], []).append(one)
    return found


def score(one: Try) -> float:
    """By k-NN of held-out images, by which a try was judged."""
    return float(one["metrics"]["probe_knn"]["value"])


def arms() -> str:
    rows = []
    for label, study in (("1%", "worth_tuning"), ("10%", "worth_tuning_10")):
        tried = {arm: len(own) for arm, own in tries(study, "sweep", "long").items()}
        ways = [arm for arm in tried if arm.startswith(("scratch", "direct"))]
        tried["scratch"] = sum(tried[arm] for arm in ways)
        for arm, title in ARMS.items():
            own = final("worth", label, arm)
            above = " | "
            if arm != "scratch":
                above = f"{points(gain('worth', label, arm))} | {times('worth', label, arm)}"
            rows.append(f"{label} | {title} | {spread(own)} | {above} | {tried[arm]}")
        if label == "1%":
            scratch = final("worth", label, "scratch")
            folds, student = (
                pd.DataFrame(read(f"worth_{name}")).set_index("seed")
                for name in ("folds", "self_training")
            )
            both = f"{tried['scratch']} + {tried['mae']}"
            for title, own, count in (
                ("MAE, tuned on its own labels", folds, tried["mae"]),
                ("self-training from scratch", student, both),
            ):
                above = points((own.top1 - scratch).dropna())
                rows.append(f"{label} | {title} | {spread(own.top1)} | {above} | | {count}")
    return table(
        "labels | arm | n | top-1, % | sd | minus scratch, points (95%) |"
        " times scratch's labels (95%) | tries",
        rows,
    )


def primary() -> str:
    apart = {label: gain("worth", label, "mae") for label in SHARES}
    p_values = {label: float(stats.ttest_1samp(one, 0).pvalue) for label, one in apart.items()}
    rows = []
    for label, one in apart.items():
        # Holm (1979): the lower p-value against half of 5%, then the other against 5%
        clear = min(p_values.values()) <= 0.025 and p_values[label] <= 0.05
        rows.append(
            f"MAE minus scratch at {label} | {points(one)} | {ends(one, len(SHARES))} |"
            f" {'' if clear else 'not '}distinguished | {resampled(label)}"
        )
    return table(
        "primary contrast | points (95%) | both together (Bonferroni) | by Holm's procedure |"
        " test images resampled too",
        rows,
    )


def objectives() -> str:
    """Each with the learning rate that its tuning chose, over its untrained encoder."""
    rows = []
    for untrained, feature in FEATURES.items():
        for arm in (arm for arm, about in METHODS.items() if about[1] == untrained):
            rate = chosen(arm)
            rows.append(f"{METHODS[arm][0]} | {rate}{over_untrained('methods_64px', arm)}")
            if arm in set(runs("methods_doubled").arm):  # a second try, corrected for nothing
                longer = over_untrained("methods_doubled", arm, corrected=False)
                rows.append(f"{METHODS[arm][0]}, twice as long | {rate}{longer}")
        knn, linear = (mean(of("methods_64px", "probe", untrained, x)) for x in ("knn", "linear"))
        rows.append(f"untrained, {feature} | | | {knn} | | | {linear} | ")
    return table(
        "objective | learning rate | steps | k-NN, % | minus untrained (95%) | 95%, all 6 |"
        " linear probe, % | minus untrained (95%)",
        rows,
    )


def newer() -> str:
    """Newer objectives and targets after a short run, over untrained weights of the same seeds."""
    rows = []
    arms = [arm for arm in NEWER if arm in set(runs("newer").arm)]
    for untrained, feature in FEATURES.items():
        fresh = of("newer", "frozen", untrained, "knn")
        for arm in (arm for arm in arms if NEWER[arm][1] == untrained):
            knn = of("newer", "frozen", arm, "knn")
            rows.append(
                f"{NEWER[arm][0]} | {mean(knn)} | {told(knn - fresh)} | {ends(knn - fresh, len(arms))}"
            )
        rows.append(f"untrained, {feature} | {mean(fresh)} | | ")
    pixels = of("newer", "frozen", "random_token", "pixels_knn")
    rows.append(f"pixels at 8 x 8 | {mean(pixels)} | | ")
    return table(f"features | k-NN, % | minus untrained (95%) | 95%, all {len(arms)}", rows)


def hidden() -> str:
    """What MPP predicts of a hidden patch, at equal compute: frozen features over untrained ones."""
    rows = []
    for arm, title in HIDDEN.items():
        knn, fresh, shots = (
            of("target", "frozen", arm, one) for one in ("knn", "fresh_knn", "few_shot_5")
        )
        base = of("target", "frozen", "mean_color", "knn")
        tried = tries("target", "tries")[arm]
        rates = [one["values"]["optim.lr"] for one in tried]
        rate = max(tried, key=score)["values"]["optim.lr"]
        end = ", an end of the grid" if rate in (min(rates), max(rates)) else ""
        beyond = "" if arm == "mean_color" else told(knn - base)
        rows.append(
            f"{title} | {RATES[rate]}{end} | {steps('target', arm)} | {mean(knn)} |"
            f" {told(knn - fresh)} | {ends(knn - fresh, len(HIDDEN))} | {beyond} | {mean(shots)}"
        )
    return table(
        "target | learning rate | steps | k-NN, % | minus untrained (95%) |"
        f" 95%, all {len(HIDDEN)} | minus mean colour (95%) | 5-shot, %",
        rows,
    )


def chosen(arm: str) -> str:
    """The learning rate of an objective's best try."""
    rate = max(tries("methods_tuning", "short", "long")[arm], key=score)["values"]["optim.lr"]
    return RATES[rate] + (", an end of the grid" if rate in (min(RATES), max(RATES)) else "")


def over_untrained(study: str, arm: str, *, corrected: bool = True) -> str:
    """The cells of an objective: steps, k-NN, linear probe."""
    cells = f" | {steps(study, arm):,}"
    for metric in ("knn", "linear"):
        own, base = (of(study, "probe", one, metric) for one in (arm, METHODS[arm][1]))
        cells += f" | {mean(own)} | {points(own - base)}"
        if metric == "knn":
            cells += f" | {ends(own - base, len(METHODS)) if corrected else ''}"
    return cells


def steps(study: str, arm: str) -> int:
    """Of its pre-training."""
    name = "optim.steps="
    (found,) = {
        int(option.removeprefix(name))
        for one in read(study)
        for option in one["options"]
        if (one["part"], one["arm"]) == ("pretrain", arm) and option.startswith(name)
    }
    return found


def targets() -> str:
    """Untuned pre-training at the same compute; with 4 x 4 colours by the count with heads."""
    rows = []
    for arm, title in TARGETS.items():
        study = "methods_grid" if arm == "mpp_grid" else "methods"
        cells = ""
        for share in SHARES.values():
            own, scratch = (
                of(place, f"final_{share:g}", one)
                for place, one in ((study, arm), ("methods", "scratch"))
            )
            cells += f" | {mean(own)} | {'' if arm == 'scratch' else points(own - scratch)}"
        own, base = of(study, "probe", arm, "knn"), of("methods", "probe", "mpp", "knn")
        last = f"{mean(own)} | {'' if arm == 'mpp' else points(own - base)}" if len(own) else " | "
        rows.append(f"{title}{cells} | {last}")
    return table(
        "pre-training | 1%: top-1, % | minus scratch (95%) | 10%: top-1, % | minus scratch (95%) |"
        " k-NN, % | minus MPP (95%)",
        rows,
    )


def curve() -> str:
    """MPP and scratch, untuned, over shares of the labels."""
    rows = []
    for label, length, study, part in (
        ("1%", "3,000", "labels_cifar10", "final_0.01"),
        ("1%", "9,000", "labels_long", "final"),
        ("5%", "3,000", "labels_cifar10", "final_0.05"),
        ("10%", "3,000", "labels_cifar10", "final_0.1"),
        ("100%", "3,000", "labels_cifar10", "final_1"),
    ):
        scratch, mpp = (of(study, part, arm) for arm in ("scratch", "mpp"))
        seeds = f"{mpp.index.min()} to {mpp.index.max()}"
        rows.append(
            f"{label} | {length} | {seeds} | {mean(scratch)} | {mean(mpp)} | {points(mpp - scratch)}"
        )
    return table(
        "labels | steps | seeds | scratch, % | MPP, % | MPP minus scratch, points (95%)", rows
    )


def choice() -> str:
    """What to run on which images, from these results alone."""
    few, many = (gain("worth", label, "mae") for label in SHARES)
    longer = (of("worth_longer", "final", "mae") - final("worth", "1%", "mae")).dropna()
    paid_1 = gain("worth", "1%", "mae", "direct")
    knn = {
        arm: of("methods_64px", "probe", arm, "knn") - of("methods_64px", "probe", base, "knn")
        for arm, (_, base) in METHODS.items()
    }
    second = max((arm for arm in knn if arm != "mae"), key=lambda arm: knn[arm].mean())
    return table(
        "your images | what to run | steps and batch | what we measured, points (95%)",
        [
            "49,000 images, 50 labels in each class | `recipe=mae`, then `finetune` |"
            f" {steps('worth', 'mae'):,} steps of 128 images ({epochs('worth', 'mae')} epochs) |"
            f" top-1 after MAE minus top-1 of tuned training from scratch: {points(few)}. With three"
            f" times the steps {told(longer)}",
            "49,000 images, 500 labels in each class | no pre-training: `recipe=supervised"
            " data.mixup=0.8 data.cutmix=1`, then `finetune` |"
            " 3,000 steps of 128, then 3,000 steps of 64 images |"
            f" top-1 after `recipe=mae` minus top-1 after these two commands: {points(many)}",
            "49,000 images, features used frozen |"
            f" `recipe=mae data.size=64 optim.lr={chosen('mae')}` |"
            f" {steps('methods_64px', 'mae'):,} steps of 128 images"
            f" ({epochs('methods_64px', 'mae')} epochs) |"
            f" k-NN accuracy minus that of untrained weights: {points(knn['mae'])}. The second best is"
            f" {METHODS[second][0]}: {told(knn[second])}",
            "50 labels in each class, and an encoder of such images | `finetune init=ENCODER` |"
            " 1,200 steps of 64 images |"
            f" top-1 after MAE minus top-1 of fine-tuned untrained weights: {points(paid_1)}",
            "other images, or a larger network | `study/worth` | what fits into `hours=` | not measured",
        ],
    )


def epochs(study: str, arm: str) -> int:
    """Of 49,000 images, in batches of 128."""
    return round(steps(study, arm) * 128 / 49_000)


def checks() -> str:
    rows = []
    for label, title, study, part in (
        ("1%", "as tuned", "worth", "final_0.01"),
        ("1%", "second-best settings", "worth", "second"),
        ("1%", "fine-tuned 3 times as long", "worth", "long_1"),
        ("1%", "trained 3 times as long before fine-tuning", "worth_longer", "final"),
        ("10%", "as tuned", "worth", "final_0.1"),
        ("10%", "fine-tuned 3 times as long", "worth", "long_10"),
    ):
        scratch, mae = (of(study, part, arm) for arm in ("scratch", "mae"))
        apart = mae - scratch
        moved = (apart - gain("worth", label, "mae")).dropna()
        rows.append(
            f"{label} | {title} | {apart.count()} | {mean(scratch)} | {mean(mae)} |"
            f" {points(apart)} | {'' if title == 'as tuned' else points(moved)}"
        )
    return table(
        "labels | scratch and MAE | n | scratch, % | MAE, % | MAE minus scratch, points (95%) |"
        ' change from "as tuned", points (95%)',
        rows,
    )


def paid() -> str:
    """What an encoder is worth to those who have it: fine-tuned, and frozen."""
    rows = []
    for arm in ("mpp", "mae", "supervised", "scratch"):
        cells = [points(gain("worth", label, arm, "direct")) for label in SHARES]
        for share in SHARES.values():
            own, fresh = (of("worth", f"frozen_{share:g}", one, "knn") for one in (arm, "random"))
            cells.append(points(own - fresh))
        rows.append(" | ".join([ARMS[arm], *cells]))
    heads = [
        f"{label}: {what}"
        for what in ("top-1, minus fine-tuning alone", "k-NN, minus untrained weights")
        for label in SHARES
    ]
    n = final("worth", "1%", "mae").count()
    return table(" | ".join([f"points (95%), n = {n}", *heads]), rows)


def overhead() -> str:
    """Where the CPU time of a short run goes, in CPU seconds."""
    cases = {name: parts for name, parts in read("overhead").items() if " at " in name}
    rows = []
    for row, parts in OVERHEAD.items():
        cells = []
        for spent in cases.values():
            known = [spent[part]["median"] for part in parts if part in spent]
            cells.append(f"{sum(known):.2f}" if known else "")
        rows.append(" | ".join([row, *cells]))
    return table(" | ".join(["CPU s", *cases]), rows)


PAGES = {
    "README.md": (choice,),
    "docs/results.md": (arms, primary, objectives, newer, hidden),
    "docs/worth.md": (checks, paid),
    "docs/speed.md": (overhead,),
}
# Of untuned and short studies docs/results.md has a line each, which these tables bear out
LINES = (targets, curve)


def main(names: list[str]) -> None:
    shown = {**PAGES, "on no page": LINES}
    known = {one.__name__ for tables in shown.values() for one in tables}
    if unknown := sorted(set(names) - known):
        sys.exit(f"error: {', '.join(unknown)}: expected some of {', '.join(known)}")
    for page, tables in shown.items():
        for one in tables:
            if not names or one.__name__ in names:
                print(f"{one.__name__}, {page}\n\n{one()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
