"""Whether a study's next task still fits into this machine's memory. No torch here."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from .. import budget
from ..recipe import Recipe

BASE = 3 << 28  # 0.75 GiB: Python, torch and the libraries of a process without a GPU
WITH_GPU = 4 << 30  # the same with CUDA and data workers: a guess
GROUP = Path("/sys/fs/cgroup")


def need(recipe: Recipe, gpu: bool) -> int:
    """About the bytes of this machine's memory that a task takes: its libraries and, where no GPU holds them, its tensors.

    Activations are those of a whole batch, but of half the machine at most, as machine.py cuts a batch into passes.
    """
    if gpu:
        return WITH_GPU
    batch = recipe.probe.batch if recipe.objective == "probe" else recipe.optim.batch
    tensors = budget.memory(recipe, processes=1, zero=0, batch=recipe.compute.batch or batch, fused=False)
    activations = min(tensors.pop("activations"), psutil.virtual_memory().total // 2)
    return BASE + activations + sum(tensors.values())


def free() -> int:
    """Bytes that new processes can take: of the machine or, where that is less, of this process's control group."""
    return min([psutil.virtual_memory().available, *_group()])


def _group() -> Iterator[int]:
    """What a control group (version 2) with a limit may still take; file pages that can go do not count as taken."""
    try:
        most, now = (int((GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        yield most - now + int(stat["inactive_file"])
    except (OSError, ValueError, KeyError):  # no such group, or no limit ("max")
        return


def taken(process: int) -> int:
    """Bytes that a process and its children hold now; 0 where it has ended."""
    try:
        family = [psutil.Process(process), *psutil.Process(process).children(recursive=True)]
        return sum(one.memory_info().rss for one in family)
    except psutil.Error:
        return 0


def fits(asked: int, running: Iterable[tuple[int, int]]) -> bool:
    """Whether `asked` bytes will be free once each running (process, need) has taken what it has not taken yet."""
    return asked <= free() - sum(max(0, wants - taken(process)) for process, wants in running)
