"""CPU time of the loader and of a training step in this checkout over that in another, as JSON.

    python benchmarks/between.py OTHER_CHECKOUT data=FOLDER processes=8 rounds=7 cases=loader,step

FOLDER holds cifar10/ and tinyimagenet/ as parquet files. A case (of those whose names contain one of
`cases`) is `pretrain OPTIONS`, on one thread without workers: `loader` draws batches, `step` trains
on batches that were drawn before. A process of each checkout does a part of the work on request, in
turn; a ratio is the median of its rounds. Reported are the median and its 95% interval over new
pairs of processes, of which an interval needs 6. The other checkout must have the functions that
`serve` imports.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULTS = {
    "data": os.environ.get("SSL_VIT_DATA", "data"),
    "processes": "8",
    "rounds": "7",
    "cases": "loader,step",
}
ANSWER = "seconds "  # starts a line of a process's answer: a run prints lines of its own
SMALL = ("data=cifar10", "data.size=32", "model=vit_p8", "optim.batch=128")
LARGE = ("data=tinyimagenet", "data.size=224", "model=vit_s16")
# {case: what is timed, how many batches at once, the run's words}
CASES = {
    "loader, CIFAR-10, 32 px": ("loader", 8, SMALL),
    "loader, Tiny ImageNet, 224 px": ("loader", 2, (*LARGE, "optim.batch=64")),
    "step, vit_p8, 32 px": ("step", 6, SMALL),
    "step, vit_s16, 224 px": ("step", 1, (*LARGE, "optim.batch=4")),
}


def serve(kind: str, steps: int, words: list[str]) -> None:
    """In one checkout: for each line read, the CPU seconds of that work, on a line."""
    import dataclasses

    from ssl_vit.config.resolve import resolve
    from ssl_vit.data import batching, loaders
    from ssl_vit.jobs import resources
    from ssl_vit.jobs.setup import loop_settings, set_up
    from ssl_vit.runs.folder import Run
    from ssl_vit.training import loop
    from ssl_vit.training.allocator import keep_freed_memory

    keep_freed_memory()  # as the tools do
    with tempfile.TemporaryDirectory() as out:
        run = Run(resolve([*words, f"out={out}", "name=run"]))
        with resources.run_session(run) as accelerator:
            splits = resources.load_splits(run.recipe, accelerator, test=False)
            job = set_up(run, accelerator, splits)
            settings = dataclasses.replace(loop_settings(job.recipe), steps=steps, log_every=steps)

            def draw() -> list[batching.Batch]:
                given = (splits.train, job.recipe.data, job.batch_layout, 0, 0, steps, 0)
                return list(loaders.training_loader(*given))

            drawn = draw()

            def train() -> None:
                job.state.step = 0
                loop.train(job.state, drawn, settings, job.batch_layout, accelerator)

            work: Callable[[], object] = draw if kind == "loader" else train
            for turn in itertools.chain([""], sys.stdin):
                before = time.process_time()
                work()
                if turn:  # the first one warms up
                    print(f"{ANSWER}{time.process_time() - before}", flush=True)


def start(checkout: Path, case: str, data: Path) -> subprocess.Popen[str]:
    kind, steps, words = CASES[case]
    fixed = ("compute.threads=1", "compute.workers=0", "compute.precision=float32")
    folder = f"data.path={data / words[0].partition('=')[2]}"
    return subprocess.Popen(
        [sys.executable, __file__, "serve", kind, str(steps), "recipe=mpp", *words, *fixed, folder],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def seconds(server: subprocess.Popen[str]) -> float:
    """Has the process do its work once."""
    assert server.stdin and server.stdout
    print("go", file=server.stdin, flush=True)
    for line in server.stdout:
        if line.startswith(ANSWER):
            return float(line.removeprefix(ANSWER))
    sys.exit(f"error: {server.args!r} ended with status {server.wait()}")


def compare(case: str, places: list[Path], data: Path, processes: int, rounds: int) -> list[float]:
    """This checkout's time over the other's, for each pair of processes."""
    found = []
    for _ in range(processes):
        servers = [start(place, case, data) for place in places]
        shares = []
        for turn in range(rounds):
            order = servers if turn % 2 else servers[::-1]  # each goes first in turn
            took = {server.pid: seconds(server) for server in order}
            shares.append(took[servers[0].pid] / took[servers[1].pid])
        found.append(statistics.median(shares))
        for server in servers:
            server.communicate()
    return found


def commit(checkout: Path) -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True).stdout.strip()


def main(other: str, *options: str) -> None:
    sys.path.insert(0, str(ROOT))
    import ratios

    given = ratios.options(DEFAULTS, list(options))
    places = [ROOT, Path(other).resolve()]
    report: dict[str, object] = {"load": round(os.getloadavg()[0], 1)}
    report["commits"] = [commit(place) for place in places]
    data, processes, rounds = Path(given["data"]), int(given["processes"]), int(given["rounds"])
    words = given["cases"].split(",")
    for case in (name for name in CASES if any(word in name for word in words)):
        report[case] = ratios.spread(compare(case, places, data, processes, rounds))
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    else:
        main(*sys.argv[1:])
