"""The answer of study/worth in plain words: its first line, and one next step."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from helpers.made_studies import IMAGES, TUNED, changed, counted, study
from ssl_vit.lab import report
from ssl_vit.lab.study.tasks import Task

FACTS = {
    "objective": "mae",
    "other": "trained from scratch",
    "init": "",
    "network": "vit_p8 at 32 px",
    "released": "",
    "steps": "277",
    "epochs": "24",
    "fine_steps": "123",
    "fine_epochs": "12",
    "pretrain": "recipe=mae\ndata=shapes",
    "study": "recipe=study/worth\ndata=shapes",
}
WORTH = changed(
    TUNED,
    axes={"arm": {name: TUNED["axes"]["arm"][name] for name in ("scratch", "mae")}},
    runs__pretrain__only={"arm": ["mae"]},
    report={"test": "final", "pairs": ["mae:scratch"], "measures": ["top1"], "question": FACTS},
)
WITH_RELEASED = changed(
    WORTH,
    axes__arm__released={"final": {"init": "timm:vit_tiny_patch16_224"}},
    report__question__released="vit_tiny at 64 px",
)
# of 400 test images, by seed
BETTER = {"scratch": (200, 208, 204), "mae": (300, 312, 306)}
WORSE = {"scratch": BETTER["mae"], "mae": BETTER["scratch"]}
EQUAL = {"scratch": (200, 208, 204), "mae": (203, 204, 207)}
# about 100 of them are of the commonest class
NOTHING = {"scratch": (100, 104, 102), "mae": (103, 102, 105)}


def written(
    folder: Path, right: dict[str, tuple[int, ...]], seeds: int = 3, frozen: tuple[float, ...] = ()
) -> report.Report:
    """Write the report of a study with these results.

    Args:
        folder: The study's folder.
        right: {arm: test images that each seed classifies correctly}.
        seeds: How many seeds have finished.
        frozen: k-NN accuracies of the frozen encoders minus untrained weights, by seed.
    """
    content = WITH_RELEASED if "released" in right else WORTH
    if frozen:
        run = {"tool": "evaluate", "over": ["arm"], "only": {"arm": ["mae"]}}
        options = {"recipe": "evaluate", "init": "{pretrain}"}
        content = changed(WORTH, runs__frozen=run | {"options": options})

    def measured(task: Task) -> dict[str, tuple[float, str]] | None:
        if task.run == "frozen":
            return {"knn": (0.3 + frozen[task.seed], "test"), "fresh_knn": (0.3, "test")}
        if task.run != "final":
            return counted(right)(task)
        if task.seed >= seeds:
            return None
        return counted(right)(task) | {"majority_top1": (100 / IMAGES, "test")}

    return report.write(study(folder, content, measured))


def test_pretraining_that_helped_is_said_with_what_to_type(tmp_path: Path) -> None:
    """306 and 204 of 400: 76.5% and 51.0%."""
    found = written(tmp_path / "s", BETTER)
    first, second, third = found.sentences[:3]
    assert first.startswith(
        "Pre-training helped. Fine-tuned from mae, vit_p8 at 32 px reaches 76.5% top-1 on the test"
        " images, and trained from scratch it reaches 51.0% (difference +25.5 points, 95% CI +"
    )
    assert first.endswith(", 3 seeds).")
    assert "24 epochs (277 steps) of pre-training and 12 epochs (123 steps)" in second
    assert third.startswith("A released encoder was not compared.")
    assert "released=timm:" in third and "another name=" in third
    assert found.answer.next_step.endswith("recipe=mae data=shapes")
    assert str(found).splitlines()[0] == first and "next        Pre-train: " in str(found)
    page = (tmp_path / "s" / "report.html").read_text()
    assert "Pre-training helped" in page and str(tmp_path) not in page


@pytest.mark.parametrize(
    ("frozen", "step"),
    [
        ((0.1, 0.11, 0.12), "Do not pre-train. "),
        ((0.01, -0.01, 0.0), "24 epochs of pre-training taught the encoder nothing measurable"),
        # it was called nothing measurable, without a measurement
        ((), "The hours left no time to measure whether 24 epochs"),
    ],
)
def test_do_not_pretrain_is_said_only_if_the_encoder_learned(
    frozen: tuple[float, ...], step: str, tmp_path: Path
) -> None:
    found = written(tmp_path / "s", WORSE, frozen=frozen)
    assert found.sentences[0].startswith("Pre-training did not help.")
    assert "(difference -25.5 points, 95% CI -" in found.sentences[0]
    assert found.answer.next_step.startswith(step)


def parts_of_eight_seeds(found: report.Report, sd: float) -> tuple[float, float]:
    """The parts of the half width of eight seeds that are due to the seeds and to the 400 images, in
    points, after a second end, where the error of 5% is halved."""
    outcomes = found.results.load_outcomes({*found.results.finished})
    differences = [
        100.0 * outcomes[f"final-mae-{seed}"].correct_M
        - 100.0 * outcomes[f"final-scratch-{seed}"].correct_M
        for seed in range(3)
    ]
    pairs = itertools.combinations(differences, 2)
    shared = max(0.0, np.mean([np.cov(*pair, ddof=0)[0, 1] for pair in pairs]))
    differing = np.mean([np.var(difference) for difference in differences]) - shared
    # quantiles at 1 - 0.0125 of Student's t with 7 degrees of freedom and of the normal distribution
    return 2.8412 * sd / 8**0.5, 2.2414 * ((shared + 2 * differing / 8) / 400) ** 0.5


def test_an_undecided_study_names_what_more_seeds_would_show(tmp_path: Path) -> None:
    """Differences of 0.75, -1 and 0.75 points."""
    found = written(tmp_path / "s", EQUAL)
    assert found.sentences[0].startswith("Whether pre-training helps is undecided.")
    by_seeds, by_images = parts_of_eight_seeds(found, float(np.std([0.75, -1, 0.75], ddof=1)))
    wide = (by_images**2 + by_seeds**2) ** 0.5
    assert f"about {wide:.1f} points to each side" in found.answer.next_step
    assert "recipe=study/worth data=shapes name=s" in found.answer.next_step
    # the difference of 0.17 points is less than the part that eight seeds leave, 1.0 points
    assert "8 seeds would probably not decide." in found.answer.next_step
    assert "need at least" not in found.answer.next_step


def test_an_undecided_study_names_the_test_images_that_its_difference_needs(tmp_path: Path) -> None:
    """Differences of 0.25, 0.5 and 0.75 points. The images' part has to shrink until both parts are
    0.5 points together. The advice was to add seeds, which could not decide."""
    right = {"scratch": (200, 200, 200), "mae": (201, 202, 203)}
    found = written(tmp_path / "s", right)
    assert found.sentences[0].startswith("Whether pre-training helps is undecided.")
    by_seeds, by_images = parts_of_eight_seeds(found, 0.25)
    needed = 400 * by_images**2 / (0.5**2 - by_seeds**2)
    said = re.search(r"at least about ([\d,]+) test images\.", found.answer.next_step)
    assert said and needed <= int(said[1].replace(",", "")) < 1.1 * needed
    assert "measured difference is only 0.5 points" in found.answer.next_step


def test_a_chosen_value_at_an_end_is_said_next_to_the_answer(tmp_path: Path) -> None:
    """It was only a column of a table far below. With two tried values there is nothing to say."""
    tune = WORTH["runs"]["final"] | {"seeds": [99], "try": {"optim.lr": [0.01, 0.03, 0.1]}}
    scratch = WORTH["axes"]["arm"]["scratch"]
    content = changed(
        WORTH,
        runs__tune=tune,
        runs__final__best="tune",
        axes__arm__scratch__tune=scratch["final"],
    )

    def measured(task: Task) -> dict[str, tuple[float, str]]:
        if task.run != "tune":
            return counted(BETTER)(task)
        best = 0.1 if task.at["arm"] == "mae" else 0.03
        return {"accuracy": (0.5 - abs(task.tried["optim.lr"] - best), "validation")}

    found = report.write(study(tmp_path / "s", content, measured))
    (said,) = [line for line in found.sentences if "optim.lr" in line]
    assert "mae (0.1)" in said and "higher value may be better" in said


@pytest.mark.parametrize(
    ("took", "tuning", "ledger", "advised"),
    [
        # Two seeds took 2 x 360 s each, half of the third seed 360 s and tuning 1,800 s, together an
        # hour. Six more seeds of 0.2 hours end after 2.2 hours. With three seeds it were 1.9 hours.
        ((360, 5), 1800, {"used": 1.0, "ended": "hours"}, "2.2"),
        # By the time of three seeds, five more end within the hours, but they had been left out. The
        # advice was to continue with hours=1, which starts nothing.
        ((180, 6), 9000, {"used": 0.4}, "1.1"),
    ],
    ids=["a seed that has finished partly counts as none", "more hours than the study had"],
)
def test_to_continue_takes_these_hours(
    took: tuple[int, int], tuning: int, ledger: dict[str, object], advised: str, tmp_path: Path
) -> None:
    folder = tmp_path / "s"
    written(folder, EQUAL)
    seconds, count = took
    finals = [f"final-{arm}-{seed}" for seed in range(3) for arm in ("mae", "scratch")]
    record = {"hours": 1.0, "decisions": [], "left_out": {}} | ledger
    record["took"] = dict.fromkeys(finals[:count], seconds) | {"tuning": tuning}
    (folder / "hours.json").write_text(json.dumps(record))
    assert f"hours={advised}" in report.write(folder).answer.next_step


def test_arms_at_the_commonest_class_have_learned_nothing(tmp_path: Path) -> None:
    """103 and 102 of 400, where 100 are of the commonest class."""
    found = written(tmp_path / "s", NOTHING)
    assert found.sentences[0].startswith(
        "Nothing was learned: neither mae nor scratch is better than always naming the commonest class (25.0%)."
    )


def test_before_the_planned_end_the_answer_is_provisional(tmp_path: Path) -> None:
    found = written(tmp_path / "s", BETTER, seeds=2)
    assert "is provisional" in found.sentences[0]
    assert "helped" not in " ".join(found.sentences)


def test_the_sentence_names_the_released_encoder(tmp_path: Path) -> None:
    """Of 400: 204 and 306, and 346, which is 40 more than the better arm, 10 points. The interval
    allows for the choice between two arms; the primary claim is as without the third arm."""
    third = {"released": (340, 352, 346)}
    found, two = (
        written(tmp_path / name, right) for name, right in (("s", BETTER | third), ("t", BETTER))
    )
    first = found.sentences[0]
    assert first.startswith(two.sentences[0])
    assert "vit_tiny at 64 px reaches 86.5%" in first
    assert "(difference from mae +10.0 points, 97.5% CI +" in first
    assert (
        found.verdict.primary == two.verdict.primary
        and found.verdict.against_fresh == two.verdict.against_fresh
    )
    assert not any("was not compared" in line for line in found.sentences)
    assert found.answer.next_step.startswith("Fine-tune the released encoder: ")
    assert "init=timm:vit_tiny_patch16_224" in found.answer.next_step


def test_a_released_encoder_that_is_not_better_changes_no_next_step(tmp_path: Path) -> None:
    found = written(tmp_path / "s", BETTER | {"released": (300, 313, 306)})
    assert found.answer.next_step.startswith("Pre-train: ")
    early = written(tmp_path / "t", BETTER | {"released": (340, 352, 346)}, seeds=2)
    assert early.answer.next_step.startswith("Wait ")
