"""Store images that a user passes to a Python function, so that every command can read them.

`ssl_vit.pretrain(images=DATASET)` writes the images once into a folder, and the run reads this
folder like any other `data.path`. So a run resumes exactly, and later commands find the images.
Files are not copied: the folder has a link to each file.
"""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from PIL import Image

from ..errors import UserError
from ..formatting import format_bytes
from .decoding import from_pillow
from .fingerprints import MOST_BYTES

FOLDER = ".images"  # in the folder of runs; the hidden folder is not searched for runs
IMAGE_KEYS = ("image", "img", "pixel_values", "jpg", "png")
LABEL_KEYS = ("label", "labels", "fine_label", "target", "class", "cls")
KINDS = (
    "a map-style torch Dataset, a datasets.Dataset, a list of paths, a list of (path, label), or a"
    " mapping from split names to these"
)


class Row(NamedTuple):
    """Image of a data set, with its label.

    Attributes:
        image: Encoded image, or the path of a file.
        label: Integer, text, list of integers, or None for no label.
    """

    image: bytes | Path
    label: Any


class Split(NamedTuple):
    """Images of a split.

    Attributes:
        length: Number of images.
        read: Return a row by its number.
        classes: Names of the classes, starting with label 0. Empty if unknown.
        are_files: Whether each image is a file.
    """

    length: int
    read: Callable[[int], Row]
    classes: Sequence[str]
    are_files: bool


def store(images: Any, out: Path) -> Path:
    """Write images into a folder below `out`, unless this was done before, and return the folder.

    The name of the folder is the name of the data set. The parent folder's name is a hash of the
    images, so other images get another folder. If all images together have more than 1 GiB, only
    every n-th image is hashed. Then a change of the images in between is not noticed.

    Args:
        images: One of KINDS.
        out: Folder of the runs.

    Raises:
        UserError: `images` is something else, an image cannot be used, or reading the same image
            twice gives different pixels.
    """
    named = images if isinstance(images, Mapping) else {"train": images}
    splits = {str(name): _open_split(value) for name, value in named.items()}
    empty = [name for name, split in splits.items() if split.length == 0]
    if not splits or empty:
        raise UserError(f"images=: there are no images{' in ' + empty[0] if empty else ''}.")
    if len({split.are_files for split in splits.values()}) > 1:
        raise UserError("images=: some splits are files and others are not. Pass one kind.")
    name = _name_of(next(iter(named.values())))
    parent = out / FOLDER / _hash(splits)
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / name
    with FileLock(parent / "lock"):  # the processes of a run wait for the process that writes
        if not folder.exists():
            unfinished = parent / f".{name}"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            write = _write_links if next(iter(splits.values())).are_files else _write_table
            write(splits, unfinished)
            unfinished.rename(folder)
    if os.environ.get("RANK", "0") == "0":
        counts = [f"{split.length:,} {split_name}" for split_name, split in splits.items()]
        size = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
        links = next(iter(splits.values())).are_files
        how = "links to the files" if links else format_bytes(size)
        print(f"images      {', '.join(counts)} in data.path={folder} ({how})", flush=True)
    return folder


def _open_split(images: Any) -> Split:
    """Return the images of a split in a uniform form.

    Raises:
        UserError: The images have no known form, or an image differs when it is read twice.
    """
    if hasattr(images, "save_to_disk"):
        return _open_table(images)
    paths = _paths(images)
    if paths:
        return Split(len(paths), lambda i: _file_row(*paths[i]), (), are_files=True)
    has_rows = hasattr(images, "__getitem__") and hasattr(images, "__len__")
    if not has_rows or isinstance(images, type | str | bytes):
        raise UserError(f"images=: expected {KINDS}, not {type(images).__name__}.")
    if not len(images):
        return Split(0, lambda i: Row(b"", None), (), are_files=False)
    classes = [str(name) for name in getattr(images, "classes", None) or ()]
    for row in {0, len(images) // 2}:
        if _encode(images[row], row) != _encode(images[row], row):
            raise UserError(
                f"images=: image {row} differs when it is read twice. Pass the data set without"
                " random transforms, and pass the transforms as augment=."
            )
    return Split(len(images), lambda i: _encode(images[i], i), classes, are_files=False)


def _paths(items: Any) -> list[tuple[Path, Any]]:
    """Return the path and the label of each item, or [] if the items are no paths.

    The items may be a list, or an ImageFolder of torchvision without transforms.
    """
    samples = getattr(items, "samples", None)  # (path, number of the class)
    if samples and getattr(items, "transforms", None) is None:
        items = [(path, items.classes[number]) for path, number in samples]
    if not isinstance(items, list | tuple):
        return []
    pairs = [item if isinstance(item, tuple) and len(item) == 2 else (item, None) for item in items]
    if not all(isinstance(path, str | os.PathLike) for path, _ in pairs):
        return []
    return [(Path(path).absolute(), label) for path, label in pairs]


def _file_row(path: Path, label: Any) -> Row:
    return Row(path, _plain_label(label))


def _open_table(table: Any) -> Split:
    """Return the rows of a `datasets.Dataset`. Images stay encoded as they are."""
    import datasets

    if isinstance(table, datasets.IterableDataset):
        raise UserError("images=: a stream has no rows by number. Use data.hub= data.stream=true.")
    keys = [name for name, kind in table.features.items() if isinstance(kind, datasets.Image)]
    if len(keys) != 1:
        raise UserError(f"images=: expected one column of images, not {len(keys)}: {keys}.")
    label = next((key for key in LABEL_KEYS if key in table.features), None)
    classes = getattr(table.features[label], "names", None) if label else None
    encoded = table.with_format(None).cast_column(keys[0], datasets.Image(decode=False))

    def read(row: int) -> Row:
        cells = encoded[row]
        content = cells[keys[0]]["bytes"]
        if content is None:
            content = Path(cells[keys[0]]["path"]).read_bytes()
        return Row(content, _plain_label(cells[label]) if label else None)

    return Split(len(table), read, classes or (), are_files=False)


def _encode(item: Any, row: int) -> Row:
    """Return the image and label of an item of a torch Dataset.

    Raises:
        UserError: The item has no image, or the image has no pixels that can be stored exactly.
    """
    label = None
    if isinstance(item, Mapping):
        key = next((key for key in IMAGE_KEYS if key in item), None)
        if key is None:
            raise UserError(f"images=: item {row} has no key {' or '.join(IMAGE_KEYS[:2])}.")
        label = next((item[key] for key in LABEL_KEYS if key in item), None)
        item = item[key]
    elif isinstance(item, tuple | list) and item:
        item, label = (*item, None)[:2]
    return Row(_encode_pixels(item, row), _plain_label(label))


def _encode_pixels(image: Any, row: int) -> bytes:
    """Encode an image without loss: 8-bit grey and RGB as PNG, all else as .npy.

    Args:
        image: PIL image, uint8 or uint16 array (H, W) or (H, W, C), or tensor (H, W) or (C, H, W).
            Floating-point pixels must lie between 0 and 1, and stand for 8 bits.
        row: Number of the image, for errors.
    """
    if isinstance(image, Image.Image):
        array = from_pillow(image)
    else:
        is_tensor = hasattr(image, "numpy")
        array = np.asarray(image.numpy(force=True) if is_tensor else image)
        if is_tensor and array.ndim == 3:
            array = np.moveaxis(array, 0, -1)
    if array.dtype.kind == "f" and array.size and array.min() >= 0 and array.max() <= 1:
        array = np.rint(array * 255).astype(np.uint8)
    if array.ndim not in (2, 3) or array.dtype not in (np.uint8, np.uint16) or not array.size:
        raise UserError(
            f"images=: image {row} has the type {array.dtype} and the shape {array.shape}. Pass PIL"
            " images, or uint8 pixels without Normalize."
        )
    array = np.ascontiguousarray(array)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    encoded = io.BytesIO()
    if array.dtype == np.uint8 and (array.ndim == 2 or array.shape[2] == 3):
        Image.fromarray(array).save(encoded, "PNG", compress_level=1)
    else:
        np.save(encoded, array)
    return encoded.getvalue()


def _plain_label(label: Any) -> Any:
    """Convert a label to an integer, a text, a list of integers, or None."""
    if hasattr(label, "tolist"):  # a tensor or a NumPy value
        label = label.tolist()
    if label is None or isinstance(label, str | int):
        return label
    if isinstance(label, list | tuple) and all(isinstance(number, int) for number in label):
        return list(label)
    raise UserError(
        f"images=: {label!r} is no label. Use an integer, a text or a list of integers."
    )


def _name_of(images: Any) -> str:
    """Return a name for the images: that of the table, of the files' folder, or of the class."""
    if hasattr(images, "save_to_disk"):
        return getattr(images.info, "dataset_name", None) or "images"
    paths = _paths(images)
    if paths:
        return Path(os.path.commonpath([path.parent for path, _ in paths])).name or "images"
    name = type(images).__name__.lower()
    return "images" if name in ("subset", "list", "concatdataset", "tensordataset") else name


def _hash(splits: Mapping[str, Split]) -> str:
    """Hash the labels and images of all splits. Of files, hash the paths, sizes and times."""
    digest = hashlib.sha256()
    for name, split in splits.items():
        digest.update(f"{name} {split.length} {list(split.classes)} {split.are_files}".encode())
        first = split.read(0).image
        size = 0 if isinstance(first, Path) else split.length * len(first)
        for number in range(0, split.length, max(1, -(-size // MOST_BYTES))):
            image, label = split.read(number)
            if isinstance(image, Path):
                if not image.is_file():
                    raise UserError(f"images=: {image} is no file.")
                stat = image.stat()
                image = f"{image} {stat.st_size} {stat.st_mtime_ns}".encode()
            digest.update(f"{len(image)} {label} ".encode())
            digest.update(image)
    return digest.hexdigest()[:8]


def _write_links(splits: Mapping[str, Split], folder: Path) -> None:
    """Write a folder of links for each split, and a table of the labels."""
    for name, split in splits.items():
        place = folder / name
        place.mkdir()
        lines = []
        for number in range(split.length):
            path, label = split.read(number)
            assert isinstance(path, Path)
            link = f"{number:08}-{path.name}"
            (place / link).symlink_to(path)
            lines.append(json.dumps({"file_name": link, "label": label}))
        if any('"label": null' not in line for line in lines):
            (place / "metadata.jsonl").write_text("\n".join(lines))


def _write_table(splits: Mapping[str, Split], folder: Path) -> None:
    """Write all splits as a `datasets.DatasetDict`, which is read without another copy."""
    import datasets

    datasets.disable_progress_bars()
    tables = {}
    for name, split in splits.items():
        labels: list[Any] = []

        def rows(split: Split = split, labels: list[Any] = labels) -> Iterator[dict[str, Any]]:
            for number in range(split.length):
                image, label = split.read(number)
                labels.append(label)
                yield {"image": {"bytes": image, "path": None}}

        table = datasets.Dataset.from_generator(
            rows,
            features=datasets.Features({"image": datasets.Image(decode=False)}),
            cache_dir=str(folder / "cache"),
            fingerprint=f"images-{name}",
        ).cast_column("image", datasets.Image())
        if any(label is not None for label in labels):
            table = table.add_column("label", labels, feature=_label_feature(labels, split.classes))
        tables[name] = table
    datasets.DatasetDict(tables).save_to_disk(folder)
    shutil.rmtree(folder / "cache")


def _label_feature(labels: list[Any], classes: Sequence[str]) -> Any:
    """Return the type of a column of labels.

    Raises:
        UserError: The labels have several types.
    """
    import datasets

    (kind, *others) = {type(label) for label in labels if label is not None}
    if others:
        raise UserError("images=: some labels are numbers and others are texts or lists.")
    if kind is int and classes and max(label or 0 for label in labels) < len(classes):
        return datasets.ClassLabel(names=list(classes))
    types = {int: datasets.Value("int64"), str: datasets.Value("string")}
    return types.get(kind, datasets.List(datasets.Value("int64")))
