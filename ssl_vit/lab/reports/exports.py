"""A study's results for papers: every metric of every run as CSV, the report's tables as LaTeX, its
figures as PDF. No torch here."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from ...formatting import option_text
from ...pages.blocks import Figure, Section, Table, cell_of
from ...runs.files import write_atomically
from .load import StudyResults

FORMATS = ("csv", "latex", "pdf")
COLUMNS = ("part", "arm", "seed", "split", "metric", "value", "n", "run")
# What LaTeX would read as markup
SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def write(folder: Path, form: str, study: StudyResults, sections: list[Section]) -> list[Path]:
    """Write a study's results in one of FORMATS into its folder; the files.

    Args:
        folder: of the study.
        form: the format.
        study: its runs.
        sections: of its report.
    """
    if form == "csv":
        path = folder / "results.csv"
        write_atomically(path, table(study))
        return [path]
    if form == "latex":
        path = folder / "tables.tex"
        write_atomically(path, latex(sections))
        return [path]
    figures = [block for section in sections for block in section.blocks]
    found = []
    for figure in figures:
        if isinstance(figure, Figure) and figure.printed:
            path = (folder / figure.path).with_suffix(".pdf")
            write_atomically(path, figure.printed())
            found.append(path)
    return found


def table(study: StudyResults) -> str:
    """One row for each metric of each finished run, as CSV. Besides COLUMNS there is one for each
    key that is varied or swept, and `share` or `steps` for a place along a curve; empty where a run
    has none."""
    settings = study.vary
    keys = [key for setting in settings.values() for key in setting]
    keys += [key for run in study.finished.values() for key in run.values]
    keys = list(dict.fromkeys(keys))
    place = [("steps" if study.curve == "compute" else "share")] if study.points else []
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*COLUMNS[:2], *keys, *place, *COLUMNS[2:]])
    for run in study.finished.values():
        values = settings.get(run.arm, {}) | run.values
        own = [option_text(values[key]) if key in values else "" for key in keys]
        along = [f"{study.points[run.part]:g}" if run.part in study.points else ""] * len(place)
        for name, one in run.result.metrics.items():
            n = "" if one.n is None else one.n
            facts = [run.seed, one.split, name, repr(one.value), n, run.name]
            rows.writerow([run.part, run.arm, *own, *along, *facts])
    return text.getvalue()


def latex(sections: list[Section]) -> str:
    """The report's tables, each a `table` of the package booktabs, under its section's title."""
    tables = [
        "\n".join(_table(section.title, block))
        for section in sections
        for block in section.blocks
        if isinstance(block, Table)
    ]
    head = "% \\usepackage{booktabs}: the tables of the study's report"
    return "\n\n".join([head, *tables]) + "\n"


def _table(title: str, block: Table) -> Iterator[str]:
    count = len(block.head)
    kinds = "".join("l" if place < block.labels else "r" for place in range(count))
    yield r"\begin{table}"
    yield rf"  \caption{{{escaped(title)}}}"
    yield rf"  \begin{{tabular}}{{{kinds}}}"
    yield r"    \toprule"
    yield _row([escaped(cell_of(cell).text) for cell in block.head])
    yield r"    \midrule"
    for row in block.rows:
        yield _row([escaped(cell_of(cell).text) for cell in row])
    yield r"    \bottomrule"
    yield r"  \end{tabular}"
    yield r"\end{table}"


def _row(cells: list[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def escaped(text: str) -> str:
    """A text that LaTeX shows as it is."""
    plain = re.sub(r"\s+", " ", text)
    shown = "".join(SPECIAL.get(one, one) for one in plain if one.isprintable())
    shown = re.sub(r"(?<![\w-])-(?=\d)", "$-$", shown)  # a minus, no hyphen
    return "{}" + shown if shown.startswith("[") else shown  # after \\ it would be a length
