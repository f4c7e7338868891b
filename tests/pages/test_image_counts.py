"""On how many images a figure stands: beside every held-out figure, with a caution below 100."""

import json
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


def verbs(entries: dict[str, Measured], measured_on: dict[str, int]) -> list[str]:
    """Whether the model beats each of its baselines."""
    found = metric_tables.read_metrics(measurements(entries, measured_on), measured_on)
    return [other.better for one in found for other in one.comparisons]


def test_results_on_two_sets_of_images_have_a_table_each() -> None:
    entries = {
        "loss": Measured(value=1.357, split="validation", n=9),
        "chance_loss": Measured(value=1.386, split="validation", n=9),
        "accuracy": Measured(value=0.9, split="validation", n=9),  # not what the test's is beside
        "top1": Measured(value=0.5272, split="test", n=239),
        "majority_top1": Measured(value=0.25, split="test", n=239),
    }
    measured_on = {"validation": 9, "test": 239}
    found = metric_tables.read_metrics(measurements(entries, measured_on), measured_on)
    held_out, test = (table for _, table in metric_tables.tables(found, page=True))
    assert (held_out.head[0], test.head[0]) == ("9 held-out images", "239 test images")
    (loss, accuracy), (top1,) = held_out.rows, test.rows
    assert loss == ["loss", "1.357", "1.386 (the loss of guessing)", metric_tables.FEW]
    assert accuracy[2:] == ["", ""]
    assert top1[2:] == ["25.00% (the commonest class)", metric_tables.WON]


def test_a_loss_of_few_images_decides_nothing() -> None:
    """ "The model beats the neighbours' mean (0.717 against 0.731 on 3 held-out images)"; and one of
    many, whose interval is not known, beats nothing either."""
    entries = {
        "loss_masked": Measured(value=0.717, split="validation", n=300),
        "neighbors_error": Measured(value=0.731, split="validation", n=300),
    }
    for images, verb in ((3, metric_tables.FEW), (100, metric_tables.AHEAD)):
        assert verbs(entries, {"validation": images}) == [verb]
    worse = entries | {"neighbors_error": Measured(value=0.7, split="validation", n=300)}
    assert verbs(worse, {"validation": 100}) == [metric_tables.LOST]
    # of 400 held-out images, of which 20 have labels
    labelled = {
        "loss": Measured(value=1.09, split="validation", n=20),
        "chance_loss": Measured(value=1.0986, split="validation", n=20),
    }
    assert verbs(labelled, {"validation": 400}) == [metric_tables.FEW]


def test_a_baseline_that_is_not_finite_is_not_beaten() -> None:
    entries = {
        "loss_masked": Measured(value=4.1, split="validation", n=900),
        "entropy": Measured(value=float("nan"), split="validation", n=900),
    }
    assert verbs(entries, {"validation": 200}) == []


def test_a_network_whose_loss_is_not_finite_beats_nothing() -> None:
    """Beside `loss nan` stood that its accuracy beats the commonest class."""
    entries = {
        "loss": Measured(value=1.0, split="validation", n=900),
        "accuracy": Measured(value=0.9, split="validation", n=900),
        "chance": Measured(value=0.1, split="validation", n=900),
    }
    broken = entries | {"loss": Measured(value=float("nan"), split="validation", n=900)}
    for found, verdict in (
        (entries, ""),
        (broken, "It is not known how good this encoder is, because loss is not finite."),
    ):
        readings = metric_tables.read_metrics(measurements(found), {"validation": 900})
        assert run_verdict.verdict(readings) == verdict


def test_values_that_print_alike_are_told_apart_by_nobody() -> None:
    """ "The model beats the training colours' entropy (4.136 against 4.136)"."""
    entries = {
        "loss_masked": Measured(value=4.1361, split="validation", n=900),
        "entropy": Measured(value=4.1364, split="validation", n=900),
    }
    assert verbs(entries, {"validation": 200}) == [metric_tables.OPEN]


def test_a_probe_of_independent_images_has_its_interval_in_the_table() -> None:
    """Wilson's of 80 of 239, by hand: centre 0.33734, half of it 0.05941."""
    entries = {"knn": Measured(value=80 / 239, split="test", n=239)}
    ((_, table),) = metric_tables.tables(
        metric_tables.read_metrics(measurements(entries)), page=True
    )
    assert table.head[0] == "239 test images"
    assert table.rows == [["k-NN", "33.47% (27.79 to 39.68)"]]


def test_patches_of_few_images_decide_nothing() -> None:
    """10 of 186 patches: of 186 cases Wilson's interval excludes a baseline of 2.7%, of 7 images (0.4
    to 42%) it does not."""
    metrics = {
        "accuracy_masked": Measured(value=10 / 186, n=186, split="validation"),
        "commonest": Measured(value=5 / 186, n=186, split="validation"),
    }
    assert verbs(metrics, {"validation": 7}) == [metric_tables.OPEN]
    assert verbs(metrics, {}) == [metric_tables.WON]
