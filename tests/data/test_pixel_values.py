"""Images of other channels and bits than RGB of 8: read as they are, clipped to their range, and
shown."""

import io
import struct
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import images
from helpers.channel_images import CHANNELS, values
from helpers.images import encode, npy, on_white, png_of_16_bits
from ssl_vit.data.decoding import TooLarge, decode
from ssl_vit.data.pixel_values import decoder, evaluation_images, shown_image, shown_note
from ssl_vit.recipe.schema import Data


def data(**words) -> Data:
    return Data(**({"channels": CHANNELS, "range": [0, 65535], "size": 8} | words))


def read(raw: bytes | np.ndarray, **words) -> torch.Tensor:
    """An image's integers (C, H, W) by the recipe's images."""
    return decoder(data(**words))(raw)


def tiff(array: np.ndarray, **options) -> bytes:
    return images.tiff(array, **{"photometric": "minisblack"} | options)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.dtype(">u2"), np.int64])
@pytest.mark.parametrize("first", [False, True])
def test_an_array_of_either_order_is_its_channels(kind, first: bool) -> None:
    array = (values(3) % 200).astype(kind)
    given = array.transpose(2, 0, 1) if first else array
    for raw in (npy(given), given):
        of_bytes = kind == np.uint8
        found = read(raw, range=[0, 255]) if of_bytes else read(raw)
        assert found.dtype == (torch.uint8 if of_bytes else torch.int32)
        assert np.array_equal(found.permute(1, 2, 0).numpy(), array)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("tag", range(1, 9))
def test_a_tiff_is_turned_as_its_tag_says(tag: int, last: bool) -> None:
    """As Pillow turns RGB of 8 bits."""
    array = np.random.default_rng(tag).integers(0, 256, (6, 5, 3), np.uint8)
    turned = {"extratags": [(274, 3, 1, tag, True)]}
    wanted = decode(tiff(array, photometric="rgb", **turned))
    given = array if last else array.transpose(2, 0, 1)
    raw = tiff(given, planarconfig="contig" if last else "separate", **turned)
    found = read(raw, channels=3, range=[0, 255])
    assert found.shape == ((3, 5, 6) if tag > 4 else (3, 6, 5))
    assert torch.equal(found, wanted)
    grey = read(tiff(array[..., 0], **turned), channels=1, range=[0, 255])
    assert torch.equal(grey[0], wanted[0])


@pytest.mark.parametrize("shape", [(4, 6, 4), (4, 4, 4), (4, 4, 6)])
def test_which_side_is_the_channels_is_known_or_refused(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 65536, shape).astype(np.uint16)
    first, last = shape[0] == CHANNELS, shape[2] == CHANNELS
    if first:
        assert np.array_equal(read(tiff(array, planarconfig="separate")), array)
    if last:
        assert np.array_equal(read(tiff(array, planarconfig="contig")).permute(1, 2, 0), array)
    for raw in (array, npy(array), tiff(array)):  # the last as pages, and in an array's shape
        if first and last:
            with pytest.raises(ValueError, match=r"first or last axis could be the channels"):
                read(raw)
        else:
            assert np.array_equal(read(raw), array)


def test_further_images_of_a_tiff_are_refused() -> None:
    """But copies of less resolution."""
    tifffile = pytest.importorskip("tifffile", reason="needs the extra [tiff]")
    bands, file = values(0), io.BytesIO()
    with tifffile.TiffWriter(file) as pages:
        pages.write(bands, planarconfig="contig", photometric="minisblack", metadata=None)
        pages.write(bands[:7, :7, 0], subfiletype=1, metadata=None)
        whole = file.getvalue()
        pages.write(bands[:9, :5, 0], metadata=None)
    assert read(whole).shape == (4, 16, 16)
    with pytest.raises(ValueError, match=r"2 images .*\(16, 16, 4\) and \(9, 5\)"):
        read(file.getvalue())


def test_a_tiff_of_other_colours_and_bits_is_what_it_shows() -> None:
    """It was read as indices of colours, as 0 and 1, or inverted."""
    grey = np.arange(0, 240, 8, np.uint8).reshape(5, 6)
    one, rgb = (decoder(data(channels=n, range=[0, 255])) for n in (1, 3))
    assert np.array_equal(one(tiff(grey, photometric="miniswhite"))[0], 255 - grey)
    assert np.array_equal(one(tiff(grey > 99))[0], np.where(grey > 99, 255, 0))
    of_16 = grey.astype(np.uint16) * 257
    inverted = tiff(of_16, photometric="miniswhite")
    assert np.array_equal(read(inverted, channels=1)[0], 65535 - of_16)
    assert np.array_equal(decode(inverted)[2], 255 - grey)
    colours = np.random.default_rng(0).integers(0, 256, (3, 256)).astype(np.uint16)
    palette = tiff(grey, photometric="palette", colormap=colours * 257)
    assert np.array_equal(rgb(palette), colours[:, grey])
    assert np.array_equal(decode(palette), colours[:, grey])
    with pytest.raises(ValueError, match="a TIFF of 2 images "):
        one(tiff(np.stack([grey, grey]) > 99))


def test_twelve_bits_without_padding_are_read() -> None:
    """Of RGB the upper 8 were taken of 16 bits, of which four are none: black. A TIFF of one strip,
    TIFF 6.0, section 2, written out."""
    pytest.importorskip("imagecodecs", reason="needs the extra [tiff]")
    array = np.array([[0, 1000, 4095], [16, 15, 2048]], np.uint16)
    bits_HWB = np.unpackbits(array.astype(">u2")[..., None].view(np.uint8), axis=2)[..., -12:]
    strip = np.packbits(bits_HWB.reshape(2, -1), axis=1).tobytes()
    first = 8 + 2 + 12 * 9 + 4
    tags = {256: 3, 257: 2, 258: 12, 259: 1, 262: 1, 273: first, 277: 1, 278: 2, 279: len(strip)}
    listed = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    raw = b"II*\0" + struct.pack("<IH", 8, 9) + listed + bytes(4) + strip
    assert np.array_equal(read(raw, channels=1)[0], array)
    assert decode(raw)[1].tolist() == [[0, 62, 255], [1, 0, 128]]


def test_values_of_no_byte_are_not_clipped_unseen_to_rgb() -> None:
    with pytest.raises(ValueError, match="from -5 to 900"):
        decode(tiff(np.array([[-5, 900]], np.int16)))


def test_pillow_gives_its_own_channels() -> None:
    rgba = np.random.default_rng(0).integers(0, 256, (6, 5, 4), np.uint8)
    raw = encode(Image.fromarray(rgba), "PNG")
    found = read(raw, range=[0, 255])
    assert found.dtype == torch.uint8 and np.array_equal(found.permute(1, 2, 0), rgba)
    assert torch.equal(read(raw, range=None), found), "bytes have a range"
    grey = values(1, channels=1)[..., 0]
    assert np.array_equal(read(encode(Image.fromarray(grey), "PNG"), channels=1)[0], grey)
    colours = Image.fromarray(rgba[..., :3].copy()).quantize(4)
    raw = encode(colours, "PNG", transparency=bytes([0, 99]))
    found = read(raw, channels=3, range=[0, 255])
    alpha = np.array([0, 99, 255, 255])[np.asarray(colours)]
    assert np.array_equal(
        found.permute(1, 2, 0), on_white(np.asarray(colours.convert("RGB")), alpha)
    )


WRONG = {
    "three channels": (npy(np.zeros((5, 6, 3), np.uint8)), {}, r"\(5, 6, 3\), .*data.channels=4"),
    "one channel": (npy(np.zeros((5, 6), np.uint8)), {}, r"\(5, 6\), .*data.channels=4"),
    "floats": (npy(np.zeros((5, 6, 4), np.float32)), {}, "float32"),
    "below 0": (npy(np.full((5, 6, 4), -3, np.int16)), {}, "from -3 to -3"),
    "above 16 bits": (npy(np.full((5, 6, 4), 70000)), {}, "to 70000"),
    "no range": (npy(np.zeros((5, 6, 4), np.uint16)), {"range": None}, "uint16.* data.range="),
    # they were taken as they are, nearly black, by an encoder of 16 bits
    "bytes of 16 bits": (
        npy(np.zeros((5, 6, 4), np.uint8)),
        {},
        r"8 bits.* data.range=\[0,65535\]",
    ),
    "no pixels": (npy(np.zeros((0, 6, 4), np.uint16)), {}, r"\(0, 6, 4\)"),
    "cut off": (npy(values(0))[:-9], {}, "decode"),
    "no TIFF": (b"II*\0 and no more", {}, "decode"),
    # whose channels Pillow reduces to 8 bits
    "a PNG of 16 bits": (
        png_of_16_bits(np.zeros((1, 2, 3), np.uint16)),
        {"channels": 3},
        "16 bits and sev",
    ),
}


@pytest.mark.parametrize(("raw", "words", "why"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_said(raw: bytes, words: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(raw, **words)


def test_a_tiff_without_tifffile_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(ValueError, match=r"ssl_vit\[tiff\]"):
        read(b"II*\0 and no more")


def test_a_header_of_more_values_than_fit_is_refused() -> None:
    file = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": (90_000, 90_000, 4)}
    np.lib.format.write_array_header_1_0(file, header)
    for read_ in (read, decode):
        with pytest.raises(TooLarge, match="192 million values"):
            read_(file.getvalue())


@pytest.mark.parametrize(("highest", "kind"), [(4095, torch.int32), (200, torch.uint8)])
def test_values_beyond_the_range_are_clipped(highest: int, kind: torch.dtype) -> None:
    found = read(np.array([[5, 50, 60000]], np.uint16), channels=1, range=[10, highest])
    assert found.dtype == kind and found.tolist() == [[[10, 50, highest]]]


@pytest.mark.parametrize("images", [[], [np.zeros((0, 4, CHANNELS), np.uint16)]])
def test_images_of_a_caller_have_pixels(images: list) -> None:
    with pytest.raises(ValueError, match=r"no (images|pixels)\. Expected an array"):
        evaluation_images(images, data())


def test_the_first_three_channels_are_shown_from_the_lowest_to_the_highest() -> None:
    image = torch.tensor([100, 200, 300, 0], dtype=torch.int32)[None, :, None, None]
    assert shown_image(image, (100, 300)).flatten().tolist() == [0, 128, 255]
    assert shown_image(image[:, 1:3], (100, 300)).flatten().tolist() == [128] * 3
    assert shown_note(3) == "" and "1 to 3 of 4" in shown_note(4) and "grey" in shown_note(2)
