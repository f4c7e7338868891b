"""Transparent images are composed over white wherever RGB is asked for; alpha that is asked for and
masks stay as they are.

The expected pixels are worked out in numpy: round(alpha * color + (1 - alpha) * 255) with alpha in
[0, 1]. A tie cannot arise, because 255 is odd.
"""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features

from helpers.images import chunk, encode, on_white, png_by_hand, png_of_16_bits, tiff
from helpers.sources import listed
from ssl_vit.data import check_pixels, decoding, masks, resident
from ssl_vit.data.batching import ImageDataset, Samples
from ssl_vit.data.pixel_values import evaluation_images
from ssl_vit.jobs import encoders
from ssl_vit.jobs.nearest_images import read_query
from ssl_vit.recipe.given import Given
from ssl_vit.recipe.schema import Data

HEIGHT, WIDTH = 24, 40
RGBA = np.random.default_rng(5).integers(0, 256, (HEIGHT, WIDTH, 4), dtype=np.uint8)
RGBA[:3, :, 3] = 0
RGBA[3:6, :, 3] = 255
ALPHA = RGBA[..., 3]
INDEX = RGBA[..., 0] % 16
PALETTE = np.random.default_rng(6).integers(0, 256, (16, 3), dtype=np.uint8)
ENTRY_ALPHA = np.random.default_rng(7).integers(0, 256, 16, dtype=np.uint8)


def decoded(raw: bytes) -> np.ndarray:
    return decoding.decode(raw).permute(1, 2, 0).numpy().astype(int)


def grey_alpha() -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(RGBA[..., [0, 3]]), "LA")


def palette_image() -> Image.Image:
    image = Image.fromarray(INDEX, "L").copy()
    image.putpalette(PALETTE.tobytes())
    return image


def png_of_bits(depth: int, key: int) -> tuple[bytes, np.ndarray]:
    """Return a grey PNG of 1, 2 or 4 bits with a transparent grey value, and its values."""
    value = RGBA[..., 1] >> (8 - depth)
    bits = np.unpackbits(value[..., None], axis=2)[..., 8 - depth :].reshape(HEIGHT, -1)
    lines = b"".join(b"\0" + np.packbits(line).tobytes() for line in bits)
    raw = png_by_hand(WIDTH, HEIGHT, depth, 0, lines, chunk(b"tRNS", struct.pack(">H", key)))
    return raw, value


def grey_of_bits(depth: int) -> tuple[bytes, np.ndarray]:
    raw, value = png_of_bits(depth, key=1)
    return raw, on_white(value * (255 // (2**depth - 1)), np.where(value == 1, 0, 255))


def keyed(color: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Return a PNG of 8 bits whose first pixel's color is transparent."""
    key = color[0, 0].tolist()
    raw = encode(Image.fromarray(color), "PNG", transparency=key if color.ndim == 2 else tuple(key))
    same = color == color[0, 0]
    return raw, on_white(color, np.where(same.all(-1) if color.ndim == 3 else same, 0, 255))


DEEP = RGBA.astype(np.uint16) * 256 + 77


def deep(channels: list[int]) -> tuple[bytes, np.ndarray]:
    """Return a PNG of 16 bits with alpha, which decoding reduces to its upper 8 bits."""
    color = RGBA[..., channels[:-1]]
    right = on_white(color if len(channels) == 4 else color[..., 0], RGBA[..., channels[-1]])
    return png_of_16_bits(DEEP[..., channels]), right


def deep_keyed(channels: int) -> tuple[bytes, np.ndarray]:
    color = DEEP[..., :channels]
    key = chunk(b"tRNS", color[2, 2].astype(">u2").tobytes())
    alpha = np.where((color == color[2, 2]).all(-1), 0, 255)
    return png_of_16_bits(color, key), on_white(
        np.broadcast_to(color >> 8, (*ALPHA.shape, 3)), alpha
    )


def palette_file(form: str, transparency: bytes | int) -> tuple[bytes, np.ndarray]:
    alpha_K = np.full(16, 255, np.uint8)
    if isinstance(transparency, int):
        alpha_K[transparency] = 0
    else:
        alpha_K[: len(transparency)] = np.frombuffer(transparency, np.uint8)
    raw = encode(palette_image(), form, transparency=transparency)
    return raw, on_white(PALETTE[INDEX], alpha_K[INDEX])


def grey_gif() -> tuple[bytes, np.ndarray]:
    """Return a GIF whose palette is grey, which Pillow opens as a grey image."""
    raw = encode(Image.fromarray(INDEX), "GIF", transparency=3)
    assert decoding.open_image(raw).mode in ("L", "P")
    return raw, on_white(INDEX, np.where(INDEX == 3, 0, 255))


def animation(form: str, **options: object) -> tuple[bytes, np.ndarray]:
    """Return an animation of two frames, of which the first counts."""
    frames = [Image.fromarray(RGBA), Image.fromarray(RGBA[::-1].copy())]
    raw = encode(frames[0], form, save_all=True, append_images=frames[1:], **options)
    return raw, on_white(RGBA[..., :3], ALPHA)


def animated_gif() -> tuple[bytes, np.ndarray]:
    frames = [palette_image(), palette_image().transpose(Image.Transpose.FLIP_TOP_BOTTOM)]
    raw = encode(frames[0], "GIF", save_all=True, append_images=frames[1:], transparency=5)
    return raw, on_white(PALETTE[INDEX], np.where(INDEX == 5, 0, 255))


def saved(form: str, **options: object) -> tuple[bytes, np.ndarray]:
    return encode(Image.fromarray(RGBA), form, **options), on_white(RGBA[..., :3], ALPHA)


def turned(form: str, **options: object) -> tuple[bytes, np.ndarray]:
    """Return an image that its EXIF turns by a quarter."""
    exif = Image.Exif()
    exif[0x0112] = 6
    raw, right = saved(form, exif=exif, **options)
    return raw, np.rot90(right, -1)


def unassociated(planes: str) -> tuple[bytes, np.ndarray]:
    array = RGBA if planes == "contig" else RGBA.transpose(2, 0, 1)
    words = {"photometric": "rgb", "extrasamples": ["unassalpha"], "planarconfig": planes}
    return tiff(np.ascontiguousarray(array), **words), on_white(RGBA[..., :3], ALPHA)


def associated(kind: type = np.uint8) -> tuple[bytes, np.ndarray]:
    """Return a TIFF whose colors are multiplied by alpha: white is added where alpha is low."""
    product = np.rint(RGBA[..., :3] * (ALPHA[..., None] / 255)).astype(np.uint8)
    array = np.concatenate([product, RGBA[..., 3:]], -1).astype(kind)
    array = array * 257 if kind is np.uint16 else array
    right = product.astype(int) + 255 - ALPHA[..., None].astype(int)
    return tiff(array, photometric="rgb", extrasamples=["assocalpha"]), right


def grey_tiff(kind: str) -> tuple[bytes, np.ndarray]:
    grey, right = RGBA[..., 0], on_white(RGBA[..., 0], ALPHA)
    if kind == "assocalpha":
        grey = np.minimum(grey, ALPHA)
        right = np.stack([grey.astype(int) + 255 - ALPHA.astype(int)] * 3, -1)
    words = {"photometric": "minisblack", "extrasamples": [kind], "planarconfig": "contig"}
    return tiff(np.stack([grey, ALPHA], -1), **words), right


def bmp_of(alpha: np.ndarray) -> bytes:
    """Return a BMP whose header (BITMAPV4HEADER) has a mask of alpha, which Pillow does not write."""
    pixels = np.dstack([RGBA[..., 2::-1], alpha]).tobytes()
    sizes = struct.pack("<IiiHHIIiiII", 108, WIDTH, -HEIGHT, 1, 32, 3, len(pixels), 0, 0, 0, 0)
    masks_of_channels = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    header = sizes + masks_of_channels + b"BGRs" + bytes(48)
    start = 14 + len(header)
    return b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start) + header + pixels


def test_a_bmp_without_any_opaque_pixel_is_opaque_as_viewers_show_it() -> None:
    """Programs that know no alpha leave it at 0."""
    raw = bmp_of(np.zeros_like(ALPHA))
    assert np.array_equal(decoded(raw), RGBA[..., :3])
    assert not decoding.is_transparent(raw)


TRANSPARENT = {
    "rgba.png": lambda: saved("PNG"),
    "la.png": lambda: (encode(grey_alpha(), "PNG"), on_white(RGBA[..., 0], ALPHA)),
    "rgba16.png": lambda: deep([0, 1, 2, 3]),
    "la16.png": lambda: deep([0, 3]),
    "grey16_key.png": lambda: deep_keyed(1),
    "rgb16_key.png": lambda: deep_keyed(3),
    "rgb_key.png": lambda: keyed(RGBA[..., :3]),
    "grey_key.png": lambda: keyed(RGBA[..., 0]),
    **{f"grey{bits}_key.png": lambda bits=bits: grey_of_bits(bits) for bits in (1, 2, 4)},
    "palette.png": lambda: palette_file("PNG", ENTRY_ALPHA.tobytes()),
    "palette_short.png": lambda: palette_file("PNG", bytes([0, 99])),
    "palette_one.png": lambda: palette_file("PNG", 4),
    "animated.png": lambda: animation("PNG"),
    "turned.png": lambda: turned("PNG"),
    "palette.gif": lambda: palette_file("GIF", 4),
    "grey.gif": grey_gif,
    "animated.gif": animated_gif,
    "lossless.webp": lambda: saved("WEBP", lossless=True, exact=True),
    "animated.webp": lambda: animation("WEBP", lossless=True, exact=True),
    "turned.webp": lambda: turned("WEBP", lossless=True, exact=True),
    "alpha.bmp": lambda: (bmp_of(ALPHA), on_white(RGBA[..., :3], ALPHA)),
    "pillow.tif": lambda: saved("TIFF"),
    "lzw.tif": lambda: saved("TIFF", compression="tiff_lzw"),
    "turned.tif": lambda: turned("TIFF"),
    "unassociated.tif": lambda: unassociated("contig"),
    "planes.tif": lambda: unassociated("separate"),
    "associated.tif": associated,
    "associated16.tif": lambda: associated(np.uint16),
    "grey.tif": lambda: grey_tiff("unassalpha"),
    "grey_associated.tif": lambda: grey_tiff("assocalpha"),
}


@pytest.mark.parametrize("name", TRANSPARENT)
def test_a_transparent_image_is_composed_over_white(name: str) -> None:
    raw, right = TRANSPARENT[name]()
    found = decoded(raw)
    assert found.shape == right.shape
    # Pillow divides premultiplied colors by alpha, in whole numbers, before they are composed
    assert np.abs(found - right).max() <= ("associated" in name)
    assert decoding.is_transparent(raw)


@pytest.mark.parametrize("form", ["WEBP", "AVIF"])
def test_lossy_alpha_is_composed_over_white(form: str) -> None:
    """A smooth alpha channel over one color, so that the loss is small."""
    if not features.check(form.lower()):
        pytest.skip("needs a decoder that this Pillow lacks")
    array = np.full((HEIGHT, WIDTH, 4), 40, np.uint8)
    array[..., 3] = np.linspace(0, 255, WIDTH).astype(np.uint8)
    found = decoded(encode(Image.fromarray(array), form, quality=95))
    assert np.abs(found - on_white(array[..., :3], array[..., 3])).mean() < 3


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ],
)
def test_an_image_whose_alpha_is_255_everywhere_stays_the_same(form: str, options: dict) -> None:
    opaque = RGBA.copy()
    opaque[..., 3] = 255
    raw = encode(Image.fromarray(opaque), form, **options)
    assert np.array_equal(decoded(raw), RGBA[..., :3])
    assert not decoding.is_transparent(raw)


@pytest.mark.parametrize("raw", [b"none", b"", encode(Image.new("RGB", (4, 4)), "JPEG")])
def test_what_is_damaged_or_without_alpha_is_not_transparent(raw: bytes) -> None:
    try:
        assert not decoding.is_transparent(raw)
    except ValueError:
        assert not raw.startswith(b"\xff\xd8")


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "La", "RGBa"])
def test_pillow_images_of_any_mode_with_alpha_are_composed(mode: str) -> None:
    image = Image.fromarray(RGBA)
    if mode == "PA":
        image = palette_image().convert("PA")
        image.putalpha(Image.fromarray(ALPHA))
        right = on_white(PALETTE[INDEX], ALPHA)
    elif mode in ("LA", "La"):
        image = grey_alpha()
        right = on_white(RGBA[..., 0], ALPHA)
    else:
        right = on_white(RGBA[..., :3], ALPHA)
    image = image.convert(mode) if image.mode != mode else image
    found = decoding.from_pillow(image).astype(int)
    assert np.abs(found - right).max() <= (mode in ("La", "RGBa"))


@pytest.mark.parametrize("mode", ["YCbCr", "HSV", "CMYK", "1", "L", "RGBX"])
def test_pillow_images_of_any_mode_without_alpha_are_converted(mode: str) -> None:
    image = Image.fromarray(RGBA[..., :3]).convert(mode)
    assert np.array_equal(decoding.from_pillow(image), np.asarray(image.convert("RGB")))


def test_batches_are_composed_and_a_run_says_of_how_many_images() -> None:
    raw, right = TRANSPARENT["rgba.png"]()
    opaque = encode(Image.fromarray(right.astype(np.uint8)), "PNG")
    source, data, every = listed([raw, opaque, raw]), Data(path="own", size=8), np.arange(3)
    first, *others = ImageDataset(source, data, False).__getitems__(Samples(every, every)).image
    assert all(torch.equal(first, one) for one in others)
    (note,) = check_pixels.check({"train": source}, data)
    assert "transparent pixels in 2 of 3 " in note
    kept = resident.decode_split(source, data, 2**30, 1)
    assert all(np.array_equal(one, right) for one in kept.image_NHWC.numpy())


def test_a_query_and_a_callers_image_are_composed(tmp_path: Path) -> None:
    raw, right = TRANSPARENT["palette.png"]()
    (tmp_path / "query.png").write_bytes(raw)
    query = read_query(str(tmp_path / "query.png"), Data())
    assert np.array_equal(query.pixels_CHW.permute(1, 2, 0).numpy(), right)
    white = Image.fromarray(right.astype(np.uint8))
    image = Image.open(io.BytesIO(raw))
    data = Data(size=16)
    assert torch.equal(evaluation_images(image, data), evaluation_images(white, data))


def test_figures_say_that_images_are_composed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "0.png").write_bytes(TRANSPARENT["rgba.png"]()[0])
    data = Data(name="own", path=str(tmp_path), size=8)
    monkeypatch.setattr(encoders, "find_data", lambda encoder, options: data)
    encoders.find_images(None, Given(), "train")
    printed = capsys.readouterr().out
    assert "transparent pixels in 1 of 1 checked images of own" in printed


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
def test_alpha_that_is_asked_for_is_data(form: str) -> None:
    if form == "TIFF":
        pytest.importorskip("tifffile", reason="needs the extra [tiff]")
    options = {"lossless": True, "exact": True} if form == "WEBP" else {}
    raw = encode(Image.fromarray(RGBA), form, **options)
    assert np.array_equal(decoding.decode_stored_values(raw, 4), RGBA.transpose(2, 0, 1))
    assert check_pixels.check({"train": listed([raw])}, Data(path="own", channels=4)) == []
    if form != "WEBP":
        raw = encode(grey_alpha(), form)
        assert np.array_equal(
            decoding.decode_stored_values(raw, 2), RGBA[..., [0, 3]].transpose(2, 0, 1)
        )


def test_a_palette_whose_channels_are_read_is_composed_like_any_other() -> None:
    raw, right = TRANSPARENT["palette.png"]()
    assert np.array_equal(decoding.decode_stored_values(raw, 3), right.transpose(2, 0, 1))


@pytest.mark.parametrize("transparency", [3, ENTRY_ALPHA.tobytes()])
def test_the_palette_of_a_mask_is_labels_whatever_is_transparent(transparency: int | bytes) -> None:
    raw = encode(palette_image(), "PNG", transparency=transparency)
    assert np.array_equal(masks.decode(raw), INDEX)
