"""Images: any format becomes the same bytes as elsewhere, and what is cut from an image follows
from its key alone."""

import io
import math
import os
import random
import struct
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from scipy.stats import binomtest, chisquare, ks_2samp
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from helpers.images import chunk, encode, png_by_hand
from ssl_vit import rng
from ssl_vit.data import decoding, transforms

KEYS = rng.key(5, np.arange(4000))
LOSSLESS = [
    *(("PNG", mode, {}) for mode in ("RGB", "L", "P", "RGBA", "LA", "1")),
    *(("BMP", mode, {}) for mode in ("RGB", "L", "P", "1")),
    *(("TIFF", mode, {}) for mode in ("RGB", "L", "P", "RGBA", "1")),
    *(("TIFF", "RGB", {"compression": name}) for name in ("tiff_lzw", "tiff_deflate")),
    *(("GIF", mode, {}) for mode in ("L", "P")),
    *(("WEBP", mode, {"lossless": True, "exact": True}) for mode in ("RGB", "RGBA")),
]
EVERY = [
    *((name, mode, options) for name, mode, options in LOSSLESS if mode == "RGB"),
    ("GIF", "P", {}),
    ("JPEG", "RGB", {}),
]
# What each EXIF orientation asks to be done to the stored (H, W, 3) pixels (EXIF 2.3, tag 0x0112)
ORIENTATION = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, -1)[::-1],
    8: lambda a: np.rot90(a, 1),
}


def gradient(height=40, width=30):
    """Smooth colours, no two corners alike, as uint8 (H, W, 3)."""
    y, x = np.mgrid[:height, :width]
    return np.stack(
        [200 * y / height, 220 * x / width, 100 * y / height + 120 * x / width], -1
    ).astype(np.uint8)


def noise(seed, height=24, width=20):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def decoded(raw):
    """What `decode` makes of it, as (H, W, 3) numbers, checked to be bytes of three channels."""
    image = decoding.decode(raw)
    assert image.dtype == torch.uint8 and image.ndim == 3 and image.shape[0] == 3
    return image.permute(1, 2, 0).numpy().astype(int)


def colors(image):
    """A PIL image's RGB values, without PIL's own conversions where modes have alpha, two levels or
    a palette."""
    values = np.array(image)
    if image.mode == "P":
        return np.array(image.getpalette()).reshape(-1, 3)[values]
    if image.mode in ("RGB", "RGBA"):
        return values[..., :3]
    grey = values[..., 0] if image.mode == "LA" else values * (255 if image.mode == "1" else 1)
    return np.stack([grey] * 3, -1)


def as_tensor(array_HW3):
    return torch.from_numpy(np.ascontiguousarray(array_HW3.transpose(2, 0, 1)))


def boxes(height, width, area, count=4000):
    return transforms.crop_boxes(KEYS[:count], np.full(count, height), np.full(count, width), area)


@pytest.mark.parametrize(("form", "mode", "options"), LOSSLESS)
def test_lossless_formats_give_the_very_bytes(form, mode, options):
    image = Image.fromarray(gradient()).convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(gradient()[..., 1]))
    assert np.array_equal(decoded(encode(image, form, **options)), colors(image))


@settings(max_examples=40)
@given(
    hnp.arrays(
        np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3]))
    ),
    st.sampled_from(["PNG", "BMP", "TIFF"]),
)
def test_any_size_survives(array, form):
    raw = encode(Image.fromarray(array.squeeze(2) if array.shape[2] == 1 else array), form)
    assert np.array_equal(decoded(raw), np.broadcast_to(array, (*array.shape[:2], 3)))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_is_as_pillow_reads_it(mode, progressive):
    raw = encode(
        Image.fromarray(gradient()).convert(mode), "JPEG", quality=90, progressive=progressive
    )
    error = np.abs(decoded(raw) - np.array(Image.open(io.BytesIO(raw)).convert("RGB")))
    assert error.max() <= 4 and error.mean() < 0.5  # decoders may round differently


def test_a_palette_with_transparency_keeps_its_colors():
    image = Image.fromarray(gradient()).quantize(16)
    for transparency in (3, bytes([0, 128] * 8)):
        assert np.array_equal(
            decoded(encode(image, "PNG", transparency=transparency)), colors(image)
        )


@pytest.mark.parametrize(
    ("form", "options"), [("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {})]
)
def test_an_animation_is_its_first_image(form, options):
    frames = [
        Image.fromarray(a).quantize(64) if form == "GIF" else Image.fromarray(a)
        for a in (gradient(), gradient()[::-1])
    ]
    raw = encode(frames[0], form, save_all=True, append_images=frames[1:], **options)
    assert np.array_equal(decoded(raw), colors(frames[0]))


def png_of_16_bits(values):
    """A PNG file of uint16 (H, W, 1 or 3) values, written by hand: Pillow writes no such
    colours."""
    height, width, channels = values.shape
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)
    return png_by_hand(width, height, 16, 0 if channels == 1 else 2, lines)


@pytest.mark.parametrize("form", ["PNG, colours", "PNG, grey", "TIFF, grey"])
def test_sixteen_bits_are_brought_to_eight(form):
    values = np.random.default_rng(0).integers(
        0, 2**16, (9, 8, 3 if "colours" in form else 1), dtype=np.uint16
    )
    raw = (
        encode(Image.fromarray(values[..., 0]), "TIFF")
        if "TIFF" in form
        else png_of_16_bits(values)
    )
    assert np.abs(decoded(raw) - values / 257).max() <= 1


@pytest.mark.parametrize(
    ("form", "options"),
    [("PNG", {}), ("TIFF", {}), ("JPEG", {"quality": 95}), ("WEBP", {"lossless": True})],
)
def test_a_image_is_turned_as_its_camera_says(form, options):
    for orientation, turned in ORIENTATION.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        got, right = (
            decoded(encode(Image.fromarray(gradient()), form, exif=exif, **options)),
            turned(gradient()),
        )
        assert got.shape == right.shape, orientation
        assert np.abs(got - right).mean() < (4 if form == "JPEG" else 1e-9), orientation


def test_a_drawn_image_is_taken_as_it_is():
    assert np.array_equal(decoded(noise(0)), noise(0))


@pytest.mark.parametrize("turned_round", [False, True])
def test_a_line_of_pixels_is_seen_as_its_middle(turned_round):
    """Brought to a width whole, it would be 16 x 1,600,000 pixels."""
    line = np.zeros((1, 100_000, 3), np.uint8)
    line[:, 50_000 - 2 : 50_000 + 2] = 200
    image = torch.from_numpy(line).permute(2, 0, 1)
    image = image.mT if turned_round else image
    seen = transforms.eval_transform([image], 16, "crop", 1.0)
    assert seen.shape == (1, 3, 16, 16) and seen.float().mean() > 150
    assert transforms._middle(image).numel() == 3 * transforms.STRIP


@pytest.mark.parametrize("kind", [np.int32, np.float32])
@pytest.mark.parametrize("highest", [255, 65535])
def test_32_bits_have_no_black_and_white(kind, highest):
    """Of whole numbers an image's own highest value had decided, so that a dark one became
    bright."""
    raw = encode(Image.fromarray(np.array([[0, 7, highest]], kind)), "TIFF")
    with pytest.raises(ValueError, match="pixels of 32 bits, whose range is not known"):
        decoding.decode(raw)


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_garbage_is_refused(raw):
    with pytest.raises(ValueError):
        decoding.decode(raw)


def test_ink_becomes_light():
    """Four inks of one colour each: red, green and blue are what an ink leaves of white, times what
    black leaves."""
    for ink, right in (
        ((255, 0, 0, 0), (0, 255, 255)),
        ((0, 255, 0, 0), (255, 0, 255)),
        ((0, 0, 255, 128), (127, 127, 0)),
    ):
        for form, options in (("JPEG", {"quality": 100}), ("TIFF", {})):
            got = decoded(encode(Image.new("CMYK", (16, 16), ink), form, **options))
            assert np.abs(got - right).max() <= 3, (ink, form)


FOUR = [[[255, 0, 0], [0, 0, 255]], [[10, 20, 30], [40, 50, 60]]]
FLAT = bytes(np.ravel(FOUR).tolist())
TIFF_TAGS = [
    (256, 1, 2),
    (257, 1, 2),
    (258, 3, 134),
    (259, 1, 1),
    (262, 1, 2),
    (273, 1, 8),
    (277, 1, 3),
    (278, 1, 2),
    (279, 1, 12),
]
BY_HAND = {  # the four pixels of FOUR, as each format's specification says
    "BMP, last line and blue first, lines to four bytes": struct.pack(
        "<2sIIIIiiHHIIiiII", b"BM", 70, 0, 54, 40, 2, 2, 1, 24, *[0] * 6
    )
    + bytes([30, 20, 10, 60, 50, 40, 0, 0, 0, 0, 255, 255, 0, 0, 0, 0]),
    "TIFF": struct.pack("<2sHI", b"II", 42, 20)
    + FLAT
    + struct.pack("<H", len(TIFF_TAGS))
    + b"".join(struct.pack("<HHII", tag, 3, count, value) for tag, count, value in TIFF_TAGS)
    + struct.pack("<IHHH", 0, 8, 8, 8),
    "PNG, palette, its first colour transparent": png_by_hand(
        2, 2, 8, 3, bytes([0, 0, 1, 0, 2, 3]), chunk(b"PLTE", FLAT), chunk(b"tRNS", b"\0")
    ),
    "PNG, RGBA": png_by_hand(
        2, 2, 8, 6, bytes([0, 255, 0, 0, 0, 0, 0, 255, 9, 0, 10, 20, 30, 99, 40, 50, 60, 255])
    ),
    "PNG, 16 bits": png_by_hand(
        2, 2, 16, 2, b"".join(b"\0" + (np.array(line, ">u2") * 257).tobytes() for line in FOUR)
    ),
}


@pytest.mark.parametrize("form", BY_HAND)
def test_files_written_by_hand_give_their_pixels(form):
    assert decoded(BY_HAND[form]).tolist() == FOUR


def huge(form, side):
    """A file of 8 x 8 pixels whose header tells of more."""
    if form == "PNG":
        return png_by_hand(side, side, 8, 2, noise(0, 8, 8).tobytes())
    raw = bytearray(
        encode(
            Image.fromarray(noise(0, 8, 8)), form, **({"lossless": True} if form == "WEBP" else {})
        )
    )
    if form == "WEBP":  # sides less one, in 14 bits each, and above them a mark
        marks = struct.unpack_from("<I", raw, 21)[0] & ~(2**28 - 1)
        struct.pack_into("<I", raw, 21, marks | side - 1 | side - 1 << 14)
    elif form == "JPEG":
        struct.pack_into(">HH", raw, raw.index(b"\xff\xc0") + 5, side, side)
    elif form == "TIFF":  # entries of the first directory: width and height
        for tag in (256, 257):
            entry = raw.index(struct.pack("<HHI", tag, 4, 1))
            struct.pack_into("<I", raw, entry + 8, side)
    else:
        struct.pack_into("<ii", raw, 18, side, side)
    return bytes(raw)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "WEBP", "TIFF"])
def test_a_image_that_would_take_all_memory_is_refused_by_its_header(form):
    for side in (8001, 12_000):
        with pytest.raises(
            ValueError, match=rf"^its header tells of {side} x {side} pixels, more than 64 million$"
        ):
            decoding.decode(huge(form, side))
    # of some formats Pillow's own limit comes first
    with pytest.raises(ValueError, match=r"256000000 pixels|of 16000 x 16000 pixels"):
        decoding.decode(huge(form, 16_000))


JPEGS = (
    {},
    {"progressive": True},
    {"optimize": True, "comment": b"\xff\xc0\0\x11\x08\0\x01\0\x01 in a comment"},
    {"comment": b"cut off \xff\xc0"},
    {"restart_marker_rows": 1},
    {"icc_profile": bytes(70_000)},  # two segments
)


@pytest.mark.parametrize("options", JPEGS)
def test_a_jpeg_of_too_many_pixels_is_not_decoded(options):
    """Wherever its size stands, and whatever else looks like it."""
    raw = encode(Image.fromarray(gradient()), "JPEG", **options)
    place = raw.rindex(struct.pack(">HH", 40, 30))
    large = raw[:place] + struct.pack(">HH", 12_000, 12_000) + raw[place + 4 :]
    with pytest.raises(ValueError, match=r"^its header tells of 12000 x 12000 pixels"):
        decoding.decode(large)
    assert decoding.decode(raw).shape == (3, 40, 30)


CUTS = {
    "channels last": lambda image: image,
    "channels first": lambda image: image.contiguous(),
    "one of many": lambda image: torch.stack([image.flip(1), image, image])[1],
    "part of a larger one": lambda image: F.pad(image, [3, 5, 2, 4])[:, 5:-4, 3:-2],
    "columns first": lambda image: image.contiguous().transpose(1, 2).contiguous().transpose(1, 2),
}


@pytest.mark.parametrize("layout", CUTS)
@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (75, 100, 24), (9, 40, 16)])
def test_training_crops_are_those_of_torchvision(height, width, size, layout):
    """However the image lies in the memory."""
    image = as_tensor(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))
    image = CUTS[layout](image)
    key_B = KEYS[:60]
    boxes_B4 = transforms.crop_boxes(key_B, np.full(60, height), np.full(60, width), 0.05)
    got = transforms.train_transform([image] * 60, key_B, size, 0.05, False)
    for one, box in zip(got, boxes_B4.tolist(), strict=True):
        right = F.resized_crop(image, *box, [size, size], antialias=True)
        # where a CPU has no instructions for bytes, torchvision computes in floating point
        assert (one.int() - right.int()).abs().max() <= 1


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_a_training_crop_reads_no_other_memory_than_its_image(channels):
    """Each channel is what it is alone; beside an image of another number, an error."""
    image = as_tensor(np.random.default_rng(0).integers(0, 256, (20, 20, channels), np.uint8))
    made = transforms.train_transform([image], KEYS[:1], 16, 0.3, False)
    alone = [transforms.train_transform([one[None]], KEYS[:1], 16, 0.3, False) for one in image]
    assert torch.equal(made, torch.cat(alone, 1))
    if channels > 1:
        with pytest.raises(RuntimeError, match="size"):
            three = torch.zeros(3, 20, 20, dtype=torch.uint8)
            transforms.train_transform([three, image], KEYS[:2], 16, 0.3, False)


@pytest.mark.parametrize(("side", "is_read"), [(8000, True), (8001, False)])
def test_sixty_four_megapixels_are_read_and_no_more(side, is_read):
    raw = png_by_hand(8000, side, 1, 0, bytes(1001 * side))
    if is_read:
        assert decoding.decode(raw).shape == (3, side, 8000)
    else:
        with pytest.raises(ValueError, match="8000 x 8001"):
            decoding.decode(raw)


@pytest.mark.parametrize(("form", "mode", "options"), EVERY)
def test_a_cut_file_is_refused_or_lacks_nothing(form, mode, options):
    """Nothing but a format's last bytes, which hold no pixels, may be missing unnoticed."""
    raw = encode(Image.fromarray(noise(1)).convert(mode), form, **options)
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


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """{form: what decoding came to} for files with changed bytes, decoded in a process that they
    may take with them."""
    folder, answers = tmp_path_factory.mktemp("damaged"), tmp_path_factory.mktemp("answers")
    generator = np.random.default_rng(0)
    for number, (form, mode, options) in enumerate(EVERY):
        raw = encode(Image.fromarray(noise(1)).convert(mode), form, **options)
        for i in range(24):
            changed = bytearray(raw)
            for place in generator.integers(0, 60 if i % 2 else len(raw), 2):
                changed[place] ^= int(generator.integers(1, 256))
            (folder / f"{form}-{number}-{i:02d}").write_bytes(changed)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", DECODE_EACH, folder, answers],
        env=environment,
        capture_output=True,
        check=True,
    )
    found = {}
    for path in folder.iterdir():
        answer = answers / path.name
        found.setdefault(path.name.split("-")[0], []).append(
            answer.read_text() if answer.exists() else "the process died"
        )
    return found


@pytest.mark.parametrize("form", sorted({form for form, _, _ in EVERY}))
def test_a_damaged_file_is_refused_or_read_but_takes_nothing_down(damaged, form):
    assert len(damaged[form]) >= 24
    assert set(damaged[form]) <= {"ValueError", "torch.uint8 3 3"}


@settings(max_examples=80)
@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.floats(0.001, 1),
    st.integers(-(2**63), 2**63 - 1),
)
def test_a_box_lies_inside_its_image(height, width, area, key):
    keys = rng.key(key, np.arange(50))
    top, left, h, w = transforms.crop_boxes(keys, np.full(50, height), np.full(50, width), area).T
    assert (h >= 1).all() and (w >= 1).all() and (top >= 0).all() and (left >= 0).all()
    assert (top + h <= height).all() and (left + w <= width).all()
    # up to rounding
    assert ((w - 0.51) / (h + 0.51) <= 4 / 3).all() and ((w + 0.51) / (h - 0.51) >= 3 / 4).all()


@pytest.mark.parametrize(("height", "width"), [(300, 300), (375, 500), (200, 640), (1000, 250)])
@pytest.mark.parametrize("area", [0.05, 0.35])
def test_boxes_are_spread_as_torchvision_spreads_them(height, width, area):
    ours = boxes(height, width, area)
    image = torch.empty(3, height, width)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = (
            RandomResizedCrop.get_params(image, [area, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)
        )
        theirs = np.array(list(drawn))
    spread = (
        lambda b: b[:, 2] * b[:, 3],
        lambda b: b[:, 3] / b[:, 2],
        lambda b: b[:, 0],
        lambda b: b[:, 1],
    )
    assert all(ks_2samp(of(ours), of(theirs)).pvalue > 1e-3 for of in spread)


def test_a_box_is_as_likely_in_every_place():
    """The edges too, on an image so small that they are places of their own."""
    found = boxes(6, 6, 0.3)
    for place, side in ((0, 2), (1, 3)):
        for length in (4, 5):
            counts = np.bincount(found[found[:, side] == length, place], minlength=7 - length)
            assert len(counts) == 7 - length and chisquare(counts).pvalue > 1e-3


def test_a_image_that_no_try_fits_gets_its_largest_centered_box():
    assert (boxes(1, 1000, 0.5) == [0, 499, 1, 1]).all()
    assert (boxes(1000, 1, 0.5) == [499, 0, 1, 1]).all()
    assert (boxes(30, 600, 0.9) == [0, 280, 30, 40]).all()  # 4/3 of the height
    assert (boxes(600, 30, 0.9) == [280, 0, 40, 30]).all()
    assert (boxes(1, 1, 0.05) == [0, 0, 1, 1]).all()


def test_area_one_is_the_whole_image_where_that_is_allowed():
    whole = boxes(300, 300, 1.0)
    square = whole[:, 2] == whole[:, 3]
    assert square.any() and (whole[square] == [0, 0, 300, 300]).all()


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 700), st.integers(1, 700)), min_size=1, max_size=12),
    st.floats(0.05, 1),
)
def test_a_box_depends_on_its_own_key_and_size_only(sizes, area):
    height, width = np.array(sizes).T
    key = KEYS[: len(sizes)]
    together = transforms.crop_boxes(key, height, width, area)
    for i in range(len(sizes)):
        alone = transforms.crop_boxes(key[i : i + 1], height[i : i + 1], width[i : i + 1], area)
        assert np.array_equal(alone[0], together[i])


def test_global_generators_are_neither_read_nor_moved():
    images = [as_tensor(noise(i)) for i in range(8)]
    with torch.random.fork_rng():
        made = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
            made.append(transforms.train_transform(images, KEYS[:8], 16, 0.05, flip=True))
            after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
            assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert torch.equal(*made)


def test_a_training_image_is_its_box_resized():
    """Against Pillow, up to rounding."""
    arrays = [gradient(50 + i, 90 - i) for i in range(20)]
    got = transforms.train_transform(
        [as_tensor(a) for a in arrays], KEYS[:20], 32, 0.05, flip=False
    )
    assert got.dtype == torch.uint8 and got.shape == (20, 3, 32, 32)
    sizes = np.array([a.shape[:2] for a in arrays])
    boxes_B4 = transforms.crop_boxes(KEYS[:20], *sizes.T, 0.05).tolist()
    for array, image, (top, left, h, w) in zip(arrays, got, boxes_B4, strict=True):
        cut = Image.fromarray(array[top : top + h, left : left + w])
        right = np.array(cut.resize((32, 32), Image.Resampling.BILINEAR))
        assert np.abs(image.permute(1, 2, 0).numpy().astype(int) - right).max() <= 1


def test_half_of_the_images_are_flipped_whatever_their_box():
    images = [as_tensor(noise(i, 12, 12)) for i in range(1000)]
    plain = transforms.train_transform(images, KEYS[:1000], 8, 0.3, flip=False)
    got = transforms.train_transform(images, KEYS[:1000], 8, 0.3, flip=True)
    flipped = (got != plain).flatten(1).any(1)
    assert torch.equal(got, torch.where(flipped[:, None, None, None], plain.flip(-1), plain))
    assert binomtest(int(flipped.sum()), 1000).pvalue > 1e-3
    left = boxes(12, 12, 0.3, 1000)[:, 1]
    assert ks_2samp(left[flipped.numpy()], left[~flipped.numpy()]).pvalue > 1e-3


def test_a_drawn_image_and_its_file_give_the_same_training_image():
    arrays = [noise(i, 70, 50) for i in range(6)]
    files = [encode(Image.fromarray(a), "PNG") for a in arrays]
    drawn, read = (list(map(decoding.decode, some)) for some in (arrays, files))
    crops = (transforms.train_transform(some, KEYS[:6], 32, 0.05, True) for some in (drawn, read))
    assert torch.equal(*crops)
    assert torch.equal(
        *(transforms.eval_transform(some, 32, "crop", 0.875) for some in (drawn, read))
    )


@pytest.mark.parametrize(
    ("size", "crop"), [(32, 0.875), (32, 0.9), (224, 0.875), (64, 0.5), (16, 1.0)]
)
def test_evaluation_takes_the_center_of_a_image_of_the_right_size(size, crop):
    """256 for 224: of a square image of side S / crop the middle S, not resized."""
    short = math.floor(size / crop)
    array, edge = noise(3, short, short), (short - size) / 2
    (got,) = transforms.eval_transform([as_tensor(array)], size, "crop", crop)
    starts = {math.floor(edge), math.ceil(edge)}
    cuts = [array[a : a + size, b : b + size] for a in starts for b in starts]
    assert any(np.array_equal(got.permute(1, 2, 0), cut) for cut in cuts)


@pytest.mark.parametrize(("height", "width"), [(512, 512), (512, 768), (900, 512), (128, 128)])
def test_evaluation_shows_the_middle_at_one_scale(height, width):
    """On a gradient: pixel j of 224 shows place (j + 1/2 - 112) / 256 of the shorter side from the
    centre, along both axes."""
    y, x = np.mgrid[:height, :width]
    ramp = np.stack([255 * (y + 0.5) / height, 255 * (x + 0.5) / width, 0 * x], -1)
    image = as_tensor(np.rint(ramp).astype(np.uint8))
    got = transforms.eval_transform([image], 224, "crop", 0.875)[0].numpy().astype(float)
    place = (np.arange(224) + 0.5 - 112) / 256 * min(height, width)
    for channel, length, axis in ((0, height, 1), (1, width, 0)):
        right = 255 * (0.5 + place / length)
        half = 255 / 256 * min(height, width) / length  # where the image has an odd pixel to spare
        assert np.abs(got[channel].mean(axis) - right).max() < 0.6 + 0.5 * half
        assert np.ptp(got[channel], axis).max() <= 1


@settings(max_examples=200)
@given(
    st.sampled_from(["JPEG", "PNG", "WEBP"]),
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6),
)
def test_whatever_is_damaged_nothing_above_the_limit_is_decoded(form, cut, changes):
    """An image at twice the limit: it is refused, or what is left of it is smaller."""
    raw = bytearray(encode(Image.fromarray(gradient()), form))
    for place, value in changes:
        raw[place % len(raw)] = value
    raw = bytes(raw[: 1 + cut % len(raw)]) if cut % 3 == 0 else bytes(raw)
    limit = 40 * 30 // 2
    with pytest.MonkeyPatch.context() as patch, suppress(ValueError):
        patch.setattr(decoding, "MOST_PIXELS", limit)
        found = decoding.decode(raw)
        assert found.shape[1] * found.shape[2] <= limit
