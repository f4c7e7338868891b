"""Test images that are copies of training images: found, counted, shown, and left out of a second
result."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import ssl_vit
from helpers.images import encode
from helpers.options import PROBE, SHORT, TINY, altered
from helpers.refusals import refusal
from helpers.runs import evaluated_on_one_and_two, run
from helpers.sources import listed
from ssl_vit.data import run_splits
from ssl_vit.evaluation import near_copies
from ssl_vit.lab import images as lab_images
from ssl_vit.lab.study.worth.study_setup import find_copies
from ssl_vit.recipe.schema import Data
from ssl_vit.runs import seen_text

CPU = torch.device("cpu")
SPLITS = ["data.validation=0.1", "data.size=16", "model=vit_p8", "init=scratch"]


def compress(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=30)
    return Image.open(file)


def crop(image: Image.Image) -> Image.Image:
    """0.9 of the width and 0.8 of the height, not at the middle."""
    width, height = image.size
    return image.crop((0, round(0.2 * height), round(0.9 * width), height))


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "same": lambda image: image,
    "smaller": lambda image: image.resize((image.width // 2, image.height // 2)),
    "larger": lambda image: image.resize((2 * image.width, 2 * image.height)),
    "compressed": compress,
    "cropped": crop,
    "mirrored": ImageOps.mirror,
    "all": lambda image: compress(ImageOps.mirror(crop(image)).resize((40, 40))),
}


def picture(seed: int) -> Image.Image:
    """Smooth noise with grey details: neighbouring pixels are alike, as in photographs."""
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((4, 4, 3), (16, 16))]
    coarse, fine = (Image.fromarray(part).resize((48, 48), Image.BICUBIC) for part in parts)
    return Image.blend(coarse, fine.convert("RGB"), 0.4)


def save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(image, "PNG"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 training images, and test images of which seven are copies and one is broken."""
    folder = tmp_path_factory.mktemp("copies") / "images"
    for seed in range(60):
        save(picture(seed), folder / "train" / "ab"[seed % 2] / f"{seed:02d}.png")
    for seed, (name, change) in enumerate(COPIES.items()):
        save(change(picture(seed)), folder / "test" / "ab"[seed % 2] / f"{name}.png")
    for seed in range(100, 130):
        save(picture(seed), folder / "test" / "ab"[seed % 2] / f"{seed}.png")
    (folder / "test" / "a" / "broken.png").write_bytes(b"no image")
    return folder


def words_of(place: Path, out: Path, *more: str) -> list[str]:
    words = altered(PROBE, *SPLITS, "probe.measures=[linear,knn]", "probe.find_copies=true")
    return altered(words, f"data.path={place}", f"out={out}", "name=run", *more)


def test_copies_are_found_and_the_accuracy_without_them_is_measured(
    place: Path, tmp_path: Path
) -> None:
    """The second result is that of an evaluation whose test split lacks the copies."""
    made = ssl_vit.evaluate(words_of(place, tmp_path))
    copies = made.training_copies
    assert (copies.images, copies.of) == (7, 37)
    assert copies.among == len(run_splits.load(trained_data(place), test=False).train)
    page = (tmp_path / "run" / "copies.html").read_text()
    for seed, name in enumerate(COPIES):
        letter = "ab"[seed % 2]
        assert page.index(f"test: test/{letter}/{name}.png") < page.index(
            f"training: train/{letter}/{seed:02d}.png"
        )
    assert page.count("<img") == 14
    printed = "\n".join(made.lines())
    assert f"7 of 37 test images are copies of one of {copies.among} training images" in printed
    assert f"{tmp_path}/run/copies.html" in printed
    assert "without the copies: 30 test images" in printed
    assert "without the copies: 30 test images" in (tmp_path / "run" / "report.html").read_text()

    apart = tmp_path / "apart"
    for path in place.rglob("*.png"):
        if path.stem not in COPIES:
            save_to = apart / path.relative_to(place)
            save_to.parent.mkdir(parents=True, exist_ok=True)
            save_to.write_bytes(path.read_bytes())
    alone = ssl_vit.evaluate(words_of(apart, tmp_path, "name=alone"))
    assert alone.training_copies.images == 0 and not alone.training_copies.measurements
    assert not (tmp_path / "alone" / "copies.html").exists()
    assert copies.measurements == alone.measurements != made.measurements


def test_two_processes_find_the_same_copies(place: Path, tmp_path: Path) -> None:
    one, two = evaluated_on_one_and_two(words_of(place, tmp_path), tmp_path)
    assert one["training_copies"] == two["training_copies"]
    assert one["training_copies"]["images"] == 7


def test_images_of_the_run_that_trained_the_encoder_count(place: Path, tmp_path: Path) -> None:
    """The probes learn from other images than the encoder."""
    for seed in range(200, 220):
        save(picture(seed), tmp_path / "others" / "train" / "ab"[seed % 2] / f"{seed}.png")
    for path in (place / "test").rglob("*.png"):
        save_to = tmp_path / "others" / path.relative_to(place)
        save_to.parent.mkdir(parents=True, exist_ok=True)
        save_to.write_bytes(path.read_bytes())
    mine = shutil.copytree(place, tmp_path / "mine")
    words = altered(TINY, *SHORT, f"data.path={mine}", f"out={tmp_path}", "name=trained")
    trained = run([*words, "eval.test=false", "data.validation=0.1"]).folder
    words = words_of(tmp_path / "others", tmp_path, f"init={trained}")
    words = [word for word in words if not word.startswith("model=")]
    found = ssl_vit.evaluate(words).training_copies
    # a tenth of the training images was held out from pre-training, and may have originals
    rows = run_splits.load(trained_data(place), test=False).train.store_rows()
    assert found.images == sum(row_of(seed) in rows for seed in range(7)) >= 5
    assert found.among == len(rows) + 18 and not found.not_compared
    mine.rename(tmp_path / "elsewhere")
    found = ssl_vit.evaluate(altered(words, "name=again")).training_copies
    assert (found.images, found.among, found.not_compared) == (0, 18, ["trained"])
    says = seen_text.describe_copies(found)
    assert says.endswith("18 training images. The training images of trained were not compared")


def trained_data(place: Path) -> Data:
    return Data(path=str(place), validation=0.1)


def row_of(seed: int) -> int:
    """The row of a training image: the files of a are before those of b."""
    return seed // 2 + 30 * (seed % 2)


def test_a_training_run_refuses_to_find_copies(place: Path, tmp_path: Path) -> None:
    words = altered(TINY, *SHORT, f"data.path={place}", f"out={tmp_path}", "probe.every=2")
    says = refusal(ssl_vit.pretrain, [*words, "probe.find_copies=true"])
    assert says.startswith("probe.find_copies=true") and "objective=mpp" in says


def test_a_study_counts_the_copies_before_it_starts(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"data.path": str(place), "data.validation": 0.1}
    says, page = find_copies(options)
    assert says.startswith("test: 7 of 37 test images are copies of one of ")
    assert "copies.html" in says and page.count("<img") == 14
    monkeypatch.setattr(lab_images, "MOST_PAIRS", 50)
    assert "not compared" in find_copies(options)[0]


@pytest.mark.parametrize(
    ("name", "size", "copies"), [("tinyimagenet", 64, []), ("cifar10", 32, [(26, 330), (28, 329)])]
)
def test_copies_of_photographs_are_found(
    real_images: Path, name: str, size: int, copies: list[tuple[int, int]]
) -> None:
    """100 copies of each kind among 400 images. Among 100 other images of CIFAR-10 two are copies
    of images with other frames, as their pictures show."""
    source = run_splits.load(Data(path=str(real_images / name), size=size), test=False).train
    train = near_copies.read_thumbnails(source.subset(np.arange(400)), Data())
    others = near_copies.read_thumbnails(source.subset(np.arange(400, 500)), Data())
    pairs = near_copies.find_copies(others, train, CPU)
    assert [(pair.test, pair.train) for pair in pairs] == copies
    for kind, change in COPIES.items():
        raws = source.fetch(np.arange(100))[0]
        images = [change(Image.open(io.BytesIO(raw)).convert("RGB")) for raw in raws]
        made = near_copies.read_thumbnails(listed([np.array(image) for image in images]), Data())
        pairs = near_copies.find_copies(made, train, CPU)
        assert sum(pair.test == pair.train for pair in pairs) >= 95, kind


def test_equal_images_without_details_are_copies() -> None:
    """Such as blank tiles and gradients, whose details are not correlated with anything."""
    ramp_SS = torch.linspace(0, 255, near_copies.SIDE).expand(near_copies.SIDE, -1).byte()
    images = [torch.full_like(ramp_SS, 9), ramp_SS, ramp_SS.T, ramp_SS.flip(-1)]
    test = near_copies.Thumbnails(
        torch.stack([image.expand(3, -1, -1) for image in images]), np.arange(4)
    )
    train = near_copies.Thumbnails(test.image_N3SS[:3], np.arange(10, 13))
    pairs = near_copies.find_copies(test, train, CPU)
    assert pairs == [(0, 10, 1.0), (1, 11, 1.0), (2, 12, 1.0), (3, 11, 1.0)]
