"""Runs made up for their pages."""

import json

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

from helpers.made_studies import ENVIRONMENT, export
from helpers.measurements import written
from helpers.resolving import resolved
from ssl_vit.recipe.schema import dump

EVIL = "<script>alert(1)</script></script><!--\"'|`&lt; **b** \u202e"
OPTIONS = ["recipe=mpp", "optim.steps=1000", "optim.batch=64", "model.depth=2"]
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="648" height="300"/>'
BASELINES = {"entropy": 4.1, "commonest": 0.07, "neighbors": 0.16}
MEASURED = {"accuracy_masked": 0.5, "commonest": 0.07, "neighbors": 0.45, "loss": 2.25}


def rows(count=20, **more):
    """Rows of metrics.jsonl, each tenth with held-out metrics."""
    made = []
    for i in range(1, count + 1):
        row = {
            "step": 10 * i,
            "images": 640 * i,
            "loss": 6 - i / 10,
            "accuracy_masked": i / 100,
            "lr": 1e-3,
            "images_per_s": 100.0,
            "data_wait": 0.1,
            "memory_gib": 1 + i / 100,
        }
        if i % 10 == 0:
            row |= {f"validation/{name}": value for name, value in BASELINES.items()}
            row |= {"validation/loss": 5 - i / 10, "validation/accuracy_masked": i / 50}
        made.append(row | more)
    return made


def make_run(folder, *options, metrics=None, finished=True, found=None, environment=None):
    """A run's folder, written by hand."""
    folder.mkdir(parents=True)
    given = [*OPTIONS, *options]
    made = resolved([*given, "name=made", f"out={folder.parent}"], here=False)
    recipe = made.recipe
    recipe.name = folder.name
    origin = made.recipe_file()
    facts = ENVIRONMENT | {"recipe_file": origin, "classes": ["cat", "dog"]}
    facts |= {"data": {"train": "0123"}, "images": {"train": 50000}} | (environment or {})
    (folder / "recipe.yaml").write_text(dump(recipe))
    (folder / "environment.json").write_text(json.dumps(facts))
    lines = rows() if metrics is None else metrics
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    (folder / "log.txt").write_text("2026-11-22 07:57:06 started at step 0 on 1 processes\n")
    (folder / "figures").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "figures" / "predictions.png")
    (folder / "figures" / "predictions.svg").write_text(SVG)
    if finished:
        result = {
            "steps": 1000,
            "images": 64000,
            "exaflop": 1.5e-5,
            "device_hours": 0.11,
            "seconds": 398.0,
            "finished": "2026-11-22T08:03:46+00:00",
        }
        measured = {
            name: {"value": value, "n": 100, "split": "validation"}
            for name, value in MEASURED.items()
        } | (found or {})
        result["measurements"] = written(measured, facts.get("measured_on"))
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def with_export(run):
    """A run's folder with an encoder that lists of runs accept. Its weights are one number."""
    export(run)
    path = run / "export" / "config.json"
    path.write_text(
        path.read_text().replace('"crop_pct"', '"interpolation": "bicubic", "crop_pct"')
    )
    save_file({"number": np.zeros(1)}, path.with_name("model.safetensors"))
    return run


def evil_run(folder, finished=True):
    """A run whose every name that others choose looks like markup."""
    metrics = [
        row | {EVIL: float(row["step"]), f"validation/{EVIL}": 2.0 * row["step"]} for row in rows()
    ]
    found = {EVIL: {"value": 1.0, "n": 3, "split": EVIL}}
    environment = {"classes": [EVIL], "device": EVIL, "host": {"cpu": EVIL, "system": EVIL}}
    environment |= {"data": {EVIL: EVIL}, "packages": {EVIL: EVIL}}
    environment |= {"recipe_file": {"name": EVIL, "differs": {"data.name": EVIL}}}
    make_run(folder, metrics=metrics, found=found, environment=environment, finished=finished)
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("shapes", json.dumps(EVIL)))
    with (folder / "log.txt").open("a") as log:
        log.write(f"2026-11-22 08:00:00 warning: {EVIL}\n")
    (folder / "figures" / "predictions.svg").rename(folder / "figures" / "<b>'.svg")
    return folder
