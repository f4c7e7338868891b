"""Folders of .npy images."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from PIL import Image

from helpers.images import encode, npy
from helpers.options import altered
from helpers.runs import rows
from helpers.sources import load
from ssl_vit.data import decoding, fingerprints
from ssl_vit.jobs import cli


def noise(number: int, side: int = 16) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)


def folder(root: Path, ending: str = "npy", each: int = 6, side: int = 16) -> Path:
    """split/class/number.ending, the same pixels whatever the ending."""
    for s, split in enumerate(("train", "test")):
        for c, name in enumerate(("ant", "bee")):
            (root / split / name).mkdir(parents=True)
            for i in range(each):
                array = noise(100 * s + 10 * c + i, side)
                raw = npy(array) if ending == "npy" else encode(Image.fromarray(array), "PNG")
                (root / split / name / f"{i}.{ending}").write_bytes(raw)
    return root


ARRAYS = st_numpy.arrays(
    np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([(), (3,)]))
    .map(lambda sides: (*sides[:2], *sides[2]))
)  # fmt: skip


@given(ARRAYS, st.booleans())
def test_an_array_is_read_as_it_was_npy(array: np.ndarray, by_columns: bool) -> None:
    found = decoding.decode(npy(np.asfortranarray(array) if by_columns else array))
    wanted = array if array.ndim == 3 else np.stack([array] * 3, 2)
    assert np.array_equal(found.permute(1, 2, 0).numpy(), wanted)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (
            npy(np.zeros((4, 4, 3), np.float32)),
            r"float32 \(4, 4, 3\); expected uint8 \(H, W, 3\)",
        ),
        (npy(np.zeros((4, 4, 4), np.uint8)), r"uint8 \(4, 4, 4\); expected"),
        (npy(np.zeros((4,), np.uint8)), r"uint8 \(4,\); expected"),
        (npy(np.zeros((0, 4, 3), np.uint8)), "without pixels"),
        (npy(np.zeros((4, 4, 3), np.uint8))[:-1], "not a whole image"),
        (npy(np.array([{}], dtype=object)), "Object arrays"),
        (b"\x93NUMPY", "not a whole image"),
    ],
)
def test_what_is_no_array_of_pixels_says_so(raw: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decoding.decode(raw)


def test_a_folder_of_arrays_is_one_of_images(tmp_path: Path) -> None:
    arrays, images = (load(folder(tmp_path / kind, kind), test=True) for kind in ("npy", "png"))
    for mine, other in zip(arrays[:3], images[:3], strict=True):
        assert mine is not None and other is not None and mine.classes == other.classes
        every = np.arange(len(other))
        (raw, label), (wanted, wanted_label) = mine.fetch(every), other.fetch(every)
        assert label.tolist() == wanted_label.tolist()
        for one, two in zip(raw, wanted, strict=True):
            assert decoding.decode(one).equal(decoding.decode(two))


def test_arrays_beside_images_are_left_out_and_counted(tmp_path: Path) -> None:
    """They may be masks, boxes, or embeddings."""
    place = folder(tmp_path / "both", "png")
    np.save(place / "train" / "ant" / "0.npy", noise(0))
    np.save(place / "boxes.npy", noise(1))
    splits = load(place, test=True)
    assert len(splits.train) + len(splits.validation) == 12
    assert any("2 .npy files beside images are left out" in note for note in splits.guesses)


def test_the_fingerprint_tells_pixels(tmp_path: Path) -> None:
    prints = [
        fingerprints.fingerprint(load(folder(tmp_path / f"{side}", side=side)).train.whole())
        for side in (16, 17)
    ]
    assert prints[0] != prints[1]


def test_a_run_on_arrays_is_the_run_on_images(tmp_path: Path, tiny: list[str]) -> None:
    """Its curve is the same, a broken array is named and replaced."""
    losses = []
    for kind in ("npy", "png"):
        place = folder(tmp_path / kind, kind)
        (place / "train" / "ant" / f"3.{kind}").write_bytes(b"broken")
        given = [f"data.path={place}", "data.validation=0", "data.unreadable=0.5"]
        cli.pretrain(altered(tiny, *given, f"name={kind}"))
        out = next(option for option in tiny if option.startswith("out=")).removeprefix("out=")
        losses.append(rows(Path(out) / kind))
        assert f"3.{kind}" in (Path(out) / kind / "log.txt").read_text()
    assert losses[0] == losses[1] and losses[0]
