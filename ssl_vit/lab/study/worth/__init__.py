"""Plan `recipe=study/worth`, which answers whether pre-training helps on the user's own images.

The study is built from the available labels and hours. It has one primary comparison: with all
labels and after fine-tuning, the objective minus tuned training from scratch. `init=` names an
encoder. Then the primary comparison is further pre-training and fine-tuning of this encoder, minus
fine-tuning alone of the same encoder. The plan counts the work of each run (ssl_vit/costs) and
times a few steps on this machine.

- study_setup.py defines the question.
- network.py chooses the network and the image size.
- calibration.py measures how fast runs are.
- plan.py decides what fits into the hours.
- content.py builds the study.
- ../hours.py keeps the study within the hours.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....errors import UserError
from ....recipe import records
from ....recipe.keys import Values
from ....recipe.records import Number, Record, Whole
from ....recipe.words import write_all
from ....runs.environment import cores, cpu_model
from ....runs.files import write_atomically
from ....runs.lock import is_held
from ....runs.seen_text import COPIES_PAGE
from .. import hours as budget
from ..launch import RESULT
from ..local import usable_gpus
from ..options import LAUNCHERS, StudyOptions
from ..record import lock
from .calibration import Timer, calibrate
from .content import order_groups, study_file
from .network import choose
from .plan import (
    RunSpeed,
    StudySize,
    find_largest_size,
    plan_lines,
    power_lines,
    seconds_of,
    size_with_extras,
    steps_of,
)
from .study_setup import (
    NAME,
    StudySetup,
    find_copies,
    find_images,
    image_lines,
    sort_options,
)

__all__ = ["FILE", "NAME", "WorthPlan", "build", "order_groups"]
FILE = "worth.json"
HOURS = 4.0


class WorthPlan(Record):
    """Content of worth.json: the planned study and the command that asked for the plan.

    Attributes:
        words: Arguments of the command, as KEY=VALUE.
        hours: Hours that the study may take.
        spent: Seconds that planning took.
        study: Study with the structure of a study file.
        lines: Lines to print before the study starts.
        parallel: Number of tasks that run at once.
        expected: `{first part of a run's name: seconds of one task}`.
        frozen_first: Whether the frozen encoders of a seed are evaluated in the group of the seed.
    """

    words: list[str]
    hours: Number
    spent: Number
    study: dict[str, Any]
    lines: list[str]
    parallel: Whole
    expected: dict[str, Number]
    frozen_first: bool

    @property
    def plan(self) -> budget.HoursPlan:
        """Planned hours, as `hours.Hours` takes them."""
        return budget.HoursPlan(self.hours, self.spent, self.expected, self.frozen_first)


def build(given: Values, options: StudyOptions, folder: Path, may_time: bool) -> WorthPlan:
    """Plan the study for the options of a command, and write the plan to worth.json.

    An existing plan in the study's folder is used again if the options are the same. If only the
    hours differ and a task has finished, the plan keeps its seeds and steps, and gets the new
    hours. Otherwise a new plan is made from measured times of training steps.

    Args:
        given: `{key: value}` of `objective`, `init`, `released` and recipe keys.
        options: Options of the study tool. With `check`, no file is written.
        folder: Folder of the study.
        may_time: Whether training steps may be timed. If not, only an existing plan can be used.

    Returns:
        The plan. Its `lines` are the lines that are not printed yet.

    Raises:
        UserError: An option is wrong. Or there are too few images or hours. Or another study is
            running in the folder. Or a new plan is needed and `may_time` is False.
    """
    hours = HOURS if options.hours is None else options.hours
    path, words = folder / FILE, write_all(given)
    if options.launcher != "local":
        words.append(f"launcher={options.launcher}")
    existing_plan = _read_plan(path, words, hours)
    if existing_plan is not None:
        return existing_plan
    if not may_time:
        raise UserError(
            f"recipe={NAME}: this study can be planned only after timing a few training steps, and"
            " neither dry=true nor the plan tool times steps. To time the steps and see the plan,"
            " type the command of the study with --check. On a cluster, type it in a job that has"
            " the resources of a single task."
        )
    if is_held(folder) and not options.check:
        raise UserError(
            f"{folder}: a study with other options is running in this folder. Use another name=."
        )
    planned, printed, copies_page = _plan(given, options, hours, words, folder)
    if not options.check:
        with lock(folder):  # another command may have planned or started meanwhile
            existing_plan = _read_plan(path, words, hours)
            if existing_plan is not None:
                return existing_plan
            write_atomically(path, json.dumps(planned.content(), indent=1) + "\n")
            (folder / COPIES_PAGE).unlink(missing_ok=True)
            if copies_page:
                write_atomically(folder / COPIES_PAGE, copies_page)
            # hours.json, if there is one, was written for an earlier plan
            (folder / budget.FILE).unlink(missing_ok=True)
    unprinted_lines = planned.lines[printed:]
    return planned.model_copy(update={"lines": unprinted_lines})


def _read_plan(path: Path, words: Sequence[str], hours: float) -> WorthPlan | None:
    """Return the existing plan for the same options, or None if a new plan is needed.

    - Without an existing plan, or with other options, a new plan is needed.
    - With the same hours, the plan is used again.
    - With other hours, and before any run has finished, a new plan is needed.
    - With more hours, and after a run has finished, the plan is used again with the new hours.
    - With fewer hours, and after a run has finished, the hours are refused.

    Args:
        path: Path of worth.json.
        words: Arguments of the command, as KEY=VALUE.
        hours: Hours that the command asks for.

    Raises:
        UserError: The file is damaged, or the hours are fewer than planned and a run has finished.
    """
    if not path.exists():
        return None
    recorded = records.require(path, WorthPlan, "remove the file to plan again")
    if recorded.words != [*words]:
        return None
    if recorded.hours == hours:
        return recorded
    if not any(path.parent.glob(f"*/{RESULT}")):
        return None
    if hours < recorded.hours:  # otherwise a user could stop as soon as the results look good
        raise UserError(
            f"hours={hours:g}: this study was planned for {recorded.hours:g} hours, and some runs"
            f" have finished. Use hours={recorded.hours:g} or more."
        )
    recorded.lines.insert(
        0,
        f"planned     for hours={recorded.hours:g}. With hours={hours:g}, the planned learning"
        " rates and steps stay the same. For a new plan, use another name=.",
    )
    return recorded.model_copy(update={"hours": hours})


def _plan(
    given: Values,
    options: StudyOptions,
    hours: float,
    words: Sequence[str],
    folder: Path,
) -> tuple[WorthPlan, int, str]:
    """Plan a study, and print lines about the images and the network as soon as possible.

    Returns:
        The plan, the number of lines of the plan that are already printed, and a page of the test
        images that are copies of training images, "" without copies.

    Raises:
        UserError: See `build`.
    """
    began = time.perf_counter()
    runs_here = LAUNCHERS[options.launcher].runs_here
    # on a cluster each task has a machine, or a part of a machine, of its own
    parallel = options.parallel if runs_here else 1
    with Timer() as timer:
        shared = sort_options(given)[0]
        images = find_images(shared)
        note, copies_page = find_copies(shared | images.options)
        images = images._replace(notes=(*images.notes, note))
        lines = [*image_lines(images)]
        print(*lines, sep="\n", flush=True)
        timed: list[RunSpeed] = []

        def time_question(setup: StudySetup) -> RunSpeed:
            timed.append(calibrate(setup, timer, parallel))
            return timed[-1]

        try:
            choice = choose(given, images, hours, time_question)
        except UserError:  # the measured times show that the hours are too few
            spent = time.perf_counter() - began
            print(*(_pace_line(speed, spent) for speed in timed[:1]), sep="\n", flush=True)
            raise
    # command_options are for the command that repeats the study: the user's options, without the
    # network that was chosen here
    setup, speed = choice.setup._replace(command_options=given), choice.speed
    print(choice.reason, flush=True)
    spent = time.perf_counter() - began
    lines += [choice.reason, _pace_line(speed, spent)]
    printed = len(lines) - 1  # all lines except the last, about the measured speed
    try:
        size = find_largest_size(setup, hours, speed, spent)
    except UserError:
        print(lines[-1], flush=True)
        raise
    lines += [*plan_lines(setup, size, hours, speed, spent), *power_lines(images.test)]
    full_size = size_with_extras(setup, size, hours, speed) if runs_here else size
    planned = WorthPlan(
        words=[*words],
        hours=hours,
        spent=round(spent, 2),
        study=study_file(setup, full_size, hours),
        lines=lines,
        parallel=speed.parallel,
        expected=_expected(setup, size, speed),
        frozen_first=size.frozen,
    )
    return planned, printed, copies_page


def _expected(setup: StudySetup, size: StudySize, speed: RunSpeed) -> dict[str, float]:
    """Return the expected seconds of a run of each kind, as `{kind: seconds}`."""
    steps = steps_of(setup, size)
    return {kind: round(seconds_of(kind, speed.clocks, steps[kind]), 2) for kind in speed.clocks}


def _pace_line(speed: RunSpeed, spent: float) -> str:
    """Return a line about the measured speed of runs and the machine.

    For each kind of run, such as "pretrain", the line has two numbers: the seconds of a step, and
    the seconds of everything else (start, preparation of images and evaluations) together.

    Args:
        speed: Measured speed.
        spent: Seconds that the measurement took.
    """
    steps = [f"{kind} {clock.step:.3g} s" for kind, clock in speed.clocks.items() if clock.step]
    rests = [f"{kind} {clock.rest:.0f} s" for kind, clock in speed.clocks.items()]
    at_once = f"{speed.parallel} tasks at once" if speed.parallel > 1 else "one task at a time"
    machine = f"{cpu_model()}, {cores()} cores, GPUs {', '.join(usable_gpus()) or 'none'}"
    load = f"load average {os.getloadavg()[0]:.1f}"
    text = (
        f"{at_once}. A step takes: {', '.join(steps)}. Start, preparation and evaluations of a run"
        f" take: {', '.join(rests)}"
    )
    return f"measured    in {spent:.0f} s on {machine}, {load}: {text}"
