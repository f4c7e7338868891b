"""Count the tokens of code in Python trees: names, numbers, operators and strings.

Docstrings, comments and layout do not count, so formatting and documentation do not change the
result.

python tests/helpers/size.py ssl_vit tests
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LAYOUT = {
    *(tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.COMMENT, tokenize.ENDMARKER),
}


def count_tokens(code: str) -> int:
    """Count the tokens of a module's code. All tokens on the lines of a docstring are left out."""
    docstring_lines = {
        line
        for node in ast.walk(ast.parse(code))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return sum(
        token.type not in LAYOUT and token.start[0] not in docstring_lines for token in tokens
    )


def count_tree(root: Path) -> int:
    """Count the tokens of all Python files below a folder."""
    return sum(count_tokens(path.read_text()) for path in root.rglob("*.py"))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{name}: {count_tree(Path(name)):,} tokens")
