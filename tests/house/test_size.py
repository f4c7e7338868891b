"""The package and its tests stay within one budget each, in tokens of code.

A change that needs a larger budget says in its commit what it adds, and why nothing was deleted
for it.
"""

import pytest

from helpers import size
from helpers.options import ROOT

BUDGETS = {"ssl_vit": 308_800, "tests": 383_700}


@pytest.mark.parametrize("root", BUDGETS)
def test_a_tree_has_no_more_tokens_than_its_budget(root: str) -> None:
    assert size.count_tree(ROOT / root) <= BUDGETS[root]


@pytest.mark.parametrize(
    ("code", "tokens"),
    [
        ("", 0),
        ('"""A module.\n\n\nIts docstring has blank lines."""\n', 0),
        ("x = 1  # a comment\n# another\n\n", 3),
        ("x = '''one\n\ntwo'''\n", 3),
        ("def f():\n    '''Do it.\n\n    Twice.\n    '''\n    return 1\n", 7),
        ("@cache\nasync def f(): return 1\n", 10),
        ("class A:\n    '''A class.'''\n    x: int = 1\n    '''A string, no docstring.'''\n", 9),
        ("f(\n    1,\n    2,\n)\n", 7),
        ("f(1, 2,)\n", 7),
    ],
)
def test_tokens_of_code_are_counted(code: str, tokens: int) -> None:
    """Neither docstrings, comments, blank lines nor line breaks are tokens; a string is one token
    on any number of lines."""
    assert size.count_tokens(code) == tokens
