"""How many lines of code a Python tree has: those that are no docstring, comment or blank line.

python tests/helpers/size.py ssl_vit tests
"""

import ast
import sys
from collections import Counter
from pathlib import Path

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    """A blank line inside a docstring is taken off twice."""
    lines = text.splitlines()
    blank = sum(not line.strip() for line in lines)
    comments = sum(line.strip().startswith("#") for line in lines)
    docstrings = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstrings += node.body[0].end_lineno - node.body[0].lineno + 1
    return len(lines) - blank - comments - docstrings


def folders(root: Path) -> dict[str, int]:
    """{folder directly in root: lines of code below it}; "." for the files of root itself."""
    found: Counter[str] = Counter()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).parts[0] if path.parent != root else "."
        found[place] += code_lines(path.read_text())
    return dict(found)


def files(root: Path) -> int:
    return sum(1 for _ in root.rglob("*.py"))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, folders(Path(name)), files(Path(name)))
