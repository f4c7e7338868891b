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


def run(*line: str) -> str:
    """What a command prints; it must succeed without a word on the error stream."""
    done = subprocess.run(
        [sys.executable, *line], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert not done.stderr
    return done.stdout


def test_the_reference_is_current() -> None:
    """And so are all bounds, choices and defaults, which it lists."""
    # in a process of its own, because other tests have loaded plugins
    made = run("docs/make_reference.py", "options")
    assert (ROOT / "docs" / "options.md").read_text() == made, (
        "python docs/make_reference.py options > docs/options.md"
    )


def test_every_key_has_a_meaning_and_a_default_within_its_bounds() -> None:
    for key, option in schema.all_keys().items():
        assert option.help.endswith("."), key
        if key != "name":  # which has no default that a user may give
            assert schema.build({key: option.default}), key


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_has_help(tool: str) -> None:
    shown = tool_help(TOOLS[tool])
    assert f"tools/{tool}.py" in shown or f"ssl-vit {tool}" in shown
    if tool in ("pretrain", "finetune", "evaluate"):
        every = tool_help(TOOLS[tool], ["all"])
        assert all(f"  {key}=" in every for key in schema.all_keys())
        turned = TOOLS[tool].common_keys
        assert len(turned) == 10 and all(f"  {key}=" in shown for key in turned)


def test_help_is_of_the_groups_and_has_the_values_of_the_options_given() -> None:
    shown = tool_help(PretrainOptions, ["recipe=mpp", "optim.lr=0.5"])
    assert "  optim.lr=0.5 " in shown and "  optim.steps=300 " in shown
    assert "  optim.steps=1000 " in tool_help(PretrainOptions, [])
    shown = tool_help(PretrainOptions, ["recipe=mpp", "optim", "log"])
    keys = [line.split("=")[0].strip() for line in shown.splitlines() if re.match("  [a-z]", line)]
    assert {key.split(".")[0] for key in keys} == {"optim", "log"}
    named = tool_help(PretrainOptions, ["recipe=paper/supervised_l16_imagenet21k"])
    assert "paper/supervised_b16_imagenet21k, paper/supervised_b16_imagenet)" in named  # its bases


@pytest.mark.parametrize("tool", ["study", "plan"])
@pytest.mark.parametrize("study", ["study/gap", "study/worth", "docs/examples/three_arms.yaml"])
def test_a_study_is_no_recipe_whose_values_help_could_have(tool: str, study: str) -> None:
    """It was refused, with the advice to use the tool that was used."""
    assert tool_help(TOOLS[tool], [f"recipe={study}", "images=x"]) == tool_help(TOOLS[tool])
    if study.startswith("study/"):
        shown = tool_help(TOOLS[tool], [f"recipe={study}", "optim"])
        assert shown == tool_help(TOOLS[tool], ["optim"])


def test_tools_show_their_help_without_torch() -> None:
    code = (
        "import sys; from ssl_vit.__main__ import TOOLS;"
        "from ssl_vit.recipe.help import tool_help; [*map(tool_help, TOOLS.values())];"
        "sys.exit('torch' in sys.modules)"
    )
    run("-c", code)
    line = ["recipe=mpp", "--help", "log"]
    shown = run("tools/pretrain.py", *line)
    assert shown == run("-m", "ssl_vit", "pretrain", "recipe=mpp", "-h", "log")
    assert shown == tool_help(PretrainOptions, ["recipe=mpp", "log"]) + "\n"
