"""Define the parts of a page (text, tables, commands, figures and charts), and write pages as
Markdown or as a self-contained HTML file.

This module does not import torch.
"""

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
    """Paragraph. A page sets a warning off from the other text."""

    text: str
    warning: bool = False


class Listing(NamedTuple):
    lines: list[str]


class Table(NamedTuple):
    """Table with text in the first `labels` columns and numbers in the rest.

    Attributes:
        head: Headings of the columns.
        rows: Cells of each row.
        labels: Number of text columns, which are the first columns and are aligned on the left.
        behind: Headings of columns that an HTML table moves to the end, because the narrow screen
            of a phone shows only the first columns.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1
    behind: frozenset[str] = frozenset()


class Commands(NamedTuple):
    lines: list[str]


class Line(NamedTuple):
    """Line of a chart.

    The kind "line" is a plain line. "points" is a line with a point at each value, for few values.
    "level" is a dashed line, for a constant.
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    kind: str = "line"


class Chart(NamedTuple):
    """Lines by step, drawn by the script of the page. Readers can zoom the chart or read the values
    as a table.
    """

    title: str
    lines: Sequence[Line]


class Figure(NamedTuple):
    """Figure as SVG text. `path` is the SVG file, relative to the page's folder.

    A figure with a title is listed in the page's table of contents.
    """

    path: str
    caption: str
    svg: str
    title: str = ""


class Image(NamedTuple):
    """PNG image. `alt` is the text for people who cannot see. `href` links to the original."""

    png: bytes
    caption: str
    alt: str
    href: str = ""


class Gallery(NamedTuple):
    """Small images side by side."""

    images: Sequence[Image]


class Fold(NamedTuple):
    """Blocks that are hidden until the reader unfolds the summary."""

    summary: str
    blocks: "list[Block]"


Block = Text | Listing | Table | Commands | Chart | Figure | Gallery | Fold


class Section(NamedTuple):
    """Section of a page.

    Attributes:
        title: Title. Empty for the first section.
        blocks: Content.
        is_folded: Whether an HTML page shows only the title until the reader unfolds the section.
    """

    title: str
    blocks: list[Block]
    is_folded: bool = False


def markdown(title: str, sections: list[Section]) -> str:
    """Return a page as Markdown.

    Text is escaped, so that a name such as "# mae" does not become a heading. Charts, images,
    galleries and folds exist only in HTML and are left out.
    """
    parts = [f"# {escape_opening(title)}"]
    for section in sections:
        if section.title:
            parts.append(f"## {escape_opening(section.title)}")
        parts += [block_markdown(block) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def block_markdown(block: Block) -> str:
    """Return a block as Markdown, or an empty string for a block that only a browser can draw."""
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
    rows = [[escape_markdown(cell) for cell in row] for row in table.rows]
    # numbers are aligned on the right
    ruler = ["---"] * table.labels + ["--:"] * (len(table.head) - table.labels)
    return markdown_table([*map(escape_markdown, table.head)], rows, ruler)


def html(title: str, sections: list[Section], refresh: int = 0) -> str:
    """Return a page as HTML that needs no other file.

    Figures, scripts and styles are inside the page. Text is escaped. In addition, the page's
    security policy lets the browser run only these scripts and load no other file. Even if a name
    with HTML were not escaped, it could therefore run no script.

    Args:
        title: Title of the page, used as the first heading.
        sections: Sections in order.
        refresh: Seconds after which the browser loads the page again, or 0 for never.
    """
    scripts, styles = _assets()
    rendered = (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            sections=sections,
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
        # only the package's own files and JSON are marked as markup, all other values are escaped
        finalize=lambda value: value if isinstance(value, Markup) else visible_text(value),
    )
    environment.filters["embedded"] = _embedded
    environment.filters["json"] = _json
    environment.filters["breakable"] = _breakable
    environment.filters["in_page_order"] = _in_page_order
    environment.tests["of"] = lambda block, kind: type(block).__name__ == kind
    return environment


def _breakable(text: str) -> Markup:
    """Return text as markup that may break after "_" or "/" inside a word: "optim_<wbr>steps"."""
    return Markup(re.sub(r"(?<=\w)([_/])(?=\w)", r"\1<wbr>", str(escape(visible_text(text)))))


def _in_page_order(table: Table) -> Table:
    """Return the table with the columns of `table.behind` moved to the end.

    For example, the columns "arm", "n", "mean" become "arm", "mean", "n" if "n" is in
    `table.behind`.
    """
    # False sorts before True, and the sort keeps the order of columns with equal keys
    columns = sorted(range(len(table.head)), key=lambda column: table.head[column] in table.behind)
    return table._replace(
        head=[table.head[column] for column in columns],
        rows=[[row[column] for column in columns] for row in table.rows],
        # `labels` counts the text columns at the start: moved columns are no longer at the start
        labels=sum(head not in table.behind for head in table.head[: table.labels]),
    )


@functools.cache
def _assets() -> tuple[list[str], list[str]]:
    """Return the scripts and the styles of a page.

    The scripts are the chart library uPlot and the page's own script. uPlot's banner is replaced
    with uPlot's licence, which must be passed on.
    """
    licence = (ASSETS / "uPlot.LICENSE").read_text(encoding="utf-8")
    chart_script = (ASSETS / "uPlot.iife.min.js").read_text(encoding="utf-8")
    banner, end, code = chart_script.partition("*/")
    match = re.search(r"v[\d.]+", banner)
    version = match[0] if match else ""
    # a new comment with the version and the licence, then the end "*/" of the old banner
    chart_script = f"/* uPlot {version}\n\n{licence}{end}{code}"
    page_script = (ASSETS / "page.js").read_text(encoding="utf-8")
    style_files = ["uPlot.min.css", "page.css"]
    styles = [(ASSETS / name).read_text(encoding="utf-8") for name in style_files]
    return [chart_script, page_script], styles


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Return the Content-Security-Policy of a page, which allows only these scripts and styles."""
    script_hashes = " ".join(map(_hash_source, scripts))
    style_hashes = " ".join(map(_hash_source, styles))
    return (
        f"default-src 'none'; img-src data:; script-src {script_hashes}; style-src {style_hashes};"
        " base-uri 'none'; form-action 'none'"
    )


def _hash_source(text: str) -> str:
    """Return the hash by which a policy allows a script or a style: `'sha256-...'`."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _embedded(content: str | bytes) -> str:
    """Return the text of an SVG or the bytes of a PNG as a URL: "data:image/png;base64,..."."""
    kind = "png" if isinstance(content, bytes) else "svg+xml"
    raw = content if isinstance(content, bytes) else content.encode()
    return f"data:image/{kind};base64,{base64.b64encode(raw).decode()}"


def _json(chart: Chart) -> Markup:
    """Return the data of a chart as JSON that is safe inside a script element."""
    lines = [
        {
            "name": text_line(line.name),
            "x": [*map(_short, line.steps)],
            "y": [*map(_short, line.values)],
            "kind": line.kind,
        }
        for line in chart.lines
    ]
    data = {"title": text_line(chart.title), "lines": lines}
    content = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":  # "</script>" would end the element
        content = content.replace(character, f"\\u{ord(character):04x}")
    return Markup(content)


def _short(value: float) -> float | None:
    """Return a value with six significant digits. A screen shows fewer digits.

    A value that is not finite becomes None, and a chart draws None as a gap.
    """
    if not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")


def quoted(name: str) -> str:
    """Escape the name of a folder or file for a link: "my run" as "my%20run"."""
    return urllib.parse.quote(os.fsencode(name), safe="")
