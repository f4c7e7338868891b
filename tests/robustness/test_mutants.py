"""robustness/: mutants are found again where code went, and coverage knows the test whose processes
ran a line."""

import ast
import sys
from pathlib import Path

import pytest

from helpers.options import ROOT

sys.path.insert(0, str(ROOT / "robustness"))
import mutants
import mutate

CODE = '''
LIMIT = 3


class Box:
    """A box."""

    def holds(self, n: int = 5) -> bool:
        """Whether."""
        if n < LIMIT and not self.full:
            return True
        self.seen = n
        return f"{n + 1}" == "2"


def put(box: Box) -> str:
    raise ValueError(box)
'''
# (function, kind, before, after)
FOUND = {
    ("Box.holds", "comparison", "n < LIMIT", "n <= LIMIT"),
    ("Box.holds", "and, or", "n < LIMIT and not self.full", "(n < LIMIT or not self.full)"),
    ("Box.holds", "not removed", "not self.full", "(self.full)"),
    (
        *("Box.holds", "branches swapped", "n < LIMIT and not self.full"),
        "(not (n < LIMIT and (not self.full)))",
    ),
    ("Box.holds", "return None", "return True", "return None"),
    ("Box.holds", "constant", "True", "False"),
    ("Box.holds", "statement deleted", "self.seen = n", "pass"),
    ("Box.holds", "return None", 'return f"{n + 1}" == "2"', "return None"),
    ("Box.holds", "comparison", 'f"{n + 1}" == "2"', "f'{n + 1}' != '2'"),
    ("put", "statement deleted", "raise ValueError(box)", "pass"),
}


def module(folder: Path, text: str) -> Path:
    path = folder / "module.py"
    path.write_text(text)
    return path


def test_each_kind_of_mutant_is_found_in_functions_alone(tmp_path: Path) -> None:
    found = mutate.mutants_of(module(tmp_path, CODE))
    assert {(one.function, one.kind, one.before, one.after) for one in found} == FOUND


def test_every_mutant_changes_what_the_code_means(tmp_path: Path) -> None:
    """Of a real module too."""
    for text in (CODE, (ROOT / "ssl_vit" / "rng.py").read_text()):
        path = module(tmp_path, text)
        found = mutate.mutants_of(path)
        assert len({one.name() for one in found}) == len(found) > 5
        for mutant in found:
            mutate.apply(path, mutant)
            assert ast.dump(ast.parse(path.read_text())) != ast.dump(ast.parse(text)), mutant
            path.write_text(text)


def test_a_mutant_has_its_name_where_its_function_went(tmp_path: Path) -> None:
    before = {one.name(): one for one in mutate.mutants_of(module(tmp_path, CODE))}
    moved = "# é\nTEN = 10\n\ndef first():\n    return TEN\n" + CODE
    after = {one.name(): one for one in mutate.mutants_of(module(tmp_path, moved))}
    assert before.keys() < after.keys()
    assert all(after[name].line == before[name].line + 5 for name in before)
    name = next(name for name in before if name[2] == "not removed")
    mutate.apply(tmp_path / "module.py", after[name])
    assert "if n < LIMIT and (self.full):" in (tmp_path / "module.py").read_text()


def test_the_tests_of_a_mutant_are_the_cheapest_ones_of_few_files() -> None:
    seconds = {"a::1": 50, "a::2": 1, "b::1": 2, "c::1": 3, "d::1": 4, "d::2": 100}
    tests = mutants.Tests({}, {name: ("passed", float(s)) for name, s in seconds.items()})
    assert tests.cheapest([*seconds]) == ["a::2", "b::1", "c::1", "a::1"]
    assert tests.cheapest(["d::2"]) == ["d::2"]  # one at least


PROJECT = """
import os, subprocess, sys
import pytest
from package import module

@pytest.fixture(scope="module")
def shared():
    return module.shared()

def test_here(shared):
    assert module.here() and shared

def test_forked(shared):
    child = os.fork()
    if not child:
        module.forked()
        os._exit(0)
    os.waitpid(child, 0)

def test_started():
    code = "from package import module; module.started()"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_lines_belong_to_the_test_whose_processes_run_them(tmp_path: Path, monkeypatch) -> None:
    """Those of a fixture that tests share to all of them."""
    coverage = pytest.importorskip("coverage")
    import coverage_by_module

    names = ("shared", "here", "forked", "started", "never")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    text = "".join(f"def {name}():\n    return '{name}'\n" for name in names)
    (tmp_path / "package" / "module.py").write_text(text)
    (tmp_path / "test_it.py").write_text(PROJECT)
    (tmp_path / "robustness").symlink_to(ROOT / "robustness")
    for key in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"):
        monkeypatch.delenv(key, raising=False)  # where this test is measured itself
    monkeypatch.setattr(coverage_by_module, "ROOT", tmp_path)
    settings = coverage_by_module.SETTINGS.replace(str(ROOT / "ssl_vit"), f"{tmp_path}/package")
    monkeypatch.setattr(coverage_by_module, "SETTINGS", settings)
    found = coverage_by_module.measure(tmp_path, {"tests": "test_it.py"})
    assert found["tests"] == {"passed": 3} and coverage.version_info
    assert found["modules"]["package/module.py"]["uncovered"] == "10"
    lines = coverage_by_module.tests_by_line(tmp_path)["package/module.py"]
    tests = {
        names[line // 2 - 1]: [one.partition("::")[2] for one in lines[line]]
        for line in lines
        if not line % 2
    }
    assert tests == {
        "shared": ["test_forked", "test_here"],
        "here": ["test_here"],
        "forked": ["test_forked"],
        "started": ["test_started"],
    }
