"""The end of a run prints what to do next, as commands that run as printed; and what initial weights
have seen of the images that a run is measured on."""

import itertools
import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from helpers.images import put, two_classes
from helpers.launching import launch, outcome
from helpers.options import LOADED, PROBE, SHORT, TINY, TUNE, altered
from ssl_vit.data import sources
from ssl_vit.jobs import cli, draw_figures, seen_images
from ssl_vit.pages import run_page
from ssl_vit.recipe.load import resolve
from ssl_vit.runs import seen_text

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
        put(tmp_path / "IMAGES" / "2025" / f"2025-01-0{day}", 8)
    _, printed = pretrained(tmp_path / "runs", capsys, f"data.path={tmp_path / 'IMAGES'}")
    (warning,) = [line for line in printed.splitlines() if "folders are taken for" in line]
    assert "dates or numbers" in warning and "data.labels=false" in warning


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
    lines = [one for one in capsys.readouterr().out.splitlines() if "was trained on" in one]
    printed, *beside = lines  # the number, at the end
    assert len(beside) == ("with their labels" in line)
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
    line = f"which images {run} was trained on is not known: its images have changed since"
    assert line in printed and "was trained on none" not in printed


def test_what_stands_beside_a_number_on_images_whose_labels_were_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """At the terminal after the number, in result.json and, for scripts, in what they get."""
    place = class_folder(tmp_path / "IMAGES")
    more = ["recipe=supervised", "eval.test=false", "data.validation=0.04"]
    run, _ = pretrained(tmp_path / "runs", capsys, f"data.path={place}", *more)
    words = [*PROBE, "probe.measures=[knn]", f"init={run}", f"out={tmp_path}/runs", "name=probed"]
    words = altered([one for one in words if not one.startswith(("probe.shots", "probe.steps"))])
    cli.evaluate([*words, "data.test=0.2"])
    lines = capsys.readouterr().out.splitlines()
    number, guess, caution = lines[-3:]
    assert number.startswith("knn ") and "6 test images (95% interval" in number
    assert guess.split(maxsplit=2)[2] == "50.0% (guessing, 2 classes)"
    assert (
        caution.startswith("caution ")
        and "5 test and 1 held-out images, with their labels" in caution
    )
    result = json.loads((tmp_path / "runs" / "probed" / "result.json").read_text())
    (seen,) = result["seen"]
    assert (seen["run"], seen["of"]["test"], seen["labels"]["test"]) == ("first", 6, 5)
    assert result["classes"] == 2


def test_images_elsewhere_are_said_not_to_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """At another size the first lines say both."""
    place = class_folder(tmp_path / "IMAGES")
    run, _ = pretrained(tmp_path / "runs", capsys, f"data.path={place}")
    copied = shutil.copytree(place, tmp_path / "COPY")
    whole = ["data.test=0.5", f"data.path={copied}", f"out={tmp_path}/runs", "name=copied"]
    cli.finetune([*TUNE, f"init={run}", *whole])
    printed = capsys.readouterr().out
    assert f"{run} was trained on 1" in printed and "is not known" not in printed
    (shutil.copytree(place, tmp_path / "OTHER") / "a" / "0.png").unlink()
    words = ["data.test=0.2", f"data.path={tmp_path}/OTHER", "data.size=32"]
    cli.finetune([*TUNE, f"init={run}", f"out={tmp_path}/runs", "name=tuned", *words])
    printed = capsys.readouterr().out
    assert "trained on images of 16 px; here they are 32 px (data.size=16" in printed
    (line,) = [one for one in printed.splitlines() if "is not known" in one]
    assert f"whether {run} was trained on test images is not known" in line


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
    assert f"which images {first} was trained on is not known" in printed


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


def test_what_a_run_saw_is_not_known_of_a_stream_nor_where_its_images_were_others(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    place = class_folder(tmp_path / "IMAGES")
    run, _ = pretrained(tmp_path / "runs", capsys, f"data.path={place}", "data.test=0.2")
    recipe = resolve([*TUNE, f"init={run}"])
    splits = sources.load(recipe.data, test=True)
    made = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(made.replace("stream: false", "stream: true"))
    (found,) = seen_images.seen_images(recipe, splits, {})
    assert found.unknown == seen_images.STREAM
    (run / "recipe.yaml").write_text(made.replace(str(place), str(tmp_path / "ELSEWHERE")))
    (run / "environment.json").unlink()
    assert seen_images.seen_images(recipe, splits, {}) == []
