"""study/worth: what is compared, how settings are chosen, what the hours buy, and in which order."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import made_studies
from helpers.images import put
from helpers.reports import table
from ssl_vit.errors import UserError
from ssl_vit.lab import engine, report
from ssl_vit.lab.compare import least_difference
from ssl_vit.lab.options import PlanOptions
from ssl_vit.lab.study import launch, read, record, worth
from ssl_vit.lab.study.estimate import of_request
from ssl_vit.lab.study.request import Request, requested
from ssl_vit.lab.study.tasks import Task, Tasks, plan
from ssl_vit.lab.study.worth import Clock, Extent, Images, Question
from ssl_vit.recipe.load import resolve

IMAGES = Images({"data.test": "0.2"}, 1280, 1000, 10, 60, 150, 400)
MAE = resolve(["recipe=mae", "data.path=/no/such/place"], here=False)
# 128 images a step: 10 steps an epoch
ASKED = Question(
    "mae",
    "",
    {"data.path": "/no", "compute.threads": "1"},
    {},
    IMAGES,
    MAE,
    {"model": "vit_n8"},
    "avg",
    1.0,
    0.5,
)
FURTHER = Question("dino", "/an/encoder", {}, {}, IMAGES, MAE, {}, "token", 1.0, 0.5)
TRAINED = ("pretrain", "own", "tune", "final")
CLOCKS = dict.fromkeys(TRAINED, Clock(1, 10)) | {"frozen": Clock(0, 30)}


def tasks_of(question: Question, extent: Extent) -> Tasks:
    return plan(read.build(worth.content(question, extent, 1), "x"), {}, {})


def bought(hours: float, question: Question = ASKED, parallel: int = 1) -> Extent:
    return worth.spend(question, hours, CLOCKS, parallel, anyway=False)[0]


# What is compared


@pytest.mark.parametrize(
    ("question", "pair"), [(ASKED, ("mae", "scratch")), (FURTHER, ("dino", "start"))]
)
def test_one_comparison_is_primary_with_all_labels(
    question: Question, pair: tuple[str, str]
) -> None:
    """Every arm has as many tries, at each share; they are made on a seed that confirms nothing."""
    for tries in worth.RATES:
        study = read.build(worth.content(question, Extent(tries, 5, 100, (0.1, 0.3)), 4), "x")
        rule, tasks = record.rule_of(study), plan(study, {}, {}).values()
        assert rule is not None and rule.measure == "top1"
        assert [(one.a, one.b, one.at) for one in rule.asked] == [(*pair, ())]
        tests = [task for task in tasks if task.run == rule.test]
        assert len(tests) == 10 and not any("data.share" in task.options for task in tests)
        tuned = [task for task in tasks if task.run.startswith("tune")]
        count = Counter(str(task.at) for task in tuned)
        assert len(count) == 2 * 3 and {*count.values()} == {tries}
        for task in tuned:
            assert task.seed == worth.TUNING_SEED and task.options["eval.test"] == "false"
        for task in tasks:
            if task.run.startswith("final") or task.run == "frozen":
                assert task.seed in range(5) and task.options.get("eval.test") != "false"


@pytest.mark.parametrize("question", [ASKED, FURTHER])
def test_encoders_are_measured_frozen_where_the_hours_allow(question: Question) -> None:
    short, whole = (Extent(4, 3, 100, (), frozen) for frozen in (False, True))
    found, more = tasks_of(question, short), tasks_of(question, whole)
    added = {name for name, task in more.items() if task.run == "frozen"}
    assert len(added) == 2 * 3 and found.keys() == more.keys() - added
    first, second = (worth.content(question, one, 1)["report"] for one in (short, whole))
    assert (first["beside"], second["beside"]) == ([], ["frozen"])
    assert "not measured frozen" in str(first["notes"]) and "10% of the hours" in str(
        first["notes"]
    )
    assert "not measured frozen" not in str(second["notes"])


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
    mae, supervised = (
        engine.cost([f"recipe={one}", *words], "x").exaflop_a_step for one in ("mae", "supervised")
    )
    assert steps * supervised == pytest.approx(900 * mae, rel=0.002)
    assert question.images.train == 50_000 and question.images.test == 5_000


def test_what_goes_on_is_compared_with_its_start() -> None:
    found = tasks_of(FURTHER, Extent(4, 3, 100, frozen=True))
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
    extent = Extent(4, 3, 100, frozen=True)
    assert worth.seconds(ASKED, extent, CLOCKS, 1) == by_hand == 1900
    # two at once: pairs of the same length
    assert worth.seconds(ASKED, extent, CLOCKS, 2) == pytest.approx(1900 / 2, abs=60)


def test_a_budget_by_hand() -> None:
    """20 epochs are 200 steps: 8 x 210 + 14 x 110 = 3,220 s with the fewest tries, 180 more with
    the frozen encoders, and each further try of both arms takes 220 s: with 12 of them it is 5,160.
    A step more costs 8 + 14 / 2 seconds with 4 tries, 8 + 30 / 2 with 12."""
    assert bought(3220 / 3600) == Extent(4, 3, 200)
    least = {"frozen": True}
    assert bought(3400 / 3600) == Extent(4, 3, 200, **least)
    assert bought(4279 / 3600) == Extent(4, 3, 200 + (4279 - 3400) // 15, **least)
    assert bought(4280 / 3600) == Extent(8, 3, 200, **least)
    assert bought(5160 / 3600) == Extent(12, 3, 200, **least)
    assert bought((5160 + 84 * 23) / 3600) == Extent(12, 3, 284, **least)
    # where they take over a tenth, here 360 of 3,580 s, the hours go to pre-training
    slow = CLOCKS | {"frozen": Clock(0, 60)}
    found, (line,) = worth.spend(ASKED, 3580 / 3600, slow, 1, anyway=False)
    assert found == Extent(4, 3, 200 + (3580 - 3220) // 15) and "not measured frozen" in line
    found, (line,) = worth.spend(ASKED, 3610 / 3600, slow, 1, anyway=False)
    assert found == Extent(4, 3, 202, **least) and "frozen" not in line
    # what has been spent already is bought no more
    found, lines = worth.spend(ASKED, 2.5, CLOCKS, 1, anyway=False, spent=1800)
    assert found == bought(2) and "2.5 of 2.5: " in lines[0]


@given(
    hours=st.floats(1, 200),
    parallel=st.sampled_from([1, 1, 4]),
    question=st.sampled_from([ASKED, ASKED, FURTHER]),
)
@settings(max_examples=16)
def test_the_hours_go_to_one_thing_after_the_other(
    hours: float, parallel: int, question: Question
) -> None:
    found, length = bought(hours, question, parallel), MAE.optim.steps

    def fits(extent: Extent) -> bool:
        return worth.seconds(question, extent, CLOCKS, parallel) <= 3600 * hours

    assert fits(found)
    if found.steps > 200 and found.tries < 12:
        assert not fits(Extent(found.tries + 4, 3, 200, frozen=found.frozen))
    if found.seeds > 3:
        assert found.steps >= length and found.tries == 12
    if found.shares or found.steps > length:
        assert found.seeds == 8
    # 60 labels of the smallest class: a tenth has 6 of them, 3% too few
    assert {*found.shares} <= {0.1, 0.3}
    for share in {0.1, 0.3} - {*found.shares} if found.steps > length else ():
        assert not fits(found._replace(steps=length, shares=(*found.shares, share)))
    if found.steps < worth.LONGEST * length and parallel == 1:
        assert worth.seconds(question, found, CLOCKS, parallel) > 0.8 * 3600 * hours


def test_runs_are_timed_by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each kind once: a step as the mean of two that were measured at once, 1 and 3 s; and 100 s of
    a run of 8 steps, of fine-tuning 4, of which 2 s a step are the steps. Of the two fine-tunings
    the one that confirms is tested, which takes 30 s more."""
    seen: list[list[str]] = []

    def stand_in(words: list[str], out: str, parallel: int) -> tuple[float, list[str]]:
        assert parallel == 2
        if fails and len(seen) == 4:
            raise UserError("cut off")
        seen.append(words)
        tested = words[0] == "finetune" and "eval.test=true" in words
        return 130 if tested else 100, [
            json.dumps({"probe": {"seconds": seconds}}) for seconds in (1, 3)
        ]

    monkeypatch.setattr(worth, "_timed", stand_in)
    fails = True
    with pytest.raises(UserError, match="cut off"):
        worth.measure(ASKED, 2, tmp_path)
    fails = False  # what was timed before is not timed again
    again = ASKED._replace(shared=dict(reversed([*ASKED.shared.items()])))  # in another order
    clocks = worth.measure(again, 2, tmp_path)
    trained, tuned = Clock(2, 84), Clock(2, 92)
    by_hand = {"pretrain": trained, "own": trained, "tune": tuned, "final": Clock(2, 122)}
    assert clocks == by_hand | {"frozen": Clock(0, 100)}
    plans = [words for words in seen if words[0] == "plan"]
    assert len(plans) == 3 and "optim.steps=200" in plans[0]
    tools = ["pretrain", "pretrain", "finetune", "finetune", "evaluate"]
    # a try that mixes images reads two for one: hours of others were overrun
    assert all("data.mixup=0.8" in words for words in seen if "recipe=finetune" in words)
    timed = [words for words in seen if words[0] != "plan"]
    assert [words[0] for words in timed] == tools
    assert ["eval.test=false" in words for words in timed] == [False, False, True, False, False]


def test_too_few_hours_are_refused_once_with_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what was timed until it was too long, each call asked for some more hours, up to five
    times. The timings stay: the hours that are named suffice, with nothing timed anew."""
    timed: list[str] = []

    def stand_in(words: list[str], out: str, parallel: int) -> tuple[float, list[str]]:
        timed.append(words[0])
        return 100, [json.dumps({"probe": {"seconds": 1}})]

    monkeypatch.setattr(worth, "_timed", stand_in)
    words = ["recipe=study/worth", "data=shapes", f"out={tmp_path}", "parallel=1"]
    with pytest.raises(UserError, match=r"hours=0\.01: .* needs [\d.]+ hours") as error:
        requested([*words, "hours=0.01", "--check"])
    assert len(timed) == 8
    said = capsys.readouterr().out
    assert re.search(r"^measured .*GPUs .*pretrain 1 s", said, re.MULTILINE)
    # before the minutes of timing, or amidst them: the images, and that the hours are too few
    words_of_lines = [line.split()[0] for line in said.splitlines()]
    assert words_of_lines[0] == "images" and said.count("hours=0.01") == 1
    assert "timed" in words_of_lines[words_of_lines.index("warning") :]
    needed = str(error.value).partition(" needs ")[2].split()[0]
    requested([*words, f"hours={needed}", "--check"])
    assert len(timed) == 8 and not (tmp_path / "worth" / "worth.json").exists()
    assert not (tmp_path / "worth" / worth.MADE).exists()
    requested([*words, f"hours={needed}"])
    assert len(timed) == 8 and (tmp_path / "worth" / "worth.json").exists()


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
    with pytest.raises(UserError, match="study/worth: pretrain, which is timed: y=1: no"):
        worth._timed(["pretrain", "out=/x"], "/x", 2)


def test_too_few_hours_are_refused_with_those_that_are_needed() -> None:
    with pytest.raises(UserError) as error:
        bought(0.1)
    needed = re.search(r"needs ([\d.]+) hours", str(error.value))
    assert needed and 3220 / 3600 <= float(needed[1]) < 3220 / 3600 + 0.1
    assert bought(float(needed[1])).steps >= 200
    # unless it is to start all the same
    found, lines = worth.spend(ASKED, 0.5, CLOCKS, 1, anyway=True)
    assert found.tries == 4 and found.seeds == 3 and 2 < found.steps < 200
    assert worth.seconds(ASKED, found, CLOCKS, 1) <= 1800 and "too short" in lines[0]
    assert worth.spend(ASKED, 0.01, CLOCKS, 1, anyway=True)[0].steps == 2
    # nearly twenty epochs are not told as twenty
    assert [ASKED.epochs(steps).split()[0] for steps in (3, 199, 200, 570)] == [
        *("0.3", "19.9", "20", "57")
    ]


def test_the_least_difference_is_told_as_assumed() -> None:
    """By 400 images of which a fifth is answered differently 2.8 standard errors of
    sqrt(0.2 / 400)."""
    lines = list(worth.power(400))
    found = [line.split() for line in lines if re.match(r" +\d", line)]
    assert found == [
        [str(n), *(f"{least_difference(sd, n):.1f}" for sd in (0.3, 0.7, 1.2))] for n in (3, 5, 8)
    ]
    assert lines[0].startswith("assumed") and "6.3 points by the 400 test images" in lines[0]


# Images


def images_of(path: Path) -> Images:
    return worth.find_images(resolve(["recipe=finetune", f"data.path={path}"]).data)


def test_a_folder_without_labelled_test_images(tmp_path: Path) -> None:
    """A fifth or so, by the names, is the test; of the others so many are needed to have 100 for
    validation."""
    put(tmp_path / "train" / "a", 100)
    put(tmp_path / "train" / "b", 240)
    put(tmp_path / "test", 30)
    found = images_of(tmp_path)
    assert "not used: test (30 images (0 labelled))" in found.notes
    assert found.options == {
        "data.test": "0.2",
        "data.validation": "0.4",
        "data.validation_from": "train",
    }
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
        ((60, 60), "120 labelled images besides those of the test; .* expected about 143"),
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
    "objective=supervised": "is no recipe of training without labels; choices: dino",
    "objective=ma": "did you mean mae?",
    "optim.lr=0.1": "choices: objective, init, hours, data., model.",
    "data.share=0.5": "tries several itself",
    "data.mixup=0.5": "tries several itself",  # it vanished beside the values that are tried
    "corruption.rate=0.5": "mae.",
}


@pytest.mark.parametrize(("word", "says"), WRONG.items(), ids=WRONG)
def test_a_mistake_is_answered_in_one_line(word: str, says: str) -> None:
    key, _, text = word.partition("=")
    with pytest.raises(UserError) as error:
        worth.ask({"data": "shapes", key: text})
    assert str(error.value).startswith(word)
    assert says in str(error.value) and "\n" not in str(error.value)


# As a study of the tool


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """The questions whose runs were timed."""
    asked: list[Question] = []

    def measure(question: Question, *_: Any) -> dict[str, Clock]:
        asked.append(question)
        return CLOCKS

    monkeypatch.setattr(worth, "measure", measure)
    return asked


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    return ["recipe=study/worth", "data=shapes", f"out={tmp_path}", "parallel=1"]


def requested_of(folder: Path, classes: Iterable[str], *more: str) -> Request:
    """The study of a folder of images, 200 a class."""
    for name in classes:
        put(folder / "own" / name, 200)
    words = [f"data.path={folder}/own", f"out={folder}", "hours=200", "parallel=1"]
    return requested(["recipe=study/worth", *words, *more])


def test_too_few_hours_are_said_on_the_page(timed: list[Question], words: list[str]) -> None:
    """The page had the hours that were asked for, and not that they were too few."""
    found = requested([*words, "hours=0.01", "anyway=true"])
    takes = re.search(r"^hours +([\d.]+) of 0.01:", "\n".join(found.opening), re.MULTILINE)
    said = re.fullmatch(
        r"With ([\d.]+) hours, the least that it takes \([\d.]+ epochs, too few to answer\)"
        r" of vit_n8 at 64 px",
        found.study.report.condition,
    )
    assert takes and said and float(said[1]) == pytest.approx(float(takes[1]), rel=0.1)
    assert float(said[1]) > 0.01 and found.study.title.endswith(f"{said[0]}, mae minus scratch")
    assert "at once" not in found.study.title  # of one run: the default


@pytest.mark.parametrize(
    "more", [["objective=mpp", "corruption.rate=0.4"], ["objective=moco_v3", "model=vit_p8"]]
)
def test_its_tasks_pass_every_check_of_a_study(
    more: list[str], tmp_path: Path, timed: list[Question]
) -> None:
    found = requested_of(tmp_path, "ab", *more)
    assert found.name == "worth" and len(timed) == 1
    for name, recipe in found.recipes.items():
        assert recipe.data.validation_from == "train" and recipe.data.test == 0.2
        if found.tasks[name].run == "pretrain":
            assert recipe.objective == timed[0].recipe.objective and recipe.data.share == 1
            assert "mpp" not in str(more) or recipe.corruption.rate == 0.4
    models = {(recipe.model.width, recipe.model.patch) for recipe in found.recipes.values()}
    assert len(models) == 1


def test_the_same_command_goes_on_with_the_same_study(
    tmp_path: Path, words: list[str], timed: list[Question], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another is refused while it goes on, and planned anew when it does not."""
    first = requested([*words, "hours=30"])
    again = requested([*words, "hours=30", "anyway=true"])
    assert len(timed) == 1 and again.tasks == first.tasks and again.opening == first.opening
    path = tmp_path / "worth" / "worth.json"
    kept = json.loads(path.read_text())
    # a study's file, that can be run by itself
    assert [*plan(read.build(kept["study"], "x"), {}, {})] == [*first.tasks]
    with monkeypatch.context() as patch:
        patch.setattr(engine, "is_written", lambda folder: folder == path.parent)
        with pytest.raises(UserError, match="worth: a study of other options is going on"):
            requested([*words, "hours=40"])
        folders: list[Path | None] = []
        patch.setattr(worth, "measure", lambda *given: folders.append(given[2]) or CLOCKS)
        checked = requested([*words, "hours=50", "--check"])  # which writes nothing there
        assert folders == [None] and checked.tasks != first.tasks
        assert len(timed) == 1 and json.loads(path.read_text()) == kept
        assert requested([*words, "hours=30"]).tasks == first.tasks
    assert requested([*words, "hours=30", "dry=true"]).tasks == first.tasks
    longer = requested([*words, "hours=40"])
    assert len(timed) == 2 and longer.tasks != first.tasks


def test_a_plan_goes_on_with_fewer_runs_at_once_and_says_so(
    words: list[str], timed: list[Question]
) -> None:
    """Hours of four runs at once that pass for hours of one, after a resume on another machine."""
    first = requested([*words[:-1], "hours=30", "parallel=4"])
    again = requested([*words, "hours=30"])
    assert " hours of 4 runs at once (" in first.study.title and len(timed) == 1
    assert again.tasks == first.tasks and again.study.title == first.study.title
    line, *others = again.opening
    assert "parallel=4" in line and "parallel=1" in line and others == first.opening


def test_a_cluster_runs_at_once_what_is_asked_for(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM got --array=...%1, as there is no GPU here; and eight of its tasks, which do not share
    a machine, were timed as if they did."""
    timed: list[int] = []
    monkeypatch.setattr(worth, "measure", lambda *given: timed.append(given[1]) or CLOCKS)
    for more, parallel in (("name=one", None), ("parallel=8", 8)):
        found = requested([*words[:-1], "hours=30", "launcher=slurm", more])
        assert timed.pop() == 1 and found.own.parallel == parallel
        assert f"{parallel or 1} at once; on those of launcher=slurm" in found.opening[-1]
    assert "device=" not in str(of_request(found, PlanOptions()))  # which is refused beside it


@pytest.mark.parametrize(("given", "said"), [("0.05", True), ("0.5", False)])
def test_another_share_for_validation_than_was_asked_is_said(
    tmp_path: Path, timed: list[Question], given: str, said: bool
) -> None:
    """A share of a user's that gives way to another one without a word."""
    found = requested_of(tmp_path, "ab", f"data.validation={given}")
    begins = f"warning     data.validation={given}: fewer than 100 "
    lines = [line for line in found.opening if line.startswith(begins)]
    (share,) = {recipe.data.validation for recipe in found.recipes.values()}
    assert [f"; {share} is held out" in line for line in lines] == [True] * said
    assert (share == float(given)) is not said


def test_what_is_assumed_of_the_images_is_said(tmp_path: Path, timed: list[Question]) -> None:
    """A folder of images without labels was a class, without a word, and most of the accuracy."""
    found = requested_of(tmp_path, ["a", "b", "unlabelled"])
    assert any(line.startswith("warning") and "unlabelled" in line for line in found.opening)
    notes = timed[0].images.notes
    assert [note.split()[0] for note in notes[:3]] == ["train:", "validation:", "test:"]
    assert {line.strip() for line in found.opening} >= {*notes}
    named = {note.replace(str(tmp_path / "own"), "own") for note in notes}
    assert named < {*found.study.report.notes} and str(tmp_path) not in str(found.study.report)


# A value that is tried may name a run


def test_each_arm_confirms_what_its_own_tuning_chose(tmp_path: Path) -> None:
    """At all labels and at a tenth, of eight tries: on every seed, from its own run."""
    found = tasks_of(ASKED, Extent(8, 3, 20, (0.1,)))
    chosen = {
        ("tune", "mae"): {"optim.lr": 0.3, "data.mixup": "0.8"},
        ("tune", "scratch"): {"init": "scratch", "optim.lr": 0.1, "data.mixup": "0.0"},
        ("tune_fewer", "mae"): {"optim.lr": 0.01, "data.mixup": "0.0"},
        ("tune_fewer", "scratch"): {"init": "{own_fewer}", "optim.lr": 0.03, "data.mixup": "0.8"},
    }
    best = 0
    for name, task in found.items():
        if task.run.startswith("tune"):
            is_best = task.tried == chosen[task.run, task.at["arm"]]
            best += is_best
            (tmp_path / name).mkdir()
            accuracy = {"value": 0.5 + 0.1 * is_best, "n": 100, "split": "validation"}
            result = json.dumps({"metrics": {"accuracy": accuracy}})
            (tmp_path / name / "result.json").write_text(result)
    finals = [task for task in found.values() if task.run.startswith("final")]
    assert best == len(chosen) and len(finals) == 2 * 2 * 3
    for task in finals:
        words = launch.command(task, found, tmp_path)
        values = {**chosen[task.run.replace("final", "tune"), task.at["arm"]]}
        ways = {"{own_fewer}": f"{tmp_path}/own_fewer-10%-{task.seed}", "scratch": "scratch"}
        way = values.pop("init", "")
        assert f"init={ways.get(way, f'{tmp_path}/pretrain-{task.seed}')}" in words
        assert {f"{key}={value}" for key, value in values.items()} < {*words}
        assert words.count("model=vit_n8") == (task.at["arm"] == "scratch")


def test_its_report_compares_what_was_chosen(tmp_path: Path) -> None:
    """70, 70.25, 70.5% against 60, 60, 60.25%: 10, 10.25 and 10.25 points. What is claimed is of
    these hours, network and tries."""
    question = worth.ask({"data": "shapes", "data.size": "32", "model": "vit_p8"})
    top1 = {"mae": (280, 281, 282), "scratch": (240, 240, 241)}

    def measured(task: Task) -> made_studies.Measured:
        if task.run == "tune":
            is_own = "own" in str(task.tried.get("init", ""))
            return {"accuracy": (0.5 + 0.1 * is_own, "validation")}
        if task.run == "final":
            right = top1[task.at["arm"]][task.seed]
            return {"top1": (right / made_studies.IMAGES, "test")}
        if task.run == "frozen":
            return {"knn": (0.3, "test"), "fresh_knn": (0.2, "test")}
        return {"loss": (1.0, "validation")}

    content = worth.content(question, Extent(4, 3, 20, frozen=True), 4)
    folder = made_studies.study(tmp_path / "worth", content, measured)
    found = report.write(folder)
    assert not found.results.foreign and not found.results.missing
    (sentence,) = found.verdict.sentences  # scratch is what fresh weights reach
    assert re.match(r"With 4 hours \(.* epochs.*\) of vit_p8 at 32 px, by top-1 on test", sentence)
    assert "mae is 10.17 points above scratch" in sentence and "Bonferroni" not in sentence
    text = (folder / "report.md").read_text()
    _, *rows = table(text.partition("Measured by frozen:")[2], "arm")
    assert rows == [[arm, "3", "30.00 ± 0.00", "20.00 ± 0.00"] for arm in ("mae", "scratch")]
    assert "4 of 4" in text and "init={own}" in text.replace("\\", "")
    notes = content["report"]["notes"]
    assert notes[0].startswith(f"{content['report']['condition']}, mae minus scratch")
    assert all(part in notes[1] for part in ("4 tries", "seed 99", "2,000 validation images"))
