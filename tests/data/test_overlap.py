"""Test images that are also among training images."""

import dataclasses
import io
import json

import numpy as np
import pytest
import yaml
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Pillow

from helpers.arm_studies import study, task
from helpers.images import images
from helpers.options import PROBE, TINY, altered
from helpers.reports import write
from ssl_vit.config.schema import Data
from ssl_vit.data import find_overlap, fingerprints, overlap, sources
from ssl_vit.data.base import Source
from ssl_vit.errors import UserError
from ssl_vit.jobs import cli
from ssl_vit.lab import reports

imagehash = pytest.importorskip("imagehash")

SHARE = ("window", "labels")  # keys that decide, with those of the place, which images it has


class Memory(Source):
    """A split of arrays."""

    def __init__(self, images):
        self.images, self.classes = images, []

    def __len__(self):
        return len(self.images)

    def fetch(self, rows):
        return [self.images[row] for row in rows], np.zeros(len(rows), np.int64)

    def name(self, row):
        return f"row {row}"


def picture(seed, side=32):
    """Smooth noise: neighbouring pixels are alike, as in photographs."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    image = Pillow.fromarray(coarse).resize((side, side), Pillow.Resampling.BICUBIC)
    return np.array(image)


def saved(pixels, form="PNG", **how):
    file = io.BytesIO()
    Pillow.fromarray(pixels).save(file, form, **how)
    return file.getvalue()


def test_the_same_pixels_and_near_ones_are_found_and_told_apart():
    train = [picture(seed) for seed in range(40)]
    brighter = np.clip(train[5].astype(int) + 6, 0, 255).astype(np.uint8)
    test = [
        saved(train[3]),  # the same pixels in a file
        saved(train[7], "JPEG", quality=70),
        np.ascontiguousarray(train[9][:, ::-1]),  # mirrored
        brighter,
        picture(1000),
        b"no image",
    ]
    found = overlap.compare(*map(overlap.hash_images, (Memory(train), Memory(test))))
    assert found.exact == [overlap.Match(0, 3, 0)]
    assert [(one.test, one.train) for one in found.near] == [(1, 7), (2, 9), (3, 5)]
    assert all(one.bits <= overlap.DISTANCE for one in found.near)


def test_bits_are_imagehashs_own_differences(monkeypatch):
    """And blocks change nothing."""
    train, test = ([picture(seed) for seed in seeds] for seeds in (range(30), range(25, 45)))
    hashes = [overlap.hash_images(Memory(images)) for images in (train, test)]
    whole = overlap.compare(*hashes, distance=64)
    monkeypatch.setattr(overlap, "PAIRS", 70)
    assert overlap.compare(*hashes, distance=64) == whole
    assert [(one.test, one.train) for one in whole.exact] == [(n, 25 + n) for n in range(5)]
    theirs = [imagehash.phash(Pillow.fromarray(image)) for image in train]
    for one in whole.near:
        views = [Pillow.fromarray(test[one.test])]
        views.append(views[0].transpose(Pillow.Transpose.FLIP_LEFT_RIGHT))
        nearest = min(imagehash.phash(view) - other for view in views for other in theirs)
        assert one.bits == nearest
        own = min(imagehash.phash(view) - theirs[one.train] for view in views)
        assert own == nearest


def test_training_images_that_cannot_be_read_match_nothing():
    broken = overlap.hash_images(Memory([b"", b"x"]))
    fine = overlap.hash_images(Memory([b"y", picture(1)]))
    assert overlap.compare(broken, fine) == overlap.compare(fine, broken) == overlap.Overlap([], [])


@pytest.fixture
def tested(tmp_path, capsys):
    """A study of one fine-tuned run on images of which the test split shares two with train."""
    features = Features({"image": Image(), "label": ClassLabel(names=["a", "b"])})
    for split, seeds in (("train", range(48)), ("test", [7, 9, 100, 101])):
        rows = {
            "image": [{"bytes": saved(picture(n, 16)), "path": None} for n in seeds],
            "label": [n % 2 for n in seeds],
        }
        Dataset.from_dict(rows, features).to_parquet(tmp_path / f"{split}-0.parquet")
    folder = tmp_path / "runs" / "s"
    options = altered(
        TINY,
        "recipe=supervised",
        f"data.path={tmp_path}",
        "data.validation=0.2",
        "optim.steps=2",
        "optim.warmup=1",
        "eval.test=true",
        f"out={folder}",
        "name=final-a-0",
    )
    cli.pretrain(options)
    capsys.readouterr()
    one = task("final", "a", 0) | {"options": []}
    plan = {"name": "s", "title": "s", "arms": {"a": "a"}, "seeds": [0], "tasks": [one]}
    write(folder / "study.json", plan | {"report": {"final": "final"}})
    return folder


def test_the_tool_counts_and_names_the_pairs(tested, capsys):
    find_overlap.main([str(tested)])
    assert "2 of 4 images are in" in capsys.readouterr().out
    (entry,) = json.loads((tested / "overlap.json").read_text())
    assert (entry["exact"], entry["train"]["images"], entry["test"]["images"]) == (2, 48, 4)
    assert len(entry["pairs"]) == 2 + entry["near"]
    environment = json.loads((tested / "final-a-0" / "environment.json").read_text())
    assert entry["train"]["print"] == environment["data"]["train"]
    assert entry["test"]["print"] == environment["data"]["test"]


@pytest.mark.parametrize("group", [[], ["data.group=patient"]], ids=["images", "groups"])
def test_a_share_for_testing_is_named_as_its_runs_name_it(tmp_path, capsys, group):
    """Of 48 images 16 share their pixels with another, whichever side of the cut that is on; one
    arm was pre-trained on all of them, the share too."""
    rows = {
        "image": [{"bytes": saved(picture(n % 40, 16)), "path": None} for n in range(48)],
        "label": [n % 2 for n in range(48)],
        "patient": [n // 2 for n in range(48)],
    }
    features = {"image": Image(), "label": ClassLabel(names=["a", "b"]), "patient": Value("int64")}
    Dataset.from_dict(rows, Features(features)).to_parquet(tmp_path / "train-0.parquet")
    folder = tmp_path / "runs" / "s"
    of_all = (f"data.path={tmp_path}", f"out={folder}", "optim.steps=2", "optim.warmup=1")
    cli.pretrain(altered(TINY, *of_all, "eval.test=false", "name=pretrain-a-0"))
    tested = ("recipe=supervised", "eval.test=true", "data.test=0.25", *group)
    cli.pretrain(altered(TINY, *of_all, *tested, "name=final-a-0"))
    tasks = [task("pretrain", "a", 0, "pretrain"), task("final", "a", 0)]
    plan = {"name": "s", "title": "s", "arms": {"a": "a"}, "seeds": [0]}
    write(folder / "study.json", plan | {"tasks": tasks, "report": {"final": "final"}})
    find_overlap.main([str(folder)])
    whole, rest = sorted(
        json.loads((folder / "overlap.json").read_text()),
        key=lambda entry: entry["train"]["images"],
        reverse=True,
    )
    tested = json.loads((folder / "final-a-0" / "environment.json").read_text())
    for entry, run in ((whole, "pretrain-a-0"), (rest, "final-a-0")):
        facts = json.loads((folder / run / "environment.json").read_text())
        assert entry["train"]["print"] == facts["data"]["train"]
        assert entry["test"]["print"] == tested["data"]["test"]
    test = whole["test"]["images"]
    assert (whole["train"]["images"], rest["train"]["images"]) == (48, 48 - test)
    assert whole["exact"] == test > rest["exact"]
    reports.write(folder)
    text = " ".join((folder / "report.md").read_text().split())
    for entry in (whole, rest):
        counts = [entry["train"]["images"], test, entry["exact"], entry["near"]]
        assert f", train | {' | '.join(map(str, counts))} |" in text


@pytest.mark.parametrize("same", [True, False])
def test_the_report_shows_what_is_of_its_images(tmp_path, same):
    folder = study(tmp_path / "gap")
    split = {"data": "cifar10", "images": 400, "print": "x"}
    entry = {
        "train": split | {"print": "t", "images": 1000},
        "test": split | {"print": "x" if same else "other"},
        "exact": 3,
        "near": 12,
        "bits": 4,
    }
    write(folder / "overlap.json", [entry])
    reports.write(folder)
    text = " ".join((folder / "report.md").read_text().split())
    assert ("| cifar10, test | cifar10, train | 1,000 | 400 | 3 | 12 |" in text) == same
    write(folder / "overlap.json", [{"exact": 3}])
    with pytest.raises(UserError, match=r"overlap\.json is damaged"):
        reports.write(folder)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "expected one FOLDER, as in python tools/overlap.py"),
        (["a", "b"], "expected one"),
        (["."], "study.json"),
    ],
)
def test_mistakes_are_answered_in_one_line(options, says):
    with pytest.raises(UserError) as caught:
        find_overlap.main(options)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_study_without_test_images_is_named(tmp_path):
    one = task("pretrain", "a", 0, "pretrain")
    plan = {"name": "s", "title": "s", "arms": {"a": "a"}, "report": {}, "tasks": [one]}
    write(tmp_path / "study.json", plan)
    with pytest.raises(UserError, match="no finished run was measured on test images"):
        find_overlap.main([str(tmp_path)])


def change_data(study, **data):
    """Change the recipe of the study's run."""
    path = study / "final-a-0" / "recipe.yaml"
    values = yaml.safe_load(path.read_text())
    values["data"] |= data
    path.write_text(yaml.safe_dump(values))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"range": [0, 4095]}, r"^data\.range=\[0,4095\]: .*final-a-0 is of other images than RGB"),
        (
            {"channels": 4, "mean": [0.5] * 4, "std": [0.5] * 4},
            r"^data\.channels=4: .*final-a-0 is",
        ),
    ],
)
def test_runs_on_other_pixels_than_bytes_are_named(tested, data, line):
    change_data(tested, **data)
    with pytest.raises(UserError, match=line):
        find_overlap.main([str(tested)])


@pytest.mark.parametrize("grouped", [False, True])
def test_a_share_for_testing_is_that_of_its_run(tested, tmp_path, grouped):
    """Folders that are groups were taken for classes, and none was found."""
    data = Data(name="own", path=str(tmp_path), test=0.25, window=24, validation=0.0)
    if grouped:
        images(tmp_path / "places", here=20, there=16, beyond=12)
        place = str(tmp_path / "places")
        data = dataclasses.replace(data, path=place, window=None, group="folder", labels=False)
    change_data(tested, **{key: getattr(data, key) for key in (*find_overlap.PLACE[1:], *SHARE)})
    find_overlap.main([str(tested)])
    (entry,) = json.loads((tested / "overlap.json").read_text())
    wanted = fingerprints.fingerprint_splits(sources.load(data, test=True))
    assert entry["test"]["print"] == wanted["test"]
    assert entry["train"]["images"] + entry["test"]["images"] == 48 and entry["exact"] == 0


def test_a_run_on_drawn_images_alone_is_named(tested, tmp_path, tiny, capsys):
    """An evaluation of first weights is one of no training images at all."""
    words = altered(PROBE, "init=scratch", f"data.path={tmp_path}", f"out={tmp_path}/made")
    cli.evaluate([*words, "name=measured"])
    cli.pretrain(altered(tiny, f"out={tmp_path}/made", "name=drawn"))
    for run in (tmp_path / "made" / "measured", tmp_path / "made" / "drawn"):
        with pytest.raises(UserError, match="neither it nor a run before it was trained on images"):
            find_overlap.main([str(run)])


def test_an_evaluation_of_a_study_is_tested_and_trains_on_nothing(tested, tmp_path, capsys):
    words = altered(PROBE, f"init={tested}/final-a-0", f"out={tested}", "name=probe-a-0")
    cli.evaluate([*words, "data.validation=0"])
    plan = json.loads((tested / "study.json").read_text())
    probe = task("probe", "a", 0, "evaluate") | {"options": []}
    write(tested / "study.json", plan | {"tasks": [*plan["tasks"], probe]})
    find_overlap.main([str(tested)])
    (entry,) = json.loads((tested / "overlap.json").read_text())
    assert (entry["train"]["images"], entry["test"]["images"], entry["exact"]) == (48, 4, 2)
