"""Numbers as text, alike in tables and sentences, and the answer of a report. No torch here."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ...formatting import format_share
from ...stats import Interval, SeedSummary
from .axes import CURVE_OF, arm_label, format_place
from .measures import Measure
from .numbers import Numbers, Pair, choices
from .results import StudyResults
from .scaling_curve import ArmComparison, Estimate
from .task_means import Benchmark, Score

MINUS = "A minus B"
SIGN = (
    f"Every difference in this report is {MINUS}, as its label says, "
    "and positive where A is the better."
)
NONE = "-"
SEEDS = "95%, seeds"


def number(value: float, percent: bool = True, signed: bool = False) -> str:
    """A share in percent with two digits, any other value with three."""
    scale = 100 if percent else 1
    return f"{scale * value:{'+' if signed else ''}z.{2 if percent else 3}f}"


def span(interval: Interval | None, percent: bool = True, signed: bool = False) -> str:
    if interval is None:
        return NONE
    return f"{number(interval.low, percent, signed)} to {number(interval.high, percent, signed)}"


def deviation(found: SeedSummary, percent: bool = True) -> str:
    return NONE if found.sd is None else number(found.sd, percent)


def summary(found: SeedSummary, measure: Measure, signed: bool = False) -> list[str]:
    """n, mean, sd and interval of a measure, as the cells of a row."""
    return [
        str(found.n),
        number(found.mean, measure.percent, signed),
        deviation(found, measure.percent),
        span(found.interval, measure.percent, signed),
    ]


def chance(probability: float | None) -> str:
    """A probability in whole percent, which is what the draws and the seeds can tell."""
    if probability is None:
        return NONE
    if probability < 0.005:
        return "<1%"
    return ">99%" if probability > 0.995 else f"{probability:.0%}"


def minus(pair: Pair, numbers: Numbers) -> str:
    """The label of a difference: positive where the first arm is better."""
    arm = arm_label(pair.arm, numbers.settings)
    return f"{arm} minus {arm_label(pair.other, numbers.settings)}"


def unit(measure: Measure) -> str:
    return f"{measure.label}, %" if measure.percent else measure.label


def difference_of(measure: Measure) -> str:
    """What a difference on a measure is one of, as positive is always better."""
    if measure.higher:
        return measure.label
    return f"{measure.label} with its sign reversed, as lower is better"


def zero(interval: Interval) -> str:
    return "excludes" if interval.excludes_zero else "includes"


def answer(study: StudyResults, numbers: Numbers) -> str:
    """The study's answer: its claim, then the candidate minus the baseline and the reference, then
    the best of the varied settings; each where the study has it. Of arms that are not compared,
    what each has."""
    parts = []
    if numbers.benchmark:
        parts.append(_score(numbers.benchmark))
    elif not study.compares:
        parts.append(_each(study, numbers))
    if numbers.claim:
        parts.append(_claim(study, numbers, numbers.claim))
    pairs = candidate_pairs(study, numbers)
    if pairs:
        differences = "; ".join(_difference(pair, numbers) for pair in pairs)
        label = difference_of(numbers.measure(numbers.main))
        parts.append(f"On {label}, {differences}.")
    for found in numbers.scaling.comparisons if numbers.scaling else ():
        if found.arm == study.report.candidate:
            place = numbers.scaling.place(study.final) if numbers.scaling else None
            own = worth(found, numbers).get(place or 0.0)
            parts.append("; ".join(filter(None, [own, *crossings(found, numbers)])) + ".")
    if study.vary:
        parts.append(_best(numbers.measure(numbers.main), numbers))
    return " ".join(parts)


def _each(study: StudyResults, numbers: Numbers) -> str:
    """The final accuracy of each arm, and what its sweep chose."""
    measure = numbers.measure(numbers.main)
    chosen = choices(study, numbers.sweeps, measure.part)
    texts = []
    for one in measure.results:
        ends = f"95% {span(one.value.interval)}, " if one.value.interval else ""
        text = f"{arm_label(one.arm, numbers.settings)} {number(one.value.mean, measure.percent)}"
        text += f"{'%' if measure.percent else ''} ({ends}n = {one.value.n}"
        if one.arm in chosen:
            sweep = chosen[one.arm]
            text += f"; {setting(sweep.tried[sweep.best][0])}, chosen of {len(sweep.tried)}"
        texts.append(f"{text})")
    return f"{measure.label[0].upper()}{measure.label[1:]}: {'; '.join(texts)}."


def setting(values: dict[str, Any]) -> str:
    """What a sweep tried, as options."""
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _score(found: Benchmark) -> str:
    """A benchmark's mean over all tasks and those of its groups; of some tasks only, that it is not
    the benchmark's score."""
    *groups, every = found.scores
    of = f"{len(every.tasks)} of {every.of} tasks"
    text = f"{found.title}: {_mean(every)} over {of} (n = {every.value.n})"
    if not found.whole:
        text = f"Not a score of {found.title}, as tasks or test images are missing: "
        text += f"{_mean(every)} over {of} (n = {every.value.n})"
    means = [f"{one.group} {_mean(one)} ({len(one.tasks)} of {one.of})" for one in groups]
    return f"{text}; {', '.join(means)}."


def _mean(one: Score) -> str:
    ends = f" (95% {span(one.value.interval)})" if one.value.interval else ""
    return f"{number(one.value.mean)}%{ends}"


def candidate_pairs(study: StudyResults, numbers: Numbers) -> list[Pair]:
    """Those that the answer is about: the candidate with the baseline, and with the reference if
    there is one; then those asked for."""
    candidate = study.report.candidate
    others = (study.report.baseline, study.report.reference)
    named = [pair for pair in numbers.pairs if pair.arm == candidate and pair.other in others]
    wanted = [numbers.pair(*both) for both in study.pairs]
    return [*named, *(pair for pair in wanted if pair not in named)]


def _difference(pair: Pair, numbers: Numbers) -> str:
    """A pair in words: the difference and its interval."""
    percent = numbers.measure(pair.measure).percent
    found = pair.difference
    if found is None:
        names = [arm_label(arm, numbers.settings) for arm in (pair.arm, pair.other)]
        return f"{' and '.join(names)} have no seed in common yet"
    size = f"{number(found.mean, percent, signed=True)}{' points' if percent else ''}"
    text = f"{minus(pair, numbers)} is {size}"
    if found.interval is None:
        return f"{text}, on one seed, which gives no interval"
    ends = span(found.interval, percent, signed=True)
    excludes = f"which {zero(found.interval)} zero"
    text = f"{text} (95% interval in pairs {ends} over {found.n} seeds, {excludes}"
    if pair.corrected is None:
        return f"{text})"
    wide = span(pair.corrected, percent, signed=True)
    return f"{text}; {wide} where all pairs asked for hold, which {zero(pair.corrected)} zero)"


def crossings(found: ArmComparison, numbers: Numbers) -> list[str]:
    """At which places along the curve an arm and the baseline cross."""
    both = f"{arm_label(found.arm, numbers.settings)} and {_baseline(numbers)}"
    of = _along(numbers)
    short = partial(_short_place, of)
    tried = "lengths" if of == "compute" else "shares"
    if found.crossovers:
        return [
            f"{both} cross at {format_place(one.value or 0.0, of)} ({_ends(one, short)})"
            for one in found.crossovers
        ]
    text = f"{both} do not cross between the {tried} tried"
    if len(found.seeds) == 1:
        return [f"{text} (one seed)"]
    ranges = " and ".join(f"{short(low)} to {short(high)}" for low, high in found.undecided)
    seeds = f"the 95% interval of their difference over {len(found.seeds)} seeds"
    return [f"{text}; {seeds} {f'includes zero from {ranges}' if ranges else 'excludes zero'}"]


def worth(found: ArmComparison, numbers: Numbers) -> dict[float, str]:
    """{place: how many times the labels (images, exaFLOP) an arm is worth there}."""
    of = _along(numbers)
    arm = arm_label(found.arm, numbers.settings)
    return {
        one.share: f"With {format_place(one.share, of)} {arm} is worth "
        f"{_factor(one.factor, numbers)}"
        for one in found.worth
    }


def _along(numbers: Numbers) -> str:
    return numbers.scaling.of if numbers.scaling else "labels"


def _short_place(of: str, place: float) -> str:
    return f"{place:.3g}" if of == "compute" else format_share(place)


def _baseline(numbers: Numbers) -> str:
    return arm_label(numbers.scaling.baseline if numbers.scaling else "", numbers.settings)


def _factor(found: Estimate, numbers: Numbers) -> str:
    """A factor in words: beyond the shares tried there is but a bound."""
    of = f"times the {CURVE_OF[_along(numbers)]} of {_baseline(numbers)}"
    tried = "lengths" if _along(numbers) == "compute" else "shares"
    if found.value is not None:
        return f"{_times(found.value)} {of} ({_ends(found, _times)})"
    seeds = "one seed" if found.seeds == 1 else f"95%, {found.seeds} seeds"
    if found.low is not None:
        return f"more than {_times(found.low)} {of} ({seeds}; the {tried} tried end there)"
    if found.high is not None:
        return f"less than {_times(found.high)} {of} ({seeds}; the {tried} tried end there)"
    return f"an unknown number of {of} (95%: any within the {tried} tried, {seeds[5:]})"


def _times(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _ends(found: Estimate, write: Callable[[float], str]) -> str:
    if found.seeds == 1:
        return "one seed, which gives no interval"
    if found.low is None and found.high is None:
        return f"95% interval: anywhere in the shares tried, {found.seeds} seeds"
    if found.low is None:
        ends = f"up to {write(found.high or 0.0)}, open below"
    elif found.high is None:
        ends = f"from {write(found.low)}, open above"
    else:
        ends = f"{write(found.low)} to {write(found.high)}"
    return f"95% interval {ends}, {found.seeds} seeds"


def _claim(study: StudyResults, numbers: Numbers, pair: Pair) -> str:
    """The claim's difference, and what its interval makes of the claim."""
    claim = study.report.claim
    assert claim is not None
    source = str(claim.source or "the claim")
    if claim.says:
        source += f": {claim.says}"
    measure = numbers.measure(pair.measure)
    verdict = _verdict(pair.difference, measure)
    return f"On {difference_of(measure)}, {_difference(pair, numbers)}: {verdict} ({source})."


def _verdict(found: SeedSummary | None, measure: Measure) -> str:
    if measure.question_keys:
        keys = " and ".join(measure.question_keys)
        return f"each has its own {keys}, so this cannot answer the claim"
    if found is None or found.interval is None:
        return "this cannot answer the claim"
    if not found.interval.excludes_zero:
        return "this neither supports nor contradicts the claim"
    return "this supports the claim" if found.mean > 0 else "this contradicts the claim"


def _best(measure: Measure, numbers: Numbers) -> str:
    """The best setting, and how probable it is from the seeds that it is."""
    best = measure.best
    likely = [one for one in measure.results if one.probability is not None]
    mean = f"{number(best.value.mean, measure.percent)}{'%' if measure.percent else ''}"
    text = f"{'Highest' if measure.higher else 'Lowest'} {measure.label}: "
    text += f"{arm_label(best.arm, numbers.settings)} with {mean} (n = {best.value.n})"
    if measure.question_keys:
        keys = " and ".join(measure.question_keys)
        return f"{text} of {len(measure.results)} settings, each measured at its own {keys}."
    if best.probability is None:
        text += f" of {len(measure.results)} settings; "
        return f"{text}its probability of being the best needs two seeds or more that differ."
    text += f", the best of {len(likely)} settings with a probability of {chance(best.probability)}"
    others = [one for one in likely if one is not best]
    second = max(others, key=lambda one: one.probability or 0.0)
    text += f"; next {arm_label(second.arm, numbers.settings)} with {chance(second.probability)}."
    unknown = [one.arm for one in measure.results if one.probability is None]
    if unknown:
        names = ", ".join(arm_label(arm, numbers.settings) for arm in unknown)
        text += f" Not among them, as they have no two seeds that differ: {names}."
    return text
