"""Make glibc keep freed memory between the steps on a CPU, so that the kernel need not clear the
same pages in every step.
"""

import ctypes
import os
import platform

M_TRIM_THRESHOLD = -1  # malloc.h
M_MMAP_MAX = -4
NEVER = 2**31 - 1  # bytes; a C int


def keep_freed_memory() -> bool:
    """Let glibc's malloc keep freed memory instead of returning it to the kernel.

    A step frees all its activations, and the next step needs as much memory again (docs/speed.md).
    Nothing changes with another allocator or C library, or if an environment variable already sets
    glibc's thresholds (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, MALLOC_MMAP_MAX_,
    GLIBC_TUNABLES).

    Returns:
        Whether the thresholds were set.
    """
    if platform.libc_ver()[0] != "glibc" or _chosen_by_user():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # No block gets a mapping of its own, because such a block is unmapped when it is freed.
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, NEVER))


def _chosen_by_user() -> bool:
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc" in tunables or any(name in os.environ for name in names)
