"""Augment images with a callable of the user (recipe/augmentations.py).

Before each call, the random generators of Python, NumPy, torch and albumentations are seeded from
the key of the sample. So the result does not depend on the order of calls, on the number of
processes or on an interruption.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import rng
from ..errors import UserError, one_line
from ..recipe.augmentations import Augmentation, is_albumentations

TRIES = 16  # seeds with which `check` compares two calls


def augment(
    augmentation: Augmentation, name: str, images: list[Tensor], key_B: np.ndarray
) -> list[Tensor]:
    """Augment each image with random numbers from its key.

    Args:
        augmentation: The augmentation.
        name: Name of the augmentation, for errors.
        images: Integers (C, H, W), which may differ in size.
        key_B: Keys of the samples, int64.
    """
    seed_B = rng.integers(rng.stream(key_B, "augment"), 0, 2**32).tolist()
    pairs = zip(images, seed_B, strict=True)
    return [_call(augmentation, name, image, seed) for image, seed in pairs]


def check(augmentation: Augmentation, name: str, image: Tensor) -> None:
    """Check that two calls with the same seed give the same image.

    Raises:
        UserError: They differ, or the augmentation returns no image.
    """
    other = 255 - image.flip(-1) if image.dtype == torch.uint8 else image.flip(-1)
    for seed in range(TRIES):
        first = _call(augmentation, name, image, seed)
        _call(augmentation, name, other, seed + TRIES)  # must leave no trace
        if not torch.equal(first, _call(augmentation, name, image, seed)):
            raise UserError(
                f"data.augment={name}: two calls with the same seed give different images. Draw"
                " random numbers from random, numpy.random or torch directly, and keep nothing of"
                " earlier images."
            )


def _call(augmentation: Augmentation, name: str, image: Tensor, seed: int) -> Tensor:
    """Call the augmentation with seeded generators, and return integers (C, H, W).

    Raises:
        UserError: The augmentation raises an error, or the result is no image with the channels
            and the type of `image`.
    """
    call: Any = augmentation.call
    wants_array = is_albumentations(call)
    # copies, because an augmentation may change the image in place
    given: Any = image.clone(memory_format=torch.contiguous_format)
    if wants_array:
        given = np.moveaxis(image.numpy(), 0, -1).copy()
    with _seeded(augmentation, seed):
        try:
            result = call(image=given)["image"] if wants_array else call(given)
        except Exception as error:
            kind = f"{type(given).__name__} of {given.dtype} {tuple(given.shape)}"
            raise UserError(
                f"data.augment={name}: the augmentation raised {one_line(error)} for a {kind}."
                " Write an augmentation that takes such images."
            ) from error
    if isinstance(result, np.ndarray) and result.ndim == 3:
        result = torch.from_numpy(np.ascontiguousarray(np.moveaxis(result, -1, 0)))
    is_image = isinstance(result, Tensor) and result.ndim == 3 and result.numel() > 0
    if not is_image or len(result) != len(image) or result.dtype != image.dtype:
        shape = tuple(getattr(result, "shape", ()))
        kind = getattr(result, "dtype", type(result).__name__)
        raise UserError(
            f"data.augment={name}: an image of {image.dtype} {tuple(image.shape)} became {kind}"
            f" {shape}. Return an image with the same type and channels, without Normalize and"
            " without conversion to floating point."
        )
    # a copy, because an augmentation may return the same buffer each time
    return result.as_subclass(Tensor).clone(memory_format=torch.contiguous_format)


@contextmanager
def _seeded(augmentation: Augmentation, seed: int) -> Iterator[None]:
    """Seed all generators that an augmentation may use, and restore the global ones at the end."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)
        for transform in augmentation.seeded:
            transform.set_random_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
