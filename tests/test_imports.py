"""Who may import whom: each module only those to its left; and what must do without torch."""

import ast
import subprocess
import sys

import pytest
from conftest import ROOT

# In this order; the modules of one row ignore each other. A subpackage is one place, unless its modules are named.
ORDER = [
    ("streams", "markdown"),
    ("recipe", "counted", "targets", "statistics", "processes.stopping"),
    ("hub.remote", "lock", "files"),
    ("bounds", "inits", "uses"),
    ("words",),
    ("encoder",),
    ("data",),
    ("corruption",),
    ("objectives",),
    ("optim",),
    ("compute", "summary"),
    ("runs", "budget", "hub.measures"),
    ("identity",),
    ("studies", "report", "hub.card", "reshard"),
    ("interop",),
    ("weights", "processes.learner"),
    ("processes.sharding",),
    ("checkpoint", "state"),
    ("processes.liveness", "hub.plain"),
    ("hub.parcels",),
    ("hub.ledger",),
    ("hub.push",),
    ("engine", "trouble"),
    ("evaluate",),
    ("figures",),
    ("tracking",),
    ("console",),
    ("processes.machine",),
    ("hub.background", "hub.pull"),
    ("assembly",),
    ("introduction", "ending"),
    ("job",),
    ("probing", "pace"),
    ("training", "forecast"),
    ("plan",),
]
PLACE = {name: i for i, row in enumerate(ORDER) for name in row}
DATA = (
    *("shapes", "order", "parts", "layout", "shards", "columns", "metadata", "files", "stream", "table", "formats", "sources"),
    "fingerprints",
    *("pictures", "batches", "loaders", "resize"),
)
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "ssl_vit").rglob("*.py"))
}


def imported(name, path):
    """Full names of what a file imports anywhere in it: modules of this package where they are, else as written."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                found.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base)
    return found


def place(name):
    """The part of a module's name that ORDER knows: itself or its subpackage; None outside the package."""
    parts = name.split(".")
    if parts[0] != "ssl_vit":
        return None
    return next((known for known in (".".join(parts[1:3]), *parts[1:2]) if known in PLACE), None)


def test_relative_imports_are_resolved():
    """The referee itself, on files known by heart."""
    assert {"ssl_vit.counted", "ssl_vit.recipe", "ssl_vit.data.pictures", "ssl_vit.data.parts", "torch"} <= imported(
        "ssl_vit.data.batches", MODULES["ssl_vit.data.batches"]
    )
    assert "ssl_vit.recipe" in imported("ssl_vit.encoder", MODULES["ssl_vit.encoder"])
    assert "ssl_vit.objectives.mpp" in imported("ssl_vit.objectives", MODULES["ssl_vit.objectives"])


def test_every_module_has_its_place():
    assert {place(name) for name in MODULES} - {None} == set(PLACE)
    shells = [name for name in MODULES if place(name) is None and name != "ssl_vit"]
    assert {name.removeprefix("ssl_vit.") for name in shells} == {name.partition(".")[0] for name in PLACE if "." in name}
    for name in ("ssl_vit", *shells):  # nothing but what they say
        assert not [other for other in imported(name, MODULES[name]) if other.startswith("ssl_vit")], name


@pytest.mark.parametrize("name", [name for name in MODULES if place(name)])
def test_a_module_imports_only_what_lies_to_its_left(name):
    for other in imported(name, MODULES[name]):
        if other.partition(".")[0] == "ssl_vit" and place(other) != place(name):
            assert place(other) is not None, f"{name} imports the whole package"
            assert PLACE[place(other)] < PLACE[place(name)], f"{name} imports {other}"


def test_corruption_imports_only_counted():
    ours = {other for other in imported("ssl_vit.corruption", MODULES["ssl_vit.corruption"]) if place(other)}
    assert ours == {"ssl_vit.counted"}


def test_data_has_an_order_of_its_own():
    inside = {name.rpartition(".")[2] for name in MODULES if name.startswith("ssl_vit.data.")}
    assert inside == set(DATA)
    for i, name in enumerate(DATA):
        others = imported(f"ssl_vit.data.{name}", MODULES[f"ssl_vit.data.{name}"])
        within = {other.rpartition(".")[2] for other in others if other.startswith("ssl_vit.data")}
        assert within <= set(DATA[:i]), name


def test_nothing_imports_the_tools():
    tools = {path.stem for path in (ROOT / "tools").rglob("*.py")}
    assert "pretrain" in tools
    for folder in ("ssl_vit", "tools", "benchmarks", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            assert not {other.partition(".")[0] for other in imported(name, path)} & (
                {"tools"} | tools - sys.stdlib_module_names
            ), path


@pytest.mark.parametrize(
    "name",
    [
        "recipe",
        "words",
        "counted",
        "compute",
        "runs",
        "identity",
        "data.fingerprints",
        "inits",
        "training",
        "studies.command",
        "report",
        "plan",
        "reshard",
        "hub.ledger",
        "hub.push",
        "hub.remote",
        "processes.stopping",
    ],
)
def test_what_answers_a_command_line_does_without_torch(name):
    code = f"import sys, ssl_vit.{name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
