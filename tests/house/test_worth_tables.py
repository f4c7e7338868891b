"""results/worth_tables.py: what pre-training is worth, from the runs of studies."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from helpers.options import ROOT
from ssl_vit import stats
from ssl_vit.lab.reports import svg_plots
from ssl_vit.lab.reports.scaling_curve import Estimate
from ssl_vit.lab.studies.read_study import read
from ssl_vit.lab.studies.study_file import find

sys.path.insert(0, str(ROOT / "results"))
import contrasts
import tuning
import worth_tables

CHOSEN = (
    *("optim.lr", "optim.steps", "optim.batch", "optim.warmup"),
    *("data.share", "data.mixup", "data.cutmix"),
)
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
        "total_exaflop": 2e-5,
    }


def first(share: float) -> np.ndarray:
    """Of 1,000 images that share is classified correctly, the same by each run that does so."""
    return np.arange(1000) < round(1000 * share)


def frozen(arm: str, share: float, number: int, above: float) -> dict:
    """The k-NN gains what is said and as much again for each seed, the linear probe the double."""
    gain = above * (1 + (number - 1) / 4)
    found = {"knn": 0.2 + share + gain / 100, "linear": 0.3 + share + 2 * gain / 100}
    return final(arm, share, number) | {
        "part": f"frozen_{share:g}",
        "metrics": {name: {"value": value} for name, value in found.items()},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Made-up runs of three seeds, beside the real study of the untuned baseline."""
    arms = {"scratch": (0, 0, 0), "direct": (-3, -3, -3), **ABOVE}
    rows = [
        final(arm, share, number, above[number])
        for share in SCRATCH
        for arm, above in arms.items()
        for number in range(3)
    ]
    rows.append({"part": "pretrain", "arm": "mae", "seed": 11, "options": [], "metrics": {}})
    rows += [
        frozen(arm, share, number, above)
        for share in SCRATCH
        for arm, above in {"random": 0, "scratch": 3, "mpp": 1, "mae": 5, "supervised": 4}.items()
        for number in range(3)
    ]
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
    own = [
        {"seed": 11 + number, "top1": SCRATCH[0.01][number] + 0.05, "total_exaflop": 3e-5}
        for number in range(3)
    ]
    longer = [
        final(arm, 0.01, number, above) | {"part": "final"}
        for arm, above in (("scratch", 3), ("mae", 4))
        for number in range(3)
    ]
    rows += [one | {"part": "long_10"} for one in rows if one["part"] == "final_0.1"]
    for name, content in (
        ("worth", rows),
        ("worth_folds", own),
        ("worth_self_training", own),
        ("worth_longer", longer),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    right = {
        f"{row['part']}-{row['arm']}-{row['seed']}": np.packbits(
            first(row["metrics"]["top1"]["value"])
        )
        for row in rows
        if row["part"].startswith("final")
    }
    np.savez(tmp_path / "worth_right.npz", images=np.array(1000), **right)
    old = (ROOT / "results" / "labels_cifar10.json").read_text()
    (tmp_path / "labels_cifar10.json").write_text(old)
    return tmp_path


def test_the_table_by_hand(folder: Path) -> None:
    """Scratch gains 20 points from 1% to 10%: 10 points are half a decade of labels. Of two degrees
    of freedom Student's t is 4.3027, of two together 6.2053: a mean with sd 1 has +-2.484 and
    +-3.583; 10 has p = 0.0033, 1 has p = 0.2254."""
    found = worth_tables.table(folder).splitlines()
    cells = {
        (line[0], line[1]): line[2:]
        for line in ([cell.strip() for cell in row.strip("|").split("|")] for row in found)
        if len(line) == 9
    }
    scratch = ["3", "32.00", "2.00", "", "", "3", "2.00"]  # tries: two more ways than its own
    assert cells["1%", "scratch"] == scratch
    assert cells["10%", "scratch"][:2] == ["3", "52.00"]
    *value, factor, tries, compute = cells["", "MAE"]  # the last: at 10%
    assert value == ["3", "62.00", "3.00", "+10.00 (+7.52 to +12.48)"]
    assert factor.startswith("more than 1 (95%: above ") and (tries, compute) == ("1", "2.00")
    text = "\n".join(found)
    assert "| | MAE | 3 | 42.00 | 3.00 | +10.00 (+7.52 to +12.48) | 3.16 (" in text
    own = cells["", "self-training from scratch"]
    assert own[3].startswith("+5.00 (")
    assert own[-2:] == ["3 + 1", "5.00"]  # with its teacher's tries and compute
    assert cells["", "MAE, tuned on its own labels"][-2:] == ["1", "3.00"]
    # above scratch by one point with each seed, as tuned by 9, 10 and 11
    moved = "+1.00 (+1.00 to +1.00) | -9.00 (-11.48 to -6.52) |"
    longer = f"| | trained 3 times as long before fine-tuning | 3 | 35.00 | 36.00 | {moved}"
    assert longer in found
    value = "3 | 52.00 | 62.00 | +10.00 (+7.52 to +12.48)"
    assert f"| 10% | as tuned | {value} | |" in found
    assert f"| | fine-tuned 3 times as long | {value} | +0.00 (+0.00 to +0.00) |" in found
    assert "| | second-best settings | 0 | not run | | | |" in found
    clear, unclear = (row for row in found if " minus scratch at " in row)
    start = (
        "| MAE minus scratch at 1% | +10.00 (+7.52 to +12.48) | +6.42 to +13.58 | distinguished |"
    )
    assert clear.startswith(start)
    start = (
        "| MPP minus scratch at 10% | +1.00 (-1.48 to +3.48) | -2.58 to +4.58 | not distinguished |"
    )
    assert unclear.startswith(start)
    for row, (low, high) in ((clear, (7.52, 12.48)), (unclear, (-1.48, 3.48))):
        ends = [float(end) for end in row.split("|")[-2].split(" to ")]
        assert low - 2 < ends[0] <= low + 0.005 and high - 0.005 <= ends[1] < high + 2
    assert "| 1% | MPP | 3 | +4.00 (+1.52 to +6.48) |" in found  # one above scratch, that three
    last = [row for row in found if row.startswith(("| 10% | untrained", "| | MAE"))][-2:]
    assert last == [
        "| 10% | untrained | 3 | 30.00 | | 40.00 | |",
        "| | MAE | 3 | 35.00 | +5.00 (+1.89 to +8.11) | 50.00 | +10.00 (+3.79 to +16.21) |",
    ]


def test_a_planned_share_that_has_not_run_is_no_contrast(folder: Path) -> None:
    rows = [row for row in worth_tables.read(folder, "worth") if row["part"] != "final_0.1"]
    (folder / "worth.json").write_text(json.dumps(rows))
    with pytest.raises(SystemExit, match="no runs at 10%"):
        worth_tables.table(folder)


def test_a_row_beside_the_arms_that_has_not_run_says_so(folder: Path) -> None:
    before = worth_tables.table(folder).splitlines()
    for name in ("worth_folds", "worth_longer"):
        (folder / f"{name}.json").unlink()
    found = worth_tables.table(folder).splitlines()
    changed = [(old, new) for old, new in zip(before, found, strict=True) if old != new]
    names = [new.split("|")[2].strip() for _, new in changed]
    assert names == ["MAE, tuned on its own labels", "trained 3 times as long before fine-tuning"]
    for old, new in changed:
        assert "| 0 | not run |" in new and old.count("|") == new.count("|")


def test_a_row_beside_the_arms_is_compared_over_the_seeds_that_it_has(folder: Path) -> None:
    """Scratch has 30, 32 and 34%, so that without the first seed the row's mean is 38%."""
    rows = worth_tables.read(folder, "worth_folds")
    (folder / "worth_folds.json").write_text(json.dumps(rows[1:]))
    found = worth_tables.table(folder)
    assert "| | MAE, tuned on its own labels | 2 | 38.00 | 1.41 | +5.00 (+5.00 to +5.00) |" in found


def test_bits_of_other_runs_are_refused(folder: Path) -> None:
    right = dict(np.load(folder / "worth_right.npz"))
    right["final_0.1-scratch-12"] = np.packbits(first(0.521))
    np.savez(folder / "worth_right.npz", **right)
    with pytest.raises(SystemExit, match=r"final_0\.1-scratch-12 has another top-1"):
        worth_tables.table(folder)
    del right["final_0.1-scratch-12"]
    np.savez(folder / "worth_right.npz", **right)
    with pytest.raises(SystemExit, match=r"no run final_0\.1-scratch-12"):
        worth_tables.table(folder)


def test_the_bits_are_those_of_the_predictions(tmp_path: Path) -> None:
    """Of an image each in another order, 3 of 9 classified correctly."""
    run = tmp_path / "final_0.01-mae-11"
    run.mkdir()
    task = {"name": run.name, "part": "final_0.01"}
    (tmp_path / "study.json").write_text(json.dumps({"tasks": [task]}))
    (run / "result.json").write_text("{}")
    index = np.array([8, 7, 6, 5, 4, 3, 2, 1, 0])
    top5 = np.where(index < 3, 1, 2)[:, None]
    np.savez(run / "predictions.npz", index=index, label=np.ones(9, np.int64), top5=top5)
    contrasts.pack_right(tmp_path, tmp_path / "right.npz")
    with np.load(tmp_path / "right.npz") as right:
        found = contrasts.correct(right, 0.01, "mae", {11: 3 / 9})
    assert found.tolist() == [[1, 1, 1, 0, 0, 0, 0, 0, 0]]


def test_an_arm_that_has_not_run_at_a_share_is_named(folder: Path) -> None:
    rows = worth_tables.read(folder, "worth")
    left = [row for row in rows if (row["part"], row["arm"]) != ("final_0.1", "mae")]
    (folder / "worth.json").write_text(json.dumps(left))
    with pytest.raises(SystemExit, match="at 10% no mae"):
        worth_tables.table(folder)


def test_arms_are_compared_in_pairs_of_the_same_seeds(folder: Path) -> None:
    rows = worth_tables.read(folder, "worth")
    left = [row for row in rows if (row["arm"], row["seed"]) != ("mpp", 12)]
    (folder / "worth.json").write_text(json.dumps(left))
    with pytest.raises(SystemExit, match=r"seeds \[11, 13\] and \[11, 12, 13\] are not in pairs"):
        worth_tables.table(folder)


def three(mean: float, sd: float) -> stats.SeedSummary:
    return stats.summarize([mean - sd, mean, mean + sd])


def test_a_p_value_is_scipys_of_a_t_test() -> None:
    values = [0.5, 1.5, 2.0, 0.1]
    expected = scipy_stats.ttest_1samp(values, 0).pvalue
    assert contrasts.p_value(stats.summarize(values)) == pytest.approx(expected, rel=1e-9)


def test_holm_goes_on_only_while_differences_are_clear() -> None:
    clear, less, unclear = three(20, 1), three(3, 1), three(1, 1)  # p = 0.001, 0.035 and 0.23
    assert contrasts.holm([less, clear]) == [True, True]  # the second at 5%, the first at 2.5%
    assert contrasts.holm([less, unclear]) == [False, False]
    assert contrasts.holm([unclear, clear]) == [False, True]
    # a larger ratio of fewer seeds is not the smaller p-value
    many = stats.summarize([1.9, 2.9, 3.9, 2.9, 2.9 + 1e-9])
    assert contrasts.holm([three(3.0, 1), many]) == [True, True]
    assert contrasts.holm([stats.summarize([5.0]), clear]) == [False, True]


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (Estimate(1.52, 1.1, 2.04, 5), "1.52 (1.1 to 2.04)"),
        (Estimate(0.92, 0.83, None, 5), "0.92 (0.83 to ...)"),
        (Estimate(None, 1.3, None, 5, above=True), "more than 2 (95%: above 1.3)"),
        (Estimate(None, None, 0.9, 5), "less than 0.2 (95%: below 0.9)"),
        (Estimate(None, None, None, 5), "less than 0.2"),
    ],
)
def test_a_factor_says_where_it_is_open(factor: Estimate, says: str) -> None:
    assert worth_tables.times(factor, (0.2, 2)) == says


def test_the_untuned_study_is_drawn_in_grey(folder: Path) -> None:
    drawn = worth_tables.figure(folder)
    assert worth_tables.GREY in drawn and svg_plots.COLOURS[2] in drawn
    assert svg_plots.COLOURS[3] not in drawn
    for name in ("MPP", "MAE", "supervised, Tiny ImageNet", worth_tables.UNTUNED):
        assert name in drawn


def test_the_docs_have_the_tables_of_the_runs() -> None:
    pages = " ".join((ROOT / "docs" / name).read_text() for name in ("results.md", "worth.md"))
    text = " ".join(pages.split())
    for block in worth_tables.table(ROOT / "results").split("\n\n"):
        assert " ".join(block.split()) in text
    assert worth_tables.figure(ROOT / "results") == (ROOT / "docs" / "worth.svg").read_text()


def test_the_smallest_share_gave_the_same_numbers_twice() -> None:
    first_time, again = (
        {row["name"]: row["metrics"] for row in worth_tables.read(ROOT / "results", name)}
        for name in ("worth_1", "worth")
    )
    assert len(first_time) == 40
    for name, metrics in first_time.items():
        name = name.replace("final-", "final_0.01-").replace("scratch-s", "scratch_0.01-s")
        assert again[name] == metrics


def test_the_longer_study_differs_in_length_alone() -> None:
    study, longer = (read(find(f"study/{name}")) for name in ("worth", "worth_longer"))
    lengths = {"optim.steps": "9000", "optim.warmup": "600"}
    for part, arm, other in (
        ("pretrain", "mae", "pretrain"),
        ("scratch", "scratch", "scratch_0.01"),
    ):
        assert longer.parts[part].options[arm] == study.parts[other].options[arm] | lengths
    for arm, found in longer.parts["final"].options.items():
        own = study.parts["final_0.01"].options[arm]
        assert found == own | {"init": own["init"].replace("_0.01", "")}
    assert (longer.seeds, longer.match) == (study.seeds, study.match)


@pytest.mark.parametrize(
    ("part", "share", "steps"), [("long_1", 0.01, 3600), ("long_10", 0.1, 9000)]
)
def test_the_longer_fine_tuning_differs_in_length_alone(
    part: str, share: float, steps: int
) -> None:
    parts = read(find("study/worth_checks")).parts
    for arm, found in parts[part].options.items():
        own = parts[f"final_{share:g}"].options[arm]
        assert int(own["optim.steps"]) * 3 == steps
        assert found == own | {"optim.steps": str(steps)}


@pytest.mark.parametrize("share", worth_tables.PLANNED)
def test_each_arm_has_what_its_own_tuning_chose(share: float) -> None:
    name = "worth_tuning" if share == 0.01 else "worth_tuning_10"
    runs = worth_tables.read(ROOT / "results", name)
    tried = [row for row in runs if row["part"] in ("sweep", "long")]
    parts = read(find("study/worth")).parts
    for arm, found in parts[f"final_{share:g}"].options.items():
        ways = worth_tables.WAYS if arm == "scratch" else (arm,)
        own = [row for row in tried if row["arm"] in ways]
        best = max(own, key=lambda row: tuning.score(row, tuning.WORTH.by))
        chosen = dict(one.split("=", 1) for one in best["options"])
        for key in CHOSEN:
            assert float(found[key]) == float(chosen[key]), (arm, key)
        if arm == "scratch":
            (before,) = (row for row in runs if row["name"] == f"scratch-{best['arm']}-10")
            options = dict(one.split("=", 1) for one in before["options"])
            own_part = parts[f"scratch_{share:g}"].options["scratch"]
            for key in ("optim.warmup", "data.mixup", "data.cutmix"):
                assert float(own_part.get(key, 0)) == float(options.get(key, 0)), key
