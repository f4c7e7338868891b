"""What a system tells of itself, as macOS does too."""

import os
import sys

import psutil  # noqa: F401 (before the tests fake the platform, by which it chooses its parts)
import pytest

from helpers.options import altered
from ssl_vit.jobs import cli
from ssl_vit.runs import environment
from ssl_vit.training import distributed, loop


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
