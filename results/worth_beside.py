"""Two rows beside study/worth, at 1% of the labels: MAE tuned without the dev split, self-training.

python results/worth_beside.py folds RUNS OUT 11 12 ... > results/worth_folds.json
python results/worth_beside.py self_training RUNS OUT 11 12 ... > results/worth_self_training.json

RUNS is the folder of study/worth, with its weights; the numbers are seeds of it. Both rows have the
tries of study/worth_tuning, in two rounds like its arms. `folds` chooses MAE's fine-tuning in five
folds of a seed's own labels, by how many are right when held out. `self_training` (Lee, 2013) gives
every image but those of the share and the dev split the class that the best network from scratch
predicts; a new network learns these for as many steps as scratch had before its fine-tuning, and is
then fine-tuned on the share, tuned on the dev split of seed 10. Called again, both go on where they
were; two calls may work at once on different seeds, of self-training once one seed is finished.
"""

import contextlib
import hashlib
import itertools
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import label_sets
import tuning

import ssl_vit
from ssl_vit.errors import UserError
from ssl_vit.lab.studies.read_study import read
from ssl_vit.lab.studies.study_file import find

SHARE = "0.01"
TUNING_SEED = 10  # of study/worth_tuning, which confirms nothing
OWN_LABELS = ("data.share", "data.share_seed", "data.validation", "data.validation_from")
Options = dict[str, Any]


class Runs:
    """Those of study/worth in a folder, and new ones beside them in another."""

    def __init__(self, study: Path, out: Path) -> None:
        self.study, self.out = study, out
        self.tasks = {
            one["name"]: one for one in json.loads((study / "study.json").read_text())["tasks"]
        }
        self.seeds = sorted({one["seed"] for one in self.tasks.values()})

    def options(self, part: str, arm: str, seed: int) -> Options:
        """Those of a task of the study. What the tuning seed has not are scratch's tasks of another
        seed, without the weights that they start from.

        Raises:
            SystemExit: the study has no such task.
        """
        known = self.seeds[0] if (arm, seed) == ("scratch", TUNING_SEED) else seed
        name = f"{part}_{SHARE}-{arm}-{known}"
        if name not in self.tasks:
            sys.exit(f"error: {self.study}: no task {name}; its seeds: {self.seeds}")
        found: Options = dict(one.split("=", 1) for one in self.tasks[name]["options"])
        if known != seed:
            found.pop("init", None)
        elif "init" in found:
            found["init"] = self.study / found["init"].strip("{}")
        return found | {"data.share_seed": seed, "seed": seed}

    def train(self, name: str, options: Options) -> Any:
        """The result of a new run; of one that has finished without training it again.

        Raises:
            UserError: it has finished with other options or from other weights.
        """
        tool = ssl_vit.finetune if "init" in options else ssl_vit.pretrain
        return tool(options | {"out": self.out, "name": name})

    def images(self, name: str, made_of: bytes, write: Callable[[Path], None]) -> Path:
        """A folder of images, written once for what they are made of, by which it is named."""
        name = f"{name}-{hashlib.sha256(made_of).hexdigest()[:8]}"
        folder = self.out / "images" / name
        if not folder.exists():
            begun = folder.with_name(f"{name}.begun")
            write(begun)
            begun.rename(folder)
        return folder


def tuned(score: Callable[[Options], float]) -> Options:
    """The setting with the highest score, of two rounds like study/worth_tuning's: all at the short
    length, the best at the long one. Of equals the first."""
    rounds = tuning.WORTH
    sweep = read(find("study/worth_tuning")).parts[rounds.short]
    axes = [[one.options for one in axis.settings] for axis in sweep.grids["mae"]]
    steps = int(sweep.base["optim.steps"])
    short = [{"optim.steps": steps} | first | second for first, second in itertools.product(*axes)]
    tried = [(score(one), one) for one in short]
    tried.sort(key=by_score, reverse=True)
    best = [one | {"optim.steps": rounds.times * steps} for _, one in tried[: rounds.best]]
    return max([*tried, *((score(one), one) for one in best)], key=by_score)[1]


def by_score(tried: tuple[float, Options]) -> float:
    return tried[0]


def label(setting: Options) -> str:
    return "-".join(f"{key.split('.')[-1]}={value}" for key, value in setting.items())


def folds(runs: Runs, seed: int) -> Options:
    """MAE with the setting that a seed's own labels choose."""
    final = runs.options("final", "mae", seed)
    share = [
        f"{key}={text}"
        for key, text in final.items()
        if key in (*OWN_LABELS, "data", "data.path", "data.size")
    ]
    write = partial(label_sets.folds, options=share)
    sets = runs.images(f"folds-{seed}", " ".join(share).encode(), write)

    def right(setting: Options) -> int:
        count = 0
        for fold in range(label_sets.FOLDS):
            images = {"data.path": sets / str(fold), "data.validation": "validation"}
            own = {key: text for key, text in final.items() if key not in OWN_LABELS}
            options = own | images | setting | {"eval.test": False}
            found = runs.train(f"fold-{seed}-{fold}-{label(setting)}", options)
            count += round(found.metrics["accuracy"].value * found.metrics["accuracy"].n)
        return count

    setting = tuned(right)
    return setting | tested(runs.train(f"folds-{seed}", final | setting))


def self_training(runs: Runs, seed: int) -> Options:
    """Self-training with the setting that the dev split of the tuning seed chooses."""

    def accuracy(setting: Options) -> float:
        own = runs.options("final", "scratch", TUNING_SEED) | {"init": student(runs, TUNING_SEED)}
        found = runs.train(f"try-{label(setting)}", own | setting | {"eval.test": False})
        return found.metrics["accuracy"].value

    setting = tuned(accuracy)
    own = runs.options("final", "scratch", seed) | {"init": student(runs, seed)}
    return setting | tested(runs.train(f"self_training-{seed}", own | setting))


def student(runs: Runs, seed: int) -> Path:
    """A network that has learned the classes that the best scratch run of a seed gives."""
    own = runs.options("scratch", "scratch", seed)
    teacher = runs.study / f"final_{SHARE}-scratch-{seed}"
    if seed == TUNING_SEED:
        start = runs.train(f"scratch-{seed}", own).folder
        final = runs.options("final", "scratch", seed) | {"init": start, "eval.test": False}
        teacher = runs.train(f"teacher-{seed}", final).folder
    weights = (teacher / "export" / "heads.safetensors").read_bytes()
    write = partial(label_sets.pseudo, folder=teacher)
    images = runs.images(f"pseudo-{seed}", weights, write)
    learned = {key: text for key, text in own.items() if key not in OWN_LABELS}
    everything = {"data.path": images, "data.validation": 0}
    return runs.train(f"student-{seed}", learned | everything).folder


def tested(result: Any) -> Options:
    top1 = result.metrics["top1"]
    return {"top1": top1.value, "n": top1.n, "total_exaflop": result.total_exaflop}


def main(row: str, study: str, out: str, *seeds: str) -> None:
    rows = {"folds": folds, "self_training": self_training}
    try:
        runs = Runs(Path(study), Path(out))
        with contextlib.redirect_stdout(sys.stderr):  # where the runs say how far they are
            found = [{"seed": int(seed)} | rows[row](runs, int(seed)) for seed in seeds]
    except (UserError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    if len(sys.argv) < 5 or sys.argv[1] not in ("folds", "self_training"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
