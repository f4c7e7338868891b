"""Scheduling by memory: whether a study's next task fits beside those that run. No torch."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from ... import costs
from ...config.schema import Recipe

BASE = 3 << 28  # 0.75 GiB: Python, torch and the libraries of a process without a GPU
WITH_GPU = 4 << 30  # the same with CUDA and data workers: a guess
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
# names of a control group's limit, usage and reclaimable file pages
VERSION_1 = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
VERSION_2 = ("max", "current", "inactive_file")


def memory_need(recipe: Recipe, gpu: bool) -> int:
    """Estimated bytes of CPU memory of a task: libraries and, without a GPU, tensors.

    Activations are those of a whole batch, but at most half of the memory, as jobs/resources.py
    chooses the device batch. An evaluation keeps the features of all images, twice while it
    concatenates them.
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
    """Bytes available to new processes: of the machine, or of this process's control groups if that
    is less."""
    return min([psutil.virtual_memory().available, *_groups()])


def _groups() -> Iterator[int]:
    """Bytes left in each control group with a limit: this process's and its parents (Linux,
    cgroups(7)). Reclaimable file pages do not count as used."""
    for line in OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.exists() else []:
        _, kinds, place = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root = GROUPS / "memory" if kinds else GROUPS
        names = VERSION_1 if kinds else VERSION_2
        own = root / place.strip("/")
        for folder in [own, *own.parents]:
            if folder.is_relative_to(root):
                yield from _left(folder, *names)


def _left(folder: Path, most: str, now: str, stat: str) -> Iterator[int]:
    try:
        limit = int((folder / f"memory.{most}").read_text())
        used = int((folder / f"memory.{now}").read_text())
        stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        yield limit - used + int(stats[stat])
    except (OSError, ValueError, KeyError):  # no such group, or no limit ("max")
        return


def memory_used(process: int) -> int:
    """Bytes in use by a process and its children; 0 if it has ended."""
    try:
        family = [psutil.Process(process), *psutil.Process(process).children(recursive=True)]
        return sum(one.memory_info().rss for one in family)
    except psutil.Error:
        return 0


def fits(wanted: int, running: Iterable[tuple[int, int]]) -> bool:
    """Whether `wanted` bytes will be free once each running (process, need) has allocated all that
    it needs."""
    reserved = sum(max(0, need - memory_used(process)) for process, need in running)
    return wanted <= free_memory() - reserved
