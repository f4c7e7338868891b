"""What the engine costs beside a bare loop of the same steps: CPU time, one thread, pairs in turn;
and what seeking costs. Medians with their 95% intervals over the pairs, and over epochs.

    python benchmarks/overhead.py pairs=15 steps=20 WORDS

One JSON object comes out. The batches are drawn before, the same for both; the bare loop is what
anyone would write.
"""

import copy
import itertools
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ |= {"OMP_NUM_THREADS": "1"}

import ratios
import torch

from ssl_vit.config.resolve import resolve
from ssl_vit.data import batching, loaders
from ssl_vit.jobs import resources
from ssl_vit.jobs.setup import Job, loop_settings, set_up
from ssl_vit.runs.folder import Run
from ssl_vit.training import loop, optim

LENGTH = 303_000_000  # images
STEP, BATCH = 10**6, 4096


def bare(job: Job, drawn: list[batching.Batch]) -> None:
    """Train on the batches, without an engine."""
    state, recipe = job.state, job.recipe
    optimizer, objective = state.strategy.optimizer, state.objective.train()
    for batch in drawn:
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.compute.precision == "bfloat16"):
            loss = objective(batch).loss
        loss.backward()
        optim.clip(objective.parameters(), recipe.optim.clip)
        optimizer.step()
        optimizer.zero_grad()
        state.schedule.step()


def with_engine(job: Job, drawn: list[batching.Batch]) -> None:
    """The same with all that the engine does, and a row at the end."""
    recipe, state = copy.deepcopy(job.recipe), job.state
    state.step, recipe.optim.steps, recipe.log.every = 0, len(drawn), len(drawn)
    loop.train(state, drawn, loop_settings(recipe), job.batch_layout, job.accelerator)


def seconds(do: Callable[[], Any]) -> float:
    before = time.process_time()
    do()
    return time.process_time() - before


def overhead(words: list[str], pairs: int, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        run = Run(
            resolve(
                [
                    "recipe=mpp",
                    "compute.threads=1",
                    "compute.workers=0",
                    *words,
                    f"out={out}",
                    "name=run",
                ]
            )
        )
        with resources.run_session(run) as accelerator:
            job = set_up(
                run, accelerator, resources.load_splits(run.recipe, accelerator, test=False)
            )
            drawn = list(
                loaders.training_loader(
                    job.splits.train, run.recipe.data, job.batch_layout, 0, 0, steps, 0
                )
            )
            bare(job, drawn[:2]), with_engine(job, drawn[:2])
            shares = []
            # each goes first in turn
            for first in itertools.islice(itertools.cycle((True, False)), pairs):
                took = {
                    way: seconds(lambda way=way: way(job, drawn))
                    for way in ((bare, with_engine) if first else (with_engine, bare))
                }
                shares.append(took[with_engine] / took[bare])
            step = took[bare] / steps
    return ratios.spread(shares) | {"pairs": pairs, "steps": steps, "bare step, s": round(step, 4)}


def seeking() -> dict[str, Any]:
    """Milliseconds to a batch's samples, at step 0 and at step 1,000,000; and how the process grew
    meanwhile."""
    report: dict[str, Any] = {}
    for step in (0, STEP):
        timed = []
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for turn in range(20):  # each its own epoch
            epoch = turn * LENGTH
            timed.append(
                1000
                * seconds(lambda at=epoch + step * BATCH: batching.samples_at(at, BATCH, LENGTH, 0))
            )
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        report[f"permuted, step {step:,}, ms"] = ratios.spread(timed) | {
            "grown, MiB": round(grown, 1)
        }
    return report


def main() -> None:
    own = {
        key: int(value)
        for key, _, value in (w.partition("=") for w in sys.argv[1:])
        if key in ("pairs", "steps")
    }
    words = [word for word in sys.argv[1:] if word.partition("=")[0] not in own]
    load = round(os.getloadavg()[0], 1)
    print(
        json.dumps(
            {
                "engine over bare loop": overhead(
                    words, own.get("pairs", 15), own.get("steps", 20)
                ),
                "seeking": seeking(),
                "load": load,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
