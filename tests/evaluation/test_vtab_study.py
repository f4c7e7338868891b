"""VTAB-1k's tasks: labels and files made of examples with TFDS's features, the study of the tasks,
and its report, against values worked out by hand."""

import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from helpers.arm_studies import finish, task
from helpers.reports import do_not_draw
from ssl_vit.errors import UserError
from ssl_vit.evaluation import prepare_vtab, vtab, vtab_folder, vtab_labels
from ssl_vit.lab import plan_tool, reports, study_tool
from ssl_vit.lab.studies import read_study
from ssl_vit.lab.studies.request import parse_request

ROWS = vtab.tasks()
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
    found = [vtab_labels.make_label(one, ROWS[name]["label"]) for one in examples(name)]
    assert found == list(range(ROWS[name]["classes"]))


def test_values_that_end_a_class_and_objects_as_a_list() -> None:
    row = ROWS["dsprites_orientation"]["label"]
    ends = (2, 4, 7, 9, 12, 39)
    found = [vtab_labels.make_label(dsprites(0, o), row) for o in ends]
    assert found == [0, 1, 2, 3, 4, 15]
    assert vtab_labels.make_label(dsprites(31, 0), ROWS["dsprites_location"]["label"]) == 15
    assert vtab_labels.make_label(kitti(), ROWS["kitti_distance"]["label"]) == 3
    listed = {"objects": [{"type": 0, "location": [0, 0, 21]}, {"type": 1, "location": [0, 0, 9]}]}
    assert vtab_labels.make_label(listed, ROWS["kitti_distance"]["label"]) == 1


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
        prepare_vtab.write_task(folder / name, name, row, reader(name), 384)
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
    assert not vtab_folder.missing(folder / "tune") and not vtab_folder.missing(folder / "final")
    assert vtab_folder.check(folder / "tune", classes) == {"train": 800, "validation": 200}
    assert vtab_folder.check(folder / "final", classes) == {"train": 1000, "test": 4}


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
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UserError, match=r"eurosat/rgb was written by tensorflow-datasets.*pip"):
        prepare_vtab.find_reader(tmp_path, "eurosat/rgb:2.*.*")

    def load(name: str, **options) -> list:
        calls.append((name, options))
        return [{"label": 3}]

    library = SimpleNamespace(load=load, as_numpy=iter, __spec__=object())
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", library)
    read = prepare_vtab.find_reader(tmp_path, "eurosat/rgb:2.*.*")
    assert read is not None and list(read("train[:800]")) == [{"label": 3}]
    options = {"split": "train[:800]", "data_dir": str(tmp_path)}
    options |= {"shuffle_files": False, "download": False}
    assert calls == [("eurosat/rgb:2.*.*", options)]


def test_a_source_of_another_size_or_kind_is_named(tmp_path: Path) -> None:
    few = reader("dtd", tests=0)
    with pytest.raises(UserError, match=r"dtd: expected images in test, there are 0"):
        prepare_vtab.write_task(tmp_path / "a", "dtd", ROWS["dtd"], few, 384)
    short = lambda split: iter([{"image": PIXELS, "label": 0}] * 300)  # noqa: E731
    with pytest.raises(UserError, match=r"dtd: expected 800 images in train\[:800\], .* 300"):
        prepare_vtab.write_task(tmp_path / "b", "dtd", ROWS["dtd"], short, 384)
    other = lambda split: iter([{"image": PIXELS, "label": 47}])  # noqa: E731
    with pytest.raises(UserError, match=r"a label is 47, expected 0 to 46"):
        prepare_vtab.write_task(tmp_path / "c", "dtd", ROWS["dtd"], other, 384)
    bare = lambda split: iter([{"image": PIXELS}])  # noqa: E731
    with pytest.raises(UserError, match=r"expected the feature label; it has image"):
        prepare_vtab.write_task(tmp_path / "d", "dtd", ROWS["dtd"], bare, 384)


def test_what_is_missing_is_named_and_what_is_there_is_kept(tmp_path, capsys, prepared) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "dtd").symlink_to(prepared / "dtd")
    words = [f"source={tmp_path}/source", f"out={tmp_path}/out", "tasks=dtd,svhn"]
    assert prepare_vtab.main(words) == 0
    printed = capsys.readouterr().out
    assert f"missing     svhn: no svhn_cropped in {tmp_path}/source" in printed
    assert "task        dtd: there already" in printed and "1 of 2 tasks" in printed
    for word, says in (
        ("tasks=dtd,svhm", "did you mean svhn"),
        ("size=0", "expected a whole number"),
    ):
        with pytest.raises(UserError, match=says):
            prepare_vtab.main([*words[:2], word])


@pytest.fixture
def three(tmp_path: Path, prepared: Path) -> Path:
    """A folder of three of the tasks, which may be changed."""
    for name in ("dtd", "camelyon", "dmlab"):
        for part in ("tune", "final"):
            place = tmp_path / "data" / name / part
            place.mkdir(parents=True)
            for path in (prepared / name / part).iterdir():
                (place / path.name).symlink_to(path)
    return tmp_path / "data"


def request(data: Path, *words: str, study: str = "study/vtab"):
    found = parse_request(
        [f"recipe={study}", "init=scratch", f"data={data}", f"out={data.parent}", *words]
    )
    return study_tool._with_images(found)


def test_the_tasks_that_are_there_are_the_arms_with_their_own_classes(three, capsys) -> None:
    found = request(three, "seeds=2", "optim.steps=9")
    printed = capsys.readouterr().out.splitlines()
    assert list(found.plan) == [
        f"final-{name}-{seed}" for name in ("dtd", "camelyon", "dmlab") for seed in (0, 1)
    ]
    options = found.plan["final-dmlab-1"].options
    assert options["data.path"] == f"{three}/dmlab/final" and options["data.classes"] == "6"
    setting = {"optim.steps": "9", "optim.lr": "0.01", "optim.batch": "512", "data.size": "384"}
    assert setting.items() <= options.items()
    missing = [line.split()[1].rstrip(":") for line in printed if line.startswith("missing ")]
    assert missing == [name for name in ROWS if name not in found.study.arms]
    assert f"missing     svhn: no {three}/svhn/final" in printed
    assert any("dtd: 4 test images, the benchmark's has 1,880" in line for line in printed)


SWEEP = """title: each task with a learning rate and a length of its own
extends: study/vtab
parts:
  tune:
    tool: finetune
    seeds: [0]
    grid: {optim.lr: [0.1, 0.01], optim.steps: [2500, 10000]}
    options: {data.path: "{data}/{task}/tune", data.validation: validation, eval.test: false}
  final:
    best: {of: tune, by: accuracy}
"""


def test_a_sweep_is_judged_on_200_and_the_final_run_has_all_1000(
    three: Path, tmp_path: Path
) -> None:
    (three / "dtd" / "tune" / "train.parquet").unlink()
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    found = request(three, "seeds=1", study=f"{tmp_path}/sweep.yaml")
    assert list(found.study.arms) == ["camelyon", "dmlab"]
    tune = [one for one in found.plan.values() if (one.part, one.arm) == ("tune", "dmlab")]
    values = [tuple(one.values.values()) for one in tune]
    assert values == [(0.1, 2500), (0.1, 10000), (0.01, 2500), (0.01, 10000)]
    for one in tune:
        assert one.options["data.path"] == f"{three}/dmlab/tune"
        assert one.options["data.validation"] == "validation"
        assert one.options["eval.test"] == "false"
    final = found.plan["final-dmlab-0"]
    assert final.best == "tune" and set(final.needs) == {one.name for one in tune}
    assert final.options["data.path"] == f"{three}/dmlab/final"


def rewritten(path: Path, change) -> None:
    table = change(pyarrow.parquet.read_table(path))
    path.unlink()  # a link
    pyarrow.parquet.write_table(table, path)


def relabelled(table: pyarrow.Table, label: object) -> pyarrow.Table:
    column = pyarrow.array([label] * len(table))
    return table.set_column(table.column_names.index("label"), "label", column)


WRONG = {
    "too few": (lambda t: t.slice(0, 999), "train.parquet: expected 1,000 images, it has 999"),
    "a class too many": (lambda t: relabelled(t, 6), "expected labels from 0 to 5, .*it has 6"),
    "below 0": (lambda t: relabelled(t, -1), "expected labels from 0 to 5, .*it has -1"),
    "words": (lambda t: relabelled(t, "six"), "expected whole numbers as labels"),
    "no labels": (lambda t: t.drop_columns("label"), "expected a column label"),
    "none": (lambda t: relabelled(t, None).cast(t.schema), "1000 have none"),
}


@pytest.mark.parametrize(("change", "says"), WRONG.values(), ids=WRONG)
def test_images_that_cannot_be_the_benchmarks_start_nothing(change, says, three: Path) -> None:
    rewritten(three / "dmlab" / "final" / "train.parquet", change)
    with pytest.raises(UserError, match=says) as caught:
        request(three)
    assert "dmlab" in str(caught.value) and "\n" not in str(caught.value)


def test_other_folders_that_cannot_be_the_benchmarks(three: Path) -> None:
    final = three / "dmlab" / "final"
    (final / "train-more.parquet").symlink_to(final / "test.parquet")
    with pytest.raises(UserError, match=r"expected no other files than .*train-more\.parquet"):
        request(three)
    (final / "train-more.parquet").unlink()
    (final / "test.parquet").unlink()
    (final / "test.parquet").write_text("no table")
    with pytest.raises(UserError, match=r"test\.parquet: cannot be read as parquet"):
        request(three)
    with pytest.raises(UserError, match=r"none of 19 tasks has images; caltech101: no "):
        request(three / "nothing")


def test_kitti_s_whole_test_split_is_the_711_images_that_the_benchmark_loads(
    tmp_path: Path, prepared: Path, capsys
) -> None:
    """Not the 634 that its test declared before 2020-11-27."""
    for part in ("tune", "final"):
        shutil.copytree(prepared / "kitti_distance" / part, tmp_path / "kitti_distance" / part)
    test = tmp_path / "kitti_distance" / "final" / "test.parquet"
    for images in (711, 634):
        rewritten(test, lambda table, n=images: table.take(np.arange(n) % len(table)))
        request(tmp_path)
        warned = "634 test images, the benchmark's has 711" in capsys.readouterr().out
        assert warned == (images == 634)


def test_what_the_tasks_decide_cannot_be_set(three: Path) -> None:
    for word in ("data.classes=3", "data.path=/x"):
        with pytest.raises(UserError, match="the study's benchmark sets it"):
            request(three, word)
    with pytest.raises(UserError, match="source=/x: is for studies of a benchmark"):
        parse_request(["recipe=study/gap", "source=/x"])


STUDY = {
    "title": "tasks",
    "places": ["data"],
    "benchmark": "vtab",
    "options": {"recipe": "finetune", "init": "scratch"},
    "parts": {"final": {"tool": "finetune", "options": {"data.path": "{data}/{task}/final"}}},
    "report": {"final": "final"},
}
MISTAKES = {
    "unknown": ({"benchmark": "vtap"}, "benchmark=vtap: unknown"),
    "arms": ({"arms": {"a": "b"}}, "arms: the arms are the tasks of vtab"),
    "compared": ({"report": {"final": "final", "baseline": "dtd"}}, "as tasks differ"),
    "one folder": (
        {"parts": {"final": {"tool": "finetune", "options": {"data.path": "{data}/final"}}}},
        "data.path=None: expected one that ends in /{task}/tune or /{task}/final",
    ),
}


@pytest.mark.parametrize(("change", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistaken_file_is_refused(change: dict, says: str) -> None:
    assert len(read_study.build(STUDY, "file").arms) == 19
    with pytest.raises(UserError) as caught:
        read_study.build(STUDY | change, "file")
    assert says in str(caught.value)


def test_the_plan_tool_counts_all_tasks_without_images(capsys) -> None:
    plan_tool.main(["recipe=study/vtab", "seeds=1"])
    assert "19" in capsys.readouterr().out


# right of 400 test images, by seed
RIGHT = {"dtd": (200, 210), "pets": (100, 110), "camelyon": (300, 320), "dmlab": (80, 60)}


@pytest.fixture
def scored(tmp_path: Path, monkeypatch) -> Path:
    """A finished study of four tasks over two seeds."""
    do_not_draw(monkeypatch)
    folder = tmp_path / "vtab"
    tasks = [task("final", name, seed) for name in RIGHT for seed in (0, 1)]
    about = {"name": "vtab", "title": "tasks", "seeds": [0, 1], "benchmark": "vtab"}
    about |= {"arms": dict.fromkeys(RIGHT, "a task"), "report": {"final": "final"}, "tasks": tasks}
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps(about))
    for one in tasks:
        finish(folder, one, RIGHT[one["arm"]][one["seed"]])
        path = folder / one["name"] / "environment.json"
        environment = json.loads(path.read_text())
        environment["data"] |= {"test": one["arm"], "train": one["arm"]}  # fingerprints
        path.write_text(json.dumps(environment))
    return folder


def test_the_report_has_the_means_worked_by_hand(scored: Path) -> None:
    found = reports.write(scored)
    scores = {one.group: one for one in found.numbers.benchmark.scores}
    # natural: (50 + 25) / 2 = 37.5 and (52.5 + 27.5) / 2 = 40; specialized: 75, 80;
    # structured: 20, 15; all: (50 + 25 + 75 + 20) / 4 = 42.5 and (52.5 + 27.5 + 80 + 15) / 4 = 43.75
    means = {"natural": 0.3875, "specialized": 0.775, "structured": 0.175, "mean": 0.43125}
    assert {name: one.value.mean for name, one in scores.items()} == pytest.approx(means)
    assert scores["mean"].value.sd == pytest.approx(0.0125 / 2**0.5)
    assert [(one.of, len(one.tasks)) for one in scores.values()] == [
        (7, 2),
        (4, 1),
        (8, 1),
        (19, 4),
    ]
    assert found.answer.startswith("Not a score of VTAB-1k") and "43.12%" in found.answer
    text = (scored / "report.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| all tasks")]
    assert len(rows) == 1 and "43.12" in rows[0] and "4 of 19" in rows[0]
    assert "Without images, and so left out: caltech101, cifar100, flowers102, sun397" in text
    assert "dtd (400, not 1,880)" in text
    assert "tested on the same images" not in text and "Best with" not in text


def test_tasks_are_no_pairs(scored: Path) -> None:
    with pytest.raises(UserError, match=r"^pairs=dtd:pets: the arms are tasks, each with test"):
        reports.write(scored, ["dtd:pets"])


def test_a_seed_with_fewer_finished_tasks_is_not_in_the_mean(scored: Path) -> None:
    (scored / "final-pets-1" / "result.json").unlink()
    scores = {one.group: one for one in reports.write(scored).numbers.benchmark.scores}
    assert scores["natural"].value.n == 1 and scores["natural"].value.mean == pytest.approx(0.375)
    assert scores["structured"].value.n == 2
    assert scores["mean"].value.mean == pytest.approx(0.425) and scores["mean"].value.n == 1
    for seed in (0, 1):
        (scored / f"final-dmlab-{seed}" / "result.json").unlink()
    found = reports.write(scored).numbers.benchmark
    assert found.unfinished == ["dmlab"]
    assert [one.group for one in found.scores] == ["natural", "specialized", "mean"]


def test_all_tasks_on_their_whole_test_splits_are_the_score() -> None:
    """The mean over tasks, (7 x 80 + 4 x 60 + 8 x 40) / 19, not over groups, which is 60."""
    accuracy = {"natural": 80.0, "specialized": 60.0, "structured": 40.0}
    means = vtab.partial_means({name: accuracy[row["group"]] for name, row in ROWS.items()})
    assert means["mean"].value == pytest.approx(1120 / 19) and len(means["mean"].tasks) == 19
    assert "structured" not in vtab.partial_means({"dtd": 1.0})
