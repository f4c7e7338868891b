"""Lists the config keys, for --help and docs/options.md. No torch here.

python -m ssl_vit.config.options > docs/options.md
"""

import dataclasses
import textwrap

from ..formatting import markdown_table, option_text
from .fields import Option, type_name
from .schema import Recipe, all_groups, defaults, options

WIDTH = 100
HEAD = """# Options

Every option is `key=value`. This page is generated from ssl_vit/config/schema.py:
`python -m ssl_vit.config.options > docs/options.md`.

Besides these keys, `recipe=` names a file of recipes/ (or a path), and `data=` and `model=` name a
row of recipes/tables/datasets.yaml and recipes/tables/models.yaml. A recipe sets its own defaults:
`python tools/pretrain.py recipe=mpp --help` shows them.

Keys marked * do not change what is computed: they are no part of a run's identity and may differ
when it resumes.
"""


def groups() -> dict[str, str]:
    """{name: help} of each group of keys; the keys outside of groups come first, as ''."""
    found = {"": "The run."}
    for field in dataclasses.fields(Recipe):
        if field.name == "groups":
            found |= {one.name: one.about for one in all_groups()}
        if "group" in field.metadata:
            found[field.name] = field.metadata["group"]
    return found


def members(group: str) -> list[Option]:
    """The keys of a group."""
    return [option for key, option in options().items() if key.rpartition(".")[0] == group]


def _kind(option: Option) -> str:
    """Type and allowed values: `a whole number: above 0 and at most 16,384`."""
    kind = type_name(option)
    if option.expected:
        return option.expected + (" or null" if kind.endswith(" or null") else "")
    if option.choices is not None:
        return option.allowed
    if option.is_list:
        return option.allowed
    if option.has_bounds:
        return f"{kind}: {option.allowed.removeprefix('a number ')}"
    return kind


def help_text(recipe: Recipe | None = None) -> str:
    """Every key with its value in `recipe`, as far as its objective uses it (default: all keys with
    the schema's values), its allowed values and meaning."""
    values = recipe.values() if recipe else defaults()
    lines = []
    for group, about in groups().items():
        used = [option for option in members(group) if option.key in values]
        if used:
            lines += ["", f"{group or 'run'}: {about}"]
        for option in used:
            lines.append(f"  {option.key}={option_text(values[option.key])}   ({_kind(option)})")
            lines += textwrap.wrap(
                option.help, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6
            )
    return "\n".join(lines[1:])


def markdown() -> str:
    """The text of docs/options.md."""
    parts = [HEAD]
    for group, about in groups().items():
        table = markdown_table(
            ("key", "default", "values", "meaning"), [_row(option) for option in members(group)]
        )
        parts.append("\n".join([f"## {group or 'run'}", "", about, "", table, ""]))
    return "\n".join(parts)


def _row(option: Option) -> tuple[str, ...]:
    mark = "" if option.identity else " *"
    meaning = option.help
    if option.requires:
        meaning += f" Needs {option.requires[0]}={option.requires[1]}."
    default = option_text(option.default)
    return f"`{option.key}`{mark}", f"`{default}`" if default else "", _kind(option), meaning


if __name__ == "__main__":
    print(markdown(), end="")
