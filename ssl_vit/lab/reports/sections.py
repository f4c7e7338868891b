"""The sections of a report, in SECTIONS: each is a query, a function of (study, numbers) that gives
what its template knows besides them, or None where the study has nothing of it. No torch here."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ... import stats
from ...formatting import FEW_IMAGES, format_value
from ...pages.blocks import Section, Table
from ...stats import SeedSummary
from . import (
    cautions,
    chosen_section,
    differing_encoders,
    figures,
    provenance,
    scaling_section,
    texts,
)
from .axes import Axes, arm_label
from .formats import (
    BEHIND,
    BOTH,
    NONE,
    SEEDS,
    corrected_level,
    difference_of,
    exaflop,
    number,
    shown_interval,
    span,
    summary,
    three_figures,
    two_digits,
    unit,
    whole,
    with_values,
)
from .measures import Measure, Result
from .results import StudyResults, setting_text
from .statistics import Cost, Numbers, Pair, Sweep, choices
from .texts import Values, captioned, minus

MINUS = "A minus B"
# Of arms that are compared with one another
COMPARING = ("Differences in pairs", "Interaction", "Learning curves")


def build(study: StudyResults, numbers: Numbers) -> list[Section]:
    """All that the report says; sections without content are left out."""
    found = []
    for title, template, query in SECTIONS:
        values = query(study, numbers) if study.compares or title not in COMPARING else None
        shown = [] if values is None else texts.blocks(template, study, numbers, values)
        found.append(Section(title, shown))
    return [section for section in found if section.blocks]


def answer(study: StudyResults, numbers: Numbers) -> str:
    """The study's answer: the pairs that it is about, by the main measure and by the
    probes, then the best of the varied settings; each where the study has it. Of arms that are not
    compared, what each has."""
    main = numbers.measure(numbers.main)
    curves = numbers.scaling.comparisons if numbers.scaling else []
    values = {
        "main": main,
        "chosen": choices(study, numbers.sweeps, main.part),
        "pairs": candidate_pairs(study, numbers),
        "unequal": cautions.unequal_compute(study, candidate_pairs(study, numbers), main),
        "encoders": differing_encoders.find(study, main.part),
        "frozen": frozen_gains(study, numbers),
        "curves": [found for found in curves if found.arm == study.report.candidate],
        "beside": _better_baseline(study, main),
    }
    return texts.sentences("answer", study, numbers, values)


def _better_baseline(study: StudyResults, main: Measure) -> Result | None:
    """The baseline beside the varied settings, where it is better than the best of them."""
    beside = [one for one in main.not_compared if one.arm == study.report.baseline]
    best = main.sign * main.best.value.mean
    better = (one for one in beside if main.sign * one.value.mean > best)
    return None if main.question_keys else next(better, None)


def candidate_pairs(study: StudyResults, numbers: Numbers) -> list[Pair]:
    """Those that the answer is about: the candidate with the baseline, and with the reference if
    there is one; then those asked for."""
    candidate = study.report.candidate
    others = (study.report.baseline, study.report.reference)
    named = [pair for pair in numbers.pairs if pair.arm == candidate and pair.other in others]
    wanted = [numbers.pair(*both) for both in study.pairs]
    return [*named, *(pair for pair in wanted if pair not in named)]


def frozen_gains(study: StudyResults, numbers: Numbers) -> list[tuple[Measure, SeedSummary]]:
    """What the candidate gains over the baseline by each measure of the probes but the main one, in
    pairs of one seed."""
    others = [one for one in numbers.measures if one.name != numbers.main]
    gains = [
        (measure, one.gain)
        for measure in others
        if measure.part in study.probes
        for one in measure.results
        if one.arm == study.report.candidate
    ]
    return [(measure, gain) for measure, gain in gains if gain]


def first(study: StudyResults, numbers: Numbers) -> Values:
    """The answer, the same with the images resampled too, and what to be careful about."""
    return {
        "answer": answer(study, numbers),
        "resampled": [pair for pair in candidate_pairs(study, numbers) if pair.resampled],
        "at_end": cautions.end_of_axis(study, numbers),
        "few_measured": cautions.by_few_images(numbers.measures),
        "few_chosen": cautions.by_few_images(numbers.sweeps),
        "FEW_IMAGES": FEW_IMAGES,
    }


def arms(study: StudyResults, numbers: Numbers) -> Values:
    """What the arms are, where their labels do not say it."""
    described = {
        arm: text
        for arm, text in study.plan.arms.items()
        if text != arm_label(arm, numbers.settings)
    }
    return {"described": described}


def pairs(study: StudyResults, numbers: Numbers) -> Values | None:
    """Differences in pairs of one seed, and what the number of seeds allows."""
    found = numbers.pairs
    if not found:
        return None
    corrected = any(pair.corrected for pair in found)
    head = [MINUS, "measure", "n", "difference", "sd", SEEDS, BOTH]
    head += [f"95% for all {len(study.pairs)}"] if corrected else []
    rows = [_pair(pair, numbers)[: len(head)] for pair in found]
    level = corrected_level(len(study.pairs)) if corrected else ""
    unasked = [i for i, pair in enumerate(found) if corrected and not pair.corrected]
    differences = Table(head, rows, labels=2, marked=frozenset(unasked), behind=BEHIND)
    return {
        "differences": captioned(differences, "pairs", study, numbers, corrected=level),
        "corrected": level,
        "shown": len(found),
        "unasked": [minus(found[i], numbers) for i in unasked],
        **_what_seeds_show(next(iter(candidate_pairs(study, numbers)), None), numbers),
    }


def _pair(pair: Pair, numbers: Numbers) -> list[str]:
    """The cells of a row, with the corrected interval last."""
    measure = numbers.measure(pair.measure)
    label = difference_of(measure)
    cells = [minus(pair, numbers), f"{label}, points" if measure.percent else label]
    if pair.difference is None:
        return [*cells, "0", *[NONE] * 5]
    cells += [*summary(pair.difference, measure, signed=True), span(pair.resampled, signed=True)]
    return [*cells, span(pair.corrected, measure.percent, signed=True)]


def _what_seeds_show(about: Pair | None, numbers: Numbers) -> dict[str, Any]:
    """Which difference of a pair its number of seeds can show, and which more seeds could: both
    `visible`, {n: difference}, empty where one seed tells nothing of it."""
    found = about.difference if about else None
    if about is None or found is None or found.sd is None:
        return {"about": about, "visible": {}}
    percent = numbers.measure(about.measure).percent
    counts = [found.n, *(n for n in (3, 5, 10) if n > found.n)]
    visible = {n: number(stats.reach(n) * found.sd, percent) for n in counts}
    reach = {"t": stats.t_factor(found.n), "reach": stats.reach(found.n)}
    return {"about": about, "percent": percent, "visible": visible, **reach}


def measures(study: StudyResults, numbers: Numbers) -> Values:
    """Every measure of every arm, and why some are not shown."""
    questions = dict.fromkeys(tuple(one.question_keys) for one in numbers.measures)
    incomparable: dict[tuple[str, ...], list[str]] = {}
    for name, keys in numbers.incomparable.items():
        incomparable.setdefault(tuple(keys), []).append(name)
    shown = figures.shown(study, numbers)
    n = max(one.value.n for measure in numbers.measures for one in measure.results)
    return {
        "figures": list(figures.measures(study, numbers)),
        "questions": [keys for keys in questions if keys and study.compares],
        "incomparable": incomparable,
        "tables": [_measure_table(study, numbers, measure) for measure in shown],
        "measures": shown,
        "n": n,
        "no_interval": [one.label for one in shown if _lacks_interval(one)],
        "one_draw": cautions.share_one_draw(study),
        "chose": cautions.choosing_seeds(study),
        "FEW_IMAGES": FEW_IMAGES,
        "RESAMPLES": stats.RESAMPLES,
    }


def _measure_table(study: StudyResults, numbers: Numbers, measure: Measure) -> Table:
    """Columns that no arm has a value of are left out."""
    every = [*measure.results, *measure.not_compared]
    baseline = arm_label(study.report.baseline or "", numbers.settings)
    paper = study.report.paper or {}
    if measure.name != "top1" or measure.part != study.final:
        paper = {}
    head = [f"{unit(measure)}: arm", "n", "mean", "sd", SEEDS, BOTH]
    gain = f"minus {baseline}{', points' if measure.percent else ''}"
    head += [gain if measure.higher else f"{gain}, sign reversed", SEEDS, "paper"]
    rows = []
    for one in every:
        cells = [arm_label(one.arm, numbers.settings), *summary(one.value, measure)]
        cells.append(span(one.resampled))
        cells += summary(one.gain, measure, signed=True)[1::2] if one.gain else [NONE, NONE]
        rows.append([*cells, two_digits(paper.get(one.arm))])
    head, *rows = with_values(head, rows, always=5)
    marked = frozenset(range(len(measure.results), len(every)))
    table = Table(head, rows, marked=marked, behind=BEHIND)
    gains = any(one.gain for one in every)
    about = {"measure": measure, "gains": gains, "no_interval": _lacks_interval(measure)}
    about |= {"FEW_IMAGES": FEW_IMAGES}
    return captioned(table, "measure", study, numbers, measure.name, **about)


def _lacks_interval(measure: Measure) -> bool:
    """Whether an arm's interval over seeds tells nothing, so that it is not shown."""
    every = [one.value for one in (*measure.results, *measure.not_compared)]
    return any(one.interval and not shown_interval(one, measure) for one in every)


def interaction(study: StudyResults, numbers: Numbers) -> Values | None:
    """Every combination of two keys; the best of each row in brackets."""
    along = figures.study_axes(study, numbers)
    if not along.lines:
        return None
    main = numbers.measure(numbers.main)
    columns, rows, means = _cells(numbers, along, main)
    body = [[row, *_bracketed(found, main.higher)] for row, found in zip(rows, means, strict=True)]
    combinations = Table([f"{along.lines} \\ {along.x}", *columns], body)
    return {
        "combinations": captioned(combinations, "interaction", study, numbers, main=main),
        "main": main,
    }


def _cells(
    numbers: Numbers, along: Axes, measure: Measure
) -> tuple[list[str], list[str], list[list[float | None]]]:
    """Columns, rows and means of every combination of two keys."""
    written = {
        arm: (format_value(setting[along.lines]), format_value(setting[along.x]))
        for arm, setting in numbers.settings.items()
    }
    rows = list(dict.fromkeys(row for row, _ in written.values()))
    columns = list(dict.fromkeys(column for _, column in written.values()))
    scale = 100 if measure.percent else 1
    means = {written[one.arm]: scale * one.value.mean for one in measure.results}
    return columns, rows, [[means.get((row, column)) for column in columns] for row in rows]


def _bracketed(means: list[float | None], higher: bool) -> list[str]:
    known = [mean for mean in means if mean is not None]
    best = (max if higher else min)(known, default=None)
    cells = []
    for mean in means:
        text = two_digits(mean)
        cells.append(f"({text})" if mean is not None and mean == best else text)
    return cells


def sweeps(study: StudyResults, numbers: Numbers) -> Values | None:
    """A table for each sweep, the best value in brackets; a warning where it ends the grid."""
    if not numbers.sweeps:
        return None
    parts = dict.fromkeys(sweep.part for sweep in numbers.sweeps)
    found = [[sweep for sweep in numbers.sweeps if sweep.part == part] for part in parts]
    return {
        "sweeps": found,
        "tables": [_sweep_table(own, study, numbers) for own in found],
        "by": list(dict.fromkeys(sweep.by.replace("_", " ") for sweep in numbers.sweeps)),
    }


def _sweep_table(sweeps: list[Sweep], study: StudyResults, numbers: Numbers) -> Table:
    """What the arms of one part tried."""
    tried = [setting_text(values) for sweep in sweeps for values, _ in sweep.tried]
    columns = list(dict.fromkeys(tried))
    rows = [[arm_label(sweep.arm, numbers.settings), *_tried(sweep, columns)] for sweep in sweeps]
    table = Table([f"{sweeps[0].part}: arm", *columns], rows)
    about = {"part": sweeps[0].part, "by": sweeps[0].by}
    return captioned(table, "sweep", study, numbers, sweeps[0].part, **about)


def _tried(sweep: Sweep, columns: list[str]) -> list[str]:
    shown = {setting_text(values): number(mean) for values, mean in sweep.tried}
    best = setting_text(sweep.tried[sweep.best][0])
    shown[best] = f"({shown[best]})"
    return [shown.get(column, NONE) for column in columns]


def compute(study: StudyResults, numbers: Numbers) -> Values:
    """What each arm cost and all together."""
    known = any(cost.corrupted is not None for cost in numbers.costs)
    head = ["arm", "stage", "runs", "steps", *(["corrupted patches"] if known else [])]
    head += ["images", "exaFLOP", "device-hours"]
    rows = [
        [arm_label(cost.arm, numbers.settings) or NONE, *_cost(cost, known)]
        for cost in numbers.costs
    ]
    trained = [one for one in numbers.costs if one.stage.startswith("pre-training")]
    spent = {one.arm: one.exaflop for one in reversed(trained)}
    ours, theirs = (spent.get(arm or "") for arm in (study.report.candidate, study.report.baseline))
    costs = Table(head, rows, labels=2, marked=frozenset([len(rows) - 1]))
    return {
        "costs": captioned(costs, "costs", study, numbers),
        "times": ours / theirs if ours and theirs else None,
        "varied": any("optim.steps" in setting for setting in numbers.settings.values()),
        "figures": list(figures.compute(study, numbers)),
    }


def _cost(cost: Cost, corrupted: bool) -> list[str]:
    steps = NONE
    patches = NONE
    if cost.stage.startswith(("pre-training", "fine-tuning")):
        steps = " to ".join(
            whole(count) for count in dict.fromkeys(cost.steps[:: len(cost.steps) - 1 or 1])
        )
        patches = NONE if cost.corrupted is None else f"{cost.corrupted:g}"
    cells = [cost.stage, str(cost.runs), steps, *([patches] if corrupted else [])]
    spent = [exaflop(cost.exaflop), three_figures(cost.device_hours)]
    return [*cells, whole(cost.images), *spent]


def benchmark(study: StudyResults, numbers: Numbers) -> Values | None:
    """The means of the groups and of all tasks, and what of the benchmark is not in them."""
    found = numbers.benchmark
    if found is None:
        return None
    measure = numbers.measure(numbers.main)
    head = ["top-1, %: mean of", "tasks", "n", "mean", "sd", SEEDS]
    rows = [
        [one.label, f"{len(one.tasks)} of {one.of}", *summary(one.value, measure)]
        for one in found.scores
    ]
    return {"scores": captioned(Table(head, rows, behind=BEHIND), "scores", study, numbers)}


def learning_curves(study: StudyResults, numbers: Numbers) -> Values:
    """How metrics went by step."""
    return {"figures": list(figures.learning_curves(study, numbers))}


def differs(study: StudyResults, numbers: Numbers) -> Values | None:
    """How the study's protocol differs from the paper's."""
    return {"lines": study.report.differs} if study.report.differs else None


# The report, in this order: title, template, query; the first one has no title
SECTIONS: tuple[tuple[str, str, Callable[[StudyResults, Numbers], Values | None]], ...] = (
    ("", "first", first),
    ("Means over tasks", "benchmark", benchmark),
    ("Swept, then final", "chosen", chosen_section.section),
    ("Arms", "arms", arms),
    ("Accuracy against labels", "scaling", partial(scaling_section.section, "labels")),
    ("Accuracy against images", "scaling", partial(scaling_section.section, "images")),
    ("Accuracy against compute", "scaling", partial(scaling_section.section, "compute")),
    ("Differences in pairs", "pairs", pairs),
    ("Measures", "measures", measures),
    ("Interaction", "interaction", interaction),
    ("Sweeps", "sweeps", sweeps),
    ("Compute", "compute", compute),
    ("Training images in the test split", "seen", provenance.seen),
    ("Learning curves", "learning", learning_curves),
    ("What differs from the paper", "differs", differs),
    ("How it was made", "provenance", provenance.section),
)
