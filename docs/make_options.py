"""docs/options.md: every option of a recipe and of a tool.

python docs/make_options.py > docs/options.md
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import TOOLS
from ssl_vit.config.fields import Option
from ssl_vit.config.options import allowed, describe, groups, members
from ssl_vit.config.tool_options import ALL, ToolOptions, heading
from ssl_vit.formatting import markdown_table, option_text

HEAD = """# Options

Every option is `key=value`. This page is generated from ssl_vit/config/schema.py, config/tools.py
and lab/lab_tools.py: `python docs/make_options.py > docs/options.md`.

## Recipes

Besides these keys, `recipe=` names a file of recipes/ (or a path), and `data=` and `model=` name a
row of recipes/tables/datasets.yaml and recipes/tables/models.yaml. A recipe sets its own defaults:
`python tools/pretrain.py recipe=mpp --help` shows them.

Keys marked * do not change what is computed: they are no part of a run's identity and may differ
when it resumes.
"""
TOOLS_HEAD = """## Tools

`ssl-vit TOOL --help` shows the same, with examples. pretrain, finetune and evaluate take the keys
above and `--json`.
"""


def markdown() -> str:
    """The text of docs/options.md."""
    parts = [HEAD]
    for group, about in groups().items():
        table = markdown_table(
            ("key", "default", "values", "meaning"), [_row(option) for option in members(group)]
        )
        parts.append("\n".join([f"### {group or 'run'}", "", about, "", table, ""]))
    parts.append(TOOLS_HEAD)
    parts += [_tool(name, tool) for name, tool in TOOLS.items() if tool.recipes != ALL]
    return "\n".join(parts)


def _row(option: Option) -> tuple[str, ...]:
    mark = "" if option.identity else " *"
    meaning = option.help
    if option.requires:
        key, value = option.requires
        meaning += f" Needs {key}={option_text(value)}."
    default = option_text(option.default)
    return f"`{option.key}`{mark}", f"`{default}`" if default else "", describe(option), meaning


def _tool(name: str, tool: type[ToolOptions]) -> str:
    rows = [(f"`{heading(one)}`", allowed(one), one.help) for one in tool.options().values()]
    rows += [(f"`{keys.heading}`", "", keys.meaning) for keys in tool.uses]
    table = markdown_table(("option", "values", "meaning"), rows)
    return "\n".join([f"### {name}", "", tool.purpose, "", table, ""])


if __name__ == "__main__":
    print(markdown(), end="")
