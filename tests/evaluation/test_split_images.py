"""evaluation/split_images.py: which images a run is trained and measured on."""

from pathlib import Path

import numpy as np
import pytest

from helpers import images
from ssl_vit.evaluation import split_images
from ssl_vit.lab import engine
from ssl_vit.recipe.load import resolve


@pytest.fixture
def partly_labelled(tmp_path: Path) -> Path:
    """20 images of two classes, and 30 beside the classes' folders, which have no label."""
    images.images(tmp_path, one=10, other=10, _=30)
    return tmp_path


@pytest.mark.parametrize(
    ("recipe", "by_labels"), [("supervised", True), ("finetune", True), ("mpp", False)]
)
def test_what_learns_labels_alone_trains_on_labelled_images(
    partly_labelled: Path, recipe: str, by_labels: bool
) -> None:
    """Images without a label were drawn too, so that a baseline from scratch had fewer labels a
    step than it was told; and the n of its accuracy counted held-out images without one."""
    options = [f"recipe={recipe}", f"data.path={partly_labelled}", "data.validation=0.2"]
    options += ["init=scratch"] if recipe == "finetune" else []
    splits = split_images.load(resolve(options), test=False)
    label_N = [
        label
        for source in (splits.train, splits.validation)
        for label in source.label_of(np.arange(len(source)))
    ]
    assert len(label_N) == (20 if by_labels else 50)
    assert (min(label_N) >= 0) == by_labels


@pytest.mark.parametrize(("recipe", "few"), [("supervised", True), ("mpp", False)])
def test_a_study_is_told_of_few_labelled_images(
    partly_labelled: Path, recipe: str, few: bool
) -> None:
    """Half of 250 images are held out, of which fine-tuning measures about 10: --check said 125."""
    images.images(partly_labelled, _=230)
    options = [f"recipe={recipe}", f"data.path={partly_labelled}", "data.validation=0.5"]
    lines = engine.images(resolve([*options, "eval.test=false"]), [], False, {})
    assert bool(lines) is few
