"""Memory that glibc keeps between steps."""

import os
import platform
import subprocess
import sys

import pytest

BLOCKS, MIB = 4, 40  # by default glibc always maps blocks above 32 MiB
FREED = BLOCKS * (MIB << 20)
# Allocates and frees the blocks three times; prints what keep_freed_memory() returned, where it was
# called, and the bytes that malloc then still holds beyond those in use. Page faults would say it
# as well, but not where the kernel has huge pages, which take few.
STEPS = f"""
import ctypes, sys
from ssl_vit.training.allocator import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in FIELDS.split()]
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.mallinfo.restype = Mallinfo
for _ in range(3):
    blocks = [libc.malloc({MIB} << 20) for _ in range({BLOCKS})]
    for block in blocks:
        libc.free(block)
print(kept, libc.mallinfo().fordblks)
"""

glibc_alone = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the C library is not glibc"
)


def held_bytes(way: str, **environment: str) -> tuple[str, int]:
    unset = ("MALLOC", "GLIBC_TUNABLES", "LD_PRELOAD")
    done = subprocess.run(
        [sys.executable, "-c", STEPS, way],
        env={name: value for name, value in os.environ.items() if not name.startswith(unset)}
        | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    kept, held = done.stdout.split()
    return kept, int(held)


@glibc_alone
def test_freed_memory_is_kept() -> None:
    _, by_default = held_bytes("default")
    kept, held = held_bytes("keep")
    assert kept == "True"
    assert by_default < FREED // 2  # otherwise the tools need not set anything
    assert held >= FREED


@glibc_alone
@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_thresholds_of_the_environment_stay(name: str) -> None:
    option = "" if name.startswith("MALLOC") else "glibc.malloc.trim_threshold="
    kept, held = held_bytes("keep", **{name: f"{option}131072"})
    assert kept == "False"
    assert held < FREED // 2
