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
from ..formatting import count_of, count_of_images, some
from .labels import composed

# Names of each role's split, the usual name first. `eval` is a test split, as in `datasets`, so
# that no hyperparameter is chosen on it
ROLES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
HELD_OUT = ROLES["validation"]
ROLE = {word: role for role, words in ROLES.items() for word in words}
WORD = "|".join(sorted(ROLE, key=len, reverse=True))
WHOLE = re.compile(rf"({WORD})(?:[-_. ]*(?:set|split|data|images?|imgs?|\d+))*")
FIRST = re.compile(rf"({WORD})(?![a-z])")
PART = re.compile(rf"({WORD})s?(?:sets?|split|data|images?|imgs?)?")
JOINED = re.compile(r"(?<=[a-z])(?=[A-Z])")  # ImageNetVal: two words and a split
# usual names of a folder of images without labels
NO_LABEL = re.compile(r"(un|not[-_ ]?)label+ed|no[-_ ]?labels?|unsorted|unknown", re.IGNORECASE)

# Endings of image files that decoding.py reads. They are not defined there, because it needs torch.
# Arrays count as images only in a folder without other images: they may be anything
IMAGES = (
    *("tif", "tiff", "jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "gif", "bmp", "dib"),
    *("avif", "ppm", "pgm", "pbm", "pnm"),
)
KINDS = {"npy": "arrays"} | dict.fromkeys(IMAGES, "images")
SHARDS = ("parquet", "tar")
IMAGE_KINDS = tuple(
    dict.fromkeys(("images", *KINDS.values()))
)  # kinds with a file for each image, by precedence
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.json", "metadata.parquet")
# files that `save_to_disk` writes: for several splits, or for one
SAVED = ({"dataset_dict.json"}, {"state.json", "dataset_info.json"})
TOP = "the top folder"
OTHERS = {"tar": "tars", "images": "images", "arrays": ".npy files"}


class Folder(NamedTuple):
    """Folder with data: path below the root ("" for the root), and names of the files by kind.

    The kinds are images, arrays, parquet, tar and metadata.
    """

    path: str
    files: dict[str, list[str]]

    def of(self, kind: str) -> list[str]:
        return self.files.get(kind, [])


class Tree(NamedTuple):
    """Folders with data, sorted by path, and the number of skipped files of each kind."""

    folders: list[Folder]
    skipped: Counter[str]

    def count(self, kind: str) -> int:
        return sum(len(folder.of(kind)) for folder in self.folders)


class Contents(NamedTuple):
    """Data of a folder or file.

    Attributes:
        kind: saved, parquet, tar, images or arrays.
        files: for parquet and tar, the files of each split.
        tree: all folders below the given folder.
        skipped: descriptions of what is left out.
        guesses: assumptions.
    """

    kind: str
    files: dict[str, list[Path]]
    tree: Tree
    skipped: list[str]
    guesses: list[str]


class Division(NamedTuple):
    """Splits and classes of folders of images.

    Attributes:
        split: the split of each folder, None for a folder that is left out.
        label: the class of each folder, "" for none.
        guesses: assumptions.
        of_classes: assumptions about classes.
    """

    split: list[str | None]
    label: list[str]
    guesses: list[str]
    of_classes: list[str]


class NoTestSplit(UserError):
    """Error that the split named by data.test= does not exist.

    Attributes:
        labelled: whether the data have labels or masks, so that other images could be used for
            testing.
    """

    def __init__(self, text: str, labelled: bool) -> None:
        super().__init__(text)
        self.labelled = labelled


def inspect(place: Path) -> Contents:
    """Find the data at a path.

    Raises:
        UserError: there are no images, or the path cannot be read.
    """
    nothing = Tree([], Counter())
    if not place.is_dir():
        if place.exists() and not place.is_file():
            raise UserError(f"data.path={place}: not a regular file or folder. Use another path.")
        kind = place.suffix[1:].lower()
        if kind not in SHARDS:
            raise UserError(
                f"data.path={place}: not a folder, parquet file or tar. Put the images into a"
                " folder."
            )
        named = [split for split in splits_in_file(place.name) if ROLE[split] != "train"]
        guesses = [f"{place.name} is the only file and is used as train"] if named else []
        return Contents(kind, {"train": [place]}, nothing, [], guesses)
    if any(all((place / name).is_file() for name in names) for names in SAVED):
        return Contents("saved", {}, nothing, [], [])
    tree = walk(place)
    kinds = [kind for kind in (*SHARDS, *IMAGE_KINDS) if tree.count(kind)]
    skipped = [count_of(count, what) for what, count in sorted(tree.skipped.items())]
    if not kinds:
        inside = f", only {', '.join(skipped)}" if skipped else ""
        remedy = "Unpack the .zip files" if ".zip files" in tree.skipped else "Use another folder"
        raise UserError(
            f"data.path={place}: no images, parquet files or tars in this folder{inside}. {remedy}."
        )
    kind = kinds[0]
    folders: dict[str, list[Path]] = {}
    guesses = []
    if kind not in IMAGE_KINDS:
        folders, guesses = _shard_files(place, tree, kind)
        if tree.count("metadata"):
            skipped.append(count_of(tree.count("metadata"), "metadata files"))
    if unused := [count_of(tree.count(kind), OTHERS[kind]) for kind in kinds[1:]]:
        used = "images" if kind == "images" else f"{kind} files"
        guesses.append(f"only the {used} are used, not {' and '.join(unused)}")
    return Contents(kind, folders, tree, skipped, guesses)


def split_of_folder(name: str) -> str | None:
    """Return the split that is the whole of a folder's name, in lower case, or None.

    >>> split_of_folder("Train2017"), split_of_folder("training_shoe")
    ('train', None)
    """
    match = WHOLE.fullmatch(name.lower())
    return match[1] if match else None


def splits_in_file(name: str) -> list[str]:
    """Return the splits that are whole words of a file's name, in the order of the words.

    >>> splits_in_file("ImageNetVal-0001.tar"), splits_in_file("latest.tar")
    (['val'], [])
    """
    spaced = JOINED.sub(" ", name).lower()
    words = (PART.fullmatch(word) for word in re.split(r"[^a-z]+", spaced))
    return [word[1] for word in words if word]


def splits_of_images(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the split of each image in a single folder, and what was guessed.

    If all names begin with a split, the names decide. Otherwise all images belong to train.
    """
    matches = [FIRST.match(name.lower()) for name in names]
    if all(matches):
        return [first[1] for first in matches if first], []
    named = [name for name, first in zip(names, matches, strict=True) if first]
    text = f"only {len(named):,} of {len(names):,} images are named like a split ({some(named)})"
    return ["train"] * len(names), [f"{text}. All images are used as train"] if named else []


def role(split: str) -> str:
    """Return the role that a split's name tells, in upper or lower case, else the name itself."""
    return ROLE.get(split.lower(), split)


def choose(name: str, splits: Collection[str]) -> str | None:
    """Return the split of this name, else the only split of the same role, else None."""
    if name in splits:
        return name
    same = [split for split in splits if ROLE.get(split.lower()) == ROLE.get(name, name)]
    return same[0] if len(same) == 1 else None


def walk(root: Path) -> Tree:
    """Find all files below a folder, following links.

    Raises:
        UserError: a folder cannot be read, a link leads back to a folder around it, or an image is
            a pipe, socket or device.
    """
    folders: list[Folder] = []
    skipped: Counter[str] = Counter()
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while waiting:
        path, around = waiting.pop()
        try:
            known = os.stat(root / path)  # noqa: PTH116
            inside = around | {(known.st_dev, known.st_ino)}
            if len(inside) == len(around):
                raise UserError(f"data.path={root}: the link {path} is circular. Remove the link.")
            with os.scandir(root / path) as entries:
                ordered = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise UserError(
                f"data.path={root}: cannot read the folder {path or '.'}: {error.strerror}"
            ) from None
        files: dict[str, list[str]] = {}
        for entry in ordered:
            if is_hidden(entry.name):
                skipped["hidden folders" if _is_folder(entry) else "hidden files"] += 1
            elif _is_folder(entry):
                waiting.append((join(path, entry.name), inside))
            elif (kind := kind_of(entry.name)) is None:
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


def kind_of(name: str) -> str | None:
    """Return the kind of a file by name, as in Folder, or None for a file without data."""
    if name.lower() in METADATA:
        return "metadata"
    ending = _ending(name)
    return ending if ending in SHARDS else KINDS.get(ending)


def other_kind(name: str) -> str:
    """Return the name under which a file that is left out is counted."""
    ending = _ending(name)
    return f".{ending} files" if ending else "files without an ending"


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: treated as a file, which is reported when it is read
        return False


def _check_regular(entry: os.DirEntry[str], root: Path) -> None:
    """Check that an entry of a folder can be read as a file.

    A broken link is accepted: it counts as an image that cannot be read.

    Raises:
        UserError: the entry is a pipe, socket or device, or a link to one of them.
    """
    with suppress(OSError):
        if not entry.is_file() and Path(entry.path).exists():
            raise UserError(
                f"data.path={root}: {entry.path} is a pipe, socket or device. Use a regular file."
            )


def _shard_files(root: Path, tree: Tree, kind: str) -> tuple[dict[str, list[Path]], list[str]]:
    """Return the files of a kind by split, and what was guessed."""
    splits: dict[str, list[Path]] = {}
    unnamed: list[str] = []
    guesses: list[str] = []
    for folder in tree.folders:
        above = [split_of_folder(part) for part in folder.path.split("/")]
        for name in folder.of(kind):
            named = [split for split in above if split] + splits_in_file(name)
            place = join(folder.path, name)
            if not named:
                unnamed.append(place)
            elif len({ROLE[split] for split in named}) > 1:
                guesses.append(
                    f"{place} names the splits {' and '.join(dict.fromkeys(named))}, and is used as"
                    f" {named[0]}"
                )
            splits.setdefault(named[0] if named else "train", []).append(root / place)
    if unnamed and (set(splits) != {"train"} or len(unnamed) < len(splits["train"])):
        guesses.append(f"files that name no split are used as train: {some(unnamed)}")
    return {name: sorted(files) for name, files in splits.items()}, guesses


def divide(folders: Sequence[Folder], kind: str) -> Division:
    """Return the split and the class of each folder that has images of a kind.

    The guesses name every folder that is left out.
    """
    known = [composed(folder.path) for folder in folders]
    paths = [tuple(path.split("/")) if path else () for path in known]
    level, guesses = _level(paths)
    split: list[str | None] = ["train"] * len(paths)
    if level is not None:
        split = [split_of_folder(path[level]) if len(path) > level else None for path in paths]
        outside = [(p, f) for p, f, name in zip(paths, folders, split, strict=True) if name is None]
        if outside:
            count = sum(len(folder.of(kind)) for _, folder in outside)
            names = some(sorted({"/".join(path[: level + 1]) or TOP for path, _ in outside}))
            guesses = [
                "only folders named like a split, such as train, are used. Left out:"
                f" {count_of_images(count)} in {names}"
            ]
        paths = [path[:level] + path[level + 1 :] for path in paths]
    kept = [path for path, name in zip(paths, split, strict=True) if name is not None]
    label, more = _classes(kept)
    return Division(split, [label.get(path, "") for path in paths], guesses, more)


def _level(paths: Sequence[tuple[str, ...]]) -> tuple[int | None, list[str]]:
    """Return the first level whose folders are all splits, or None if there is no such level.

    The second result tells what was guessed about levels where only some folders are splits.
    """
    guesses: list[str] = []
    common = len(_common(paths))
    for level in range(max(map(len, paths), default=0)):
        deep = [path for path in paths if len(path) > level]
        loose = {path for path in paths if len(path) <= level}
        named = {path[level]: split_of_folder(path[level]) for path in deep}
        alone = level == common and loose <= {deep[0][:level]}  # images next to the splits' folders
        if all(named.values()) and (not loose or alone):
            return level, []
        if not any(named.values()):
            continue
        if level <= common and _same_classes(deep, level, named):
            return level, []
        splits = some(sorted(name for name, split in named.items() if split))
        others = sorted(name for name, split in named.items() if not split)
        outside = f"{some(others)} could not" if others else "some images are outside such folders"
        guesses.append(f"{splits} could name a split, but {outside}. All folders count as classes")
    return None, guesses


def _same_classes(
    paths: Iterable[tuple[str, ...]], level: int, named: dict[str, str | None]
) -> bool:
    """Return whether the folders of train and of another split have mostly the same subfolders.

    These subfolders are then the classes.
    """
    inside: dict[str, set[str]] = {}
    for path in paths:
        if (split := named[path[level]]) and len(path) > level + 1:
            inside.setdefault(ROLE[split], set()).add(path[level + 1])
    train = inside.pop("train", set())
    return any(2 * len(train & classes) > len(classes) for classes in inside.values())


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the folders that contain all images, except the images at the top."""
    below = [path for path in paths if path]
    if not below:
        return ()
    first = min(below)
    last = max(below)
    same = [a == b for a, b in zip(first, last, strict=False)]
    return first[: same.index(False)] if False in same else first[: len(same)]


def _classes(paths: Sequence[tuple[str, ...]]) -> tuple[dict[tuple[str, ...], str], list[str]]:
    """Return the class of each folder, and what was guessed.

    If all folders are equally deep, the class is the folder's own name. Otherwise the class is the
    first name in which the paths differ.
    """
    lowest = _common(paths)
    inner = [path for path in set(paths) if len(path) > len(lowest)]
    if len({len(path) for path in inner}) <= 1:
        label = {path: path[-1] for path in inner}
        twice = sorted(name for name, count in Counter(label.values()).items() if count > 1)
        guesses = [f"folders with the same name are one class: {some(twice)}"] if twice else []
    else:
        label = {path: path[len(lowest)] for path in inner}
        guesses = ["folders are nested to different depths. The outermost folders are the classes"]
    if len(set(label.values())) < 2:
        return {}, []
    loose = [path for path in set(paths) if path not in label]
    if loose:
        places = some(["/".join(path) or TOP for path in loose])
        guesses.append(f"images in {places} are outside the folders of classes and have no label")
    if named := sorted(name for name in set(label.values()) if NO_LABEL.fullmatch(name)):
        guesses.append(
            f"folders counted as classes: {some(named)}. If their images have no label, move the"
            " images next to the folders of classes"
        )
    return label, guesses
