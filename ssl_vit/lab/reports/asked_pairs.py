"""The pairs that a study's report was last asked for, which the next report is about too. They lie
in its folder. No torch here."""

import json
from collections.abc import Sequence
from pathlib import Path

from ...config import records
from ...runs.files import write_atomically

FILE = "report_pairs.json"


def last(folder: Path) -> list[str]:
    """As they were given; none where none were.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return []
    return records.require(path, list[str], "remove it, and give pairs= again")


def remember(folder: Path, pairs: Sequence[str]) -> None:
    """Keep them for the next report; without pairs, forget those that are kept."""
    if pairs:
        write_atomically(folder / FILE, json.dumps(list(pairs)) + "\n")
    else:
        (folder / FILE).unlink(missing_ok=True)
