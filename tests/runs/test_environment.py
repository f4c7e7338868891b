"""What a run records of the machine, and how many of its cores one process takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil  # noqa: F401 (before the tests fake the platform, by which it chooses its parts)
import pytest

from helpers.options import altered
from ssl_vit.jobs import cli
from ssl_vit.runs import environment
from ssl_vit.training import distributed, loop


@pytest.mark.parametrize(
    ("bound", "variables", "share"),
    [
        (64, {}, 64),
        (64, {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"}, 8),
        (4, {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "8"}, 1),
        # srun: 8 processes of 6 cores each, bound to these, or to none
        (6, {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16", "SLURM_NTASKS": "16"}, 6),
        (64, {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16", "SLURM_NTASKS": "16"}, 6),
        # a launcher inside of SLURM's one task of a machine, of two
        (64, {"LOCAL_WORLD_SIZE": "3", "WORLD_SIZE": "6", "SLURM_NTASKS": "2"}, 2),
        (64, {"SLURM_NTASKS": "1"}, 6),
        (2, {"SLURM_NTASKS": "1"}, 2),
    ],
)
def test_cores_of_one_process_of_several(
    bound: int, variables: dict[str, str], share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand; SLURM's job has 6 cores a task."""
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    of_job = {"SLURM_CPUS_PER_TASK": "6"} if "SLURM_NTASKS" in variables else {}
    for name, value in (variables | of_job).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(bound)), raising=False)
    assert environment.process_cores() == share


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
