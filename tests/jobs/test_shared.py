"""Measurements that the tasks of a study share: the same results to the bit as without, and only
between tasks that measure the same."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ssl_vit
from helpers.launching import launch_ranks, outcome
from helpers.measurements import by_name
from helpers.options import LOADED, altered
from helpers.runs import run
from ssl_vit.jobs import cli
from ssl_vit.runs import shared
from ssl_vit.runs.files import sweep

PROBED = ["probe.every=4", "probe.images=300", "probe.shots=[1]", "probe.steps=10"]
PROBED += ["probe.neighbors=5", "eval.images=200"]
LOOK = ["recipe=evaluate", "data.size=16", *LOADED, "probe.steps=10", "data.share=0.02"]
LOOK += ["data.test=0.01", "probe.measures=[knn,linear]"]
ARRAYS = {"knn": np.array([[True, False]]), "count": np.arange(3)}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / shared.STUDY).touch()
    return folder


def files(study: Path) -> set[str]:
    return {path.name for path in (study / "shared").iterdir()}


def metrics(folder: Path) -> dict:
    return by_name(json.loads((folder / "result.json").read_text()))


def evaluated(init: Path, out: Path, name: str, *more: str) -> dict:
    cli.evaluate([*altered(LOOK, *more), f"init={init}", f"out={out}", f"name={name}"])
    return metrics(out / name)


def test_two_processes_share_with_two_processes(pretrained: Path, study: Path) -> None:
    """Only the first process of a machine knows the fingerprints; the second ended in a
    KeyError."""
    words = [*LOOK, f"init={pretrained}", f"out={study}"]
    for name in ("first", "second"):
        statuses, outputs = outcome(launch_ranks(2, "tools/evaluate.py", *words, f"name={name}"))
        assert statuses == [0, 0], outputs
    assert metrics(study / "first") == metrics(study / "second") and len(files(study)) == 2


def test_tasks_that_measure_the_same_share_it_to_the_bit(
    pretrained: Path, tmp_path: Path, study: Path
) -> None:
    alone = evaluated(pretrained, tmp_path, "alone")
    assert not (tmp_path / "shared").exists()
    assert evaluated(pretrained, study, "first") == alone
    known = files(study)
    assert len(known) == 2  # untrained weights and pixels
    assert evaluated(pretrained, study, "second") == alone and files(study) == known
    for path in (study / "shared").iterdir():  # read it was, and not measured again
        changed = shared.SharedFile(path).read()
        assert changed is not None
        shared.SharedFile(path).write({name: ~right for name, right in changed.items()})
    assert evaluated(pretrained, study, "third")["fresh_knn"] != alone["fresh_knn"]
    for path in (study / "shared").iterdir():
        path.write_bytes(path.read_bytes()[:-1])  # damaged
    assert evaluated(pretrained, study, "fourth") == alone and files(study) == known
    shutil.rmtree(study / "shared")
    assert evaluated(pretrained, study, "fifth") == alone and files(study) == known


@pytest.mark.parametrize(
    "more",
    [
        ["data.share=0.03"],
        ["data.test=0.02"],
        ["data.eval_crop=0.9"],
        ["data.size=24"],
        ["probe.rates=[0.1]"],
        ["probe.neighbors=7"],
        ["probe.layer=1"],
        ["compute.precision=bfloat16"],
    ],
)
def test_evaluations_that_differ_share_nothing(
    pretrained: Path, study: Path, more: list[str]
) -> None:
    evaluated(pretrained, study, "one")
    known = files(study)
    evaluated(pretrained, study, "other", *more)
    assert len(files(study) - known) == 2


def test_training_runs_share_what_their_seed_and_model_begin_with(
    tiny: list[str], tmp_path: Path, study: Path
) -> None:
    words = [*altered(tiny, *PROBED)]
    alone = run(altered(words, f"out={tmp_path}", "name=alone"))
    first = run(altered(words, f"out={study}", "name=first"))
    second = run(altered(words, f"out={study}", "name=second", "optim.lr=0.01"))
    assert metrics(alone.folder) == metrics(first.folder) and len(files(study)) == 1
    fresh = [metrics(one.folder)["fresh_probe_knn"]["value"] for one in (first, second)]
    assert fresh[0] == fresh[1]
    others = ["seed=5", "model.heads=1", "data.size=24", "data.std=[0.3,0.3,0.3]"]
    for count, other in enumerate([*others, "data.crop_area=0.5"], 2):
        run(altered(words, f"out={study}", f"name=other{count}", other))
        assert len(files(study)) == count, other


def test_a_damaged_or_missing_file_is_no_measurement(study: Path) -> None:
    file = shared.shared_file(study / "task", {"seed": 1})
    assert file.path is not None and file.read() is None
    file.write(ARRAYS)
    whole = file.path.read_bytes()
    found = file.read()
    assert found is not None and all(np.array_equal(found[name], ARRAYS[name]) for name in ARRAYS)
    for content in (b"", whole[:40], whole[:-1], whole[:-1] + b"\x07", whole + b"0"):
        file.path.write_bytes(content)
        assert file.read() is None
    file.write(ARRAYS)
    assert file.path.read_bytes() == whole
    file.path.unlink()
    file.path.mkdir()  # cannot be written, which ends no run
    file.write(ARRAYS)
    assert file.read() is None


WRITER = """
import sys
import numpy as np
from pathlib import Path
from ssl_vit.runs import shared
file = shared.SharedFile(Path(sys.argv[1]))
while True:
    file.write({"x": np.arange(2**18)})
"""


def test_a_kill_while_writing_leaves_no_half_a_file(study: Path) -> None:
    path = shared.shared_file(study / "task", {}).path
    assert path is not None
    for number in range(3):
        path.unlink(missing_ok=True)
        command = [sys.executable, "-c", WRITER, str(path)]
        writers = [subprocess.Popen(command) for _ in range(2)]
        while not path.exists():
            assert all(writer.poll() is None for writer in writers)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
        found = shared.SharedFile(path).read()
        assert found is not None and np.array_equal(found["x"], np.arange(2**18)), number
    sweep(study / shared.FOLDER, shared.OWN)
    assert files(study) == {path.name}


def test_a_task_gets_its_page_and_figure_on_request(
    tiny: list[str], tmp_path: Path, study: Path
) -> None:
    alone = run(altered(tiny, f"out={tmp_path}", "name=task"))
    task = run(altered(tiny, f"out={study}", "name=task"))
    assert (alone.folder / "report.html").exists()
    assert not (task.folder / "report.html").exists() and not [*task.figures.iterdir()]
    ssl_vit.report(task.folder)
    page = (task.folder / "report.html").read_text()
    assert "(figures/predictions.svg)" in page
    drawn = [(one.figures / "predictions.png").read_bytes() for one in (alone, task)]
    assert drawn[0] == drawn[1]
