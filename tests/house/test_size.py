"""The project stays as small as it is: no folder has more lines of code than its budget.

A budget is lowered when a folder has become smaller. What needs more lines says in its commit what
goes for it, or why nothing does.
"""

import pytest

from helpers import size
from helpers.options import ROOT

BUDGETS = {
    "ssl_vit": {
        ".": 700,
        "config": 3930,
        "costs": 320,
        "data": 4820,
        "evaluation": 1140,
        "hub": 900,
        "inspection": 780,
        "jobs": 3210,
        "lab": 7730,
        "metrics": 400,
        "models": 1300,
        "objectives": 2410,
        "pages": 1220,
        "runs": 1410,
        "training": 1660,
    },
    "tests": {
        ".": 1120,
        "benchmarks": 80,
        "config": 2170,
        "costs": 430,
        "data": 4990,
        "evaluation": 1680,
        "helpers": 1850,
        "house": 1370,
        "hub": 1730,
        "inspection": 470,
        "jobs": 3560,
        "lab": 6690,
        "models": 1760,
        "objectives": 3320,
        "pages": 1270,
        "robustness": 440,
        "runs": 1420,
        "training": 2470,
    },
}
FILES = {"ssl_vit": 307, "tests": 183}


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
