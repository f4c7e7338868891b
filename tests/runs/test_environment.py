"""What a run records of the machine, and how many of its cores one process takes."""

import json
import os
import subprocess
import sys
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


TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0"}
BY_HAND = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("given", "variables", "threads"),
    [
        (None, {}, 6),
        ("1", {}, 1),
        ("2,4", {}, 2),  # OpenMP: one number for each level of nested regions
        *((text, {}, 6) for text in ("", "0", "many", "-1")),
        ("1", TORCHRUN, 6),
        ("1", {"ACCELERATE_MIXED_PRECISION": "no"}, 6),
        ("1", BY_HAND, 6),
        ("1", BY_HAND | {"SLURM_PROCID": "0"}, 1),  # launch/slurm.sh names ranks as a launcher does
        ("1", TORCHRUN | {"SLURM_PROCID": "0"}, 6),
    ],
)
def test_threads_are_those_that_the_user_asks_for(
    given: str | None, variables: dict[str, str], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six cores; launchers set OMP_NUM_THREADS to 1 themselves."""
    names = {"OMP_NUM_THREADS", "SLURM_PROCID", "ACCELERATE_MIXED_PRECISION", *TORCHRUN, *BY_HAND}
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, text in (variables | ({} if given is None else {"OMP_NUM_THREADS": given})).items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(environment, "cores", lambda: 6)
    assert environment.default_threads() == threads


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
