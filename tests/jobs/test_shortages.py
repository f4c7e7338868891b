"""A machine without enough memory or open files: one line with the cause."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ssl_vit
from helpers.launching import ROOT, python
from helpers.options import PROBE, TINY, altered
from helpers.resolving import resolve
from ssl_vit.data.source import read_file
from ssl_vit.errors import UserError, report_errors
from ssl_vit.jobs import resources
from ssl_vit.models import encoder


@pytest.mark.parametrize("key", ["moco.hidden", "mae.width", "dino.width", "model.width"])
def test_a_width_that_no_machine_holds_is_out_of_bounds(key: str) -> None:
    recipe = {"moco": "moco_v3", "model": "mae"}.get(key.split(".")[0], key.split(".")[0])
    with pytest.raises(UserError, match=f"{key}=65536: expected .* at most 16,384"):
        resolve([f"recipe={recipe}", f"{key}=65536"], here=False)


@pytest.mark.parametrize("evaluates", [False, True])
def test_weights_larger_than_the_memory_are_refused_before_they_are_drawn(
    evaluates: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "host_memory", lambda: 50_000.0)
    call, words = ssl_vit.pretrain, TINY
    if evaluates:
        call = ssl_vit.evaluate
        model = [word for word in TINY if word.startswith(("model.", "data.size"))]
        words = [*PROBE, *model, "init=scratch"]
    with pytest.raises(UserError, match=r"model\.mlp=64.*weights take") as caught:
        call(altered(words, f"out={tmp_path}", "name=r"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "r" / "environment.json").exists()


ERRORS = [
    MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB."),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_allocation_that_fails_names_the_sizes(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*given: object) -> None:
        raise error

    monkeypatch.setattr(encoder, "build_backbone", build)
    with pytest.raises(UserError, match=r"model\.mlp=64.*not enough memory"):
        ssl_vit.pretrain(altered(TINY, f"out={tmp_path}", "name=r"))


def test_other_errors_of_the_program_keep_their_traceback() -> None:
    for error in (RuntimeError("shapes differ"), OSError(2, "No such file")):
        with pytest.raises(type(error)), report_errors():
            raise error


@pytest.mark.parametrize("limit", [20, 24])
def test_too_many_open_files_are_named(limit: int, tmp_path: Path) -> None:
    """It was a traceback in which memory was suspected."""
    words = altered(TINY, f"out={tmp_path}", "name=r", "compute.workers=2", "optim.batch=8")

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    command = [sys.executable, str(ROOT / "tools/pretrain.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=lower, check=False)
    assert done.returncode == 2, done.stderr
    assert f"open files: this process may open {limit}" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr and "memory was short" not in done.stderr


FULL = """
import multiprocessing, os, resource, sys
from multiprocessing import util
from ssl_vit.data.workers import init_worker

def work():
    init_worker(0)
    print(util.get_temp_dir(), flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    files = []
    try:
        while True:
            files.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass

worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
worker.join()
"""


def test_a_worker_without_a_file_left_ends_silently_and_removes_its_folder() -> None:
    """Python printed a traceback, in two of 72 runs on a busy machine."""
    done = python("-c", FULL)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() and not Path(done.stdout.strip()).exists()


def test_an_image_is_not_called_unreadable_where_too_many_files_are_open(tmp_path: Path) -> None:
    """It was replaced by the next image."""
    path = tmp_path / "a.png"
    path.write_bytes(b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [path.open("rb") for _ in range(20)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[0].fileno(), hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            read_file(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in opened:
            file.close()
