"""Store images that a user passes to a Python function, so that every command can read them.

`ssl_vit.pretrain(images=DATASET)` writes the images once into a folder, and the run reads this
folder like any other `data.path`. So a run resumes exactly, and later commands find the images.
Files are not copied: the folder has a hard link to each file, where the disk allows it. The queries
of `ssl_vit.embed` are stored in the same place.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet
from filelock import FileLock
from PIL import Image, ImageOps

from ..errors import UserError, is_first_process, one_line
from ..formatting import format_bytes
from ..runs.console import with_progress
from ..runs.files import write_atomically
from .decoding import LEAST_VALUE, MOST_VALUE, NPY, from_pillow
from .fingerprints import MOST_BYTES
from .labels import usual_columns

FOLDER = ".images"  # in the folder of runs; the hidden folder is not searched for runs
QUERIES = "queries"  # folder of the queries, in FOLDER
FILES = ".files"  # folder of the links, in the folder of the images
IMAGE_KEYS = ("image", "img", "pixel_values", "jpg", "png")
COLOURS = (1, 3)  # channels by which an image (C, H, W) is told from (H, W, C)
# Modes of Pillow that PNG stores as they are
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
LONGEST_NAME = 200  # bytes
KINDS = (
    "a map-style torch Dataset, a datasets.Dataset, a list of paths, a list of (path, label), or a"
    " mapping from split names to these"
)


class Row(NamedTuple):
    """Image of a data set, with its label.

    Attributes:
        image: Encoded image, or the path of a file.
        label: Integer, text, list of integers, or None for no label. Of a table, the other columns
            as a text, only for the hash.
    """

    image: bytes | Path
    label: Any


class Split(NamedTuple):
    """Images of a split.

    Attributes:
        length: Number of images.
        read: Return a row by its number.
        classes: Names of the classes, starting with label 0. Empty if unknown.
        labels: Labels of all images, or None if only `read` knows them.
        table: The `datasets.Dataset`, whose columns are kept. None for other images.
    """

    length: int
    read: Callable[[int], Row]
    classes: Sequence[str] = ()
    labels: Sequence[Any] | None = None
    table: Any = None


def store(images: Any, out: Path) -> Path:
    """Write images into a folder below `out`, unless this was done before, and return the folder.

    The name of the folder is the name of the data set. The parent folder's name is a hash of the
    images, so other images get another folder. If all images together have more than 1 GiB, only
    every n-th image is hashed, and all labels that are known without reading the images.

    Args:
        images: One of KINDS.
        out: Folder of the runs.

    Raises:
        UserError: `images` is something else, an image cannot be used, or reading the same image
            twice gives different pixels.
    """
    named = images if isinstance(images, Mapping) else {"train": images}
    splits = {str(name): _open_split(value) for name, value in sorted(named.items())}
    kinds = {isinstance(split.read(0).image, Path) for split in splits.values() if split.length}
    if len(kinds) > 1:
        raise UserError(
            "images=: some splits are lists of files and some are not. Use the same kind for all."
        )
    empty = [name for name, split in splits.items() if split.length == 0]
    if not splits or empty:
        raise UserError(f"images=: there are no images{' in ' + empty[0] if empty else ''}.")
    digest = _Digest(splits)
    for name, split in splits.items():
        sample = digest.sample(split)
        for number in with_progress(sample, len(sample), f"{name} images", "read"):
            digest.add(name, number, split.read(number))
    parent = out / FOLDER / digest.text()
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / _name_of(next(iter(named.values())))
    with FileLock(parent / "lock"):  # the processes of a run wait for the process that writes
        if not folder.exists():
            unfinished = parent / f".{folder.name}"
            shutil.rmtree(unfinished, ignore_errors=True)
            (unfinished / FILES).mkdir(parents=True)
            try:
                if _write(splits, unfinished) != parent.name:
                    raise UserError(
                        "images=: the images differ when they are read twice. Pass the data set"
                        " without random transforms, and pass the transforms as augment=."
                    )
                unfinished.rename(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    if is_first_process():
        counts = ", ".join(f"{split.length:,} {name}" for name, split in splits.items())
        tables = [file for name in splits for file in (folder / name).glob("*.arrow")]
        size = sum(file.stat().st_size for file in [*tables, *folder.glob("*.parquet")])
        sampled = f", compared by every {digest.step}th image" if digest.step > 1 else ""
        print(
            f"images      {counts} in data.path={folder} ({format_bytes(size)}{sampled})",
            flush=True,
        )
    return folder


def store_queries(queries: Any, out: Path) -> Any:
    """Write the queries that are images in memory as files, and return all queries as paths.

    The name of a file is a hash of the image, so the same image is written once.

    Args:
        queries: Image or path, or a list of these. A path is returned as it is.
        out: Folder of the runs.

    Raises:
        UserError: An image has no pixels that can be stored exactly.
    """
    if isinstance(queries, list | tuple):
        return [store_queries(query, out) for query in queries]
    if queries is None or isinstance(queries, str | os.PathLike):
        return queries
    encoded = _encode_pixels(queries, "query=: an image")
    kind = "npy" if encoded.startswith(NPY) else "png"
    file = out / FOLDER / QUERIES / f"{hashlib.sha256(encoded).hexdigest()[:8]}.{kind}"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, encoded)
    return file


class _Digest:
    """Hash of the images and labels of all splits.

    Attributes:
        step: n, if every n-th image is hashed.
    """

    def __init__(self, splits: Mapping[str, Split]) -> None:
        self.hash = hashlib.sha256()
        size = 0
        for name, split in splits.items():
            facts = [name, split.length, *split.classes, *(split.labels or ())]
            self.hash.update(json.dumps(facts).encode())
            first = split.read(0).image
            size += 0 if isinstance(first, Path) else split.length * len(first)
        self.step = max(1, -(-size // MOST_BYTES))

    def sample(self, split: Split) -> range:
        return range(0, split.length, self.step)

    def add(self, name: str, number: int, row: Row) -> None:
        """Add a row of a split if it belongs to the sample. Of a file, add path, size and time."""
        if number % self.step:
            return
        image = row.image
        if isinstance(image, Path):
            if not image.is_file():
                raise UserError(f"images=: {image} is no file.")
            stat = image.stat()
            image = os.fsencode(image) + f" {stat.st_size} {stat.st_mtime_ns}".encode()
        self.hash.update(json.dumps([name, number, len(image), row.label]).encode())
        self.hash.update(image)

    def text(self) -> str:
        return self.hash.hexdigest()[:8]


def _open_split(images: Any) -> Split:
    """Return the images of a split in a uniform form.

    Raises:
        UserError: The images have no known form.
    """
    if hasattr(images, "save_to_disk"):
        return _open_table(images)
    paths, classes = _paths(images)
    if paths:
        known = [_plain_label(label) for _, label in paths]
        return Split(len(paths), lambda i: Row(paths[i][0], known[i]), classes, known)
    _check_rows(images)
    whole = images
    while not hasattr(whole, "classes") and hasattr(whole, "dataset"):
        whole = whole.dataset  # of a torch Subset
    names = getattr(whole, "classes", ())
    is_list = isinstance(names, list | tuple) and len({*map(str, names)}) == len(names)
    targets = getattr(images, "targets", None)
    labels: list[Any] | None = None
    with contextlib.suppress(TypeError, UserError):
        if targets is not None and len(targets) == len(images):
            labels = [_plain_label(label) for label in targets]
    classes = [*map(str, names)] if is_list else []
    return Split(len(images), lambda i: _encode(_item(images, i), i), classes, labels)


def _check_rows(images: Any) -> None:
    """Check that an object has rows, which are read by their number.

    Raises:
        UserError: The object is something else.
    """
    kind = type(images).__name__
    has_rows, has_length = hasattr(images, "__getitem__"), hasattr(images, "__len__")
    if isinstance(images, type | str | bytes) or not (has_rows or hasattr(images, "dataset")):
        raise UserError(f"images=: expected {KINDS}, not {kind}.")
    if any(parent.__name__ == "IterableDataset" for parent in type(images).__mro__):
        raise UserError(f"images=: {kind} has no items by number. Use a map-style Dataset.")
    if not has_rows:  # a DataLoader
        raise UserError(
            f"images=: {kind} has batches. Pass the attribute `dataset` of this object instead."
        )
    if not has_length:
        raise UserError(f"images=: {kind} has no length. Define its method __len__.")


def _item(images: Any, row: int) -> Any:
    """Return an item of a torch Dataset.

    Raises:
        UserError: The data set raises an error.
    """
    try:
        return images[row]
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"images=: reading item {row} of {type(images).__name__} raised {one_line(error)}."
            " Repair this item, or leave it out with torch.utils.data.Subset."
        ) from error


def _paths(images: Any) -> tuple[list[tuple[Path, Any]], list[str]]:
    """Return the path and label of each image, and the class names. Empty if images are no paths.

    The images may be a list, or an ImageFolder of torchvision itself without transforms.
    """
    classes: list[str] = []
    kind = type(images)
    if (kind.__module__, kind.__name__) == ("torchvision.datasets.folder", "ImageFolder"):
        plain = images.transform is None and images.target_transform is None
        if plain and images.loader.__name__ == "default_loader":
            classes, images = [*images.classes], [*images.samples]
    if not isinstance(images, list | tuple):
        return [], []
    pairs = [
        item if isinstance(item, tuple) and len(item) == 2 else (item, None) for item in images
    ]
    if not all(isinstance(path, str | os.PathLike) for path, _ in pairs):
        return [], []
    return [(Path(path).absolute(), label) for path, label in pairs], classes


def _open_table(table: Any) -> Split:
    """Return the rows of a `datasets.Dataset`. Images stay encoded as they are.

    Raises:
        UserError: The table is a stream, has no or several columns of images, or a transform.
    """
    import datasets

    if isinstance(table, datasets.IterableDataset):
        raise UserError("images=: a stream has no rows by number. Use data.hub= data.stream=true.")
    if table.format["type"] == "custom":
        raise UserError("images=: this table has a transform. Call reset_format() first.")
    keys = [name for name, kind in table.features.items() if isinstance(kind, datasets.Image)]
    if len(keys) != 1:
        raise UserError(f"images=: expected one column of images, not {len(keys)}: {keys}.")
    encoded = table.with_format(None).cast_column(keys[0], datasets.Image(decode=False))

    def read(row: int) -> Row:
        cells = encoded[row]
        image = cells.pop(keys[0])
        content = image["bytes"] if image else None
        if image and content is None:
            content = Path(image["path"]).read_bytes()
        return Row(content or b"", json.dumps(cells, default=str))

    return Split(len(table), read, table=table)


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
        label = next((item[name] for name in usual_columns(map(str, item))), None)
        item = item[key]
    elif isinstance(item, tuple | list) and item:
        item, label = (*item, None)[:2]
    return Row(_encode_pixels(item, f"images=: image {row}"), _plain_label(label))


def _encode_pixels(image: Any, name: str) -> bytes:
    """Encode an image without loss: as PNG, or else as .npy.

    Args:
        image: PIL image, array of integers (H, W) or (H, W, C), or tensor (H, W) or (C, H, W).
            Integers may lie between LEAST_VALUE and MOST_VALUE. Floating-point pixels must lie
            between 0 and 1, and stand for 8 bits.
        name: Argument and number of the image, for errors.

    Raises:
        UserError: The image has another form.
    """
    encoded = io.BytesIO()
    if isinstance(image, Image.Image) and image.mode in ("I", "F"):
        image = np.asarray(ImageOps.exif_transpose(image))
    if isinstance(image, Image.Image):
        upright = ImageOps.exif_transpose(image)
        if upright.mode not in PNG_MODES:
            upright = Image.fromarray(from_pillow(upright))
        upright.info.pop("icc_profile", None)
        upright.save(encoded, "PNG", compress_level=1)
        return encoded.getvalue()
    is_tensor = hasattr(image, "detach")
    pixels: Any = image.detach().cpu() if is_tensor else np.asarray(image)
    kind = str(pixels.dtype)
    if is_tensor and pixels.is_floating_point():
        pixels = pixels.double()  # NumPy has no bfloat16
    array = _whole_numbers(np.asarray(pixels), kind, name)
    if array.ndim == 3:
        first, _, last = array.shape
        if (first in COLOURS) != is_tensor and (last in COLOURS) == is_tensor:
            wanted = "tensors must be (C, H, W)" if is_tensor else "arrays must be (H, W, C)"
            raise UserError(f"{name} has the shape {array.shape}, but {wanted}.")
        array = np.moveaxis(array, 0, -1) if is_tensor else array
    array = np.ascontiguousarray(array[:, :, 0] if array.shape[2:] == (1,) else array)
    if array.dtype == np.uint8 and array.shape[2:] in ((), (3,)):
        Image.fromarray(array).save(encoded, "PNG", compress_level=1)
    else:
        np.save(encoded, array)
    return encoded.getvalue()


def _whole_numbers(pixels: np.ndarray, kind: str, name: str) -> np.ndarray:
    """Return pixels as integers.

    Args:
        pixels: The pixels.
        kind: Type of the user's pixels.
        name: Argument and number of the image, for errors.

    Raises:
        UserError: The pixels are no image, or have another type or range.
    """
    if pixels.ndim not in (2, 3) or not pixels.size:
        raise UserError(
            f"{name} has the type {kind} and the shape {pixels.shape}, and is no image. Use a PIL"
            " image, an array or a tensor."
        )
    low, high = pixels.min(), pixels.max()
    if pixels.dtype.kind in "ui":
        if not LEAST_VALUE <= low <= high <= MOST_VALUE:
            raise UserError(
                f"{name} has values from {low} to {high}. Use integers from {LEAST_VALUE} to"
                f" {MOST_VALUE}."
            )
        return pixels
    if pixels.dtype.kind != "f":
        raise UserError(f"{name} has the type {kind}. Use uint8 or other integers.")
    if not 0 <= low <= high <= 1:
        raise UserError(
            f"{name} has the type {kind} and values from {low:.7g} to {high:.7g}. Use uint8, or"
            " values from 0 to 1 without Normalize."
        )
    return np.rint(pixels * 255).astype(np.uint8)


def _plain_label(label: Any) -> Any:
    """Convert a label to an integer, a text, a list of integers, or None.

    A tensor or array with a single number is this number.
    """
    if hasattr(label, "tolist"):  # a tensor or a NumPy value
        label = label.tolist()
        label = label[0] if isinstance(label, list) and len(label) == 1 else label
    if label is None or isinstance(label, str):
        return label
    if isinstance(label, int):
        return int(label)  # also a bool
    if isinstance(label, list | tuple) and all(isinstance(number, int) for number in label):
        return list(label)
    raise UserError(
        f"images=: {label!r:.60} is no label. Use an integer, a text or a list of integers."
    )


def _name_of(images: Any) -> str:
    """Return a name for the images: that of the table, of the files' folder, or of the class."""
    if hasattr(images, "save_to_disk"):
        return getattr(images.info, "dataset_name", None) or "images"
    paths, _ = _paths(images)
    if paths:
        return Path(os.path.commonpath([path.parent for path, _ in paths])).name or "images"
    name = type(images).__name__.lower()
    return "images" if name in ("subset", "list", "concatdataset", "tensordataset") else name


def _write(splits: Mapping[str, Split], folder: Path) -> str:
    """Write all splits as a `datasets.DatasetDict`, which is read without another copy.

    Returns:
        The hash of what was written, as `_Digest` computes it.
    """
    import datasets
    from datasets.table import embed_table_storage

    datasets.disable_progress_bars()
    digest = _Digest(splits)
    are_files = any(isinstance(split.read(0).image, Path) for split in splits.values())
    tables = {}
    cache = folder / "cache"
    cache.mkdir()
    for name, split in splits.items():
        rows = _Rows(name, split, digest, folder)
        if split.table is not None:
            for _ in rows:  # only for the hash
                pass
            with_files = split.table.with_format("arrow").map(
                embed_table_storage, batched=True, cache_file_name=str(cache / f"{name}.arrow")
            )
            tables[name] = with_files.with_format(None)
            continue
        try:
            table = datasets.Dataset.from_generator(
                rows.__iter__,
                features=datasets.Features({"image": datasets.Image(decode=False)}),
                cache_dir=str(cache),
                fingerprint=f"images-{name}",
            ).cast_column("image", datasets.Image())
        except datasets.exceptions.DatasetGenerationError as error:
            if isinstance(error.__cause__, UserError):  # an item that was not read before
                raise error.__cause__ from None
            raise
        if any(label is not None for label in rows.labels):
            feature = _label_feature(rows.labels, split.classes)
            table = table.add_column("label", rows.labels, feature=feature)
        tables[name] = table
    if are_files:  # `save_to_disk` would copy the files into the table
        for name, table in tables.items():
            pyarrow.parquet.write_table(table.data.table, folder / f"{name}.parquet")
    else:
        datasets.DatasetDict(tables).save_to_disk(folder)
    shutil.rmtree(cache)
    return digest.text()


class _Rows:
    """Rows of a split for `datasets`, which are hashed while they are read.

    Attributes:
        labels: Labels of the rows that were read.
    """

    def __init__(self, name: str, split: Split, digest: _Digest, folder: Path) -> None:
        self.name, self.split, self.digest, self.folder = name, split, digest, folder
        self.labels: list[Any] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        numbers = range(self.split.length)
        for number in with_progress(numbers, len(numbers), f"{self.name} images to write", "read"):
            row = self.split.read(number)
            self.digest.add(self.name, number, row)
            self.labels.append(row.label)
            if isinstance(row.image, Path):
                path = _link(row.image, self.folder / FILES, f"{self.name}-{number:08}")
                yield {"image": {"bytes": None, "path": path}}
            else:
                yield {"image": {"bytes": row.image, "path": None}}


def _link(file: Path, folder: Path, start: str) -> str:
    """Link or copy a file into a folder, and return the path below the folder's parent.

    Args:
        file: The file.
        folder: The folder of links.
        start: Beginning of the link's name. The file's own name follows if it is short enough.
    """
    is_usable = file.name.isprintable() and len(os.fsencode(file.name)) < LONGEST_NAME
    name = f"{start}-{file.name}" if is_usable and "\\" not in file.name else start
    try:
        os.link(os.path.realpath(file), folder / name)
    except OSError:  # another disk
        shutil.copy2(file, folder / name)
    return f"{FILES}/{name}"


def _label_feature(labels: list[Any], classes: Sequence[str]) -> Any:
    """Return the type of a column of labels.

    Raises:
        UserError: The labels have several types.
    """
    import datasets

    (kind, *others) = {type(label) for label in labels if label is not None}
    if others:
        raise UserError(
            "images=: some labels are numbers and some are texts or lists. Use one type."
        )
    if kind is int and not classes and {*labels} == {-1, 1}:
        raise UserError(
            "images=: all labels are -1 or 1, and -1 means no label. Use 0 and 1 for two classes,"
            " or None for images without a label."
        )
    highest = max(label for label in labels if label is not None) if kind is int else 0
    if kind is int and classes and highest < len(classes):
        return datasets.ClassLabel(names=list(classes))
    types = {int: datasets.Value("int64"), str: datasets.Value("string")}
    return types.get(kind, datasets.List(datasets.Value("int64")))
