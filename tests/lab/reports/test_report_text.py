"""What a report says in words, tables and figures agrees, and nobody's name becomes markup in
it."""

import json
import random
import re
from xml.etree import ElementTree

import pytest
import yaml
from markdown_it import MarkdownIt
from matplotlib.text import Text

from helpers import arm_studies as arms
from helpers import key_studies as keys
from helpers.reports import altered, write
from ssl_vit import formatting
from ssl_vit.config.parsing import flatten
from ssl_vit.lab import reports
from ssl_vit.lab.reports import svg_plots
from ssl_vit.runs.identity import written_hash

NUMBER = r"[+-]?\d+\.\d+"
SENTENCE = re.compile(
    rf"(\S+ minus \S+) is ({NUMBER})(?: points)? \(95% interval in pairs ({NUMBER}) to ({NUMBER})"
)
SPAN = re.compile(rf"({NUMBER}) to ({NUMBER})")
MARKUP = {
    *(
        "html_inline",
        "html_block",
        "link_open",
        "image",
        "em_open",
        "strong_open",
        "s_open",
        "code_inline",
        "fence",
    ),
    *("hr", "blockquote_open", "ordered_list_open"),
}
EVIL = "$<script>alert(1)</script> **b** _i_ [l](javascript:1) ![p](x) `c` a|b &lt; ~~s~~ \u202e#"


def drawn_ends(monkeypatch):
    """The (values, interval) of every point that a figure is given."""
    found = []

    def points(panels, *rest):
        found.extend(
            (point.values, point.interval)
            for panel in panels
            for line in panel.lines.values()
            for point in line
        )

    monkeypatch.setattr(svg_plots, "points", points)
    monkeypatch.setattr(svg_plots, "learning", lambda *arguments: None)
    monkeypatch.setattr(svg_plots, "svg", lambda figure: "<svg/>")
    return found


def rows_of(text):
    """Every row of every table, with its head."""
    head = None
    for line in text.splitlines():
        cells = (
            [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
        )
        if cells is None:
            head = None
        elif head is None:
            head = cells
        elif not re.fullmatch(r"[\s|:-]+", line) or "-" in cells[1:2]:
            yield head, cells


def agree(text, differences):
    """How many differences were checked: sentences and tables have the same ones, and each interval
    holds the value to the left of it."""
    in_tables = {}
    for head, cells in rows_of(text):
        value = None
        for name, cell in zip(head, cells, strict=True):
            if name in ("mean", "difference") or name.startswith("minus "):
                value = cell
            if interval := SPAN.fullmatch(cell):
                low, high = map(float, interval.groups())
                assert low <= float(value) <= high, (head, cells)
        if head[:2] == ["A minus B", "measure"] and (interval := SPAN.fullmatch(cells[5])):
            in_tables[cells[0]] = (cells[3], *interval.groups())
    in_sentences = {name: found for name, *found in SENTENCE.findall(text)}
    assert in_sentences.keys() <= in_tables.keys()
    for name, found in in_sentences.items():
        assert tuple(found) == in_tables[name]
    for name, (value, low, high) in in_tables.items():
        assert all(one[0] in "+-" for one in (value, low, high))
        assert float(low) <= float(value) <= float(high)
        assert float(value) == pytest.approx(differences[name], abs=0.0051)
    return len(in_sentences), len(in_tables)


@pytest.mark.parametrize("seed", range(6))
def test_differences_of_arms_agree_in_words_tables_and_figures(seed, tmp_path, monkeypatch) -> None:
    draw, ends = random.Random(seed), drawn_ends(monkeypatch)
    right = {arm: tuple(draw.randint(150, 250) for _ in range(3)) for arm in arms.RIGHT}
    folder = arms.study(tmp_path / "gap", right)
    reports.write(folder)
    mean = {arm: 100 * sum(counts) / 3 / arms.IMAGES for arm, counts in right.items()}
    differences = {f"{a} minus {b}": mean[a] - mean[b] for a in mean for b in mean if a != b}
    assert agree((folder / "report.md").read_text(), differences) == (2, 3)
    known = [(values, of) for values, of in ends if of]  # none of a share beyond 100%
    assert known and all(low <= sum(all_) / len(all_) <= high for all_, (low, high) in known)


@pytest.mark.parametrize("measure", ["few_shot_5", "loss"])
@pytest.mark.parametrize("seed", range(3))
def test_the_difference_of_a_pair_of_settings_agrees_in_words_tables_and_figures(
    seed, measure, tmp_path, monkeypatch
) -> None:
    """The held-out loss of these studies is 3 less the few-shot accuracy: positive is better there
    too."""
    draw, ends = random.Random(seed), drawn_ends(monkeypatch)
    few = {arm: tuple(draw.uniform(0.2, 0.4) for _ in range(3)) for arm in keys.RATES}
    report = keys.REPORT | {"measure": measure}
    folder = keys.study(
        tmp_path / "made", few, recipes={arm: {"objective": "mpp"} for arm in few}, report=report
    )
    reports.write(folder)
    text = (folder / "report.md").read_text()
    apart = sum(few["rate=0.5"]) / 3 - sum(few["rate=0.15"]) / 3
    name = "corruption.rate=0.5 minus corruption.rate=0.15"
    assert agree(text, {name: apart * (100 if measure == "few_shot_5" else 1)}) == (1, 1)
    known = [(values, of) for values, of in ends if of]  # none of a share beyond 100%
    assert known and all(low <= sum(all_) / len(all_) <= high for all_, (low, high) in known)


def shown(text):
    """The text that a reader of Markdown sees, and every kind of markup in it."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    every = [one for token in tokens for one in (token, *(token.children or []))]
    seen = "".join(
        one.content
        for one in every
        if one.type in ("text", "text_special", "code_inline") and not one.children
    )
    return seen, {one.type for one in every}


@pytest.mark.parametrize(
    "text",
    [
        EVIL,
        "# a",
        "- a",
        "1. a",
        "---",
        "===",
        "~~~",
        "> a",
        "+ a",
        "a\\",
        "*",
        "<!-- x",
        "\\*",
        "```",
    ],
)
def test_somebodys_text_is_shown_as_it_is(text) -> None:
    first = formatting.escape_opening(text)
    for before, made in (
        ("", first),
        ("", f"- {first}"),
        ("", f"# {first}"),
        ("a ", f"a {formatting.escape_markdown(text)}"),
    ):
        seen, kinds = shown(made)
        assert seen == before + formatting.text_line(text)
        assert not kinds & MARKUP
    seen, kinds = shown(
        f"| h |\n|---|\n| {formatting.escape_markdown(text)} {formatting.inline_code(text)} |"
    )
    assert seen == f"h{formatting.text_line(text)} {formatting.text_line(text)}"
    assert "html_block" not in kinds and "link_open" not in kinds


def test_a_fence_is_longer_than_those_inside() -> None:
    _, kinds = shown(formatting.code_block(["a", "```", "<b>"], "bash"))
    assert kinds == {"fence"}


def test_names_in_a_report_cannot_become_markup(tmp_path) -> None:
    """An arm, its description, the title and what differs."""
    report = arms.REPORT | {"differs": ["# x", EVIL]}
    folder = arms.study(tmp_path / "gap", title=EVIL, arms=arms.ARMS | {"mpp": EVIL}, report=report)
    about = json.loads((folder / "study.json").read_text())
    for one in about["tasks"]:
        one["options"] = ["recipe=finetune", "data.name=```\n<b>"]
        made = {"name": one["name"], "seed": one["seed"], "data": {"name": "```\n<b>"}}
        (folder / one["name"] / "recipe.yaml").write_text(yaml.safe_dump(made))
        altered(folder / one["name"] / "result.json", recipe=written_hash(flatten(made)))
    write(folder / "study.json", about)
    for path in folder.glob("probe-mpp-*"):
        (path / "result.json").unlink()
    reports.write(folder)
    text, page = ((folder / f"report.{kind}").read_text() for kind in ("md", "html"))
    seen, kinds = shown(text)
    assert seen.count(formatting.text_line(EVIL)) == 3
    assert not kinds & {"html_inline", "html_block", "link_open", "em_open", "s_open", "hr"}
    assert (
        "\u202e" not in text + page
        and "<script>" not in page.partition("</main>")[0]
        and "<b>" not in page.replace("&lt;b>", "")
    )


@pytest.mark.parametrize("name", ["$x$", "$", "_hidden", "<b>&amp;", "a\nb", "\u6f22", "x\x00y"])
def test_labels_of_figures_show_a_name_as_it_is(name, monkeypatch) -> None:
    """The axes, the legend and the ticks."""
    drawn, draw = [], Text.draw

    def noted(self, renderer):
        drawn.append(self.get_text())
        assert self._preprocess_math(self.get_text())[1] is False
        return draw(self, renderer)

    monkeypatch.setattr(Text, "draw", noted)
    points = [svg_plots.Point([1.0, 2.0], [50.0, 51.0], (49.0, 52.0))]
    panel = svg_plots.Panel(name, {name: points}, {"": 2.0})
    drawing = svg_plots.points([panel], svg_plots.XAxis(name), [name, ""])
    ElementTree.fromstring(svg_plots.svg(drawing))
    wanted = svg_plots.label(name)
    assert drawn.count(wanted) >= 3, "the legend and both axes"
    assert wanted.strip().replace(r"\$", "$") == formatting.text_line(name)
    before = len(drawn)
    panel = svg_plots.Panel("", {"": [svg_plots.Point([0.0], [1.0], None)]}, {name: 2.0})
    axis = svg_plots.XAxis("", categories=[name])
    drawing = svg_plots.points([panel], axis, ["", name])
    ElementTree.fromstring(svg_plots.svg(drawing))
    assert drawn[before:].count(wanted) >= 2, "the legend and the category"
    curve = {name: [svg_plots.Curve([1, 2], [0.5, 0.6])]}
    panel = svg_plots.LearningPanel(name, name, curve)
    drawing = svg_plots.learning([panel], [name])
    ElementTree.fromstring(svg_plots.svg(drawing))
    assert drawn[before:].count(wanted) >= 5, "the legend, the title and the axis"
