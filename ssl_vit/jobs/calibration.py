"""Time a few optimiser steps of a training run: `python -m ssl_vit.jobs.calibration`.

The process imports the modules that a training run imports, and computes nothing itself. Each line
of the standard input is a request. For each request, the process forks as many copies of itself as
the request asks for, lets all copies take steps at the same time, and writes the measurements as a
line of JSON to the standard output. The copies share the machine and are slowed down by each other,
just as runs would be. The process ends when the standard input ends.
"""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import one_line
from ..recipe.keys import Values

STEPS = 2  # the least number of steps that are timed, after a first step that allocates memory
DECODED = 32  # number of images whose reading and decoding is timed


def measure(options: Values, seconds: float, images: int) -> dict[str, Any]:
    """Time the steps of a training run in a temporary folder.

    Args:
        options: `{dotted key: value}` of the run, which may select a share of the training images.
        seconds: Least time for which steps are taken.
        images: Number of training images of the planned run.

    Returns:
        Times in seconds: of an optimiser step (`step`), of the forward pass of a held-out image
        (`forward`), of reading and decoding an image (`decode`), and of the setup before the first
        step (`set_up`). `resident` is true if the planned run will keep all training images decoded
        in memory.

    Raises:
        UserError: An option is wrong, or does not suit the images.
    """
    from ..callbacks import Callbacks
    from ..data.workers import InterruptibleLoader
    from ..recipe.given import from_values
    from ..recipe.load import resolve
    from ..runs.folder import Run
    from ..training import loop
    from . import resources, setup
    from .session import session

    started = time.perf_counter()
    recipe = resolve(from_values(options)).recipe
    recipe.name = "calibration"
    recipe.log.every = 10**6  # writing a row of metrics is not part of a step
    recipe.eval.images = max(2, min(recipe.eval.images, recipe.optim.batch))
    recipe.eval.test, recipe.eval.knn, recipe.eval.collapse = False, False, None
    recipe.probe.every = None
    with tempfile.TemporaryDirectory() as recipe.out, session(Run(recipe)) as current:
        splits = current.load_splits(test=False)
        job = setup.set_up(current.run, current.accelerator, splits)
        set_up = time.perf_counter() - started
        decode = _seconds_to_decode(job)
        job.decoded = resources.resident_images(recipe, splits.train, 0, images)
        # more steps than are timed; the schedule of the learning rate was made before and stays
        recipe.optim.steps = 10**4
        settings = setup.loop_settings(recipe)
        begins: list[float] = []  # when each step began

        def is_settled(step: int) -> bool:
            begins.append(time.perf_counter())
            return step > STEPS and begins[-1] - begins[1] >= seconds

        with InterruptibleLoader(job.loader()) as passes:
            loop.train(job.state, passes, settings, stop=is_settled)
        began = time.perf_counter()
        loop.evaluate(job.held_out, job.state, {}, settings, Callbacks([]))
        forward = (time.perf_counter() - began) / sum(
            len(batch.key) for batch in job.held_out.batches
        )
        return {
            "step": (begins[-1] - begins[1]) / (len(begins) - 2),
            "forward": forward,
            "decode": decode,
            "set_up": set_up,
            "resident": job.decoded is not None,
        }


def _seconds_to_decode(job: Any) -> float:
    """Return the mean seconds for reading and decoding a training image, or 0 for a stream."""
    import numpy as np

    from ..data.pixel_values import decoder

    if job.splits.stream:
        return 0.0
    train, decode = job.splits.train, decoder(job.recipe.data)
    rows = np.arange(min(DECODED, len(train)))
    began = time.perf_counter()
    for image in train.fetch(rows)[0]:
        try:
            decode(image)
        except ValueError:  # an unreadable image takes as long as a readable image
            continue
    return (time.perf_counter() - began) / len(rows)


def measure_at_once(
    options: Values,
    seconds: float,
    images: int,
    environments: Sequence[Mapping[str, str]],
) -> list[dict[str, Any]]:
    """Fork a copy of this process for each environment, and let all copies `measure` at once.

    Args:
        options: As for `measure`.
        seconds: As for `measure`.
        images: As for `measure`.
        environments: Environment variables to set in each copy.

    Returns:
        The measurements of each copy, or {"error": message} if the copy failed.
    """
    pipes = []
    for environment in environments:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:  # this process is the copy
            os.close(read_end)
            os.environ.update(environment)
            try:
                answer = measure(options, seconds, images)
            except BaseException as error:
                traceback.print_exc()
                answer = {"error": one_line(error) or type(error).__name__}
            os.write(write_end, json.dumps(answer).encode())
            os._exit(0)
        os.close(write_end)
        pipes.append((child, read_end))
    answers = []
    for child, read_end in pipes:
        with os.fdopen(read_end) as file:
            text = file.read()
        os.waitpid(child, 0)
        answers.append(json.loads(text) if text else {"error": "the process was killed"})
    return answers


def serve() -> None:
    """Measure step times on request, until the standard input ends.

    Each line of the standard input holds the arguments of `measure_at_once` as JSON, and is
    answered by a line of JSON. `measure_at_once` measures in forked copies of this process. A first
    line, before all answers, holds the seconds that the imports took (`{"imports": seconds}`).

    On Linux, the process that asks starts this process with PR_SET_PDEATHSIG. When the asking
    process has ended, the system therefore sends SIGTERM, which kills this process and its copies.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(0, signal.SIGKILL))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # the standard output is for answers only, so what a run prints goes to the standard error
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    began = time.perf_counter()
    from . import train  # noqa: F401  # imports everything that a training run imports

    print(json.dumps({"imports": time.perf_counter() - began}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure_at_once(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    serve()
