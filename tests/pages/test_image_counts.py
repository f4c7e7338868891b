"""On how many images a figure stands: beside every held-out figure, with a caution below 100."""

import json
import math
from pathlib import Path

import pytest

import ssl_vit
from helpers.images import put, two_classes
from helpers.measurements import Measured, by_name, measurements
from helpers.options import PROBE, SHORT, TINY, TUNE
from helpers.options import altered as changed
from helpers.resolving import resolve
from ssl_vit.formatting import FEW_IMAGES, few_images
from ssl_vit.hub import card
from ssl_vit.jobs import cli
from ssl_vit.pages import metric_tables, run_page, run_verdict
from ssl_vit.recipe.schema import option_for_more_held_out
from ssl_vit.stats import wilson_interval

CAUTION = "An accuracy on fewer than 100 images is uncertain by 10 points or more"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_classes(tmp_path_factory.mktemp("images") / "IMAGES")


@pytest.fixture(scope="module")
def runs(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `mine`, which held three images out, and what was fine-tuned from it."""
    out = tmp_path_factory.mktemp("runs")
    few = [f"data.path={images}", "data.validation=0.125", f"out={out}"]
    ssl_vit.pretrain(changed(TINY, *SHORT, "eval.every=2", *few, "name=mine"))
    best = ["checkpoint.best=accuracy", "eval.every=1", "checkpoint.every=1"]
    ssl_vit.finetune(changed(TUNE, f"init={out}/mine", *best, f"out={out}", "name=tuned"))
    return out


def test_a_hundred_images_are_where_an_accuracy_is_known_to_ten_points() -> None:
    interval = wilson_interval(0.5, FEW_IMAGES)
    assert 0.09 < (interval.high - interval.low) / 2 < 0.1
    assert few_images({"validation": 100, "test": 5_000}) == []
    (text,) = few_images({"test": 5_000}, group="patient")
    assert text.startswith("data.group=patient: intervals assume independent images")
    assert [text.partition(":")[0] for text in few_images({"validation": 99, "test": 1})] == [
        "held-out images",
        "test images",
    ]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["recipe=mpp"], "data.validation=0.2"),
        (["recipe=mpp", "data.validation=0.1"], "data.validation=0.2"),
        (["recipe=mpp", "data.validation=0.2"], ""),
        (["recipe=mpp", "data.validation=0"], ""),
        (["recipe=mpp", "eval.images=24"], ""),
        (["recipe=evaluate"], "data.validation=0.2"),
    ],
)
def test_more_images_are_held_out_where_a_share_limits_them(
    options: list[str], remedy: str
) -> None:
    recipe = resolve(options)
    assert option_for_more_held_out(recipe) == remedy
    (text,) = few_images({"validation": 12}, (), remedy)
    assert ("use data.validation=0.2" in text) == bool(remedy)


def test_there_is_no_baseline_of_one_image(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    put(tmp_path / "IMAGES" / "all", 20)
    options = [*SHORT, f"data.path={tmp_path / 'IMAGES'}", f"out={tmp_path}"]
    cli.pretrain(changed(TINY, *options, "name=one"))
    text = capsys.readouterr().out
    assert "to beat     no baseline, because" in text
    assert "(to beat" not in text and "verdict" not in text
    metrics = by_name(json.loads((tmp_path / "one" / "result.json").read_text()))
    assert "accuracy_masked" in metrics and "commonest" not in metrics


def test_the_terminal_says_of_how_many_images_a_figure_is(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    cli.finetune([*TUNE, f"init={runs}/mine", f"out={tmp_path}", "name=again"])
    lines = capsys.readouterr().out.splitlines()
    cautions = [line for line in lines if CAUTION in line]
    assert [line.split(":")[1:3] for line in cautions] == [
        [" held-out images", f" 3. {CAUTION}. To hold out more images, use data.validation=0.2"],
        [" test images", " 6. " + CAUTION],
    ]
    assert next(line for line in lines if line.startswith("held out at")).endswith("(n = 3 images)")
    tables = [line.split("  ")[0] for line in lines if line.startswith("results ")]
    heads = [line.removeprefix("results").split("  ") for line in lines if line[:7] == "results"]
    shown = [next(filter(None, head)).strip() for head in heads]
    assert len(tables) == 2 and shown == ["3 held-out images", "6 test images"]


def test_a_choice_on_few_images_is_said(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Of a checkpoint, and of a frozen encoder's probe."""
    best = ["checkpoint.best=accuracy", f"out={tmp_path}", "name=best"]
    cli.finetune([*TUNE, f"init={runs}/mine", *best])
    text = capsys.readouterr().out
    assert (
        "choice of the checkpoint depends on these images" in text
        and "on 3 held-out images" in text
    )
    result = json.loads((tmp_path / "best" / "result.json").read_text())
    assert result["measured_on"] == {"validation": 3, "test": 6}
    cli.evaluate([*PROBE, f"init={runs}/mine", f"out={tmp_path}", "name=probed"])
    text = capsys.readouterr().out
    assert "choice of the learning rate of the linear probe depends on these images" in text
    cli.evaluate(
        [*PROBE, f"init={runs}/mine", "probe.measures=[knn]", f"out={tmp_path}", "name=knn"]
    )
    text = capsys.readouterr().out
    assert "The choice of" not in text and f"test images: 6. {CAUTION}" in text


def test_pages_say_of_how_many_images_a_figure_is(runs: Path) -> None:
    page = (runs / "tuned" / "report.html").read_text()
    chosen = "The choice of the checkpoint depends on these images. To hold out more images, use"
    chosen += " data.validation=0.2"
    assert f"Held-out images: 3. {CAUTION}. {chosen}." in page
    assert f"Test images: 6. {CAUTION}." in page and "accuracy on 3 held-out images" in page
    (runs / "tuned" / "result.json").rename(runs / "tuned" / "hidden")
    try:  # a run that goes on
        run_page.write(runs / "tuned")
        page = (runs / "tuned" / "report.html").read_text()
        assert "at step 2, on 3 held-out images" in page
    finally:
        (runs / "tuned" / "hidden").rename(runs / "tuned" / "result.json")
        run_page.write(runs / "tuned")


def test_n_is_of_images_where_a_metric_counts_patches() -> None:
    entry = Measured(value=0.5, split="validation", n=134)
    for measured_on, images in (({"validation": 5}, 5), ({}, 134)):
        (one,) = metric_tables.read_metrics(
            measurements({"accuracy_masked": entry}, measured_on), measured_on
        )
        assert one.images == images


def test_a_model_card_is_as_careful(runs: Path) -> None:
    text = card.render(ssl_vit.load_run(runs / "tuned"), runs / "tuned" / "export")
    assert f"**Test images: 6. {CAUTION}.**" in text
    assert "choice of the checkpoint depends on these images.**" in text
    assert "the best accuracy on 3 held-out images (" in text


def held_out(**values: tuple[float, int]) -> dict[str, Measured]:
    """Measurements on held-out images, of {name: value, n}."""
    return {
        name: Measured(value=value, split="validation", n=n) for name, (value, n) in values.items()
    }


def test_results_on_two_sets_of_images_have_a_table_each() -> None:
    # accuracy is not what the test's is beside
    entries = held_out(loss=(1.357, 9), chance_loss=(1.386, 9), accuracy=(0.9, 9)) | {
        "top1": Measured(value=0.5272, split="test", n=239),
        "majority_top1": Measured(value=0.25, split="test", n=239),
    }
    measured_on = {"validation": 9, "test": 239}
    found = metric_tables.read_metrics(measurements(entries, measured_on), measured_on)
    first, test = (table for _, table in metric_tables.tables(found, page=True))
    assert (first.head[0], test.head[0]) == ("9 held-out images", "239 test images")
    (loss, accuracy), (top1,) = first.rows, test.rows
    assert loss == ["loss", "1.357", "1.386 (the loss of guessing)", metric_tables.FEW]
    assert accuracy[2:] == ["", ""]
    assert top1[2:] == ["25.00% (the commonest class)", metric_tables.WON]


ERROR = {"loss_masked": (0.717, 300), "neighbors_error": (0.731, 300)}
FEW_LABELS = {"loss": (1.09, 20), "chance_loss": (1.0986, 20)}  # of 400 images, 20 have labels
ALIKE = {"loss_masked": (4.1361, 900), "entropy": (4.1364, 900)}
# 10 of 186 patches: of 186 cases Wilson's interval excludes a baseline of 2.7%, of 7 images (0.4 to
# 42%) it does not
PATCHES = {"accuracy_masked": (10 / 186, 186), "commonest": (5 / 186, 186)}


@pytest.mark.parametrize(
    ("values", "images", "verb"),
    [
        # "The model beats the neighbours' mean (0.717 against 0.731 on 3 held-out images)"; and one
        # of many, whose interval is not known, beats nothing either
        (ERROR, 3, metric_tables.FEW),
        (ERROR, 100, metric_tables.AHEAD),
        (ERROR | {"neighbors_error": (0.7, 300)}, 100, metric_tables.LOST),
        (FEW_LABELS, 400, metric_tables.FEW),
        # "The model beats the training colours' entropy (4.136 against 4.136)"
        (ALIKE, 200, metric_tables.OPEN),
        (PATCHES, 7, metric_tables.OPEN),
        (PATCHES, None, metric_tables.WON),
        # a baseline that is not finite
        ({"loss_masked": (4.1, 900), "entropy": (math.nan, 900)}, 200, None),
    ],
)
def test_a_baseline_is_beaten_on_enough_images_alone(values, images, verb) -> None:
    measured_on = {"validation": images} if images else {}
    found = metric_tables.read_metrics(measurements(held_out(**values), measured_on), measured_on)
    assert [other.better for one in found for other in one.comparisons] == [verb] * bool(verb)


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [
        (1.0, ""),
        (math.nan, "It is not known how good this encoder is, because loss is not finite."),
    ],
)
def test_a_network_whose_loss_is_not_finite_beats_nothing(loss: float, verdict: str) -> None:
    """Beside `loss nan` stood that its accuracy beats the commonest class."""
    found = measurements(held_out(loss=(loss, 900), accuracy=(0.9, 900), chance=(0.1, 900)))
    assert run_verdict.verdict(metric_tables.read_metrics(found, {"validation": 900})) == verdict


def test_a_probe_of_independent_images_has_its_interval_in_the_table() -> None:
    """Wilson's of 80 of 239, by hand: centre 0.33734, half of it 0.05941."""
    entries = {"knn": Measured(value=80 / 239, split="test", n=239)}
    ((_, table),) = metric_tables.tables(
        metric_tables.read_metrics(measurements(entries)), page=True
    )
    assert table.head[0] == "239 test images"
    assert table.rows == [["k-NN", "33.47% (27.79 to 39.68)"]]
