"""Odd image files have one outcome, whatever they lie in: a folder, a parquet file or a tar."""

import io
import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps, features

from helpers.images import encode, png_by_hand, tar
from ssl_vit.data import sources
from ssl_vit.data.batching import ImageDataset, Samples, Unreadable
from ssl_vit.data.pixel_values import decoder
from ssl_vit.data.source import Source
from ssl_vit.recipe.schema import Data

DATA = Data(name="own", size=8, validation=0)
CONTAINERS = ("folder", "parquet", "tar")
TAGS = "<x:xmpmeta xmlns:x='adobe:ns:meta/' xmlns:tiff='http://ns.adobe.com/tiff/1.0/'"
XMP = b"http://ns.adobe.com/xap/1.0/\0" + TAGS.encode()


def opened(path: Path) -> tuple[Source, list[str]]:
    """The training images at a path, and all that is said about them."""
    found = sources.load(DATA.model_copy(update={"path": str(path)}), test=False)
    return found.train, [*found.notes, *found.guesses]


def picture(number: int, mode: str = "RGB", height: int = 24, width: int = 40) -> Image.Image:
    """Smooth colours, no two corners alike, other ones for each number."""
    y, x = np.mgrid[:height, :width]
    bands = 200 * y / height, 220 * x / width, 60 * y / height + 100 * x / width + number
    image = Image.fromarray(np.stack(bands, -1).astype(np.uint8)).convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(bands[1].astype(np.uint8)))
    return image


def tiff_tags(order: str, orientation: bytes, kind: int = 3) -> bytes:
    """EXIF of one tag, orientation, of a type of TIFF 6.0 (3: SHORT), its value in four bytes."""
    start = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, 1)
    return start + struct.pack(f"{order}HHI", 0x0112, kind, 1) + orientation + bytes(4)


def app1(payload: bytes) -> bytes:
    """A segment of a JPEG file (ITU T.81, B.1.1.4)."""
    return b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload


def jpeg(number: int, *segments: bytes, mode: str = "RGB", **options: object) -> bytes:
    """With these segments at its start."""
    raw = encode(picture(number, mode), "JPEG", **options)
    return raw[:2] + b"".join(segments) + raw[2:]


def exif(orientation: int) -> dict[str, Image.Exif]:
    found = Image.Exif()
    found[0x0112] = orientation
    return {"exif": found}


def exif_segment(order: str, orientation: bytes, kind: int = 3) -> bytes:
    return app1(b"Exif\0\0" + tiff_tags(order, orientation, kind))


def without_adobe(raw: bytes) -> bytes:
    """Without the marker that says which colours four components are."""
    start = raw.index(b"\xff\xee")
    return raw[:start] + raw[start + 2 + int.from_bytes(raw[start + 2 : start + 4], "big") :]


def as_ycck(raw: bytes) -> bytes:
    """Its marker says that three components are luminance and colour differences."""
    place = raw.index(b"Adobe") + 11
    return raw[:place] + b"\2" + raw[place + 1 :]


def rgb_of_16_bits() -> bytes:
    lines = (np.asarray(picture(40)).astype(">u2") * 257).reshape(24, -1)
    return png_by_hand(40, 24, 16, 2, b"".join(b"\0" + line.tobytes() for line in lines))


def wrong_crc() -> bytes:
    raw = bytearray(encode(picture(41), "PNG"))
    raw[raw.index(b"IDAT") + 9] ^= 255
    return bytes(raw)


def animation(form: str, number: int) -> bytes:
    frames = [picture(number), ImageOps.flip(picture(number))]
    return encode(frames[0], form, save_all=True, append_images=frames[1:])


def tifffile_of(number: int, **options: object) -> bytes:
    tifffile = pytest.importorskip("tifffile", reason="needs the extra [tiff]")
    file, array = io.BytesIO(), np.asarray(picture(number))
    tifffile.imwrite(file, array.transpose(2, 0, 1), photometric="rgb", **options)
    return file.getvalue()


def form(name: str, number: int, mode: str = "RGB", **options: object) -> Callable[[], bytes]:
    return lambda: encode(picture(number, mode), name, **options)


# Grey values of 16 bits, which are brought to 8; Pillow's `convert` clips them
DEEP = (np.asarray(picture(0, "L")).astype(np.uint16) * 257) ^ 5
SIX, NO = struct.pack("<HH", 6, 0), "unreadable"
# {file: (its bytes, what is right where it is not what Pillow reads)}
FILES: dict[str, tuple[Callable[[], bytes], object]] = {
    "baseline.jpg": (lambda: jpeg(1), None),
    "progressive.jpg": (lambda: jpeg(2, progressive=True), None),
    "grey.jpg": (lambda: jpeg(3, mode="L"), None),
    "cmyk.jpg": (lambda: jpeg(4, mode="CMYK"), None),
    "cmyk_bare.jpg": (lambda: without_adobe(jpeg(5, mode="CMYK")), None),
    "ycck.jpg": (lambda: as_ycck(jpeg(6, mode="CMYK")), None),
    "rgb.jpg": (lambda: jpeg(7, keep_rgb=True), None),
    **{f"turned_{n}.jpg": (form("JPEG", 50 + n, **exif(n)), None) for n in range(2, 9)},
    "big_endian.jpg": (lambda: jpeg(9, exif_segment(">", struct.pack(">HH", 6, 0))), None),
    "long.jpg": (lambda: jpeg(10, exif_segment("<", struct.pack("<I", 6), kind=4)), None),
    "byte.jpg": (lambda: jpeg(10, exif_segment("<", SIX, kind=1)), None),
    "exif_after_xmp.jpg": (lambda: jpeg(11, app1(XMP + b"/>"), exif_segment("<", SIX)), None),
    "exif_after_app1.jpg": (lambda: jpeg(11, app1(b"other"), exif_segment("<", SIX)), None),
    "xmp_before_other.jpg": (lambda: jpeg(12, app1(XMP + b" tiff:Orientation='6'/>")), None),
    "xmp_alone.jpg": (lambda: jpeg(12, app1(XMP + b' tiff:Orientation="6"/>')), None),
    "exif_invalid.jpg": (lambda: jpeg(13, app1(b"Exif\0\0nothing of that kind")), "upright"),
    "exif_cut.jpg": (lambda: jpeg(14, app1(b"Exif\0\0" + tiff_tags("<", SIX)[:13])), "upright"),
    "bytes_after.jpg": (lambda: jpeg(15) + b"and more" * 99, None),
    "mpo.jpg": (lambda: animation("MPO", 16), None),
    "plain.jfif": (lambda: jpeg(17), None),
    "a_png.jpg": (form("PNG", 18), None),
    "a_jpeg.png": (lambda: jpeg(19), None),
    "dot.png": (lambda: encode(picture(20, height=1, width=1), "PNG"), None),
    "line.jpg": (lambda: encode(picture(20, height=1, width=3000), "JPEG"), None),
    "grey16_png.png": (lambda: encode(Image.fromarray(DEEP), "PNG"), DEEP >> 8),
    "rgb16.png": (rgb_of_16_bits, None),
    "palette.png": (form("PNG", 21, "P"), None),
    "palette_alpha.png": (form("PNG", 22, "P", transparency=bytes([0, 99])), None),
    "rgba.png": (form("PNG", 23, "RGBA"), None),
    "la.png": (form("PNG", 24, "LA"), None),
    "bits.png": (form("PNG", 25, "1"), None),
    "transparent.png": (form("PNG", 26, transparency=(0, 0, 26)), None),
    "exif_png.png": (form("PNG", 27, **exif(6)), None),
    "animated_png.png": (lambda: animation("PNG", 28), None),
    "animated.gif": (lambda: animation("GIF", 29), None),
    "animated_webp.webp": (lambda: animation("WEBP", 30), None),
    "lossless.webp": (form("WEBP", 31, lossless=True), None),
    "alpha.webp": (form("WEBP", 32, "RGBA", lossless=True), None),
    "exif_webp.webp": (form("WEBP", 33, lossless=True, **exif(8)), None),
    "plain_avif.avif": (form("AVIF", 34), None),
    "exif_avif.avif": (form("AVIF", 35, **exif(6)), None),
    "lzw.tiff": (form("TIFF", 36, compression="tiff_lzw"), None),
    "in_jpeg.tiff": (form("TIFF", 37, compression="jpeg"), None),
    "inks.tif": (form("TIFF", 38, "CMYK"), None),
    "exif_tif.tif": (form("TIFF", 39, **exif(6)), None),
    "planar.tif": (lambda: tifffile_of(42, planarconfig="separate"), None),
    "big.tif": (form("TIFF", 43, big_tiff=True), None),
    "grey16_tif.tif": (lambda: encode(Image.fromarray(DEEP), "TIFF"), DEEP >> 8),
    "pages.tif": (lambda: animation("TIFF", 44), None),
    "grey16.pgm": (lambda: b"P5 40 24 65535\n" + DEEP.astype(">u2").tobytes(), DEEP >> 8),
    "plain_bmp.bmp": (form("BMP", 45), None),
    "plain_ppm.ppm": (form("PPM", 46), None),
    "cut.jpg": (lambda: jpeg(47)[:-99], NO),
    "cut_progressive.jpg": (lambda: jpeg(48, progressive=True)[:-99], NO),
    "cut_webp.webp": (lambda: encode(picture(49), "WEBP")[:-99], NO),
    "wrong_crc.png": (wrong_crc, NO),
    "empty.jpg": (lambda: b"", NO),
    "page.jpg": (lambda: b"<!DOCTYPE html><title>Not found</title>", NO),
    "jp2.jpg": (lambda: b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(99), NO),
    "jxl.jpg": (lambda: b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(99), NO),
    "heic.jpg": (lambda: b"\0\0\0\x18ftypheic" + bytes(99), NO),
    "floats.tif": (lambda: encode(Image.fromarray(np.eye(9, dtype=np.float32)), "TIFF"), NO),
    "huge.png": (lambda: png_by_hand(20_000, 20_000, 8, 2, bytes(999)), NO),
}
OTHERS = ("o.heic", "p.jp2", "q.jxl", "r.dcm", "s.ico", "t.tga")  # of formats that are not decoded
HIDDEN = ("Thumbs.db", "desktop.ini", ".hidden.jpg", "._x.jpg")


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    """The bytes of each file of FILES that can be made here, and one of each of OTHERS."""
    found = {name: name.encode() * 9 for name in (*OTHERS, *HIDDEN)}
    for name, (make, _) in FILES.items():
        if features.check("avif") or not name.endswith(".avif"):
            with suppress(pytest.skip.Exception):
                found[name] = make()
    return found


@pytest.fixture(scope="module", params=CONTAINERS)
def container(
    request: pytest.FixtureRequest, made: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Source, list[str]]:
    """All files in one folder, parquet file or tar."""
    place = tmp_path_factory.mktemp(request.param)
    if request.param == "folder":
        (place / "odd").mkdir()
        for name, raw in made.items():
            (place / "odd" / name).write_bytes(raw)
    elif request.param == "tar":
        tar(place / "train-000.tar", list(made.items()))
    else:
        rows = [{"bytes": raw, "path": name} for name, raw in made.items()]
        pq.write_table(pa.table({"image": rows}), place / "train.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        return opened(place)


@pytest.mark.parametrize("name", FILES)
def test_an_odd_file_has_one_outcome(
    name: str, made: dict[str, bytes], container: tuple[Source, list[str]]
) -> None:
    if name not in made:
        pytest.skip("needs an encoder that is not there")
    source, right = container[0], FILES[name][1]
    row = source.fetch(np.arange(len(source)))[0].index(made[name])
    (raw,), _ = source.fetch(np.array([row]))
    if right is NO:
        wanted = Samples(np.array([row]), np.array([0]))
        batch = ImageDataset(source, DATA, False, Unreadable.LEFT_OUT).__getitems__(wanted)
        (said,) = batch.unreadable
        assert said.startswith(f"{source.name(row)}: ") and "\n" not in said
        assert not len(batch.image)
        return
    found = decoder(DATA)(raw).permute(1, 2, 0).numpy().astype(int)
    if isinstance(right, np.ndarray):
        wanted_HWC = np.stack([right] * 3, -1)
    else:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(made[name])) as image:
            upright = image if right == "upright" else ImageOps.exif_transpose(image)
            wanted_HWC = np.asarray(upright.convert("RGB")).astype(int)
    assert found.shape == wanted_HWC.shape
    lossy = made[name].startswith(b"\xff\xd8")  # of two decoders
    assert np.abs(found - wanted_HWC).max() <= (4 if lossy else 0)


@pytest.mark.parametrize("name", (*OTHERS, *HIDDEN))
def test_files_that_are_no_images_are_left_out_and_counted(
    name: str, made: dict[str, bytes], container: tuple[Source, list[str]], request
) -> None:
    source, said = container
    raw, _ = source.fetch(np.arange(len(source)))
    if "parquet" in request.node.callspec.id:  # whose rows are all images, be they unreadable
        assert made[name] in raw
        return
    kind = "hidden" if name.startswith(".") else f".{name.rpartition('.')[2]}"
    assert made[name] not in raw and any(kind in line for line in said), said
