"""Decide what fits into a study's hours: tries, seeds, steps, label shares, frozen encoders."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ....errors import UserError
from ....formatting import format_share, plain_table
from ....recipe.given import Given
from ...compare import FEWEST, least_difference
from .. import read
from ..hours import makespan, task_kind
from ..options import RELEASED
from ..tasks import Tasks
from ..tasks import plan_tasks as plan_tasks
from .content import (
    MOST_SEEDS,
    RATES,
    TUNING_SEED,
    WITH_RATES,
    StudySize,
    describe_runs,
    study_file,
)
from .study_setup import NAME, StudySetup

SHARES = (0.1, 0.3, 0.03, 0.01)  # shares of the labels, in the order in which they are added
PER_CLASS = 5  # fewest labelled images of each class in a share
LONGEST = 10  # longest pre-training, as a multiple of the recipe's length
MOST_FROZEN = 0.1  # largest share of the hours for the frozen encoders of the first seeds
PLANNING = 30.0  # upper bound of the seconds that planning takes on an idle machine
RESERVE = 0.1  # share of the hours that tries and steps leave for further seeds or a busier machine
SEEDS_BEFORE_RATES = 5  # seeds that matter more than other learning rates of pre-training
ASSUMED_SDS = (0.3, 0.7, 1.2)  # standard deviations of paired differences over seeds, in points
ASSUMED_SEEDS = (3, 5, 8)
# assumed share of the test images that exactly one of two arms classifies correctly
SHARE_ONE_RIGHT = 0.2


class RunSeconds(NamedTuple):
    """Seconds that a run takes for each step (`step`) and for everything else together (`rest`)."""

    step: float
    rest: float


class ScheduledTask(NamedTuple):
    """Kind of a task, such as "tune", and the names of the tasks that must end before it."""

    kind: str
    needs: tuple[str, ...]


class RunSpeed(NamedTuple):
    """Speed of runs on this machine.

    Attributes:
        clocks: `{kind of run: seconds}`, such as `{"tune": RunSeconds(step=0.2, rest=15)}`.
        parallel: Number of runs at once with which these seconds are measured.
    """

    clocks: Mapping[str, RunSeconds]
    parallel: int


def tasks_of(setup: StudySetup, size: StudySize) -> Tasks:
    """Return the tasks of a study of a given size."""
    study = read.build(study_file(setup, size, hours=0), NAME)
    return plan_tasks(study, {}, Given())


def seconds_of(kind: str, clocks: Mapping[str, RunSeconds], steps: int) -> float:
    """Return the seconds of a run of a given kind and number of steps."""
    return clocks[kind].rest + steps * clocks[kind].step


def seconds(setup: StudySetup, size: StudySize, speed: RunSpeed) -> float:
    """Return the seconds that a study takes from the start of the first task to the last end."""
    schedule, steps = _schedule(setup, size), steps_of(setup, size)
    durations = {
        name: seconds_of(task.kind, speed.clocks, steps[task.kind])
        for name, task in schedule.items()
    }
    needs = {name: task.needs for name, task in schedule.items()}
    return makespan(schedule, needs, durations, speed.parallel)


def steps_of(setup: StudySetup, size: StudySize) -> dict[str, int]:
    """Return the number of steps of each kind of run, as `{kind: steps}`."""
    finetune_steps = setup.fine_steps(size.steps)
    supervised_steps = round(size.steps * setup.supervised_ratio)
    steps = {
        "pretrain": size.steps,
        "supervised": supervised_steps,
        "tune": finetune_steps,
        "final": finetune_steps,
        "frozen": 0,
    }
    return steps | {f"{kind} {RELEASED}": steps[kind] for kind in ("tune", "final", "frozen")}


_SCHEDULES: dict[tuple[Any, ...], dict[str, ScheduledTask]] = {}


def _schedule(setup: StudySetup, size: StudySize) -> dict[str, ScheduledTask]:
    """Return the tasks that a study runs, as `{name: kind and needed tasks}`.

    A study with three learning rates of pre-training has three runs of pre-training: `pretrain`,
    `pretrain_low` and `pretrain_high`. For the tuning seed, the schedule has all three runs. Each
    other seed needs only the run that tuning will choose. The choice is not known yet, and all
    three runs take equally long. So for the other seeds, the schedule has only `pretrain`. The same
    holds for supervised training (`supervised`).
    """
    # the schedule does not depend on the steps, so studies that differ in their steps share it
    key = (*setup.all_arms, *size._replace(steps=0))
    if key not in _SCHEDULES:
        _SCHEDULES[key] = {
            name: ScheduledTask(task_kind(task), task.needs)
            for name, task in tasks_of(setup, size).items()
            if task.seed == TUNING_SEED or not task.run.endswith(("_low", "_high"))
        }
    return _SCHEDULES[key]


def smallest_size(setup: StudySetup) -> StudySize:
    """Return the smallest study that can answer the question."""
    return StudySize(min(RATES), FEWEST, setup.least_steps)


def hours_needed(setup: StudySetup, speed: RunSpeed, spent: float = 0.0) -> float:
    """Return the fewest hours for a study of whether pre-training helps, rounded up to two digits.

    In these hours, the smallest study, which has three seeds, leaves a tenth of the hours as a
    reserve. For example, 1.234 hours are rounded up to 1.3.

    Args:
        setup: Setup of the study: its images, recipe and network.
        speed: Speed of runs.
        spent: Seconds that planning took.
    """
    takes = max(spent, PLANNING) + seconds(setup, smallest_size(setup), speed)
    hours = takes / 3600 / (1 - RESERVE)
    unit = 10 ** (math.floor(math.log10(hours)) - 1)  # value of the second digit
    digits = math.ceil(hours / unit - 1e-9)  # 1e-9: a rounding error must not raise the digits
    return float(f"{digits * unit:.3g}")


def find_largest_size(
    setup: StudySetup, hours: float, speed: RunSpeed, spent: float = 0.0
) -> StudySize:
    """Return the largest study that fits into the hours.

    The study starts with the smallest size. Each of these steps makes the study larger if it still
    fits into the hours:

    1. frozen encoders, if they take at most a tenth of the hours
    2. more tries
    3. more steps of pre-training, up to the length of the recipe
    4. up to five seeds
    5. three learning rates of pre-training, if there are five seeds
    6. up to eight seeds
    7. shares of the labels
    8. more steps of pre-training, if there are eight seeds

    Tries and steps cannot change once the study has started. So tries, steps and frozen encoders
    must leave a tenth of the hours unused. Seeds and shares may use all hours.

    Args:
        setup: Setup of the study: its images, recipe and network.
        hours: Hours that the study may take.
        speed: Speed of runs.
        spent: Seconds that planning took.

    Raises:
        UserError: The hours are too few.
    """

    def cost(size: StudySize) -> float:
        return (spent + seconds(setup, size, speed)) / 3600

    # the limit for tries and steps
    hours_without_reserve = (1 - RESERVE) * hours
    chosen = smallest_size(setup)
    if cost(chosen) > hours_without_reserve:
        raise UserError(too_few_hours(setup, hours, speed, spent))

    def larger_if_fits(larger: StudySize, limit: float) -> StudySize:
        return larger if cost(larger) <= limit else chosen

    recipe_length = max(chosen.steps, setup.recipe.optim.steps)
    with_frozen = chosen._replace(frozen=True)
    # the frozen encoders do not answer the question and can take most of the time
    if cost(with_frozen) - cost(chosen) <= MOST_FROZEN * hours:
        chosen = larger_if_fits(with_frozen, hours_without_reserve)
    for tries in sorted({*RATES} - {WITH_RATES}):
        chosen = larger_if_fits(chosen._replace(tries=tries), hours_without_reserve)
    chosen = _longest_that_fits(chosen, recipe_length, hours_without_reserve, cost)
    for seeds in range(FEWEST + 1, SEEDS_BEFORE_RATES + 1):
        chosen = larger_if_fits(chosen._replace(seeds=seeds), hours)
    if chosen.seeds == SEEDS_BEFORE_RATES:
        chosen = larger_if_fits(chosen._replace(tries=WITH_RATES), hours_without_reserve)
    for seeds in range(chosen.seeds + 1, MOST_SEEDS + 1):
        chosen = larger_if_fits(chosen._replace(seeds=seeds), hours)
    for share in possible_shares(setup):
        chosen = larger_if_fits(chosen._replace(shares=(*chosen.shares, share)), hours)
    if chosen.seeds == MOST_SEEDS:
        chosen = _longest_that_fits(chosen, LONGEST * recipe_length, hours_without_reserve, cost)
    return chosen


def possible_shares(setup: StudySetup) -> list[float]:
    """Return the shares of the labels that leave at least `PER_CLASS` images of each class."""
    return [share for share in SHARES if share * setup.images.smallest >= PER_CLASS]


def _longest_that_fits(
    size: StudySize, most: int, hours: float, cost: Callable[[StudySize], float]
) -> StudySize:
    """Return the size with as many steps of pre-training as fit into the hours.

    Args:
        size: Size of a study that fits into the hours.
        most: Most steps of pre-training.
        hours: Hours of the study.
        cost: Function that returns the hours that a study takes.
    """
    longer_steps = range(size.steps + 1, most + 1)
    # more steps cost more, so bisection finds how many of these lengths fit into the hours
    num_more = bisect_right(longer_steps, hours, key=lambda steps: cost(size._replace(steps=steps)))
    return size._replace(steps=size.steps + num_more)


def size_with_extras(
    setup: StudySetup, size: StudySize, hours: float, speed: RunSpeed
) -> StudySize:
    """Return the size with further groups of tasks, which run only if the machine is faster.

    The machine may be faster than measured, for example because other programs have ended. So the
    study file has more groups than fit at the measured speed: eight seeds, the frozen encoders, and
    shares of the labels. A share is added only if a study with three seeds, this share and all
    earlier shares fits into the hours. The running study leaves out groups that do not fit, except
    tuning and three seeds.

    Args:
        setup: Setup of the study: its images, recipe and network.
        size: Size that fits into the hours at the measured speed.
        hours: Hours that the study may take.
        speed: Speed of runs.
    """
    shares: tuple[float, ...] = ()
    for share in possible_shares(setup):
        with_share = size._replace(seeds=FEWEST, shares=(*shares, share))
        if seconds(setup, with_share, speed) <= 3600 * hours:
            shares = with_share.shares
    return size._replace(seeds=MOST_SEEDS, shares=shares, frozen=True)


def too_few_hours(setup: StudySetup, hours: float, speed: RunSpeed, spent: float = 0.0) -> str:
    """Return the error message that the hours are too few, with the hours that suffice."""
    return (
        f"hours={hours:g}: too little time for {setup.network} on this machine. Use"
        f" hours={hours_needed(setup, speed, spent):g}."
    )


def plan_lines(
    setup: StudySetup, size: StudySize, hours: float, speed: RunSpeed, spent: float
) -> Iterator[str]:
    """Yield lines that say what the study does within the hours.

    Args:
        setup: Setup of the study: its images, recipe and network.
        size: Size of the study.
        hours: Hours that the study may take.
        speed: Speed of runs.
        spent: Seconds that planning took.
    """
    takes = (spent + seconds(setup, size, speed)) / 3600
    at_once = f", {speed.parallel} tasks at once" if speed.parallel > 1 else ""
    labels = ", ".join(["all labels", *map(format_share, size.shares)])
    yield (
        f"hours       about {takes:.2g} of {hours:g}{at_once}: {size.tries} tries for each of"
        f" {setup.arms_text}, {size.steps} steps ({setup.epochs(size.steps)}) of"
        f" {setup.objective}, {setup.fine_steps(size.steps)} steps of fine-tuning, {size.seeds}"
        f" seeds, {labels}"
    )
    yield f"runs        {describe_runs(setup)}"
    if setup.released:
        yield f"released    {setup.released.network}, fine-tuned like the other arms"
    if not size.frozen:
        yield "            The frozen encoders are measured only if time is left at the end."
    if size.tries == WITH_RATES:  # this number of tries includes learning rates of pre-training
        yield f"rates       Three learning rates for {setup.objective} are tried."
    else:
        # a study of the same steps with as few seeds and shares as `find_largest_size` requires for
        # three learning rates
        with_rates = size._replace(tries=WITH_RATES, seeds=SEEDS_BEFORE_RATES, shares=())
        needed = (spent + seconds(setup, with_rates, speed)) / 3600 / (1 - RESERVE)
        yield (
            f"rates       Only the recipe's learning rate for {setup.objective} is tried."
            f" Three learning rates would need about {needed:.2g} hours."
        )


def power_lines(test: int) -> Iterator[str]:
    """Yield lines about the smallest difference that the study can find.

    The table has a row for each number of seeds, and a column for each standard deviation of the
    difference over seeds. A difference is uncertain for two reasons: other test images and other
    seeds would give another difference. The two parts are independent, so the squares of their
    least differences are added: with 3 points and 4 points, the least difference is 5 points.

    Args:
        test: Number of test images.
    """
    # 2.8 standard errors of a paired difference: 1.96 for the 95% interval and 0.84 for 80% power
    by_images = 100 * 2.8 * math.sqrt(SHARE_ONE_RIGHT / test)
    yield (
        "detectable  The smallest true difference, in points, that the study finds with a"
        " probability of 80%.\n            Assumed: exactly one of the two arms is right on"
        f" {format_share(SHARE_ONE_RIGHT)} of the {test:,} test images, on the same"
        "\n            images in every seed. sd is the standard deviation of the difference over"
        " seeds,\n            which is not known yet:"
    )
    head = ["seeds", *(f"sd {sd:g}" for sd in ASSUMED_SDS)]
    rows = []
    for seeds in ASSUMED_SEEDS:
        differences = (math.hypot(by_images, least_difference(sd, seeds)) for sd in ASSUMED_SDS)
        rows.append([str(seeds), *(f"{difference:.1f}" for difference in differences)])
    yield from (f"            {line}" for line in plain_table(head, rows))
