"""Why names of folders that labels were taken from may be no classes."""

import re

import numpy as np

from ..data.files import FOLDERS
from ..data.source import Source
from ..formatting import count_of_images

FEW = 5  # images: classes of fewer are hardly classes
SEPARATORS = re.compile(r"[-_., ]+")
# A part of a date, or a number: 2025, 07, 3rd, 2025T12, July, Sept
PART = re.compile(
    r"\d+(st|nd|rd|th|t\d+)?|(jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)"
    r"|(january|february|march|april|august|september|october|november|december)",
    re.IGNORECASE,
)


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


def _by_class(source: Source) -> np.ndarray:
    """How many images each class has that has any (C,)."""
    label_N = source.label_of(np.arange(len(source)))
    return np.unique(label_N[label_N >= 0], return_counts=True)[1]
