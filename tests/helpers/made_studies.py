"""Finished studies that nothing was trained for: their folders, with recipes that the options
resolve to and results that a test gives."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from helpers.measurements import altered_records, written
from helpers.resolving import resolve
from ssl_vit.lab.study import check, launch, read, record
from ssl_vit.lab.study import tasks as tasks_
from ssl_vit.lab.study.tasks import Task, Tasks
from ssl_vit.measurements import UNTRAINED, MetricKey, flat_name
from ssl_vit.recipe.given import Given
from ssl_vit.recipe.init_source import SCRATCH, InitSource
from ssl_vit.recipe.schema import dump
from ssl_vit.runs.identity import recipe_hash

IMAGES = 400
ENVIRONMENT = {
    "python": "3.11.9",
    "packages": {"torch": "2.15.0", "timm": "1.0.24"},
    "revision": "0123456789abcdef+",
    "host": {"cpu": "a processor"},
    "device": "cpu",
    "processes": 1,
    "threads": 2,
    "precision": "float32",
}
EXAFLOP = {"pretrain": 0.02, "finetune": 0.004, "evaluate": 0.001}
# of 400, by seed
RIGHT = {"scratch": (200, 208, 204), "mpp": (220, 226, 226), "mae": (300, 312, 306)}
SHORT = {"optim.steps": 10, "optim.warmup": 1}
ENCODER = {"model": "vit_p8", **SHORT}
PRETRAIN = {"tool": "pretrain", "over": ["arm"], "options": ENCODER}
PROBE = {"recipe": "evaluate", "init": "{pretrain}"}
FINETUNE = {"recipe": "finetune", "init": "{pretrain}", **SHORT}
ARMS = {arm: {"pretrain": {"recipe": arm}} for arm in ("mpp", "mae")}
MADE = {"title": "Made up", "seeds": [0, 1, 2], "options": {"data": "shapes", "data.size": 32}}
FROZEN = MADE | {
    "axes": {"arm": ARMS},
    "runs": {
        "pretrain": PRETRAIN,
        "probe": {"tool": "evaluate", "over": ["arm"], "options": PROBE},
    },
    "report": {"test": "probe"},
}
TUNED = MADE | {
    "axes": {"arm": {"scratch": {"final": {"init": "scratch", "model": "vit_p8"}}, **ARMS}},
    "runs": {
        "pretrain": PRETRAIN | {"only": {"arm": ["mpp", "mae"]}},
        "final": {"tool": "finetune", "over": ["arm"], "options": FINETUNE},
    },
    "report": {"test": "final", "baseline": "scratch"},
}
Measured = dict[str, tuple[float, str]]  # {metric: value, split}


def changed(content: Mapping[str, Any], **new: Any) -> dict[str, Any]:
    """A study with other values at dotted keys, written with two underscores for a dot."""
    found = json.loads(json.dumps(content))
    for key, value in new.items():
        *above, last = key.split("__")
        node = found
        for one in above:
            node = node.setdefault(one, {})
        node[last] = value
    return found


def study(
    folder: Path,
    content: Mapping[str, Any],
    measured: Callable[[Task], Measured | None],
    **facts: Any,
) -> Path:
    """A study's folder.

    Args:
        folder: of the study.
        content: of its file.
        measured: what a task has measured; None of one that has not finished.
        facts: of every run's environment.json.
    """
    read_ = read.build(content, "made.yaml")
    tasks = tasks_.plan_tasks(read_, {}, Given())
    tasks = check.add_recipe_values(tasks, check.recipes(read_, tasks, check_images=False))
    record.write(folder, record.content(read_, tasks))
    for task in tasks.values():
        found = measured(task)
        if found is not None:
            finish(folder, task, tasks, found, **facts)
    return folder


def finish(folder: Path, task: Task, tasks: Tasks, measured: Measured, **facts: Any) -> None:
    """A finished run's folder."""
    place = folder / task.name
    place.mkdir(parents=True)
    words = launch.task_command(task, tasks, folder)[1:]
    recipe = resolve(words, here=False)
    (place / "recipe.yaml").write_text(dump(recipe))
    spent = EXAFLOP[task.tool]
    total = spent + (EXAFLOP["pretrain"] if "{" in task.options.get("init", "") else 0)
    result = {
        "recipe": recipe_hash(recipe),
        "steps": 10,
        "seconds": 1800.0,
        "images": 1000,
        "exaflop": spent,
        "device_hours": 0.5,
        "total_exaflop": total,
        "total_device_hours": 0.5,
        "finished": f"2026-01-0{task.seed % 9 + 1}T00:00:00+00:00",
        "measurements": written(
            {
                name: {"value": value, "split": split, "n": IMAGES}
                for name, (value, split) in measured.items()
            }
        ),
    }
    if task.tool == "evaluate":
        result["pool"] = recipe.probe.pool or "avg"
    write(place / "result.json", result)
    data = {"train": "t", "validation": "v", "test": "x"}
    init = InitSource(recipe.init).identity()
    write(place / "environment.json", ENVIRONMENT | {"data": data, "init": init} | facts)
    (place / "metrics.jsonl").write_text("no row of this is read\n")
    if task.tool == "pretrain":
        export(place)
    if "top1" in measured:
        predict(place, round(measured["top1"][0] * IMAGES))


def export(run: Path) -> None:
    """An encoder that nobody loads."""
    (run / "export").mkdir()
    (run / "export" / "model.safetensors").write_text(f"weights of {run}")
    size = {"patch_size": 8, "img_size": 32, "embed_dim": 96, "depth": 4, "num_heads": 3}
    config = {"architecture": "vit_base_patch16_224", "num_classes": 0, "num_features": 96}
    config |= {"global_pool": "avg", "model_args": size | {"mlp_ratio": 4.0, "global_pool": "avg"}}
    pixels = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "crop_mode": "center"}
    write(
        run / "export" / "config.json",
        config | {"pretrained_cfg": pixels | {"input_size": [3, 32, 32]}},
    )


def predict(run: Path, right: int) -> None:
    """Predictions of which the first so many are right."""
    label = np.arange(IMAGES) % 10
    top5 = (label[:, None] + np.arange(5) + (np.arange(IMAGES) >= right)[:, None]) % 10
    index = np.arange(IMAGES)
    found = {"index": index, "label": label, "top5": top5, "content": index}
    np.savez_compressed(run / "predictions.npz", **found)


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def alter(path: Path, **new: Any) -> None:
    """A JSON file with other values of some keys."""
    write(path, json.loads(path.read_text()) | new)


def with_metric(run: Path, metric: str, **new: Any) -> None:
    """A finished run with other facts of a metric."""
    result = json.loads((run / "result.json").read_text())
    alter(run / "result.json", measurements=altered_records(result, {metric: new}))


def counted(
    right: Mapping[str, tuple[int, ...]] = RIGHT, metric: str = "top1"
) -> Callable[[Task], Measured]:
    """Tests with so many of IMAGES right, by arm and seed; under UNTRAINED those of untrained weights,
    which the evaluation of any other weights measures beside them."""

    def measured(task: Task) -> Measured:
        if task.tool == "pretrain":
            return {"loss": (2.0, "validation")}
        called = task.at.get("arm", task.run)
        found = {metric: (right[called][task.seed] / IMAGES, "test")}
        if UNTRAINED in right and task.options.get("init", SCRATCH) != SCRATCH:
            found[flat_name(MetricKey(metric, UNTRAINED))] = (
                right[UNTRAINED][task.seed] / IMAGES,
                "test",
            )
        return found

    return measured
