"""How long a step of a recipe takes on this machine, measured by taking some. Torch comes in late."""

import copy
import itertools
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .recipe import Recipe, UserError
from .runs import Run

if TYPE_CHECKING:
    from .job import Job

STEPS, WARM = 20, 5  # steps taken, and how many of them warm up and do not count


@dataclass(frozen=True)
class Pace:
    """Seconds of a step here: the median, the least and the most of `steps`; and what they were measured on."""

    seconds: float
    least: float
    most: float
    steps: int
    device: str
    threads: int
    precision: str
    device_batch: int
    load: float  # average over the minute before: processes that want to run


def measure(recipe: Recipe) -> Pace:
    """Take the first steps of a run with its own pictures, engine and optimiser, in a folder that is removed.

    The host waits for the device after each of them, as it does in a run at logging steps only. Nothing is looked at or saved.

    Raises:
        UserError: an evaluation, which takes no steps; or what a run itself raises.
    """
    if recipe.objective == "probe":
        raise UserError("--probe: an evaluation takes no steps to be measured; leave it out")
    from . import assembly
    from .processes import machine

    load, recipe = os.getloadavg()[0], copy.deepcopy(recipe)
    recipe.name, recipe.eval.pictures, recipe.eval.test, recipe.log.every, recipe.probe.every = "probe", 1, False, 1, None
    with tempfile.TemporaryDirectory() as recipe.out, machine.started(run := Run(recipe)) as accelerator:
        made = assembly.assemble(run, accelerator, machine.load(recipe, accelerator, test=False))
        return _pace(made, _steps(made), load)


def _pace(made: "Job", took: list[float], load: float) -> Pace:
    import torch

    timed = took[min(WARM, len(took) - 1) :]
    on = torch.cuda.get_device_name() if made.accelerator.device.type == "cuda" else "cpu"
    said = (on, torch.get_num_threads(), made.recipe.compute.precision, made.spread.device_batch, load)
    return Pace(statistics.median(timed), min(timed), max(timed), len(timed), *said)


def _steps(made: "Job") -> list[float]:
    """Seconds of each of the first steps, from one's end to the next one's, waiting for pictures included."""
    from . import engine
    from .data import loaders

    recipe, ends = made.recipe, [time.perf_counter()]
    recipe.optim.steps = min(STEPS, recipe.optim.steps)  # after the schedule was made, which stays the run's

    class Clock(engine.Listener):
        def on_step(self, step: int) -> None:
            ends.append(time.perf_counter())

    loader = loaders.training(made.pictures, recipe.data, made.spread, recipe.seed, 0, recipe.optim.steps, made.workers)
    with loaders.Patient(loader) as passes:
        engine.train(made.state, passes, recipe, made.spread, made.accelerator, audience=engine.Audience([Clock()]))
    return [after - before for before, after in itertools.pairwise(ends)]
