"""The functions of `import ssl_vit` that train or look at one run: the tools' own files, typed."""

import html
import json
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import ssl_vit
from helpers.images import put
from helpers.launching import python
from helpers.measurements import by_name, written
from helpers.options import PROBE, ROOT, TINY, TUNE, altered
from helpers.runs import Sends, assert_same_end, result, with_callbacks
from ssl_vit.callbacks import Callback
from ssl_vit.jobs import cli

OPTIONS = altered(TINY, "optim.steps=2", "optim.warmup=1", "checkpoint.every=2", "eval.every=2")
LAB = {"list_runs", "plan", "report", "study"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return ssl_vit.pretrain(OPTIONS, out=tmp_path_factory.mktemp("made"), name="run")


def test_what_is_public_is_shown_and_nothing_else() -> None:
    code = (
        "import ssl_vit; print(*dir(ssl_vit)); [getattr(ssl_vit, name) for name in dir(ssl_vit)];"
        "assert all(getattr(ssl_vit, name).__doc__ for name in ssl_vit.__all__);"
        "print(*dir(ssl_vit))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after = (set(line.split()) for line in done.stdout.splitlines())
    assert before == after == {*ssl_vit.__all__, "__version__", "objectives"}
    assert LAB | {"pretrain", "embed", "figures", "export", "UserError"} <= before
    with pytest.raises(AttributeError, match="pretrian"):
        ssl_vit.pretrian  # noqa: B018


def test_a_result_is_its_file_with_attributes_and_a_folder(made: Any) -> None:
    written = result(made.folder)
    assert made.content() == {"folder": str(made.folder), **written}
    assert made.metrics["loss"].value == by_name(written)["loss"]["value"]
    assert (made.steps, made.metrics["loss"].split) == (2, "validation")
    assert ssl_vit.pretrain(OPTIONS, out=made.folder.parent, name="run") == made


def test_a_result_is_printed_as_the_command_prints_it(
    made: Any, capsys: pytest.CaptureFixture
) -> None:
    cli.pretrain([*OPTIONS, f"out={made.folder.parent}", "name=run", "--json"])
    lines = capsys.readouterr().out.splitlines()
    shown = str(made).splitlines()
    first = lines.index(shown[0])
    assert lines[first : first + len(shown)] == shown == repr(made).splitlines()
    assert json.loads(lines[-1]) == made.content()


def test_a_result_shows_the_page_of_its_run(made: Any) -> None:
    shown = made._repr_html_()
    page = html.unescape(shown.partition('srcdoc="')[2].partition('"')[0])
    assert page.startswith("<!doctype html>") and "<title>run" in page
    assert page == (made.folder / "report.html").read_text()


def test_finetune_and_evaluate_are_their_tools(made: Any, tmp_path: Path) -> None:
    own = {"init": made, "out": tmp_path, "data": {"share": 0.01}}  # a result is its folder
    own |= {"eval": {"test": False, "images": 8}}
    tuned = ssl_vit.finetune([one for one in TUNE if "eval" not in one], name="tuned", **own)
    assert {"folder": str(tmp_path / "tuned"), **result(tmp_path / "tuned")} == tuned.content()
    with pytest.raises(ssl_vit.UserError, match=r"^objective=.*objective=probe"):
        ssl_vit.evaluate(recipe="finetune", init=made.folder)


def test_features_and_figures_are_those_of_the_tools(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert ssl_vit.load_run(made).folder == made.folder
    drawn = ssl_vit.figures(made, figures=["filters", "positions"], images=4, out=tmp_path)
    assert drawn.names == ["filters", "positions"] and drawn.folder.parent == tmp_path
    assert all(image.is_file() for image in drawn.images)
    assert drawn._repr_html_().count("<img") == 2
    put(tmp_path / "images" / "test", 1)
    query = tmp_path / "query.png"
    query.write_bytes((tmp_path / "images" / "test" / "0.png").read_bytes())
    data = {"path": tmp_path / "images"}
    found = ssl_vit.embed(made.folder, data=data, query=query, top=1, out=tmp_path)
    assert [file.name for file in found.files] == ["test-00000-of-00001.parquet"]
    assert found.files[0].parent == found.folder
    (nearest,) = found.nearest
    assert nearest.similarity == pytest.approx(1, abs=1e-3) and nearest.file == "test/0.png"
    assert f"{nearest.similarity:.4f} {nearest.file}" in capsys.readouterr().out


def test_export_gives_the_place(made: Any, tmp_path: Path) -> None:
    out = ssl_vit.export(made.folder, format="transformers", out=tmp_path / "vit")
    assert out == tmp_path / "vit" and (out / "config.json").is_file()


def test_ctrl_c_leaves_an_interactive_shell_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_callbacks(Sends(signal.SIGINT, 1)):
        with pytest.raises(SystemExit, match="75"):
            ssl_vit.pretrain(OPTIONS, out=tmp_path, name="one")
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
        with pytest.raises(KeyboardInterrupt, match="75"):
            ssl_vit.pretrain(OPTIONS, out=tmp_path, name="two")


class InterruptedAtItsEnd(Callback):
    def close(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_after_the_last_step_is_not_lost(tmp_path: Path) -> None:
    """While a run was tested it vanished, and the next training of a script began."""
    with (
        with_callbacks(InterruptedAtItsEnd()),
        pytest.raises(KeyboardInterrupt, match="after the last step"),
    ):
        ssl_vit.pretrain(OPTIONS, out=tmp_path, name="run")
    assert ssl_vit.pretrain(OPTIONS, out=tmp_path, name="run").steps == 2  # as it has finished


def test_of_a_study_and_a_folder_the_lab_gives_its_records(
    made: Any, capsys: pytest.CaptureFixture
) -> None:
    listed = ssl_vit.list_runs(made.folder.parent, best="loss")
    assert listed.runs[0].value("loss") == made.metrics["loss"].value
    assert listed.content()["best"] == "loss"
    page = ssl_vit.report(made.folder)
    assert page.page == made.folder / "report.html" and page.run.result.steps == 2
    with pytest.raises(ssl_vit.UserError, match="neither a run nor a study"):
        ssl_vit.report(made.folder.parent)
    estimate = ssl_vit.plan(recipe="mpp", optim={"steps": 1000}, device="h100")
    assert (estimate.steps, estimate.device.name) == (1000, "h100")
    study = ssl_vit.plan(recipe="study/gap", seeds=1)
    assert study.in_all["tasks"] == sum(part["tasks"] for part in study.runs.values())
    assert capsys.readouterr().out == ""  # they answer; printing is the caller's


def test_the_count_of_images_is_that_of_the_figures(made: Any, tmp_path: Path) -> None:
    """With one that could not be read, 88 of 399 stood beside n = 400."""
    folder = shutil.copytree(made.folder, tmp_path / "run")
    content = result(folder)
    content["measurements"] += written({"top1": {"value": 88 / 399, "n": 399, "split": "test"}})
    content["measured_on"]["test"] = 400
    (folder / "result.json").write_text(json.dumps(content))
    lines = str(ssl_vit.pretrain(OPTIONS, out=tmp_path, name="run")).splitlines()
    assert any(line.startswith("results     399 test images") for line in lines)


class PausedAt(Callback):
    """Wait in a step of a run, and as the run ends, until the test goes on."""

    def __init__(self, step: int) -> None:
        self.step, self.errors = step, []
        self.started, self.go_on = threading.Event(), threading.Event()

    def on_step(self, step: int) -> None:
        if step == self.step:
            self.try_nested()
            self.started.set()
            assert self.go_on.wait(600)

    def close(self) -> None:
        self.try_nested()

    def try_nested(self) -> None:
        with pytest.raises(ssl_vit.UserError) as error:
            ssl_vit.pretrain(OPTIONS, name="nested")
        self.errors.append(str(error.value))


def test_one_process_does_one_job_at_a_time(made: Any, tmp_path: Path) -> None:
    """The first training keeps its losses, whatever is tried meanwhile, in its thread or another."""
    words = altered(OPTIONS, "optim.steps=4", "optim.dropout=0.5", "log.every=1", f"out={tmp_path}")
    alone = ssl_vit.pretrain(words, name="alone")
    paused = PausedAt(2)
    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(ssl_vit.pretrain(words, name="first")))
    with with_callbacks(paused), ExitStack() as stack:
        first.start()
        stack.callback(first.join)
        stack.callback(paused.go_on.set)
        assert paused.started.wait(600)
        before = sorted(tmp_path.iterdir())
        state = torch.get_rng_state()
        refused = {
            "name=second": lambda: ssl_vit.pretrain(words, name="second"),
            "name=probed": lambda: ssl_vit.evaluate(PROBE, init=made, name="probed", out=tmp_path),
            "embed": lambda: ssl_vit.embed(init=made, name="embedded", out=tmp_path),
            "figures": lambda: ssl_vit.figures(init=made, name="drawn", out=tmp_path),
            "--probe": lambda: ssl_vit.plan("recipe=mpp --probe"),
            f"init={made.folder}": lambda: ssl_vit.load_encoder(made.folder),
            f"init={alone.folder}": lambda: ssl_vit.export(
                init=alone.folder, format="transformers", out=tmp_path / "exported"
            ),
        }
        for start, call in refused.items():
            with pytest.raises(ssl_vit.UserError, match="busy with name=first") as error:
                call()
            assert str(error.value).startswith(f"{start}: ")
        assert sorted(tmp_path.iterdir()) == before
        # what only reads works
        assert ssl_vit.load_run(tmp_path / "alone").rows()
        assert ssl_vit.list_runs(tmp_path) and ssl_vit.report(tmp_path / "alone")
        assert ssl_vit.pretrain(words, name="alone") == alone
        for recipe in ("mae", "joint"):
            assert ssl_vit.plan(recipe=recipe)
        assert torch.equal(torch.get_rng_state(), state)
    (result_of_first,) = results
    assert_same_end(alone.folder, result_of_first.folder)
    assert len(paused.errors) == 2 and all("busy with name=first" in e for e in paused.errors)
    assert ssl_vit.load_encoder(made.folder)


def test_a_refused_job_imports_nothing(made: Any, tmp_path: Path) -> None:
    """Two threads that import torchvision at the same time find it half imported, and the training
    of the first thread ended with an ImportError."""
    script = f"""
import sys, threading, ssl_vit
from ssl_vit.runs.lock import hold_process
init, refused = {str(made.folder)!r}, []
def call(function, **options):
    try:
        function(**options)
    except ssl_vit.UserError as error:
        refused.append("busy with first" in str(error))
with hold_process("first"):
    for function, options in (
        (ssl_vit.embed, {{}}), (ssl_vit.figures, {{}}), (ssl_vit.load_encoder, {{}}),
        (ssl_vit.export, {{"format": "transformers", "out": {str(tmp_path / "exported")!r}}}),
        (ssl_vit.pretrain, {{"recipe": "mae", "out": {str(tmp_path)!r}}}),
    ):
        named = {{}} if function is ssl_vit.pretrain else {{"init": init}}
        thread = threading.Thread(target=call, args=(function,), kwargs=named | options)
        thread.start()
        thread.join()
print(refused, {{"torchvision", "timm", "transformers"}} & sys.modules.keys())
"""
    done = python("-c", script)
    assert done.stdout.splitlines()[-1] == f"{[True] * 5} set()", done.stderr
