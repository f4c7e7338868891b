"""The memory that is left for another process: of the machine, and of the control groups that this
process is in."""

from collections.abc import Iterator
from pathlib import Path

import psutil

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
# names of a control group's limit, usage and reclaimable file pages, in either version
VERSION_1 = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
VERSION_2 = ("max", "current", "inactive_file")


def free(groups: Path = GROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """Bytes that new processes may take: of the machine, or of this process's control groups if
    that is less.

    Args:
        groups: where the control groups are mounted.
        own_groups: the file that lists those of this process.
    """
    return min([psutil.virtual_memory().available, *_left_in_groups(groups, own_groups)])


def used(process: int) -> int:
    """Bytes in use by a process and its children; 0 if it has ended."""
    try:
        family = [psutil.Process(process), *psutil.Process(process).children(recursive=True)]
        return sum(one.memory_info().rss for one in family)
    except psutil.Error:
        return 0


def _left_in_groups(groups: Path, own_groups: Path) -> Iterator[int]:
    """Bytes left in each control group with a limit: this process's and those around it (Linux,
    cgroups(7)). Reclaimable file pages do not count as used."""
    for line in own_groups.read_text().splitlines() if own_groups.exists() else []:
        _, kinds, place = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root = groups / "memory" if kinds else groups
        own = root / place.strip("/")
        for folder in [own, *own.parents]:
            if folder.is_relative_to(root):
                yield from _left(folder, *(VERSION_1 if kinds else VERSION_2))


def _left(folder: Path, most: str, now: str, stat: str) -> Iterator[int]:
    try:
        limit = int((folder / f"memory.{most}").read_text())
        current = int((folder / f"memory.{now}").read_text())
        stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        yield limit - current + int(stats[stat])
    except (OSError, ValueError, KeyError):  # no such group, or no limit ("max")
        return
