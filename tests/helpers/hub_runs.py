"""Runs and encoders on the Hub of helpers.hub_server."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.hub_server import WRITER, Hub
from helpers.options import TINY, altered
from helpers.resolving import resolve
from ssl_vit.errors import UserError
from ssl_vit.jobs import train as train_job
from ssl_vit.models import encoder, weights
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.runs.folder import Run

REPO = "someone/vit"


def trained(out: Path, *words: str) -> Run:
    run = Run(resolve(altered([*TINY, "name=mpp", f"out={out}"], *words)))
    train_job.train(run)
    return run


def refused(do: Callable[..., Any], *words: Any) -> str:
    """The one line with which a call is refused, which holds no token."""
    with pytest.raises(UserError) as caught:
        do(*words)
    text = str(caught.value)
    assert "\n" not in text and WRITER not in text
    return text


def pushed(server: Hub, branch: str = "main", repository: str = REPO) -> dict[str, bytes]:
    commit = server.repositories[repository].at(branch)
    assert commit
    return commit.files


def histories(server: Hub) -> dict[str, int]:
    """The number of commits on each branch."""
    repository = server.repositories[REPO]
    return {branch: repository.history(branch) for branch in repository.branches}


def milestone(run: Run, step: int) -> None:
    shutil.copytree(run.export, run.outbox / f"step-{step:09d}")


def exported(
    server: Hub, tmp_path: Path, repository: str = REPO, **more: bytes
) -> tuple[encoder.Encoder, str]:
    """An encoder whose export lies on the Hub, and its commit."""
    torch.manual_seed(1)
    model = Model(name="tiny", patch=4, width=32, depth=2, heads=2, mlp=64)
    made = encoder.build_encoder(model, Data(size=16, mean=[0.4] * 3))
    folder = tmp_path / "made"
    weights.export(folder, made, {}, model, Data(size=16, mean=[0.4] * 3), "avg")
    return made, server.put(
        repository, {path.name: path.read_bytes() for path in folder.iterdir()} | more, private=True
    )
