"""VTAB-1k's table against figures of the benchmark's own tests."""

import re

import pytest

from helpers.options import ROOT
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.parsing import load_yaml
from ssl_vit.recipe.recipe_files import TABLES

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
    rows = ROWS
    assert {group: len(names) for group, names in PUBLISHED.items()} == {
        "natural": 7,
        "specialized": 4,
        "structured": 8,
    }
    assert [(t, row["group"]) for t, row in rows.items()] == [
        (t, group) for group, names in PUBLISHED.items() for t in names
    ]
    assert {task: row["classes"] for task, row in rows.items()} == {
        task: numbers[0] for task, numbers in FLAT.items()
    }
    assert {task: row["test_images"] for task, row in rows.items()} == {
        task: numbers[3] for task, numbers in FLAT.items()
    }
    for row in rows.values():
        assert list(row) == [
            "group",
            "classes",
            "source",
            "label",
            "train",
            "validation",
            "test",
            "test_images",
            "verified",
        ]


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


def test_the_command_beside_the_table_is_table_4s_setting(tmp_path):
    text = (ROOT / "recipes" / "tables" / "vtab.yaml").read_text()
    command = re.search(r"tools/finetune\.py ((?:.*\\\n)*.*)", text)[1].replace("\\\n#", " ")
    words = (
        command.replace("DIR/dtd/final", str(tmp_path)).replace("init=RUN", "init=scratch").split()
    )
    recipe = resolve(words)
    o, data = recipe.optim, recipe.data
    assert (o.name, o.momentum, o.steps, o.lr, o.batch, o.schedule) == (
        "sgd",
        0.9,
        2500,
        0.01,
        512,
        "cosine",
    )
    assert (o.weight_decay, o.clip, o.average) == (0.0, 1.0, None)
    assert (data.path, data.size, data.classes, data.validation) == (
        str(tmp_path),
        384,
        ROWS["dtd"]["classes"],
        0,
    )
    assert (data.flip, data.crop_area, data.eval_crop) == (False, 1.0, 1.0)
    assert recipe.eval.test and not recipe.supervised.hidden
