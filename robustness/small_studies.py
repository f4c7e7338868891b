"""Four studies of different kinds with the real tools, tiny, on images drawn here: which files they
leave and what their reports say. `python robustness/baseline.py make FOLDER only=studies`; with
studies=rates,labels only these."""

import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from datasets import ClassLabel, Dataset, Features, Image, disable_progress_bars
from PIL import Image as Pillow
from tree import ROOT, tool

SIDE = 8  # pixels of an image
# {split: images}
SPLITS = {"train": 240, "validation": 40, "test": 60}
VTAB = {"dtd": 47, "camelyon": 2, "dmlab": 6}  # {task: classes}
MODEL = {
    "data.size": SIDE,
    "model.patch": 4,
    "model.width": 8,
    "model.depth": 1,
    "model.heads": 1,
    "model.mlp": 8,
}
SHORT = {
    "optim.steps": 4,
    "optim.warmup": 1,
    "optim.batch": 8,
    "checkpoint.every": 4,
    "eval.every": 4,
    "eval.images": 24,
    "log.every": 2,
    "log.tensorboard": False,
}
CALM = {
    "compute.precision": "float32",
    "compute.threads": 1,
    "compute.workers": 0,
    "compute.compile": False,
}
OWN = {"data.path": "{images}", "data.size": SIDE, "data.validation": "validation"}
PRETRAIN = {"tool": "pretrain", "options": {"recipe": "mpp", **MODEL, **SHORT}}
FINAL = {
    "tool": "finetune",
    "options": {"recipe": "finetune", "supervised.pool": "avg", "optim.lr": 0.03, **SHORT},
}
ARMS = {"scratch": "labels alone", "mpp": "masked patches", "supervised": "all labels"}
STUDIES: dict[str, dict[str, Any]] = {
    "labels": {
        "title": "small: labels",
        "places": ["images"],
        "seeds": [0, 1],
        "arms": {name: ARMS[name] for name in ("scratch", "mpp")},
        "labels": [{"share": 0.5, "steps": 2, "batch": 8}, {"share": 1, "steps": 4, "batch": 8}],
        "options": {**CALM, **OWN},
        "parts": {
            "pretrain": {**PRETRAIN, "by_arm": {"mpp": {}}},
            "scratch": {
                "tool": "pretrain",
                "options": {**MODEL, **SHORT, "recipe": "supervised", "data.share": "{share}"},
                "by_arm": {"scratch": {}},
            },
            "final": {
                **FINAL,
                "options": {
                    **FINAL["options"],
                    "data.share": "{share}",
                    "optim.steps": "{steps}",
                    "optim.batch": "{batch}",
                },
                "by_arm": {"scratch": {"init": "{scratch}"}, "mpp": {"init": "{pretrain}"}},
            },
        },
        "report": {"final": "final", "baseline": "scratch", "candidate": "mpp"},
    },
    "rates": {
        "title": "small: masking rates",
        "places": ["images"],
        "seeds": [0, 1],
        "vary": {"corruption.rate": [0.25, 0.5]},
        "match": "steps",
        "options": {**CALM, **OWN},
        "parts": {
            "pretrain": PRETRAIN,
            "probe": {
                "tool": "evaluate",
                "options": {
                    "recipe": "evaluate",
                    "init": "{pretrain}",
                    "probe.shots": [2],
                    "probe.steps": 5,
                    "probe.batch": 32,
                },
            },
        },
        "report": {"probes": ["probe"]},
    },
    "arms": {
        "title": "small: named arms with a reference",
        "places": ["images"],
        "seeds": [0, 1],
        "arms": ARMS,
        "options": {**CALM, **OWN},
        "parts": {
            "pretrain": {
                **PRETRAIN,
                "by_arm": {
                    "scratch": {"recipe": "supervised", "data.share": 0.5},
                    "mpp": {"recipe": "mpp"},
                    "supervised": {"recipe": "supervised"},
                },
            },
            "sweep": {
                "extends": "final",
                "best": None,
                "seeds": [0],
                "grid": {"optim.lr": [0.03, 0.1]},
                "options": {"eval.test": False},
            },
            "final": {
                **FINAL,
                "best": {"of": "sweep", "by": "accuracy"},
                # after fewer the arms do not differ
                "options": {**FINAL["options"], "optim.steps": 40, "init": "{pretrain}"},
            },
        },
        "report": {
            "final": "final",
            "baseline": "scratch",
            "candidate": "mpp",
            "reference": "supervised",
            "paper": {"scratch": 77.91, "mpp": 79.9, "supervised": 83.97},
        },
    },
    "vtab": {
        "title": "small: stand-ins of VTAB's tasks",
        "extends": "study/vtab",
        "options": {**CALM, **MODEL, **SHORT},
        "parts": {"final": {"options": {"optim.steps": 4}}},
    },
}
# Keys of a report that a clock or the machine decides
CLOCK = {
    *("seconds", "hours", "device_hours", "total_device_hours", "finished", "date", "revision"),
    *("environment", "host", "hardware"),
}


def measure(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    """{study: {"files": names in its folder, "report": of `report --json`}}."""
    names = options["studies"].split(",") if "studies" in options else list(STUDIES)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        draw_images(place / "images")
        return {name: run(name, place) for name in names}


def run(name: str, place: Path) -> dict[str, Any]:
    path = place / f"{name}.yaml"
    path.write_text(yaml.safe_dump(STUDIES[name], sort_keys=False))
    images = f"images={place}/images/own"
    if name == "vtab":
        images = f"data={place}/images/vtab"
    given = ["init=scratch", "seeds=2"] if name == "vtab" else []
    tool("study", f"recipe={path}", f"out={place}/runs", f"name={name}", images, *given)
    folder = place / "runs" / name
    report = json.loads(as_version_1(tool("report", str(folder), "--json").splitlines()[-1]))
    files = sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())
    return {"files": files, "report": without_clock(report, str(place))}


def as_version_1(report: str) -> str:
    """A report's JSON in the layout that older facts have."""
    command = [sys.executable, str(ROOT / "docs" / "report_json_v1.py")]
    return subprocess.run(command, input=report, check=True, capture_output=True, text=True).stdout


def without_clock(value: Any, place: str) -> Any:
    """A report without times and machines; the folder that all lies in is called PLACE."""
    if isinstance(value, dict):
        return {key: without_clock(one, place) for key, one in value.items() if key not in CLOCK}
    if isinstance(value, list):
        return [without_clock(one, place) for one in value]
    return value.replace(place, "PLACE") if isinstance(value, str) else value


def draw_images(folder: Path) -> None:
    """own/SPLIT.parquet in 4 classes, and of each of VTAB the folder that study/vtab asks for."""
    disable_progress_bars()
    draw = np.random.default_rng(0)
    for split, count in SPLITS.items():
        _write(folder / "own" / f"{split}.parquet", count, 4, draw)
    for task, classes in VTAB.items():
        for part, split, count in (
            ("tune", "train", 800),
            ("tune", "validation", 200),
            ("final", "train", 1000),
            ("final", "test", 2 * classes),
        ):
            _write(folder / "vtab" / task / part / f"{split}.parquet", count, classes, draw)


def _write(path: Path, count: int, classes: int, draw: np.random.Generator) -> None:
    """Noise over a brightness that tells the class, so that there is something to learn."""
    labels = [i % classes for i in range(count)]
    cells = []
    for label in labels:
        pixels = draw.integers(0, 100, (SIDE, SIDE, 3)) + 150 * label // max(1, classes - 1)
        file = io.BytesIO()
        Pillow.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
        cells.append({"bytes": file.getvalue(), "path": None})
    names = [f"class {i}" for i in range(classes)]
    features = Features({"image": Image(), "label": ClassLabel(names=names)})
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict({"image": cells, "label": labels}, features=features).to_parquet(str(path))
