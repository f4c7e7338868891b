"""Uploads while a run trains: training neither waits for them nor fails with them, and what stays
pending is told with the line that pushes it."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save
from torch import nn

from helpers.hub_runs import REPO, histories, pushed
from helpers.hub_server import READER, STRANGER, WRITER, Fault, Hub
from helpers.launching import launch, launch_ranks, outcome
from helpers.options import ROOT, TINY, altered
from ssl_vit import formatting
from ssl_vit.hub import background, manifest, push
from ssl_vit.jobs import cli
from ssl_vit.recipe import export_files
from ssl_vit.runs.folder import Run

NOBODY = "hf_nobodyNOBODY0123456789"


def words(folder: Path, *more: str) -> list[str]:
    """The options of the run `mpp` in that folder, which is to be pushed to REPO, on any machine."""
    own = ["name=mpp", f"out={folder}", f"hub.repo={REPO}", "hub.wait=600"]
    return altered([*TINY, *own], *more)


def told(capsys: pytest.CaptureFixture) -> dict[str, str]:
    """What was printed, by the names of the lines: "not pushed" and "then type" among them."""
    lines = [re.split(r"\s{2,}", line, maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    return dict(line for line in lines if len(line) == 2)


def after_trouble(says: str) -> Callable[[background.Pusher, Callable[[], bool]], None]:
    """Pusher.finish that begins to wait hub.wait seconds once a push has met this trouble, however
    long that takes to start."""
    finish = background.Pusher.finish

    def patient(pusher: background.Pusher, should_stop: Callable[[], bool]) -> None:
        pusher.start()
        for _ in range(2400):
            if says in manifest.problem(pusher.run):
                break
            time.sleep(0.05)
        finish(pusher, should_stop)

    return patient


# what the Hub does -> faults, environment, what is told at the end (nothing: all is pushed)
HUB: dict[str, tuple[list[Fault], dict[str, str], str]] = {
    "nothing odd": ([], {}, ""),
    "refuses": ([], {"HF_TOKEN": NOBODY}, "does not know this token"),
    "hangs": ([Fault("/", "hang")], {}, "an upload has begun and not ended"),
}


@pytest.mark.parametrize(("faults", "environment", "says"), HUB.values(), ids=HUB)
def test_training_ends_with_the_same_weights_whatever_the_hub_does(
    server: Hub,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    faults: list[Fault],
    environment: dict[str, str],
    says: str,
) -> None:
    """And no token is in a file or on the screen."""
    server.faults = faults
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = words(tmp_path, "hub.every=8")
    if says:
        monkeypatch.setattr(background.Pusher, "finish", after_trouble(says))
        # a refusal is waited for, which a second may be too short for
        options = altered(options, f"hub.wait={60 if environment else 1}")
    cli.pretrain(options)
    folder, lines = tmp_path / "mpp", told(capsys)
    for name in ("model.safetensors", "heads.safetensors"):
        assert (folder / "export" / name).read_bytes() == (finished / "export" / name).read_bytes()
    if says:
        assert lines["not pushed"].startswith("step-000000008, main: ")
        assert (
            says in lines["not pushed"]
            and formatting.typed_command("push", folder) in lines["then type"]
        )
    else:
        assert lines["hub"] == f"{REPO}: pushed main, step-000000008"
        assert "not pushed" not in lines
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    texts.append(repr(lines).encode())
    assert len(texts) > 5
    for token in (WRITER, READER, STRANGER, NOBODY):
        assert not any(token.encode() in text for text in texts)


def test_what_is_pending_is_pushed_by_the_line_that_is_told(
    server: Hub, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Here of a finished run that is given a repository."""
    folder = tmp_path / "my runs" / "mpp"
    shutil.copytree(finished, folder)
    cli.pretrain(words(folder.parent, "hub.private=false"))
    lines = told(capsys)
    assert lines["not pushed"] == "main: no upload has been tried yet"
    options = [f"hub.repo={REPO}", "hub.private=false", "hub.state=false"]
    assert shlex.split(lines["then type"])[2:] == [str(folder), *options]
    subprocess.run(lines["then type"], shell=True, cwd=ROOT, timeout=600, check=True)
    assert "model.safetensors" in pushed(server) and not server.repositories[REPO].private


def test_a_push_that_failed_is_told_once_while_training_goes_on(
    run: Run, capsys: pytest.CaptureFixture
) -> None:
    pusher = background.Pusher(run)
    run.outbox.mkdir()
    (run.outbox / "log.txt").write_text("waiting: a moment\nerror: the Hub is busy\nbye\n")
    pusher.process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])
    pusher.process.wait()
    capsys.readouterr()
    pusher.on_step(1)
    pusher.on_step(2)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warning: not uploaded to the Hub yet: main (the Hub is busy")


HELD = """
import time
from ssl_vit.jobs import cli
from ssl_vit.hub import background
lay = background.Milestones.__call__
def laid(self, *values):
    lay(self, *values)
    while True:  # until it is killed
        time.sleep(0.1)
background.Milestones.__call__ = laid
cli.pretrain({words!r})
"""


def test_training_that_is_killed_while_it_pushes_goes_on_and_commits_nothing_twice(
    server: Hub, tmp_path: Path
) -> None:
    """Killed between its milestone and its next step, where it is held, once the push has begun,
    which goes on beside the run that resumes."""
    server.faults = [Fault("PUT /lfs/", "slow", 2, seconds=3.0)]
    options = words(tmp_path, "hub.every=8", "hub.state=true")
    held = [sys.executable, "-c", HELD.replace("{words!r}", repr(options))]
    with subprocess.Popen(
        held, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True
    ) as first:
        until = time.monotonic() + 300
        while not any(request.startswith("PUT /lfs/") for request in server.requests):
            assert first.poll() is None and time.monotonic() < until
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
    again = launch("tools/pretrain.py", *options)
    output, _ = again.communicate(timeout=600)
    assert again.returncode == 0 and "not pushed" not in output, output
    assert histories(server) == {"main": 2, "step-000000008": 2, "state": 1}


def test_only_the_first_process_talks(server: Hub, tmp_path: Path) -> None:
    options = words(tmp_path, "hub.every=5")
    statuses, outputs = outcome(launch_ranks(2, "tools/pretrain.py", *options))
    assert statuses == [0, 0], outputs
    assert sum("/commit/" in request for request in server.requests) == 3
    assert histories(server) == {"main": 2, "step-000000005": 2, "step-000000010": 2}


def stopped(run: Run, should_stop: Callable[[], bool]) -> None:
    """Begin the upload at the end of a run, and have it killed by a signal."""
    path = run.folder / "recipe.yaml"  # which names the repository, as training's does
    path.write_text(path.read_text().replace("  repo: null", f"  repo: {run.recipe.hub.repo}"))
    run.outbox.mkdir(exist_ok=True)
    pusher = background.Pusher(run)
    pusher.finish(should_stop)
    assert pusher.process is not None and pusher.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("match", ["PUT /lfs/", "POST .*/commit/main"])
def test_an_upload_that_is_stopped_leaves_the_whole_or_the_former(
    server: Hub, run: Run, match: str
) -> None:
    """A former push of the same run is there; the next one completes it."""
    push.push(run)
    former = pushed(server)
    files = {}
    for path in run.export.glob("*.safetensors"):  # other files of other sums
        files[path.name] = save({name: 2 * value for name, value in load_file(path).items()})
        path.write_bytes(files[path.name])
    config = json.loads((run.export / "config.json").read_text())
    config = export_files.add_digests(config, files)
    (run.export / "config.json").write_text(json.dumps(config))
    run.ledger.unlink()
    server.faults = [Fault(match, "hang")]
    server.requests.clear()
    stopped(run, lambda: any(re.search(match, request) for request in server.requests))
    assert pushed(server) == former and manifest.pending(run) == ["main"]
    assert "has begun and not ended" in dict(manifest.status_lines(run))["not pushed"]
    server.faults = []
    push.push(run)
    whole = {path.name: path.read_bytes() for path in run.export.iterdir()}
    assert pushed(server) == former | whole and not manifest.pending(run)


def test_of_milestones_that_cannot_be_pushed_the_newest_are_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pusher = background.Pusher(run)
    monkeypatch.setattr(pusher, "start", lambda: None)  # the Hub is out of reach
    milestones = background.Milestones(pusher, lambda folder, trained: folder.mkdir())
    (run.outbox / ".step-000000001.77").mkdir(parents=True)
    for step in range(1, 8):
        assert milestones(step, {}, nn.Linear(2, 2)) == ()
    kept = sorted(path.name for path in run.outbox.iterdir())
    assert kept == [f"step-{step:09d}" for step in range(4, 8)]
    warned = [
        line for line in capsys.readouterr().out.splitlines() if "will not be uploaded" in line
    ]
    assert [int(re.findall(r"step (\d)", line)[0]) for line in warned] == [1, 2, 3]


def test_a_milestone_that_is_being_uploaded_is_not_given_up(run: Run) -> None:
    pusher = background.Pusher(run)
    milestones = background.Milestones(pusher, lambda folder, trained: folder.mkdir())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as uploads:
        pusher.process = uploads
        for step in range(1, 8):
            milestones(step, {}, nn.Linear(2, 2))
        uploads.communicate(b"\n")
    assert [path.name[-1] for path in sorted(run.outbox.iterdir())] == ["1", "5", "6", "7"]
