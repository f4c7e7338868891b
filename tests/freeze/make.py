"""Makes the files of numbers that the tests of this folder hold the package against.

    PYTHONPATH=tests python -m freeze.make recipes costs studies images real pairs

`real` needs SSL_VIT_DATA, the folder of cifar10/ and tinyimagenet/. Options are {dotted key: value},
also of a recipe or a preset: {"recipe": "mpp", "model": "vit_p8"}.
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

from freeze.folders import FOLDERS
from freeze.numbers import PAIRS, arm_values
from helpers.options import ROOT
from ssl_vit import costs, resolve, stats
from ssl_vit.data import masks, pixel_values, run_splits
from ssl_vit.data.open import open_splits
from ssl_vit.data.source import Source
from ssl_vit.lab.study import read as study_files
from ssl_vit.lab.study import tasks
from ssl_vit.recipe import recipe_files
from ssl_vit.recipe.check import TRAINING_KEYS
from ssl_vit.recipe.given import Given
from ssl_vit.recipe.images import Data
from ssl_vit.recipe.schema import Recipe, all_keys, computed_values, keys_with_effect

Options = Mapping[str, Any]
HERE = Path(__file__).parent
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
MATCHED = ("methods", "target", "figure4", "figure5", "worth")  # whose arms have equal compute
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


def resolved(options: Options) -> Recipe:
    return resolve(options)


def recipe(name: str) -> Recipe:
    return resolved({"recipe": name} | GIVEN.get(name, {}))


def recipe_values(name: str) -> dict[str, dict[str, Any]]:
    """{group of keys: {key: value}} of the keys in use that decide what a run computes, or what its
    result is of: another value is another experiment, or another measure of it."""
    made = recipe(name)
    values = made.values()
    found = computed_values(made) | {
        key: values[key] for key in keys_with_effect("result") if key in values
    }
    if made.objective == "probe":
        unused = {key for key in all_keys() if {key, key.split(".")[0]} & {*TRAINING_KEYS}}
        found = {key: value for key, value in found.items() if key not in unused}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in found.items():
        group, _, last = key.rpartition(".")
        groups.setdefault(group, {})[last] = value
    return groups


def recipe_cost(name: str) -> dict[str, Any]:
    """Multiply-adds of one image's forward pass, through the encoder and in all, and floating-point
    operations of one image's training step, rounded, for a batch may not divide them; parameters
    in all, those that are trained and those of the encoder."""
    found = costs.compute_network_cost(recipe(name))
    return {
        "features": found.features,
        "forward": None if found.forward is None else round(found.forward),
        "training": None if found.training is None else round(2 * found.training),
        "parameters": found.parameters,
        "trained": found.trained,
        "encoder": found.encoder,
    }


def run_exaflop(options: Options) -> float:
    """10^18 floating-point operations of a whole training run."""
    made = resolved(options)
    found = costs.exaflop(made, made.optim.steps * made.optim.batch)
    assert found is not None
    return found


def of_costs() -> dict[str, Any]:
    """What each recipe costs, and each arm of the studies that match their arms' compute: {study:
    {number of its task: exaFLOP}}, of the tasks of the first seed."""
    matched = {}
    for study in MATCHED:
        found = study_tasks(study)
        matched[study] = {
            str(number): run_exaflop(task["options"])
            for number, task in enumerate(found)
            if task["tool"] == "pretrain" and task["seed"] == found[0]["seed"]
        }
    recipes = {name: recipe_cost(name) for name in recipe_files.recipe_names()}
    return {"recipes": recipes, "matched": matched}


def study_tasks(name: str) -> list[dict[str, Any]]:
    """The tasks of a study of recipes/study/, or of one beside its results, each after those that
    it needs. Names of tasks are their numbers in this list."""
    path = recipe_files.RECIPES / "study" / f"{name}.yaml"
    study = study_files.read(path if path.exists() else ROOT / "results" / f"{name}.yaml")
    plan = tasks.plan_tasks(study, STUDIES[name], Given())
    number = {task: n for n, task in enumerate(plan)}

    def typed(value: Any) -> Any:
        if not isinstance(value, str) or not value.startswith("{"):
            return value
        task, _, rest = value[1:].partition("}")
        return f"{{{number[task]}}}{rest}"

    found = []
    for task in plan.values():
        among, by = task.best or ((), "")
        row: dict[str, Any] = {"tool": task.tool, "seed": task.seed}
        row["options"] = {key: typed(value) for key, value in task.options.items()}
        row["needs"] = sorted(number[one] for one in task.needs if one not in among)
        if among:
            keys = sorted({key for one in among for key in plan[one].tried})
            row["best"] = {"of": sorted(number[one] for one in among), "keys": keys, "by": by}
        found.append(row)
    return found


def of_studies() -> dict[str, Any]:
    """{study: the options that all tasks of a tool have, and the tasks with the others}."""
    found = {}
    for name in STUDIES:
        planned = study_tasks(name)
        shared: dict[str, dict[str, Any]] = {}
        for task in planned:
            own = task["options"]
            known = shared.setdefault(task["tool"], dict(own))
            shared[task["tool"]] = {
                key: value for key, value in known.items() if key in own and own[key] == value
            }
        for task in planned:
            common = shared[task["tool"]]
            task["options"] = {k: v for k, v in task["options"].items() if k not in common}
        found[name] = {"shared": shared, "tasks": planned}
    return found


def data_of(options: Options) -> Data:
    given = {key.removeprefix("data."): value for key, value in options.items()}
    return Data(**({"name": "own"} | given if "path" in given else given))


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


def described(options: Options) -> dict[str, Any]:
    """{split: its count, the names of its classes, and of the first images labels, a hash of all
    pixels, and where there are masks a hash of those}, before shares are taken."""
    data = data_of(options)
    found = {}
    for name, source in open_splits(data).splits.items():
        found[name] = facts(source)
        found[name]["pixels"] = hash_of(first_images(source, data))
        if source.masks.column:
            raw = source.fetch_masks(first_rows(source))
            decoded = [None if one is None else masks.decode(one).numpy() for one in raw]
            if any(one is not None for one in decoded):
                found[name]["masks"] = hash_of(decoded)
    return found


def first_rows(source: Source) -> np.ndarray:
    return np.arange(min(FIRST, len(source)))


def facts(source: Source) -> dict[str, Any]:
    """Its count and classes, and the labels of its first images: -1 for none, or a list without
    what fills it up to the length of the longest."""

    def label(one: int | list[int]) -> int | list[int]:
        if isinstance(one, int):
            return one
        return -1 if one[0] == -1 else [number for number in one if number != -2]

    labels = source.fetch(first_rows(source))[1].tolist()
    return {
        "count": len(source),
        "classes": list(source.classes),
        "labels": [label(one) for one in labels],
    }


def first_images(source: Source, data: Data) -> list[np.ndarray | None]:
    """The first images as they are before any crop, integers (H, W, C); None where one cannot be
    read."""
    decode = pixel_values.decoder(data)

    def pixels(raw: Any) -> np.ndarray | None:
        try:
            return decode(raw).permute(1, 2, 0).numpy()
        except ValueError:
            return None

    return [pixels(raw) for raw in source.fetch(first_rows(source))[0]]


def hash_of(arrays: list[np.ndarray | None]) -> str:
    """Of their shapes and values, whatever integers they are of."""
    known = hashlib.sha256()
    for array in arrays:
        text = "none" if array is None else str(array.shape)
        known.update(text.encode())
        known.update(b"" if array is None else array.astype("<i4").tobytes())
    return known.hexdigest()[:16]


def draws(options: Options) -> dict[str, Any]:
    """{part: the number of its images, and a hash of their rows in order}, of the training,
    held-out and test images of a run; the rows are those of the splits that they are taken from."""
    found = run_splits.load(data_of(options), test=True)
    parts = {"train": found.train, "validation": found.validation, "test": found.test}
    if options.get("data.validation") == 0:
        del parts["validation"]  # those are training images
    rows = {name: part.store_rows() for name, part in parts.items() if part is not None}
    return {name: {"count": len(one), "rows": hash_of([one])} for name, one in rows.items()}


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
    in_jpeg = {}
    for name, source in open_splits(data_of(tiny)).splits.items():
        encoded = source.fetch(first_rows(source))[0]
        images = [one for one in first_images(source, data_of(tiny)) if one is not None]
        in_jpeg[name] = facts(source) | {
            "encoded": hashlib.sha256(b"".join(map(bytes, encoded))).hexdigest()[:16],
            "shapes": sorted({one.shape for one in images}),
            "means": [[round(float(mean), 1) for mean in one.mean((0, 1))] for one in images],
        }
    return {"cifar10": described(cifar), "rows of cifar10": rows, "tinyimagenet": in_jpeg}


def of_pairs() -> dict[str, Any]:
    """{file: {measure: {arm, or "arm - other": n, mean, sd, ends of the 95% interval}}}, over
    seeds, or over pairs of a seed."""
    found: dict[str, Any] = {}
    for file, measures in PAIRS.items():
        for measure, (arms, pairs) in measures.items():
            of_arm = arm_values(file, measure)
            values = {arm: [*of_arm[arm].values()] for arm in arms}
            for arm, other in pairs:
                seeds = of_arm[arm].items()
                values[f"{arm} - {other}"] = [one - of_arm[other][seed] for seed, one in seeds]
            found.setdefault(file, {})[measure] = {
                name: spread(over_seeds) for name, over_seeds in values.items()
            }
    return found


def spread(values: list[float]) -> dict[str, Any]:
    found = stats.summarize(values)
    low, high = found.interval or (None, None)
    return {"n": found.n, "mean": found.mean, "sd": found.sd, "low": low, "high": high}


# {file of numbers: (what makes it, how deep its objects have an entry a line)}
FILES: dict[str, tuple[Callable[[], Any], int]] = {
    "recipes": (lambda: {name: recipe_values(name) for name in recipe_files.recipe_names()}, 2),
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
