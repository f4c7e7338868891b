"""The report of a study: finished runs -> numbers -> sections -> Markdown and one HTML page. No training calls it."""

from pathlib import Path
from typing import NamedTuple

from ..runs import write_atomically
from . import finished, pages, pictures, sections
from .numbers import Numbers, measure, plain

__all__ = ["Numbers", "Report", "plain", "write"]


class Report(NamedTuple):
    """The answer in a sentence or two, and all numbers behind it."""

    answer: str
    numbers: Numbers


def write(folder: Path) -> Report:
    """Write report.md, report.html and figures/ into a study's folder, from what is finished of it.

    The same runs give the same text, to the byte.

    Raises:
        UserError: the folder is no study, a file in it is damaged, an arm that the report names has no finished run, or two
            runs in one table were tested on different pictures.
    """
    study = finished.read(folder)
    numbers = measure(study)
    drawn = pictures.draw(study, numbers)
    told = sections.build(study, numbers, drawn)
    (folder / "figures").mkdir(exist_ok=True)
    for picture in drawn:
        write_atomically(folder / picture.path, picture.light)
    write_atomically(folder / "report.md", pages.markdown(numbers.title, told))
    write_atomically(folder / "report.html", pages.html(numbers.title, told))
    return Report(sections.answer(study, numbers), numbers)
