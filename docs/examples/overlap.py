"""Find test images that are also among the training images.

    pip install imagehash
    python docs/examples/overlap.py "data.path=IMAGES data.test=0.2"
    python docs/examples/overlap.py runs/mpp "data.path=OTHER_IMAGES"

The first argument names the training images, and the second argument the test images (by default
the first argument names both). An argument is the folder of a run, or options of images in quotes.
All training images of the split are searched, even if a run used only a share.

Two images overlap if the pixels are the same, or if the perceptual hashes differ by few bits, also
for the mirrored image. Images are compared as RGB of 8 bits. The suffix N in names stands for
training images.
"""

import hashlib
import sys
from pathlib import Path

import imagehash
import numpy as np
from PIL import Image, ImageOps

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import ssl_vit
from ssl_vit.data import run_splits
from ssl_vit.data.decoding import decode
from ssl_vit.errors import report_errors

DISTANCE = 4  # hashes that differ by at most 4 of 64 bits count as near
ROWS = 256  # number of images that are read together


def read_split(place, test):
    """Return the test images or the training images that an argument names.

    All images of the split are returned, even if a run used only a share.
    """
    if Path(place, "recipe.yaml").exists():
        recipe = ssl_vit.load_run(place).recipe
    else:
        recipe = ssl_vit.resolve(f"recipe=mpp {place}")
    data = recipe.data.model_copy(update={"validation": 0.0, "share": 1.0, "stream": False})
    splits = run_splits.load(data, test=test)
    return splits.test if test else splits.train


def hashes(source):
    """Yield the row and the hashes of each readable image.

    The hashes are a digest of the pixels, the perceptual hash (imagehash's phash: 64 bits from the
    cosine transform of the grey image), and the perceptual hash of the mirrored image.
    """
    for start in range(0, len(source), ROWS):
        rows = np.arange(start, min(start + ROWS, len(source)))
        for row, raw in zip(rows.tolist(), source.fetch(rows)[0], strict=True):
            try:
                image = Image.fromarray(decode(raw).permute(1, 2, 0).contiguous().numpy())
            except ValueError as error:
                print(f"left out    {source.name(row)}: {error}")
                continue
            digest = hashlib.sha256(f"{image.size}".encode() + image.tobytes()).digest()
            views = np.stack([imagehash.phash(one).hash for one in (image, ImageOps.mirror(image))])
            yield row, digest, *np.packbits(views.reshape(2, -1), axis=1).view(np.uint64)[:, 0]


def find(train, test):
    """Yield a pair (test row, training row, differing bits) for each test image that overlaps.

    The training image is the first image with the same pixels, and then the bits are None.
    Otherwise the training image has the nearest hash, at most DISTANCE bits away.
    """
    known = list(hashes(train))
    first = {digest: row for row, digest, *_ in reversed(known)}  # the first of equal images
    hash_N = np.array([hashed for _, _, hashed, _ in known], np.uint64)
    for row, digest, hashed, mirrored in hashes(test) if known else ():
        bits_N = np.minimum(np.bitwise_count(hash_N ^ hashed), np.bitwise_count(hash_N ^ mirrored))
        nearest = int(bits_N.argmin())
        if digest in first:
            yield row, first[digest], None
        elif bits_N[nearest] <= DISTANCE:
            yield row, known[nearest][0], int(bits_N[nearest])


def main(places):
    train, test = read_split(places[0], False), read_split(places[-1], True)
    pairs = list(find(train, test))
    for row, other, bits in pairs:
        how = "the same pixels" if bits is None else f"near: {bits} of 64 bits differ"
        print(f"{test.name(row)}  {train.name(other)}  {how}")
    exact = sum(bits is None for _, _, bits in pairs)
    print(
        f"{exact:,} of {len(test):,} test images are among {len(train):,} training images;"
        f" {len(pairs) - exact:,} more are near one"
    )


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    with report_errors():
        main(sys.argv[1:])
