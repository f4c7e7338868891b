"""Two machines played on one (slow): two network namespaces joined by a cable, and an `accelerate
launch` in each, on the CPU."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.options import ROOT, TINY, altered
from helpers.runs import rows, run

pytestmark = pytest.mark.slow
NAMES = "ssl-vit-1", "ssl-vit-2"
ADDRESS = "10.77.0.{}"


def ip(*words: str, check: bool = True) -> int:
    return subprocess.run(["ip", *words], capture_output=True, check=check).returncode


@pytest.fixture(scope="module", autouse=True)
def machines() -> Iterator[None]:
    try:
        made = ip("netns", "add", NAMES[0], check=False) == 0
    except FileNotFoundError:  # no iproute2
        made = False
    if not made:
        pytest.skip("no network namespace can be made here: needs root and ip of iproute2")
    try:
        ip("netns", "add", NAMES[1])
        ends = ["cable1", "netns", NAMES[0], "type", "veth"]
        ip("link", "add", *ends, "peer", "name", "cable2", "netns", NAMES[1])
        for number, name in enumerate(NAMES, 1):
            address = f"{ADDRESS.format(number)}/24"
            ip("-n", name, "addr", "add", address, "dev", f"cable{number}")
            ip("-n", name, "link", "set", f"cable{number}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in NAMES:
            ip("netns", "del", name, check=False)


def launch(machine: int, config: str, options: list[str]) -> subprocess.Popen:
    own = {"GLOO_SOCKET_IFNAME": f"cable{machine}", "CUDA_VISIBLE_DEVICES": ""}
    where = ["ip", "netns", "exec", NAMES[machine - 1]]
    how = ["--config_file", f"launch/{config}.yaml", "--num_machines", "2", "--num_processes", "2"]
    how += ["--machine_rank", str(machine - 1), "--main_process_ip", ADDRESS.format(1)]
    command = [sys.executable, "-m", "accelerate.commands.launch", "-q", *how]
    return subprocess.Popen(
        [*where, *command, "--main_process_port", "29511", "tools/pretrain.py", *options],
        cwd=ROOT,
        env=os.environ | own | {"DS_ACCELERATOR": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("config", ["two_machines", "zero2"])
def test_two_machines_train_as_one_process_does(config: str, tmp_path: Path) -> None:
    options = altered(TINY, "log.every=1", f"out={tmp_path}")
    run([*options, "name=one"])
    pair = [launch(number, config, [*options, "name=two", "compute.batch=8"]) for number in (1, 2)]
    said = [one.communicate(timeout=300)[0] for one in pair]
    assert [one.returncode for one in pair] == [0, 0], said
    assert "8 per pass x 2 processes" in said[0]
    one, two = (
        [row["loss"] for row in rows(tmp_path / name) if "loss" in row] for name in ("one", "two")
    )
    assert len(one) == 12 and two == pytest.approx(one, rel=1e-5)
