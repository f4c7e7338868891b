"""benchmarks/gpu.py on the CPU at its tiny sizes: that the first half hour on a GPU is not spent on
mending it."""

import json
import sys
from pathlib import Path

import pytest

from helpers.options import ROOT

ONE_OF_EACH = {
    "numbers": ["targets", "gradients mpp"],
    "runs": ["no synchronisation"],
    "speed": ["vit_n8, batch 32"],
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """benchmarks/gpu.py, which the others beside it import too."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    yield gpu
    for name in [name for name in sys.modules if name.startswith("gpu")]:
        del sys.modules[name]


@pytest.mark.parametrize("part", ONE_OF_EACH)
def test_one_check_of_each_part_holds(gpu, tmp_path: Path, part: str) -> None:
    checks = gpu.find_checks(part, "cpu", tmp_path)
    chosen = {name: checks[name] for name in ONE_OF_EACH[part]}
    assert gpu.run_checks(chosen, tmp_path / "found.json", "cpu", limit=gpu.LIMIT)
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found["results"]) == ONE_OF_EACH[part] and found["device"] == "cpu"


def test_a_check_that_raises_is_written_and_the_next_one_goes_on(gpu, tmp_path: Path) -> None:
    def broken():
        raise RuntimeError("no kernel image")

    path = tmp_path / "found.json"
    assert not gpu.run_checks({"broken": broken, "whole": dict}, path, "cpu", limit=60)
    results = json.loads(path.read_text())["results"]
    assert results["broken"]["error"] == "RuntimeError: no kernel image"
    assert "error" not in results["whole"]
    assert not gpu.run_checks({"late": dict}, path, "cpu", limit=-1)
    assert json.loads(path.read_text())["results"]["late"]["skipped"] == "no time left"
