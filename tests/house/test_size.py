"""The project stays as small as it is: no folder has more lines of code than its budget.

A budget is lowered when a folder has become smaller. What needs more lines says in its commit what
goes for it, or why nothing does.
"""

import pytest

from helpers import size
from helpers.options import ROOT

BUDGETS = {
    "ssl_vit": {
        ".": 880,
        "costs": 210,
        "data": 3650,
        "evaluation": 930,
        "hub": 540,
        "inspection": 600,
        "jobs": 3580,
        "lab": 4550,
        "models": 1180,
        "objectives": 1850,
        "pages": 1070,
        "recipe": 3300,
        "runs": 1150,
        "training": 1490,
    },
    "tests": {
        ".": 1010,
        "benchmarks": 90,
        "costs": 410,
        "data": 4430,
        "evaluation": 1690,
        "freeze": 870,
        "helpers": 1830,
        "house": 490,
        "hub": 1700,
        "inspection": 460,
        "jobs": 3660,
        "lab": 5010,
        "models": 1730,
        "objectives": 3280,
        "pages": 1100,
        "recipe": 2140,
        "results": 170,
        "robustness": 420,
        "runs": 1380,
        "training": 2410,
    },
}
FILES = {"ssl_vit": 234, "tests": 182}


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
