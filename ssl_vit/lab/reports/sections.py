"""The sections of a report, in SECTIONS: each is a function of (study, numbers) that yields blocks
of text, tables and figures, and nothing where the study has nothing of it. No torch here."""

from collections.abc import Callable, Iterator
from functools import partial

from ... import stats
from ...formatting import NOT_COUNTED, format_value
from ...pages.blocks import Block, Listing, Section, Table, Text
from . import (
    benchmark_section,
    chosen_section,
    figures,
    image_counts,
    provenance,
    scaling_section,
)
from .axes import arm_label
from .load import left_out
from .measures import Measure
from .numbers import Cost, Numbers, Pair, Sweep, edges
from .results import StudyResults
from .wording import (
    MINUS,
    NONE,
    SEEDS,
    SIGN,
    answer,
    candidate_pairs,
    chance,
    deviation,
    difference_of,
    minus,
    number,
    setting,
    span,
    summary,
    unit,
    zero,
)

BOTH = "95%, seeds and images"
# Of arms that are compared with one another
COMPARING = ("Differences in pairs", "Interaction", "Learning curves")
APART = (
    "n counts seeds; sd is over them, and intervals are Student's t. The study's report: names no "
    "baseline, so each arm is by itself and no two rows compare; what other test images would give "
    "is in no interval but those of seeds and images."
)
MATCHED = {
    "exaflop": "Matched by exaFLOP: each arm's steps and warm-up were scaled so that its "
    "pre-training costs what the study's options cost before the arm's own.",
    "steps": "Matched by steps: every arm was pre-trained for as many, whatever they cost.",
}


def build(study: StudyResults, numbers: Numbers) -> list[Section]:
    """All that the report says; sections without content are left out."""
    shown = [one for one in SECTIONS if study.compares or one[0] not in COMPARING]
    found = [Section(title, list(blocks(study, numbers))) for title, blocks in shown]
    return [section for section in found if section.blocks]


def first(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """The answer, the same with the images resampled too, and what to be careful about."""
    yield Text(answer(study, numbers))
    wider = [
        f"{minus(pair, numbers)} {span(pair.resampled, signed=True)} ({zero(pair.resampled)} zero)"
        for pair in candidate_pairs(study, numbers)
        if pair.resampled
    ]
    if wider:
        yield Text(
            "With the test images resampled together with the seeds, the intervals are: "
            f"{'; '.join(wider)}."
        )
    yield from _end_of_axis(study, numbers)
    if numbers.missing:
        yield Text(
            f"{len(numbers.missing)} of {numbers.tasks} tasks are not finished, "
            f"and nothing of them is in this report: {', '.join(numbers.missing)}.",
            warning=True,
        )
    if numbers.broken:
        yield Text(
            "Values that are not finite are left out; these runs measured some: "
            f"{', '.join(numbers.broken)}.",
            warning=True,
        )
    yield from image_counts.cautions(numbers)
    if study.foreign:
        yield Text(f"N{left_out(study)[1:]}.", warning=True)


def _end_of_axis(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """Warns of a best value at an end of the values of a number."""
    along = figures.study_axes(study, numbers)
    main = numbers.measure(numbers.main)
    tried = [numbers.settings[one.arm] for one in main.results]
    best = numbers.settings[main.best.arm]
    if along.ticks or len(tried) < 3:
        return
    for key in edges(tried, best):
        yield Text(
            f"The best, {key}={format_value(best[key])}, is at an end of the values tried; "
            "a wider range may contain a better one.",
            warning=True,
        )


def arms(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """What the arms are, where their labels do not say it."""
    described = {
        arm: text
        for arm, text in study.plan.arms.items()
        if text != arm_label(arm, numbers.settings)
    }
    if described:
        yield Listing([f"{arm}: {text}" for arm, text in described.items()])


def pairs(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """Differences in pairs of one seed, what the number of seeds allows, and McNemar's test of each
    seed's two networks."""
    shown = {(pair.arm, pair.other, pair.measure) for pair in numbers.pairs}
    claim = numbers.claim
    own = claim is not None and (claim.arm, claim.other, claim.measure) not in shown
    found = [*([claim] if claim and own else []), *numbers.pairs]
    if not found:
        return
    head = [MINUS, "measure", "n", "difference", "sd", SEEDS, BOTH]
    rows = [_pair(pair, numbers) for pair in found]
    if any(pair.corrected for pair in found):
        head.append(f"95% for all {len(study.pairs)}")
        for row, pair in zip(rows, found, strict=True):
            percent = numbers.measure(pair.measure).percent
            row.append(span(pair.corrected, percent, signed=True))
    yield Table(head, rows, labels=2)
    yield Text(SIGN)
    if any(pair.corrected for pair in found):
        yield Text(
            f"{len(study.pairs)} pairs were asked for. The last column is corrected for their "
            f"number (Bonferroni: each interval is of {1 - 0.05 / len(study.pairs):.2%}), so that "
            "all of its intervals hold together with 95%; the others hold each by itself."
        )
    for pair in candidate_pairs(study, numbers)[:1]:
        yield Text(_seeds_needed(pair, numbers))
    tests = [
        [
            minus(pair, numbers),
            str(seed),
            f"{test.first:,}",
            f"{test.second:,}",
            "<0.0001" if test.p < 1e-4 else f"{test.p:.4f}",
        ]
        for pair in found
        for seed, test in pair.mcnemar.items()
    ]
    if tests:
        yield Table([MINUS, "seed", "only A right", "only B right", "McNemar's p"], tests)
        yield Text(
            "McNemar's exact test is of one seed's two networks: whether they are equally often "
            "right. It says nothing of other seeds."
        )


def _pair(pair: Pair, numbers: Numbers) -> list[str]:
    measure = numbers.measure(pair.measure)
    label = difference_of(measure)
    cells = [minus(pair, numbers), f"{label}, points" if measure.percent else label]
    if pair.difference is None:
        return [*cells, "0", *[NONE] * 4]
    cells += summary(pair.difference, measure, signed=True)
    return [*cells, span(pair.resampled, signed=True)]


def _seeds_needed(pair: Pair, numbers: Numbers) -> str:
    """Which difference this number of seeds can show, and which more seeds could."""
    found = pair.difference
    if found is None or found.sd is None:
        return (
            "One seed has no standard deviation and no interval: "
            "whether another seed would agree is unknown."
        )
    percent = numbers.measure(pair.measure).percent
    points = " points" if percent else ""
    reach = number(stats.reach(found.n) * found.sd, percent)
    for n in (3, 5, 10):
        if n > found.n:
            points += f", {number(stats.reach(n) * found.sd, percent)} with {n} seeds"
    return (
        f"With n = {found.n} seeds Student's t is {stats.t_factor(found.n):.2f}: the interval "
        f"reaches {stats.reach(found.n):.2f} standard deviations to each side. At the standard "
        f"deviation of {minus(pair, numbers)}, {deviation(found, percent)}, a difference excludes "
        f"zero above {reach}{points}."
    )


def measures(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """Every measure of every arm, and why some are not shown."""
    yield from figures.measures(study, numbers)
    for keys in dict.fromkeys(tuple(one.question_keys) for one in numbers.measures):
        if not keys or not study.compares:
            continue
        yield Text(
            "Held-out losses and accuracies of pre-training are measured at each setting's own "
            f"{' and '.join(keys)}: they show how hard that task is, not how good the encoder is."
        )
    for keys in dict.fromkeys(map(tuple, numbers.incomparable.values())):
        names = [name for name, differ in numbers.incomparable.items() if tuple(differ) == keys]
        yield Text(
            f"Not shown, as the arms differ in {', '.join(keys)} and no value compares with "
            f"another: held-out {', '.join(names)}."
        )
    for measure in figures.shown(study, numbers):
        yield _measure_table(study, numbers, measure)
    yield from image_counts.of_measures(figures.shown(study, numbers))
    if study.benchmark:
        yield Text(benchmark_section.METHOD)
    else:
        yield Text(_method(numbers) if study.compares else APART)


def _measure_table(study: StudyResults, numbers: Numbers, measure: Measure) -> Table:
    """Columns that no arm has a value of are left out."""
    every = [*measure.results, *measure.not_compared]
    baseline = arm_label(study.report.baseline or "", numbers.settings)
    paper = study.report.paper or {}
    if measure.name != "top1" or measure.part != study.final:
        paper = {}
    head = [f"{unit(measure)}: arm", "n", "mean", "sd", SEEDS, BOTH, "best with"]
    gain = f"minus {baseline}{', points' if measure.percent else ''}"
    head += [gain if measure.higher else f"{gain}, sign reversed", SEEDS, "paper"]
    rows = []
    for one in every:
        cells = [arm_label(one.arm, numbers.settings), *summary(one.value, measure)]
        cells += [span(one.resampled), chance(one.probability)]
        cells += summary(one.gain, measure, signed=True)[1::2] if one.gain else [NONE, NONE]
        rows.append([*cells, f"{paper[one.arm]:.2f}" if one.arm in paper else NONE])
    always = range(5)
    shown = [i for i in range(len(head)) if i in always or any(row[i] != NONE for row in rows)]
    return Table(
        [head[i] for i in shown],
        [[row[i] for i in shown] for row in rows],
        marked=frozenset(range(len(measure.results), len(every))),
    )


def _method(numbers: Numbers) -> str:
    """What n, the intervals and the probability are, and what they cannot say."""
    text = (
        "n counts seeds, each of which covers pre-training and what follows it; sd is over them, "
        "and intervals are Student's t, of differences in pairs of one seed. Probes see the "
        "pre-trained encoder as it is. All arms are tested on the same images; what other images "
        "would give is in no interval but those of seeds and images, for which both are resampled "
        f"together, {stats.RESAMPLES:,} times, their ends never inside the first interval."
    )
    if any(one.not_compared for one in numbers.measures):
        text += " Extra rows, and arms beside the settings, are not among the arms compared."
    n = max(one.value.n for measure in numbers.measures for one in measure.results)
    if n < 2:
        return f"{text} One seed has no interval, and no probability of being the best."
    low, high = stats.sd_reach(n)
    return (
        f"{text} Best with: the share of {stats.DRAWS:,} draws in which the arm's mean is the "
        "highest (of a loss the lowest), each mean drawn from its seeds as mean + sd / sqrt(n) x "
        "Student's t with n - 1 degrees of freedom, every arm by itself. From "
        f"n = {n} the true sd is known no better than between {low:.2f} and {high:.2f} times the "
        "one here, which the t's tails allow for: with few seeds the probabilities lean towards "
        "undecided. They are about these arms alone, not about settings between or beyond them."
    )


def interaction(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """Every combination of two keys; the best of each row in brackets."""
    along = figures.study_axes(study, numbers)
    if not along.lines:
        return
    main = numbers.measure(numbers.main)
    yield from figures.interaction(study, numbers)
    columns, rows, means = figures.cells(numbers, along, main)
    body = [[row, *_bracketed(found, main.higher)] for row, found in zip(rows, means, strict=True)]
    yield Table([f"{along.lines} \\ {along.x}", *columns], body)
    yield Text(
        f"{unit(main)}: the mean over seeds, the best of each row in brackets. Where the best "
        "changes from row to row, one key's best depends on the other's value, as far as the "
        "intervals above can tell."
    )


def _bracketed(means: list[float | None], higher: bool) -> list[str]:
    known = [mean for mean in means if mean is not None]
    best = (max if higher else min)(known, default=None)
    cells = []
    for mean in means:
        text = NONE if mean is None else f"{mean:.2f}"
        cells.append(f"({text})" if mean is not None and mean == best else text)
    return cells


def sweeps(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """A table for each sweep, the best value in brackets; a warning where it ends the grid."""
    for part in dict.fromkeys(sweep.part for sweep in numbers.sweeps):
        found = [sweep for sweep in numbers.sweeps if sweep.part == part]
        tried = [setting(values) for sweep in found for values, _ in sweep.tried]
        columns = list(dict.fromkeys(tried))
        rows = [
            [arm_label(sweep.arm, numbers.settings), *_tried(sweep, columns)] for sweep in found
        ]
        yield Table([f"{part}: arm", *columns], rows)
        for sweep in found:
            for key in () if study.benchmark else sweep.edges:  # whose grid is what it is
                best = f"{key}={sweep.tried[sweep.best][0][key]}"
                yield Text(
                    f"{arm_label(sweep.arm, numbers.settings)}: the best, {best}, is at an end of "
                    "the grid; a wider one may contain a better value.",
                    warning=True,
                )
    if numbers.sweeps:
        names = dict.fromkeys(sweep.by.replace("_", " ") for sweep in numbers.sweeps)
        yield Text(
            f"{' and '.join(names).capitalize()} on the dev split"
            f"{image_counts.of_sweeps(numbers.sweeps)}, %; the best in brackets, "
            "which is what was chosen once all were finished."
        )


def _tried(sweep: Sweep, columns: list[str]) -> list[str]:
    shown = {setting(values): number(mean) for values, mean in sweep.tried}
    best = setting(sweep.tried[sweep.best][0])
    shown[best] = f"({shown[best]})"
    return [shown.get(column, NONE) for column in columns]


def compute(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """What each arm cost and all together."""
    known = any(cost.corrupted is not None for cost in numbers.costs)
    head = ["arm", "stage", "runs", "steps", *(["corrupted patches"] if known else [])]
    head += ["images", "exaFLOP", "device-hours"]
    rows = [
        [arm_label(cost.arm, numbers.settings) or NONE, *_cost(cost, known)]
        for cost in numbers.costs
    ]
    yield Table(head, rows, labels=2, marked=frozenset([len(rows) - 1]))
    text = "Pre-training and fine-tuning: the mean of a seed. Sweep and all: the sum of the runs."
    trained = [one for one in numbers.costs if one.stage.startswith("pre-training")]
    pre = {one.arm: one.exaflop for one in reversed(trained)}
    candidate = study.report.candidate or ""
    baseline = study.report.baseline or ""
    ours, theirs = pre.get(candidate), pre.get(baseline)
    if ours and theirs:
        times = ours / theirs
        text += f" {arm_label(candidate, numbers.settings)} was pre-trained with {times:.2f} times "
        text += f"the exaFLOP of {arm_label(baseline, numbers.settings)}."
    if any("optim.steps" in setting for setting in numbers.settings.values()):
        text += " The number of steps is what was varied."
    elif numbers.match in MATCHED:
        text += f" {MATCHED[numbers.match]}"
    yield Text(text)
    yield from figures.compute(study, numbers)


def _cost(cost: Cost, corrupted: bool) -> list[str]:
    steps = NONE
    patches = NONE
    if cost.stage.startswith(("pre-training", "fine-tuning")):
        steps = " to ".join(
            f"{count:,}" for count in dict.fromkeys(cost.steps[:: len(cost.steps) - 1 or 1])
        )
        patches = NONE if cost.corrupted is None else f"{cost.corrupted:g}"
    cells = [cost.stage, str(cost.runs), steps, *([patches] if corrupted else [])]
    work = NOT_COUNTED if cost.exaflop is None else f"{cost.exaflop:.3g}"
    return [*cells, f"{cost.images:,.0f}", work, f"{cost.device_hours:.3g}"]


def differences(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """How the study's protocol differs from the paper's."""
    if study.report.differs:
        if study.report.paper:
            yield Text("The paper's figures come from another protocol. What differs:")
        yield Listing(study.report.differs)


# The report, in this order; the first one has no title
SECTIONS: tuple[tuple[str, Callable[[StudyResults, Numbers], Iterator[Block]]], ...] = (
    ("", first),
    ("Means over tasks", benchmark_section.section),
    ("Swept, then final", chosen_section.section),
    ("Arms", arms),
    ("Accuracy against labels", partial(scaling_section.section, "labels")),
    ("Accuracy against images", partial(scaling_section.section, "images")),
    ("Accuracy against compute", partial(scaling_section.section, "compute")),
    ("Differences in pairs", pairs),
    ("Measures", measures),
    ("Interaction", interaction),
    ("Sweeps", sweeps),
    ("Compute", compute),
    ("Training images in the test split", provenance.overlap),
    ("Learning curves", figures.learning_curves),
    ("What differs from the paper", differences),
    ("How it was made", provenance.section),
)
