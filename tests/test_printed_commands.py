"""Commands that are printed to be typed, pasted into a shell; and those of SLURM's scripts. Paths
are as awkward as can be."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.slurm import stand_ins
from ssl_vit import formatting
from ssl_vit.config.operation import Log
from ssl_vit.config.records import check
from ssl_vit.config.records.study import Task
from ssl_vit.config.schema import Recipe
from ssl_vit.errors import UserError
from ssl_vit.hub import pull
from ssl_vit.jobs import cli
from ssl_vit.lab.lab_tools import Slurm
from ssl_vit.lab.reports import provenance
from ssl_vit.lab.studies import slurm_script
from ssl_vit.runs.folder import Run
from ssl_vit.runs.next_steps import next_steps

AWKWARD = "a b'c\"d $(touch gone) `touch gone` ;&|*"
SHOW = "import json, sys; print(json.dumps(sys.argv[1:]))"


def pasted(line: str, folder: Path) -> list[str]:
    """The words that a shell makes of a printed line, its first left out; nothing else has run."""
    (folder / "bin").mkdir(exist_ok=True)
    shown = folder / "bin" / "show"
    shown.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(SHOW)} "$@"\n')
    shown.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", f"{shown} {line}"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not (folder / "gone").exists()
    return json.loads(done.stdout)


def after(name: str, text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))[12:]


def test_what_a_finished_run_says_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    log = Log(trackers=["tensorboard"])
    run = Run(Recipe(out=str(tmp_path / AWKWARD), name="run", log=log))
    cli._conclude(run)
    text = capsys.readouterr().out
    assert pasted(after("curves", text), tmp_path)[1:] == [
        "-m",
        "tensorboard.main",
        f"--logdir={tmp_path / AWKWARD}",
    ]
    code = pasted(after("load", text), tmp_path)[2]
    names = []
    script = code.replace("import timm; ", "").replace("print(encoder.num_features)", "None")
    exec(
        script,
        {"timm": type("Timm", (), {"create_model": lambda name, pretrained: names.append(name)})},
    )
    assert names == [f"local-dir:{tmp_path / AWKWARD}/run/export"]


def test_what_to_do_with_a_run_next_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / AWKWARD / "run"
    steps = next_steps(folder, tmp_path / AWKWARD, Recipe())
    assert len(steps) == 3
    for step in steps:
        assert f"init={folder}" in pasted(step.command, tmp_path)


def test_an_error_that_says_what_to_type_can_be_pasted(tmp_path: Path) -> None:
    words = ["recipe=evaluate", f"init={AWKWARD}"]
    with pytest.raises(UserError) as caught:
        cli._check_pretrain(Recipe(objective="probe"), words)
    assert pasted(str(caught.value).partition("type ")[2], tmp_path) == [
        "python",
        *formatting.tool_command("evaluate"),
        *words,
    ]


def test_what_pull_says_can_be_pasted(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture
) -> None:
    out = str(tmp_path / AWKWARD)
    monkeypatch.setattr(pull, "pull", lambda place, where, name: Run(Recipe(out=where, name="run")))
    pull.main(["hf-hub:me/run", f"out={out}"])
    words = pasted(after("go on", capsys.readouterr().out), tmp_path)
    assert words[3:] == [f"recipe={out}/run/recipe.yaml", "name=run", f"out={out}"]


def test_the_commands_of_a_report_can_be_pasted(tmp_path: Path) -> None:
    options = ["recipe=finetune", f"data.path={AWKWARD}", "init={pretrain}"]
    place = {"name": "p", "part": "p", "tool": "finetune", "arm": "a", "seed": 0}
    task = check({**place, "values": {}, "needs": [], "options": options}, Task)
    block = provenance.commands([task])
    (command,) = block.lines
    tool = formatting.tool_command("finetune")
    assert pasted(command, tmp_path) == ["python", *tool, *options]


def test_a_tool_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (path,) = formatting.tool_command("report")
    assert Path(path).is_file()
    monkeypatch.chdir(formatting.ROOT)
    assert formatting.tool_command("report") == ["tools/report.py"]


@pytest.mark.parametrize("gpus", ["1", "2"])
def test_a_slurm_script_runs_nothing_of_a_folders_name(
    gpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working folder's name ends a line and begins another; the runs lie elsewhere."""
    here = tmp_path / "a\ntouch gone\n'$(touch gone)'"
    here.mkdir()
    stand_in = tmp_path / "tool.py"
    stand_in.write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    monkeypatch.setattr(formatting, "PROGRAM", [sys.executable, str(stand_in)])
    monkeypatch.chdir(here)
    words = ["recipe=study/gap", f"cifar10={AWKWARD}\ntouch gone"]
    (tmp_path / "bin").mkdir()
    resources = Slurm(gpus=gpus, options={"comment": "$(touch gone)' `touch gone`"})
    folder = tmp_path / "50% 'runs'"
    heads = slurm_script.heads("gap", "final", "0,2", folder, resources)
    text = slurm_script.script(heads, "final", words, folder, resources)
    found = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        ["bash", "-c", text],
        env=found | stand_ins(tmp_path / "bin"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == ["study", *words, "only=final", "index=2"]
    assert not list(tmp_path.rglob("gone"))
    (output,) = (line for line in text.splitlines() if line.startswith("#SBATCH --output="))
    assert shlex.split(output)[1] == f"--output={tmp_path}/50%% 'runs'/slurm/final-%a.txt"


@pytest.mark.parametrize(
    ("folder", "resources", "word"),
    [
        ("a\ntouch gone", Slurm(), "out="),
        ("a\\b", Slurm(), "out="),
        ("runs", Slurm(time="1:00\ntouch gone"), "slurm.time="),
        ("runs", Slurm(account="me\rtouch gone"), "slurm.account="),
        ("runs", Slurm(options={"comment": "a\ntouch gone"}), "slurm.options: comment="),
    ],
)
def test_what_cannot_stand_in_a_line_for_sbatch_is_refused(
    folder: str, resources: Slurm, word: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"launcher=slurm: {word}") as caught:
        slurm_script.heads("gap", "final", "0", tmp_path / folder, resources)
    assert len(str(caught.value).splitlines()) == 1
