"""Which sources of randomness an interval covers: draws of few-shot images, and copies of images."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ssl_vit
from helpers.images import images
from helpers.measurements import by_name
from helpers.options import LOADED, TINY, altered
from helpers.runs import run
from ssl_vit import stats
from ssl_vit.evaluation import baselines
from ssl_vit.lab.compare import Comparison, PredictionOutcomes, measure_difference
from ssl_vit.lab.runs import listed
from ssl_vit.measurements import MetricKey
from ssl_vit.pages import metric_tables, run_verdict
from ssl_vit.pages.run_record import read_run

NETWORK = [word for word in TINY if word.startswith(("model.", "data.size"))]
EVALUATED = ["recipe=evaluate", "init=scratch", "probe.steps=5", "probe.neighbors=3", *NETWORK]
EVALUATED += [*LOADED, "probe.measures=[few_shot,linear,knn]", "probe.shots=[2]"]


def evaluated(root: Path, out: Path, *more: str) -> Any:
    words = [f"data.path={root}", "data.validation=val", f"out={out}", "name=look"]
    return ssl_vit.evaluate(altered(EVALUATED, *words, *more))


def splits(root: Path) -> Path:
    """Noise in two classes, whose labels are as good as drawn."""
    images(root, train__a=24, train__b=24, val__a=6, val__b=6, test__a=20, test__b=20)
    return root


def copy_test_images(root: Path) -> None:
    """Write every test image under a second name."""
    for path in [*(root / "test").rglob("*.png")]:
        shutil.copy(path, path.with_name(f"again-{path.name}"))


def latent(generator, draws: int, count: int, of_draws: float) -> torch.Tensor:
    """Draws of shots by images, right where the sum of normal effects of the draw, of the image and
    of both is above zero. So the true accuracy is that of one normal number."""
    draw, image = generator.normal(size=(draws, 1)), generator.normal(size=(1, count))
    return torch.from_numpy(
        0.5 + of_draws * draw + image + generator.normal(size=(draws, count)) > 0
    )


@pytest.mark.parametrize(("draws", "of_draws"), [(3, 0.4), (10, 0.8)])
def test_the_interval_of_few_shot_covers_draws_and_images(draws: int, of_draws: float) -> None:
    """Wilson's interval of the mean over draws, at 95%, held the accuracy in less than 80%."""
    generator, repeats = np.random.default_rng(1), 400
    truth = 0.5 * math.erfc(-0.5 / math.sqrt(2 + of_draws**2) / math.sqrt(2))
    covered, over_images = 0, 0
    for _ in range(repeats):
        right_TM = latent(generator, draws, 300, of_draws)
        found = baselines.measure_accuracy(MetricKey("few_shot_5"), right_TM, "test", None)
        assert found.interval is not None
        covered += found.interval.low <= truth <= found.interval.high
        low, high = stats.wilson_interval(float(right_TM.double().mean()), 300)
        over_images += low <= truth <= high
    assert covered / repeats > 0.95 - 3 * math.sqrt(0.05 * 0.95 / repeats)
    assert over_images / repeats < 0.8


def test_a_difference_by_the_same_draws_covers_what_they_do_differently() -> None:
    """The effect of a draw that both encoders share is in neither; that of one of them is."""
    generator, repeats = np.random.default_rng(2), 300
    covered = 0
    for _ in range(repeats):
        shared = generator.normal(size=(5, 200))
        one, other = (
            torch.from_numpy(
                shared + 0.3 * generator.normal(size=(5, 1)) + generator.normal(size=(5, 200)) > 0
            )
            for _ in range(2)
        )
        found = baselines.accuracy_difference(one, other, None)
        covered += found.low <= 0 <= found.high
    assert covered / repeats > 0.95 - 3 * math.sqrt(0.05 * 0.95 / repeats)


def test_draws_that_agree_add_nothing_and_one_draw_says_nothing() -> None:
    wilson = stats.wilson_interval(0.6, 50)
    assert stats.widen_over_draws([0.6], wilson) == wilson
    low, high = stats.widen_over_draws([0.6, 0.6, 0.6], wilson)
    assert (low, high) == pytest.approx(wilson)
    # by hand: t of two degrees of freedom is 4.3027, and the standard error 0.1 / sqrt(3)
    half = 4.302653 * 0.1 / math.sqrt(3)
    low, high = stats.widen_over_draws([0.5, 0.6, 0.7], wilson)
    assert low == pytest.approx(0.6 - math.hypot(0.6 - wilson.low, half))
    assert high == pytest.approx(0.6 + math.hypot(wilson.high - 0.6, half))


def test_other_file_names_draw_other_shots_within_the_interval(tmp_path: Path) -> None:
    """5-shot accuracies of one set of images lay outside of each other's intervals."""
    root = splits(tmp_path / "named")
    found = [evaluated(root, tmp_path / "one").metrics["few_shot_2"]]
    for number, path in enumerate(sorted((root / "train").rglob("*.png"), reverse=True)):
        path.rename(path.with_name(f"{number:03}-{path.name}"))
    found.append(evaluated(root, tmp_path / "two").metrics["few_shot_2"])
    for one, other in zip(found, found[::-1], strict=True):
        assert one.draws == 10 and one.interval is not None
        assert one.interval.low <= other.value <= one.interval.high


def test_few_shot_alone_extracts_no_more_features_than_it_did(tmp_path: Path) -> None:
    """Ten draws cost nothing where linear or k-NN need all training images anyway."""
    root = splits(tmp_path / "images")
    for more, draws in (([], 3), (["probe.trials=4"], 4)):
        words = ["probe.measures=[few_shot]", f"name=alone{draws}", *more]
        found = evaluated(root, tmp_path / "runs", *words).metrics["few_shot_2"]
        assert found.draws == draws


def test_one_draw_is_said_not_to_cover_others(tmp_path: Path) -> None:
    found = evaluated(splits(tmp_path / "images"), tmp_path / "runs", "probe.trials=1")
    assert "2-shot (1 draw, other draws are not " in str(found)


def test_every_test_image_twice_is_no_more_evidence(tmp_path: Path) -> None:
    """n was 80, and the intervals a quarter narrower."""
    root = splits(tmp_path / "images")
    once = evaluated(root, tmp_path / "once")
    copy_test_images(root)
    twice = evaluated(root, tmp_path / "twice")
    for name in ("linear", "knn", "few_shot_2", "pixels_knn", "commonest_knn"):
        one, two = once.metrics[name], twice.metrics[name]
        assert two.value == pytest.approx(one.value) and (one.n, two.n) == (40, 80)
        assert one.copies is None
        assert two.copies is not None and two.copies.content() == {
            "distinct": 40,
            "effective": 40.0,
            "relabelled": 0,
        }
        assert one.interval is not None and two.interval is not None
        assert two.interval.content() == pytest.approx(one.interval.content())
        assert one.differences.keys() == two.differences.keys()
        for subject, difference in one.differences.items():
            of_copies = two.differences[subject]
            assert of_copies.content() == pytest.approx(difference.content())
    assert "80 test images, 40 distinct" in str(twice)
    readings = metric_tables.read_metrics(twice.measurements, twice.measured_on)
    assert all(reading.has_few_images for reading in readings)  # 40, not 80
    heads = {table.head[0] for _, table in metric_tables.tables(readings)}
    assert heads == {"80 test images, 40 distinct"}
    page = (tmp_path / "twice" / "look" / "report.html").read_text()
    assert "80 test images, 40 distinct" in page


def test_copies_with_other_labels_are_counted_and_said(tmp_path: Path) -> None:
    """45 images: 36 contents once, two in both classes, one in both and twice in one of them, and one
    twice in one class."""
    root = splits(tmp_path / "images")
    one, two, three, four = sorted((root / "test" / "a").iterdir())[:4]
    for path in (one, two, three):
        shutil.copy(path, root / "test" / "b" / path.name)
    for path in (one, four):
        shutil.copy(path, path.with_name(f"again-{path.name}"))
    found = evaluated(root, tmp_path / "runs", "probe.measures=[knn]")
    assert "45 test images, 40 distinct, 3 with several labels" in str(found)
    copies = found.metrics["knn"].copies
    assert copies is not None and copies.effective == 45**2 / (36 + 3 * 2**2 + 3**2)


def test_probes_while_training_and_the_objective_count_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    root = tmp_path / "images"
    images(root, train__a=40, train__b=40, val__a=15, val__b=15)
    for path in [*(root / "val").rglob("*.png")]:
        shutil.copy(path, path.with_name(f"again-{path.name}"))
    words = [f"data.path={root}", "data.validation=val", "eval.knn=true", "eval.images=60"]
    words += [f"out={tmp_path}", "name=run", "optim.steps=4", "eval.every=4"]
    result = run(altered(TINY, *words)).result()
    for name in ("probe_knn", "fresh_probe_knn", "accuracy_masked"):
        copies = result.metrics[name].copies
        assert copies is not None and copies.distinct == 30, name
    assert result.learned_from is not None and result.learned_from > 0
    shown = capsys.readouterr().out
    assert "60 labelled held-out images, 30 distinct" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("probe at step 4")]
    low, high = stats.wilson_interval(result.metrics["probe_knn"].value, 30)
    assert f"({low:.1%} to {high:.1%})" in line and "(n = 60 images, 30 distinct)" in line


def test_a_classifier_is_tested_on_distinct_images_and_against_the_commonest_class(
    tmp_path: Path,
) -> None:
    """`23.2% (to beat 25.0%)` said nothing in words."""
    root = splits(tmp_path / "images")
    copy_test_images(root)
    words = ["recipe=finetune", "init=scratch", f"data.path={root}", "data.validation=val"]
    words += ["optim.steps=2", "optim.warmup=1", "optim.batch=8", f"out={tmp_path}", "name=run"]
    network = [word for word in TINY if word.startswith(("model.", "data.size"))]
    result = ssl_vit.finetune([*words, *network, *LOADED])
    top1 = result.metrics["top1"]
    difference = top1.differences["majority_top1"]
    assert top1.copies is not None and (top1.n, top1.copies.distinct) == (80, 40)
    assert difference.low <= 0
    said = run_verdict.CLASSIFIER_AS_COMMONEST.partition(" (")[0]
    lines = [*result.lines()]
    (line,) = [line for line in lines if line.startswith("verdict")]
    assert said in line and any("80 test images, 40 distinct" in line for line in lines)
    assert said in (tmp_path / "run" / "report.html").read_text()
    listed_run = listed.list_run(tmp_path, read_run(tmp_path / "run"))
    assert "(n = 80, 40 distinct)" in (listed_run.first_metric(test=True) or "")
    with np.load(tmp_path / "run" / "predictions.npz") as arrays:
        assert len(np.unique(arrays["content"])) == 40


def test_features_of_labels_drawn_at_random_are_no_better_than_one_class(tmp_path: Path) -> None:
    """The verdict said that they cannot be distinguished from untrained ones, and nothing else."""
    root = splits(tmp_path / "images")
    words = [f"data.path={root}", "data.validation=val", f"out={tmp_path}", "name=trained"]
    trained = run(altered(TINY, *words, "optim.steps=2", "optim.warmup=1", "eval.images=8"))
    more = [f"init={trained.folder}", "probe.measures=[knn]"]
    words = [word for word in EVALUATED if not word.startswith("model.")]
    place = [f"data.path={root}", "data.validation=val", f"out={tmp_path}", "name=look"]
    found = ssl_vit.evaluate(altered(words, *place, *more))
    assert "commonest_class" in found.metrics["knn"].differences
    (line,) = [line for line in found.lines() if line.startswith("verdict")]
    assert run_verdict.FEATURES_AS_COMMONEST.partition(" (")[0] in line
    # the interval that decides is not in the tables
    difference = found.metrics["knn"].differences["commonest_class"]
    assert f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f}" in line


def test_a_table_of_seeds_and_images_resamples_contents() -> None:
    """Each image twice: the interval of a paired comparison was a quarter narrower."""
    generator = np.random.default_rng(0)
    table_SM = generator.integers(-1, 2, (4, 60))
    once = stats.resampled_interval(table_SM, 2000)
    content_M = np.tile(generator.permutation(60), 2)
    twice = stats.resampled_interval(np.tile(table_SM, 2), 2000, content_M=content_M)
    assert once is not None and twice == pytest.approx(once)
    # without copies identical to the bit, whatever the hashes are
    assert stats.resampled_interval(table_SM, 2000, content_M=content_M[:60]) == once
    narrower = stats.resampled_interval(np.tile(table_SM, 2), 2000)
    assert narrower is not None and narrower != pytest.approx(once)


def test_a_study_compares_by_distinct_contents() -> None:
    generator = np.random.default_rng(5)
    right = {
        name: generator.integers(0, 2, 50) > 0 for name in ("a0", "a1", "a2", "b0", "b1", "b2")
    }
    rows = pd.DataFrame(
        {
            "value_a": [right[f"a{seed}"].mean() for seed in range(3)],
            "value_b": [right[f"b{seed}"].mean() for seed in range(3)],
            "folder_a": [f"a{seed}" for seed in range(3)],
            "folder_b": [f"b{seed}" for seed in range(3)],
            "origin_a": [f"a{seed}" for seed in range(3)],
            "origin_b": [f"b{seed}" for seed in range(3)],
        }
    )
    found = []
    for times in (1, 2):
        content_M = np.tile(np.arange(50), times)
        correct = {
            name: PredictionOutcomes(np.tile(one, times), content_M) for name, one in right.items()
        }
        compared = measure_difference(Comparison("a", "b"), rows, correct=correct)
        assert compared is not None and compared.over_images
        found.append(compared.interval)
    assert found[0] == pytest.approx(found[1])


def test_a_score_that_is_no_mean_resamples_contents() -> None:
    generator = np.random.default_rng(0)
    one_MK, other_MK = generator.integers(0, 9, (2, 40, 2)).astype(float)

    def ratio(sum_RK: np.ndarray) -> np.ndarray:
        return sum_RK[:, 0] / (1e-9 + sum_RK[:, 1])

    once = stats.resampled_difference(one_MK, other_MK, ratio, 500)
    content_M = np.tile(np.arange(40), 2)
    doubled = [np.tile(each, (2, 1)) for each in (one_MK, other_MK)]
    twice = stats.resampled_difference(*doubled, ratio, 500, content_M=content_M)
    assert twice == pytest.approx(once)


def test_result_json_of_distinct_images_is_as_before(tmp_path: Path) -> None:
    """Nothing is recorded of copies where there are none."""
    evaluated(splits(tmp_path / "images"), tmp_path, "probe.measures=[knn]")
    measured = by_name(json.loads((tmp_path / "look" / "result.json").read_text()))
    assert measured["commonest_knn"].keys() == {
        *("metric", "subject", "split", "value", "n", "interval")
    }
