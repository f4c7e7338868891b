"""benchmarks/gpu.py on the CPU at its tiny sizes: that the first minutes on a GPU are not spent on
mending it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.launching import interpreter
from helpers.options import ROOT

# All of them: python benchmarks/gpu.py device=cpu
CHOSEN = [
    *("targets", "gradients mpp", "step mpp vit_n8, batch 32", "step dino vit_n8, batch 32"),
    *("from files", "no synchronisation"),
]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    yield gpu
    for name in ("gpu", "step"):
        sys.modules.pop(name, None)


def test_a_check_of_each_kind_holds(gpu, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", interpreter())
    checks = gpu.find_checks("cpu", tmp_path)
    chosen = {name: checks[name] for name in CHOSEN}
    assert gpu.run_checks(chosen, tmp_path / "gpu.json", "cpu", limit=540)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert list(found["results"]) == CHOSEN and found["device"] == "cpu"
    assert all("step over plain loop" in found["results"][name] for name in CHOSEN[2:4])
    assert found["results"]["from files"]["data wait"][0] > 0


def test_its_runs_find_what_it_found_itself(gpu, monkeypatch, tmp_path: Path) -> None:
    """Wheels in a folder of PYTHONPATH: what the GPU's own machine lacks."""
    monkeypatch.setenv("PYTHONPATH", "wheels")
    runs = gpu.Runs("cpu", tmp_path / "runs")
    code = "import sys; assert any(path.endswith('wheels') for path in sys.path), sys.path"
    runs.finish(runs.start("-c", code))


def test_a_check_that_raises_is_written_and_the_next_one_goes_on(gpu, tmp_path: Path) -> None:
    def broken():
        raise RuntimeError("no kernel image")

    path = tmp_path / "gpu.json"
    assert not gpu.run_checks({"broken": broken, "whole": dict}, path, "cpu", limit=60)
    results = json.loads(path.read_text())["results"]
    assert results["broken"]["error"] == "RuntimeError: no kernel image"
    assert "error" not in results["whole"]
    assert not gpu.run_checks({"late": dict}, path, "cpu", limit=-1)
    assert json.loads(path.read_text())["results"]["late"]["skipped"] == "no time left"
