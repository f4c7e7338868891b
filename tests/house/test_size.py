"""The project stays as small as it is: no folder has more lines of code than its budget.

A budget is lowered when a folder has become smaller. What needs more lines says in its commit what
goes for it, or why nothing does.
"""

import pytest

from helpers import size
from helpers.options import ROOT

BUDGETS = {
    "ssl_vit": {
        ".": 830,
        "costs": 210,
        "data": 3480,
        "evaluation": 870,
        "hub": 510,
        "inspection": 520,
        "jobs": 3000,
        "lab": 4350,
        "models": 1180,
        "objectives": 1840,
        "pages": 1040,
        "recipe": 3240,
        "runs": 1000,
        "training": 1410,
    },
    "tests": {
        ".": 990,
        "benchmarks": 90,
        "costs": 410,
        "data": 4410,
        "evaluation": 1660,
        "freeze": 870,
        "helpers": 1830,
        "house": 500,
        "hub": 1660,
        "inspection": 420,
        "jobs": 3500,
        "lab": 4890,
        "models": 1730,
        "objectives": 3280,
        "pages": 1050,
        "recipe": 2140,
        "results": 110,
        "robustness": 420,
        "runs": 1330,
        "training": 2380,
    },
}
FILES = {"ssl_vit": 232, "tests": 181}


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
