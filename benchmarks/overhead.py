"""Where the CPU time of a short run goes: imports, opening and fingerprinting images, network,
baselines, steps, probes, figures, page, export and leaving Python.

    python benchmarks/overhead.py images=photos rounds=3 save=false

`photos` holds class folders in train/ and test/. The script pre-trains (recipe=mae), fine-tunes that
encoder and evaluates it frozen, each in a new process on one thread, and prints one JSON object:
CPU seconds by part for each of CASES, as the median over the rounds. save=true adds the object to
results/overhead.json. `first line` and `first step` are the CPU seconds until the run has printed
its first line and made its first step.

The time between entering and leaving a function belongs to the function's part, without the parts
inside it. Importing counts as `imports` wherever it happens, and torch's own imports as
`import torch`. `leaving Python` is what the process used after its last line.
"""

import builtins
import importlib
import inspect
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ |= {"OMP_NUM_THREADS": "1"}

DEFAULTS = {"images": "photos", "cases": "vit_p8,vit_s16", "rounds": "3", "save": "false"}
# {model: image size, training and test images of the folder}
CASES = {"vit_p8": (32, 1500, 600), "vit_s16": (224, 150, 60)}
RUN = ["optim.steps=8", "optim.batch=32", "compute.threads=1", "compute.workers=0"]
RUN += ["compute.precision=float32"]
TRAIN = "ssl_vit.jobs.train"
EVALUATE = "ssl_vit.jobs.evaluate"
# {tool: the module that it imports before it works}
TOOLS = {"pretrain": TRAIN, "finetune": TRAIN, "evaluate": EVALUATE}
# {module: {function, or Class.method: part}}
PARTS = {
    "ssl_vit.jobs.session": {"Session.load_splits": "opening images"},
    "ssl_vit.data.fingerprints": {"fingerprint_splits": "fingerprinting images"},
    "ssl_vit.jobs.setup": {"read_batches": "reading held-out images"},
    "ssl_vit.evaluation.online": {
        "prepare": "reading images of probes",
        "OnlineProbes.__call__": "probes during training",
        "OnlineProbes.compare": "probes of untrained weights and pixels",
    },
    "ssl_vit.jobs.finish": {
        "_test": "test images",
        "export": "export",
        "write_page": "page",
    },
    "ssl_vit.inspection": {"save_figures": "figures"},
    "ssl_vit.training.loop": {
        "seconds_per_step": "timing a step",
        "train": "steps",
        "evaluate": "held-out evaluation",
    },
    "ssl_vit.training.checkpoint": {"save": "checkpoints"},
    "ssl_vit.costs": {"compute_network_cost": "counting operations"},
    "ssl_vit.jobs.run_result": {"run_result": "summary"},
    TRAIN: {
        "set_up": "network and optimiser",
        "_measure_baselines": "baselines",
        "print_banner": "banner",
    },
    EVALUATE: {
        "_open_images": "opening images",
        "_build_fresh_baseline": "untrained network",
        "_run_feature_probes": "features and probes, untrained weights included",
    },
}


class Clock:
    """CPU seconds of this process by part."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.marks: dict[str, float] = {}
        self.parts = ["recipe and all else"]
        self.since = 0.0

    def _book(self) -> None:
        now = time.process_time()
        self.spent[self.parts[-1]] += now - self.since
        self.since = now

    def call(self, part: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function and book its time to a part."""
        self._book()
        self.parts.append(part)
        try:
            return function(*args, **kwargs)
        finally:
            self._book()
            self.parts.pop()

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Book all calls of a function of a module or class to a part."""
        function = getattr(owner, name)
        is_generator = inspect.isgeneratorfunction(function)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if is_generator:  # which computes nothing until somebody asks for its values
                return self.call(part, lambda: [*function(*args, **kwargs)])
            return self.call(part, function, *args, **kwargs)

        setattr(owner, name, timed)

    def mark_first(self, owner: Any, name: str, mark: str) -> None:
        """Note the CPU seconds at which a function first returns."""
        function = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            value = function(*args, **kwargs)
            self.marks.setdefault(mark, time.process_time())
            return value

        setattr(owner, name, noted)

    def watch_imports(self) -> None:
        """Book all imports, and within them the first import of torch."""
        importing = builtins.__import__

        def timed(name: str, *args: Any, **kwargs: Any) -> Any:
            part = "imports"
            if name.partition(".")[0] == "torch" and "torch" not in sys.modules:
                part = "import torch"
            if part == "imports" and self.parts[-1] in ("imports", "import torch"):
                return importing(name, *args, **kwargs)
            return self.call(part, importing, name, *args, **kwargs)

        builtins.__import__ = timed
        self.wrap(importlib, "import_module", "imports")


def run_timed(tool: str, options: list[str], file: Path) -> None:
    """Run a tool in this process, and write the CPU seconds of its parts to a file."""
    clock = Clock()
    clock.watch_imports()
    clock.mark_first(sys.stdout, "write", "first line")
    from ssl_vit import __main__ as command_line
    from ssl_vit.jobs import cli

    def work(run: Any) -> Any:
        with cli.without_collections():
            for module in PARTS:
                if module == TOOLS[tool] or module not in TOOLS.values():
                    importlib.import_module(module)
        for module, functions in PARTS.items():
            for name, part in functions.items() if module in sys.modules else ():
                owner, _, method = name.rpartition(".")
                place = sys.modules[module]
                clock.wrap(getattr(place, owner) if owner else place, method, part)
        from ssl_vit.training.strategy import Strategy

        clock.mark_first(Strategy, "update", "first step")
        return job.run(run)

    job = getattr(cli, tool.upper())
    setattr(cli, tool.upper(), job._replace(run=work))
    with suppress(SystemExit):  # `measure` sees whether the run has a result
        command_line.main([tool, *options])
    clock._book()
    file.write_text(json.dumps({"parts": clock.spent, "marks": clock.marks}))


def measure(tool: str, options: list[str], place: Path) -> dict[str, float]:
    """CPU seconds of a tool in a new process: its parts, `total`, and the marks."""
    file = place / f"{tool}.json"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, __file__, f"file={file}", tool, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if not (file.exists() and (place / tool / "result.json").exists()):
        sys.exit(f"{tool} failed:\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = json.loads(file.read_text())
    parts = found["parts"] | {"leaving Python": total - sum(found["parts"].values())}
    return parts | {"total": total} | found["marks"]


def link_images(images: Path, place: Path, train: int, test: int) -> Path:
    """Make a folder with links to the first images of each class: `train` and `test` in all."""
    for split, count in (("train", train), ("test", test)):
        classes = sorted(path for path in (images / split).iterdir() if path.is_dir())
        for folder in classes:
            (place / split / folder.name).mkdir(parents=True)
            for path in sorted(folder.iterdir())[: count // len(classes)]:
                (place / split / folder.name / path.name).symlink_to(path.resolve())
    return place


def measure_round(model: str, images: Path) -> dict[str, dict[str, float]]:
    """Measure a pre-training, and a fine-tuning and an evaluation of its encoder."""
    size, train, test = CASES[model]
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        data = link_images(images, place / "images", train, test)
        shared = [f"data.path={data}", f"data.size={size}", f"out={place}"]
        warmup = ["optim.warmup=1"]
        encoder = f"init={place / 'pretrain'}"
        options = {
            "pretrain": ["recipe=mae", f"model={model}", *warmup, *RUN],
            "finetune": ["recipe=finetune", encoder, *warmup, *RUN],
            "evaluate": ["recipe=evaluate", encoder, *RUN[2:]],
        }
        return {
            f"{tool}, {model} at {size} px": measure(tool, [*words, *shared, f"name={tool}"], place)
            for tool, words in options.items()
        }


def main() -> None:
    if sys.argv[1].startswith("file="):
        run_timed(sys.argv[2], sys.argv[3:], Path(sys.argv[1].removeprefix("file=")))
        return
    from step import finish, given_options, spread

    given = given_options(DEFAULTS, sys.argv[1:])
    rounds = int(given["rounds"])
    report: dict[str, Any] = {"rounds": rounds, "threads": 1}
    for model in given["cases"].split(","):
        measured = [measure_round(model, Path(given["images"])) for _ in range(rounds)]
        for case in measured[0]:
            parts = dict.fromkeys(part for found in measured for part in found[case])
            report[case] = {
                part: spread([found[case].get(part, 0.0) for found in measured]) for part in parts
            }
    import torch

    finish(report, "overhead.json", given["save"] == "true", [torch])


if __name__ == "__main__":
    main()
