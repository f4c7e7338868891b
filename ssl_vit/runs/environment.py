"""Collect versions, git revision and hardware for environment.json. No torch."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from ..formatting import INSTALLED

PACKAGES = ("torch", "torchvision", "timm", "accelerate", "datasets", "transformers", "numpy")


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def process_cores() -> int:
    """Return this process's share of the CPU cores, at least 1.

    The usable cores are divided evenly among the processes of a run on this machine.
    """
    cores_per_task = os.environ.get("SLURM_CPUS_PER_TASK", "")
    tasks = os.environ.get("SLURM_NTASKS", "")
    if cores_per_task.isdecimal() and tasks.isdecimal():
        # SLURM may bind each process to separate cores. Then `cores` sees only the cores of this
        # process, so divide the cores of the job by the number of processes.
        share = int(cores_per_task) * int(tasks) // int(os.environ.get("WORLD_SIZE", "1"))
        return max(1, min(share, cores()))
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def requested_threads() -> int | None:
    """Return the number of threads that the user set in OMP_NUM_THREADS, or None.

    Launchers (torchrun, `accelerate launch` and deepspeed) also set OMP_NUM_THREADS, mostly to 1.
    So the number is ignored in a process that a launcher has started.
    """
    # A process was started by a launcher if it has one of these environment variables
    set_by_launchers = {"TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION"}
    if "SLURM_PROCID" not in os.environ:  # SLURM jobs set LOCAL_RANK without a launcher
        set_by_launchers.add("LOCAL_RANK")
    is_launched = not set_by_launchers.isdisjoint(os.environ)
    # in a list such as "8,2", the later numbers are for nested parallel regions
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    is_chosen = threads.isdecimal() and int(threads) > 0 and not is_launched
    return int(threads) if is_chosen else None


def default_threads() -> int:
    """Return the number of torch threads if the recipe does not set compute.threads."""
    return requested_threads() or process_cores()


def host_memory() -> float:
    """Return this process's share of the machine's memory, in bytes."""
    return psutil.virtual_memory().total / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def environment(extra: dict[str, Any]) -> dict[str, Any]:
    """Return the versions, the git revision and the hardware, extended by `extra`."""
    return {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "revision": _revision(),
        "host": {"system": platform.platform(), "cpu": cpu_model(), "cores": os.cpu_count()},
        **extra,
    }


def cpu_model() -> str:
    """Return the name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _revision() -> str | None:
    """Return the git revision of this code, with a final + if there are uncommitted changes.

    Return None outside of git. Also return None for an installed package, which may lie inside
    another project's repository.
    """
    if INSTALLED:
        return None
    try:
        changed = _git("status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*options: str) -> str:
    result = subprocess.run(
        ["git", *options], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()
