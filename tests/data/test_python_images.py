"""Images given to the Python functions as objects: what a run reads is what the object holds."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import ssl_vit
from helpers.options import TINY, altered
from ssl_vit.data import python_images
from ssl_vit.data.decoding import decode, decode_stored_values
from ssl_vit.data.pixel_values import decoder
from ssl_vit.data.run_splits import open_for_testing
from ssl_vit.recipe.images import Data
from ssl_vit.runs import console

NUMBER = 30
FEW = altered(TINY, "optim.steps=2", "optim.warmup=1", "optim.batch=8", "data.validation=0.2")


def pixels(row: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(row).integers(0, 256, (20, 24, channels), dtype=np.uint8)


class Photos(Dataset):
    """A user's data set: `make` turns an array (H, W, C) into what an item holds."""

    classes = ("zebra", "ant")  # not in the order of the alphabet

    def __init__(
        self, make: Any = Image.fromarray, number: int = NUMBER, channels: int = 3
    ) -> None:
        self.make, self.number, self.channels = make, number, channels

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return self.make(pixels(row, self.channels)), row % 2


class WithoutLength(Dataset):
    def __getitem__(self, row: int) -> Image.Image:
        return Image.fromarray(pixels(row))


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[np.ndarray]:
        return iter([pixels(0)])


def broken(array: np.ndarray) -> None:
    raise OSError("truncated\nin the middle")


def to_tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).permute(2, 0, 1)


def opened(images: Any, out: Path, *options: str) -> dict[str, Any]:
    folder = python_images.store(images, out)
    data = ssl_vit.resolve(["recipe=mpp", f"data.path={folder}", *options]).data
    return open_for_testing(data).splits


@pytest.mark.parametrize(
    "make",
    [
        Image.fromarray,
        to_tensor,
        lambda array: array,
        lambda array: to_tensor(array).float() / 255,  # torchvision's ToTensor
    ],
    ids=["pil", "tensor", "array", "float"],
)
def test_pixels_and_labels_of_a_torch_dataset_stay_as_they_are(make: Any, tmp_path: Path) -> None:
    split = opened(Photos(make), tmp_path)["train"]
    raw, labels = split.fetch(np.arange(NUMBER))
    assert labels.tolist() == [row % 2 for row in range(NUMBER)]
    assert split.classes == ["zebra", "ant"]
    for row, image in enumerate(raw):
        assert torch.equal(decode(image), to_tensor(pixels(row)))


def test_images_are_written_once_and_others_elsewhere(tmp_path: Path) -> None:
    first = python_images.store(Photos(), tmp_path)
    file = next(first.rglob("*.arrow"))
    before = file.stat().st_mtime_ns
    assert python_images.store(Photos(to_tensor), tmp_path) == first  # the same pixels
    assert file.stat().st_mtime_ns == before
    others = [Photos(number=NUMBER - 1), Subset(Photos(), range(1, NUMBER)), {"test": Photos()}]
    assert len({first, *(python_images.store(other, tmp_path) for other in others)}) == 4


def test_files_are_linked_and_a_table_keeps_its_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    files = [folder / f"{row}.png" for row in range(NUMBER)]
    for row, file in enumerate(files):
        Image.fromarray(pixels(row)).save(file)
    labelled = [(str(file), "ab"[row % 2]) for row, file in enumerate(files)]
    splits = opened({"train": labelled[:20], "test": labelled[20:]}, tmp_path)
    raw, labels = splits["test"].fetch(np.arange(10))
    assert raw == [file.read_bytes() for file in files[20:]]
    assert labels.tolist() == [0, 1] * 5 and splits["train"].classes == ["a", "b"]
    assert files[0].stat().st_nlink == 2  # a hard link, and no copy
    table = datasets.Dataset.from_dict({"image": [*map(str, files)], "label": [0, 1] * 15})
    table = table.cast_column("image", datasets.Image())
    raw, labels = opened(table, tmp_path)["train"].fetch(np.arange(NUMBER))
    assert raw == [file.read_bytes() for file in files] and labels.tolist() == [0, 1] * 15


class WithSamples(Dataset):
    """A user's class with attributes of the same names as an ImageFolder's."""

    classes = ("a", "b")

    def __init__(self, file: Path) -> None:
        self.samples, self.transforms = [(str(file), 0)] * 4, None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return Image.open(self.samples[row][0]).crop((0, 0, 5, 5)), 1


def test_items_are_those_of_the_data_set_and_not_of_its_attributes(tmp_path: Path) -> None:
    Image.fromarray(pixels(0)).save(tmp_path / "0.png")
    raw, labels = opened(WithSamples(tmp_path / "0.png"), tmp_path)["train"].fetch(np.arange(4))
    assert decode(raw[0]).shape == (3, 5, 5) and labels.tolist() == [1] * 4


def test_labels_of_other_types_are_other_images(tmp_path: Path) -> None:
    """ "1" and 1, or "None" and None, had one hash, and the labels that were stored first."""
    image = Image.fromarray(pixels(0))
    for values in (["1", "2"], [1, 2], ["None", "x"], [None, "x"], ["01", "1"]):
        split = opened([(image, value) for value in values], tmp_path)["train"]
        _, labels = split.fetch(np.arange(2))
        numbers = [value if isinstance(value, int) else -1 for value in values]
        names = sorted({value for value in values if isinstance(value, str)})
        wanted = [
            names.index(value) if value in names else number
            for value, number in zip(values, numbers, strict=True)
        ]
        assert labels.tolist() == wanted and split.classes == names


def test_a_data_set_that_is_seldom_random_is_refused(tmp_path: Path) -> None:
    calls: list[int] = []

    def seldom(array: np.ndarray) -> Image.Image:
        calls.append(len(calls))
        return Image.fromarray(array[::-1] if len(calls) == NUMBER + 9 else array)

    with pytest.raises(ssl_vit.UserError, match="augment="):
        python_images.store(Photos(seldom), tmp_path)
    assert not [*tmp_path.rglob("*.arrow")]


def test_more_channels_and_missing_labels(tmp_path: Path) -> None:
    unlabelled = [Photos(to_tensor, channels=4)[row][0] for row in range(NUMBER)]
    split = opened(unlabelled, tmp_path, "data.channels=4", "target=mean_channels")["train"]
    raw, labels = split.fetch(np.arange(2))
    assert set(labels.tolist()) == {-1}
    assert np.array_equal(decode_stored_values(raw[1], 4), unlabelled[1])


HOUNSFIELD = np.arange(-1200, 3600, 10, dtype=np.int16).reshape(20, 24)


@pytest.mark.parametrize(
    "make",
    [
        lambda array: array,
        lambda array: array.astype(np.int64)[..., None],
        lambda array: torch.from_numpy(array)[None],
        lambda array: torch.from_numpy(array).int(),
        lambda array: Image.fromarray(array.astype(np.int32)),
    ],
    ids=["int16", "int64", "tensor", "int32 tensor", "pil"],
)
def test_integers_below_0_keep_their_values(make: Any, tmp_path: Path) -> None:
    """data.range says which values become black and white; nothing wraps around."""
    splits = opened([make(HOUNSFIELD)], tmp_path)
    raw, _ = splits["train"].fetch(np.arange(1))
    assert np.array_equal(decode_stored_values(raw[0], 1, lowest=-1), HOUNSFIELD[None])
    for low, high in ((-1200, 3590), (-1024, 3071)):
        data = Data(path="photos", channels=1, range=[low, high])
        image_1HW = decoder(data)(raw[0])
        assert image_1HW.tolist() == HOUNSFIELD[None].clip(low, high).tolist()


@pytest.mark.parametrize("options", [{}, {"channels": 1}, {"channels": 1, "range": [0, 3071]}])
def test_integers_below_0_need_a_range_that_begins_there(options: Any, tmp_path: Path) -> None:
    images = [(HOUNSFIELD, row % 2) for row in range(NUMBER)]
    with pytest.raises(ssl_vit.UserError, match=r"data\.range=") as refusal:
        ssl_vit.pretrain(FEW, images=images, data=options, out=tmp_path, target="normalized_pixels")
    assert "\n" not in str(refusal.value)
    assert not options or "LOWEST below 0" in str(refusal.value)


def test_a_run_on_slices_of_computed_tomography(tmp_path: Path) -> None:
    images = [(HOUNSFIELD + row, row % 2) for row in range(NUMBER)]
    data = {"channels": 1, "range": [-1024, 3071]}
    run = ssl_vit.pretrain(FEW, images=images, data=data, out=tmp_path, target="mean_channels")
    assert run is not None and np.isfinite(run.metrics["loss"].value)


def test_a_run_resumes_and_its_images_serve_later_commands(tmp_path: Path) -> None:
    run = ssl_vit.pretrain(FEW, images=Photos(), out=tmp_path, name="run")
    assert run is not None
    assert ssl_vit.pretrain(FEW, images=Photos(), out=tmp_path, name="run") == run
    with pytest.raises(ssl_vit.UserError, match="images"):  # others than those of the run
        ssl_vit.pretrain(FEW, images=Photos(number=NUMBER - 1), out=tmp_path, name="run")
    tuned = ssl_vit.finetune(
        {"recipe": "finetune", "init": run.folder, "optim": {"steps": 2, "warmup": 1, "batch": 8}},
        data={"test": 0.2, "validation": 0.2},
        out=tmp_path,
        name="tuned",
    )
    assert tuned is not None and tuned.metrics["top1"].n == 6
    study = {"recipe": "mpp", "sweep": {"optim.lr": [0.1, 0.2]}, "check": True}
    splits = {"train": Photos(), "test": Photos(number=10)}
    estimate = ssl_vit.study(study, images=splits, out=tmp_path, name="study")
    assert len(estimate.runs) == 2


@pytest.mark.parametrize(
    ("images", "text"),
    [
        (5, "not int"),
        (Photos, "not type"),
        ([], "no images"),
        ({"train": Photos(), "test": []}, "no images in test"),
        (Photos(lambda array: to_tensor(array).float() - 99), "float"),
        (Photos(lambda array: array.astype(np.int32) - 40_000), "image 0 has values from -4"),
        (Photos(lambda array: array[..., 0].astype(np.int32) + 65_500), "from -32768 to 65535"),
        (Photos(lambda array: Image.fromarray(array[..., 0].astype(np.float32))), "float32"),
        (Photos(lambda array: np.random.permutation(array)), "augment="),  # noqa: NPY002
        ([("photos/1.png", 0.5)], "0.5 is no label"),
        (["nowhere/1.png"], "nowhere/1.png"),
        (Photos(lambda array: to_tensor(array).float() * 9), "float32 and values from 0 to 2295"),
        (Photos(lambda array: array > 9), "type bool. Use uint8 or other integers"),
        (Photos(torch.from_numpy), r"\(20, 24, 3\), but tensors must be \(C, H, W\)"),
        (Photos(lambda array: to_tensor(array).numpy()), r"arrays must be \(H, W, C\)"),
        (Photos(broken), "reading item 0 of Photos raised OSError: truncated"),
        (Photos(lambda array: 7), "is no image. Use a PIL image"),
        (WithoutLength(), "WithoutLength has no length. Define its method __len__"),
        (DataLoader(Photos()), "Pass the attribute `dataset`"),
        (TensorDataset(torch.zeros(4, 3, 8, 8), torch.tensor([-1, 1, 1, -1])), "-1 or 1"),
        (Stream(), "Stream has no items by number"),
    ],
)
def test_what_is_no_set_of_images_is_one_line(images: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(ssl_vit.UserError, match=text):
        python_images.store(images, tmp_path)
    assert not [*tmp_path.rglob("*.arrow")]


def test_images_with_the_label_minus_one_have_no_label(tmp_path: Path) -> None:
    """As in torchvision's STL10. Two classes -1 and 1 would silently become a single class."""
    labels = torch.tensor([-1, 0, 1, -1])
    photos = TensorDataset(torch.zeros(4, 3, 8, 8), labels)
    splits = opened({"train": photos, "test": Subset(photos, [0, 1])}, tmp_path)
    assert splits["train"].fetch(np.arange(4))[1].tolist() == labels.tolist()
    assert splits["test"].fetch(np.arange(2))[1].tolist() == [-1, 0]


def test_an_item_that_is_read_late_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large data sets, only some items are read before the images are written."""
    monkeypatch.setattr(python_images, "MOST_BYTES", 200)

    def make(array: np.ndarray) -> Image.Image:
        if np.array_equal(array, pixels(7)):
            raise OSError("truncated")
        return Image.fromarray(array)

    with pytest.raises(ssl_vit.UserError, match="reading item 7 of Photos raised OSError"):
        python_images.store(Photos(make), tmp_path)


def test_a_slow_data_set_shows_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "LINE_INTERVAL", 0)
    monkeypatch.setattr(console, "LINE_SHARE", 1e-9)
    python_images.store(Photos(number=3), tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert any(re.match(r"read +\d/3  train images  left", line) for line in lines), lines
