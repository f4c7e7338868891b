"""Identifiers use the field's terms: the vocabulary of earlier versions does not come back."""

import ast
from collections.abc import Iterator

import pytest

from helpers.options import ROOT

GONE = {
    *("told", "tell", "said", "asked", "Asked", "hit", "becomes", "audience", "Heard"),
    *("GoBack", "detour", "Together", "Life", "pictures"),
}
FOLDERS = ("ssl_vit", "tools", "benchmarks", "robustness", "results", "tests")
# Names of other libraries
FOREIGN = {"tell"}  # of a file


def identifiers(text: str) -> Iterator[str]:
    """Every name that a file binds or uses; strings are not looked into."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute) and node.attr not in FOREIGN:
            yield node.attr
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg or ""
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name


def test_each_kind_of_identifier_is_found() -> None:
    text = "def a(b, *, c): d.e = f(g='told')\nclass h: pass\nimport i as j\nfrom k import l"
    assert {*identifiers(text)} == set("abcdefghjl")


@pytest.mark.parametrize("folder", FOLDERS)
def test_identifiers_of_earlier_versions_are_gone(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    left = {str(path): GONE & {*identifiers(path.read_text())} for path in files}
    assert not {path: names for path, names in left.items() if names}
