"""Shares of labels: which images they are, studies over them, and accuracy against labels."""

import io
import itertools
import json
import math
import re

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from scipy import stats

from helpers.arm_studies import IMAGES, finish, predict, task
from helpers.options import ROOT
from helpers.reports import write
from helpers.studies import IMAGES_CURVE, LABELS
from ssl_vit import costs, rng
from ssl_vit.config.resolve import resolve
from ssl_vit.config.schema import Data, Recipe
from ssl_vit.data import base, sources
from ssl_vit.errors import UserError
from ssl_vit.lab import reports
from ssl_vit.lab.reports import figures, load, svg_plots
from ssl_vit.lab.reports.scaling_curve import Estimate, Worth, crossovers, factor, undecided
from ssl_vit.lab.reports.statistics import Numbers, compute
from ssl_vit.lab.studies import expand as plans
from ssl_vit.lab.studies import task_recipes
from ssl_vit.lab.studies.read_study import build, read

ROWS = 200


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Labelled images in parquet."""
    folder = tmp_path_factory.mktemp("data")
    features = Features({"image": Image(), "label": ClassLabel(names=["ant", "bee"])})
    for split, count in (("train", ROWS), ("test", 4)):
        table: dict = {"image": [], "label": []}
        for number in range(count):
            file = io.BytesIO()
            pixels = np.full((4, 4, 3), number % 256, np.uint8)
            Pillow.fromarray(pixels).save(file, "PNG")
            table["image"].append({"bytes": file.getvalue(), "path": None})
            table["label"].append(number % 2)
        Dataset.from_dict(table, features).to_parquet(
            folder / f"{split}-0.parquet", batch_size=ROWS // 4
        )
    return folder


def images(source):
    """The numbers that the images of `shards` show."""
    raw, _ = source.fetch(np.arange(len(source)))
    return [int(np.asarray(Pillow.open(io.BytesIO(one)))[0, 0, 0]) for one in raw]


def cut(shards, **options):
    return sources.load(Data(name="own", path=str(shards), **options))


def test_what_is_held_out_of_train_is_the_same_for_every_share(shards):
    found = [
        cut(shards, share=share, validation=0.1, validation_from="train")
        for share in (0.05, 0.5, 1.0)
    ]
    held_out = [images(one.validation) for one in found]
    assert held_out[0] == held_out[1] == held_out[2] and len(held_out[0]) == 20
    train = [set(images(one.train)) for one in found]
    assert [len(one) for one in train] == [9, 90, 180]
    assert train[0] < train[1] < train[2] == set(range(ROWS)) - set(held_out[0])
    of_share = cut(shards, share=0.5, validation=0.1)
    assert len(of_share.train) + len(of_share.validation) == 100


class Labelled(base.Source):
    """A source of labels alone."""

    def __init__(self, labels_N):
        self.label_N = labels_N
        self.classes = []

    def __len__(self):
        return len(self.label_N)

    def fetch(self, rows):
        return [b""] * len(rows), self.label_N[rows]

    def name(self, row):
        return f"row {row}"


DRAWN = {"validation": 0.1, "validation_from": "train"}


@settings(max_examples=30)  # each reads the files three times
@given(seed=st.integers(0, 2**31 - 1), share=st.floats(0.01, 1))
def test_a_drawn_share_has_of_each_class_its_share_and_smaller_ones_inside(shards, seed, share):
    small, large = (
        cut(shards, share=part, share_seed=seed, **DRAWN) for part in (share / 2, share)
    )
    found, inside = images(large.train), set(images(small.train))
    assert inside <= set(found) and len(set(found)) == len(found) == max(1, round(share * 180))
    held_out = images(large.validation)
    assert held_out == images(cut(shards, **DRAWN).validation)
    for name in (0, 1):  # the class of an image is its number's remainder by two
        of_class = 100 - sum(number % 2 == name for number in held_out)
        assert abs(sum(number % 2 == name for number in found) - share * of_class) <= 1.5


def test_a_drawn_share_is_webster_apportionment():
    """Worked by hand: (r - 1/2) / n of classes of 6, 3 and 1, ascending; 2 and 9 tie at 1/2."""
    labels_N = np.repeat([7, 2, 9], [6, 3, 1])
    fifth = set()
    for seed in range(20):
        rows = base.stratified_rows(Labelled(labels_N), rng.key(3, seed))
        assert sorted(rows) == list(range(10))
        drawn = labels_N[rows].tolist()
        assert drawn[:4] == [7, 2, 7, 7] and sorted(drawn[4:6]) == [2, 9]
        assert drawn[6:] == [7, 7, 2, 7]
        fifth.add(drawn[4])
    assert fifth == {2, 9}


def test_draws_of_other_seeds_are_other_images(shards):
    draws = [set(images(cut(shards, share=0.2, share_seed=seed).train)) for seed in range(8)]
    together = [len(one & two) for one, two in itertools.combinations(draws, 2)]
    # of 198 images 40 each: 8.1 in common are expected by chance
    assert 6 < np.mean(together) < 10 and max(together) < 20


def test_shares_are_not_drawn_by_classes_where_labels_are_not_known_beforehand(shards):
    words = ["recipe=supervised", f"data.path={shards}", "data.share_seed=1", "data.stream=true"]
    with pytest.raises(UserError, match=r"data\.share_seed=1: takes shares of classes") as caught:
        resolve(words)
    assert "\n" not in str(caught.value)


def test_shares_of_images_without_labels_are_not_drawn_by_classes(tmp_path):
    for number in range(20):
        Pillow.fromarray(np.full((4, 4, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
    with pytest.raises(UserError, match=r"data\.share_seed=0: .*have not one label each"):
        cut(tmp_path, share=0.5, share_seed=0)


@given(
    share=st.sampled_from([0.01, 0.1, 0.37, 1.0]),
    validation=st.sampled_from([0.02, 0.1, 0.5]),
    validation_from=st.sampled_from(["share", "train"]),
)
@settings(max_examples=24)
def test_the_number_of_training_images_is_told_before_they_are_read(
    shards, share, validation, validation_from
):
    data = Data("own", str(shards), share=share, validation=validation)
    data.validation_from = validation_from
    assert costs.training_images(data, ROWS) == len(sources.load(data).train)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["recipe=mpp", "data.validation=0", "data.validation_from=train"],
            "expected data.validation=null or a share above 0",
        ),
        (["recipe=mpp", "data.validation_from=all"], "choices: share, train"),
    ],
)
def test_options_that_cannot_be_are_answered_in_one_line(options, says):
    with pytest.raises(UserError) as caught:
        resolve(options)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_parts_are_repeated_for_each_share_and_need_those_of_their_own():
    study = build(LABELS, "x")
    plan = plans.tasks(study, {}, {})
    assert [name for name in plan if name.startswith("pretrain")] == [
        f"pretrain-mpp-{seed}" for seed in range(3)
    ]
    for share, steps in (("0.01", "9"), ("0.1", "20"), ("1", "40")):
        sweep = [f"sweep_{share}-{{}}-0-lr={lr}" for lr in (0.1, 0.2)]
        for arm, first in (("mpp", "pretrain-mpp-2"), ("scratch", f"scratch_{share}-scratch-2")):
            final = plan[f"final_{share}-{arm}-2"]
            assert final.needs == (*(name.format(arm) for name in sweep), first)
            assert final.options["data.share"] == share and final.options["optim.steps"] == steps
            assert final.best == f"sweep_{share}"
        assert plan[f"scratch_{share}-scratch-0"].options["data.share"] == share
        direct = plan[f"direct_{share}-scratch-1"]
        assert direct.needs == tuple(name.format("scratch") for name in sweep)
    assert len(plan) == 3 + 9 + 3 * (4 + 6 + 3)
    assert study.report["final"] == "final_0.1"  # the first share's
    assert [(one.share, one.final, one.extra) for one in study.points] == [
        (share, f"final_{share:g}", [f"direct_{share:g}"]) for share in (0.1, 1.0, 0.01)
    ]


def test_probes_are_repeated_for_each_share_that_they_name_or_start_from():
    probe = {"tool": "evaluate", "options": {"recipe": "evaluate", "init": "{pretrain}"}}
    parts = LABELS["parts"] | {
        "once": probe | {"by_arm": {"mpp": {}}},
        "named": probe | {"by_arm": {"mpp": {"data.share": "{share}"}}},
        "started": probe | {"by_arm": {"scratch": {"init": "{scratch}"}}},
    }
    report = LABELS["report"] | {"probes": ["once", "named", "started"]}
    study = build(LABELS | {"parts": parts, "report": report}, "x")
    places = [f"{part}_{share}" for part in ("named", "started") for share in ("0.1", "1", "0.01")]
    assert study.report["probes"] == ["once", *places]
    plan = plans.tasks(study, {}, {})
    assert plan["named_1-mpp-2"].options["data.share"] == "1"
    assert plan["started_0.1-scratch-2"].needs == ("scratch_0.1-scratch-2",)


def test_the_study_of_labels_holds_the_same_images_out_of_every_share():
    study = read(ROOT / "results" / "labels_cifar10.yaml")
    plan = plans.tasks(study, {"cifar10": str(ROOT)}, {})
    cuts = {
        (task.options["data.validation"], task.options["data.validation_from"])
        for task in plan.values()
    }
    assert cuts == {("0.02", "train")}
    assert sorted(one.share for one in study.points) == [0.01, 0.05, 0.1, 1.0]


def test_what_the_shares_set_cannot_be_overridden_or_varied():
    study = build(LABELS, "x")
    assert study.curve.keys == {"data.share", "optim.steps"}
    for option in ("data.share", "optim.steps"):
        with pytest.raises(UserError, match=f"{option}=1: the study's labels set it"):
            plans.tasks(study, {}, {option: "1"})
    with pytest.raises(UserError, match=r"vary: data\.share: labels: sets it"):
        build(LABELS | {"vary": {"data.share": [0.1, 0.2]}}, "x")
    build(LABELS | {"vary": {"optim.steps": [100, 200]}}, "x")  # of pre-training, which names none


def test_a_small_share_has_a_name_without_an_exponent():
    labels = [{"share": 1e-5, "steps": 1}, {"share": 0.123456789, "steps": 2}]
    parts = build(LABELS | {"labels": labels}, "x").parts
    assert {"final_0.00001", "final_0.123456789"} <= parts.keys()


@pytest.mark.parametrize(
    ("was", "now", "fine"),
    [
        ({"data.share": 0.1}, {"data.share": 0.5}, True),  # one cut, whatever the share
        ({"data.share": 0.1}, {"data.share": 0.1, "data.share_seed": 1}, False),
        ({"data.share": 1, "data.validation_from": "share"}, {"data.share": 1}, True),
        ({"data.share": 0.5, "data.validation_from": "share"}, {"data.share": 0.5}, False),
        ({"data.share": 0.1}, {"data.share": 0.1, "data.validation": 0.2}, False),
    ],
)
def test_a_rate_is_judged_on_images_that_no_share_has_learned(shards, was, now, fine):
    cut = {"data.path": str(shards), "data.validation": 0.1, "data.validation_from": "train"}
    cut |= {"data.size": 16, "model.patch": 4}

    def recipe(name, own):
        options = {"recipe": name} | cut | own
        return resolve([f"{key}={value}" for key, value in options.items()])

    before, after = recipe("supervised", was), recipe("finetune", now)
    if fine:
        task_recipes._check_unseen(before, after, "x")
        held_out = [set(images(sources.load(one.data).validation)) for one in (before, after)]
        assert held_out[0] == held_out[1]
        assert not held_out[1] & set(images(sources.load(before.data).train))
    else:
        with pytest.raises(UserError, match=r"data\.validation_from=(train|share)"):
            task_recipes._check_unseen(before, after, "x")


OTHER = "another share's labels"
JOINT = {"data.validation": 0.1, "data.validation_from": "train"}


@pytest.mark.parametrize(
    ("pretrain", "learned"),
    [
        ({"recipe": "supervised", "data.share": 0.1}, "0.1 of the labels"),
        ({"recipe": "supervised"}, "1 of the labels"),
        ({"recipe": "joint", "data.share": 0.2, **JOINT}, "0.2 of the labels"),
        ({"recipe": "supervised", "data.share": 0.01, "data.validation": 0.1}, OTHER),
        ({"recipe": "supervised", "data.share": 0.01, "data.share_seed": 3}, OTHER),
        ({"recipe": "supervised", "data": "cifar10", "data.size": 64}, None),  # other images
        ({"recipe": "supervised", "data.share": 0.01}, None),
        ({"recipe": "mpp"}, None),
    ],
)
def test_weights_that_have_learned_more_labels_than_the_share_are_refused(pretrain, learned):
    """Two steps before, too: an arm that goes through another fine-tuning."""
    named = {"recipe": "finetune", "data": "shapes"}  # else the images are those of `pretrain`
    parts = LABELS["parts"] | {
        "pretrain": {"tool": "pretrain", "options": pretrain, "by_arm": {"mpp": {}}},
        "between": {
            "tool": "finetune",
            "options": named | {"data.share": 0.01, "init": "{pretrain}"},
            "by_arm": {"mpp": {}},
        },
        "final": LABELS["parts"]["final"]
        | {
            "best": None,
            "options": LABELS["parts"]["final"]["options"] | named,
            "by_arm": {"mpp": {"init": "{between}"}, "scratch": {"init": "{scratch}"}},
        },
    }
    kept = {name: parts[name] for name in ("pretrain", "scratch", "between", "final")}
    shares = [{"share": 0.01, "steps": 90}, {"share": 1, "steps": 400}]
    report = {"final": "final", "baseline": "scratch", "candidate": "mpp"}
    study = build(LABELS | {"labels": shares, "parts": kept, "report": report}, "x")
    plan = plans.tasks(study, {}, {})
    if learned is None:
        task_recipes.check(study, plan)
        return
    with pytest.raises(UserError) as caught:
        task_recipes.check(study, plan)
    text = f"arm mpp: data.share=0.01: part pretrain has learned {learned}"
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("was", "now", "same"),
    [
        ({"path": "IMAGES"}, {"path": "IMAGES"}, True),
        ({"name": "own", "path": "IMAGES"}, {"path": "IMAGES/."}, True),
        ({}, {"path": "IMAGES"}, True),  # from the Hub
        ({"train": "training"}, {}, True),
        ({"train": "validation"}, {}, False),
        ({"name": "own", "path": "OTHER"}, {"path": "IMAGES"}, False),
        ({"name": "tinyimagenet"}, {}, False),
    ],
)
def test_the_same_images_are_known_by_name_or_place(tmp_path, was, now, same):
    def data(values):
        placed = {key: text.replace("IMAGES", str(tmp_path)) for key, text in values.items()}
        return Data(**{"name": "cifar10"} | placed)

    recipe = Recipe(objective="supervised", data=data(was))
    assert task_recipes._learned_labels(recipe, data(now)) == same
    assert not task_recipes._learned_labels(Recipe(objective="mpp", data=data(was)), data(now))


SHARES = np.array([0.01, 0.1, 1.0])


def test_crossing_and_worth_of_two_straight_lines():
    """Accuracies a + b log10(share): they cross, and one is worth a constant factor, by hand."""
    decades = np.log10(SHARES)
    baseline = 0.8 + 0.2 * decades  # 40, 60, 80
    steep = 0.7 + 0.1 * decades  # 50, 60, 70
    (found,) = crossovers(SHARES, steep[None], baseline[None])
    assert found.value == pytest.approx(0.1, rel=1e-3)
    assert (found.low, found.high, found.seeds) == (None, None, 1)
    # 50% is 40 + 10: half a decade more of the baseline's labels
    assert factor(SHARES, 0, steep[None], baseline[None]).value == pytest.approx(10**0.5)
    assert factor(SHARES, 2, steep[None], baseline[None]).value == pytest.approx(10**-0.5)
    above = factor(SHARES, 2, baseline[None] + 0.1, baseline[None])
    assert above.value is None and above.low == pytest.approx(1.0) and above.high is None
    below = factor(SHARES, 0, baseline[None] - 0.1, baseline[None])
    assert below.value is None and below.high == pytest.approx(1.0) and below.low is None


def at(*accuracies):
    """One seed's accuracies at SHARES."""
    return np.array([accuracies])


@pytest.mark.parametrize(
    ("own", "other", "places"),
    [
        (at(0.5, 0.6, 0.7), at(0.5, 0.5, 0.5), []),  # equal at the first share, then above
        (at(0.5, 0.5, 0.5), at(0.5, 0.6, 0.7), []),
        (at(0.6, 0.5, 0.6), at(0.5, 0.5, 0.5), []),  # touches
        (at(0.4, 0.5, 0.4), at(0.5, 0.5, 0.5), []),
        (at(0.5, 0.5, 0.5), at(0.5, 0.5, 0.5), []),
        (at(0.4, 0.5, 0.6), at(0.5, 0.5, 0.5), [0.1]),  # through a share
        (at(0.6, 0.5, 0.4), at(0.5, 0.5, 0.5), [0.1]),
        (at(0.4, 0.6, 0.4), at(0.5, 0.5, 0.5), [10**-1.5, 10**-0.5]),
    ],
)
def test_arms_cross_where_the_sign_changes_and_only_there(own, other, places):
    assert [one.value for one in crossovers(SHARES, own, other)] == pytest.approx(places)


def test_a_factor_is_where_the_baseline_first_gets_there():
    rising = at(0.4, 0.6, 0.8)
    assert factor(SHARES, 0, at(0.4, 0, 0), rising).value == 1
    assert factor(SHARES, 0, at(0.8, 0, 0), rising).value == pytest.approx(100)
    beyond = factor(SHARES, 0, at(0.81, 0, 0), rising)
    assert (beyond.value, beyond.low, beyond.above) == (None, pytest.approx(100), True)
    below = factor(SHARES, 2, at(0, 0, 0.39), rising)
    assert (below.value, below.high, below.above) == (None, pytest.approx(0.01), False)
    # a baseline that falls again: at 100% the arm is better, which fewer labels cannot undo
    falling = at(0.4, 0.7, 0.6)
    better = factor(SHARES, 2, at(0, 0, 0.65), falling)
    assert better.value is None and better.above and better.low == pytest.approx(1)
    # reached twice: the first time counts
    assert factor(SHARES, 0, at(0.65, 0, 0), falling).value == pytest.approx(10 ** (0.25 / 0.3))


def test_a_bound_is_only_as_good_as_the_seeds():
    """The arm is above the baseline on average and undecided everywhere."""
    baseline = np.tile(at(0.4, 0.6, 0.8), (3, 1))
    own = baseline + np.array([[0.6], [-0.5], [0.1]])
    found = factor(SHARES, 2, own, baseline)
    assert (found.value, found.low, found.high, found.above) == (None, None, None, True)
    # only where the baseline is still low is it decided
    own = baseline + np.array([[0.05], [0.01], [0.03]])
    found = factor(SHARES, 2, own, baseline)
    half = stats.t.ppf(0.975, 2) * 0.02 / math.sqrt(3)
    assert half > 0.03  # at its own share it is undecided
    assert found.low == pytest.approx(10 ** ((0.03 - half) / 0.2), rel=0.01) and found.low < 1


def test_a_range_that_is_undecided_is_told():
    own = np.array([[0.5, 0.6, 0.9], [0.5, 0.62, 0.91], [0.6, 0.58, 0.92]])
    other = np.array([[0.5, 0.5, 0.8], [0.55, 0.5, 0.8], [0.5, 0.5, 0.8]])
    ((low, high),) = undecided(SHARES, own, other)
    assert low == pytest.approx(0.01) and 0.01 < high < 0.1
    assert undecided(SHARES, own[:1], other[:1]) == []


@given(seed=st.integers(0, 1000), shift=st.floats(-0.05, 0.05))
@settings(max_examples=30)
def test_ends_of_an_interval_are_where_scipys_interval_reaches_zero(seed, shift):
    """Differences that are a straight line in the logarithm, with another height for each seed: its
    t-interval is of one width everywhere, so the ends can be solved for."""
    height_S = np.random.default_rng(seed).normal(shift, 0.01, 4)
    own = 0.5 + height_S[:, None] + np.zeros((4, 3))
    baseline = np.tile(0.5 + 0.1 * np.log10(SHARES / 0.1), (4, 1))
    half = stats.t.interval(0.95, 3, 0, stats.sem(height_S))[1]
    mean = float(height_S.mean())
    value, low, high = (0.1 * 10 ** ((mean + x) / 0.1) for x in (0, -half, half))
    (found,) = crossovers(SHARES, own, baseline)
    assert found.value == pytest.approx(value, rel=1e-3)
    assert found.low == (None if low < 0.01 else pytest.approx(low, rel=0.01))
    assert found.high == (None if high > 1 else pytest.approx(high, rel=0.01))
    worth = factor(SHARES, 1, own, baseline)
    assert worth.value == pytest.approx(found.value / 0.1, rel=1e-2)
    if low > 0.01:
        assert worth.low == pytest.approx(low / 0.1, rel=0.01)


RIGHT = {  # of 400 test images, by share, arm and seed
    0.01: {"scratch": (120, 124, 122), "mpp": (160, 162, 167)},
    0.1: {"scratch": (200, 204, 205), "mpp": (204, 199, 206)},
    1.0: {"scratch": (280, 283, 282), "mpp": (250, 256, 254)},
}


def curve_study(folder, right=RIGHT):
    tasks, labels = [], []
    for share, arms in right.items():
        labels.append({"share": share, "final": f"final_{share:g}", "extra": []})
        for arm, counts in arms.items():
            tasks += [task(f"final_{share:g}", arm, seed) for seed in range(len(counts))]
    report = {"final": "final_0.01", "extra": [], "baseline": "scratch", "candidate": "mpp"}
    about = {
        "name": "labels",
        "title": "Labels",
        "arms": {"scratch": "a", "mpp": "b"},
        "seeds": [0, 1, 2],
        "report": report,
        "tasks": tasks,
        "labels": labels,
    }
    folder.mkdir(parents=True)
    write(folder / "study.json", about)
    for one in tasks:
        count = right[float(one["part"].split("_")[1])][one["arm"]][one["seed"]]
        finish(folder, one | {"part": "final"}, count)
        predict(folder / one["name"], np.arange(IMAGES) < count)
    return folder


def test_the_report_says_what_mpp_is_worth(tmp_path):
    numbers = compute(load.load_study(curve_study(tmp_path / "s")))
    (comparison,) = numbers.scaling.comparisons
    (cross,) = comparison.crossovers
    assert 0.1 < cross.value < 0.2 and cross.low < cross.value < cross.high
    first = comparison.worth[0].factor
    # scratch rises from 122 to 203 over a decade, on average: 163 needs half of it
    assert first.value == pytest.approx(10 ** ((163 - 122) / (203 - 122)), rel=0.01)
    assert first.low < first.value < first.high
    assert numbers.measure("top1").part == "final_0.01"
    differences = [point.apart["mpp"].mean for point in numbers.scaling.points]
    assert differences == pytest.approx([41 / IMAGES, 0, -85 / 3 / IMAGES])


def test_the_page_has_every_share_and_the_sentence(tmp_path):
    folder = curve_study(tmp_path / "s")
    scaling = reports.write(folder).content()["numbers"]["scaling"]
    points = {one["share"]: (one["measure"], one["apart"]["mpp"]["n"]) for one in scaling["points"]}
    measures = [f"top1 (final_{share})" for share in ("0.1", "1")]
    assert points == dict(zip(RIGHT, [(one, 3) for one in ("top1", *measures)], strict=True))
    text = (folder / "report.md").read_text()
    answer = text.split("## ")[0]
    assert "With 1% of the labels mpp is worth 3.2 times the labels of scratch" in answer
    assert "mpp and scratch cross at" in answer
    section = text.split("## Accuracy against labels")[1].split("\n## ")[0]
    assert [line.split("|")[1].strip() for line in section.splitlines() if "| mpp" in line] == [
        "1%",
        "10%",
        "100%",
    ]
    assert "figures/scaling.svg" in section and "figures/worth.svg" in section
    assert (folder / "figures" / "scaling.svg").exists()
    assert "times the labels of scratch" in (folder / "figures" / "worth.svg").read_text()
    for share in ("1%", "10%", "100%"):
        assert f"With {share} of the labels mpp is worth" in section


def test_probes_of_two_shares_are_two_measures(tmp_path):
    folder = curve_study(tmp_path / "s")
    about = json.loads((folder / "study.json").read_text())
    right = {"0.01": 200, "0.1": 300}
    about["report"]["probes"] = [f"frozen_{share}" for share in right]
    for share, count in right.items():
        for arm, seed in itertools.product(("scratch", "mpp"), range(3)):
            one = task(f"frozen_{share}", arm, seed, "evaluate")
            about["tasks"].append(one)
            finish(folder, one | {"part": "probe"}, count + seed + 10 * (arm == "mpp"))
    write(folder / "study.json", about)
    numbers = compute(load.load_study(folder))
    for share, count in right.items():
        measure = numbers.measure(f"linear (frozen_{share})")
        assert measure.difference("mpp", "scratch").mean == pytest.approx(10 / 500)
        (own,) = [one for one in measure.results if one.arm == "scratch"]
        assert own.value.mean == pytest.approx((count + 1) / 500)
    reports.write(folder)
    text = (folder / "report.md").read_text()
    assert all(f"linear (frozen_{share}), %: arm" in text for share in right)


def drawn_factors(lines):
    """The axes of the figure, and its lines: a marker and points."""
    shares = sorted({one.share for line in lines.values() for one in line})
    x = svg_plots.XAxis("labels, %", log=True, ticks=shares)
    figure = svg_plots.factors(lines, x, "times", ["scratch", *lines])
    (axis,) = figure.axes
    return axis, [(one.get_marker(), *one.get_xydata().tolist()) for one in axis.get_lines()]


def test_what_an_arm_is_worth_is_drawn_with_its_interval_and_its_open_ends():
    lines = {
        "mpp": [
            Worth(1, Estimate(2.0, 1.5, 3.0, seeds=3)),
            Worth(10, Estimate(None, 1.2, None, seeds=3, above=True)),
            Worth(100, Estimate(0.5, 0.4, None, seeds=3)),
        ],
        "mae": [
            Worth(1, Estimate(4.0, None, None, seeds=1)),
            Worth(10, Estimate(None, 5.0, None, seeds=1, above=True)),
            Worth(100, Estimate(None, None, None, seeds=1)),
        ],
    }
    axis, drawn = drawn_factors(lines)
    bottom, top = axis.get_ylim()
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log") and bottom < 0.4 < 5 < top
    means = [line[1:] for line in drawn if line[0] == "D"]
    assert [[y for _, y in line] for line in means] == [
        [2, pytest.approx(math.nan, nan_ok=True), 0.5],  # so that the line breaks there
        [4, *[pytest.approx(math.nan, nan_ok=True)] * 2],
    ]
    assert [line for line in drawn if line[0] != "D"] == [
        ("None", [0, 1], [1, 1]),
        ("None", [1, 1.5], [1, 3]),
        ("None", [10, 1.2], [10, top]),
        ("^", [10, top]),
        ("None", [100, 0.4], [100, top]),
        ("^", [100, top]),
        ("None", [10, 5], [10, top]),
        ("^", [10, top]),
    ]


@pytest.mark.parametrize("arms", [1, 6, 7, 12])
def test_all_factors_lie_inside_their_figure(arms):
    lines = {
        f"arm{n}": [Worth(x, Estimate(1 + n, 1.0, 20.0, seeds=3)) for x in (1, 10)]
        for n in range(arms)
    }
    axis, _ = drawn_factors(lines)
    axis.figure.draw_without_rendering()
    box = axis.get_window_extent()
    for line in axis.get_lines()[1:]:
        places = line.get_transform().transform(line.get_xydata())
        assert all(box.x0 < x < box.x1 for x, _ in places)


@pytest.mark.parametrize("least, most", [(1.01, 1.1), (0.5, 3), (0.001, 1000)])
def test_a_factor_can_be_read_off_whatever_its_size(least, most):
    axis, _ = drawn_factors({"mpp": [Worth(1, Estimate(least, least, most, seeds=3))]})
    low, high = axis.get_ylim()
    ticks = [place for place in axis.get_yticks() if low <= place <= high]
    assert 3 <= len(ticks) <= 9


def colours(texts: str) -> list[str]:
    """Those of an SVG's diamonds and lines, in their order."""
    return list(dict.fromkeys(re.findall(r"stroke: (#[0-9a-f]{6}); stroke-width: 1.5", texts)))


def test_an_arm_has_one_colour_in_both_figures(tmp_path):
    """Also where the baseline is not the first arm."""
    folder = curve_study(tmp_path / "s")
    about = json.loads((folder / "study.json").read_text())
    about["arms"] = dict(reversed(about["arms"].items()))
    write(folder / "study.json", about)
    numbers = compute(study := load.load_study(folder))
    (scaling,) = figures.scaling(study, numbers)
    (worth,) = figures.worth(study, numbers)
    assert colours(scaling.svg)[0] == colours(worth.svg)[0] == svg_plots.COLOURS[0]


def test_what_is_not_known_of_any_arm_is_not_drawn(tmp_path):
    """One seed, whose interval is not open but none."""
    folder = curve_study(tmp_path / "s")
    for seed in (1, 2):
        for path in folder.glob(f"*-{seed}/result.json"):
            path.unlink()
    numbers = compute(study := load.load_study(folder))
    (worth,) = figures.worth(study, numbers)
    assert "one seed, which gives no interval" in worth.caption
    unknown = Estimate(None, None, None, 1)
    (found,) = numbers.scaling.comparisons
    nothing = found._replace(worth=[one._replace(factor=unknown) for one in found.worth])
    numbers = numbers._replace(scaling=numbers.scaling._replace(comparisons=[nothing]))
    assert not [*figures.worth(study, numbers)]


def test_the_place_along_the_curve_is_a_coordinate(tmp_path):
    """Named after what lies along it; also in studies whose study.json has no coordinates."""
    table = load.load_study(curve_study(tmp_path / "s")).table
    shares = {f"final_{share:g}": share for share in RIGHT}
    assert dict(zip(table["part"], table["labels"], strict=True)) == shares
    table = load.load_study(along(tmp_path / "t", "compute")).table
    steps = dict(zip(table["part"], table["compute"], strict=True))
    finals = dict(zip(shares, PLACES["compute"], strict=True))
    assert {part: steps[part] for part in shares} == finals
    assert "labels" not in table and all(math.isnan(steps[f"pretrain_{i}"]) for i in range(3))


def test_a_share_that_is_not_finished_is_left_out(tmp_path):
    folder = curve_study(tmp_path / "s")
    for seed in range(3):
        (folder / f"final_1-mpp-{seed}" / "result.json").unlink()
        (folder / f"final_1-scratch-{seed}" / "result.json").unlink()
    numbers = compute(load.load_study(folder))
    assert [point.share for point in numbers.scaling.points] == [0.01, 0.1]
    assert [one.share for one in numbers.scaling.comparisons[0].worth] == [0.01, 0.1]


def test_shares_may_stand_in_any_order(tmp_path):
    """The answer is about the first one of the file; the section goes from few labels to many."""
    folder = curve_study(tmp_path / "s", {share: RIGHT[share] for share in (0.1, 1.0, 0.01)})
    found = compute(load.load_study(folder))
    assert [point.share for point in found.scaling.points] == [0.01, 0.1, 1.0]
    other = compute(load.load_study(curve_study(tmp_path / "t")))
    assert found.scaling.comparisons == other.scaling.comparisons
    reports.write(folder)
    answer = (folder / "report.md").read_text().split("## ")[0]
    assert "top-1 after fine-tuning on 10% of the labels" in answer
    assert "With 10% of the labels mpp is worth 1 times" in answer and "With 1% of" not in answer


def test_a_first_share_that_is_not_finished_leaves_the_others(tmp_path):
    folder = curve_study(tmp_path / "s")
    for seed in range(3):
        (folder / f"final_0.01-mpp-{seed}" / "result.json").unlink()
    found = compute(load.load_study(folder))
    assert found.measure("top1").part == "final_0.1"
    assert [point.share for point in found.scaling.points] == [0.01, 0.1, 1.0]
    assert [one.share for one in found.scaling.comparisons[0].worth] == [0.1, 1.0]


PLACES = {"images": (0.01, 0.1, 1.0), "compute": (50.0, 150.0, 450.0)}


def along(folder, of):
    """A study over shares of pre-training images, or lengths of pre-training that cost 1, 3 and 9
    exaFLOP."""
    folder = curve_study(folder)
    plan = json.loads((folder / "study.json").read_text()) | {"curve": of}
    for number, point in enumerate(plan["labels"]):
        point["share"] = PLACES[of][number]
        for final in [one for one in plan["tasks"] if one["part"] == point["final"]]:
            before = task(f"pretrain_{number}", final["arm"], final["seed"], "pretrain")
            finish(folder, before | {"part": "pretrain"}, 0)
            path = folder / before["name"] / "result.json"
            write(path, json.loads(path.read_text()) | {"exaflop": 3.0**number})
            final["needs"] = [before["name"]]
            plan["tasks"].insert(0, before)
    write(folder / "study.json", plan)
    return folder


def test_arms_cross_at_a_share_of_the_images(tmp_path):
    folder = along(tmp_path / "s", "images")
    labels = compute(load.load_study(curve_study(tmp_path / "t"))).scaling
    found = compute(load.load_study(folder)).scaling
    assert found.of == "images" and found.comparisons == labels.comparisons
    reports.write(folder)
    text = (folder / "report.md").read_text()
    assert "mpp and scratch cross at 10% of the pre-training images (95%" in text
    assert "With 1% of the pre-training images mpp is worth 3.2 times the pre-training" in text
    assert "## Accuracy against images" in text and "of the labels" not in text


def test_arms_cross_at_a_compute(tmp_path):
    """The places are the exaFLOP of pre-training: a factor of 3 where shares differ by 10."""
    folder = along(tmp_path / "s", "compute")
    found = compute(load.load_study(folder)).scaling
    assert [point.share for point in found.points] == pytest.approx([1, 3, 9])
    (cross,) = found.comparisons[0].crossovers
    shares = compute(load.load_study(curve_study(tmp_path / "t"))).scaling.comparisons[0]
    decades = math.log10(shares.crossovers[0].value / 0.01)
    assert cross.value == pytest.approx(3**decades, rel=1e-3)
    reports.write(folder)
    text = (folder / "report.md").read_text()
    section = text.split("## Accuracy against compute")[1].split("\n## ")[0]
    assert f"cross at {cross.value:.3g} exaFLOP" in section
    assert "With 1 exaFLOP mpp is worth" in section and "times the exaFLOP of scratch" in section
    assert [line.split("|")[1].strip() for line in section.splitlines() if "| mpp" in line] == [
        "1",
        "3",
        "9",
    ]


def test_a_study_over_images_repeats_pre_training():
    study = build(IMAGES_CURVE, "x")
    shares = {name: part.base.get("data.share") for name, part in study.parts.items()}
    assert shares == {
        "pretrain_0.1": "0.1",
        "final_0.1": None,
        "pretrain_1": "1",
        "final_1": None,
    }
    assert study.parts["final_1"].options["a"]["init"] == "{pretrain_1}"
    lengths = {"images": None, "compute": [{"steps": 10}, {"steps": 30}]}
    pretrain = {"tool": "pretrain", "options": {"recipe": "mpp", "optim.steps": "{steps}"}}
    parts = IMAGES_CURVE["parts"] | {"pretrain": pretrain}
    study = build(IMAGES_CURVE | lengths | {"parts": parts}, "x")
    assert study.parts["pretrain_30"].base["optim.steps"] == "30" and study.curve.name == "compute"


@pytest.mark.parametrize("share", [0, -0.1, 0.1, 2])
def test_shares_of_a_study_json_that_cannot_be_are_damage(tmp_path, share):
    folder = curve_study(tmp_path / "s")
    plan = json.loads((folder / "study.json").read_text())
    plan["labels"][0]["share"] = share
    write(folder / "study.json", plan)
    with pytest.raises(UserError, match=r"study\.json is (missing or )?damaged"):
        load.load_study(folder)


def test_a_pretraining_that_serves_every_share_is_counted_once(tmp_path):
    folder = curve_study(tmp_path / "s")
    plan = json.loads((folder / "study.json").read_text())
    tasks = []
    for seed in range(3):
        tasks.append(task("pretrain", "mpp", seed, "pretrain"))
        tasks += [task(f"pretrain_{share:g}", "scratch", seed, "pretrain") for share in RIGHT]
    for one in tasks:
        finish(folder, one | {"part": "pretrain"}, 1)
    for one in plan["tasks"]:
        before = "pretrain" if one["arm"] == "mpp" else one["part"].replace("final", "pretrain")
        one["needs"] = [f"{before}-{one['arm']}-{one['seed']}"]
    write(folder / "study.json", plan | {"tasks": [*tasks, *plan["tasks"]]})
    costs = [
        (cost.stage, cost.runs, round(cost.exaflop, 6))
        for cost in compute(load.load_study(folder)).costs
        if "pre-training" in cost.stage
    ]
    shares = [f"pre-training, {share} of the labels" for share in ("1%", "10%", "100%")]
    assert costs == [*((stage, 3, 0.02) for stage in shares), ("pre-training", 3, 0.02)]
    for seed in range(3):
        (folder / f"final_0.1-scratch-{seed}" / "result.json").unlink()
    costs = compute(load.load_study(folder)).costs
    assert "pre-training, 10% of the labels" not in [cost.stage for cost in costs]


def test_the_number_of_images_is_what_the_runs_record(tmp_path):
    folder = curve_study(tmp_path / "s")
    for seed in range(3):
        for arm in ("mpp", "scratch"):
            path = folder / f"final_0.01-{arm}-{seed}" / "environment.json"
            write(path, json.loads(path.read_text()) | {"images": {"train": 490}})
    found = compute(load.load_study(folder))
    assert [point.images for point in found.scaling.points] == [490, None, None]


def test_extra_arms_keep_their_names_in_the_figure():
    numbers = Numbers(**dict.fromkeys(Numbers._fields))._replace(
        settings={"scratch_a": {}, "mpp": {}}
    )
    assert figures._without_part("scratch_a", numbers) == "scratch_a"
    assert figures._without_part("extra: scratch, direct_0.1", numbers) == "extra: scratch, direct"


def test_further_seeds_of_one_share_leave_the_others_in_the_curve(tmp_path):
    right = RIGHT | {0.01: {arm: (*counts, 150, 155) for arm, counts in RIGHT[0.01].items()}}
    (comparison,) = compute(load.load_study(curve_study(tmp_path / "s", right))).scaling.comparisons
    assert comparison.seeds == [0, 1, 2]
    assert [one.share for one in comparison.worth] == [0.01, 0.1, 1.0]


def test_a_share_with_fewer_seeds_takes_none_from_the_others(tmp_path):
    folder = curve_study(tmp_path / "s")
    for seed in (1, 2):
        (folder / f"final_1-mpp-{seed}" / "result.json").unlink()
    numbers = compute(load.load_study(folder))
    assert [point.share for point in numbers.scaling.points] == [0.01, 0.1, 1.0]
    (comparison,) = numbers.scaling.comparisons
    assert [one.share for one in comparison.worth] == [0.01, 0.1]
    assert comparison.worth[0].factor.seeds == 3
    assert numbers.scaling.points[2].apart["mpp"].n == 1
