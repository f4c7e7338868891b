"""What starts from a run is measured on that run's images, unless others are named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import ssl_vit
from helpers.hub_runs import refused
from helpers.images import put, two_classes
from helpers.options import LOADED, PROBE, SHORT, TINY, TUNE, altered
from helpers.resolving import resolve, resolved
from helpers.runs import result, run
from ssl_vit.jobs import draw_figures
from ssl_vit.lab import plan as plan_tool
from ssl_vit.lab.study import check, read, tasks
from ssl_vit.recipe.given import Given
from ssl_vit.recipe.load import Resolved
from ssl_vit.recipe.notices import crop_notice, size_notice

PRETRAINED = altered(TINY, *SHORT, "eval.every=2", "name=mine")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """IMAGES with train/ and test/, two classes each."""
    return two_classes(tmp_path_factory.mktemp("labelled") / "IMAGES")


@pytest.fixture(scope="module")
def mine(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was pre-trained on them, read in a way of its own."""
    more = ("data.validation=0.25", "data.flip=false")
    out = tmp_path_factory.mktemp("runs")
    return run([*PRETRAINED, *more, f"data.path={images}", f"out={out}"]).folder


@pytest.fixture
def out(tmp_path: Path) -> str:
    return f"out={tmp_path}/runs"


def say(run_folder: Path, **data: Any) -> Path:
    """Give a run's recipe other values of data."""
    path = run_folder / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text())
    recipe["data"] |= data
    path.write_text(yaml.safe_dump(recipe))
    return run_folder


def refusal(tool, *words: str) -> str:
    return refused(tool, [*words])


def test_fine_tuning_uses_the_images_of_the_run_it_starts_from(
    mine: Path, images: Path, out: str, capsys: pytest.CaptureFixture
) -> None:
    made = ssl_vit.finetune([*TUNE, f"init={mine}", out, "name=tuned"])
    assert f"{images}, the images of init={mine}" in capsys.readouterr().out.splitlines()[0]
    data = ssl_vit.load_run(made.folder).recipe.data
    assert (data.path, data.name, data.size, data.validation) == (str(images), "IMAGES", 16, 0.25)
    assert data.flip  # an augmentation is the recipe's
    assert made.metrics["top1"].n == 6
    was, now = (json.loads((at / "environment.json").read_text()) for at in (mine, made.folder))
    assert now["data"]["train"] == was["data"]["train"]


@pytest.mark.parametrize("tool", ["evaluate", "embed", "figures", "plan"])
def test_every_tool_says_that_it_takes_the_images_of_the_run(
    tool: str, mine: Path, images: Path, out: str, capsys: pytest.CaptureFixture
) -> None:
    init = f"init={mine}/export" if tool == "evaluate" else f"init={mine}"
    {
        "evaluate": lambda: ssl_vit.evaluate([*PROBE, init, out]),
        "embed": lambda: ssl_vit.embed([init, "split=test", out, *LOADED[:2]]),
        "figures": lambda: draw_figures.main([init, "figures=filters", "images=4", out]),
        "plan": lambda: plan_tool.main(["recipe=finetune", init]),
    }[tool]()
    assert f"{images}, the images of {init}" in capsys.readouterr().out


def test_a_share_of_a_runs_images_stays_that_share(mine: Path, tmp_path: Path) -> None:
    """The rest may be held out, or have been trained on."""
    half = say(shutil.copytree(mine, tmp_path / "half"), share=0.5)
    assert resolve([*TUNE, f"init={half}"]).data.share == 0.5
    assert resolve([*TUNE, f"init={half}", "data.share=1"]).data.share == 1


NAMED = """
recipe=finetune data=shapes -> shapes
recipe=finetune data.hub=somebody/birds -> somebody--birds
recipe=paper/finetune_cifar10 -> cifar10
recipe=own.yaml -> shapes -> {base: finetune, data: shapes}
recipe=own.yaml -> e -> {base: finetune, data.path: elsewhere, data.name: e}
recipe=own.yaml -> IMAGES -> {base: finetune, data.flip: false}
recipe=finetune -> IMAGES
recipe=segment -> IMAGES
recipe=mpp -> IMAGES
"""


@pytest.mark.parametrize("line", NAMED.split("\n")[1:-1])
def test_images_that_are_named_are_those_that_are_meant(
    line: str, mine: Path, tmp_path: Path, monkeypatch
) -> None:
    """By words, or by a recipe file, which stands last."""
    monkeypatch.chdir(tmp_path)
    words, name, *own = line.split(" -> ")
    Path("own.yaml").write_text("".join(own))
    recipe = resolve([*words.split(), f"init={mine}"], here=False)
    assert recipe.data.name == name
    if "data.flip" in line:
        assert not recipe.data.flip


def test_a_recipe_file_that_names_its_first_weights_follows_their_images(
    mine: Path, tmp_path: Path, images: Path
) -> None:
    (tmp_path / "own.yaml").write_text(f"base: finetune\ninit: {mine}\n")
    assert resolve([f"recipe={tmp_path}/own.yaml"], here=False).data.path == str(images)


def test_a_run_goes_on_by_the_same_command_wherever_run_and_images_have_moved(
    mine: Path, images: Path, tmp_path: Path, out: str, capsys: pytest.CaptureFixture
) -> None:
    words = [*TUNE, out, "name=tuned"]
    folder = ssl_vit.finetune([*words, f"init={mine}"]).folder
    done = result(folder)
    here = shutil.copytree(images, tmp_path / "here" / "IMAGES")
    moved = say(shutil.copytree(mine, tmp_path / "moved"), path=str(here))
    capsys.readouterr()
    ssl_vit.finetune([*words, f"init={moved}"])
    assert result(folder) == done
    (folder / "result.json").unlink()
    capsys.readouterr()
    ssl_vit.finetune([*words, f"init={moved}"])
    assert f"{here}" in capsys.readouterr().out.splitlines()[0]


def test_a_runs_images_that_are_gone_are_named_with_what_to_give(
    mine: Path, tmp_path: Path, out: str
) -> None:
    moved = say(shutil.copytree(mine, tmp_path / "moved"), path=f"{tmp_path}/gone")
    line = refusal(ssl_vit.finetune, *TUNE, out, f"init={moved}")
    assert line.startswith(f"data.path={tmp_path}/gone: no such")
    assert f"init={moved}" in line and "data.path= or data.hub=" in line
    say(moved, path=None)  # as of a pulled run
    assert "data=IMAGES: " in refusal(ssl_vit.evaluate, *PROBE, out, f"init={moved}")
    assert ssl_vit.load_encoder(moved).patches == 16  # which reads no images


def test_a_run_on_images_without_labels_says_what_to_give(tmp_path: Path, out: str) -> None:
    put(tmp_path / "flat", 12)
    flat = run([*PRETRAINED, f"data.path={tmp_path}/flat", f"out={tmp_path}"]).folder
    tune = (*TUNE, out, f"init={flat}")
    for line in (
        refusal(ssl_vit.finetune, *tune),
        refusal(ssl_vit.evaluate, *PROBE, out, f"init={flat}"),
    ):
        assert "a folder for each class, and test images" in line
        assert "eval.test=false" not in line and "0.2" not in line, "labels are missing as well"
    line = refusal(ssl_vit.finetune, *tune, "eval.test=false")
    assert "no labels" in line and "data.path=" in line
    assert not any(Path(out[4:]).iterdir()), "a run that was refused leaves no folder"


def test_an_evaluation_without_test_images_says_what_the_run_had(
    mine: Path, images: Path, tmp_path: Path, out: str
) -> None:
    flat = str(images / "train")
    had = say(shutil.copytree(mine, tmp_path / "had"), test=0.25, path=flat)
    for tool, words in ((ssl_vit.finetune, TUNE), (ssl_vit.evaluate, PROBE)):
        line = refusal(tool, *words, out, f"init={had}", f"data.path={flat}")
        assert line.startswith("data.test=test: ") and f"init={had} had data.test=0.25" in line
        assert ("eval.test=false" in line) == (tool is ssl_vit.finetune)


def test_weights_that_do_not_say_their_images_are_said_to_be_measured_on_others(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    alone = shutil.copytree(mine / "export", tmp_path / "alone")
    plan_tool.main(["recipe=finetune", f"init={alone}"])
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(f"warning: init={alone}: ") and "data=shapes is used" in line
    plan_tool.main(["recipe=finetune", f"init={mine}", "data=shapes"])
    assert "the images of init=" not in capsys.readouterr().out.splitlines()[0]


def test_a_run_of_a_study_without_images_is_planned_on_those_of_the_run_it_starts_from(
    images: Path,
) -> None:
    probe = {"recipe": "evaluate", "init": "{pretrain}"}
    options = {
        "pretrain": {"recipe": "mpp", "data.path": str(images), "data.size": 32},
        "probe": probe,
        "other": probe | {"data": "shapes"},
    }
    runs = {
        name: {"tool": "pretrain" if name == "pretrain" else "evaluate", "options": own}
        for name, own in options.items()
    }
    study = read.build({"title": "t", "runs": runs}, "study")
    planned = check.recipes(study, tasks.plan_tasks(study, {}, Given()))
    data = {name.split("-")[0]: recipe.data for name, recipe in planned.items()}
    assert (data["probe"].path, data["probe"].size) == (str(images), 32)
    assert (data["other"].path, data["other"].name, data["other"].size) == (None, "shapes", 64)


def evaluation(folder: Path, pretrained: dict, *words: str) -> Resolved:
    """An evaluation of an export of timm's."""
    config = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 0,
        "pretrained_cfg": {"input_size": [3, 224, 224], **pretrained},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"")
    return resolved(["recipe=evaluate", f"init={folder}", "model=vit_ti16", *words], here=False)


CENTER, BORDER = ({"crop_pct": 0.9, "crop_mode": mode} for mode in ("center", "border"))


@pytest.mark.parametrize(
    ("pretrained", "words", "is_said"),
    [
        (CENTER, [], False),
        (BORDER, [], True),
        (BORDER | {"crop_mode": "squash"}, [], True),
        ({}, [], True),
        (BORDER, ["data.eval_crop=0.9"], False),
    ],
)
def test_a_crop_that_cannot_be_had_is_said(
    pretrained: dict, words: list[str], is_said: bool, tmp_path: Path
) -> None:
    """A frozen encoder was measured with another crop than its own, without a word."""
    notice = crop_notice(evaluation(tmp_path, pretrained, *words))
    assert notice is None or "data.eval_crop=" in notice
    assert (notice is not None) == is_said


@pytest.mark.parametrize("words", [[], ["data.size=96"]])
def test_weights_of_another_image_size_are_said(words: list[str], tmp_path: Path) -> None:
    """With data.path= an encoder of 32 px was measured at 64 px without a word."""
    found = evaluation(tmp_path, CENTER, *words)
    found.recipe.data.size = 96
    notice = size_notice(found)
    assert notice is None if words else "data.size=224" in notice
