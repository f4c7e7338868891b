"""CPU time of training batches from encoded images, over that of decoding the same images and
nothing else; beside timm's loader and `datasets` with set_transform.

    python benchmarks/loader.py data=FOLDER rounds=9 images=1024 save=false

FOLDER holds cifar10/ and tinyimagenet/ as parquet files. One thread, no workers; in each round all
ways take turns with the same images, and ratios are taken within a round; of 6 rounds or more their
medians have 95% intervals. One JSON object comes out; save=true writes it to results/loader.json.

`step` is the CPU time of training steps on fixed batches over that of the same steps with a loader
(recipe=mpp, CIFAR-10, vit_p8, batch 128): 1 where loading costs nothing.

All ways do the same work: decode, crop at random with a share of the area of 0.05 to 1, resize
bilinearly with antialiasing, flip half of them, and stack bytes. Shuffled epochs; files and tables
are in memory or in the page cache. All run with the memory that the tools keep
(training/allocator.py).
"""

import dataclasses
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ |= {"OMP_NUM_THREADS": "1"}

import datasets
import numpy as np
import PIL
import pyarrow.parquet
import timm
import torch
import torchvision
from PIL import Image
from step import finish, given_options, spread
from timm.data import create_dataset, create_loader
from timm.data.readers import add_img_extensions
from torch.utils.data import DataLoader
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from ssl_vit import resolve
from ssl_vit.data import batching, loaders, run_splits
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.resident import DecodedImages, decode_split
from ssl_vit.jobs.session import session
from ssl_vit.jobs.setup import loop_settings, set_up
from ssl_vit.recipe.schema import Data
from ssl_vit.runs.folder import Run
from ssl_vit.training import loop
from ssl_vit.training.allocator import keep_freed_memory

DEFAULTS = {
    "data": os.environ.get("SSL_VIT_DATA", "data"),
    "rounds": "9",
    "images": "1024",
    "save": "false",
}
AREA = 0.05
WIDTH, HEIGHT = 500, 375  # ImageNet's most frequent size
STEPS = 6  # that are timed at once
STEP_BATCH = 128
QUALITY = 95  # gives about as many bytes as ImageNet's training images have, 110 kB


class Case(NamedTuple):
    """A set of images on disk, in the forms that the ways read."""

    name: str
    suffix: str
    size: int  # side of a training image
    batch: int
    encoded: list[bytes]


def cifar(folder: Path, images: int) -> Case:
    """The first images of CIFAR-10's training split: lossless WebP and a few PNG."""
    file = sorted((folder / "cifar10").glob("train*.parquet"))[0]
    return Case("CIFAR-10, 32 px WebP", ".webp", 32, 256, _cells(file, images))


def photographs(folder: Path, images: int) -> Case:
    """JPEGs of 500 x 375, made of 64 px photographs: one enlarged, which gives the large shapes,
    averaged with a mosaic of 48 others, which gives the detail that enlarging lacks."""
    file = sorted((folder / "tinyimagenet").glob("validation*.parquet"))[0]
    small = [Image.open(io.BytesIO(raw)).convert("RGB") for raw in _cells(file, images)]
    encoded = []
    for i in range(images):
        mosaic = Image.new("RGB", (512, 384))
        for tile in range(48):
            place = (tile % 8 * 64, tile // 8 * 64)
            mosaic.paste(small[(i + 7 * tile + 1) % len(small)], place)
        large = small[i].resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        file_ = io.BytesIO()
        mixed = Image.blend(large, mosaic.crop((0, 0, WIDTH, HEIGHT)), 0.5)
        mixed.save(file_, "JPEG", quality=QUALITY)
        encoded.append(file_.getvalue())
    return Case("500 x 375 px JPEG", ".jpg", 224, 64, encoded)


def _cells(file: Path, count: int) -> list[bytes]:
    with pyarrow.parquet.ParquetFile(file) as opened:
        table = next(opened.iter_batches(count, columns=["image"]))
    return [cell["bytes"] for cell in table.column(0).to_pylist()]


def write(case: Case, folder: Path) -> None:
    """As image files in a folder of one class, and as a parquet file."""
    files = folder / "files" / "train" / "one"
    files.mkdir(parents=True)
    for i, raw in enumerate(case.encoded):
        (files / f"{i:06d}{case.suffix}").write_bytes(raw)
    cells = [{"bytes": raw, "path": None} for raw in case.encoded]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["one"])}
    )
    rows = {"image": cells, "label": [0] * len(cells)}
    (folder / "table").mkdir()
    table = datasets.Dataset.from_dict(rows, features=features)
    table.to_parquet(str(folder / "table" / "train.parquet"))


Way = Callable[[], Iterable[Any]]  # starts an epoch of batches


def bare(case: Case) -> Way:
    """Each image decoded by torchvision, the fastest decoder at hand, and dropped."""

    def epoch() -> Iterator[torch.Tensor]:
        for raw in case.encoded:
            data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
            yield decode_image(data, ImageReadMode.RGB, apply_exif_orientation=True)

    return epoch


def ours(case: Case, folder: Path, resident: bool = False) -> Way:
    """This project's training loader, on the parquet file or the image folder; with `resident`, on
    images that are decoded already."""
    data = Data(name="bench", path=str(folder), size=case.size, crop_area=AREA, validation=0.0)
    source = run_splits.load(data).train
    layout = BatchLayout(case.batch, case.batch, 0, 1)
    steps = len(source) // case.batch
    turn = iter(range(10**9))
    decoded = decode_split(source, data, 1e9, 1) if resident else None

    def epoch() -> Iterable[Any]:
        start = next(turn) * steps
        stop = start + steps
        return loaders.training_loader(source, data, layout, 0, start, stop, 0, decoded=decoded)

    return epoch


def timms(case: Case, folder: Path) -> Way:
    """timm's image folder, transform and collation to bytes; without its prefetcher, which would
    also normalise."""
    add_img_extensions(case.suffix)
    dataset = create_dataset("", root=str(folder / "files"), split="train", is_training=True)
    loader = create_loader(
        dataset,
        (3, case.size, case.size),
        case.batch,
        is_training=True,
        scale=(AREA, 1),
        color_jitter=0.0,
        interpolation="bilinear",
        num_workers=0,
        pin_memory=False,
        device=torch.device("cpu"),
        persistent_workers=False,
    )
    return lambda: loader.loader


def hugging_face(case: Case, folder: Path) -> Way:
    """`datasets` with set_transform and torchvision's transforms, as in its documentation."""
    file = str(folder / "table" / "train.parquet")
    rows = datasets.Dataset.from_parquet(file, cache_dir=str(folder / "cache"))
    change = v2.Compose(
        [
            v2.RandomResizedCrop(case.size, scale=(AREA, 1), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
        ]
    )

    def transform(cells: dict[str, Any]) -> dict[str, Any]:
        images = [change(image.convert("RGB")) for image in cells["image"]]
        return {"image": images, "label": cells["label"]}

    rows.set_transform(transform)
    return lambda: DataLoader(rows, case.batch, shuffle=True, drop_last=True)


def seconds(way: Way) -> float:
    """CPU seconds of an epoch."""
    before = time.process_time()
    for _ in way():
        pass
    return time.process_time() - before


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Each way's CPU time over that of bare decoding, and this project's images a second."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(case, folder)
        ways = {
            "ssl_vit, parquet": ours(case, folder / "table"),
            "ssl_vit, image folder": ours(case, folder / "files"),
            "ssl_vit, decoded in memory": ours(case, folder / "table", resident=True),
            "timm, image folder": timms(case, folder),
            "datasets, set_transform": hugging_face(case, folder),
        }
        ways = {"bare decode": bare(case), **ways}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(-1, rounds):
            order = list(ways) if turn % 2 else list(ways)[::-1]
            for name in order:
                took = seconds(ways[name])
                if turn >= 0:  # the first one warms up
                    taken[name].append(took)
    floor = taken["bare decode"]
    images = len(case.encoded) // case.batch * case.batch
    return {
        "images": len(case.encoded),
        "mean bytes": round(statistics.mean(map(len, case.encoded))),
        "bare decode, images/s": round(len(case.encoded) / statistics.median(floor)),
        "images/s": {
            name: round(images / statistics.median(times))
            for name, times in taken.items()
            if name != "bare decode"
        },
        "over bare decode": {
            name: spread(
                [len(case.encoded) / images * a / b for a, b in zip(times, floor, strict=True)]
            )
            for name, times in taken.items()
            if name != "bare decode"
        },
    }


def of_a_step(data: Path, rounds: int) -> dict[str, dict[str, float]]:
    """The CPU time of steps on fixed batches over that of steps with each loader."""
    options = ["recipe=mpp", "data=cifar10", f"data.path={data / 'cifar10'}", "data.size=32"]
    options += ["model=vit_p8", f"optim.batch={STEP_BATCH}", "compute.threads=1"]
    with tempfile.TemporaryDirectory() as out:
        run = Run(resolve([*options, f"out={out}", "name=run"]))
        with session(run) as current:
            splits = current.load_splits(test=False)
            job = set_up(run, current.accelerator, splits)
            decoded = decode_split(splits.train, job.recipe.data, 1e9, 1)
            settings_ = dataclasses.replace(loop_settings(job.recipe), steps=STEPS, log_every=STEPS)

            def batches(decoded: DecodedImages | None) -> Iterable[batching.Batch]:
                given = (splits.train, job.recipe.data, job.batch_layout, 0, 0, STEPS, 0)
                return loaders.training_loader(*given, decoded=decoded)

            def train(batches: Iterable[batching.Batch]) -> float:
                job.state.step = 0
                before = time.process_time()
                loop.train(job.state, batches, settings_)
                return time.process_time() - before

            fixed = list(batches(decoded))
            ways = {"decoded in memory": decoded, "decoded at each step": None}
            found: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(-1, rounds):
                for name in list(ways) if turn % 2 else list(ways)[::-1]:
                    ratio = train(fixed) / train(batches(ways[name]))
                    if turn >= 0:
                        found[name].append(ratio)
    return {name: spread(shares) for name, shares in found.items()}


def main() -> None:
    given = given_options(DEFAULTS, sys.argv[1:])
    torch.set_num_threads(1)
    keep_freed_memory()  # as the tools do
    folder = Path(given["data"])
    rounds = int(given["rounds"])
    count = int(given["images"])
    cases = [cifar(folder, 4 * count), photographs(folder, count)]
    report: dict[str, Any] = {case.name: measure(case, rounds) for case in cases}
    report |= {"step": of_a_step(folder, rounds), "rounds": rounds, "threads": 1}
    libraries = [torch, torchvision, timm, datasets, np, PIL]
    finish(report, "loader.json", given["save"] == "true", libraries)


if __name__ == "__main__":
    datasets.disable_progress_bars()
    main()
