"""Every objective logs the same rows however its batch of 8 is divided: into device batches of 8, 4
and 2, and over two processes."""

import json
import re
from pathlib import Path

import pytest

from helpers.exactness import SERIES
from helpers.exports import of_timm
from helpers.launching import launch_ranks, outcome
from helpers.options import TINY, altered
from helpers.runs import rows, run
from helpers.tables import broken, image, table
from ssl_vit.jobs import finish

# Adam would turn a gradient that is 0 but for rounding into a step of the learning rate
COMMON = altered(TINY, "optim.name=sgd", "optim.lr=0.1", "optim.momentum=0.9", "optim.batch=8")
COMMON = altered(COMMON, "optim.steps=3", "optim.warmup=1", "log.every=1", "checkpoint.every=3")
COMMON += ["data.validation=validation", "eval.collapse=3"]
COMMON = altered(COMMON, "eval.every=3", "eval.images=14", "probe.every=3", "probe.neighbors=2")
COMMON += ["probe.measures=[knn]", "optim.dropout=0"]  # dropout draws for each device batch
VIEWS = ["views.local_size=8", "eval.images=8"]  # one group of held-out images to compare
# Objectives whose loss is a mean over images
OBJECTIVES = {
    "mpp": ["recipe=mpp"],
    "mpp, channels": ["recipe=mpp", "target=mean_channels"],
    "mpp, grid": ["recipe=mpp", "target=grid_color"],
    "mpp, pixels": ["recipe=mpp", "target=pixels"],
    "mpp, gradients": ["recipe=mpp", "target=hog", "model.patch=8"],
    "mpp, teacher": ["recipe=mpp", "target=teacher"],
    "simmim": ["recipe=simmim"],
    "mae": ["recipe=mae"],
    "ijepa": ["recipe=ijepa"],
    "distill": ["recipe=distill", "distill.teacher=TEACHER"],
    "supervised": ["recipe=supervised"],
    "blocks": ["recipe=mae", "init=START", "model.train=blocks:1"],
    "low rank": ["recipe=mpp", "init=START", "model.train=lora:4"],
    "joint": ["recipe=joint", "joint.mpp=0.5"],
    "joint, one part": ["recipe=joint", "joint.mpp=0"],
    "plugin": ["plugin=docs/examples/teacher.py", "objective=teacher", "teacher.rate=0.5"],
    "augmentation": ["recipe=mae", "plugin=docs/examples/noise.py", "data.augment=noise"],
}
# Dropout draws for each device batch, so the device batch is the same
DRAWING = {
    "dropout": ["recipe=mpp", "optim.dropout=0.1"],
    "drop path": ["recipe=supervised", "optim.drop_path=0.5"],
}
# Objectives that compare the images of a step with one another
COMPARING = {
    "moco_v3": ["recipe=moco_v3", "eval.images=8"],
    "dino": [
        *("recipe=dino", *VIEWS, "dino.prototypes=32", "dino.freeze=0.4", "dino.lengths=true"),
        *("dino.koleo=0.1", "optim.average=0.5"),
    ],
    "dino, low rank": [
        *("recipe=dino", *VIEWS, "dino.prototypes=32", "init=START", "model.train=lora:4"),
        "dino.momentum=0.5",
    ],
    "dino, sinkhorn": ["recipe=dino", *VIEWS, "dino.prototypes=32", "dino.balance=sinkhorn"],
    "ibot": [
        "recipe=ibot",
        *VIEWS,
        "ibot.prototypes=32",
        "ibot.shared=false",
        "ibot.own_head=true",
    ],
    "ibot, sinkhorn": ["recipe=ibot", *VIEWS, "ibot.prototypes=32", "ibot.balance=sinkhorn"],
    "lejepa": ["recipe=lejepa", *VIEWS, "lejepa.slices=32"],
    **{
        name: [
            *("recipe=moco_v3", f"plugin=docs/examples/{name}.py", f"objective={name}"),
            *("eval.images=8", f"{name}.width=12", "optim.lr=0.01"),
        ]
        for name in ("vicreg", "barlow_twins", "byol", "swav")
    },
}
ALL = OBJECTIVES | DRAWING | COMPARING
WAYS = {"8": 8, "4": 4, "2": 2, "two": 2}  # device batch; "two": on two processes
WITHOUT_END = """
from ssl_vit.jobs import finish
finish.finish = lambda job, consensus: None
"""


def ways_alone(name: str) -> tuple[str, ...]:
    """The ways on one process; the others are compared with the first."""
    return ("8",) if name in COMPARING else ("2",) if name in DRAWING else ("8", "4", "2")


def words_of(name: str, way: str, out: Path) -> list[str]:
    places = {"TEACHER": f"{out}/teacher", "START": f"{out}/start"}
    given = [re.sub("TEACHER|START", lambda place: places[place[0]], word) for word in ALL[name]]
    size = 4 if name in COMPARING and way == "two" else WAYS[way]
    own = [f"compute.batch={size}", f"data.path={out}/images", f"out={out}/{way}"]
    return altered(COMMON, *given, *own, f"name={name.replace(', ', '-')}")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of all ways. Labels are in few batches, and the eighth of the
    validation images, or the first of a process, is damaged."""
    out = tmp_path_factory.mktemp("spread")
    (out / "images").mkdir()
    labels = [0, 1, 1, 0, 1, *[None] * 15]
    table(out / "images" / "train.parquet", labels, [image(number) for number in range(20)])
    held_out = [image(100 + number) for number in range(14)]
    held_out[7] = broken(7)
    table(out / "images" / "validation.parquet", [0, 1] * 7, held_out)
    of_timm(out / "teacher", embed_dim=48, num_heads=3)
    of_timm(out / "start")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(finish, "finish", lambda job, consensus: None)
        for name in ALL:
            for way in ways_alone(name):
                run(words_of(name, way, out))
    pairs = [words_of(name, "two", out) for name in ALL]
    statuses, outputs = outcome(launch_ranks(2, "-c", WITHOUT_END + SERIES, json.dumps(pairs)))
    assert statuses == [0, 0], outputs
    return out


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name in ALL for way in (*ways_alone(name)[1:], "two")]
)
def test_rows_are_the_same_however_the_batch_is_divided(name: str, way: str, out: Path) -> None:
    first, folder = ways_alone(name)[0], name.replace(", ", "-")
    whole, parts = rows(out / first / folder), rows(out / way / folder)
    assert [row["step"] for row in whole] == [row["step"] for row in parts]
    for row, other in zip(whole, parts, strict=True):
        assert row.keys() == other.keys()
        for key, value in row.items():
            assert other[key] == pytest.approx(value, rel=1e-5, abs=1e-6), (key, row["step"])


def test_the_joint_loss_is_the_weighted_sum_of_its_parts(out: Path) -> None:
    """Of those whose weight is not 0, in rows of training and on held-out images."""
    for row in rows(out / "2" / "joint"):
        for start in ("", "validation/") if row["step"] == 3 else ("",) if row["step"] else ():
            parts = 0.5 * row[f"{start}mpp/loss"] + row.get(f"{start}supervised/loss", 0.0)
            assert row[f"{start}loss"] == pytest.approx(parts)
    assert not [key for row in rows(out / "two" / "joint-one part") for key in row if "mpp" in key]
