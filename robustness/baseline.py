"""The facts of this checkout that a refactoring leaves as they are: makes them, compares two sets.

    python robustness/baseline.py make FOLDER only=help,recipes
    python robustness/baseline.py resume FOLDER
    python robustness/baseline.py compare OLD NEW allowed=FILE.yaml

`make` writes FOLDER/FACT.json for each fact (without `only=` for all; README.md lists them with
their options); each can be made again alone. `resume` takes the run folders that `make` left in
FOLDER/runs: lists, reports, loads and resumes copies of them with the code of this checkout.
`compare` prints each difference as FACT/PLACE: OLD -> NEW and ends with status 1 if there is one
that `allowed=` does not name: a list of {place: FACT/PLACE, with * and ?, reason: TEXT}.
"""

import fnmatch
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import coverage_by_module
import differences
import mutants
import old_runs
import small_studies
import speed
import texts
import yaml
from tree import commit, cpu

# {fact: function(folder, options) -> its value for JSON}, in an order in which each finds what it
# needs: mutants are drawn from the lines that coverage found
FACTS: dict[str, Callable[[Path, dict[str, str]], Any]] = {
    "help": texts.help_texts,
    "recipes": texts.resolved_recipes,
    "golden": texts.golden_curves,
    "studies": small_studies.measure,
    "runs": old_runs.measure,
    "coverage": coverage_by_module.measure,
    "mutants": mutants.measure,
    "speed": speed.measure,
    "suite": speed.measure_suite,
}


def make(folder: Path, options: dict[str, str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for name in _chosen(options):
        start = time.monotonic()
        value = FACTS[name](folder, options)
        made = {
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": sys.version.split()[0],
            "cpu": cpu(),
            "seconds": round(time.monotonic() - start, 1),
        }
        write(folder / f"{name}.json", {"made": made, "value": value})
        print(f"{name:<10} {made['seconds']:,.0f} s  {folder / name}.json", flush=True)
    return 0


def write(path: Path, record: dict[str, Any]) -> None:
    """As JSON with what fits into a line on one line, so that changes can be read."""
    path.write_text(_json(record, 0) + "\n")


def _json(value: Any, indent: int) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not isinstance(value, dict | list) or indent + len(text) <= 100:
        return text
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {_json(value[key], indent + 1)}" for key in sorted(value)]
    else:
        lines = [_json(one, indent + 1) for one in value]
    start, end = text[0], text[-1]
    inner = ",\n".join(" " * (indent + 1) + line for line in lines)
    return f"{start}\n{inner}\n{' ' * indent}{end}"


def compare(old: Path, new: Path, options: dict[str, str]) -> int:
    allowed = read_allowed(Path(options["allowed"])) if "allowed" in options else {}
    used: set[str] = set()
    count = 0
    for name in _chosen(options):
        for place, text in _compare(name, old, new):
            matching = [each for each in allowed if fnmatch.fnmatchcase(place, each)]
            used.update(matching)
            if matching:
                print(f"allowed: {place}: {text} ({allowed[matching[0]]})")
            else:
                count += 1
                print(f"{place}: {text}")
    for place in sorted(set(allowed) - used):
        print(f"allowed, but the same: {place}")
    print(f"{count:,} differences that are not allowed")
    return int(count > 0)


def read_allowed(path: Path) -> dict[str, str]:
    """{pattern of places: reason}."""
    rows = yaml.safe_load(path.read_text()) or []
    for row in rows:
        if set(row) != {"place", "reason"} or not str(row["reason"]).strip():
            sys.exit(f"error: {path}: expected place and reason in each row; there is {row}")
    return {row["place"]: row["reason"] for row in rows}


def _compare(name: str, old: Path, new: Path) -> list[tuple[str, str]]:
    files = [folder / f"{name}.json" for folder in (old, new)]
    lacking = [str(path) for path in files if not path.exists()]
    if lacking:
        return [(name, f"{', '.join(lacking)} is missing")]
    one, other = (json.loads(path.read_text()) for path in files)
    return list(differences.of_fact(name, one, other))


def _chosen(options: dict[str, str]) -> list[str]:
    names = options["only"].split(",") if "only" in options else list(FACTS)
    unknown = [name for name in names if name not in FACTS]
    if unknown:
        sys.exit(f"error: only={unknown[0]}: unknown; choices: {', '.join(FACTS)}")
    return names


def main(words: list[str]) -> int:
    options = dict(word.split("=", 1) for word in words if "=" in word)
    given = [word for word in words if "=" not in word]
    verb, *folders = given or [""]
    paths = [Path(folder).resolve() for folder in folders]
    if (verb, len(paths)) == ("make", 1):
        return make(paths[0], options)
    if (verb, len(paths)) == ("compare", 2):
        return compare(*paths, options)
    if (verb, len(paths)) == ("resume", 1):
        return old_runs.resume(paths[0] / "runs")
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
