"""Whole training runs from files beside other libraries' own: images a second of CPU time, and of
wall time, between two numbers of steps.

    python benchmarks/runs.py install=stable_pretraining,lightly,lightly_train,transformers,timm
    python benchmarks/runs.py rounds=5 threads=1 device=cpu precision=float32 save=false
    taskset -c 1 python benchmarks/runs.py cases=table_mae,files_dino together=true
    python benchmarks/runs.py device=cuda model=vit_s16 batch=256 steps=50,250 photos=4096

Each peer is a script of benchmarks/peers/, as a user of that library would write it, with its own
loader and loop, in an environment of its own below `environments`, which shares the packages of
this one unless it needs others. This project's side is tools/pretrain.py. A case is one objective on
one set of images: the same images, crops, encoder, decoder or head, batch, AdamW, precision and
threads for all. Sets of images:

- table: Tiny ImageNet's parquet files (`data`/tinyimagenet), 64 px
- files: 8,192 of the same images as a folder of JPEG files, 64 px
- photos: a folder of JPEG files of 500 x 375 px, made of them, for 224 px (`photos` of them)

A run of A steps and one of B steps are taken, of this project and every peer of a case, in each
round: in turn, or with together=true all at the same time, so that what else the machine does meets
all alike (with `taskset` they share one core; wall time is not reported then). What both have (the
start, the first and the last evaluation, the export) goes out in the difference: an image costs
(cpu(B) - cpu(A)) / ((B - A) batch), with the CPU time of all of the run's processes, and likewise
of wall time, which is what counts on a GPU. This project evaluates and saves nothing between; images are decoded at each step (compute.resident=false), its other options
are the defaults of its recipes. `workers` are the data workers of the peers: none by default on one
thread, else one for each core; this project chooses its own.

"over peer" is this project's speed over the peer's within a round: the geometric mean and its 95%
t-interval over rounds; above 1 this project is faster. Every run is written to `work`/runs.jsonl at
once, and not repeated by the next call: a call that was cut off goes on; after a change take
another `work`. `memory_gib` is the peak of the largest process, on a GPU of the device. One JSON
object comes out; save=true adds its cases to results/runs.json.
"""

import json
import math
import os
import site
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from step import ROOT, commit, finish, given_options

from ssl_vit.stats import summarize

PACKAGES = {
    "stable_pretraining": "stable-pretraining==0.1.8",
    "lightly": "lightly[timm]==1.6.0",
    "lightly_train": "lightly-train==0.18.0",
    "transformers": "transformers",
    "timm": "timm",
}
DEFAULTS = {
    "install": "",
    "cases": "all",
    "peers": "all",
    "rounds": "5",
    "threads": "1",
    "device": "cpu",
    "precision": "float32",
    "batch": "",
    "steps": "",
    "model": "",
    "workers": "",
    "photos": "512",
    "data": os.environ.get("SSL_VIT_DATA", "data"),
    "environments": str(ROOT / "runs" / "peers"),
    "work": str(ROOT / "runs" / "beside"),
    "together": "false",
    "save": "false",
}
SMALL = ["data=tinyimagenet", "model=vit_n8", "optim.batch=128"]
LARGE = ["data=imagenet", "data.crop_area=0.2", "model=vit_s16", "optim.batch=8"]
SUPERVISED = ["recipe=supervised", "supervised.hidden=false", "optim.dropout=0"]
# The authors' decoder for S/16 too, as in every peer
DECODER = ["mae.width=512", "mae.depth=8", "mae.heads=16"]
FILES = 8192
CHANGED = {"batch": "optim.batch", "model": "model"}  # by an option of this script
# The same for all: neither evaluated nor saved between the two numbers of steps
OWN = ["data.validation=0", "eval.knn=false", "eval.every=1000000", "checkpoint.every=1000000"]
OWN += ["log.every=10", "compute.resident=false"]


class Case(NamedTuple):
    """An objective on a set of images.

    Attributes:
        images: table, files or photos.
        words: this project's options.
        peers: who has it too.
        steps: A and B.
    """

    images: str
    words: list[str]
    peers: list[str]
    steps: tuple[int, int]


CASES = {
    "table_mae": Case(
        "table", ["recipe=mae", *SMALL], ["stable_pretraining", "transformers"], (10, 60)
    ),
    # MPP's encoder sees as many tokens as SimMIM's; both predict half of the patches
    "table_mpp": Case("table", ["recipe=mpp", *SMALL], ["stable_pretraining"], (10, 50)),
    "table_simmim": Case(
        "table", ["recipe=simmim", "corruption.side=1", *SMALL], ["stable_pretraining"], (10, 50)
    ),
    "table_moco_v3": Case(
        "table",
        ["recipe=moco_v3", "moco.freeze_patches=false", *SMALL],
        ["stable_pretraining"],
        (5, 25),
    ),
    "table_supervised": Case("table", [*SUPERVISED, *SMALL], ["timm"], (10, 50)),
    "files_dino": Case(
        "files",
        ["recipe=dino", "eval.collapse=1000000", *SMALL],
        ["stable_pretraining", "lightly", "lightly_train"],
        (5, 25),
    ),
    "files_mae": Case("files", ["recipe=mae", *SMALL], ["lightly"], (10, 60)),
    "files_simmim": Case(
        "files", ["recipe=simmim", "corruption.side=1", *SMALL], ["lightly"], (10, 50)
    ),
    "photos_mae": Case(
        "photos",
        ["recipe=mae", *DECODER, *LARGE],
        ["stable_pretraining", "transformers", "lightly"],
        (5, 25),
    ),
    "photos_mpp": Case("photos", ["recipe=mpp", *LARGE], ["stable_pretraining"], (4, 16)),
    "photos_supervised": Case("photos", [*SUPERVISED, *LARGE], ["timm"], (4, 16)),
}


def install(name: str, folder: Path) -> None:
    """The environment of a peer, which sees this one's packages behind its own."""
    place = folder / name
    venv.create(place, with_pip=True)
    own = next(place.glob("lib/python3*/site-packages"))
    shared = [path for path in sys.path if Path(path).name == "site-packages"]
    (own / "shared.pth").write_text("\n".join(shared or site.getsitepackages()) + "\n")
    subprocess.run([python_of(name, folder), "-m", "pip", "install", PACKAGES[name]], check=True)


def python_of(name: str, folder: Path) -> Path:
    return folder / name / "bin" / "python"


def write_images(kind: str, data: Path, work: Path, photos: int) -> Path:
    """The folder of a set of images, made at the first call."""
    import datasets
    from loader import photographs

    tiny = data / "tinyimagenet"
    if kind == "table":
        return tiny
    split, count = ("train", FILES) if kind == "files" else ("validation", photos)
    folder = work / f"{kind}-{count}"
    if folder.exists():
        return folder
    table = sorted(tiny.glob(f"{split}*.parquet"))[0]
    rows = datasets.Dataset.from_parquet(str(table), cache_dir=str(work / "cache"))
    rows = rows.cast_column("image", datasets.Image(decode=False)).select(range(count))
    if kind == "files":
        encoded = [cell["bytes"] for cell in rows["image"]]
    else:
        encoded = photographs(data, count).encoded
    new = work / f"{kind}-new"
    for i, (raw, label) in enumerate(zip(encoded, rows["label"], strict=True)):
        place = new / "train" / f"{label:03d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:06d}.jpg").write_bytes(raw)
    return new.rename(folder)


def words_of(case: Case, images: Path, given: dict[str, str]) -> list[str]:
    """This project's options but steps, name and folder."""
    own = dict(word.split("=") for word in case.words + OWN)
    own |= {"data.path": str(images), "compute.precision": given["precision"]}
    own["compute.threads"] = given["threads"]
    own |= {key: given[name] for name, key in CHANGED.items() if given[name]}
    return [f"{key}={value}" for key, value in own.items()]


def resolved(words: list[str]) -> dict[str, Any]:
    """{dotted key: value} of the recipe, and what was counted of it, for the peers."""
    from ssl_vit import costs, resolve

    recipe = resolve(words)
    return recipe.values() | {"trained": costs.compute_network_cost(recipe).trained}


def environment(given: dict[str, str], work: Path) -> dict[str, str]:
    """Of every run. Nothing is fetched or sent, and no cache is outside of `work`."""
    own = {"OMP_NUM_THREADS": given["threads"], "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    own |= {"HF_HOME": str(work / "cache"), "LIGHTLY_TRAIN_EVENTS_DISABLED": "1"}
    own |= {"LIGHTLY_TRAIN_CACHE_DIR": str(work / "cache"), "SPT_CACHE_DIR": str(work / "cache")}
    if given["device"] == "cpu":
        own["CUDA_VISIBLE_DEVICES"] = ""
    return os.environ | own


class Runs:
    """Runs of this project and of peers, each written down at once.

    Args:
        given: the options of the command line.
    """

    def __init__(self, given: dict[str, str]) -> None:
        self.given = given
        self.work = Path(given["work"]).resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.file = self.work / "runs.jsonl"
        # together=true: the rows in one order, here and in the file
        self.writing = threading.Lock()
        self.rows: list[dict[str, Any]] = []
        if self.file.exists():
            self.rows = [json.loads(line) for line in self.file.read_text().splitlines()]
        workers = 0 if given["threads"] == "1" and given["device"] == "cpu" else os.cpu_count()
        self.workers = int(given["workers"] or workers or 0)
        self.together = given["together"] == "true"

    def named(self, name: str, case: Case) -> str:
        """The name of a case in the report, with what it was measured at."""
        given = self.given
        words = dict(word.split("=") for word in case.words)
        model = given["model"] or words["model"]
        batch = given["batch"] or words["optim.batch"]
        fixed = f"{model}, batch {batch}, {given['precision']}, {given['device']}"
        return f"{name}, {fixed}, {given['threads']} threads"

    def case(self, name: str, round_: int) -> None:
        """One round of a case, of what is not written yet."""
        case = CASES[name]
        data = Path(self.given["data"]).resolve()
        images = write_images(case.images, data, self.work, int(self.given["photos"]))
        words = words_of(case, images, self.given)
        steps = self.steps(case)
        ways = ["ssl_vit", *self.peers(case)]
        order = ways if round_ % 2 else ways[::-1]
        fixed = {"case": self.named(name, case), "round": round_, "together": self.together}

        def run(way: str) -> None:
            with tempfile.TemporaryDirectory(dir=self.work) as out:
                self.write(key | {"way": way} | self.run(way, case, words, count, Path(out)))

        for count in steps if round_ >= 0 else [2]:  # round -1 fills caches
            key = fixed | {"steps": count}
            done = [row["way"] for row in self.rows if key.items() <= row.items()]
            with ThreadPoolExecutor(len(order) if self.together else 1) as pool:
                list(pool.map(run, [way for way in order if way not in done]))

    def steps(self, case: Case) -> tuple[int, int]:
        few, many = map(int, self.given["steps"].split(",")) if self.given["steps"] else case.steps
        return few, many

    def peers(self, case: Case) -> list[str]:
        """Those asked for whose environment is there; others are named."""
        asked = case.peers
        if self.given["peers"] != "all":
            asked = [peer for peer in case.peers if peer in self.given["peers"].split(",")]
        found = []
        for peer in asked:
            if python_of(peer, Path(self.given["environments"])).exists():
                found.append(peer)
            else:
                print(f"{peer}: no environment (install={peer}), left out", file=sys.stderr)
        return found

    def run(self, way: str, case: Case, words: list[str], steps: int, out: Path) -> dict[str, Any]:
        """One run in an empty folder: its time, memory and losses.

        Raises:
            SystemExit: it failed; its output is named.
        """
        words = [*words, f"optim.steps={steps}", f"optim.warmup={min(10, steps - 1)}"]
        values = resolved(words)
        if way == "ssl_vit":
            command = [sys.executable, str(ROOT / "tools" / "pretrain.py"), *words]
            command += [f"out={out}", "name=run"]
        else:
            spec = values | {"images": case.images, "workers": self.workers, "out": str(out)}
            spec |= {"threads": int(self.given["threads"]), "device": self.given["device"]}
            script = ROOT / "benchmarks" / "peers" / f"run_{way}.py"
            python = python_of(way, Path(self.given["environments"]).resolve())
            command = [str(python), str(script), json.dumps(spec)]
        log = self.work / f"{way}.log"
        found = timed(command, environment(self.given, self.work), out, log)
        if found.pop("code"):
            sys.exit(f"{way}: failed, see {log}")
        if way == "ssl_vit":
            own = own_result(out / "run" / "metrics.jsonl", self.given["device"])
            own["trained parameters"] = values["trained"]
        else:
            own = json.loads(log.read_text().splitlines()[-1])
        if own.pop("steps") != steps:
            sys.exit(f"{way}: another number of steps than {steps}, see {log}")
        images = values["optim.batch"]
        return found | own | {"batch": images, "load": os.getloadavg()[0], "commit": commit()}

    def write(self, row: dict[str, Any]) -> None:
        with self.writing, self.file.open("a") as file:
            self.rows.append(row)
            file.write(json.dumps(row) + "\n")
            print(json.dumps(row), file=sys.stderr, flush=True)


def own_result(metrics: Path, device: str) -> dict[str, Any]:
    """What a peer's script prints, of a run of this project."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    found = {"losses": [row["loss"] for row in rows if "loss" in row], "steps": rows[-1]["step"]}
    if device == "cuda":
        found["memory_gib"] = max(row["memory_gib"] for row in rows if "memory_gib" in row)
    return found


def timed(command: list[str], environ: dict[str, str], place: Path, log: Path) -> dict[str, Any]:
    """Run a command: its exit code, the CPU seconds of it and of all processes it waited for, wall
    seconds, and GiB of the largest of these."""
    begin = time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=place, env=environ, stdout=file, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "code": process.returncode,
        "cpu_s": round(used.ru_utime + used.ru_stime, 3),
        "wall_s": round(time.perf_counter() - begin, 3),
        "memory_gib": round(used.ru_maxrss / 2**20, 2),
    }


def images_a_second(rows: list[dict[str, Any]], clock: str) -> dict[int, float]:
    """{round: images a second between the two numbers of steps} of one way's rows; rounds that lack
    one of the two are left out."""
    found = {}
    for round_ in sorted({row["round"] for row in rows}):
        few, *more = sorted(
            (row for row in rows if row["round"] == round_), key=lambda row: row["steps"]
        )
        if more:
            images = (more[-1]["steps"] - few["steps"]) * few["batch"]
            found[round_] = images / (more[-1][clock] - few[clock])
    return found


def over(ours: dict[int, float], peer: dict[int, float]) -> dict[str, Any]:
    """The geometric mean of ours over the peer's within each round, and its 95% t-interval on the
    logarithms; of one round no interval."""
    logs = [math.log(ours[round_] / peer[round_]) for round_ in ours if round_ in peer]
    found = summarize(logs)
    ends = found.interval and [round(math.exp(end), 3) for end in found.interval]
    return {"mean": round(math.exp(found.mean), 3), "95%": ends, "n": found.n}


def summarized(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """{case: what its rows say}."""
    report = {}
    for name in dict.fromkeys(row["case"] for row in rows):
        of_case = [row for row in rows if row["case"] == name and row["round"] >= 0]
        ways = {
            way: [row for row in of_case if row["way"] == way]
            for way in sorted({row["way"] for row in of_case}, key=lambda way: way != "ssl_vit")
        }
        entry: dict[str, Any] = {}
        clocks = {"cpu_s": "CPU time"}
        if not any(row["together"] for row in of_case):
            clocks["wall_s"] = "wall time"
        for clock, title in clocks.items():
            speeds = {way: images_a_second(own, clock) for way, own in ways.items()}
            speeds = {way: own for way, own in speeds.items() if own}
            entry[f"images/s, {title}"] = {
                way: round(statistics.median(own.values()), 2) for way, own in speeds.items()
            }
            if "ssl_vit" in speeds:
                entry[f"over peer, {title}"] = {
                    way: over(speeds["ssl_vit"], own)
                    for way, own in speeds.items()
                    if way != "ssl_vit" and speeds["ssl_vit"].keys() & own.keys()
                }
        for way, own in ways.items():
            longest = max(own, key=lambda row: row["steps"])
            entry[way] = {
                "steps": sorted({row["steps"] for row in own}),
                "memory_gib": max(row["memory_gib"] for row in own),
                "trained parameters": longest["trained parameters"],
                "losses, first and last": longest["losses"][:1] + longest["losses"][-1:],
                "version": longest.get("version"),
            }
        entry["commits"] = sorted({row["commit"] for row in of_case})
        entry["together"] = any(row["together"] for row in of_case)
        entry["load"] = round(max((row["load"] for row in of_case), default=0), 1)
        report[name] = entry
    return report


def main() -> None:
    given = given_options(DEFAULTS, sys.argv[1:])
    if given["install"]:
        for name in given["install"].split(","):
            install(name, Path(given["environments"]))
        return
    import torch

    runs = Runs(given)
    chosen = list(CASES) if given["cases"] == "all" else given["cases"].split(",")
    for round_ in range(-1, int(given["rounds"])):
        for name in chosen:
            runs.case(name, round_)
    mine = {runs.named(name, CASES[name]) for name in chosen}
    report = summarized([row for row in runs.rows if row["case"] in mine])
    finish(report, "runs.json", given["save"] == "true", [torch])


if __name__ == "__main__":
    main()
