"""Real studies of minutes, through runs and report: eight steps of masked patch prediction are no
gain, and labels are one."""

from pathlib import Path
from typing import Any

import pytest

import ssl_vit

pytestmark = pytest.mark.slow

TINY = {"model": "vit_p8", "model.depth": 2, "eval.images": 200}
LABELS = {"optim.steps": 100, "optim.warmup": 10, "optim.lr": 1e-3}
PROBE: dict[str, Any] = {
    "tool": "evaluate",
    "over": ["arm"],
    "options": {"recipe": "evaluate", "data.share": 0.04, "probe.measures": ["knn"]},
}
TEST = {**PROBE, "options": {**PROBE["options"], "init": "{pretrain}"}}
SHARED = {"seeds": [0, 1, 2], "options": {"data": "shapes", "data.size": 32}}
EIGHT_STEPS = {
    **SHARED,
    "title": "Do eight steps of masked patch prediction help?",
    "axes": {"arm": {"mpp": {"pretrain": {"recipe": "mpp"}}}},
    "runs": {
        "pretrain": {
            "tool": "pretrain",
            "over": ["arm"],
            "options": {**TINY, "optim.steps": 8, "optim.warmup": 1},
        },
        "probe": TEST,
    },
    "report": {"test": "probe"},
}
LABELS_OR_NONE = {
    **SHARED,
    "title": "Labels or none?",
    "axes": {
        "arm": {
            "scratch": {"probe": {"init": "scratch", "model": "vit_p8", "model.depth": 2}},
            "supervised": {"pretrain": {"recipe": "supervised"}},
        }
    },
    "runs": {
        "pretrain": {
            "tool": "pretrain",
            "over": ["arm"],
            "only": {"arm": ["supervised"]},
            "options": {**TINY, **LABELS},
        },
        "probe": TEST,
    },
    "report": {"test": "probe", "pairs": ["supervised:scratch"]},
}


def reported(content: dict[str, Any], folder: Path) -> Any:
    outcome = ssl_vit.study(content, name="study", out=str(folder), parallel=1)
    assert not outcome.failed
    return ssl_vit.report(folder / "study")


def test_eight_steps_are_no_gain(tmp_path: Path) -> None:
    verdict = reported(EIGHT_STEPS, tmp_path).verdict
    nothing, fresh = verdict.sentences
    assert (
        nothing == "Nothing is compared." and "no arm can be distinguished from untrained" in fresh
    )
    assert [one.n for one in verdict.against_fresh.differences] == [
        3
    ] and not verdict.against_fresh.claimed


def test_labels_are_a_gain(tmp_path: Path) -> None:
    verdict = reported(LABELS_OR_NONE, tmp_path).verdict
    (claimed,) = verdict.primary.claimed
    assert (claimed.comparison.a, claimed.comparison.b, claimed.n) == ("supervised", "scratch", 3)
    assert claimed.mean > 5 and " points above scratch" in verdict.sentences[0]
