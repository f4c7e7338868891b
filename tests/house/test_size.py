"""The project stays as small as it is: no folder has more lines of code than its budget.

A budget is lowered when a folder has become smaller. What needs more lines says in its commit what
goes for it, or why nothing does.
"""

import pytest

from helpers import size
from helpers.options import ROOT

BUDGETS = {
    "ssl_vit": {
        ".": 860,
        "costs": 210,
        "data": 3500,
        "evaluation": 1300,
        "hub": 510,
        "inspection": 520,
        "jobs": 2740,
        "lab": 4760,
        "models": 1130,
        "objectives": 2180,
        "pages": 1060,
        "recipe": 3310,
        "runs": 1110,
        "training": 1470,
    },
    "tests": {
        ".": 1020,
        "benchmarks": 150,
        "costs": 370,
        "data": 3220,
        "evaluation": 1680,
        "freeze": 750,
        "helpers": 1880,
        "house": 500,
        "hub": 1130,
        "inspection": 390,
        "jobs": 2590,
        "lab": 4670,
        "models": 1180,
        "objectives": 2650,
        "pages": 950,
        "recipe": 2260,
        "results": 140,
        "robustness": 220,
        "runs": 1190,
        "training": 2090,
    },
}
FILES = {"ssl_vit": 236, "tests": 201}


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
