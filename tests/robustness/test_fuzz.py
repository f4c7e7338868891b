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
from ssl_vit.data import loaders
from ssl_vit.data.workers import InterruptibleLoader, report_lost_workers
from ssl_vit.errors import LostError, UserError, printable, report_errors
from ssl_vit.jobs import cli
from ssl_vit.lab.study import tool as study_tool
from ssl_vit.recipe.load import resolve
from ssl_vit.runs.folder import Run
from ssl_vit.training import checkpoint

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
    "probe.shots=[1,[2],3]",
    "probe.shots=[1,{a: 2}]",
    "optim.betas=[0.9,true]",
    "resume=017",
    "resume=-1",
    "resume=1",
    "data.flip=yes",
    "compute.compile=-1",
    "data.test=1.5",
    "data.train=nan",
    "data.train= ",
    "data.validation= ",
    "out= ",
    "out=",
    "out=a/ /b",
    "name= ",
    "name=../x",
    "name=/x",
    "name=a//b",
    f"name={'é' * 130}",
    "compute.threads=100000",
    "name=\u202egnp",  # shown from right to left
    "name=a\x07",
    f"out={'x' * 256}",
    f"data.path={'x' * 300}",
    f"init={'x' * 300}",
    f"plugin={'x' * 300}",
    f"recipe={'x' * 300}.yaml",
    f"model.timm={'1' * 256}",
    f"data.train={'x' * 256}",
    f"data.test={'é' * 130}",
    f"data.validation={'{a:' * 90}",
    "out=a\udce9",
    "out=a\x1bb",
    "data.eval_crop=1e-3",
    "data.size=1000000000",
    "optim.batch=1000000000",
    "optim.steps=" + "1" * 5000,
    "optim.steps=٣",
    "optim.steps=12:30",
    "optim.lr=1e300",
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


@settings(max_examples=150)
@given(
    st.sampled_from(
        [
            "probe.shots",
            "optim.betas",
            "optim.steps",
            "optim.lr",
            "out",
            "name",
            "resume",
            "data.train",
        ]
    ),
    st.text(),
)
def test_any_text_is_a_value_or_refused(key: str, text: str) -> None:
    try:
        recipe = resolve(
            ["recipe=evaluate", "init=scratch", f"{key}={text}"]
            if key.startswith("probe")
            else ["recipe=mpp", f"{key}={text}"]
        )
    except UserError:
        return
    assert all(type(shot) is int for shot in recipe.probe.shots) and all(
        type(beta) is float for beta in recipe.optim.betas
    )
    assert type(recipe.optim.steps) is int and type(recipe.resume) is bool
    assert recipe.out.strip() == recipe.out != "" and ".." not in recipe.name.split("/")


def test_a_nested_list_is_refused_by_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError,
        match=r"probe.shots=\[1,\[2\],3\]: expected a list in brackets of 1 to 100 whole numbers",
    ):
        study_tool.main(["recipe=study/masking_rate", "probe.shots=[1,[2],3]"])
    with pytest.raises(UserError, match="out= : expected a folder"):
        study_tool.main(["recipe=study/masking_rate", "out= "])
    with pytest.raises(UserError, match="seeds: 1000000000: "):
        study_tool.main(["recipe=study/masking_rate", "seeds=1000000000"])
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


DEEP = "[" * 200_000 + "]" * 200_000


@pytest.mark.parametrize(
    "text",
    [DEEP, "{}", "null", '{"files": {"/dev/zero": 1}}', '{"files": {"state.pt": [1]}}', "\ud800"],
)
def test_an_altered_manifest_is_damaged_not_a_hang(text: str, tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 3, {"step": 3}, keep=2)
    assert checkpoint.is_intact(path)
    (path / "manifest.json").write_bytes(text.encode(errors="surrogatepass"))
    assert not checkpoint.is_intact(path)


def test_a_checkpoint_that_is_a_pipe_is_damaged_not_waited_for(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 3, {"step": 3}, keep=2)
    (path / "state.pt").unlink()
    os.mkfifo(path / "state.pt")
    assert not checkpoint.is_intact(path)
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")
    assert not checkpoint.is_intact(path)


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        '{"steps": "4", "seconds": 1, "metrics": {}, "finished": "x"}',
        '{"steps": 4, "seconds": 1, "metrics": [], "finished": "x"}',
        '{"steps": 4, "seconds": 1, "metrics": {"a": {"value": null, "split": "test"}}, '
        '"finished": "x"}',
        '{"steps": 4, "seconds": 1' + "0" * 400 + ', "metrics": {}, "finished": "x"}',
        '{"steps": true, "seconds": 1, "metrics": {}, "finished": "x"}',
    ],
)
def test_a_result_of_another_shape_is_damaged(text: str, tmp_path: Path) -> None:
    run = Run(resolve(["recipe=mpp", f"out={tmp_path}", "name=run"]))
    run.folder.mkdir()
    (run.folder / "result.json").write_text(text)
    with pytest.raises(UserError, match=r"result\.json is damaged"):
        run.result()


def test_rows_of_another_shape_are_no_rows(tmp_path: Path) -> None:
    run = Run(resolve(["recipe=mpp", f"out={tmp_path}", "name=run"]))
    run.folder.mkdir()
    lines = [
        '{"step": 1, "loss": 2.5}',
        '{"step": true}',
        '{"step": 2, "loss": [1]}',
        DEEP,
        "1" * 5000,
        '{"step": 3, "loss": NaN}',
    ]
    run.metrics.write_text("\n".join(lines) + "\n")
    assert [row["step"] for row in run.rows()] == [1, 3]


def test_an_error_is_printable_and_not_endless() -> None:
    assert printable("a\x1b[31m\udcff\nb") == "a\\x1b[31m\\udcff\\nb"
    assert len(printable("x" * 100_000)) < 2100 and printable("Größe 日本") == "Größe 日本"


def test_a_killed_data_worker_is_named_in_one_line(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """With the status on which a SLURM job goes back into the queue."""
    taken = loaders._steps

    def children() -> set[str]:
        return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())

    others = children()  # such as the server of launching.py

    def killing(*given):
        for number, samples in enumerate(taken(*given)):
            if number == 8:
                for child in children() - others:
                    os.kill(int(child), signal.SIGKILL)
            yield samples

    monkeypatch.setattr(loaders, "_steps", killing)
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
