"""What two trees' facts differ in, as (place, text) a difference."""

import difflib
from collections.abc import Callable, Iterator
from typing import Any

from tree import renames

Difference = tuple[str, str]
SLOWER = 1.1  # times as long is a difference
MISSING = object()


def of_fact(name: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Difference]:
    """Of two records {"made": ..., "value": ...} of one fact."""
    special: dict[str, Callable[..., Iterator[Difference]]] = {
        "coverage": of_coverage,
        "mutants": of_mutants,
        "speed": of_times,
        "suite": of_times,
    }
    if name in special:
        yield from special[name](name, old, new)
    else:
        yield from of_values(name, old["value"], new["value"])


def of_values(place: str, old: Any, new: Any) -> Iterator[Difference]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{place}/{key}"
            yield from of_values(inner, old.get(key, MISSING), new.get(key, MISSING))
    elif old is MISSING or new is MISSING:
        yield place, "only in the new one" if old is MISSING else "only in the old one"
    elif _is_text(old) and _is_text(new):
        if old != new:
            lines = list(difflib.unified_diff(old, new, "old", "new", lineterm="", n=0))[2:]
            yield place, "\n  ".join(["", *lines])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from of_values(f"{place}/{i}", a, b)
    elif old != new or type(old) is not type(new):
        yield place, f"{str(old)[:200]} -> {str(new)[:200]}"


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(line, str) for line in value)


def of_coverage(name: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Difference]:
    """No module has more lines or branches that no test runs than it had, wherever it is now; a
    module that is new has none."""
    moved = renames(old["made"]["commit"], new["made"]["commit"])
    before = {moved.get(path, path): found for path, found in old["value"]["modules"].items()}
    after = new["value"]["modules"]
    for path in sorted(before.keys() - after.keys()):
        yield f"{name}/{path}", "is gone, or its parts went where git does not follow"
    for path, found in sorted(after.items()):
        was = before.get(path, {})
        for key in ("uncovered_lines", "uncovered_branches"):
            if found[key] > was.get(key, 0):
                text = f"{was.get(key, 'no module')} -> {found[key]}"
                yield f"{name}/{path}/{key}", f"{text} (lines {found['uncovered']})"
    if failed := new["value"]["tests"].get("failed"):
        yield f"{name}/tests", f"{failed} failed"


def of_mutants(name: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Difference]:
    """What was caught is caught."""
    verdicts = {_mutant(row): row["verdict"] for row in new["value"]["mutants"]}
    noticed = ("caught", "timed out")
    for row in old["value"]["mutants"]:
        now = verdicts.get(_mutant(row), "not made")
        if row["verdict"] in noticed and now not in noticed:
            what = f"{row['text']}: {row['before']} -> {row['after']}"
            yield f"{name}/{row['module']}/{row['function']}", f"caught -> {now}: {what}"


def _mutant(row: dict[str, Any]) -> tuple[Any, ...]:
    keys = ("module", "function", "text", "kind", "before", "after", "nth")
    return tuple(row[key] for key in keys)


def of_times(name: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Difference]:
    """More than a tenth slower; names of what is the faster the higher it is end in "/s"."""
    if old["made"]["cpu"] != new["made"]["cpu"]:
        yield name, f"other machines: {old['made']['cpu']}, {new['made']['cpu']}"
        return
    for key, before in old["value"].items():
        after = new["value"].get(key)
        if isinstance(before, int | float) and isinstance(after, int | float):
            times_as_long = before / after if key.endswith("/s") else after / before
            changed = key != "load" and times_as_long > SLOWER
        else:
            changed = before != after
        if changed:
            yield f"{name}/{key}", f"{before} -> {after}"
