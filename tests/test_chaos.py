"""A few of the kills that benchmarks/chaos.py deals out by the hundred."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from ssl_vit.callbacks import Row
from ssl_vit.config.resolve import resolve
from ssl_vit.runs.folder import Run
from ssl_vit.runs.trackers import MetricsLog

FULL = """
import json, random, sys
from pathlib import Path
sys.path.insert(0, "benchmarks")
import chaos
random.seed(1)
print(json.dumps(chaos.full(Path(sys.argv[1]), steps=400)))
"""
STORM = """
import json, random, sys
from pathlib import Path
sys.path.insert(0, "benchmarks")
import chaos
print(json.dumps(chaos.storm(Path(sys.argv[1]), kills=4, steps=200, longest=1.5, harm=sys.argv[2] == "harm")))
"""


@pytest.mark.parametrize("harm", ["kill", "harm"])
def test_kills_at_random_moments_lose_nothing(harm: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STORM, str(tmp_path), harm],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (
        report["bit-equal"]
        and report["kills"] == 4
        and report["rows"] == 40
        and report["lost"] == 0
    ), report


def mounts(folder: Path) -> bool:
    """Whether a file system may be mounted here, as root may."""
    command = f"mount -t tmpfs -o size=1m tmpfs {folder} && umount {folder}"
    return subprocess.run(["sh", "-c", command], capture_output=True).returncode == 0


def test_a_tiny_file_system_that_fills_up_loses_nothing(tmp_path: Path) -> None:
    if not mounts(tmp_path):
        pytest.skip("no file system may be mounted here")
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["bit-equal"] and report["filled"] and report["saves that failed"], report


def test_rows_that_a_full_disk_refused_come_later_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(resolve(["recipe=mpp", f"out={tmp_path}", "name=run"]))
    run.folder.mkdir()
    record, rows = MetricsLog(run), [Row(step=step) for step in range(4)]
    record.on_row(rows[0])
    monkeypatch.setattr(run, "metrics", Path("/dev/full"))
    record.on_row(rows[1])
    record.on_row(rows[2])
    monkeypatch.undo()
    record.on_row(rows[3])
    assert run.rows() == rows
