"""Find the runs of a folder, for tools that read many runs, without importing torch."""

import os
from contextlib import suppress
from pathlib import Path

from ...errors import UserError
from ...pages.run_record import is_run

DEEPEST = 8  # levels of folders that are searched


def find_runs(folder: Path) -> list[Path]:
    """Return the folders of all runs in and below a folder, sorted by name.

    If the folder is a run, the result is the folder itself. Hidden folders and folders inside a run
    are not searched. Symbolic links are followed last. A run that has both a folder and a link
    below the searched folder is therefore listed once, with its folder.

    Raises:
        UserError: There is no run.
    """
    runs, searched = [], set()
    # each folder or link has the number of levels to search below
    folders_to_search = [(folder, DEEPEST)]
    links_to_search: list[tuple[Path, int]] = []
    while folders_to_search or links_to_search:
        path, levels_below = folders_to_search.pop() if folders_to_search else links_to_search.pop()
        with suppress(OSError):  # another user's folder, or a folder that was just removed
            stat = path.stat()
            if (stat.st_dev, stat.st_ino) in searched:  # links can form a circle
                continue
            searched.add((stat.st_dev, stat.st_ino))
            if is_run(path):
                runs.append(path)
                continue
            if not levels_below:
                continue
            for child in _list_subfolders(path):
                queue = links_to_search if child.is_symlink() else folders_to_search
                queue.append((child, levels_below - 1))
    if not runs:
        raise UserError(
            f"{folder}: no run found in this folder or in {DEEPEST} levels of folders below. Name"
            " the folder of a run, a study or several runs."
        )
    return sorted(runs)


def _list_subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, except hidden folders, from Z to A.

    `find_runs` takes the last folder of its list first, so it searches from A to Z.
    """
    # there can be millions of files, and scandir needs no system call for each
    with os.scandir(folder) as entries:
        names = [
            entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
        ]
    return [folder / name for name in sorted(names, reverse=True)]
