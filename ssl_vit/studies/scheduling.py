"""Whether a study's next task still fits into this machine's memory. No torch here."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from .. import costs
from ..config.schema import Recipe

BASE = 3 << 28  # 0.75 GiB: Python, torch and the libraries of a process without a GPU
WITH_GPU = 4 << 30  # the same with CUDA and data workers: a guess
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

VERSION_1 = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
VERSION_2 = ("max", "current", "inactive_file")


def memory_need(recipe: Recipe, gpu: bool) -> int:
    """About the bytes of this machine's memory that a task takes: its libraries and, where no GPU
    holds them, its tensors.

    Activations are those of a whole batch, but of half the machine at most, as machine.py cuts a
    batch into passes. An evaluation keeps the features of all its images, and once more while it
    puts them together.
    """
    kept = 0
    if recipe.objective == "probe":
        kept = 2 * 4 * recipe.model.width * (costs.images_seen(recipe) or 0)
    if gpu:
        return WITH_GPU + kept
    tensors = costs.memory_bytes(
        recipe, processes=1, zero=0, batch=recipe.compute.batch or recipe.optim.batch, fused=False
    )
    activations = min(tensors.pop("activations"), psutil.virtual_memory().total // 2)
    return BASE + activations + sum(tensors.values()) + kept


def free_memory() -> int:
    """Bytes that new processes can take: of the machine or, where that is less, of a control group
    of this process."""
    return min([psutil.virtual_memory().available, *_groups()])


def _groups() -> Iterator[int]:
    """What each control group with a limit, this process's and those around it, may still take;
    file pages that can go do not count as taken (Linux, cgroups(7))."""
    for line in OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.exists() else []:
        _, kinds, place = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root = GROUPS / "memory" if kinds else GROUPS
        most, now, stat = (
            ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
            if kinds
            else ("max", "current", "inactive_file")
        )
        own = root / place.strip("/")
        for folder in [own, *own.parents]:
            if folder.is_relative_to(root):
                yield from _left(folder, most, now, stat)


def _left(folder: Path, most: str, now: str, stat: str) -> Iterator[int]:
    try:
        limit, memory_used = (int((folder / f"memory.{name}").read_text()) for name in (most, now))
        stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        yield limit - memory_used + int(stats[stat])
    except (OSError, ValueError, KeyError):  # no such group, or no limit ("max")
        return


def memory_used(process: int) -> int:
    """Bytes that a process and its children hold now; 0 where it has ended."""
    try:
        family = [psutil.Process(process), *psutil.Process(process).children(recursive=True)]
        return sum(one.memory_info().rss for one in family)
    except psutil.Error:
        return 0


def fits(wanted: int, running: Iterable[tuple[int, int]]) -> bool:
    """Whether `asked` bytes will be free once each running (process, need) has taken what it has
    not taken yet."""
    return wanted <= free_memory() - sum(
        max(0, wants - memory_used(process)) for process, wants in running
    )
