"""Only measurements.py knows how the names of metrics are built."""

import ast
from collections.abc import Iterator

from helpers.options import ROOT
from ssl_vit import measurements

PACKAGE = ROOT / "ssl_vit"
APART = {"removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit"}
APART |= {"startswith", "endswith"}
STARTS = (measurements._HELD_OUT, measurements._PROBE, measurements._PROBED)
STARTS += tuple(measurements._PREFIXES.values())
ENDS = tuple(f"_{kind}" for kind in measurements.PATCHES)
# What modules about metrics take apart that is no metric's name: {module: expressions}
OTHERS = {
    "evaluation/dense.py": {"row_B"},
    "jobs/banner.py": {"key"},
    "jobs/encoders.py": {"key", "place"},
    "lab/report.py": {"text", "word", "' '.join(verdict.rows['origin'])"},
    "lab/runs/listed.py": {"key", "run.state"},
    "lab/runs/tool.py": {"sort"},
    "lab/study/check.py": {"key"},
    "lab/study/read.py": {"shlex", "first['msg']", "key", "pair", "str(node)"},
    "lab/tables.py": {"name"},
    "objectives/base.py": {"name"},
    "objectives/distill/__init__.py": {"name"},
    "pages/curves.py": {"line", "title"},
    "pages/metric_tables.py": {"baseline.called"},
    "pages/run_wording.py": {"revision"},
    "pages/scratch.py": {"key"},
    "recipe/declaration.py": {"kind.__module__"},
    "recipe/schema.py": {"key", "name", "self.resume", "value"},
}
# Texts that begin or end like a piece of a name
WHOLE = {
    ("jobs/train.py", "validation/loss"),
    ("metrics.py", "accuracy_masked"),
    ("metrics.py", "loss_masked"),
    ("objectives/targets/__init__.py", "pixels_l1"),  # name of a target
    ("pages/curves.py", "probe/"),  # label of a curve for readers
}


def modules() -> dict[str, ast.Module]:
    paths = sorted(PACKAGE.rglob("*.py"))
    trees = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in paths}
    del trees["measurements.py"]
    return trees


def imports(tree: ast.Module) -> set[str]:
    """The names that a module imports from measurements.py and metrics.py."""
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("measurements", "metrics")
        for alias in node.names
    }


def taken_apart(tree: ast.Module) -> set[str]:
    """The expressions of which a module calls a method such as `startswith`."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    methods = [call for call in calls if isinstance(call, ast.Attribute) and call.attr in APART]
    return {ast.unparse(method.value) for method in methods}


def test_names_are_taken_apart_in_one_module() -> None:
    """A module that reads or shows metrics calls `read_flat_name` instead of `startswith`."""
    public = {*dir(measurements)}
    found = {name: taken_apart(tree) for name, tree in modules().items() if imports(tree) & public}
    assert len(found) > 20
    assert {name: calls for name, calls in found.items() if calls - OTHERS.get(name, set())} == {}


def pieces(tree: ast.Module) -> Iterator[str]:
    """The texts that begin or end like the name of a metric, also inside f-strings."""
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and (text.startswith(STARTS) or text.endswith(ENDS)):
            yield text


def test_pieces_of_names_are_written_in_one_module() -> None:
    """Nobody builds a name from pieces such as `probe_`, or looks for these pieces."""
    found = {(name, piece) for name, tree in modules().items() for piece in pieces(tree)}
    assert found == WHOLE
