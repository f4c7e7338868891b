"""What users and broken disks hand in: robustness/fuzz.py (slow), and each bug that it found."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.launching import launch
from helpers.options import ROOT, altered
from helpers.resolving import resolve
from ssl_vit.data import loaders
from ssl_vit.data.workers import InterruptibleLoader, report_lost_workers
from ssl_vit.errors import LostError, UserError, printable, report_errors
from ssl_vit.jobs import cli
from ssl_vit.lab.study import tool as study_tool

SCRIPT = """
import json, sys
from pathlib import Path
sys.path.insert(0, "robustness")
import fuzz
print(json.dumps(fuzz.fuzz(7, 300, Path(sys.argv[1]), list(fuzz.TOOLS))))
"""


@pytest.mark.slow
def test_wrong_command_lines_and_altered_files_are_answered_in_one_line(tmp_path: Path) -> None:
    process = launch("-c", SCRIPT, str(tmp_path), stderr=True)
    output, errors = process.communicate(timeout=1500)
    assert process.returncode == 0, errors
    report = json.loads(output.splitlines()[-1])
    assert report["found"] == [] and "wrong" not in report
    assert report["answered in one line"] + report["accepted"] == 330 and report["accepted"] > 5


REFUSED = [
    *("probe.shots=[1,[2],3]", "probe.shots=[1,{a: 2}]", "optim.betas=[0.9,true]"),
    *("resume=017", "resume=1", "data.flip=yes", "compute.compile=-1", "data.test=1.5"),
    *(
        "data.train=nan",
        "data.train= ",
        "data.validation= ",
        "out= ",
        "out=",
        "out=a/ /b",
        "name= ",
    ),
    *("name=../x", "name=/x", "name=a//b", "name=a\x07", "out=a\udce9", "out=a\x1bb"),
    "name=\u202egnp",  # shown from right to left
    *(f"{key}={'x' * 300}" for key in ("out", "data.path", "init", "plugin", "recipe")),
    *(f"{key}={'x' * 256}" for key in ("model.timm", "data.train")),
    *(f"{key}={'é' * 130}" for key in ("name", "data.test")),
    f"data.validation={'{a:' * 90}",
    *("data.eval_crop=1e-3", "data.size=1000000000", "optim.batch=1000000000", "optim.lr=1e300"),
    *("compute.threads=100000", "optim.steps=٣", "optim.steps=12:30"),
    "optim.steps=" + "1" * 5000,
    "optim.batch=" + "[" * 5000,
    "probe.rates=" + "[" * 100_000,
    "probe.rates=[" + "1," * 500 + "1]",
]


@pytest.mark.parametrize(
    "word", REFUSED, ids=lambda word: word[:30].encode("ascii", "replace").decode()
)
def test_nonsense_is_refused_by_its_key(word: str) -> None:
    with pytest.raises(UserError) as refused:
        resolve(altered(["recipe=mpp"], word))
    assert str(refused.value).startswith(word.partition("=")[0])


KEYS = [
    "probe.shots",
    "optim.betas",
    "optim.steps",
    "optim.lr",
    "out",
    "name",
    "resume",
    "data.train",
]


@settings(max_examples=150)
@given(st.sampled_from(KEYS), st.text())
def test_any_text_is_a_value_or_refused(key: str, text: str) -> None:
    tool = ["recipe=evaluate", "init=scratch"] if key.startswith("probe") else ["recipe=mpp"]
    try:
        recipe = resolve([*tool, f"{key}={text}"])
    except UserError:
        return
    assert all(type(shot) is int for shot in recipe.probe.shots)
    assert all(type(beta) is float for beta in recipe.optim.betas)
    assert type(recipe.optim.steps) is int and type(recipe.resume) is bool
    assert recipe.out.strip() == recipe.out != "" and ".." not in recipe.name.split("/")


@pytest.mark.parametrize("word", ["probe.shots=[1,[2],3]", "out= ", "seeds=1000000000"])
def test_nonsense_is_refused_by_a_study(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=word.partition("=")[0]):
        study_tool.main(["recipe=study/masking_rate", word])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 100_000,
        "a:\n" + "- " * 50_000 + "x",
        "\n".join(" " * i + "a:" for i in range(500)),
    ],
)
def test_deep_yaml_is_refused_and_ends_nothing(text: str, tmp_path: Path) -> None:
    """Measured where it would have ended the interpreter."""
    (tmp_path / "deep.yaml").write_text(text)
    line = [sys.executable, "tools/pretrain.py", f"recipe={tmp_path}/deep.yaml"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (
        done.returncode == 2
        and done.stderr.startswith("error: ")
        and len(done.stderr.splitlines()) == 1
    )
    assert "nested deeper than" in done.stderr


def test_an_error_is_printable_and_not_endless() -> None:
    assert printable("a\x1b[31m\udcff\nb") == "a\\x1b[31m\\udcff\\nb"
    assert len(printable("x" * 100_000)) < 2100 and printable("Größe 日本") == "Größe 日本"


def test_a_killed_data_worker_is_named_in_one_line(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """With the status on which a SLURM job goes back into the queue."""
    taken = loaders._choose_samples

    def children() -> set[str]:
        return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())

    others = children()  # such as the server of launching.py

    def killing(*given):
        for number, samples in enumerate(taken(*given)):
            if number == 8:
                for child in children() - others:
                    os.kill(int(child), signal.SIGKILL)
            yield samples

    monkeypatch.setattr(loaders, "_choose_samples", killing)
    with pytest.raises(SystemExit) as left:
        cli.pretrain(altered(tiny, "compute.workers=1", "optim.steps=40", "name=run"))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert (
        left.value.code == 69
        and line.startswith("error: data worker (process ")
        and "compute.workers=" in line
    )


def test_a_worker_killed_while_it_hands_over_a_batch_is_named() -> None:
    """Its socket is reset then; another lost connection is no matter of the workers."""
    dead = multiprocessing.get_context("fork").Process(target=os._exit, args=(9,))
    dead.start()
    dead.join()
    alive = SimpleNamespace(join=lambda seconds: None, is_alive=lambda: True)

    class Broken:
        num_workers = 1
        batch_sampler = None
        _workers = (alive,)

        def __iter__(self):
            return self

        def __next__(self):
            raise ConnectionResetError(104, "Connection reset by peer")

    with pytest.raises(ConnectionResetError):
        next(iter(InterruptibleLoader(Broken())))
    Broken._workers = (alive, dead)
    with pytest.raises(LostError, match=rf"data worker \(process {dead.pid}\) ended with status 9"):
        next(iter(InterruptibleLoader(Broken())))


def test_a_lost_worker_ends_with_the_status_that_is_queued_again() -> None:
    with pytest.raises(SystemExit) as left, report_errors(), report_lost_workers():
        raise RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. ")
    assert left.value.code == LostError.status == 69
    with pytest.raises(RuntimeError, match="another"), report_lost_workers():
        raise RuntimeError("another")
