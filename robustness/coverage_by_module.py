"""Lines and branches of each module that the tests run, in all processes that they start or fork,
and which test runs which line.

    python robustness/coverage_by_module.py FOLDER workers=2
    python robustness/coverage_by_module.py FOLDER tests=tests/test_rng.py,tests/objectives

Prints a table, and writes FOLDER/coverage.json and what mutants.py reads: FOLDER/coverage.sqlite and
FOLDER/outcomes.json. Needs `coverage` (the extra [dev]). Processes that are killed leave no lines.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tree import ROOT, write

PACKAGE = "ssl_vit"
# subprocess, fork: measured too; _exit: such processes write what they measured
SETTINGS = f"""[run]
branch = true
parallel = true
source = {ROOT / PACKAGE}
data_file = {{data}}
patch =
    subprocess
    fork
    _exit
disable_warnings = {{warnings}}
"""
# They would stand in the streams that tests look at
WARNINGS = (
    *("no-data-collected", "module-not-measured", "module-not-imported", "module-not-python"),
    *("already-imported", "couldnt-parse", "trace-changed", "include-ignored", "dynamic-conflict"),
    *("no-sysmon", "no-ctracer", "no-sysmon-context", "stdlib-paths"),
)


def measure(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    """{"modules": {path: counts and what is not run}, "tests": {outcome: count}, "seconds"}.

    `tests=` names files (default: all), `workers=` processes of pytest (default 1).
    """
    raw = folder / "coverage-data"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir()
    settings = raw / "coverage.ini"
    settings.write_text(SETTINGS.format(data=raw / "data", warnings=",".join(WARNINGS)))
    outcomes = folder / "outcomes.json"
    workers = options.get("workers", "1")
    spread = ["-n", workers, "--dist", "loadfile"] if workers != "1" else []
    start = time.monotonic()
    _coverage(
        *("run", f"--rcfile={settings}", "-m", "pytest", "-p", "robustness.coverage_contexts"),
        *(f"--outcomes={outcomes}", *spread, *filter(None, options.get("tests", "").split(","))),
        status=(0, 1),
    )
    seconds = time.monotonic() - start
    # those that were killed while they wrote are left out
    _coverage("combine", f"--rcfile={settings}", "--quiet", str(raw), status=(0, 1))
    data = raw / "data"
    report = raw / "report.json"
    _coverage("json", f"--rcfile={settings}", "--quiet", "-o", str(report), status=(0,))
    files = json.loads(report.read_text())["files"]
    data.replace(folder / "coverage.sqlite")
    shutil.rmtree(raw)
    counts: dict[str, int] = {}
    for outcome, _ in json.loads(outcomes.read_text())["tests"].values():
        counts[outcome] = counts.get(outcome, 0) + 1
    modules = {_relative(path): _module(found) for path, found in files.items()}
    return {"modules": modules, "tests": counts, "seconds": round(seconds)}


def _coverage(*words: str, status: tuple[int, ...]) -> None:
    command = [sys.executable, "-m", "coverage", *words]
    done = subprocess.run(command, cwd=ROOT)
    if done.returncode not in status:
        raise RuntimeError(f"coverage {words[0]}: status {done.returncode}")


def _relative(path: str) -> str:
    return str((ROOT / path).resolve().relative_to(ROOT))


def _module(found: dict[str, Any]) -> dict[str, Any]:
    """Counts of a module; lines that no test runs as text such as "3, 7-9"."""
    summary = found["summary"]
    return {
        "lines": summary["num_statements"],
        "uncovered_lines": summary["missing_lines"],
        "branches": summary["num_branches"],
        "uncovered_branches": summary["missing_branches"],
        "uncovered": ", ".join(_ranges(found["missing_lines"])),
    }


def _ranges(lines: list[int]) -> Iterator[str]:
    start = last = None
    for line in [*lines, None]:
        if start is not None and last is not None and line != last + 1:
            yield str(start) if start == last else f"{start}-{last}"
            start = line
        start = line if start is None else start
        last = line


def tests_by_line(folder: Path) -> dict[str, dict[int, list[str]]]:
    """{module: {line: tests that run it}} of the last measurement."""
    from coverage import CoverageData

    fixtures = json.loads((folder / "outcomes.json").read_text())["fixtures"]
    data = CoverageData(str(folder / "coverage.sqlite"))
    data.read()
    found: dict[str, dict[int, list[str]]] = {}
    for path in data.measured_files():
        lines = data.contexts_by_lineno(path)
        found[_relative(path)] = {
            line: sorted({test for one in contexts for test in _tests(one, fixtures)})
            for line, contexts in lines.items()
        }
    return found


def _tests(context: str, fixtures: dict[str, list[str]]) -> list[str]:
    """The tests of a context; none of the one that imports and collecting have."""
    return fixtures.get(context, [context] if "::" in context else [])


def table(modules: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield f"{'module':<44} {'lines':>6} {'not run':>8} {'branches':>9} {'not run':>8}"
    total = [0, 0, 0, 0]
    names = ("lines", "uncovered_lines", "branches", "uncovered_branches")
    for name, module in sorted(modules.items()):
        row = [module[key] for key in names]
        total = [a + b for a, b in zip(total, row, strict=True)]
        yield f"{name:<44} {row[0]:>6,} {row[1]:>8,} {row[2]:>9,} {row[3]:>8,}"
    yield f"{'all':<44} {total[0]:>6,} {total[1]:>8,} {total[2]:>9,} {total[3]:>8,}"


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    place.mkdir(parents=True, exist_ok=True)
    made = measure(place, dict(word.split("=", 1) for word in sys.argv[2:]))
    write(place / "coverage.json", made)
    print("\n".join(table(made["modules"])))
