"""Sources of images, and all that is in one."""

import numpy as np

from ssl_vit import rng
from ssl_vit.data import sources
from ssl_vit.data.base import Source
from ssl_vit.recipe.schema import Data


def load(path, test=False, **words):
    return sources.load(Data(name="own", path=str(path), **words), test=test)


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


class Rows(Source):
    """A source whose images are nothing and whose labels are the rows' numbers."""

    def __init__(self, length):
        self.length, self.classes = length, []

    def __len__(self):
        return self.length

    def fetch(self, rows):
        assert ((rows >= 0) & (rows < self.length)).all()
        return [b""] * len(rows), np.asarray(rows, np.int64)

    def name(self, row):
        return f"number {row}"


DATA = Data(name="numbered", size=8, crop_area=0.3, eval_crop=1.0)


class Numbered(Source):
    """A source of noise images (8 x 8) whose labels follow from their numbers; some may be
    broken."""

    def __init__(self, length, broken=()):
        self.length, self.broken, self.classes = length, broken, []

    def __len__(self):
        return self.length

    def fetch(self, rows):
        images = [
            np.random.default_rng(row).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            for row in rows.tolist()
        ]
        return [
            b"broken" if r in self.broken else i for r, i in zip(rows.tolist(), images, strict=True)
        ], 7 * rows + 1

    def name(self, row):
        return f"number {row}"
