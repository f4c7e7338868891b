"""What a page is made of (sections of text, lists, tables, commands and figures), and how it is
written: as Markdown, and as one HTML page that needs no other file. No torch here."""

import base64
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..formatting import code_block, escape_markdown, escape_opening, visible_text


class Text(NamedTuple):
    """A paragraph; a warning stands apart."""

    text: str
    warning: bool = False


class Listing(NamedTuple):
    lines: list[str]


class Table(NamedTuple):
    """The first `labels` columns are text, the others numbers; `marked` rows stand apart."""

    head: list[str]
    rows: list[list[str]]
    labels: int = 1
    marked: frozenset[int] = frozenset()


class Commands(NamedTuple):
    lines: list[str]


class Figure(NamedTuple):
    """SVG text for light pages and dark ones. `path` is that of the light one, from the page's
    folder."""

    path: str
    caption: str
    light: str
    dark: str


Block = Text | Listing | Table | Commands | Figure


class Section(NamedTuple):
    """The first one of a page has no title."""

    title: str
    blocks: list[Block]


def markdown(title: str, sections: list[Section]) -> str:
    """A page as Markdown. Text is escaped, so that names of others cannot become markup."""
    parts = [f"# {escape_opening(title)}"]
    for section in sections:
        parts += [f"## {escape_opening(section.title)}"] if section.title else []
        parts += [_markdown(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Text(text, warning):
            return f"> **Note:** {escape_markdown(text)}" if warning else escape_opening(text)
        case Listing(lines):
            return "\n".join(f"- {escape_opening(line)}" for line in lines)
        case Table():
            return _table(block)
        case Commands(lines):
            return code_block(lines, "bash")
        case Figure():
            return f"![{escape_markdown(block.caption)}]({block.path})"


def _table(table: Table) -> str:
    """Columns as wide as their widest cell, so that the text reads as a table too."""
    rows = [[escape_markdown(cell) for cell in row] for row in (table.head, *table.rows)]
    widths = [max(3, *(len(row[i]) for row in rows)) for i in range(len(table.head))]
    left = [i < table.labels for i in range(len(widths))]

    def line(cells: list[str]) -> str:
        padded = [
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(cells, widths, left, strict=True)
        ]
        return f"| {' | '.join(padded)} |"

    ruler = [
        "-" * width if text else "-" * (width - 1) + ":"
        for width, text in zip(widths, left, strict=True)
    ]
    return "\n".join([line(rows[0]), line(ruler), *map(line, rows[1:])])


def html(title: str, sections: list[Section]) -> str:
    """A page as HTML with its figures inside, light or dark as the browser prefers."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible_text,
    )
    environment.filters["embedded"] = _embedded
    environment.tests["of"] = lambda block, kind: type(block).__name__ == kind
    return environment.get_template("report.html.j2").render(title=title, sections=sections) + "\n"


def _embedded(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
