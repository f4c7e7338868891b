"""The report of a study, from its finished runs: `load` reads and checks them, `numbers` computes,
`sections` lists what is shown, `pages` writes Markdown and HTML. Training never imports this."""

from pathlib import Path
from typing import NamedTuple

from ..runs.files import write_atomically
from . import pages, sections
from .load import load_study
from .numbers import Numbers, compute, plain
from .wording import answer

__all__ = ["Numbers", "Report", "plain", "write"]


class Report(NamedTuple):
    """The answer in a few sentences, and all numbers behind it."""

    answer: str
    numbers: Numbers


def write(folder: Path) -> Report:
    """Write report.md, report.html and figures/ into a study's folder, from what is finished of it.

    The same runs give the same text, to the byte.

    Raises:
        UserError: the folder is no study, a file in it is damaged, an arm that the report names has
            no finished run, a run lacks a metric, or two runs were tested on different images.
    """
    study = load_study(folder)
    numbers = compute(study)
    found = sections.build(study, numbers)
    (folder / "figures").mkdir(exist_ok=True)
    for figure in (block for section in found for block in section.blocks):
        if isinstance(figure, pages.Figure):
            write_atomically(folder / figure.path, figure.light)
    write_atomically(folder / "report.md", pages.markdown(numbers.title, found))
    write_atomically(folder / "report.html", pages.html(numbers.title, found))
    return Report(answer(study, numbers), numbers)
