"""Runs on images of four channels and 16 bits."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import ssl_vit
from helpers.channel_images import CHANNELS, HIGH, LOW, folder, values
from helpers.measurements import by_name
from helpers.options import LOADED, PROBE, TINY, TUNE, altered
from helpers.resolving import resolve
from helpers.runs import assert_goes_on_exactly, result, rows, run
from ssl_vit.errors import UserError
from ssl_vit.hub import card
from ssl_vit.jobs import cli
from ssl_vit.recipe.schema import computed_values
from ssl_vit.runs.folder import Run
from ssl_vit.runs.identity import planned_differences

NO_COLORS = ["views.jitter=0", "views.grayscale=0", "views.solarize=[0,0]"]
SHORT = ["target=mean_channels", "optim.steps=2", "optim.warmup=1"]
KNN = altered(PROBE, "probe.measures=[knn]")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("images") / "bands")


def words_of(images: Path, out: Path) -> list[str]:
    own = [f"data.path={images}", f"data.channels={CHANNELS}", f"data.range=[{LOW},{HIGH}]"]
    return [*TINY, *own, "data.validation=0.2", "name=run", f"out={out}"]


@pytest.fixture
def words(images: Path, tmp_path: Path) -> list[str]:
    return words_of(images, tmp_path)


@pytest.fixture(scope="module")
def made(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(altered(words_of(images, tmp_path_factory.mktemp("made")), *SHORT))


def test_training_goes_on_exactly(words: list[str]) -> None:
    assert_goes_on_exactly(altered(words, "target=mean_channels"), 7)


@pytest.mark.parametrize(
    "own",
    [
        ["recipe=mpp", "target=normalized_pixels"],
        ["recipe=supervised", "data.mixup=0.5"],
        ["recipe=moco_v3", *NO_COLORS],
    ],
)
def test_objectives_train_and_are_read_by_timm(own: list[str], words: list[str]) -> None:
    one = run(altered(words, *own, *SHORT[1:]))
    assert all(math.isfinite(row["loss"]) for row in rows(one.folder))
    loaded = timm.create_model(f"local-dir:{one.export}", pretrained=True)
    assert loaded.patch_embed.proj.in_channels == CHANNELS
    with torch.no_grad():
        assert loaded(torch.zeros(1, CHANNELS, 16, 16)).isfinite().all()


def test_what_was_measured_is_recorded_and_comes_along(
    made: Run, images: Path, tmp_path: Path
) -> None:
    words = altered(words_of(images, made.folder.parent), *SHORT)
    was = resolve([f"recipe={made.folder / 'recipe.yaml'}"], here=False).data
    assert was.range == [LOW, HIGH]
    assert len(was.mean) == len(was.std) == CHANNELS
    config = json.loads((made.export / "config.json").read_text())
    assert config["pixels"] == {"channels": CHANNELS, "range": was.range}
    assert config["pretrained_cfg"]["mean"] == was.mean
    assert ssl_vit.pretrain(words).folder == made.folder, "measured once"
    with pytest.raises(UserError, match=r"data\.range \(\[200, 4000\] there, \[0, 4095\] here\)"):
        ssl_vit.pretrain(altered(words, "data.range=[0,4095]"))
    tuned = run([*TUNE, f"init={made.folder}", f"out={tmp_path}", "name=tuned"])
    assert tuned.recipe.data.range == was.range and tuned.recipe.data.mean == was.mean
    assert by_name(result(tuned.folder))["top1"]["n"] == 10
    for wrong in ("data.range=[0,4095]", "data.channels=3"):
        with pytest.raises(UserError, match=f"{wrong[:10]}.*was trained with"):
            resolve([*TUNE, f"init={made.folder}", wrong])
    text = card.render(made, made.export)
    assert "(1, 4, 16, 16)" in text and "AutoImageProcessor" not in text
    with Image.open(made.figures / "predictions.png") as drawn:
        assert drawn.width > 300


def test_an_rgb_encoder_is_adapted(pretrained: Path, words: list[str]) -> None:
    own = [word for word in words if word.startswith(("data.", "out=")) and "size" not in word]
    tune = altered(TUNE, *own, f"init={pretrained}", "name=tuned")
    with pytest.raises(UserError, match=r"^data\.channels=.* model\.adapt_channels=true"):
        resolve(tune)
    tuned = run([*tune, "model.adapt_channels=true"])
    assert len(tuned.recipe.data.mean) == CHANNELS, "measured, not that of RGB"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (["data.range=[9,9]"], "data.range=[9,9]: expected [LOWEST,HIGHEST]"),
        (["target=mean_channels", "data.channels=5"], "data.channels=5: "),
        (
            ["target=pixels", "data.range=[0,9999]", "compute.resident=true"],
            "has 16-bit pixels",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    own: list[str], expected: str, images: Path, error_line
) -> None:
    assert expected in error_line(f"data.path={images}", *altered(["data.channels=4"], *own))


def test_features_and_figures_of_such_images_are_made(
    made: Run, tmp_path: Path, capsys: pytest.CaptureFixture, images: Path
) -> None:
    query = tmp_path / "query.npy"  # the same file of the folder would be left out
    query.write_bytes((images / "test" / "ant" / "1.npy").read_bytes())
    own = [f"init={made.folder}", f"out={tmp_path}"]
    found = ssl_vit.embed([*own, f"query={query}", "top=1", "name=made", *LOADED[:1]])
    assert found.nearest[0].file == "test/ant/1.npy" and (found.folder / "nearest.html").exists()
    cli.evaluate([*KNN, *own, "name=measured"])
    assert re.search(r"pixels +4 channels, \d+ to [\d,]+\n", capsys.readouterr().out)
    drawn = ssl_vit.figures([*own, "name=drawn", "images=4"])
    assert (drawn.folder / "reconstruction.png").exists()


def test_another_range_is_refused(
    made: Run, tmp_path: Path, capsys: pytest.CaptureFixture, images: Path
) -> None:
    own = [f"init={made.folder}", f"out={tmp_path}"]
    ssl_vit.embed([*own, "name=made", *LOADED[:1]])
    ssl_vit.evaluate([*KNN, *own, "name=probed"])
    assert "warning: data.range=" not in capsys.readouterr().out
    bright = folder(tmp_path / "bright")
    for file in bright.rglob("*.npy"):
        np.save(file, np.minimum(np.load(file), 4000) * 16)
    says = rf"^data\.range=\[{LOW},{HIGH}\]: this range clips .* above"
    for tool, more in ((ssl_vit.evaluate, KNN), (ssl_vit.embed, LOADED[:1])):
        with pytest.raises(UserError, match=says):
            tool([*more, *own, f"data.path={bright}"])


def test_bits_that_are_cut_off_are_said_once(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """12 bits in 16: all was in the darkest class, and nothing said so."""
    for i in range(20):
        file = tmp_path / "images" / "train" / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values(i, channels=1)[..., 0].clip(0, 4095)).save(file)
    run(altered(tiny, f"data.path={tmp_path / 'images'}", *SHORT[1:]))
    assert capsys.readouterr().out.count("more than 8 bits in 19 of 19 ") == 1


def test_a_study_plans_without_what_is_measured(words: list[str]) -> None:
    planned = computed_values(resolve([*words, "target=mean_channels"]))
    made = planned | {"data.mean": [0.1] * 4, "data.std": [0.2] * 4}
    assert planned_differences(made, planned, ()) == []
    (differ,) = planned_differences(made, planned | {"data.range": [0, 4095]}, ())
    assert differ.startswith("data.range ([200, 4000] there, [0, 4095] here")
    rgb = planned | {"data.channels": 3}
    assert len(planned_differences(made, rgb, ())) == 3, "of RGB nothing is measured"


def test_a_range_that_makes_all_values_one_is_refused_or_warned_of(
    words: list[str], capsys: pytest.CaptureFixture, error_line
) -> None:
    """Of values up to 4,000 and a hot pixel in some images, the range had been 203 to 65,000, in
    which every patch was of one class: "accuracy 100% (to beat 100%)"."""
    given = [word for word in altered(words, *SHORT) if not word.startswith("data.range=")]
    assert re.search(r"data\.range=\[2\d\d,(3\d{3}|4000)\], which maps", error_line(*given))
    run([*given, "data.range=[0,65535]"])
    assert "warning: target=mean_channels: " in (capsys.readouterr().out)
