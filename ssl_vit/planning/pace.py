"""How long a step of a recipe takes on this machine, measured by taking some. Torch comes in
late."""

import copy
import itertools
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..callbacks import Callback
from ..config.schema import Recipe
from ..errors import UserError
from ..runs.folder import Run

if TYPE_CHECKING:
    from ..jobs.setup import Job

STEPS, WARM = 20, 5  # steps taken, and how many of them warm up and do not count


@dataclass(frozen=True)
class Pace:
    """Seconds of a step here: the median, the least and the most of `steps`; and what they were
    measured on."""

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
    """Take the first steps of a run with its own images, engine and optimiser, in a folder that is
    removed.

    The host waits for the device after each of them, as it does in a run at logging steps only.
    Nothing is looked at or saved.

    Raises:
        UserError: an evaluation, which takes no steps; or what a run itself raises.
    """
    if recipe.objective == "probe":
        raise UserError("--probe: an evaluation takes no steps to be measured; leave it out")
    from ..jobs import resources, setup

    load, recipe = os.getloadavg()[0], copy.deepcopy(recipe)
    recipe.name, recipe.eval.images, recipe.eval.test, recipe.log.every, recipe.probe.every = (
        "probe",
        1,
        False,
        1,
        None,
    )
    with (
        tempfile.TemporaryDirectory() as recipe.out,
        resources.run_session(run := Run(recipe)) as accelerator,
    ):
        made = setup.set_up(
            run, accelerator, resources.load_splits(recipe, accelerator, test=False)
        )
        return _pace(made, _steps(made), load)


def _pace(made: "Job", took: list[float], load: float) -> Pace:
    import torch

    timed = took[min(WARM, len(took) - 1) :]
    on = torch.cuda.get_device_name() if made.accelerator.device.type == "cuda" else "cpu"
    facts = (
        on,
        torch.get_num_threads(),
        made.recipe.compute.precision,
        made.batch_layout.device_batch,
        load,
    )
    return Pace(statistics.median(timed), min(timed), max(timed), len(timed), *facts)


def _steps(made: "Job") -> list[float]:
    """Seconds of each of the first steps, from one's end to the next one's, waiting for images
    included."""
    from ..data import loaders
    from ..data.workers import InterruptibleLoader
    from ..jobs import setup
    from ..training import loop

    recipe, ends = made.recipe, [time.perf_counter()]
    # after the schedule was made, which stays the run's
    recipe.optim.steps = min(STEPS, recipe.optim.steps)

    class Clock(Callback):
        def on_step(self, step: int) -> None:
            ends.append(time.perf_counter())

    loader = loaders.training_loader(
        made.images,
        recipe.data,
        made.batch_layout,
        recipe.seed,
        0,
        recipe.optim.steps,
        made.workers,
    )
    with InterruptibleLoader(loader) as passes:
        loop.train(
            made.state,
            passes,
            setup.loop_settings(recipe),
            made.batch_layout,
            made.accelerator,
            callbacks=loop.Callbacks([Clock()]),
        )
    return [after - before for before, after in itertools.pairwise(ends)]
