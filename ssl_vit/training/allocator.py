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
    """Let glibc's malloc keep freed memory instead of returning the memory to the kernel.

    This saves time, because a step frees all activations, and the next step needs as much memory
    again (docs/speed.md). Nothing changes in two cases: the C library is not glibc, or an
    environment variable sets glibc's thresholds.

    Returns:
        Whether malloc now keeps freed memory.
    """
    if platform.libc_ver()[0] != "glibc" or _chosen_by_user():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # Without M_MMAP_MAX=0, a large block would get its own memory mapping, which a free returns to
    # the kernel. Without M_TRIM_THRESHOLD, a free would return the end of the heap.
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, NEVER))


def _chosen_by_user() -> bool:
    """Return whether an environment variable sets glibc's thresholds."""
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc" in tunables or any(name in os.environ for name in names)
