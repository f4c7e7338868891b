"""Measure how long a training step of a recipe takes on this machine."""

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
from .setup import TrainingJob

WARM = 5  # first steps, which are not counted
LEAST_STEPS = 15  # least number of measured steps
LEAST_SECONDS = 10.0  # least duration of the measurement in seconds
MOST_STEPS = 1000  # largest number of steps, even if these take less than LEAST_SECONDS


@dataclass(frozen=True)
class StepTime:
    """Duration of a training step on this machine, and the conditions of the measurement.

    Attributes:
        seconds: Median over the steps.
        least: Seconds of the fastest step.
        most: Seconds of the slowest step.
        steps: The number of measured steps.
        device: The name of the GPU, or "cpu".
        threads: The number of torch's threads.
        precision: The precision of training.
        device_batch: The number of images in a pass.
        load: The average number of processes that were ready to run, over the minute before.
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
    """Measure the first steps of a run, with the recipe's images and optimiser.

    The steps run in a temporary folder. The host waits for the device after each step, as a run
    does at logging steps. Nothing is evaluated or saved.

    Raises:
        UserError: The recipe is an evaluation, which has no steps, or a run of the recipe would
            fail.
    """
    if not recipe.trains:
        raise UserError("--probe: an evaluation has no training steps. Leave out --probe.")
    load = os.getloadavg()[0]
    recipe = copy.deepcopy(recipe)
    recipe.name = "probe"
    recipe.eval.images = 2  # views of images are compared, which needs two images
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
            took = _time_steps(job)
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


def _time_steps(job: TrainingJob) -> list[float]:
    """Return the seconds of each of the first steps, including the wait for data.

    Steps are run until enough are measured, but at most MOST_STEPS. The result includes the first
    WARM steps, which the caller leaves out. The learning rate follows the schedule of the whole
    run, which was built before the number of steps is reduced here.
    """
    recipe = job.recipe
    job.decoded = resources.resident_images(recipe, job.splits.train, step=0)
    recipe.optim.steps = min(MOST_STEPS, recipe.optim.steps)
    times: list[float] = []  # when each step began, and when the last step ended

    # The training loop calls `is_settled` before each step, so it also records the times
    def is_settled(step: int) -> bool:
        times.append(time.perf_counter())
        return step >= WARM + LEAST_STEPS and times[-1] - times[WARM] >= LEAST_SECONDS

    with InterruptibleLoader(job.loader()) as batches:
        loop.train(job.state, batches, setup.loop_settings(recipe), stop=is_settled)
    if job.state.step == recipe.optim.steps:
        times.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(times)]
