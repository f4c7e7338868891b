"""What the documents say to type is right: the tools take its words, and Python's names are there."""

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import ssl_vit
from helpers.commands import commands
from helpers.images import put
from helpers.options import ROOT
from helpers.resolving import parse_request, resolve
from ssl_vit.__main__ import TOOLS
from ssl_vit.lab.study import worth
from ssl_vit.lab.study.worth.plan import RunSeconds, RunSpeed
from ssl_vit.recipe import declaration
from ssl_vit.recipe.given import Arguments
from ssl_vit.recipe.tool import parse

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
ENDS = ("", " released")  # of kinds of runs: a released encoder takes its own time
TOOL = re.compile(r"([^&]*)\b(?:tools/(\w+)\.py|ssl-vit (\w+))([^&]*)")
# {command: a document that has it}
COMMANDS = {c: doc.name for doc in DOCUMENTS for c in commands(doc.read_text()) if TOOL.search(c)}


@pytest.fixture(autouse=True)
def no_plugin_stays() -> Iterator[None]:
    """A command's plugin runs for that command alone."""
    yield
    for name in declaration.objectives().keys() | declaration.targets().keys():
        declaration.withdraw(name)
    for name in [name for name in sys.modules if name.startswith("ssl_vit_plugin_")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """study/worth times steps before it is planned."""
    kinds = (
        "pretrain",
        "supervised",
        *(kind + end for kind in ("tune", "final", "frozen") for end in ENDS),
    )
    clocks = dict.fromkeys(kinds, RunSeconds(1e-4, 0.1))
    monkeypatch.setattr(worth, "calibrate", lambda *given: RunSpeed(clocks, 1))
    monkeypatch.setattr(worth, "Timer", nullcontext)


@pytest.mark.parametrize(("command", "document"), COMMANDS.items())
def test_a_documented_command_resolves(command: str, document: str, tmp_path: Path) -> None:
    """Resolve each tool of the command in turn.

    The folder of images is a temporary one here, and runs that are named need not exist.
    """
    for before, script, tool, text in TOOL.findall(command):
        if script:
            assert "launch" in before or before.rstrip().endswith(("python", "python3"))
        name = script or tool
        folder = f"\\1{tmp_path}"
        words = shlex.split(re.sub(r"(^|[ =])(?:IMAGES|photos)\b", folder, text))
        if name not in ("pretrain", "finetune", "evaluate", "study", "plan"):
            assert parse(TOOLS[name], Arguments(words))
            continue
        if name != "study":  # whose request has its own options in it
            options = TOOLS[name].options()
            given = [w.removeprefix("--").partition("=")[0] for w in words]
            words = [word for word, key in zip(words, given, strict=True) if key not in options]
        if name == "study" or any(word.startswith("recipe=study/") for word in words):
            # without images and weights it takes stand-ins
            given = [w for w in words if not w.startswith("--")]
            given = [w for w in given if str(tmp_path) not in w and not w.startswith("init=")]
            times = "study/worth" in text  # what plans by times has no plan for stand-ins
            given += [f"out={tmp_path}"] if times else []
            assert parse_request(given, stand_ins=not times).tasks
        else:
            words = [re.sub("^init=(runs/|hf-hub:).*", "init=scratch", word) for word in words]
            assert resolve(words, here=False)


def test_the_first_study_of_the_documents_does_not_warn_of_itself() -> None:
    """It did, of a rate that one run takes from others' tries, which it means and says in a note."""
    assert parse_request(["recipe=study/gap"]).cautions == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_in_the_documents_can_be_parsed(document: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL):
        ast.parse(block)
        assert {*re.findall(r"\bssl_vit\.(\w+)\(", block)} <= {*ssl_vit.__all__}


def test_features_are_read_as_the_document_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for files in the text of an object."""
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "IMAGES" / "test", 3)
    text = (ROOT / "docs" / "evaluate.md").read_text()
    (block,) = re.findall(r"```python\n(import datasets\n.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(block.replace("init=runs/mpp", "init=scratch model=vit_n8 data.size=16"), names)
    assert names["x"].shape == (3, 128) and len(names["frame"]) == 3
