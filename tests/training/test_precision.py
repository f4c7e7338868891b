"""What is decided from the hardware: the automatic precision, the same on every call."""

import platform
from pathlib import Path

import pytest
import torch

from ssl_vit.training import distributed

CPU = torch.device("cpu")
SAPPHIRE_RAPIDS = (
    "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16 avx512_fp16 amx_tile amx_bf16 "
    "amx_int8\nbugs\t\t: swapgs"
)
GENOA = "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512bw avx512_vnni avx512_bf16\n"
SKYLAKE = (
    "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512bw avx512vl avx512dq\nbugs\t\t: "
    "avx512_bf16\n"
)
NEOVERSE_V1 = "processor\t: 0\nFeatures\t: fp asimd sve i8mm bf16 dgh\nCPU implementer\t: 0x41\n"
NEOVERSE_N1 = "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp\nCPU implementer\t: 0x41\n"


@pytest.mark.parametrize(
    ("table", "precision"),
    [
        (SAPPHIRE_RAPIDS, "bfloat16"),
        (GENOA, "bfloat16"),
        (SKYLAKE, "float32"),
        (NEOVERSE_V1, "bfloat16"),
        (NEOVERSE_N1, "float32"),
        (None, "float32"),
        ("", "float32"),
    ],
    ids=[
        "sapphire rapids",
        "genoa",
        "skylake",
        "neoverse v1",
        "neoverse n1",
        "not linux",
        "an empty table",
    ],
)
def test_the_automatic_precision_is_what_the_cpu_multiplies(
    tmp_path, monkeypatch, table: str | None, precision: str
) -> None:
    path = tmp_path / "cpuinfo"
    if table is not None:
        path.write_text(table)
    flags = distributed._cpu_flags(path)
    monkeypatch.setattr(distributed, "_cpu_flags", lambda: flags)
    assert distributed._native_precision(CPU) == precision


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not Path("/proc/cpuinfo").exists(), reason="for Linux on x86"
)
def test_torch_finds_the_same_cpu() -> None:
    """A second opinion, by CPUID. Its name is private in torch: if it is gone, take whatever
    replaced it, here alone."""
    flags = distributed._cpu_flags()
    assert ("avx512_bf16" in flags) == torch.cpu._is_avx512_bf16_supported()
    assert ("avx2" in flags) == torch.cpu._is_avx2_supported()


@pytest.mark.parametrize(("has", "precision"), [(True, "bfloat16"), (False, "float32")])
def test_a_gpu_that_emulates_bfloat16_gets_float32(monkeypatch, has: bool, precision: str) -> None:
    def supported(including_emulation: bool = True) -> bool:
        return including_emulation or has

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert distributed._native_precision(torch.device("cuda")) == precision
