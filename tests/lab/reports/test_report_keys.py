"""Reports of made-up studies that vary keys, whose answer is known."""

import json
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from helpers import arm_studies as arms
from helpers.key_studies import FEW, RATES, REPORT, study
from helpers.reports import Page, altered, do_not_draw, error, table, write
from ssl_vit import formatting
from ssl_vit.lab import report_tool, reports
from ssl_vit.lab.reports import axes, comparable, svg_plots

CURVES = "figures/measures.svg"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = study(tmp_path_factory.mktemp("varied") / "made")
    return folder, reports.write(folder)


@pytest.fixture
def undrawn(monkeypatch):
    """No figures, which take most of the time."""
    do_not_draw(monkeypatch)


def text_of(folder, **more):
    return reports.write(study(folder, **more)).answer, (folder / "report.md").read_text()


# ---- the answer


def test_a_pair_is_answered_in_one_sentence_with_its_paired_interval(whole):
    """0.5 minus 0.15: 5, 4, 6 points: mean 5, sd 1, half-width 4.3027 / sqrt(3) = 2.4841."""
    folder, found = whole
    pair, best = re.split(r"(?<=\)\.) ", found.answer, maxsplit=1)
    assert pair == (
        "On few shot 5, corruption.rate=0.5 minus corruption.rate=0.15 is +5.00 points "
        "(95% interval in pairs +2.52 to +7.48 over 3 seeds, which excludes zero)."
    )
    assert best.startswith("Highest few shot 5: corruption.rate=0.5 with 46.00% (n = 3)")
    assert best.endswith("(n = 3) of 3 settings.")
    assert (folder / "report.md").read_text().split("\n\n")[:2] == ["# Made up", found.answer]


@pytest.mark.parametrize(
    ("worse", "says"),
    [
        (
            (0.50, 0.52, 0.54),
            "corruption.rate=0.5 minus corruption.rate=0.15 is -6.00 points (95% interval in "
            "pairs -8.48 to -3.52 over 3 seeds, which excludes zero).",
        ),
        ((0.40, 0.46, 0.52), "over 3 seeds, which includes zero)."),
        ((0.40,), "corruption.rate=0.15 is +5.00 points, on one seed, which gives no interval."),
    ],
)
def test_a_difference_may_be_none_or_the_other_way(tmp_path, undrawn, worse, says):
    assert says in text_of(tmp_path / "made", few=FEW | {"rate=0.15": worse})[0]


def test_a_pair_without_a_seed_in_common(tmp_path, undrawn):
    folder = study(tmp_path / "made")
    for name in ("probe-rate=0.15-1", "probe-rate=0.15-2", "probe-rate=0.5-0"):
        shutil.rmtree(folder / name)
    assert "have no seed in common yet." in reports.write(folder).answer


def test_a_difference_of_a_loss_is_the_other_way_round(tmp_path, undrawn):
    """The loss is 3 less the accuracy, so 0.15's is higher, that is worse, by 0.05."""
    same = {arm: {"objective": "mpp"} for arm in RATES}
    answer, _ = text_of(tmp_path / "made", recipes=same, report=REPORT | {"measure": "loss"})
    assert answer.startswith("On held-out loss with its sign reversed, as lower is better, ")
    assert "corruption.rate=0.5 minus corruption.rate=0.15 is +0.050 (" in answer
    assert "Lowest held-out loss: corruption.rate=0.5 with 2.540 (n = 3) of 3 settings." in answer


def test_a_difference_of_a_loss_at_another_rate_has_no_answer(tmp_path, undrawn):
    answer, _ = text_of(tmp_path / "made", report=REPORT | {"measure": "loss"})
    assert ": each arm has its own corruption.rate, so this cannot say which is better." in answer
    assert "of 3 settings, each measured at its own corruption.rate." in answer


# ---- tables and curves


def test_tables_are_what_scipy_says_of_the_seeds(whole):
    rows = table((whole[0] / "report.md").read_text(), "few shot 5, %: arm")
    assert rows[0][1:] == ["n", "mean", "sd", "95%, seeds"]
    for row, values in zip(rows[1:], FEW.values(), strict=True):
        low, high = (
            100 * end for end in stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
        )
        assert row[1:5] == ["3", f"{100 * np.mean(values):.2f}", "1.00", f"{low:.2f} to {high:.2f}"]
    assert [row[0] for row in rows[1:]] == [f"corruption.rate={rate}" for rate in (0.15, 0.5, 0.95)]


def test_one_curve_for_each_measure(whole):
    folder, found = whole
    names = ["few_shot_5", "linear", "accuracy_masked", "loss"]
    assert [one.name for one in found.numbers.measures] == names
    svg = (folder / CURVES).read_text()
    ElementTree.fromstring(svg)
    assert svg.count('id="axes_') == len(names)


def test_a_loss_at_another_rate_is_another_question(whole):
    folder, _ = whole
    assert "at each setting's own corruption.rate" in (folder / "report.md").read_text()


@pytest.mark.parametrize("key", ["target", "model.patch", "data.name", "objective", "joint.mpp"])
def test_a_loss_in_other_units_is_not_shown(tmp_path, undrawn, key):
    more = {"objective": "joint"} if key.startswith("joint.") else {}
    vary = {f"it={value}": {key: value, **more} for value in ("a", "b")}
    few = dict(zip(vary, FEW.values(), strict=False))
    _, text = text_of(tmp_path / "made", few=few, vary=vary, report={"probes": ["probe"]})
    (line,) = (line for line in text.splitlines() if line.startswith("Not shown"))
    assert f"the arms differ in {key} " in line
    assert line.endswith("held-out accuracy_masked, loss.")
    assert "held-out loss: arm" not in text


@pytest.mark.parametrize("images", ["shapes", "others"])
def test_probes_while_training_compare_on_images_of_one_name(tmp_path, undrawn, images):
    """Whatever was predicted: they learn the labels."""
    recipes = {arm: {**one, "data.name": "shapes", "target": arm} for arm, one in RATES.items()}
    recipes["rate=0.5"]["data.name"] = images
    folder = study(tmp_path / "made", recipes=recipes)
    for path in folder.glob("pretrain-*/result.json"):
        metrics = json.loads(path.read_text())["metrics"]
        knn = {"value": 0.5, "n": 9, "split": "validation"}
        altered(path, metrics=metrics | {"probe_knn": knn})
    numbers = reports.write(folder).numbers
    compared = images == "shapes"
    assert ("probe_knn" in [one.name for one in numbers.measures]) == compared
    assert numbers.incomparable.get("probe_knn") == (None if compared else ["data.name"])


def question_keys(name, recipes):
    return comparable.question_keys(name, recipes, [])


def test_a_masked_autoencoder_has_a_difficulty_of_its_own():
    recipes = [
        {"objective": "mae", "mae.rate": rate, "mae.depth": depth, "corruption.rate": rate}
        for rate, depth in ((0.5, 1), (0.75, 2))
    ]
    assert question_keys("loss", recipes) == ([], ["mae.rate"])


def test_moco_is_harder_with_more_images_to_tell_apart():
    """Its loss does not know patches or targets."""
    recipes = [
        {"objective": "moco_v3", "optim.batch": n, "model.patch": n, "target": n, "views.hue": n}
        for n in (1, 2)
    ]
    assert question_keys("loss", recipes) == ([], ["optim.batch", "views.hue"])
    other = [{"objective": "moco_v3", "data.name": name} for name in "ab"]
    assert question_keys("accuracy", other) == (["data.name"], [])


@pytest.mark.parametrize("key", ["ijepa.width", "ijepa.momentum", "data.crop_area", "optim.lr"])
def test_what_an_i_jepa_run_is_trained_with_makes_its_teacher_another_one(key):
    """Losses against two teachers are no answers to one question; masks are a difficulty."""
    recipes = [{"objective": "ijepa", key: n, "ijepa.visible": n} for n in (1, 2)]
    assert question_keys("loss", recipes) == ([key], ["ijepa.visible"])


def test_a_part_of_a_joint_loss_compares_where_the_sum_does_not():
    recipes = [
        {"objective": "joint", "joint.mpp": weight, "corruption.rate": 0.5} for weight in (0.1, 1.0)
    ]
    assert question_keys("loss", recipes) == (["joint.mpp"], [])
    assert question_keys("mpp/loss", recipes) == ([], [])
    other = [
        {"objective": "joint", "target": target, "supervised.smoothing": s}
        for target, s in (("pixels", 0), ("a", 0.1))
    ]
    assert question_keys("mpp/loss", other) == (["target"], [])
    assert question_keys("supervised/loss", other) == (["supervised.smoothing"], [])
    assert question_keys("supervised/accuracy", other) == ([], [])


def test_a_value_that_is_not_finite_is_none(tmp_path, undrawn):
    folder = study(tmp_path / "made")
    entry = {"value": float("nan"), "n": 9, "split": "test"}
    altered(
        folder / "probe-rate=0.95-1" / "result.json",
        metrics={"few_shot_5": entry, "linear": entry | {"value": 0.6}},
    )
    reports.write(folder)
    text = (folder / "report.md").read_text()
    assert [row[1] for row in table(text, "few shot 5, %: arm")[1:]] == ["3", "3", "2"]
    assert [row[1] for row in table(text, "linear, %: arm")[1:]] == ["3", "3", "3"]
    for seed in (0, 2):
        path = folder / f"probe-rate=0.95-{seed}" / "result.json"
        altered(path, metrics={"few_shot_5": entry, "linear": entry | {"value": 0.6}})
    reports.write(folder)
    rows = table((folder / "report.md").read_text(), "few shot 5, %: arm")[1:]
    assert [row[0] for row in rows] == ["corruption.rate=0.15", "corruption.rate=0.5"]


def test_arms_that_are_no_setting_stand_beside(tmp_path):
    few = FEW | {"supervised": (0.6, 0.61, 0.62)}
    answer, text = text_of(tmp_path / "made", few=few, beside=["supervised"])
    assert "Highest few shot 5: corruption.rate=0.5" in answer
    assert table(text, "few shot 5, %: arm")[-1] == [
        "supervised",
        "3",
        "61.00",
        "1.00",
        "58.52 to 63.48",
    ]
    assert "broken lines are not among the arms compared" in text


@pytest.mark.parametrize(("values", "higher"), [((0.6, 0.62, 0.61), True), ((0.3, 0.31), False)])
def test_the_answer_names_a_baseline_that_is_higher_than_all_settings(
    values, higher, tmp_path, undrawn
):
    """`Highest` was said of the varied settings alone, and was not the highest."""
    report = {"probes": ["probe"], "baseline": "plain"}
    few = FEW | {"plain": values}
    answer, _ = text_of(tmp_path / "made", few=few, beside=["plain"], report=report)
    sentence = "The baseline, plain, is higher than all of them with 61.00% (n = 3)."
    assert (sentence in answer) == higher and ("The baseline, plain, is" in answer) == higher


def test_a_table_of_one_seed_has_no_interval(tmp_path, undrawn):
    _, text = text_of(tmp_path / "made", few={arm: values[:1] for arm, values in FEW.items()})
    _, *rows = table(text, "few shot 5, %: arm")
    assert rows[0][3:] == ["-", "-"]
    assert "One seed has no interval" in text


def test_the_same_study_gives_the_same_bytes(whole, tmp_path):
    folder, _ = whole
    shutil.copytree(folder, tmp_path / "again")
    reports.write(tmp_path / "again")
    for name in ("report.md", "report.html", CURVES):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_the_page_holds_all_that_the_text_does(whole):
    page = Page((whole[0] / "report.html").read_text())
    assert not page.open and len(page.linked) == 1
    assert "corruption.rate=0.15" in page.cells
    json.loads(json.dumps(whole[1].content(), allow_nan=False))


def test_the_end_of_the_axis_is_warned_of(tmp_path, undrawn):
    _, text = text_of(tmp_path / "made", few=FEW | {"rate=0.95": (0.6, 0.6, 0.6)})
    assert "> **Note:** The best, corruption.rate=0.95, is at an end of the values tried" in text


def test_what_it_cost(whole):
    text = (whole[0] / "report.md").read_text()
    rows = table(text.split("## Compute")[1], "arm")
    assert rows[0][2:5] == ["runs", "steps", "corrupted patches"]
    arm = "corruption.rate=0.15"
    assert rows[1] == [arm, "pre-training", "3", "10", "8", "100", "0.25", "0.5"]
    assert rows[2] == [arm, "all", "6", "-", "-", "600", "0.9", "3"]
    assert rows[-1] == ["-", "all arms", "18", "-", "-", "1,800", "2.7", "9"]
    assert "Matched by steps" in text


def test_how_settings_are_matched(tmp_path, undrawn):
    text = text_of(tmp_path / "made", match="exaflop")[1]
    assert "Matched by exaFLOP" in text and "Matched by steps" not in text
    vary = {f"steps={steps}": {"optim.steps": steps} for steps in (10, 20)}
    few = dict(zip(vary, FEW.values(), strict=False))
    text = text_of(tmp_path / "more", few=few, vary=vary, report={"probes": ["probe"]})[1]
    assert "The number of steps is what was varied." in text


# ---- two keys

PAIRS = {
    f"rate={r},lr={lr}": {"corruption.rate": r, "optim.lr": lr}
    for r in (0.15, 0.5)
    for lr in (0.001, 0.01, 0.1)
}
GRID = dict(
    zip(
        PAIRS,
        [(0.1, 0.1), (0.3, 0.32), (0.2, 0.2), (0.5, 0.5), (0.3, 0.3), (0.4, 0.4)],
        strict=True,
    )
)


def test_two_keys_make_a_grid(tmp_path):
    _, text = text_of(tmp_path / "made", few=GRID, vary=PAIRS, report={"probes": ["probe"]})
    assert table(text, "optim.lr \\ corruption.rate") == [
        ["optim.lr \\ corruption.rate", "0.15", "0.5"],
        ["0.001", "10.00", "(50.00)"],
        ["0.01", "(31.00)", "30.00"],
        ["0.1", "20.00", "(40.00)"],
    ]
    assert "corruption.rate=0.5, optim.lr=0.001" in text


def test_an_unfinished_cell_stays_empty(tmp_path):
    folder = study(tmp_path / "made", few=GRID, vary=PAIRS, report={"probes": ["probe"]})
    for path in folder.glob("*rate=0.5,lr=0.01-*"):
        shutil.rmtree(path)
    reports.write(folder)
    text = (folder / "report.md").read_text()
    assert table(text, "optim.lr \\ corruption.rate")[2] == ["0.01", "(31.00)", "-"]
    assert "4 of 24 tasks are not finished" in text


# ---- named arms and varied keys in one


def test_settings_may_be_fine_tuned_and_have_a_baseline(tmp_path, undrawn):
    """The study of named arms, whose arms are values of a key."""
    vary = {arm: {"optim.lr": lr} for arm, lr in zip(arms.RIGHT, (0.1, 0.2, 0.4), strict=True)}
    folder = arms.study(tmp_path / "made", vary=vary)
    found = reports.write(folder)
    pair, best = found.answer.split(". Highest ")
    assert "optim.lr=0.2 minus optim.lr=0.1 is +5.00 points" in pair
    assert best.startswith("top-1 after fine-tuning: optim.lr=0.4 with 76.50% (n = 3)")
    text = (folder / "report.md").read_text()
    rows = table(text, arms.TOP1)
    assert rows[0][-3:-1] == ["minus optim.lr=0.1, points", "95%, seeds"]
    assert [row[0] for row in rows[1:4]] == ["optim.lr=0.1", "optim.lr=0.2", "optim.lr=0.4"]
    assert table(text, "sweep: arm")[1][0] == "optim.lr=0.1"
    shutil.rmtree(folder / "final-scratch-0")
    (folder / "final-mpp-0" / "predictions.npz").unlink()
    assert "final-mpp-0/predictions.npz is missing or damaged" in error(folder)


@pytest.fixture
def panels(monkeypatch, undrawn):
    """The (title, arms) of the learning curves that are drawn."""
    found = []

    def learning(panels, *rest):
        found[:] = [(panel.title, list(panel.arms)) for panel in panels]

    monkeypatch.setattr(svg_plots, "learning", learning)
    return found


@pytest.mark.parametrize("key", ["corruption.rate", "target"])
@pytest.mark.parametrize("split", ["validation", "train"])
def test_learning_curves_share_axes_where_the_losses_compare(tmp_path, panels, key, split):
    """Also of runs that held nothing out."""
    vary = {f"it={value}": {key: value} for value in (0.1, 0.2, 0.3)}
    few = dict(zip(vary, FEW.values(), strict=True))
    folder = study(tmp_path / "made", few=few, vary=vary, report={"probes": ["probe"]})
    for path in folder.glob("pretrain-*"):
        (path / "metrics.jsonl").write_text('{"step": 5, "images": 5, "loss": 2.5}\n')
        altered(path / "result.json", metrics={"loss": {"value": 2.5, "n": 9, "split": split}})
    reports.write(folder)
    labels = [f"{key}={value}" for value in (0.1, 0.2, 0.3)]
    if key == "target":
        assert panels == [(f"pretrain: {label}", [label]) for label in labels]
    else:
        assert panels == [("pretrain", labels)]


def test_learning_curves_of_another_objective_have_axes_of_their_own(tmp_path, panels):
    """The settings compare with one another, but not with the arm beside them."""
    folder = study(
        tmp_path / "made",
        few=FEW | {"labels": (0.6,)},
        beside=["labels"],
        recipes=RATES | {"labels": {"objective": "supervised"}},
    )
    for path in folder.glob("pretrain-*"):
        (path / "metrics.jsonl").write_text('{"step": 5, "images": 5, "loss": 2.5}\n')
    reports.write(folder)
    assert [arms for _, arms in panels] == [
        *([f"corruption.rate={rate}"] for rate in (0.15, 0.5, 0.95)),
        ["labels"],
    ]


def test_named_arms_of_other_rates_have_axes_of_their_own(tmp_path, panels, monkeypatch):
    """Their losses, which do not compare; top-1, which does, is on one axis."""
    folder = arms.study(tmp_path / "made")
    drawn = {}

    def points(panels, *rest):
        for panel in panels:
            found = [point.x[0] for line in panel.lines.values() for point in line]
            drawn.setdefault(panel.label, []).append(found)

    monkeypatch.setattr(svg_plots, "points", points)
    rates = {"scratch": 0.15, "mpp": 0.5, "supervised": 0.75}
    for path in folder.glob("pretrain-*"):
        rate = rates[path.name.split("-")[1]]
        write(path / "recipe.yaml", {"objective": "mpp", "corruption": {"rate": rate}})
        (path / "metrics.jsonl").write_text('{"step": 5, "images": 5, "loss": 2.5}\n')
    reports.write(folder)
    (alone,) = {str(found) for name, found in drawn.items() if name == "held-out loss"}
    assert alone.startswith("[[0.0], [1.0], [2.0]")
    assert drawn["top-1 after fine-tuning, %"][0] == [0.0, 1.0, 2.0]
    assert panels[1:] == [(f"pretrain: {arm}", [arm]) for arm in rates]
    assert "axes of its own for held-out" in (folder / "report.md").read_text()


def test_an_interval_that_tells_nothing_is_not_shown(tmp_path, undrawn):
    """0.02, 0.1 and 0.18 have the mean 0.1 and the sd 0.08, so an interval from -9.87 to 29.87%;
    9 images of which all seeds have equally many right have one of no width."""
    few = FEW | {"rate=0.5": (0.02, 0.10, 0.18), "rate=0.15": (0.3, 0.3, 0.3)}
    folder = study(tmp_path / "made", few=few)
    report_tool.main([str(folder), "format=latex"])
    text = (folder / "report.md").read_text()
    _, same, beyond, plain = table(text, "few shot 5, %: arm")
    assert [row[4] for row in (same, beyond)] == ["-", "-"] and "27.52 to" in plain[4]
    assert "No interval is given of few shot 5" in text
    latex = (folder / "tables.tex").read_text()
    assert "-9.87" not in text + latex and "No interval is given where" in latex


def test_a_metric_of_two_parts_is_two_measures(tmp_path, undrawn):
    folder = study(tmp_path / "made")
    about = json.loads((folder / "study.json").read_text())
    for one in about["tasks"]:
        if one["name"].endswith("-2") and one["part"] == "pretrain":
            one["part"] = "again"
    about["tasks"].sort(key=lambda one: one["part"] == "probe")
    write(folder / "study.json", about)
    found = reports.write(folder).numbers
    n = {one.name: [result.value.n for result in one.results] for one in found.measures}
    assert n["loss (pretrain)"] == [2] * 3
    assert n["loss (again)"] == [1] * 3
    assert n["few_shot_5"] == [3] * 3


def test_held_out_losses_on_other_images_are_not_shown(tmp_path, undrawn):
    folder = study(tmp_path / "made")
    data = {"test": "x", "validation": "other"}
    altered(folder / "pretrain-rate=0.5-1" / "environment.json", data=data)
    found = reports.write(folder).numbers
    differ = ["the images held out"]
    assert found.incomparable == {"accuracy_masked": differ, "loss": differ}


def test_the_best_of_values_that_are_lists(tmp_path, undrawn):
    """Only numbers have an end."""
    vary = {
        f"{lr},{betas}": {"optim.lr": lr, "optim.betas": betas}
        for lr in (0.1, 0.2, 0.3)
        for betas in ([0.9, 0.95], [0.9, 0.99])
    }
    few = {arm: (i / 10, i / 10 + 0.01) for i, arm in enumerate(vary)}
    _, text = text_of(tmp_path / "made", few=few, vary=vary, report={"probes": ["probe"]})
    assert "The best, optim.lr=0.3, is at an end" in text
    assert "The best, optim.betas" not in text


# ---- the axes


def test_values_that_differ_do_not_look_alike():
    assert [formatting.format_value(value) for value in (0.5, 1e-4, 0.1234567, 0.1234568, 3)] == [
        *("0.5", "0.0001", "0.1234567", "0.1234568", "3"),
    ]
    assert [formatting.format_value(value) for value in (True, None, "a")] == ["true", "null", "a"]


def test_axes():
    one = axes.axes(RATES)
    assert (one.x, one.lines, one.ticks, one.log) == ("corruption.rate", "", [], False)
    assert [place for place, _ in one.places.values()] == [0.15, 0.5, 0.95]
    two = axes.axes(PAIRS)
    assert (two.x, two.lines) == ("corruption.rate", "optim.lr") and two.places[
        "rate=0.5,lr=0.1"
    ] == (0.5, "optim.lr=0.1")
    words = axes.axes({"a": {"target": "pixels"}, "b": {"target": "mean_color"}})
    assert (words.x, words.ticks, words.places["b"]) == (
        "target",
        ["pixels", "mean_color"],
        (1.0, ""),
    )
    coupled = {
        "all": {"mask": 1.0, "keep": 0.0},
        "none": {"mask": 0.0, "keep": 1.0},
        "as it is": {},
    }
    assert axes.axes(coupled).ticks == ["all", "none", "as it is"]
    steps = {
        "a": {"optim.steps": 100, "optim.warmup": 10},
        "b": {"optim.steps": 1600, "optim.warmup": 160},
    }
    assert axes.axes(steps, "optim.steps").places == {"a": (100.0, ""), "b": (1600.0, "")}


@pytest.mark.parametrize(
    ("values", "log"),
    [((0.05, 0.15, 0.3, 0.5, 0.75, 0.95), False), ((125, 250, 500, 1000, 2000), True), ((1e-4, 1e-3, 1e-2), True),
     ((0, 1, 100), False), ((1, 2, 4), False), ((0.01, 1), True), ((0.1, 1), False)],
)  # fmt: skip
def test_decades_ask_for_a_logarithmic_axis(values, log):
    assert axes.logarithmic(values) == log


# ---- mistakes


def test_a_setting_of_a_pair_without_runs_costs_the_others_nothing(tmp_path):
    folder = study(tmp_path / "made")
    for path in folder.glob("probe-rate=0.15-*"):
        shutil.rmtree(path)
    assert "have no seed in common yet." in reports.write(folder).answer
    for path in folder.glob("probe-*"):
        shutil.rmtree(path)
    assert "no setting has a finished run of part probe; 9 of 18 tasks" in error(folder)


def test_a_measure_that_no_run_has_is_named(tmp_path):
    message = error(study(tmp_path / "made", report=REPORT | {"measure": "few_shot_7"}))
    assert "no finished run measured few_shot_7" in message
    assert "did you mean few_shot_5?" in message


def test_runs_on_other_images_are_named(tmp_path):
    folder = study(tmp_path / "made")
    altered(folder / "probe-rate=0.5-1" / "environment.json", data={"test": "other"})
    assert "were tested on different images" in error(folder)
