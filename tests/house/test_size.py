"""The project stays as small as it is: no folder has more lines of code than its budget.

A budget is lowered when a folder has become smaller. What needs more lines says in its commit what
goes for it, or why nothing does.
"""

import pytest

from helpers import size
from helpers.options import ROOT

BUDGETS = {
    "ssl_vit": {
        ".": 850,
        "costs": 210,
        "data": 3650,
        "evaluation": 820,
        "hub": 900,
        "inspection": 760,
        "jobs": 3210,
        "lab": 4560,
        "models": 1170,
        "objectives": 1840,
        "pages": 1050,
        "recipe": 3270,
        "runs": 1200,
        "training": 1660,
    },
    "tests": {
        ".": 1040,
        "benchmarks": 90,
        "costs": 410,
        "data": 4430,
        "evaluation": 1470,
        "freeze": 870,
        "helpers": 1830,
        "house": 490,
        "hub": 1730,
        "inspection": 450,
        "jobs": 3570,
        "lab": 5020,
        "models": 1710,
        "objectives": 3280,
        "pages": 1100,
        "recipe": 2140,
        "results": 170,
        "robustness": 420,
        "runs": 1310,
        "training": 2390,
    },
}
FILES = {"ssl_vit": 232, "tests": 180}


@pytest.mark.parametrize("root", BUDGETS)
def test_no_folder_has_more_lines_of_code_than_its_budget(root: str) -> None:
    found = size.folders(ROOT / root)
    over = {
        f"{root}/{folder}": f"{lines - BUDGETS[root].get(folder, 0)} lines too many"
        for folder, lines in found.items()
        if lines > BUDGETS[root].get(folder, 0)
    }
    assert not over
    assert BUDGETS[root].keys() == found.keys(), "a budget of a folder that is not there"


@pytest.mark.parametrize("root", FILES)
def test_there_are_no_more_files_than_planned(root: str) -> None:
    assert size.files(ROOT / root) <= FILES[root]


def test_lines_of_code_are_counted() -> None:
    """Neither docstrings, nor comments, nor blank lines."""
    text = '"""One\ntwo."""\n\n# three\ndef f():\n    """Four."""\n    return 1  # five\n'
    assert size.code_lines(text) == 2
