"""What the report of a study that varies keys says, in words and tables. No torch here."""

from collections.abc import Iterable, Mapping

from .. import stats
from ..stats import Interval, SeedSummary
from .axes import Axes, axes, format_value, label
from .finished import Study
from .numbers import edges
from .plots import Plot
from .sections import (
    MINUS,
    NONE,
    SEEDS,
    SIGN,
    Block,
    Listing,
    Section,
    Table,
    Text,
    made,
    minus,
    strangers,
    unfinished,
    zero,
)
from .varied import Claim, Cost, Measure, Result, Varied
from .varied_plots import cells, scale, unit

EQUAL = {
    "exaflop": "Matched by exaFLOP: each setting's steps were scaled so that its pre-training costs what the study's own words"
    " cost without a setting, and its warm-up alike.",
    "steps": "Matched by steps: every setting was pre-trained for as many, whatever they cost.",
}


def build(study: Study, numbers: Varied, drawn: Mapping[str, Plot]) -> list[Section]:
    """All that the report says, in order; sections without content are left out."""
    along = axes(numbers.settings, study.report.get("axis"))
    found = [
        Section("", [*_first(numbers, along), *strangers(study)]),
        Section("The claim, in pairs", list(_paired(numbers.claim, numbers))),
        Section("Measures", [*_shown(drawn, "measures"), *_comparable(numbers), *_tables(numbers)]),
        Section("Interaction", list(_interaction(numbers, along, drawn))),
        Section("Compute", [*_spent(numbers), *_shown(drawn, "compute")]),
        Section(
            "What differs from the paper",
            [Listing(study.report["differs"])] if study.report.get("differs") else [],
        ),
        Section("How it was made", list(made(study))),
    ]
    return [section for section in found if section.blocks]


def _shown(drawn: Mapping[str, Plot], name: str) -> list[Plot]:
    return [drawn[name]] if name in drawn else []


def answer(numbers: Varied) -> str:
    """The claim first, if there is one, then the best setting of the measure that the study is
    judged by."""
    claim = [_claimed(numbers.claim, numbers)] if numbers.claim else []
    return " ".join([*claim, _best(numbers.measure(numbers.main), numbers)])


def _claimed(claim: Claim, numbers: Varied) -> str:
    """In one sentence: the difference, its interval, and what that makes of the claim."""
    worse, better = (label(arm, numbers.settings) for arm in (claim.worse, claim.better))
    source = f"{claim.source or 'the claim'}{f': {claim.says}' if claim.says else ''}"
    found = claim.difference
    if found is None:
        return f"{worse} and {better} have no seed in common yet, so nothing is said about the claim ({source})."
    size = f"On {_gain(claim.measure)}, {minus(better, worse)} is {_size(found.mean, claim.measure, True)}"
    if found.interval is None:
        return f"{size}, on one seed, which cannot answer the claim ({source})."
    ends = (
        f"95% interval in pairs {_span(found.interval, claim.measure, True)} over {found.n} seeds"
    )
    return f"{size} ({ends}, which {zero(found.interval)} zero): {_verdict(found)} ({source})."


def _gain(measure: Measure) -> str:
    """What a difference of this measure is one of: positive is always better."""
    return (
        measure.label
        if measure.higher
        else f"{measure.label} with its sign reversed, as lower is better"
    )


def _paired(claim: Claim | None, numbers: Varied) -> Iterable[Block]:
    """The claim's difference as a table."""
    if claim is None or claim.difference is None:
        return
    found = claim.difference
    difference = minus(*(label(arm, numbers.settings) for arm in (claim.better, claim.worse)))
    sd = NONE if found.sd is None else _figure(found.sd, claim.measure)
    size = _figure(found.mean, claim.measure, True)
    head = [
        MINUS,
        "n",
        f"{_gain(claim.measure)}, points" if claim.measure.percent else _gain(claim.measure),
        "sd",
        SEEDS,
    ]
    yield Table(
        head, [[difference, str(found.n), size, sd, _span(found.interval, claim.measure, True)]]
    )
    yield Text(SIGN)


def _verdict(found: SeedSummary) -> str:
    if found.interval is None or not found.interval.excludes_zero:
        return "this neither bears out nor contradicts the claim"
    return "this bears out the claim" if found.mean > 0 else "this contradicts the claim"


def _best(measure: Measure, numbers: Varied) -> str:
    best, drawn = measure.best, [one for one in measure.results if one.probability is not None]
    apart = [label(one.arm, numbers.settings) for one in measure.results if one.probability is None]
    value = f"{_figure(best.value.mean, measure)}{'%' if measure.percent else ''}"
    text = f"{'Highest' if measure.higher else 'Lowest'} {measure.label}: {label(best.arm, numbers.settings)} with {value}"
    text += f" (n = {best.value.n})"
    if best.probability is None:
        return f"{text} of {len(measure.results)} settings; two seeds or more that differ are needed to say how sure that is."
    text += f", which is the best of {len(drawn)} settings with a probability of {_chance(best.probability)}"
    second = max((one for one in drawn if one is not best), key=lambda one: one.probability or 0.0)
    text += f"; next {label(second.arm, numbers.settings)} with {_chance(second.probability)}."
    return (
        f"{text} Not among them, for want of seeds that differ: {', '.join(apart)}."
        if apart
        else text
    )


def _first(numbers: Varied, along: Axes) -> Iterable[Block]:
    """The answer, what it rests on, and what is missing."""
    yield Text(answer(numbers))
    main = numbers.measure(numbers.main)
    tried = [numbers.settings[one.arm] for one in main.results]
    if along.x and not along.categories:
        for key in edges(tried, numbers.settings[main.best.arm]) if len(tried) > 2 else []:
            end = f"{key}={format_value(numbers.settings[main.best.arm][key])}"
            yield Text(
                f"The best, {end}, lies at an end of what was swept; a wider sweep may find a better.",
                warning=True,
            )
    if numbers.missing:
        yield unfinished(numbers.missing, numbers.tasks)
    if numbers.broken:
        yield Text(
            f"Left out where it is not finite: what these runs measured: {', '.join(numbers.broken)}.",
            warning=True,
        )


def _comparable(numbers: Varied) -> Iterable[Block]:
    """What the curves may be read as, and what is not shown."""
    for own in dict.fromkeys(tuple(one.own) for one in numbers.measures if one.own):
        yield Text(
            f"Held-out losses and accuracies of pre-training are asked at each setting's own {' and '.join(own)}: they tell how"
            " hard that is, not how good the encoder."
        )
    for keys in dict.fromkeys(map(tuple, numbers.incomparable.values())):
        names = ", ".join(
            name for name, differ in numbers.incomparable.items() if tuple(differ) == keys
        )
        yield Text(
            f"Not shown, as the settings differ in {', '.join(keys)} and no figure compares with another: held-out {names}."
        )


def _tables(numbers: Varied) -> Iterable[Block]:
    for measure in numbers.measures:
        head = [f"{unit(measure)}: setting", "n", "mean", "sd", SEEDS, "best with"]
        every = [*measure.results, *measure.beside]
        rows = [[label(one.arm, numbers.settings), *_row(one, measure)] for one in every]
        yield Table(head, rows, marked=frozenset(range(len(measure.results), len(every))))
    yield Text(_method(numbers))


def _row(one: Result, measure: Measure) -> list[str]:
    sd = NONE if one.value.sd is None else _figure(one.value.sd, measure)
    return [
        str(one.value.n),
        _figure(one.value.mean, measure),
        sd,
        _span(one.value.interval, measure),
        _chance(one.probability),
    ]


def _method(numbers: Varied) -> str:
    """What n, the intervals and the probability are, and what they cannot say."""
    n = max(one.value.n for measure in numbers.measures for one in measure.results)
    text = "n counts seeds, each of which covers pre-training and probe; intervals are Student's t over seeds. All settings are"
    text += " tested on the same images; what other images would say is in no interval."
    if n < 2:
        return f"{text} One seed has no interval, and no probability of being the best."
    low, high = stats.sd_reach(n)
    text += f" Best with: the share of {stats.DRAWS:,} draws in which the setting's mean is the highest (of a loss the"
    text += " lowest), each mean drawn from its seeds as mean + sd / sqrt(n) x Student's t with n - 1 degrees of freedom, every"
    text += f" setting by itself. From n = {n} the true sd is known no better than between {low:.2f} and {high:.2f} times the one"
    text += " here, which the t's tails allow for: with few seeds the probabilities lean towards undecided. They are about these"
    return f"{text} settings alone; what lies between or beyond them is not asked."


def _interaction(numbers: Varied, along: Axes, drawn: Mapping[str, Plot]) -> Iterable[Block]:
    """Both keys' every combination; the best of each row in brackets."""
    if not along.lines:
        return
    main = numbers.measure(numbers.main)
    columns, rows, means = cells(numbers, along, main)
    yield from _shown(drawn, "interaction")
    head = [f"{along.lines} \\ {along.x}", *columns]
    yield Table(
        head,
        [[row, *_bracketed(found, main.higher)] for row, found in zip(rows, means, strict=True)],
    )
    yield Text(
        f"{unit(main).capitalize()}, the mean over seeds; the best of each row in brackets. Where they wander from row to row,"
        " one key's best depends on the other's value, as far as the intervals above let it be told."
    )


def _bracketed(means: list[float | None], higher: bool) -> list[str]:
    known = [mean for mean in means if mean is not None]
    best = (max if higher else min)(known, default=None)
    return [
        NONE if mean is None else f"({mean:.2f})" if mean == best else f"{mean:.2f}"
        for mean in means
    ]


def _spent(numbers: Varied) -> Iterable[Block]:
    """What each arm cost and all together."""
    known = any(cost.corrupted is not None for cost in numbers.costs)
    rows = []
    for cost in numbers.costs:
        corrupted = [f"{cost.corrupted:g}" if cost.corrupted is not None else NONE] if known else []
        steps = " to ".join(
            f"{count:,}" for count in dict.fromkeys((*cost.steps[:1], *cost.steps[-1:]))
        )
        rows.append(
            [
                label(cost.arm, numbers.settings),
                steps or NONE,
                *corrupted,
                f"{cost.each:.3g}",
                *_sum([cost]),
            ]
        )
    rows.append(["all", NONE, *([NONE] if known else []), NONE, *_sum(numbers.costs)])
    corrupted = ["patches hit"] if known else []
    head = [
        "arm",
        "steps",
        *corrupted,
        "exaFLOP of one pre-training",
        "runs",
        "exaFLOP",
        "device-hours",
    ]
    yield Table(head, rows, marked=frozenset([len(rows) - 1]))
    varied = "optim.steps" in {key for setting in numbers.settings.values() for key in setting}
    yield Text("The number of steps is what was varied." if varied else EQUAL[numbers.match])


def _sum(costs: Iterable[Cost]) -> list[str]:
    format_value = [(cost.runs, cost.exaflop, cost.device_hours) for cost in costs]
    runs, exaflop, hours = (sum(column) for column in zip(*format_value, strict=True))
    return [str(runs), f"{exaflop:.3g}", f"{hours:.3g}"]


def _figure(value: float, measure: Measure, signed: bool = False) -> str:
    return f"{scale(measure) * value:{'+' if signed else ''}z.{2 if measure.percent else 3}f}"


def _size(value: float, measure: Measure, signed: bool = False) -> str:
    return f"{_figure(value, measure, signed)}{' points' if measure.percent else ''}"


def _span(interval: Interval | None, measure: Measure, signed: bool = False) -> str:
    return (
        f"{_figure(interval.low, measure, signed)} to {_figure(interval.high, measure, signed)}"
        if interval
        else NONE
    )


def _chance(probability: float | None) -> str:
    """Whole percent, which is what the draws and the seeds can tell."""
    if probability is None:
        return NONE
    return "<1%" if probability < 0.005 else ">99%" if probability > 0.995 else f"{probability:.0%}"
