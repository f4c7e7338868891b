"""study/worth: what is compared, how settings are chosen, what the hours buy, and in which order."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import made_studies
from helpers.images import put
from helpers.launchers import until
from helpers.launching import ROOT
from helpers.measurements import written
from helpers.options import TINY, altered
from helpers.refusals import refusal
from helpers.reports import table
from helpers.resolving import parse_request, resolve
from helpers.runs import run
from helpers.worth_setups import ASKED, IMAGES, tasks_of
from ssl_vit.costs import exaflop
from ssl_vit.data import run_splits
from ssl_vit.errors import UserError
from ssl_vit.lab import report
from ssl_vit.lab.options import PlanOptions
from ssl_vit.lab.study import launch, read, record, worth
from ssl_vit.lab.study.estimate import estimate_request
from ssl_vit.lab.study.tasks import Task, plan_tasks
from ssl_vit.lab.study.worth import calibration, network, study_setup
from ssl_vit.lab.study.worth import plan as planning
from ssl_vit.lab.study.worth.content import RATES, TUNING_SEED, WITH_RATES, StudySize, study_file
from ssl_vit.lab.study.worth.plan import RunSeconds, RunSpeed
from ssl_vit.lab.study.worth.study_setup import ReleasedEncoder, StudyImages, StudySetup
from ssl_vit.recipe.given import Given, from_words

MAE = ASKED.recipe
FURTHER = ASKED._replace(
    objective="dino", init="/an/encoder", shared_options={}, model={}, pool="token"
)
TRAINED = ("pretrain", "supervised", "tune", "final")
CLOCKS = dict.fromkeys(TRAINED, RunSeconds(1, 10)) | {"frozen": RunSeconds(0, 30)}
FAST = dict.fromkeys(TRAINED, RunSeconds(0.02, 10)) | {
    "frozen": RunSeconds(0, 30)
}  # for 50,000 images


def bought(hours: float, asked: StudySetup = ASKED, parallel: int = 1) -> StudySize:
    return planning.find_largest_size(asked, hours, RunSpeed(CLOCKS, parallel))


# What is compared


@pytest.mark.parametrize(
    ("question", "pair"), [(ASKED, ("mae", "scratch")), (FURTHER, ("dino", "start"))]
)
def test_one_comparison_is_primary_with_all_labels(
    question: StudySetup, pair: tuple[str, str]
) -> None:
    """Every arm has as many tries, at each share; they are made on a seed that confirms nothing, and
    more tries contain the fewer ones, but where learning rates of pre-training are tried too."""
    before: set[str] = set()
    for tries in RATES:
        study = read.build(study_file(question, StudySize(tries, 5, 100, (0.1, 0.3)), 4), "x")
        rule, tasks = record.rule_of(study), plan_tasks(study, {}, Given()).values()
        assert rule.measure == "top1"
        assert [(one.a, one.b, one.at) for one in rule.asked] == [(*pair, ())]
        tests = [task for task in tasks if task.run == rule.test]
        assert len(tests) == 10 and not any("data.share" in task.options for task in tests)
        tuned = [task for task in tasks if task.run.startswith("tune")]
        count = Counter(str(task.at) for task in tuned)
        assert len(count) == 2 * 3 and {*count.values()} == {tries}
        if tries < WITH_RATES:
            settings = {
                f"{task.at} {task.tried | {'data.mixup': task.tried.get('data.mixup', 0.0)}}"
                for task in tuned
            }
            assert before <= {*map(str, settings)}
            before = settings
        for task in tuned:
            assert task.seed == TUNING_SEED and task.options["eval.test"] is False
        for task in tasks:
            if task.run.startswith("final") or task.run == "frozen":
                assert task.seed in range(5) and task.options.get("eval.test") is not False


@pytest.mark.parametrize("asked", [ASKED, FURTHER])
def test_encoders_are_measured_frozen_with_each_seed(asked: StudySetup) -> None:
    short, whole = (StudySize(4, 3, 100, (), frozen) for frozen in (False, True))
    found, more = tasks_of(asked, short), tasks_of(asked, whole)
    added = {name for name, task in more.items() if task.run == "frozen"}
    assert len(added) == 2 * 3 and found.keys() == more.keys() - added
    first, second = (study_file(asked, one, 1)["report"] for one in (short, whole))
    assert (first["beside"], second["beside"]) == ([], ["frozen"])


def test_scratch_is_the_better_of_two_ways_by_validation() -> None:
    found = tasks_of(ASKED, StudySize(8, 3, 400))
    tries = [task for task in found.values() if task.run == "tune" and task.at["arm"] == "scratch"]
    ways = Counter(task.options["init"] for task in tries)
    assert ways == {"scratch": 4, "{supervised-99}": 4}
    final = found["final-scratch-2"]
    assert final.best == (tuple(task.name for task in tries), "accuracy")
    assert "supervised-2" in final.needs and "init" not in final.options
    own, pretrain = found["supervised-2"].options, found["pretrain-2"].options
    assert own["optim.steps"] == pretrain["optim.steps"] == 400  # the same work a step, here
    tuned = {"optim.steps": 200, "recipe": "finetune", "supervised.pool": "avg"}
    for task in (final, found["final-mae-2"], *tries):
        assert tuned.items() <= task.options.items()


def test_supervised_training_costs_what_pretraining_does() -> None:
    asked = study_setup.build_setup({"data": "shapes"})
    steps = round(900 * asked.supervised_ratio)
    mae, supervised = (
        exaflop(resolve([f"recipe={one}", "data=shapes", "model=vit_n8"]), 128)
        for one in ("mae", "supervised")
    )
    assert steps * supervised == pytest.approx(900 * mae, rel=0.002)
    assert asked.images.train == 50_000 and asked.images.test == 5_000


def test_what_goes_on_is_compared_with_its_start() -> None:
    found = tasks_of(FURTHER, StudySize(4, 3, 100, frozen=True))
    assert {task.run for task in found.values()} == {"pretrain", "tune", "final", "frozen"}
    assert found["pretrain-1"].options["init"] == "/an/encoder"
    # a tenth of the rate, and a long warm-up: docs/further.md
    assert found["pretrain-1"].options["optim.lr"] == pytest.approx(MAE.optim.lr / 10)
    assert found["pretrain-1"].options["optim.warmup"] == 20
    assert found["final-start-1"].options["init"] == "/an/encoder"
    assert found["final-dino-1"].options["init"] == "{pretrain-1}"
    tries = [task for task in found.values() if task.run == "tune"]
    dino, start = (
        [task.tried for task in tries if task.at["arm"] == arm] for arm in ("dino", "start")
    )
    assert dino == start


@pytest.mark.parametrize(("part", "rate"), [("blocks:2", 1 / 10), ("lora:8", 1)])
def test_a_part_is_trained_further_and_the_whole_encoder_fine_tuned(part: str, rate: float) -> None:
    """Low-rank updates at ten times the rate, and no option of a frozen encoder."""
    shared, own = study_setup.sort_options({"init": "/an/encoder", "model.train": part})
    assert (shared, own) == ({}, {"model.train": part})
    assert refusal(study_setup.sort_options, {"model.train": part}).startswith(
        f"model.train={part}: there is no encoder to train."
    )
    recipe = MAE.model_copy(deep=True)
    recipe.model.train = part
    asked = FURTHER._replace(pretraining_options=own, recipe=recipe)
    found = tasks_of(asked, StudySize(4, 3, 100, frozen=True))
    parts = {task.run: task.options.get("model.train") for task in found.values()}
    assert parts == {"pretrain": part, "tune": None, "final": None, "frozen": None}
    assert found["pretrain-1"].options.get("optim.lr", MAE.optim.lr) == pytest.approx(
        rate * MAE.optim.lr
    )
    explained = study_file(asked, StudySize(4, 3, 100), 1)["report"]["explain"]["dino"]
    assert f"(model.train={part})" in explained


def test_a_share_draws_labels_anew_for_each_seed() -> None:
    found = tasks_of(ASKED, StudySize(4, 3, 100, (0.1,)))
    task = found["final_fewer-scratch-10%-2"]
    drawn = {"data.share": 0.1, "data.share_seed": 2}
    assert drawn.items() <= task.options.items()
    assert drawn.items() <= found["supervised_fewer-10%-2"].options.items()
    assert (
        "supervised_fewer-10%-2" in task.needs
        and "pretrain-2" in found["final_fewer-mae-10%-2"].needs
    )
    assert "data.share" not in found["pretrain-2"].options  # all images, labelled or not


# Learning rates of pre-training


def test_three_learning_rates_are_chosen_after_fine_tuning() -> None:
    """Each arm has 24 tries: 3 rates before fine-tuning, or scratch without them, times those of
    fine-tuning. What goes on from an encoder tries a third and three times its rate."""
    found = tasks_of(ASKED, StudySize(24, 3, 400))
    before = {name: found[f"pretrain{name}-99"].options for name in ("", "_low", "_high")}
    rates = {name: one.get("optim.lr", MAE.optim.lr) for name, one in before.items()}
    lr = MAE.optim.lr
    assert rates == pytest.approx({"": lr, "_low": lr / 3, "_high": 3 * lr}, rel=0.01)
    tries = [task for task in found.values() if task.run == "tune"]
    ways = Counter((task.at["arm"], task.options["init"]) for task in tries)
    mae = {("mae", f"{{pretrain{name}-99}}"): 8 for name in before}
    own = {("scratch", f"{{supervised{name}-99}}"): 6 for name in before}
    assert ways == mae | own | {("scratch", "scratch"): 6}
    (first, _), final = (
        found["tune-mae-99-init=_pretrain_-lr=0.01-mixup=0.0"].needs * 2,
        (found["final-mae-1"]),
    )
    assert first == "pretrain-99" and final.best and "init" not in final.options
    assert {"pretrain-1", "pretrain_low-1", "pretrain_high-1"} < {*final.needs}
    going_on = tasks_of(FURTHER, StudySize(24, 3, 400))
    count = Counter(task.at["arm"] for task in going_on.values() if task.run == "tune")
    assert count == {"dino": 24, "start": 24}
    high = going_on["pretrain_high-99"].options
    assert high["optim.lr"] == pytest.approx(3 * lr / 10, rel=0.01)


# What the hours buy


def test_no_run_is_too_short_to_learn() -> None:
    """Pre-training has 20 epochs: 200 steps for 1,280 images. Where a step of supervised training
    costs twice as much, its 20 epochs of 1,000 labelled images are 157 steps, and the pre-training
    of equal compute 313. Fine-tuning has at least 10 epochs, 79 steps, and 100 steps."""
    assert ASKED.least_steps == 200
    assert ASKED._replace(supervised_ratio=0.5).least_steps == 313
    assert FURTHER._replace(supervised_ratio=0.5).least_steps == 200
    assert [ASKED.fine_steps(steps) for steps in (20, 200, 300)] == [100, 100, 150]
    many = ASKED._replace(images=IMAGES._replace(labelled=5000))
    assert many.fine_steps(200) == 391
    for asked in (ASKED, FURTHER, many):
        for task in tasks_of(asked, planning.smallest_size(asked)).values():
            steps = task.options["optim.steps"]
            least = 10 * asked.images.labelled / 128
            if task.tool == "finetune":
                assert steps >= max(100, least)
            else:
                assert steps >= 20 * asked.images.labelled / 128


def test_the_time_of_a_study_by_hand() -> None:
    """4 seeds of pre-training and of supervised training, 110 s each; 8 tries and 6 tests of 110 s,
    as fine-tuning has 100 steps; 6 evaluations of 30 s."""
    by_hand = 4 * 110 + 4 * 110 + 14 * 110 + 6 * 30
    extent = StudySize(4, 3, 100, frozen=True)
    assert planning.seconds(ASKED, extent, RunSpeed(CLOCKS, 1)) == by_hand == 2600
    # two at once: pairs of the same length
    two = planning.seconds(ASKED, extent, RunSpeed(CLOCKS, 2))
    assert two == pytest.approx(2600 / 2, abs=60)
    # of three learning rates the seeds that confirm train the chosen one
    rates = planning.seconds(ASKED, StudySize(24, 3, 100), RunSpeed(CLOCKS, 1))
    assert rates == 110 * (6 + 48 + 3 * 4)


def test_a_budget_by_hand() -> None:
    """20 epochs are 200 steps: 8 x 210 + 14 x 110 = 3,220 s with the fewest tries, 180 more with
    the frozen encoders, and each further try of both arms takes 220 s: with 12 of them it is 5,160.
    A step more costs 8 + 14 / 2 seconds with 4 tries, 8 + 30 / 2 with 12. Tries and steps take nine
    tenths of the hours."""
    second = 1 / 0.9 / 3600
    assert bought(3221 * second) == StudySize(4, 3, 200)
    assert bought(3401 * second) == StudySize(4, 3, 200, frozen=True)
    assert bought(4279 * second) == StudySize(4, 3, 200 + (4279 - 3400) // 15, frozen=True)
    assert bought(4281 * second) == StudySize(8, 3, 200, frozen=True)
    assert bought(5161 * second) == StudySize(12, 3, 200, frozen=True)
    assert bought((5161 + 84 * 23) * second) == StudySize(12, 3, 284, frozen=True)
    # where they take over a tenth, here 360 of 3,580 s, the hours go to pre-training
    slow = RunSpeed(CLOCKS | {"frozen": RunSeconds(0, 60)}, 1)
    assert planning.find_largest_size(ASKED, 3580 / 3600, slow) == StudySize(4, 3, 200)
    assert planning.find_largest_size(ASKED, 3980 / 3600, slow).frozen
    # what has been spent already is bought no more
    later = planning.find_largest_size(
        ASKED, (5161 + 84 * 23 + 400) * second, RunSpeed(CLOCKS, 1), spent=400
    )
    assert later == StudySize(12, 3, 284, frozen=True)


@given(
    hours=st.floats(1, 200),
    parallel=st.sampled_from([1, 1, 4]),
    asked=st.sampled_from([ASKED, ASKED, FURTHER]),
)
@settings(max_examples=16)
def test_the_hours_go_to_one_thing_after_the_other(
    hours: float, parallel: int, asked: StudySetup
) -> None:
    pace, length = RunSpeed(CLOCKS, parallel), MAE.optim.steps
    found = bought(hours, asked, parallel)

    def fits(extent: StudySize, share: float = 1.0) -> bool:
        return planning.seconds(asked, extent, pace) <= share * 3600 * hours

    assert fits(found) and fits(found._replace(seeds=3, shares=()), 0.9)
    if found.steps > 200 and found.tries < 12:
        assert not fits(StudySize(found.tries + 4, 3, 200, frozen=found.frozen), 0.9)
    if found.seeds > 5 or found.tries == 24:
        assert found.steps >= length and found.tries >= 12
    if found.shares or found.steps > length:
        assert found.seeds == 8
    # 60 labels of the smallest class: a tenth has 6 of them, 3% too few
    assert {*found.shares} <= {0.1, 0.3}
    for share in {0.1, 0.3} - {*found.shares} if found.steps > length else ():
        assert not fits(found._replace(steps=length, shares=(*found.shares, share)))
    # what a faster machine could add is there too, and nothing that could not fit
    whole = planning.size_with_extras(asked, found, hours, pace)
    assert whole.seeds == 8 and whole.frozen and whole[:3:2] == found[:3:2]
    assert fits(whole._replace(seeds=3, frozen=found.frozen)) or not whole.shares


@pytest.mark.parametrize("spent", [0.0, 90.0])
def test_too_few_hours_are_refused_with_those_that_suffice(spent: float) -> None:
    pace = RunSpeed(CLOCKS, 1)
    said = refusal(planning.find_largest_size, ASKED, 0.1, pace, spent)
    assert said.startswith("hours=0.1: ") and "vit_n8 at 64 px" in said
    needed = float(re.findall(r"hours=([\d.]+)", said.rstrip("."))[1])
    exact = (3220 + max(spent, 30)) / 0.9 / 3600
    assert exact <= needed < 1.1 * exact
    assert planning.find_largest_size(ASKED, needed, pace, max(spent, 30)).steps >= 200
    # nearly twenty-one epochs are not told as 21
    assert [ASKED.epochs(steps).split()[0] for steps in (200, 209, 570)] == ["20", "20", "57"]


def test_the_study_finds_the_least_difference_in_four_of_five_cases() -> None:
    """Simulated: five seeds with a standard deviation of 0.7 points on 2,000 test images. The
    report's interval has the squares of both half widths added up. The limit of the images and that
    of the seeds were two separate statements."""
    draws, seeds, sd, images = 20_000, 5, 0.7, 2000
    rows = [line.split() for line in planning.power_lines(images)]
    true = float(next(row for row in rows if row[0] == str(seeds))[2])
    error = 100 * (0.2 / images) ** 0.5
    generator = np.random.default_rng(3)
    of_seeds = generator.normal(0, sd, (draws, seeds))
    measured = true + generator.normal(0, error, draws) + of_seeds.mean(axis=1)
    half = np.hypot(1.96 * error, 2.776445 * of_seeds.std(axis=1, ddof=1) / seeds**0.5)
    assert 0.77 < (measured > half).mean() < 0.84


# Images


def images_of(path: Path) -> StudyImages:
    return study_setup.find_images({"data.path": str(path)})


def test_a_folder_without_labelled_test_images(tmp_path: Path) -> None:
    """A fifth or so, by the names, is the test; of the others so many are needed to have 100 for
    validation."""
    put(tmp_path / "train" / "a", 100)
    put(tmp_path / "train" / "b", 240)
    put(tmp_path / "test", 30)
    found = images_of(tmp_path)
    assert "not used: test (30 images (0 labelled))" in found.notes
    held_out = {"data.validation": 0.4, "data.validation_from": "train"}
    assert found.options == {"data.test": 0.2} | held_out
    assert found.train == found.labelled and found.validation >= 100
    assert found.train + found.validation + found.test == 340 and 38 < found.test < 98  # 4 sd
    assert found.classes == 2 and found.smallest < 60


def test_splits_that_are_there_are_taken(tmp_path: Path) -> None:
    for split, count in (("train", 20), ("val", 60), ("test", 30)):
        put(tmp_path / split / "a", count)
        put(tmp_path / split / "b", count)
    found = images_of(tmp_path)
    assert found.options == {}
    assert (found.train, found.smallest, found.validation, found.test) == (40, 20, 120, 60)


def test_images_without_labels_are_seen_and_not_counted(tmp_path: Path) -> None:
    """A third has none, and is not held out: as a share of all images pre-training lacked it."""
    put(tmp_path / "own", 1500)
    rows = ({"file_name": f"{n}.png", "label": "ab"[n % 2] if n % 3 else None} for n in range(1500))
    list_ = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "own" / "metadata.jsonl").write_text(list_)
    found = images_of(tmp_path / "own")
    assert found.options["data.validation_from"] == "labelled"
    assert 100 <= found.validation < 200 and found.train - found.labelled > 500 - 140
    assert found.labelled + found.validation + found.test == 1000


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ((60, 60), "only 120 labelled images .* Label about 143"),
        ((300,), "have no labels"),
    ],
)
def test_too_few_images_or_classes(counts: tuple[int, ...], says: str, tmp_path: Path) -> None:
    for number, count in enumerate(counts):
        put(tmp_path / "train" / f"class{number}", count)
        put(tmp_path / "test" / f"class{number}", 5)
    with pytest.raises(UserError, match=says):
        images_of(tmp_path)


WRONG = {
    "objective=supervised": "choices: dino",
    "objective=ma": "did you mean mae?",
    "optim.lr=0.1": "released, hours, and keys of data, model",
    "data.share=0.5": "tries several values of this key",
    "data.mixup=0.5": "tries several values of this key",  # it vanished beside the values that are tried
    "corruption.rate=0.5": "mae.",
}


@pytest.mark.parametrize(("word", "says"), WRONG.items(), ids=WRONG)
def test_a_mistake_is_answered_in_one_line(word: str, says: str) -> None:
    said = refusal(study_setup.build_setup, from_words(["data=shapes", word]).values)
    assert said.startswith(word) and says in said


# The network and the image size


def pace_of(work: float, rest: float = 1.0) -> RunSpeed:
    """Steps whose seconds follow from the multiply-adds of an image, at 1e10 a second."""
    return RunSpeed(dict.fromkeys(CLOCKS, RunSeconds(128 * work / 1e10, rest)), 1)


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No GPU; the networks that were timed, in their order."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return []


def choose(
    timed: list[str], hours: float, side: int = 64, slower: float = 1.0, **given: Any
) -> network.NetworkChoice:
    options = {"data": "shapes"} | {key.replace("_", "."): value for key, value in given.items()}

    def time_question(asked: StudySetup) -> RunSpeed:
        timed.append(asked.network)
        options = [("model", asked.recipe.model.name), ("data.size", asked.recipe.data.size)]
        return pace_of(slower * (network.count_work({}, options) or 0))

    return network.choose(options, IMAGES._replace(side=side), hours, time_question, lambda: 0.0)


def test_networks_and_sizes_to_choose_from(cpu: list[str]) -> None:
    """The largest first; no image is enlarged, and 16 to 256 patches are seen of each."""
    named = [one.words for one in network.networks({"data": "shapes"}, 64)]
    assert named[0] == "model=vit_s16 data.size=64" and "model=vit_p8 data.size=32" in named
    assert not any("224" in one or "128" in one or "s16 data.size=32" in one for one in named)
    work = [one.work for one in network.networks({"data": "shapes"}, 300)]
    assert work == sorted(work, reverse=True) and work[0] > 4e9  # vit_s16 at 224 px
    sizes = {one.words for one in network.networks({"data": "shapes", "model": "vit_p8"}, 300)}
    assert sizes == {"data.size=128", "data.size=64", "data.size=32"}
    models = {one.words for one in network.networks({"data": "shapes", "data.size": 32}, 300)}
    assert models == {"model=vit_ti8", "model=vit_n8", "model=vit_p8"}
    (own,) = network.networks({"data": "shapes", "model.width": 64, "data.size": 32}, 300)
    assert own.options == ()


@pytest.mark.parametrize("hours", [0.3, 1.0, 3.0, 12.0])
def test_a_cpu_gets_the_largest_network_that_leaves_room(hours: float, cpu: list[str]) -> None:
    """Half of the hours suffice for the smallest study with it, and not with a larger one; the line
    says so."""
    chosen = choose(cpu, hours)
    works = {one.text: one.work for one in network.networks({"data": "shapes"}, 64)}
    asked = chosen.setup

    def needed(name: str) -> float:
        return planning.hours_needed(asked, pace_of(works[name]))

    fits = [name for name in works if 2 * needed(name) <= hours]
    assert asked.network == fits[0] == cpu[-1] and len(cpu) <= 3
    assert chosen.reason.startswith(f"network     {asked.network}: the largest ")
    largest = next(iter(works))
    if asked.network != largest:
        assert f"{largest} would need about " in chosen.reason


def test_what_is_given_is_kept(cpu: list[str]) -> None:
    both = choose(cpu, 500, model="vit_s16", data_size=128)
    assert both.setup.network == "vit_s16 at 128 px" == cpu[0]
    assert "model= and data.size=" in both.reason
    size = choose(cpu, 3, data_size=32).setup.recipe
    assert size.data.size == 32
    model = choose(cpu, 500, side=300, model="vit_p8")
    assert model.setup.network == "vit_p8 at 128 px" and "model=" in model.reason


def test_too_few_hours_name_a_smaller_network_that_fits(cpu: list[str]) -> None:
    """Both promises hold: the hours suffice for the network that was given, and the smaller network
    fits into the hours that were given."""
    large = {"model": "vit_s16", "data_size": 224}
    said = refusal(choose, cpu, 0.5, 300, **large)
    found = re.fullmatch(
        r"hours=0\.5: .* vit_s16 at 224 px .* hours=([\d.]+)\. .*model=(\w+) data\.size=(\d+)\.",
        said,
    )
    assert found, said
    needed, model, size = found.groups()
    assert choose(cpu, 0.5, 300, model=model, data_size=int(size)).setup.recipe.model.name == model
    assert choose(cpu, float(needed), 300, **large)
    # nothing is promised that does not fit
    for options, named in ((large, "vit_s16 at 224 px"), ({}, "vit_p8 at 32 px")):
        said = refusal(choose, cpu, 0.01, 300, **options)
        assert re.search(rf"{named} .* hours=[\d.]+\.$", said)


def test_a_gpu_takes_the_recipes_own_network_if_it_fits(
    cpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    chosen = choose(cpu, 10, 300)
    assert chosen.setup.network == "vit_n8 at 64 px" and "recipe=mae" in chosen.reason
    smaller = choose(cpu, 10, 300, slower=50)
    assert smaller.setup.network != "vit_n8 at 64 px" and "on this GPU" in smaller.reason


# How fast runs are


class FakeTimer:
    """Answers what a process would have measured: a step takes 1 s with one thread."""

    imports = 5.0

    def __init__(self, two_threads: float) -> None:
        self.two_threads = two_threads
        self.asked: list[tuple[dict[str, Any], tuple[int, int]]] = []

    def measure(
        self, options: dict[str, Any], images: int, way: tuple[int, int], devices: list[str]
    ) -> dict[str, float]:
        assert images == IMAGES.train
        self.asked.append((options, way))
        step = 1.0 if way[1] == 1 else self.two_threads
        parts = {"forward": 0.001, "decode": 0.002, "set_up": 3.0, "resident": True}
        return {"step": step} | parts


@pytest.fixture
def two_cores(cpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # which the user has not set
    monkeypatch.setattr(calibration, "cores", lambda: 2)
    monkeypatch.setattr(calibration, "usable_memory", lambda: 2**40)


FREE = ASKED._replace(shared_options={"data": "shapes"})


@pytest.mark.parametrize(("is_forked", "imports"), [(False, 5), (True, 0)])
def test_clocks_by_hand(
    is_forked: bool, imports: int, two_cores: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imports 5 s unless tasks are forked, set-up 3 s, finishing 3.4 s; 1,280 images are decoded once, in 2.56 s. Five
    evaluations of 150 validation images, and the features of 1,000 + 150 images by two networks."""
    monkeypatch.setattr(calibration, "is_possible", lambda: is_forked)
    timer = FakeTimer(2.0)  # a step is as slow with two threads as two steps
    pace = calibration.calibrate(FREE, timer, None)  # type: ignore[arg-type]
    assert pace.parallel == 2
    fixed = imports + 3 + 3.4 + 2.56
    forward = {"pretrain": 750 + 2 * 1150, "supervised": 750, "tune": 750, "final": 1150}
    for kind, count in forward.items():
        decoded = 0.002 * min(count, 1280)
        assert pace.clocks[kind] == pytest.approx((1.0, fixed + 0.001 * count + decoded))
    assert pace.clocks["frozen"].step == 0
    # a try that mixes images reads two for one; steps of few images stand for a whole batch
    kinds = [options["recipe"] for options, _ in timer.asked]
    assert kinds == ["mae", "supervised", "finetune", "mae"]
    assert {"data.mixup": 0.8, "init": "scratch"}.items() <= timer.asked[2][0].items()
    assert all(options["data.share"] == 0.4 for options, _ in timer.asked)
    assert [way for _, way in timer.asked] == [(2, 1), (2, 1), (2, 1), (1, 2)]


@pytest.mark.parametrize(
    ("two_threads", "given", "ways", "parallel"),
    [
        (2.0, None, [(2, 1), (1, 2)], 2),
        (0.3, None, [(2, 1), (1, 2)], 1),  # one task with two threads is faster
        (0.3, 2, [(2, 1)], 2),
        (2.0, 1, [(1, 2)], 1),
    ],
)
def test_the_faster_way_to_share_the_cores_is_taken(
    two_threads: float,
    given: int | None,
    ways: list[tuple[int, int]],
    parallel: int,
    two_cores: None,
) -> None:
    timer = FakeTimer(two_threads)
    found = calibration.calibrate(FREE, timer, given)  # type: ignore[arg-type]
    assert found.parallel == parallel
    assert list(dict.fromkeys(tuple(way) for _, way in timer.asked)) == ways
    if two_threads == 0.3 and parallel == 1:
        assert found.clocks["tune"].step == pytest.approx(0.3)


def test_memory_and_gpus_bound_the_tasks_at_once(
    two_cores: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "usable_memory", lambda: 1)
    assert calibration.list_parallelisms(FREE, None) == [(1, 2)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert calibration.list_parallelisms(FREE, None) == [(3, 1)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(calibration, "usable_memory", lambda: 2**40)
    monkeypatch.setattr(calibration, "cores", lambda: 64)
    assert calibration.list_parallelisms(FREE, None) == [(64, 1), (8, 8), (1, 64)]
    threads = resolve(["recipe=mae", "data=shapes", "compute.threads=4"])
    assert calibration.list_parallelisms(FREE._replace(recipe=threads), None) == [(16, 4)]


def test_a_large_network_is_timed_with_few_images(two_cores: None) -> None:
    """A step of vit_s16 at 224 px takes a minute on one thread."""
    asked = study_setup.build_setup(
        {"data": "shapes", "model": "vit_s16", "data.size": 224}, IMAGES
    )
    options, factor = calibration.options_of(asked, "supervised", calibration.Parallelism(2, 1))
    batch = options["optim.batch"]
    assert batch * factor == 128 and 2 <= batch <= 8
    small = study_setup.build_setup({"data": "shapes", "model": "vit_p8", "data.size": 32}, IMAGES)
    assert calibration.options_of(small, "supervised", calibration.Parallelism(2, 1))[1] == 1


def test_steps_are_timed_in_a_process_of_their_own(two_cores: None, tmp_path: Path) -> None:
    """For real: two copies at once; and an error of a run is one line."""
    asked = study_setup.build_setup({"data": "shapes", "model": "vit_p8", "data.size": 32}, IMAGES)
    options, _ = calibration.options_of(asked, "tune", calibration.Parallelism(2, 1))
    with calibration.Timer() as timer:
        found = timer.measure(
            options | {"optim.batch": 8}, 50_000, calibration.Parallelism(2, 1), []
        )
        assert {*found} == {"step", "forward", "decode", "set_up", "resident"}
        assert 0 < found["step"] < 60 and found["set_up"] > 0 and timer.imports > 0
        with pytest.raises(UserError, match=r"study/worth: recipe=mae cannot be timed: .*nowhere"):
            nowhere = {"recipe": "mae", "data.path": "/nowhere"}
            timer.measure(nowhere, 1, calibration.Parallelism(1, 1), [])
    assert timer.process.poll() is not None


LONG = """
import sys
from ssl_vit.__main__ import main
from ssl_vit.lab.study.worth import calibration
calibration.SECONDS = 600
main(sys.argv[1:])
"""


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes whose temporary files lie somewhere in a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            place = process.environ().get("TMPDIR", "")
            if place.startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux ends the children of a killed process"
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_plan_that_is_ended_while_it_times_steps_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    words = ["recipe=study/worth", "data=shapes", "hours=1", "model=vit_p8", "data.size=32"]
    command = [sys.executable, "-c", LONG, "study", *words, "parallel=2", f"out={tmp_path / 'out'}"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    study = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary), "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # nohup ignores it
    )
    try:
        until(lambda: any(temporary.rglob("calibration")))  # a timed run has a folder
        study.send_signal(number)
        status = study.wait(timeout=60)
        until(lambda: not processes_of(temporary), 10)
        assert status == (-number if number == signal.SIGKILL else 130)
        assert not (tmp_path / "out").exists()
        if number != signal.SIGKILL:
            assert [*temporary.iterdir()] == []
    finally:
        study.kill()
        for process in processes_of(temporary):
            process.kill()


# As a study of the tool


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[StudySetup]:
    """The questions whose runs were timed."""
    asked: list[StudySetup] = []

    def stand_in(question: StudySetup, timer: object, parallel: int | None) -> RunSpeed:
        asked.append(question)
        more = {f"{kind} released": FAST[kind] for kind in ("tune", "final", "frozen")}
        return RunSpeed(FAST | (more if question.released else {}), parallel or 1)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(worth, "calibrate", stand_in)
    monkeypatch.setattr(worth, "Timer", nullcontext)
    return asked


def test_a_plan_does_not_replace_that_of_a_study_that_started_meanwhile(
    timed: list[StudySetup], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "worth"
    with ExitStack() as stack:

        def start_other(question: StudySetup, timer: object, parallel: int | None) -> RunSpeed:
            stack.enter_context(record.lock(folder))
            (folder / worth.FILE).write_text("of the other study")
            (folder / "hours.json").write_text("of the other study")
            return RunSpeed(FAST, parallel or 1)

        monkeypatch.setattr(worth, "calibrate", start_other)
        with pytest.raises(UserError, match="is being written"):
            parse_request([*words, "hours=4"])
    for name in (worth.FILE, "hours.json"):
        assert (folder / name).read_text() == "of the other study"


def test_of_two_plans_for_the_same_words_both_studies_take_the_first(
    timed: list[StudySetup], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = parse_request([*words, "hours=4"])
    path = tmp_path / "worth" / worth.FILE
    text = path.read_text()
    path.unlink()

    def plan_slowly(question: StudySetup, timer: object, parallel: int | None) -> RunSpeed:
        path.write_text(text)
        slow = {kind: RunSeconds(2 * clock.step, clock.rest) for kind, clock in FAST.items()}
        return RunSpeed(slow, parallel or 1)

    monkeypatch.setattr(worth, "calibrate", plan_slowly)
    assert parse_request([*words, "hours=4"]).tasks == first.tasks and path.read_text() == text


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    fixed = ["model=vit_n8", "data.size=64", "parallel=1"]
    return ["recipe=study/worth", "data=shapes", f"out={tmp_path}", *fixed]


def requested_of(folder: Path, classes: Iterable[str], *more: str) -> Any:
    """The study of a folder of images, 200 a class."""
    for name in classes:
        put(folder / "own" / name, 200)
    words = [f"data.path={folder}/own", f"out={folder}", "hours=200", "parallel=1"]
    return parse_request(["recipe=study/worth", *words, *more])


def test_too_few_hours_start_nothing(timed: list[StudySetup], words: list[str]) -> None:
    for more, says in (
        (["hours=0.01"], r"hours=0\.01: too little time .*hours=\d"),
        (["hours=0.01", "anyway=true"], "unknown key anyway"),
        (["hour=0.01"], "did you mean hours"),
    ):
        assert re.search(says, refusal(parse_request, [*words, *more]))
    assert not (Path(words[2].removeprefix("out=")) / "worth").exists()


@pytest.mark.parametrize(
    "more", [["objective=mpp", "corruption.rate=0.4"], ["objective=moco_v3", "model=vit_p8"]]
)
def test_its_tasks_pass_every_check_of_a_study(
    more: list[str], tmp_path: Path, timed: list[StudySetup]
) -> None:
    found = requested_of(tmp_path, "ab", *more)
    assert found.name == "worth" and timed and found.hours is not None
    for name, recipe in found.recipes.items():
        assert recipe.data.validation_from == "train" and recipe.data.test == 0.2
        if found.tasks[name].run.startswith("pretrain"):
            assert recipe.objective == timed[-1].recipe.objective and recipe.data.share == 1
            assert "mpp" not in str(more) or recipe.corruption.rate == 0.4
    models = {(recipe.model.width, recipe.model.patch) for recipe in found.recipes.values()}
    assert len(models) == 1
    assert {task.seed for task in found.tasks.values()} == {*range(8), TUNING_SEED}


def test_a_plan_of_three_learning_rates_passes_every_check(
    words: list[str], timed: list[StudySetup]
) -> None:
    found = parse_request([*words, "hours=40"])
    assert {"pretrain_low", "supervised_high"} < {task.run for task in found.tasks.values()}
    assert any("Three learning rates for mae are tried" in line for line in found.opening)
    few = parse_request([*words, "hours=3", "name=few"])
    assert "pretrain_low" not in {task.run for task in few.tasks.values()}
    said = [line for line in few.opening if line.startswith("rates")]
    assert re.search(r"Three learning rates would need about [\d.]+ hours", said[0])
    models = {(recipe.model.width, recipe.model.patch) for recipe in found.recipes.values()}
    assert models == {(128, 8)}


def test_the_same_command_goes_on_with_the_same_study(
    tmp_path: Path, words: list[str], timed: list[StudySetup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another is refused while it goes on, and planned anew when it does not."""
    first = parse_request([*words, "hours=3"])
    again = parse_request([*words, "hours=3"])
    assert len(timed) == 1 and again.tasks == first.tasks and again.hours == first.hours
    assert again.opening[-len(first.opening) :] == first.opening
    path = tmp_path / "worth" / "worth.json"
    kept = json.loads(path.read_text())
    # a study's file, that can be run by itself
    assert [*plan_tasks(read.build(kept["study"], "x"), {}, Given())] == [*first.tasks]
    with monkeypatch.context() as patch:
        patch.setattr(worth, "is_held", lambda folder: folder == path.parent)
        with pytest.raises(UserError, match=r"worth: .* Use another name="):
            parse_request([*words, "hours=4"])
        checked = parse_request([*words, "hours=6", "--check"])  # which writes nothing there
        assert checked.tasks != first.tasks and json.loads(path.read_text()) == kept
        assert parse_request([*words, "hours=3"]).tasks == first.tasks
    assert parse_request([*words, "hours=3", "dry=true"]).tasks == first.tasks
    longer = parse_request([*words, "hours=4"])
    assert len(timed) == 3 and longer.tasks != first.tasks


def test_more_hours_keep_the_tries_and_steps_of_a_study_with_results(
    tmp_path: Path, words: list[str], timed: list[StudySetup]
) -> None:
    """Finished runs would be lost, and what is claimed would follow from what was seen."""
    first = parse_request([*words, "hours=3"])
    (tmp_path / "worth" / "pretrain-0").mkdir()
    (tmp_path / "worth" / "pretrain-0" / "result.json").write_text("{}")
    longer = parse_request([*words, "hours=30"])
    assert len(timed) == 1 and longer.tasks == first.tasks
    assert longer.hours.hours == 30 and "hours=3. With hours=30, " in longer.opening[0]
    with pytest.raises(
        UserError, match=r"^hours=2: .* Use hours=3 or more"
    ):  # to stop when it looks good
        parse_request([*words, "hours=2"])


def test_a_plan_goes_on_with_fewer_runs_at_once_and_says_so(
    words: list[str], timed: list[StudySetup]
) -> None:
    """Hours of four runs at once that pass for hours of one, after a resume on another machine."""
    first = parse_request([*words[:-1], "hours=3", "parallel=4"])
    again = parse_request([*words, "hours=3"])
    line, *others = again.opening
    assert "parallel=4" in line and "parallel=1" in line and again.tasks == first.tasks
    assert others[-len(first.opening) :] == first.opening and again.tool_options.parallel == 1
    assert parse_request([*words[:-1], "hours=3"]).tool_options.parallel == 4  # as planned


def test_copies_among_the_test_images_are_counted_before_the_study(
    timed: list[StudySetup], tmp_path: Path
) -> None:
    for split, count in (("train", 150), ("test", 20)):
        for name in "ab":
            put(tmp_path / "own" / split / name, count)
    words = [f"data.path={tmp_path}/own", f"out={tmp_path}", "hours=200", "parallel=1"]
    found = parse_request(["recipe=study/worth", *words])
    splits = run_splits.load(next(iter(found.recipes.values())).data, test=True)
    train, test = (
        [bytes(raw) for raw in source.fetch(np.arange(len(source)))[0]]
        for source in (splits.train, splits.test)
    )
    copies = sum(raw in train for raw in test)  # some originals are validation images
    assert 0 < copies < len(test) == 40
    sentence = f"{copies} of 40 test images are copies of one of {len(train)} training images."
    assert any(sentence in note for note in found.study.report.notes)
    assert (tmp_path / "worth" / "copies.html").read_text().count("<img") == 2 * copies


def test_a_cluster_runs_at_once_what_is_asked_for(
    words: list[str], timed: list[StudySetup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM got --array=...%1, as there is no GPU here; and eight of its tasks, which do not share
    a machine, were timed as if they did. Its plan stays as it is: a fixed number of seeds."""
    asked: list[int | None] = []
    monkeypatch.setattr(
        worth, "calibrate", lambda *given: asked.append(given[2]) or RunSpeed(FAST, 1)
    )
    for more, parallel in (("name=one", None), ("parallel=8", 8)):
        found = parse_request([*words[:-1], "hours=3", "launcher=slurm", more])
        assert asked.pop() == 1 and found.tool_options.parallel == parallel
        assert "launcher=slurm" in found.opening[-1]
        assert found.hours is None and 3 <= len(found.study.seeds) < 8
    assert "device=" not in str(
        estimate_request(found, PlanOptions())
    )  # which is refused beside it


@pytest.mark.parametrize(("given", "said"), [("0.05", True), ("0.5", False)])
def test_another_share_for_validation_than_was_asked_is_said(
    tmp_path: Path,
    timed: list[StudySetup],
    capsys: pytest.CaptureFixture[str],
    given: str,
    said: bool,
) -> None:
    """A share of a user's that gives way to another one without a word."""
    found = requested_of(tmp_path, "ab", f"data.validation={given}")
    begins = f"warning     data.validation={given}: fewer than 100 "
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(begins)]
    (share,) = {recipe.data.validation for recipe in found.recipes.values()}
    assert [f". The share {share} is held out" in line for line in lines] == [True] * said
    assert (share == float(given)) is not said


def test_what_is_assumed_of_the_images_is_said(
    tmp_path: Path, timed: list[StudySetup], capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of images without labels was a class, without a word, and most of the accuracy. The
    images and the network are said first."""
    found = requested_of(tmp_path, ["a", "b", "unlabelled"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("images") and said[-1].startswith("network")
    assert any(line.startswith("warning") and "unlabelled" in line for line in said)
    notes = timed[0].images.notes
    assert [note.split()[0] for note in notes[:3]] == ["train:", "validation:", "test:"]
    assert {line.strip() for line in said} >= {*notes}
    named = {note.replace(str(tmp_path / "own"), "own") for note in notes}
    shown = found.study.report.model_dump(exclude={"question"})  # whose commands run here
    assert named < {*found.study.report.notes} and str(tmp_path) not in str(shown)
    assert not {*said} & {*found.opening}  # nothing twice


# A released encoder as a third arm

TIMM = "timm:vit_tiny_patch16_224.augreg_in21k"
RELEASED = ReleasedEncoder(TIMM, {"init": TIMM, "data.size": 64}, "token", "vit_tiny at 64 px")


@pytest.mark.parametrize("tries", RATES)
@pytest.mark.parametrize("asked", [ASKED, FURTHER])
def test_a_released_encoder_has_as_many_tries(asked: StudySetup, tries: int) -> None:
    """It keeps its own network, size and pooling; the other arms keep what they have without it,
    and the primary comparison stays the only one that is claimed."""
    shared = {"data.path": "/no", "model": "vit_n8", "data.size": 32, "data.mean": [0.0, 0.0, 0.0]}
    shared |= {"data.channels": 3}
    asked = asked._replace(shared_options=shared)
    extent = StudySize(tries, 3, 100, (0.1,), frozen=True)
    three = asked._replace(released=RELEASED)
    before, tasks = tasks_of(asked, extent), tasks_of(three, extent)
    kept = {name: task for name, task in tasks.items() if task.at.get("arm") != "released"}
    assert {name: task.options for name, task in kept.items()} == {
        name: task.options for name, task in before.items()
    }
    added = [task for name, task in tasks.items() if name not in kept]
    counts = {"tune": tries, "tune_fewer": tries, "final": 3, "final_fewer": 3, "frozen": 3}
    assert Counter(task.run for task in added) == counts
    for task in added:
        assert task.options["init"] == TIMM and task.options["data.size"] == 64
        assert task.options["data.channels"] == 3 and "data.mean" not in task.options
        assert not any(key.startswith("model") for key in task.options)
        key = "probe.pool" if task.run == "frozen" else "supervised.pool"
        assert task.options[key] == "token"
    steps = {task.options["optim.steps"] for task in tasks.values() if task.run == "final"}
    assert len(steps) == 1
    rule = record.rule_of(read.build(study_file(three, extent, 1), "x"))
    assert [(one.a, one.b) for one in rule.asked] == [asked.arms]


def test_the_time_of_a_released_encoder_by_hand() -> None:
    """4 tries and 3 tests of 100 steps that take 2 s, and 5 s besides their steps."""
    clocks = CLOCKS | {"tune released": RunSeconds(2, 5), "final released": RunSeconds(2, 5)}
    pace, extent = RunSpeed(clocks | {"frozen released": RunSeconds(0, 7)}, 1), StudySize(4, 3, 100)
    three = ASKED._replace(released=RELEASED)
    more = planning.seconds(three, extent, pace) - planning.seconds(ASKED, extent, pace)
    assert more == 7 * 205
    lines = "\n".join(planning.plan_lines(three, extent, 4, pace, 0))
    assert "4 tries for each of mae, scratch and released" in lines
    assert "vit_tiny at 64 px" in lines


def test_a_released_encoder_is_timed_as_a_kind_of_its_own(two_cores: None) -> None:
    timer = FakeTimer(2.0)
    pace = calibration.calibrate(FREE._replace(released=RELEASED), timer, 2)  # type: ignore[arg-type]
    assert len(timer.asked) == 4
    options = timer.asked[3][0]
    assert {"recipe": "finetune", "init": TIMM, "data.size": 64}.items() <= options.items()
    assert not any("model" in key for key in options)
    assert pace.clocks["tune released"] == pace.clocks["tune"]  # which the timer says
    assert pace.clocks["frozen released"].step == 0


@pytest.mark.parametrize(("side", "size"), [(32, 64), (64, 64), (72, 80)])
def test_a_released_encoder_reads_at_least_four_patches_a_side(side: int, size: int) -> None:
    given = {"data": "shapes", "model": "vit_p8", "data.size": side, "released": TIMM}
    found = study_setup.build_setup(given, IMAGES).released
    assert found.options == {"init": TIMM, "data.size": size}


@pytest.mark.parametrize(
    ("place", "more", "says"),
    [
        ("timm:no_such", {}, "timm has no weights with this name"),
        ("/nowhere", {}, "no such folder"),
        ("scratch", {}, "not a released encoder"),
        (TIMM, {"init": TIMM}, f"init={TIMM} already names this encoder"),
        (TIMM, {"data.channels": "4"}, ""),
    ],
)
def test_a_wrong_released_encoder_is_one_line(
    place: str, more: dict[str, str], says: str, timed: list[StudySetup]
) -> None:
    words = ["recipe=study/worth", "data=shapes", f"released={place}"]
    said = refusal(parse_request, [*words, *(f"{key}={text}" for key, text in more.items())])
    assert says in said and not timed
    if says:
        assert said.startswith(f"released={place}: ")


def test_a_study_with_a_released_run_passes_every_check(
    tmp_path: Path, timed: list[StudySetup], words: list[str]
) -> None:
    """For real from a run's folder; its network and its normalisation are not those of the study."""
    small = altered(TINY, f"out={tmp_path}", "name=theirs")
    theirs = run(small).folder
    found = parse_request([*words, "hours=40", f"released={theirs}"])
    recipes = {
        found.tasks[name].at["arm"]: recipe
        for name, recipe in found.recipes.items()
        if found.tasks[name].run == "final"
    }
    assert {*recipes} == {"mae", "scratch", "released"}
    # its network is another on purpose, and no comparison of the study is with it
    assert not any("architectures" in text for text in found.cautions)
    assert recipes["released"].model == resolve(small).model != recipes["mae"].model
    assert recipes["mae"].model == recipes["scratch"].model
    assert f"released={theirs}" in found.study.report.question["study"].split("\n")
    assert str(tmp_path) not in found.study.report.question["released"]


# A value that is tried may name a run


def test_each_arm_confirms_what_its_own_tuning_chose(tmp_path: Path) -> None:
    """At all labels and at a tenth, of eight tries: on every seed, from its own run."""
    found = tasks_of(ASKED, StudySize(8, 3, 20, (0.1,)))
    chosen = {
        ("tune", "mae"): {"optim.lr": 0.3, "data.mixup": 0.8},
        ("tune", "scratch"): {"init": "scratch", "optim.lr": 0.1, "data.mixup": 0.0},
        ("tune_fewer", "mae"): {"optim.lr": 0.01, "data.mixup": 0.0},
        ("tune_fewer", "scratch"): {
            "init": "{supervised_fewer}",
            "optim.lr": 0.03,
            "data.mixup": 0.8,
        },
    }
    best = 0
    for name, task in found.items():
        if task.run.startswith("tune"):
            is_best = task.tried == chosen[task.run, task.at["arm"]]
            best += is_best
            (tmp_path / name).mkdir()
            accuracy = {"value": 0.5 + 0.1 * is_best, "n": 100, "split": "validation"}
            result = json.dumps({"measurements": written({"accuracy": accuracy})})
            (tmp_path / name / "result.json").write_text(result)
    finals = [task for task in found.values() if task.run.startswith("final")]
    assert best == len(chosen) and len(finals) == 2 * 2 * 3
    for task in finals:
        words = launch.task_command(task, found, tmp_path)
        values = {**chosen[task.run.replace("final", "tune"), task.at["arm"]]}
        ways = {
            "{supervised_fewer}": f"{tmp_path}/supervised_fewer-10%-{task.seed}",
            "scratch": "scratch",
        }
        way = values.pop("init", "")
        assert f"init={ways.get(way, f'{tmp_path}/pretrain-{task.seed}')}" in words
        assert {f"{key}={value}" for key, value in values.items()} < {*words}
        assert words.count("model=vit_n8") == (task.at["arm"] == "scratch")


def test_its_report_compares_what_was_chosen(tmp_path: Path) -> None:
    """70, 70.25, 70.5% against 60, 60, 60.25%: 10, 10.25 and 10.25 points. What is claimed is of
    these hours, network and tries."""
    asked = study_setup.build_setup({"data": "shapes", "data.size": 32, "model": "vit_p8"})
    top1 = {"mae": (280, 281, 282), "scratch": (240, 240, 241)}

    def measured(task: Task) -> made_studies.Measured:
        if task.run == "tune":
            is_own = "supervised" in str(task.tried.get("init", ""))
            return {"accuracy": (0.5 + 0.1 * is_own, "validation")}
        if task.run == "final":
            right = top1[task.at["arm"]][task.seed]
            return {"top1": (right / made_studies.IMAGES, "test")}
        if task.run == "frozen":
            return {"knn": (0.3, "test"), "fresh_knn": (0.2, "test")}
        return {"loss": (1.0, "validation")}

    file = study_file(asked, StudySize(4, 3, 20, frozen=True), 4)
    folder = made_studies.study(tmp_path / "worth", file, measured)
    found = report.write(folder)
    assert not found.results.foreign and not found.results.missing
    (sentence,) = found.verdict.sentences  # scratch is what untrained weights reach
    assert re.match(r"With 4 hours \(.* epochs.*\) of vit_p8 at 32 px, by top-1 on test", sentence)
    assert "mae is 10.17 points above scratch" in sentence and "Bonferroni" not in sentence
    text = (folder / "report.md").read_text()
    _, *rows = table(text.partition("Measured by frozen:")[2], "arm")
    assert rows == [[arm, "3", "30.00 ± 0.00", "20.00 ± 0.00"] for arm in ("mae", "scratch")]
    assert "4 of 4" in text and "init={supervised}" in text.replace("\\", "")
    notes = file["report"]["notes"]
    assert notes[0].startswith(file["report"]["condition"]) and "mae minus scratch" in notes[0]
    assert "supervised: " in notes[1] and "frozen: " in notes[1]
    assert all(part in notes[2] for part in ("4 tries", "seed 99", "2,000 validation images"))
