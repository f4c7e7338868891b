"""Data sets with other labels than CIFAR-10's, for what study/worth is asked beside its arms.

python results/label_sets.py folds OUT seed=10 data.share=0.01 data.path=IMAGES ...
python results/label_sets.py pseudo OUT RUN

`folds` writes the labelled images of a share as five data sets, OUT/0 to OUT/4, for tuning on no
other labels: a fifth of them is the split `validation`, the others `train`, and each is held out
once. The words are options of recipe=finetune. `pseudo` writes one data set, whose split `train` has
all that RUN could have been trained on: the images whose labels it has seen with these, the others
with the class that it gives them, for self-training (Lee, 2013).
"""

import dataclasses
import sys
import tempfile
from pathlib import Path

import datasets
import numpy as np
from safetensors.numpy import load_file

import ssl_vit
from ssl_vit.config.images import Data
from ssl_vit.data import sources
from ssl_vit.data.base import View

FOLDS = 5


def rows(source: sources.Source) -> np.ndarray:
    """The rows of a share in the split that it is taken of, in the order of the draw."""
    assert isinstance(source, View), "expected a share of the training images"
    return source.full_rows()


def table(data: Data) -> datasets.Dataset:
    """The training split of parquet files, as they are."""
    files = sorted(map(str, Path(data.path).glob(f"{data.train}-*.parquet")))
    return datasets.load_dataset("parquet", data_files=files, split="train")


def write(images: datasets.Dataset, folder: Path, split: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images.to_parquet(folder / f"{split}-00000-of-00001.parquet")


def folds(out: Path, options: list[str]) -> None:
    """Class after class, each fifth image of the draw goes to the same fold."""
    data = ssl_vit.resolve(["recipe=finetune", "init=scratch", "model=vit_p8", *options]).data
    images = table(data)
    share = rows(sources.load(data).train)
    share = share[np.argsort(np.array(images["label"])[share], kind="stable")]
    parts = [share[number::FOLDS] for number in range(FOLDS)]
    for number, held_out in enumerate(parts):
        others = np.concatenate([part for part in parts if part is not held_out])
        write(images.select(others), out / str(number), "train")
        write(images.select(held_out), out / str(number), "validation")


def pseudo(out: Path, folder: Path) -> None:
    run = ssl_vit.load_run(folder)
    data = run.recipe.data
    known = rows(sources.load(data).train)
    every = rows(sources.load(dataclasses.replace(data, share=1.0)).train)
    images = table(data)
    label_N = predicted(folder, data.train)
    label_N[known] = np.array(images["label"])[known]
    features = images.features
    relabelled = images.remove_columns("label").add_column("label", label_N).cast(features)
    write(relabelled.select(np.sort(every)), out, "train")


def predicted(folder: Path, split: str) -> np.ndarray:
    """The class (N,) that a fine-tuned run gives each image of a split."""
    with tempfile.TemporaryDirectory() as beside:
        found = ssl_vit.embed(init=folder, split=split, out=beside)
        files = sorted(map(str, found.files))
        features = datasets.load_dataset("parquet", data_files=files, split="train")
        feature_ND = features.with_format("numpy")["embedding"][:]
    head = load_file(folder / "export" / "heads.safetensors")
    logits_NC = feature_ND @ head["head.weight"].T + head["head.bias"]
    return logits_NC.argmax(1)


if __name__ == "__main__":
    verb, place, *words = sys.argv[1:] or [""] * 2
    if verb == "folds":
        folds(Path(place), words)
    elif verb == "pseudo" and len(words) == 1:
        pseudo(Path(place), Path(words[0]))
    else:
        sys.exit(__doc__)
