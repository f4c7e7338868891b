"""A run's head is measured by the names of its classes, wherever images of them are."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from helpers.exports import forget_digests
from helpers.images import put, two_classes
from helpers.options import PROBE, TUNE, altered
from ssl_vit.data.labels import Labels
from ssl_vit.data.source import Source
from ssl_vit.data.sources import load
from ssl_vit.errors import UserError
from ssl_vit.jobs import cli, head_classes
from ssl_vit.pages import run_page
from ssl_vit.recipe.images import Data
from ssl_vit.recipe.init_source import InitSource

SMALL = ("model.patch=4", "model.width=32", "model.depth=2", "model.heads=2", "model.mlp=64")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on three classes, a, b and c; the folder of its images lies beside runs/."""
    root = tmp_path_factory.mktemp("heads")
    images = two_classes(root / "IMAGES")
    put(images / "train" / "c", 12)
    put(images / "test" / "c", 3)
    words = altered(TUNE, *SMALL, "data.size=16", "optim.lr=0.1", "optim.steps=6")
    cli.finetune([*words, "init=scratch", f"data.path={images}", f"out={root}/runs", "name=tuned"])
    return root / "runs" / "tuned"


def images_of(tuned: Path) -> Path:
    return tuned.parent.parent / "IMAGES"


def measured(init: Path, images: Path, out: Path, name: str = "run") -> float:
    words = altered(PROBE, "data.size=16", "probe.measures=[top1]", f"init={init}")
    words = [word for word in words if word.partition("=")[0] in KEPT]
    cli.evaluate([*words, f"data.path={images}", f"out={out}", f"name={name}"])
    metrics = json.loads((out / name / "result.json").read_text())["metrics"]
    return float(metrics["top1"]["value"])


KEPT = {
    *("recipe", "init", "data.size", "probe.measures"),
    *("compute.threads", "compute.precision", "compute.compile"),
}


def right(tuned: Path, *labels: int) -> float:
    """The share of test images of these classes that the run itself got right."""
    known = np.load(tuned / "predictions.npz")
    correct = known["top5"][:, 0] == known["label"]
    return float(correct[np.isin(known["label"], labels)].mean())


def source(tmp_path: Path, *names: str) -> Source:
    for name in names:
        put(tmp_path / "train" / name, 2)
    return load(Data(name="x", path=str(tmp_path), validation=0.0), test=False).train


def test_labels_become_the_heads_numbers_by_name(tmp_path: Path) -> None:
    images = source(tmp_path, "lorry", "ship", "truck")
    assert images.classes == ["lorry", "ship", "truck"]
    number_C = head_classes.numbers_in_head(["truck", "plane", "ship", "lorry"], images, "x")
    assert number_C is not None and number_C.tolist() == [3, 2, 0]
    label = np.array([[0, 2, -1], [1, -2, -2]])
    assert head_classes.renumber(label, number_C).tolist() == [[3, 0, -1], [2, -2, -2]]
    assert head_classes.renumber(label, None) is label  # labels go by their numbers
    with pytest.raises(UserError, match=r"are of lorry, ship, which .* init=x .* choices: truck"):
        head_classes.numbers_in_head(["truck"], images, "x")
    assert head_classes.numbers_in_head([], images, "x") is None


def test_whole_numbers_are_the_classes_of_these_names(tmp_path: Path) -> None:
    """Folders 1, 2 and 10 are classes 0 to 2; a table of the same images holds 1, 2 and 10."""
    folders = source(tmp_path / "folders", "1", "2", "10")
    assert folders.classes == ["1", "2", "10"]
    numbers = Source(folders.store, Labels(np.array([1, 1, 2, 2, 10, 10]), []))
    number_C = head_classes.numbers_in_head(folders.classes, numbers, "x")
    label_N = numbers.label_of(np.arange(6))
    assert head_classes.renumber(label_N, number_C).tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(UserError, match=r"are of 10, which .* does not know"):
        head_classes.numbers_in_head(["1", "2"], numbers, "x")
    # and the other way: a head that has learned 1, 2 and 10 as numbers
    number_C = head_classes.numbers_in_head([], folders, "x")
    label_N = folders.label_of(np.arange(6))
    assert head_classes.renumber(label_N, number_C).tolist() == [1, 1, 10, 10, 2, 2]


def test_a_class_that_the_images_lack_moves_no_other(tuned: Path, tmp_path: Path) -> None:
    """Among the images b and c are the first two classes, in the head the last."""
    shutil.copytree(images_of(tuned), tmp_path / "B")
    for split in ("train", "test"):
        shutil.rmtree(tmp_path / "B" / split / "a")
    assert measured(tuned, tmp_path / "B", tmp_path / "runs") == right(tuned, 1, 2)


def test_a_class_that_the_head_does_not_know_is_named_and_leaves_no_folder(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    shutil.copytree(images_of(tuned), tmp_path / "C")
    for split in ("train", "test"):
        (tmp_path / "C" / split / "a").rename(tmp_path / "C" / split / "A")
    with pytest.raises(SystemExit):
        measured(tuned, tmp_path / "C", tmp_path / "runs")
    (line,) = capsys.readouterr().err.splitlines()
    assert "images are of A," in line and f"init={tuned}" in line and "a, b, c" in line
    assert not (tmp_path / "runs" / "run").exists()


def test_images_that_cannot_be_read_are_named_once_whatever_is_measured(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Nothing is measured on them: that is said, and too many are refused, also by probes."""
    images = shutil.copytree(images_of(tuned), tmp_path / "D")
    broken = sorted((images / "test" / "a").iterdir())
    broken[0].write_bytes(b"no image")
    words = altered(PROBE, "data.size=16", "probe.measures=[knn,top1]", f"init={tuned}")
    words = [word for word in words if word.partition("=")[0] in KEPT]
    words += [f"data.path={images}", f"out={tmp_path}/runs", "probe.neighbors=3"]
    cli.evaluate([*words, "name=one"])
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "left out" in one]
    assert line.startswith("warning: left out: ") and broken[0].name in line
    with pytest.raises(SystemExit):
        cli.evaluate([*words, "data.unreadable=0", "name=none"])
    assert "data.unreadable=0.0: 1 of " in capsys.readouterr().err


def test_a_copied_export_is_measured_by_the_head_it_holds(tuned: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(tuned / "export", tmp_path / "alone")
    assert measured(alone, images_of(tuned), tmp_path / "runs") == right(tuned, 0, 1, 2)


def test_the_names_are_the_runs_or_the_exports(tuned: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(tuned / "export", tmp_path / "alone")
    for place in (tuned, alone):
        assert head_classes.names_of_head(InitSource(str(place))) == ["a", "b", "c"]
    assert head_classes.names_of_head(InitSource("scratch")) == []


def test_an_export_whose_head_is_damaged_is_one_line(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    alone = shutil.copytree(tuned / "export", tmp_path / "alone")
    weights = load_file(alone / "model.safetensors")
    del weights["head.bias"]
    save_file(weights, alone / "model.safetensors")
    forget_digests(alone)
    with pytest.raises(SystemExit):
        measured(alone, images_of(tuned), tmp_path / "runs")
    (line,) = capsys.readouterr().err.splitlines()
    assert f"init={alone}" in line and "head.bias" in line


def test_a_page_says_that_an_export_is_a_classifier(tuned: Path, tmp_path: Path) -> None:
    made = shutil.copytree(tuned, tmp_path / "tuned")
    run_page.write(made)
    page = " ".join((made / "report.html").read_text().split())
    assert "The export is a classifier of 3 classes" in page
    assert "from transformers import AutoModelForImageClassification" in page
    (made / "export" / "config.json").write_text("{")
    run_page.write(made)
    page = (made / "report.html").read_text()
    assert "The export is a classifier" not in page and "import AutoModel\n" in page
