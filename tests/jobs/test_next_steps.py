"""The end of a run prints what to do next, as commands that run as printed."""

import itertools
import json
import shlex
import sys
from pathlib import Path

import pytest

from helpers.images import put, two_classes
from helpers.launching import launch, outcome
from helpers.options import LOADED, SHORT, TINY, TUNE, altered
from ssl_vit.jobs import cli, draw_figures
from ssl_vit.pages import run_page

# So that a command takes seconds, not minutes
FASTER = {
    "evaluate": ["probe.steps=2", "probe.shots=[1]", *LOADED],
    "finetune": SHORT,
    "figures": ["figures=filters,positions"],
    "embed": ["compute.threads=1"],
    "report": [],
}
OF_ENCODER = ["evaluate", "finetune", "figures"]
OF_CLASSIFIER = ["figures", "embed", "report"]


def pretrained(
    out: Path, capsys: pytest.CaptureFixture, *more: str, name: str = "first"
) -> tuple[Path, str]:
    """A run's folder, and what it printed."""
    words = altered(TINY, *SHORT, "eval.every=2", f"out={out}", f"name={name}", *more)
    capsys.readouterr()
    cli.pretrain(words)
    return out / name, capsys.readouterr().out


def next_commands(printed: str) -> list[list[str]]:
    """The command after each line of `next`, as words."""
    lines = printed.splitlines()
    return [
        shlex.split(after) for line, after in itertools.pairwise(lines) if line.startswith("next ")
    ]


def tool(words: list[str]) -> str:
    return Path(words[1]).stem


def class_folder(place: Path) -> Path:
    for name in "ab":
        put(place / name, 15)
    return place


@pytest.mark.parametrize("kind", ["embedded", "splits"])
def test_the_printed_commands_run_as_printed_in_their_order(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    images = [] if kind == "embedded" else [f"data.path={two_classes(tmp_path / 'IMAGES')}"]
    run, printed = pretrained(tmp_path / "runs", capsys, *images)
    commands = next_commands(printed)
    assert list(map(tool, commands)) == OF_ENCODER
    fewer = {"evaluate": ["data.share=0.02"]} if kind == "embedded" else {}
    for words in commands:
        assert words[0] == sys.executable
    running = [
        launch(*words[1:], *FASTER[tool(words)], *fewer.get(tool(words), []), stderr=True)
        for words in commands
    ]
    codes, outputs = outcome(running)
    assert codes == [0] * len(commands), outputs
    assert (run / "figures" / "filters.png").exists()
    page = (run / run_page.PAGE).read_text()
    for words in commands:
        assert f"{Path(words[1])}" in page and "data.path=IMAGES" not in page


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
    figure = ["figures=image_map", f"data.path={place}", "data.validation=0.4"]
    draw_figures.main([f"init={run}", *figure, f"out={tmp_path}", "name=grey"])
    assert "labels      none; data.labels=true colours image_map" in capsys.readouterr().out
    draw_figures.main(
        [f"init={run}", *figure, "data.labels=true", f"out={tmp_path}", "name=coloured"]
    )
    assert "labels      names of folders, 2 classes" in capsys.readouterr().out


@pytest.mark.parametrize("init", ["scratch", "first"])
def test_a_run_that_was_trained_on_labels_is_looked_at_and_compared(
    init: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = [one for one in TINY if one.startswith(("model.", "data.size="))]
    if init == "first":
        pretrained(tmp_path / "runs", capsys)
        init, model = f"{tmp_path}/runs/first", []
    words = altered(TUNE, *model, "eval.test=false", f"init={init}", f"out={tmp_path}/runs")
    cli.finetune([*words, "data=shapes", "data.size=16", "name=tuned"])
    commands = next_commands(capsys.readouterr().out)
    wanted = OF_ENCODER if init == "scratch" else OF_CLASSIFIER
    assert list(map(tool, commands)) == wanted
    codes, outputs = outcome(
        [launch(*words[1:], *FASTER[tool(words)], stderr=True) for words in commands]
    )
    assert codes == [0] * len(commands), outputs
    page = (tmp_path / "runs" / "tuned" / "report.html").read_text()
    assert ("Training on labels" if init == "scratch" else "Fine-tuning on labels") in page


def test_another_share_for_testing_is_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    place = class_folder(tmp_path / "IMAGES")
    pretrained(tmp_path / "runs", capsys, f"data.path={place}", "data.test=0.2")
    with pytest.raises(SystemExit):
        pretrained(tmp_path / "runs", capsys, f"data.path={place}", "data.test=0.3")
    assert "data.test (0.2 there, 0.3 here)" in capsys.readouterr().err
