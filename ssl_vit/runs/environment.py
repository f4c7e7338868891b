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
    """Return the number of CPU cores for this process alone.

    The processes of a run on this machine share the usable cores. Under SLURM, `cores` may see only
    the cores of this process, because SLURM may bind each process to separate cores. So the cores
    that the job has requested are divided by the number of processes.
    """
    cores_per_task = os.environ.get("SLURM_CPUS_PER_TASK", "")
    tasks = os.environ.get("SLURM_NTASKS", "")
    if cores_per_task.isdecimal() and tasks.isdecimal():
        share = int(cores_per_task) * int(tasks) // int(os.environ.get("WORLD_SIZE", "1"))
        return max(1, min(share, cores()))
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def requested_threads() -> int | None:
    """Return the number of threads in OMP_NUM_THREADS, or None if the user set none.

    torchrun, `accelerate launch` and deepspeed set OMP_NUM_THREADS themselves, mostly to 1. So the
    number counts as the user's only if no launcher has started this process. A launcher is
    recognised by its environment variables. LOCAL_RANK does not count as such a variable in a SLURM
    job, because jobs without a launcher set it there.
    """
    set_by_launchers = {"TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION"}
    if "SLURM_PROCID" not in os.environ:
        set_by_launchers.add("LOCAL_RANK")
    is_launched = not set_by_launchers.isdisjoint(os.environ)
    # in a list such as "8,2", the later numbers are for nested parallel regions
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    is_chosen = threads.isdecimal() and int(threads) > 0 and not is_launched
    return int(threads) if is_chosen else None


def default_threads() -> int:
    """Return the torch threads of a process whose recipe has no compute.threads."""
    return requested_threads() or process_cores()


def host_memory() -> float:
    """Return this process's share of the machine's memory, in bytes."""
    return psutil.virtual_memory().total / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def environment(extra: dict[str, Any]) -> dict[str, Any]:
    """Return versions, git revision and hardware, together with `extra`."""
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
    """Return the git revision of this code, with a final + if files have changed since.

    The result is None outside of git. It is also None for an installed package, because the package
    may lie inside another project's repository.
    """
    if INSTALLED:
        return None
    try:
        changed = _git("status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*options: str) -> str:
    done = subprocess.run(
        ["git", *options], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
