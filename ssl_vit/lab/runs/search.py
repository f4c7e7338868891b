"""Finds the runs and studies of a folder: one search for all that looks at many runs. No torch."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...config import records
from ...errors import UserError
from ...pages.run_page import PAGE
from ...pages.run_record import is_run
from ..study.record import FILE, StudyRecord

DEEPEST = 8  # levels of folders that are looked through


class ListedStudy(NamedTuple):
    """A study's folder: how many of its tasks are finished, whether its report is written, and the
    part of each task, {name: part}."""

    folder: Path
    title: str
    finished: int
    tasks: int
    reported: bool
    parts: dict[str, str]


class Found(NamedTuple):
    """The folders of runs, and the studies, of a folder; each once, by name."""

    runs: list[Path]
    studies: list[ListedStudy]

    def below(self, folder: Path) -> "Found":
        """Those in and below one of the folders."""
        return Found(
            [run for run in self.runs if run.is_relative_to(folder)],
            [study for study in self.studies if study.folder.is_relative_to(folder)],
        )


def find(folder: Path) -> Found:
    """The runs and studies in and below a folder; of a run's folder the run.

    Folders inside a run are not looked at, nor are hidden ones. What links lead to is looked at
    last, so that a run has the name of its own folder.

    Raises:
        UserError: there is no run.
    """
    found = Found([], [])
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
            if study := _study(place):
                found.studies.append(study)
            for child in _folders(place) if levels else ():
                (links if child.is_symlink() else waiting).append((child, levels - 1))
    if not found.runs:
        raise UserError(
            f"{folder}: expected a run's folder, a study's, or one with runs in it, at any depth;"
            " none is there"
        )
    return Found(sorted(found.runs), sorted(found.studies))


def _folders(folder: Path) -> Iterator[Path]:
    """The folders in a folder, last first."""
    with os.scandir(folder) as entries:  # knows files, of which there can be millions, unasked
        names = [one.name for one in entries if one.is_dir() and not one.name.startswith(".")]
    return (folder / name for name in sorted(names, reverse=True))


def _study(folder: Path) -> ListedStudy | None:
    """The study of a folder; None where there is none, or a damaged one."""
    try:
        plan = records.read(folder / FILE, StudyRecord)
    except (OSError, ValueError):
        return None
    parts = {task.name: task.run for task in plan.tasks}
    finished = sum((folder / name / "result.json").exists() for name in parts)
    reported = (folder / PAGE).exists()
    return ListedStudy(folder, plan.title, finished, len(parts), reported, parts)
