"""Odd folders and containers of images, the same on every machine: all pixels are drawn, and kept
without loss.

FOLDERS: {name: (what writes it below a folder, further options of reading it)}.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from helpers.images import encode, npy, tar

ANT_BEE = datasets.ClassLabel(names=["ant", "bee"])
IMAGE = datasets.Image()
Writer = Callable[[Path], None]


def noise(number: int, shape: tuple[int, ...] = (6, 7, 3), below: int = 256) -> np.ndarray:
    kind = np.uint8 if below <= 256 else np.uint16
    return np.random.default_rng(number).integers(0, below, shape).astype(kind)


def png(number: int) -> bytes:
    return encode(Image.fromarray(noise(number)), "PNG")


def write(root: Path, files: dict[str, bytes | str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def image_files(**counts: int) -> dict[str, bytes | str]:
    """So many images in each folder, "__" for a slash, "_" for the top."""
    files: dict[str, bytes | str] = {}
    for name, count in counts.items():
        folder = "" if name == "_" else f"{name.replace('__', '/')}/"
        for _ in range(count):
            files[f"{folder}{len(files)}.png"] = png(len(files))
    return files


def folders(**counts: int) -> Writer:
    return lambda root: write(root, image_files(**counts))


def cells(numbers: Iterable[int]) -> list[dict[str, Any]]:
    return [{"bytes": png(number), "path": None} for number in numbers]


def parquet(path: Path, columns: dict[str, list[Any]], **features: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    known = datasets.Features(features) if features else None
    datasets.Dataset.from_dict(columns, features=known).to_parquet(str(path), batch_size=4)


def table(path: Path, numbers: range) -> None:
    """Odd images are bees."""
    columns = {"image": cells(numbers), "label": [number % 2 for number in numbers]}
    parquet(path, columns, image=IMAGE, label=ANT_BEE)


def cls(numbers: Iterable[int]) -> list[tuple[str, bytes]]:
    """Members of a tar: each image with its label."""
    return [
        member
        for number in numbers
        for member in (
            (f"{number:04d}.png", png(number)),
            (f"{number:04d}.cls", str(number % 3).encode()),
        )
    ]


ROWS = [{"file_name": f"{n}.png", "label": ["dog", "ant", "bee"][n % 3]} for n in range(6)]


def metadata(kind: str, rows: list[dict[str, Any]], folder: str = "") -> dict[str, bytes | str]:
    name = f"{folder}metadata.{kind}"
    if kind == "csv":
        file = io.StringIO()
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
        return {name: file.getvalue()}
    if kind == "parquet":
        sink = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
        return {name: sink.getvalue()}
    return {name: "\n".join(map(json.dumps, rows)) if kind == "jsonl" else json.dumps(rows)}


def described(kind: str, rows: list[dict[str, Any]] = ROWS) -> Writer:
    return lambda root: write(root, image_files(_=6) | metadata(kind, rows))


def described_splits(root: Path) -> None:
    rows = {"train": ["b", "c", "b"], "val": ["c", "a"]}
    write(root, image_files(train=3, val=2))
    for split, first in (("train", 0), ("val", 3)):
        found = [
            {"file_name": f"./{first + n}.png", "label": label}
            for n, label in enumerate(rows[split])
        ]
        write(root, metadata("jsonl", found, f"{split}/"))


def described_below(root: Path) -> None:
    """One file at the top names images of several folders, in another order than theirs."""
    files = image_files(one=2, two=2)
    rows = [
        {"file_name": name, "label": n % 2} for n, name in enumerate(sorted(files, reverse=True))
    ]
    write(root, files | metadata("jsonl", rows))


def named_like_splits(root: Path) -> None:
    write(root, {f"{'test' if n < 2 else 'train'}_{n}.png": png(n) for n in range(6)})


def odd_names(root: Path) -> None:
    """Blanks, accents, capitals, numbers of different lengths, characters with a meaning in
    patterns."""
    names = ["Zebra", "ant 2", "ant 10", "écureuil", "b[e]e", "猫", "ant-1", "_x"]
    write(root, {f"{name}/{n} (1).png": png(n) for n, name in enumerate(names)})
    write(root, {f"ant 2/{n}.png": png(20 + n) for n in (1, 2, 10)})
    write(root, {"ant 2/B.PNG": png(30), "ant 2/a.Png": png(31)})


def left_out(root: Path) -> None:
    """Files that are no images, and hidden ones."""
    write(root, image_files(ant=2, bee=2))
    others = ["a.txt", "ant/b.TXT", "c.jxl", "README", ".DS_Store", "bee/._0.png", ".cache/0.png"]
    write(root, dict.fromkeys([*others, "__MACOSX/ant/0.png"], "x"))


def links(root: Path) -> None:
    write(root, image_files(near__ant=3, far=3))
    (root / "near" / "bee").symlink_to(Path("..") / "far")
    (root / "near" / "ant" / "again.png").symlink_to(Path("..") / ".." / "far" / "3.png")


def near(root: Path) -> None:
    """The images of `links` alone: what is linked lies outside."""
    outside = root.with_name(f"{root.name} outside")
    links(outside)
    root.mkdir()
    (root / "ant").symlink_to(outside / "near" / "ant")
    (root / "bee").symlink_to(outside / "near" / "bee")


def modes(root: Path) -> None:
    """Images of other colours and depths than RGB of 8 bits."""
    rgb = Image.fromarray(noise(0))
    write(
        root,
        {
            "grey.png": encode(Image.fromarray(noise(1, (6, 7))), "PNG"),
            "grey_alpha.png": encode(Image.fromarray(noise(2, (6, 7, 2))), "PNG"),
            "one_bit.png": encode(Image.fromarray(noise(3, (6, 7)) > 127), "PNG"),
            "palette.png": encode(palette(8), "PNG"),
            "rgba.png": encode(Image.fromarray(noise(4, (6, 7, 4))), "PNG"),
            "sixteen_bits.png": encode(Image.fromarray(noise(5, (6, 7), 65536)), "PNG"),
            "turned.png": encode(rgb, "PNG", exif=turned()),
            "one_pixel.png": encode(Image.fromarray(noise(6, (1, 1, 3))), "PNG"),
            "long.png": encode(Image.fromarray(noise(7, (1, 90, 3))), "PNG"),
        },
    )


def palette(number: int) -> Image.Image:
    image = Image.fromarray(noise(number, (6, 7), 16)).convert("P")
    image.putpalette(noise(number, (16, 3)).tobytes())
    return image


def turned() -> Image.Exif:
    """By a quarter, as cameras say it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def formats(root: Path) -> None:
    rgb = Image.fromarray(noise(0))
    files: dict[str, bytes | str] = {
        f"{form.lower()}.{ending}": encode(rgb, form, **options)
        for form, ending, options in (
            ("BMP", "bmp", {}),
            ("PPM", "ppm", {}),
            ("TIFF", "tiff", {}),
            ("TIFF", "tif", {"compression": "tiff_lzw"}),
            ("WEBP", "webp", {"lossless": True}),
        )
    }
    write(root, files | {"gif.gif": encode(palette(8), "GIF")})


def damaged(root: Path) -> None:
    write(root, image_files(ant=2, bee=3) | {"ant/0.png": png(0)[:-30], "bee/9.png": b""})


def arrays(root: Path) -> None:
    """Arrays of RGB and of grey values, by rows and by columns."""
    for number, split in enumerate(("train", "test")):
        for place, name in enumerate(("ant", "bee")):
            files: dict[str, bytes | str] = {
                "0.npy": npy(noise(4 * number + 2 * place)),
                "1.npy": npy(np.asfortranarray(noise(4 * number + 2 * place + 1))),
                "2.npy": npy(noise(90 + number, (6, 7))),
            }
            write(root / split / name, files)


def channels(root: Path) -> None:
    """Four channels of 12 bits, last and first."""
    for number in range(6):
        array = noise(number, (8, 9, 4), 4096)
        given = array if number % 2 else np.ascontiguousarray(array.transpose(2, 0, 1))
        write(root / ("ant", "bee")[number % 2], {f"{number}.npy": npy(given)})


def tiffs(root: Path) -> None:
    """Four channels of 16 bits: samples side by side, planes, and pages."""
    import tifffile

    for number, words in enumerate(
        (
            {"photometric": "minisblack", "planarconfig": "contig"},
            {"photometric": "minisblack", "planarconfig": "separate"},
            {"photometric": "minisblack", "compression": "deflate", "planarconfig": "contig"},
            {"photometric": "minisblack"},
        )
    ):
        array = noise(number, (8, 9, 4), 65536)
        given = array if words.get("planarconfig") == "contig" else array.transpose(2, 0, 1)
        file = io.BytesIO()
        tifffile.imwrite(file, given, **words)
        write(root, {f"{number}.tif": file.getvalue()})


def mixed_kinds(root: Path) -> None:
    table(root / "train.parquet", range(6))
    write(root, image_files(images=3))


def arrays_beside_images(root: Path) -> None:
    write(
        root, image_files(ant=2, bee=2) | {"ant/0.npy": npy(noise(7)), "boxes.npy": npy(noise(8))}
    )


def parquet_splits(root: Path) -> None:
    table(root / "data" / "train-00000-of-00002.parquet", range(6))
    table(root / "data" / "train-00001-of-00002.parquet", range(6, 9))
    table(root / "data" / "val-00000-of-00001.parquet", range(10, 14))
    table(root / "data" / "test-00000-of-00001.parquet", range(20, 23))


def parquet_of_the_hub(root: Path) -> None:
    table(root / "default" / "train" / "0000.parquet", range(6))
    table(root / "default" / "test" / "0000.parquet", range(10, 13))


def unnamed_parquet(root: Path) -> None:
    table(root / "latest.parquet", range(6))
    table(root / "val.parquet", range(10, 13))


def text_labels(root: Path) -> None:
    names = {"train": ["dog", "ant", "dog", None], "test": ["ant", "bee"]}
    for split, labels in names.items():
        numbers = range(len(split), len(split) + len(labels))
        parquet(root / f"{split}.parquet", {"image": cells(numbers), "label": labels})


def other_columns(root: Path) -> None:
    columns = {"id": [*range(6)], "photo": [png(n) for n in range(6)], "fine_label": [0, 1, 2] * 2}
    parquet(root / "x.parquet", columns)


def two_images(root: Path) -> None:
    columns = {
        "front": cells(range(4)),
        "back": cells(range(9, 13)),
        "label": [0] * 4,
        "age": [*range(4)],
    }
    features = {"front": IMAGE, "back": IMAGE, "label": ANT_BEE, "age": datasets.Value("int64")}
    parquet(root / "x.parquet", columns, **features)


def some_labels(root: Path) -> None:
    columns = {"image": cells(range(5)), "label": [0, None, 1, None, 0]}
    parquet(root / "x.parquet", columns, image=IMAGE, label=ANT_BEE)


def several_labels(root: Path) -> None:
    lists = [[1, 0], [1], None, [], [0, 0]]
    columns = {"image": cells(range(5)), "labels": lists}
    parquet(root / "x.parquet", columns, image=IMAGE, labels=datasets.List(ANT_BEE))


def with_masks(root: Path) -> None:
    masks = [
        {"bytes": encode(Image.fromarray(noise(70 + n, (6, 7), 4)), "PNG"), "path": None}
        for n in range(4)
    ]
    columns = {"image": cells(range(4)), "mask": masks}
    parquet(root / "x.parquet", columns, image=IMAGE, mask=IMAGE)


def with_groups(root: Path) -> None:
    columns = {"image": cells(range(40)), "label": [n % 2 for n in range(40)]}
    features = {"image": IMAGE, "label": ANT_BEE, "patient": datasets.Value("string")}
    patients = [f"p{n // 4}" for n in range(40)]
    parquet(root / "x.parquet", columns | {"patient": patients}, **features)


def table_arrays(root: Path) -> None:
    values = [noise(n, (6, 5, 4), 65536).tolist() for n in range(5)]
    columns = {"bands": values, "label": [n % 2 for n in range(5)]}
    features = {"bands": datasets.Array3D(shape=(6, 5, 4), dtype="uint16"), "label": ANT_BEE}
    parquet(root / "train.parquet", columns, **features)


def different_classes(root: Path) -> None:
    """The same number is another class in another file of the split."""
    for first, names in ((0, ["ant", "bee"]), (10, ["bee", "ant"])):
        columns = {"image": cells(range(first, first + 4)), "label": [0, 1] * 2}
        label = datasets.ClassLabel(names=names)
        parquet(root / f"train-{first}.parquet", columns, image=IMAGE, label=label)


def tars(root: Path) -> None:
    tar(root / "train-0.tar", cls(range(5)))
    tar(root / "train-1.tar", cls(range(5, 9)))
    tar(root / "val" / "0.tar", cls(range(20, 23)))


def odd_tar(root: Path) -> None:
    """Members in folders, in no order, beside texts; labels in JSON, wrong ones and none."""
    members = {
        "b/2.cls": b"7\n",
        "b/2.seg.png": b"no",
        "b/2.png": png(2),
        "a/10.png": png(10),
        "a/10.json": b'{"label": 3, "text": "x"}',
        "a/9.json": b'{"label": "cat"}',
        "a/9.PNG": png(9),
        "a/both.png": png(11),
        "a/both.json": b'{"label": 3}',
        "a/both.cls": b"4",
        f"long/{'x' * 150}.png": png(12),
        "README.txt": b"text",
    }
    tar(root / "images.tar", members.items())


def saved(root: Path) -> None:
    parts = {}
    for first, name in ((0, "train"), (10, "validation"), (20, "test")):
        numbers = range(first, first + 5)
        columns = {"image": cells(numbers), "label": [n % 2 for n in numbers]}
        features = datasets.Features(image=IMAGE, label=ANT_BEE)
        parts[name] = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict(parts).save_to_disk(root)


def saved_split(root: Path) -> None:
    columns = {"image": cells(range(5)), "label": [n % 2 for n in range(5)]}
    features = datasets.Features(image=IMAGE, label=ANT_BEE)
    datasets.Dataset.from_dict(columns, features=features, split="test").save_to_disk(root)


FOLDERS: dict[str, tuple[Writer, dict[str, Any]]] = {
    "flat": (folders(_=4), {}),
    "classes": (folders(bee=3, ant=2), {}),
    "splits": (folders(train=3, test=2), {}),
    "splits_of_classes": (folders(train__bee=3, train__ant=2, val__ant=1, test__bee=2), {}),
    "splits_of_other_names": (folders(Train__ant=2, Train__bee=2, VAL__ant=1, VAL__bee=1), {}),
    "splits_with_years": (folders(train2017=3, val2017=2), {}),
    "splits_with_words": (folders(trainset__a=2, trainset__b=2, **{"Eval-Images__a": 1}), {}),
    "splits_below": (folders(data__images__train__ant=2, data__images__train__bee=2, data__images__test__ant=1), {}),
    "splits_in_classes": (folders(ant__train=4, ant__test=2, bee__train=3, bee__test=1), {}),
    "splits_and_others": (folders(train__ant=3, train__bee=3, test__ant=1, test__bee=1, extra=5, _=2), {}),
    "class_called_train": (folders(train=2, cat=2, dog=2), {}),
    "class_called_training_shoe": (folders(cat=2, training_shoe=2, test_tube=1), {}),
    "loose_images": (folders(ant=2, bee=2, _=3), {}),
    "depths": (folders(ant=2, bee__more=2, bee=1), {}),
    "same_name_below": (folders(one__ant=2, two__ant=1, two__bee=2), {}),
    "one_class": (folders(ant=3), {}),
    "deep": (folders(a__b__c__ant=2, a__b__c__bee=2), {}),
    "named_like_splits": (named_like_splits, {}),
    "odd_names": (odd_names, {}),
    "left_out": (left_out, {}),
    "links": (near, {}),
    "modes": (modes, {}),
    "formats": (formats, {}),
    "damaged": (damaged, {}),
    "metadata_csv": (described("csv"), {}),
    "metadata_jsonl": (described("jsonl"), {}),
    "metadata_json": (described("json"), {}),
    "metadata_parquet": (described("parquet"), {}),
    "metadata_of_some": (described("csv", [*ROWS[2:], {"file_name": "gone.png", "label": "ant"}]), {}),
    "metadata_of_nulls": (described("jsonl", [ROWS[0] | {"label": None}, *ROWS[1:]]), {}),
    "metadata_of_numbers": (
        described("csv", [{"file_name": f"{n}.png", "age": 3 * n} for n in range(6)]),
        {"data.label_column": "age"},
    ),
    "metadata_of_splits": (described_splits, {}),
    "metadata_of_folders": (described_below, {}),
    "arrays": (arrays, {}),
    "arrays_beside_images": (arrays_beside_images, {}),
    "channels": (channels, {"data.channels": 4, "data.range": [0, 4095]}),
    "channels_clipped": (channels, {"data.channels": 4, "data.range": [200, 4000]}),
    "tiffs": (tiffs, {"data.channels": 4, "data.range": [0, 65535]}),
    "parquet": (lambda root: table(root / "some.parquet", range(10)), {}),
    "parquet_splits": (parquet_splits, {}),
    "parquet_of_the_hub": (parquet_of_the_hub, {}),
    "parquet_unnamed": (unnamed_parquet, {}),
    "parquet_alone": (lambda root: table(root / "test-0.parquet", range(5)), {}),
    "parquet_beside_images": (mixed_kinds, {}),
    "parquet_text_labels": (text_labels, {}),
    "parquet_other_columns": (other_columns, {}),
    "parquet_two_images": (two_images, {}),
    "parquet_said_columns": (two_images, {"data.image_column": "back", "data.label_column": "age"}),
    "parquet_some_labels": (some_labels, {}),
    "parquet_several_labels": (several_labels, {"data.label_column": "labels"}),
    "parquet_masks": (with_masks, {}),
    "parquet_groups": (with_groups, {}),
    "parquet_arrays": (table_arrays, {"data.channels": 4, "data.range": [0, 65535]}),
    "parquet_different_classes": (different_classes, {}),
    "tars": (tars, {}),
    "tar_odd": (odd_tar, {}),
    "saved": (saved, {}),
    "saved_split": (saved_split, {}),
}  # fmt: skip
