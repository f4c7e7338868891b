"""Test images that are also among training images: docs/examples/overlap.py."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.images import encode
from helpers.options import ROOT, TINY, altered
from ssl_vit.jobs import cli


def picture(seed: int) -> np.ndarray:
    """Smooth noise: neighbouring pixels are alike, as in photographs."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((32, 32), Image.Resampling.BICUBIC))


def saved(pixels: np.ndarray, form: str = "PNG", **how: int) -> bytes:
    return encode(Image.fromarray(pixels), form, **how)


def test_the_same_pixels_and_near_ones_are_found_and_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Of options, and of a run: all of the training split, whatever share it took."""
    train = [picture(seed) for seed in range(40)]
    brighter = np.clip(train[5].astype(int) + 6, 0, 255).astype(np.uint8)
    tests = {
        "same": saved(train[3]),
        "saved_again": saved(train[7], "JPEG", quality=70),
        "mirrored": saved(train[9][:, ::-1]),
        "brighter": saved(brighter),
        "another": saved(picture(1000)),
        "broken": b"no image",
    }
    for split in ("train", "test"):
        (tmp_path / "images" / split).mkdir(parents=True)
    for row, pixels in enumerate(train):
        (tmp_path / "images" / "train" / f"{row:02d}.png").write_bytes(saved(pixels))
    for name, raw in tests.items():
        (tmp_path / "images" / "test" / f"{name}.png").write_bytes(raw)
    compare = runpy.run_path(str(ROOT / "docs/examples/overlap.py"))["main"]
    place = f"data.path={tmp_path}/images"
    compare([place])
    printed = capsys.readouterr().out
    left_out, *lines, last = printed.splitlines()
    assert left_out.startswith("left out") and "broken.png): " in left_out
    found = {}
    for line in lines:
        test, other, how = re.findall(r"row .*/(\w+)\.png\)  row .*/(\d+)\.png\)  (.*)", line)[0]
        found[test] = int(other), how.partition(":")[0]
    assert found == {
        "same": (3, "the same pixels"),
        "saved_again": (7, "near"),
        "mirrored": (9, "near"),
        "brighter": (5, "near"),
    }
    assert last == "1 of 6 test images are among 40 training images; 3 more are near one"

    steps = ("optim.steps=2", "optim.warmup=1")
    words = altered(TINY, place, *steps, "data.share=0.5", f"out={tmp_path}", "name=run")
    cli.pretrain([*words, "eval.test=false"])
    capsys.readouterr()
    compare([str(tmp_path / "run"), place])
    assert capsys.readouterr().out == printed
