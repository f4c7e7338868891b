"""What the documents say to type is right: their words resolve, their files are there."""

import re
from pathlib import Path

import pytest
from commands import commands
from conftest import ROOT

from ssl_vit import interop, plan, reshard
from ssl_vit.hub import pull, push
from ssl_vit.studies.command import ask
from ssl_vit.studies.file import read
from ssl_vit.studies.plan import check
from ssl_vit.words import resolve

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TOOLS = {"push.py": push.asked, "pull.py": pull.asked, "export.py": interop.asked}
COMMANDS = [(doc.name, c) for doc in DOCUMENTS for c in commands(doc.read_text()) if "tools/" in c]


@pytest.mark.parametrize(("document", "command"), COMMANDS)
def test_a_documented_command_resolves(document: str, command: str, tmp_path: Path) -> None:
    """Each tool of it in turn; places that a user fills in are a folder here."""
    for before, tool, text in re.findall(r"([^&]*) tools/(\w+\.py)([^&]*)", command):
        assert "launch" in before or before.endswith(("python", "python3"))
        assert (ROOT / "tools" / tool).exists()
        words = [w.replace("PICTURES", str(tmp_path)) for w in text.split()]
        if tool == "study.py":
            assert ask(words).plan
        elif tool == "plan.py":
            plan.main([w for w in words if w != "--probe"])
        elif tool == "shards.py":
            assert reshard.ask([w.replace("FOLDER", f"{tmp_path}-shards") for w in words]).data
        elif tool in TOOLS:
            assert TOOLS[tool](words)
        elif tool != "report.py":
            recipe = resolve([re.sub("^init=(runs/|hf-hub:).*", "init=scratch", w) for w in words if not w.startswith("--")])
            assert recipe.name


def test_the_readme_has_the_two_commands_of_a_fresh_machine() -> None:
    found = [c for c in commands((ROOT / "README.md").read_text()) if c.startswith("python3 -m venv")]
    assert len(found) == 2
    assert found[0].endswith("accelerate launch tools/pretrain.py recipe=mpp") and "-m pytest" in found[1]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert target.startswith("http") or (document.parent / target).exists(), target


@pytest.mark.parametrize("study", sorted((ROOT / "recipes" / "study").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_task_of_a_study_resolves(study: Path, tmp_path: Path) -> None:
    places = [f"{place}={tmp_path}" for place in read(study).places]
    check(ask([f"recipe=study/{study.stem}", *places]).plan)
