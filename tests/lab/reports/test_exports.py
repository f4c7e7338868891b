"""What a paper takes of a study: CSV, LaTeX and PDF, of made-up studies whose numbers are known."""

import csv
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import arm_studies, key_studies
from helpers.reports import altered, do_not_draw
from ssl_vit.errors import UserError
from ssl_vit.lab import report_tool
from ssl_vit.lab.reports import exports


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


def test_varied_keys_are_columns(tmp_path: Path, undrawn: None) -> None:
    rows = rows_of(key_studies.study(tmp_path / "made"))
    assert {row["corruption.rate"] for row in rows} >= {"0.15", "0.5"}


def test_a_run_that_is_left_out_of_the_report_is_in_no_row(tmp_path: Path, undrawn: None) -> None:
    folder = arm_studies.study(tmp_path / "gap")
    (folder / "final-mpp-1" / "result.json").unlink()
    assert "final-mpp-1" not in {row["run"] for row in rows_of(folder)}


def test_tables_are_those_of_the_report(gap: Path, undrawn: None) -> None:
    """Each row of the Markdown page's tables, in booktabs."""
    report_tool.main([str(gap), "format=latex"])
    text = (gap / "tables.tex").read_text()
    pages = (gap / "report.md").read_text()
    tables = len(re.findall(r"^\|(?: *:?-{2,}:? *\|)+$", pages, re.MULTILINE))
    assert text.count(r"\begin{tabular}") == text.count(r"\toprule") == tables
    for body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        columns, lines = body
        cells = [line.count(" & ") for line in lines.splitlines() if line.endswith(r"\\")]
        assert set(cells) == {len(columns) - 1}
    assert r"mpp minus scratch & top-1 after fine-tuning, points & 3 & +5.00" in text


def test_figures_are_vectors_and_the_same_each_time(gap: Path, capsys) -> None:
    report_tool.main([str(gap), "format=pdf"])
    named = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line[:3] == "pdf"]
    files = sorted((gap / "figures").glob("*.pdf"))
    assert sorted(named) == list(map(str, files)) and files
    assert {file.stem for file in files} == {file.stem for file in (gap / "figures").glob("*.svg")}
    known = {file: file.read_bytes() for file in files}
    assert all(
        content.startswith(b"%PDF") and b"/Subtype /Image" not in content
        for content in known.values()
    )
    report_tool.main([str(gap), "format=pdf"])
    assert {file: file.read_bytes() for file in files} == known


@pytest.mark.parametrize(("form", "says"), [("pfd", "did you mean pdf"), ("csv", "is for a study")])
def test_other_formats_and_folders_are_one_line(tmp_path: Path, form: str, says: str) -> None:
    with pytest.raises(UserError, match=f"^format={form}: .*{says}"):
        report_tool.main([str(tmp_path), f"format={form}"])


@given(st.text())
def test_a_text_is_no_markup(text: str) -> None:
    """Every special character stands behind a backslash or is a command, and nothing is lost."""
    shown = exports.escaped(text)
    assert "\n" not in shown and not shown.startswith("[")
    plain = shown.removeprefix("{}").replace("$-$", "-")
    for special, written in exports.SPECIAL.items():
        if special != "\\" and special not in "{}":
            plain = plain.replace(written, "")
    assert not re.search(r"(?<!\\)[&%$#_~^]", plain)


def test_a_name_with_markup_is_shown(tmp_path: Path, undrawn: None) -> None:
    folder = arm_studies.study(tmp_path / "gap")
    altered(folder / "study.json", arms=arm_studies.ARMS | {"mpp": "50% & more_"})
    report_tool.main([str(folder), "format=latex"])
    assert exports.escaped("50% & more_") == r"50\% \& more\_"
