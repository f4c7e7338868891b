"""Finished studies of three named arms, made up."""

import json

import numpy as np

from helpers.reports import write

IMAGES = 400
# of 400, by seed
RIGHT = {"scratch": (200, 208, 204), "mpp": (220, 226, 226), "supervised": (300, 312, 306)}
EXAFLOP = {"pretrain": 0.02, "sweep": 0.002, "final": 0.004, "direct": 0.004, "probe": 0.0}
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
REPORT = {
    "final": "final",
    "probes": ["probe"],
    "baseline": "scratch",
    "candidate": "mpp",
    "reference": "supervised",
    "extra": ["direct"],
    "paper": {"scratch": 77.91, "mpp": 79.9, "supervised": 83.97},
    "differs": ["CIFAR-10 in place of ImageNet"],
}
TOP1 = "top-1 after fine-tuning, %: arm"
ARMS = {arm: f"the arm {arm}" for arm in RIGHT}


def task(part, arm, seed, tool="finetune", values=None, needs=()):
    name = f"{part}-{arm}-{seed}" + "".join(
        f"-{key.split('.')[-1]}={value}" for key, value in (values or {}).items()
    )
    return {
        "name": name,
        "part": part,
        "tool": tool,
        "arm": arm,
        "seed": seed,
        "values": values or {},
        "needs": list(needs),
        "options": [],
    }


def study(folder, right=RIGHT, **more):
    """A gap study's folder, all finished; `right` says how many of the first images each arm's
    seeds have right."""
    tasks = []
    for arm, counts in right.items():
        for seed in range(len(counts)):
            tasks.append(task("pretrain", arm, seed, "pretrain"))
        sweep = [
            task("sweep", arm, 0, values={"optim.lr": lr}, needs=[f"pretrain-{arm}-0"])
            for lr in (0.01, 0.03, 0.1)
        ]
        tasks += sweep
        for seed in range(len(counts)):
            needs = [f"pretrain-{arm}-{seed}"]
            tasks.append(task("final", arm, seed, needs=[*needs, *(one["name"] for one in sweep)]))
            tasks.append(task("probe", arm, seed, "evaluate", needs=needs))
    tasks += [task("direct", "scratch", seed) for seed in range(len(right["scratch"]))]
    about = {
        "name": "gap",
        "title": "A gap made up",
        "arms": ARMS,
        "seeds": [0, 1, 2],
        "report": REPORT,
        "tasks": tasks,
    } | more
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps(about))
    for one in tasks:
        finish(folder, one, right[one["arm"]][one["seed"]])
    return folder


def finish(folder, one, count):
    """A finished run's folder."""
    place, part = folder / one["name"], one["part"]
    place.mkdir()
    named = {
        "pretrain": {"loss": (2.0, "validation"), "accuracy": (0.4, "validation")},
        "sweep": {
            "accuracy": (
                0.5 + one["values"].get("optim.lr", 0) * (2 if one["arm"] == "mpp" else -1),
                "validation",
            )
        },
        "probe": {
            "few_shot_10": (count / 800, "test"),
            "few_shot_5": (count / 1000, "test"),
            "linear": (count / 500, "test"),
        },
    }.get(
        part, {"accuracy": (0.9, "train"), "top1": (count / IMAGES, "test"), "top5": (0.99, "test")}
    )
    result = {
        "steps": 10,
        "images": 1000,
        "exaflop": EXAFLOP[part],
        "device_hours": 0.5,
        "total_exaflop": EXAFLOP[part] + (EXAFLOP["pretrain"] if one["needs"] else 0),
        "seconds": 1800.0,
        "metrics": {
            name: {"value": value, "n": IMAGES, "split": split}
            for name, (value, split) in named.items()
        },
        "recipe": "0" * 16,
        "finished": f"2026-01-0{one['seed'] + 1}T00:00:00+00:00",
    }
    write(place / "result.json", result)
    write(
        place / "environment.json",
        ENVIRONMENT | {"data": {"train": "t", "validation": "v", "test": "x"}},
    )
    rows = [
        {"step": step, "images": step, "loss": 1 / step, "validation/accuracy": step / 20}
        for step in (5, 10)
    ]
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if part in ("final", "direct"):
        predict(place, np.arange(IMAGES) < count)


def predict(place, right_M, labels=None):
    label = np.arange(IMAGES) % 10 if labels is None else labels
    top5 = (label[:, None] + np.arange(5) + ~right_M[:, None]) % 10
    np.savez_compressed(place / "predictions.npz", index=np.arange(IMAGES), label=label, top5=top5)
