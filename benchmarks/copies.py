"""Measure how many made copies `probe.find_copies` finds, and how many false alarms it gives.

    python benchmarks/copies.py path=IMAGES train=10000 copies=2000 others=4000 out=FOLDER

IMAGES is a data set. The first `train` of its training images, in a random order, are the training
images. Copies are made of the first `copies` of these: resized to 0.5 to 2 times the side, saved as
JPEG with quality 30 to 90, cropped to 70 to 100% of the area, mirrored, and all of this together.
The next `others` training images are no copies, except for near-duplicates in the data set itself.
The page in FOLDER shows the pairs that were found among them, for a person to judge.

The even images choose a threshold: the lowest one with no more than one false alarm in a thousand.
The odd images measure recall and false alarms, with 95% intervals. The perceptual hash of imagehash
(64 bits, of the image and its mirror image) is measured in the same way. The result is a JSON
object, with the CPU seconds of the search on one thread.
"""

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import imagehash
import numpy as np
import torch
from PIL import Image, ImageOps

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ssl_vit
from ssl_vit.data import run_splits
from ssl_vit.data.decoding import decode
from ssl_vit.data.labels import no_labels
from ssl_vit.data.source import Source, Store
from ssl_vit.evaluation import near_copies
from ssl_vit.evaluation.near_copies import Thumbnails
from ssl_vit.stats import wilson_interval

DEFAULTS = {
    "path": "",
    "train": "10000",
    "copies": "2000",
    "others": "4000",
    "out": ".",
    "seed": "0",
}
KINDS = ("resized", "recompressed", "cropped", "mirrored", "all")
ALLOWED = 0.001  # share of false alarms
FILTERS = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS)
CPU = torch.device("cpu")


class Arrays(Store):
    """Images (H, W, 3) in memory."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays)

    def fetch(self, rows: np.ndarray) -> list[Any]:
        return [self.arrays[row] for row in rows]

    def name(self, row: int) -> str:
        return f"row {row}"

    def sizes(self) -> np.ndarray:
        return np.array([array.nbytes for array in self.arrays])


def make_copy(image: Image.Image, kind: str, rng: np.random.Generator) -> Image.Image:
    """Return a copy of an image that is changed in one way, or in all ways."""
    if kind in ("cropped", "all"):
        area = rng.uniform(0.7, 1)
        height = rng.uniform(area, 1)
        sides = [height, area / height]
        rng.shuffle(sides)
        width, height = (round(side * full) for side, full in zip(sides, image.size, strict=True))
        left = int(rng.integers(0, image.width - width + 1))
        top = int(rng.integers(0, image.height - height + 1))
        image = image.crop((left, top, left + width, top + height))
    if kind == "mirrored" or (kind == "all" and rng.random() < 0.5):
        image = ImageOps.mirror(image)
    if kind in ("resized", "all"):
        factor = 2 ** rng.uniform(-1, 1)
        size = (round(factor * image.width), round(factor * image.height))
        image = image.resize(size, FILTERS[int(rng.integers(len(FILTERS)))])
    if kind in ("recompressed", "all"):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=int(rng.integers(30, 91)))
        image = Image.open(file).convert("RGB")
    return image


def phash_bits(image: Image.Image) -> np.ndarray:
    """Return the perceptual hashes of an image and of its mirror image, uint64 (2,)."""
    hashes = [imagehash.phash(one).hash.ravel() for one in (image, ImageOps.mirror(image))]
    return np.packbits(np.stack(hashes), axis=1).view(np.uint64)[:, 0]


def score_by_hash(test_M2: np.ndarray, train_N2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the fewest differing bits, negated, and the row of the nearest training image."""
    scores, rows = [], []
    for test_2 in test_M2:
        bits_N = np.bitwise_count(train_N2[:, :1] ^ test_2).min(1).astype(int)
        rows.append(int(bits_N.argmin()))
        scores.append(-bits_N[rows[-1]])
    return np.array(scores, float), np.array(rows)


def score_by_details(test: Thumbnails, train: Thumbnails) -> tuple[np.ndarray, np.ndarray]:
    """Return the similarity of the most similar training image, -1 without any, and its row."""
    scores, rows = np.full(len(test.row_N), -1.0), np.full(len(test.row_N), -1)
    for pair in near_copies.find_copies(test, train, CPU, least=-1):
        scores[pair.test], rows[pair.test] = pair.similarity, pair.train
    return scores, rows


def share(hits: np.ndarray) -> dict[str, float]:
    """Return the share of hits with a 95% interval."""
    low, high = wilson_interval(hits.mean(), len(hits))
    return {"share": float(hits.mean()), "low": low, "high": high, "n": len(hits)}


def summarise(
    scores: dict[str, tuple[np.ndarray, np.ndarray]], excluded: np.ndarray, fixed: float
) -> dict[str, Any]:
    """Choose a threshold on even images, and return recall and false alarms on odd images.

    Args:
        scores: {kind: scores and rows}. The images of "others" are no copies.
        excluded: Rows of others that are near-duplicates in the data set itself.
        fixed: The threshold of the package, to measure as well.
    """
    is_no_copy = ~np.isin(np.arange(len(scores["others"][0])), excluded)
    other, parity = scores["others"][0][is_no_copy], np.flatnonzero(is_no_copy) % 2
    ordered = np.sort(other[parity == 0])[::-1]
    chosen = float(np.nextafter(ordered[int(ALLOWED * len(ordered))], np.inf))
    result: dict[str, Any] = {"chosen": chosen, "fixed": fixed}
    for name in ("chosen", "fixed"):
        result[f"recall, {name}"] = {
            kind: share(((found >= result[name]) & (row == np.arange(len(row))))[1::2])
            for kind, (found, row) in scores.items()
            if kind != "others"
        }
        result[f"false alarms, {name}"] = share(other[parity == 1] >= result[name])
    result["all false alarms, fixed"] = share(other >= fixed)
    return result


def main(options: dict[str, str]) -> None:
    torch.set_num_threads(1)
    num_train, num_copies, num_others = (int(options[key]) for key in ("train", "copies", "others"))
    recipe = ssl_vit.resolve(f"recipe=mpp data.path={options['path']}")
    source = run_splits.load(recipe.data, test=False).train
    rng = np.random.default_rng(int(options["seed"]))
    rows = rng.permutation(len(source))[: num_train + num_others]

    def read(rows: np.ndarray) -> list[np.ndarray]:
        raws = source.fetch(rows)[0]
        return [decode(raw).permute(1, 2, 0).contiguous().numpy() for raw in raws]

    began = time.process_time()
    train = near_copies.read_thumbnails(source.subset(rows[:num_train]), recipe.data)
    read_seconds = time.process_time() - began
    sets = {"others": read(rows[num_train:])}
    originals = [Image.fromarray(array) for array in read(rows[:num_copies])]
    for kind in KINDS:
        rng = np.random.default_rng(int(options["seed"]))
        sets[kind] = [np.array(make_copy(image, kind, rng)) for image in originals]
    hashes_N2 = np.stack([phash_bits(Image.fromarray(one)) for one in read(rows[:num_train])])
    by_details, by_hash = {}, {}
    for name, arrays in sets.items():
        test = near_copies.read_thumbnails(
            Source(Arrays(arrays), no_labels(len(arrays))), recipe.data
        )
        began = time.process_time()
        by_details[name] = score_by_details(test, train)
        if name == "others":
            seconds = time.process_time() - began
        hashes = np.stack([phash_bits(Image.fromarray(array)) for array in arrays])
        by_hash[name] = score_by_hash(hashes, hashes_N2)
        print(name, file=sys.stderr, flush=True)
    np.savez(
        f"{options['out']}/scores.npz",
        **{
            f"{name} {key}": value
            for name, pair in by_details.items()
            for key, value in zip(("score", "row"), pair, strict=True)
        },
    )
    print(
        json.dumps(
            {
                "details": summarise(by_details, np.array([], int), near_copies.COPY),
                "phash": summarise(by_hash, np.array([], int), -4),
                "read": read_seconds,
                "search": seconds,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main(DEFAULTS | dict(word.split("=", 1) for word in sys.argv[1:]))
