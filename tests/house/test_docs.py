"""What the documents say to type is right: their words resolve, their files are there."""

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

import ssl_vit
from helpers.commands import commands
from helpers.options import ROOT, TINY, TUNE
from ssl_vit.__main__ import TOOLS
from ssl_vit.config import declaration
from ssl_vit.config.resolve import resolve
from ssl_vit.config.tool_options import parse
from ssl_vit.lab import plan_tool
from ssl_vit.lab.study.read import REPORT_KEYS, RUN_KEYS, STUDY_KEYS
from ssl_vit.lab.study.request import requested

PLUGINS = "ssl_vit_plugin_"  # how the modules of plugins' files are called
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOK = ROOT / "docs" / "example.ipynb"
PARSED = (
    "push.py",
    "pull.py",
    "export.py",
    "figures.py",
    "embed.py",
    "runs.py",
    "report.py",
)
COMMANDS = [(doc.name, c) for doc in DOCUMENTS for c in commands(doc.read_text()) if "tools/" in c]


@pytest.fixture
def no_plugin_stays() -> Iterator[None]:
    """A command's plugin runs for that command alone."""
    before = declaration.objectives().keys() | declaration.targets().keys()
    yield
    for name in (declaration.objectives().keys() | declaration.targets().keys()) - before:
        declaration.withdraw(name)
    for name in [name for name in sys.modules if name.startswith(PLUGINS)]:
        del sys.modules[name]


@pytest.mark.usefixtures("no_plugin_stays")
@pytest.mark.parametrize(("document", "command"), COMMANDS)
def test_a_documented_command_resolves(document: str, command: str, tmp_path: Path) -> None:
    """Each tool of it in turn; places that a user fills in are a folder here."""
    for before, tool, text in re.findall(r"([^&]*) tools/(\w+\.py)([^&]*)", command):
        assert "launch" in before or before.endswith(("python", "python3"))
        assert (ROOT / "tools" / tool).exists()
        words = [w.replace("IMAGES", str(tmp_path)) for w in shlex.split(text)]
        if tool == "study.py":  # without images and weights it takes stand-ins
            given = [w for w in words if str(tmp_path) not in w and not w.startswith("init=")]
            assert requested(given, stand_ins=True).tasks
        elif tool == "plan.py":
            plan_tool.main([w for w in words if w != "--probe"])
        elif tool in PARSED:
            assert parse(TOOLS[tool.removesuffix(".py")], words)
        else:
            recipe = resolve(
                [
                    re.sub("^init=(runs/|hf-hub:).*", "init=scratch", w)
                    for w in words
                    if not w.startswith("--")
                ]
            )
            assert recipe.name


def test_the_readme_has_the_two_commands_of_a_fresh_machine() -> None:
    found = [
        c for c in commands((ROOT / "README.md").read_text()) if c.startswith("python3 -m venv")
    ]
    assert len(found) == 2
    assert (
        found[0].endswith("accelerate launch tools/pretrain.py recipe=mpp")
        and "-m pytest" in found[1]
    )


def prose(document: Path) -> str:
    """The Markdown of a page or a notebook, without its code."""
    text = document.read_text()
    if document.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    text = re.sub(r"^(```+|~~~+).*?^\1\s*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", text, flags=re.DOTALL)


def links(document: Path) -> list[str]:
    """What a page links to or shows: [text](target), ![text](target), [name]: target, and HTML."""
    text = prose(document)
    inline = re.findall(r"\]\(\s*<?([^\s<>()]+)", text)
    defined = re.findall(r"^ {0,3}\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    return [*inline, *defined, *re.findall(r"\b(?:href|src)=[\"']([^\"']+)", text)]


def anchors(document: Path) -> set[str]:
    """Those that GitHub makes of a page's headings: lower case, without punctuation, a hyphen for a
    space; of equal ones the second ends in -1."""
    text = re.sub(r"^(```+|~~~+).*?^\1\s*?$", "", document.read_text(), flags=re.DOTALL | re.M)
    found: dict[str, int] = {}
    names = set(re.findall(r"<a (?:id|name)=[\"']([^\"']+)", text))
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)? *$", text, re.MULTILINE):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


def broken_links(document: Path) -> list[str]:
    """The relative links of a page whose file, or whose heading in it, is not there."""
    found = []
    for target in links(document):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        place = document.parent / unquote(path) if path else document
        there = place.exists() and ROOT in place.resolve().parents
        if not there or (anchor and (place.suffix != ".md" or anchor not in anchors(place))):
            found.append(target)
    return found


@pytest.mark.parametrize("document", [*DOCUMENTS, NOTEBOOK], ids=lambda d: d.name)
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    assert broken_links(document) == []


def test_links_without_a_file_or_a_heading_are_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# A `page=` for [every](x) run!\n## Twice\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Top\n[a](other.md#a-page-for-every-run) [b](#top) [c](other.md#twice-1) ![d](other.md)\n"
        "`[code](gone.md)`\n```\n[block](gone.md)\n# Not a heading\n```\n[e](https://a.b/#c)\n"
    )
    assert broken_links(page) == []
    wrong = ["other.md#gone", "#not-a-heading", "gone.md", "other.md#twice-2", "gone.png", "x.md"]
    page.write_text(
        "# Top\n```\n# Not a heading\n```\n[a](other.md#gone) [b](#not-a-heading)\n"
        "[c](gone.md) [d](other.md#twice-2) ![e](gone.png)\n\n[f]: x.md\n"
    )
    assert broken_links(page) == wrong


NAMES = r"(?:sections?|Tables?|Figures?) [\d.]+(?: and [\d.]+)?|\d+ x \d+"  # no measurements
MEASURED = [
    ROOT / "README.md",
    *(ROOT / "docs").glob("results*.md"),
    *(ROOT / "docs").glob("speed*.md"),
]


def numbers_of_sentences(document: Path) -> list[tuple[str, list[str]]]:
    """The sentences outside tables and headings, each with its numbers. A part of a word is none, as in
    CIFAR-10, S/16 and top-1."""
    lines = [line for line in prose(document).splitlines() if not line.startswith(("|", "#", "!"))]
    text = re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))
    found = []
    for paragraph in re.split(r"\n\n|\n- ", text):
        for sentence in re.split(r"(?<=[.?!])[*)]*\s+", paragraph):
            words = re.sub(NAMES, "", " ".join(sentence.split())).split()
            bare = [word.strip("*()[],.;:?!") for word in words]
            numbers = [
                word for word in bare if re.fullmatch(r"[+-]?\d[\d,.]*(?:e-?\d+)?[%M]?", word)
            ]
            found.append((sentence, numbers))
    return found


@pytest.mark.parametrize("document", MEASURED, ids=lambda path: path.name)
def test_no_sentence_has_more_than_three_numbers(document: Path) -> None:
    """More are a table."""
    assert [one for one in numbers_of_sentences(document) if len(one[1]) > 3] == []


def test_numbers_of_a_sentence_are_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# 1 2 3 4\n\n| 1 | 2 | 3 | 4 |\n\nOf CIFAR-10 (Table 4, S/16) 1.5% have\n+3.0 to 4e-5 `5 6`."
        " At 3b7d8c4 1,000 [runs](a1.md).\n- 2 of 4 x 4.\n"
    )
    counted = [numbers for _, numbers in numbers_of_sentences(page) if numbers]
    assert counted == [["1.5%", "+3.0", "4e-5"], ["1,000"], ["2"]]


def test_the_page_about_study_files_has_every_key_and_the_example() -> None:
    text = (ROOT / "docs" / "study_files.md").read_text()
    assert (ROOT / "docs" / "examples" / "three_arms.yaml").read_text() in text
    for title, keys in (
        ("Keys of a study", STUDY_KEYS),
        ("Keys of a run", RUN_KEYS),
        ("Keys of its report", REPORT_KEYS),
    ):
        table = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
        assert {*re.findall(r"^\| `(\w+):`", table, re.MULTILINE)} == {*keys}


def test_the_design_page_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    for path in re.findall(r"`([a-z_]+/[a-z_]+\.py)`", text):
        assert (ROOT / path).exists() or (ROOT / "ssl_vit" / path).exists(), path


def test_the_documents_name_every_objective_and_target() -> None:
    text = (ROOT / "docs" / "objectives.md").read_text()
    table = text.partition("\n\n## ")[0]
    evaluates = {"probe"}
    for name in (declaration.objectives().keys() - evaluates) | declaration.targets().keys():
        assert f"`{name}`" in table, name


def test_the_readme_keeps_to_what_the_interface_has() -> None:
    """Python blocks can be parsed, and their ssl_vit.NAME are there."""
    for document in DOCUMENTS:
        for block in python_blocks(document.read_text()):
            ast.parse(block)
            for name in re.findall(r"\bssl_vit\.(\w+)\(", block):
                assert name in ssl_vit.__all__, name


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code cells in one process; after the cell of its parameters runs of seconds are set."""
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    names: dict = {}
    values: list = []
    for cell in cells:
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if last is not None:
            values.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
        if "parameters" in cell["metadata"].get("tags", []):
            names["PRETRAINING"] = dict(word.split("=", 1) for word in TINY)
            tuning = [*TUNE, "eval.test=false", "eval.images=24", "data.share=0.01", "data.size=16"]
            names["TUNING"] = dict(word.split("=", 1) for word in tuning)
    assert names["result"].steps == 12 and names["tuned"].steps == 2
    assert any(value is True for value in values)  # the same features
    for name in ("example", "tuned", "scratch"):
        assert (tmp_path / "runs" / name / "result.json").exists()
    shown = [value._repr_html_() for value in values if hasattr(value, "_repr_html_")]
    assert len(shown) == 5 and sum("<iframe" in text for text in shown) == 2


def test_the_page_about_python_is_made_from_the_code() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    command = [sys.executable, "docs/make_reference.py", "python"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert text == done.stdout, "python docs/make_reference.py python > docs/python.md"
    assert all(f"### {name}\n" in text for name in ssl_vit.__all__ if name[0].islower())
    (same,) = (block for block in python_blocks(text) if "assert" in block)
    exec(same, {})


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)
