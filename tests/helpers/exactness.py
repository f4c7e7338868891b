"""What each objective is held to: gradients of a plain implementation, the same end after a kill."""

import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
import torch
from torch import Tensor, nn

from helpers.options import altered
from helpers.runs import Killed, Killer, assert_same_end, run
from ssl_vit.data.batching import Batch
from ssl_vit.jobs import train as train_job
from ssl_vit.models.encoder import Encoder, build_encoder
from ssl_vit.objectives.base import Metrics, Objective
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.runs import checkpoint_files
from ssl_vit.training import checkpoint

SMALL = Model(patch=4, width=32, depth=2, heads=4, mlp=64)
M = TypeVar("M", bound=nn.Module)
SERIES = """
import json, os, sys
from ssl_vit.jobs.train import train
from ssl_vit import resolve
from ssl_vit.runs.folder import Run
for words in json.loads(sys.argv[1]):
    # the store of the run before may still be there
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) - 1)
    train(Run(resolve(words)))
"""


def small(model: Model = SMALL) -> Encoder:
    """A fresh encoder of 4 x 4 patches, from the seed 0."""
    torch.manual_seed(0)
    return build_encoder(model, Data(size=16))


def shaken(objective: M) -> M:
    """With noise on all of its weights: none is 0 or 1, and a teacher differs from its student."""
    for parameter in objective.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return objective


def assert_is_plain(
    objective: Objective, given: Batch, plain_loss: Callable[..., Tensor]
) -> Metrics:
    """The loss of a batch, and its gradients, are those that `plain_loss` gives of a copy in
    float64; the metrics."""
    plain = deepcopy(objective).double()
    wanted = plain_loss(plain)
    wanted.backward()
    step = objective(given)
    step.loss.backward()
    assert step.loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    total, count = step.metrics["loss"]
    assert float(total / count) == pytest.approx(wanted.item(), rel=1e-6)
    assert_gradients_of(plain, objective)
    return step.metrics


def assert_gradients_of(plain: nn.Module, objective: nn.Module) -> None:
    """Those of all that is trained within 1e-5 of the plain copy's; none of what is not."""
    right = dict(plain.named_parameters())
    for name, p in objective.named_parameters():
        if p.requires_grad:
            assert p.grad is not None, name
            away = (p.grad - right[name].grad).norm() / right[name].grad.norm()
            assert away < 1e-5, name
        else:
            assert p.grad is None, name


class Unbroken(NamedTuple):
    """A run of 16 images a step that nothing has interrupted.

    Attributes:
        words: its options.
        folder: of the run.
    """

    words: list[str]
    folder: Path

    @classmethod
    def of(cls, words: list[str], out: Path) -> "Unbroken":
        words = altered(words, "log.every=1", "compute.batch=16", f"out={out}", "name=whole")
        return cls(words, run(words).folder)

    def state(self) -> dict[str, torch.Tensor]:
        """What the last checkpoint has of the objective."""
        return last_state(self.folder)


def last_state(folder: Path) -> dict[str, torch.Tensor]:
    last = checkpoint_files.list_checkpoints(folder / "checkpoints")[-1]
    return checkpoint.load(last)["objective"]


def assert_a_killed_run_ends_as(whole: Unbroken) -> None:
    """Killed in step 7, behind a checkpoint, and resumed it has the same rows, export and objective,
    bit for bit."""
    words = altered(whole.words, "name=killed")
    callbacks = train_job._callbacks
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(train_job, "_callbacks", lambda job: [*callbacks(job), Killer(7)])
        run(words)
    again = run(words).folder
    assert_same_end(whole.folder, again)
    one, other = whole.state(), last_state(again)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    shutil.rmtree(again)
