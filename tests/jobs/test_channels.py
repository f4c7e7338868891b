"""Runs on images of four channels and 16 bits."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from helpers.channel_images import CHANNELS, HIGH, LOW, folder, values
from helpers.options import LOADED, PROBE, TUNE, altered
from helpers.runs import Killed, Killer, assert_same_end, rows, run
from ssl_vit.errors import UserError
from ssl_vit.hub import card
from ssl_vit.jobs import cli, draw_figures, embed
from ssl_vit.jobs import evaluate as evaluate_job
from ssl_vit.jobs import train as train_job
from ssl_vit.recipe.identity import computed_values
from ssl_vit.recipe.load import resolve
from ssl_vit.runs.folder import Run
from ssl_vit.runs.identity import planned_differences

NO_COLORS = ["views.jitter=0", "views.grayscale=0", "views.solarize=[0,0]"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("images") / "bands")


@pytest.fixture
def words(tiny: list[str], images: Path) -> list[str]:
    words = [f"data.path={images}", f"data.channels={CHANNELS}", f"data.range=[{LOW},{HIGH}]"]
    return [*tiny, *words, "data.validation=0.2"]


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
    assert was.range == [LOW, HIGH]
    assert len(was.mean) == len(was.std) == CHANNELS
    config = json.loads((done.export / "config.json").read_text())
    assert config["pixels"] == {"channels": CHANNELS, "range": was.range}
    assert config["pretrained_cfg"]["mean"] == was.mean
    again = Run(resolve(words))
    again.reconcile()
    assert again.recipe.data == was, "the folder's, measured once"
    with pytest.raises(UserError, match=r"data\.range \(\[200, 4000\] there, \[0, 4095\] here\)"):
        Run(resolve(altered(words, "data.range=[0,4095]"))).reconcile()
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
        (["data.range=[9,9]"], "data.range=[9,9]: expected the lowest and the highest value"),
        (["data.range=[0,70000]"], "data.range=[0,70000]: expected"),
        (["target=mean_channels", "data.channels=5"], "data.channels=5: none of"),
        (
            ["target=pixels", "data.range=[0,9999]", "compute.resident=true"],
            "is of 16 bits; expected false or null",
        ),
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
    query = tmp_path / "query.npy"  # the same file of the folder would be left out
    query.write_bytes((images / "test" / "ant" / "1.npy").read_bytes())
    cli_words = [f"out={tmp_path}", "name=made"]
    embed.main([f"init={done.folder}", *cli_words, f"query={query}", "top=1", *LOADED[:1]])
    assert "test/ant/1.npy" in capsys.readouterr().out
    assert (tmp_path / "made" / "nearest.html").exists()
    measured = ["probe.measures=[knn]", f"init={done.folder}", f"out={tmp_path}", "name=measured"]
    cli.evaluate(altered(PROBE, *measured))
    assert re.search(r"pixels +4 channels, \d+ to [\d,]+\n", capsys.readouterr().out)
    draw_figures.main([f"init={done.folder}", f"out={tmp_path}", "name=drawn"])
    assert (tmp_path / "drawn" / "reconstruction.png").exists()


def test_what_is_clipped_is_recorded_and_another_range_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture, images: Path
) -> None:
    short = ["target=mean_channels", "optim.steps=2", "optim.warmup=1", "name=r"]
    done = run(altered(words, *short))
    low, high = done.recipe.data.range or ()
    tested = np.stack([np.load(file).ravel() for file in (images / "test").rglob("*.npy")])
    share = round(float(((tested < low) | (tested > high)).mean()), 6)
    assert 0 < done.environment().clipped["train"] < 0.01
    embed.main([f"init={done.folder}", f"out={tmp_path}", "name=made", *LOADED[:1]])
    measure = [*PROBE, f"init={done.folder}", f"out={tmp_path}", "probe.measures=[knn]"]
    probed = Run(resolve([*measure, "name=probed"]))
    evaluate_job.evaluate(probed)
    assert probed.environment().clipped["test"] == share
    bright = folder(tmp_path / "bright")
    for file in bright.rglob("*.npy"):
        np.save(file, np.minimum(np.load(file), 4000) * 16)
    assert "warning: data.range=" not in capsys.readouterr().out
    says = f"data.range=[{low},{high}]: clips "
    with pytest.raises(UserError, match=rf"^{re.escape(says)}.* above"):
        evaluate_job.evaluate(Run(resolve([*measure, f"data.path={bright}"])))
    with pytest.raises(SystemExit):
        embed.main([f"init={done.folder}", f"data.path={bright}", f"out={tmp_path}", *LOADED[:1]])
    assert capsys.readouterr().err.startswith(f"error: {says}")


def test_bits_that_are_cut_off_are_said_once(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """12 bits in 16: all was in the darkest class, and nothing said so."""
    for i in range(20):
        file = tmp_path / "images" / "train" / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values(i, channels=1)[..., 0].clip(0, 4095)).save(file)
    run(altered(tiny, f"data.path={tmp_path / 'images'}", "optim.steps=2", "optim.warmup=1"))
    warnings = [line for line in capsys.readouterr().out.splitlines() if "more than 8 bits" in line]
    assert len(warnings) == 1 and warnings[0].startswith(
        "warning: 19 of 19 images that were looked at"
    )
    assert ".png) of train)" in warnings[0] and "15 of 255; data.range=[0,4095]" in warnings[0]


def test_a_study_plans_without_what_is_measured(words: list[str]) -> None:
    planned = computed_values(resolve([*words, "target=mean_channels"]))
    made = planned | {"data.mean": [0.1] * 4, "data.std": [0.2] * 4}
    assert planned_differences(made, planned, ()) == []
    given = planned | {"data.range": [0, 4095]}
    (differ,) = planned_differences(made, given, ())
    assert differ.startswith("data.range ([200, 4000] there, [0, 4095] here")
    rgb = planned | {"data.channels": 3}
    assert len(planned_differences(made, rgb, ())) == 3, "of RGB nothing is measured"


def test_a_range_that_makes_all_values_one_is_refused_or_warned_of(
    words: list[str], capsys: pytest.CaptureFixture, error_line
) -> None:
    """Of values up to 4,000 and a hot pixel in some images, the range had been 203 to 65,000, in
    which every patch was of one class: "accuracy 100% (to beat 100%)"."""
    words = altered(words, "target=mean_channels", "optim.steps=2", "optim.warmup=1")
    given = [word for word in words if not word.startswith("data.range=")]
    assert re.search(r"data\.range=\[2\d\d,(3\d{3}|4000)\], which clips", error_line(*given))
    run([*given, "data.range=[0,65535]", "name=all"])
    assert "warning: target=mean_channels: training patches are almost all of one class" in (
        capsys.readouterr().out
    )
