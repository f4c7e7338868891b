"""Sweeps of images without labels, whose held-out loss decides."""

import json

import pytest

from helpers.made_studies import FROZEN, IMAGES, alter, changed, study, with_metric
from helpers.resolving import parse_python
from ssl_vit.errors import UserError
from ssl_vit.lab import results, verdict

LR = {"optim.lr": "1e-3,3e-3"}


def made(folder, given, *, recipe="mpp", measure="loss", **report):
    """A finished study like a sweep, of which every name has lower losses than the one before it."""
    ((key, texts),) = given.items()
    names = texts.split(",")
    content = changed(
        FROZEN,
        axes={key: {name: {"pretrain": {key: json.loads(name)}} for name in names}},
        runs={"pretrain": changed(FROZEN["runs"]["pretrain"], over=[key], options__recipe=recipe)},
        report={"test": "pretrain", "measures": [measure]} | report,
    )

    def measured(task):
        value = 1 - 0.1 * names.index(task.at[key]) + 0.01 * task.seed
        return {measure: (value, "validation")}

    return study(folder, content, measured)


def sentence(folder):
    return verdict.decide_claims(results.load(folder)).sentences[0]


@pytest.mark.parametrize(
    ("recipe", "given", "key"),
    [
        ("mpp", {"corruption.rate": "0.5,0.15"}, "corruption.rate"),
        ("mpp", {"model.patch": "4,8"}, "model.patch"),
        ("dino", {"optim.batch": "8,16"}, "optim.batch"),
    ],
)
def test_an_easier_task_is_no_better_training(tmp_path, recipe, given, key):
    """A claim that the lower loss of fewer corrupted patches, or of larger ones, is a gain."""
    folder = made(tmp_path / "s", given, recipe=recipe)
    first, second = next(iter(given.values())).split(",")
    said = sentence(folder)
    assert (
        said.startswith(f"Nothing is compared: {first} and {second} ") and f" {key} differs" in said
    )


def test_what_was_asked_of_other_tasks_is_refused(tmp_path):
    """A baseline by the loss of another task."""
    folder = made(tmp_path / "s", {"corruption.rate": "0.5,0.15"}, baseline="0.5")
    with pytest.raises(UserError, match=r"corruption\.rate differs"):
        sentence(folder)


@pytest.mark.parametrize(
    ("recipe", "given", "measure"),
    [
        ("mpp", LR, "loss"),
        ("mpp", {"corruption.rate": "0.15,0.5"}, "probe_knn"),
        ("supervised", {"model.patch": "4,8"}, "accuracy"),
    ],
)
def test_the_same_task_is_compared(tmp_path, recipe, given, measure):
    """The claims of sweeps of other keys, of probes, and of labels, which are the same for all."""
    folder = made(tmp_path / "s", given, recipe=recipe, measure=measure)
    assert "Nothing is compared" not in sentence(folder)


def test_runs_that_held_out_other_images_are_not_compared(tmp_path):
    """Losses of different images side by side, which the fingerprint of test images cannot tell."""
    folder = made(tmp_path / "s", LR)
    for path in folder.glob("*-3e-3-*/environment.json"):
        alter(path, held_out="others")
    said = sentence(folder)
    assert said.startswith("Nothing is compared: 1e-3 and 3e-3 ") and "different images" in said


def test_each_seed_may_hold_out_its_own_images(tmp_path):
    """A refusal of pairs each of which is measured on the same images."""
    folder = made(tmp_path / "s", LR)
    for path in folder.glob("*/environment.json"):
        alter(path, held_out=f"of {path.parent.name[-1]}")
    assert "Nothing is compared" not in sentence(folder)


def test_a_row_has_the_images_of_its_split(tmp_path):
    """Rows of held-out and of training images that carry the fingerprint of test images."""
    folder = made(tmp_path / "s", LR)
    for split in ("train", "test"):
        with_metric(folder / "pretrain-1e-3-0", f"loss_{split}", value=1.0, split=split, n=9)
    rows = results.load(folder).rows().head(3)
    images = dict(zip(rows["split"], rows["fingerprint"], strict=True))
    assert images == {"validation": "v", "train": "t", "test": "x"}


def test_patches_are_counted_by_their_images(tmp_path):
    """Hundreds of patches of a few held-out images that pass for hundreds of cases."""
    folder = made(tmp_path / "s", LR)
    assert {*results.load(folder).rows()["n"]} == {IMAGES}
    for path in folder.glob("*/result.json"):
        alter(path, measured_on={"validation": 20})
    assert {*results.load(folder).rows()["n"]} == {20}


def test_held_out_images_decide_before_training_images(tmp_path):
    """The alphabet's choice of the split, by which losses of training images decided."""
    folder = made(tmp_path / "s", LR)
    with_metric(folder / "pretrain-1e-3-0", "loss", split="train")  # as of data.validation=0
    assert verdict.decide_claims(results.load(folder)).measure.split == "validation"


def test_a_sweep_from_python_may_hold_one_key_with_one_value():
    """The sweep was not recognised if exactly one of its keys had a single value."""
    sweep = {"optim.lr": [1e-3, 2e-3], "compute.threads": 1, "seeds": [0, 1]}
    found = parse_python(recipe="mpp", sweep=sweep)
    assert {*found.study.axes["optim.lr"]} == {"0.001", "0.002"}
    pretraining = [task for task in found.tasks.values() if task.run == "pretrain"]
    assert [task.seed for task in pretraining] == [0, 1] * 2
    assert {task.options["compute.threads"] for task in pretraining} == {1}


def test_names_of_images_are_swept_like_other_keys():
    found = parse_python(recipe="mpp", sweep={"data": {"name": ["cifar10", "pets"]}}, seeds=1)
    for name in ("cifar10", "pets"):
        assert found.tasks[f"pretrain-{name}-0"].options["data"] == name


@pytest.mark.parametrize(
    ("words", "keywords", "says"),
    [
        ([], {"sweep": {"optim.lr": [1e-3, 2e-3]}, "optim.lr": 5.0}, "for all runs"),
        (["sweep", "optim.lr=1,2"], {"optim.lr": 5.0}, "for all runs"),
        (["sweep", "optim.lr=1,2"], {"sweep": {"optim.lr": [3, 4]}}, "given twice"),
        ([], {"sweep": {"optim.lr": [1e-3, 1e-3, 2e-3]}}, "appears twice"),
        ([], {"sweep": {"data.group": ["null", None]}}, "appears twice"),
    ],
)
def test_a_swept_key_has_its_values_once(words, keywords, says):
    """A value that is silently replaced by another one, or an arm that is silently dropped."""
    with pytest.raises(UserError, match=says):
        parse_python(["recipe=mpp", *words], **keywords)
