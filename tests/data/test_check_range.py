"""What a few images of each split say of data.range, and of bits and pages that are left out."""

import io

import numpy as np
import pytest
from PIL import Image

from helpers.sources import listed
from ssl_vit.data import check_range
from ssl_vit.data.check_range import LOOKED_AT, Checked
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data


def spread(values: list[int], kind: type = np.uint16) -> np.ndarray:
    """An image (2, 50) whose hundred values are these, alike often."""
    return np.array(values * (100 // len(values)), kind).reshape(2, 50)


def check(*images: bytes | np.ndarray, of_bytes: str = "", **words) -> Checked:
    return check_range.check({"test": listed(images)}, Data(path="own", **words), of_bytes)


def encoded(array: np.ndarray, form: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, form, **options)
    return file.getvalue()


GREY = {"channels": 1, "range": [100, 1100]}
FULL = [100, 350, 600, 850, 1100]


def test_the_share_of_clipped_values_is_measured() -> None:
    low, high = spread(FULL), spread(FULL)
    low[0, :1] = 99
    high[1, :2] = 1101
    assert check(spread(FULL), **GREY) == Checked({"test": 0.0}, [])
    assert check(low, high, **GREY).clipped == {"test": 3 / 200}


def test_above_a_hundredth_is_warned_of_and_above_nine_tenths_refused() -> None:
    image = spread(FULL)
    image[0, 0] = 65535
    assert not check(image, **GREY).warnings, "of 1% not"
    image[0, 1] = 0
    (warning,) = check(image, **GREY).warnings
    assert warning.startswith("data.range=[100,1100]: clips 2.0% of the values of 1 images of test")
    assert "(1.0% below it, 1.0% above); 99.8% of them lie from 0 to 65535" in warning
    most = spread([600, *[50_000] * 9])
    assert check(most, **GREY).clipped == {"test": 0.9}
    most[most == 600] = [40_000, *[600] * 9]
    with pytest.raises(UserError, match=r"data\.range=\[100,1100\]: clips 91\.0% .* 91\.0% above"):
        check(most, **GREY)


def test_values_that_fill_little_of_the_range_are_warned_of() -> None:
    """12 bits shown to an encoder of 16: nothing is clipped, and all is nearly black."""
    of_12 = spread([0, 1000, 2000, 4000, 4095])
    found = check(of_12, channels=1, range=[0, 65535])
    assert found.clipped == {"test": 0.0}
    assert "fill 6.2% of it, 99.8% of them lie from 0 to 4095" in found.warnings[0]
    assert not check(of_12, channels=1, range=[0, 8 * 4095]).warnings, "an eighth"


def test_images_of_8_and_of_16_bits_beside_each_other_are_warned_of() -> None:
    wide, narrow = spread([0, 60_000]), spread([0, 255], np.uint8)
    found = check(wide, narrow, channels=1, range=[0, 60_000])
    assert "8 bits, such as row 1, others 16, such as row 0" in found.warnings[0]
    assert not check(spread([0, 255]), narrow, channels=1, range=[0, 255]).warnings


def test_bits_that_are_cut_off_on_the_way_to_rgb_are_said() -> None:
    of_12 = encoded(spread([0, 2000, 4095, 7]))
    (warning,) = check(of_12, of_12).warnings
    assert warning.startswith("2 of 2 images that were looked at have more than 8 bits (16 in ")
    assert "of test): they are cut to 8, in which the highest value is 15 of 255" in warning
    assert "data.range=[0,4095]" in warning and "data.channels=1" in warning
    (frozen,) = check(of_12, of_bytes=check_range.OF_ENCODER).warnings
    assert "data.range" not in frozen and "0 to 255" in frozen
    (mixed,) = check(encoded(spread([0, 255], np.uint8)), of_12).warnings
    assert "1 of 2" in mixed and "(16 in row 1 of test)" in mixed and "others have 8" in mixed


def test_of_8_bits_nothing_is_said() -> None:
    grey = spread([0, 3], np.uint8)
    images = [
        encoded(grey),
        encoded(grey, "JPEG"),
        encoded(grey > 1),
        np.zeros((4, 4, 3), np.uint8),
    ]
    assert check(*images, b"broken") == Checked({}, [])


def test_pages_that_are_left_out_are_said_and_copies_of_the_first_are_not() -> None:
    tifffile = pytest.importorskip("tifffile", reason="needs the extra [tiff]")
    pages, reduced = io.BytesIO(), io.BytesIO()
    tifffile.imwrite(pages, np.zeros((5, 12, 12), np.uint8), photometric="minisblack")
    with tifffile.TiffWriter(reduced) as file:
        image = np.zeros((12, 12), np.uint8)
        file.write(image, metadata=None)
        file.write(image[:6, :6], subfiletype=1, metadata=None)  # TIFF 6.0: of less resolution
        file.write(image > 0, subfiletype=4, metadata=None)  # a mask
    (warning,) = check(pages.getvalue(), reduced.getvalue()).warnings
    assert "1 of 2 images that were looked at have several pages (5 in row 0 of test)" in warning


def test_as_many_images_are_looked_at_of_each_split() -> None:
    splits = {name: listed([spread(FULL)] * 200) for name in ("train", "test")}
    check_range.check(splits, Data(path="own", **GREY))  # type: ignore[arg-type]
    for source in splits.values():
        assert len(set(source.store.read)) == len(source.store.read) == LOOKED_AT
    assert splits["train"].store.read == splits["test"].read, "in a fixed order"


def test_drawn_images_are_not_looked_at() -> None:
    source = listed([encoded(spread([0, 4095]))])
    assert check_range.check({"train": source}, Data()) == Checked({}, [])
    assert not source.store.read


def test_of_images_that_cannot_be_read_nothing_is_said() -> None:
    assert check(b"no image", **GREY) == Checked({}, [])
