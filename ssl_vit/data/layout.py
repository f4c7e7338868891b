"""Find which files of a folder are images, and which split and class each file belongs to.

The rule, for every format (also in docs/data.md):

- A folder is a split if its whole name is the name of a split: `train`, `Val`, `test2017`,
  `training_set`, `eval images`, but not `training_shoe`. Images belong to splits if *all* folders
  of one level are splits. If only some are, all are classes, with a warning. The exception: if
  train and a held-out folder contain the same class folders, the folders next to them that are no
  splits are left out, with a warning.
- A shard (parquet, tar) belongs to the first split that its folders name, else to the split that is
  a whole word of the shard's name (`imagenet-val-0001.tar`, `testing_3.parquet`). A shard that
  names no split is for training, with a warning if other shards name a split.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from ..extras import describe_missing, is_installed
from ..formatting import format_count, format_image_count, list_names
from .labels import compose_unicode

# Split names for each role, the usual name first. `eval` is a test split, as in `datasets`, so that
# hyperparameters are not chosen on these images
ROLES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
HELD_OUT = ROLES["validation"]
ROLE = {word: role for role, words in ROLES.items() for word in words}
WORD = "|".join(sorted(ROLE, key=len, reverse=True))
# The name of a split and further words, such as "train", "test2017" or "eval images"
WHOLE = re.compile(rf"({WORD})(?:[-_. ]*(?:set|split|data|images?|imgs?|\d+))*")
# The beginning of a file's name, such as "test_01.png" or "val3.png", but not "trainer.png"
FIRST = re.compile(rf"({WORD})(?![a-z])")
# A word of a shard's name, such as "val", "trainset" or "testimages"
SPLIT_WORD = re.compile(rf"({WORD})s?(?:sets?|split|data|images?|imgs?)?")
CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")  # ImageNetVal: two words and a split
# usual names of a folder of images without labels
NO_LABEL = re.compile(r"(un|not[-_ ]?)label+ed|no[-_ ]?labels?|unsorted|unknown", re.IGNORECASE)

# {format that Pillow may decode: endings of image files}. Pillow's other loaders are for trusted
# files only: EPS starts Ghostscript, ICO and ICNS hold images in images, and some are hardly tested
FORMATS = {
    "JPEG": ("jpg", "jpeg", "jpe", "jfif"),
    "PNG": ("png", "apng"),
    "WEBP": ("webp",),
    "GIF": ("gif",),
    "BMP": ("bmp",),
    "DIB": ("dib",),
    "TIFF": ("tif", "tiff"),
    "AVIF": ("avif",),
    "PPM": ("ppm", "pgm", "pbm", "pnm"),
}
# {format that needs an extra: (module that decodes the format, endings of image files)}
EXTRA_FORMATS = {
    "HEIC": ("pillow_heif", ("heic", "heif", "hif")),
    "DICOM": ("pydicom", ("dcm", "dicom")),
}
ENDINGS = (*FORMATS.values(), *(endings for _, endings in EXTRA_FORMATS.values()))
IMAGES = tuple(ending for endings in ENDINGS for ending in endings)
# Arrays count as images only in a folder without other images: they may be anything
KINDS = {"npy": "arrays"} | dict.fromkeys(IMAGES, "images")


class Container(NamedTuple):
    """Format in which files at `data.path` store images.

    Attributes:
        plural: Noun for such files in messages, such as "tars".
        code: MODULE:FUNCTION that opens the images, such as `tars.open_tars`. The function adds
            warnings to `guesses`, adds unused files to `contents.skipped`, and refuses options of
            columns that the format does not support.
        has_shards: Whether a file holds many images. If so, the key of the format in CONTAINERS is
            the ending of the files, such as "tar".
        stream: MODULE:FUNCTION that opens the images as streams, such as `open.stream_parquet`.
            Empty if data.stream=true is an error.
    """

    plural: str
    code: str
    has_shards: bool = False
    stream: str = ""

    @property
    def singular(self) -> str:
        return self.plural.removesuffix("s")


# The first of these kinds that a folder contains is used
CONTAINERS = {
    "parquet": Container(
        "parquet files",
        "ssl_vit.data.tables:open_parquet",
        has_shards=True,
        stream="ssl_vit.data.open:stream_parquet",
    ),
    "tar": Container("tars", "ssl_vit.data.tars:open_tars", has_shards=True),
    "images": Container("images", "ssl_vit.data.files:open_files"),
    "arrays": Container(".npy files", "ssl_vit.data.files:open_files"),
    "saved": Container("tables of save_to_disk", "ssl_vit.data.tables:open_saved"),
}
SHARDS = {kind: container for kind, container in CONTAINERS.items() if container.has_shards}
# Kinds where each image is a file. If a folder has files of both kinds, only "images" are used
IMAGE_KINDS = ("images", "arrays")
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.json", "metadata.parquet")
# files that `save_to_disk` writes: for several splits, or for one
SAVED = ({"dataset_dict.json"}, {"state.json", "dataset_info.json"})
TOP = "the top folder"


class Folder(NamedTuple):
    """Folder with data: path below the root ("" for the root), and {kind: names of files}.

    The kinds are images, arrays, parquet, tar and metadata.
    """

    path: str
    files: dict[str, list[str]]

    def files_of(self, kind: str) -> list[str]:
        return self.files.get(kind, [])


class Tree(NamedTuple):
    """Folders with data, sorted by path, and the number of skipped files of each kind."""

    folders: list[Folder]
    skipped: Counter[str]

    def count(self, kind: str) -> int:
        return sum(len(folder.files_of(kind)) for folder in self.folders)


class Contents(NamedTuple):
    """Data that `inspect` found in a folder or file.

    Attributes:
        kind: How the images are stored, a key of CONTAINERS.
        files: For shards, the files of each split.
        tree: All folders with data below the user's folder.
        skipped: Descriptions of the files that are not used, such as "3 .txt files".
        guesses: Assumptions about the data, for warnings.
    """

    kind: str
    files: dict[str, list[Path]]
    tree: Tree
    skipped: list[str]
    guesses: list[str]


class Division(NamedTuple):
    """Split and class of each folder of images.

    Attributes:
        split: Split of each folder, None for an unused folder.
        label: Class of each folder, "" for no class.
        guesses: Assumptions about splits, for warnings.
        class_guesses: Assumptions about classes, for warnings.
    """

    split: list[str | None]
    label: list[str]
    guesses: list[str]
    class_guesses: list[str]


class NoTestSplitError(UserError):
    """Error that the split named by data.test= does not exist.

    Attributes:
        labelled: Whether training images have labels or masks. If so, some training images could be
            used for testing.
    """

    def __init__(self, text: str, labelled: bool) -> None:
        super().__init__(text)
        self.labelled = labelled


def inspect(place: Path) -> Contents:
    """Find the images or shards at a path.

    Args:
        place: A folder or a shard.

    Raises:
        UserError: The path holds no images, or cannot be read.
    """
    if not place.is_dir():
        if place.exists() and not place.is_file():
            raise UserError(
                f"data.path={place}: this path is not a regular file or folder. Use another path."
            )
        kind = place.suffix[1:].lower()
        if kind not in SHARDS:
            raise UserError(
                f"data.path={place}: this path is not a folder, {_shards_text(plural=False)}. Put"
                " the images into a folder."
            )
        guesses = []
        if any(ROLE[split] != "train" for split in splits_in_file(place.name)):
            guesses.append(f"{place.name} is the only file and is used as train")
        return Contents(kind, {"train": [place]}, Tree([], Counter()), [], guesses)
    for names in SAVED:
        if all((place / name).is_file() for name in names):
            return Contents("saved", {}, Tree([], Counter()), [], [])
    tree = walk(place)
    kinds = [kind for kind in CONTAINERS if tree.count(kind)]
    skipped = [format_count(count, what) for what, count in sorted(tree.skipped.items())]
    if not kinds and not skipped:
        raise UserError(
            f"data.path={place}: this folder has no images, {_shards_text()}. Use another folder."
        )
    without_extras = describe_missing_extras(tree.skipped)
    if not kinds and without_extras:
        raise UserError(f"data.path={place}: {' '.join(without_extras)}")
    if not kinds:
        remedy = "Unpack the .zip files." if ".zip files" in tree.skipped else "Use another folder."
        raise UserError(
            f"data.path={place}: this folder has no images, {_shards_text()}. The folder holds"
            f" other files: {', '.join(skipped)}. {remedy}"
        )
    kind = kinds[0]
    shards: dict[str, list[Path]] = {}
    guesses = []
    if kind not in IMAGE_KINDS:
        shards, guesses = _shard_files(place, tree, kind)
        if tree.count("metadata"):
            skipped.append(format_count(tree.count("metadata"), "metadata files"))
    else:
        guesses += without_extras
    unused = [format_count(tree.count(kind), CONTAINERS[kind].plural) for kind in kinds[1:]]
    if unused:
        used = CONTAINERS[kind].plural
        guesses.append(f"only the {used} are used, not {' and '.join(unused)}")
    return Contents(kind, shards, tree, skipped, guesses)


def _shards_text(plural: bool = True) -> str:
    """List the kinds of shards in words, such as "parquet files or tars"."""
    names = [shard.plural if plural else shard.singular for shard in SHARDS.values()]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def split_of_folder(name: str) -> str | None:
    """Return the split that a folder's name means, in lower case, or None for another name.

    The folder's name is the split's name, maybe with a suffix such as "2017", "_set" or " images".

    >>> split_of_folder("Train2017"), split_of_folder("test images")
    ('train', 'test')
    >>> split_of_folder("training_shoe") is None
    True
    """
    match = WHOLE.fullmatch(name.lower())
    return match[1] if match else None


def splits_in_file(name: str) -> list[str]:
    """Return the splits that occur as words in a file's name, in the order of the words.

    Words are separated by characters other than letters. In "ImageNetVal", a capital letter begins
    a word: image, net, val.

    >>> splits_in_file("ImageNetVal-0001.tar"), splits_in_file("latest.tar")
    (['val'], [])
    """
    spaced_name = CAMEL_CASE.sub(" ", name).lower()
    words = re.split(r"[^a-z]+", spaced_name)
    matches = map(SPLIT_WORD.fullmatch, words)
    return [match[1] for match in matches if match]


def splits_of_images(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the split of each image in a single folder, and a list of warnings.

    If all names begin with a split, such as `test_01.png`, the images belong to these splits.
    Otherwise all images belong to train.

    Args:
        names: Names of the images, without folders.
    """
    matches = [FIRST.match(name.lower()) for name in names]
    if all(matches):
        return [match[1] for match in matches if match], []
    like_a_split = [name for name, match in zip(names, matches, strict=True) if match]
    guesses = []
    if like_a_split:
        guesses.append(
            f"only {len(like_a_split):,} of {len(names):,} images are named like a split"
            f" ({list_names(like_a_split)}). All images are used as train"
        )
    return ["train"] * len(names), guesses


def role(split: str) -> str:
    """Return "train", "validation" or "test" for a usual name of a split, else the name itself."""
    return ROLE.get(split.lower(), split)


def choose(name: str, splits: Collection[str]) -> str | None:
    """Return the split called `name`, else the only split with the same role, else None.

    Roles are train, validation and test. For example, "test" chooses the split "eval" if there is
    no split "test".

    Args:
        name: Name of the split to choose.
        splits: Names of all splits.
    """
    if name in splits:
        return name
    wanted_role = ROLE.get(name, name)
    same_role = [split for split in splits if ROLE.get(split.lower()) == wanted_role]
    return same_role[0] if len(same_role) == 1 else None


def walk(root: Path) -> Tree:
    """Find all files with data below a folder, following links.

    Raises:
        UserError: A folder cannot be read, a link leads back to a folder that contains the link,
            or an image is a pipe, socket or device.
    """
    folders: list[Folder] = []
    skipped: Counter[str] = Counter()
    unreadable = unreadable_endings()
    # folders still to read, each with the (device, inode) pairs of all its parent folders
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while waiting:
        path, parents = waiting.pop()
        try:
            status = os.stat(root / path)  # noqa: PTH116
            parents_and_self = parents | {(status.st_dev, status.st_ino)}
            if parents_and_self == parents:  # the folder is one of its own parents
                raise UserError(f"data.path={root}: the link {path} is circular. Remove the link.")
            with os.scandir(root / path) as entries:
                sorted_entries = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise UserError(
                f"data.path={root}: cannot read the folder {path or '.'}: {error.strerror}"
            ) from None
        files: dict[str, list[str]] = {}
        for entry in sorted_entries:
            kind = kind_of(entry.name, unreadable)
            if is_hidden(entry.name):
                skipped["hidden folders" if _is_folder(entry) else "hidden files"] += 1
            elif _is_folder(entry):
                waiting.append((join(path, entry.name), parents_and_self))
            elif kind is None:
                skipped[other_kind(entry.name)] += 1
            else:
                _check_regular(entry, root)
                files.setdefault(kind, []).append(entry.name)
        if files:
            folders.append(Folder(path, files))
    return Tree(sorted(folders, key=lambda folder: folder.path), skipped)


def join(folder: str, name: str) -> str:
    """Join a folder's path below the root ("" for the root) and a name."""
    return f"{folder}/{name}" if folder else name


def is_hidden(name: str) -> bool:
    """Return whether the name of a file or folder marks a hidden or system file."""
    return name.startswith(".") or name == "__MACOSX"


def kind_of(name: str, unreadable: Collection[str] = ()) -> str | None:
    """Return the kind of a file by its name, or None for a file without data.

    For example, "cat.JPG" has the kind "images", "metadata.csv" has the kind "metadata", and
    "train.tar" has the kind "tar".

    Args:
        name: The name of the file.
        unreadable: The result of `unreadable_endings`. The kind of such files is None.
    """
    if name.lower() in METADATA:
        return "metadata"
    ending = _ending(name)
    if ending in unreadable:
        return None
    return ending if ending in SHARDS else KINDS.get(ending)


def other_kind(name: str) -> str:
    """Describe an unused file by its ending, such as ".txt files", to count such files."""
    ending = _ending(name)
    return f".{ending} files" if ending else "files without an ending"


def unreadable_endings() -> list[str]:
    """Return the endings of images that need an extra which is not installed."""
    return [
        ending
        for module, endings in EXTRA_FORMATS.values()
        if not is_installed(module)
        for ending in endings
    ]


def describe_missing_extras(skipped: Counter[str]) -> list[str]:
    """Return a sentence for each missing extra that would read some of the skipped files.

    Args:
        skipped: The number of skipped files by `other_kind`.
    """
    sentences = []
    for name, (module, endings) in EXTRA_FORMATS.items():
        count = sum(skipped[other_kind(f".{ending}")] for ending in endings)
        if count and not is_installed(module):
            files = format_count(count, f"{name} files")
            sentences.append(f"cannot use {files}, because {describe_missing(module)}")
    return sentences


def _ending(name: str) -> str:
    """Return the ending of a file's name: "jpg" for "cat.JPG", "" for "cat"."""
    return name.rpartition(".")[2].lower() if "." in name else ""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: treated as a file, which is reported when it is read
        return False


def _check_regular(entry: os.DirEntry[str], root: Path) -> None:
    """Check that an entry of a folder can be read as a file.

    A broken link is accepted: its target does not exist, and the image counts later as unreadable.

    Args:
        entry: A file, link, pipe, socket or device.
        root: The user's folder, for the error.

    Raises:
        UserError: The entry is a pipe, socket or device, or a link to such an entry.
    """
    with suppress(OSError):
        if not entry.is_file() and Path(entry.path).exists():
            raise UserError(
                f"data.path={root}: {entry.path} is a pipe, socket or device. Use a regular file."
            )


def _shard_files(root: Path, tree: Tree, kind: str) -> tuple[dict[str, list[Path]], list[str]]:
    """Return the shards (parquet files or tars) of each split, sorted, and a list of warnings.

    A shard belongs to the split that its outermost folder with the name of a split means, else to
    the first split in the file's name. For example, val/train-01.tar belongs to val, with a
    warning. A shard that names no split belongs to train, with a warning if other shards name a
    split.

    Args:
        root: The user's folder.
        tree: All folders with data below `root`.
        kind: Kind of the shards.
    """
    splits: dict[str, list[Path]] = {}
    without_split: list[str] = []
    guesses: list[str] = []
    for folder in tree.folders:
        folder_splits = [split_of_folder(part) for part in folder.path.split("/")]
        for name in folder.files_of(kind):
            named_splits = [*filter(None, folder_splits), *splits_in_file(name)]
            path = join(folder.path, name)
            if not named_splits:
                without_split.append(path)
            elif len({ROLE[split] for split in named_splits}) > 1:
                guesses.append(
                    f"{path} names the splits {' and '.join(dict.fromkeys(named_splits))}, and is"
                    f" used as {named_splits[0]}"
                )
            split = named_splits[0] if named_splits else "train"
            splits.setdefault(split, []).append(root / path)
    num_files = sum(map(len, splits.values()))
    if 0 < len(without_split) < num_files:  # other files name a split
        guesses.append(f"files that name no split are used as train: {list_names(without_split)}")
    return {name: sorted(files) for name, files in splits.items()}, guesses


def divide(folders: Sequence[Folder], kind: str) -> Division:
    """Find the split and the class of each folder of images.

    If one level of the folders names splits (`_find_split_level`), folders that name no split at
    this level are left out with a warning. Otherwise all folders belong to train. The other levels
    name classes (`_find_classes`). For example, train/cat has the split "train" and the class
    "cat", if there are more classes.

    Args:
        folders: The folders with images of this kind.
        kind: "images" or "arrays".
    """
    composed_paths = [compose_unicode(folder.path) for folder in folders]
    paths = [tuple(path.split("/")) if path else () for path in composed_paths]
    level, guesses = _find_split_level(paths)
    splits: list[str | None] = ["train"] * len(paths)  # for each folder
    if level is not None:
        splits = [split_of_folder(path[level]) if len(path) > level else None for path in paths]
        unused = [i for i, split in enumerate(splits) if split is None]
        if unused:
            count = sum(len(folders[i].files_of(kind)) for i in unused)
            # unused folders at or above the level of the splits, each once
            unused_folders = {"/".join(paths[i][: level + 1]) or TOP for i in unused}
            guesses = [
                "only folders named like a split, such as train, are used. Left out:"
                f" {format_image_count(count)} in {list_names(sorted(unused_folders))}"
            ]
        # remove the split's folder, because the other folders may name a class
        paths = [path[:level] + path[level + 1 :] for path in paths]
    used_paths = [path for path, split in zip(paths, splits, strict=True) if split is not None]
    label_of, class_guesses = _find_classes(used_paths)
    return Division(splits, [label_of.get(path, "") for path in paths], guesses, class_guesses)


def _find_split_level(paths: Sequence[tuple[str, ...]]) -> tuple[int | None, list[str]]:
    """Return the level of the folders that are splits, and a list of warnings.

    For `photos/train/cat` and `photos/val/cat`, level 0 is `photos` and level 1 is returned. Levels
    are tried from the top, and the first level that meets one of these rules is returned:

    1. All folders of the level have the name of a split, and no image is above the level.
    2. All folders of the level have the name of a split, and the only images above the level are
       next to these folders, such as `photos/logo.png` next to `photos/train`.
    3. Folders for train and for another split have mostly the same subfolders, such as `train/cat`
       and `val/cat`. Other folders of the level may have any name. Each level above has only one
       folder.

    If no rule applies, a warning tells which folders are named like a split and used as classes.

    Args:
        paths: The path of each folder of images, as a tuple of folder names.

    Returns:
        The level, or None if no folders are splits, and the warnings.
    """
    guesses: list[str] = []
    common_depth = len(_common(paths))
    for level in range(max(map(len, paths), default=0)):
        deep_paths = [path for path in paths if len(path) > level]
        paths_above = {path for path in paths if len(path) <= level}
        split_of = {path[level]: split_of_folder(path[level]) for path in deep_paths}
        split_names = sorted(name for name, split in split_of.items() if split)
        other_names = sorted(name for name, split in split_of.items() if not split)
        if not split_names:
            continue
        # for rule 2: all folders of this level are in one parent, and all images above the level
        # are directly in this parent
        parent = deep_paths[0][:level]
        is_next_to_splits = level == common_depth and paths_above == {parent}
        if not other_names and (not paths_above or is_next_to_splits):  # rules 1 and 2
            return level, []
        if level <= common_depth and _have_same_classes(deep_paths, level, split_of):  # rule 3
            return level, []
        why_not = "some images are outside such folders"
        if other_names:
            why_not = f"{list_names(other_names)} could not"
        guesses.append(
            f"{list_names(split_names)} could name a split, but {why_not}. All folders count as"
            " classes"
        )
    return None, guesses


def _have_same_classes(
    paths: Iterable[tuple[str, ...]], level: int, split_of: dict[str, str | None]
) -> bool:
    """Return whether train and another split have mostly the same subfolders (classes).

    Train must have more than half of the other split's subfolders. With `val/cat`, `val/dog` and
    `val/cow`, two of `train/cat`, `train/dog` and `train/cow` are enough. Folders with the same
    role, such as `val` and `valid`, count as one split.

    Args:
        paths: The path of each folder of images, as a tuple of folder names.
        level: The position of the splits' folders in a path.
        split_of: {folder name at this level: split}, None for a folder that is no split.
    """
    subfolders: dict[str, set[str]] = {}
    for path in paths:
        split = split_of[path[level]]
        if split and len(path) > level + 1:
            subfolders.setdefault(ROLE[split], set()).add(path[level + 1])
    train_classes = subfolders.pop("train", set())
    return any(2 * len(train_classes & classes) > len(classes) for classes in subfolders.values())


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the longest common beginning of all paths. Empty paths are ignored.

    For ("photos", "cat") and ("photos", "dog"), the result is ("photos",).

    Args:
        paths: The path of each folder of images, as a tuple of folder names.
    """
    below_top = [path for path in paths if path]
    if not below_top:
        return ()
    # what the first and the last path in sorted order have in common is common to all paths
    first = min(below_top)
    last = max(below_top)
    depth = 0
    while depth < min(len(first), len(last)) and first[depth] == last[depth]:
        depth += 1
    return first[:depth]


def _find_classes(
    paths: Sequence[tuple[str, ...]],
) -> tuple[dict[tuple[str, ...], str], list[str]]:
    """Return the class of each folder of images, and a list of warnings.

    If all folders are equally deep, the class is the name of the folder with the images. Otherwise
    the class is the outermost folder in which paths differ: `cat` for the images of
    `photos/cat/indoor` and `photos/cat`. With fewer than two classes, no folder has a class.

    Args:
        paths: The path of each folder of images, as a tuple of folder names.

    Returns:
        {path: class} for folders with a class, and the warnings.
    """
    depth = len(_common(paths))  # the number of folders that contain all images
    below_common = [path for path in set(paths) if len(path) > depth]
    if len({len(path) for path in below_common}) <= 1:  # all folders are equally deep
        label_of = {path: path[-1] for path in below_common}
        counts = Counter(label_of.values())
        repeated = sorted(name for name, count in counts.items() if count > 1)
        guesses = []
        if repeated:
            guesses.append(f"folders with the same name are one class: {list_names(repeated)}")
    else:
        label_of = {path: path[depth] for path in below_common}
        guesses = ["folders are nested to different depths. The outermost folders are the classes"]
    if len(set(label_of.values())) < 2:
        return {}, []
    without_class = [path for path in set(paths) if path not in label_of]
    if without_class:
        folders = list_names(["/".join(path) or TOP for path in without_class])
        guesses.append(f"images in {folders} are outside the folders of classes and have no label")
    like_no_label = sorted(name for name in set(label_of.values()) if NO_LABEL.fullmatch(name))
    if like_no_label:
        guesses.append(
            f"folders counted as classes: {list_names(like_no_label)}. If their images have no"
            " label, move the images next to the folders of classes"
        )
    return label_of, guesses
