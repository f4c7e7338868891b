"""What a user reads after each mistake: one line on the error stream, status 2, nothing written
over."""

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

from helpers.launching import launch_ranks, outcome
from helpers.options import altered
from helpers.tables import TRAIN, broken, image, table
from ssl_vit.jobs import cli

CHANGED = {
    "shares that do not sum to 1": (
        ["corruption.mask=0.7"],
        "corruption.mask + .random + .keep=0.9",
    ),
    "a batch that does not divide": (
        ["compute.batch=5"],
        "compute.batch=5: does not divide optim.batch=16",
    ),
    "a shape that is none": (
        ["corruption.shape=block"],
        "corruption.shape=block: did you mean blocks?",
    ),
    "squares as large as the image": (["corruption.side=4"], "an image has 4 x 4 patches"),
    "squares of blocks": (
        ["corruption.shape=blocks", "corruption.side=2"],
        "corruption.shape=blocks has no use for it",
    ),
    "a misspelt key": (["corruption.mas=0.7"], "did you mean corruption.mask?"),
    "two misspelt keys": (
        ["optim.stpes=2", "corruption.mas=0.7"],
        "unknown key optim.stpes; did you mean optim.steps?",
    ),
    "a key of no group": (["foo=2"], "unknown key foo; choices: checkpoint., compute., "),
    "a misspelt group": (["optimm.lr=1"], "unknown key optimm.lr"),
    "an option without use": (
        ["recipe=supervised", "corruption.rate=0.3"],
        "objective=supervised has no use for it",
    ),
    "a part without weight": (
        ["recipe=joint", "joint.mpp=0", "corruption.rate=0.3"],
        "no use for it with joint.mpp=0",
    ),
    "momentum of AdamW": (["optim.momentum=0.5"], "optim.name=adamw has no use for it"),
    "columns of drawn images": (["data.image_column=x"], "generated and has no columns"),
    "MPP on a hybrid": (["model=r50_vit_b16", "data.size=64"], "needs patches of pixels"),
    "a masked autoencoder on a hybrid": (
        ["recipe=mae", "model=r50_vit_b16", "data.size=64"],
        "objective=mae needs patches of pixels",
    ),
    "no visible patch": (
        ["recipe=mae", "mae.rate=0.99"],
        "mae.rate=0.99: leaves none of an image's 16 patches visible; expected less than 0.96875",
    ),
    "nothing but mask tokens": (
        ["recipe=simmim", "corruption.rate=0.97"],
        "corruption.rate=0.97: masks all of an image's 16 patches; expected less than 0.96875",
    ),
    "a decoder whose heads do not divide": (
        ["recipe=mae", "mae.width=66"],
        "mae.width=66: no multiple of mae.heads=4",
    ),
    "a decoder without room for positions": (
        ["recipe=mae", "mae.width=66", "mae.heads=3"],
        "mae.width=66: expected a multiple of 4",
    ),
    "corruption of a masked autoencoder": (
        ["recipe=mae", "corruption.rate=0.3"],
        "objective=mae has no use for it",
    ),
    "a batch of one image to compare": (
        ["recipe=moco_v3", "optim.batch=1"],
        "optim.batch=1: objective=moco_v3 compares the images of a batch; expected at least 2",
    ),
    "images compared in several passes": (
        ["recipe=moco_v3", "compute.batch=8"],
        "compute.batch=8: objective=moco_v3 compares all images of a step, so it is one pass; "
        "expected 16, more processes or a smaller optim.batch=",
    ),
    "three chances of two views": (
        ["recipe=moco_v3", "views.blur=[1,0,0]"],
        "views.blur=[1,0,0]: expected a list in brackets of 2 numbers",
    ),
    "a blur from strong to weak": (
        ["recipe=moco_v3", "views.blur_sigma=[2,0.1]"],
        "views.blur_sigma=[2, 0.1]: expected the smaller standard deviation first",
    ),
    "a frozen projection after a ResNet": (
        ["recipe=moco_v3", "model=r50_vit_b16", "model.patch=16", "data.size=64"],
        "moco.freeze_patches=true: model=r50_vit_b16 has a ResNet before its patch projection",
    ),
    "views of a convolutional network": (
        ["recipe=moco_v3", "model=bit_r50x1", "model.width=2048"],
        "model=bit_r50x1: objective=moco_v3 needs a Vision Transformer",
    ),
    "views of an objective that compares none": (
        ["views.hue=0.2"],
        "views.hue=0.2: objective=mpp has no use for it",
    ),
    "mixed images for MoCo": (["recipe=moco_v3", "data.mixup=0.8"], "no use for mixed images"),
    "joint on a hybrid": (
        ["recipe=joint", "model=r50_vit_b16", "data.size=64"],
        "needs patches of pixels",
    ),
    "a backbone without patches": (
        ["model.timm=resnet50"],
        "objective=mpp needs patches; model.timm=resnet50 has none",
    ),
    "mixed images for MPP": (["data.mixup=0.8"], "no use for mixed images"),
    "a split that is not there": (["data.train=trian"], "did you mean train?"),
    "a study": (["recipe=study/gap"], "tools/study.py"),
}


@pytest.mark.parametrize(("words", "says"), CHANGED.values(), ids=CHANGED)
def test_words(error_line: Callable[..., str], tmp_path: Path, words: list[str], says: str) -> None:
    assert says in error_line(*words)
    assert not list(tmp_path.glob("runs/run/recipe.yaml"))


def test_a_hybrid_whose_patch_is_said_wrong(
    error_line: Callable[..., str], tiny: list[str], capsys: pytest.CaptureFixture
) -> None:
    words = [w for w in tiny if not w.startswith(("model.", "recipe", "data.size"))]
    with pytest.raises(SystemExit):
        cli.pretrain(
            [*words, "recipe=supervised", "model=r50_vit_b16", "model.patch=8", "data.size=64"]
        )
    assert "model.patch=8: model.timm=vit_base_r50_s16_224 has 16" in capsys.readouterr().err


IMAGES = {
    "no labels": (lambda p: table(p, None), [], "has no labels in its train split (columns: image"),
    "labels that are no classes": (lambda p: table(p, [0.5, 1.5] * 12), [], "label (float64)"),
    "a label column that is not there": (
        lambda p: table(p, [0, 1] * 12),
        ["data.label_column=klass"],
        "no such column; choices: image, label",
    ),
    "labels out of range": (
        lambda p: table(p, [0, 7] * 12),
        ["data.classes=5"],
        "labels from 0 to 7 in its train split",
    ),
    "labels below none": (lambda p: table(p, [0, -2] * 12), [], "labels from -2 to 0"),
}


@pytest.mark.parametrize(("make", "words", "says"), IMAGES.values(), ids=IMAGES)
def test_labels(
    error_line: Callable[..., str], tmp_path: Path, make: Callable, words: list[str], says: str
) -> None:
    line = error_line(
        "recipe=supervised",
        f"data.path={make(tmp_path / 'own.parquet')}",
        "data.validation=0.2",
        *words,
    )
    assert says in line and "own" in line
    # so that the mended command is not held up by this one's folder
    assert not (tmp_path / "runs/run/recipe.yaml").exists()


def tar(path: Path, count: int = TRAIN) -> Path:
    with tarfile.open(path, "w") as file:
        for n in range(count):
            info = tarfile.TarInfo(f"{n}.png")
            info.size = len(raw := image(n))
            file.addfile(info, io.BytesIO(raw))
    return path


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_a_cut_off_file(error_line: Callable[..., str], tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    for name in "ab":
        tar(folder / f"{name}.tar") if kind == "tar" else table(folder / f"{name}.parquet", None)
    cut = folder / f"b.{kind}"
    cut.write_bytes(cut.read_bytes()[:-6000])
    assert f"error: data.path={cut}: " in error_line(f"data.path={folder}")
    assert not (tmp_path / "runs/run/recipe.yaml").exists()


def test_tars_without_labels(error_line: Callable[..., str], tmp_path: Path) -> None:
    line = error_line(
        "recipe=supervised", f"data.path={tar(tmp_path / 'own.tar')}", "data.validation=0.2"
    )
    assert (
        "data=own has no labels in its train split; a tar has them as key.cls or key.json "
        "with a whole number" in line
    )


def test_an_empty_split(error_line: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    table(folder / "train.parquet", [0, 1] * 12)
    empty = datasets.Dataset.from_parquet(str(folder / "train.parquet")).select([])
    empty.to_parquet(folder / "validation.parquet")
    line = error_line(f"data.path={folder}", "data.validation=validation")
    assert f"data.validation=validation: {folder} has no images in that split" in line


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "lock"}


def test_a_folder_that_holds_another_recipe(
    error_line: Callable[..., str], tiny: list[str], tmp_path: Path
) -> None:
    cli.pretrain(altered([*tiny, "name=run"], "optim.steps=4"))
    before = files(tmp_path / "runs")
    line = error_line("optim.lr=0.5")
    assert "optim.lr (0.001 there, 0.5 here)" in line and "name=" in line
    assert files(tmp_path / "runs") == before


def test_a_folder_that_another_process_holds(
    error_line: Callable[..., str], tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    code = (
        "import fcntl, json, sys, time; f = open(sys.argv[1], 'a+'); fcntl.flock(f, "
        "fcntl.LOCK_EX); "
        "f.write(json.dumps({'host': 'there', 'pid': 12})); f.flush(); print('held', "
        "flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, folder / "lock"], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        line = error_line()
        holder.kill()
    assert (
        "is being written by process 12 on there" in line and not (folder / "recipe.yaml").exists()
    )


@pytest.mark.parametrize(
    "place", ["runs", "runs/run", "runs/run/metrics.jsonl/x", "runs/run/checkpoints"]
)
def test_a_folder_that_cannot_be_written(
    error_line: Callable[..., str], tmp_path: Path, place: str
) -> None:
    """A file where a folder should be, or a folder where a file should: refused to root as to
    everybody."""
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("somebody's")
    line = error_line()
    assert line.startswith(f"error: out={tmp_path}/runs: ")
    assert (tmp_path / place).read_text() == "somebody's"


def test_a_cut_off_jpeg_is_named_and_replaced(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    images = [broken(n) if n in (5, 9) else image(n, "JPEG") for n in range(TRAIN)]
    (tmp_path / "own").mkdir()
    table(tmp_path / "own" / "train.parquet", None, images)
    table(tmp_path / "own" / "validation.parquet", None)
    words = [f"data.path={tmp_path}/own", "data.validation=validation", "optim.steps=6"]
    cli.pretrain(altered([*tiny, "name=run"], *words))
    out, folder = capsys.readouterr().out, tmp_path / "runs" / "run"
    assert "replaced by the next: row 5: not a whole image" in out and ".cpp" not in out
    log = (folder / "log.txt").read_text()
    for text in (out, log):
        named = [line for line in text.splitlines() if "replaced by the next: row " in line]
        assert len(named) == 2, "each once, in whatever epochs it was met"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    counts = [row["unreadable"] for row in rows if "unreadable" in row]
    assert counts == sorted(counts) and counts[-1] == 2 * 6 * 16 / TRAIN


def test_too_many_unreadable_images(
    error_line: Callable[..., str], tiny: list[str], tmp_path: Path
) -> None:
    images = [broken(n) if n % 3 == 0 else image(n) for n in range(TRAIN)]
    path = table(tmp_path / "own.parquet", None, images)
    words = [f"data.path={path}", "data.validation=0.2", "eval.images=5"]
    assert (
        "data.unreadable=0.0: " in (line := error_line(*words, "data.unreadable=0"))
        and "row " in line
    )
    # what the line asks for
    cli.pretrain(altered([*tiny, "name=run"], *words, "data.unreadable=0.5"))


def test_too_many_unreadable_held_out_images(
    error_line: Callable[..., str], tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    table(folder / "train.parquet", None)
    table(folder / "validation.parquet", None, [broken(n) if n else image(n) for n in range(20)])
    words = ["data.validation=validation", "eval.images=20", "data.unreadable=0.01"]
    line = error_line(f"data.path={folder}", *words)
    assert "data.unreadable=0.01: 19 of 20 images cannot be read" in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def", "SyntaxError"),
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("raise SystemExit(3)", "SystemExit(3)"),
    ],
)
def test_a_plugin_that_does_not_run(
    error_line: Callable[..., str], tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "own.py"
    path.write_text(text)
    assert f"plugin={path}: " in (line := error_line(f"plugin={path}")) and says in line


def test_two_processes_and_a_batch_that_does_not_divide(tiny: list[str]) -> None:
    options = altered(tiny, "optim.batch=15")
    statuses, outputs = outcome(launch_ranks(2, "tools/pretrain.py", *options))
    assert all(statuses), outputs
    lines = [line for line in "".join(outputs).splitlines() if line.startswith("error: ")]
    assert lines == ["error: optim.batch=15: not divisible by 2 processes"]


@pytest.mark.parametrize("recipe", ["supervised", "joint"])
def test_steps_without_a_label_are_no_mistake(tiny: list[str], tmp_path: Path, recipe: str) -> None:
    path = table(tmp_path / "own.parquet", [0, 1, *[None] * (TRAIN - 2)])
    words = [
        f"recipe={recipe}",
        f"data.path={path}",
        "data.validation=0.2",
        "optim.batch=4",
        "log.every=1",
        "name=run",
    ]
    cli.pretrain(altered(tiny, *words))
    rows = [
        json.loads(line)
        for line in (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    name = "loss" if recipe == "supervised" else "supervised/loss"
    assert 0 < sum(name in row for row in rows) < len(rows) == 12
