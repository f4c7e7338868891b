"""What starts from a run is measured on that run's images, unless others are named."""

import json
import shutil
from pathlib import Path

import pytest

import ssl_vit
from helpers.images import put, two_classes
from helpers.options import LOADED, PROBE, SHORT, TINY, TUNE, altered
from ssl_vit.jobs import cli, draw_figures
from ssl_vit.lab import plan as plan_tool
from ssl_vit.lab.study import check, read, tasks
from ssl_vit.recipe.load import resolve


def pretrained(images: Path, out: Path, *more: str) -> Path:
    words = altered(TINY, *SHORT, "eval.every=2", f"data.path={images}", f"out={out}", *more)
    ssl_vit.pretrain(words)
    return next(path for path in out.iterdir() if f"name={path.name}" in words)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """IMAGES with train/ and test/, two classes each."""
    return two_classes(tmp_path_factory.mktemp("labelled") / "IMAGES")


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pre-trained on them, read in a way of its own."""
    more = ("name=mine", "data.validation=0.25", "data.flip=false")
    return pretrained(images, tmp_path_factory.mktemp("runs"), *more)


@pytest.fixture
def out(tmp_path: Path) -> str:
    return f"out={tmp_path}/runs"


def refusal(tool, words: list[str], capsys: pytest.CaptureFixture) -> str:
    with pytest.raises(SystemExit):
        tool(words)
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_fine_tuning_uses_the_images_of_the_run_it_starts_from(
    run: Path, images: Path, out: str, capsys: pytest.CaptureFixture
) -> None:
    cli.finetune([*TUNE, f"init={run}", out, "name=tuned"])
    first = capsys.readouterr().out.splitlines()[0]
    assert f"those of init={run}: {images}" in first
    tuned = ssl_vit.load_run(f"{out[4:]}/tuned")
    data = tuned.recipe.data
    assert (data.path, data.name, data.size, data.validation) == (str(images), "IMAGES", 16, 0.25)
    assert data.flip  # an augmentation is the recipe's
    result = tuned.result()
    assert result is not None and result["metrics"]["top1"]["n"] == 6
    before = json.loads((run / "environment.json").read_text())
    assert tuned.environment()["data"]["train"] == before["data"]["train"]


def test_an_evaluation_uses_the_images_of_the_run_that_it_measures(
    run: Path, images: Path, out: str, capsys: pytest.CaptureFixture
) -> None:
    for number, place in enumerate((run, run / "export")):
        cli.evaluate([*PROBE, f"init={place}", out, f"name=e{number}"])
        assert f"those of init={place}: {images}" in capsys.readouterr().out.splitlines()[0]
        result = json.loads(Path(out[4:], f"e{number}", "result.json").read_text())
        assert {one["n"] for one in result["metrics"].values()} == {6}


def test_a_share_of_a_runs_images_stays_that_share(images: Path, tmp_path: Path, out: str) -> None:
    """The rest may be held out, or have been trained on."""
    half = pretrained(images, tmp_path / "half", "name=half", "data.share=0.5")
    assert resolve([*TUNE, f"init={half}", out]).data.share == 0.5
    assert resolve([*TUNE, f"init={half}", "data.share=1", out]).data.share == 1


@pytest.mark.parametrize(
    "words, name",
    [
        (["recipe=finetune", "data=shapes"], "shapes"),
        (["recipe=finetune", "data.hub=somebody/birds"], "somebody--birds"),
        (["recipe=paper/finetune_cifar10"], "cifar10"),
        (["recipe=own.yaml", "own: {base: finetune, data: shapes}"], "shapes"),
        (["recipe=own.yaml", "own: {base: finetune, data.path: elsewhere, data.name: e}"], "e"),
        (["recipe=own.yaml", "own: {base: finetune}"], "IMAGES"),
        (["recipe=own.yaml", "own: {base: finetune, data.flip: false}"], "IMAGES"),
        (["recipe=finetune"], "IMAGES"),
        (["recipe=segment"], "IMAGES"),
        (["recipe=mpp"], "IMAGES"),
    ],
)
def test_images_that_are_named_are_those_that_are_meant(
    words: list[str], name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = [word.removeprefix("own: ") for word in words if word.startswith("own: ")]
    Path("own.yaml").write_text("".join(own))
    given = [word for word in words if not word.startswith("own: ")]
    recipe = resolve([*given, f"init={run}"], here=False)
    assert recipe.data.name == name
    if own:
        assert recipe.data.flip != ("data.flip" in own[0])


def test_a_recipe_file_that_names_its_first_weights_follows_their_images(
    run: Path, tmp_path: Path, images: Path
) -> None:
    (tmp_path / "own.yaml").write_text(f"base: finetune\ninit: {run}\n")
    assert resolve([f"recipe={tmp_path}/own.yaml"], here=False).data.path == str(images)


def test_a_run_goes_on_by_the_same_command_wherever_run_and_images_have_moved(
    images: Path, tmp_path: Path, out: str, capsys: pytest.CaptureFixture
) -> None:
    there = shutil.copytree(images, tmp_path / "there" / "IMAGES")
    first = pretrained(there, tmp_path / "first", "name=mine")
    words = [*TUNE, out, "name=tuned"]
    cli.finetune([*words, f"init={first}"])
    done = Path(out[4:], "tuned", "result.json").read_text()
    (tmp_path / "here").mkdir()
    here = shutil.move(there, tmp_path / "here" / "IMAGES")
    moved = Path(shutil.move(first, tmp_path / "moved"))
    recipe = (moved / "recipe.yaml").read_text()
    (moved / "recipe.yaml").write_text(recipe.replace(str(there), str(here)))
    capsys.readouterr()
    cli.finetune([*words, f"init={moved}"])
    assert Path(out[4:], "tuned", "result.json").read_text() == done
    Path(out[4:], "tuned", "result.json").unlink()
    cli.finetune([*words, f"init={moved}"])
    assert f"{here}" in capsys.readouterr().out.splitlines()[0]


def test_a_runs_images_that_are_gone_are_named_with_what_to_give(
    images: Path, tmp_path: Path, out: str, capsys: pytest.CaptureFixture
) -> None:
    there = shutil.copytree(images, tmp_path / "there" / "IMAGES")
    first = pretrained(there, tmp_path / "first", "name=mine")
    shutil.rmtree(there)
    line = refusal(cli.finetune, [*TUNE, out, f"init={first}"], capsys)
    assert f"data.path={there}: no such" in line and f"init={first}" in line
    assert "data.path= or data.hub=" in line
    # as a pulled run, whose recipe has no path
    recipe = (first / "recipe.yaml").read_text()
    (first / "recipe.yaml").write_text(recipe.replace(f"path: {there}", "path: null"))
    line = refusal(cli.evaluate, [*PROBE, out, f"init={first}"], capsys)
    assert "data=IMAGES lies nowhere yet" in line and "give data=" in line
    assert ssl_vit.load_encoder(first).patches == 16  # which reads no images


def test_a_run_on_images_without_labels_says_what_to_give(
    tmp_path: Path, out: str, capsys: pytest.CaptureFixture
) -> None:
    put(tmp_path / "flat", 12)
    flat = pretrained(tmp_path / "flat", tmp_path / "first", "name=flat")
    for tool, words in ((cli.finetune, TUNE), (cli.evaluate, PROBE)):
        line = refusal(tool, [*words, out, f"init={flat}"], capsys)
        assert "labels (a folder for each class) and test images" in line
        assert "eval.test=false" not in line, "labels are missing as well"
    line = refusal(cli.finetune, [*TUNE, out, f"init={flat}", "eval.test=false"], capsys)
    assert "no labels in its train split" in line and "data.path=" in line
    assert not any(Path(out[4:]).iterdir()), "a run that was refused leaves no folder"


def test_an_evaluation_without_test_images_says_what_the_run_had(
    tmp_path: Path, out: str, capsys: pytest.CaptureFixture
) -> None:
    for name in "ab":
        put(tmp_path / "IMAGES" / name, 12)
    first = pretrained(tmp_path / "IMAGES", tmp_path / "first", "name=mine", "data.test=0.25")
    for tool, words in ((cli.finetune, TUNE), (cli.evaluate, PROBE)):
        given = [*words, out, f"init={first}", f"data.path={tmp_path}/IMAGES"]
        line = refusal(tool, given, capsys)
        assert "data.test=test: no such split" in line
        assert f"init={first} had data.test=0.25" in line
        assert ("eval.test=false" in line) == (tool is cli.finetune)


def test_weights_that_do_not_say_their_images_are_said_to_be_measured_on_others(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    alone = shutil.copytree(run / "export", tmp_path / "alone")
    plan_tool.main(["recipe=finetune", f"init={alone}"])
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(f"warning: init={alone}: ") and "data=shapes is used" in first


def test_a_plan_is_of_the_images_of_the_run_it_would_start_from(
    run: Path, images: Path, capsys: pytest.CaptureFixture
) -> None:
    plan_tool.main(["recipe=finetune", f"init={run}"])
    text = capsys.readouterr().out
    assert f"those of init={run}: {images}" in text.splitlines()[0]
    plan_tool.main(["recipe=finetune", f"init={run}", "data=shapes"])
    assert "those of" not in capsys.readouterr().out


def test_figures_and_features_say_whose_images_they_are_of(
    run: Path, images: Path, out: str, capsys: pytest.CaptureFixture
) -> None:
    draw_figures.main([f"init={run}", "figures=filters", "images=4", out])
    text = capsys.readouterr().out
    assert f"those of init={run}: {images}" in text and "test images: 4 of 6" in text
    ssl_vit.embed([f"init={run}", "split=test", out, *LOADED[:2]])
    assert f"those of init={run}: {images}" in capsys.readouterr().out


def test_a_run_of_a_study_without_images_is_planned_on_those_of_the_run_it_starts_from(
    images: Path,
) -> None:
    runs = {
        "pretrain": {
            "tool": "pretrain",
            "options": {"recipe": "mpp", "data.path": str(images), "data.size": 32},
        },
        "probe": {"tool": "evaluate", "options": {"recipe": "evaluate", "init": "{pretrain}"}},
        "other": {
            "tool": "evaluate",
            "options": {"recipe": "evaluate", "init": "{pretrain}", "data": "shapes"},
        },
    }
    study = read.build({"title": "t", "runs": runs}, "study")
    planned = check.recipes(study, tasks.plan(study, {}, {}))
    data = {name.split("-")[0]: recipe.data for name, recipe in planned.items()}
    assert (data["probe"].path, data["probe"].size) == (str(images), 32)
    assert (data["other"].path, data["other"].name, data["other"].size) == (None, "shapes", 64)
