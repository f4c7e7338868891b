"""The tests themselves: what several files share is in tests/helpers/, and no test is in there."""

import ast
from pathlib import Path

import pytest

from helpers.launching import launch, outcome
from helpers.options import ROOT

TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("*.py"))
HELPERS = sorted((TESTS / "helpers").glob("*.py"))


def imported(text: str) -> set[str]:
    """Each part of each dotted name that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.ImportFrom):
            found |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
    return found


def test_each_way_to_import_a_file_is_found() -> None:
    text = "import test_a as a\nfrom tests.x import test_b\ndef f():\n    from ..test_c import d"
    assert {"test_a", "test_b", "test_c"} <= imported(text)


def test_no_file_imports_a_test_or_a_conftest() -> None:
    names = {path.stem for path in FILES if path.stem.startswith(("test_", "conftest"))}
    assert len(names) > 50
    found = {str(path): names & imported(path.read_text()) for path in FILES}
    assert not {path: others for path, others in found.items() if others}


def test_helpers_hold_no_test_and_no_fixture() -> None:
    assert len(HELPERS) > 5 and not list((TESTS / "helpers").rglob("test_*.py"))
    for path in HELPERS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                assert not node.name.lower().startswith("test"), path
                assert "fixture" not in "".join(map(ast.unparse, node.decorator_list)), path


def test_the_slowest_files_are_there(request: pytest.FixtureRequest) -> None:
    """tests/conftest.py puts them first."""
    (listed,) = (
        plugin.SLOWEST_FIRST
        for plugin in request.config.pluginmanager.get_plugins()
        if hasattr(plugin, "SLOWEST_FIRST")
    )
    assert not [name for name in listed if not (TESTS / name).is_file()]
    assert len(set(listed)) == len(listed)


def test_processes_that_print_more_than_a_pipe_holds_do_not_wait_for_one_another(
    tmp_path: Path,
) -> None:
    """The first ends once the second has written a megabyte."""
    script = "import pathlib, sys, time\nfile = pathlib.Path(sys.argv[1])\n"
    waits = script + "while not file.exists(): time.sleep(0.01)"
    writes = script + "print('x' * 2**20); file.touch()"
    pair = [launch("-c", text, str(tmp_path / "written")) for text in (waits, writes)]
    statuses, outputs = outcome(pair, 60)
    assert statuses == [0, 0] and [len(text) for text in outputs] == [0, 2**20 + 1]
