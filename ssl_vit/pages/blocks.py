"""What a page is made of (sections of text, tables, commands, figures and charts), and how it is
written: as Markdown, and as one HTML page that needs no other file. No torch here."""

import base64
import functools
import hashlib
import json
import math
import os
import re
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ..formatting import (
    code_block,
    escape_markdown,
    escape_opening,
    markdown_table,
    text_line,
    visible_text,
)

ASSETS = Path(__file__).with_name("assets")


class Text(NamedTuple):
    """A paragraph; a warning stands apart."""

    text: str
    warning: bool = False


class Listing(NamedTuple):
    lines: list[str]


class Cell(NamedTuple):
    """A table's cell: a text, which may link to another page."""

    text: str
    href: str = ""


class Table(NamedTuple):
    """The first `labels` columns are text, the others numbers. The HTML table has the columns whose
    heads are `behind` as its last ones, so that a phone shows the others."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    labels: int = 1
    behind: frozenset[str] = frozenset()


class Commands(NamedTuple):
    lines: list[str]


class Line(NamedTuple):
    """A line of a chart. `kind` is "line", "points" (few values, joined) or "level" (a constant,
    dashed)."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    kind: str = "line"


class Chart(NamedTuple):
    """Lines by step, drawn by the page's script; they can be zoomed and read as a table."""

    title: str
    lines: Sequence[Line]


class Figure(NamedTuple):
    """SVG text, of a file at `path` from the page's folder. One with a title is in the page's table
    of contents."""

    path: str
    caption: str
    svg: str
    title: str = ""


class Image(NamedTuple):
    """A PNG; `alt` describes it to those who do not see it, and `href` links to the original."""

    png: bytes
    caption: str
    alt: str
    href: str = ""


class Gallery(NamedTuple):
    """Small images side by side."""

    images: Sequence[Image]


class Fold(NamedTuple):
    """Blocks that are shown once the reader opens them."""

    summary: str
    blocks: "list[Block]"


Block = Text | Listing | Table | Commands | Chart | Figure | Gallery | Fold


class Section(NamedTuple):
    """The first one of a page has no title."""

    title: str
    blocks: list[Block]


def markdown(title: str, sections: list[Section]) -> str:
    """A page as Markdown. Text is escaped, so that names of others cannot become markup. Blocks
    that exist in HTML alone are left out."""
    parts = [f"# {escape_opening(title)}"]
    for section in sections:
        parts += [f"## {escape_opening(section.title)}"] if section.title else []
        parts += [block_markdown(block) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def block_markdown(block: Block) -> str:
    """A block as Markdown; empty for one that only a browser draws."""
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
    return ""


def _table(table: Table) -> str:
    rows = [[escape_markdown(cell_of(cell).text) for cell in row] for row in table.rows]
    ruler = ["---" if i < table.labels else "--:" for i in range(len(table.head))]
    return markdown_table([*map(escape_markdown, table.head)], rows, ruler)


def cell_of(cell: str | Cell) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def html(title: str, sections: list[Section], above: str = "", refresh: int = 0) -> str:
    """A page as HTML with its figures, scripts and styles inside; light or dark as the browser
    prefers.

    The page's policy lets the browser run these scripts and styles alone, and load nothing: even a
    name that slipped through the escaping would do nothing.

    Args:
        title: of the page, its first heading.
        sections: in their order.
        above: link to the page over this one, empty for none.
        refresh: seconds after which the page is loaded again, as its runs go on; 0 for never.
    """
    scripts, styles = _assets()
    rendered = (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            sections=sections,
            above=above,
            refresh=refresh,
            scripts=[Markup(text) for text in scripts],
            styles=[Markup(text) for text in styles],
            policy=_policy(scripts, styles),
        )
    )
    return rendered + "\n"


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # what is marked as markup are the package's own files, and JSON
        finalize=lambda value: value if isinstance(value, Markup) else visible_text(value),
    )
    environment.filters["embedded"] = _embedded
    environment.filters["json"] = _json
    environment.filters["breakable"] = _breakable
    environment.filters["cell"] = cell_of
    environment.filters["in_page_order"] = _in_page_order
    environment.tests["of"] = lambda block, kind: type(block).__name__ == kind
    return environment


def _breakable(text: str) -> Markup:
    """A text as markup that a narrow cell parts after an underscore or a slash."""
    return Markup(re.sub(r"(?<=\w)([_/])(?=\w)", r"\1<wbr>", str(escape(visible_text(text)))))


def _in_page_order(table: Table) -> Table:
    """The table with its columns that are behind as the last ones."""
    order = sorted(range(len(table.head)), key=lambda i: table.head[i] in table.behind)
    return table._replace(
        head=[table.head[i] for i in order],
        rows=[[row[i] for i in order] for row in table.rows],
        labels=sum(head not in table.behind for head in table.head[: table.labels]),
    )


@functools.cache
def _assets() -> tuple[list[str], list[str]]:
    """Scripts and styles. uPlot's banner is replaced by its licence, which has to go along."""
    licence = (ASSETS / "uPlot.LICENSE").read_text(encoding="utf-8")
    library = (ASSETS / "uPlot.iife.min.js").read_text(encoding="utf-8")
    banner, end, code = library.partition("*/")
    version = re.search(r"v[\d.]+", banner)
    library = f"/* uPlot {version[0] if version else ''}\n\n{licence}{end}{code}"
    own = (ASSETS / "page.js").read_text(encoding="utf-8")
    styles = ["uPlot.min.css", "page.css"]
    return [library, own], [(ASSETS / name).read_text(encoding="utf-8") for name in styles]


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """The Content-Security-Policy of a page."""
    hashes = [" ".join(map(_source, texts)) for texts in (scripts, styles)]
    return (
        f"default-src 'none'; img-src data:; script-src {hashes[0]}; style-src {hashes[1]}; "
        "base-uri 'none'; form-action 'none'"
    )


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _embedded(content: str | bytes) -> str:
    """An SVG text or a PNG as an address."""
    kind = "png" if isinstance(content, bytes) else "svg+xml"
    raw = content if isinstance(content, bytes) else content.encode()
    return f"data:image/{kind};base64,{base64.b64encode(raw).decode()}"


def _json(chart: Chart) -> Markup:
    """A chart's data, for the script. No character in it can end the element."""
    lines = [
        {
            "name": text_line(line.name),
            "x": [_short(step) for step in line.steps],
            "y": [_short(value) for value in line.values],
            "kind": line.kind,
        }
        for line in chart.lines
    ]
    data = {"title": text_line(chart.title), "lines": lines}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _short(value: float) -> float | None:
    """Six digits, more than a screen shows; what is not finite is a gap."""
    if not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")


def quoted(name: str) -> str:
    """A folder's or file's name as a part of a link."""
    return urllib.parse.quote(os.fsencode(name), safe="")
