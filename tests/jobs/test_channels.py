"""Runs on images of four channels and 16 bits."""

import json
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

from helpers.channel_images import CHANNELS, HIGH, LOW, folder
from helpers.options import LOADED, TUNE, altered
from helpers.runs import Killed, Killer, assert_same_end, rows, run
from ssl_vit.config.computed import computed_values
from ssl_vit.config.resolve import resolve
from ssl_vit.data import make_shards
from ssl_vit.errors import UserError
from ssl_vit.hub import card
from ssl_vit.jobs import draw_figures, embed
from ssl_vit.jobs import train as train_job
from ssl_vit.runs.folder import Run
from ssl_vit.runs.identity import planned_differences

NO_COLORS = ["views.jitter=0", "views.grayscale=0", "views.solarize=[0,0]"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("images") / "bands")


@pytest.fixture
def words(tiny: list[str], images: Path) -> list[str]:
    return [*tiny, f"data.path={images}", f"data.channels={CHANNELS}", "data.validation=0.2"]


@pytest.mark.parametrize(
    "own",
    [
        ["recipe=mpp", "target=mean_channels"],
        ["recipe=mpp", "target=normalized_pixels"],
        ["recipe=mae"],
        ["recipe=supervised", "data.mixup=0.5"],
        ["recipe=ijepa", "eval.collapse=null"],
        ["recipe=moco_v3", *NO_COLORS],
    ],
)
def test_objectives_train_resume_exactly_and_are_read_by_timm(
    own: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = altered(words, *own)
    one = run([*words, "name=one"])
    whole = train_job._callbacks
    monkeypatch.setattr(train_job, "_callbacks", lambda j: [*whole(j), Killer(7)])
    with pytest.raises(Killed):
        run([*words, "name=two"])
    monkeypatch.setattr(train_job, "_callbacks", whole)
    assert_same_end(one.folder, run([*words, "name=two"]).folder)
    assert all(row["loss"] == row["loss"] for row in rows(one.folder))
    loaded = timm.create_model(f"local-dir:{one.export}", pretrained=True)
    assert loaded.patch_embed.proj.in_channels == CHANNELS
    with torch.no_grad():
        assert loaded(torch.zeros(1, CHANNELS, 16, 16)).isfinite().all()


def test_what_was_measured_is_recorded_and_comes_along(words: list[str], tmp_path: Path) -> None:
    words = altered(words, "target=mean_channels", "optim.steps=4", "name=run")
    done = run(words)
    was = resolve([f"recipe={done.folder / 'recipe.yaml'}"], here=False).data
    assert was.range and LOW <= was.range[0] < was.range[1] <= HIGH
    assert len(was.mean) == len(was.std) == CHANNELS
    config = json.loads((done.export / "config.json").read_text())
    assert config["pixels"] == {"channels": CHANNELS, "range": was.range}
    assert config["pretrained_cfg"]["mean"] == was.mean
    again = Run(resolve(words))
    again.reconcile()
    assert again.recipe.data == was, "the folder's, measured once"
    with pytest.raises(UserError, match=r"data\.range \(\[\d+, \d+\] there, \[0, 4095\] here\)"):
        Run(resolve([*words, "data.range=[0,4095]"])).reconcile()
    tuned = run([*TUNE, f"init={done.folder}", f"out={tmp_path}", "name=tuned"])
    assert tuned.recipe.data.range == was.range and tuned.recipe.data.mean == was.mean
    assert tuned.result()["metrics"]["top1"]["n"] == 10
    for wrong in ("data.range=[0,4095]", "data.channels=3"):
        with pytest.raises(UserError, match=f"{wrong[:10]}.*was made with.*leave it out"):
            resolve([*TUNE, f"init={done.folder}", wrong])
    text = card.write(done, done.export)
    assert f"4 channels, {was.range[0]:,} to {was.range[1]:,}" in text
    assert "(1, 4, 16, 16)" in text and "AutoImageProcessor" not in text
    with Image.open(done.figures / "predictions.png") as drawn:
        assert drawn.width > 300


def test_an_rgb_encoder_is_adapted(words: list[str], tiny: list[str], tmp_path: Path) -> None:
    rgb = run([*altered(tiny, "optim.steps=2", "optim.warmup=1"), "name=rgb"]).folder
    images = [word for word in words if word.startswith("data.") and "size" not in word]
    tune = [*altered(TUNE, *images, f"init={rgb}", f"out={tmp_path}"), "name=tuned"]
    with pytest.raises(UserError, match=r"was made with 3; model\.adapt_channels=true"):
        resolve(tune)
    tuned = run([*tune, "model.adapt_channels=true"])
    assert len(tuned.recipe.data.mean) == CHANNELS, "measured, not that of RGB"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([], "target=mean_color: takes RGB of 8 bits; expected one of mean_channels, pixels, "),
        (["target=grid_color", "data.channels=3", "data.range=[0,9]"], "beside data.range=[0,9]"),
        (["recipe=moco_v3"], "views.jitter=0 views.grayscale=0 views.solarize=[0,0]"),
        (
            ["data.mean=[0.1,0.2]"],
            "data.mean=[0.1, 0.2]: expected 4 numbers beside data.channels=4",
        ),
        (["data.range=[9,9]"], "data.range=[9, 9]: expected the lowest and the highest value"),
        (["data.range=[0,70000]"], "data.range=[0, 70000]: expected"),
        (["target=mean_channels", "data.channels=5"], "data.channels=5: none of"),
        (["target=pixels", "compute.resident=true"], "is of 16 bits; expected false or null"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    own: list[str], expected: str, images: Path, error_line
) -> None:
    given = altered([f"data.path={images}", "data.channels=4"], *own)
    assert expected in error_line(*given)


def test_a_model_that_begins_with_a_resnet_is_refused(images: Path) -> None:
    given = ["recipe=supervised", "model=bit_r14x05", "optim.dropout=0", f"data.path={images}"]
    with pytest.raises(UserError, match=r"data\.channels=4: model=bit_r14x05 begins with a ResNet"):
        resolve([*given, "data.channels=4"])


def test_features_and_figures_of_such_images_are_made(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture, images: Path
) -> None:
    done = run(altered(words, "target=mean_channels", "optim.steps=2", "optim.warmup=1", "name=r"))
    query = images / "test" / "ant" / "1.npy"
    cli_words = [f"out={tmp_path}", "name=made"]
    embed.main([f"init={done.folder}", *cli_words, f"query={query}", "top=1", *LOADED[:1]])
    assert "test/ant/1.npy, ant" in capsys.readouterr().out
    assert (tmp_path / "made" / "nearest.html").exists()
    draw_figures.main([f"init={done.folder}", f"out={tmp_path}", "name=drawn"])
    assert (tmp_path / "drawn" / "reconstruction.png").exists()


def test_shards_of_such_images_are_refused(images: Path, tmp_path: Path) -> None:
    for option in ("data.channels=4", "data.range=[0,9]"):
        with pytest.raises(UserError, match="shards hold RGB of 8 bits"):
            make_shards.main([f"data.path={images}", f"out={tmp_path}/shards", option])


def test_a_study_plans_without_what_is_measured(words: list[str]) -> None:
    planned = computed_values(resolve([*words, "target=mean_channels"]))
    made = planned | {"data.range": [70, 3000], "data.mean": [0.1] * 4, "data.std": [0.2] * 4}
    assert planned_differences(made, planned, ()) == []
    given = planned | {"data.range": [0, 4095]}
    (differ,) = planned_differences(made, given, ())
    assert differ.startswith("data.range ([70, 3000] there, [0, 4095] here")
    rgb = planned | {"data.channels": 3}
    assert len(planned_differences(made, rgb, ())) == 4, "of RGB nothing is measured"
