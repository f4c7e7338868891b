"""Facts that are read without a run: the tools' help texts, the resolved recipes and planned
studies, the golden curves. `python robustness/baseline.py make FOLDER only=help,recipes,golden`."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import shipped_recipes
import yaml
from tree import ROOT, tool


def help_texts(folder: Path, options: dict[str, str]) -> dict[str, list[str]]:
    """{tool: lines of its --help}; "" is the list of the tools."""
    names = ["", *sorted(path.stem for path in (ROOT / "tools").glob("*.py"))]
    return {name: _help(*filter(None, [name])) for name in names}


def _help(*words: str) -> list[str]:
    return tool(*words, "--help").replace(str(ROOT), "ROOT").splitlines()


def resolved_recipes(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    """{recipe: its values, or of a study its parts and their tasks}."""
    meanings = {name: plain(shipped_recipes.meaning(name)) for name in shipped_recipes.names()}
    return {
        name: {"study": found["study"], "parts": by_part(found["tasks"])}
        if name.startswith("study/")
        else yaml.safe_load(found)
        for name, found in meanings.items()
    }


def by_part(tasks: dict[str, Any]) -> dict[str, Any]:
    """{part: {"options": those of all its tasks, "tasks": {name: its own options, and the rest}}}
    without what is empty: the same in a third of the length."""
    parts: dict[str, Any] = {}
    for task in tasks.values():
        parts.setdefault(task["part"], []).append(task)
    found = {}
    for part, members in parts.items():
        first, *others = [task["words"] for task in members]
        common = {k: v for k, v in first.items() if all(one.get(k) == v for one in others)}
        found[part] = {"options": common, "tasks": {}}
        for task in members:
            own = {k: v for k, v in task["words"].items() if k not in common}
            rest = {k: v for k, v in task.items() if k not in ("name", "part", "words")}
            fields = {k: v for k, v in {**rest, "options": own}.items() if v or v == 0}
            found[part]["tasks"][task["name"]] = fields
    return found


def plain(value: Any) -> Any:
    """As JSON has it: tuples are lists, keys are text."""
    return json.loads(json.dumps(value, default=list))


def golden_curves(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    """{file: its hash}, and whether the curves of this checkout are these."""
    files = sorted((ROOT / "tests" / "golden").glob("*.json"))
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files}
    tests = [str(path) for path in (ROOT / "tests").rglob("test_golden.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return {"files": hashes, "passed": done.returncode == 0 or done.stdout[-3000:].splitlines()}
