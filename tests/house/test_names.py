"""Identifiers use the field's terms: the vocabulary of earlier versions does not come back."""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

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


def named_outside(package: Path, names: Collection[str]) -> dict[str, set[str]]:
    """{objective: the files of a package, but for those of its own folder, with its name}."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for path in sorted(package.rglob("*.py")):
        own = path.parent.name if path.parent.parent.name == "objectives" else ""
        for name in (literals(path.read_text()) & set(names)) - {own}:
            found[name].add(str(path.relative_to(package)))
    return found


def test_an_objective_is_named_in_its_folder_alone() -> None:
    names = declaration.objectives().keys() - ALSO_OTHERS
    assert {"mae", "moco_v3", "ijepa"} <= names
    assert named_outside(ROOT / "ssl_vit", names) == {name: set() for name in names}


# Files that name the two objectives of the paper, and what else the name is there
PAPERS = {
    "mpp": {
        "config/schema.py",  # the default
        "lab/planning/budget.py",  # the paper's learning rates
        "objectives/joint/__init__.py",  # a part
    },
    "supervised": {
        "config/init_source.py",  # a group of keys
        "jobs/cli.py",  # the objective of the tool finetune
        "lab/planning/budget.py",  # the paper's learning rates
        "lab/planning/paper.py",  # the paper's table
        "objectives/joint/__init__.py",  # a part
        "objectives/joint/network.py",
    },
}


def test_the_papers_objectives_are_named_where_the_name_is_something_else_too() -> None:
    assert named_outside(ROOT / "ssl_vit", PAPERS) == PAPERS


def test_an_objective_that_is_named_elsewhere_is_found(tmp_path: Path) -> None:
    texts = {"objectives/mae/__init__.py": 'name = "mae"', "pages/page.py": 'a = b == "mae"'}
    texts |= {"costs/work.py": '"""mae"""', "objectives/joint/__init__.py": 'parts = ("mae",)'}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {"pages/page.py", "objectives/joint/__init__.py"}
    assert named_outside(tmp_path, ["mae", "ijepa"]) == {"mae": found, "ijepa": set()}
