"""Finds the runs and studies of a folder: one search for all that looks at many runs. No torch."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError
from ...pages.run_record import is_run
from ...recipe import records
from ..study.record import FILE, StudyRecord

DEEPEST = 8  # levels of folders that are looked through


class Found(NamedTuple):
    """The folders of runs in a folder, each once, by name; and {folder: study}."""

    runs: list[Path]
    studies: dict[Path, StudyRecord]


def find(folder: Path) -> Found:
    """The runs and studies in and below a folder; of a run's folder the run.

    Folders inside a run are not looked at, nor are hidden ones. What links lead to is looked at
    last, so that a run has the name of its own folder.

    Raises:
        UserError: there is no run.
    """
    found = Found([], {})
    seen = set()
    waiting = [(folder, DEEPEST)]
    links: list[tuple[Path, int]] = []
    while waiting or links:
        place, levels = (waiting or links).pop()
        with suppress(OSError):  # a folder of others, or one that is removed meanwhile
            stat = place.stat()
            if (stat.st_dev, stat.st_ino) in seen:  # links can lead back
                continue
            seen.add((stat.st_dev, stat.st_ino))
            if is_run(place):
                found.runs.append(place)
                continue
            with suppress(OSError, ValueError):  # none there, or a damaged one
                found.studies[place] = records.read(place / FILE, StudyRecord)
            for child in _folders(place) if levels else ():
                (links if child.is_symlink() else waiting).append((child, levels - 1))
    if not found.runs:
        text = "expected a folder of a run, of a study, or with runs in it at any depth"
        raise UserError(f"{folder}: {text}; none is there")
    return Found(sorted(found.runs), dict(sorted(found.studies.items())))


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder, last first."""
    with os.scandir(folder) as entries:  # knows files, of which there can be millions, unasked
        names = [one.name for one in entries if one.is_dir() and not one.name.startswith(".")]
    return [folder / name for name in sorted(names, reverse=True)]
