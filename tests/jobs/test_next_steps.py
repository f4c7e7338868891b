"""The end of a run prints what to do next, as commands that run as printed."""

import json
import shlex
import sys
from pathlib import Path

import pytest

import ssl_vit
from helpers.images import put, two_classes
from helpers.launching import launch, outcome
from helpers.options import LOADED, SHORT, TINY, TUNE, altered
from ssl_vit.errors import UserError
from ssl_vit.formatting import option_text
from ssl_vit.jobs import cli
from ssl_vit.pages import run_page
from ssl_vit.recipe import recipe_files
from ssl_vit.runs.next_steps import next_steps

# So that a command takes seconds, not minutes
FASTER = {
    "evaluate": ["probe.steps=2", "probe.shots=[1]", *LOADED],
    "finetune": SHORT,
    "figures": ["figures=filters,positions"],
    "embed": ["compute.threads=1"],
    "report": [],
}
ENDS = ("finished ", "held out ", "verdict ")
NOT_COMPARED = "fine-tuning not compared: "


def pretrained(
    out: Path, capsys: pytest.CaptureFixture, *more: str, name: str = "first"
) -> tuple[Path, str]:
    """A run's folder, and what it printed."""
    words = altered(TINY, *SHORT, "eval.every=2", f"out={out}", f"name={name}", *more)
    capsys.readouterr()
    cli.pretrain(words)
    return out / name, capsys.readouterr().out


def next_commands(run: Path) -> list[list[str]]:
    """The commands of a run's page, as words."""
    steps = next_steps(run, run.parent, recipe_files.read(run / "recipe.yaml"))
    return [shlex.split(step.command) for step in steps]


def tool(words: list[str]) -> str:
    return Path(words[1]).stem


def class_folder(place: Path) -> Path:
    for name in "ab":
        put(place / name, 15)
    return place


@pytest.mark.parametrize("kind", ["embedded", "splits"])
def test_the_commands_run_as_they_stand_in_their_order(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    images = [] if kind == "embedded" else [f"data.path={two_classes(tmp_path / 'IMAGES')}"]
    run, _ = pretrained(tmp_path / "runs", capsys, *images)
    worth, *commands = next_commands(run)
    assert list(map(tool, [worth, *commands])) == ["study", "evaluate", "finetune"]
    fewer = {"evaluate": ["data.share=0.02"]} if kind == "embedded" else {}
    for words in commands:
        assert words[0] == sys.executable
    running = [
        launch(*words[1:], *FASTER[tool(words)], *fewer.get(tool(words), []), stderr=True)
        for words in commands
    ]
    codes, outputs = outcome(running)
    assert codes == [0] * len(commands), outputs
    page = (run / run_page.PAGE).read_text()
    for words in commands:
        assert f"{Path(words[1])}" in page and "data.path=IMAGES" not in page


def test_the_study_that_answers_is_of_the_same_images_and_network(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Its options are known there: it gets as far as counting these images, which are too few."""
    place = two_classes(tmp_path / "IMAGES")
    run, printed = pretrained(tmp_path / "runs", capsys, f"data.path={place}")
    (line,) = [line for line in printed.splitlines() if NOT_COMPARED in line]
    words = shlex.split(line.partition(NOT_COMPARED)[2])
    assert words == next_commands(run)[0]
    assert "objective=mpp" in words and f"data.path={place}" in words
    with pytest.raises(UserError, match="labelled images"):
        ssl_vit.study(words[2:])


def test_the_end_of_a_run_says_what_was_compared_and_what_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """In at most eight lines; without labels that features were not compared, and how they are."""
    for more, features in ([], "k-NN "), (["data.labels=false"], "features    not compared"):
        name = "with" if not more else "without"
        words = ["eval.knn=true", "eval.images=40", *more]
        _, printed = pretrained(tmp_path / "runs", capsys, *words, name=name)
        lines = printed.splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("finished "))
        end = lines[start:]
        assert len(end) <= 8
        for begins in (*ENDS, features):
            assert len([line for line in end if line.startswith(begins)]) == 1, begins
        assert NOT_COMPARED in end[-1] and end[0].endswith("/report.html")
        assert not any("helps fine-tuning" in line for line in end)


def test_the_end_of_an_evaluation_with_six_measures_is_eight_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run, _ = pretrained(tmp_path / "runs", capsys)
    shots = ["probe.measures=[few_shot,linear,knn]", "probe.shots=[1,2,3,4]", "data.share=0.02"]
    faster = ["probe.steps=2", "probe.trials=1", "probe.neighbors=3", *LOADED]
    words = ["recipe=evaluate", f"init={run}", "data.size=16", *shots, *faster]
    cli.evaluate([*words, f"out={tmp_path}/runs", "name=look"])
    _, start, printed = capsys.readouterr().out.partition("finished ")
    finished, *measures, verdict = f"{start}{printed}".splitlines()
    assert finished.endswith("/look/report.html") and len(measures) == 6
    assert all("fresh weights" in line and "guessing" in line for line in measures)
    assert sum("pixels" in line for line in measures) == 1
    assert verdict.startswith("verdict ") and NOT_COMPARED in verdict


def test_a_fine_tuned_figure_stands_beside_scratch_without_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    place = two_classes(tmp_path / "IMAGES")
    run, _ = pretrained(tmp_path / "runs", capsys, f"data.path={place}")
    model = [one for one in TINY if one.startswith(("model.", "data.size="))]
    tune = [*TUNE, f"data.path={place}", "data.size=16", f"out={tmp_path}/runs"]

    def scratch_line(*words: str) -> str:
        capsys.readouterr()
        cli.finetune(altered(tune, *words))
        printed = capsys.readouterr().out.splitlines()
        assert not any(line.startswith("verdict ") for line in printed)
        return next(line for line in printed if line.startswith("scratch "))

    alone = scratch_line(f"init={run}", "name=tuned")
    assert "whether pre-training helped is not known; " in alone and "study/worth" in alone
    pool = recipe_files.read(tmp_path / "runs" / "tuned" / "recipe.yaml").pool
    capsys.readouterr()
    values = recipe_files.read(tmp_path / "runs" / "tuned" / "recipe.yaml").values()
    same = [f"{key}={option_text(values[key])}" for key in ("data.mean", "data.std")]
    cli.pretrain(
        altered(tune, *model, *same, "init=scratch", "name=scratch", f"supervised.pool={pool}")
    )
    both = scratch_line(f"init={run}", "name=again", "seed=1")
    assert "is not known, as training from scratch had no tuning and less compute: top1 " in both
    assert " (scratch: 1 try, " in both and " with its pre-training)" in both


def test_names_of_folders_that_may_be_no_classes_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for day in range(1, 4):
        put(tmp_path / "IMAGES" / "2025" / f"2025-01-0{day}", 4)
    _, printed = pretrained(tmp_path / "runs", capsys, f"data.path={tmp_path / 'IMAGES'}")
    (warning,) = [line for line in printed.splitlines() if "folders are taken for" in line]
    assert "half of them have at most 4 images" in warning and "data.labels=false" in warning


def test_labels_that_are_turned_off_are_said_to_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    place = class_folder(tmp_path / "IMAGES")
    more = (f"data.path={place}", "data.labels=false", "data.test=0.2")
    run, printed = pretrained(tmp_path / "runs", capsys, *more)
    assert "labels: none, data.labels=false" in printed
    assert json.loads((run / "environment.json").read_text())["classes"] == []


def test_folders_are_said_to_be_taken_for_labels_and_are_no_classes_of_a_run_without(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    place = class_folder(tmp_path / "IMAGES")
    run, printed = pretrained(tmp_path / "runs", capsys, f"data.path={place}")
    assert "labels: names of folders, 2 classes: a, b; data.labels=false" in printed
    assert json.loads((run / "environment.json").read_text())["classes"] == []


def test_a_run_that_was_fine_tuned_is_looked_at_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pretrained(tmp_path / "runs", capsys)
    init = f"init={tmp_path}/runs/first"
    words = altered(TUNE, "eval.test=false", init, f"out={tmp_path}/runs")
    cli.finetune([*words, "data=shapes", "data.size=16", "name=tuned"])
    commands = next_commands(tmp_path / "runs" / "tuned")
    assert list(map(tool, commands)) == ["figures", "embed", "report"]
    codes, outputs = outcome(
        [launch(*words[1:], *FASTER[tool(words)], stderr=True) for words in commands]
    )
    assert codes == [0] * len(commands), outputs
    page = (tmp_path / "runs" / "tuned" / "report.html").read_text()
    assert "Fine-tuning on labels" in page


def test_another_share_for_testing_is_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    place = class_folder(tmp_path / "IMAGES")
    pretrained(tmp_path / "runs", capsys, f"data.path={place}", "data.test=0.2")
    with pytest.raises(SystemExit):
        pretrained(tmp_path / "runs", capsys, f"data.path={place}", "data.test=0.3")
    assert "data.test (0.2 there, 0.3 here)" in capsys.readouterr().err
