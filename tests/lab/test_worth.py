"""study/worth: what is compared, how settings are chosen, what the hours buy, and in which order."""

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import made_studies
from helpers.images import png
from helpers.reports import table
from ssl_vit.errors import UserError
from ssl_vit.lab import engine, report
from ssl_vit.lab.compare import least_difference
from ssl_vit.lab.study import launch, read, record, worth
from ssl_vit.lab.study.request import requested
from ssl_vit.lab.study.tasks import Task, Tasks, plan
from ssl_vit.lab.study.worth import Clock, Extent, Images, Question
from ssl_vit.recipe.load import resolve

IMAGES = Images({"data.test": "0.2"}, 1280, 1000, 10, 60, 150, 400)
MAE = resolve(["recipe=mae", "data.path=/no/such/place"], here=False)
# 128 images a step: 10 steps an epoch
ASKED = Question(
    "mae", "", {"data.path": "/no"}, {}, IMAGES, MAE, {"model": "vit_n8"}, "avg", 1.0, 0.5
)
FURTHER = Question("dino", "/an/encoder", {}, {}, IMAGES, MAE, {}, "token", 1.0, 0.5)
CLOCKS = {
    "pretrain": Clock(1, 10),
    "own": Clock(1, 10),
    "tune": Clock(1, 10),
    "final": Clock(1, 10),
    "frozen": Clock(0, 30),
}


def tasks_of(question: Question, extent: Extent) -> Tasks:
    return plan(read.build(worth.content(question, extent, 1), "x"), {}, {})


def bought(hours: float, question: Question = ASKED, parallel: int = 1) -> Extent:
    return worth.spend(question, hours, CLOCKS, parallel, anyway=False)[0]


# What is compared


@pytest.mark.parametrize(
    ("question", "pair"), [(ASKED, ("mae", "scratch")), (FURTHER, ("dino", "start"))]
)
@pytest.mark.parametrize("shares", [(), (0.1, 0.3)])
def test_one_comparison_is_primary_with_all_labels(
    question: Question, pair: tuple[str, str], shares: tuple[float, ...]
) -> None:
    study = read.build(worth.content(question, Extent(8, 5, 100, shares), 4), "x")
    rule = record.rule_of(study)
    assert rule is not None and rule.measure == "top1"
    assert [(one.a, one.b, one.at) for one in rule.asked] == [(*pair, ())]
    tests = [task for task in plan(study, {}, {}).values() if task.run == rule.test]
    assert len(tests) == 10 and not any("data.share" in task.options for task in tests)


def test_scratch_is_the_better_of_two_ways_by_validation() -> None:
    found = tasks_of(ASKED, Extent(8, 3, 90))
    tries = [task for task in found.values() if task.run == "tune" and task.at["arm"] == "scratch"]
    ways = Counter(task.options["init"] for task in tries)
    assert ways == {"scratch": 4, "{own-99}": 4}
    final = found["final-scratch-2"]
    assert final.best == (tuple(task.name for task in tries), "accuracy")
    assert "own-2" in final.needs and "init" not in final.options
    own, pretrain = found["own-2"].options, found["pretrain-2"].options
    assert own["optim.steps"] == pretrain["optim.steps"] == "90"  # the same work a step, here
    tuned = {"optim.steps": "45", "recipe": "finetune", "supervised.pool": "avg"}
    for task in (final, found["final-mae-2"], *tries):
        assert tuned.items() <= task.options.items()


def test_supervised_training_costs_what_pretraining_does() -> None:
    question = worth.ask({"data": "shapes"})
    steps = round(900 * question.supervised)
    words = ["data=shapes", "model=vit_n8"]
    pretraining = engine.cost(["recipe=mae", *words], "x")
    supervised = engine.cost(["recipe=supervised", *words], "x")
    assert steps * supervised.exaflop_a_step == pytest.approx(
        900 * pretraining.exaflop_a_step, rel=0.002
    )
    assert question.images.train == 50_000 and question.images.test == 5_000


@pytest.mark.parametrize("question", [ASKED, FURTHER])
@pytest.mark.parametrize("tries", worth.RATES)
@pytest.mark.parametrize("shares", [(), (0.1, 0.3)])
def test_every_arm_has_as_many_tries_at_each_share(
    question: Question, tries: int, shares: tuple[float, ...]
) -> None:
    found = tasks_of(question, Extent(tries, 3, 100, shares))
    count = Counter(str(task.at) for task in found.values() if task.run.startswith("tune"))
    assert len(count) == 2 * (1 + len(shares)) and {*count.values()} == {tries}


def test_choices_are_made_on_a_seed_that_confirms_nothing() -> None:
    found = tasks_of(ASKED, Extent(8, 8, 100, (0.1,)))
    for task in found.values():
        if task.run.startswith("tune"):
            assert task.seed == worth.TUNING_SEED and task.options["eval.test"] == "false"
        if task.run.startswith("final") or task.run == "frozen":
            assert task.seed in range(8) and task.options.get("eval.test") != "false"


def test_what_goes_on_is_compared_with_its_start() -> None:
    found = tasks_of(FURTHER, Extent(4, 3, 100))
    assert {task.run for task in found.values()} == {"pretrain", "tune", "final", "frozen"}
    assert found["pretrain-1"].options["init"] == "/an/encoder"
    # a tenth of the rate, and a long warm-up: docs/further.md
    assert float(found["pretrain-1"].options["optim.lr"]) == pytest.approx(MAE.optim.lr / 10)
    assert found["pretrain-1"].options["optim.warmup"] == "20"
    assert found["final-start-1"].options["init"] == "/an/encoder"
    assert found["final-dino-1"].options["init"] == "{pretrain-1}"
    tries = [task for task in found.values() if task.run == "tune"]
    dino, start = (
        [task.tried for task in tries if task.at["arm"] == arm] for arm in ("dino", "start")
    )
    assert dino == start


def test_a_share_draws_labels_anew_for_each_seed() -> None:
    found = tasks_of(ASKED, Extent(4, 3, 100, (0.1,)))
    task = found["final_fewer-scratch-10%-2"]
    drawn = {"data.share": "0.1", "data.share_seed": "2"}
    assert drawn.items() <= task.options.items()
    assert drawn.items() <= found["own_fewer-10%-2"].options.items()
    assert "own_fewer-10%-2" in task.needs and "pretrain-2" in found["final_fewer-mae-10%-2"].needs
    assert "data.share" not in found["pretrain-2"].options  # all images, labelled or not


# What the hours buy


def test_the_time_of_a_study_by_hand() -> None:
    """4 seeds of pre-training and of supervised training, 110 s each; 8 tries and 6 tests of 60 s;
    6 evaluations of 30 s."""
    by_hand = 4 * 110 + 4 * 110 + 14 * 60 + 6 * 30
    assert by_hand == 1900
    assert worth.seconds(ASKED, Extent(4, 3, 100), CLOCKS, 1) == by_hand
    # two at once: pairs of the same length
    assert worth.seconds(ASKED, Extent(4, 3, 100), CLOCKS, 2) == pytest.approx(1900 / 2, abs=60)


def test_a_budget_by_hand() -> None:
    """20 epochs are 200 steps: 8 x 210 + 14 x 110 + 180 = 3,400 s with the fewest tries, and each
    further try of both arms takes 220 s: with 12 of them it is 5,160 s. A step more costs 8 + 14 / 2
    seconds with 4 tries, 8 + 30 / 2 with 12."""
    assert bought(3400 / 3600) == Extent(4, 3, 200)
    assert bought(4279 / 3600) == Extent(4, 3, 200 + (4279 - 3400) // 15)
    assert bought(4280 / 3600) == Extent(8, 3, 200)
    assert bought(5160 / 3600) == Extent(12, 3, 200)
    assert bought((5160 + 84 * 23) / 3600) == Extent(12, 3, 284)


@given(hours=st.floats(1, 200), parallel=st.sampled_from([1, 1, 4]))
def test_the_hours_go_to_one_thing_after_the_other(hours: float, parallel: int) -> None:
    found = bought(hours, parallel=parallel)
    length = MAE.optim.steps
    spent = worth.seconds(ASKED, found, CLOCKS, parallel) / 3600
    assert spent <= hours
    if found.steps > 200:
        assert (
            found.tries == 12
            or worth.seconds(ASKED, Extent(found.tries + 4, 3, 200), CLOCKS, parallel)
            > 3600 * hours
        )
    if found.seeds > 3:
        assert found.steps >= length and found.tries == 12
    if found.shares or found.steps > length:
        assert found.seeds == 8
    # 60 labels of the smallest class: a tenth has 6 of them, 3% too few
    assert {*found.shares} <= {0.1, 0.3}
    for share in {0.1, 0.3} - {*found.shares} if found.steps > length else ():
        other = replace(found, steps=length, shares=(*found.shares, share))
        assert worth.seconds(ASKED, other, CLOCKS, parallel) > 3600 * hours
    if found.steps < worth.LONGEST * length and parallel == 1:
        assert spent > 0.8 * hours


def promised(extent: Extent) -> tuple[Any, ...]:
    """What the hours go to, the first first."""
    whole = min(extent.steps, MAE.optim.steps)
    return extent.tries, whole, extent.seeds, len(extent.shares), extent.steps


def besides(question: Question, extent: Extent) -> dict[str, Any]:
    """A study without what more hours change: lengths, seeds, shares, and texts that name them."""
    content = worth.content(question, extent, 1)
    lengths = ("optim.steps", "optim.warmup", "eval.every", "checkpoint.every")
    for run in content["runs"].values():
        run["options"] = {key: one for key, one in run["options"].items() if key not in lengths}
    for settings in (content["runs"], *content["axes"]["arm"].values()):
        for name in [name for name in settings if name.endswith("_fewer")]:
            del settings[name]
    content["axes"].pop("share", None)
    report = content["report"]
    report["beside"] = [name for name in report["beside"] if not name.endswith("_fewer")]
    report["notes"] = report["notes"][1:]
    del report["condition"]
    return {key: one for key, one in content.items() if key not in ("title", "seeds")}


@pytest.mark.parametrize(("question", "fewest"), [(ASKED, 1.0), (FURTHER, 0.72)])
def test_more_hours_change_length_seeds_and_shares_alone_in_the_promised_order(
    question: Question, fewest: float
) -> None:
    found = [bought(float(hours), question) for hours in np.geomspace(fewest, 200, 40)]
    assert [promised(one) for one in found] == sorted(promised(one) for one in found)
    assert {one.tries for one in found} == {4, 8, 12} and {one.seeds for one in found} >= {3, 8}
    assert {one.shares for one in found} == {(), (0.1,), (0.1, 0.3)}
    longest = [one for one in found if one.tries == 12]
    assert all(besides(question, one) == besides(question, longest[0]) for one in longest)


def test_what_has_been_spent_is_bought_no_more() -> None:
    found, lines = worth.spend(ASKED, 2.5, CLOCKS, 1, anyway=False, spent=1800)
    assert found == bought(2)
    assert lines[0].startswith("hours       2.5 of 2.5: ")


def test_runs_are_timed_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind once: a step as the mean of two that were measured at once, 1 and 3 s; and 100 s of
    a run of 8 steps, of fine-tuning 4, of which 2 s a step are the steps."""
    seen: list[list[str]] = []

    def stand_in(words: list[str], out: str, parallel: int) -> tuple[float, list[str]]:
        assert parallel == 2
        seen.append(words)
        return 100, [json.dumps({"probe": {"seconds": seconds}}) for seconds in (1, 3)]

    monkeypatch.setattr(worth, "_timed", stand_in)
    clocks = worth.measure(ASKED, 2)
    trained, tuned = Clock(2, 84), Clock(2, 92)
    by_hand = {"pretrain": trained, "own": trained, "tune": tuned, "final": tuned}
    assert clocks == by_hand | {"frozen": Clock(0, 100)}
    plans = [words for words in seen if words[0] == "plan"]
    assert len(plans) == 3 and all("optim.steps=200" in words for words in plans[:1])
    tools = ["pretrain", "pretrain", "finetune", "evaluate"]
    assert [words[0] for words in seen if words[0] != "plan"] == tools
    # what confirms is tested, and so are the runs that are timed
    assert not any("eval.test=false" in words for words in seen if words[0] != "plan")


SAYS = "import sys; print(sorted(sys.argv[1:]))"
FAILS = "import sys; print('warning: x', 'error: y=1: no', sep='\\n', file=sys.stderr); sys.exit(2)"


def test_as_many_processes_are_timed_as_will_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(engine, "cores", lambda: 6)
    command = [sys.executable, "-c"]
    monkeypatch.setattr(worth, "process_command", lambda *words: [*command, SAYS, *words])
    took, texts = worth._timed(["pretrain", "out=/x", "name=a"], "/x", 3)
    places = ["/x", "/x/1", "/x/2"]
    words = [["compute.threads=2", "name=a", f"out={place}", "pretrain"] for place in places]
    assert texts == [str(one) for one in words] and took > 0
    monkeypatch.setattr(worth, "process_command", lambda *words: [*command, FAILS])
    with pytest.raises(UserError) as error:
        worth._timed(["pretrain", "out=/x"], "/x", 2)
    assert str(error.value) == "study/worth: pretrain, which is timed: y=1: no"


def test_too_few_hours_are_refused_with_those_that_are_needed() -> None:
    with pytest.raises(UserError, match="epochs of pre-training, and 20 are needed"):
        bought(0.9)
    with pytest.raises(UserError) as error:
        bought(0.1)
    needed = re.search(r"needs ([\d.]+) hours", str(error.value))
    assert needed and float(needed[1]) >= 3490 / 3600
    assert bought(float(needed[1])).steps >= 200


def test_nearly_twenty_epochs_are_not_told_as_twenty() -> None:
    assert ASKED.epochs(199) == "19.9 epochs" and ASKED.epochs(200) == "20 epochs"
    assert ASKED.epochs(3) == "0.3 epochs" and ASKED.epochs(570) == "57 epochs"


def test_anyway_starts_with_fewer_epochs() -> None:
    found, lines = worth.spend(ASKED, 0.5, CLOCKS, 1, anyway=True)
    assert found.tries == 4 and found.seeds == 3 and 2 < found.steps < 200
    assert worth.seconds(ASKED, found, CLOCKS, 1) <= 1800
    assert lines[0].startswith("warning") and "too short to answer" in lines[0]
    least, _ = worth.spend(ASKED, 0.01, CLOCKS, 1, anyway=True)
    assert least.steps == 2


def test_too_few_hours_are_said_on_the_page(timed: list[Any], tmp_path: Path, capsys: Any) -> None:
    """The page had the hours that were asked for, and not that they were too few."""
    words = ["recipe=study/worth", "data=shapes", f"out={tmp_path}", "parallel=1", "anyway=true"]
    found = requested([*words, "hours=0.01"])
    assert capsys.readouterr().out.startswith("timing ")  # it is silent for minutes
    takes = re.search(r"^hours +([\d.]+) of 0.01:", "\n".join(found.opening), re.MULTILINE)
    said = re.fullmatch(
        r"With ([\d.]+) hours \([\d.]+ epochs, too few to answer\) of vit_n8 at 64 px",
        str(found.study.report.condition),
    )
    assert takes and said and float(said[1]) == pytest.approx(float(takes[1]), rel=0.1)
    assert float(said[1]) > 0.01 and found.study.title.endswith(f"{said[0]}, mae minus scratch")


def test_the_condition_and_what_was_chosen_are_on_the_page() -> None:
    content = worth.content(ASKED, Extent(8, 3, 570), 4)
    condition = "With 4 hours (57 epochs) of vit_n8 at 64 px, mae minus scratch"
    notes = content["report"]["notes"]
    assert notes[0].startswith(condition) and content["title"].endswith(condition)
    assert f"{content['report']['condition']}, mae minus scratch" == condition
    assert "8 tries" in notes[1] and "seed 99" in notes[1] and "150 validation images" in notes[1]


def test_the_least_difference_is_told_as_assumed() -> None:
    """3 seeds find 1.0, 2.3, 3.9 points, 5 find 0.5, 1.2, 2.0; by 400 images of which a fifth is
    answered differently 2.8 standard errors of sqrt(0.2 / 400)."""
    lines = list(worth.power(400))
    text = "\n".join(lines)
    assert lines[0].startswith("assumed") and "80%" in lines[0]
    table = [line.split() for line in lines if re.match(r" +\d", line)]
    assert table[0] == ["3", "1.0", "2.3", "3.9"] and table[1] == ["5", "0.5", "1.2", "2.0"]
    assert table[2] == ["8", *(f"{least_difference(sd, 8):.1f}" for sd in (0.3, 0.7, 1.2))]
    assert "400 test images alone 6.3" in text


# Images


def put(folder: Path, first: int, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        (folder / f"{number}.png").write_bytes(png(number))


def images_of(**options: str) -> Images:
    words = [f"{key.replace('__', '.')}={text}" for key, text in options.items()]
    return worth.find_images(resolve(["recipe=finetune", *words]).data)


def test_a_folder_without_splits(tmp_path: Path) -> None:
    """A fifth or so, by the names, is the test; of the others so many are needed to have 100 for
    validation."""
    put(tmp_path / "a", 0, 100)
    put(tmp_path / "b", 1000, 200)
    found = images_of(data__path=str(tmp_path))
    assert found.options == {
        "data.test": "0.2",
        "data.validation": "0.4",
        "data.validation_from": "train",
    }
    assert found.train == found.labelled and found.validation >= 100
    assert found.train + found.validation + found.test == 300 and 32 < found.test < 88  # 4 sd
    assert found.classes == 2 and found.smallest < 60


def test_splits_that_are_there_are_taken(tmp_path: Path) -> None:
    for split, count in (("train", 20), ("val", 60), ("test", 30)):
        put(tmp_path / split / "a", 0, count)
        put(tmp_path / split / "b", 1000, count)
    found = images_of(data__path=str(tmp_path))
    assert found.options == {}
    assert (found.train, found.smallest, found.validation, found.test) == (40, 20, 120, 60)


def test_images_without_labels_are_seen_and_not_counted(tmp_path: Path) -> None:
    """A third has none: a tenth of 1,500 images would do, had all of them labels."""
    put(tmp_path, 0, 1500)
    rows = [
        {"file_name": f"{n}.png", "label": None if n % 3 == 0 else "ab"[n % 2]} for n in range(1500)
    ]
    (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = images_of(data__path=str(tmp_path))
    assert found.options["data.validation"] == "0.2"
    assert 910 < found.train < 1010 and 0.6 < found.labelled / found.train < 0.73
    assert 100 <= found.validation < 200


def test_groups_stay_together(tmp_path: Path) -> None:
    put(tmp_path, 0, 600)
    rows = [{"file_name": f"{n}.png", "label": "ab"[n % 2], "who": n // 6} for n in range(600)]
    (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    question = worth.ask({"data.path": str(tmp_path), "data.group": "who"})
    assert question.shared["data.group"] == "who"
    splits = engine.splits_of(question.recipe.data, True)
    groups = [
        {*source.group_of(np.arange(len(source))).tolist()}
        for source in (splits.train, splits.validation, splits.test)
        if source is not None
    ]
    assert sum(map(len, groups)) == 100 == len(set.union(*groups))
    assert question.images.validation >= 100


@pytest.mark.parametrize(
    ("counts", "says"),
    [((60, 60), "100 of them at least choose settings alone"), ((300,), "have no labels")],
)
def test_too_few_images_or_classes(counts: tuple[int, ...], says: str, tmp_path: Path) -> None:
    for number, count in enumerate(counts):
        put(tmp_path / "train" / f"class{number}", 1000 * number, count)
        put(tmp_path / "test" / f"class{number}", 1000 * number, 5)
    with pytest.raises(UserError, match=says):
        images_of(data__path=str(tmp_path))


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("objective", "supervised", "is no recipe of training without labels; choices: dino"),
        ("objective", "ma", "did you mean mae?"),
        ("optim.lr", "0.1", "study/worth sets it; choices: objective, init, hours, data., model."),
        ("data.share", "0.5", "takes shares itself"),
        ("corruption.rate", "0.5", "mae."),
    ],
)
def test_a_mistake_is_answered_in_one_line(key: str, text: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        worth.ask({"data": "shapes", key: text})
    assert says in str(error.value) and "\n" not in str(error.value)


# As a study of the tool


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The questions whose runs were timed."""
    asked: list[Any] = []

    def measure(question: Question, parallel: int) -> dict[str, Clock]:
        asked.append((question, parallel))
        return CLOCKS

    monkeypatch.setattr(worth, "measure", measure)
    return asked


@pytest.mark.parametrize(
    "more", [[], ["objective=mpp", "corruption.rate=0.4"], ["objective=moco_v3", "model=vit_p8"]]
)
def test_its_tasks_pass_every_check_of_a_study(
    more: list[str], tmp_path: Path, timed: list[Any]
) -> None:
    put(tmp_path / "own" / "a", 0, 200)
    put(tmp_path / "own" / "b", 1000, 200)
    out = [f"data.path={tmp_path}/own", f"out={tmp_path}", "hours=200", "parallel=1"]
    found = requested(["recipe=study/worth", *out, *more])
    assert found.name == "worth" and len(timed) == 1
    for name, recipe in found.recipes.items():
        assert recipe.data.validation_from == "train" and recipe.data.test == 0.2
        if found.tasks[name].run == "pretrain":
            assert recipe.objective == timed[0][0].recipe.objective and recipe.data.share == 1
    if more[:1] == ["objective=mpp"]:
        assert found.recipes["pretrain-0"].corruption.rate == 0.4
    models = {(recipe.model.width, recipe.model.patch) for recipe in found.recipes.values()}
    assert len(models) == 1


def test_the_same_command_goes_on_with_the_same_study(tmp_path: Path, timed: list[Any]) -> None:
    words = ["recipe=study/worth", "data=shapes", f"out={tmp_path}", "hours=30", "parallel=1"]
    first = requested(words)
    again = requested([*words, "anyway=true"])
    assert len(timed) == 1 and again.tasks == first.tasks and again.opening == first.opening
    longer = requested([*words[:3], "hours=40", "parallel=1"])
    assert len(timed) == 2 and longer.tasks != first.tasks
    kept = json.loads((tmp_path / "worth" / "worth.json").read_text())
    assert read.build(kept["study"], "x") == read.build(
        worth.Worth(**kept).study, "x"
    )  # a study's file, that can be run by itself


def test_a_study_that_is_going_on_keeps_its_plan(
    tmp_path: Path, timed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["recipe=study/worth", "data=shapes", f"out={tmp_path}", "parallel=1"]
    first = requested([*words, "hours=30"])
    plan = (tmp_path / "worth" / "worth.json").read_bytes()
    monkeypatch.setattr(engine, "is_written", lambda folder: folder == tmp_path / "worth")
    with pytest.raises(UserError, match="worth: a study of other options is going on; take anoth"):
        requested([*words, "hours=40"])
    assert len(timed) == 1 and (tmp_path / "worth" / "worth.json").read_bytes() == plan
    assert requested([*words, "hours=30"]).tasks == first.tasks


@pytest.mark.parametrize("word", ["hours=3", "anyway=true"])
def test_its_options_are_of_no_other_study(word: str) -> None:
    with pytest.raises(UserError, match=f"{word}: has no effect without recipe=study/worth"):
        requested(["recipe=study/gap", word])


# A value that is tried may name a run


def finish(folder: Path, task: str, value: float) -> None:
    (folder / task).mkdir(parents=True)
    metrics = {"accuracy": {"value": value, "n": 100, "split": "validation"}}
    (folder / task / "result.json").write_text(json.dumps({"metrics": metrics}))


@pytest.mark.parametrize(("better", "init"), [("own", "own-1"), ("scratch", "scratch")])
def test_a_chosen_way_is_that_of_the_own_seed(better: str, init: str, tmp_path: Path) -> None:
    found = tasks_of(ASKED, Extent(4, 3, 20))
    final = found["final-scratch-1"]
    for name in final.best[0] if final.best else ():
        finish(tmp_path, name, 0.5 + 0.1 * (better in name.partition("init=")[2]))
    words = launch.command(final, found, tmp_path)
    place = init if init == "scratch" else str(tmp_path / init)
    assert f"init={place}" in words and words.count("model=vit_n8") == 1


def test_each_arm_confirms_what_its_own_tuning_chose(tmp_path: Path) -> None:
    """At all labels and at a tenth, of eight tries: on every seed."""
    found = tasks_of(ASKED, Extent(8, 3, 20, (0.1,)))
    chosen = {
        ("tune", "mae"): {"optim.lr": 0.3, "data.mixup": "0.8"},
        ("tune", "scratch"): {"init": "scratch", "optim.lr": 0.1, "data.mixup": "0.0"},
        ("tune_fewer", "mae"): {"optim.lr": 0.01, "data.mixup": "0.0"},
        ("tune_fewer", "scratch"): {"init": "scratch", "optim.lr": 0.03, "data.mixup": "0.8"},
    }
    best = 0
    for name, task in found.items():
        if task.run.startswith("tune"):
            is_best = task.tried == chosen[task.run, task.at["arm"]]
            best += is_best
            finish(tmp_path, name, 0.5 + 0.1 * is_best)
    assert best == len(chosen)
    finals = [task for task in found.values() if task.run.startswith("final")]
    assert len(finals) == 2 * 2 * 3
    for task in finals:
        words = launch.command(task, found, tmp_path)
        values = chosen[task.run.replace("final", "tune"), task.at["arm"]]
        assert {f"{key}={value}" for key, value in values.items()} < {*words}
        if task.at["arm"] == "mae":
            assert f"init={tmp_path}/pretrain-{task.seed}" in words


@pytest.mark.parametrize("better", ["own", "scratch"])
def test_its_report_compares_what_was_chosen(better: str, tmp_path: Path) -> None:
    """70, 70.25, 70.5% against 60, 60, 60.25%: 10, 10.25 and 10.25 points."""
    question = worth.ask({"data": "shapes", "data.size": "32", "model": "vit_p8"})
    top1 = {"mae": (280, 281, 282), "scratch": (240, 240, 241)}

    def measured(task: Task) -> made_studies.Measured:
        if task.run == "tune":
            chosen = str(task.tried.get("init", "")).strip("{}") == better
            return {"accuracy": (0.5 + 0.1 * chosen, "validation")}
        if task.run == "final":
            right = top1[task.at["arm"]][task.seed]
            return {"top1": (right / made_studies.IMAGES, "test")}
        if task.run == "frozen":
            return {"knn": (0.3, "test"), "fresh_knn": (0.2, "test")}
        return {"loss": (1.0, "validation")}

    content = worth.content(question, Extent(4, 3, 20), 4)
    folder = made_studies.study(tmp_path / "worth", content, measured)
    found = report.write(folder)
    assert not found.results.foreign and not found.results.missing
    (sentence,) = found.verdict.sentences  # scratch is what fresh weights reach
    assert re.match(r"With 4 hours \(.* epochs.*\) of vit_p8 at 32 px, by top-1 on test", sentence)
    assert "mae is 10.17 points above scratch" in sentence and "1 comparison)" in sentence
    text = (folder / "report.md").read_text()
    assert table(text.partition("Measured by frozen:")[2], "arm") == [
        ["arm", "n", "k-NN, %", "k-NN of fresh weights, %"],
        *([arm, "3", "30.00 ± 0.00", "20.00 ± 0.00"] for arm in ("mae", "scratch")),
    ]
    assert "With 4 hours" in text and "4 of 4" in text and f"init={better}" in text.replace("{", "")
