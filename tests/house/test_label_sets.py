"""results/label_sets.py: folds of a share of the labels, and labels that a network gives."""

import io
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

import ssl_vit
from helpers.options import LOADED, ROOT, altered

sys.path.insert(0, str(ROOT / "results"))
import label_sets

CLASSES, EACH = 4, 30
SHARE = ["data.size=16", "data.validation=0.1", "data.validation_from=train", "data.share=0.4"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Parquet files of images whose grey is their row, class after class."""
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=[*"abcd"])}
    )
    for split, count in (("train", CLASSES * EACH), ("test", 12)):
        table: dict = {"image": [], "label": []}
        for row in range(count):
            file = io.BytesIO()
            Image.fromarray(np.full((16, 16, 3), row, np.uint8)).save(file, "png")
            table["image"].append({"bytes": file.getvalue(), "path": None})
            table["label"].append(row * CLASSES // count)
        rows = datasets.Dataset.from_dict(table, features)
        rows.to_parquet(tmp_path / "images" / f"{split}-00000-of-00001.parquet")
    return tmp_path / "images"


def read(folder: Path, split: str) -> dict[int, int]:
    """{an image's row in the original split: its label}."""
    found = datasets.load_dataset("parquet", data_files=str(folder / f"{split}-*"), split="train")
    return {image.getpixel((0, 0))[0]: found["label"][i] for i, image in enumerate(found["image"])}


def test_folds_hold_each_labelled_image_out_once(images: Path, tmp_path: Path) -> None:
    options = [f"data.path={images}", *SHARE, "data.share_seed=3"]
    label_sets.folds(tmp_path / "folds", options)
    recipe = ssl_vit.resolve(["recipe=finetune", "init=scratch", "model=vit_n4", *options])
    share = {*label_sets.rows(label_sets.sources.load(recipe.data).train).tolist()}
    held_out = []
    for number in range(label_sets.FOLDS):
        train = read(tmp_path / "folds" / str(number), "train")
        part = read(tmp_path / "folds" / str(number), "validation")
        assert train.keys() | part.keys() == share and not train.keys() & part.keys()
        assert all(label == row // EACH for row, label in (train | part).items())
        counts = np.bincount([*part.values()], minlength=CLASSES)
        assert counts.max() - counts.min() <= 1
        held_out += part
    assert len(share) == round(0.4 * 0.9 * CLASSES * EACH) and sorted(held_out) == sorted(share)


@pytest.mark.parametrize("held_out_of", ["train", "share"])
def test_labels_are_the_networks_but_for_those_that_it_has_seen(
    held_out_of: str, images: Path, tmp_path: Path
) -> None:
    options = ["recipe=finetune", "init=scratch", "model=vit_n4", f"data.path={images}"]
    options += altered(SHARE, f"data.validation_from={held_out_of}")
    options += ["optim.steps=3", "optim.warmup=1", "optim.batch=8", "eval.test=true", *LOADED]
    options += [f"out={tmp_path}", "name=run", "log.tensorboard=false"]
    ssl_vit.finetune(options)
    run = tmp_path / "run"
    written = np.load(run / "predictions.npz")
    assert np.array_equal(label_sets.predicted(run, "test", 12), written["top5"][:, 0])
    label_sets.pseudo(tmp_path / "pseudo", run)
    data = ssl_vit.load_run(run).recipe.data
    held_out = label_sets.rows(label_sets.sources.load(data).validation)
    known = label_sets.rows(label_sets.sources.load(data).train)
    given = label_sets.predicted(run, "train", CLASSES * EACH)
    expected = {
        row: row // EACH if row in known else int(given[row])
        for row in range(CLASSES * EACH)
        if row not in held_out
    }
    assert read(tmp_path / "pseudo", "train") == expected
    assert len(held_out) and not {*known} & {*held_out}


@pytest.mark.parametrize("words", [[], ["folds"], ["--help"], ["pseudo", "out"]])
def test_wrong_words_are_answered_with_how_it_is_called(words: list[str]) -> None:
    command = [sys.executable, str(ROOT / "results" / "label_sets.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "label_sets.py folds OUT" in done.stderr
    assert "Traceback" not in done.stderr
