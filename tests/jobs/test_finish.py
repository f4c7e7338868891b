"""The end of training on labels: what is tested, what is exported, what it has cost."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import ssl_vit
from helpers.launching import launch_ranks, outcome
from helpers.measurements import by_name
from helpers.options import CLASSIFIER, altered
from helpers.resolving import resolve
from helpers.runs import result, run
from ssl_vit.data import loaders, run_splits, synthetic
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data


@pytest.fixture
def words(tiny: list[str]) -> list[str]:
    return altered(tiny, *CLASSIFIER)


def from_weights(words: list[str], init: Path, *more: str) -> list[str]:
    """The words with other initial weights, which bring their model."""
    kept = [word for word in words if not word.startswith("model.")]
    return altered(kept, f"init={init}", *more)


def recipe_of(folder: Path):
    return resolve([f"recipe={folder}/recipe.yaml"])


def test_the_feature_is_the_exports(pretrained: Path) -> None:
    """MPP has no loss on the class token: its export gives the mean of the patches. What is given
    wins, and is in the default name; weights that say nothing give the class token."""
    words = ["recipe=finetune", f"init={pretrained}"]
    given = "supervised.pool=token"
    for more, pool, name in (([], "avg", ""), ([given], "token", f"-{given}")):
        found = resolve([*words, *more])
        assert (found.supervised.pool, found.name) == (pool, f"finetune-init=mpp{name}")
    assert resolve(["recipe=finetune", "init=scratch"]).supervised.pool == "token"


def test_every_test_image_is_told_once_and_the_numbers_are_theirs(tuned: Path) -> None:
    predicted, made = np.load(tuned / "predictions.npz"), result(tuned)
    assert predicted["index"].tolist() == list(range(500)) and predicted["top5"].shape == (500, 5)
    test = run_splits.load(recipe_of(tuned).data, test=True).test
    assert test is not None
    assert predicted["label"].tolist() == test.fetch(np.arange(500))[1].tolist()
    right = predicted["top5"] == predicted["label"][:, None]
    top1, top5 = (by_name(made)[name] for name in ("top1", "top5"))
    assert top1 | {"value": right[:, 0].mean(), "n": 500, "split": "test"} == top1
    assert top5["value"] == right.any(1).mean()
    environment = json.loads((tuned / "environment.json").read_text())
    assert environment["data"].keys() == {"train", "validation", "test"}


def test_the_export_is_a_classifier_that_timm_and_transformers_read(tuned: Path) -> None:
    from transformers import AutoModelForImageClassification

    data = recipe_of(tuned).data
    test = run_splits.load(data, test=True).test
    drawn = next(iter(loaders.evaluation_loader(test, data, BatchLayout(8, 8, 0, 1), 0)))
    pixels = drawn.image / 127.5 - 1
    model = timm.create_model(f"local-dir:{tuned}/export", pretrained=True).eval()
    theirs = AutoModelForImageClassification.from_pretrained(tuned / "export").eval()
    with torch.no_grad():
        logits = model(pixels)
        torch.testing.assert_close(theirs(pixels).logits, logits, atol=1e-5, rtol=0)
    assert logits.argmax(-1).tolist() == np.load(tuned / "predictions.npz")["top5"][:8, 0].tolist()
    assert theirs.config.id2label[0] == synthetic.CLASSES[0]


def test_what_is_looked_at_and_exported_are_the_averaged_weights(
    tuned: Path, words: list[str]
) -> None:
    plain, average = ssl_vit.load_run(tuned), run([*words, "optim.average=0.5"])
    heads, losses, looked = (
        [of(one) for one in (plain, average)]
        for of in (
            lambda one: timm.create_model(f"local-dir:{one.export}", pretrained=True).head.weight,
            lambda one: [row["loss"] for row in one.rows() if "loss" in row],
            lambda one: [row["validation/loss"] for row in one.rows() if "validation/loss" in row],
        )
    )
    assert not torch.equal(*heads)
    assert losses[0] == losses[1]  # training itself is not touched
    assert looked[0] != looked[1]


def test_totals_count_what_the_weights_came_from_which_are_known_again(
    pretrained: Path, words: list[str], tmp_path: Path
) -> None:
    """A finished run is told for its own initial weights only."""
    init = shutil.copytree(pretrained, tmp_path / "mpp")
    given = from_weights(words, init, "eval.test=false", "name=tuned")
    before, made = result(init), ssl_vit.finetune(given)
    assert made.total_exaflop == pytest.approx(before["exaflop"] + made.exaflop)
    assert before["total_exaflop"] == before["exaflop"]
    assert ssl_vit.finetune(given) == made
    weights = init / "export" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"abcd")
    with pytest.raises(UserError, match=f"init={init}: .* have different weights"):
        ssl_vit.finetune(given)
    (init / "result.json").write_text("{")
    with pytest.raises(UserError, match=r"result\.json is damaged"):
        ssl_vit.finetune(altered(given, "name=new"))


def test_a_share_is_the_same_subset_for_every_seed_and_inside_a_larger_one() -> None:
    def names(share: float) -> list[str]:
        train = run_splits.load(Data(size=16, share=share)).train
        return [train.name(row) for row in range(len(train))]

    tenth, half = names(0.1), names(0.5)
    assert (len(tenth), len(set(half))) == (5000, 25_000) and tenth == half[:5000]


def test_two_processes_tell_every_test_image_once(words: list[str], tmp_path: Path) -> None:
    """And the same of each as one process: the batch and its augmentation are the same wherever
    they lie."""
    count = 501  # not as many for each
    words = altered(words, "data.test=0.01002", "data.share=0.05", "compute.batch=8")
    one = np.load(run([*words, "name=one"]).predictions)
    probe = [
        word
        for word in words
        if word.startswith(("out=", "data.", "compute."))
        if "batch" not in word
    ]
    probe += ["recipe=evaluate", f"init={tmp_path}/runs/two", "probe.measures=[knn]", "name=probed"]
    for tool, given in (("finetune", [*words, "name=two"]), ("evaluate", probe)):
        statuses, outputs = outcome(launch_ranks(2, f"tools/{tool}.py", *given))
        assert statuses == [0, 0], outputs
    two = np.load(tmp_path / "runs" / "two" / "predictions.npz")
    assert len(set(two["index"].tolist())) == len(two["index"]) == count
    assert (two["index"] == one["index"]).all() and (two["label"] == one["label"]).all()
    # sums in another order move a close call
    assert (two["top5"][:, 0] == one["top5"][:, 0]).mean() > 0.98
    for name, metric in (("two", "top1"), ("probed", "knn")):
        assert by_name(result(tmp_path / "runs" / name))[metric]["n"] == count
