"""What an encoder is compared with, on the same images: while it trains, and frozen."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ssl_vit
from helpers.images import images
from helpers.measurements import Measured, measurements
from helpers.options import LOADED, TINY, altered
from helpers.resolving import resolve
from helpers.runs import Killed, run
from ssl_vit.evaluation import baselines
from ssl_vit.jobs import finish
from ssl_vit.pages import metric_tables, run_verdict
from ssl_vit.recipe.records.run import Difference
from ssl_vit.runs.folder import Run
from ssl_vit.stats import paired_difference

SHORT = altered(TINY, "optim.steps=4", "optim.warmup=1")
KNN = ["eval.knn=true", "eval.images=200"]
MEASURED = [
    *("recipe=evaluate", "probe.measures=[knn,linear,few_shot]", "probe.shots=[1,3]"),
    *("probe.steps=10", "probe.trials=2", *LOADED),
]


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose features are compared."""
    return run([*altered(SHORT, *KNN), f"out={tmp_path_factory.mktemp('runs')}", "name=probed"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Few images of two classes, as an option."""
    images(root := tmp_path_factory.mktemp("images"), train__a=60, train__b=60)
    images(root, test__a=30, test__b=29)
    return f"data.path={root}"


@pytest.fixture
def short(tmp_path: Path) -> Iterator[list[str]]:
    return [*SHORT, f"out={tmp_path}/runs"]


def test_the_interval_is_agresti_and_mins() -> None:
    """Of 98 images one encoder alone is right on 10, the other alone on 4: with half an image in
    each cell, 10.5 and 4.5 of 100."""
    apart = np.array([1] * 10 + [-1] * 4 + [0] * 84, float)
    mean, (low, high) = paired_difference(apart)
    assert mean == pytest.approx(6 / 98)
    half = 1.959964 * ((10.5 + 4.5 - 6**2 / 100) ** 0.5) / 100
    assert (low, high) == pytest.approx((0.06 - half, 0.06 + half), abs=1e-6)
    # five images that differ, all in one way, are no finding; McNemar's exact p is 0.06
    assert not paired_difference(np.array([1.0] * 4 + [0.0] * 496))[1].excludes_zero
    assert paired_difference(np.array([1.0] * 8 + [0.0] * 492))[1].excludes_zero


def test_fresh_weights_are_those_that_an_evaluation_of_scratch_has(
    short: list[str], folder: str
) -> None:
    """The same network of the run's own seed, measured by itself: the same value, to the bit."""
    trained = run(altered(short, folder, "data.validation=0.2", "seed=7", "name=trained"))
    where = [f"out={trained.folder.parent}", folder]
    own = ssl_vit.evaluate(
        [*MEASURED, *where, f"init={trained.folder}", "name=own", "data.size=16"]
    )
    model = [f"model.{key}={value}" for key, value in trained.recipe.model.network.items()]
    model = [word for word in model if not word.endswith("=None")]
    scratch = ("init=scratch", "seed=7", "name=alone", "data.size=16", "probe.pool=avg")
    alone = ssl_vit.evaluate(altered([*MEASURED, *where, *model], *scratch))
    for measure in ("knn", "linear", "few_shot_1", "few_shot_3"):
        assert own.metrics[f"fresh_{measure}"].value == alone.metrics[measure].value
        apart = own.metrics[measure].differences["untrained"]
        assert apart.low <= apart.mean <= apart.high
        both = own.metrics[measure].value - alone.metrics[measure].value
        assert apart.mean == pytest.approx(both)
    assert own.metrics["commonest_knn"].value == 30 / 59  # the commonest of two classes
    assert not any(name.startswith("fresh_") for name in alone.metrics)


def test_a_run_that_learns_nothing_is_its_own_fresh_weights(short: list[str], folder: str) -> None:
    """At another image size, where another network would be drawn from the seed."""
    still = [folder, "data.validation=0.2", "optim.lr=1e-30", "optim.weight_decay=0", "seed=3"]
    done = run(altered(short, *still, "name=still"))
    words = [*MEASURED, folder, f"out={done.folder.parent}", f"init={done.folder}", "name=own"]
    metrics = ssl_vit.evaluate([*words, "data.size=32"]).metrics
    for measure in ("knn", "few_shot_1"):
        assert metrics[measure].value == metrics[f"fresh_{measure}"].value
        apart = metrics[measure].differences["untrained"]
        assert apart.mean == 0


def test_the_pixels_are_an_image_at_8_x_8() -> None:
    recipe = resolve(altered(TINY, "data.size=32"))
    image = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    means = image.numpy().reshape(2, 3, 8, 4, 8, 4).mean((3, 5)) / 255
    mean, std = (np.reshape(x, (3, 1, 1)) for x in (recipe.data.mean, recipe.data.std))
    expected = ((means - mean) / std).reshape(2, -1)
    found = baselines.pixel_reader(recipe.data)(image)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_knn_is_measured_while_training_beside_fresh_weights_and_pixels(probed: Run) -> None:
    metrics = probed.result().metrics
    assert {name for name in metrics if "knn" in name} == {
        f"{start}probe_knn" for start in ("", "fresh_", "pixels_", "commonest_")
    }
    # at the end alone: it would take more than its share of 4 steps
    assert [row["step"] for row in probed.rows() if "probe/knn" in row] == [4]
    found = metrics["pixels_probe_knn"]
    assert found.n == 200 and found.split == "validation"


def test_what_it_is_compared_with_is_measured_once(
    short: list[str], probed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on takes it from its folder; the initial weights could not be measured any
    more."""
    words = altered(short, *KNN, f"init={probed.folder}", "name=run")
    whole = run(altered(words, "name=whole"))

    def killed(*values: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(finish, "finish", killed)
        run(words)
    monkeypatch.setattr(baselines, "fresh_network", killed)
    one, other = (done.result().metrics for done in (whole, run(words)))
    assert one.keys() == other.keys() and "start_probe_knn" in one
    assert all(one[name] == other[name] for name in one)


@pytest.mark.parametrize(
    ("own", "paired"),
    [
        (["checkpoint.best=loss"], True),  # the first 200 of 5,000 choose
        (["checkpoint.best=loss", "data.validation=0.004"], False),  # all do
        (["checkpoint.best=probe/knn"], False),
    ],
)
def test_images_that_chose_the_weights_give_no_difference(
    short: list[str], own: list[str], paired: bool
) -> None:
    done = run(altered(short, *KNN, *own, "name=run", "eval.every=2", "checkpoint.every=2"))
    knn = done.result().metrics["probe_knn"]
    assert bool(knn.differences) == paired
    seen = [row["step"] for row in done.rows() if "probe/knn" in row]
    assert seen == ([2, 4] if own == ["checkpoint.best=probe/knn"] else [4])


def test_an_evaluation_on_the_split_that_chose_has_no_difference(
    short: list[str], tmp_path: Path
) -> None:
    """Another share of the training images is apart, though it has the fingerprint of the split."""
    images(root := tmp_path / "own", train__a=40, train__b=40, val__a=12, val__b=12)
    images(root, test__a=9, test__b=8)
    words = altered(short, f"data.path={root}", "data.validation=val", "checkpoint.best=loss")
    done = run(altered(words, "name=run"))
    words = ["recipe=evaluate", "probe.measures=[knn]", "probe.neighbors=3", *LOADED]
    words += [f"init={done.folder}", f"out={done.folder.parent}"]
    for split, paired in (("val", False), ("test", True)):
        found = ssl_vit.evaluate([*words, f"data.test={split}", f"name={split}"]).metrics["knn"]
        assert bool(found.differences) == paired


@pytest.mark.parametrize(
    ("made", "words", "says"),
    [
        ({}, ["data.labels=false"], "no labels"),
        ({f"folder{n}": 2 for n in range(30)}, ["data.validation=0.2", "eval.images=6"], ""),
        ({"train__a": 40, "train__b": 40, "val__a": 3, "val__b": 2}, ["data.validation=val"], "5 "),
        (
            {"a": 8, "b": 8},
            ["data.validation=0.2", "eval.images=2"],
            "too few labelled training images",
        ),
        ({"a": 40, "b": 40, "_": 40}, [], "data.validation=0.2 data.validation_from=labelled"),
    ],
    ids=["no labels", "folders that may be no classes", "few held-out images", "few", "partly"],
)
def test_images_that_tell_nothing_of_features_are_not_probed_and_that_is_said(
    short: list[str], tmp_path: Path, made: dict[str, int], words: list[str], says: str
) -> None:
    if made:
        images(root := tmp_path / "own", **made)
        words = [*words, f"data.path={root}"]
    result = run(altered(short, *KNN, *words, "name=run")).result()
    assert result.not_compared is not None and says in result.not_compared
    assert not any("knn" in name for name in result.metrics)


def test_what_is_measured_in_between_counts_labelled_images(
    short: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """An interval of as many images as there were, of which 60% had no label."""
    images(root := tmp_path / "own", a=100, b=100, _=100)
    words = [f"data.path={root}", "data.validation=0.5", "name=run"]
    result = run(altered(short, *KNN, *words)).result()
    n = result.metrics["probe_knn"].n
    assert n is not None and 60 < n < 140
    lines = [one for one in capsys.readouterr().out.splitlines() if "probe at step" in one]
    assert lines and all(f"(n = {n} images)" in one for one in lines)


def readings(split: str = "test", **found: float | Difference) -> list[metric_tables.MetricReading]:
    """Of 100 images; of a baseline the difference from an accuracy of 0.3 may be given."""
    metrics = {}
    for name, value in found.items():
        metrics[name] = Measured(value=value, split=split, n=100)
        if isinstance(value, Difference):
            metrics[name] |= {"value": 0.3 - value.mean, "difference": value}
    return metric_tables.read_metrics(measurements(metrics))


def apart(mean: float) -> Difference:
    return Difference(mean=mean, low=mean - 0.015, high=mean + 0.015)


BETTER, WORSE, OPEN = apart(0.022), apart(-0.022), apart(0.01)
FEW_SHOT = {"few_shot_1": 0.3, "fresh_few_shot_1": WORSE, "few_shot_5": 0.3}
VERDICTS = {
    "worse": (run_verdict.WORSE, {"fresh_knn": WORSE}),
    "better": (run_verdict.BETTER, {"fresh_knn": BETTER}),
    "open": (run_verdict.UNKNOWN, {"fresh_knn": OPEN}),
    "worse than pixels": (run_verdict.AS_PIXELS, {"fresh_knn": BETTER, "pixels_knn": WORSE}),
    # six measures, each at 95%, said that 1-shot features were worse than untrained ones
    "the first main measure": (
        run_verdict.BETTER,
        FEW_SHOT | {"fresh_few_shot_5": WORSE, "linear": 0.3, "fresh_linear": BETTER},
    ),
    # what the commonest class reaches is no finding: untrained weights may be far below both
    "as the commonest class": (
        run_verdict.FEATURES_AS_COMMONEST,
        {"fresh_knn": BETTER, "commonest_knn": 0.27},
    ),
}


@pytest.mark.parametrize(("sentence", "found"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_is_by_the_paired_interval(
    sentence: str, found: dict[str, float | Difference]
) -> None:
    name = "linear probe" if "linear" in found else "k-NN"
    own = {} if "linear" in found else {"knn": 0.3, "commonest_knn": 0.1}
    assert run_verdict.verdict(readings(**own | found)) == sentence.format(measure=name)


def test_one_sentence_at_most_and_none_that_was_not_measured() -> None:
    """A classifier is judged where the features are not, and a task of a study has no sentence
    about the comparison that the study makes."""
    verdict, few = run_verdict.verdict, readings(top1=0.1, majority_top1=0.1)
    said = run_verdict.CLASSIFIER_AS_COMMONEST.format(measure="top-1")
    assert verdict(few) == verdict(few, True) == said
    good = readings(top1=0.9)
    assert verdict(good, True) == run_verdict.FINE_TUNED
    assert verdict(good, True, in_study=True) == ""
    assert verdict([], True) == verdict([]) == ""
    # images that chose the weights
    chose = readings("validation", knn=0.3, fresh_knn=0.278, commonest_knn=0.1)
    assert verdict(chose) == run_verdict.NO_VERDICT.format(reason=run_verdict.NO_INTERVAL)
    assert verdict([], not_compared="no labels").endswith("untrained weights: no labels.")


def test_a_difference_without_an_interval_is_marked() -> None:
    """It stood under a heading that promises an interval; another baseline has its own column, and
    fewer or unknown images are named."""
    values = {"knn": 0.45, "fresh_knn": 0.3, "linear": 0.5, "mean_cosine": 0.5}
    metrics = {name: Measured(value=value, split="test", n=400) for name, value in values.items()}
    metrics["linear"]["n"], metrics["mean_cosine"]["n"] = 300, None
    readings = metric_tables.read_metrics(measurements(metrics))
    (_, table), (_, other) = metric_tables.tables(readings)
    assert [row[0] for row in table.rows] == ["k-NN", "linear probe (n = 300)"]
    assert table.rows[0][3] == "+15.0 (no interval)"
    assert other.head[0] == "test images"
    bare = metric_tables.without_intervals(readings[0])
    assert bare.interval is None and {entry.better for entry in bare.comparisons} == {""}


def test_the_table_has_each_baseline_and_the_paired_difference() -> None:
    """Of 500 images; Wilson's interval of 52 of 500, by hand: 8.0% to 13.4%."""
    values = {"knn": 0.104, "fresh_knn": 0.128, "pixels_knn": 0.318, "commonest_knn": 0.12}
    metrics = {name: Measured(value=value, split="test", n=500) for name, value in values.items()}
    metrics["fresh_knn"]["difference"] = Difference(mean=-0.024, low=-0.057, high=0.009)
    metrics["loss"] = Measured(value=2.5, split="test", n=500)
    metrics["chance_loss"] = Measured(value=2.3, split="test", n=500)
    features, results = metric_tables.tables(metric_tables.read_metrics(measurements(metrics)))
    assert (features.title, results.title) == ("features", "results")
    lines = metric_tables.text_lines(*features)
    assert lines[0].startswith("features ")
    assert features.table.head == [
        *("500 test images", "this encoder", "untrained", "difference (95% CI)"),
        *("pixels at 8 x 8", "commonest class"),
    ]
    assert features.table.rows == [
        ["k-NN", "10.4% (8.0 to 13.4)", "12.8%", "-2.4 (-5.7 to +0.9)", "31.8%", "12.0%"]
    ]
    assert results.table.rows == [["loss", "2.500", "2.300 (the loss of guessing)", "no"]]
