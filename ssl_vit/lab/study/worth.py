"""`recipe=study/worth`: does pre-training help on one's own images? A study that is built from the
labels that are there and the hours that are given.

One comparison is primary: with all labels, fine-tuned, the objective minus tuned training from
scratch; with init= going on from it minus the start itself. The hours go, in this order, to tries,
three seeds, steps up to the recipe's length, seeds up to eight, further shares of the labels, and
longer training. How long a step takes is measured on this machine before it is planned.
"""

import json
import math
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...config import records
from ...config.records import Record
from ...config.schema import Data, Recipe
from ...errors import UserError, suggest
from ...formatting import (
    FEW_IMAGES,
    format_share,
    plain_table,
    process_command,
    process_environment,
)
from ...runs.files import write_atomically
from .. import engine
from ..compare import FEWEST, least_difference
from . import launch, read
from .tasks import Tasks, plan

NAME = "study/worth"
FILE = "worth.json"
EPOCHS = 20  # of pre-training, below which nothing is answered
MOST_SEEDS = 8
TUNING_SEED = 99  # confirms nothing
SHARES = (0.1, 0.3, 0.03, 0.01)  # of the labels, in the order in which they are added
A_CLASS = 5  # labelled images of a class in such a share, at least
TEST_SHARE = 0.2  # of the images, where there is no test split
HELD_OUT = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)  # shares, of which the first with enough is taken
FINE = 4 / 9  # images of fine-tuning for one of pre-training, as of recipe=finetune and recipe=mae
LOOKED_AT = 2000  # validation images, at most
LONGEST = 10  # times the recipe's length
# Rates of fine-tuning that an arm tries, and that each of the two ways of scratch does; with and
# without mixup, except for the fewest tries. Every arm has as many tries
RATES = {
    4: ([0.01, 0.03, 0.1, 0.3], [0.03, 0.1]),
    8: ([0.01, 0.03, 0.1, 0.3], [0.03, 0.1]),
    12: ([0.003, 0.01, 0.03, 0.06, 0.1, 0.3], [0.03, 0.1, 0.3]),
}
MIXUP = ["0.0", "0.8"]  # texts: neither is an edge beyond which more could be tried
MIXED = {"data.mixup": 0.8, "data.cutmix": 1.0}  # of supervised training: docs/worth.md
SHORT = 8  # steps of the runs that are timed
ASSUMED_SDS = (0.3, 0.7, 1.2)  # points, of paired differences over seeds
ASSUMED_SEEDS = (3, 5, 8)
ASSUMED_APART = 0.2  # share of test images of which one arm alone is right
SHARED = ("data", "model", "compute")  # groups of keys that go to every run
HOURS, OBJECTIVE = 4.0, "mae"


@dataclass(frozen=True)
class Images:
    """The images that are there.

    Attributes:
        options: how test and validation images are taken, {key: text}.
        train: that pre-training sees; `labelled` of them, in `classes`, and of the class that has
            the fewest.
        validation, test: labelled ones.
    """

    options: dict[str, str]
    train: int
    labelled: int
    classes: int
    smallest: int
    validation: int
    test: int


@dataclass(frozen=True)
class Question:
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

    def epochs(self, steps: float) -> float:
        return steps * self.recipe.optim.batch / self.images.train

    @property
    def least_steps(self) -> int:
        return math.ceil(EPOCHS * self.images.train / self.recipe.optim.batch)

    @property
    def arms(self) -> tuple[str, str]:
        """The two that the primary comparison is of."""
        return self.objective, "start" if self.init else "scratch"


@dataclass(frozen=True)
class Extent:
    """What the hours buy: tries of an arm, seeds, steps of pre-training, and shares of labels."""

    tries: int
    seeds: int
    steps: int
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class Clock:
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
    """

    words: list[str]
    study: dict[str, Any]
    lines: list[str]


def build(
    given: Mapping[str, str],
    hours: float,
    anyway: bool,
    folder: Path,
    parallel: int = 1,
    keep: bool = True,
) -> Worth:
    """The study for the options of a command. What was planned in the study's folder for the same
    options is taken as it is: a step measured again would make another study.

    Args:
        given: {key: text} of objective, init and keys of recipes.
        hours: that it may take.
        anyway: start although they are too few to answer.
        folder: of the study.
        parallel: how many runs at once.
        keep: write it into the folder.

    Raises:
        UserError: an option is wrong, there are too few images, or the hours are too few.
    """
    path, words = folder / FILE, [*_words(given), f"hours={hours:g}"]
    if path.exists():
        before = records.require(path, Worth, "remove it to plan anew")
        if before.words == words:
            return before
    question = ask(given)
    print("timing      each kind of run on this machine, which takes minutes", flush=True)
    clocks = measure(question, parallel)
    extent, lines = spend(question, hours, clocks, parallel, anyway)
    takes = seconds(question, extent, clocks, parallel) / 3600
    found = Worth(
        words=words,
        study=content(question, extent, hours if takes <= hours else _up(takes)),
        lines=[*_images_lines(question), *_clock_lines(clocks), *lines, *power_lines(question)],
    )
    if keep:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found.content(), indent=1) + "\n")
    return found


def ask(given: Mapping[str, str]) -> Question:
    """What the options ask.

    Raises:
        UserError: one is wrong, or there are too few images.
    """
    objective, init = given.get("objective", OBJECTIVE), given.get("init", "")
    known = engine.pretraining_recipes()
    if objective not in known:
        what = "is no recipe of training without labels"
        raise UserError(f"objective={objective}: {what}; {suggest(objective, known)}")
    of_objective = engine.groups_of(f"recipe={objective}")
    shared = {key: text for key, text in given.items() if key.split(".")[0] in SHARED}
    taken = (*shared, "objective", "init", "plugin")
    others = {key: text for key, text in given.items() if key not in taken}
    for key, text in others.items():
        if key.split(".")[0] not in of_objective:
            choices = ", ".join(f"{group}." for group in (*SHARED, *of_objective))
            text = f"{NAME} sets it; choices: objective, init, hours, {choices}"
            raise UserError(f"{key}={given[key]}: {text}")
    if "data.share" in shared:
        raise UserError(f"data.share={shared['data.share']}: {NAME} takes shares itself")
    if (path := shared.get("data.path")) and engine.exists(path):
        shared["data.path"] = str(Path(path).resolve())
    found = find_images(engine.resolve(["recipe=finetune", *_words(shared)], NAME).data)
    shared |= found.options
    start = {"init": init} if init else {}
    words = [f"recipe={objective}", *_words(shared | others | start)]
    recipe = engine.resolve(words, NAME)
    model = {} if init else engine.model_options(recipe, _words(shared))
    supervised = engine.cost(["recipe=supervised", *_words(shared | model | start)], NAME)
    return Question(
        objective,
        init,
        shared,
        others,
        found,
        recipe,
        model,
        engine.pool(recipe),
        engine.cost(words, NAME).exaflop_a_step / supervised.exaflop_a_step,
        FINE * recipe.optim.batch / engine.batch("recipe=finetune"),
    )


def _words(options: Mapping[str, str]) -> list[str]:
    return [f"{key}={text}" for key, text in options.items()]


def find_images(data: Data) -> Images:
    """Count the images, and choose how test and validation images are taken: the splits that are
    there, else shares of the training images, the second one before any share of the labels.

    Raises:
        UserError: images cannot be read, have no labels or lists of them, or are too few.
    """
    options: dict[str, str] = {}
    labels = engine.split_labels(data)
    if not _labelled(labels.test):
        options["data.test"] = str(TEST_SHARE)
        data = replace(data, test=TEST_SHARE)
        labels = engine.split_labels(data)
    if not _labelled(labels.train):
        raise UserError(f"{NAME}: the images have no labels, as a folder for each class")
    if labels.train.ndim > 1:
        raise UserError(f"data.label_column={data.label_column}: expected one label an image")
    given = data.validation if isinstance(data.validation, float) else 0.0
    shares = [given, *HELD_OUT] if given else list(HELD_OUT)
    enough = labels.apart and _labelled(labels.validation) >= FEW_IMAGES
    while not enough and shares:  # a share of all, before shares of the labels are taken
        data = replace(data, validation=shares.pop(0), validation_from="train")
        labels = engine.split_labels(data)
        enough = _labelled(labels.validation) >= FEW_IMAGES
    if not enough:
        both = _labelled(labels.train) + _labelled(labels.validation)
        text = f"{both} labelled images besides those of the test"
        raise UserError(f"{NAME}: {text}; {FEW_IMAGES} of them at least choose settings alone")
    if not labels.apart:
        options |= {"data.validation": str(data.validation), "data.validation_from": "train"}
    train_N = labels.train
    size_C = np.unique(train_N[train_N >= 0], return_counts=True)[1]
    if len(size_C) < 2:
        raise UserError(f"data: {len(size_C)} classes of labelled training images; expected 2")
    return Images(
        options,
        len(train_N),
        int(size_C.sum()),
        len(size_C),
        int(size_C.min()),
        _labelled(labels.validation),
        _labelled(labels.test),
    )


def _labelled(label_N: np.ndarray | None) -> int:
    return 0 if label_N is None else int((label_N >= 0).sum())


def content(question: Question, extent: Extent, hours: float) -> dict[str, Any]:
    """The study as a file has it."""
    (objective, other), pool = question.arms, question.pool
    steps, recipe = extent.steps, question.recipe
    first: dict[str, Any] = {"recipe": question.objective, **question.own}
    if question.init:  # docs/further.md: a tenth of the rate, and a long warm-up
        first |= {"init": question.init, "optim.lr": float(f"{recipe.optim.lr / 10:.3g}")}
    share = 1 / 5 if question.init else recipe.optim.warmup / recipe.optim.steps
    pretrain = {"tool": "pretrain", "options": first | _length(steps, share)}
    own: dict[str, Any] = {"recipe": "supervised", "supervised.pool": pool, **MIXED}
    own |= question.model | _length(steps * question.supervised, 1 / 9)
    tuned = {"recipe": "finetune", "supervised.pool": pool, "eval.images": LOOKED_AT}
    tuned |= _length(steps * question.fine, 1 / 10)
    untested = {**tuned, "eval.test": False}
    axes: dict[str, Any] = {"arm": _arms(question, extent)}
    seeds, over, named = [TUNING_SEED], ["arm"], {"arm": [objective, other]}
    runs: dict[str, Any] = {"pretrain": pretrain}
    if not question.init:
        runs["own"] = {"tool": "pretrain", "options": own}
    for name, where in (("", over), *([("_fewer", [*over, "share"])] if extent.shares else [])):
        shared: dict[str, Any] = {"tool": "finetune", "over": where, "only": named}
        runs[f"tune{name}"] = shared | {"seeds": seeds, "options": untested}
        runs[f"final{name}"] = shared | {"best": f"tune{name}", "options": tuned}
    if extent.shares:
        drawn = {"data.share_seed": "{seed}"}
        axes["share"] = {
            format_share(share): {"all": {"data.share": share, **drawn}} for share in extent.shares
        }
        if not question.init:
            runs["own_fewer"] = {"tool": "pretrain", "over": ["share"], "options": own}
    measured = {"recipe": "evaluate", "probe.measures": ["knn", "linear"], "probe.pool": pool}
    runs["frozen"] = {"tool": "evaluate", "over": over, "options": measured}
    beside = ["frozen", *(["final_fewer"] if extent.shares else [])]
    return {
        "title": f"Does pre-training help on these images? {condition(question, extent, hours)}",
        "seeds": list(range(extent.seeds)),
        "axes": axes,
        "options": dict(question.shared),
        "runs": runs,
        "report": {
            "test": "final",
            "measures": ["top1"],
            "pairs": [f"{objective}:{other}"],
            # without the pair, which the sentence names
            "condition": condition(question, extent, hours).rpartition(", ")[0],
            "beside": beside,
            "notes": list(_notes(question, extent, hours)),
        },
    }


def _length(wanted: float, warmup: float) -> dict[str, int]:
    """The options of a run of so many steps, 2 at least; it is looked at and saved four times."""
    steps = max(2, round(wanted))
    every = math.ceil(steps / 4)
    of_steps = {"optim.steps": steps, "optim.warmup": min(steps - 1, round(warmup * steps))}
    return of_steps | {"eval.every": every, "checkpoint.every": every}


def _arms(question: Question, extent: Extent) -> dict[str, Any]:
    """What each run has at the names that are compared, and at fresh weights."""
    objective, other = question.arms
    rates, of_a_way = RATES[extent.tries]
    mixed: dict[str, Any] = {} if extent.tries == min(RATES) else {"data.mixup": MIXUP}
    arms: dict[str, Any] = {objective: {}, other: {}}
    for suffix in ("", "_fewer") if extent.shares else ("",):
        tune, final = f"tune{suffix}", f"final{suffix}"
        tries = {"optim.lr": rates, **mixed}
        pretrained = {"init": "{pretrain}"}
        arms[objective] |= {tune: {**pretrained, "try": tries}, final: pretrained}
        if question.init:
            start = {"init": question.init}
            arms[other] |= {tune: {**start, "try": tries}, final: start}
            continue
        ways = {"init": [engine.SCRATCH, f"{{own{suffix}}}"], "optim.lr": of_a_way, **mixed}
        arms[other] |= {tune: {**question.model, "try": ways}, final: question.model}
    arms[objective]["frozen"] = {"init": "{pretrain}"}
    arms[other]["frozen"] = {"init": question.init or "{own}"}
    if not question.init:
        arms["untrained"] = {"frozen": {"init": engine.SCRATCH, **question.model}}
    return arms


def _notes(question: Question, extent: Extent, hours: float) -> Iterator[str]:
    """Under what condition it was measured, how settings were chosen, and what it does not show."""
    (objective, other), images = question.arms, question.images
    looked_at = min(LOOKED_AT, images.validation)
    yield f"{condition(question, extent, hours)}: the claim is of no other."
    yield (
        f"Each of {objective} and {other} has {extent.tries} tries of fine-tuning on seed"
        f" {TUNING_SEED}, which confirms nothing; {looked_at:,} validation images, which no run"
        " trains on, choose."
    )
    if question.init:
        yield f"{other} is init={question.init} itself, fine-tuned in the same way."
    else:
        yield (
            f"{other} is the better, by validation, of fine-tuning alone and of supervised training"
            f" for as many exaFLOP as {objective}'s pre-training, then the same fine-tuning;"
            " frozen it is measured after that supervised training."
        )
    seen = f"{images.train:,} images, {images.labelled:,} of them labelled"
    yield f"Pre-training sees {seen}; no run sees a test image before it is tested."
    yield "One comparison is primary, with all labels. All else is exploratory."
    yield (
        "It does not show what more hours, another network, image size or objective, or a released"
        " encoder would reach; test images are those of this folder alone."
    )


def condition(question: Question, extent: Extent, hours: float) -> str:
    """The condition of what is claimed: With 4 hours (57 epochs) of vit_n8 at 64 px, mae minus
    scratch"""
    recipe, epochs = question.recipe, _epochs(question, extent)
    epochs += "" if extent.steps >= question.least_steps else ", too few to answer"
    network = f"{recipe.model.name} at {recipe.data.size} px"
    return f"With {hours:g} hours ({epochs}) of {network}, {' minus '.join(question.arms)}"


def _epochs(question: Question, extent: Extent) -> str:
    epochs = question.epochs(extent.steps)
    return f"{epochs:,.0f} epochs" if epochs >= EPOCHS else f"{epochs:.2g} epochs"


def spend(
    question: Question, hours: float, clocks: Clocks, parallel: int, anyway: bool
) -> tuple[Extent, list[str]]:
    """What the hours buy, and lines that say it.

    Raises:
        UserError: they are too few for EPOCHS epochs, and `anyway` is not given.
    """

    def cost(extent: Extent) -> float:
        return seconds(question, extent, clocks, parallel) / 3600

    def longest(extent: Extent, most: int) -> Extent:
        """With as many steps as fit, up to `most`."""
        low, high = extent.steps, max(extent.steps, most)
        while low < high:
            middle = (low + high + 1) // 2
            fits = cost(replace(extent, steps=middle)) <= hours
            low, high = (middle, high) if fits else (low, middle - 1)
        return replace(extent, steps=low)

    least = question.least_steps
    found = Extent(min(RATES), FEWEST, least)
    needed = cost(found)
    if needed > hours:
        found = longest(replace(found, steps=2), least)
        epochs = f"{_epochs(question, found)} of pre-training"
        text = (
            f"too short to answer: {epochs}, and {EPOCHS} are needed; needs {_up(needed):g} hours"
        )
        if not anyway:
            raise UserError(f"hours={hours:g}: {text}; anyway=true starts it all the same")
        takes = f"it takes {cost(found):.2g} hours"
        return found, [f"warning     {text}; {takes}", _bought(question, found, hours, cost(found))]
    steps = max(least, question.recipe.optim.steps)
    for tries in sorted(RATES):
        if cost(more := replace(found, tries=tries)) <= hours:
            found = more
    found = longest(found, steps)
    while found.seeds < MOST_SEEDS and cost(more := replace(found, seeds=found.seeds + 1)) <= hours:
        found = more
    for share in SHARES:
        if share * question.images.smallest >= A_CLASS:
            more = replace(found, shares=(*found.shares, share))
            found = more if cost(more) <= hours else found
    if found.seeds == MOST_SEEDS:
        found = longest(found, LONGEST * steps)
    return found, [_bought(question, found, hours, cost(found))]


def _up(value: float) -> float:
    """Rounded up to two digits."""
    place = 10 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / place) * place:.2g}")


def _bought(question: Question, extent: Extent, hours: float, takes: float) -> str:
    shares = ", ".join(["all labels", *map(format_share, extent.shares)])
    epochs = _epochs(question, extent)
    return (
        f"hours       {takes:.2g} of {hours:g}: {extent.tries} tries for each of"
        f" {' and '.join(question.arms)}, {extent.seeds} seeds, {extent.steps} steps ({epochs}) of"
        f" {question.objective}; {shares}"
    )


def seconds(question: Question, extent: Extent, clocks: Clocks, parallel: int) -> float:
    """How long the study takes with so many runs at once, each started as soon as those that it
    needs have finished and a place is free."""
    places = [0.0] * parallel
    ends: dict[str, float] = {}
    for task in plan(read.build(content(question, extent, 0), NAME), {}, {}).values():
        place = places.index(min(places))
        start = max([places[place], *(ends[name] for name in task.needs)])
        clock = clocks[task.run.partition("_")[0]]
        steps = int(task.options.get("optim.steps", 0))
        ends[task.name] = places[place] = start + clock.rest + steps * clock.step
    return max(places)


def measure(question: Question, parallel: int) -> Clocks:
    """Time the study's runs on this machine: a step of each, as tools/plan.py --probe does, and all
    else (start, evaluations, checkpoints, test, export, page) by whole runs of a few steps.

    Raises:
        UserError: a run fails.
    """
    threads = [f"compute.threads={max(1, engine.cores() // parallel)}"]
    if "compute.threads" in question.shared:
        threads = []
    short, real = (_tasks(question, steps) for steps in (SHORT, question.least_steps))
    found: dict[str, Clock] = {}
    made: set[str] = set()
    with tempfile.TemporaryDirectory() as out:
        for name, task in short.items():
            if task.run in found or task.best or not made.issuperset(task.needs):
                continue
            made.add(name)
            step, steps = 0.0, int(task.options.get("optim.steps", 0))
            if steps:  # first: what it reads from the disk is in memory then, as for most runs
                words = launch.command(real[name], real, Path(out))[1:]
                options = [word for word in words if not word.startswith(("out=", "name="))]
                timed = _run(["plan", *options, *threads, "--probe", "--json"])
                step = float(json.loads(timed)["probe"]["seconds"])
            command = [*launch.command(task, short, Path(out)), *threads]
            began = time.perf_counter()
            _run([word.replace("eval.test=false", "eval.test=true") for word in command])
            took = time.perf_counter() - began
            found[task.run] = Clock(step, max(0.0, took - steps * step))
    return found | {"final": found["tune"]}


def _tasks(question: Question, steps: int) -> Tasks:
    return plan(read.build(content(question, Extent(min(RATES), 1, steps), 0), NAME), {}, {})


def _run(words: Sequence[str]) -> str:
    """Run a tool, and the last line that it prints.

    Raises:
        UserError: it fails.
    """
    line = process_command(*words)
    done = subprocess.run(line, env=process_environment(), capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1].removeprefix("error: ")
        raise UserError(f"{NAME}: {words[0]}, which is timed: {reason}")
    return (done.stdout.strip().splitlines() or [""])[-1]


def _images_lines(question: Question) -> Iterator[str]:
    images = question.images
    labelled = f"{images.labelled:,} labelled in {images.classes} classes"
    held_out = f"{images.validation:,} validation and {images.test:,} test images"
    yield f"images      {images.train:,} that pre-training sees, {labelled}; {held_out}"


def _clock_lines(clocks: Clocks) -> Iterator[str]:
    steps = [f"{run} {clock.step:.3g} s" for run, clock in clocks.items() if clock.step]
    rest = [f"{run} {clock.rest:.0f} s" for run, clock in clocks.items()]
    yield f"measured    a step of {', '.join(steps)}; all else of a run: {', '.join(rest)}"


def power_lines(question: Question) -> Iterator[str]:
    """The least difference that can be found, before anything is known of the differences."""
    yield "assumed     the least difference, in points, that is claimed with a probability of 80%,"
    yield "            by the seeds and the standard deviation of the differences over seeds:"
    head = ["seeds", *(f"sd {sd:g}" for sd in ASSUMED_SDS)]
    rows = [
        [str(n), *(f"{least_difference(sd, n):.1f}" for sd in ASSUMED_SDS)] for n in ASSUMED_SEEDS
    ]
    yield from (f"            {line}" for line in plain_table(head, rows))
    alone = 100 * 2.8 * math.sqrt(ASSUMED_APART / question.images.test)
    yield (
        f"            by the {question.images.test:,} test images alone {alone:.1f}, where one arm"
        f" alone is right on {format_share(ASSUMED_APART)} of them"
    )
