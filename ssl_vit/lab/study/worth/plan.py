"""What the hours of a study buy: tries, seeds, steps, shares of the labels and frozen encoders."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ....errors import UserError
from ....formatting import format_share, plain_table
from ...compare import FEWEST, least_difference
from .. import read
from ..hours import kind_of, makespan
from ..options import RELEASED
from ..tasks import Tasks
from ..tasks import plan as plan_tasks
from .content import MOST_SEEDS, RATES, TUNING_SEED, WITH_RATES, Extent, study_file
from .question import NAME, Question

SHARES = (0.1, 0.3, 0.03, 0.01)  # of the labels, in the order in which they are added
PER_CLASS = 5  # labelled images of each class in such a share, at least
LONGEST = 10  # times the recipe's length
MOST_FROZEN = 0.1  # of the hours, for the frozen encoders of the first seeds
PLANNING = 30.0  # seconds of the plan itself, at most on an idle machine
RESERVE = 0.1  # of the hours, which tries and steps leave to further seeds or to a busier machine
SEEDS_BEFORE_RATES = 5  # seeds that matter more than other learning rates of pre-training
ASSUMED_SDS = (0.3, 0.7, 1.2)  # points, of paired differences over seeds
ASSUMED_SEEDS = (3, 5, 8)
ASSUMED_APART = 0.2  # share of test images of which one arm alone is right


class Clock(NamedTuple):
    """Seconds that a run takes: for each step, and for everything else."""

    step: float
    rest: float


class Pace(NamedTuple):
    """How fast runs are on this machine.

    Attributes:
        clocks: {kind of run: its clock}.
        parallel: How many runs at once the clocks are for.
    """

    clocks: Mapping[str, Clock]
    parallel: int


def tasks_of(question: Question, extent: Extent) -> Tasks:
    """Return the tasks of a study."""
    return plan_tasks(read.build(study_file(question, extent, 0), NAME), {}, {})


def seconds_of(kind: str, clocks: Mapping[str, Clock], steps: int) -> float:
    """Return the seconds that a run of a kind takes."""
    return clocks[kind].rest + steps * clocks[kind].step


def seconds(question: Question, extent: Extent, pace: Pace) -> float:
    """Return the seconds that a study takes.

    Of the learning rates before fine-tuning, the seeds that confirm train only the chosen one.
    """
    tasks = _schedule(question, extent)
    steps = steps_of(question, extent)
    each = {kind: seconds_of(kind, pace.clocks, steps[kind]) for kind in pace.clocks}
    takes = {name: each[kind] for name, (kind, _) in tasks.items()}
    return makespan(
        tasks, {name: needs for name, (_, needs) in tasks.items()}, takes, pace.parallel
    )


def steps_of(question: Question, extent: Extent) -> dict[str, int]:
    """Return {kind of run: its steps}."""
    fine = question.fine_steps(extent.steps)
    own = round(extent.steps * question.supervised)
    steps = {"pretrain": extent.steps, "own": own, "tune": fine, "final": fine, "frozen": 0}
    return steps | {f"{kind} {RELEASED}": steps[kind] for kind in ("tune", "final", "frozen")}


_SCHEDULES: dict[tuple[Any, ...], dict[str, tuple[str, tuple[str, ...]]]] = {}


def _schedule(question: Question, extent: Extent) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return {task: its kind, and the tasks that it needs}, of the tasks that take time; made once
    for studies that differ only in their steps."""
    key = (*question.all_arms, *extent._replace(steps=0))
    if key not in _SCHEDULES:
        _SCHEDULES[key] = {
            name: (kind_of(task), task.needs)
            for name, task in tasks_of(question, extent).items()
            if task.seed == TUNING_SEED or not task.run.endswith(("_low", "_high"))
        }
    return _SCHEDULES[key]


def least_extent(question: Question) -> Extent:
    """Return the smallest study that can answer the question."""
    return Extent(min(RATES), FEWEST, question.least_steps)


def hours_needed(question: Question, pace: Pace, spent: float = 0.0) -> float:
    """Return the fewest hours that can answer the question, rounded up to two digits.

    Args:
        question: The question.
        pace: How fast runs are.
        spent: Seconds that planning has taken.
    """
    takes = max(spent, PLANNING) + seconds(question, least_extent(question), pace)
    hours = takes / 3600 / (1 - RESERVE)
    unit = 10 ** (math.floor(math.log10(hours)) - 1)
    return float(f"{math.ceil(hours / unit - 1e-9) * unit:.3g}")


def spend(question: Question, hours: float, pace: Pace, spent: float = 0.0) -> Extent:
    """Return what the hours buy.

    They go, in this order, to three seeds, the frozen encoders where these take few of them, tries,
    the recipe's length, five seeds, three learning rates of pre-training, eight seeds, shares of
    the labels, and longer training. Tries and steps cannot change once the study has started, so
    they leave a tenth of the hours.

    Args:
        question: The question.
        hours: How long the study may take.
        pace: How fast runs are.
        spent: Seconds that planning has taken.

    Raises:
        UserError: The hours are too few.
    """

    def cost(extent: Extent) -> float:
        return (spent + seconds(question, extent, pace)) / 3600

    firm = (1 - RESERVE) * hours
    found = least_extent(question)
    if cost(found) > firm:
        raise UserError(f"{too_few_hours(question, hours, pace, spent)}.")

    def take(more: Extent, limit: float) -> Extent:
        return more if cost(more) <= limit else found

    length = max(found.steps, question.recipe.optim.steps)
    frozen = found._replace(frozen=True)
    # the frozen encoders do not answer the question, and can take most of the time
    if cost(frozen) - cost(found) <= MOST_FROZEN * hours:
        found = take(frozen, firm)
    for tries in sorted({*RATES} - {WITH_RATES}):
        found = take(found._replace(tries=tries), firm)
    found = _longest(found, length, firm, cost)
    for seeds in range(FEWEST + 1, SEEDS_BEFORE_RATES + 1):
        found = take(found._replace(seeds=seeds), hours)
    if found.seeds == SEEDS_BEFORE_RATES:
        found = take(found._replace(tries=WITH_RATES), firm)
    for seeds in range(found.seeds + 1, MOST_SEEDS + 1):
        found = take(found._replace(seeds=seeds), hours)
    for share in possible_shares(question):
        found = take(found._replace(shares=(*found.shares, share)), hours)
    if found.seeds == MOST_SEEDS:
        found = _longest(found, LONGEST * length, firm, cost)
    return found


def possible_shares(question: Question) -> list[float]:
    """Return the shares of the labels that have enough images of each class."""
    return [share for share in SHARES if share * question.images.smallest >= PER_CLASS]


def _longest(extent: Extent, most: int, hours: float, cost: Callable[[Extent], float]) -> Extent:
    """Return the extent with as many steps as fit into the hours, up to `most`."""
    longer = range(extent.steps + 1, most + 1)
    fit = bisect_right(longer, hours, key=lambda steps: cost(extent._replace(steps=steps)))
    return extent._replace(steps=extent.steps + fit)


def open_ended(question: Question, extent: Extent, hours: float, pace: Pace) -> Extent:
    """Return the extent with everything that a faster machine than planned could add.

    The runner leaves out what does not fit. Shares of the labels are in it only where three seeds
    would leave time for them.
    """

    def fits(shares: tuple[float, ...]) -> bool:
        least = extent._replace(seeds=FEWEST, shares=shares)
        return seconds(question, least, pace) <= 3600 * hours

    shares: tuple[float, ...] = ()
    for share in possible_shares(question):
        if fits((*shares, share)):
            shares += (share,)
    return extent._replace(seeds=MOST_SEEDS, shares=shares, frozen=True)


def too_few_hours(question: Question, hours: float, pace: Pace, spent: float = 0.0) -> str:
    """Return the error that the hours are too few, with the hours that suffice."""
    where = f"too little time for {question.network} on this machine"
    return f"hours={hours:g}: {where}. Use hours={hours_needed(question, pace, spent):g}"


def plan_lines(
    question: Question, extent: Extent, hours: float, pace: Pace, spent: float
) -> Iterator[str]:
    """Yield lines that say what the hours buy."""
    takes = (spent + seconds(question, extent, pace)) / 3600
    at_once = f", {pace.parallel} tasks at once" if pace.parallel > 1 else ""
    tries = f"{extent.tries} tries for each of {' and '.join(question.all_arms)}"
    length = f"{extent.steps} steps ({question.epochs(extent.steps)}) of {question.objective}"
    fine = f"{question.fine_steps(extent.steps)} steps of fine-tuning"
    labels = ", ".join(["all labels", *map(format_share, extent.shares)])
    yield (
        f"hours       about {takes:.2g} of {hours:g}{at_once}: {tries}, {length}, {fine},"
        f" {extent.seeds} seeds, {labels}"
    )
    if question.released:
        yield f"released    {question.released.network}, fine-tuned as the other arms"
    if not extent.frozen:
        yield "            The frozen encoders are measured only if time is left at the end."
    if extent.tries == WITH_RATES:
        yield f"rates       Three learning rates of {question.objective} are tried."
    else:
        most = extent._replace(tries=WITH_RATES, seeds=SEEDS_BEFORE_RATES, shares=())
        needed = (spent + seconds(question, most, pace)) / 3600 / (1 - RESERVE)
        yield (
            f"rates       Only the recipe's learning rate of {question.objective} is tried;"
            f" three of them would need about {needed:.2g} hours."
        )


def power_lines(test: int) -> Iterator[str]:
    """Yield the least difference that can be found, by seeds and by so many test images alone."""
    alone = 100 * 2.8 * math.sqrt(ASSUMED_APART / test)
    yield (
        f"assumed     the least difference that is claimed with a probability of 80%: {alone:.1f}"
        f" points by the {test:,} test images, if one arm alone is right on"
        f" {format_share(ASSUMED_APART)} of them;"
    )
    yield "            by seeds, and the standard deviation of differences over seeds, in points:"
    head = ["seeds", *(f"sd {sd:g}" for sd in ASSUMED_SDS)]
    rows = [
        [str(n), *(f"{least_difference(sd, n):.1f}" for sd in ASSUMED_SDS)] for n in ASSUMED_SEEDS
    ]
    yield from (f"            {line}" for line in plain_table(head, rows))
