"""Finished studies that vary keys, made up."""

import json

from helpers.arm_studies import ENVIRONMENT
from helpers.reports import write

RATES = {
    "rate=0.15": {"corruption.rate": 0.15},
    "rate=0.5": {"corruption.rate": 0.5},
    "rate=0.95": {"corruption.rate": 0.95},
}
FEW = {
    "rate=0.15": (0.40, 0.42, 0.41),
    "rate=0.5": (0.45, 0.46, 0.47),
    "rate=0.95": (0.30, 0.31, 0.29),
}
REPORT = {"probes": ["probe"], "pairs": ["0.5:0.15"], "measure": "few_shot_5"}


def study(folder, few=FEW, vary=RATES, recipes=None, beside=(), **more):
    """A finished study: the few-shot accuracies of each arm's seeds; linear is twice that; the
    held-out loss 3 less that."""
    tasks = []
    for arm, values in few.items():
        for seed in range(len(values)):
            pretrain = {
                "name": f"pretrain-{arm}-{seed}",
                "part": "pretrain",
                "tool": "pretrain",
                "needs": [],
            }
            probe = {
                "name": f"probe-{arm}-{seed}",
                "part": "probe",
                "tool": "evaluate",
                "needs": [pretrain["name"]],
            }
            tasks += [
                one | {"arm": arm, "seed": seed, "values": {}, "options": []}
                for one in (pretrain, probe)
            ]
    arms = {arm: f"the arm {arm}" for arm in [*vary, *beside]}
    about = {
        "name": "made",
        "title": "Made up",
        "arms": arms,
        "seeds": [0, 1, 2],
        "vary": vary,
        "match": "steps",
    }
    about |= {"report": REPORT, "tasks": tasks} | more
    folder.mkdir(parents=True)
    write(folder / "study.json", about)
    for one in tasks:
        finish(
            folder,
            one,
            few[one["arm"]][one["seed"]],
            {"objective": "mpp", **(recipes or vary).get(one["arm"], {})},
        )
    return folder


def finish(folder, one, few, recipe):
    place, trained = folder / one["name"], one["part"] == "pretrain"
    place.mkdir()
    pretrained = {
        "loss": 3 - few,
        "accuracy_masked": few / 2,
        "accuracy": few,
        "corrupted": 8.0,
        "entropy": 4.0,
    }
    metrics = pretrained if trained else {"few_shot_5": few, "linear": 2 * few}
    entries = {
        name: {"value": value, "n": 9, "split": "validation" if trained else "test"}
        for name, value in metrics.items()
    }
    result = {
        "steps": 10 if trained else 0,
        "images": 100,
        "exaflop": 0.25 if trained else 0.05,
        "device_hours": 0.5,
    }
    result |= {
        "seconds": 1800.0,
        "metrics": entries,
        "finished": f"2026-01-0{one['seed'] + 1}T00:00:00+00:00",
    }
    write(place / "result.json", result)
    write(place / "environment.json", ENVIRONMENT | {"data": {"test": "x"}})
    (place / "recipe.yaml").write_text(
        "".join(f"{key}: {json.dumps(value)}\n" for key, value in recipe.items())
    )
