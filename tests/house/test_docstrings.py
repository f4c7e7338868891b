"""What is public says what it is."""

import ast

import pytest

import ssl_vit
from helpers.options import ROOT


@pytest.mark.parametrize("name", ssl_vit.__all__)
def test_every_name_of_the_interface_has_a_docstring(name: str) -> None:
    assert getattr(ssl_vit, name).__doc__


def test_every_module_with_code_has_a_docstring() -> None:
    trees = {path: ast.parse(path.read_text()) for path in (ROOT / "ssl_vit").rglob("*.py")}
    assert not [str(path) for path, tree in trees.items() if not ast.get_docstring(tree)]
