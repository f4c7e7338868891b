"""robustness/: mutants are found again where code went, differences of two trees are named, and
coverage knows the test whose processes ran a line."""

import ast
import itertools
import json
import sys
from pathlib import Path

import pytest
import yaml

from helpers.options import ROOT
from ssl_vit.evaluation import vtab
from ssl_vit.lab.studies.request import parse_request
from ssl_vit.lab.studies.task_recipes import check

sys.path.insert(0, str(ROOT / "robustness"))
import baseline
import differences
import mutants
import mutate
import old_runs
import small_studies

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


def facts(folder: Path, **values: object) -> Path:
    folder.mkdir(exist_ok=True)
    for name, value in values.items():
        record = {"made": {"commit": "HEAD", "cpu": "x"}, "value": value}
        (folder / f"{name}.json").write_text(json.dumps(record))
    return folder


def test_differences_are_named_and_those_with_a_reason_allowed(tmp_path: Path, capsys) -> None:
    recipes = {"mpp": {"optim": {"lr": 0.1}, "seed": 0}, "mae": {"seed": 0}}
    old = facts(tmp_path / "old", recipes=recipes, help={"pretrain": ["a", "b"]})
    changed = {"mpp": {"optim": {"lr": 0.2}, "seed": 0}, "new": {}}
    new = facts(tmp_path / "new", recipes=changed, help={"pretrain": ["a", "c"]})
    only = {"only": "help,recipes"}
    assert baseline.compare(old, old, only) == 0
    capsys.readouterr()
    assert baseline.compare(old, new, only) == 1
    printed = capsys.readouterr().out
    for line in ("recipes/mpp/optim/lr: 0.1 -> 0.2", "recipes/mae: only in the old", "-b\n  +c"):
        assert line in printed
    assert "4 differences" in printed and "seed" not in printed
    allowed = tmp_path / "allowed.yaml"
    allowed.write_text("- {place: 'recipes/*', reason: renamed}\n- {place: help/*, reason: help}\n")
    assert baseline.compare(old, new, only | {"allowed": str(allowed)}) == 0
    allowed.write_text("- {place: 'recipes/*', reason: ''}\n")
    with pytest.raises(SystemExit, match="reason"):
        baseline.compare(old, new, only | {"allowed": str(allowed)})


def test_a_fact_that_was_not_made_is_a_difference(tmp_path: Path, capsys) -> None:
    old, new = facts(tmp_path / "old", help={}), facts(tmp_path / "new")
    assert baseline.compare(old, new, {"only": "help"}) == 1
    assert "new/help.json is missing" in capsys.readouterr().out


def record(value: object) -> dict:
    return {"made": {"commit": "HEAD", "cpu": "x"}, "value": value}


def test_more_uncovered_lines_fewer_caught_mutants_and_longer_times_are_differences() -> None:
    module = {"uncovered_lines": 2, "uncovered_branches": 1, "uncovered": "3, 7"}
    old = record({"modules": {"a.py": module, "b.py": module}, "tests": {}})
    more = {"a.py": module | {"uncovered_lines": 3}, "c.py": module}
    found = differences.of_fact("coverage", old, record({"modules": more, "tests": {}}))
    assert [place for place, _ in found] == [
        "coverage/b.py",
        "coverage/a.py/uncovered_lines",
        *("coverage/c.py/uncovered_lines", "coverage/c.py/uncovered_branches"),
    ]
    fewer = {"a.py": module | {"uncovered_lines": 0}, "b.py": module}
    assert not [*differences.of_fact("coverage", old, record({"modules": fewer, "tests": {}}))]

    keys = dict.fromkeys(("module", "function", "text", "kind", "before", "after"), "x")
    row = keys | {"nth": 0, "verdict": "caught"}
    caught = record({"mutants": [row]})
    survived = record({"mutants": [row | {"verdict": "survived"}]})
    assert len([*differences.of_fact("mutants", caught, survived)]) == 1
    assert not [*differences.of_fact("mutants", survived, caught)]

    times = record({"help, s": 1.0, "images/s": 100, "load": 0.1})
    slower = record({"help, s": 1.2, "images/s": 80, "load": 3.0})
    assert len([*differences.of_fact("speed", times, slower)]) == 2
    assert not [*differences.of_fact("speed", slower, times)]


def test_rows_of_a_resumed_run_are_compared_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    old_runs._expect(path, [{"step": 1, "loss": 0.1}])
    assert old_runs.differences(path, [{"step": 1, "loss": 0.1}]) == []
    assert old_runs.differences(path, [{"step": 1, "loss": 0.1 + 2e-17}]) == [
        "run/0/loss: 0.1 -> 0.10000000000000002"
    ]
    assert old_runs.differences(path, [{"step": 1}]) == ["run/0: loss is on one side"]
    assert len(old_runs.differences(path, [])) == 1


def test_reports_are_compared_without_times_and_places() -> None:
    report = {"folder": "/tmp/x/runs", "rows": [{"seconds": 3.0, "loss": 1.0}], "hours": 2}
    found = small_studies.without_clock(report, "/tmp/x")
    assert found == {"folder": "PLACE/runs", "rows": [{"loss": 1.0}]}


@pytest.mark.parametrize("name", [*small_studies.STUDIES, "stopped"])
def test_the_tasks_of_the_small_studies_resolve(name: str, tmp_path: Path) -> None:
    study = (small_studies.STUDIES | {"stopped": old_runs.STUDY})[name]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    places = [f"{place}={tmp_path}" for place in study.get("places", [])]
    if name == "vtab":
        for task, part in itertools.product(vtab.tasks(), ("tune", "final")):
            (tmp_path / task / part).mkdir(parents=True)
        places = ["init=scratch", f"data={tmp_path}"]
    request = parse_request([f"recipe={tmp_path}/study.yaml", *places])
    assert len(check(request.study, request.plan)) == len(request.plan) >= 4


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
