"""Small faults made by hand of a machine: where a function can be changed, and how.

Each is named by what stands there (function, text of the line, kind, what it becomes), not by its
place, so that it can be made again after the function has moved to another line or file.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Mutant(NamedTuple):
    """`start` and `end` are bytes of the file that become `after`; `line` is where, `statement` the
    first line of its statement. The others name it; `nth` tells equal ones of a function apart."""

    function: str
    text: str
    kind: str
    before: str
    after: str
    nth: int
    line: int
    statement: int
    start: int
    end: int

    def name(self) -> tuple[str, str, str, str, str, int]:
        return self[:6]


def mutants_of(path: Path) -> list[Mutant]:
    """All of a module, by line. Only what stands in functions: the tests that run a module's other
    lines are those that happen to import it first."""
    source = path.read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for function, statement, node, kind, after in _changes(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = source[start:end].decode()
        if before == after:
            continue
        text = lines[node.lineno - 1].decode().strip()
        key = (function, text, kind, before, after)
        found.append(Mutant(*key, seen[key], node.lineno, statement.lineno, start, end))
        seen[key] += 1
    return sorted(found, key=lambda one: (one.line, one.start, one.end, one.after))


def apply(path: Path, mutant: Mutant) -> None:
    """Change the file; it can still be parsed."""
    source = path.read_bytes()
    changed = source[: mutant.start] + mutant.after.encode() + source[mutant.end :]
    ast.parse(changed)
    path.write_bytes(changed)


Change = tuple[str, ast.stmt, ast.AST, str, str]  # function, statement, node, kind, new text


def _changes(tree: ast.Module) -> Iterator[Change]:
    for function, statement in _statements(tree, ()):
        yield from ((function, statement, *change) for change in _of_statement(statement))
        for node in _expressions(statement):
            yield from ((function, statement, *change) for change in _of_expression(node))


def _statements(
    node: ast.AST, inside: tuple[str, ...], called: bool = False
) -> Iterator[tuple[str, ast.stmt]]:
    """(qualified name of the function, statement) of all that stands in functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            is_function = isinstance(child, FUNCTIONS)
            yield from _statements(child, (*inside, child.name), is_function)
        else:
            if called and isinstance(child, ast.stmt):
                yield ".".join(inside), child
            yield from _statements(child, inside, called)


def _expressions(statement: ast.AST) -> Iterator[ast.AST]:
    """The expressions of a statement itself, without statements in it, annotations, patterns and
    f-strings (whose places Python 3.11 does not know)."""
    for name, value in ast.iter_fields(statement):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            left_out = (ast.stmt, ast.JoinedStr, ast.pattern)
            if isinstance(child, ast.AST) and not isinstance(child, left_out):
                yield child
                yield from _expressions(child)


def _of_statement(node: ast.stmt) -> Iterator[tuple[ast.AST, str, str]]:
    if isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield node, "return None", "return None"
    elif isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.UnaryOp):
        yield node.test, "branches swapped", f"(not ({ast.unparse(node.test)}))"
    elif _can_go(node):
        yield node, "statement deleted", "pass"


def _can_go(node: ast.stmt) -> bool:
    """Without the statement the function still runs as far as its names are concerned."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break)


def _of_expression(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[place] = OPPOSITE[type(operator)]()
            yield node, "comparison", ast.unparse(changed)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, "and, or", f"({ast.unparse(ast.BoolOp(other, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, "not removed", f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.IfExp):
        swapped = ast.IfExp(node.test, node.orelse, node.body)
        yield node, "branches swapped", f"({ast.unparse(swapped)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, "constant", str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield node, "constant", str(node.value + 1)
        yield node, "constant", str(node.value - 1) if node.value else "(-1)"
