"""VTAB-1k's 19 tasks as parquet files of squares, for recipe=study/vtab: from folders of
tensorflow-datasets, or from parquet files with the same features.

    pip install tensorflow-datasets tensorflow
    python docs/examples/prepare_vtab.py SOURCE OUT
    python docs/examples/prepare_vtab.py SOURCE OUT --tasks dtd clevr_count --size 64

SOURCE/BUILDER[/CONFIG] is what tensorflow-datasets wrote, from which nothing is downloaded; or it
holds SPLIT.parquet, or SPLIT-*.parquet, with TFDS's features as columns and rows in TFDS's order,
which needs no such package. Of each task that is there

    OUT/TASK/tune/{train,validation}.parquet    has 800 and 200 images
    OUT/TASK/final/{train,test}.parquet         has all 1,000 images, and the test split

A task that OUT has already is kept. Labels are made as in the benchmark's own code,
google-research/task_adaptation, data/*.py; the rules' numbers, builders and splits are those of
recipes/tables/vtab.yaml.
"""

import argparse
import io
import itertools
import re
import sys
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import yaml
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ssl_vit.data import decoding, transforms
from ssl_vit.errors import UserError, report_errors
from ssl_vit.recipe.recipe_files import TABLES
from ssl_vit.runs.files import replacing

TASKS = yaml.safe_load((TABLES / "vtab.yaml").read_text())  # {task: its row}
IMAGES = {"tune/train": 800, "tune/validation": 200, "final/train": 1000, "final/test": None}
ROW_GROUP = 100  # images
VEHICLES = 3  # KITTI's types below it: car, van, truck
DEPTH = 2  # index of the third coordinate: the distance from the camera
SPLIT = re.compile(r"(\w+)(?:\[(\d*)(%?):(\d*)\])?")  # of TFDS

# Labels, of an example as {feature: value}


def of_objects(example, feature):
    """A feature of an example's objects: of {feature: sequence}, as TFDS has them, or of a list of
    objects, as parquet may."""
    objects = example["objects"]
    if isinstance(objects, Mapping):
        return objects[feature]
    return [one[feature] for one in objects]


def count_objects(example, less):
    """CLEVR: the number of objects, 3 to 10, from 0 on."""
    return len(of_objects(example, "size")) - less


def nearest_object(example, cut):
    """CLEVR: the smallest depth of the objects in pixel coordinates, in classes: 0 up to the first
    number of `cut`, 1 up to the second and so on, the numbers themselves included."""
    return bisect_left(cut, min(point[DEPTH] for point in of_objects(example, "pixel_coords")))


def nearest_vehicle(example, cut):
    """KITTI: the distance of the nearest car, van or truck in metres, in classes; the last class is
    images without one."""
    objects = zip(of_objects(example, "type"), of_objects(example, "location"), strict=True)
    found = [place[DEPTH] for kind, place in objects if kind < VEHICLES]
    return bisect_left(cut, min(found)) if found else len(cut) + 1


def floor(example, of, by):
    """dSprites: neighbouring values of a factor as one class."""
    return int(example[of] // by)


RULES = {
    "objects": count_objects,
    "nearest_object": nearest_object,
    "nearest_vehicle": nearest_vehicle,
    "floor": floor,
}


def make_label(example, label):
    """The class of an example; `label`, of a task's row: a feature, or {rule: NAME, numbers}."""
    if isinstance(label, str):
        return int(example[label])
    arguments = dict(label)
    return RULES[arguments.pop("rule")](example, **arguments)


# Images


def square(image, size):
    """An image (uint8 of 1 or 3 channels, encoded, or {"bytes": encoded}) as a PNG of a square:
    resized to `size` whatever its aspect ratio, as the benchmark does, or as it is where it is a
    square and no larger."""
    image = image["bytes"] if isinstance(image, dict) else image
    if isinstance(image, bytes):
        image = decoding.decode(image).permute(1, 2, 0).numpy()
    pixels = image[..., None] if image.ndim == 2 else image
    if pixels.max(initial=0) == 1:  # dSprites: 0 and 1 are 0 and 255
        pixels = pixels * np.uint8(255)
    pixels = np.repeat(pixels, 3, 2) if pixels.shape[2] == 1 else pixels[..., :3]
    height, width = pixels.shape[:2]
    if height != width or height > size:
        (resized,) = transforms.eval_transform([decoding.decode(pixels)], size, "squash", 1.0)
        pixels = resized.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return file.getvalue()


# Sources


def find_reader(source, builder):
    """What reads the examples of a split of a builder, in TFDS's notation, a name and perhaps
    [first:last]; None where SOURCE has nothing of the builder."""
    folder = source / builder.partition(":")[0]
    if any(folder.glob("*.parquet")):
        return lambda split: of_parquet(folder, split)
    if any(folder.glob("*/dataset_info.json")):
        return lambda split: of_tfds(source, builder, split)
    return None


def of_tfds(source, builder, split):
    import tensorflow_datasets as tfds

    where = {"data_dir": str(source), "shuffle_files": False, "download": False}
    yield from tfds.as_numpy(tfds.load(builder, split=split, **where))


def of_parquet(folder, split):
    name = SPLIT.fullmatch(split)[1]
    files = [*folder.glob(f"{name}.parquet"), *sorted(folder.glob(f"{name}-*.parquet"))]
    if not files:
        raise UserError(f"{folder}: expected {name}.parquet or {name}-*.parquet for {split}")
    first, last = bounds(split, sum(pyarrow.parquet.read_metadata(path).num_rows for path in files))
    batches = (pyarrow.parquet.ParquetFile(path).iter_batches(ROW_GROUP) for path in files)
    begun = 0
    for batch in itertools.chain.from_iterable(batches):
        start, end = max(first - begun, 0), min(last - begun, len(batch))
        begun += len(batch)
        if start < end:
            yield from batch.slice(start, end - start).to_pylist()
        if begun >= last:
            return


def bounds(split, total):
    """The first row of a split and the one after its last, of `total` rows: of train[:800] 0 and
    800, of test[50%:] of 24 rows 12 and 24."""
    _, first, percent, last = SPLIT.fullmatch(split).groups()
    scale = total / 100 if percent else 1
    ends = [round(scale * int(text)) if text else None for text in (first, last)]
    return min(ends[0] or 0, total), total if ends[1] is None else min(ends[1], total)


# Tasks


def write_task(folder, row, read, size):
    """Write a task's files, with as many images as IMAGES says and labels of its classes alone."""

    def cells(split, limit=None):
        for example in itertools.islice(read(row[split]), limit):
            label = make_label(example, row["label"])
            if not 0 <= label < row["classes"]:
                raise UserError(
                    f"{row['source']}: label {label} is none of {row['classes']} classes"
                )
            image = {"bytes": square(example["image"], size), "path": None}
            yield {"image": image, "label": label}

    try:
        train, validation = list(cells("train", 800)), list(cells("validation", 200))
        rows = {
            "tune/train": train,
            "tune/validation": validation,
            "final/train": [*train, *validation],
            "final/test": cells("test"),
        }
        for name, wanted in IMAGES.items():
            count = write(folder / f"{name}.parquet", rows[name])
            if not count or (wanted and count != wanted):
                text = f"expected {wanted or 'test'} images, it has {count}"
                raise UserError(f"{row['source']}: {name}.parquet: {text}")
    except KeyError as error:
        raise UserError(f"{row['source']}: an example lacks the feature {error}") from None
    except ValueError as error:
        raise UserError(f"{row['source']}: an image: {error}") from None


def write(path, cells):
    """Write a file; the number of its images."""
    columns = {"image": datasets.Image(), "label": datasets.Value("int64")}
    schema = datasets.Features(columns).arrow_schema
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with pyarrow.parquet.ParquetWriter(path, schema, compression="none") as writer:
        left = iter(cells)
        while rows := list(itertools.islice(left, ROW_GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            count += len(rows)
    return count


def prepare(source, out, task, size):
    """Write a task into a folder of its own, which gets its name when it is whole, unless it is
    there; what was done, empty where the source has nothing of it."""
    row, folder = TASKS[task], out / task
    if folder.exists():
        lacking = [name for name in IMAGES if not (folder / f"{name}.parquet").is_file()]
        if lacking:
            raise UserError(f"{folder} is not whole: no {lacking[0]}.parquet; remove it")
        return "there already"
    read = find_reader(source, row["source"])
    if read is None:
        return ""
    with replacing(folder) as beside:
        write_task(beside, row, read, size)
    return "made"


def main(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    # 384: the paper's resolution for all tasks (B.1.1)
    parser.add_argument("--size", type=int, default=384, help="side in pixels of what is no square")
    options = parser.parse_args(words)
    for task in options.tasks:
        state = prepare(options.source, options.out, task, options.size)
        builder = TASKS[task]["source"].partition(":")[0]
        print(f"{task}: {state or f'no {builder} in {options.source}'}", flush=True)


if __name__ == "__main__":
    with report_errors():
        main(sys.argv[1:])
