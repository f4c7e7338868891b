"""Measures on this machine how long a step of a recipe takes."""

import copy
import itertools
import os
import statistics
import tempfile
import time
from dataclasses import dataclass

import torch

from ..data.workers import InterruptibleLoader
from ..errors import UserError
from ..recipe.operation import Precision
from ..recipe.schema import Recipe
from ..runs.folder import Run
from ..runs.lock import hold_process
from ..training import loop
from . import resources, setup
from .session import session
from .setup import Job

WARM = 5  # first steps, which do not count
STEPS = 15  # steps that are measured, at least; and
SETTLED = 10.0  # for so many seconds, but at most
MOST = 1000


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step on this machine: median, least and most of `steps`; and the conditions.

    Attributes:
        load: average over the minute before: processes that want to run.
    """

    seconds: float
    least: float
    most: float
    steps: int
    device: str
    threads: int
    precision: Precision
    device_batch: int
    load: float


@hold_process("--probe")
def measure(recipe: Recipe) -> StepTime:
    """Take the first steps of a run, with its own images and optimiser, in a temporary folder.

    The host waits for the device after each step, as a run does at logging steps. Nothing is
    evaluated or saved.

    Raises:
        UserError: an evaluation, which takes no steps; or what a run itself raises.
    """
    if not recipe.trains:
        raise UserError("--probe: an evaluation takes no steps to be measured; leave it out")
    load = os.getloadavg()[0]
    recipe = copy.deepcopy(recipe)
    recipe.name = "probe"
    recipe.eval.images = 2  # two: those whose views are compared
    recipe.eval.test = False
    recipe.log.every = 1
    recipe.probe.every = None
    recipe.eval.knn = False
    recipe.eval.collapse = None
    with tempfile.TemporaryDirectory() as recipe.out:
        run = Run(recipe)
        with session(run) as current:
            accelerator = current.accelerator
            splits = current.load_splits(test=False)
            job = setup.set_up(run, accelerator, splits)
            took = _steps(job)
            timed = took[min(WARM, len(took) - 1) :]
            on_gpu = accelerator.device.type == "cuda"
            return StepTime(
                seconds=statistics.median(timed),
                least=min(timed),
                most=max(timed),
                steps=len(timed),
                device=torch.cuda.get_device_name() if on_gpu else "cpu",
                threads=torch.get_num_threads(),
                precision=recipe.compute.precision,
                device_batch=job.batch_layout.device_batch,
                load=load,
            )


def _steps(job: Job) -> list[float]:
    """Seconds of each of the first steps, including the wait for data."""
    recipe = job.recipe
    job.decoded = resources.resident_images(recipe, job.splits.train, 0)
    # the schedule is made already, and stays the run's
    recipe.optim.steps = min(MOST, recipe.optim.steps)
    ends: list[float] = []

    def settled(step: int) -> bool:  # called before each step
        ends.append(time.perf_counter())
        return step >= WARM + STEPS and ends[-1] - ends[WARM] >= SETTLED

    with InterruptibleLoader(job.loader()) as passes:
        loop.train(job.state, passes, setup.loop_settings(recipe), stop=settled)
    if job.state.step == recipe.optim.steps:
        ends.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(ends)]
