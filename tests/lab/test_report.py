"""The report of a study: its page, tables, figure and exports."""

import csv
import io
import json
import re
import shutil
import subprocess

import pytest
from matplotlib.figure import Figure

import ssl_vit
from helpers.made_studies import (
    FROZEN,
    IMAGES,
    RIGHT,
    TUNED,
    alter,
    changed,
    counted,
    study,
    with_metric,
)
from helpers.measurements import by_name
from helpers.reports import Page, table
from ssl_vit.lab import report, report_pages

FRESH = {**RIGHT, "untrained": (190, 200, 190)}
# that only the first sentences may use
CLAIMS = re.compile(
    r"\b(better|best|worse|worst|beats?|wins?|significant\w*|gains?|outperforms?)\b"
)
SHARES = {
    "1%": {"final": {"data.share": 0.01}},
    "10%": {"final": {"data.share": 0.1}},
    "100%": {"final": {"data.share": 1}},
}
CURVE = changed(TUNED, axes__share=SHARES, runs__final__over=["arm", "share"])
BY_SHARE = {  # of 400
    "1%": {"scratch": (120, 124, 122), "mpp": (160, 162, 167), "mae": (120, 124, 122)},
    "10%": {"scratch": (200, 204, 205), "mpp": (204, 199, 206), "mae": (200, 204, 205)},
    "100%": {"scratch": (280, 283, 282), "mpp": (250, 256, 254), "mae": (280, 283, 282)},
}


def by_share(task):
    if task.tool == "pretrain":
        return {"loss": (2.0, "validation")}
    return {"top1": (BY_SHARE[task.at["share"]][task.at["arm"]][task.seed] / IMAGES, "test")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A report of three names and three seeds: its folder."""
    content = changed(
        TUNED, report__paper={"scratch": 77.91, "mpp": 79.9}, report__notes=["A note."]
    )
    folder = study(tmp_path_factory.mktemp("studies") / "made", content, counted())
    report.write(folder)
    return folder


@pytest.fixture
def reported(tmp_path):
    """The text of the report of a study of this content."""

    def make(content, measured):
        return markdown(study(tmp_path / "s", content, measured))

    return make


def markdown(folder):
    report.write(folder)
    return (folder / "report.md").read_text()


def after(text, title, first):
    """The head and the rows of the table below a title."""
    return table(text.partition(title)[2], first)


def test_the_page_is_short_and_claims_come_first(whole):
    text = (whole / "report.md").read_text()
    opening = "By top-1 on test images, mpp is 5.00 points above scratch"
    assert text.splitlines()[2].startswith(opening) and len(text.split()) < 550
    assert not CLAIMS.search(text.partition("## ")[2])
    before, _, behind = text.partition("## Exploratory")
    assert "mpp minus scratch" in before and "mpp minus scratch" not in behind


def test_the_rows_of_a_table_have_the_order_of_the_study_file(whole):
    """And at the end what each run took."""
    text = (whole / "report.md").read_text()
    took = {row[0]: row[1:] for row in table(text, "run")}
    assert took["pretrain"] == ["6 of 6", "0.12", "3"]
    assert took["final"] == ["9 of 9", "0.036", "4.5"]
    assert "arm: the compute differs by a factor of up to 6, from 0.004 exaFLOP for scr" in text
    head, *rows = table(text, "arm")
    assert head == ["arm", "n", "mean", "sd", "minus scratch", "97.5% interval", "exaFLOP", "paper"]
    assert [row[0] for row in rows] == ["scratch", "mpp", "mae"]
    assert rows[2][:5] == ["mae", "3", "76.50", "1.50", "+25.50"]
    assert rows[1][4:6] == ["+5.00", "+2.30 to +8.05"]  # the interval that decides
    assert rows[0] == ["scratch", "3", "51.00", "1.00", "", "", "0.004", "77.91"]


@pytest.mark.parametrize(
    "asked", [{"pairs": ["mpp:scratch"]}, {"pairs": ["mpp:scratch", "mae:scratch"]}]
)
def test_the_table_has_the_interval_of_the_sentence(reported, asked):
    """And none of what is not asked. With predictions it is the wider one."""
    text = reported(changed(TUNED, report={"test": "final", **asked}), counted())
    low, high = re.search(r"mpp is 5\.00 points above scratch \((\S+) to (\S+), 3", text).groups()
    head, *rows = table(text, "arm")
    level = "95%" if len(asked["pairs"]) == 1 else "97.5%"
    assert head[4:6] == ["minus scratch", f"{level} interval"]
    found = {row[0]: row[4:6] for row in rows}
    assert found["mpp"] == ["+5.00", f"{low} to {high}"] and found["scratch"] == ["", ""]
    assert (found["mae"] == ["", ""]) == (level == "95%")


def test_pairs_of_several_names_stand_in_the_table_of_differences(reported):
    pairs = ["mpp:scratch", "mae:mpp"]
    text = reported(changed(TUNED, report={"test": "final", "pairs": pairs}), counted())
    low, high = re.search(r"mae is 20\.50 points above mpp \((\S+) to (\S+), 3", text).groups()
    assert table(text, "arm")[0] == ["arm", "n", "mean", "sd", "exaFLOP"]
    row = {row[0]: row[1:] for row in table(text, "difference")}["mae minus mpp"]
    assert (row[1], row[3], row[4]) == ("+20.50", f"{low} to {high}", "97.5%")


def test_the_page_says_what_names_mean(whole, tmp_path):
    """Arms were named on the page and explained nowhere."""
    assert "What the names mean" not in (whole / "report.md").read_text()
    explain = {"arm": "the way to train", "final": "the test"}
    content = changed(TUNED, report__explain=explain)
    text = markdown(study(tmp_path / "s", content, counted()))
    assert "- arm: the way to train\n- final: the test" in text


def test_the_next_step_follows_from_the_results(tmp_path):
    """Other studies than study/worth ended without one."""
    repeated = {"words": ["recipe=made.yaml", "seeds=3"]}

    def found(name, right, **new):
        folder = study(tmp_path / name, changed(TUNED, **new), counted(right))
        alter(folder / "study.json", **repeated)
        return folder, report.write(folder).next_step.partition(": ")[2].split()

    folder, nothing = found("decided", RIGHT)
    assert nothing == []
    (folder / "final-mae-0" / "result.json").unlink()
    unfinished = report.write(folder).next_step.split()
    assert {"study", "recipe=made.yaml", "seeds=3"} <= {*unfinished}
    equal = {"scratch": (200, 208, 204), "mpp": (203, 204, 207), "mae": (200, 209, 202)}
    _, more = found("undecided", equal)
    assert {"study", "recipe=made.yaml", "seeds=8"} <= {*more} and "seeds=3" not in more
    _, few = found("few", RIGHT, seeds=[2])
    assert "seeds=2,3,4" in few
    stated = {"what": "To list the runs", "command": "runs runs"}
    folder, _ = found("stated", RIGHT, report__next=stated)
    assert report.write(folder).next_step.endswith(" runs runs")


def test_the_next_step_works_from_another_folder(tmp_path, monkeypatch):
    """Its paths are relative to the folder in which the study was typed."""
    (tmp_path / "a b").mkdir()
    folder = study(tmp_path / "a b" / "runs", TUNED, counted())
    (folder / "final-mae-0" / "result.json").unlink()
    alter(folder / "study.json", words=["recipe=made.yaml"], typed_in=str(tmp_path / "a b"))
    program = report.write(folder).next_step.partition("study: ")[2]
    assert program.startswith(f"cd '{tmp_path}/a b' && ") and program.endswith(" recipe=made.yaml")
    monkeypatch.chdir(tmp_path / "a b")
    assert "cd " not in report.write(folder).next_step
    alter(folder / "study.json", typed_in=str(tmp_path / "moved"))
    assert "cd " not in report.write(folder).next_step


def test_a_loss_has_four_decimals(tmp_path):
    """In the table for papers too."""
    loss = {"scratch": 2.0, "mpp": 1.0, "mae": 3.0}
    folder = study(tmp_path / "s", TUNED, lambda task: {"loss": (loss[task.at["arm"]], "test")})
    _, *rows = table(markdown(folder), "arm")
    assert [row[2] for row in rows] == ["2.0000", "1.0000", "3.0000"]
    assert r"mae & 3.0000 $\pm$ 0.0000 \\" in (folder / "tables.tex").read_text()


def test_fresh_weights_that_differ_have_rows_of_their_own(tmp_path):
    """As of two networks; and at each place of another axis."""
    fresh = {"mpp": 0.3, "mae": 0.2, "dino": 0.3}
    axes = {"arm": {name: {"pretrain": {"recipe": name}} for name in fresh}}
    axes["length"] = {name: {"pretrain": {"optim.steps": int(name)}} for name in ("10", "20")}
    over = {f"runs__{run}__over": ["arm", "length"] for run in ("pretrain", "probe")}
    content = changed(FROZEN, axes=axes, **over)

    def measured(task):
        if task.tool == "pretrain":
            return {"loss": (2.0, "validation")}
        value = fresh[task.at["arm"]] + task.seed / 100
        return {"knn": (value + 0.2, "test"), "fresh_knn": (value, "test")}

    folder = study(tmp_path / "s", content, measured)
    text = markdown(folder)
    assert "mae minus untrained weights" in text
    _, *rows = table(text, "length")
    assert [row[:4] for row in rows[:6]] == [
        ["10", "mpp", "3", "51.00"],
        ["10", "mae", "3", "41.00"],
        ["10", "dino", "3", "51.00"],
        ["10", "untrained weights as mpp", "3", "31.00"],
        ["10", "untrained weights as mae", "3", "21.00"],
        ["10", "untrained weights as dino", "3", "31.00"],
    ]
    assert [row[1] for row in rows[6:]] == [row[1] for row in rows[:6]]
    drawn = (folder / "figures" / "study.svg").read_text()
    # lines, because each value is the same at both lengths, and their names from the highest
    assert drawn.index("weights as dino") < drawn.index("weights as mae")


def test_what_probes_are_compared_with_stands_beside_them(reported):
    """Of two probes each under a name of its own; guessing, which needs no images, is left out, and
    so is what the first table has. Of pre-training also the baselines of what it predicts."""
    beside = {"": 0.5, "fresh_": 0.3, "start_": 0.2, "pixels_": 0.4, "commonest_": 0.1}

    def measured(task):
        names, split = (("knn", "linear"), "test")
        if task.tool == "pretrain":
            names, split = (("probe_knn",), "validation")
        own = {"loss": (2.0, split), "entropy": (4.0, split)} if split == "validation" else {}
        return own | {
            f"{start}{name}": (value, split) for name in names for start, value in beside.items()
        }

    text = reported(changed(FROZEN, seeds=[0]), measured)
    shown = {}
    for run, split in (("pretrain", " (validation)"), ("probe", "")):
        head, *rows = after(text, f"Measured by {run}:", "arm")
        shown[run] = dict(
            zip([one.replace(", %", "").removesuffix(split) for one in head], rows[0], strict=True)
        )
    others = {
        "untrained weights": "30.00",
        "the initial weights": "20.00",
        "the pixels at 8 x 8": "40.00",
    }
    of_knn = {f"k-NN of {one}": value for one, value in others.items()}
    first = {"arm": "mpp", "n": "1"}
    predicted = {"loss": "2.0000", "the training colours' entropy": "4.0000"}
    assert shown["pretrain"] == first | {"k-NN": "50.00"} | of_knn | predicted
    of_linear = {f"linear probe of {one}": value for one, value in others.items()}
    # linear stands in the first table
    assert shown["probe"] == first | {"k-NN": "50.00"} | of_knn | of_linear


def test_a_seed_that_settings_are_chosen_on_is_in_no_mean(reported):
    """Of pre-training it was a fourth beside the three that confirm."""
    tune = {"tool": "finetune", "over": ["arm"], "only": {"arm": ["mpp", "mae"]}, "seeds": [9]}
    tune["options"] = TUNED["runs"]["final"]["options"] | {"eval.test": False}
    content = changed(TUNED, runs={**TUNED["runs"], "tune": tune})
    for arm in ("mpp", "mae"):
        content["axes"]["arm"][arm] |= {"tune": {"try": {"optim.lr": [0.1, 0.3]}}}

    def measured(task):
        if task.tool == "pretrain":
            return {"loss": (100.0 if task.seed == 9 else 2.0, "validation")}
        return {"top1": (0.5, "test"), "accuracy": (0.5, "validation")}

    _, *rows = after(reported(content, measured), "Measured by pretrain:", "arm")
    assert rows == [[arm, "3", "2.0000 ± 0.0000"] for arm in ("mpp", "mae")]


def test_all_forms_show_the_same_tables(whole, tmp_path):
    whole = shutil.copytree(whole, tmp_path / "made")
    found = report.write(whole, with_all_tables=True)
    _, *rows = table((whole / "report.md").read_text(), "arm")
    latex = (whole / "tables.tex").read_text()
    page = Page((whole / "report.html").read_text())
    shown = {cell for table in page.tables for row in table for cell in row}
    for cell in (one for row in rows for one in row if one):
        assert cell in shown and cell.replace("%", r"\%") in latex and cell in repr(found)
    assert r"\toprule" in latex and not CLAIMS.search(latex)
    kinds = re.findall(r"begin{tabular}{(\w+)}", latex)
    assert kinds and all(re.fullmatch("l+r+", one) for one in kinds)  # numbers to the right
    content = json.loads(json.dumps(found.content()))
    assert content["sentences"] == [*found.verdict.sentences]
    first = content["tables"]["compared"][0]
    assert (first["arm"], first["n"], first["mean"]) == ("scratch", 3, 51)
    assert len(content["results"]) == len(found.results.table)
    # a page that needs nothing beside it, and a figure without a ground of its own
    assert all(link.startswith(("data:", "#")) for link in page.linked)
    drawn = (whole / "figures" / "study.svg").read_text()
    assert "fill: none" in drawn and "#ffffff" not in drawn


def test_fewer_pairs_than_seeds_are_said(tmp_path):
    """82, 84, 86% and 50, 54%: 84 and 52, and the two pairs differ by 31."""
    values = {"mpp": (0.82, 0.84, 0.86), "scratch": (0.50, 0.54, None), "mae": (0.6, 0.6, None)}

    def measured(task):
        if task.tool == "pretrain":
            return {"loss": (2.0, "validation")}
        value = values[task.at["arm"]][task.seed]
        return value and {"accuracy": (value, "test")}

    folder = study(tmp_path / "s", TUNED, measured)
    found = report.write(folder)
    head, *rows = table((folder / "report.md").read_text(), "arm")
    shown = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    row = [shown["mpp"][key] for key in ("n", "mean", "minus scratch")]
    assert row == ["3", "84.00", "+31.00"]
    assert [shown[name]["pairs"] for name in ("mpp", "mae", "scratch")] == ["2", "2", ""]
    assert "nothing is claimed before the planned end" in str(found)


def test_results_and_differences_as_csv(whole):
    rows = list(csv.DictReader(io.StringIO((whole / "results.csv").read_text())))
    assert [float(row["value"]) for row in rows if row["metric"] == "top1"] == [
        count / IMAGES for arm in RIGHT.values() for count in arm
    ]
    rows = list(csv.DictReader(io.StringIO((whole / "differences.csv").read_text())))
    assert [row["difference"] for row in rows] == ["mpp minus scratch", "mae minus scratch"]
    assert float(rows[0]["mean"]) == pytest.approx(5)
    assert [row["level"] for row in rows] == ["97.5%", "97.5%"]
    assert [(row["metric"], row["split"]) for row in rows] == [("top1", "test")] * 2
    assert f"top-1 on {IMAGES} test images." in (whole / "report.md").read_text()


def test_the_same_study_gives_the_same_bytes(whole, tmp_path):
    copy = shutil.copytree(whole, tmp_path / "made")
    names = ("report.md", "report.html", "tables.tex", "figures/study.svg")
    for name in names:
        (copy / name).unlink()
    report.write(copy)
    assert all((copy / name).read_bytes() == (whole / name).read_bytes() for name in names)


def test_words_of_the_study_cannot_become_markup(tmp_path):
    evil = "*x* <b>_y_</b> [z](q) $a$ & \\q ~ 5% #1?"
    notes = [f"{evil}\n\\input{{q}}"]
    folder = study(tmp_path / "s", changed(TUNED, title=evil, report__notes=notes), counted())
    text, latex = markdown(folder), (folder / "tables.tex").read_text()
    assert r"\input" in latex and r"\input" not in re.sub("%.*", "", latex)
    assert "<b>" not in text.replace("\\<b>", "") and r"\*x\*" in text
    main = (folder / "report.html").read_text().partition("<main")[2]
    assert "<b>" not in main and "&lt;b" in main
    caption = r"\$a\$ \& \textbackslash{}q \textasciitilde{} 5\% \#1?. Mean "
    assert caption in latex


# ---- an axis of numbers, the table for papers and the figure

RATES = {str(rate): {"pretrain": {"corruption.rate": rate}} for rate in (0.75, 0.05, 0.5)}
SWEPT = changed(
    FROZEN,
    title="50% & more",
    axes={"rate": RATES},
    runs__pretrain__over=["rate"],
    runs__pretrain__options__recipe="mpp",
    runs__probe__over=["rate"],
)
K_NN = {"0.75": 0.4, "0.05": 0.5, "0.5": 0.6}


def by_rate(task):
    """Seeds are 1 point apart, so half a 95% interval is 4.3027 / sqrt(3) = 2.48 points wide."""
    if task.tool == "pretrain":
        return {"loss": (2.0, "validation"), "probe_knn": (0.3, "validation")}
    knn = K_NN[task.at["rate"]] + task.seed / 100
    others = {"fresh_linear": 0.3, "fresh_knn": 0.2, "commonest_knn": 0.12, "pixels_knn": 0.1}
    values = {"few_shot_5": 0.35, "linear": knn + 0.2, "knn": knn, **others}
    return {name: (value, "test") for name, value in values.items()}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A reported study of three rates, the highest first in the study's file: its folder."""
    content = changed(SWEPT, report__measures=["knn"])
    folder = study(tmp_path_factory.mktemp("swept") / "50%_a b", content, by_rate)
    report.write(folder)
    return folder


def test_numbers_ascend_and_untrained_weights_are_last(swept):
    text = (swept / "report.md").read_text()
    _, *rows = table(text, "rate")
    assert [row[0] for row in rows] == ["0.05", "0.5", "0.75", "untrained weights"]
    _, *rows = after(text, "Measured by probe:", "rate")
    assert [row[0] for row in rows] == ["0.05", "0.5", "0.75"]
    _, *rows = table(text, "difference")  # the comparisons themselves are those of the study file
    assert [row[0] for row in rows] == [
        "0.05 minus 0.5",
        "0.75 minus 0.05",
        "0.75 minus 0.5",
        *(f"{rate} minus untrained weights" for rate in ("0.05", "0.5", "0.75")),
    ]
    rows = list(csv.DictReader(io.StringIO((swept / "results.csv").read_text())))
    places = dict.fromkeys((row["run"], row["rate"]) for row in rows)
    runs = ["pretrain", "probe", "untrained"]
    assert [*places] == [(run, rate) for run in runs for rate in ("0.05", "0.5", "0.75")]


def test_chosen_values_follow_the_axis(reported):
    rates = {rate: {**settings, "tune": settings["pretrain"]} for rate, settings in RATES.items()}
    tune = SWEPT["runs"]["pretrain"] | {"seeds": [9], "try": {"optim.lr": [0.01, 0.03, 0.1]}}
    best = {"of": "tune", "by": "loss"}
    content = changed(SWEPT, axes__rate=rates, runs__tune=tune, runs__pretrain__best=best)
    _, *rows = after(reported(content, by_rate), "Chosen:", "run")
    assert [row[:3] for row in rows] == [
        ["pretrain", rate, "optim.lr=0.01"] for rate in ("0.05", "0.5", "0.75")
    ]


def test_tables_tex_has_one_table_of_the_measures_of_the_test(swept):
    """The measure that decides comes first, and no other baseline than untrained weights."""
    latex = (swept / "tables.tex").read_text()
    comments, _, text = latex.partition(r"\begin{table}")
    assert all(line.startswith("% ") for line in comments.splitlines())
    assert r"\usepackage{booktabs}" in comments and "By k-NN on test images" in comments
    assert text.splitlines()[1:] == [
        r"\centering",
        r"\caption{50\% \& more. Mean k-NN, 5-shot, linear probe on 400 test images of shapes over 3"
        r" seeds, $\pm$ half the width of the 95\% confidence interval (Student's t over seeds).}",
        r"\label{tab:50--a-b-means}",
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r"rate & k-NN, \% & 5-shot, \% & linear probe, \% \\",
        r"\midrule",
        r"0.05 & 51.00 $\pm$ 2.48 & 35.00 $\pm$ 0.00 & 71.00 $\pm$ 2.48 \\",
        r"0.5 & 61.00 $\pm$ 2.48 & 35.00 $\pm$ 0.00 & 81.00 $\pm$ 2.48 \\",
        r"0.75 & 41.00 $\pm$ 2.48 & 35.00 $\pm$ 0.00 & 61.00 $\pm$ 2.48 \\",
        r"untrained weights & 20.00 $\pm$ 0.00 &  & 30.00 $\pm$ 0.00 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def has_latex():
    if not shutil.which("pdflatex"):
        return False
    return subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True).returncode == 0


@pytest.mark.skipif(
    not has_latex(),
    reason="pdflatex with the package booktabs is not installed",
)
def test_tables_tex_compiles(swept, tmp_path):
    """With labels that differ, and with every character that means something in LaTeX."""
    title = "<a> | $b$ & \\q ~ 5% #1? {x} ^y \u00e9"
    evil = study(tmp_path / "s", changed(TUNED, title=title), counted())
    for folder in (shutil.copytree(swept, tmp_path / "swept"), evil):
        report.write(folder, with_all_tables=True)
        (folder / "paper.tex").write_text(
            "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
            "\\input{tables.tex}\\end{document}\n"
        )
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert "multiply defined" not in done.stdout and (folder / "paper.pdf").exists()


def test_seeds_of_one_pre_training_have_no_interval(tmp_path):
    """(300 + 312 + 306) / 3 of 400 images are 76.5%."""
    content = changed(FROZEN, runs__pretrain__seeds=[0])
    folder = study(tmp_path / "s", content, counted(metric="knn"))
    report.write(folder)
    latex = (folder / "tables.tex").read_text()
    said = (
        "of shapes over 1 seed. Seeds that continue from the same pre-training count as one seed."
    )
    assert r"mae & 76.50 \\" in latex and said in latex
    assert r"\pm" not in latex


@pytest.mark.parametrize("baseline", [{}, {"report__baseline": "mpp"}])
def test_without_a_finite_value_there_is_no_table_for_papers(tmp_path, baseline):
    content = changed(FROZEN, report__measures=["knn"], **baseline)
    values = {"knn": (float("inf"), "test"), "linear": (0.5, "test")}
    folder = study(tmp_path / "s", content, lambda task: values if task.run == "probe" else {})
    assert "that are not finite are left out" in markdown(folder)
    assert (folder / "tables.tex").read_text() == ""


def test_tables_all_adds_the_other_tables_of_the_report(swept, tmp_path):
    folder = shutil.copytree(swept, tmp_path / "s")
    assert (folder / "tables.tex").read_text().count(r"\begin{table}") == 1
    found = ssl_vit.report(folder, tables="all")
    latex = (folder / "tables.tex").read_text()
    captions = re.findall(r"\\caption\{50\\% \\& more( \(.*?\))?\. ", latex)
    assert captions == ["", *(f" ({name})" for name in found.tables)]
    labels = re.findall(r"\\label\{(.*)\}", latex)
    assert len({*labels}) == len(captions)
    report_pages.main([str(folder)])
    assert (folder / "tables.tex").read_text().count(r"\begin{table}") == 1


def test_the_figure_starts_at_the_commonest_class(swept, tmp_path, monkeypatch):
    """If a value lies below it, slightly below this value. Untrained weights are a line."""
    limits, lines = [], {}
    savefig = Figure.savefig

    def save(figure, *arguments, **keywords):
        (panel,) = figure.axes
        limits.append(panel.get_ylim()[0])
        names = [text.get_text() for text in panel.texts]
        dashed = [line.get_ydata()[0] for line in panel.lines if line.get_linestyle() == "--"]
        lines.update(zip(names, dashed, strict=True))
        savefig(figure, *arguments, **keywords)

    monkeypatch.setattr(Figure, "savefig", save)
    folder = shutil.copytree(swept, tmp_path / "s")
    said = "The axis starts at 12.0%, the accuracy of the commonest class."
    assert said in markdown(folder)
    assert limits == [pytest.approx(12)] and lines == {"untrained weights": pytest.approx(20)}
    with_metric(folder / "probe-0.5-0", "knn", value=0.1)
    assert "The axis starts" not in markdown(folder)
    assert 5 < limits[1] < 10
    for path in folder.glob("probe-*"):
        measured = by_name(json.loads((path / "result.json").read_text()))
        del measured["commonest_knn"]
        alter(path / "result.json", measurements=[*measured.values()])
    assert "The axis starts" not in markdown(folder)
    assert limits[2] == limits[1]


# ---- what limits the answer


def test_what_is_missing_or_left_out_is_said(tmp_path):
    """A run that has not finished, one of another recipe, one whose value is not finite, and one
    whose cost was not counted."""
    folder = study(
        tmp_path / "s", TUNED, lambda task: None if task.name == "final-mae-2" else counted()(task)
    )
    path = folder / "final-mpp-1" / "recipe.yaml"
    path.write_text(path.read_text().replace("steps: 10", "steps: 20"))
    with_metric(folder / "final-mpp-2", "top1", value=float("inf"))
    (folder / "final-mpp-2" / "predictions.npz").unlink()
    alter(folder / "pretrain-mpp-1" / "result.json", exaflop=None, total_exaflop=None)
    text = markdown(folder)
    said = "At 2026-01-03T00:00 UTC, 1 of 15 tasks had not finished: final-mae-2."
    assert said in text
    latex = (folder / "tables.tex").read_text()
    assert latex.count(f"% {said}") == latex.count(r"\begin{table}") == 1
    report.write(folder, with_all_tables=True)
    latex = (folder / "tables.tex").read_text()  # of which one table may be copied
    assert latex.count(f"% {said}") == latex.count(r"\begin{table}") > 2
    assert "final-mpp-1 is left out: result.json was made with another recipe" in text
    assert "Values of final-mpp-2 that are not finite are left out." in text
    assert "different revisions" not in text
    alter(folder / "pretrain-mpp-2" / "environment.json", revision="abcdef0123" * 4 + "+")
    assert "abcdef01+ (1 task)" in markdown(folder)
    assert "commonest class" not in text
    with_metric(folder / "final-mae-1", "majority_top1", value=0.52, split="test", n=400)
    (line,) = [line for line in markdown(folder).splitlines() if "always naming" in line]
    assert "52.0%" in line and "scratch" in line and "mae" not in line
    rows = {row[0]: row[1:] for row in table(text, "run")}
    assert rows["final"][0] == "7 of 9" and rows["pretrain"] == ["6 of 6", "", "3"]


def test_what_limits_the_answer_is_said(tmp_path):
    """One draw of the labels, few images, and names that are tested on different numbers of them."""
    few = {f"{share}%": SHARES[f"{share}%"] for share in (1, 10)}
    content = changed(CURVE, axes__share=few)
    folder = study(tmp_path / "s", content, by_share)
    with_metric(folder / "final-mpp-1%-0", "top1", n=40)
    text = markdown(folder)
    assert "All seeds use one draw of labelled images" in text and "no longer belong" not in text
    assert "axis share are not compared" in text and "axis arm are not" not in text
    assert "An accuracy on 40 images" in text
    head, *rows = table(text, "share")
    images = {(row[0], row[1]): row[head.index("images")] for row in rows}
    assert images["1%", "mpp"] == "40" and images["10%", "mpp"] == "400"
    shutil.copytree(folder / "final-mpp-1%-0", folder / "earlier")
    assert "no longer belong to the study are left out: earlier." in markdown(folder)
    content["runs"]["final"]["options"]["data.share_seed"] = "{seed}"
    other = markdown(study(tmp_path / "t", content, by_share))
    assert "one draw" not in other and "one encoder" not in other
    # three seeds of fine-tuning counted as three of what had made the encoder
    content["axes"]["arm"]["mpp"]["final"] = {"init": "timm:vit_tiny_patch16_224"}
    other = markdown(study(tmp_path / "u", content, by_share))
    assert "init=timm:vit_tiny_patch16_224 is the same encoder for all seeds" in other


def test_few_images_that_chose_are_said(tmp_path):
    """A probe's learning rate by 50 held-out images; not those of a k-NN, which chooses nothing."""
    few = {"measured_on": {"test": 400, "validation": 50}}
    for probe, said in (("linear", True), ("knn", False)):
        content = changed(FROZEN, runs__probe__options__probe={"measures": [probe]})
        folder = study(tmp_path / probe, content, counted(FRESH, probe), **few)
        text = markdown(folder).partition("## Limits")[2]
        assert ("probe: held-out images: 50" in text and "linear probe" in text) is said


@pytest.mark.parametrize("labels", [0, 7])
def test_test_images_that_were_trained_on_are_counted(tmp_path, labels):
    folder = study(tmp_path / "s", TUNED, counted())
    seen = {"run": "pretrain-mpp-0", "of": {"test": 400}, "images": {"test": 30}}
    alter(folder / "final-mpp-0" / "environment.json", seen=[seen | {"labels": {"test": labels}}])
    text = markdown(folder)
    said = "mpp: the weights were trained on 30 of 400 test images"
    assert said in text
    first = text.splitlines()[2]
    assert first.startswith(f"> **Note:** {said}, with the labels of 7 images") == bool(labels)


def test_before_the_test_has_finished(tmp_path):
    folder = study(
        tmp_path / "s", TUNED, lambda task: counted()(task) if task.tool == "pretrain" else None
    )
    text = markdown(folder)
    assert text.splitlines()[2] == "No run of final has finished yet."
    assert "9 of 15 tasks had not finished" in text


# ---- means, and along an axis


def test_means_over_the_names_of_an_axis(tmp_path):
    """As VTAB's: of each seed over all names, and over groups of them; of the seeds with the most
    names."""
    groups = {"pixels": ["mpp", "mae"], "own": ["mpp"]}
    content = changed(FROZEN, report={"test": "probe", "mean_over": {"arm": groups}})
    folder = study(tmp_path / "s", content, counted(FRESH, "knn"))
    text = markdown(folder)
    assert text.splitlines()[2] == "Nothing is compared."
    _, *rows = after(text, "Mean over arm:", "arm")
    assert [row[0] for row in rows] == ["pixels, 2 of 2", "own, 1 of 1", "all, 2 of 2"]
    assert rows[0][1:4] == ["3", "66.25", "1.15"]
    shutil.rmtree(folder / "probe-mae-2")
    _, *rows = after(markdown(folder), "Mean over arm:", "arm")
    assert ["all, 2 of 2", "2", "66.12"] in [row[:3] for row in rows]


def test_means_over_different_names_have_no_difference(reported):
    """Each arm lacks another of three sets, on which values are far apart: 10, 50 and 90%."""
    content = changed(
        FROZEN,
        axes__set={name: {"probe": {"probe.steps": 10 + i}} for i, name in enumerate("abc")},
        runs__probe__over=["arm", "set"],
        report={"test": "probe", "baseline": "mpp", "mean_over": {"set": {"two": ["a", "b"]}}},
    )

    def measured(task):
        if (task.at.get("arm"), task.at.get("set")) in (("mpp", "c"), ("mae", "a")):
            return None
        value = {"a": 0.1, "b": 0.5, "c": 0.9}.get(task.at.get("set"), 0)
        return {"knn": (value + task.seed / 100, "test")}

    _, *rows = after(reported(content, measured), "Mean over", "set")
    assert [row[:6] for row in rows] == [
        ["two, 2 of 2", "mpp", "3", "31.00", "1.00", "+0.00"],
        ["two, 1 of 2", "mae", "3", "51.00", "1.00", ""],
        ["all, 2 of 3", "mpp", "3", "31.00", "1.00", "+0.00"],
        ["all, 2 of 3", "mae", "3", "71.00", "1.00", ""],
    ]


def test_along_an_axis_of_numbers_labels_are_worth_others(tmp_path):
    folder = study(tmp_path / "s", CURVE, by_share)
    for path in folder.glob("*/predictions.npz"):
        path.unlink()
    text = markdown(folder)
    head, *rows = after(text, "Along share:", "arm")
    assert head == ["arm", "share", "n", "times", "95% interval"]
    # 40.75% of scratch is at 1% times 10^(1.025 / 2.025 ...): by hand below
    share, first = next(row for row in rows if row[0] == "mpp")[1:4:2]
    start, end, here = 122 / 4, 203 / 4, 163 / 4
    assert share == "1%" and float(first) == pytest.approx(
        10 ** ((here - start) / (end - start)), rel=0.005
    )
    assert "mpp and scratch cross at share 0.1" in text
    # the same places are the axis of the figure
    assert "minus scratch" in table(text, "share")[0]


# ---- what was chosen, and all else


def test_what_was_chosen_of_how_many_tries_and_at_which_end(reported):
    """And by how much. One of two values that are no numbers is at no end; a pre-training that
    chose on a seed that is compared is told too."""
    scratch = TUNED["axes"]["arm"]["scratch"]["final"]
    sweep = TUNED["runs"]["final"] | {"seeds": [0], "try": {"optim.lr": [0.01, 0.03, 0.1]}}
    tries = {"optim.lr": [0.001, 0.01], "data.flip": [True, False]}
    content = changed(
        TUNED,
        axes__arm={
            "scratch": {"sweep": scratch, "final": scratch},
            **{
                arm: {run: {"recipe": arm} for run in ("tune", "pretrain")}
                for arm in ("mpp", "mae")
            },
        },
        runs__sweep=sweep,
        runs__final__best="sweep",
        runs__tune=TUNED["runs"]["pretrain"] | {"seeds": [0], "try": tries},
        runs__pretrain__best={"of": "tune", "by": "loss"},
    )

    def measured(task):
        if task.run == "tune":
            return {"loss": (2 + task.tried["optim.lr"], "validation")}
        if task.run != "sweep":
            return counted()(task)
        best = 0.1 if task.at["arm"] == "mae" else 0.03
        return {"accuracy": (0.5 - abs(task.tried["optim.lr"] - best), "validation")}

    text = reported(content, measured)
    head, *rows = after(text, "Chosen:", "run")
    assert head == ["run", "arm", "chosen", "by", "best", "second best", "tries", "at an end"]
    found = {(row[0], row[1]): row[2:] for row in rows}
    assert found["final", "mpp"] == ["optim.lr=0.03", "accuracy", "50.0%", "48.0%", "3 of 3", ""]
    by_hand = ["accuracy", "50.0%", "43.0%", "3 of 3"]
    assert found["final", "mae"] == ["optim.lr=0.1", *by_hand, "optim.lr"]
    chosen = "optim.lr=0.001, data.flip=True"
    # of a loss the lowest
    assert found["pretrain", "mpp"] == [chosen, "loss", "2.001", "2.001", "4 of 4", "optim.lr"]
    assert "seeds that are also compared: 0." in text


# ---- the tool


def test_the_tool_prints_the_sentences_and_one_json_object(whole, capsys):
    report_pages.main([str(whole), "--json"])
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("By top-1 on test images, mpp is 5.00 points above scratch")
    assert json.loads(last)["sentences"] == [first]
