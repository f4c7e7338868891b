"""How many small faults the tests catch: mutants of lines that tests run, each against tests that
run its line.

    python robustness/mutants.py FOLDER count=100 seed=0 workers=2
    python robustness/mutants.py FOLDER of=OLD/mutants.json     the same ones again
    python robustness/mutants.py FOLDER module=ssl_vit/rng.py count=3

Needs the coverage of the same commit in FOLDER (coverage_by_module.py) and no changed files; writes
FOLDER/mutants.json. A mutant runs what the code would not do: run them where nothing is precious.
A minute each, beside other work on 2 virtual cores. Each mutant is made in a clone of the commit, and
runs the cheapest tests of its line, from at most 3 files, within 60 s. `survived` means by these.
A test that catches one must pass without it in the same clone. What is found goes to
FOLDER/mutants.jsonl at once, and an interrupted measurement goes on there.
"""

import contextlib
import json
import os
import queue
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import coverage_by_module
import mutate
from mutate import Mutant
from tree import ROOT, commit, environment, git, renames, write

FILES, BUDGET = 3, 60.0  # of tests of a mutant; seconds that they took when coverage was measured
CAUGHT, SURVIVED, TIMED_OUT, NOT_JUDGED = "caught", "survived", "timed out", "not judged"
GONE, NOT_COVERED = "gone", "not covered"  # of an older tree's: no such line; no test runs it
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", re.MULTILINE)
NAME = ("function", "text", "kind", "before", "after", "nth")


class Tests(NamedTuple):
    """What coverage found: which tests run which line of which module; what each came to."""

    lines: dict[str, dict[int, list[str]]]
    outcomes: dict[str, tuple[str, float]]

    def of(self, module: str, mutant: Mutant) -> list[str]:
        lines = self.lines.get(module, {})
        found = lines.get(mutant.line) or lines.get(mutant.statement) or []
        return [test for test in found if self.outcomes.get(test, ("",))[0] == "passed"]

    def cheapest(self, tests: list[str]) -> list[str]:
        """Those that are run: the first ones by their time, of few files and within the budget."""
        chosen: list[str] = []
        spent = 0.0
        for test in sorted(tests, key=lambda one: (self.outcomes[one][1], one)):
            files = {one.partition("::")[0] for one in [*chosen, test]}
            seconds = self.outcomes[test][1]
            if len(files) <= FILES and (not chosen or spent + seconds <= BUDGET):
                chosen.append(test)
                spent += seconds
        return chosen


def measure(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    """{"counts": {verdict: number}, "mutants": [...]}."""
    if commit().endswith("+"):
        raise RuntimeError("files differ from the commit: mutants are made in a clone of it")
    record = json.loads((folder / "outcomes.json").read_text())
    outcomes = {name: (found[0], found[1]) for name, found in record["tests"].items()}
    tests = Tests(coverage_by_module.tests_by_line(folder), outcomes)
    if "of" in options:
        rows = again(json.loads(Path(options["of"]).read_text()), tests)
    else:
        seed, count = int(options.get("seed", 0)), int(options.get("count", 100))
        rows = draw(tests, seed, count, options.get("module", ""))
    workers = int(options.get("workers", 1))
    judged = judge_all(rows, tests, folder / "mutants.jsonl", workers)
    counts = Counter(row["verdict"] for row in judged)
    return {"counts": dict(counts), "mutants": judged}


def draw(tests: Tests, seed: int, count: int, only: str) -> list[dict[str, Any]]:
    """Mutants of `count` lines at equal distances in the list of all lines that tests run, by
    module and line: each module has as many as its lines are worth."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for module in sorted(tests.lines):
        if only in module and module.endswith(".py"):  # templates have lines too
            for mutant in mutate.mutants_of(ROOT / module):
                if tests.of(module, mutant):
                    lines.setdefault((module, mutant.line), []).append(mutant)
    chance = random.Random(f"mutants {seed}")
    places = sorted(lines)
    count = min(count, len(places))
    start = chance.random()
    chosen = [places[int((start + i) * len(places) / count)] for i in range(count)]
    return [_row(module, chance.choice(lines[module, line])) for module, line in chosen]


def _row(module: str, mutant: Mutant) -> dict[str, Any]:
    return {"module": module, **dict(zip(NAME, mutant.name(), strict=True))}


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in NAME)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["module"], *_name(row))


def again(record: dict[str, Any], tests: Tests) -> list[dict[str, Any]]:
    """The mutants of an older tree in this one: by function and text of the line, in the file where
    the module went, or in the only other one that has it."""
    moved = renames(record["made"]["commit"], commit())
    here = {
        str(path.relative_to(ROOT)): {one.name(): one for one in mutate.mutants_of(path)}
        for path in sorted((ROOT / "ssl_vit").rglob("*.py"))
    }
    rows = []
    for old in record["value"]["mutants"]:
        row = {key: old[key] for key in ("module", *NAME)}
        expected = moved.get(old["module"], old["module"])
        places = [expected, *(module for module in here if module != expected)]
        places = [module for module in places if _name(row) in here.get(module, {})]
        sure = places[:1] == [expected] or len(places) == 1
        rows.append(row | ({"now": places[0]} if sure else {"verdict": GONE}))
    return rows


def judge_all(
    rows: list[dict[str, Any]], tests: Tests, log: Path, workers: int
) -> list[dict[str, Any]]:
    """The rows with their verdicts, as many at once as there are workers."""
    now = commit()
    known = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        found = json.loads(line)
        if found.pop("commit") == now:
            known[_key(found)] = found
    with tempfile.TemporaryDirectory() as temporary, log.open("a") as file:
        clones: queue.Queue[Path] = queue.Queue()
        for number in range(workers):
            clones.put(Path(temporary) / str(number))
            git("clone", "--quiet", "--shared", str(ROOT), f"{temporary}/{number}")

        def judged(row: dict[str, Any]) -> dict[str, Any]:
            if _key(row) in known:
                return known[_key(row)]
            if "verdict" not in row:
                clone = clones.get()
                try:
                    row = judge(row, tests, clone)
                finally:
                    clones.put(clone)
            file.write(json.dumps(row | {"commit": now}) + "\n")
            file.flush()
            place = f"{row['module']} {row['function']}: {row['before']!r} -> {row['after']!r}"
            print(f"{row['verdict']:<12}{place[:100]}", flush=True)
            return row

        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(judged, rows))


def judge(row: dict[str, Any], tests: Tests, clone: Path) -> dict[str, Any]:
    """A mutant's row with its verdict, its tests' number and the test that caught it."""
    module = row.get("now", row["module"])
    path = clone / module
    mutant = next(one for one in mutate.mutants_of(path) if one.name() == _name(row))
    covering = tests.of(module, mutant)
    chosen = tests.cheapest(covering)
    row = row | {"covering": len(covering), "run": len(chosen)}
    if not chosen:
        return row | {"verdict": NOT_COVERED}
    limit = 60 + 5 * sum(tests.outcomes[one][1] for one in chosen)
    original = path.read_bytes()
    try:
        mutate.apply(path, mutant)
        _forget_compiled(path)
        verdict, test = run_tests(chosen, clone, limit)
    finally:
        path.write_bytes(original)
        _forget_compiled(path)
    if verdict == CAUGHT and run_tests([test] if test else chosen, clone, limit)[0] != SURVIVED:
        verdict = NOT_JUDGED
    return row | {"verdict": verdict, "test": test}


def _forget_compiled(path: Path) -> None:
    """Python takes a compiled file for the present one if size and second of the two agree."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def run_tests(tests: list[str], clone: Path, limit: float) -> tuple[str, str]:
    """Verdict, and the test that failed first ("" where pytest did not come so far)."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=clone,
            env=environment(PYTHONPATH=str(clone)),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return TIMED_OUT, ""
        finally:
            _end(process)
        output.seek(0)
        text = output.read()
    if status == 0:
        return SURVIVED, ""
    if status == 5 or "not found:" in text:
        raise RuntimeError(f"pytest did not find {tests}: {text[-1000:]}")
    failed = FAILED.search(text)
    return CAUGHT, failed[1] if failed and failed[1] in tests else ""


def _end(process: subprocess.Popen) -> None:
    """End what is left of the tests' processes."""
    with contextlib.suppress(ProcessLookupError):  # nothing is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    found = measure(place, dict(word.split("=", 1) for word in sys.argv[2:]))
    write(place / "mutants.json", found)
    print(json.dumps(found["counts"]))
