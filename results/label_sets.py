"""Makes data sets for questions about study/worth: folds of its labels, and pseudo-labels.

python results/label_sets.py folds OUT data.path=IMAGES data.size=32 data.validation=0.02 \\
    data.validation_from=train data.share=0.01 data.share_seed=10
python results/label_sets.py pseudo OUT RUN

`folds` writes the labelled images of a share as five data sets, OUT/0 to OUT/4, for tuning on no
other labels: a fifth of them is the split `validation`, the others `train`, and each is held out
once. The words are options of recipe=finetune. `pseudo` writes one data set for self-training (Lee,
2013), whose split `train` has every training image but those that RUN was validated on: the ones
that RUN was trained on with their labels, the others with the class that RUN predicts.
"""

import sys
import tempfile
from pathlib import Path

import datasets
import numpy as np
from safetensors.numpy import load_file

import ssl_vit
from ssl_vit.config.images import Data
from ssl_vit.data import sources
from ssl_vit.data.base import Source, View, origin

FOLDS = 5


def rows(source: Source) -> np.ndarray:
    """The rows of a share in the split that it is taken of, in the order of the draw."""
    if not isinstance(source, View):
        sys.exit("error: expected a share of the training images (data.share=)")
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
    if not isinstance(data.test, str):
        sys.exit(f"error: data.test={data.test} of {folder}: expected a split")
    splits = sources.load(data)
    labelled = rows(splits.train)
    images = table(data)
    taken_N = np.ones(len(images), bool)
    if origin(splits.validation) is origin(splits.train):
        taken_N[rows(splits.validation)] = False
    label_N = predicted(folder, data.train, len(images))
    label_N[labelled] = np.array(images["label"])[labelled]
    features = images.features
    relabelled = images.remove_columns("label").add_column("label", label_N).cast(features)
    write(relabelled.select(np.flatnonzero(taken_N)), out, "train")


def predicted(folder: Path, split: str, count: int) -> np.ndarray:
    """The class (N,) that a fine-tuned run gives each of the `count` images of a split."""
    with tempfile.TemporaryDirectory() as beside:
        found = ssl_vit.embed(init=folder, split=split, out=beside)
        files = sorted(map(str, found.files))
        features = datasets.load_dataset("parquet", data_files=files, split="train")
        columns = features.with_format("numpy")[:]
    if not np.array_equal(columns["index"], np.arange(count)):
        sys.exit(f"error: {len(columns['index'])} of {count} images of {split} could be read")
    head = load_file(folder / "export" / "heads.safetensors")
    logits_NC = columns["embedding"] @ head["head.weight"].T + head["head.bias"]
    return logits_NC.argmax(1)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["folds", place, *options]:
            folds(Path(place), options)
        case ["pseudo", place, run]:
            pseudo(Path(place), Path(run))
        case _:
            sys.exit(__doc__)
