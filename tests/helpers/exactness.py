"""What each objective is held to: gradients of a plain implementation, the same end after a kill, the
same curve on two processes."""

import signal
from pathlib import Path

import torch
from torch import nn

from helpers.launching import launch, launch_ranks, outcome
from helpers.options import altered
from helpers.runs import assert_alike, assert_same_end, rows, run
from ssl_vit.runs import checkpoint_files
from ssl_vit.training import checkpoint

KILLS_ITSELF = """
import signal, sys
sys.path.insert(0, "tests")
from helpers.runs import Sends
from ssl_vit.jobs import cli, train
callbacks = train._callbacks
train._callbacks = lambda job: [*callbacks(job), Sends(signal.SIGKILL, 7)]
cli.pretrain(sys.argv[1:])
"""


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


def killed_and_resumed(words: list[str], out: Path) -> dict[str, torch.Tensor]:
    """What the last checkpoint has of the objective, of a run that was killed in step 7 and resumed;
    checked to be what an unbroken run has, bit for bit, as are metrics and export."""
    words = [*words, f"out={out}"]
    whole = run([*words, "name=whole"])
    codes, outputs = outcome([launch("-c", KILLS_ITSELF, *words, "name=killed")])
    assert codes == [-signal.SIGKILL], outputs
    codes, outputs = outcome([launch("tools/pretrain.py", *words, "name=killed")])
    assert codes == [0], outputs
    assert_same_end(whole.folder, out / "killed")
    states = []
    for folder in (whole.folder, out / "killed"):
        last = checkpoint_files.list_checkpoints(folder / "checkpoints")[-1]
        states.append(checkpoint.load(last)["objective"])
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    return states[1]


def assert_two_processes_learn_as_one(words: list[str], out: Path) -> None:
    """For words of 16 images a step."""
    words = altered(words, "log.every=1", f"out={out}", "name=two", "compute.batch=8")
    codes, outputs = outcome(launch_ranks(2, "tools/pretrain.py", *words))
    assert codes == [0, 0], outputs
    one = run(altered(words, "name=one", "compute.batch=16"))
    assert_alike(rows(one.folder), rows(out / "two"), rel=1e-6)
