"""benchmarks/runs.py: images a second between two numbers of steps, and whose are more. No peer is
needed."""

import math
import os
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, "benchmarks")
import runs


def rows(way: str, *times: tuple[float, float], steps=(10, 60)) -> list[dict]:
    """Of rounds with these CPU seconds at the smaller and at the larger number of steps."""
    return [
        {"case": "one", "way": way, "round": round_, "steps": count, "batch": 128, "cpu_s": cpu}
        for round_, pair in enumerate(times)
        for count, cpu in zip(steps, pair, strict=True)
    ]


def test_an_image_costs_what_the_longer_run_takes_longer():
    """50 steps of 128 in 25 and in 32 s, whatever the start took."""
    found = runs.images_a_second(rows("ssl_vit", (5, 30), (100, 132)), "cpu_s")
    assert found == {0: 256, 1: 200}
    cut_off = rows("ssl_vit", (5, 30), (100, 132))[:-1]
    assert runs.images_a_second(cut_off, "cpu_s") == {0: 256}


def test_a_ratio_is_the_geometric_mean_over_rounds_with_its_interval():
    """Twice and eight times as fast: four times. Two logarithms ln 4 apart, whose mean has the
    standard error ln 2; Student's t of one degree of freedom is 12.706."""
    found = runs.over({0: 200.0, 1: 80.0, 2: 7.0}, {0: 100.0, 1: 10.0})
    assert found["mean"] == 4 and found["n"] == 2
    reach = math.exp(12.7062 * math.log(2))
    assert found["95%"] == [pytest.approx(4 / reach, abs=1e-3), pytest.approx(4 * reach, rel=1e-3)]
    assert runs.over({0: 3.0}, {0: 2.0}) == {"mean": 1.5, "95%": None, "n": 1}


def test_time_and_memory_of_all_processes_count(tmp_path: Path):
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    found = runs.timed([sys.executable, "-c", code], dict(os.environ), tmp_path, tmp_path / "log")
    assert found["code"] == 0 and found["cpu_s"] >= 0.3 and found["memory_gib"] >= 0
    code = "raise SystemExit(3)"
    found = runs.timed([sys.executable, "-c", code], dict(os.environ), tmp_path, tmp_path / "log")
    assert found["code"] == 3


def test_together_all_of_a_case_run_at_the_same_time(tmp_path: Path, monkeypatch):
    both = threading.Barrier(2, timeout=60)

    def run(self, way: str, case: runs.Case, words: list[str], steps: int, out: Path) -> dict:
        both.wait()
        return {"cpu_s": float(steps)}

    monkeypatch.setattr(runs.Runs, "run", run)
    monkeypatch.setattr(runs.Runs, "peers", lambda self, case: ["peer"])
    given = runs.DEFAULTS | {"work": str(tmp_path), "together": "true"}
    beside = runs.Runs(given)
    beside.case("table_mpp", 0)
    ways = [(row["way"], row["steps"]) for row in beside.rows]
    assert sorted(ways) == [("peer", 10), ("peer", 50), ("ssl_vit", 10), ("ssl_vit", 50)]
    again = runs.Runs(given)
    again.case("table_mpp", 0)
    assert again.rows == beside.rows


@pytest.mark.parametrize("name", runs.CASES)
def test_this_projects_command_is_accepted_at_every_size(name: str, tmp_path: Path):
    case = runs.CASES[name]
    given = runs.DEFAULTS | {"batch": "4", "model": "vit_n4", "precision": "bfloat16"}
    recipe = runs.resolved([*runs.words_of(case, tmp_path, given), "optim.steps=20"])
    assert recipe["optim.batch"] == 4 and recipe["model.patch"] == 4
    assert recipe["compute.precision"] == "bfloat16" and recipe["trained"] > 0
