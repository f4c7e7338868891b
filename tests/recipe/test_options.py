"""--help of every tool, and docs/options.md, both from the schema."""

import re
import subprocess
import sys

import pytest

from helpers.options import ROOT
from ssl_vit.__main__ import TOOLS
from ssl_vit.recipe import schema
from ssl_vit.recipe.help import tool_help
from ssl_vit.recipe.tools import PretrainOptions


@pytest.mark.parametrize("page", ["options"])
def test_a_page_of_reference_is_current(page: str) -> None:
    assert (ROOT / "docs" / f"{page}.md").read_text() == run("docs/make_reference.py", page), (
        f"python docs/make_reference.py {page} > docs/{page}.md"
    )


def test_every_key_has_a_meaning() -> None:
    for key, option in schema.all_keys().items():
        assert option.help.endswith("."), key
        if key != "name":  # which has no default that a user may give
            assert schema.build({key: option.default}), key


def run(*line: str) -> str:
    """What a command prints; it must succeed without a word on the error stream."""
    done = subprocess.run(
        [sys.executable, *line], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_has_help(tool: str) -> None:
    shown = run(f"tools/{tool}.py", "--help")
    assert shown == run("-m", "ssl_vit", tool, "-h") == tool_help(TOOLS[tool]) + "\n"
    assert f"tools/{tool}.py" in shown
    if tool in ("pretrain", "finetune", "evaluate"):
        every = run(f"tools/{tool}.py", "--help", "all")
        assert all(f"  {key}=" in every for key in schema.all_keys())
        turned = TOOLS[tool].most
        assert len(turned) == 10 and all(f"  {key}=" in shown for key in turned)


def test_a_group_has_help() -> None:
    shown = run("tools/pretrain.py", "recipe=mpp", "--help", "optim", "log")
    keys = [line.split("=")[0].strip() for line in shown.splitlines() if re.match("  [a-z]", line)]
    assert {key.split(".")[0] for key in keys} == {"optim", "log"}
    assert "  optim.steps=300 " in shown


def test_help_shows_the_values_of_the_options_given() -> None:
    shown = tool_help(PretrainOptions, ["recipe=mpp", "optim.lr=0.5"])
    assert "  optim.lr=0.5 " in shown and "  optim.steps=300 " in shown
    assert "  optim.steps=1000 " in tool_help(PretrainOptions, [])


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from ssl_vit.__main__ import TOOLS;"
        "from ssl_vit.recipe.help import tool_help; [*map(tool_help, TOOLS.values())];"
        "sys.exit('torch' in sys.modules)"
    )
    run("-c", code)
    assert "  optim.steps=300 " in run("tools/pretrain.py", "recipe=mpp", "--help")
