"""Kill whole commands, each with its children, by SIGKILL at random moments; start them again until
they end, and compare what they leave with what commands leave that nobody killed.

    python robustness/kill_commands.py kills=4 out=FOLDER

The commands: training by mpp and by dino, an embedding, a study, a push (to the tests' Hub server).
A moment is drawn evenly from the time that the command takes undisturbed. One JSON object comes
out: of each command the kills, and what differs.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import pyarrow.parquet as pq
from safetensors.torch import load_file

from helpers import hub_server

ROOT = Path(__file__).resolve().parent.parent
SIZES = [
    *("data=shapes", "data.size=16", "model.patch=4", "model.width=32", "model.depth=2"),
    *("model.heads=2", "model.mlp=64", "optim.batch=16", "optim.warmup=2"),
    *("compute.threads=1", "compute.workers=0", "compute.precision=float32"),
]
OFTEN = ["checkpoint.every=5", "log.every=5", "eval.every=50", "eval.images=24"]
CLOCK = ("images_per_s", "data_wait", "memory_gib", "seconds")
STUDY = """\
title: Kills
seeds: [0, 1]
axes:
  arm:
    mpp: {pretrain: {recipe: mpp}}
    mae: {pretrain: {recipe: mae}}
options: {data: shapes, data.size: 32}
runs:
  pretrain:
    tool: pretrain
    over: [arm]
    options: {model: vit_p8, optim.steps: 20, optim.warmup: 1, optim.batch: 16, eval.images: 200}
  probe:
    tool: evaluate
    over: [arm]
    options: {recipe: evaluate, init: "{pretrain}", probe.measures: [knn]}
report: {test: probe}
"""


@dataclass(frozen=True)
class Command:
    """A command that writes a folder.

    Attributes:
        words: of the command line, for the folder that holds its output.
        left: what is compared, by names, of that folder.
    """

    words: Callable[[Path], list[str]]
    left: Callable[[Path], dict[str, Any]]


def run_left(folder: Path) -> dict[str, Any]:
    """The weights and the rows of a training run, without what depends on the clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if k not in CLOCK} for line in lines]
    files = {name: load_file(folder / "export" / f"{name}.safetensors") for name in ("model",)}
    tensors = {name: x.numpy().tobytes() for file in files.values() for name, x in file.items()}
    return tensors | {"rows": rows}


def training(recipe: str, *more: str) -> Command:
    words = ["tools/pretrain.py", f"recipe={recipe}", *SIZES, *OFTEN, "optim.steps=300", *more]
    return Command(
        lambda out: [*words, f"out={out}", "name=run"], lambda out: run_left(out / "run")
    )


def embedding(run: Path) -> Command:
    words = ["tools/embed.py", f"init={run}", "data=shapes", "compute.workers=0"]

    def left(out: Path) -> dict[str, Any]:
        return {
            str(p.relative_to(out)): pq.read_table(p).to_pylist() for p in out.rglob("*.parquet")
        }

    return Command(lambda out: [*words, f"out={out}", "name=run"], left)


def study(file: Path) -> Command:
    def left(out: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in sorted(out.rglob("result.json")):
            measurements = json.loads(path.read_text())["measurements"]
            found[str(path.parent.relative_to(out))] = measurements
        return found

    words = ["tools/study.py", f"recipe={file}", "parallel=1", "name=run"]
    return Command(lambda out: [*words, f"out={out}"], left)


def pushing(run: Path, hub: hub_server.Hub) -> Command:
    """Each start is of the same copy of the run; what is compared are the repository's files."""

    def words(out: Path) -> list[str]:
        if not (out / "run").exists():
            shutil.copytree(run, out / "run")
        return ["tools/push.py", str(out / "run"), f"hub.repo=someone/{out.name}", "hub.state=true"]

    def left(out: Path) -> dict[str, Any]:
        repository = hub.repositories[f"someone/{out.name}"]
        files = {
            f"{branch}/{name}": content
            for branch in repository.branches
            for name, content in (repository.at(branch) or repository.commits[""]).files.items()
            if name != "README.md"  # which names the repository
        }
        # a commit has all of an export or nothing of it
        for commit in repository.commits.values():
            assert ("model.safetensors" in commit.files) == ("config.json" in commit.files)
        return files

    return Command(words, left)


def start(words: list[str], log: Path) -> subprocess.Popen:
    with log.open("ab") as sink:
        return subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, stdout=sink, stderr=sink, start_new_session=True
        )


def undisturbed(command: Command, out: Path) -> float:
    """Run a command to its end; the seconds that it took."""
    out.mkdir(parents=True)
    began = time.monotonic()
    status = start(command.words(out), out.with_suffix(".txt")).wait()
    assert status == 0, out.with_suffix(".txt").read_text()
    return time.monotonic() - began


def killed(command: Command, out: Path, kills: int, seconds: float) -> list[float]:
    """Kill a command `kills` times, then let it end; after how many seconds it was killed."""
    out.mkdir(parents=True)
    moments: list[float] = []
    while len(moments) < kills:
        process = start(command.words(out), out.with_suffix(".txt"))
        moment = random.uniform(0, seconds)
        try:
            process.wait(moment)
            break  # done before the moment: what was left after the kills before was less
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            moments.append(round(moment, 2))
    status = start(command.words(out), out.with_suffix(".txt")).wait()
    assert status == 0, out.with_suffix(".txt").read_text()
    return moments


def compare(name: str, command: Command, out: Path, kills: int) -> dict[str, Any]:
    """Of one command: the moments of its kills, and the names of what differs after them."""
    seconds = undisturbed(command, out / f"{name}-whole")
    moments: list[float] = []
    differs: list[str] = []
    whole = command.left(out / f"{name}-whole")
    for attempt in range(kills):  # a command may end before it has been killed often enough
        if len(moments) >= kills:
            break
        folder = out / f"{name}-{attempt}"
        moments += killed(command, folder, kills - len(moments), seconds)
        found = command.left(folder)
        differs += [key for key in whole.keys() | found.keys() if whole.get(key) != found.get(key)]
    return {
        "seconds": round(seconds, 1),
        "kills": moments,
        "compared": len(whole),
        "differs": differs,
    }


def main(words: list[str]) -> None:
    options = dict(word.split("=", 1) for word in words)
    kills, out = int(options.get("kills", 4)), Path(options["out"]).absolute()
    random.seed(int(options.get("seed", 0)))
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    out.mkdir(parents=True)
    (out / "kills.yaml").write_text(STUDY)
    found = {}
    mpp = training("mpp")
    found["mpp"] = compare("mpp", mpp, out, kills)
    views = ["views.local=2", "views.local_size=8"]
    found["dino"] = compare("dino", training("dino", *views), out, kills)
    run = out / "mpp-whole" / "run"
    found["embed"] = compare("embed", embedding(run), out, kills)
    found["study"] = compare("study", study(out / "kills.yaml"), out, kills)
    with hub_server.running() as hub:
        del os.environ["HF_HUB_OFFLINE"]
        os.environ |= {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": hub_server.WRITER,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(out / "hf"),
        }
        found["push"] = compare("push", pushing(run, hub), out, kills)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
