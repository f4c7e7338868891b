"""What a run records of the machine, and how many of its cores one process takes."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ssl_vit.runs import environment


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
