"""What the tests share: no network, calm threads, a run small enough to repeat, and the folder of
real images."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

ROOT = Path(__file__).resolve().parent.parent
TINY = [
    *(
        "recipe=mpp",
        "data.size=16",
        "model.patch=4",
        "model.width=32",
        "model.depth=2",
        "model.heads=2",
        "model.mlp=64",
    ),
    *(
        "optim.steps=12",
        "optim.batch=16",
        "optim.warmup=2",
        "checkpoint.every=4",
        "eval.every=4",
        "eval.images=24",
    ),
    *("log.every=2", "log.tensorboard=false", "compute.precision=float32", "compute.threads=1"),
    "compute.compile=false",  # where there is a GPU the default is true: minutes a run
]


def altered(words: list[str], *new: str) -> list[str]:
    """The options with some replaced: of several with one key the last counts."""
    options = {word.partition("=")[0]: word for word in (*words, *new)}
    return list(options.values())


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    """The words of a run of seconds, in a folder of its own."""
    return [*TINY, f"out={tmp_path}/runs"]


@pytest.fixture(scope="session")
def real_images() -> Path:
    """The folder with cifar10/ and tinyimagenet/."""
    folder = os.environ.get("SSL_VIT_DATA")
    if not folder:
        pytest.skip("SSL_VIT_DATA does not name a folder of real images")
    return Path(folder)


def together(count: int, *command: str, **environment: str) -> list[subprocess.Popen]:
    """`count` processes of one command that find one another, as a launcher starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    found = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    found |= {"CUDA_VISIBLE_DEVICES": ""}  # on the CPU: no two of them may share a GPU
    return [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=os.environ | environment | found | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]


def outcome(
    processes: Iterable[subprocess.Popen], seconds: float = 300
) -> tuple[list[int], list[str]]:
    """Exit statuses and outputs; whatever still runs after `seconds` is killed."""
    processes = list(processes)
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], outputs
