"""Images of other channels and bits than RGB of 8: read as they are, cropped as floats."""

import io
import struct
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as F

from helpers.channel_images import CHANNELS, values
from helpers.images import encode, npy, png_by_hand
from helpers.sources import load
from ssl_vit.data import augment, fingerprints, sources, transforms
from ssl_vit.data.batching import ImageDataset, Samples
from ssl_vit.data.decoding import TooLarge, decode
from ssl_vit.data.pixel_values import decoder, evaluation_images, shown_image, shown_note
from ssl_vit.data.tables import array_cell
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data
from ssl_vit.recipe.shared_groups import ViewOptions

KEYS = np.arange(5, dtype=np.int64)
LISTS = pyarrow.list_(pyarrow.list_(pyarrow.uint16()))


def data(**words) -> Data:
    return Data(**({"channels": CHANNELS, "range": [0, 65535], "size": 8} | words))


def read(raw: bytes | np.ndarray, **words) -> torch.Tensor:
    """An image's integers (C, H, W) by the recipe's images."""
    return decoder(data(**words))(raw)


@pytest.mark.parametrize(
    "kind", [np.uint8, np.uint16, np.dtype(">u2"), np.int16, np.int64, np.uint64]
)
@pytest.mark.parametrize("first", [False, True])
def test_an_array_of_either_order_is_its_channels(kind, first: bool) -> None:
    array = (values(3) % 200).astype(kind)
    given = array.transpose(2, 0, 1) if first else array
    for raw in (npy(given), given):
        found = read(raw)
        assert found.dtype == torch.int32
        assert np.array_equal(found.permute(1, 2, 0).numpy(), array)


@pytest.mark.parametrize("compression", [None, "deflate", "lzw"])
@pytest.mark.parametrize("order", ["contig", "separate", "pages"])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_a_tiff_is_its_samples_or_pages(compression: str | None, order: str, kind) -> None:
    tifffile = pytest.importorskip("tifffile", reason="needs the extra [tiff]")
    if compression == "lzw":
        pytest.importorskip("imagecodecs", reason="needs the extra [tiff]")
    array = (values(3) % 256).astype(kind)
    file = io.BytesIO()
    how = {"photometric": "minisblack", "compression": compression}
    if order == "contig":
        tifffile.imwrite(file, array, planarconfig="contig", **how)
    else:
        planar = {"planarconfig": "separate"} if order == "separate" else {}
        tifffile.imwrite(file, array.transpose(2, 0, 1), **planar, **how)
    found = read(file.getvalue())
    assert np.array_equal(found.permute(1, 2, 0).numpy(), array)


def tiff(array: np.ndarray, **options) -> bytes:
    tifffile = pytest.importorskip("tifffile", reason="needs the extra [tiff]")
    file = io.BytesIO()
    tifffile.imwrite(file, array, **{"photometric": "minisblack"} | options)
    return file.getvalue()


def packed_tiff(array: np.ndarray, bits: int) -> bytes:
    """A TIFF of one strip of grey values of so many bits, without padding between them; TIFF 6.0,
    section 2, written out."""
    height, width = array.shape
    bits_HWB = np.unpackbits(array.astype(">u2")[..., None].view(np.uint8), axis=2)[..., -bits:]
    content = np.packbits(bits_HWB.reshape(height, -1), axis=1).tobytes()
    first = 8 + 2 + 12 * 9 + 4
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 1, 273: first, 277: 1, 278: height}
    tags[279] = len(content)
    listed = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, 9) + listed + bytes(4) + content


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
    decode = decoder(data())
    first, last = (
        tiff(array, planarconfig=kind) if shape[axis] == 4 else b""
        for kind, axis in (("separate", 0), ("contig", 2))
    )
    if first:
        assert np.array_equal(decode(first), array)
    if last:
        assert np.array_equal(decode(last).permute(1, 2, 0), array)
    for raw in (array, npy(array), tiff(array)):  # the last as pages, and in an array's shape
        if first and last:
            with pytest.raises(ValueError, match=r"data.channels=4 expects .* no side of it"):
                decode(raw)
        else:
            assert np.array_equal(decode(raw), array)


def test_further_images_of_a_tiff_are_refused() -> None:
    tifffile = pytest.importorskip("tifffile", reason="needs the extra [tiff]")
    bands, file = values(0), io.BytesIO()
    with tifffile.TiffWriter(file) as pages:
        pages.write(bands, planarconfig="contig", photometric="minisblack", metadata=None)
        pages.write(bands[:7, :7, 0], subfiletype=1, metadata=None)  # of less resolution
        whole = file.getvalue()
        pages.write(bands[:9, :5, 0], metadata=None)
    assert read(whole).shape == (4, 16, 16)
    with pytest.raises(ValueError, match=r"2 images, \(16, 16, 4\) and \(9, 5\); expected one"):
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
    with pytest.raises(ValueError, match="a TIFF of 2 images of a palette or few bits; expected"):
        one(tiff(np.stack([grey, grey]) > 99))


def test_twelve_bits_without_padding_are_read() -> None:
    """Of RGB the upper 8 were taken of 16 bits, of which four are none: black."""
    pytest.importorskip("imagecodecs", reason="needs the extra [tiff]")
    array = np.array([[0, 1000, 4095], [16, 15, 2048]], np.uint16)
    raw = packed_tiff(array, 12)
    assert np.array_equal(read(raw, channels=1)[0], array)
    assert decode(raw)[1].tolist() == [[0, 62, 255], [1, 0, 128]]


def test_a_dark_image_of_portable_grey_values_stays_dark() -> None:
    """One of 12 bits without a value above 15 was taken for one of 8."""
    dark = b"P5 3 1 4095\n" + np.array([0, 7, 15], ">u2").tobytes()
    assert decode(dark)[0].tolist() == [[0, 0, 0]]
    assert decode(dark[:-2] + b"\x0f\xff")[0].tolist() == [[0, 0, 255]]


def test_values_of_no_byte_are_not_clipped_unseen_to_rgb() -> None:
    with pytest.raises(ValueError, match="from -5 to 900; expected whole numbers"):
        decode(tiff(np.array([[-5, 900]], np.int16)))


def test_pillow_gives_its_own_channels() -> None:
    rgba = np.random.default_rng(0).integers(0, 256, (6, 5, 4), np.uint8)
    found = read(encode(Image.fromarray(rgba), "PNG"), range=[0, 255])
    assert found.dtype == torch.uint8 and np.array_equal(found.permute(1, 2, 0), rgba)
    assert torch.equal(read(encode(Image.fromarray(rgba), "PNG"), range=None), found), (
        "bytes have a range"
    )
    grey = values(1, channels=1)[..., 0]
    assert np.array_equal(read(encode(Image.fromarray(grey), "PNG"), channels=1)[0], grey)
    rgb_file = encode(Image.fromarray(rgba[..., :3].copy()), "PNG")
    rgb = read(rgb_file, channels=3, range=[0, 255])
    assert torch.equal(rgb, decode(rgb_file))
    colours = Image.fromarray(rgba[..., :3].copy()).quantize(4)
    raw = encode(colours, "PNG", transparency=bytes([0, 99]))  # of which Pillow would warn
    found = read(raw, channels=3, range=[0, 255])
    assert np.array_equal(found.permute(1, 2, 0), colours.convert("RGB"))


@pytest.mark.parametrize(
    ("raw", "words", "why"),
    [
        (npy(np.zeros((5, 6, 3), np.uint8)), {}, r"\(5, 6, 3\); data.channels=4 expects"),
        (npy(np.zeros((5, 6), np.uint8)), {}, r"\(5, 6\); data.channels=4 expects"),
        (npy(np.zeros((5, 6, 4), np.float32)), {}, "float32; expected whole numbers"),
        (npy(np.full((5, 6, 4), -3, np.int16)), {}, "from -3 to -3; expected whole numbers"),
        (npy(np.full((5, 6, 4), 70000)), {}, "to 70000; expected whole numbers"),
        (npy(np.zeros((5, 6, 4), np.uint16)), {"range": None}, "uint16; expected data.range="),
        (npy(np.zeros((0, 6, 4), np.uint16)), {}, "without pixels"),
        (npy(values(0))[:-9], {}, "not a whole image"),
        (b"II*\0 and no more", {}, "not a whole image"),
    ],
)
def test_what_cannot_be_read_is_said(raw: bytes, words: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(raw, **words)


def test_a_png_of_16_bits_whose_channels_pillow_reduces_is_refused() -> None:
    raw = png_by_hand(2, 1, 16, 2, bytes(13))  # of RGB
    with pytest.raises(ValueError, match="16 bits and several channels"):
        read(raw, channels=3)


def test_a_tiff_without_tifffile_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(ValueError, match=r"\.\[tiff\]"):
        read(b"II*\0 and no more")


def test_a_header_of_more_values_than_fit_is_refused() -> None:
    file = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": (90_000, 90_000, 4)}
    np.lib.format.write_array_header_1_0(file, header)
    for read_ in (read, decode):
        with pytest.raises(TooLarge, match="192 million values"):
            read_(file.getvalue())


def test_values_beyond_the_range_are_clipped() -> None:
    array = np.array([[5, 50, 60000]], np.uint16)
    for highest, kind in ((4095, torch.int32), (200, torch.uint8)):
        found = read(array, channels=1, range=[10, highest])
        assert found.dtype == kind and found.tolist() == [[[10, 50, highest]]]


def test_crops_of_16_bits_are_those_of_floats() -> None:
    images = [read(values(n, side=20)) for n in range(len(KEYS))]
    found = transforms.train_transform(images, KEYS, 8, 0.3, True)
    assert found.dtype == torch.int32 and found.shape == (5, CHANNELS, 8, 8)
    boxes = transforms.crop_boxes(KEYS, np.full(5, 20), np.full(5, 20), 0.3)
    flips = transforms.random_flips(KEYS, True)
    for image, made, (top, left, height, width), flip in zip(
        images, found, boxes.tolist(), flips, strict=True
    ):
        wanted = F.resized_crop(image.float(), top, left, height, width, [8, 8], antialias=True)
        wanted = wanted.flip(-1) if flip else wanted
        assert torch.equal(made, wanted.round().int())
    squashed = transforms.eval_transform(images[:1], 8, "squash", 1.0)
    wanted = F.resize(images[0].float(), [8, 8], antialias=True).round().int()
    assert torch.equal(squashed[0], wanted)


def test_mixed_images_keep_their_bits() -> None:
    one, other = (torch.full((2, 4, 3, 3), level, dtype=torch.int32) for level in (1000, 61000))
    mixed, share_B = transforms.mix_pairs(one, other, KEYS[:2], 1.0, 0.0)
    assert mixed.dtype == torch.int32
    wanted = (share_B * 1000 + (1 - share_B) * 61000).round().int()
    assert torch.equal(mixed[:, 0, 0, 0], wanted)


@pytest.mark.parametrize("images", [[], [np.zeros((0, 4, CHANNELS), np.uint16)]])
def test_images_of_a_caller_have_pixels(images: list) -> None:
    with pytest.raises(ValueError, match=r"no images.*; expected an array"):
        evaluation_images(images, data())


def test_views_are_crops_and_the_blur() -> None:
    images = [read(values(n, side=20)) for n in range(2)]
    plain = ViewOptions(jitter=0, grayscale=0, blur=[0.0, 0.0], solarize=[0.0, 0.0])
    made = augment.random_views(images, KEYS[:2], 8, 0.3, True, plain)
    for view in range(augment.VIEWS):
        keys = augment.view_keys(KEYS[:2], view)
        assert torch.equal(made[:, view], transforms.train_transform(images, keys, 8, 0.3, True))
    plain.blur = [1.0, 0.0]
    blurred = augment.random_views(images, KEYS[:2], 8, 0.3, True, plain)
    assert torch.equal(blurred[:, 1], made[:, 1]) and blurred.dtype == torch.int32
    planes = [one[:, 0].flatten(2).float().std(-1) for one in (blurred, made)]
    assert (planes[0] < planes[1]).all()
    means = [one[:, 0].float().mean().item() for one in (blurred, made)]
    assert means[0] == pytest.approx(means[1], rel=0.02)


@pytest.mark.parametrize("shape", [(6, 5, 4), (None, 5, 4)])
def test_arrays_of_a_table_are_read(tmp_path: Path, shape: tuple) -> None:
    arrays = [values(n)[:6, :5] for n in range(20)]
    features = datasets.Features(
        {
            "bands": datasets.Array3D(shape=shape, dtype="uint16"),
            "label": datasets.ClassLabel(names=["ant", "bee"]),
        }
    )
    columns = {"bands": [one.tolist() for one in arrays], "label": [n % 2 for n in range(20)]}
    rows = datasets.Dataset.from_dict(columns, features=features)
    rows.to_parquet(str(tmp_path / "train.parquet"))
    split = load(tmp_path, channels=CHANNELS, validation=0.0).train
    order = np.array([3, 0, 19])
    raw, label = split.fetch(order)
    assert label.tolist() == [1, 0, 1]
    for one, row in zip(raw, order, strict=True):
        assert np.array_equal(one, arrays[row])
    made = data()
    batch = ImageDataset(split, made, train=True).__getitems__(Samples(order, order))
    assert batch.image.shape == (3, CHANNELS, 8, 8) and not batch.unreadable
    with pytest.raises(UserError, match=r"data\.channels="):  # as RGB
        ImageDataset(split, Data(size=8), train=True).__getitems__(Samples(order, order))


def test_arrays_that_are_missing_or_cut_are_unreadable(tmp_path: Path) -> None:
    features = datasets.Features({"bands": datasets.Array3D(shape=(6, 5, 4), dtype="uint16")})
    prints = set()
    for first in (0, 1):
        cells = [values(first)[:6, :5].tolist(), None]
        folder_ = tmp_path / str(first)
        datasets.Dataset.from_dict({"bands": cells}, features=features).to_parquet(
            str(folder_ / "train.parquet")
        )
        split = load(folder_, channels=CHANNELS, validation=0.0).train
        raw, label = split.fetch(np.arange(2))
        assert np.array_equal(raw[0], values(first)[:6, :5]) and raw[1] == b""
        assert label.tolist() == split.label_of(np.arange(2)).tolist() == [-1, -1]
        prints.add(fingerprints.fingerprint(split.whole()))
    assert len(prints) == 2
    for rows in (5, 0):  # instead of 6
        cut = pyarrow.array([values(0)[:rows, :5].tolist()], pyarrow.list_(LISTS))
        assert array_cell(cut, (6, 5, 4)) == b""
        read = array_cell(cut, (None, 5, 4))
        assert isinstance(read, np.ndarray) and read.shape == (rows, 5, 4)


def test_a_stream_of_arrays_is_refused(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Array3D(shape=(4, 4, 4), dtype="uint16")})
    rows = datasets.Dataset.from_dict({"image": [np.zeros((4, 4, 4)).tolist()] * 4}, features)
    rows.to_parquet(str(tmp_path / "train.parquet"))
    with pytest.raises(UserError, match="column image holds arrays"):
        load(tmp_path, channels=CHANNELS, stream=True, validation=0.0)


def test_the_embedded_images_have_three_channels() -> None:
    with pytest.raises(UserError, match="data=shapes is drawn in 3"):
        sources.load(Data(channels=4))


def test_the_first_three_channels_are_shown_from_the_lowest_to_the_highest() -> None:
    image = torch.tensor([100, 200, 300, 0], dtype=torch.int32)[None, :, None, None]
    assert shown_image(image, (100, 300)).flatten().tolist() == [0, 128, 255]
    assert shown_image(image[:, 1:3], (100, 300)).flatten().tolist() == [128] * 3
    rgb = torch.arange(3, dtype=torch.uint8)[None, :, None, None]
    assert shown_image(rgb, (0, 255)).data_ptr() == rgb.data_ptr(), "RGB is not copied"
    assert shown_note(3) == "" and "1 to 3 of 4" in shown_note(4) and "grey" in shown_note(2)
