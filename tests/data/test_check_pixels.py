"""What a few images say of data.mean and data.std, of data.range, and of bits that are left out."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from helpers.channel_images import CHANNELS, folder
from helpers.images import encode, png_of_16_bits, tiff
from helpers.sources import listed, load
from ssl_vit.data import check_pixels
from ssl_vit.data.check_pixels import CHECKED_IMAGES
from ssl_vit.data.decoding import decode_stored_values, stored_bits
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data


def spread(values: list[int], kind: type = np.uint16) -> np.ndarray:
    """An image (2, 50) whose hundred values are these, alike often."""
    return np.array(values * (100 // len(values)), kind).reshape(2, 50)


def check(*images: bytes | np.ndarray, why_no_range: str = "", **words) -> list[str]:
    splits = {"test": listed(images)}
    return check_pixels.check(splits, Data(path="own", **words), why_no_range)


def complete(data: Data, *images: bytes | np.ndarray) -> None:
    check_pixels.set_mean_and_std(data, listed(images))


def png(array: np.ndarray) -> bytes:
    return encode(Image.fromarray(array), "PNG")


GREY = {"channels": 1, "range": [100, 1100]}
FULL = [100, 350, 600, 850, 1100]


def test_above_a_hundredth_is_warned_of_and_above_nine_tenths_refused() -> None:
    image = spread(FULL)
    image[0, 0] = 65535
    assert not check(spread(FULL), **GREY) and not check(image, **GREY), "of 1% not"
    image[0, 1] = 0
    (warning,) = check(image, **GREY)
    assert warning.startswith(
        "data.range=[100,1100]: this range clips 2.0% of the values of 1 image of test"
    )
    assert "(1.0% below the range, 1.0% above)" in warning
    assert "99.8% of the values lie from 0 to 65535" in warning
    low, high = spread(FULL), spread(FULL)
    low[0, :1] = 99
    high[1, :2] = 1101
    (warning,) = check(low, high, **GREY)
    assert "clips 1.5% of the values of 2 images" in warning
    most = spread([600, *[50_000] * 9])
    assert "clips 90.0%" in check(most, **GREY)[0]
    most[most == 600] = [40_000, *[600] * 9]
    with pytest.raises(
        UserError, match=r"data\.range=\[100,1100\]: this range clips 91\.0% .* 91\.0% above"
    ):
        check(most, **GREY)


def test_bits_that_are_cut_off_on_the_way_to_rgb_are_said() -> None:
    of_12 = png(spread([0, 2000, 4095, 7]))
    (warning,) = check(of_12, of_12)
    assert "more than 8 bits in 2 of 2 " in warning and "(16 in " in warning
    assert "data.range=" in warning and "data.channels=1" in warning
    (frozen,) = check(of_12, why_no_range=check_pixels.RANGE_OF_ENCODER)
    assert "data.range" not in frozen and "0 to 255" in frozen
    (mixed,) = check(png(spread([0, 255], np.uint8)), of_12)
    assert "1 of 2" in mixed and "(16 in number 1)" in mixed


def white(channels: int) -> np.ndarray:
    return np.full((80, 80, channels), 65535, np.uint16)


DEEP = np.arange(80 * 80, dtype=np.uint16).reshape(80, 80)
RGBA = {"photometric": "rgb", "extrasamples": ["unassalpha"]}
MORE_THAN_8_BITS = {  # (what makes an image, the bits of its values)
    "PNG grey": (lambda: png(DEEP), 16),
    "PNG grey alpha": (lambda: png_of_16_bits(white(2)), 16),
    "PNG RGB": (lambda: png_of_16_bits(white(3)), 16),
    "PNG RGBA": (lambda: png_of_16_bits(white(4)), 16),
    "TIFF grey": (lambda: encode(Image.fromarray(DEEP), "TIFF"), 16),
    "TIFF RGB": (lambda: tiff(white(3), photometric="rgb"), 16),
    "TIFF RGBA": (lambda: tiff(white(4), **RGBA), 16),
    "PGM 16": (lambda: b"P5 80 80 65535\n" + DEEP.astype(">u2").tobytes(), 16),
    "PGM 12": (lambda: b"P5 80 80 4095\n" + (DEEP % 4096).astype(">u2").tobytes(), 12),
    "PPM": (lambda: b"P6 80 80 65535\n" + white(3).tobytes(), 16),
}


@pytest.mark.parametrize(("make", "bits"), MORE_THAN_8_BITS.values(), ids=MORE_THAN_8_BITS)
def test_every_format_of_more_than_8_bits_is_warned_of(make: Callable, bits: int) -> None:
    warning = next(text for text in check(make()) if "more than 8 bits" in text)
    assert "1 of 1 " in warning and f"({bits} in number 0)" in warning


@pytest.mark.parametrize(("bits", "flags"), [(8, 0), (10, 0b0100_0000), (12, 0b0110_0000)])
def test_the_bits_of_an_avif_are_those_of_its_settings(bits: int, flags: int) -> None:
    """Pillow writes 8 bits alone, so the flags of AV1-ISOBMFF 2.3 are set by hand."""
    if not features.check("avif"):
        pytest.skip("needs an encoder that this Pillow lacks")
    raw = bytearray(encode(Image.new("RGB", (8, 8)), "AVIF"))
    raw[raw.index(b"av1C") + 6] |= flags
    assert stored_bits(bytes(raw)) == bits


def test_of_8_bits_nothing_is_said() -> None:
    grey = spread([0, 3], np.uint8)
    images = [
        png(grey),
        encode(Image.fromarray(grey), "JPEG"),
        encode(Image.fromarray(grey > 1), "PNG"),
        np.zeros((4, 4, 3), np.uint8),
        b"P5 2 1 255\n" + bytes(2),
        encode(Image.fromarray(grey), "AVIF" if features.check("avif") else "PNG"),
    ]
    assert check(*images, b"broken") == [] == check(b"broken", **GREY)


def test_images_of_8_and_of_16_bits_beside_each_other_are_warned_of() -> None:
    """Under this range the images of 8 bits cannot be read."""
    wide, narrow = spread([0, 60_000]), spread([0, 255], np.uint8)
    (warning,) = check(wide, narrow, channels=1, range=[0, 60_000])
    assert "8 bits, such as number 1," in warning and "16 bits, such as number 0." in warning
    assert not check(spread([0, 255]), narrow, channels=1, range=[0, 255])


def test_pages_that_are_left_out_are_said_and_copies_of_the_first_are_not() -> None:
    """No image is dropped in silence."""
    tifffile = pytest.importorskip("tifffile", reason="needs the extra [tiff]")
    pages = tiff(np.zeros((5, 12, 12), np.uint8), photometric="minisblack")
    reduced = io.BytesIO()
    with tifffile.TiffWriter(reduced) as file:
        image = np.zeros((12, 12), np.uint8)
        file.write(image, metadata=None)
        file.write(image[:6, :6], subfiletype=1, metadata=None)  # TIFF 6.0: of less resolution
        file.write(image > 0, subfiletype=4, metadata=None)  # a mask
    (warning,) = check(pages, reduced.getvalue())
    assert "1 of 2 " in warning and "with 5 pages" in warning


@pytest.mark.parametrize("count", [3, 5])
def test_the_options_that_a_warning_of_pages_names_read_all_pages(count: int) -> None:
    """data.channels=3 alone was named for three pages, and changes nothing."""
    stored = np.arange(count * 144, dtype=np.uint8).reshape(count, 12, 12)
    raw = tiff(stored, photometric="minisblack")
    (warning,) = check(raw)
    words = dict(re.findall(r"data\.(\w+)=(\[\d+,\d+\]|\d+)", warning))
    data = Data(path="own", **{key: json.loads(text) for key, text in words.items()})
    assert not data.is_rgb  # else the first page is read as colours
    assert (decode_stored_values(raw, data.channels) == stored).all()


def test_as_many_images_are_looked_at_of_each_split() -> None:
    splits = {name: listed([spread(FULL)] * 200) for name in ("train", "test")}
    check_pixels.check(splits, Data(path="own", **GREY))  # type: ignore[arg-type]
    for source in splits.values():
        assert len(set(source.store.read)) == len(source.store.read) == CHECKED_IMAGES
    assert splits["train"].store.read == splits["test"].store.read, "in a fixed order"


def test_drawn_images_are_not_looked_at() -> None:
    source = listed([png(spread([0, 4095]))])
    assert check_pixels.check({"train": source}, Data()) == []
    assert not source.store.read


def test_of_8_bits_the_range_is_whole_and_stays_null() -> None:
    data = Data(channels=2)
    complete(data, np.full((4, 4, 2), 51, np.uint8))
    assert data.range is None and data.pixel_range == (0, 255)
    assert data.mean == [0.2, 0.2] and data.std == [1.0, 1.0], "of one value not 0"
    assert check(np.full((4, 4, 2), 51, np.uint8), channels=2) == []


def test_mean_and_std_of_each_channel_are_within_the_range(tmp_path: Path) -> None:
    split = load(folder(tmp_path), channels=CHANNELS, validation=0.0).train
    data = Data(channels=CHANNELS, range=[300, 3900])
    check_pixels.set_mean_and_std(data, split)
    raw, _ = split.fetch(np.arange(len(split)))
    pixels = np.concatenate(
        [decode_stored_values(one, CHANNELS).reshape(CHANNELS, -1) for one in raw], 1
    )
    share = (pixels.clip(300, 3900) - 300) / 3600
    assert data.mean == pytest.approx(share.mean(1), rel=1e-5)
    assert data.std == pytest.approx(share.std(1), rel=1e-5)
    given = Data(channels=CHANNELS, range=[300, 3900], mean=[0.1, 0.2, 0.3, 0.4])
    check_pixels.set_mean_and_std(given, split)
    assert given.mean == [0.1, 0.2, 0.3, 0.4] and given.std == data.std, "what is given is not"
    rgb = Data()
    check_pixels.set_mean_and_std(rgb, split)
    assert rgb == Data(), "of RGB nothing is"


def test_images_of_16_bits_without_a_range_are_refused_with_one() -> None:
    """Their hot pixels, 0.2% of all values, had made all others one class."""
    image = spread([*range(200, 4000, 38)])
    images = [image.copy() for _ in range(5)]
    images[0][0, 0] = 65_000
    error = (
        r"data\.range=null: .* 5 training images .* from 200 to 65,000 .* 238.* 3,962\)"
        r".*data\.range=\[200,3962\].* 1 of 500 values \(0\.20%\)"
    )
    with pytest.raises(UserError, match=error):
        complete(Data(channels=1), *images)
    words = {"channels": 1, "mean": [0.5], "std": [0.2]}  # which leave nothing to be measured
    with pytest.raises(UserError, match=r"null: .* 5 images of test .* data\.range=\[200,3962\]"):
        check(*images, **words)
    with pytest.raises(
        UserError, match=r"range=\[0,255\]: this range clips 9"
    ):  # to an encoder of 8 bits
        check(*images, why_no_range=check_pixels.RANGE_OF_ENCODER, **words)
    with pytest.raises(UserError, match=r"range=\[65534,65535\].* clips 0 of 100 "):
        complete(Data(channels=1), spread([65535]))


def test_training_images_none_of_which_can_be_read_are_an_error() -> None:
    with pytest.raises(UserError, match=r"data.channels=5: .* of 1 .* number 0: .*\(4, 4, 2\)"):
        complete(Data(channels=5), np.zeros((4, 4, 2), np.uint8))
