"""Images of noise, alone and in folders, tars and parquet files."""

import io
import struct
import tarfile
import zlib
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

NAMED = datasets.Features(
    {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])}
)


def encode(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def on_white(color, alpha):
    """Compose colors (H, W, 3) or grey values (H, W) over white, in float64, to whole numbers."""
    color = color if color.ndim == 3 else np.stack([color] * 3, -1)
    share = alpha[..., None].astype(float) / 255
    return np.rint(share * color + (1 - share) * 255).astype(int)


def npy(array):
    """An array as NumPy saves it."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def png(number, width=6, grey=False):
    """An image of noise, 6 pixels high, that no other number has."""
    shape = (6, width) if grey else (6, width, 3)
    pixels = np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
    return encode(Image.fromarray(pixels), "PNG")


def chunk(kind, data):
    """Of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_by_hand(width, height, depth, colour, lines, *others):
    """A PNG file of these lines, each behind the byte of its filter, of which Pillow may write
    none."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    content = chunk(b"IDAT", zlib.compress(lines))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(others) + content + chunk(b"IEND", b"")


def png_of_16_bits(value, *others):
    """A PNG file of these values, (H, W) or (H, W, C)."""
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[value[0, 0].size]
    lines = b"".join(b"\0" + line.tobytes() for line in value.astype(">u2"))
    return png_by_hand(value.shape[1], value.shape[0], 16, kind, lines, *others)


def tiff(array, **options):
    """An array as tifffile writes it. Without tifffile, the test is skipped."""
    tifffile = pytest.importorskip("tifffile", reason="needs the extra [tiff]")
    file = io.BytesIO()
    tifffile.imwrite(file, array, **options)
    return file.getvalue()


def tar(path, members, form=tarfile.PAX_FORMAT):
    """A tar of these (name, bytes)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as file:
        for name, raw in members:
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            file.addfile(info, io.BytesIO(raw))
    return path


def numbered(path, numbers):
    """A tar of these images, odd ones of class 1."""
    return tar(
        path,
        [
            part
            for n in numbers
            for part in ((f"{n:04d}.png", png(n)), (f"{n:04d}.cls", str(n % 2).encode()))
        ],
    )


def parquet(path, numbers, group=4):
    """A parquet file of these images, odd ones bees, in row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "image": [{"bytes": png(n), "path": None} for n in numbers],
        "label": [n % 2 for n in numbers],
    }
    datasets.Dataset.from_dict(columns, features=NAMED).to_parquet(str(path), batch_size=group)
    return path


def images(root, **counts):
    """So many images in each folder ("__" for a slash, "_" for the root); {folder: their bytes}."""
    wrote, number = {}, 0
    for name, count in counts.items():
        folder = root / name.replace("__", "/") if name != "_" else root
        folder.mkdir(parents=True, exist_ok=True)
        wrote[name] = {png(number + i) for i in range(count)}
        for i in range(count):
            (folder / f"{number + i}.png").write_bytes(png(number + i))
        number += count
    return wrote


def put(folder: Path, count: int) -> None:
    """PNG files of noise, 16 x 16, which no folder of another name has."""
    folder.mkdir(parents=True)
    for number in range(count):
        seed = [number, *map(ord, str(folder.name))]
        noise = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")


def two_classes(folder: Path, *splits: str) -> Path:
    """Of each of two classes twelve images in the first split, and three in the second; by default
    to train on and to test on."""
    for split, count in zip(splits or ("train", "test"), (12, 3), strict=False):
        for name in "ab":
            put(folder / split / name, count)
    return folder
