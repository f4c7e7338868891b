"""results/tables.py: the tables of docs/methods.md are what its committed runs say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.options import ROOT

sys.path.insert(0, str(ROOT / "results"))
import tables
import tuning

FILES = [ROOT / "results" / f"methods_{name}.json" for name in ("64px", "doubled")]
VALUES = {11: (0.40, 0.31), 12: (0.44, 0.32), 13: (0.45, 0.36)}  # of MAE and its untrained encoder


def probes() -> tables.Rows:
    rows = []
    for arm in (*tables.ARMS, f"{tables.AVERAGE}{tables.DOUBLED}"):
        for seed, values in VALUES.items():
            value = {"value": values[arm != "mae"]}
            found = {"metrics": {"knn": value, "linear": value}}
            rows.append({"part": "probe", "arm": arm, "seed": seed} | found)
    return rows


def test_a_row_is_the_arm_and_what_it_is_above_its_untrained_encoder() -> None:
    """Worked by hand: 9, 12 and 9 points have mean 10 and sd sqrt(3); of two degrees of freedom the
    97.5% quantile of Student's t is 4.3027, and that for six intervals 10.8859."""
    found = tables.methods(probes()).splitlines()
    row = "| MAE | 3 | 43.00 | 2.65 | +10.00 | +5.70 to +14.30 | -0.89 to +20.89 |"
    assert found.count(row) == 2
    assert found.count("| untrained, mean of the patches | 3 | 33.00 | 2.65 | | | |") == 2
    assert "| MPP | 3 | 33.00 | 2.65 | +0.00 | +0.00 to +0.00 | +0.00 to +0.00 |" in found
    assert "| I-JEPA, twice as long | 3 | 33.00 | 2.65 | +0.00 | +0.00 to +0.00 | |" in found


def test_the_tables_of_the_docs_are_those_of_the_runs() -> None:
    rows = tables.read(*FILES)
    assert tables.methods(rows) in (ROOT / "docs" / "methods.md").read_text()
    assert tables.ranks(rows) == (ROOT / "docs" / "methods_rank.svg").read_text()


def test_a_rank_is_drawn_against_that_of_the_first_weights(tmp_path: Path) -> None:
    folder = tmp_path / "dino-0"
    folder.mkdir()
    log = [{"step": step, tuning.RANK: rank} for step, rank in ((0, 40.0), (10, 30.0), (20, 44.0))]
    text = "".join(json.dumps(one) + "\n" for one in [*log, {"step": 20, "loss": 1.0}])
    (folder / "metrics.jsonl").write_text(text)
    kept = json.loads(json.dumps(tuning.ranks(folder)))
    assert kept == {"effective_rank": {"0": 40.0, "10": 30.0, "20": 44.0}}
    assert tuning.ranks(tmp_path) == {}
    arms = ("ijepa", f"ijepa{tables.DOUBLED}")
    rows = [{"part": "pretrain", "arm": arm, "seed": 0} | kept for arm in arms]
    first, second = (
        [(point.x[0], point.values[0]) for point in line]
        for line in tables.rank_lines(rows).values()
    )
    assert first == [(0, 1), (0.5, 0.75), (1, 1.1)]
    assert second == [(0, 1), (1, 0.75), (2, 1.1)]
    assert "I-JEPA, twice as long" in tables.ranks(rows)


def test_runs_of_another_study_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no probes of mpp, mae, ijepa"):
        tables.read(ROOT / "results" / "worth_tuning.json", FILES[1])
    with pytest.raises(SystemExit, match=r"no probes of mpp, mae, moco_v3"):
        tables.read(FILES[1], FILES[1])
    with pytest.raises(SystemExit, match=r"1.00 times the compute"):
        tables.read(FILES[0], FILES[0])
    with pytest.raises(SystemExit, match="No such file"):
        tables.read(FILES[0], tmp_path / "none.json")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("tables.py", ["methods", "file"]),
        ("tables.py", ["ranks", "file", "file"]),
        ("worth_tables.py", ["table"]),
        ("worth_tables.py", ["figure", "results"]),
        ("worth_beside.py", ["folds", "runs", "out"]),
        ("label_sets.py", ["folds"]),
        ("label_sets.py", ["pseudo", "out"]),
        ("label_sets.py", ["--help"]),
    ],
)
def test_wrong_words_are_answered_with_how_it_is_called(script: str, words: list[str]) -> None:
    command = [sys.executable, str(ROOT / "results" / script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"python results/{script} " in done.stderr
    assert "Traceback" not in done.stderr
