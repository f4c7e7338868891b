"""The one import order of ssl_vit/, without circles; and what has to work without torch."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

# Each entry of ssl_vit/ imports only from entries above it.
ORDER = (
    "errors",
    "rng",
    "stats",
    "formatting",
    "callbacks",
    "hub_files",
    "config",
    "costs",
    "runs",
    "data",
    "models",
    "objectives",
    "training",
    "evaluation",
    "inspection",
    "pages",
    "hub",
    "jobs",
    "lab",
)
WITHOUT_TORCH = (
    "errors",
    "rng",
    "callbacks",
    "hub_files",
    "config.schema",
    "config.resolve",
    "config.init_source",
    "costs",
    "runs.folder",
    "runs.console",
    "runs.trackers",
    "training.preemption",
    "hub.manifest",
    "hub.push",
    "jobs.cli",
    "jobs.draw_figures",
    "jobs.embed",
    "lab.runs_tool",
    "data.make_shards",
    "lab.study_tool",
    "lab.plan_tool",
    "lab.reports",
    "pages.run_page",
)
PACKAGE = ROOT / "ssl_vit"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@functools.cache
def imported(name: str, path: Path) -> set[str]:
    """Full names of everything that a file imports, anywhere in it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def entry(name: str) -> str:
    """The entry of ssl_vit/ that a full name belongs to; "" for ssl_vit itself and for other
    packages."""
    parts = name.split(".")
    named = parts[0] == "ssl_vit" and len(parts) > 1 and not parts[1].startswith("__")
    return parts[1] if named else ""


def test_relative_imports_are_resolved() -> None:
    """The helper above, on files whose imports are known."""
    found = imported("ssl_vit.data.batching", MODULES["ssl_vit.data.batching"])
    assert {"ssl_vit.rng", "ssl_vit.data.transforms", "torch"} <= found
    found = imported("ssl_vit.objectives", MODULES["ssl_vit.objectives"])
    assert "ssl_vit.objectives.mpp.MaskedPatchPrediction" in found


def test_the_package_has_these_entries_and_no_others() -> None:
    assert {entry(name) for name in MODULES} - {""} == set(ORDER)
    assert len(ORDER) <= 20


@pytest.mark.parametrize("name", MODULES)
def test_modules_import_only_entries_above_their_own(name: str) -> None:
    if name in ("ssl_vit", "ssl_vit.__main__"):  # the interface and the command line, lazily
        allowed = ORDER
    else:
        allowed = ORDER[: ORDER.index(entry(name)) + 1] if entry(name) else ()
    for other in imported(name, MODULES[name]):
        if other.partition(".")[0] == "ssl_vit":
            assert entry(other) in allowed, f"{name} imports {other}"


def module_of(name: str) -> str | None:
    """The module that an imported name is, or is in; None outside ssl_vit."""
    return next((known for known in (name, name.rpartition(".")[0]) if known in MODULES), None)


def test_no_two_modules_import_each_other() -> None:
    """Inside an entry too, directly or through others, imports inside functions included."""
    graph = {
        name: {module_of(other) for other in imported(name, path)} - {None, name}
        for name, path in MODULES.items()
        if path.name != "__init__.py"
    }
    left = {name: others & graph.keys() for name, others in graph.items()}
    while free := [name for name, others in left.items() if not others]:
        left = {name: others - set(free) for name, others in left.items() if name not in free}
    assert not left, f"a circle among {sorted(left)}"


def test_nothing_imports_the_tools() -> None:
    tools = {path.stem for path in (ROOT / "tools").glob("*.py")}
    assert "pretrain" in tools
    for folder in ("ssl_vit", "tools", "benchmarks", "robustness", "results", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found = {other.partition(".")[0] for other in imported(name, path)}
            assert not found & ({"tools"} | tools), path


def test_no_tool_hides_a_module_of_the_standard_library() -> None:
    """tools/ comes first on the path of `python tools/NAME.py`."""
    assert not {path.stem for path in (ROOT / "tools").glob("*.py")} & sys.stdlib_module_names


def test_what_answers_a_command_line_does_without_torch() -> None:
    """One after the other in one process: the first whose import brings torch is named."""
    code = f"""
import importlib, sys
for name in {WITHOUT_TORCH}:
    importlib.import_module("ssl_vit." + name)
    if "torch" in sys.modules:
        sys.exit(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, timeout=60, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


NARROW = ("data", "models", "objectives", "training", "evaluation", "inspection")
# Files that still take one; none may be added
TAKE_A_RECIPE: set[str] = set()


def takes_a_recipe(text: str) -> list[str]:
    """Names of the functions with a parameter annotated Recipe or Run."""
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        and any(
            re.search(r"\b(Recipe|Run)\b", ast.unparse(parameter.annotation or ast.Constant("")))
            for parameter in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        )
    ]


def test_a_parameter_that_is_a_recipe_is_found() -> None:
    text = (
        "def one(a: int, *, b: 'Recipe | None'): ...\ndef two(run: Run): ...\ndef three(r: "
        "Runs): ..."
    )
    assert takes_a_recipe(text) == ["one", "two"]


@pytest.mark.parametrize("name", [name for name in MODULES if entry(name) in NARROW])
def test_the_recipe_stops_at_the_jobs(name: str) -> None:
    found = takes_a_recipe(MODULES[name].read_text())
    assert not found or name.removeprefix("ssl_vit.") in TAKE_A_RECIPE
