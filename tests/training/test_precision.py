"""What is decided from the hardware: the automatic precision, the same on every call."""

import platform
from pathlib import Path

import pytest
import torch

from ssl_vit.training import distributed

CPU = torch.device("cpu")
CPUS = {
    "sapphire rapids": ("flags\t\t: fpu avx2 avx512_bf16 amx_tile amx_bf16 amx_int8\n", "bfloat16"),
    "genoa": ("flags\t\t: fpu avx2 avx512f avx512_vnni avx512_bf16\n", "bfloat16"),
    "skylake": ("flags\t\t: fpu avx2 avx512f\nbugs\t\t: avx512_bf16\n", "float32"),
    "neoverse v1": ("Features\t: fp asimd sve i8mm bf16 dgh\nCPU part\t: 0x41\n", "bfloat16"),
    "neoverse n1": ("Features\t: fp asimd asimdhp asimddp\nCPU part\t: 0x41\n", "float32"),
    "not linux": (None, "float32"),
    "an empty table": ("", "float32"),
}


@pytest.mark.parametrize(("flags", "precision"), CPUS.values(), ids=CPUS)
def test_the_automatic_precision_is_what_the_cpu_multiplies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str | None, precision: str
) -> None:
    path = tmp_path / "cpuinfo"
    if flags is not None:
        path.write_text(f"processor\t: 0\n{flags}")
    found = distributed._cpu_flags(path)
    monkeypatch.setattr(distributed, "_cpu_flags", lambda: found)
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
