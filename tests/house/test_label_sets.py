"""results/label_sets.py and worth_beside.py: folds of a share of the labels, and labels that a
network gives."""

import io
import json
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

import ssl_vit
from helpers.options import LOADED, ROOT, altered

sys.path.insert(0, str(ROOT / "results"))
import label_sets
import worth_beside

CLASSES, EACH = 4, 30
SHARE = ["data.size=16", "data.validation=0.1", "data.validation_from=train", "data.share=0.4"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Parquet files of images whose grey is their row, class after class."""
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=[*"abcd"])}
    )
    for split, count in (("train", CLASSES * EACH), ("test", 12)):
        table: dict = {"image": [], "label": []}
        for row in range(count):
            file = io.BytesIO()
            Image.fromarray(np.full((16, 16, 3), row, np.uint8)).save(file, "png")
            table["image"].append({"bytes": file.getvalue(), "path": None})
            table["label"].append(row * CLASSES // count)
        rows = datasets.Dataset.from_dict(table, features)
        rows.to_parquet(tmp_path / "images" / f"{split}-00000-of-00001.parquet")
    return tmp_path / "images"


def read(folder: Path, split: str) -> dict[int, int]:
    """{an image's row in the original split: its label}."""
    found = datasets.load_dataset("parquet", data_files=str(folder / f"{split}-*"), split="train")
    return {image.getpixel((0, 0))[0]: found["label"][i] for i, image in enumerate(found["image"])}


def test_folds_hold_each_labelled_image_out_once(images: Path, tmp_path: Path) -> None:
    options = [f"data.path={images}", *SHARE, "data.share_seed=3"]
    label_sets.folds(tmp_path / "folds", options)
    recipe = ssl_vit.resolve(["recipe=finetune", "init=scratch", "model=vit_n4", *options])
    share = {*label_sets.rows(label_sets.sources.load(recipe.data).train).tolist()}
    held_out = []
    for number in range(label_sets.FOLDS):
        train = read(tmp_path / "folds" / str(number), "train")
        part = read(tmp_path / "folds" / str(number), "validation")
        assert train.keys() | part.keys() == share and not train.keys() & part.keys()
        assert all(label == row // EACH for row, label in (train | part).items())
        counts = np.bincount([*part.values()], minlength=CLASSES)
        assert counts.max() - counts.min() <= 1
        held_out += part
    assert len(share) == round(0.4 * 0.9 * CLASSES * EACH) and sorted(held_out) == sorted(share)


@pytest.mark.parametrize("held_out_of", ["train", "share"])
def test_labels_are_the_networks_but_for_those_that_it_has_seen(
    held_out_of: str, images: Path, tmp_path: Path
) -> None:
    options = ["recipe=finetune", "init=scratch", "model=vit_n4", f"data.path={images}"]
    options += altered(SHARE, f"data.validation_from={held_out_of}")
    options += ["optim.steps=3", "optim.warmup=1", "optim.batch=8", "eval.test=true", *LOADED]
    options += [f"out={tmp_path}", "name=run", "log.tensorboard=false"]
    ssl_vit.finetune(options)
    run = tmp_path / "run"
    written = np.load(run / "predictions.npz")
    assert np.array_equal(label_sets.predicted(run, "test", 12), written["top5"][:, 0])
    label_sets.pseudo(tmp_path / "pseudo", run)
    data = ssl_vit.load_run(run).recipe.data
    held_out = label_sets.rows(label_sets.sources.load(data).validation)
    known = label_sets.rows(label_sets.sources.load(data).train)
    given = label_sets.predicted(run, "train", CLASSES * EACH)
    expected = {
        row: row // EACH if row in known else int(given[row])
        for row in range(CLASSES * EACH)
        if row not in held_out
    }
    assert read(tmp_path / "pseudo", "train") == expected
    assert len(held_out) and not {*known} & {*held_out}


def test_a_folder_that_is_not_there_is_said_in_a_line() -> None:
    script = ROOT / "results" / "worth_beside.py"
    command = [sys.executable, str(script), "folds", "no-such-folder", "out", "11"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "error: [Errno 2]" in done.stderr
    assert "Traceback" not in done.stderr


def test_tuning_has_the_tries_of_the_other_arms() -> None:
    """13: ten at the short length; of these the best three at three times that length."""
    tried: list[dict] = []

    def score(setting: dict) -> float:
        tried.append(setting)
        long = setting["optim.steps"] > 400
        return -abs(setting["optim.lr"] - 0.1) + 0.01 * bool(setting["data.mixup"]) - 0.2 * long

    assert worth_beside.tuned(score) == tried[7]
    assert (tried[7]["optim.lr"], tried[7]["data.mixup"]) == (0.1, 0.8)
    assert len({worth_beside.label(one) for one in tried}) == len(tried) == 13
    rates = [one["optim.lr"] for one in tried if one["optim.steps"] == 1200]
    assert rates == [0.1, 0.1, 0.03]


def test_options_are_those_of_the_seed_and_of_the_smallest_share(tmp_path: Path) -> None:
    tasks = [
        {
            "name": f"{part}_{share}-{arm}-{seed}",
            "seed": seed,
            "options": [
                f"data.share={share}",
                f"data.share_seed={seed}",
                f"init={{{start}-{seed}}}",
            ],
        }
        for seed in (11, 12)
        for share in ("0.01", "0.1")
        for part, arm, start in (
            ("final", "mae", "pretrain-mae"),
            ("final", "scratch", f"scratch_{share}-scratch"),
        )
    ]
    (tmp_path / "study.json").write_text(json.dumps({"tasks": tasks}))
    runs = worth_beside.Runs(tmp_path, tmp_path / "out")
    share = {"data.share": "0.01"}
    assert runs.options("final", "mae", 12) == share | {
        "data.share_seed": 12,
        "seed": 12,
        "init": tmp_path / "pretrain-mae-12",
    }
    # the tuning seed has scratch's options, and weights of its own
    own = share | {"data.share_seed": 10, "seed": 10}
    assert runs.options("final", "scratch", 10) == own
    for arm, seed in (("mae", 10), ("mae", 13), ("scratch", 13)):
        with pytest.raises(SystemExit, match=f"no task final_0.01-{arm}-{seed}; its seeds: "):
            runs.options("final", arm, seed)


def test_images_are_written_once_for_what_they_are_made_of(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps({"tasks": []}))
    runs = worth_beside.Runs(tmp_path, tmp_path)
    written: list[Path] = []

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        written.append(folder)

    first = runs.images("pseudo-11", b"a teacher", write)
    assert runs.images("pseudo-11", b"a teacher", write) == first and len(written) == 1
    other = runs.images("pseudo-11", b"another", write)
    assert other != first and other.is_dir() and len(written) == 2

    def killed(folder: Path) -> None:
        write(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.images("pseudo-12", b"a teacher", killed)
    assert [one.name for one in (tmp_path / "images").glob("pseudo-12*")] == [written[-1].name]
    assert written[-1].name.endswith(".begun")


STEPS = ["optim.steps=3", "optim.warmup=1", "optim.batch=8", *LOADED]


def worth(folder: Path, images: Path) -> worth_beside.Runs:
    """Small runs of seed 11 in place of study/worth's."""
    common = ["data.size=16", "data.validation=0.1", "data.validation_from=train"]
    common += [f"data.path={images}", "data.test=test", "log.tensorboard=false", *STEPS]
    share = ["data.share=0.4", "data.share_seed=11"]
    learned = ["recipe=supervised", "supervised.pool=avg", "model=vit_n4"]
    tuned = ["recipe=finetune", "supervised.pool=avg", *share, "eval.test=true"]
    planned = {
        "pretrain-mae-11": ["recipe=mae", "model=vit_n4"],
        "scratch_0.01-scratch-11": [*learned, *share],
        "final_0.01-mae-11": [*tuned, "init={pretrain-mae-11}"],
        "final_0.01-scratch-11": [*tuned, "init={scratch_0.01-scratch-11}"],
    }
    tasks = []
    for name, own in planned.items():
        tasks.append({"name": name, "seed": 11, "options": [*common, *own]})
        filled = [one.replace("{", f"{folder}/").replace("}", "") for one in own]
        train = ssl_vit.finetune if "recipe=finetune" in own else ssl_vit.pretrain
        train([*common, *filled, f"out={folder}", f"name={name}", "seed=11"])
    (folder / "study.json").write_text(json.dumps({"tasks": tasks}))
    return worth_beside.Runs(folder, folder / "beside")


def test_rows_beside_the_study(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = worth(tmp_path / "worth", images)
    settings = [{"optim.lr": rate, "data.mixup": 0, "optim.steps": 4} for rate in (0.1, 0.2)]
    seen: list[list[float]] = []

    def tuned(score):
        seen.append([score(one) for one in settings])
        return settings[1]

    monkeypatch.setattr(worth_beside, "tuned", tuned)
    row = worth_beside.folds(runs, 11)
    found = [
        ssl_vit.load_run(path).result().metrics["accuracy"]
        for path in sorted(runs.out.glob("fold-11-*-lr=0.2-*"))
    ]
    share = round(0.4 * 0.9 * CLASSES * EACH)
    assert len(found) == label_sets.FOLDS and sum(one.n for one in found) == share
    assert seen[0][1] == round(sum(one.value * one.n for one in found))
    final = ssl_vit.load_run(runs.out / "folds-11")
    data = ssl_vit.load_run(runs.study / "final_0.01-mae-11").recipe.data
    assert final.recipe.data == data and final.recipe.optim.lr == 0.2
    assert row["top1"] == final.result().metrics["top1"].value and row["n"] == 12

    row = worth_beside.self_training(runs, 11)
    teacher = ssl_vit.load_run(runs.out / "teacher-10").recipe
    assert (teacher.seed, teacher.data.share_seed, teacher.eval.test) == (10, 10, False)
    student = ssl_vit.load_run(runs.out / "student-11").recipe
    (images,) = (runs.out / "images").glob("pseudo-11-*")
    assert student.data.path == str(images) and student.init == "scratch"
    held_out = label_sets.rows(label_sets.sources.load(data).validation)
    others = {*range(CLASSES * EACH)} - {*held_out.tolist()}
    assert read(Path(student.data.path), "train").keys() == others
    assert len(label_sets.sources.load(student.data).train) == len(others)
    final = ssl_vit.load_run(runs.out / "self_training-11")
    assert final.recipe.init == str(runs.out / "student-11") and final.recipe.optim.lr == 0.2
    assert row["top1"] == final.result().metrics["top1"].value
    for path in runs.out.glob("try-*"):
        tried = ssl_vit.load_run(path).recipe
        assert (tried.seed, tried.data.share_seed, tried.eval.test) == (10, 10, False)
    assert len([*runs.out.glob("try-*")]) == len(settings)
