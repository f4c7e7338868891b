"""The report of a study: its page, tables, figure and exports."""

import csv
import io
import json
import re
import shutil
import sys
import time

import pytest

from helpers.made_studies import (
    FROZEN,
    IMAGES,
    RIGHT,
    TUNED,
    changed,
    counted,
    study,
    write,
)
from helpers.reports import Page, table
from ssl_vit.errors import UserError
from ssl_vit.lab import report, report_pages
from ssl_vit.lab.study import read
from ssl_vit.lab.study.tasks import plan

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


def markdown(folder):
    report.write(folder)
    return (folder / "report.md").read_text()


def exploratory(text):
    return text.partition("## ")[2]


def test_the_page_is_short_and_claims_come_first(whole):
    text = (whole / "report.md").read_text()
    assert text.splitlines()[2].startswith(
        "By top-1 on test images, mpp is 5.00 points above scratch"
    )
    assert len(text.split()) < 450
    assert not CLAIMS.search(exploratory(text))


def test_one_table_in_order_of_the_mean(whole):
    head, *rows = table((whole / "report.md").read_text(), "arm")
    assert head == ["arm", "n", "mean", "sd", "minus scratch", "97.5% interval", "exaFLOP", "paper"]
    assert rows[0][:5] == ["mae", "3", "76.50", "1.50", "+25.50"]
    assert rows[2] == ["scratch", "3", "51.00", "1.00", "", "", "0.004", "77.91"]
    assert [row[0] for row in rows] == ["mae", "mpp", "scratch"]
    assert rows[1][4:6] == ["+5.00", "+2.30 to +8.05"]  # the interval that decides


@pytest.mark.parametrize(
    "asked",
    [
        {"baseline": "scratch"},
        {"pairs": ["mpp:scratch"]},
        {"pairs": ["mpp:scratch", "mae:scratch"]},
    ],
)
def test_the_table_has_the_interval_of_the_sentence(tmp_path, asked):
    """And none of what is not asked. With predictions it is the wider one."""
    content = changed(TUNED, report={"test": "final", **asked})
    text = markdown(study(tmp_path / "s", content, counted()))
    low, high = re.search(r"mpp is 5\.00 points above scratch \((\S+) to (\S+), n", text).groups()
    head, *rows = table(text, "arm")
    level = "95%" if len(asked.get("pairs", ())) == 1 else "97.5%"
    assert head[4:6] == ["minus scratch", f"{level} interval"]
    found = {row[0]: row[4:6] for row in rows}
    assert found["mpp"] == ["+5.00", f"{low} to {high}"] and found["scratch"] == ["", ""]
    assert (found["mae"] == ["", ""]) == (level == "95%")


def test_pairs_of_several_names_stand_in_the_table_of_differences(tmp_path):
    content = changed(TUNED, report={"test": "final", "pairs": ["mpp:scratch", "mae:mpp"]})
    text = markdown(study(tmp_path / "s", content, counted()))
    low, high = re.search(r"mae is 20\.50 points above mpp \((\S+) to (\S+), n", text).groups()
    assert table(text, "arm")[0] == ["arm", "n", "mean", "sd", "exaFLOP"]
    rows = {row[0]: row[1:] for row in table(text, "difference")}
    assert rows["mae minus mpp"][1:5:3] == ["+20.50", "97.5%"]
    assert rows["mae minus mpp"][3] == f"{low} to {high}"


def test_names_tested_on_different_numbers_of_images_show_them(tmp_path):
    folder = study(tmp_path / "s", changed(TUNED, report={"test": "final"}), counted())
    for path in folder.glob("final-mpp-*/result.json"):
        found = json.loads(path.read_text())
        found["metrics"]["top1"]["n"] = 1880
        write(path, found)
        (path.parent / "predictions.npz").unlink()
    rows = {row[0]: row[4] for row in table(markdown(folder), "arm")}
    assert rows == {"arm": "images", "mae": "400", "mpp": "1880", "scratch": "400"}


def test_a_report_crosses_few_files_and_functions_of_the_lab(tmp_path):
    """Of a study with tries, fresh weights, predictions and an axis of numbers."""
    content = changed(
        CURVE, runs__tune=TUNED["runs"]["final"] | {"seeds": [0], "try": {"optim.lr": [0.01, 0.03]}}
    )
    content["runs"]["final"]["best"] = "tune"
    content["axes"]["arm"]["scratch"]["tune"] = content["axes"]["arm"]["scratch"]["final"]

    def measured(task):
        return {"accuracy": (0.5, "validation")} if task.run == "tune" else by_share(task)

    folder = study(tmp_path / "s", content, measured)
    called = set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and "/ssl_vit/lab/" in code.co_filename and code.co_name[0] != "<":
            called.add((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        report.write(folder)
    finally:
        sys.setprofile(None)
    assert len({file for file, _ in called}) <= 8
    assert len(called) <= 80


def test_a_loss_is_in_order_from_the_lowest(tmp_path):
    loss = {"scratch": 2.0, "mpp": 1.0, "mae": 3.0}
    folder = study(tmp_path / "s", TUNED, lambda task: {"loss": (loss[task.at["arm"]], "test")})
    _, *rows = table(markdown(folder), "arm")
    assert [row[0] for row in rows] == ["mpp", "scratch", "mae"] and rows[0][2] == "1.0000"


def test_fresh_weights_stand_among_the_names(tmp_path):
    folder = study(tmp_path / "s", FROZEN, counted(FRESH, "knn"))
    text = markdown(folder)
    _, *rows = table(text, "arm")
    assert [row[0] for row in rows] == ["mae", "mpp", "fresh weights"]
    assert "mae minus fresh weights" in text
    assert (
        ">fresh weights<" in (folder / "figures" / "study.svg").read_text()
        or "fresh weights" in text
    )
    assert table(text.partition("Measured by probe:")[2], "arm") == [
        ["arm", "n", "k-NN of fresh weights, %"],
        ["mpp", "3", "48.33 ± 1.44"],
        ["mae", "3", "48.33 ± 1.44"],
    ]


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
    _, *rows = table(markdown(folder), "length")
    assert [row[:4] for row in rows[:6]] == [
        ["10", "mpp", "3", "51.00"],
        ["10", "dino", "3", "51.00"],
        ["10", "mae", "3", "41.00"],
        ["10", "fresh weights as mpp", "3", "31.00"],
        ["10", "fresh weights as dino", "3", "31.00"],
        ["10", "fresh weights as mae", "3", "21.00"],
    ]
    assert [row[1] for row in rows[6:]] == [row[1] for row in rows[:6]]
    drawn = (folder / "figures" / "study.svg").read_text()
    assert "fresh weights as mpp" in drawn  # a line, as it is the same at both lengths


def test_what_probes_are_compared_with_stands_beside_them(tmp_path):
    """Of two probes each under a name of its own; guessing, which needs no images, is left out."""
    beside = {"": 0.5, "fresh_": 0.3, "start_": 0.2, "pixels_": 0.4, "guess_": 0.1}

    def measured(task):
        names, split = (("knn", "linear"), "test")
        if task.tool == "pretrain":
            names, split = (("probe_knn",), "validation")
        return {
            f"{start}{name}": (value, split) for name in names for start, value in beside.items()
        }

    text = markdown(study(tmp_path / "s", changed(FROZEN, seeds=[0]), measured))
    heads = [
        table(text.partition(f"Measured by {run}:")[2], "arm")[0] for run in ("pretrain", "probe")
    ]
    assert heads[0] == [
        *("arm", "n", "k-NN, % (validation)", "k-NN of fresh weights, % (validation)"),
        "k-NN of the initial weights, % (validation)",
        "k-NN of the pixels at 8 x 8, % (validation)",
    ]
    others = "fresh weights", "the initial weights", "the pixels at 8 x 8"
    assert heads[1] == [
        *("arm", "n", *(f"k-NN of {one}, %" for one in others), "linear, %"),
        *(f"linear of {one}, %" for one in others),
    ]


def test_all_forms_show_the_same_tables(whole, capsys):
    found = report.write(whole)
    text = (whole / "report.md").read_text()
    _, *rows = table(text, "arm")
    cells = [cell for row in rows for cell in row if cell]
    latex = (whole / "tables.tex").read_text()
    page = Page((whole / "report.html").read_text())
    printed = repr(found)
    for cell in cells:
        assert cell in page.cells and cell.replace("%", r"\%") in latex and cell in printed
    assert r"\toprule" in latex and not CLAIMS.search(latex)
    kinds = re.findall(r"begin{tabular}{(\w+)}", latex)
    assert kinds and all(re.fullmatch("l+r+", one) for one in kinds)  # numbers to the right
    content = json.loads(json.dumps(found.content()))
    assert content["sentences"] == [*found.verdict.sentences]
    first = content["tables"]["compared"][0]
    assert (first["arm"], first["n"], first["mean"]) == ("mae", 3, 76.5)
    assert len(content["results"]) == len(found.results.table) and page.open == []


def test_the_caption_of_a_question_has_one_mark_after_it(tmp_path):
    folder = study(tmp_path / "s", changed(TUNED, title="Does it help?"), counted())
    report.write(folder)
    text = (folder / "tables.tex").read_text()
    assert r"\caption{Does it help? Compared. top-1 on test" in text and "?:" not in text


def test_results_and_differences_as_csv(whole):
    rows = list(csv.DictReader(io.StringIO((whole / "results.csv").read_text())))
    assert [float(row["value"]) for row in rows if row["metric"] == "top1"] == [
        count / IMAGES for arm in RIGHT.values() for count in arm
    ]
    rows = list(csv.DictReader(io.StringIO((whole / "differences.csv").read_text())))
    found = {row["difference"]: row for row in rows}
    assert list(found) == ["mpp minus scratch", "mae minus scratch"]
    assert float(found["mpp minus scratch"]["mean"]) == pytest.approx(5)
    assert [row["level"] for row in found.values()] == ["97.5%", "97.5%"]
    for row in found.values():
        mean, high, half = (float(row[key]) for key in ("mean", "high", "half-width"))
        assert row["over"] != "seeds" or high - mean == pytest.approx(half)


def test_the_same_study_gives_the_same_bytes(whole, tmp_path):
    copy = shutil.copytree(whole, tmp_path / "made")
    for name in ("report.md", "report.html", "tables.tex", "looks.json", "figures/study.svg"):
        before = (whole / name).read_bytes()
        (copy / name).unlink()
        report.write(copy)
        assert (copy / name).read_bytes() == before


def test_the_page_needs_nothing_beside_it(whole):
    page = Page((whole / "report.html").read_text())
    assert [link for link in page.linked if not link.startswith("data:")] == []


def test_the_figure_is_transparent(whole):
    text = (whole / "figures" / "study.svg").read_text()
    assert "fill: none" in text and "#ffffff" not in text


def test_words_of_the_study_cannot_become_markup(tmp_path):
    evil = "*x* <b>_y_</b> [z](q) $a$ & 5% #1"
    content = changed(TUNED, title=evil, report__notes=[evil])
    folder = study(tmp_path / "s", content, counted())
    text = markdown(folder)
    assert "<b>" not in text.replace("\\<b>", "") and r"\*x\*" in text
    assert "<b>" not in (folder / "report.html").read_text().partition("<main")[2].replace(
        "&lt;b", ""
    )
    assert r"5\% \#1" in (folder / "tables.tex").read_text()


def test_what_is_missing_or_left_out_is_said(tmp_path):
    folder = study(
        tmp_path / "s", TUNED, lambda task: None if task.name == "final-mae-2" else counted()(task)
    )
    path = folder / "final-mpp-1" / "recipe.yaml"
    path.write_text(path.read_text().replace("steps: 10", "steps: 20"))
    text = markdown(folder)
    assert "1 of 15 tasks have not finished, and nothing of them is here: final-mae-2." in text
    assert (
        "final-mpp-1 is left out: its result.json is of another recipe than its recipe.yaml."
        in text
    )
    (row,) = [row for row in table(text, "run") if row[0] == "final"]
    assert row[1] == "7 of 9"


def test_what_limits_the_answer_is_said(tmp_path):
    content = changed(CURVE, seeds=[0, 1, 2])
    folder = study(tmp_path / "s", content, by_share)
    assert "All seeds learn from one draw of the labels" in markdown(folder)
    content["runs"]["final"]["options"]["data.share_seed"] = "{seed}"
    folder = study(tmp_path / "t", content, by_share)
    assert "one draw" not in markdown(folder)
    for path in folder.glob("final-*/result.json"):
        found = json.loads(path.read_text())
        found["metrics"]["top1"]["n"] = 40
        write(path, found)
    for path in folder.glob("*/predictions.npz"):
        path.unlink()
    assert "Measured on 40 images: on fewer than 100" in markdown(folder)


def test_values_that_are_not_finite_are_named(tmp_path):
    folder = study(tmp_path / "s", TUNED, counted())
    path = folder / "final-mpp-1" / "result.json"
    found = json.loads(path.read_text())
    found["metrics"]["top1"]["value"] = float("inf")
    write(path, found)
    assert "Values that are not finite are left out, of final-mpp-1." in markdown(folder)


@pytest.mark.parametrize("labels", [0, 7])
def test_test_images_that_were_trained_on_are_counted(tmp_path, labels):
    folder = study(tmp_path / "s", TUNED, counted())
    seen = [
        {
            "run": "pretrain-mpp-0",
            "of": {"test": 400},
            "images": {"test": 30},
            "labels": {"test": labels},
        }
    ]
    path = folder / "final-mpp-0" / "environment.json"
    write(path, json.loads(path.read_text()) | {"seen": seen})
    text = markdown(folder)
    said = "mpp: its weights were trained on 30 of 400 test images"
    assert said in text
    first = text.splitlines()[2]
    assert first.startswith(f"> **Note:** {said}, 7 of them with labels") == bool(labels)


def test_means_over_the_names_of_an_axis(tmp_path):
    """As VTAB's: of each seed over all names, and over groups of them."""
    content = changed(
        FROZEN,
        report={"test": "probe", "mean_over": {"arm": {"pixels": ["mpp", "mae"], "own": ["mpp"]}}},
    )
    folder = study(tmp_path / "s", content, counted(FRESH, "knn"))
    text = markdown(folder)
    assert text.splitlines()[2] == "Nothing is compared."
    mean = text.partition("Mean over arm:")[2]
    _, *rows = table(mean, "arm")
    assert [row[0] for row in rows] == ["pixels, 2 of 2", "all, 2 of 2", "own, 1 of 1"]
    assert rows[0][1:4] == ["3", "66.25", "1.15"]


def test_a_mean_is_over_the_seeds_with_the_most_names(tmp_path):
    content = changed(FROZEN, report={"test": "probe", "mean_over": "arm"})
    folder = study(
        tmp_path / "s",
        content,
        lambda task: None if task.name == "probe-mae-2" else counted(FRESH, "knn")(task),
    )
    _, *rows = table(markdown(folder).partition("Mean over arm:")[2], "arm")
    assert rows[0][:3] == ["all, 2 of 2", "2", "66.12"]


def test_means_over_different_names_have_no_difference(tmp_path):
    """Each arm lacks another of three sets, on which values are far apart: 10, 50 and 90%."""
    content = changed(
        FROZEN,
        axes__set={name: {} for name in "abc"},
        runs__probe__over=["arm", "set"],
        report={"test": "probe", "baseline": "mpp", "mean_over": {"set": {"two": ["a", "b"]}}},
    )

    def measured(task):
        if (task.at.get("arm"), task.at.get("set")) in (("mpp", "c"), ("mae", "a")):
            return None
        value = {"a": 0.1, "b": 0.5, "c": 0.9}.get(task.at.get("set"), 0)
        return {"knn": (value + task.seed / 100, "test")}

    _, *rows = table(
        markdown(study(tmp_path / "s", content, measured)).partition("Mean over")[2], "set"
    )
    assert [row[:6] for row in rows] == [
        ["two, 2 of 2", "mpp", "3", "31.00", "1.00", "+0.00"],
        ["two, 1 of 2", "mae", "3", "51.00", "1.00", ""],
        ["all, 2 of 3", "mae", "3", "71.00", "1.00", ""],
        ["all, 2 of 3", "mpp", "3", "31.00", "1.00", "+0.00"],
    ]


def test_along_an_axis_of_numbers_labels_are_worth_others(tmp_path):
    folder = study(tmp_path / "s", CURVE, by_share)
    for path in folder.glob("*/predictions.npz"):
        path.unlink()
    text = markdown(folder)
    along = text.partition("Along share:")[2]
    head, *rows = table(along, "arm")
    assert head == ["arm", "share", "n", "times", "95% interval"]
    # 40.75% of scratch is at 1% times 10^(1.025 / 2.025 ...): by hand below
    share, first = next(row for row in rows if row[0] == "mpp")[1:4:2]
    start, end, here = 122 / 4, 203 / 4, 163 / 4
    assert share == "1%" and float(first) == pytest.approx(
        10 ** ((here - start) / (end - start)), rel=0.005
    )
    assert "mpp and scratch cross at share 0.1" in along
    # the same places are the axis of the figure
    assert "minus scratch" in table(text, "share")[0]


def test_what_was_chosen_of_how_many_tries_and_at_which_end(tmp_path):
    tuned = TUNED["runs"]["final"]["options"]
    content = changed(
        TUNED,
        axes__arm__scratch__sweep=TUNED["axes"]["arm"]["scratch"]["final"],
        runs__sweep={
            "tool": "finetune",
            "over": ["arm"],
            "seeds": [0],
            "try": {"optim.lr": [0.01, 0.03, 0.1]},
            "options": tuned,
        },
        runs__final__best="sweep",
    )

    def measured(task):
        if task.run != "sweep":
            return counted()(task)
        best = 0.1 if task.at["arm"] == "mae" else 0.03
        return {"accuracy": (0.5 - abs(task.tried["optim.lr"] - best), "validation")}

    text = markdown(study(tmp_path / "s", content, measured))
    head, *rows = table(text.partition("Chosen:")[2], "run")
    assert head == ["run", "arm", "chosen", "by", "tries", "at an end"]
    assert rows[1] == ["final", "mpp", "optim.lr=0.03", "accuracy", "3 of 3", ""]
    assert rows[2] == ["final", "mae", "optim.lr=0.1", "accuracy", "3 of 3", "optim.lr"]
    assert "Seeds that chose values are compared too: 0." in text


def test_a_pre_training_that_chose_on_a_seed_that_is_compared_is_said(tmp_path):
    """One of two values that are no numbers is at no end."""
    content = changed(
        TUNED,
        axes__arm__mpp__tune={"recipe": "mpp"},
        axes__arm__mae__tune={"recipe": "mae"},
        runs__tune=TUNED["runs"]["pretrain"]
        | {"seeds": [0], "try": {"optim.lr": [0.001, 0.01], "data.flip": [True, False]}},
        runs__pretrain__best={"of": "tune", "by": "loss"},
    )

    def measured(task):
        if task.run == "tune":
            return {"loss": (2 + task.tried["optim.lr"], "validation")}
        return counted()(task)

    text = markdown(study(tmp_path / "s", content, measured))
    _, first, _ = table(text.partition("Chosen:")[2], "run")
    assert first[2:] == ["optim.lr=0.001, data.flip=True", "loss", "4 of 4", "optim.lr"]
    assert "Seeds that chose values are compared too: 0." in text


def test_all_else_stands_behind(tmp_path):
    """Other metrics of the test, runs beside it, and what pre-training measured, with its
    baselines."""
    probe = {
        "tool": "evaluate",
        "over": ["arm"],
        "only": {"arm": ["mpp", "mae"]},
        "options": {"recipe": "evaluate", "init": "{pretrain}"},
    }
    content = changed(TUNED, runs__frozen=probe, report__beside=["frozen"])

    def measured(task):
        if task.run == "pretrain":
            return {"loss": (2.0, "validation"), "entropy": (4.0, "validation")}
        if task.run == "frozen":
            return {"knn": (0.25, "test"), "linear": (0.5, "test")}
        return counted()(task) | {"top5": (0.99, "test")}

    text = exploratory(markdown(study(tmp_path / "s", content, measured)))
    assert table(text.partition("Measured by frozen:")[2], "arm")[1] == [
        "mpp",
        "3",
        "25.00 ± 0.00",
        "50.00 ± 0.00",
    ]
    assert table(text.partition("Measured by final:")[2], "arm")[0] == ["arm", "n", "top-5, %"]
    assert table(text.partition("Measured by pretrain:")[2], "arm")[0][2:] == [
        "loss (validation)",
        "the training colours' entropy (validation)",
    ]


def test_what_each_run_took(whole):
    rows = {row[0]: row[1:] for row in table((whole / "report.md").read_text(), "run")}
    assert rows["pretrain"] == ["6 of 6", "0.12", "3"] and rows["final"] == [
        "9 of 9",
        "0.036",
        "4.5",
    ]


def test_cost_that_was_not_counted_is_left_empty(tmp_path):
    folder = study(tmp_path / "s", TUNED, counted())
    path = folder / "pretrain-mpp-1" / "result.json"
    write(path, json.loads(path.read_text()) | {"exaflop": None, "total_exaflop": None})
    rows = {row[0]: row[1:] for row in table(markdown(folder), "run")}
    assert rows["pretrain"] == ["6 of 6", "", "3"]


def test_before_the_test_has_finished(tmp_path):
    folder = study(
        tmp_path / "s", TUNED, lambda task: counted()(task) if task.tool == "pretrain" else None
    )
    text = markdown(folder)
    assert text.splitlines()[2] == "No run of final has finished yet."
    assert "9 of 15 tasks have not finished" in text


def test_a_refusal_writes_no_page(tmp_path):
    folder = study(
        tmp_path / "s", changed(FROZEN, report__measures=["linear"]), counted(FRESH, "knn")
    )
    with pytest.raises(UserError):
        report.write(folder)
    assert not (folder / "report.md").exists()


@pytest.mark.parametrize("content", [TUNED, FROZEN, CURVE])
def test_the_made_up_studies_are_studies(content):
    assert plan(read.build(content, "made"), {}, {})


# ---- the tool


def test_the_tool_prints_the_sentences_and_one_json_object(whole, capsys):
    report_pages.main([str(whole), "--json"])
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("By top-1 on test images, mpp is 5.00 points above scratch")
    assert lines[1].split()[:3] == ["arm", "n", "mean"] and "report.html" in lines[-1]
    assert json.loads(last)["sentences"] == [lines[0]]


def test_of_a_run_and_of_a_folder_of_runs_their_pages(whole, capsys):
    report_pages.main([str(whole / "final-mpp-0")])
    assert f"report      {whole / 'final-mpp-0' / 'report.html'}" in capsys.readouterr().out
    report_pages.main([str(whole.parent)])
    assert "15 runs" in capsys.readouterr().out


def test_the_tool_answers_a_mistake_in_one_line(whole, tmp_path):
    with pytest.raises(UserError, match="no such folder; expected one of a run, a study or runs"):
        report_pages.main([str(tmp_path / "none")])
    with pytest.raises(UserError, match="pairs"):
        report_pages.main([str(whole), "pairs=a:b"])


def test_a_million_rows_of_metrics_are_not_read(whole, tmp_path):
    copy = shutil.copytree(whole, tmp_path / "made")
    row = json.dumps({"step": 1, "images": 1, "loss": 1.0}) + "\n"
    (copy / "final-mpp-0" / "metrics.jsonl").write_text(row * 1_000_000)
    start = time.perf_counter()
    report.write(copy)
    assert time.perf_counter() - start < 10
