"""Write the answer of `recipe=study/worth`: the first lines of the report in plain words.

The answer ends with a next step. The module does not import torch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

from .. import stats
from ..formatting import format_count, typed_command
from ..recipe.words import write_all
from .compare import Comparison, Difference, measure_difference, pair_rows
from .results import PREDICTED, Results
from .study import hours, launch
from .study.options import RELEASED
from .study.worth.content import MOST_SEEDS
from .verdict import Verdict

COMMONEST = "majority_top1"  # the accuracy of always naming the commonest class
RELEASED_PAIRS = 2  # both arms count, although only the better is compared with the released one
FROZEN, FROZEN_MEASURE = "frozen", "knn"  # run and measure of the frozen encoders
MEASURED = (
    "Fine-tuned from {objective}, {network} reaches {objective_top1:.1f}% top-1 on the test images,"
    " and {other} it reaches {baseline_top1:.1f}% (difference {difference})."
)
PROVISIONAL = "This result is provisional, because the study has not reached its planned end."
NOTHING = (
    "Nothing was learned: neither {a} nor {b} is better than always naming the commonest class"
    " ({commonest:.1f}%)."
)
HELPED = "Pre-training helped."
DID_NOT_HELP = "Pre-training did not help."
UNDECIDED = "Whether pre-training helps is undecided."
# {whether the frozen encoder is better than untrained weights, None if unknown: the next step}
LEARNED = {
    True: "Do not pre-train. To fine-tune without this pre-training: {tuned}",
    False: (
        "{epochs} epochs of pre-training taught the encoder nothing measurable. To find out whether"
        " longer pre-training helps: {longer}"
    ),
    None: (
        "The hours left no time to measure whether {epochs} epochs of pre-training taught the"
        " encoder anything. To train longer and to measure this too: {longer}"
    ),
}
LENGTH = (
    "Network and length: {network}, {epochs} epochs ({steps} steps) of pre-training and"
    " {fine_epochs} epochs ({fine_steps} steps) of fine-tuning, {num_seeds}{hours_used}."
)
RELEASED_MEASURED = (
    "The released encoder {released} reaches {accuracy:.1f}% after fine-tuning (difference from"
    " {better} {difference})."
)
EXAMPLE = "timm:vit_tiny_patch16_224.augreg_in21k"


class Answer(NamedTuple):
    """Answer of a study.

    Attributes:
        lines: The answer, what was trained, and what was not compared.
        next_step: What to do next, with a command.
    """

    lines: tuple[str, ...]
    next_step: str


def answer(results: Results, verdict: Verdict) -> Answer | None:
    """Answer whether pre-training helps, if the study asks this.

    The result is None if the study does not ask this, or if no seed has finished in both arms yet.
    """
    # texts that study/worth has stored for the answer, such as the network and the options
    facts: Mapping[str, str] = results.plan.report.get("question", {})
    if not facts or verdict.measure is None or not verdict.primary.differences:
        return None
    primary = verdict.primary.differences[0]
    objective, baseline = primary.comparison.a, primary.comparison.b
    rows = verdict.rows
    paired = pair_rows(rows, "arm", primary.comparison)
    objective_mean, baseline_mean = float(paired["value_a"].mean()), float(paired["value_b"].mean())
    commonest_accuracy = _commonest(results)
    num_images = int(rows["n"].min())
    measured = MEASURED.format(
        **facts,
        objective_top1=100 * objective_mean,
        baseline_top1=100 * baseline_mean,
        difference=_interval(primary, verdict.primary.size),
    )
    better = objective if objective_mean >= baseline_mean else baseline
    released_difference = _released_difference(better, results, verdict)
    if released_difference:
        sentence = RELEASED_MEASURED.format(
            released=facts["released"],
            accuracy=100 * rows[rows["arm"] == RELEASED]["value"].mean(),
            better=better,
            difference=_interval(released_difference, RELEASED_PAIRS * results.ends),
        )
        measured = f"{measured} {sentence}"
    is_above_commonest = any(
        stats.wilson_interval(mean, num_images).low > commonest_accuracy
        for mean in (objective_mean, baseline_mean)
    )
    # a new name, because in the same folder more hours would only add seeds
    longer = _study_command(results, facts, factor=2, name=f"{results.folder.name}-longer")
    if not verdict.primary.final:
        conclusion = PROVISIONAL
        command = _study_command(results, facts)
        next_step = (
            "Wait until all planned seeds have finished. If the study is not running, continue:"
            f" {command}"
        )
    elif not is_above_commonest:
        conclusion = NOTHING.format(a=objective, b=baseline, commonest=100 * commonest_accuracy)
        next_step = f"Check that the labels fit the images, then train longer: {longer}"
    elif not primary.claimed:
        conclusion = UNDECIDED
        continued = f"To train longer: {longer}"
        if primary.n < MOST_SEEDS:
            command = _study_command(results, facts, _estimate_hours_of_eight_seeds(results))
            continued = f"To add seeds to this study, with more hours: {command}"
        # a continued study has one more end, at which it could claim a difference
        num_comparisons = verdict.primary.num_comparisons * (results.ends + 1)
        next_step = f"{_more_seeds(primary, num_images, num_comparisons)} {continued}"
    elif primary.mean > 0:
        conclusion, next_step = HELPED, f"Pre-train: {_command('pretrain', facts['pretrain'])}"
    else:
        conclusion = DID_NOT_HELP
        next_step = LEARNED[_encoder_learned(results, objective)].format(
            epochs=facts["epochs"], tuned=_tuned(results, baseline), longer=longer
        )
    if (
        verdict.primary.final
        and released_difference
        and released_difference.claimed
        and released_difference.mean > 0
    ):
        next_step = f"Fine-tune the released encoder: {_tuned(results, RELEASED)}"
    ledger = hours.read(results.folder)
    hours_used = f", {ledger.used:.2g} of {ledger.hours:g} hours used" if ledger else ""
    num_seeds = format_count(len(paired), "seeds")
    length = LENGTH.format(**facts, num_seeds=num_seeds, hours_used=hours_used)
    lines = [f"{conclusion} {measured}", length, *_describe_limits_of_tuning(results)]
    if not facts["init"] and not facts.get("released"):
        lines.append(
            "A released encoder was not compared. To compare one, repeat the study with"
            f" {RELEASED}={EXAMPLE} and another name=."
        )
    return Answer(tuple(lines), next_step)


def _describe_limits_of_tuning(results: Results) -> Iterator[str]:
    """Yield a sentence for each best hyperparameter that is the lowest or highest tried value.

    For example, the best `optim.lr` is 0.001 and no higher value was tried. With only two tried
    values there is no sentence, because one is the lowest and the other the highest.
    """
    tasks = results.plan.by_name
    finished = [tasks[name] for name in tasks if name in results.finished]
    # the same values are chosen for all seeds of an arm
    finals = {task.at["arm"]: task for task in finished if task.run == "final" and task.best}
    for arm, task in finals.items():
        values, _, keys_at_an_end = launch.best_values(task, tasks, results.folder)
        for key in keys_at_an_end:
            tried = {tasks[name].tried[key] for name in task.tries}
            if len(tried) > 2:
                is_highest = values[key] == max(tried)
                end, beyond = ("highest", "higher") if is_highest else ("lowest", "lower")
                yield (
                    f"The best {key} for {arm} ({values[key]:g}) is the {end} tried value, so a"
                    f" {beyond} value may be better."
                )


def _released_difference(better: str, results: Results, verdict: Verdict) -> Difference | None:
    """Compare the released encoder with the better of the study's two arms.

    The result is None if no seed has finished for both the released encoder and the better arm.

    The better arm was chosen by the same results that are compared here. To allow for this choice,
    the interval is as wide as for two comparisons, one with each arm, that share an error of 5%.
    The study's own comparison has a separate error of 5%. If the study was changed after results
    were known, the error is also divided by the number of planned ends (`results.ends`).

    Args:
        better: Name of the arm that is better on average, such as `mae`.
        results: Results of the study.
        verdict: Claims of the study.
    """
    measure = verdict.measure
    assert measure is not None
    comparison = Comparison(RELEASED, better)
    paired = pair_rows(verdict.rows, "arm", comparison)
    tasks = {*paired["folder_a"], *paired["folder_b"]}
    # runs store whether each image was predicted correctly, but only for top-1
    outcomes = results.load_outcomes(tasks) if measure.name == PREDICTED else {}
    family = RELEASED_PAIRS * results.ends
    return measure_difference(comparison, paired, family, measure.scale, outcomes)


def _interval(difference: Difference, family: int) -> str:
    """Describe the difference of two arms: `+2.1 points, 95% CI +0.4 to +3.8, 3 seeds`.

    Args:
        difference: Measured difference, in points.
        family: Number of comparisons that share the error level of 5%.
    """
    seeds = format_count(difference.n, "seeds")
    if difference.interval is None:
        return f"{difference.mean:+.1f} points, {seeds}"
    low, high = difference.interval
    level = f"{100 * (1 - 0.05 / family):.4g}%"
    return f"{difference.mean:+.1f} points, {level} CI {low:+.1f} to {high:+.1f}, {seeds}"


def _commonest(results: Results) -> float:
    """Return the accuracy of always naming the commonest class of the test images.

    The result is 0.0 if no run has measured this accuracy.
    """
    rule = results.plan.rule
    rows = results.rows(rule.test if rule else None, COMMONEST, "test")
    return float(rows["value"].mean()) if len(rows) else 0.0


def _encoder_learned(results: Results, objective: str) -> bool | None:
    """Return whether the frozen encoder has a higher k-NN accuracy than untrained weights.

    The accuracy counts as higher if the 95% interval of the difference over seeds is above zero.

    Args:
        results: Results of the study.
        objective: Name of the pre-trained arm.

    Returns:
        Whether the accuracy is higher, or None if fewer than two seeds were measured.
    """
    # the run `frozen` measures the trained encoder and the same network with untrained weights
    trained_rows = results.rows(run=FROZEN, metric=FROZEN_MEASURE)
    untrained_rows = results.rows(metric=FROZEN_MEASURE, untrained_by=FROZEN)
    trained, untrained = (
        rows[rows["arm"] == objective].set_index("seed")["value"]
        for rows in (trained_rows, untrained_rows)
    )
    differences: Sequence[float] = (trained - untrained).dropna().tolist()
    if len(differences) < 2:
        return None
    interval = stats.summarize(differences).interval
    return interval is not None and interval.low > 0


def _more_seeds(difference: Difference, images: int, family: int) -> str:
    """Say how narrow the interval would be with eight seeds, and whether eight seeds would decide.

    Half the width of the interval has two independent parts, whose squares add up. The first part
    is due to the seeds and the second part to the test images. More seeds narrow the first part.
    More test images narrow the second part.

    In three cases the text gives only general advice: the study already has eight seeds, it has a
    single seed, or all seeds have the same difference.

    Args:
        difference: Measured difference, in points.
        images: Number of test images.
        family: Number of comparisons that share the error level of 5% after the next end.
    """
    if difference.n >= MOST_SEEDS or not difference.sd:
        return "More test images or longer training could show a difference."
    seeds_half_width = stats.t_half_width(MOST_SEEDS, family) * difference.sd
    images_half_width = least_half_width = 0.0
    if difference.image_errors:
        # converts a standard error to half the width of the interval in points
        points_per_error = 100 * NormalDist().inv_cdf(1 - 0.05 / family / 2)
        images_half_width = points_per_error * difference.image_errors.with_seeds(MOST_SEEDS)
        least_half_width = points_per_error * difference.image_errors.shared
    half_width = math.hypot(images_half_width, seeds_half_width)
    sentences = [
        f"With {MOST_SEEDS} seeds the interval would reach about {half_width:.1f} points to each"
        " side."
    ]
    if least_half_width:
        sentences.append(
            f"With any number of seeds it would reach at least {least_half_width:.1f} points,"
            f" because of the {images:,} test images."
        )
    measured_size = abs(difference.mean)
    if half_width >= measured_size:
        sentences.append(
            f"The measured difference is only {measured_size:.1f} points, so {MOST_SEEDS} seeds"
            " would probably not decide."
        )
        if least_half_width and seeds_half_width < measured_size:
            # the part due to the images shrinks with the root of their number
            needed = images * images_half_width**2 / (measured_size**2 - seeds_half_width**2)
            sentences.append(
                f"To decide a difference of this size, {MOST_SEEDS} seeds need at least about"
                f" {_round_up_to_two_digits(needed):,} test images."
            )
    return " ".join(sentences)


def _estimate_hours_of_eight_seeds(results: Results) -> float:
    """Estimate the hours that eight seeds need, from the time that the finished seeds took.

    The estimate is the hours used so far plus the hours of the missing seeds. A missing seed is
    assumed to take as long as a finished seed. A seed has finished when the fine-tunings of all
    arms have finished.

    Returns:
        Hours, rounded up to a tenth, and at least 5% more than the study's limit of hours. There
            are three exceptions:
            - 1.0 without hours.json, because the used hours are unknown.
            - Twice the limit if no seed has finished, because the hours of a seed are unknown.
            - Twice the limit if eight seeds have finished already.
    """
    # `hours` is the limit, `used` the hours so far, `took` the seconds of each finished task
    ledger = hours.read(results.folder)
    if ledger is None:
        return 1.0
    tasks = results.plan.tasks
    finals = [task for task in tasks if task.run == "final"]
    unfinished = {task.seed for task in finals if task.name not in ledger.took}
    finished = {task.seed for task in finals} - unfinished
    if not finished or len(finished) >= MOST_SEEDS:
        return _round_up_to_tenth(2 * ledger.hours)
    seconds_of_all_tasks = sum(ledger.took.values())
    seconds_of_finished_seeds = sum(
        ledger.took.get(task.name, 0.0) for task in tasks if task.seed in finished
    )
    seconds_per_seed = seconds_of_finished_seeds / len(finished)
    # Tasks may run in parallel, so their sum may be more than the hours used. A seed with 30% of
    # the seconds of all tasks therefore counts as 30% of the hours used
    hours_per_seed = seconds_per_seed * ledger.used / seconds_of_all_tasks
    needed = ledger.used + (MOST_SEEDS - len(finished)) * hours_per_seed
    # The study may have left out a seed that would have ended just after its limit. Then `needed`
    # may be below the limit, and only a higher limit gives another seed.
    return _round_up_to_tenth(max(needed, 1.05 * ledger.hours))


def _round_up_to_two_digits(number: float) -> int:
    unit = 10 ** max(0, math.floor(math.log10(number)) - 1)  # value of the second digit
    return math.ceil(number / unit) * unit


def _round_up_to_tenth(number: float) -> float:
    return math.ceil(10 * number) / 10


def _study_command(
    results: Results,
    facts: Mapping[str, str],
    new_hours: float = 0.0,
    factor: float = 1.0,
    name: str = "",
) -> str:
    """Return the command that continues the study or starts a longer study.

    Args:
        results: Results of the study.
        facts: Stored texts. `facts["study"]` has the options of the command, one per line.
        new_hours: Value of `hours=` in the command. With 0, the value is the study's limit of hours
            times `factor`, or just `factor` for a study without hours.json.
        factor: Factor for the study's limit of hours, if `new_hours` is 0.
        name: Name of the longer study. If empty, the command continues the study.
    """
    if not new_hours:
        ledger = hours.read(results.folder)
        new_hours = factor * ledger.hours if ledger else factor
    if not name:
        name = results.folder.name
    folder = f"name={name}\nout={results.folder.parent}"
    return _command("study", f"{facts['study']}\n{folder}\nhours={new_hours:g}")


def _tuned(results: Results, arm: str) -> str:
    """Return the command that fine-tunes an arm with its best hyperparameters."""
    tasks = results.plan.by_name
    task = next(task for task in tasks.values() if task.run == "final" and task.at["arm"] == arm)
    options, _ = launch.planned_options(task, tasks, results.folder)
    kept_options = {key: options[key] for key in options if key not in ("seed", "out", "name")}
    return typed_command("finetune", *write_all(kept_options))


def _command(tool: str, words: str) -> str:
    """Return the command line of a tool. `words` has the options, one per line."""
    return typed_command(tool, *words.split("\n"))
