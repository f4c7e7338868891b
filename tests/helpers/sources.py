"""Sources of images, and all that is in one."""

import numpy as np
import pytest

from ssl_vit import rng
from ssl_vit.data import run_splits
from ssl_vit.data.labels import Labels
from ssl_vit.data.source import Source, Store
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data


def load(path, test=False, **words):
    return run_splits.load(Data(name="own", path=str(path), **words), test=test)


def with_test_images(path, split="test", **words):
    """With test images, of a split or of a share of train."""
    return run_splits.load(Data(name="own", path=str(path), test=split, **words), test=True)


def opened(path, **words):
    """The training images at a place, none of them held out, and all that is said of them."""
    found = load(path, **{"validation": 0} | words)
    return found.train, [*found.notes, *found.guesses]


def refusal(path, test=False, **words):
    """The one line by which a place is refused, at once or when its images are read."""
    with pytest.raises(UserError) as caught:
        for part in load(path, test, **words)[:2]:
            part.fetch(np.arange(len(part)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def content(source):
    """{encoded image: label} of a whole source, asked for in no order; every image must be its
    own."""
    raw, label = source.fetch(rng.permute(np.arange(len(source)), len(source), rng.key(9)))
    assert label.dtype == np.int64 and len(set(raw)) == len(raw) == len(label) == len(source)
    return dict(zip(raw, label.tolist(), strict=True))


def everything(splits):
    train, held_out = content(splits.train), content(splits.validation)
    assert not train.keys() & held_out.keys()
    return train | held_out


class Made(Store):
    """So many images that a function makes of their rows; `read`: rows that were asked for."""

    def __init__(self, length, make):
        self.length, self.make, self.read = length, make, []

    def __len__(self):
        return self.length

    def fetch(self, rows):
        assert ((rows >= 0) & (rows < self.length)).all()
        self.read += rows.tolist()
        return [self.make(row) for row in rows.tolist()]

    def sizes(self):
        return np.zeros(self.length, np.int64)

    def name(self, row):
        return f"number {row}"


def listed(images, label_N=None, classes=()):
    """A source of these images; without labels they are -1."""
    label_N = np.full(len(images), -1) if label_N is None else label_N
    return Source(Made(len(images), images.__getitem__), Labels(label_N, list(classes)))


def numbers(length):
    """A source whose images are nothing and whose labels are the rows' numbers."""
    return Source(Made(length, lambda row: b""), Labels(np.arange(length), []))


DATA = Data(name="numbered", size=8, crop_area=0.3, eval_crop=1.0)


def noisy(length, broken=()):
    """A source of noise images (8 x 8) whose labels follow from their numbers; some may be
    broken."""

    def make(row):
        pixels = np.random.default_rng(row).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        return b"broken" if row in broken else pixels

    return Source(Made(length, make), Labels(7 * np.arange(length) + 1, []))
