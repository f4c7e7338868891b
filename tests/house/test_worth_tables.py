"""results/worth_tables.py: what pre-training is worth, from the runs of studies."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.options import ROOT
from ssl_vit import stats
from ssl_vit.lab.reports import svg_plots
from ssl_vit.lab.reports.scaling_curve import Estimate

sys.path.insert(0, str(ROOT / "results"))
import worth_tables

SCRATCH = {0.01: (0.30, 0.32, 0.34), 0.1: (0.50, 0.52, 0.54)}
ABOVE = {"mpp": (0, 1, 2), "mae": (9, 10, 11), "supervised": (-1, 0, 1)}  # points, at either share


def final(arm: str, share: float, number: int, above: float = 0) -> dict:
    value = SCRATCH[share][number] + above / 100
    return {
        "part": f"final_{share:g}",
        "arm": arm,
        "seed": 11 + number,
        "options": ["data=cifar10", f"data.share={share:g}"],
        "metrics": {"top1": {"value": value}},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Made-up runs of three seeds, beside the real study of the untuned baseline."""
    arms = {"scratch": (0, 0, 0), **ABOVE}
    rows = [
        final(arm, share, number, above[number])
        for share in SCRATCH
        for arm, above in arms.items()
        for number in range(3)
    ]
    rows.append({"part": "pretrain", "arm": "mae", "seed": 11, "options": [], "metrics": {}})
    for share, reached in ((1, {"mpp": 0.3, "mae": 0.4}), (10, {"mpp": 0.6, "mae": 0.5})):
        tried = {"scratch": 0.9, "scratch_half": 0.8, "direct": 0.7, "supervised": 0.6, **reached}
        tuned = [
            {"part": "sweep", "arm": arm, "metrics": {"accuracy": {"value": value}}}
            for arm, value in tried.items()
        ]
        for row in tuned:
            row["metrics"]["accuracy"]["split"] = "validation"
        name = "worth_tuning" if share == 1 else f"worth_tuning_{share}"
        (tmp_path / f"{name}.json").write_text(json.dumps(tuned))
    own = [{"seed": 11 + number, "top1": SCRATCH[0.01][number] + 0.05} for number in range(3)]
    longer = [final(arm, 0.01, number, 3) for arm in ("scratch", "mae") for number in range(3)]
    for name, content in (
        ("worth", rows),
        ("worth_folds", own),
        ("worth_self_training", own),
        ("worth_longer", longer),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    old = (ROOT / "results" / "labels_cifar10.json").read_text()
    (tmp_path / "labels_cifar10.json").write_text(old)
    return tmp_path


def test_the_table_by_hand(folder: Path) -> None:
    """Scratch gains 20 points from 1% to 10%: 10 points are half a decade of labels. Of two degrees
    of freedom Student's t is 4.3027: a mean with sd 1 has +-2.484, as one of two +-3.582."""
    found = worth_tables.table(folder).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in found]
    assert cells[2] == ["1%", "scratch", "3", "32.00", "2.00", "", "", "", "3"]
    assert cells[4][1:7] == ["MAE", "3", "42.00", "3.00", "+10.00", "+7.52 to +12.48"]
    assert cells[4][7].startswith("3.2 (") and cells[4][8] == "1"
    assert cells[6][1] == "MAE, tuned on its own labels" and cells[6][5] == "+5.00"
    assert cells[8][1:6] == ["scratch, three times as long", "3", "35.00", "2.00", "+3.00"]
    assert cells[9][5:7] == ["+0.00", "+0.00 to +0.00"]
    assert cells[10][:4] == ["10%", "scratch", "3", "52.00"]
    assert [line[1] for line in cells[11:14]] == ["MPP", "MAE", "supervised, Tiny ImageNet"]
    assert cells[12][7].startswith("above ")
    says = "MAE at 1% +10.00 (+6.42 to +13.58), MPP at 10% +1.00 (-1.48 to +3.48)."
    assert found[-1].endswith(says)


def summary(mean: float, sd: float) -> stats.SeedSummary:
    values = [mean - sd, mean, mean + sd]
    return stats.summarize(values)


def test_holm_goes_on_only_while_differences_are_clear() -> None:
    clear, less, unclear = summary(20, 1), summary(6, 1), summary(1, 1)
    found = worth_tables.holm([less, clear])
    assert found == [stats.simultaneous(less, 1), stats.simultaneous(clear, 2)]
    # 3 +- 2.48 alone is clear, as one of two 3 +- 3.58 is not: the second is then not tested
    assert worth_tables.holm([summary(3, 1), unclear]) == [
        stats.simultaneous(summary(3, 1), 2),
        None,
    ]


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (Estimate(1.52, 1.1, 2.04, 5), "1.5 (1.1 to 2)"),
        (Estimate(0.92, 0.83, None, 5), "0.92 (0.83 to ...)"),
        (Estimate(None, 1.3, None, 5, above=True), "above 1.3"),
        (Estimate(None, None, 0.9, 5), "below 0.9"),
        (Estimate(None, None, None, 5), ""),
    ],
)
def test_a_factor_says_where_it_is_open(factor: Estimate, says: str) -> None:
    assert worth_tables.times(factor) == says


def test_the_untuned_study_is_drawn_in_grey(folder: Path) -> None:
    drawn = worth_tables.figure(folder)
    assert worth_tables.GREY in drawn and svg_plots.COLOURS[2] in drawn
    assert svg_plots.COLOURS[3] not in drawn
    for name in ("MPP", "MAE", "supervised, Tiny ImageNet", worth_tables.UNTUNED):
        assert name in drawn


@pytest.mark.parametrize("words", [[], ["table"], ["--help"], ["figure", "results"]])
def test_wrong_words_are_answered_with_how_it_is_called(words: list[str]) -> None:
    command = [sys.executable, str(ROOT / "results" / "worth_tables.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "worth_tables.py table results" in done.stderr
    assert "Traceback" not in done.stderr
