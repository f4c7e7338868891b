"""Which files of a place are images, and which split and class each belongs to.

The rule, for every format (also in docs/data.md):

- A folder is a split where its whole name is a split's: `train`, `Val`, `test2017`, `training_set`,
  `eval images`; not `training_shoe`. Images belong to splits where *all* folders of one level are
  splits. A mixture is classes, with a warning, unless train and a held-out folder contain the same
  class folders: then the folders beside them are left out, with a warning.
- A shard (parquet, tar) belongs to the first split that its folders name, else to one that is a
  whole word of its own name (`imagenet-val-0001.tar`, `testing_3.parquet`). One that names none is
  for training, with a warning where others name one.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from ..formatting import count_of, some
from .labels import composed

# Names of each role's split, the usual one first. `eval` is a test split, as in `datasets`, so that
# no hyperparameter is chosen on it
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
# what a folder of images without labels is called
NO_LABEL = re.compile(r"(un|not[-_ ]?)label+ed|no[-_ ]?labels?|unsorted|unknown", re.IGNORECASE)

# Endings of the files of images, which decoding.py reads; without torch, which it needs. Arrays are
# taken for images only where there is nothing else: they may be anything
IMAGES = (
    *("tif", "tiff", "jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "gif", "bmp", "dib"),
    *("avif", "ppm", "pgm", "pbm", "pnm"),
)
KINDS = {"npy": "arrays"} | dict.fromkeys(IMAGES, "images")
SHARDS = ("parquet", "tar")
IMAGE_KINDS = tuple(dict.fromkeys(("images", *KINDS.values())))  # a file each, by precedence
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.json", "metadata.parquet")
# files that `save_to_disk` writes: for several splits, or for one
SAVED = ({"dataset_dict.json"}, {"state.json", "dataset_info.json"})
OTHERS = {"tar": "tars", "images": "images", "arrays": ".npy files"}


class Folder(NamedTuple):
    """A folder with data: its path below the root ("" for the root), and the names of its files of
    each kind: images, arrays, parquet, tar, metadata."""

    path: str
    files: dict[str, list[str]]

    def of(self, kind: str) -> list[str]:
        return self.files.get(kind, [])


class Tree(NamedTuple):
    """The folders with data, sorted by path, and the number of other files of each kind."""

    folders: list[Folder]
    skipped: Counter[str]

    def count(self, kind: str) -> int:
        return sum(len(folder.of(kind)) for folder in self.folders)


class Contents(NamedTuple):
    """The data of a folder or file.

    Attributes:
        kind: saved, parquet, tar, images or arrays.
        files: of parquet and tar, those of each split.
        tree: all below a folder.
        skipped: what is left out, in words.
        guesses: what was assumed.
    """

    kind: str
    files: dict[str, list[Path]]
    tree: Tree
    skipped: list[str]
    guesses: list[str]


class Division(NamedTuple):
    """The split of each folder of images (None: left out), its class ("" for none), what was
    guessed, and what was guessed about classes."""

    split: list[str | None]
    label: list[str]
    guesses: list[str]
    of_classes: list[str]


class NoTestSplit(UserError):
    """There is no split of the name that data.test= gives; `labelled`: there are labels or masks,
    by which others could be tested."""

    def __init__(self, text: str, labelled: bool) -> None:
        super().__init__(text)
        self.labelled = labelled


def inspect(place: Path) -> Contents:
    """Find the data at a path.

    Raises:
        UserError: there are no images, or it cannot be read.
    """
    nothing = Tree([], Counter())
    if not place.is_dir():
        if place.exists() and not place.is_file():
            raise UserError(f"data.path={place}: expected a regular file, or a folder")
        kind = place.suffix[1:].lower()
        if kind not in SHARDS:
            text = "expected a parquet file, a tar, or a folder of them or of images"
            raise UserError(f"data.path={place}: {text}")
        named = [split for split in splits_in_file(place.name) if ROLE[split] != "train"]
        guesses = [f"{place.name} is the only file: it is taken as train"] if named else []
        return Contents(kind, {"train": [place]}, nothing, [], guesses)
    if any(all((place / name).is_file() for name in names) for names in SAVED):
        return Contents("saved", {}, nothing, [], [])
    tree = walk(place)
    kinds = [kind for kind in (*SHARDS, *IMAGE_KINDS) if tree.count(kind)]
    skipped = [count_of(count, what) for what, count in sorted(tree.skipped.items())]
    if not kinds:
        inside = f", only {', '.join(skipped)}" if skipped else ""
        unpack = "; unpack what is packed" if ".zip files" in tree.skipped else ""
        raise UserError(
            f"data.path={place}: no images, parquet files or tars in it{inside}{unpack}"
        )
    kind = kinds[0]
    found: dict[str, list[Path]] = {}
    guesses = []
    if kind not in IMAGE_KINDS:
        found, guesses = _shard_files(place, tree, kind)
        if tree.count("metadata"):
            skipped.append(count_of(tree.count("metadata"), "metadata files"))
    if beside := [count_of(tree.count(other), OTHERS[other]) for other in kinds[1:]]:
        shown = "images" if kind == "images" else f"{kind} files"
        guesses.append(f"{' and '.join(beside)} beside {shown} are left out")
    return Contents(kind, found, tree, skipped, guesses)


def split_of_folder(name: str) -> str | None:
    """The split whose name is the whole of a folder's name, in lower case.

    >>> split_of_folder("Train2017"), split_of_folder("training_shoe")
    ('train', None)
    """
    found = WHOLE.fullmatch(name.lower())
    return found[1] if found else None


def splits_in_file(name: str) -> list[str]:
    """The splits that are whole words of a file's name, in their order.

    >>> splits_in_file("ImageNetVal-0001.tar"), splits_in_file("latest.tar")
    (['val'], [])
    """
    spaced = JOINED.sub(" ", name).lower()
    words = (PART.fullmatch(word) for word in re.split(r"[^a-z]+", spaced))
    return [word[1] for word in words if word]


def splits_of_images(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """For the images of a single folder: the split that each name begins with, if all of them do,
    else train; and what was guessed."""
    found = [FIRST.match(name.lower()) for name in names]
    if all(found):
        return [first[1] for first in found if first], []
    named = [name for name, first in zip(names, found, strict=True) if first]
    text = f"{len(named):,} of {len(names):,} images are called like a split ({some(named)})"
    return ["train"] * len(names), [f"{text}: all are taken as train"] if named else []


def role(split: str) -> str:
    """The role that a split's name says, in any case; else the name itself."""
    return ROLE.get(split.lower(), split)


def choose(name: str, splits: Collection[str]) -> str | None:
    """The split of that name, else the only split of the same role; None where there is none."""
    if name in splits:
        return name
    same = [split for split in splits if ROLE.get(split.lower()) == ROLE.get(name, name)]
    return same[0] if len(same) == 1 else None


def walk(root: Path) -> Tree:
    """All files below a folder; links are followed.

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
                raise UserError(f"data.path={root}: {path} is a link to a folder that it lies in")
            with os.scandir(root / path) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise UserError(f"data.path={root}: {path or '.'}: {error.strerror}") from None
        files: dict[str, list[str]] = {}
        for entry in found:
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
    """A path below the root, whose own path is ""."""
    return f"{folder}/{name}" if folder else name


def is_hidden(name: str) -> bool:
    """Whether a file or folder is one of a system, by its name alone."""
    return name.startswith(".") or name == "__MACOSX"


def kind_of(name: str) -> str | None:
    """The kind of a file by its name, as in Folder; None of others."""
    if name.lower() in METADATA:
        return "metadata"
    ending = _ending(name)
    return ending if ending in SHARDS else KINDS.get(ending)


def other_kind(name: str) -> str:
    """What a file that is left out is counted as."""
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
    """
    Raises:
        UserError: it is a pipe, socket or device, or a link to one. A link to nothing is one image
            that cannot be read.
    """
    with suppress(OSError):
        if not entry.is_file() and Path(entry.path).exists():
            text = "is a pipe, socket or device; expected a regular file"
            raise UserError(f"data.path={root}: {entry.path} {text}")


def _shard_files(root: Path, tree: Tree, kind: str) -> tuple[dict[str, list[Path]], list[str]]:
    """The files of a kind by their splits, and what was guessed."""
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
                    f"{place} names {' and '.join(dict.fromkeys(named))}: taken as {named[0]}"
                )
            splits.setdefault(named[0] if named else "train", []).append(root / place)
    if unnamed and (set(splits) != {"train"} or len(unnamed) < len(splits["train"])):
        guesses.append(f"{some(unnamed)} beside named splits: taken as train")
    return {name: sorted(files) for name, files in splits.items()}, guesses


def divide(folders: Sequence[Folder], kind: str) -> Division:
    """The split and the class of each folder that has images of a kind. A folder that is left out
    is named in the guesses."""
    known = [composed(folder.path) for folder in folders]
    paths = [tuple(path.split("/")) if path else () for path in known]
    level, guesses = _level(paths)
    split: list[str | None] = ["train"] * len(paths)
    if level is not None:
        split = [split_of_folder(path[level]) if len(path) > level else None for path in paths]
        outside = [(p, f) for p, f, name in zip(paths, folders, split, strict=True) if name is None]
        if outside:
            count = sum(len(folder.of(kind)) for _, folder in outside)
            names = some(sorted({"/".join(path[: level + 1]) or "the top" for path, _ in outside}))
            guesses = [f"{count:,} images in {names}, beside folders of splits, are left out"]
        paths = [path[:level] + path[level + 1 :] for path in paths]
    kept = [path for path, name in zip(paths, split, strict=True) if name is not None]
    label, more = _classes(kept)
    return Division(split, [label.get(path, "") for path in paths], guesses, more)


def _level(paths: Sequence[tuple[str, ...]]) -> tuple[int | None, list[str]]:
    """The first level whose folders are all splits, or None; and what was guessed about levels
    where only some are."""
    guesses: list[str] = []
    common = len(_common(paths))
    for level in range(max(map(len, paths), default=0)):
        deep = [path for path in paths if len(path) > level]
        loose = {path for path in paths if len(path) <= level}
        named = {path[level]: split_of_folder(path[level]) for path in deep}
        alone = level == common and loose <= {deep[0][:level]}  # images beside the splits' folders
        if all(named.values()) and (not loose or alone):
            return level, []
        if not any(named.values()):
            continue
        if level <= common and _same_classes(deep, level, named):
            return level, []
        splits = some(sorted(name for name, split in named.items() if split))
        others = sorted(name for name, split in named.items() if not split)
        beside = f"{some(others)} beside it is not" if others else "other images lie beside it"
        guesses.append(f"{splits} could be a split's name, but {beside}: all are taken as classes")
    return None, guesses


def _same_classes(
    paths: Iterable[tuple[str, ...]], level: int, named: dict[str, str | None]
) -> bool:
    """Whether the folders of train and of another split have mostly the same subfolders, which are
    then the classes."""
    inside: dict[str, set[str]] = {}
    for path in paths:
        if (split := named[path[level]]) and len(path) > level + 1:
            inside.setdefault(ROLE[split], set()).add(path[level + 1])
    train = inside.pop("train", set())
    return any(2 * len(train & other) > len(other) for other in inside.values())


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The folders that contain all images, except those at the top."""
    below = [path for path in paths if path]
    if not below:
        return ()
    first = min(below)
    last = max(below)
    same = [a == b for a, b in zip(first, last, strict=False)]
    return first[: same.index(False)] if False in same else first[: len(same)]


def _classes(paths: Sequence[tuple[str, ...]]) -> tuple[dict[tuple[str, ...], str], list[str]]:
    """The class of each folder: its own name where all are equally deep, else the first name in
    which paths differ."""
    lowest = _common(paths)
    inner = [path for path in set(paths) if len(path) > len(lowest)]
    if len({len(path) for path in inner}) <= 1:
        label = {path: path[-1] for path in inner}
        twice = sorted(name for name, count in Counter(label.values()).items() if count > 1)
        guesses = [f"folders of the same name are one class: {some(twice)}"] if twice else []
    else:
        label = {path: path[len(lowest)] for path in inner}
        guesses = ["folders lie at different depths: the classes are the outermost of them"]
    if len(set(label.values())) < 2:
        return {}, []
    loose = [path for path in set(paths) if path not in label]
    if loose:
        places = some(["/".join(path) or "the top" for path in loose])
        guesses.append(f"images in {places}, beside folders of classes, have no label")
    if named := sorted(name for name in set(label.values()) if NO_LABEL.fullmatch(name)):
        where = "images in the top, beside the folders of classes, are those without a label"
        guesses.append(f"{some(named)} is taken for a class; {where}")
    return label, guesses
