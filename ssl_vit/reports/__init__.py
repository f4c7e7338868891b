"""The report of a study: finished runs -> numbers -> sections -> Markdown and one HTML page. No
training calls it."""

from pathlib import Path
from typing import NamedTuple

from ..runs.files import write_atomically
from . import finished, pages, plots, sections, varied, varied_plots, varied_sections
from .finished import Study
from .numbers import Numbers, measure, plain
from .plots import Plot
from .sections import Section
from .varied import Varied

__all__ = ["Numbers", "Report", "Varied", "plain", "write"]


class Report(NamedTuple):
    """The answer in a sentence or two, and all numbers behind it."""

    answer: str
    numbers: Numbers | Varied


def write(folder: Path) -> Report:
    """Write report.md, report.html and figures/ into a study's folder, from what is finished of it.

    The same runs give the same text, to the byte.

    Raises:
        UserError: the folder is no study, a file in it is damaged, an arm that the report names has
        no finished run, or two
            runs in one table were tested on different images.
    """
    study = finished.read(folder)
    report, drawn, found = (_varied if study.vary else _compared)(study)
    (folder / "figures").mkdir(exist_ok=True)
    for plot in drawn:
        write_atomically(folder / plot.path, plot.light)
    write_atomically(folder / "report.md", pages.markdown(report.numbers.title, found))
    write_atomically(folder / "report.html", pages.html(report.numbers.title, found))
    return report


def _compared(study: Study) -> tuple[Report, list[Plot], list[Section]]:
    """Of a study of arms with a baseline and a candidate."""
    numbers = measure(study)
    drawn = plots.draw(study, numbers)
    return (
        Report(sections.answer(study, numbers), numbers),
        drawn,
        sections.build(study, numbers, drawn),
    )


def _varied(study: Study) -> tuple[Report, list[Plot], list[Section]]:
    """Of a study whose arms are values of keys."""
    numbers = varied.measure(study)
    drawn = varied_plots.draw(study, numbers)
    return (
        Report(varied_sections.answer(numbers), numbers),
        [*drawn.values()],
        varied_sections.build(study, numbers, drawn),
    )
