"""Batches of random images, and of views for objectives that compare them."""

import numpy as np
import torch

from ssl_vit import rng
from ssl_vit.data.batching import Batch


def view_batch(count: int, local: int) -> Batch:
    """Random images of two views of 16 x 16 pixels each, and `local` views of 8 x 8."""
    generator = np.random.default_rng(0)
    views = generator.integers(0, 256, (count, 2, 3, 16, 16), dtype=np.uint8)
    crops = generator.integers(0, 256, (count, local, 3, 8, 8), dtype=np.uint8)
    index = np.arange(count)
    parts = (views[:, 0], np.full(count, -1), index, rng.key(0, 0, index))
    given = Batch(*map(torch.from_numpy, parts), views=torch.from_numpy(views))
    return given._replace(local=torch.from_numpy(crops)) if local else given


def image_batch(count: int) -> Batch:
    """Random images of 16 x 16 pixels."""
    image = np.random.default_rng(0).integers(0, 256, (count, 3, 16, 16), dtype=np.uint8)
    index = np.arange(count)
    parts = (image, np.full(count, -1), index, rng.key(0, 0, index))
    return Batch(*map(torch.from_numpy, parts))
