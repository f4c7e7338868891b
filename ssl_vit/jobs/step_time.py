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

WARM = 5  # number of first steps that are not counted
LEAST_STEPS = 15  # minimum number of measured steps
LEAST_SECONDS = 10.0  # minimum duration of the measurement in seconds
MOST_STEPS = 1000  # maximum number of steps, even if these take less than LEAST_SECONDS


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
    """Measure the duration of the first steps of a run.

    The steps run in a temporary folder, with the recipe's images and optimiser. The host waits for
    the device after each step, as a run does at logging steps. Nothing is evaluated or saved.

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
            all_seconds = _time_steps(job)
            # Leave out the first WARM steps. A run of fewer steps keeps only its last step
            seconds = all_seconds[min(WARM, len(all_seconds) - 1) :]
            on_gpu = accelerator.device.type == "cuda"
            return StepTime(
                seconds=statistics.median(seconds),
                least=min(seconds),
                most=max(seconds),
                steps=len(seconds),
                device=torch.cuda.get_device_name() if on_gpu else "cpu",
                threads=torch.get_num_threads(),
                precision=recipe.compute.precision,
                device_batch=job.batch_layout.device_batch,
                load=load,
            )


def _time_steps(job: TrainingJob) -> list[float]:
    """Return the seconds of each of the first steps, including the wait for data.

    Steps are run until enough are measured, but at most MOST_STEPS. The result includes the first
    WARM steps, which should not be counted.
    """
    recipe = job.recipe
    job.decoded = resources.resident_images(recipe, job.splits.train, step=0)
    # The learning rate keeps the schedule of the whole run, which was built before
    recipe.optim.steps = min(MOST_STEPS, recipe.optim.steps)
    times: list[float] = []  # when each step began, and when the last step ended

    # The training loop calls this function before each step, and stops if the result is true. The
    # function also records the time
    def is_measured(step: int) -> bool:
        times.append(time.perf_counter())
        return step >= WARM + LEAST_STEPS and times[-1] - times[WARM] >= LEAST_SECONDS

    with InterruptibleLoader(job.loader()) as batches:
        loop.train(job.state, batches, setup.loop_settings(recipe), stop=is_measured)
    # After the last step of the recipe, the loop does not call the function again
    if job.state.step == recipe.optim.steps:
        times.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(times)]
