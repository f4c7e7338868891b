"""Identifiers use the field's terms: the vocabulary of earlier versions does not come back."""

import ast
from collections.abc import Iterator

import pytest

from helpers.options import ROOT
from ssl_vit.config import declaration

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


# Names that are a default, a group of keys or a tool as well
ALSO_OTHERS = {"mpp", "supervised", "joint", "probe"}


def literals(text: str) -> set[str]:
    """The texts of a file but for its docstrings."""
    tree = ast.parse(text)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_literals_are_found() -> None:
    assert literals('"""mae"""\na = "mae" if b["c"] else f"d{e}"') == {"mae", "c", "d"}


def test_an_objective_is_named_in_its_folder_alone() -> None:
    names = declaration.objectives().keys() - ALSO_OTHERS
    assert {"mae", "moco_v3"} <= names
    for path in sorted((ROOT / "ssl_vit").rglob("*.py")):
        own = path.parent.name if path.parent.parent.name == "objectives" else ""
        assert not (literals(path.read_text()) & names) - {own}, path
