"""The project stays as small as it is: no folder has more lines of code than its budget.

A budget is lowered when a folder has become smaller. What needs more lines says in its commit what
goes for it, or why nothing does.
"""

import pytest

from helpers import size
from helpers.options import ROOT

BUDGETS = {
    "ssl_vit": {
        ".": 840,
        "config": 3700,
        "costs": 210,
        "data": 3790,
        "evaluation": 820,
        "hub": 910,
        "inspection": 760,
        "jobs": 3120,
        "lab": 4560,
        "models": 1180,
        "objectives": 2150,
        "pages": 1050,
        "runs": 1190,
        "training": 1640,
    },
    "tests": {
        ".": 1040,
        "benchmarks": 80,
        "config": 2070,
        "costs": 410,
        "data": 4330,
        "evaluation": 1470,
        "freeze": 870,
        "helpers": 1820,
        "house": 500,
        "hub": 1720,
        "inspection": 450,
        "jobs": 3380,
        "lab": 5020,
        "models": 1660,
        "objectives": 3190,
        "pages": 1100,
        "results": 170,
        "robustness": 420,
        "runs": 1310,
        "training": 2420,
    },
}
FILES = {"ssl_vit": 248, "tests": 178}


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
