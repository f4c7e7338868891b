"""Makes the files of numbers that the tests of this folder hold the package against.

    PYTHONPATH=tests python -m freeze.make recipes costs studies images real pairs

`real` needs SSL_VIT_DATA, the folder of cifar10/ and tinyimagenet/.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from freeze import today
from freeze.folders import FOLDERS
from freeze.numbers import PAIRS, arm_values

HERE = Path(__file__).parent
# Keys and choices that go have no part in what is frozen: another choice is given where they were
GOING = {"data.window", "data.labelled", "data.verified", "log.tensorboard", "probe.bank"}
GIVEN: dict[str, dict[str, Any]] = {
    "simmim_b16": {"model.positions": "learned"},
    "distill": {"distill.teacher": "timm:vit_tiny_patch16_224"},
    "segment": {"probe.measures": ["segmentation"]},
}
FIRST = 64  # images of a split that are hashed

# {study: the places that are given}
STUDIES: dict[str, dict[str, str]] = {
    "gap": {},
    "masking_rate": {},
    "labels": {},
    "methods": {"cifar10": "CIFAR10"},
    "target": {"cifar10": "CIFAR10"},
    "further": {"init": "INIT", "images": "IMAGES"},
    "figure4": {},
    "figure5": {},
    "table4": {
        name: name.upper()
        for name in ("init", "imagenet", "cifar10", "cifar100", "pets", "flowers102")
    },
    "vtab": {"init": "INIT", "data": "DATA"},
    "worth": {"cifar10": "CIFAR10", "tinyimagenet": "TINYIMAGENET"},
}
MATCHED = (
    "methods",
    "target",
    "figure4",
    "figure5",
    "worth",
)  # studies whose arms have equal compute
# which images a run takes, by its options
DRAWS: list[dict[str, Any]] = [
    {},
    {"data.share": 0.02},
    {"data.share": 0.02, "data.share_seed": 11},
    {"data.share": 0.01, "data.share_seed": 12, "data.validation": 0.02, "data.validation_from": "train"},
    {"data.share": 0.1, "data.validation": 0.1},
    {"data.validation": 0.0, "data.test": 0.2},
    {"data.share": 0.5, "data.test": 0.1, "data.validation": 0.1},
]  # fmt: skip


def of_recipes() -> dict[str, Any]:
    return {name: recipe_values(name) for name in today.recipe_names()}


def recipe_values(name: str) -> dict[str, dict[str, Any]]:
    """{group of keys: {key: value}}."""
    groups: dict[str, dict[str, Any]] = {}
    for key, value in today.compute_values(recipe(name)).items():
        if key not in GOING:
            group, _, last = key.rpartition(".")
            groups.setdefault(group, {})[last] = value
    return groups


def recipe(name: str) -> dict[str, Any]:
    return {"recipe": name} | GIVEN.get(name, {})


def of_costs() -> dict[str, Any]:
    """What each recipe costs, and each arm of the studies that match their arms' compute: {study:
    {number of its task: exaFLOP}}, of the tasks of the first seed."""
    matched = {}
    for study in MATCHED:
        tasks = study_tasks(study)
        chosen = {
            str(number): today.run_exaflop(task["options"])
            for number, task in enumerate(tasks)
            if task["tool"] == "pretrain" and task["seed"] == tasks[0]["seed"]
        }
        matched[study] = chosen
    return {
        "recipes": {name: today.cost(recipe(name)) for name in today.recipe_names()},
        "matched": matched,
    }


def study_tasks(name: str) -> list[dict[str, Any]]:
    """The tasks of a study; names of tasks are their numbers in this list."""
    tasks = today.study_tasks(name, STUDIES[name])
    number = {task.name: n for n, task in enumerate(tasks)}
    found = []
    for task in tasks:
        options = {
            key: _numbered(value, number) for key, value in task.options.items() if key not in GOING
        }
        row = {"tool": task.tool, "seed": task.seed, "options": options}
        row["needs"] = sorted(number[one] for one in task.needs)
        if task.chosen_from:
            row["best"] = {
                "of": sorted(number[one] for one in task.chosen_from),
                "keys": sorted(task.chosen),
                "by": task.by,
            }
        found.append(row)
    return found


def _numbered(value: Any, number: Mapping[str, int]) -> Any:
    if isinstance(value, str) and value.startswith("{"):
        name, _, rest = value[1:].partition("}")
        return f"{{{number[name]}}}{rest}"
    return value


def of_studies() -> dict[str, Any]:
    """{study: the options that all tasks of a tool have, and the tasks with the others}."""
    found = {}
    for name in STUDIES:
        tasks = study_tasks(name)
        shared: dict[str, dict[str, Any]] = {}
        for task in tasks:
            own = task["options"]
            known = shared.setdefault(task["tool"], dict(own))
            shared[task["tool"]] = {
                key: value for key, value in known.items() if key in own and own[key] == value
            }
        for task in tasks:
            common = shared[task["tool"]]
            task["options"] = {k: v for k, v in task["options"].items() if k not in common}
        found[name] = {"shared": shared, "tasks": tasks}
    return found


def of_images() -> dict[str, Any]:
    """The embedded set, what is drawn from it, and the odd folders."""
    drawn = {f"shapes {size}": described({"data.size": size}) for size in (16, 32, 64)}
    rows = {json.dumps(options): draws({"data.size": 32} | options) for options in DRAWS}
    with tempfile.TemporaryDirectory() as folder:
        odd = {name: odd_folder(name, Path(folder)) for name in FOLDERS}
        divided = groups(Path(folder))
    return {"drawn": drawn, "rows": rows, "groups": divided, "folders": odd}


def groups(below: Path) -> dict[str, Any]:
    """Images of patients, each in one part alone."""
    write, _ = FOLDERS["parquet_groups"]
    write(below / "groups")
    options = {"data.group": "patient", "data.validation": 0.2, "data.test": 0.2}
    return draws({"data.path": str(below / "groups")} | options)


def odd_folder(name: str, below: Path) -> dict[str, Any]:
    write, options = FOLDERS[name]
    write(below / name)
    return described({"data.path": str(below / name)} | options)


def described(options: Mapping[str, Any]) -> dict[str, Any]:
    """{split: its count, the names of its classes, and of the first images labels, a hash of all
    pixels, and where there are masks a hash of those}."""
    found = {}
    for name, split in today.splits(options, FIRST).items():
        found[name] = {
            "count": split.count,
            "classes": split.classes,
            "labels": [one.label for one in split.first],
            "pixels": hash_of([one.pixels for one in split.first]),
        }
        if any(one.mask is not None for one in split.first):
            found[name]["masks"] = hash_of([one.mask for one in split.first])
    return found


def hash_of(arrays: list[np.ndarray | None]) -> str:
    """Of their shapes and values, whatever integers they are of."""
    known = hashlib.sha256()
    for array in arrays:
        text = "none" if array is None else str(array.shape)
        known.update(text.encode())
        known.update(b"" if array is None else array.astype("<i4").tobytes())
    return known.hexdigest()[:16]


def draws(options: Mapping[str, Any]) -> dict[str, Any]:
    """{part: the number of its images, and a hash of their rows in order}."""
    found = today.drawn_rows(options)
    if options.get("data.validation") == 0:
        del found["validation"]  # those are training images
    return {name: {"count": len(rows), "rows": hash_of([rows])} for name, rows in found.items()}


def of_real() -> dict[str, Any]:
    """The real sets. CIFAR-10 is stored without loss; of Tiny ImageNet's JPEG, which versions of a
    decoder may round otherwise, the encoded bytes are hashed, and each channel's mean is kept."""
    folder = Path(os.environ["SSL_VIT_DATA"])
    cifar, tiny = ({"data.path": str(folder / name)} for name in ("cifar10", "tinyimagenet"))
    share = {"data.validation": 0.02, "data.validation_from": "train"}
    rows = {
        f"{seed} {part}": draws(cifar | share | {"data.share": part, "data.share_seed": seed})
        for seed in (11, 12, 13, 14, 15)
        for part in (0.01, 0.1)
    }
    return {"cifar10": described(cifar), "rows of cifar10": rows, "tinyimagenet": in_jpeg(tiny)}


def in_jpeg(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, split in today.splits(options, FIRST).items():
        known = hashlib.sha256(b"".join(today.encoded(options, name, FIRST)))
        images = [one.pixels for one in split.first if one.pixels is not None]
        found[name] = {
            "count": split.count,
            "classes": split.classes,
            "labels": [one.label for one in split.first],
            "encoded": known.hexdigest()[:16],
            "shapes": sorted({one.shape for one in images}),
            "means": [[round(float(mean), 1) for mean in one.mean((0, 1))] for one in images],
        }
    return found


def of_pairs() -> dict[str, Any]:
    """{file: {measure: {arm, or "arm - other": n, mean, sd, ends of the 95% interval}}}."""
    found: dict[str, Any] = {}
    for file, measures in PAIRS.items():
        for measure, (arms, pairs) in measures.items():
            values = arm_values(file, measure)
            own = {arm: today.summary([*values[arm].values()]) for arm in arms}
            apart = {
                f"{arm} - {other}": today.paired(values[arm], values[other]) for arm, other in pairs
            }
            found.setdefault(file, {})[measure] = own | apart
    return found


# {file of numbers: (what makes it, how deep its objects have an entry a line)}
FILES: dict[str, tuple[Callable[[], Any], int]] = {
    "recipes": (of_recipes, 2),
    "costs": (of_costs, 2),
    "studies": (of_studies, 3),
    "images": (of_images, 3),
    "real": (of_real, 3),
    "pairs": (of_pairs, 3),
}


def text_of(value: Any, depth: int, indent: int = 0) -> str:
    """JSON with an entry a line down to a depth."""
    if not depth or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    start, end = "{}" if isinstance(value, dict) else "[]"
    inner = [
        text_of(one, depth - 1, indent + 1) for one in (value.values() if start == "{" else value)
    ]
    if isinstance(value, dict):
        inner = [
            f"{json.dumps(key, ensure_ascii=False)}: {one}"
            for key, one in zip(value, inner, strict=True)
        ]
    blank = "\n" + " " * indent
    return f"{start}{blank} {f',{blank} '.join(inner)}{blank}{end}"


def read(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


if __name__ == "__main__":
    cache = tempfile.TemporaryDirectory()
    datasets.config.HF_DATASETS_CACHE = Path(cache.name)
    for chosen in sys.argv[1:]:
        make, depth = FILES[chosen]
        (HERE / f"{chosen}.json").write_text(text_of(make(), depth) + "\n")
        print(f"{HERE.name}/{chosen}.json")
