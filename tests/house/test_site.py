"""The documents as a site: mkdocs.yml lists each once, and links out of docs/ lead nowhere."""

import runpy
from pathlib import Path

import yaml

from helpers.options import ROOT

HOOKS = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))


def pages(nav: list) -> list[str]:
    """The pages of a part of the navigation."""
    found = []
    for entry in nav:
        (inside,) = entry.values()
        found += pages(inside) if isinstance(inside, list) else [inside]
    return found


def test_the_navigation_has_every_page_once():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages(nav)) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_a_link_out_of_the_documents_is_the_name_of_its_file():
    shown = HOOKS["on_page_markdown"]
    assert shown("in [models.yaml](../recipes/tables/models.yaml).") == (
        "in `recipes/tables/models.yaml`."
    )
    assert (
        shown("[one page\nmore](../CONTRIBUTING.md#tests)") == "one page\nmore (`CONTRIBUTING.md`)"
    )
    for kept in ("[x](runs.md#a)", "[x](https://example.org/../a)", "[x](../no_such_file.md)"):
        assert shown(kept) == kept


def test_no_page_links_out_of_the_documents():
    for path in Path(ROOT / "docs").glob("*.md"):
        assert "](../" not in HOOKS["on_page_markdown"](path.read_text()), path.name
