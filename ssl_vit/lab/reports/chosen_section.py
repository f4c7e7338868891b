"""The report's section of a study that sweeps on the dev split and then trains with what was best,
each arm by itself. No torch here."""

from collections.abc import Iterable, Iterator

from ...pages.blocks import Table
from .axes import arm_label
from .formats import NONE, SEEDS, number, summary, two_digits, whole, with_values
from .results import FinishedRun, StudyResults, setting_text
from .statistics import Numbers, Sweep, choices
from .texts import Values, captioned

STEPS = ("sweep's best step", "best steps by seed")  # columns of checkpoint.best
HEAD = ["arm", "chosen", "of", "dev, %", STEPS[0], "test top-1, %: n", "mean", "sd", SEEDS]
HEAD += [STEPS[1], "paper", "minus paper, points"]


def section(study: StudyResults, numbers: Numbers) -> Values | None:
    """What each sweep chose, with its value on the dev split, beside the final runs on test images;
    columns that no arm has a value of are left out."""
    if study.compares or study.final is None:
        return None
    rows = [row for sweep in numbers.sweeps for row in _rows(study, numbers, sweep)]
    if not rows:
        return None
    head, *rows = with_values(HEAD, rows, always=4)
    chosen = captioned(Table(head, rows, 2), "chosen", study, numbers)
    return {"chosen": chosen, "best_steps": not {*STEPS}.isdisjoint(head)}


def _rows(study: StudyResults, numbers: Numbers, sweep: Sweep) -> Iterator[list[str]]:
    """The row of an arm whose final part chooses from this sweep."""
    tasks = [task for task in study.plan.tasks if task.arm == sweep.arm]
    if not any((task.part, task.best) == (study.final, sweep.part) for task in tasks):
        return
    values, dev = sweep.tried[sweep.best]
    cells = [setting_text(values), str(len(sweep.tried)), number(dev)]
    if sweep.arm not in choices(study, numbers.sweeps, study.final):
        planned = {str(task.values) for task in tasks if task.part == sweep.part}
        cells = [NONE, f"{len(sweep.tried)} of {len(planned)} so far", NONE]
        values = {}
    own = [run for run in study.finished.values() if run.part == sweep.part]
    chosen = [run for run in own if run.arm == sweep.arm and run.values == values]
    measure = next((one for one in numbers.measures if one.part == study.final), None)
    results = measure.results if measure and measure.name == "top1" else []
    final = next((one for one in results if one.arm == sweep.arm), None)
    paper = (study.report.paper or {}).get(sweep.arm)
    cells = [arm_label(sweep.arm, numbers.settings), *cells, _best_steps(chosen)]
    cells += [NONE] * 4 if measure is None or final is None else summary(final.value, measure)
    cells.append(_best_steps(study.runs(study.final, sweep.arm).values()))
    cells.append(two_digits(paper))
    apart = None if final is None or paper is None else 100 * final.value.mean - paper
    yield [*cells, two_digits(apart, signed=True)]


def _best_steps(runs: Iterable[FinishedRun]) -> str:
    """The steps whose weights checkpoint.best kept."""
    found = [run.result.best.step for run in runs if run.result.best]
    steps = [whole(step) for step in found if step is not None]
    return ", ".join(steps) or NONE
