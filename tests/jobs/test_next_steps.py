"""The end of a run prints what to do next, as commands that run as printed; and what first weights
have seen of the images that a run is measured on."""

import itertools
import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import ssl_vit
from helpers.images import put, two_classes
from helpers.launching import launch, outcome
from helpers.options import PROBE, SHORT, TINY, TUNE, altered
from ssl_vit.config.records.run import Environment
from ssl_vit.config.resolve import resolve
from ssl_vit.data import sources
from ssl_vit.jobs import cli, draw_figures, seen_images
from ssl_vit.pages import run_page
from ssl_vit.runs import seen_text
from ssl_vit.runs.next_steps import next_steps

# So that a command takes seconds, not minutes
FASTER = {
    "evaluate": [one for one in PROBE if not one.startswith("recipe=")],
    "finetune": ["log.tensorboard=false", *SHORT],
    "figures": ["figures=filters,positions"],
    "embed": ["compute.threads=1"],
}
EVERY = ["evaluate", "finetune", "figures", "embed"]


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


def photos(place: Path) -> Path:
    put(place / "all", 24)
    return place


@pytest.mark.parametrize("kind", ["embedded", "splits", "classes", "photos"])
def test_the_printed_commands_run_as_printed_in_their_order(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    make = {"splits": two_classes, "classes": class_folder, "photos": photos}
    images = [] if kind == "embedded" else [f"data.path={make[kind](tmp_path / 'IMAGES')}"]
    run, printed = pretrained(tmp_path / "runs", capsys, *images)
    commands = next_commands(printed)
    tools = list(map(tool, commands))
    assert tools == (EVERY if kind != "photos" else ["figures", "embed"])
    for words in commands:
        assert words[0] == sys.executable
        shares = [word for word in words if word.startswith("data.test=")]
        is_split = tool(words) in ("evaluate", "finetune") and kind == "classes"
        assert shares == (["data.test=0.2"] if is_split else [])
    running = [launch(*words[1:], *FASTER[tool(words)], stderr=True) for words in commands]
    codes, outputs = outcome(running)
    assert codes == [0] * len(commands), outputs
    assert (run / "figures" / "filters.png").exists()
    page = (run / run_page.PAGE).read_text()
    for words in commands:
        assert f"{Path(words[1])}" in page and "data.path=IMAGES" not in page
    if kind == "classes":
        (tuned,) = run.parent.glob("finetune-*/result.json")
        assert json.loads(tuned.read_text())["metrics"]["top1"]["n"] == 6


def test_nothing_is_evaluated_on_labels_that_are_turned_off(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    place = class_folder(tmp_path / "IMAGES")
    more = (f"data.path={place}", "data.labels=false", "data.test=0.2")
    run, printed = pretrained(tmp_path / "runs", capsys, *more)
    assert "labels: none, data.labels=false" in printed
    assert list(map(tool, next_commands(printed))) == ["figures", "embed"]
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


def test_runs_of_earlier_versions_are_taken_to_have_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run, _ = pretrained(tmp_path / "runs", capsys)
    recipe = ssl_vit.load_run(str(run)).recipe
    found = list(next_steps(run, Path("runs"), recipe, Environment()))
    assert [tool(shlex.split(step.command)) for step in found] == EVERY
    assert not any("data.test=" in step.command or "out=" in step.command for step in found)
    measured = resolve(["recipe=evaluate", f"init={run}"])
    assert not list(next_steps(run, Path("runs"), measured, Environment())), "it made no encoder"


@pytest.mark.parametrize(
    ("before", "line"),
    [
        (["data.test=0.2"], "was trained on none of the test and held-out images"),
        ([], "test and 1 held-out images, without labels"),
        (["recipe=supervised", "eval.test=false"], "test and 1 held-out images, with their labels"),
    ],
)
def test_fine_tuning_says_which_of_its_images_pre_training_has_seen(
    before: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    place = class_folder(tmp_path / "IMAGES")
    run, _ = pretrained(
        tmp_path / "runs", capsys, f"data.path={place}", "data.validation=0.04", *before
    )
    share = [] if "data.test=0.2" in before else ["data.test=0.2"]  # which follows init=
    cli.finetune([*TUNE, f"init={run}", f"out={tmp_path}/runs", "name=tuned", *share])
    (printed,) = [one for one in capsys.readouterr().out.splitlines() if "was trained on" in one]
    assert line in printed and str(run) in printed
    assert printed.lstrip().startswith("warning:") == ("with their labels" in line)


def test_what_a_run_has_seen_of_images_that_have_changed_since_cannot_be_told(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    place = class_folder(tmp_path / "IMAGES")
    run, _ = pretrained(tmp_path / "runs", capsys, f"data.path={place}", "data.test=0.2")
    image = min((place / "a").iterdir())
    image.write_bytes(max((place / "b").iterdir()).read_bytes())
    cli.finetune([*TUNE, f"init={run}", f"out={tmp_path}/runs", "name=tuned"])
    printed = capsys.readouterr().out
    line = f"which images {run} was trained on cannot be told: its images have changed since"
    assert line in printed and "was trained on none" not in printed


def test_a_run_that_is_gone_does_not_silence_what_is_known_of_those_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    more = [f"data.path={class_folder(tmp_path / 'IMAGES')}", "data.test=0.2"]
    first, _ = pretrained(tmp_path / "runs", capsys, *more)
    second, _ = pretrained(tmp_path / "runs", capsys, *more, f"init={first}", name="second")
    shutil.rmtree(first)
    cli.finetune([*TUNE, f"init={second}", f"out={tmp_path}/runs", "name=tuned"])
    printed = capsys.readouterr().out
    assert f"{second} was trained on none of the test and held-out images" in printed
    assert f"which images {first} was trained on cannot be told" in printed


def test_of_images_that_are_too_many_or_not_measured_nothing_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is measured on nothing was told to have seen "none of the  images"."""
    place = class_folder(tmp_path / "IMAGES")
    run, _ = pretrained(tmp_path / "runs", capsys, f"data.path={place}", "data.test=0.2")
    recipe = resolve([*TUNE, f"init={run}"])
    splits = sources.load(recipe.data, test=True)
    line = f"{run} was trained on none of the test and held-out images"
    assert seen_text.lines(seen_images.seen_images(recipe, splits, {})) == [line]
    monkeypatch.setattr(seen_images, "MOST", len(splits.train) - 1)
    assert seen_images.seen_images(recipe, splits, {}) == []
    monkeypatch.undo()
    recipe.data.validation = 0.0
    assert seen_images.seen_images(recipe, splits._replace(test=None), {}) == []


def test_another_share_for_testing_is_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    place = class_folder(tmp_path / "IMAGES")
    pretrained(tmp_path / "runs", capsys, f"data.path={place}", "data.test=0.2")
    with pytest.raises(SystemExit):
        pretrained(tmp_path / "runs", capsys, f"data.path={place}", "data.test=0.3")
    assert "data.test (0.2 there, 0.3 here)" in capsys.readouterr().err
