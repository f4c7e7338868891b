"""Finished runs that several files look at; a test that changes one changes a copy."""

from pathlib import Path

import pytest

from helpers.options import CLASSIFIER, TINY, altered
from helpers.runs import run


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of masked patch prediction."""
    return run([*TINY, f"out={tmp_path_factory.mktemp('pretrained')}", "name=mpp"]).folder


@pytest.fixture(scope="session")
def still(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose weights are those that it began with."""
    out = tmp_path_factory.mktemp("still")
    new = ("optim.steps=2", "optim.warmup=1", "optim.lr=1e-9", "optim.weight_decay=0", "seed=3")
    return run(altered(TINY, *new, f"out={out}", "name=mpp")).folder


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a classifier, which has been tested."""
    out = f"out={tmp_path_factory.mktemp('tuned')}"
    return run(altered(TINY, *CLASSIFIER, out, "name=tuned")).folder
