"""A run's head is measured by the names of its classes, wherever images of them are."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

import ssl_vit
from helpers.exports import forget_digests
from helpers.images import put, two_classes
from helpers.options import LOADED, TINY, TUNE, altered
from helpers.runs import run
from ssl_vit.data.class_numbers import pair_classes, renumber
from ssl_vit.data.labels import Labels
from ssl_vit.data.run_splits import load
from ssl_vit.data.source import Source
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data

MODEL = [word for word in TINY if word.startswith(("model.", "data.size"))]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three classes, a, b and c."""
    folder = two_classes(tmp_path_factory.mktemp("heads") / "IMAGES")
    put(folder / "train" / "c", 12)
    put(folder / "test" / "c", 3)
    return folder


@pytest.fixture(scope="module")
def classifier(images: Path) -> Path:
    """A run that was trained on them."""
    words = altered(TUNE, *MODEL, "optim.lr=0.1", "optim.steps=6", "init=scratch", "name=tuned")
    return run([*words, f"data.path={images}", f"out={images.parent}/runs"]).folder


@pytest.fixture
def alone(classifier: Path, tmp_path: Path) -> Path:
    """A copy of its export."""
    return shutil.copytree(classifier / "export", tmp_path / "alone")


def measured(init: Path, images: Path, out: Path, *more: str) -> float:
    own = ["recipe=evaluate", "data.size=16", "probe.measures=[top1]", *LOADED, "name=run"]
    place = [f"init={init}", f"data.path={images}", f"out={out}"]
    return ssl_vit.evaluate(altered(own, *place, *more)).metrics["top1"].value


def right(classifier: Path, *labels: int) -> float:
    """The share of test images of these classes that the run itself got right."""
    known = np.load(classifier / "predictions.npz")
    correct = known["top5"][:, 0] == known["label"]
    return float(correct[np.isin(known["label"], labels)].mean())


def source(place: Path, *names: str) -> Source:
    for name in names:
        put(place / "train" / name, 2)
    return load(Data(name="x", path=str(place), validation=0.0), test=False).train


def test_lists_of_labels_become_the_heads_numbers_by_name(tmp_path: Path) -> None:
    images = source(tmp_path, "lorry", "ship", "truck")
    number_C = pair_classes(["truck", "plane", "ship", "lorry"], images, "x")
    label = np.array([[0, 2, -1], [1, -2, -2]])
    assert renumber(label, number_C).tolist() == [[3, 0, -1], [2, -2, -2]]


def test_whole_numbers_are_the_classes_of_these_names(tmp_path: Path) -> None:
    """Folders 1, 2 and 10 are classes 0 to 2; a table of the same images holds 1, 2 and 10."""
    folders = source(tmp_path / "folders", "1", "2", "10")
    assert folders.classes == ["1", "2", "10"]
    numbers = Source(folders.store, Labels(np.array([1, 1, 2, 2, 10, 10]), []))
    # and the other way: a head that has learned 1, 2 and 10 as numbers
    for names, images, wanted in (
        (folders.classes, numbers, [0, 0, 1, 1, 2, 2]),
        ([], folders, [1, 1, 10, 10, 2, 2]),
    ):
        number_C = pair_classes(names, images, "x")
        label_N = images.label_of(np.arange(6))
        assert renumber(label_N, number_C).tolist() == wanted
    with pytest.raises(UserError, match=r"init=x .* 10, "):
        pair_classes(["1", "2"], numbers, "x")


@pytest.mark.parametrize(("learned", "tested"), [("numbers", "names"), ("names", "numbers")])
def test_numbers_are_never_paired_with_names(tmp_path: Path, learned: str, tested: str) -> None:
    """Class 0 was taken for ant, the first folder, although the images of class 0 are zebras: a
    classifier that is always right had an accuracy of 0%."""
    for split, count in (("train", 8), ("test", 4)):
        rows = ["file_name,label"]
        for label, name in enumerate(["zebra", "yak", "wolf", "ant"]):
            colour = [(200, 40, 40), (40, 200, 40), (40, 40, 200), (200, 200, 40)][label]
            (tmp_path / "names" / split / name).mkdir(parents=True)
            (tmp_path / "numbers" / split).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                image = Image.new("RGB", (16, 16), tuple(max(0, value - 3 * i) for value in colour))
                image.save(tmp_path / "names" / split / name / f"{i}.png")
                image.save(tmp_path / "numbers" / split / f"{label}_{i}.png")
                rows.append(f"{label}_{i}.png,{label}")
        (tmp_path / "numbers" / split / "metadata.csv").write_text("\n".join(rows))
    words = altered(TUNE, *MODEL, "optim.lr=0.1", "optim.steps=30", "init=scratch", "name=tuned")
    made = run([*words, f"data.path={tmp_path / learned}", f"out={tmp_path}/runs"]).folder
    assert measured(made, tmp_path / learned, tmp_path, "name=same") == right(made, 0, 1, 2, 3)
    for place in (made, shutil.copytree(made / "export", tmp_path / "alone")):
        with pytest.raises(UserError) as caught:
            measured(place, tmp_path / tested, tmp_path)
        for words in ("0 to 3", "ant, wolf, yak, zebra", str(place), str(tmp_path / tested)):
            assert words in str(caught.value)
        assert not (tmp_path / "run").exists()


def test_a_head_with_more_outputs_than_names_keeps_the_names_in_its_export(
    images: Path, tmp_path: Path
) -> None:
    """The export named its classes 0 to 4: an evaluation of the copied export then had to pair
    numbers with names."""
    words = altered(TUNE, *MODEL, "init=scratch", "name=tuned", "data.classes=5")
    made = run([*words, f"data.path={images}", f"out={tmp_path}/runs"]).folder
    alone = shutil.copytree(made / "export", tmp_path / "alone")
    assert measured(alone, images, tmp_path) == right(made, 0, 1, 2)


def test_a_class_that_the_images_lack_moves_no_other(
    classifier: Path, images: Path, tmp_path: Path
) -> None:
    """Among the images b and c are the first two classes, in the head the last."""
    fewer = shutil.copytree(images, tmp_path / "B")
    for split in ("train", "test"):
        shutil.rmtree(fewer / split / "a")
    assert measured(classifier, fewer, tmp_path) == right(classifier, 1, 2)


def test_a_class_that_the_head_does_not_know_is_named_and_leaves_no_folder(
    classifier: Path, images: Path, tmp_path: Path
) -> None:
    others = shutil.copytree(images, tmp_path / "C")
    for split in ("train", "test"):
        (others / split / "a").rename(others / split / "A")
    with pytest.raises(
        UserError, match=rf"^probe.measures=top1: .*init={classifier} .* A, .*a, b, c"
    ):
        measured(classifier, others, tmp_path)
    assert not (tmp_path / "run").exists()


def test_images_that_cannot_be_read_are_named_once_whatever_is_measured(
    classifier: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Nothing is measured on them: that is said, and too many are refused, also by probes."""
    place = shutil.copytree(images, tmp_path / "D")
    broken = min((place / "test" / "a").iterdir())
    broken.write_bytes(b"no image")
    both = ["probe.measures=[knn,top1]", "probe.neighbors=3"]
    measured(classifier, place, tmp_path, *both)
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "left out" in one]
    assert line.startswith("warning: left out: ") and broken.name in line
    with pytest.raises(UserError, match=r"data\.unreadable=0\.0: 1 of "):
        measured(classifier, place, tmp_path, *both, "data.unreadable=0", "name=none")


def test_a_copied_export_is_measured_by_the_head_it_holds(
    classifier: Path, alone: Path, images: Path, tmp_path: Path
) -> None:
    assert measured(alone, images, tmp_path) == right(classifier, 0, 1, 2)
    weights = load_file(alone / "model.safetensors")
    del weights["head.bias"]
    save_file(weights, alone / "model.safetensors")
    forget_digests(alone)
    with pytest.raises(UserError, match=rf"init={alone}.*head\.bias"):
        measured(alone, images, tmp_path, "name=damaged")


def test_a_page_says_that_an_export_is_a_classifier(classifier: Path, tmp_path: Path) -> None:
    made = shutil.copytree(classifier, tmp_path / "tuned")
    for says in (True, False):
        ssl_vit.report(made)
        page = " ".join((made / "report.html").read_text().split())
        assert ("The export is a classifier of 3 classes" in page) == says
        assert ("import AutoModelForImageClassification" in page) == says
        (made / "export" / "config.json").write_text("{")


def test_a_head_with_a_weight_that_is_not_finite_is_refused(
    classifier: Path, images: Path, tmp_path: Path
) -> None:
    made = shutil.copytree(classifier, tmp_path / "made")
    export = made / "export"
    for name in ("model", "heads"):
        path = export / f"{name}.safetensors"
        state = load_file(path)
        state["head.bias"][1] = np.nan
        save_file(state, path)
    forget_digests(export)
    for place in (made, shutil.copytree(export, tmp_path / "alone")):
        with pytest.raises(UserError, match=f"init={place}: .*head.bias is not finite"):
            measured(place, images, tmp_path)
