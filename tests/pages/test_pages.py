"""Pages of runs: their numbers, what is left of a run that was cut off, and
names that look like markup."""

import base64
import hashlib
import json
import math
import os
import re
import resource
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from helpers import arm_studies as arms
from helpers.hub_runs import refused
from helpers.measurements import by_name
from helpers.options import ROOT
from helpers.reports import Page
from helpers.resolving import resolve, resolved
from helpers.run_pages import EVIL, MEASURED, OPTIONS, SVG, evil_run, make_run, rows
from ssl_vit.jobs import finish
from ssl_vit.lab import report_pages
from ssl_vit.lab.options import RunsOptions
from ssl_vit.lab.runs import tool as runs_tool
from ssl_vit.pages import blocks, figure_blocks, figure_style, run_page
from ssl_vit.pages.blocks import Chart, Line, Section, Text
from ssl_vit.pages.run_record import read_run
from ssl_vit.recipe import schema, tools
from ssl_vit.runs import lock
from ssl_vit.runs.folder import Run


def page_of(folder):
    run_page.write(folder)
    return Page((folder / "report.html").read_text())


def test_the_numbers_of_a_finished_run(tmp_path):
    """Wilson's interval of 50 of 100 is 40.38% to 59.62% (Newcombe, 1998, method 3). Rows of one
    metric have different names: two rows had the name "accuracy masked"."""
    page = page_of(make_run(tmp_path / "made"))
    results = page.table(["100 held-out images", "this run", "baseline"])
    masked = "50.00% (40.38 to 59.62)"
    names = ["accuracy masked, against the commonest colour", "accuracy masked, against the neighb"]
    assert all(row[0].startswith(name) for row, name in zip(sorted(results), names, strict=False))
    assert [row[1:] for row in sorted(results)] == [
        [masked, "7.00% (the commonest colour)", "yes"],
        [masked, "45.00% (the neighbours' mean)", "not known"],
        ["2.25", "", ""],
    ]
    assert "1,000 steps on 64,000 images in 6 min 38 s" in page.text
    costs = dict(page.table(["fact", "value"]))
    assert costs["device-hours"] == "0.11" and costs["images per second, median"] == "100"
    assert costs["peak memory of a device, GiB"] == "1.2"
    assert "0: cat" in page.text and "a processor" in page.text
    assert "Warnings" not in page.text


def test_splits_of_one_fingerprint_stand_in_one_row(tmp_path):
    """Shares of a split have the fingerprint of the whole, which looks like a mistake."""
    data = {"train": "0123", "validation": "0123", "test": "4567"}
    facts = dict(page_of(make_run(tmp_path / "made", environment={"data": data})).table(["fact"]))
    assert facts["fingerprint of the whole split of train and validation"] == "0123"
    assert facts["fingerprint of test"] == "4567" and "fingerprint of train" not in facts


def test_curves_are_the_rows_of_metrics_jsonl(tmp_path):
    made = rows()
    made[4]["loss"] = float("nan")
    page = page_of(make_run(tmp_path / "made", metrics=made))
    loss, held_out, level = page.chart("Loss")["lines"]
    assert loss["x"] == [row["step"] for row in made]
    assert loss["y"] == [None if i == 4 else pytest.approx(5.9 - i / 10) for i in range(20)]
    assert (held_out["x"], held_out["y"], held_out["kind"]) == ([100, 200], [4, 3], "points")
    assert level["kind"] == "level" and level["y"] == [4.1, 4.1] and level["x"] == [10, 200]
    accuracy = page.chart("Accuracy")["lines"]
    assert [line["name"] for line in accuracy][:2] == [
        "accuracy masked",
        "accuracy masked, held-out",
    ]
    assert len(accuracy) == 4, "two curves and two baselines"
    assert page.chart("Memory, GiB")["lines"][0]["y"][-1] == 1.2
    assert "Learning rate" not in page.text, "one value has no chart"
    assert "The loss is not finite in 1 row of metrics.jsonl, first at step 50." in page.text
    assert "1 warning: see" in page.text
    charted = {line["name"] for text in page.data for line in json.loads(text)["lines"]}
    assert not {"step", "images", "seconds"} & charted


def test_what_it_predicts_is_the_first_figure(tmp_path):
    """Before the other figures. Results, curves and figures are open, everything else is folded."""
    folder = make_run(tmp_path / "made")
    for name in ("filters", "attention_rollout", "reconstruction", "aaa"):
        (folder / "figures" / f"{name}.svg").write_text(SVG)
    sections = run_page.build(read_run(folder))
    unfolded = [section for section in sections if not section.is_folded]
    assert [section.title for section in unfolded] == ["", "Results", "Curves", "Figures"]
    assert sections[: len(unfolded)] == unfolded and len(sections) > len(unfolded)
    titles = [block.title for block in unfolded[3].blocks]
    assert titles == ["Predictions", "Reconstruction", "Filters", "Attention rollout", "Aaa"]
    page = page_of(folder)
    assert [link for link in page.linked if link.startswith("#")][:4] == [
        *("#section-1", "#section-2", "#section-3", "#figure-1")
    ], "its table of contents names them too"


def test_what_has_one_value_is_a_number_and_no_curve(tmp_path):
    """Measured once, the same each time, or never finite; beside a curve in one chart too."""
    made = rows(12, lr=2e-5, accuracy=0.25, grad_norm=float("nan"))
    page = page_of(make_run(tmp_path / "made", metrics=made))
    numbers = {row[0]: row[1:] for row in page.table(["measure", "value", "steps"])}
    assert numbers["learning rate"] == ["2e-05", "10 to 120"]
    assert numbers["loss, held-out"] == ["4", "100"]
    assert numbers["accuracy"] == ["25.00%", "10 to 120"]
    assert numbers["norm of the gradient"] == ["nan", "10 to 120"]
    lines = [line for text in page.data for line in json.loads(text)["lines"]]
    curves = [line for line in lines if line["kind"] != "level"]
    assert {line["name"] for line in curves} == {"loss", "accuracy masked", "memory, GiB"}
    assert all(len({*line["y"]}) > 1 for line in curves)
    assert not {line["name"] for line in curves} & numbers.keys()


@pytest.mark.parametrize("count", [600, 601, 602, 650, 1201])
def test_a_thinned_curve_keeps_its_ends(count, tmp_path):
    line = page_of(make_run(tmp_path / "made", metrics=rows(count))).chart("Loss")["lines"][0]
    assert (line["x"][0], line["x"][-1]) == (10, 10 * count)
    assert len(line["x"]) <= 600 and (count > 600 or len(line["x"]) == count)


def test_a_curve_of_very_many_rows_keeps_its_ends_peaks_and_gaps(tmp_path):
    """As many rows as memory would be short of: none is kept as an object."""
    folder = make_run(tmp_path / "made", metrics=[])
    odd = {1: "5", 40_000: "NaN", 100_001: "9", 140_003: "-9", 200_000: "6"}
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, 200_001):
            file.write(f'{{"step": {step}, "loss": {odd.get(step, "0.5")}}}\n')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    record = run_page.write(folder)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert record.step == 200_000 and grown < 40 * 1024  # KiB
    text = (folder / "report.html").read_text()
    (line,) = Page(text).chart("Loss")["lines"]
    assert len(text) < 300_000 and len(line["x"]) <= 600 and line["x"] == sorted(line["x"])
    shown = dict(zip(line["x"], line["y"], strict=True))
    assert [shown[step] for step in odd] == [5, None, 9, -9, 6]
    assert "A curve shows at most 600 values" in text


def test_what_differs_from_the_recipe_file(tmp_path):
    page = page_of(make_run(tmp_path / "made"))
    found = {row[0]: row[1:] for row in page.table(["key", "this run", "recipe=mpp"])}
    assert found["model.depth"][0] == "2" and found["optim.batch"][0] == "64"
    assert set(found) == {"model.depth", "optim.batch", "optim.steps"}
    every = dict(page.table(["key", "value"]))
    assert every["model.depth"] == "2" and len(every) > 90


def test_without_a_recorded_recipe_file_it_differs_from_the_defaults(tmp_path):
    page = page_of(make_run(tmp_path / "made", environment={"recipe_file": None}))
    found = {row[0]: row[1:] for row in page.table(["key", "this run", "the defaults"])}
    assert found["optim.batch"] == ["64", str(schema.defaults()["optim.batch"])]
    assert found["model.depth"][0] == "2"


def test_the_recipe_file_of_the_first_start_is_kept(tmp_path):
    """Resumed from its own recipe.yaml, nothing would differ any more."""
    made = resolved([*OPTIONS, "name=made", f"out={tmp_path}"])
    run = Run(made.recipe)
    run.recipe_file = made.recipe_file()
    run.open({"data": {"train": "0123"}})
    (run.folder / "metrics.jsonl").write_text('{"step": 1}\n')
    again = Run(made.recipe)
    again.recipe_file = resolved([f"recipe={tmp_path}/made/recipe.yaml"]).recipe_file()
    again.open({"data": {"train": "0123"}})
    kept = again.environment()["recipe_file"]
    assert kept["name"] == "mpp" and kept["differs"]["model.depth"] > 2
    assert "name" not in kept["differs"] and "out" not in kept["differs"]


def test_a_run_that_goes_on(tmp_path):
    """Until 200 of 1000 steps of 64 images, at 100 images a second: 512 seconds are left."""
    folder = make_run(tmp_path / "made", finished=False)
    (folder / "checkpoints" / "step-000000150").mkdir(parents=True)
    page = page_of(folder)
    assert "stopped after step 200 of 1,000. The newest checkpoint is from step 150" in page.text
    assert "These values were measured at step 200" in page.text
    assert "Next, continue from" in page.text
    assert page.table(["held-out images", "this run"])[0][:2] == ["loss", "3"]
    with held_by_another_process(folder):
        assert lock.is_held(folder)
        page = page_of(folder)
        assert "in progress, at step 200 of 1,000, about 8 min 32 s left" in page.text
    assert not lock.is_held(folder)


@contextmanager
def held_by_another_process(folder):
    code = "import sys; from pathlib import Path; from ssl_vit.runs import lock\n"
    code += "with lock.hold(Path(sys.argv[1]), 'x'): print('held', flush=True); input()"
    call = [sys.executable, "-c", code, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(call, stdin=pipe, stdout=pipe, text=True, env=environment) as other:
        assert other.stdout.readline() == "held\n"
        yield
        other.communicate("\n")


def test_a_run_without_metrics(tmp_path):
    folder = make_run(tmp_path / "made", metrics=[], finished=False)
    page = page_of(folder)
    assert "has not finished and has no metrics" in page.text
    assert "Curves" not in page.text and not page.data


@pytest.mark.parametrize("content", ["", "[1]", "[" * 5000, '{"measurements": 3}', "\x00\xff"])
@pytest.mark.parametrize(
    "name", ["recipe.yaml", "environment.json", "metrics.jsonl", "result.json", "not_finite.json"]
)
def test_a_damaged_file_is_named(name, content, tmp_path):
    folder = make_run(tmp_path / "made")
    (folder / name).write_text(content)
    page = page_of(folder)
    if name not in ("metrics.jsonl", "recipe.yaml"):
        assert f"{name} is damaged" in page.text or name == "environment.json"
    assert len(runs_tool.table(RunsOptions(folder=tmp_path)).runs) == 1


def test_lines_that_are_no_rows_are_left_out_and_counted(tmp_path):
    """And rows of no later step, which no curve may join. A last line is still being written."""
    folder = make_run(tmp_path / "made", metrics=[*rows(12), *rows(3)], finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('nonsense\n{"step": 130, "loss": 1')
    page = page_of(folder)
    loss = page.chart("Loss")["lines"][0]
    assert loss["x"] == [10 * i for i in range(1, 13)]
    assert "metrics.jsonl is damaged (unreadable lines: 4)" in page.text
    assert "stopped after step 120 of 1,000" in page.text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 1e308, 0])
def test_numbers_that_cannot_be_have_a_page(value, tmp_path):
    """A share above 1 has no interval. An amount that is not finite is damage (test_records)."""
    found = {name: {"value": value, "n": 100, "split": "validation"} for name in MEASURED}
    metrics = rows(loss=value, images_per_s=value)
    folder = make_run(tmp_path / "made", metrics=metrics, found=found)
    result = json.loads((folder / "result.json").read_text())
    if math.isfinite(value):
        result |= dict.fromkeys(("seconds", "images", "exaflop", "device_hours"), value)
    (folder / "result.json").write_text(json.dumps(result))
    page = page_of(folder)
    cells = [row[1] for table in page.tables if "this run" in table[0] for row in table[1:]]
    with_interval = {cell for cell in cells if "(" in cell}
    assert with_interval == ({"0.00% (0.00 to 3.70)"} if value == 0 else set())
    runs_tool.table(RunsOptions(folder=tmp_path))
    (folder / "result.json").unlink()
    assert "stopped after step 200" in page_of(folder).text


@pytest.mark.parametrize(
    "name", ["recipe.yaml", "environment.json", "metrics.jsonl", "result.json"]
)
def test_a_folder_with_one_file_has_a_page(name, tmp_path):
    whole = make_run(tmp_path / "whole")
    folder = tmp_path / "left"
    folder.mkdir()
    (folder / name).write_bytes((whole / name).read_bytes())
    page = page_of(folder)
    assert "recipe.yaml is missing" in page.text or name == "recipe.yaml"


def test_warnings_and_skipped_updates(tmp_path):
    folder = make_run(tmp_path / "made")
    with (folder / "log.txt").open("a") as log:
        log.writelines(f"2026-11-22 08:00:0{i % 10} warning: number {i}\n" for i in range(60))
        log.write("2026-11-22 08:01:00 started at step 500 on 1 processes\n")
    (folder / "not_finite.json").write_text(json.dumps({"steps": {"12": [1], "7": [2]}}))
    page = page_of(folder)
    assert "2 steps (7, 12)" in page.text
    assert "The last 50 of 60 warnings" in page.text
    assert "number 59" in page.text and "number 9" not in page.text
    assert "61 warnings: see" in page.text and "resumed once" in page.text


def test_figures_are_inside_up_to_a_size(tmp_path, monkeypatch):
    captioned = {*figure_blocks.DESCRIPTIONS, *figure_blocks.DECLARED_FIGURES}
    assert {*tools.FIGURES, "predictions"} == captioned
    folder = make_run(tmp_path / "made")
    record = {"figures": {"predictions": {"images": "cifar10, split test", "count": 9}}}
    (folder / "figures" / "figures.json").write_text(json.dumps(record))
    assert "Images of cifar10, split test. (figures/pred" in page_of(folder).text
    content = (folder / "figures" / "predictions.svg").read_bytes()
    inside = f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}"
    assert inside in page_of(folder).linked
    monkeypatch.setattr(run_page, "EMBEDDED", len(content) - 1)
    page = page_of(folder)
    assert inside not in page.linked
    assert "too large for this page: figures/predictions.svg" in page.text


def test_nothing_is_loaded_and_nothing_else_runs(tmp_path):
    """The policy names each script and style by its hash, and allows no address."""
    page = page_of(make_run(tmp_path / "made"))
    assert {one.partition(":")[0] for one in page.linked if not one.startswith("#")} == {"data"}
    for texts, directive in ((page.scripts, "script-src"), (page.styles, "style-src")):
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in texts]
        allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
        assert f"{directive} {allowed};" in page.policy and len(texts) == 2
    assert page.policy.startswith("default-src 'none'; img-src data:;")
    assert "Leon Sorokin" in page.scripts[0], "the licence of uPlot goes along"


def contrast(one, other):
    """The contrast ratio of two #rrggbb colours (WCAG 2.2, section 1.4.3)."""

    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_stand_out_from_their_ground_light_and_dark():
    """4.5 of text (WCAG 1.4.3), 3 of a chart's lines (1.4.11); figures' one ink has the most that
    it can have with both grounds."""
    assert contrast("#000000", "#ffffff") == 21
    style = (blocks.ASSETS / "page.css").read_text()
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6})\b", part)) for part in style.split("@media")[:2]
    )
    for theme in (light, light | dark):
        for ground in (theme["paper"], theme["band"]):
            assert all(contrast(theme[name], ground) >= 4.5 for name in ("ink", "quiet", "link"))
        lines = [theme[f"c{number}"] for number in range(8)]
        assert all(contrast(colour, theme["paper"]) >= 3 for colour in (*lines, theme["warn"]))
    inked = [contrast(figure_style.INK, ground) for ground in (light["paper"], dark["paper"])]
    assert min(inked) > 4.2


@pytest.mark.parametrize("finished", [True, False])
def test_names_are_shown_as_text(finished, tmp_path):
    """In the page, and in the data inside its scripts."""
    plain = page_of(make_run(tmp_path / "plain", finished=finished))
    folder = evil_run(tmp_path / "runs" / "<b>\"'|&", finished)
    page = page_of(folder)
    seen = EVIL.replace("\u202e", "\ufffd")
    assert page.tags <= plain.tags | {"details", "summary"} and len(page.scripts) == 2
    assert page.text.count(seen) > 8 and "\u202e" not in page.text + "".join(page.data)
    assert [line["name"] for line in page.chart(seen.replace("\ufffd", "\ufffd"))["lines"]]
    assert "<b>\"'|&" in page.text


def test_the_page_of_what_goes_on_is_loaded_again(tmp_path):
    """Without scripts by its head, else by the page's own; a run says of itself that it goes on."""
    folder = make_run(tmp_path / "made", finished=False)
    refresh = '<noscript><meta http-equiv="refresh" content="60"></noscript>'
    run_page.write(folder)
    assert refresh not in (folder / "report.html").read_text()
    run_page.write(folder, running=True)
    text = (folder / "report.html").read_text()
    assert refresh in text and 'data-refresh="60"' in text and "in progress" in text
    with held_by_another_process(folder):
        run_page.write(folder)
        assert refresh in (folder / "report.html").read_text()


def test_markdown_leaves_out_what_only_a_browser_draws():
    chart = Chart("loss", [Line("a", [1], [2.0])])
    text = blocks.markdown("t", [Section("", [Text("one"), chart, Text("two")])])
    assert text == "# t\n\none\n\ntwo\n"


def test_cells_of_a_markdown_table_are_escaped():
    table = blocks.Table(["a|b", "n"], [["<b>*x*</b> | y", "1"]])
    assert blocks.block_markdown(table).splitlines() == [
        "| a&#124;b | n |",
        "| --- | --: |",
        r"| &lt;b>\*x\*&lt;/b> &#124; y | 1 |",
    ]


def test_columns_that_are_behind_come_last_in_a_page_alone():
    rows = [["a", "x", "3", "1.5", "1 to 2"]]
    table = blocks.Table(
        ["arm", "measure", "n", "mean", "95%"], rows, 2, behind=frozenset({"n", "measure"})
    )
    sections = [Section("", [table])]
    found = Page(blocks.html("t", sections)).tables
    assert found == [[["arm", "mean", "95%", "measure", "n"], ["a", "1.5", "1 to 2", "x", "3"]]]
    assert "| arm | measure |" in blocks.markdown("t", sections)


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl"])
def test_a_pipe_in_place_of_a_file_holds_no_page_up(name, tmp_path):
    folder = make_run(tmp_path / "made", finished=False)
    (folder / name).unlink(missing_ok=True)
    (folder / name).parent.mkdir(exist_ok=True)
    os.mkfifo(folder / name)
    found = []
    reading = threading.Thread(
        target=lambda: found.append(run_page.render(read_run(folder))), daemon=True
    )
    reading.start()
    reading.join(60)
    assert len(found) == 1


def test_a_warning_that_was_repeated_is_one_line_with_its_count(tmp_path):
    folder = make_run(tmp_path / "made")
    line = "2026-01-01 00:00:00 warning: an image was replaced by the next: {}.png: cut off\n"
    (folder / "log.txt").write_text(3 * line.format("a") + line.format("b"))
    record = read_run(folder)
    (listing,) = [b for b in run_page.warning_blocks(record) if isinstance(b, blocks.Listing)]
    assert [text.partition(": ")[2] for text in listing.lines] == [
        "a.png: cut off (3 times)",
        "b.png: cut off",
    ]
    assert record.warning_count == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "expected a single FOLDER"),
        (["a", "b"], "a b: expected a single FOLDER"),
        (["--nothing", "a"], "--nothing: unknown option, choices: folder, tables, --json"),
        (["missing"], "no such folder"),
        (["{}"], "neither a run nor a study"),
    ],
)
def test_wrong_options_are_one_line(options, error, tmp_path):
    assert error in refused(report_pages.main, [option.format(tmp_path) for option in options])


def test_the_command(tmp_path, capsys):
    folder = make_run(tmp_path / "made", found={"bad": {"value": float("nan"), "split": "test"}})
    report_pages.main([str(folder), "--json"])
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found["state"] == "finished" and by_name(found)["bad"]["value"] is None
    assert lines[-1].endswith("made/report.html")
    study = arms.study(tmp_path / "gap")
    report_pages.main([str(study)])
    assert f"report      {study / 'report.html'}" in capsys.readouterr().out


def test_a_page_that_cannot_be_written_does_not_end_a_run(tmp_path, monkeypatch, capsys):
    folder = make_run(tmp_path / "made")
    run = Run(resolve([*OPTIONS, "name=made", f"out={tmp_path}"]))
    result = run.result()
    assert result is not None
    finish.write_page(run, result)
    own = (folder / "report.html").read_text()
    run_page.write(folder)
    assert (folder / "report.html").read_text() == own  # of the file as of what it was made of
    monkeypatch.setattr(run_page, "render", lambda *given: 1 / 0)
    finish.write_page(run, result)
    assert "warning: report.html could not be written: ZeroDivisionError" in capsys.readouterr().out
    assert "warning: report.html could not be written" in (folder / "log.txt").read_text()
