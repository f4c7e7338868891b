"""Encoded images become the same RGB bytes as by other readers, whatever they lie in; what cannot be
read is refused by its header, and takes nothing down."""

import io
import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageOps, features

from helpers.images import encode, npy, png_by_hand, png_of_16_bits, tar, tiff
from helpers.launching import launch, outcome
from helpers.sources import opened
from helpers.tables import raw_parquet
from ssl_vit.data import decoding
from ssl_vit.data.batching import ImageDataset, Samples
from ssl_vit.recipe.schema import Data

TAGS = "<x:xmpmeta xmlns:x='adobe:ns:meta/' xmlns:tiff='http://ns.adobe.com/tiff/1.0/'"
XMP = b"http://ns.adobe.com/xap/1.0/\0" + TAGS.encode()


def picture(number: int, mode: str = "RGB", height: int = 24, width: int = 40) -> Image.Image:
    """Smooth colours, no two corners alike, other ones for each number."""
    y, x = np.mgrid[:height, :width]
    bands = 200 * y / height, 220 * x / width, 60 * y / height + 100 * x / width + number
    image = Image.fromarray(np.stack(bands, -1).astype(np.uint8)).convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(bands[1].astype(np.uint8)))
    return image


def decoded(raw: bytes) -> np.ndarray:
    """What `decode` makes of it, as (H, W, 3) numbers, checked to be bytes of three channels."""
    image = decoding.decode(raw)
    assert image.dtype == torch.uint8 and image.ndim == 3 and image.shape[0] == 3
    return image.permute(1, 2, 0).numpy().astype(int)


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


def wrong_crc() -> bytes:
    raw = bytearray(encode(picture(41), "PNG"))
    raw[raw.index(b"IDAT") + 9] ^= 255
    return bytes(raw)


def animation(form: str, number: int) -> bytes:
    frames = [picture(number), ImageOps.flip(picture(number))]
    return encode(frames[0], form, save_all=True, append_images=frames[1:])


def planes(number: int) -> bytes:
    array = np.asarray(picture(number)).transpose(2, 0, 1)
    return tiff(array, photometric="rgb", planarconfig="separate")


def form(name: str, number: int, mode: str = "RGB", **options: object) -> Callable[[], bytes]:
    return lambda: encode(picture(number, mode), name, **options)


# Grey values of 16 bits, which are brought to 8; Pillow's `convert` clips them
DEEP = (np.asarray(picture(0, "L")).astype(np.uint16) * 257) ^ 5
SIX, NO = struct.pack("<HH", 6, 0), "unreadable"
# {file: (its bytes, what is right where it is not what Pillow reads)}; ../shared/cases/odd_images.md
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
    "exif_before_xmp.jpg": (lambda: jpeg(11, exif_segment("<", SIX), app1(XMP + b"/>")), None),
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
    "rgb16.png": (lambda: png_of_16_bits(np.asarray(picture(40)) * np.uint16(257)), None),
    "palette.png": (form("PNG", 21, "P"), None),
    "bits.png": (form("PNG", 25, "1"), None),
    "lossless.webp": (form("WEBP", 31, lossless=True), None),
    "plain_avif.avif": (form("AVIF", 34), None),
    "exif_avif.avif": (form("AVIF", 35, **exif(6)), None),
    "lzw.tiff": (form("TIFF", 36, compression="tiff_lzw"), None),
    "in_jpeg.tiff": (form("TIFF", 37, compression="jpeg"), None),
    "inks.tif": (form("TIFF", 38, "CMYK"), None),
    "planar.tif": (lambda: planes(42), None),
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
OTHERS = ("o.cr2", "p.jp2", "q.jxl", "r.exr", "s.ico", "t.tga")  # of formats that are not decoded
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


@pytest.mark.parametrize("name", [name for name, (_, right) in FILES.items() if right is not NO])
def test_an_odd_file_is_what_pillow_shows(name: str, made: dict[str, bytes]) -> None:
    """Wherever a JPEG's EXIF stands: behind an XMP segment it was not looked at. Transparent files are in test_transparency.py."""
    if name not in made:
        pytest.skip("needs an encoder that is not there")
    right = FILES[name][1]
    if isinstance(right, np.ndarray):
        wanted_HWC = np.stack([right] * 3, -1)
    else:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(made[name])) as image:
            upright = image if right == "upright" else ImageOps.exif_transpose(image)
            wanted_HWC = np.asarray(upright.convert("RGB")).astype(int)
    found = decoded(made[name])
    assert found.shape == wanted_HWC.shape
    away = np.abs(found - wanted_HWC)
    lossy = made[name].startswith(b"\xff\xd8")  # of two decoders
    assert away.max() <= (4 if lossy else 0) and away.mean() < 0.5


@pytest.mark.parametrize("kind", ["folder", "parquet", "saved", "tar"])
def test_odd_files_are_the_same_in_every_container(
    kind: str, made: dict[str, bytes], tmp_path: Path
) -> None:
    """No file is left out unsaid; those that cannot be read are named, a line each."""
    if kind == "tar":
        tar(tmp_path / "train-000.tar", list(made.items()))
    rows = [{"bytes": raw, "path": name} for name, raw in made.items()]
    if kind == "parquet":
        raw_parquet(tmp_path / "train.parquet", image=rows)
    elif kind == "saved":
        known = datasets.Features(image=datasets.Image())
        datasets.Dataset.from_dict({"image": rows}, known).save_to_disk(tmp_path)
    for name, raw in made.items() if kind == "folder" else ():
        (tmp_path / name).write_bytes(raw)
    source, said = opened(tmp_path, size=8)
    every = np.arange(len(source))
    raw, _ = source.fetch(every)
    # a table's rows are all images, be they unreadable
    others = () if kind in ("parquet", "saved") else (*OTHERS, *HIDDEN)
    assert sorted(raw) == sorted(raw for name, raw in made.items() if name not in others)
    for name in others:
        what = "hidden" if name.startswith(".") else f".{name.rpartition('.')[2]}"
        assert any(what in line for line in said), said
    batch = ImageDataset(source, Data(size=8), train=False).__getitems__(Samples(every, every))
    readable = {made[name] for name in made if name in FILES and FILES[name][1] is not NO}
    wrong = [source.name(row) for row in every if raw[row] not in readable]
    for line, name in zip(batch.unreadable, wrong, strict=True):
        assert line.startswith(f"{name}: ") and "\n" not in line


@settings(max_examples=40)
@given(
    hnp.arrays(
        np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3]))
    ),
    st.sampled_from(["PNG", "BMP", "TIFF", "by rows", "by columns"]),
)
def test_any_size_survives(array: np.ndarray, kind: str) -> None:
    """In a file, or an array that NumPy saved."""
    given = array.squeeze(2) if array.shape[2] == 1 else array
    if kind.startswith("by"):
        raw = npy(np.asfortranarray(given) if kind == "by columns" else given)
    else:
        raw = encode(Image.fromarray(given), kind)
    assert np.array_equal(decoded(raw), np.broadcast_to(array, (*array.shape[:2], 3)))


def test_a_dark_image_of_portable_grey_values_stays_dark() -> None:
    """One of 12 bits without a value above 15 was taken for one of 8."""
    dark = b"P5 3 1 4095\n" + np.array([0, 7, 15], ">u2").tobytes()
    assert decoding.decode(dark)[0].tolist() == [[0, 0, 0]]
    assert decoding.decode(dark[:-2] + b"\x0f\xff")[0].tolist() == [[0, 0, 255]]


OTHER_FORMATS = ("EPS", "ICO", "ICNS", "PCX", "TGA", "SGI", "JPEG2000", "PDF")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        # Pillow would read them, EPS by starting Ghostscript
        *(
            (encode(Image.new("RGB", (32, 32)), form), "another format than JPEG, PNG, WEBP")
            for form in OTHER_FORMATS
        ),
        # of whole numbers an image's own highest value had decided, so that a dark one became bright
        *(
            (encode(Image.fromarray(np.array([[0, 7, 255]], kind)), "TIFF"), "pixels of 32 bits")
            for kind in (np.int32, np.float32)
        ),
        (npy(np.zeros((4, 4, 3), np.float32)), r"float32 .*\(4, 4, 3\)"),
        (npy(np.zeros((4, 4, 4), np.uint8)), r"uint8 .*\(4, 4, 4\)"),
        (npy(np.zeros((4,), np.uint8)), r"uint8 .*\(4,\)"),
        (npy(np.zeros((0, 4, 3), np.uint8)), r"\(0, 4, 3\)"),
        (npy(np.zeros((4, 4, 3), np.uint8))[:-1], "decode"),
        (npy(np.array([{}], dtype=object)), "Object arrays"),  # pickled
        (b"\x93NUMPY", "decode"),
    ],
)
def test_what_is_not_read_says_why(raw: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decoding.decode(raw)


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_garbage_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decoding.decode(raw)


@pytest.mark.parametrize(
    "options",
    [
        {"progressive": True},
        {"comment": b"\xff\xc0\0\x11\x08\0\x01\0\x01 in a comment"},
        {"icc_profile": bytes(70_000)},  # two segments
    ],
)
def test_a_jpeg_of_too_many_pixels_is_not_decoded(options: dict) -> None:
    """Wherever its size stands, and whatever else looks like it."""
    raw = jpeg(1, **options)
    place = raw.rindex(struct.pack(">HH", 24, 40))
    large = raw[:place] + struct.pack(">HH", 12_000, 12_000) + raw[place + 4 :]
    with pytest.raises(ValueError, match="12000 x 12000 pixels"):
        decoding.decode(large)
    assert decoding.decode(raw).shape == (3, 24, 40)


def test_sixty_four_megapixels_are_read_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="8000 x 8001"):
        decoding.decode(png_by_hand(8000, 8001, 1, 0, b""))
    assert decoding.MOST_PIXELS == 8000**2
    monkeypatch.setattr(decoding, "MOST_PIXELS", 24 * 40)
    assert decoding.decode(jpeg(1)).shape == (3, 24, 40)
    with pytest.raises(ValueError, match="pixels, more than"):
        decoding.decode(encode(picture(1, height=25), "JPEG"))


@settings(max_examples=100)
@given(
    st.sampled_from(["JPEG", "PNG", "WEBP"]),
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6),
)
def test_whatever_is_damaged_nothing_above_the_limit_is_decoded(
    form: str, cut: int, changes: list[tuple[int, int]]
) -> None:
    """An image at twice the limit: it is refused, or what is left of it is smaller."""
    raw = bytearray(encode(picture(1), form))
    for place, value in changes:
        raw[place % len(raw)] = value
    raw = bytes(raw[: 1 + cut % len(raw)]) if cut % 3 == 0 else bytes(raw)
    limit = 24 * 40 // 2
    with pytest.MonkeyPatch.context() as patch, suppress(ValueError):
        patch.setattr(decoding, "MOST_PIXELS", limit)
        found = decoding.decode(raw)
        assert found.shape[1] * found.shape[2] <= limit


EVERY = [
    *(("TIFF", "RGB", {"compression": name}) for name in (None, "tiff_lzw", "tiff_deflate")),
    ("PNG", "RGB", {}),
    ("BMP", "RGB", {}),
    ("WEBP", "RGB", {"lossless": True}),
    ("GIF", "P", {}),
    ("JPEG", "RGB", {}),
]


def noisy(form: str, mode: str, options: dict) -> bytes:
    noise = np.random.default_rng(1).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    return encode(Image.fromarray(noise).convert(mode), form, **options)


@pytest.mark.parametrize(("form", "mode", "options"), EVERY)
def test_a_cut_file_is_refused_or_lacks_nothing(form: str, mode: str, options: dict) -> None:
    """Nothing but a format's last bytes, which hold no pixels, may be missing unnoticed."""
    raw = noisy(form, mode, options)
    whole = decoded(raw)
    for length in sorted({*range(40), *np.linspace(40, len(raw) - 1, 60).astype(int).tolist()}):
        try:
            got = decoded(raw[:length])
        except ValueError:
            continue
        assert length > len(raw) - 16 and np.array_equal(got, whole), length


DECODE_EACH = """
import os, pathlib, resource, sys, warnings
warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from ssl_vit.data import decoding
decoding.MOST_PIXELS = 10**5  # what a damaged header tells of is refused, and takes no time
paths = sorted(pathlib.Path(sys.argv[1]).iterdir())
answers = [pathlib.Path(sys.argv[2], path.name) for path in paths]
while paths:
    if not os.fork():
        for path, answer in zip(paths, answers):
            try:
                image = decoding.decode(path.read_bytes())
                said = f"{image.dtype} {image.ndim} {image.shape[0]}"
            except BaseException as error:
                said = "ValueError" if isinstance(error, ValueError) else repr(error)
            answer.write_text(said)
        os._exit(0)
    os.wait()
    done = 1 + sum(answer.exists() for answer in answers)  # the first without an answer took its process down
    paths, answers = paths[done:], answers[done:]
"""


def test_a_damaged_file_is_refused_or_read_but_takes_nothing_down(tmp_path: Path) -> None:
    """In a process of its own, which they might take with them."""
    files, answers = tmp_path / "files", tmp_path / "answers"
    files.mkdir()
    answers.mkdir()
    generator = np.random.default_rng(0)
    for number, (form, mode, options) in enumerate(EVERY):
        raw = noisy(form, mode, options)
        for i in range(24):
            changed = bytearray(raw)
            for place in generator.integers(0, 60 if i % 2 else len(raw), 2):
                changed[place] ^= int(generator.integers(1, 256))
            (files / f"{form}-{number}-{i:02d}").write_bytes(changed)
    codes, outputs = outcome([launch("-c", DECODE_EACH, str(files), str(answers))])
    assert codes == [0], outputs
    said = {path.name: path.read_text() for path in answers.iterdir()}
    assert said.keys() == {path.name for path in files.iterdir()}, "these ended the process"
    assert set(said.values()) == {"ValueError", "torch.uint8 3 3"}
