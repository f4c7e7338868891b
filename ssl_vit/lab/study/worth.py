"""`recipe=study/worth`: does pre-training help on one's own images? A study that is built from the
labels that are there and the hours that are given.

One comparison is primary: with all labels, fine-tuned, the objective minus tuned training from
scratch; with init= going on from it minus the start itself. The hours go, in this order, to three
seeds, a measure of the frozen encoders where that takes few of them, tries, steps up to the
recipe's length, seeds up to eight, further shares of the labels, and longer training. How long a
run takes is measured on this machine before it is planned.
"""

import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import UserError, suggest
from ...formatting import (
    FEW_IMAGES,
    TEST_SHARE,
    format_share,
    plain_table,
    process_command,
    process_environment,
)
from ...recipe import records
from ...recipe.records import Number, Record, Whole
from ...recipe.schema import Data, Recipe
from ...runs.files import remove, write_atomically
from .. import engine
from ..compare import FEWEST, least_difference
from . import launch, read
from .options import WORTH, StudyOptions
from .tasks import Tasks, plan, words_of

NAME = WORTH
FILE = "worth.json"
TIMINGS = "timings.json"  # {machine, runs at once and words of a tool: seconds}
MADE = ".timing"  # the folder of the runs that are timed
EPOCHS = 20  # of pre-training, below which nothing is answered
MOST_SEEDS = 8
TUNING_SEED = 99  # confirms nothing
SHARES = (0.1, 0.3, 0.03, 0.01)  # of the labels, in the order in which they are added
A_CLASS = 5  # labelled images of a class in such a share, at least
HELD_OUT = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)  # shares, of which the first with enough is taken
FINE = 4 / 9  # images of fine-tuning for one of pre-training, as of recipe=finetune and recipe=mae
LOOKED_AT = 2000  # validation images, at most
LONGEST = 10  # times the recipe's length
MOST_FROZEN = 0.1  # of the hours, for the measure of frozen encoders
# Rates of fine-tuning that an arm tries, and that each of the two ways of scratch does; with and
# without mixup, except for the fewest tries. Every arm has as many tries
RATES = {
    4: ([0.01, 0.03, 0.1, 0.3], [0.03, 0.1]),
    8: ([0.01, 0.03, 0.1, 0.3], [0.03, 0.1]),
    12: ([0.003, 0.01, 0.03, 0.06, 0.1, 0.3], [0.03, 0.1, 0.3]),
}
MIXUP = ["0.0", "0.8"]  # texts: neither is an edge beyond which more could be tried
MIXED = {"data.mixup": 0.8, "data.cutmix": 1.0}  # of supervised training: results/worth.yaml
SHORT = 8  # steps of the runs that are timed
SHORTEST = 2  # steps of a run
ASSUMED_SDS = (0.3, 0.7, 1.2)  # points, of paired differences over seeds
ASSUMED_SEEDS = (3, 5, 8)
ASSUMED_APART = 0.2  # share of test images of which one arm alone is right
SHARED = ("data", "model", "compute")  # groups of keys that go to every run
HOURS, OBJECTIVE = 4.0, "mae"


class Images(NamedTuple):
    """The images that are there.

    Attributes:
        options: how test and validation images are taken, {key: text}.
        train: that pre-training sees; `labelled` of them, in `classes`, and of the class that has
            the fewest.
        validation, test: labelled ones.
        notes: what each split was read from, a line each; `guesses` what was assumed.
    """

    options: dict[str, str]
    train: int
    labelled: int
    classes: int
    smallest: int
    validation: int
    test: int
    notes: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()


class Question(NamedTuple):
    """What is asked.

    Attributes:
        objective: its recipe's name; `init` where it goes on from, "" for fresh weights.
        shared: options of every run; `own` of pre-training alone.
        images: that are there.
        recipe: of pre-training.
        model: options of runs from fresh weights.
        pool: the feature of an image that is fine-tuned and measured.
        supervised, fine: steps of supervised training that cost as much, and of fine-tuning, for
            one of pre-training.
    """

    objective: str
    init: str
    shared: dict[str, str]
    own: dict[str, str]
    images: Images
    recipe: Recipe
    model: dict[str, str]
    pool: str
    supervised: float
    fine: float

    @property
    def arms(self) -> tuple[str, str]:
        """The two that the primary comparison is of."""
        return self.objective, "start" if self.init else "scratch"

    @property
    def least_steps(self) -> int:
        return math.ceil(EPOCHS * self.images.train / self.recipe.optim.batch)

    def epochs(self, steps: int) -> str:
        found = steps * self.recipe.optim.batch / self.images.train
        return f"{math.floor(found) if found >= EPOCHS else math.floor(10 * found) / 10:,g} epochs"


class Extent(NamedTuple):
    """What the hours buy: tries of an arm, seeds, steps of pre-training, shares of labels, and
    whether encoders are measured frozen too."""

    tries: int
    seeds: int
    steps: int
    shares: tuple[float, ...] = ()
    frozen: bool = False


class Clock(NamedTuple):
    """Seconds that a run takes: of each step, and of all else."""

    step: float
    rest: float


Clocks = Mapping[str, Clock]  # by the run's name, up to the first _


class Worth(Record):
    """worth.json: the study as it was planned for a command.

    Attributes:
        words: of the command.
        study: as a file has it.
        lines: to say before it starts.
        parallel: how many runs at once it was planned for.
    """

    words: list[str]
    study: dict[str, Any]
    lines: list[str]
    parallel: Whole


def build(
    given: Mapping[str, str], own: StudyOptions, folder: Path, parallel: int, time_runs: bool
) -> Worth:
    """The study for the options of a command. What was planned in the study's folder for the same
    options is taken as it is, also where fewer runs go at once by now: a step measured again, or
    another pace, would make another study.

    Args:
        given: {key: text} of objective, init and keys of recipes.
        own: the tool's: the hours that it may take, with the measuring, and whether to start
            although they are too few to answer; with `check` the plan is not kept.
        folder: of the study.
        parallel: how many runs at once. On this machine as many are timed at once; of another
            launcher one, as each has its own part of a machine there.
        time_runs: whether runs may be started to time them; timings stay in the folder.

    Raises:
        UserError: an option is wrong, there are too few images, the hours are too few, another
            study is going on in the folder, or runs have to be timed and may not be.
    """
    hours = HOURS if own.hours is None else own.hours
    path, words = folder / FILE, [*words_of(given), f"hours={hours:g}"]
    if (before := _planned(path, words, hours, parallel)) is not None:
        return before
    if not time_runs:
        text = "is planned by runs that are timed; neither dry=true nor tools/plan.py starts them"
        other = "tools/study.py --check does, on a cluster in a job like those of its tasks"
        raise UserError(f"recipe={NAME}: {text}; {other}")
    goes_on = engine.is_written(folder)
    if goes_on and not own.check:
        raise UserError(f"{folder}: a study of other options is going on; take another name=")
    began = time.perf_counter()
    question = ask(given)
    there = [*image_lines(question.images)]
    print(*there, sep="\n", flush=True)  # before minutes go by
    beside = parallel if own.launcher == "local" else 1

    def exceeds(clocks: Clocks) -> str:
        return too_few_hours(question, hours, clocks, parallel, time.perf_counter() - began)

    # nor does a check write beside what goes on
    clocks = measure(question, beside, None if goes_on else folder, exceeds)
    spent = time.perf_counter() - began
    timed = timing_line(clocks, spent)
    try:
        extent, lines = spend(question, hours, clocks, parallel, own.anyway, spent)
    except UserError:  # by what the hours are too few
        print(timed, flush=True)
        raise
    takes = (spent + seconds(question, extent, clocks, parallel)) / 3600
    study = content(question, extent, max(hours, math.ceil(100 * takes) / 100), parallel)
    lines = [*there, timed, *lines, *power(question.images.test)]
    found = Worth(words=words, study=study, lines=lines, parallel=parallel)
    if not own.check:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found.content(), indent=1) + "\n")
    return found


def _planned(path: Path, words: Sequence[str], hours: float, parallel: int) -> Worth | None:
    """What was planned in a file for the same words, with a line where it was for another pace;
    None where nothing was."""
    before = records.require(path, Worth, "remove it to plan anew") if path.exists() else None
    if before is None or before.words != words:
        return None
    if before.parallel != parallel:
        text = f"parallel={before.parallel}, which hours={hours:g} is of; not planned anew"
        before.lines.insert(0, f"planned     for {text} for parallel={parallel}")
    return before


def ask(given: Mapping[str, str]) -> Question:
    """What the options ask.

    Raises:
        UserError: one is wrong, or there are too few images.
    """
    objective, init = given.get("objective", OBJECTIVE), given.get("init", "")
    if not engine.is_pretraining(objective):
        what = "is no recipe of training without labels"
        choices = suggest(objective, filter(engine.is_pretraining, engine.recipe_names()))
        raise UserError(f"objective={objective}: {what}; {choices}")
    plain = engine.resolve([f"recipe={objective}"], NAME, here=False)
    groups = [*SHARED, *plain.declared.groups_with(plain.target)]
    shared: dict[str, str] = {}
    own: dict[str, str] = {}
    for key, text in given.items():
        group = key.split(".")[0]
        if key in ("objective", "init", "plugin"):
            continue
        if key in ("data.share", "data.mixup"):
            raise UserError(f"{key}={text}: {NAME} tries several itself; leave it out")
        if group not in groups:
            choices = ", ".join(f"{one}." for one in groups)
            reason = f"{NAME} sets it; choices: objective, init, hours, {choices}"
            raise UserError(f"{key}={text}: {reason}")
        (shared if group in SHARED else own)[key] = text
    if (path := shared.get("data.path")) and engine.exists(path):
        shared["data.path"] = str(Path(path).resolve())
    tuned = engine.resolve(["recipe=finetune", *words_of(shared)], NAME)
    images = find_images(tuned.data)
    shared |= images.options
    start = {"init": init} if init else {}
    words = [f"recipe={objective}", *words_of(shared | own | start)]
    recipe = engine.resolve(words, NAME)
    model = {} if init else engine.model_options(recipe, words_of(shared))
    supervised = engine.cost(["recipe=supervised", *words_of(shared | model | start)], NAME)
    a_step = engine.cost(words, NAME).exaflop_a_step / supervised.exaflop_a_step
    fine = FINE * recipe.optim.batch / tuned.optim.batch
    asked = objective, init, shared, own, images, recipe, model
    return Question(*asked, recipe.pool, a_step, fine)


def find_images(data: Data) -> Images:
    """Count the images, and choose how test and validation images are taken: the splits that are
    there, else shares of the training images, the second one before any share of the labels and,
    where some have no label, of those that have one.

    Raises:
        UserError: images cannot be read, have no labels or lists of them, or are too few.
    """
    options: dict[str, str] = {}
    labels = engine.split_labels(data)
    if not _labelled(labels.test):
        options["data.test"] = str(TEST_SHARE)
        data = data.model_copy(update={"test": TEST_SHARE})
        labels = engine.split_labels(data)
    if not _labelled(labels.train):
        raise UserError(f"{NAME}: the images have no labels, as a folder for each class")
    if labels.train.ndim > 1:
        raise UserError(f"data.label_column={data.label_column}: expected one label an image")
    apart = labels.splits.validation.store is not labels.splits.train.store
    enough = apart and _labelled(labels.validation) >= FEW_IMAGES
    given = [data.validation] if isinstance(data.validation, float) and data.validation else []
    # without a label an image would choose nothing, and be lost to pre-training
    source = "train" if _labelled(labels.train) == len(labels.train) else "labelled"
    for share in [] if enough else [*given, *HELD_OUT]:
        data = data.model_copy(update={"validation": share, "validation_from": source})
        options |= {"data.validation": str(share), "data.validation_from": source}
        labels = engine.split_labels(data)
        if enough := _labelled(labels.validation) >= FEW_IMAGES:
            break
    if not enough:
        both = _labelled(labels.train) + _labelled(labels.validation)
        text = f"{both} labelled images besides those of the test; {FEW_IMAGES} choose settings"
        text += f" alone, at most {HELD_OUT[-1]:.0%} of them"
        raise UserError(f"{NAME}: {text}; expected about {FEW_IMAGES / HELD_OUT[-1]:.0f}")
    train_N = labels.train
    size_C = np.unique(train_N[train_N >= 0], return_counts=True)[1]
    if len(size_C) < 2:
        raise UserError(f"data: {len(size_C)} classes of labelled training images; expected 2")
    counts = len(train_N), int(size_C.sum()), len(size_C), int(size_C.min())
    measured = _labelled(labels.validation), _labelled(labels.test)
    guesses = labels.splits.guesses
    if given and data.validation != given[0]:
        text = f"data.validation={given[0]:g}: fewer than {FEW_IMAGES} of these images have a label"
        guesses += (f"{text}; {data.validation} is held out in its place",)
    return Images(options, *counts, *measured, labels.splits.notes, guesses)


def _labelled(label_N: np.ndarray | None) -> int:
    return 0 if label_N is None else int((label_N >= 0).sum())


def content(question: Question, extent: Extent, hours: float, parallel: int = 1) -> dict[str, Any]:
    """The study as a file has it."""
    objective, other = question.arms
    steps, recipe, pool = extent.steps, question.recipe, question.pool
    pretrain: dict[str, Any] = {"recipe": objective, **question.own}
    warmup = recipe.optim.warmup / recipe.optim.steps
    if question.init:  # docs/further.md: a tenth of the rate, and a long warm-up
        pretrain |= {"init": question.init, "optim.lr": float(f"{recipe.optim.lr / 10:.3g}")}
        warmup = 1 / 5
    own: dict[str, Any] = {"recipe": "supervised", "supervised.pool": pool, **MIXED}
    own |= question.model | _length(steps * question.supervised, 1 / 9)
    tuned = {"recipe": "finetune", "supervised.pool": pool, "eval.images": LOOKED_AT}
    tuned |= _length(steps * question.fine, 1 / 10)
    frozen = {"recipe": "evaluate", "probe.measures": ["knn", "linear"], "probe.pool": pool}
    drawn = {"data.share_seed": "{seed}"}
    shares = {format_share(one): {"all": {"data.share": one, **drawn}} for one in extent.shares}
    parts: dict[str, list[str]] = {"": ["arm"]} | ({"_fewer": ["arm", "share"]} if shares else {})
    pretrain |= _length(steps, warmup)
    runs: dict[str, Any] = {"pretrain": {"tool": "pretrain", "options": pretrain}}
    for part, over in parts.items():
        if not question.init:
            runs[f"own{part}"] = {"tool": "pretrain", "over": over[1:], "options": own}
        both = {"tool": "finetune", "over": over, "only": {"arm": [objective, other]}}
        untested = {"seeds": [TUNING_SEED], "options": tuned | {"eval.test": False}}
        runs[f"tune{part}"] = both | untested
        runs[f"final{part}"] = both | {"best": f"tune{part}", "options": tuned}
    if extent.frozen:
        runs["frozen"] = {"tool": "evaluate", "over": ["arm"], "options": frozen}
    condition = _condition(question, extent, hours, parallel)
    asked = f"{condition}, {objective} minus {other}"
    return {
        "title": f"Does pre-training help on these images? {asked}",
        "seeds": list(range(extent.seeds)),
        "axes": {"arm": _arms(question, extent, parts)} | ({"share": shares} if shares else {}),
        "options": dict(question.shared),
        "runs": runs,
        "report": {
            "test": "final",
            "measures": ["top1"],
            "pairs": [f"{objective}:{other}"],
            "beside": [run for run in runs if run in ("frozen", "final_fewer")],
            "condition": condition,
            "notes": [f"{asked}: the claim is of no other.", *_notes(question, extent)],
        },
    }


def _length(wanted: float, warmup: float) -> dict[str, int]:
    """The options of a run of so many steps; it is looked at and saved four times."""
    steps = max(SHORTEST, round(wanted))
    every = math.ceil(steps / 4)
    of_steps = {"optim.steps": steps, "optim.warmup": min(steps - 1, round(warmup * steps))}
    return of_steps | {"eval.every": every, "checkpoint.every": every}


def _arms(question: Question, extent: Extent, parts: Mapping[str, object]) -> dict[str, Any]:
    """What each run has at the names that are compared."""
    objective, other = question.arms
    rates, of_a_way = RATES[extent.tries]
    mixed: dict[str, Any] = {} if extent.tries == min(RATES) else {"data.mixup": MIXUP}
    pretrained = {"init": "{pretrain}"}
    arms: dict[str, Any] = {objective: {}, other: {}}
    if extent.frozen:
        arms[objective]["frozen"] = pretrained
        arms[other]["frozen"] = {"init": question.init or "{own}"}
    for part in parts:
        tries = {"optim.lr": rates, **mixed}
        arms[objective] |= {f"tune{part}": pretrained | {"try": tries}, f"final{part}": pretrained}
        start = {"init": question.init} if question.init else question.model
        if not question.init:
            ways = [engine.SCRATCH, f"{{own{part}}}"]
            tries = {"init": ways, "optim.lr": of_a_way, **mixed}
        arms[other] |= {f"tune{part}": start | {"try": tries}, f"final{part}": start}
    return arms


def _notes(question: Question, extent: Extent) -> Iterator[str]:
    """How settings were chosen, what was seen, and what it does not show."""
    (objective, other), images = question.arms, question.images
    yield (
        f"Each of {objective} and {other} has {extent.tries} tries of fine-tuning on seed"
        f" {TUNING_SEED}, which confirms nothing; {min(LOOKED_AT, images.validation):,} validation"
        " images, which no run trains on, choose."
    )
    if question.init:
        yield f"{other} is init={question.init} itself, fine-tuned in the same way."
    else:
        yield (
            f"{other} is the better, by validation, of fine-tuning alone and of supervised training"
            f" for as many exaFLOP as {objective}'s pre-training, then the same fine-tuning"
            + ("; frozen it is measured after that supervised training." if extent.frozen else ".")
        )
    if not extent.frozen:
        yield f"Encoders are not measured frozen: it takes over {MOST_FROZEN:.0%} of the hours."
    seen = f"{images.train:,} images, {images.labelled:,} of them labelled"
    yield f"Pre-training sees {seen}; no run sees a test image before it is tested."
    data = question.recipe.data
    # reports are passed on, and name no folder of this machine
    name = Path(data.path).name if data.path else data.place
    yield from (text.replace(data.place, name) for text in images.notes)
    yield "One comparison is primary, with all labels. All else is exploratory."
    yield (
        "It does not show what more hours, another network, image size or objective, or a released"
        " encoder would reach; test images are those of this folder alone."
    )


def _condition(question: Question, extent: Extent, hours: float, parallel: int) -> str:
    """Of what is claimed: With 4 hours (57 epochs) of vit_n8 at 64 px"""
    recipe, epochs = question.recipe, question.epochs(extent.steps)
    epochs += "" if extent.steps >= question.least_steps else ", too few to answer"
    of = f" of {parallel} runs at once" if parallel > 1 else ""
    least = ", the least that it takes" if extent.steps == SHORTEST else ""
    takes = f"{hours:g} hours{of}{least} ({epochs})"
    return f"With {takes} of {recipe.model.name} at {recipe.data.size} px"


def spend(
    question: Question,
    hours: float,
    clocks: Clocks,
    parallel: int,
    anyway: bool,
    spent: float = 0.0,
) -> tuple[Extent, list[str]]:
    """What the hours buy, and lines that say it.

    Args:
        question: what is asked.
        hours: that it may take.
        clocks: what each run takes.
        parallel: how many runs at once.
        anyway: start although the hours are too few.
        spent: seconds of them that have gone already.

    Raises:
        UserError: they are too few for EPOCHS epochs, and `anyway` is not given.
    """

    def cost(extent: Extent) -> float:
        return (spent + seconds(question, extent, clocks, parallel)) / 3600

    found, lines = Extent(min(RATES), FEWEST, question.least_steps), []
    if (needed := cost(found)) <= hours:
        found = _bought(question, hours, cost, found)
    else:
        found = _longest(found._replace(steps=SHORTEST), question.least_steps, hours, cost)
        reason = f"{question.epochs(found.steps)} of pre-training, and {EPOCHS} are needed"
        text = f"too short to answer: {reason}; needs {math.ceil(10 * needed) / 10:g} hours"
        if not anyway:
            raise UserError(f"hours={hours:g}: {text}; anyway=true starts it all the same")
        if (least := cost(found)) > hours:
            text += f"; {least:.2g} is the least that it takes"
        lines = [f"warning     {text}"]
    shares = ", ".join(["all labels", *map(format_share, found.shares)])
    tries = f"{found.tries} tries for each of {' and '.join(question.arms)}"
    length = f"{found.steps} steps ({question.epochs(found.steps)}) of {question.objective}"
    shares += "" if found.frozen else "; encoders are not measured frozen, which takes too long"
    text = f"{cost(found):.2g} of {hours:g}: {tries}, {found.seeds} seeds, {length}; {shares}"
    return found, [*lines, f"hours       {text}"]


def _bought(
    question: Question, hours: float, cost: Callable[[Extent], float], found: Extent
) -> Extent:
    """What the hours buy beside the least that answers."""

    def take(more: Extent) -> Extent:
        return more if cost(more) <= hours else found

    length = max(found.steps, question.recipe.optim.steps)
    frozen = found._replace(frozen=True)
    # it is beside the question, and took most of the hours where images are few
    if cost(frozen) - cost(found) <= MOST_FROZEN * hours:
        found = take(frozen)
    for tries in sorted(RATES):
        found = take(found._replace(tries=tries))
    found = _longest(found, length, hours, cost)
    for seeds in range(FEWEST + 1, MOST_SEEDS + 1):
        found = take(found._replace(seeds=seeds))
    for share in SHARES:
        if share * question.images.smallest >= A_CLASS:
            found = take(found._replace(shares=(*found.shares, share)))
    if found.seeds == MOST_SEEDS:
        found = _longest(found, LONGEST * length, hours, cost)
    return found


def _longest(extent: Extent, most: int, hours: float, cost: Callable[[Extent], float]) -> Extent:
    """With as many steps as fit into the hours, up to `most`."""
    longer = range(extent.steps + 1, most + 1)
    fit = bisect_right(longer, hours, key=lambda steps: cost(extent._replace(steps=steps)))
    return extent._replace(steps=extent.steps + fit)


def too_few_hours(
    question: Question, hours: float, clocks: Clocks, parallel: int, spent: float
) -> str:
    """That the hours are too few by what is timed so far, in words; empty while they may do. What
    is not timed yet counts as nothing.

    Args:
        question, hours, parallel, spent: as of `spend`.
        clocks: of the runs that are timed.
    """
    nothing = dict.fromkeys(("pretrain", "own", "tune", "final"), Clock(0.0, 0.0))
    extent = Extent(min(RATES), FEWEST, question.least_steps)
    needed = (spent + seconds(question, extent, {**nothing, **clocks}, parallel)) / 3600
    if needed <= hours:
        return ""
    least = f"at least {math.ceil(10 * needed) / 10:g} are needed"
    return f"hours={hours:g} are too few: {least}; the rest is timed to say how many"


def seconds(question: Question, extent: Extent, clocks: Clocks, parallel: int) -> float:
    """How long the study takes with so many runs at once, each started as soon as those that it
    needs have finished and a place is free."""
    places = [0.0] * parallel
    ends: dict[str, float] = {}
    for task in _tasks(question, extent).values():
        place = places.index(min(places))
        start = max([places[place], *(ends[name] for name in task.needs)])
        clock = clocks[task.run.partition("_")[0]]
        steps = int(task.options.get("optim.steps", 0))
        ends[task.name] = places[place] = start + clock.rest + steps * clock.step
    return max(places)


def _tasks(question: Question, extent: Extent) -> Tasks:
    return plan(read.build(content(question, extent, 0), NAME), {}, {})


def measure(
    question: Question,
    parallel: int,
    folder: Path | None = None,
    exceeds: Callable[[Clocks], str] = lambda _: "",
) -> Clocks:
    """Time the study's runs on this machine, as many at once as it will run: a step of each, as
    tools/plan.py --probe does, and all else (start, evaluations, checkpoints, test, export, page)
    by whole runs of a few steps.

    Args:
        question: what is asked.
        parallel: how many runs at once.
        folder: of the study, which keeps each timing: a call after one that was cut off, or was
            given too few hours, takes those that were made on such a machine. None: none are kept.
        exceeds: what is to be said of the timings so far; it is printed once.

    Raises:
        UserError: a run fails.
    """
    short, real = (
        _tasks(question, Extent(min(RATES), 1, steps, frozen=True))
        for steps in (SHORT, question.least_steps)
    )
    found: dict[str, Clock] = {}
    made: set[str] = set()
    warning = ""
    print(f"timing      each kind of run here, for minutes, on {_machine()}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        # later runs start from the weights of those that were timed before
        out = (folder / MADE if folder else Path(temporary)).resolve()
        for name, task in short.items():
            if task.run in found or task.best or not made.issuperset(task.needs):
                continue
            made.add(name)
            step, steps = 0.0, int(task.options.get("optim.steps", 0))
            # more tries mix images, which reads two for one
            mixed = [f"data.mixup={MIXUP[1]}"] if task.run == "tune" else []
            if steps:  # first: what it reads from the disk is in memory then, as for most runs
                words = ["plan", *launch.command(real[name], real, out)[1:], *mixed]
                words += ["--probe", "--json"]
                step = _kept(f"a step of {task.run}", words, out, parallel, folder)
            words = [*launch.command(task, short, out), *mixed]
            runs = {task.run: words}
            if task.run == "tune":  # a final run is tested beside
                runs["final"] = [one.replace("eval.test=false", "eval.test=true") for one in words]
            for run, own in runs.items():
                took = _kept(run, own, out, parallel, folder)
                found[run] = Clock(step, max(0.0, took - steps * step))
            if not warning and (warning := exceeds(found)):
                print(f"warning     {warning}", flush=True)
        remove(out)  # after an early end the weights are there for the next call
    return found


def _kept(what: str, words: Sequence[str], out: Path, parallel: int, folder: Path | None) -> float:
    """The seconds of a tool as `_timed` finds them, of a plan those of its steps; from the study's
    folder where they are there."""
    key = f"{_machine()}, {parallel} at once: {' '.join([words[0], *sorted(words[1:])])}"
    path = folder and folder / TIMINGS
    kept: dict[str, float] = {}
    if path and path.exists():
        kept = records.require(path, dict[str, Number], "remove it to time anew")
    if key in kept:
        print(f"timed       {what} before: {kept[key]:.3g} s", flush=True)
        return kept[key]
    print(f"timing      {what}", flush=True)
    name = next(word.removeprefix("name=") for word in words if word.startswith("name="))
    for place in (out, *out.glob("[0-9]*")):  # what was cut off would go on
        remove(place / name)
    took, texts = _timed(words, str(out), parallel)
    seconds = took
    if words[0] == "plan":
        seconds = statistics.mean(json.loads(text)["probe"]["seconds"] for text in texts)
    print(f"timed       {what}: {seconds:.3g} s, in {took:.0f} s", flush=True)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(kept | {key: seconds}, indent=1) + "\n")
    return seconds


def _machine() -> str:
    """By which timings are told apart."""
    from .local import gpus

    return f"{engine.cpu_model()}, {engine.cores()} cores, GPUs {', '.join(gpus()) or 'none'}"


def _timed(words: Sequence[str], out: str, parallel: int) -> tuple[float, list[str]]:
    """Run a tool in as many processes at once, the first in the folder `out`, each with the part of
    the cores and the GPU that a run of the study has: seconds until all have ended, and the last
    line that each prints.

    Raises:
        UserError: one fails.
    """
    from .local import gpus

    share, devices = max(1, engine.cores() // parallel), gpus()
    own = {"compute.threads": engine.requested_threads() or share}
    own |= {"compute.workers": max(1, share - 1)} if devices else {}
    given = {word.partition("=")[0] for word in words}
    words = [*words, *(f"{key}={value}" for key, value in own.items() if key not in given)]
    began, running = time.perf_counter(), []
    for number in range(parallel):
        place = f"out={out}/{number}" if number else f"out={out}"
        line = process_command(*(place if word == f"out={out}" else word for word in words))
        gpu = {"CUDA_VISIBLE_DEVICES": devices[number % len(devices)]} if devices else {}
        pipe, environment = subprocess.PIPE, process_environment() | gpu
        running.append(subprocess.Popen(line, env=environment, stdout=pipe, stderr=pipe, text=True))
    texts = [process.communicate() for process in running]
    took = time.perf_counter() - began
    for process, (_, errors) in zip(running, texts, strict=True):
        if process.returncode:
            reason = (errors.strip().splitlines() or ["no output"])[-1].removeprefix("error: ")
            raise UserError(f"{NAME}: {words[0]}, which is timed: {reason}")
    return took, [(text.strip().splitlines() or [""])[-1] for text, _ in texts]


def image_lines(images: Images) -> Iterator[str]:
    """Which images there are."""
    labelled = images.labelled + images.validation + images.test
    of_these = (
        f"of {labelled:,} labelled ones in {images.classes} classes {images.labelled:,} train"
    )
    held_out = f"{images.validation:,} choose settings, {images.test:,} are the test"
    yield f"images      {images.train:,} that pre-training sees; {of_these}, {held_out}"
    yield from (f"            {text}" for text in images.notes)
    yield from (f"warning     {text}" for text in images.guesses)


def timing_line(clocks: Clocks, spent: float) -> str:
    """What was measured."""
    steps = [f"{run} {clock.step:.3g} s" for run, clock in clocks.items() if clock.step]
    rest = [f"{run} {clock.rest:.0f} s" for run, clock in clocks.items()]
    text = f"a step of {', '.join(steps)}; all else of a run: {', '.join(rest)}"
    busy = f"at a load average of {os.getloadavg()[0]:.1f}"
    return f"measured    in {spent:.0f} s on {_machine()} {busy}: {text}"


def power(test: int) -> Iterator[str]:
    """The least difference that can be found, before anything is known of the differences, also by
    so many test images alone."""
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
