r"""A report's tables for a paper: LaTeX with the package booktabs, no wider than a page's text.

A label column that says the same in every row moves into the caption. What is still too wide is set
as several tabulars, one below the other, each with the columns of labels.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ...pages.blocks import Section, Table, cell_of
from .formats import NONE

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
NUMBER = r"[+-]?[\d,]*\.?\d+"
INTERVAL = re.compile(rf"({NUMBER}) to ({NUMBER})")
SCIENTIFIC = re.compile(r"([+-]?\d+(?:\.\d+)?)e([+-]?\d+)")
# Of a head that begins with the measure, which is in the caption
AFTER_MEASURE = re.compile(r".*: (?=(?:arm|n|mean of)$)")
# Points. LaTeX's article at 10 pt has the narrowest text of what is common; tables are \small
TEXT_WIDTH = 345
LONGEST_LABEL = 130  # from which a column of labels breaks its lines
SHORTEST_HEAD = 40  # up to which no head is broken
GAP = 4  # to each side of a column
NARROW, LETTER, WIDE = 3.2, 5.2, 7.8  # characters; in `_width` which ones


def tables(sections: Sequence[Section], study: str) -> str:
    """The tables of a report, each a `table` with a caption and a label of its own: `tab:STUDY-`
    and what it is."""
    found: dict[str, str] = {}
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Table):
                label = _label(study, block.name or section.title, found)
                found[label] = "\n".join(_table(block, block.caption or section.title, label))
    head = "% \\usepackage{booktabs}: the tables of the study's report"
    return "\n\n".join([head, *found.values()]) + "\n"


def _label(study: str, name: str, taken: dict[str, str]) -> str:
    """A label that no other table has, without characters that LaTeX may not take in one."""
    label = "tab:" + re.sub(r"[^A-Za-z0-9]+", "-", f"{study} {name}").strip("-").lower()
    count = sum(one == label or re.fullmatch(rf"{label}-\d+", one) is not None for one in taken)
    return f"{label}-{count + 1}" if count else label


def _table(table: Table, caption: str, label: str) -> Iterator[str]:
    heads = [AFTER_MEASURE.sub("", cell_of(cell).text) for cell in table.head]
    rows = [[cell_of(cell).text for cell in row] for row in table.rows]
    kept = list(range(len(heads)))
    for i in range(1, table.labels):
        if len({row[i] for row in rows}) == 1:
            kept.remove(i)
            caption += f" {heads[i][:1].upper()}{heads[i][1:]}: {rows[0][i]}."
    labels = [i for i in kept if i < table.labels]
    columns = {i: _Column(heads[i], [row[i] for row in rows], i in labels) for i in kept}
    yield r"\begin{table}"
    yield r"  \centering"
    yield rf"  \caption{{{escaped(caption)}}}"
    yield rf"  \label{{{label}}}"
    yield rf"  \small\setlength{{\tabcolsep}}{{{GAP}pt}}"
    for place, part in enumerate(_parts(columns, labels)):
        yield from [r"  \par\medskip"] if place else []
        yield from _tabular([columns[i] for i in part], sorted(table.marked))
    yield r"\end{table}"


class _Column:
    """A column as LaTeX: `kind`, the lines of its head, its cells; its width in points."""

    def __init__(self, head: str, cells: Sequence[str], label: bool) -> None:
        self.cells = [_cell(cell) for cell in cells]
        width = max(map(_width, cells), default=0.0)
        self.kind = "l" if label else "r"
        if label and width > LONGEST_LABEL:
            width = LONGEST_LABEL
            self.kind = f"p{{{width}pt}}"
        lines = list(_lines(head, max(width, LONGEST_LABEL if label else SHORTEST_HEAD)))
        self.name = head
        self.head = [escaped(line) for line in lines]
        self.width = max(width, *map(_width, lines)) + 2 * GAP


def _lines(head: str, width: float) -> Iterator[str]:
    """A head in lines as wide as the column's cells, or as its longest word."""
    line = ""
    for word in head.split():
        longer = f"{line} {word}".strip()
        if line and _width(longer) > width:
            yield line
            longer = word
        line = longer
    yield line


def _width(text: str) -> float:
    """About how wide a text is set, in points; its exponent as if it were no smaller."""
    text = SCIENTIFIC.sub(r"\1-10\2", INTERVAL.sub(r"[\1, \2]", text))
    return sum(map(_character, text))


def _character(one: str) -> float:
    if one in " .,:;'!|ijlt()[]":
        return NARROW
    return WIDE if one.isupper() or one in "+-<>%&@mw" or not one.isascii() else LETTER


def _parts(columns: dict[int, _Column], labels: Sequence[int]) -> list[list[int]]:
    """The columns of each tabular. The second one of a name, as the interval of a difference beside
    that of a mean, stays with the column before it."""
    groups: list[list[int]] = []
    names: set[str] = set()
    for i in sorted(columns.keys() - set(labels)):
        if columns[i].name in names:
            groups[-1].append(i)
        else:
            groups.append([i])
        names.add(columns[i].name)
    found = [list(labels)]
    for group in groups:
        width = sum(columns[i].width for i in [*found[-1], *group])
        if width > TEXT_WIDTH and len(found[-1]) > len(labels):
            found.append(list(labels))
        found[-1] += group
    return found


def _tabular(columns: Sequence[_Column], marked: Sequence[int]) -> Iterator[str]:
    """One tabular; marked rows stand below a line."""
    yield rf"  \begin{{tabular}}{{{''.join(column.kind for column in columns)}}}"
    yield r"    \toprule"
    for cells in zip_longest(*(column.head for column in columns), fillvalue=""):
        yield _row(cells)
    yield r"    \midrule"
    for place, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        if place and place in marked and place - 1 not in marked:
            yield r"    \midrule"
        yield _row(cells)
    yield r"    \bottomrule"
    yield r"  \end{tabular}"


def _row(cells: Sequence[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _cell(text: str) -> str:
    """A cell: intervals in brackets, powers of ten as such."""
    if text == NONE:
        return "--"
    if found := INTERVAL.fullmatch(text):
        return f"$[{found[1]}, {found[2]}]$".replace(",", "{,}").replace("{,} ", ", ")
    if found := SCIENTIFIC.fullmatch(text):
        return rf"${found[1]}\times10^{{{int(found[2])}}}$"
    return escaped(text)


def escaped(text: str) -> str:
    """A text that LaTeX shows as it is."""
    plain = re.sub(r"\s+", " ", text)
    shown = "".join(SPECIAL.get(one, one) for one in plain if one.isprintable())
    shown = re.sub(r"(?<![\w-])-(?=\d)", "$-$", shown)  # a minus, no hyphen
    return "{}" + shown if shown.startswith("[") else shown  # after \\ it would be a length
