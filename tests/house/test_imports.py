"""The one import order of ssl_vit/, without circles; and what has to work without torch."""

import ast
import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from helpers import made_studies
from helpers.options import ROOT

# Each entry of ssl_vit/ imports only from entries above it.
ORDER = (
    "errors",
    "extras",
    "rng",
    "stats",
    "measurements",
    "metrics",
    "formatting",
    "callbacks",
    "hub_files",
    "recipe",
    "runs",
    "data",
    "models",
    "objectives",
    "extend",
    "costs",
    "training",
    "evaluation",
    "pages",
    "inspection",
    "hub",
    "jobs",
    "lab",
)
# The same inside lab/
LAB_ORDER = (
    "options",
    "images",
    "memory",
    "estimate",
    "compare",
    "study",
    "results",
    "verdict",
    "answer",
    "next_step",
    "tables",
    "report",
    "runs",
    "report_pages",
    "plan",
    "api",
)
WITHOUT_TORCH = (
    "errors",
    "rng",
    "measurements",
    "metrics",
    "callbacks",
    "hub_files",
    "recipe.schema",
    "recipe.load",
    "recipe.init_source",
    "costs",
    "runs.folder",
    "runs.console",
    "runs.trackers",
    "training.preemption",
    "hub.manifest",
    "hub.push",
    "jobs.api",
    "jobs.cli",
    "jobs.draw_figures",
    "jobs.embed",
    "lab.api",
    "lab.runs.tool",
    "lab.study.tool",
    "lab.plan",
    "lab.report",
    "pages.run_page",
)
PACKAGE = ROOT / "ssl_vit"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@functools.cache
def imported(name: str, path: Path) -> set[str]:
    """Full names of everything that a file imports, anywhere in it, but for the type checker."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
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


def test_the_package_has_these_entries_and_no_others() -> None:
    assert {entry(name) for name in MODULES} - {""} == set(ORDER)
    assert len(ORDER) <= 23


def upwards(of: Callable[[str], str], order: tuple[str, ...]) -> list[str]:
    """Imports of an entry that does not stand above the module's own, of those that have one."""
    return [
        f"{name} imports {other}"
        for name, path in MODULES.items()
        for other in imported(name, path)
        if of(name) and of(other) and order.index(of(other)) > order.index(of(name))
    ]


def test_modules_import_only_entries_above_their_own() -> None:
    """The interface and the command line, which have none, import lazily."""
    assert upwards(entry, ORDER) == []
    assert not [n for n, path in MODULES.items() if entry(n) and "ssl_vit" in imported(n, path)]


def part_of_the_lab(name: str) -> str:
    """The entry of ssl_vit/lab/ that a full name belongs to; "" outside."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["ssl_vit", "lab"] and len(parts) > 2 else ""


def test_the_lab_has_these_entries_and_no_others() -> None:
    assert {part_of_the_lab(name) for name in MODULES} - {""} == set(LAB_ORDER)


def test_modules_of_the_lab_import_only_entries_above_their_own() -> None:
    assert upwards(part_of_the_lab, LAB_ORDER) == []


def test_the_engine_names_nothing_of_the_lab() -> None:
    """In a text, as importlib takes it."""
    engine = (path for name, path in MODULES.items() if entry(name) not in ("lab", ""))
    assert not [p for p in engine if re.search(r"""["'](ssl_vit)?\.*lab[."']""", p.read_text())]


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


def test_pandas_and_matplotlib_are_imported_for_the_report_of_a_study_alone(tmp_path: Path) -> None:
    """They take 0.7 s: not for --help, the list of runs, nor the page of a run."""
    made, frozen = tmp_path / "runs" / "made", made_studies.FROZEN
    study = made_studies.study(made, frozen, made_studies.counted(metric="knn"))
    run = next(study.glob("pretrain-*"))
    (study / "study.json").rename(tmp_path / "study.json")
    code = f"""
import sys
from ssl_vit.__main__ import main
for words in ("report --help", "runs {study}", "report {run}"):
    try:
        main(words.split())
    except SystemExit as end:
        assert not end.code, words
    assert not {{"pandas", "matplotlib"}} & sys.modules.keys(), words
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_scripts_import_what_the_package_has() -> None:
    """robustness/kill_study.py imported a function that had been removed, and no test ran it."""
    scripts = [
        path
        for name in ("benchmarks", "robustness", "tools")
        for path in (ROOT / name).glob("*.py")
    ]
    missing = []
    for path in scripts:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ssl_vit"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    submodule = f"{node.module}.{alias.name}"
                    if not hasattr(module, alias.name) and not importlib.util.find_spec(submodule):
                        missing.append(f"{path.name}: {submodule}")
    assert len(scripts) > 10 and not missing


def test_declarations_bring_no_torch() -> None:
    """Of all objectives and targets: title, options and sentences, in a process of its own."""
    code = (
        "import sys; from ssl_vit.recipe import declaration, schema;"
        "from ssl_vit import resolve;"
        "print(sorted(declaration.objectives()), sorted(declaration.targets()));"
        "schema.all_keys(); [resolve([f'recipe=mpp', f'objective={name}']).declared.groups"
        " for name in ('mpp', 'ijepa')];"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    folders = {path.parent.name for path in (PACKAGE / "objectives").glob("*/__init__.py")}
    objectives, targets = done.stdout.strip()[1:-1].split("] [")
    assert set(re.findall(r"\w+", objectives)) == folders - {"targets"}
    assert set(re.findall(r"\w+", targets)) >= {"mean_color", "pixels"}
