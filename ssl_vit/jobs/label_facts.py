"""What a run records of its labels for those who go on with it: how many an evaluation would learn
from, and why names of folders may be no classes."""

import dataclasses
import re

import numpy as np

from ..config.images import Data
from ..data import sources
from ..data.base import Source, origin
from ..data.image_files import FOLDERS
from ..data.sources import Splits
from ..errors import UserError
from ..formatting import count_of_images
from ..runs.next_steps import TEST

MOST = 2**24  # images whose labels are counted
FEW = 5  # images: classes of fewer are hardly classes
SEPARATORS = re.compile(r"[-_., ]+")
# A part of a date, or a number: 2025, 07, 3rd, 2025T12, July, Sept
PART = re.compile(
    r"\d+(st|nd|rd|th|t\d+)?|(jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)"
    r"|(january|february|march|april|august|september|october|november|december)",
    re.IGNORECASE,
)


def label_facts(splits: Splits, data: Data) -> dict[str, object]:
    """`label_counts` and `label_doubt` of environment.json; nothing of images without one label
    each, of streams, and of more than MOST images."""
    if not splits.label_source or splits.stream or len(splits.train) > MOST:
        return {}
    images, smallest = _counts(splits, data)
    return {
        "label_counts": {"images": images, "smallest": smallest},
        "label_doubt": label_doubt(origin(splits.train)),
    }


def label_doubt(source: Source) -> str:
    """Why the names of folders that labels were taken from may be no classes, in words; empty
    without doubt, and for other labels."""
    if source.label_source != FOLDERS:
        return ""
    if all(map(_is_date, source.classes)):
        return "their names are dates or numbers"
    median = float(np.median(_by_class(source)))
    if median < FEW:
        return f"half of them have at most {count_of_images(int(median))}"
    return ""


def _is_date(name: str) -> bool:
    parts = [part for part in SEPARATORS.split(name) if part]
    return bool(parts) and all(map(PART.fullmatch, parts))


def _counts(splits: Splits, data: Data) -> tuple[int, int]:
    """Labelled training images of an evaluation with these data, and those of its smallest class;
    zeros where no share can be held out to test on."""
    train, data = splits.train, dataclasses.replace(data, labelled=1.0)
    if not splits.testable:
        try:
            train = sources.load(dataclasses.replace(data, test=TEST), test=True).train
        except UserError:
            return 0, 0
    elif isinstance(train, sources.PartlyLabelled):
        train = train.whole
    classes = data.classes or len(train.classes) or train.label_range[1] + 1
    count_C = _by_class(train)
    return int(count_C.sum()), int(count_C.min()) if len(count_C) == classes else 0


def _by_class(source: Source) -> np.ndarray:
    """How many images each class has that has any (C,)."""
    label_N = source.label_of(np.arange(len(source)))
    return np.unique(label_N[label_N >= 0], return_counts=True)[1]
