"""What a paper takes of a study: CSV and LaTeX, of made-up studies whose numbers are known."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import cbook
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from helpers import arm_studies, key_studies
from helpers.reports import altered, do_not_draw
from ssl_vit.errors import UserError
from ssl_vit.lab import report_tool
from ssl_vit.lab.reports import latex, svg_plots
from ssl_vit.pages.blocks import Section, Table


@pytest.fixture(scope="module")
def gap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return arm_studies.study(tmp_path_factory.mktemp("made") / "gap")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    do_not_draw(monkeypatch)


def rows_of(folder: Path) -> list[dict[str, str]]:
    report_tool.main([str(folder), "format=csv"])
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_several_formats_at_once(gap: Path, undrawn: None, capsys: pytest.CaptureFixture) -> None:
    report_tool.main([str(gap), "format=latex,csv"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line[0] in ("csv", "latex")] == [
        ["latex", str(gap / "tables.tex")],
        ["csv", str(gap / "results.csv")],
        ["csv", str(gap / "differences.csv")],
    ]


def test_a_row_for_each_metric_of_each_run(gap: Path, undrawn: None) -> None:
    rows = rows_of(gap)
    tasks = json.loads((gap / "study.json").read_text())["tasks"]
    results = {
        task["name"]: json.loads((gap / task["name"] / "result.json").read_text())["metrics"]
        for task in tasks
    }
    assert len(rows) == sum(map(len, results.values()))
    for row in rows:
        entry = results[row["run"]][row["metric"]]
        assert (float(row["value"]), int(row["n"])) == (entry["value"], entry["n"])
        assert row["split"] == entry["split"]
    swept = {(row["arm"], row["optim.lr"]) for row in rows if row["part"] == "sweep"}
    assert len(swept) == 9 and all(not row["optim.lr"] for row in rows if row["part"] != "sweep")
    (mpp,) = (
        row["value"]
        for row in rows
        if (row["part"], row["arm"], row["seed"], row["metric"]) == ("final", "mpp", "1", "top1")
    )
    assert float(mpp) == 226 / 400


def test_a_row_for_each_difference(tmp_path: Path, undrawn: None) -> None:
    """mpp minus scratch: 5, 4.5, 5.5 points; t with 2 degrees of freedom is 4.3027 at 97.5% and
    6.2053 at 98.75%."""
    folder = arm_studies.study(tmp_path / "gap")
    report_tool.main([str(folder), "format=csv", "pairs=mpp:scratch,supervised:scratch"])
    with (folder / "differences.csv").open(newline="") as file:
        first, _, last = csv.DictReader(file)
    assert (first["arm"], first["other"], first["measure"]) == ("mpp", "scratch", "top1")
    wanted = {"n": 3, "difference": 0.05, "sd": 0.005, "low": 0.05 - 0.012421, "pairs": 2}
    wanted |= {"corrected_low": 0.05 - 0.017913, "corrected_high": 0.05 + 0.017913}
    assert {key: float(first[key]) for key in wanted} == pytest.approx(wanted, abs=1e-6)
    assert float(first["images_low"]) < float(first["low"])
    assert (last["arm"], last["other"]) == ("mpp", "supervised")
    assert (last["pairs"], last["corrected_low"]) == ("", "") and last["low"]


def test_arms_without_a_common_seed_have_no_difference(tmp_path: Path, undrawn: None) -> None:
    folder = arm_studies.study(tmp_path / "gap")
    for name in ("final-mpp-1", "final-mpp-2", "final-scratch-0"):
        (folder / name / "result.json").unlink()
    report_tool.main([str(folder), "format=csv"])
    with (folder / "differences.csv").open(newline="") as file:
        found = {(one["arm"], one["other"]) for one in csv.DictReader(file)}
    assert found == {("mpp", "supervised"), ("supervised", "scratch")}


def test_varied_keys_are_columns(tmp_path: Path, undrawn: None) -> None:
    rows = rows_of(key_studies.study(tmp_path / "made"))
    assert {row["corruption.rate"] for row in rows} >= {"0.15", "0.5"}


def test_a_run_that_is_left_out_of_the_report_is_in_no_row(tmp_path: Path, undrawn: None) -> None:
    folder = arm_studies.study(tmp_path / "gap")
    (folder / "final-mpp-1" / "result.json").unlink()
    assert "final-mpp-1" not in {row["run"] for row in rows_of(folder)}


def test_tables_are_those_of_the_report(gap: Path, undrawn: None) -> None:
    """Each of the Markdown page's tables, in booktabs."""
    report_tool.main([str(gap), "format=latex"])
    text = (gap / "tables.tex").read_text()
    pages = (gap / "report.md").read_text()
    tables = len(re.findall(r"^\|(?: *:?-{2,}:? *\|)+$", pages, re.MULTILINE))
    assert text.count(r"\begin{table}") == tables
    assert r"mpp minus scratch & 3 & +5.00 & 0.50 & $[+3.76, +6.24]$" in text


def tabulars(text: str) -> list[list[list[str]]]:
    """The cells of each tabular's rows."""
    bodies = re.findall(r"\\begin\{tabular\}\{([^\n]*)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL)
    found = []
    for kinds, body in bodies:
        lines = [line[4:] for line in body.splitlines() if line.endswith(r"\\")]
        found.append([line.removesuffix(r" \\").split(" & ") for line in lines])
        columns = len(re.sub(r"p\{\d+pt\}", "l", kinds))
        assert {len(row) for row in found[-1]} == {columns}
    return found


@pytest.mark.parametrize("made", [arm_studies.study, key_studies.study])
def test_tables_fit_a_page(made: Callable[[Path], Path], tmp_path: Path, undrawn: None) -> None:
    """In 9 pt of Computer Modern they are no wider than the text of LaTeX's article, 345 pt."""
    folder = made(tmp_path / "made")
    report_tool.main([str(folder), "format=latex"])
    font = FontProperties(fname=str(cbook._get_data_path("fonts/ttf/cmr10.ttf")), size=9)

    def width(cell: str) -> float:
        shown = re.sub(r"\\text(less|greater)\{\}", "<", cell.replace("$", ""))
        shown = re.sub(r"\\times10\^\{(.*)\}", r"-10\1", shown).replace("\\", "")
        return TextPath((0, 0), shown, prop=font).get_extents().width if shown.strip() else 0

    for rows in tabulars((folder / "tables.tex").read_text()):
        columns = [[min(width(cell), 130) for cell in column] for column in zip(*rows, strict=True)]
        assert sum(max(column) + 8 for column in columns) < 345


def test_tables_have_captions_and_labels_of_their_own(gap: Path, undrawn: None) -> None:
    report_tool.main([str(gap), "format=latex", "pairs=mpp:scratch,supervised:scratch"])
    text = (gap / "tables.tex").read_text()
    captions = re.findall(r"\\caption\{(.*)\}", text)
    labels = re.findall(r"\\label\{(tab:[a-z0-9-]+)\}", text)
    tables = text.count(r"\begin{table}")
    assert text.count(r"\centering") == len(set(captions)) == len(set(labels)) == tables
    assert {"tab:gap-pairs", "tab:gap-top1"} <= set(labels)
    about = captions[labels.index("tab:gap-pairs")]
    assert "n counts seeds" in about and "Student's t" in about
    assert r"Bonferroni: each is of 97.50\%" in about
    assert not any("arm" in cell for rows in tabulars(text) for cell in rows[0] if ":" in cell)


def test_a_column_that_says_one_thing_is_in_the_caption() -> None:
    table = Table(["A minus B", "measure", "n"], [["a", "top-1", "3"], ["b", "top-1", "5"]], 2)
    text = latex.tables([Section("Pairs", [table, table])], "s")
    assert "Pairs Measure: top-1." in text and tabulars(text)[0][0] == ["A minus B", "n"]
    assert re.findall("tab:.*(?=})", text) == ["tab:s-pairs", "tab:s-pairs-2"]


def test_numbers_are_those_of_a_paper() -> None:
    table = Table(["arm", "x"], [["a", "4.8e-08"], ["b", "1e+20"], ["c", "1,234 to 5,678"]])
    rows = tabulars(latex.tables([Section("", [table])], ""))[0][1:]
    cells = [r"$4.8\times10^{-8}$", r"$1\times10^{20}$", "$[1{,}234, 5{,}678]$"]
    assert [row[1] for row in rows] == cells


def test_every_seed_is_inside_its_panel() -> None:
    """Of two seeds without an interval the mean alone made the limits."""
    lines = {"low": [svg_plots.Point([0.0, 0.0], [7.2, 10.8], None)]}
    lines |= {"high": [svg_plots.Point([1.0, 1.0], [8.9, 9.1], None)]}
    axis = svg_plots.XAxis("", ["low", "high"])
    figure = svg_plots.points([svg_plots.Panel("y", lines, {})], axis, [*lines])
    bottom, top = figure.axes[0].get_ylim()
    assert bottom < 7.2 and top > 10.8 and top - bottom < 5


def test_a_scale_of_powers_of_ten_is_written_as_such() -> None:
    panel = svg_plots.Panel("y", {"a": [svg_plots.Point([4.8e-8, 1e-7], [1, 2], None)]}, {})
    figure = svg_plots.points([panel], svg_plots.XAxis("exaFLOP"), ["a"])
    figure.draw_without_rendering()
    assert figure.axes[0].xaxis.get_offset_text().get_text() == "\N{MULTIPLICATION SIGN}10⁻⁸"


@pytest.mark.parametrize(
    ("form", "says"), [("latx", "did you mean latex"), ("csv", "is for a study")]
)
def test_other_formats_and_folders_are_one_line(tmp_path: Path, form: str, says: str) -> None:
    with pytest.raises(UserError, match=f"^format={form}: .*{says}"):
        report_tool.main([str(tmp_path), f"format={form}"])


@given(st.text())
def test_a_text_is_no_markup(text: str) -> None:
    """Every special character stands behind a backslash or is a command, and nothing is lost."""
    shown = latex.escaped(text)
    assert "\n" not in shown and not shown.startswith("[")
    plain = shown.removeprefix("{}").replace("$-$", "-")
    for special, written in latex.SPECIAL.items():
        if special != "\\" and special not in "{}":
            plain = plain.replace(written, "")
    assert not re.search(r"(?<!\\)[&%$#_~^]", plain)


def test_a_name_with_markup_is_shown(tmp_path: Path, undrawn: None) -> None:
    folder = arm_studies.study(tmp_path / "gap")
    altered(folder / "study.json", arms=arm_studies.ARMS | {"mpp": "50% & more_"})
    report_tool.main([str(folder), "format=latex"])
    assert latex.escaped("50% & more_") == r"50\% \& more\_"
