"""Folders of images of four channels and 12 bits in files of 16."""

from pathlib import Path

import numpy as np

CHANNELS = 4
LOW, HIGH = 200, 4000  # of their values, but for one hot pixel in some


def values(number: int, side: int = 16, channels: int = CHANNELS) -> np.ndarray:
    """uint16 (H, W, C): a brightness of each channel and class, with noise."""
    random = np.random.default_rng(number)
    level_C = LOW + (HIGH - LOW) * random.random(channels)
    noise_HWC = random.normal(0, 80, (side, side, channels))
    found = (level_C + noise_HWC).clip(LOW, HIGH).astype(np.uint16)
    if number % 9 == 0:
        found[0, 0] = 65535
    return found


def folder(root: Path, each: int = 20, channels: int = CHANNELS) -> Path:
    """split/class/number.npy, channels first in every other file."""
    for s, (split, count) in enumerate((("train", each), ("test", each // 4))):
        for c, name in enumerate(("ant", "bee")):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                array = values(1000 * s + 100 * c + i, channels=channels)
                file = root / split / name / f"{i}.npy"
                np.save(file, array if i % 2 else array.transpose(2, 0, 1))
    return root
