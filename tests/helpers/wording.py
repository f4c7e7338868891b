"""Measure how plainly the project is written, and list every text that users can meet.

    python tests/helpers/wording.py rates [FILE OR FOLDER ...]
    python tests/helpers/wording.py texts [FILE OR FOLDER ...]

`rates` prints, per 1,000 words, how often readers meet a habit that makes them go back in a
sentence. `texts` prints all texts of the code that are no docstrings, such as errors, warnings,
lines of the terminal and of pages, with their file and line and with {} for values.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PRONOUNS = re.compile(
    r"\b(?:its|it|those|these|ones?|others?|whose|they|their|them)\b", re.IGNORECASE
)
# phrases that readers of the project stopped at
IDIOMS = re.compile(
    r"\b(?:besides?|as of|so many|at hand|(?:is|are)(?: not)? there|whatever|of wh(?:ich|om)"
    r"|in its place|as they are|apart|looked at|stands?|thereby|wherein|hereby|sa(?:y|id) so"
    r"|all else|what is|th(?:at|ose) of)\b",
    re.IGNORECASE,
)
NO_VERB = re.compile(
    r"^(?:the|a|an|what|whether|how|why|where|when|of|in|by|with|as|one|all|each|that|those|which)"
    r"\b|^[{`\d]",
    re.IGNORECASE,
)
SECTIONS = re.compile(r"\n\s*\n|\n\s*(?:Args|Attributes|Returns|Raises|Example)")
GENERATED = ("options.md", "python.md")  # from docstrings
# functions that print or raise their text
CALLS = (
    *("UserError", "ValueError", "RuntimeError", "UnavailableError"),
    *("warn", "print", "note", "error", "refuse"),
)
# functions whose first argument is a key, which is printed in front of the text, with its value
WITH_KEY = ("error", "refuse")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Passage(NamedTuple):
    """A text and its place, FILE:LINE."""

    place: str
    text: str


class Rates(NamedTuple):
    """Habits per 1,000 words; of docstrings also the share that opens without a verb."""

    pronouns: float
    idioms: float
    semicolons: float
    no_verb: float


def count_words(text: str) -> int:
    """Return the number of words of at least two letters."""
    return len(re.findall(r"[A-Za-z][\w'-]*", text))


def rates(passages: list[Passage]) -> Rates:
    """Return how often the habits occur in some passages."""
    texts = [passage.text for passage in passages]
    words = max(1, sum(map(count_words, texts)))

    def per_1000(pattern: re.Pattern[str]) -> float:
        return 1000 * sum(len(pattern.findall(text)) for text in texts) / words

    openings = [bool(NO_VERB.match(text)) for text in texts]
    semicolons = re.compile(";")
    no_verb = sum(openings) / max(1, len(openings))
    return Rates(per_1000(PRONOUNS), per_1000(IDIOMS), per_1000(semicolons), no_verb)


def prose(paths: list[Path]) -> list[Passage]:
    """Return the paragraphs of the Markdown files that people write."""
    return [
        Passage(str(path), text)
        for path in _files(paths, ".md")
        if path.name not in GENERATED
        for block in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", path.read_text(), flags=re.S))
        if count_words(text := _one_line(block)) >= 8 and not text.startswith(("#", "|", "!["))
    ]


def docstrings(paths: list[Path]) -> list[Passage]:
    """Return the first paragraph of each docstring."""
    return [
        Passage(f"{path}:{getattr(node, 'lineno', 1)}", _one_line(SECTIONS.split(text.strip())[0]))
        for path in _files(paths, ".py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, DOCUMENTED)
        and (text := ast.get_docstring(node))
        and count_words(text) >= 4
    ]


def messages(paths: list[Path]) -> list[Passage]:
    """Return the texts of at least five words that are raised, printed or put together."""
    passages = []
    for path in _files(paths, ".py"):
        for node in ast.walk(ast.parse(path.read_text())):
            parts: list[ast.expr] = []
            if isinstance(node, ast.Call) and _function(node) in CALLS:
                parts = node.args
            elif isinstance(node, ast.Assign | ast.AugAssign):
                parts = [node.value]
            if isinstance(node, ast.Call) and _function(node) in WITH_KEY and len(parts) > 1:
                text = f"{_content(parts[0]) or '{}'}={{}}: {_content(parts[1])}"  # as printed
            else:
                text = _one_line(" ".join(filter(None, map(_content, parts))))
            if parts and count_words(text) >= 5:
                passages.append(Passage(f"{path}:{parts[0].lineno}", text))
    return passages


def texts(paths: list[Path]) -> Iterator[Passage]:
    """Yield every text of at least three words that is not a docstring, in the order of the
    files."""
    for path in _files(paths, ".py"):
        tree = ast.parse(path.read_text())
        hidden: set[ast.AST] = set()
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):  # a text that is a statement is a docstring
                lone = [one.value for one in body if isinstance(one, ast.Expr)]
                hidden.update(value for value in lone if isinstance(value, ast.Constant))
        passages = []
        for node in ast.walk(tree):
            if node in hidden:
                continue
            if isinstance(node, ast.JoinedStr | ast.BinOp):
                hidden.update(ast.walk(node))
            text = _one_line(_content(node))
            if count_words(text) >= 3 and " " in text:
                passages.append((getattr(node, "lineno", 1), text))
        yield from (Passage(f"{path}:{line}", text) for line, text in sorted(passages))


def _files(paths: list[Path], ending: str) -> Iterator[Path]:
    for path in paths:
        found = [path] if path.is_file() else sorted(path.rglob(f"*{ending}"))
        yield from (file for file in found if file.suffix == ending)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _function(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _content(node: ast.AST) -> str:
    """Return the text of a constant, an f-string or a sum of texts; "" for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        constants = (isinstance(value, ast.Constant) for value in node.values)
        pairs = zip(node.values, constants, strict=True)
        return "".join(_content(value) if constant else "{}" for value, constant in pairs)
    if isinstance(node, ast.BinOp):
        return _content(node.left) + _content(node.right)
    return ""


def main(words: list[str]) -> None:
    what, *names = words or ["rates"]
    paths = [Path(name) for name in names or ("ssl_vit", "docs", "README.md", "CONTRIBUTING.md")]
    if what == "texts":
        for passage in texts(paths):
            print(f"{passage.place}: {passage.text}")
        return
    for kind in (prose, docstrings, messages):
        passages = kind(paths)
        values = rates(passages)._asdict().items()
        print(f"{kind.__name__:11}", len(passages), *(f"{key} {rate:.2f}" for key, rate in values))


if __name__ == "__main__":
    main(sys.argv[1:])
