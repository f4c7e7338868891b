"""evaluation/split_images.py: which images a run is trained and measured on."""

import re
from pathlib import Path

import numpy as np
import pytest

from helpers import images
from helpers.options import TINY, altered
from helpers.resolving import resolve
from ssl_vit.errors import UserError
from ssl_vit.evaluation import split_images
from ssl_vit.jobs import cli
from ssl_vit.lab.images import few_image_lines


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
    lines = few_image_lines(resolve([*options, "eval.test=false"]), [], False, {})
    assert bool(lines) is few


@pytest.mark.parametrize("objective", ["dino", "ibot", "lejepa", "moco_v3"])
@pytest.mark.parametrize("count", [4, 80])
def test_too_few_held_out_images_to_compare_name_a_share_that_works(
    objective: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    images.images(tmp_path / "photos", one=count // 2, other=count // 2)
    words = altered(TINY, f"recipe={objective}", f"data.path={tmp_path}/photos", "optim.steps=1")
    words = altered(words, f"out={tmp_path}/runs", "name=run", "optim.warmup=0", "optim.batch=2")
    if objective != "moco_v3":
        words += ["views.local_size=8"]
    with pytest.raises(SystemExit):
        cli.pretrain(words)
    line = capsys.readouterr().err
    share = re.search(r"Use data\.validation=([\d.]+)\.", line)
    assert line.startswith("error: data.validation=null: ") and share, line
    assert not (tmp_path / "runs" / "run" / "recipe.yaml").exists()
    recipe = resolve([*words, f"data.validation={share[1]}"])
    split_images.check_held_out(recipe, split_images.load(recipe, test=False), processes=1)


def test_too_few_held_out_images_for_the_processes_name_what_works(tmp_path: Path) -> None:
    """Ten images: 0.2 of them are two, 0.5 five, and six processes need more images."""
    images.images(tmp_path, one=5, other=5)
    options = ["recipe=mpp", f"data.path={tmp_path}"]
    recipe = resolve(options)
    splits = split_images.load(recipe, test=False)
    split_images.check_held_out(recipe, splits, processes=1)
    for processes, remedy in ((2, "data.validation=0.2"), (3, "data.validation=0.5")):
        with pytest.raises(UserError, match=rf"^data.validation=null: .* Use {remedy}\."):
            split_images.check_held_out(recipe, splits, processes)
    with pytest.raises(UserError, match="at least "):
        split_images.check_held_out(recipe, splits, processes=6)
    recipe = resolve([*options, "data.validation=0.5", "eval.images=2"])
    splits = split_images.load(recipe, test=False)
    with pytest.raises(UserError, match=r"^eval.images=2: .* Use eval.images=3\."):
        split_images.check_held_out(recipe, splits, processes=3)
