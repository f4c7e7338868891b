"""Which formats are decoded, what a Mac is told, and what a run says of its images before it
begins."""

import json
import os
import sys

import psutil  # noqa: F401 (before the tests fake the platform, by which it chooses its parts)
import pytest
from PIL import Image

from helpers.images import encode, images
from helpers.options import altered
from ssl_vit.data import decoding
from ssl_vit.jobs import cli
from ssl_vit.runs import environment
from ssl_vit.training import distributed, loop


@pytest.mark.parametrize("form", ["EPS", "ICO", "ICNS", "PCX", "TGA", "SGI", "JPEG2000", "PDF"])
def test_formats_that_are_not_on_the_list_are_refused(form):
    """Pillow would read them, EPS by starting Ghostscript."""
    with pytest.raises(ValueError, match="damaged, or none of JPEG, PNG, WEBP") as caught:
        decoding.decode(encode(Image.new("RGB", (32, 32)), form))
    assert "\n" not in str(caught.value)


@pytest.fixture
def mac(monkeypatch):
    """As on macOS: no affinity, no /proc."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(environment.Path, "read_text", _no_proc(environment.Path.read_text))


def _no_proc(read):
    def read_text(path, *words, **more):
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return read(path, *words, **more)

    return read_text


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


def test_a_run_says_at_the_start_what_it_took_for_what(tmp_path, tiny, capsys):
    place = tmp_path / "own"
    images(place, train=20, ant=20, bee=20)
    (place / "notes.txt").write_text("x")
    words = altered(
        [*tiny, "name=own"],
        f"data.path={place}",
        "optim.steps=2",
        "optim.warmup=1",
        "eval.images=2",
    )
    cli.pretrain(altered(words, "data.validation=0.1", "eval.every=2"))
    out = capsys.readouterr().out
    head = out[: out.index("model ")]
    assert (
        f"warning: data.path={place}: train could be a split's name, but ant, bee beside it is not"
        in head
    )
    assert f"images      train: 60 images from {place}, its split train\n" in head
    assert "\n            validation: 6 images taken from train, which keeps 54\n" in head
    assert "\n            left out: 1 .txt file\n" in head
    known = json.loads((tmp_path / "runs" / "own" / "environment.json").read_text())
    assert "labels: names of folders, 3 classes: ant, bee, train" in head
    assert known["classes"] == []  # nothing has been learned of folders, which need not be classes
