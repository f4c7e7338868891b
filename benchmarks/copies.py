"""Measure how many made copies `probe.find_copies` finds, and how many false alarms it gives.

    python benchmarks/copies.py path=IMAGES train=10000 copies=2000 others=4000 seed=2 out=FOLDER

IMAGES is a data set. The first `train` of its training images, in a random order, are the training
images. Copies are made of the first `copies` of these: resized to 0.5 to 2 times the side, saved as
JPEG with quality 30 to 90, cropped to 70 to 100% of the area, mirrored, and all of this together.
The next `others` training images are other images, but the data set itself may contain copies. So
FOLDER/pairs.png shows each pair that was found among these images, for a person to judge.

The result is a JSON object: for each kind of copy, the share whose original is found, with a 95%
interval. For the other images, the share that counts as a copy. `phash` is the same for the
perceptual hash of imagehash (64 bits, of the image and its mirror image, at most 4 bits differ).
`seconds` are the CPU seconds on one thread to read the training images, and to compare the other
images with them.
"""

import io
import json
import math
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
OTHERS = "others"
MOST_BITS = 4  # largest difference of the perceptual hashes of copies
FILTERS = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS)


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


def nearest_by_hash(test_M2: np.ndarray, train_N2: np.ndarray) -> np.ndarray:
    """Return for each image the row of the nearest training image, or -1 if none is near."""
    nearest = []
    for test_2 in test_M2:
        bits_N = np.bitwise_count(train_N2[:, :1] ^ test_2).min(1)
        row = int(bits_N.argmin())
        nearest.append(row if bits_N[row] <= MOST_BITS else -1)
    return np.array(nearest)


def nearest_by_pixels(test: Thumbnails, train: Thumbnails) -> np.ndarray:
    """Return for each image the row of the training image that it is a copy of, or -1."""
    nearest = np.full(len(test.row_N), -1)
    for pair in near_copies.find_copies(test, train, torch.device("cpu")):
        nearest[pair.test] = pair.train
    return nearest


def share(hits: np.ndarray) -> dict[str, float]:
    """Return the share of hits with a 95% interval."""
    low, high = wilson_interval(hits.mean(), len(hits))
    return {"share": float(hits.mean()), "low": low, "high": high, "n": len(hits)}


def summarise(nearest: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return the share of copies whose original is found, and of other images that are found."""
    found = {kind: share(nearest[kind] == np.arange(len(nearest[kind]))) for kind in KINDS}
    return found | {OTHERS: share(nearest[OTHERS] >= 0)}


def draw_pairs(pairs: list[tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """Draw pairs of images side by side, six pairs in a row."""
    canvas = Image.new("RGB", (6 * 220, 110 * math.ceil(len(pairs) / 6) or 1), "white")
    for number, pair in enumerate(pairs):
        for place, array in enumerate(pair):
            picture = Image.fromarray(array).resize((104, 104))
            canvas.paste(picture, (220 * (number % 6) + 105 * place, 110 * (number // 6)))
    canvas.save(path)


def main(options: dict[str, str]) -> None:
    torch.set_num_threads(1)
    num_train, num_copies, num_others = (int(options[key]) for key in ("train", "copies", OTHERS))
    seed = int(options["seed"])
    recipe = ssl_vit.resolve(f"recipe=mpp data.path={options['path']}")
    source = run_splits.load(recipe.data, test=False).train
    rows = np.random.default_rng(seed).permutation(len(source))[: num_train + num_others]
    encoded, _ = source.fetch(rows)
    arrays = [decode(raw).permute(1, 2, 0).contiguous().numpy() for raw in encoded]
    began = time.process_time()
    train = near_copies.read_thumbnails(source.subset(rows[:num_train]), recipe.data)
    seconds = {"read": time.process_time() - began}
    hashes_N2 = np.stack([phash_bits(Image.fromarray(array)) for array in arrays[:num_train]])
    sets = {OTHERS: arrays[num_train:]}
    for kind in KINDS:
        rng = np.random.default_rng(seed)
        originals = map(Image.fromarray, arrays[:num_copies])
        sets[kind] = [np.array(make_copy(image, kind, rng)) for image in originals]
    by_pixels, by_hash = {}, {}
    for name, images in sets.items():
        made = Source(Arrays(images), no_labels(len(images)))
        test = near_copies.read_thumbnails(made, recipe.data)
        began = time.process_time()
        by_pixels[name] = nearest_by_pixels(test, train)
        seconds.setdefault("compare", time.process_time() - began)
        hashes_M2 = np.stack([phash_bits(Image.fromarray(image)) for image in images])
        by_hash[name] = nearest_by_hash(hashes_M2, hashes_N2)
    pairs = [
        (image, arrays[row])
        for image, row in zip(sets[OTHERS], by_pixels[OTHERS], strict=True)
        if row >= 0
    ]
    draw_pairs(pairs, Path(options["out"]) / "pairs.png")
    result = {"pixels": summarise(by_pixels), "phash": summarise(by_hash), "seconds": seconds}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(DEFAULTS | dict(word.split("=", 1) for word in sys.argv[1:]))
