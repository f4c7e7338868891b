"""What a run records of the machine, and how many of its cores one process takes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil  # noqa: F401 (before the tests fake the platform, by which it chooses its parts)
import pytest

import ssl_vit
from helpers.launching import launch_ranks, outcome, python
from helpers.options import altered
from ssl_vit.jobs import cli
from ssl_vit.runs import environment
from ssl_vit.training import distributed, loop

# Cores that the process is bound to, variables, and cores that it takes; SLURM's job has 6 a task
CORES = """
64 -> 64
64 LOCAL_WORLD_SIZE=8 WORLD_SIZE=16 -> 8
4 LOCAL_WORLD_SIZE=8 WORLD_SIZE=8 -> 1
# srun: 8 processes of 6 cores each, bound to these, or to none
6 LOCAL_WORLD_SIZE=8 WORLD_SIZE=16 SLURM_NTASKS=16 -> 6
64 LOCAL_WORLD_SIZE=8 WORLD_SIZE=16 SLURM_NTASKS=16 -> 6
# a launcher inside of SLURM's one task of a machine, of two
64 LOCAL_WORLD_SIZE=3 WORLD_SIZE=6 SLURM_NTASKS=2 -> 2
64 SLURM_NTASKS=1 -> 6
2 SLURM_NTASKS=1 -> 2
"""
# Variables, and threads of six cores; launchers set OMP_NUM_THREADS to 1 themselves
THREADS = """
 -> 6
OMP_NUM_THREADS=1 -> 1
# OpenMP: one number for each level of nested regions
OMP_NUM_THREADS=2,4 -> 2
OMP_NUM_THREADS= -> 6
OMP_NUM_THREADS=0 -> 6
OMP_NUM_THREADS=many -> 6
OMP_NUM_THREADS=-1 -> 6
OMP_NUM_THREADS=1 TORCHELASTIC_RUN_ID=x LOCAL_RANK=0 -> 6
OMP_NUM_THREADS=1 ACCELERATE_MIXED_PRECISION=no -> 6
OMP_NUM_THREADS=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 -> 6
# launch/slurm.sh names ranks as a launcher does
OMP_NUM_THREADS=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 SLURM_PROCID=0 -> 1
OMP_NUM_THREADS=1 TORCHELASTIC_RUN_ID=x LOCAL_RANK=0 SLURM_PROCID=0 -> 6
"""


def cases(table: str) -> list[str]:
    return [line for line in table.split("\n")[1:-1] if line[0] != "#"]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Set these variables, and none of the others that the tables name."""

    def set_variables(words: list[str]) -> None:
        for name in re.findall(r"\b([A-Z_]+)=", CORES + THREADS):
            monkeypatch.delenv(name, raising=False)
        for word in words:
            monkeypatch.setenv(*word.split("="))

    return set_variables


@pytest.mark.parametrize("case", cases(CORES))
def test_cores_of_one_process_of_several(
    case: str, only: Callable[[list[str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    words, _, share = case.partition(" -> ")
    bound, *variables = words.split()
    of_job = ["SLURM_CPUS_PER_TASK=6"] if "SLURM_NTASKS" in case else []
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    only([*variables, *of_job])
    cores = set(range(int(bound)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores, raising=False)
    assert environment.process_cores() == int(share)


@pytest.mark.parametrize("case", cases(THREADS))
def test_threads_are_those_that_the_user_asks_for(
    case: str, only: Callable[[list[str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    words, _, threads = case.partition(" -> ")
    only(words.split())
    monkeypatch.setattr(environment, "cores", lambda: 6)
    assert environment.default_threads() == int(threads)


def test_cores_where_the_system_binds_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert environment.cores() == 6


def test_the_environment_names_versions_and_the_revision() -> None:
    facts = environment.environment({"threads": 2})
    assert facts["threads"] == 2 and facts["packages"]["numpy"] == np.__version__
    here, command = Path(environment.__file__).parent, ["git", "rev-parse", "HEAD"]
    head = subprocess.run(command, cwd=here, capture_output=True, text=True)
    assert (facts["revision"] or "").rstrip("+") == head.stdout.strip()
    assert json.loads(json.dumps(facts)) == facts


def test_an_installed_package_has_no_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed in an environment inside a repository it recorded that repository's commit."""
    monkeypatch.setattr(environment, "INSTALLED", True)
    assert environment._revision() is None


@pytest.fixture
def mac(monkeypatch):
    """As on macOS: no affinity, no /proc."""
    read = environment.Path.read_text

    def read_text(path, *words, **more):
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return read(path, *words, **more)

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(environment.Path, "read_text", read_text)


def test_a_run_finishes_on_a_mac(mac, tiny, capsys):
    cli.pretrain(altered([*tiny, "name=mac"], "optim.steps=2", "optim.warmup=1", "eval.every=2"))
    assert "finished    2 steps" in capsys.readouterr().out


def test_memory_is_counted_in_the_unit_of_the_system(monkeypatch):
    """macOS tells bytes, Linux KiB."""
    usage = type("Usage", (), {"ru_maxrss": 2**30})
    monkeypatch.setattr(loop.resource, "getrusage", lambda who: usage)
    for system, gib in (("linux", 1024.0), ("darwin", 1.0)):
        monkeypatch.setattr(sys, "platform", system)
        assert loop._memory(distributed.torch.device("cpu")) == gib


@pytest.mark.parametrize(
    ("launched", "words", "threads"),
    [(False, [], 1), (False, ["compute.threads=2"], 2), (True, ["compute.threads=3"], 3)],
)
def test_a_run_records_the_threads_that_it_takes(
    launched: bool, words: list[str], threads: int, tiny: list[str], tmp_path: Path
) -> None:
    """Of several processes too, whose number Accelerate would choose without OMP_NUM_THREADS."""
    words = [*altered(tiny, "optim.steps=2", "optim.warmup=1", "name=run"), *words]
    words = altered([word for word in words if word != "compute.threads=1"])
    if launched:
        assert outcome(launch_ranks(2, "tools/pretrain.py", *words))[0] == [0, 0]
    else:
        done = python("tools/pretrain.py", *words, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr
    assert ssl_vit.load_run(tmp_path / "runs" / "run").environment().threads == threads
