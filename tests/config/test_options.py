"""--help of every tool, and docs/options.md, both from the schema."""

import subprocess
import sys

import pytest

from helpers.options import ROOT
from ssl_vit.__main__ import TOOLS
from ssl_vit.config import options, schema
from ssl_vit.data.make_shards import NUMBERS
from ssl_vit.jobs.help import tool_help
from ssl_vit.lab.planning.forecast import OWN as PLAN
from ssl_vit.lab.runs_tool import OWN as RUNS
from ssl_vit.lab.study_tool import OWN as STUDY


def test_the_page_of_options_is_current() -> None:
    assert (ROOT / "docs" / "options.md").read_text() == options.markdown(), (
        "python -m ssl_vit.config.options > docs/options.md"
    )


def test_every_key_has_a_meaning() -> None:
    for key, option in schema.options().items():
        assert option.help.endswith("."), key
        assert option.allows(option.default) or key in ("name", "model.name"), key


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
    assert shown == run("-m", "ssl_vit", tool, "-h") == tool_help(tool, []) + "\n"
    assert f"tools/{tool}.py" in shown
    if tool in ("pretrain", "finetune", "evaluate"):
        assert all(f"  {key}=" in shown for key in schema.options())


@pytest.mark.parametrize(
    ("tool", "keys"),
    [
        ("plan", (*PLAN, "--probe", "--json")),
        ("study", STUDY),
        ("shards", (*NUMBERS, "out", "format")),
        ("runs", (*RUNS, "--json")),
    ],
)
def test_each_option_of_a_tools_own_is_in_its_help(tool: str, keys: tuple[str, ...]) -> None:
    shown = tool_help(tool, [])
    assert all(f"{key}=" in shown or key in shown.split() for key in keys)


def test_help_shows_the_values_of_the_options_given() -> None:
    shown = tool_help("pretrain", ["recipe=mpp", "optim.lr=0.5", "--help"])
    assert "  optim.lr=0.5 " in shown and "  optim.steps=900 " in shown
    assert "  optim.steps=1000 " in tool_help("pretrain", [])


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from ssl_vit.jobs.help import tool_help; tool_help('pretrain', []);"
        "sys.exit('torch' in sys.modules)"
    )
    run("-c", code)
    assert "  optim.steps=900 " in run("tools/pretrain.py", "recipe=mpp", "--help")
