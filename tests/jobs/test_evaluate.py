"""tools/evaluate.py: probes of a frozen encoder, and the head that a run has trained."""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageOps
from torch import Tensor

import ssl_vit
from helpers.encoders import net, pixels
from helpers.measurements import by_name, key_of
from helpers.options import LOADED, PROBE, SHORT, TINY, altered
from helpers.runs import evaluated_on_one_and_two, result, run
from helpers.tables import TRAIN, broken, image, table
from ssl_vit.errors import UserError
from ssl_vit.evaluation import attentive, baselines
from ssl_vit.jobs import cli
from ssl_vit.models.encoder import Encoder
from ssl_vit.pages.run_record import read_run
from ssl_vit.runs import environment


def measured(init: Path, out: Path, *more: str) -> list[str]:
    place = [f"init={init}", f"out={out}", "data.size=16", *LOADED]
    return ["recipe=evaluate", "name=look", *place, *more]


def test_a_frozen_encoder_is_measured_and_the_result_kept(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    few = ["probe.steps=20", "probe.shots=[1,5]", "data.share=0.01", "data.test=0.01", "--json"]
    words = measured(pretrained, tmp_path, *few)
    capsys.readouterr()
    cli.evaluate(words)
    text = capsys.readouterr().out
    records = json.loads(text.splitlines()[-1])["measurements"]
    assert "frozen: mean of the patches" in text  # MPP's class token got no loss
    assert text.count("-shot (10 draws)") == 2
    own = {key.metric for key in map(key_of, records) if not key.subject}
    assert own == {"few_shot_1", "few_shot_5", "linear", "knn"}
    assert all((one["n"], one["split"]) == (500, "test") for one in records)
    cli.evaluate(words)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["measurements"] == records


ODD = 0.123456789  # of no other figure
RECORDS = ("Run", "RunRecord", "Result", "RunResult")  # what a run holds in all


def holds(value: Any) -> bool:
    """Whether that figure is in an argument, or in what it is made of."""
    if isinstance(value, Mapping):
        return any(map(holds, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds, value))
    own = type(value).__module__.startswith("ssl_vit") and type(value).__name__ not in RECORDS
    return (
        any(map(holds, vars(value).values()))
        if own and hasattr(value, "__dict__")
        else value is ODD
    )


def test_a_figure_is_on_the_page_after_few_functions(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From where it is computed until it is a text of the page's tables it crossed 24 functions of 9
    files: nobody could say where one is changed."""
    found = set()
    package = str(Path(ssl_vit.__file__).parent)

    def look(frame: FrameType, event: str, given: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(package):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [given] if event == "return" else [frame.f_locals.get(name) for name in names]
        if not code.co_name.startswith("<") and any(map(holds, values)):
            found.add((code.co_filename, code.co_qualname))

    monkeypatch.setattr(baselines, "accuracy", lambda right_TM: ODD)
    few = ["probe.measures=[knn]", "data.share=0.01", "data.test=0.01"]
    sys.setprofile(look)
    try:
        cli.evaluate(measured(pretrained, tmp_path, *few))
    finally:
        sys.setprofile(None)
    assert "12.35%" in (tmp_path / "look" / "report.html").read_text()
    # copies, the interval, the check of the file's version and the sentence about the commonest class
    # take eight functions
    assert 0 < len(found) < 24, sorted(found)
    files = {Path(file).stem for file, _ in found}
    assert len(files) <= 9, files  # the sentence of the verdict has a file of its own


def test_features_of_a_layer_are_that_blocks() -> None:
    made = net()
    inside = made.backbone.forward_intermediates(
        pixels() / 127.5 - 1, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
    )
    close = {"atol": 1e-5, "rtol": 0}
    for layer, (patches, prefix) in enumerate(inside, 1):
        for pool, wanted in (("avg", patches.mean(1)), ("token", prefix[:, 0])):
            with torch.no_grad():
                torch.testing.assert_close(made.feature(pixels(), pool, layer), wanted, **close)


@pytest.mark.parametrize("recipe", ["", "supervised", "joint"])
def test_a_runs_own_head_is_measured_as_when_it_was_trained(
    recipe: str, tuned: Path, tiny: list[str], tmp_path: Path
) -> None:
    """A linear one, one with a hidden layer, and one beside another objective."""
    folder = tuned
    if recipe:
        few = ["optim.steps=4", "eval.test=true", "data.test=0.01", "name=run"]
        folder = run(altered(tiny, f"recipe={recipe}", *few)).folder
    now = ssl_vit.evaluate(measured(folder, tmp_path, "probe.measures=[top1]")).metrics
    was = by_name(result(folder))
    assert {name: one.value for name, one in now.items()} == {
        name: was[name]["value"] for name in ("top1", "top5", "majority_top1")
    }
    assert (
        recipe != "supervised" or was["majority"]["split"] == "validation"
    )  # not overwritten by the test's


@pytest.mark.parametrize("labels", [False, True], ids=["no labels", "labels without weight"])
def test_a_run_that_learned_no_labels_has_no_head(
    labels: bool, pretrained: Path, tiny: list[str], tmp_path: Path
) -> None:
    """Of a part without weight the head stands where it began."""
    folder = pretrained
    if labels:
        short = ["recipe=joint", "joint.supervised=0", "optim.steps=2", "optim.warmup=1"]
        folder = run(altered(tiny, *short, "name=run")).folder
    with pytest.raises(UserError, match=r"probe\.measures=top1: init=.* no classifier"):
        ssl_vit.evaluate(measured(folder, tmp_path, "probe.measures=[top1]", "data.share=0.01"))


def test_images_of_the_head_are_counted_beside_those_of_probes(tmp_path: Path) -> None:
    """Beside k-NN the head's pass over the test images was left out of images and exaFLOP."""
    words = altered(TINY, *SHORT, "recipe=supervised", "eval.test=false", f"out={tmp_path}")
    ssl_vit.pretrain([*words, "name=run"])
    images = {}
    for measures in ("[knn]", "[knn,top1]"):
        options = altered(PROBE, f"init={tmp_path}/run", f"probe.measures={measures}")
        options += ["data.share=0.01", "data.test=0.01"]
        found = ssl_vit.evaluate([*options, f"out={tmp_path}", f"name={len(measures)}"])
        images[measures] = found.images
        tested = found.metrics["knn"].n
    assert images["[knn,top1]"] - images["[knn]"] == tested


def test_warnings_are_in_the_log_and_images_without_a_label_are_not_counted(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """What was left out of an evaluation was on no page; of few images with labels among many
    without nothing warned."""
    (own := tmp_path / "own").mkdir()
    label = [n % 2 if n < 8 else None for n in range(TRAIN)]
    table(own / "train.parquet", label)
    table(own / "test.parquet", label, [broken(n) if n == 3 else image(n) for n in range(TRAIN)])
    few = [f"data.path={own}", "probe.measures=[knn]", "probe.neighbors=1", "data.unreadable=0.5"]
    export = shutil.copytree(pretrained / "export", tmp_path / "export")
    config = json.loads((export / "config.json").read_text())
    del config["pretrained_cfg"]["crop_pct"]  # how images are cut is said before there is a folder
    (export / "config.json").write_text(json.dumps(config))
    found = ssl_vit.evaluate(measured(export, tmp_path, *few))
    assert found.measured_on == {"test": 7} and found.metrics["knn"].n == 7
    assert found.metrics["commonest_knn"].value == 4 / 7
    out = capsys.readouterr().out
    assert f"{TRAIN} (8 labelled) test images" in out
    lines = out.splitlines()
    printed = [one.removeprefix("warning: ") for one in lines if one.startswith("warning: ")]
    for text in ("row 3", "images: 8", "data.eval_crop="):
        assert any(text in one for one in printed)
    assert {*read_run(found.folder).warnings} == {*printed}


def draw_shapes(root: Path, on_white: bool) -> Path:
    """Write black shapes of three classes on a transparent ground, or the same images on white."""
    for split, count in (("train", 12), ("test", 6)):
        for shape, width in (("disc", 18), ("square", 18), ("bar", 4)):
            (folder := root / split / shape).mkdir(parents=True)
            for number in range(count):
                x, y = 4 + number % 5, 3 + (number * 7 + len(split)) % 6
                pen = ImageDraw.Draw(alpha := Image.new("L", (32, 32)))
                (pen.ellipse if shape == "disc" else pen.rectangle)((x, y, x + width, y + 18), 255)
                image = Image.new("RGBA", (32, 32), (0, 0, 0, 0))
                image.putalpha(alpha)
                if on_white:
                    image = ImageOps.invert(alpha).convert("RGB")
                image.save(folder / f"{number:02}.png")
    return root


def test_shapes_in_the_alpha_channel_are_measured_as_on_white(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """All of these images had been black."""
    metrics = []
    for on_white in (False, True):
        place = draw_shapes(tmp_path / f"{on_white}", on_white)
        few = [f"data.path={place}", "probe.measures=[knn]", "probe.neighbors=5"]
        words = altered(
            measured(pretrained, tmp_path, *few), f"name=on_white_{on_white}", "data.size=32"
        )
        metrics.append(ssl_vit.evaluate(words).metrics)
        notes = [
            line for line in capsys.readouterr().out.splitlines() if "transparent pixels" in line
        ]
        parts = (
            ()
            if on_white
            else ("35 of 35 checked images of train", "18 of 18 checked images of test")
        )
        assert all(part in note for note, part in zip(notes, parts, strict=True))
    assert metrics[0] == metrics[1]
    assert metrics[0]["pixels_knn"].value == 1.0 and metrics[0]["knn"].value > 0.5


# ---- the attentive probe: what it is compared with, chooses, holds and refuses


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark images and slightly brighter ones; beside it `wrong`, whose held-out images have the
    other labels."""
    root = tmp_path_factory.mktemp("images")
    pixels = np.random.default_rng(0)
    for split, counts in {"train": (31, 30), "val": (30, 30), "test": (20, 21)}.items():
        for name, least, count in zip("ab", (0, 12), counts, strict=True):
            (root / "own" / split / name).mkdir(parents=True)
            for number in range(count):
                image = pixels.integers(least, least + 190, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(image).save(root / "own" / split / name / f"{number}.png")
    shutil.copytree(root / "own", wrong := root / "wrong")
    (wrong / "val" / "a").rename(wrong / "val" / "c")
    (wrong / "val" / "b").rename(wrong / "val" / "a")
    (wrong / "val" / "c").rename(wrong / "val" / "b")
    return root / "own"


@pytest.fixture
def words(folder: Path, pretrained: Path, tmp_path: Path) -> list[str]:
    own = ["recipe=evaluate", f"init={pretrained}", f"data.path={folder}", "data.validation=val"]
    own += ["probe.measures=[attentive]", "probe.steps=30", "probe.batch=16", "data.size=16"]
    return [*own, *LOADED, f"out={tmp_path}"]


def test_it_stands_beside_fresh_weights_and_is_measured_once_more_alike(words: list[str]) -> None:
    found = ssl_vit.evaluate([*words, "name=one"])
    assert {*found.metrics} == {"attentive", "fresh_attentive", "commonest_attentive"}
    assert {one.n for one in found.metrics.values()} == {41}
    assert found.metrics["commonest_attentive"].value == 21 / 41
    apart = found.metrics["attentive"].differences["untrained"]
    own, fresh = (found.metrics[name].value for name in ("attentive", "fresh_attentive"))
    assert apart is not None and apart.mean == pytest.approx(own - fresh)
    assert found.images == 61 + 60 + 41
    assert ssl_vit.evaluate([*words, "name=two"]).metrics == found.metrics
    beside = ssl_vit.evaluate(altered(words, "probe.measures=[knn,attentive]", "name=three"))
    assert beside.metrics["attentive"] == found.metrics["attentive"]
    assert beside.metrics["fresh_attentive"] == found.metrics["fresh_attentive"]


def test_the_rate_is_chosen_on_held_out_images(words: list[str], folder: Path) -> None:
    """Of two the better one; by held-out images with the other labels the worse one."""

    def accuracy(rates: str, place: Path) -> float:
        given = [f"probe.rates={rates}", f"data.path={place}", f"name={place.name}{rates}"]
        return ssl_vit.evaluate(altered(words, *given)).metrics["attentive"].value

    one, other = (accuracy(rate, folder) for rate in ("[0.001]", "[0.3]"))
    assert one != other
    for rates in ("[0.001,0.3]", "[0.3,0.001]"):
        assert accuracy(rates, folder) == max(one, other)
        assert accuracy(rates, folder.with_name("wrong")) == min(one, other)


def test_what_rounding_makes_constant_counts_as_constant(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are rounded where they are held, and so where they are not."""
    plain = Encoder.tokens

    def measured(spread: float) -> dict:
        def tokens(net: Encoder, *given: Any) -> Tensor:
            own_BTE, other_BTE = plain(net, *given).chunk(2, 2)
            return torch.cat([own_BTE, 100 + spread * other_BTE], 2)

        monkeypatch.setattr(Encoder, "tokens", tokens)
        return ssl_vit.evaluate([*words, "probe.rates=[1]", f"name=by{spread}"]).metrics

    assert measured(0.005) == measured(0.0)


def test_a_baseline_that_diverges_is_left_out_and_does_not_end_the_evaluation(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    plain, calls = attentive.train, []

    def train(*given: Any, **options: Any) -> attentive.AttentiveProbe:
        calls.append(given)
        found = plain(*given, **options)
        worth = 1.0 if len(calls) % 2 else float("nan")  # the encoder's is the first
        return found._replace(weight_GHAC=found.weight_GHAC * worth)

    monkeypatch.setattr(attentive, "train", train)
    found = ssl_vit.evaluate([*words, "name=one"]).metrics
    assert {*found} == {"attentive", "commonest_attentive"} and len(calls) == 2
    assert "untrained weights: probe.rates=" in capsys.readouterr().out
    calls.append(None)  # now the encoder's is the one that diverges
    with pytest.raises(UserError, match="attentive probe diverges"):
        ssl_vit.evaluate([*words, "name=two"])


def test_two_processes_measure_as_one(words: list[str], tmp_path: Path) -> None:
    one, two = evaluated_on_one_and_two(words, tmp_path)
    assert one["measurements"] == two["measurements"] and one["images"] == two["images"]


def test_tokens_that_do_not_fit_are_refused_with_how_many_do(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """17 tokens of width 32 in 2 bytes: half of the memory holds 20 images, and not 61."""
    monkeypatch.setattr(environment, "host_memory", lambda: 2 * 17 * 32 * 2 * 20 + 1)
    with pytest.raises(UserError) as caught:
        ssl_vit.evaluate(words)
    text = str(caught.value)
    assert "probe.token_images=20" in text and "\n" not in text
    found = ssl_vit.evaluate([*words, "probe.token_images=20"])
    assert found.images == 20 + 60 + 41
    assert "learns from 20 images with 17 tokens each (21.2 KiB" in capsys.readouterr().out
