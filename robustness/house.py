"""Size and structure of ssl_vit/ in a checkout, as one JSON object.

python robustness/house.py [FOLDER]
"""

import ast
import io
import json
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

# Packages in which no function takes a whole recipe
NARROW = ("data", "models", "objectives", "training", "evaluation", "inspection")


def main(root: Path) -> None:
    modules = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((root / "ssl_vit").rglob("*.py"))
    }
    graph = {name: imports(name, path, modules) for name, path in modules.items()}
    functions = [
        (name, node)
        for name, path in modules.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lengths = [node.end_lineno - node.lineno + 1 for _, node in functions if node.end_lineno]
    lines = sum(len(formatted(path).splitlines()) for path in modules.values())
    record = {
        "entries": len({entry(name) for name in modules} - {"", "__main__"}),
        "entries_in_circles": len(circles(graph)),
        "longest_import_chain": longest_chain(graph),
        "functions_with_recipe_where_narrow": sum(
            takes_recipe(name, node) for name, node in functions
        ),
        "functions_with_recipe": sum(has_recipe(node) for _, node in functions),
        "lines_at_100_columns": lines,
        "comment_share": round(sum(map(comments, modules.values())) / lines, 4),
        "functions": len(functions),
        "median_function": statistics.median(lengths),
        "longest_function": max(lengths),
        "longest_file": max(len(formatted(path).splitlines()) for path in modules.values()),
    }
    print(json.dumps(record))


def imports(name: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of ssl_vit that a module imports at its top level."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in modules else base)
    return (found & modules.keys()) - {name}


def circles(graph: dict[str, set[str]]) -> set[str]:
    """Entries of ssl_vit/ that import one another, directly or through others."""
    entries: dict[str, set[str]] = {}
    for name, others in graph.items():
        here = entry(name)
        entries.setdefault(here, set()).update(entry(other) for other in others)
    entries.pop("", None)
    left = {here: others - {here, ""} for here, others in entries.items()}
    while free := [here for here, others in left.items() if not others & left.keys()]:
        left = {here: others for here, others in left.items() if here not in free}
    return set(left)


def entry(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def longest_chain(graph: dict[str, set[str]]) -> int:
    """Modules on the longest path of imports; 0 where there is a circle."""
    depth: dict[str, int] = {}

    def visit(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            raise RecursionError
        if name not in depth:
            depth[name] = 1 + max(
                (visit(other, (*above, name)) for other in graph[name]), default=0
            )
        return depth[name]

    try:
        return max(visit(name, ()) for name in graph)
    except RecursionError:
        return 0


def has_recipe(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    named = [ast.unparse(one.annotation) for one in arguments if one.annotation is not None]
    return any(text in ("Recipe", "Recipe | None") for text in named)


def takes_recipe(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return entry(name) in NARROW and has_recipe(node)


def formatted(path: Path) -> str:
    command = [
        *(sys.executable, "-m", "ruff"),
        "format",
        "--isolated",
        "--line-length",
        "100",
        "--stdin-filename",
        "x.py",
        "-",
    ]
    text = path.read_text()
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def comments(path: Path) -> int:
    """Lines that are nothing but a comment, or end in one."""
    tokens: Iterator[tokenize.TokenInfo] = tokenize.generate_tokens(
        io.StringIO(path.read_text()).readline
    )
    return sum(token.type == tokenize.COMMENT for token in tokens)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
