"""Check texts that serve as names and paths. This module does not import torch."""

import re
import unicodedata
from typing import Annotated

from .keys import Allowed

LONGEST_NAME = 255  # limit on a file name in bytes, on every common file system
LONGEST_PATH = 4095
# name of a model, and neither a path nor a location that timm would download from
PLAIN_NAME = re.compile(rf"[\w.-]{{1,{LONGEST_NAME}}}", re.ASCII)
# Unicode categories: control characters, surrogates (bytes that are not UTF-8) and line ends
CONTROL = {"Cc", "Cs", "Zl", "Zp"}
NO_CONTROL = "a line break or another control character cannot be part of a value"
# Files and folders that tools write next to runs, and folders that a run replaces inside its own
# folder. A run must not use these names in `name` or `out`, because it could be overwritten.
RESERVED_NAMES = frozenset(
    (
        *("report.html", "report.md", "results.csv", "tables.tex", "differences.csv"),
        *("study.json", "worth.json", "hours.json", "figures", "logs", "slurm", "shared", "lock"),
        *("export", "checkpoints"),
    )
)


def has_control(text: str) -> bool:
    """Return whether a text has a control character, a line end, or a character that UTF-8 cannot
    encode.
    """
    return not CONTROL.isdisjoint(map(unicodedata.category, set(text)))


def is_path(text: str) -> bool:
    """Return whether a file or folder can have this path.

    The path must not be blank, contain a null character or be too long.
    """
    encoded = text.encode(errors="surrogatepass")
    names_fit = all(len(name) <= LONGEST_NAME for name in encoded.split(b"/"))
    return names_fit and len(encoded) <= LONGEST_PATH and bool(text.strip()) and "\0" not in text


def is_new_path(text: str) -> bool:
    """Return whether a folder with this path may be created.

    The path must be possible (`is_path`), and no name in it may start or end with a blank.
    """
    return is_path(text) and all(name == name.strip() for name in text.split("/"))


def is_name(text: str) -> bool:
    """Return whether a text is a relative path that stays inside its folder, such as `a/b`.

    `/a`, `a/../b` and `a//b` are refused. Control characters and marks that reverse the direction
    of writing are also refused, because a displayed path would look like another path.
    """
    return is_new_path(text) and text.isprintable() and {"", ".", ".."}.isdisjoint(text.split("/"))


def is_folder_name(text: str) -> bool:
    """Return whether a run's folder, or a folder next to runs, may have this name."""
    return is_name(text) and RESERVED_NAMES.isdisjoint(text.split("/"))


def is_split(text: str) -> bool:
    """Return whether a text can be the name of a split, such as `train`.

    The name must have a letter, and must fit into a file name. Numbers are refused, including `1e3`
    and `nan`, because a number is a share of the images.
    """
    try:
        float(text)
    except ValueError:
        # file systems limit names in bytes; surrogates represent bytes that are not UTF-8
        encoded = text.encode(errors="surrogatepass")
        return any(map(str.isalpha, text)) and len(encoded) <= LONGEST_NAME
    return False


PathText = Annotated[str, Allowed(is_path, "a path")]
SplitName = Annotated[str, Allowed(is_split, "a split's name")]
TimmName = Annotated[str, Allowed(PLAIN_NAME.fullmatch, "the name of one of timm's architectures")]
RunName = Annotated[
    str,
    Allowed(
        lambda v: len(v) <= 200 and is_folder_name(v),
        "a folder's name of at most 200 printable characters that is not the name of a file or"
        " folder of the tools, such as report.html",
    ),
]
RunAtStep = Annotated[
    str,
    Allowed(lambda v: is_path(v) and re.fullmatch(r".+@[1-9]\d{0,11}", v, re.ASCII), "RUN@STEP"),
]
NewFolder = Annotated[str, Allowed(is_new_path, "a folder")]
FolderName = Annotated[
    str, Allowed(lambda v: is_name(v) and len(v.encode()) <= LONGEST_NAME, "a folder's name")
]
