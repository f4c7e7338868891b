"""Write VTAB-1k's 19 tasks as parquet files of square images, for recipe=study/vtab.

    pip install tensorflow-datasets tensorflow
    python docs/examples/prepare_vtab.py SOURCE OUT
    python docs/examples/prepare_vtab.py SOURCE OUT --tasks dtd clevr_count --size 64

SOURCE/BUILDER[/CONFIG] is the folder of a dataset in one of two forms. Nothing is downloaded.

- Files of tensorflow-datasets (TFDS).
- SPLIT.parquet or SPLIT-*.parquet, with TFDS's features as columns and rows in TFDS's order. This
  form does not need the two packages.

For each task that SOURCE contains, the script writes

    OUT/TASK/tune/{train,validation}.parquet    800 and 200 images
    OUT/TASK/final/{train,test}.parquet         all 1,000 images, and the test split

A task that OUT contains already is kept. Labels are made as in the benchmark's code,
google-research/task_adaptation, data/*.py. The numbers in the rules, the builders and the splits
are in recipes/tables/vtab.yaml.
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
VEHICLES = 3  # KITTI's types 0, 1 and 2 are vehicles: car, van, truck
DEPTH = 2  # index of the third coordinate: the distance from the camera
SPLIT = re.compile(r"(\w+)(?:\[(\d*)(%?):(\d*)\])?")  # a split in TFDS's notation

# Labels. An example is {feature: value}


def of_objects(example, feature):
    """Return a feature of all objects of an example.

    TFDS stores objects as {feature: sequence}. Parquet files may store a list of objects instead.
    """
    objects = example["objects"]
    if isinstance(objects, Mapping):
        return objects[feature]
    return [one[feature] for one in objects]


def count_objects(example, less):
    """Return the class of a CLEVR image: the number of objects, 3 to 10, minus `less`."""
    return len(of_objects(example, "size")) - less


def nearest_object(example, cut):
    """Return the class of a CLEVR image: the smallest depth of the objects, in intervals.

    Depth is in pixel coordinates. Class 0 ends at the first number of `cut`, class 1 at the second,
    and so on. The numbers belong to the lower class.
    """
    return bisect_left(cut, min(point[DEPTH] for point in of_objects(example, "pixel_coords")))


def nearest_vehicle(example, cut):
    """Return the class of a KITTI image: the distance of the nearest vehicle, in intervals.

    Vehicles are cars, vans and trucks. Distances are in metres, with intervals as in
    `nearest_object`. Images without a vehicle have the last class.
    """
    objects = zip(of_objects(example, "type"), of_objects(example, "location"), strict=True)
    found = [place[DEPTH] for kind, place in objects if kind < VEHICLES]
    return bisect_left(cut, min(found)) if found else len(cut) + 1


def floor(example, of, by):
    """Return the class of a dSprites image: `by` neighbouring values of a factor form a class."""
    return int(example[of] // by)


RULES = {
    "objects": count_objects,
    "nearest_object": nearest_object,
    "nearest_vehicle": nearest_vehicle,
    "floor": floor,
}


def make_label(example, label):
    """Return the class of an example.

    Args:
        example: {feature: value}.
        label: the name of a feature, or {rule: NAME, and the numbers of the rule}, from the task's
            row.
    """
    if isinstance(label, str):
        return int(example[label])
    arguments = dict(label)
    return RULES[arguments.pop("rule")](example, **arguments)


# Images


def square(image, size):
    """Return an image as the PNG of a square with 3 channels.

    A square image with at most `size` pixels a side keeps the pixels. Other images are resized to
    `size` without keeping the aspect ratio, as the benchmark does.

    Args:
        image: uint8 array with 1 or 3 channels, an encoded image, or {"bytes": encoded image}.
        size: the side of the square in pixels.
    """
    image = image["bytes"] if isinstance(image, dict) else image
    if isinstance(image, bytes):
        image = decoding.decode(image).permute(1, 2, 0).numpy()
    pixels = image[..., None] if image.ndim == 2 else image
    if pixels.max(initial=0) == 1:  # dSprites stores 0 and 1 for black and white
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
    """Return a function that yields the examples of a split of a builder.

    The function takes a split in TFDS's notation: a name and, if only a part is wanted,
    [first:last]. Return None if SOURCE does not contain the builder.
    """
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
    """Return the first row of a split and the row after the last, for `total` rows.

    For train[:800] the rows are 0 and 800. For test[50%:] with 24 rows in total they are 12 and 24.
    """
    _, first, percent, last = SPLIT.fullmatch(split).groups()
    scale = total / 100 if percent else 1
    ends = [round(scale * int(text)) if text else None for text in (first, last)]
    return min(ends[0] or 0, total), total if ends[1] is None else min(ends[1], total)


# Tasks


def write_task(folder, row, read, size):
    """Write a task's files, with the number of images in IMAGES.

    Raises:
        UserError: a label is not a class of the task, a split has too few images, a feature is
            missing, or an image cannot be read.
    """

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
    """Write a parquet file, and return the number of images."""
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
    """Write a task into the task's folder, unless the folder exists.

    The folder gets the final name when all files are written.

    Returns:
        What was done, in words. Empty if the source does not contain the task.

    Raises:
        UserError: the folder exists and lacks a file, or `write_task` fails.
    """
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
    # the paper uses 384 pixels for all tasks (B.1.1)
    parser.add_argument("--size", type=int, default=384, help="side in pixels of what is no square")
    options = parser.parse_args(words)
    for task in options.tasks:
        state = prepare(options.source, options.out, task, options.size)
        builder = TASKS[task]["source"].partition(":")[0]
        print(f"{task}: {state or f'no {builder} in {options.source}'}", flush=True)


if __name__ == "__main__":
    with report_errors():
        main(sys.argv[1:])
