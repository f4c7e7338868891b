"""VTAB-1k: its table against figures of the benchmark's own tests; docs/examples/prepare_vtab.py on
examples with TFDS's features against labels worked out by hand; the study of its tasks and its
report."""

import io
import json
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from helpers import made_studies
from helpers.options import ROOT
from helpers.reports import table
from helpers.resolving import parse_request
from ssl_vit.errors import UserError
from ssl_vit.lab import report
from ssl_vit.lab.study.read import read
from ssl_vit.lab.study.request import StudyRequest
from ssl_vit.recipe.parsing import load_yaml
from ssl_vit.recipe.recipe_files import RECIPES, TABLES

# google-research/task_adaptation, data/*_test.py: classes, images of its train, validation and test
# splits, at d7630d3. Before dd43428 KITTI's test declared 5,077, 634 and 634 images, 80% and twice 10%
# of its training split, though the code loads the whole splits; no other test ever changed.
# dSprites' 16 classes are from scripts/run_all_tasks.sh; all 19 numbers of classes are also those of
# KMnP/vpt, tune_vtab.py.
PUBLISHED = {
    "natural": {
        "caltech101": (102, 2754, 306, 6084),
        "cifar100": (100, 45_000, 5000, 10_000),
        "dtd": (47, 1880, 1880, 1880),
        "flowers102": (102, 1020, 1020, 6149),
        "pets": (37, 2944, 736, 3669),
        "sun397": (397, 76_128, 10_875, 21_750),
        "svhn": (10, 65_931, 7326, 26_032),
    },
    "specialized": {
        "camelyon": (2, 262_144, 32_768, 32_768),
        "eurosat": (10, 16_200, 5400, 5400),
        "resisc45": (45, 18_900, 6300, 6300),
        "retinopathy": (5, 35_126, 10_906, 42_670),
    },
    "structured": {
        "clevr_count": (8, 63_000, 7000, 15_000),
        "clevr_distance": (6, 63_000, 7000, 15_000),
        "dmlab": (6, 65_550, 22_628, 22_735),
        "dsprites_location": (16, 589_824, 73_728, 73_728),
        "dsprites_orientation": (16, 589_824, 73_728, 73_728),
        "kitti_distance": (4, 6347, 423, 711),
        "smallnorb_azimuth": (18, 24_300, 12_150, 12_150),
        "smallnorb_elevation": (9, 24_300, 12_150, 12_150),
    },
}
FLAT = {task: numbers for group in PUBLISHED.values() for task, numbers in group.items()}

ROWS = load_yaml(TABLES / "vtab.yaml")


def cut(split):
    """("train", first, last) of a split in TFDS's notation; None where it is left out, a text where
    it is a percentage."""
    name, first, last = re.fullmatch(
        r"(train|validation|test)(?:\[([\d%]*):([\d%]*)\])?", split
    ).groups()
    return name, *(int(n) if n and n.isdigit() else n or None for n in (first, last))


def test_the_nineteen_tasks_and_their_classes_are_the_benchmarks():
    groups = [(t, group) for group, names in PUBLISHED.items() for t in names]
    assert len(groups) == 19
    assert [(t, row["group"]) for t, row in ROWS.items()] == groups
    found = {task: (row["classes"], row["test_images"]) for task, row in ROWS.items()}
    assert found == {task: (numbers[0], numbers[3]) for task, numbers in FLAT.items()}


@pytest.mark.parametrize("task", FLAT)
def test_the_thousand_are_the_first_800_and_200_that_no_other_part_holds(task):
    row, (_, train, validation, test) = ROWS[task], FLAT[task]
    assert cut(row["train"]) == ("train", None, 800) and train >= 800 and validation >= 200
    name, first, last = cut(row["validation"])
    assert last - (first or 0) == 200
    # where TFDS has no such split, the benchmark's starts where its training split ends
    if name == "train":
        assert first == train
    else:
        assert first is None and (name == "validation" or cut(row["test"]) == ("test", "50%", None))
    name, first, last = cut(row["test"])
    assert last is None
    if name == "train":
        assert first == train + validation
    elif first is None:
        assert name != cut(row["validation"])[0]
    else:
        assert validation == test  # the half of smallnorb's that is not validation


# The script


prepare_vtab = SimpleNamespace(**runpy.run_path(str(ROOT / "docs/examples/prepare_vtab.py")))
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


@pytest.mark.parametrize("name", ["dtd", "kitti_distance"])
def test_a_task_is_written_in_the_layout_that_training_reads(name: str, tmp_path: Path) -> None:
    prepare_vtab.write_task(tmp_path, ROWS[name], reader(name), 384)
    classes = ROWS[name]["classes"]
    train = [i % classes for i in range(800)]
    validation = [(1 + i) % classes for i in range(200)]
    assert labels(tmp_path / "tune" / "train.parquet") == train
    assert labels(tmp_path / "tune" / "validation.parquet") == validation
    assert labels(tmp_path / "final" / "train.parquet") == train + validation
    assert labels(tmp_path / "final" / "test.parquet") == [(2 + i) % classes for i in range(4)]


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
        r"final/test\.parquet: .* 0",
    ),
    "too few": (lambda split: SHORT, r"tune/train\.parquet: .* 800 .* 300"),
    "a class too many": (
        lambda split: [{"image": PIXELS, "label": 47}] * 800,
        "label 47 is none of 47 classes",
    ),
    "no label": (lambda split: [{"image": PIXELS}], "dtd.*: .* 'label'"),
    "no image": (lambda split: [{"image": b"x", "label": 0}], "dtd.*: an image: "),
}


@pytest.mark.parametrize(("read", "says"), WRONG.values(), ids=WRONG)
def test_a_source_of_another_size_or_kind_is_named(read, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        prepare_vtab.write_task(tmp_path, ROWS["dtd"], read, 384)


def test_what_is_missing_is_named_and_what_is_there_and_whole_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture
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
        one, other = capsys.readouterr().out.splitlines()
        assert state in one and other.startswith("svhn: no svhn_cropped in ")
    made = tmp_path / "out" / "dtd"
    assert labels(made / "final" / "train.parquet") == [i % 47 for i in (*range(800), *range(200))]
    assert sorted(path.name for path in made.parent.iterdir()) == ["dtd"]
    test = made / "final" / "test.parquet"
    test.unlink()
    with pytest.raises(UserError, match=r"dtd .* final/test\.parquet"):
        prepare_vtab.main(words)
    with pytest.raises(SystemExit):
        prepare_vtab.main([*words, "svhm"])
    assert "svhm" in capsys.readouterr().err


# The study


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A folder of three of the tasks, which may be changed."""
    for name in ("dtd", "camelyon", "dmlab"):
        prepare_vtab.write_task(tmp_path / "data" / name, ROWS[name], reader(name), 2)
    return tmp_path / "data"


def asked(data: Path, *words: str) -> StudyRequest:
    return parse_request(
        ["recipe=study/vtab", "init=scratch", f"data={data}", f"out={data.parent}", *words]
    )


def test_the_tasks_that_are_there_are_run_with_their_own_classes(three: Path) -> None:
    found = asked(three, "seeds=2", "optim.steps=200")
    assert list(found.tasks) == [
        f"final-{name}-{seed}" for name in ("dtd", "camelyon", "dmlab") for seed in (0, 1)
    ]
    options = found.tasks["final-dmlab-1"].options
    assert options["data.path"] == f"{three}/dmlab/final" and options["data.classes"] == 6
    setting = {"optim.steps": 200, "optim.lr": 0.01, "optim.batch": 512, "data.size": 384}
    assert setting.items() <= options.items()
    assert f"task svhn is left out: {three}/svhn/final does not exist" in found.cautions
    assert sum("is left out" in line for line in found.cautions) == 16


def test_the_file_has_the_tables_tasks_classes_and_groups() -> None:
    found = read(RECIPES / "study" / "vtab.yaml")
    groups = found.report.mean_over["task"]
    group = {name: group for group, names in groups.items() for name in names}
    assert {
        name: (int(settings["final"].options["data.classes"]), group[name])
        for name, settings in found.axes["task"].items()
    } == {name: (row["classes"], row["group"]) for name, row in ROWS.items()}


# right of 400 test images, by seed
RIGHT = {"dtd": (200, 210), "pets": (100, 110), "camelyon": (300, 320), "dmlab": (80, 60)}


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """A finished study of four tasks over two seeds, with the images of others left out."""
    content = load_yaml(RECIPES / "study" / "vtab.yaml") | {"seeds": [0, 1], "places": []}
    settings = {"init": "scratch", "model": "vit_p8", "data.size": 32, "optim.steps": 200}
    content["runs"]["final"]["options"] |= settings
    content["axes"]["task"] = {
        name: {"final": {"data.path": f"/images/{name}", "data.classes": ROWS[name]["classes"]}}
        for name in RIGHT
    }
    groups = content["report"].pop("mean_over")
    content["report"]["mean_over"] = "task"
    folder = made_studies.study(
        tmp_path / "vtab",
        content,
        lambda task: {"top1": (RIGHT[task.at["task"]][task.seed] / 400, "test")},
    )
    record = json.loads((folder / "study.json").read_text())
    record["report"]["mean_over"] = groups  # with the names whose images are not there
    (folder / "study.json").write_text(json.dumps(record))
    for path in folder.glob("*/environment.json"):
        environment = json.loads(path.read_text())
        environment["data"] |= dict.fromkeys(("test", "train"), path.parent.name.split("-")[1])
        path.write_text(json.dumps(environment))
    return folder


def means(folder: Path) -> dict[str, list[str]]:
    """{group: n, mean, sd} of the report."""
    text = report.write(folder) and (folder / "report.md").read_text()
    _, *rows = table(text.partition("Mean over task:")[2], "task")
    return {row[0]: row[1:4] for row in rows}


def test_the_report_has_the_means_worked_by_hand(scored: Path) -> None:
    """natural: (50 + 25) / 2 = 37.5 and (52.5 + 27.5) / 2 = 40; specialized: 75, 80; structured:
    20, 15; all: (50 + 25 + 75 + 20) / 4 = 42.5 and (52.5 + 27.5 + 80 + 15) / 4 = 43.75."""
    assert means(scored) == {
        "natural, 2 of 7": ["2", "38.75", "1.77"],
        "specialized, 1 of 4": ["2", "77.50", "3.54"],
        "structured, 1 of 8": ["2", "17.50", "3.54"],
        "all, 4 of 19": ["2", "43.12", "0.88"],
    }
    text = (scored / "report.md").read_text()
    verdict = report.write(scored).verdict
    assert not verdict.primary.differences, "tasks are no pairs"
    left_out = ", ".join(name for name in ROWS if name not in RIGHT)
    assert f"Not in the study: {left_out}." in text


def test_a_seed_with_fewer_finished_tasks_is_not_in_the_mean(scored: Path) -> None:
    (scored / "final-pets-1" / "result.json").unlink()
    found = means(scored)
    assert found["natural, 2 of 7"][:2] == ["1", "37.50"]
    assert found["structured, 1 of 8"][:2] == ["2", "17.50"]
    assert found["all, 4 of 19"][:2] == ["1", "42.50"]
    for seed in (0, 1):
        (scored / f"final-dmlab-{seed}" / "result.json").unlink()
    assert means(scored).keys() == {"natural, 2 of 7", "specialized, 1 of 4", "all, 3 of 19"}
