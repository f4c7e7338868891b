"""Templates of a report's texts: what is markup in them, and that a value is none."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import arm_studies
from helpers.options import ROOT
from helpers.reports import do_not_draw
from ssl_vit.formatting import visible_text
from ssl_vit.lab import reports
from ssl_vit.lab.reports import sections, texts
from ssl_vit.lab.reports.statistics import Numbers
from ssl_vit.pages.blocks import Block, Listing, Table, Text

Given = Callable[..., list[Block]]


@pytest.fixture(scope="module")
def given_template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Given]:
    """A template's blocks, from its source."""
    folder = tmp_path_factory.mktemp("templates")
    numbers = Numbers(**dict.fromkeys(Numbers._fields))._replace(settings={})

    def blocks(source: str, **values: Any) -> list[Block]:
        (folder / "given.j2").write_text(source)
        texts._environment.cache_clear()
        return texts.blocks("given", None, numbers, values)

    before, texts.TEMPLATES = texts.TEMPLATES, folder
    yield blocks
    texts.TEMPLATES = before
    texts._environment.cache_clear()


def test_paragraphs_lists_warnings_and_tables(given_template: Given) -> None:
    table, more = Table(["a"], [["1"]]), [Table(["b"], []), Table(["c"], [])]
    source = """
{{ table }}

One
paragraph (
{{ name }}
), in
{% if name %}
lines
{% endif %}
.

! Careful.

{% for one in "xy" %}
- {{ one }}:
  an item
{% endfor %}

{{ more }}
"""
    assert given_template(source, table=table, more=more, name="A") == [
        *(table, Text("One paragraph (A), in lines."), Text("Careful.", warning=True)),
        *(Listing(["x: an item", "y: an item"]), *more),
    ]
    assert given_template("{{ more }}", more=[]) == []


@given(
    value=st.one_of(
        st.text(min_size=1), st.sampled_from(["- a", "! a", "\n\n- a", "a ,b", "<b>", "\0\1\2"])
    )
)
def test_a_value_is_shown_as_it_is_wherever_it_stands(given_template: Given, value: str) -> None:
    """At the beginning of a paragraph, in its middle, and as a macro's."""
    source = "{% macro said(x) %}{{ x }}{% endmacro %}{{ value }} (a {{ said(value) }})\n- b"
    (block,) = given_template(source, value=value)
    assert isinstance(block, Text) and not block.warning
    shown = re.sub(r"\s", " ", visible_text(value))
    assert block.text.startswith(shown) and block.text.endswith(") - b")


def test_every_template_is_used() -> None:
    folder = ROOT / "ssl_vit" / "lab" / "reports"
    code = "".join(path.read_text() for path in [*folder.glob("*.py"), *folder.rglob("*.j2")])
    for path in (folder / "templates").iterdir():
        assert re.search(rf'"{path.stem}(\.j2)?"', code), path


def test_a_new_section_is_a_function_and_a_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_template: Given
) -> None:
    """How far the best and the worst seed of an arm are apart: a query and its text."""
    do_not_draw(monkeypatch)
    before = (ROOT / "ssl_vit" / "lab" / "reports" / "templates").glob("*.j2")
    for path in before:
        (texts.TEMPLATES / path.name).write_text(path.read_text())
    (texts.TEMPLATES / "spread.j2").write_text(
        "{% for name, share in apart.items() %}\n- {{ arm(name) }}: {{ share | amount }}\n{% endfor %}"
    )
    texts._environment.cache_clear()

    def spread(study: Any, numbers: Numbers) -> texts.Values:
        rows = study.measured_by_all(study.final, "top1")
        values = rows.groupby("arm", sort=False)["value"]
        return {"apart": (values.max() - values.min()).to_dict()}

    monkeypatch.setattr(sections, "SECTIONS", (*sections.SECTIONS, ("Spread", "spread", spread)))
    reports.write(arm_studies.study(tmp_path / "gap"))
    text = (tmp_path / "gap" / "report.md").read_text().split("## Spread")[1]
    assert text.split() == [
        "-",
        "scratch:",
        "2.00%",
        "-",
        "mpp:",
        "1.50%",
        "-",
        "supervised:",
        "3.00%",
    ]
