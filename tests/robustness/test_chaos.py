"""robustness/chaos.py (slow): kills, damaged checkpoints and a full disk; and rows on a full disk."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from helpers.exports import of_timm
from helpers.launching import launch
from helpers.resolving import resolve
from ssl_vit.callbacks import Row
from ssl_vit.runs.folder import Run
from ssl_vit.runs.trackers import MetricsLog

SCRIPT = """
import json, random, sys
from pathlib import Path
sys.path.insert(0, "robustness")
import chaos
random.seed(1)
out = Path(sys.argv[1])
print(json.dumps({call}))
"""
STORMS = "[chaos.storm(out, kills=12, steps=300, longest=0.4, harm=harm) for harm in (False, True)]"


def report(call: str, out: Path) -> Any:
    """What a function of robustness/chaos.py returns."""
    process = launch("-c", SCRIPT.format(call=call), str(out))
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def storms(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return report(STORMS, tmp_path_factory.mktemp("storms"))


@pytest.mark.slow
@pytest.mark.parametrize("harm", [False, True])
def test_kills_at_random_moments_lose_nothing(storms: list, harm: bool) -> None:
    """Also where the newest checkpoint is damaged after each."""
    found = storms[harm]
    assert found["bit-equal"] and found["kills"] == 12 and found["resumptions"], found
    assert found["rows"] == 60 and found["lost"] == 0, found


@pytest.mark.slow
@pytest.mark.parametrize("part", ["blocks:1", "lora:2"])
def test_kills_lose_nothing_where_a_part_is_trained(part: str, tmp_path: Path) -> None:
    start = of_timm(tmp_path / "start")
    more = f"chaos.OPTIONS.extend(['init={start}', 'model.train={part}'])"
    storm = "chaos.storm(out, kills=6, steps=120, longest=0.4)"
    found = report(f"[{more}, {storm}][1]", tmp_path)
    assert found["bit-equal"] and found["kills"] == 6 and found["resumptions"], found
    assert found["rows"] == 24 and found["lost"] == 0, found


def mounts(folder: Path) -> bool:
    """Whether a file system may be mounted here, as root may."""
    command = f"mount -t tmpfs -o size=1m tmpfs {folder} && umount {folder}"
    return subprocess.run(["sh", "-c", command], capture_output=True).returncode == 0


@pytest.mark.slow
def test_a_tiny_file_system_that_fills_up_loses_nothing(tmp_path: Path) -> None:
    if not mounts(tmp_path):
        pytest.skip("no file system may be mounted here")
    found = report("chaos.full(out, steps=60)", tmp_path)
    assert found["bit-equal"] and found["filled"] and found["saves that failed"], found


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
