"""Build the study `study/worth`: runs, axes, report, and the order of the tasks."""

import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ....formatting import format_share
from ....recipe.init_source import SCRATCH
from ....recipe.keys import Values
from ....recipe.words import write_all
from ...compare import FEWEST
from ..hours import Group
from ..options import RELEASED
from ..task_options import resolve_options
from ..tasks import Task, Tasks
from .study_setup import NAME, TRAIN, ReleasedEncoder, StudySetup

MOST_SEEDS = 8
TUNING_SEED = 99  # seed of the tries, which no reported result uses
VALIDATED = 2000  # most validation images that choose settings
# {tries per arm: (learning rates of fine-tuning for the pre-trained arm, learning rates for the arm
# `scratch`)}. The arm `scratch` tries each rate with and without supervised training before
# fine-tuning. All arms try each rate with and without mixup, but with 4 tries only without mixup.
# So all arms have the same number of tries. For example, 8 tries are 4 rates with and without mixup
# for the pre-trained arm, and 2 rates x 2 starts x with and without mixup for `scratch`.
# The 12 tries contain the 8 tries, and the 8 tries contain the 4 tries.
RATES = {
    4: ([0.01, 0.03, 0.1, 0.3], [0.03, 0.1]),
    8: ([0.01, 0.03, 0.1, 0.3], [0.03, 0.1]),
    12: ([0.003, 0.01, 0.03, 0.06, 0.1, 0.3], [0.03, 0.1, 0.3]),
    24: ([0.01, 0.03, 0.1, 0.3], [0.03, 0.1, 0.3]),
}
# The arm `start` has no pre-training to vary, so it tries more learning rates of fine-tuning
START_RATES = [0.003, 0.006, 0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3]
WITH_RATES = 24  # number of tries with three learning rates of the training before fine-tuning
# {suffix of a run's name: factor for the learning rate of the training before fine-tuning}
LEARNING_RATES = {"": 1.0, "_low": 1 / 3, "_high": 3.0}
MIXUP = [0.0, 0.8]
# for supervised training; source: results/worth.yaml
MIXED = {"data.mixup": 0.8, "data.cutmix": 1.0}


class StudySize(NamedTuple):
    """Size of a study.

    Attributes:
        tries: Tries of fine-tuning for each arm.
        seeds: Number of confirming seeds.
        steps: Steps of pre-training.
        shares: Shares of the labels that are compared in addition to all labels.
        frozen: Whether the encoders of each seed are also measured frozen.
    """

    tries: int
    seeds: int
    steps: int
    shares: tuple[float, ...] = ()
    frozen: bool = False

    @property
    def rates(self) -> list[str]:
        """Suffixes of names of runs before fine-tuning. Each suffix means a learning rate."""
        return list(LEARNING_RATES) if self.tries == WITH_RATES else [""]


def study_file(setup: StudySetup, size: StudySize, hours: float) -> dict[str, Any]:
    """Build a study of a given size, as a mapping with the structure of a study file.

    Args:
        setup: Setup of the study: its images, recipe and network.
        size: Size of the study.
        hours: Hours that the study may take. They appear only in texts.
    """
    objective, baseline = setup.arms
    shares = _shares(size)
    parts = {"": ["arm"]}  # {suffix of a run's name: axes of the run}
    if shares:
        parts["_fewer"] = ["arm", "share"]
    frozen = {"recipe": "evaluate", "probe.measures": ["knn", "linear"]}
    frozen["probe.pool"] = setup.pool
    tuned = {"recipe": "finetune", "supervised.pool": setup.pool, "eval.images": VALIDATED}
    tuned |= _length(setup.fine_steps(size.steps), 1 / 10)
    runs: dict[str, Any] = {}
    # with a released encoder, not all arms have the same network, so no shared option sets it
    network_options = setup.network_options if setup.released else {}
    shared = setup.shared_options
    shared = {key: shared[key] for key in shared if key not in network_options}
    for suffix in size.rates:
        options = network_options | _pretraining(setup, size.steps, LEARNING_RATES[suffix])
        runs[f"pretrain{suffix}"] = {"tool": "pretrain", "options": options}
    supervised_suffixes = [] if setup.init else size.rates
    for part, over in parts.items():
        for suffix in supervised_suffixes:
            options = network_options | _supervised(setup, size.steps, LEARNING_RATES[suffix])
            run = {"tool": "pretrain", "over": over[1:], "options": options}
            runs[f"supervised{part}{suffix}"] = run
        fine_tuning = {"tool": "finetune", "over": over, "only": {"arm": [*setup.all_arms]}}
        tries = {"seeds": [TUNING_SEED], "options": tuned | {"eval.test": False}}
        runs[f"tune{part}"] = fine_tuning | tries
        runs[f"final{part}"] = fine_tuning | {"best": f"tune{part}", "options": tuned}
    if size.frozen:
        runs["frozen"] = {"tool": "evaluate", "over": ["arm"], "options": frozen}
    plural = "" if hours == 1 else "s"
    condition = f"With {hours:g} hour{plural} ({setup.epochs(size.steps)}) of {setup.network}"
    return {
        "title": f"Does pre-training help on these images? {condition}, {objective} minus"
        f" {baseline}",
        "seeds": list(range(size.seeds)),
        "axes": {"arm": _arms(setup, size, parts)} | ({"share": shares} if shares else {}),
        "options": shared,
        "runs": runs,
        "report": {
            "test": "final",
            "measures": ["top1"],
            "pairs": [f"{objective}:{baseline}"],
            "beside": [run for run in runs if run in ("frozen", "final_fewer")],
            "condition": condition,
            "explain": _describe_arms(setup),
            "question": _answer_facts(setup, size),
            "notes": [
                f"{condition}, the only difference that the study claims is {objective} minus"
                f" {baseline}.",
                *_notes(setup, size),
            ],
        },
    }


def _answer_facts(setup: StudySetup, size: StudySize) -> dict[str, str]:
    """Return the texts from which the report answers whether pre-training helps.

    lab/answer.py writes the answer at the top of the report from these texts.

    Returns:
        `{key: text}` with these keys:

            - `objective`: recipe of pre-training
            - `other`: what pre-training is compared with, such as "trained from scratch"
            - `init`: encoder that pre-training starts from, or `""` for untrained weights
            - `network` and `released`: networks in words. `released` is empty without a released
              encoder
            - `steps` and `epochs`: length of pre-training
            - `fine_steps` and `fine_epochs`: length of fine-tuning
            - `pretrain` and `study`: options of the commands that repeat the pre-training and the
              study, one option per line
    """
    init_options = {"init": setup.init} if setup.init else {}
    finetune_steps = setup.fine_steps(size.steps)
    options = setup.shared_options | setup.pretraining_options | init_options
    return {
        "objective": setup.objective,
        "other": "without further pre-training" if setup.init else "trained from scratch",
        "init": setup.init,
        "network": setup.network,
        "released": setup.released.network if setup.released else "",
        "steps": f"{size.steps:,}",
        "epochs": setup.num_epochs(size.steps),
        "fine_steps": f"{finetune_steps:,}",
        "fine_epochs": f"{finetune_steps * setup.batch // setup.images.labelled:,}",
        "pretrain": "\n".join([f"recipe={setup.objective}", *write_all(options)]),
        "study": "\n".join([f"recipe={NAME}", *write_all(setup.command_options)]),
    }


def _shares(size: StudySize) -> dict[str, Any]:
    """Return the axis of label shares, as in a study file.

    For example, `{"10%": {"all": {"data.share": 0.1, "data.share_seed": "{seed}"}}}`. The key
    `data.share_seed` makes each seed draw its own labelled images.
    """
    drawn = {"data.share_seed": "{seed}"}
    return {format_share(share): {"all": {"data.share": share, **drawn}} for share in size.shares}


def _pretraining(setup: StudySetup, steps: int, factor: float) -> dict[str, Any]:
    """Return the options of pre-training.

    Args:
        setup: Setup of the study: its images, recipe and network.
        steps: Steps of pre-training.
        factor: Factor for the recipe's learning rate.
    """
    optim = setup.recipe.optim
    options: dict[str, Any] = {"recipe": setup.objective, **setup.pretraining_options}
    rate = factor * optim.lr
    warmup = optim.warmup / optim.steps  # as a share of the steps
    if setup.init:  # docs/further.md recommends a tenth of the learning rate and a long warm-up
        options["init"] = setup.init
        # We assume that low-rank updates need ten times the rate of the whole encoder, as in
        # language models (docs/further.md)
        rate /= 1 if setup.recipe.model.number_of("lora") else 10
        warmup = 1 / 5
    if rate != optim.lr:
        options["optim.lr"] = float(f"{rate:.3g}")
    return options | _length(steps, warmup)


def _supervised(setup: StudySetup, steps: int, factor: float) -> dict[str, Any]:
    """Return the options of supervised training that costs as many exaFLOP as pre-training.

    Supervised training mixes images (mixup and cutmix). A ninth of the steps are warm-up, as in
    `recipe=supervised`.

    Args:
        setup: Setup of the study: its images, recipe and network.
        steps: Steps of pre-training.
        factor: Factor for the learning rate of `recipe=supervised`.
    """
    options: dict[str, Any] = {"recipe": "supervised", "supervised.pool": setup.pool, **MIXED}
    if factor != 1:
        options["optim.lr"] = float(f"{factor * _supervised_rate():.3g}")
    # supervised_ratio: steps of supervised training that cost as much as a step of pre-training
    supervised_steps = round(steps * setup.supervised_ratio)
    return options | setup.model | _length(supervised_steps, 1 / 9)


@functools.cache
def _supervised_rate() -> float:
    """Return the learning rate of `recipe=supervised`."""
    return resolve_options({"recipe": "supervised"}, "", check_images=False).optim.lr


def _length(steps: int, warmup: float) -> dict[str, int]:
    """Return the options that set a run's length and four evaluations and checkpoints.

    Args:
        steps: Steps of the run.
        warmup: Share of the steps for the warm-up of the learning rate.
    """
    every = math.ceil(steps / 4)
    return {
        "optim.steps": steps,
        "optim.warmup": min(steps - 1, round(warmup * steps)),
        "eval.every": every,
        "checkpoint.every": every,
    }


def _arms(setup: StudySetup, size: StudySize, parts: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings of the compared arms, as the axis of a study file.

    An arm is one of the ways to train that the study compares: with pre-training (such as `mae`),
    without it (`scratch`, or `start` if an encoder is given), or from a released encoder.

    Args:
        setup: Setup of the study: its images, recipe and network.
        size: Size of the study.
        parts: Mapping whose keys are suffixes of the names of fine-tuning runs: `""` with all
            labels, `"_fewer"` with shares of the labels. The values are not used.

    Returns:
        `{arm: {run: settings}}`, for example `{"mae": {"final": {"init": "{pretrain}"}}}`, where
            `{pretrain}` stands for the weights of run `pretrain`.
    """
    objective, baseline = setup.arms
    rates, scratch_rates = RATES[size.tries]
    arms: dict[str, Any] = {objective: {}, baseline: {}}
    if size.frozen:
        arms[objective]["frozen"] = {"init": "{pretrain}"}
        arms[baseline]["frozen"] = {"init": setup.init or "{supervised}"}
    for part in parts:
        start: Values = {"init": "{pretrain}"}
        tries: Values = {"optim.lr": rates}
        if len(size.rates) > 1:  # tuning chooses among pre-trainings with several learning rates
            start = {}
            tries = {"init": [f"{{pretrain{suffix}}}" for suffix in size.rates], **tries}
        arms[objective] |= _fine_tuning(part, start, tries, size)
        if setup.init:  # the arm `start` fine-tunes the given encoder
            start = {"init": setup.init}
            tries = {"optim.lr": _encoder_rates(size)}
        else:  # the arm `scratch` may first have supervised training, which is the run `supervised`
            start = setup.model
            supervised = [f"{{supervised{part}{suffix}}}" for suffix in size.rates]
            tries = {"init": [SCRATCH, *supervised], "optim.lr": scratch_rates}
        arms[baseline] |= _fine_tuning(part, start, tries, size)
    if setup.released:
        for arm in arms.values():
            arm["all"] = setup.network_options
        arms[RELEASED] = _released(setup.released, size, parts)
    return arms


def _released(
    released: ReleasedEncoder, size: StudySize, parts: Mapping[str, object]
) -> dict[str, Any]:
    """Return `{run: settings}` of the arm that fine-tunes a released encoder.

    Args:
        released: The encoder.
        size: Size of the study.
        parts: See `_arms`.
    """
    start = {**released.options, "supervised.pool": released.pool}
    tries = {"optim.lr": _encoder_rates(size)}
    runs: dict[str, Any] = {}
    for part in parts:
        runs |= _fine_tuning(part, start, tries, size)
    if size.frozen:
        runs["frozen"] = {**released.options, "probe.pool": released.pool}
    return runs


def _encoder_rates(size: StudySize) -> list[float]:
    """Return the learning rates to try when fine-tuning an encoder that exists already.

    If the pre-trained arm also tries several pre-trainings, there are more rates here. So both arms
    have the same number of tries.
    """
    return START_RATES if len(size.rates) > 1 else RATES[size.tries][0]


def _fine_tuning(part: str, start: Values, tries: Values, size: StudySize) -> dict[str, Any]:
    """Return the settings of two runs: `tune` tries values, and `final` uses the best of them.

    Each value is tried with and without mixup, except in the smallest study.

    Args:
        part: Suffix of both names: `""` with all labels, or `"_fewer"` with a share of the labels.
        start: Options of both runs, such as the initial weights.
        tries: `{key: values to try}`.
        size: Size of the study.

    Returns:
        `{name of the run: settings}`, for example
            `{"tune": {"init": "{pretrain}", "try": {...}}, "final": {"init": "{pretrain}"}}`.
    """
    fewest_tries = min(RATES)  # in the smallest study: the keys of RATES are numbers of tries
    if size.tries > fewest_tries:
        tries = tries | {"data.mixup": MIXUP}
    return {f"tune{part}": start | {"try": tries}, f"final{part}": start}


def _describe_arms(setup: StudySetup) -> dict[str, str]:
    """Return `{arm: what the study does with the arm}`."""
    objective, baseline = setup.arms
    part = setup.pretraining_options.get(TRAIN)
    of_part = f" (model.train={part})" if part else ""
    further = f"further pre-training of the encoder{of_part}" if setup.init else "pre-training"
    without = "the encoder as it is, fine-tuned"
    if not setup.init:
        without = "no pre-training: fine-tuning alone, or after supervised training on the labels"
    arms = {
        objective: f"{further} with {objective} on all images without labels, then fine-tuning",
        baseline: without,
    }
    return arms | ({RELEASED: "a released encoder, fine-tuned"} if setup.released else {})


def describe_runs(setup: StudySetup) -> str:
    """Describe what each kind of run does. The kind is the first part of a run's name."""
    supervised = "" if setup.init else " supervised: training with labels, as a start for scratch."
    return (
        f"pretrain: pre-training with {setup.objective}.{supervised} tune: tries that choose"
        " settings. final: training with the chosen settings, measured on the test images. frozen:"
        " the encoder without fine-tuning, measured on the test images. The endings _low and _high"
        " mean other learning rates, _fewer means fewer labels."
    )


def _notes(setup: StudySetup, size: StudySize) -> Iterator[str]:
    """Yield sentences on the runs, on how settings were chosen, and on what is not shown."""
    (objective, baseline), images = setup.arms, setup.images
    yield f"Names of runs: {describe_runs(setup)}"
    yield (
        f"Each of {setup.arms_text} has {size.tries} tries of fine-tuning with seed"
        f" {TUNING_SEED}, which no result uses. {min(VALIDATED, images.validation):,} validation"
        " images, on which no run trains, choose among the tries."
    )
    if setup.init:
        yield f"{baseline} is init={setup.init} itself, fine-tuned in the same way."
    else:
        yield (
            f"{baseline} is the better of two ways, by validation: fine-tuning alone, or supervised"
            f" training for as many exaFLOP as {objective}'s pre-training and then the same"
            " fine-tuning. The frozen encoder is measured after this supervised training."
        )
    if len(size.rates) > 1:
        before = objective if setup.init else f"{objective} and for supervised training"
        yield (
            f"Three learning rates for {before} are tried, and the validation images choose after"
            " fine-tuning. The frozen encoders were trained with the learning rate of the recipe."
        )
    else:
        yield f"Only the recipe's learning rate for {objective} is tried."
    yield (
        f"Pre-training sees {images.train:,} images, {images.labelled:,} of them labelled. No run"
        " sees a test image before its test."
    )
    data = setup.recipe.data
    # reports are shared, so they must not name folders of this machine
    name = Path(data.path).name if data.path else data.place
    yield from (note.replace(data.place, name) for note in images.notes)
    yield "One comparison is primary, with all labels. Everything else is exploratory."
    if setup.released:
        yield (
            f"{RELEASED} is {setup.released.network}, fine-tuned in the same way. The report"
            f" compares {RELEASED} with the better of the other two arms. This comparison is not a"
            " part of the primary claim, and the interval allows for the choice between two arms."
        )
    else:
        yield "The study does not compare pre-training with a released encoder."
    yield (
        "The study does not show what more hours, another network, another image size or another"
        " objective would reach. All test images are from this folder."
    )


def order_groups(tasks: Tasks, frozen_first: bool) -> list[Group]:
    """Return the groups of tasks in the order in which they run.

    Tuning and the first three seeds always run. Each further seed, each share of the labels and the
    evaluations of frozen encoders are groups that run only if there is time, in this order.

    Args:
        tasks: All tasks of the study.
        frozen_first: Whether the evaluations of frozen encoders belong to the group of their seed,
            because they take little time. Otherwise they are a group of their own, the last one.
    """
    groups: dict[str, Group] = {}
    for task in tasks.values():
        name, kind = _group(task, frozen_first)
        groups.setdefault(name, Group(name=name, kind=kind, tasks=[])).tasks.append(task.name)
    kinds = ["", "seeds", "shares", "frozen"]  # groups of the kind "" always run
    # tuning comes first, because every seed needs the values that it chooses
    return sorted(
        groups.values(), key=lambda group: (kinds.index(group.kind), group.name != "tuning")
    )


def _group(task: Task, frozen_first: bool) -> tuple[str, str]:
    """Return the name and the kind of the group of tasks that a task belongs to.

    Args:
        task: Task of the study.
        frozen_first: Whether an evaluation of a frozen encoder belongs to the group of its seed.

    Returns:
        The name, such as "seed 3", and the kind: `""` for tuning and the first three seeds, which
            always run, `seeds` for each further seed, `shares` for each share of the labels, or
            `frozen`.
    """
    if task.run == "frozen" and not frozen_first:
        return "frozen encoders", "frozen"
    if "share" in task.at:
        return f"{task.at['share']} of the labels", "shares"
    if task.seed == TUNING_SEED:
        return "tuning", ""
    is_required = task.seed < FEWEST
    return f"seed {task.seed}", "" if is_required else "seeds"
