"""Commands that are printed to be typed, pasted into a shell; and those that SLURM is given. Paths
are as awkward as can be."""

import functools
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import ssl_vit
from helpers.launchers import Bench, process_command
from helpers.resolving import resolve
from helpers.slurm import stand_ins
from ssl_vit import formatting
from ssl_vit.errors import UserError
from ssl_vit.hub import pull
from ssl_vit.jobs import cli
from ssl_vit.lab.study import read
from ssl_vit.lab.study import tool as study_tool
from ssl_vit.lab.study.launch import LaunchOutcome, StudyJob
from ssl_vit.lab.study.options import LauncherEntry
from ssl_vit.lab.study.request import parse_request
from ssl_vit.lab.study.slurm import Slurm
from ssl_vit.recipe.given import Arguments, from_words
from ssl_vit.recipe.images import Data
from ssl_vit.recipe.load import Resolved
from ssl_vit.recipe.recipe_files import RECIPES, study_names
from ssl_vit.recipe.schema import Recipe
from ssl_vit.runs.folder import Run
from ssl_vit.runs.next_steps import next_steps, worth_command

AWKWARD = "a b'c\"d $(touch gone) `touch gone` ;&|*"
# Writes the words of an element of SLURM's array into the working folder
NOTE = """
import json
words = sys.argv[1:]
names, index = (word.partition("=")[2] for word in words[-2:])
Path(f"{names.split('/')[int(index)]}.json").write_text(json.dumps(words))
"""
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


def test_what_to_do_with_a_run_next_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / AWKWARD / "run"
    data = Data(path=str(tmp_path / AWKWARD))
    worth, *others = next_steps(folder, tmp_path / AWKWARD, Recipe(data=data))
    assert f"data.path={data.path}" in pasted(worth.command, tmp_path)
    assert len(others) == 2
    for step in others:
        assert f"init={folder}" in pasted(step.command, tmp_path)


def test_the_study_of_a_named_data_set_names_no_second_place(tmp_path: Path) -> None:
    """Its row has a place on the Hub, which data.path= replaces."""
    words = ["data=cifar10", f"data.path={tmp_path}", "model=vit_p8"]
    command = worth_command(made := resolve(["recipe=mpp", *words]), made)
    assert pasted(command, tmp_path)[-len(words) - 2 :] == [
        "recipe=study/worth",
        "objective=mpp",
        *words,
    ]


def test_no_study_is_named_where_none_answers() -> None:
    """Of joint training, which learns labels itself; of images without labels it has a place to be
    filled in."""
    made = resolve(["recipe=joint"])
    assert worth_command(made, made) == ""
    made = resolve(["recipe=mpp", "data.labels=false"])
    steps = next_steps(Path("runs/mpp"), Path("runs"), made, labelled=False)
    places = ["data.path=THESE_AND_LABELLED_IMAGES", *["data.path=LABELLED_IMAGES"] * 2]
    for step, place in zip(steps, places, strict=True):  # of the size that was trained
        assert f" {place} data.size={made.data.size} " in f"{step.command} "


def test_an_error_that_says_what_to_type_can_be_pasted(tmp_path: Path) -> None:
    words = ["recipe=evaluate", f"init={AWKWARD}"]
    with pytest.raises(UserError) as caught:
        cli.PRETRAIN.check(Resolved(Recipe(objective="probe"), from_words(words)))
    assert pasted(str(caught.value).partition("Type ")[2], tmp_path) == shlex.split(
        formatting.typed_command("evaluate", *words)
    )


def test_what_pull_says_can_be_pasted(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture
) -> None:
    out = str(tmp_path / AWKWARD)
    monkeypatch.setattr(pull, "pull", lambda place, where, name: Run(Recipe(out=where, name="run")))
    pull.main(["hf-hub:me/run", f"out={out}"])
    words = pasted(after("resume", capsys.readouterr().out), tmp_path)
    assert words[3:] == [f"recipe={out}/run/recipe.yaml", "name=run", f"out={out}"]


def test_what_a_study_says_next_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    class Nothing:
        """A launcher of nothing."""

        def check(self, job: StudyJob) -> None:
            pass

        def start(self, job: StudyJob) -> LaunchOutcome:
            return LaunchOutcome([])

    monkeypatch.setitem(study_tool.LAUNCHERS, "local", LauncherEntry("of_the_test:Nothing", True))
    monkeypatch.setitem(sys.modules, "of_the_test", SimpleNamespace(Nothing=Nothing))
    out = tmp_path / AWKWARD
    study_tool.study(Arguments(["recipe=study/gap", f"out={out}"]))
    words = pasted(after("next", capsys.readouterr().out), tmp_path)
    assert words == shlex.split(formatting.typed_command("report", out / "gap"))


@pytest.mark.parametrize("name", study_names())
def test_the_next_step_of_a_study_file_is_a_command_that_runs(name: str) -> None:
    """As far as the images or the encoder that the user fills in."""
    step = read.read(RECIPES / f"{name}.yaml").report.next
    if step:
        tool, *words = shlex.split(step.command)
        with pytest.raises(UserError, match=r"THESE_AND_LABELLED_IMAGES|ENCODER|TASKS"):
            getattr(ssl_vit, tool)(words)


@pytest.mark.parametrize(
    "arguments",
    [
        Arguments(["recipe=study/gap", "seeds=1", "name=other", "--check"]),
        Arguments(["recipe=mpp", "data.size=32", "sweep", "corruption.rate=0.3,0.5", "seeds=2"]),
        Arguments([], [("recipe", "mpp"), ("sweep", {"optim.betas": [[0.9, 0.95], [0.9, 0.99]]})]),
    ],
)
def test_the_words_that_repeat_a_study_give_the_same_study(arguments: Arguments) -> None:
    made = parse_request(arguments)
    again = parse_request(Arguments([*made.command_words]))
    assert (again.study, again.tasks) == (made.study, made.tasks)


def test_texts_with_commas_are_repeated_whole() -> None:
    """A sweep from Python has no commas between its values."""
    paths = ["a,b", "c]", 'd"e,', "[f,g]", "h i", Path("j,k"), "l"]
    sweep = {"data.path": paths, "optim.lr": [0.1, 0.2]}
    made = parse_request(Arguments([], [("recipe", "mpp"), ("check", True), ("sweep", sweep)]))
    again = parse_request(Arguments([*made.command_words, "--check"]))
    assert (again.study, again.tasks) == (made.study, made.tasks)
    axis = again.study.axes["data.path"].values()
    assert [runs["pretrain"].options["data.path"] for runs in axis] == [*map(str, paths)]


def test_a_tool_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (path,) = formatting.tool_command("report")
    assert Path(path).is_file()
    monkeypatch.chdir(formatting.ROOT)
    assert formatting.tool_command("report") == ["tools/report.py"]


@pytest.mark.parametrize("gpus", ["1", "2"])
def test_slurm_runs_nothing_of_a_folders_name(
    gpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the runs' and of the working folder each have a line, quotes and commands; what
    a preview prints is what is submitted."""
    for name in [name for name in os.environ if name.startswith("SBATCH_")]:
        monkeypatch.delenv(name)
    here, folder = (tmp_path / f"{name}\ntouch gone\n50%a '$(touch gone)'" for name in "ab")
    (tmp_path / "bin").mkdir()
    for place in (here, folder):
        place.mkdir()
    for name, value in (stand_ins(tmp_path / "bin") | {"RUNS": "1"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(here)
    bench = Bench(folder)
    bench.tool.write_text(f"import sys\nfrom pathlib import Path\n{NOTE}")
    comment = "--comment=$(touch gone)' `touch gone`\ntouch gone"
    words = (f"cifar10={AWKWARD}\ntouch gone", f"out={folder}")
    job = replace(
        bench.job, words=words, slurm=f"--gpus={gpus} {shlex.quote(comment)}", parallel=None
    )
    stand_in = functools.partial(process_command, bench.tool)
    monkeypatch.setattr("ssl_vit.lab.study.slurm.process_command", stand_in)
    launcher = Slurm()
    # in order, each with the number of the jobs before it in place of {RUN}
    shown = [line.removeprefix("would run   ") for line in launcher.preview(job)]
    launcher.start(job)
    noted = {path.name: json.loads(path.read_text()) for path in here.glob("*.json")}
    names = [name for name, task in job.tasks.items() if task.run == "final"]
    only = f"only={'/'.join(names)}"
    assert noted[f"{names[2]}.json"] == ["study", *words, only, "index=2"]
    assert not list(tmp_path.rglob("gone"))
    assert (job.folder / "slurm" / "final-2.txt").read_text() == ""
    calls = tmp_path / "bin" / "calls.txt"
    given = calls.read_text()
    calls.unlink()
    subprocess.run(["bash", "-euc", "\n".join(shown)], check=True)
    number = r"'?--dependency=[^\s']+'?"
    without_numbers = [re.sub(number, "", text) for text in (given, calls.read_text())]
    assert without_numbers[0] == without_numbers[1]
    assert not list(tmp_path.rglob("gone"))
