"""The values over seeds of results/*.json, and which arms are compared: read without the package."""

import json
from typing import Any

from helpers.options import ROOT

FINAL = ("scratch", "direct", "mpp", "mae", "supervised")
FROZEN = ("scratch", "mpp", "mae", "supervised")
BY_MEAN = ("mpp", "mae", "ijepa")  # whose feature is the mean of the patches
BY_TOKEN = ("moco_v3", "dino", "ibot")
Pairs = tuple[tuple[str, ...], list[tuple[str, str]]]  # arms, and pairs of them


def _worth(share: str) -> dict[str, Pairs]:
    final = [(arm, base) for base in ("scratch", "direct") for arm in FINAL if arm != base]
    found: dict[str, Pairs] = {f"final_{share} top1": (FINAL, final)}
    for measure in ("knn", "linear"):
        against = [(arm, "random") for arm in FROZEN]
        found[f"frozen_{share} {measure}"] = ((*FROZEN, "random"), against)
    return found


def _methods(measure: str) -> dict[str, Pairs]:
    pairs = [(arm, "random") for arm in BY_MEAN] + [(arm, "random_token") for arm in BY_TOKEN]
    arms = (*BY_MEAN, *BY_TOKEN, "random", "random_token")
    return {f"probe {measure}": (arms, pairs)}


def _labels() -> dict[str, Pairs]:
    arms = ("scratch", "mpp")
    return {
        f"final_{share} {measure}": (arms, [("mpp", "scratch")])
        for share in ("0.01", "0.05", "0.1", "1")
        for measure in ("top1", "top5")
    }


# {file of results/: {"part measure": its arms and pairs}}
PAIRS: dict[str, dict[str, Pairs]] = {
    "worth": {
        **_worth("0.01"),
        **_worth("0.1"),
        **{
            f"{part} top1": (("scratch", "mae"), [("mae", "scratch")])
            for part in ("second", "long_1", "long_10")
        },
    },
    "methods_64px": _methods("knn") | _methods("linear"),
    "labels_cifar10": _labels(),
}


def arm_values(file: str, measure: str) -> dict[str, dict[int, float]]:
    """{arm: {seed: value}} of a part's measure."""
    part, _, metric = measure.partition(" ")
    content: Any = json.loads((ROOT / "results" / f"{file}.json").read_text())
    found: dict[str, dict[int, float]] = {}
    if isinstance(content, dict):  # a report
        for one in content["numbers"]["measures"]:
            if (one["part"], one["name"].split(" ")[0]) == (part, metric):
                for row in one["results"]:
                    found[row["arm"]] = {int(seed): x for seed, x in row["seeds"].items()}
        return found
    for row in content:
        if row["part"] == part:
            found.setdefault(row["arm"], {})[row["seed"]] = row["metrics"][metric]["value"]
    return found
