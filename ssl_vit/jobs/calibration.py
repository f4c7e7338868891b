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

STEPS = 2  # minimum number of timed steps, after a first step that allocates memory
DECODED = 32  # number of images to read and decode for timing


def measure(options: Values, seconds: float, images: int) -> dict[str, Any]:
    """Time the steps of a training run in a temporary folder.

    Args:
        options: Options of the run, `{dotted key: value}`. They may select a share of the training
            images.
        seconds: Minimum duration of the timed steps.
        images: Number of training images of the planned run.

    Returns:
        Seconds for an optimiser step (`step`), for the forward pass of a held-out image
        (`forward`), for reading and decoding an image (`decode`), and for the setup before the
        first step (`set_up`). `resident` is true if the planned run will keep all training images
        decoded in memory.

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
        setup_seconds = time.perf_counter() - started
        decode_seconds = _seconds_to_decode(job)
        job.decoded = resources.resident_images(recipe, splits.train, 0, images)
        # Allow more steps than are timed. The learning rate follows the schedule of the planned
        # run, which was built before
        recipe.optim.steps = 10**4
        settings = setup.loop_settings(recipe)
        step_starts: list[float] = []

        # The training loop calls this function before each step, and stops if the result is true
        def is_timed(step: int) -> bool:
            step_starts.append(time.perf_counter())
            return step > STEPS and step_starts[-1] - step_starts[1] >= seconds

        with InterruptibleLoader(job.loader()) as passes:
            loop.train(job.state, passes, settings, stop=is_timed)
        # `step_starts` also has the first step, which is not timed, and the call that stopped the
        # loop: with 4 entries, the steps 2 and 3 were timed
        timed_steps = len(step_starts) - 2
        began = time.perf_counter()
        loop.evaluate(job.held_out, job.state, {}, settings, Callbacks([]))
        evaluation_seconds = time.perf_counter() - began
        return {
            "step": (step_starts[-1] - step_starts[1]) / timed_steps,
            "forward": evaluation_seconds / sum(len(batch.key) for batch in job.held_out.batches),
            "decode": decode_seconds,
            "set_up": setup_seconds,
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
    images, _ = train.fetch(rows)
    for image in images:
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
    """Run `measure` at the same time in several forked copies of this process.

    Args:
        options: As for `measure`.
        seconds: As for `measure`.
        images: As for `measure`.
        environments: Environment variables of each copy.

    Returns:
        The measurements of each copy, or {"error": message} if the copy failed.
    """
    copies = []
    for environment in environments:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:  # fork returns 0 in the copy
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
        copies.append((child, read_end))
    answers = []
    for child, read_end in copies:
        with os.fdopen(read_end) as file:
            text = file.read()
        os.waitpid(child, 0)
        answers.append(json.loads(text) if text else {"error": "the process was killed"})
    return answers


def serve() -> None:
    """Measure step times on request, until the standard input ends.

    Each line of the standard input holds the arguments of `measure_at_once` as JSON, and is
    answered by a line of JSON. Before the answers comes a line with the seconds that the imports
    took (`{"imports": seconds}`).

    On Linux, the client starts this process with PR_SET_PDEATHSIG, so the system sends SIGTERM when
    the client ends. The handler of SIGTERM kills this process and its copies.
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
