"""docs/examples/prepare_vtab.py: labels and files made of examples with TFDS's features, against
values worked out by hand of the benchmark's own code."""

import io
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from helpers.options import ROOT
from ssl_vit.errors import UserError

prepare_vtab = SimpleNamespace(**runpy.run_path(str(ROOT / "docs/examples/prepare_vtab.py")))
ROWS = prepare_vtab.TASKS
PIXELS = np.full((2, 2, 3), 7, np.uint8)
GREY = np.array([[[0], [1]], [[1], [0]]], np.uint8)  # (2, 2, 1), as TFDS has dSprites


def clevr(depths: list[float]) -> dict:
    """As TFDS's clevr: features of a sequence of objects, of which two matter."""
    points = np.array([[100, 200, depth] for depth in depths], np.float32)
    objects = {"size": np.zeros(len(depths), np.int64), "pixel_coords": points}
    return {"image": PIXELS, "file_name": b"0.png", "objects": objects, "question_answer": {}}


def kitti(*objects: tuple[int, float]) -> dict:
    """As TFDS's kitti: (type, distance in metres) of each object."""
    location = np.array([[1, 2, z] for _, z in objects], np.float32).reshape(-1, 3)
    types = np.array([kind for kind, _ in objects], np.int64)
    return {"image": PIXELS, "objects": {"type": types, "location": location}}


def dsprites(x: int, orientation: int) -> dict:
    return {"image": GREY, "label_x_position": x, "label_orientation": orientation, "id": b"a"}


# An example of each class of each task, in their order; the benchmark's thresholds belong to the
# class below them
EXAMPLES = {
    "clevr_count": [clevr([9.0] * n) for n in range(3, 11)],
    "clevr_distance": [clevr([20.0, z]) for z in (8.0, 8.1, 8.6, 9.5, 10.0, 10.1)],
    "dsprites_location": [dsprites(x, 0) for x in range(0, 32, 2)],
    # 40 orientations in 16 classes of 2.5: those that open a class
    "dsprites_orientation": [
        dsprites(0, o) for o in (0, 3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28, 30, 33, 35, 38)
    ],
    # the nearest car, van or truck (0, 1, 2), not the nearest object
    "kitti_distance": [
        kitti((3, 1.0), (0, 8.0), (1, 30.0)),
        kitti((1, 8.5)),
        kitti((2, 20.5), (7, 2.0)),
        kitti((3, 5.0)),
    ],
    "smallnorb_azimuth": [{"image": GREY, "label_azimuth": k} for k in range(18)],
    "smallnorb_elevation": [{"image": GREY, "label_elevation": k} for k in range(9)],
}


def examples(name: str) -> list[dict]:
    plain = [{"image": PIXELS, "label": k} for k in range(ROWS[name]["classes"])]
    return EXAMPLES.get(name, plain)


@pytest.mark.parametrize("name", ROWS)
def test_an_example_of_each_class_has_that_label(name: str) -> None:
    found = [prepare_vtab.make_label(one, ROWS[name]["label"]) for one in examples(name)]
    assert found == list(range(ROWS[name]["classes"]))


def test_values_that_end_a_class_and_objects_as_a_list() -> None:
    row = ROWS["dsprites_orientation"]["label"]
    ends = (2, 4, 7, 9, 12, 39)
    found = [prepare_vtab.make_label(dsprites(0, o), row) for o in ends]
    assert found == [0, 1, 2, 3, 4, 15]
    assert prepare_vtab.make_label(dsprites(31, 0), ROWS["dsprites_location"]["label"]) == 15
    assert prepare_vtab.make_label(kitti(), ROWS["kitti_distance"]["label"]) == 3
    listed = {"objects": [{"type": 0, "location": [0, 0, 21]}, {"type": 1, "location": [0, 0, 9]}]}
    assert prepare_vtab.make_label(listed, ROWS["kitti_distance"]["label"]) == 1


def reader(name: str, tests: int = 3):
    """800, 200 and few examples of a task; each split in TFDS's notation has its own."""
    row = ROWS[name]
    every = examples(name)
    counts = {row["train"]: 800, row["validation"]: 200, row["test"]: tests}
    starts = {row["train"]: 0, row["validation"]: 1, row["test"]: 2}
    return lambda split: (
        every[(starts[split] + i) % len(every)] for i in range(counts[split] + (tests == 3))
    )


def labels(path: Path) -> list[int]:
    return pyarrow.parquet.read_table(path, columns=["label"])["label"].to_pylist()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """All 19 tasks, their test splits of four images; read only."""
    folder = tmp_path_factory.mktemp("vtab")
    for name, row in ROWS.items():
        prepare_vtab.write_task(folder / name, row, reader(name), 384)
    return folder


@pytest.mark.parametrize("name", ROWS)
def test_a_task_is_written_in_the_layout_that_training_reads(name: str, prepared: Path) -> None:
    folder, classes = prepared / name, ROWS[name]["classes"]
    train = [i % classes for i in range(800)]
    validation = [(1 + i) % classes for i in range(200)]
    assert labels(folder / "tune" / "train.parquet") == train
    assert labels(folder / "tune" / "validation.parquet") == validation
    assert labels(folder / "final" / "train.parquet") == train + validation
    assert labels(folder / "final" / "test.parquet") == [(2 + i) % classes for i in range(4)]


def decoded(raw: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(raw)))


def test_images_are_squares_of_the_size_or_smaller() -> None:
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 4:] = 200
    assert decoded(prepare_vtab.square(wide, 6)).shape == (6, 6, 3)  # larger than it was: no square
    small = decoded(prepare_vtab.square(wide, 2))
    # half black, half 200, but for what a filter wider than a pixel takes from the other half
    assert small.shape == (2, 2, 3) and small[:, 0].max() < 50 and small[:, 1].min() > 150
    noise = np.random.default_rng(0).integers(0, 256, (5, 5, 3), np.uint8)
    for image in (noise, {"bytes": prepare_vtab.square(noise, 5), "path": None}):
        assert np.array_equal(decoded(prepare_vtab.square(image, 5)), noise)
    assert decoded(prepare_vtab.square(GREY, 9))[..., 2].tolist() == [[0, 255], [255, 0]]


def source_of(folder: Path, builder: str, **splits: list[dict]) -> Path:
    place = folder / builder
    place.mkdir(parents=True)
    for split, rows in splits.items():
        cells = [row | {"image": {"bytes": b"", "path": None}} for row in rows]
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(cells), place / f"{split.replace('_', '-')}.parquet"
        )
    return folder


def test_splits_of_parquet_files_are_cut_as_tfds_cuts_them(tmp_path: Path) -> None:
    rows = [{"label_azimuth": i} for i in range(250)]
    source_of(tmp_path, "smallnorb", test_0=rows[:130], test_1=rows[130:], train=rows[:9])
    read = prepare_vtab.find_reader(tmp_path, "smallnorb:2.*.*")
    assert read is not None
    cuts = {"test[:200]": range(200), "test[50%:]": range(125, 250), "train": range(9)}
    cuts |= {"test[120:140]": range(120, 140), "train[:800]": range(9)}
    for split, wanted in cuts.items():
        assert [row["label_azimuth"] for row in read(split)] == list(wanted), split
    with pytest.raises(UserError, match=r"expected validation\.parquet or"):
        list(read("validation[:200]"))
    assert prepare_vtab.find_reader(tmp_path, "dtd:3.*.*") is None


def test_tfds_reads_its_own_folders_unshuffled_and_downloads_nothing(tmp_path, monkeypatch) -> None:
    (tmp_path / "eurosat" / "rgb" / "2.0.0").mkdir(parents=True)
    (tmp_path / "eurosat" / "rgb" / "2.0.0" / "dataset_info.json").write_text("{}")
    calls = []

    def load(name: str, **options) -> list:
        calls.append((name, options))
        return [{"label": 3}]

    library = SimpleNamespace(load=load, as_numpy=iter)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", library)
    read = prepare_vtab.find_reader(tmp_path, "eurosat/rgb:2.*.*")
    assert read is not None and list(read("train[:800]")) == [{"label": 3}]
    options = {"split": "train[:800]", "data_dir": str(tmp_path)}
    options |= {"shuffle_files": False, "download": False}
    assert calls == [("eurosat/rgb:2.*.*", options)]


SHORT = [{"image": PIXELS, "label": 0}] * 300
WRONG = {
    "no test images": (
        reader("dtd", tests=0),
        "final/test.parquet: expected test images, it has 0",
    ),
    "too few": (lambda split: SHORT, "tune/train.parquet: expected 800 images, it has 300"),
    "a class too many": (
        lambda split: [{"image": PIXELS, "label": 47}] * 800,
        "label 47 is none of 47 classes",
    ),
    "no label": (lambda split: [{"image": PIXELS}], "dtd.*: an example lacks the feature 'label'"),
    "no image": (lambda split: [{"image": b"x", "label": 0}], "dtd.*: an image: not a whole image"),
}


@pytest.mark.parametrize(("read", "says"), WRONG.values(), ids=WRONG)
def test_a_source_of_another_size_or_kind_is_named(read, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        prepare_vtab.write_task(tmp_path, ROWS["dtd"], read, 384)


def test_what_is_missing_is_named_and_what_is_there_and_whole_is_kept(
    tmp_path: Path, prepared: Path, capsys: pytest.CaptureFixture
) -> None:
    rows = [{"label": i % 47} for i in range(800)]
    (tmp_path / "source" / "dtd").mkdir(parents=True)
    for split, count in (("train", 800), ("validation", 200), ("test", 50)):
        cells = [row | {"image": prepare_vtab.square(PIXELS, 2)} for row in rows[:count]]
        path = tmp_path / "source" / "dtd" / f"{split}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(cells), path)
    words = [f"{tmp_path}/source", f"{tmp_path}/out", "--size", "2", "--tasks", "dtd", "svhn"]
    for state in ("made", "there already"):
        prepare_vtab.main(words)
        printed = capsys.readouterr().out
        assert printed == f"dtd: {state}\nsvhn: no svhn_cropped in {tmp_path}/source\n"
    made = tmp_path / "out" / "dtd"
    assert labels(made / "final" / "train.parquet") == [i % 47 for i in (*range(800), *range(200))]
    assert sorted(path.name for path in made.parent.iterdir()) == ["dtd"]
    test = made / "final" / "test.parquet"
    test.unlink()
    with pytest.raises(UserError, match=r"dtd is not whole: no final/test\.parquet; remove it"):
        prepare_vtab.main(words)
    with pytest.raises(SystemExit):
        prepare_vtab.main([*words, "svhm"])
    assert "svhm" in capsys.readouterr().err
