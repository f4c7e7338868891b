"""The links of the documents lead to files and headings, and the site lists each page once."""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from helpers.options import ROOT

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOK = ROOT / "docs" / "example.ipynb"


def prose(document: Path) -> str:
    """The Markdown of a page or a notebook, without its code."""
    text = document.read_text()
    if document.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    text = re.sub(r"^(```+|~~~+).*?^\1\s*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", text, flags=re.DOTALL)


def links(document: Path) -> list[str]:
    """What a page links to or shows: [text](target), ![text](target), [name]: target, and HTML."""
    text = prose(document)
    inline = re.findall(r"\]\(\s*<?([^\s<>()]+)", text)
    defined = re.findall(r"^ {0,3}\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    return [*inline, *defined, *re.findall(r"\b(?:href|src)=[\"']([^\"']+)", text)]


def anchors(document: Path) -> set[str]:
    """Those that GitHub makes of a page's headings: lower case, without punctuation, a hyphen for a
    space; of equal ones the second ends in -1."""
    text = re.sub(r"^(```+|~~~+).*?^\1\s*?$", "", document.read_text(), flags=re.DOTALL | re.M)
    found: dict[str, int] = {}
    names = set(re.findall(r"<a (?:id|name)=[\"']([^\"']+)", text))
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)? *$", text, re.MULTILINE):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


def broken_links(document: Path) -> list[str]:
    """The relative links of a page whose file, or whose heading in it, is not there."""
    found = []
    for target in links(document):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        place = document.parent / unquote(path) if path else document
        there = place.exists() and ROOT in place.resolve().parents
        if not there or (anchor and (place.suffix != ".md" or anchor not in anchors(place))):
            found.append(target)
    return found


@pytest.mark.parametrize("document", [*DOCUMENTS, NOTEBOOK], ids=lambda d: d.name)
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    assert broken_links(document) == []


def test_links_without_a_file_or_a_heading_are_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# A `page=` for [every](x) run!\n## Twice\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Top\n[a](other.md#a-page-for-every-run) [b](#top) [c](other.md#twice-1) ![d](other.md)\n"
        "`[code](gone.md)`\n```\n[block](gone.md)\n# Not a heading\n```\n[e](https://a.b/#c)\n"
    )
    assert broken_links(page) == []
    wrong = ["other.md#gone", "#not-a-heading", "gone.md", "other.md#twice-2", "gone.png", "x.md"]
    page.write_text(
        "# Top\n```\n# Not a heading\n```\n[a](other.md#gone) [b](#not-a-heading)\n"
        "[c](gone.md) [d](other.md#twice-2) ![e](gone.png)\n\n[f]: x.md\n"
    )
    assert broken_links(page) == wrong


def pages(nav: list) -> list[str]:
    """The pages of a part of the navigation."""
    found = []
    for entry in nav:
        (inside,) = entry.values()
        found += pages(inside) if isinstance(inside, list) else [inside]
    return found


def test_the_navigation_has_every_page_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages(nav)) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_table_of_studies_names_those_that_exist() -> None:
    """A study that was taken back stood in it. study/worth has no file."""
    page = (ROOT / "docs" / "studies.md").read_text()
    table = page.split("## Studies that come with ssl_vit")[1].split("\n\n")[1]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    named = {code.split()[0] for cell in cells for code in re.findall(r"`([^`]+)`", cell)}
    assert named == {path.stem for path in (ROOT / "recipes/study").glob("*.yaml")} | {"worth"}
