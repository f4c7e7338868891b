"""Masks as they are read."""

import io

import numpy as np
import pytest
from PIL import Image

from ssl_vit.data import decoding, masks


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_mask_is_turned_as_its_image_is(orientation: int) -> None:
    """An image was turned as its EXIF says and its mask was not."""
    drawn = np.arange(12, dtype=np.uint8).reshape(3, 4)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(drawn).save(file, "PNG", exif=exif)
    image_3HW = decoding.decode(decoding.from_pillow(decoding.open_image(file.getvalue())))
    assert (masks.decode(file.getvalue()) == image_3HW[0]).all()
