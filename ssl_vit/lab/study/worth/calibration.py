"""Time a few steps of each kind of run, with as many runs at once as the study will have."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

from ....costs import compute_network_cost
from ....errors import UserError
from ....formatting import PACKAGE, process_environment
from ....recipe.init_source import SCRATCH
from ....recipe.keys import Values
from ....runs.environment import cores, requested_threads
from ...memory import memory_need
from ..hours import task_kind
from ..local import usable_gpus, usable_memory
from ..options import RELEASED
from ..task_options import resolve_options
from ..tasks import Task, plain_options
from ..warm import dies_with_us, is_possible
from .content import MIXUP, VALIDATED
from .plan import RunSeconds, RunSpeed, seconds, smallest_size, tasks_of
from .study_setup import NAME, StudySetup

SAMPLE = 512  # number of training images that the timed steps read
SECONDS = 0.6  # shortest time for which the steps of each kind of run are measured
# most multiply-adds of a timed step: about two seconds of one thread
STEP_WORK = 4e10
EVALUATIONS = 5  # evaluations of a run on held-out images: four during training and one at the end
# Estimates in seconds of one thread. While the study runs, the times of finished runs replace them.
# FINISH: writing the result, the export and the page of a run, and leaving Python. PROBES: fitting
# the linear probe of a frozen encoder at six learning rates.
FINISH, PROBES = 3.4, 10.0
PROBED = 2000  # labelled training images whose k-NN features are computed after pre-training
TUNE_RELEASED = f"tune {RELEASED}"
# kinds of runs that are timed, in addition to TUNE_RELEASED
TRAINED = ("pretrain", "supervised", "tune")
WIDEST = 8  # most tasks at once: with more cores, several threads per task may be faster


class Parallelism(NamedTuple):
    """Number of tasks at once (`parallel`), and number of threads of each task (`threads`)."""

    parallel: int
    threads: int


class Timer:
    """Process that times steps (jobs/calibration.py), used as a context manager."""

    def __init__(self) -> None:
        line = [sys.executable, "-P", "-m", f"{PACKAGE.name}.jobs.calibration"]
        pipe = subprocess.PIPE
        # the timed runs write into this folder and may be killed while they write
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            line,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            text=True,
            env=process_environment() | {"TMPDIR": self.folder.name},
            start_new_session=True,
            preexec_fn=dies_with_us(signal.SIGTERM),
        )
        self.imports = 0.0  # seconds of imports, known after the first measurement

    def __enter__(self) -> "Timer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # also kills the timed runs
        self.process.communicate()
        self.folder.cleanup()

    def measure(
        self, options: Values, images: int, parallelism: Parallelism, devices: Sequence[str]
    ) -> dict[str, float]:
        """Time the steps of several runs at once, and return the mean times over the runs.

        Args:
            options: Options of the runs.
            images: Number of training images of the study.
            parallelism: Number of runs at once, and threads of each run.
            devices: GPUs to distribute the runs over. Empty for the CPU.

        Returns:
            Mean seconds of an optimiser step (`step`), of the forward pass of a held-out image
                (`forward`), of decoding an image (`decode`), and of the preparation before the
                first step (`set_up`). A further value, `resident`, is 0 unless the runs keep all
                training images decoded in memory.

        Raises:
            UserError: A run fails.
        """
        # runs take the GPUs in turn
        environments = [
            {"CUDA_VISIBLE_DEVICES": devices[number % len(devices)]} if devices else {}
            for number in range(parallelism.parallel)
        ]
        request = {"options": options, "seconds": SECONDS, "images": images}
        answers = self._ask(request | {"environments": environments})
        for answer in answers:
            if "error" in answer:
                recipe = options["recipe"]
                raise UserError(f"{NAME}: recipe={recipe} cannot be timed: {answer['error']}")
        return {key: sum(answer[key] for answer in answers) / len(answers) for key in answers[0]}

    def _ask(self, request: Mapping[str, Any]) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            if not self.imports:
                self.imports = json.loads(self.process.stdout.readline())["imports"]
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            status = self.process.wait()
            raise UserError(
                f"{NAME}: the process that times steps ended with status {status}"
            ) from None


def list_parallelisms(setup: StudySetup, parallel: int | None) -> list[Parallelism]:
    """List the numbers of tasks at once to try, with the threads of each task, largest first.

    With GPUs, each GPU runs one task. Without GPUs, memory and cores limit the number of tasks.

    Args:
        setup: Setup of the study. Its recipe may fix the number of threads (`compute.threads`).
        parallel: Number of tasks at once if the user sets this number, else None.
    """
    cpu_cores, devices = cores(), usable_gpus()
    fixed_threads = setup.recipe.compute.threads or requested_threads()
    if parallel is not None:
        counts = {parallel}
    elif devices:
        counts = {len(devices)}
    else:
        memory = memory_need(setup.recipe, gpu=False)  # of one task
        most = max(1, min(cpu_cores // (fixed_threads or 1), usable_memory() // memory))
        counts = {most}
        # Fewer tasks with several threads each may be faster. Measuring a candidate takes time, so
        # there are only two more candidates: WIDEST tasks at once, and a single task.
        if not fixed_threads:
            counts |= {min(most, WIDEST), 1}
    candidates = [
        Parallelism(count, fixed_threads or max(1, cpu_cores // count)) for count in counts
    ]
    return sorted(candidates, reverse=True)


def calibrate(setup: StudySetup, timer: Timer, parallel: int | None) -> RunSpeed:
    """Time runs of a study, and choose the number of runs at once that makes the study fastest.

    Every kind of run, such as fine-tuning, is timed with the largest number of runs at once. With
    each smaller number, only pre-training is timed. The times of the other kinds are assumed to
    change by the same ratio as the times of pre-training.

    Args:
        setup: Setup of the study: its images, recipe and network.
        timer: Process that times steps.
        parallel: Number of runs at once if the user sets this number, else None.

    Returns:
        The number of runs at once, and the seconds of each kind of run with this number.

    Raises:
        UserError: A run fails.
    """
    largest, *others = list_parallelisms(setup, parallel)
    times_by_kind = {kind: _time(setup, timer, kind, largest) for kind in kinds_of(setup)}
    speeds = [RunSpeed(_clocks(setup, times_by_kind, timer.imports, largest), largest.parallel)]
    for parallelism in others:
        at_largest = times_by_kind["pretrain"]
        at_this = _time(setup, timer, "pretrain", parallelism)
        # multiply each time by the ratio of the two times of pre-training
        scaled_times = {
            kind: {key: times[key] * at_this[key] / max(1e-9, at_largest[key]) for key in times}
            for kind, times in times_by_kind.items()
        }
        clocks = _clocks(setup, scaled_times, timer.imports, parallelism)
        speeds.append(RunSpeed(clocks, parallelism.parallel))
    return min(speeds, key=lambda speed: seconds(setup, smallest_size(setup), speed))


def kinds_of(setup: StudySetup) -> list[str]:
    """Return the kinds of runs whose steps are timed."""
    kinds = [kind for kind in TRAINED if kind != "supervised" or not setup.init]
    if setup.released:
        kinds.append(TUNE_RELEASED)
    return kinds


def options_of(setup: StudySetup, kind: str, parallelism: Parallelism) -> tuple[Values, float]:
    """Return the options of a short run that is timed in place of a run of the study.

    The timed run reads at most `SAMPLE` training images. If a step of the study would take seconds
    on the CPU, a step of the timed run has fewer images.

    Args:
        setup: Setup of the study: its images, recipe and network.
        kind: Kind of run, such as "pretrain" or "tune".
        parallelism: Number of runs at once, and threads of each run.

    Returns:
        `{key: value}` of the timed run, and the batch of the study divided by the batch of the
            timed run. For example, the ratio is 4 if the timed run has 32 images in a batch and the
            study has 128. Then a step of the study takes 4 times as long as a timed step.
    """
    tasks = tasks_of(setup, smallest_size(setup)).values()
    # all tasks of a kind take equally long, so the first task represents the kind
    task = next(task for task in tasks if task_kind(task) == kind)
    options = plain_options(task.options)
    if kind != TUNE_RELEASED:  # the task of the released encoder already names its weights
        options |= _start(setup, task)
    if task.run == "tune":  # a try with mixup reads two images for each image of a batch
        options["data.mixup"] = MIXUP[1]
    share = SAMPLE / setup.images.train  # share of the training images that the timed run reads
    if share < 1:
        options["data.share"] = float(f"{share:.4g}")
    options |= {"compute.threads": parallelism.threads}
    if usable_gpus():
        options.setdefault("compute.workers", max(1, parallelism.threads - 1))
    recipe = resolve_options(options, NAME)
    # without a GPU, a timed step has fewer images if its work would exceed STEP_WORK
    batch = timed_batch = recipe.optim.batch
    work = compute_network_cost(recipe).training  # multiply-adds for one image, or None
    if work is not None and not usable_gpus():
        timed_batch = min(batch, max(2, int(STEP_WORK / work)))
    return options | {"optim.batch": timed_batch}, batch / timed_batch


def _start(setup: StudySetup, task: Task) -> Values:
    """Return the options that set the initial weights of a run."""
    if setup.init:
        return {"init": setup.init}
    if task.tool == "finetune":
        return setup.model | {"init": SCRATCH}
    return setup.model


def _time(setup: StudySetup, timer: Timer, kind: str, parallelism: Parallelism) -> dict[str, float]:
    """Time a kind of run, and convert the times to the batch and the images of the study.

    Returns:
        Seconds of a step of the study (`step`), of the forward pass of a held-out image
            (`forward`), of decoding an image (`decode`), and of the preparation before the first
            step (`set_up`). If all training images are kept in memory (`resident`), `set_up`
            includes decoding them.
    """
    options, batch_ratio = options_of(setup, kind, parallelism)
    times = timer.measure(options, setup.images.train, parallelism, usable_gpus())
    times = times | {"step": times["step"] * batch_ratio}
    if times["resident"]:
        times["set_up"] += _decoding(setup, times, parallelism)
    return times


def _decoding(setup: StudySetup, times: Mapping[str, float], parallelism: Parallelism) -> float:
    """Return the seconds for decoding all training images once, by all threads of a run."""
    return times["decode"] * setup.images.train / parallelism.threads


def _clocks(
    setup: StudySetup,
    timed: Mapping[str, Mapping[str, float]],
    imports: float,
    parallelism: Parallelism,
) -> dict[str, RunSeconds]:
    """Return the seconds of each kind of run: per step, and for everything else together.

    Args:
        setup: Setup of the study: its images, recipe and network.
        timed: `{kind: times}`, where `times` are from `_time`.
        imports: Seconds of imports in a new Python process. Forked tasks do not need this time.
        parallelism: Number of runs at once, and threads of each run.
    """
    images, recipe = setup.images, setup.recipe
    # numbers of images in the evaluations of a run
    validated = EVALUATIONS * min(recipe.eval.images, images.validation)
    # features are computed with the trained and with the untrained encoder
    features = 2 * (min(PROBED, images.labelled) + images.validation)
    tuned = EVALUATIONS * min(VALIDATED, images.validation)
    evaluated_images = {
        "pretrain": validated + features,
        "supervised": validated,
        "tune": tuned,
        "final": tuned + images.test,
        "frozen": 2 * (images.train + images.validation + images.test),
    }
    if setup.released:
        evaluated_images |= {
            f"{kind} {RELEASED}": evaluated_images[kind] for kind in ("tune", "final", "frozen")
        }
    clocks = {}
    if is_possible():  # a forked task imports nothing
        imports = 0.0
    for kind, count in evaluated_images.items():
        if kind == "supervised" and setup.init:
            continue
        # For a kind that was not timed, such as "final", the times of fine-tuning are used
        fine_tuning = TUNE_RELEASED if kind.endswith(RELEASED) else "tune"
        times = timed.get(kind) or timed[fine_tuning]
        forward = count * times["forward"] + min(count, images.train) * times["decode"]
        rest = imports + times["set_up"] + forward + FINISH
        if kind.startswith("frozen"):
            clocks[kind] = RunSeconds(0.0, rest + PROBES)
        else:
            clocks[kind] = RunSeconds(times["step"], rest)
    return clocks
