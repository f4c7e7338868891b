"""What an encoder is compared with, on the same images: while it trains, and frozen."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from helpers.images import images
from helpers.options import LOADED, altered
from helpers.runs import Killed, run
from ssl_vit.data import loaders, sources
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.evaluation import beside, dense
from ssl_vit.jobs import evaluate as evaluate_job
from ssl_vit.jobs import finish
from ssl_vit.jobs.run_result import run_result
from ssl_vit.pages import metric_tables, run_wording
from ssl_vit.pages.run_record import read_run
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.records.run import Difference, Measured, Result
from ssl_vit.runs.folder import Run
from ssl_vit.stats import paired_difference

KNN = ["eval.knn=true", "eval.images=200"]
MEASURED = [
    *("recipe=evaluate", "probe.measures=[knn,linear,few_shot]", "probe.shots=[1,3]"),
    *("probe.steps=10", "probe.trials=2", "data.share=0.01", *LOADED),
]


def result_of(done: Run) -> Result:
    found = done.result()
    assert found is not None
    return found


def evaluated(words: list[str]) -> Result:
    made = Run(resolve(words))
    made.reconcile()
    result = evaluate_job.evaluate(made)
    assert result is not None
    return result


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


def test_fresh_weights_are_those_that_an_evaluation_of_scratch_has(tiny: list[str]) -> None:
    """The same network of the run's own seed, measured by itself: the same value, to the bit."""
    trained = run(altered(tiny, "seed=7", "name=trained"))
    where = [f"out={trained.folder.parent}"]
    own = evaluated([*MEASURED, *where, f"init={trained.folder}", "name=own", "data.size=16"])
    model = [f"model.{key}={value}" for key, value in trained.recipe.model if key != "name"]
    model = [word for word in model if not word.endswith("=None")]
    alone = evaluated(
        altered(
            [*MEASURED, *where, *model],
            *("init=scratch", "seed=7", "name=alone", "data.size=16", "probe.pool=avg"),
        )
    )
    for measure in ("knn", "linear", "few_shot_1", "few_shot_3"):
        assert own.metrics[f"fresh_{measure}"].value == alone.metrics[measure].value
        apart = own.metrics[f"fresh_{measure}"].difference
        assert apart is not None and apart.low <= apart.mean <= apart.high
        both = own.metrics[measure].value - alone.metrics[measure].value
        assert apart.mean == pytest.approx(both)
    assert own.metrics["guess_knn"].value == 0.1
    assert not any(name.startswith("fresh_") for name in alone.metrics)


def test_the_pixels_are_an_image_at_8_x_8(tiny: list[str]) -> None:
    recipe = resolve(altered(tiny, "data.size=32"))
    image = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    means = image.numpy().reshape(2, 3, 8, 4, 8, 4).mean((3, 5)) / 255
    mean, std = (np.reshape(x, (3, 1, 1)) for x in (recipe.data.mean, recipe.data.std))
    expected = ((means - mean) / std).reshape(2, -1)
    found = beside.pixel_reader(recipe.data)(image)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_knn_is_measured_while_training_beside_fresh_weights_and_pixels(tiny: list[str]) -> None:
    done = run(altered(tiny, *KNN, "name=run"))
    metrics = result_of(done).metrics
    assert {name for name in metrics if "knn" in name} == {
        f"{start}probe_knn" for start in ("", "fresh_", "pixels_", "guess_")
    }
    # at the end alone: it would take more than its share of 12 steps
    assert [row["step"] for row in done.rows() if "probe/knn" in row] == [12]
    splits = sources.load(done.recipe.data)
    layout = BatchLayout(16, 16, 0, 1)

    def pixels(source: sources.Source, most: int) -> tuple[np.ndarray, np.ndarray]:
        seen = loaders.held_out_batches(source, done.recipe.data, layout, most)
        x = torch.cat([beside.pixel_reader(done.recipe.data)(batch.image) for batch in seen])
        index, label = (torch.cat([getattr(b, name) for b in seen]) for name in ("index", "label"))
        order = index.argsort()
        return x[order].numpy(), label[order].numpy()

    (train, label), (test, truth) = pixels(splits.train, 1000), pixels(splits.validation, 200)

    def vote(distance: np.ndarray) -> np.ndarray:
        return np.exp((1 - distance) / 0.07)

    theirs = KNeighborsClassifier(20, metric="cosine", weights=vote).fit(train[100:], label[100:])
    found = metrics["pixels_probe_knn"]
    assert found.n == 200 and found.split == "validation"
    assert found.value == pytest.approx((theirs.predict(test) == truth).mean(), abs=0.011)


def test_training_does_not_notice_it(tiny: list[str]) -> None:
    plain, probed = run(altered(tiny, "name=plain")), run(altered(tiny, *KNN, "name=probed"))
    files = [(one.export / "model.safetensors").read_bytes() for one in (plain, probed)]
    assert files[0] == files[1]


def test_what_it_is_compared_with_is_measured_once(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on takes it from its folder; the initial weights could not be measured any
    more."""
    first = run(altered(tiny, "name=first"))
    words = altered(tiny, *KNN, f"init={first.folder}", "name=run")
    whole = run(altered(words, "name=whole"))
    with monkeypatch.context() as patch:

        def killed(*values: object) -> None:
            raise Killed

        patch.setattr(finish, "finish", killed)
        with pytest.raises(Killed):
            run(words)
    monkeypatch.setattr(beside, "fresh_network", killed)
    again = run(words)
    one, other = (result_of(done).metrics for done in (whole, again))
    assert one.keys() == other.keys() and "start_probe_knn" in one
    assert all(one[name] == other[name] for name in one)


def test_checkpoint_best_leaves_other_images_for_the_verdict(tiny: list[str]) -> None:
    """Of 5,000 held-out images the first 200 choose; where all of them do, no difference is
    measured."""
    best = altered(tiny, *KNN, "checkpoint.best=loss")
    metrics = result_of(run(altered(best, "name=others"))).metrics
    assert metrics["fresh_probe_knn"].difference is not None
    few = altered(best, "data.validation=0.004", "name=same")
    assert result_of(run(few)).metrics["fresh_probe_knn"].difference is None


def test_without_labels_it_says_that_features_were_not_compared(tiny: list[str]) -> None:
    done = run(altered(tiny, *KNN, "data.labels=false", "name=run"))
    result = result_of(done)
    assert not any("knn" in name for name in result.metrics)
    text = str(run_result(done, result))
    assert "verdict     features not compared: the images have no labels. " in text
    assert "features    not compared with fresh weights; on images with labels: " in text
    assert "fine-tuning not compared: " in text


def test_folders_that_may_be_no_classes_are_not_probed(tiny: list[str], tmp_path) -> None:
    images(root := tmp_path / "own", **{f"folder{n}": 2 for n in range(30)})
    done = run(
        altered(tiny, *KNN, f"data.path={root}", "data.validation=0.2", "eval.images=6", "name=r")
    )
    assert result_of(done).not_compared is not None


def verdict(mean: float, low: float, high: float) -> str:
    metrics = {
        "knn": Measured(value=0.3 + mean, split="test", n=100),
        "fresh_knn": Measured(
            value=0.3, split="test", n=100, difference=Difference(mean=mean, low=low, high=high)
        ),
        "guess_knn": Measured(value=0.1, split="test", n=100),
    }
    return metric_tables.verdict([*metric_tables.comparisons(metrics)])


def test_the_verdict_is_by_the_paired_interval() -> None:
    """Case: k-NN 26.3% beside 28.5% of the same network untrained, and guessing 10%."""
    assert verdict(-0.022, -0.036, -0.008).startswith("k-NN features of this encoder are worse")
    assert verdict(0.022, 0.008, 0.036).startswith("k-NN features of this encoder are better")
    assert "cannot be told from" in verdict(0.022, -0.001, 0.045)
    assert "guessing" not in verdict(0.022, 0.008, 0.036)


def test_pixels_that_are_better_are_in_the_verdict() -> None:
    low = Difference(mean=-0.1, low=-0.12, high=-0.08)
    high = Difference(mean=0.03, low=0.01, high=0.05)
    metrics = {
        "knn": Measured(value=0.31, split="test", n=100),
        "fresh_knn": Measured(value=0.28, split="test", n=100, difference=high),
        "pixels_knn": Measured(value=0.41, split="test", n=100, difference=low),
    }
    assert metric_tables.verdict([*metric_tables.comparisons(metrics)]) == (
        "k-NN features of this encoder are better than untrained ones."
        " By k-NN the pixels at 8 x 8 are better."
    )


def test_images_that_chose_the_weights_give_no_verdict() -> None:
    metrics = {
        name: Measured(value=value, split="validation", n=100)
        for name, value in (("probe_knn", 0.4), ("fresh_probe_knn", 0.3), ("guess_probe_knn", 0.1))
    }
    said = metric_tables.verdict([*metric_tables.comparisons(metrics)])
    assert said.startswith("No verdict on its features: these images chose its weights")


@pytest.mark.parametrize("size", [16, 32])
def test_a_run_that_learns_nothing_is_its_own_fresh_weights(tiny: list[str], size: int) -> None:
    """At another image size too, where another network would be drawn from the seed."""
    still = ["optim.lr=1e-30", "optim.weight_decay=0", "seed=3"]
    done = run(altered(tiny, *still, "name=still"))
    words = [*MEASURED, f"out={done.folder.parent}", f"init={done.folder}", "name=own"]
    metrics = evaluated([*words, f"data.size={size}"]).metrics
    for measure in ("knn", "linear", "few_shot_1"):
        assert metrics[measure].value == metrics[f"fresh_{measure}"].value
        apart = metrics[f"fresh_{measure}"].difference
        assert apart is not None and apart.mean == 0


def test_images_that_probe_knn_chooses_on_give_no_difference(tiny: list[str]) -> None:
    done = run(altered(tiny, *KNN, "checkpoint.best=probe/knn", "name=run"))
    assert [row["step"] for row in done.rows() if "probe/knn" in row] == [4, 8, 12]
    assert result_of(done).metrics["fresh_probe_knn"].difference is None


def test_an_evaluation_on_the_split_that_chose_has_no_difference(tiny: list[str], tmp_path) -> None:
    """Another share of the training images is apart, though it has the fingerprint of the split."""
    images(root := tmp_path / "own", train__a=40, train__b=40, val__a=12, val__b=12)
    images(root, test__a=9, test__b=8)
    words = altered(tiny, f"data.path={root}", "data.validation=val", "checkpoint.best=loss")
    done = run(altered(words, "name=run"))
    words = ["recipe=evaluate", "probe.measures=[knn]", "probe.neighbors=3", *LOADED]
    words += [f"init={done.folder}", f"out={done.folder.parent}"]
    for split, paired in (("val", False), ("test", True)):
        found = evaluated([*words, f"data.test={split}", f"name={split}"]).metrics["fresh_knn"]
        assert (found.difference is not None) == paired


def test_few_held_out_labels_are_not_probed(tiny: list[str], tmp_path) -> None:
    images(root := tmp_path / "own", train__a=40, train__b=40, val__a=3, val__b=2)
    words = altered(tiny, *KNN, f"data.path={root}", "data.validation=val", "name=run")
    reason = result_of(run(words)).not_compared
    assert reason is not None and "5 held-out ones are too few" in reason


def test_a_difference_of_few_masks_has_no_interval() -> None:
    counts = torch.tensor([[[3, 1], [4, 2], [4, 2]]]).repeat(29, 1, 1)
    assert dense.difference(counts, counts, 0) is None
    both = torch.cat([counts, counts])
    assert dense.difference(both, both, 0) == (0, 0)


def test_a_page_says_that_fine_tuning_was_not_compared(tiny: list[str]) -> None:
    probed, without = (
        run(altered(tiny, *KNN, f"data.labels={labels}", f"name={labels}"))
        for labels in ("true", "false")
    )
    said = run_wording.outcome(read_run(probed.folder))
    assert " features of this encoder " in said and "Fine-tuning was not compared." in said
    said = run_wording.outcome(read_run(without.folder))
    assert "Its features were not compared: the images have no labels." in said
