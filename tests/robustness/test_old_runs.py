"""Run folders of an earlier commit (tests/golden/runs, by robustness/old_runs.py): reading,
reporting and loading them works always; resuming works."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

import ssl_vit
from helpers.launching import launch, outcome
from helpers.options import ROOT

sys.path.insert(0, str(ROOT / "robustness"))
import old_runs

FINISHED, STOPPED = "finished_mpp", "stopped_mpp"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A copy that may be written to."""
    return Path(shutil.copytree(old_runs.GOLDEN, tmp_path / "runs"))


def tool(*words: str) -> list[str]:
    """Lines that the tool printed."""
    (status,), (output,) = outcome([launch("-m", "ssl_vit", *words)])
    assert status == 0, output
    return output.splitlines()


def test_old_runs_are_listed_and_reported(runs: Path) -> None:
    listed = "\n".join(tool("runs", str(runs)))
    assert FINISHED in listed and STOPPED in listed
    for name in (FINISHED, STOPPED):
        step = old_runs.rows(old_runs.GOLDEN / name)[-1]["step"]
        record = json.loads(tool("report", str(runs / name), "--json")[-1])
        assert (record["step"], record["steps"]) == (step, old_runs.STEPS)
        assert record["warnings"] == [] and (runs / name / "report.html").stat().st_size > 10_000


def test_an_old_run_is_read_and_its_encoder_loaded(runs: Path) -> None:
    found = ssl_vit.load_run(runs / FINISHED)
    assert found.rows()[-1]["step"] == old_runs.STEPS == found.recipe.optim.steps
    result = found.result()
    assert result is not None and result["metrics"]["loss"]["split"] == "validation"
    encoder = ssl_vit.load_encoder(runs / FINISHED)
    image = torch.arange(2 * 3 * 8 * 8, dtype=torch.uint8).reshape(2, 3, 8, 8)
    with torch.no_grad():
        first, second = encoder.feature(image, "avg")
    assert first.isfinite().all() and not torch.equal(first, second)


def test_an_old_run_resumes_to_the_end_of_one_that_was_never_stopped(runs: Path) -> None:
    (saved,) = (runs / STOPPED / "checkpoints").iterdir()
    words = (f"recipe={runs}/{STOPPED}/recipe.yaml", f"out={runs}", f"name={STOPPED}")
    printed = "\n".join(tool("pretrain", *words))
    assert f"resumed after step {int(saved.name.removeprefix('step-'))}" in printed, printed
    assert old_runs.differences(runs / f"{STOPPED}.json", old_runs.rows(runs / STOPPED)) == []
    assert (runs / STOPPED / "result.json").exists()
