"""The report of a study, as report.md and report.html. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import UserError
from ...pages import blocks
from ...pages.blocks import Figure, Section, Text
from ...pages.run_page import INDEX, PAGE
from ...runs.files import write_atomically
from . import asked_pairs, exports, sections, statistics
from .load import load_study
from .statistics import Numbers

if TYPE_CHECKING:
    from pandas import DataFrame


class Report(NamedTuple):
    """The answer in a few sentences, all numbers behind it, and the results that they are of."""

    answer: str
    numbers: Numbers
    table: DataFrame

    def content(self) -> dict[str, Any]:
        """As JSON takes it (exports.content)."""
        return exports.content(self.answer, self.numbers, self.table)


def write(folder: Path, pairs: Sequence[str] = ()) -> Report:
    """Write report.md, report.html and figures/ into a study's folder, from what is finished of it.

    The same runs give the same text, to the byte.

    Args:
        folder: of the study.
        pairs: more arms to compare, A:B.

    Raises:
        UserError: the folder is no study, a file in it is damaged, an arm that the report names has
            no finished run, a run lacks a metric, or two runs were tested on different images.
    """
    study = load_study(folder, pairs)
    found = statistics.compute(study)
    shown = sections.build(study, found)
    (folder / "figures").mkdir(exist_ok=True)
    for figure in (block for section in shown for block in section.blocks):
        if isinstance(figure, Figure):
            write_atomically(folder / figure.path, figure.svg)
    write_atomically(folder / "report.md", blocks.markdown(found.title, shown))
    above = INDEX if (folder / INDEX).exists() else ""
    write_atomically(folder / PAGE, blocks.html(found.title, shown, above))
    return Report(sections.answer(study, found), found, study.table)


def export(folder: Path, forms: Sequence[str], pairs: Sequence[str] = ()) -> dict[str, list[Path]]:
    """Write what a paper needs of a study into its folder; {one of exports.FORMATS: its files}.

    Raises:
        UserError: as `write`.
    """
    study = load_study(folder, pairs)
    numbers = statistics.compute(study)
    shown = sections.build(study, numbers)
    return {form: exports.write(folder, form, study, numbers, shown) for form in forms}


def render(folder: Path) -> str:
    """The page of a study that may be going on; why there is no report yet, where there is none."""
    try:
        study = load_study(folder, asked_pairs.last(folder))
        found = statistics.compute(study)
    except UserError as error:
        why = [Text("This study has no report yet."), Text(str(error), warning=True)]
        return blocks.html(folder.resolve().name, [Section("", list(why))])
    return blocks.html(found.title, sections.build(study, found))
