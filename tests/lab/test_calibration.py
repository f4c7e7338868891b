"""How often a report claims what is not so, and misses what is: made-up studies by the hundred, in
memory, through the function that the report of a folder asks."""

import functools
import json

import numpy as np
import pytest

from helpers.made_studies import FROZEN, IMAGES, changed, counted, study
from ssl_vit import stats
from ssl_vit.lab import report, results, verdict
from ssl_vit.lab.compare import PredictionOutcomes
from ssl_vit.lab.results import FRESH_FOLDER, Results
from ssl_vit.lab.study import read, record
from ssl_vit.lab.study import tasks as tasks_
from ssl_vit.measurements import UNTRAINED
from ssl_vit.recipe.given import Given

pytestmark = pytest.mark.slow

ARMS = ("a", "b", "c")
SD = 0.01  # of a value over seeds; an effect of each seed is common to all arms
COUNT, WITH_IMAGES, WITH_EFFECT = 400, 100, 100
RESAMPLES = 1000  # a tenth of a report's, for the time that it takes


class InMemory(Results):
    """A study whose predictions are in no file."""

    def load_outcomes(self, tasks):
        images = np.arange(IMAGES)
        return {name: PredictionOutcomes(RIGHT[name], images) for name in tasks if name in RIGHT}


RIGHT: dict[str, np.ndarray] = {}


@functools.cache
def planned(seeds, baseline=None):
    """study.json of three trained arms, and a table of its tasks with untrained weights beside each."""
    options = {"recipe": "evaluate", "init": "trained"}
    content = {
        "title": "Made up",
        "seeds": [*range(seeds)],
        "axes": {"arm": {arm: {} for arm in ARMS}},
    }
    content["runs"] = {"test": {"tool": "evaluate", "over": ["arm"], "options": options}}
    content["report"] = {"test": "test", **({"baseline": baseline} if baseline else {})}
    made = read.build(content, "made")
    tasks = tasks_.plan_tasks(made, {}, Given())
    plan = record.StudyRecord.model_validate_json(json.dumps(record.content(made, tasks)))
    rows = [
        {"run": task.run, **task.at, "seed": task.seed, "split": "test", "metric": "top1"}
        | {"value": 0, "n": IMAGES, "folder": task.name, "fingerprint": "x"}
        for task in plan.tasks
    ]
    rows += [row | {"run": UNTRAINED, "folder": FRESH_FOLDER.format(row["folder"])} for row in rows]
    return plan, results.frame(rows, ["arm"])


def claims(folder, seeds, values, baseline=None, ends=1):
    """The verdict of {task, or what stands for its untrained weights: the top-1}."""
    plan, table = planned(seeds, baseline)
    plan = plan.model_copy(update={"ends": ends})
    table = table.assign(value=[values[name] for name in table["folder"]])
    return verdict.decide_claims(InMemory(folder, plan, table))


def drawn(seeds, generator, gain=0.0):
    """The values of `claims`, where nothing but seeds makes a difference; or so much more of b.
    Untrained weights are the same beside all arms."""
    common, tasks = generator.normal(0.5, 0.03, seeds), planned(seeds)[0].tasks
    found = {
        task.name: common[task.seed] + generator.normal(0, SD) + gain * (task.at["arm"] == "b")
        for task in tasks
    }
    fresh = common + generator.normal(0, SD, seeds)
    return found | {FRESH_FOLDER.format(task.name): fresh[task.seed] for task in tasks}


@pytest.mark.parametrize("seeds", [3, 4, 5])
def test_without_an_effect_5_percent_claim_one(seeds, tmp_path):
    """By the pairs and by untrained weights, each with its own 5%."""
    generator = np.random.default_rng(seeds)
    found = [claims(tmp_path, seeds, drawn(seeds, generator)) for _ in range(COUNT)]
    pairs = sum(bool(one.primary.claimed) for one in found) / COUNT
    fresh = sum(bool(one.against_fresh.claimed) for one in found) / COUNT
    print(f"{seeds} seeds: pairs {pairs:.1%}, untrained weights {fresh:.1%} of {COUNT}")
    assert {(one.primary.size, one.against_fresh.size) for one in found} == {(3, 3)}
    assert 0.025 <= pairs <= 0.08 and 0.025 <= fresh <= 0.08


@pytest.mark.parametrize("seeds", [3, 4, 5])
def test_with_predictions_at_most_8_percent_do(seeds, tmp_path, monkeypatch):
    """Images of different difficulty, the same for all networks."""
    few = functools.partial(stats.resampled_interval, resamples=RESAMPLES)
    monkeypatch.setattr(stats, "resampled_interval", few)
    generator, claimed = np.random.default_rng(seeds), np.zeros(2)
    for _ in range(WITH_IMAGES):
        hard_M, tasks = generator.normal(0, 1.5, IMAGES), planned(seeds)[0].tasks

        def right_M(hard_M=hard_M):
            latent_M = hard_M + generator.normal(0, 0.1) + generator.logistic(size=IMAGES)
            return latent_M > 0

        for task in tasks:
            monkeypatch.setitem(RIGHT, task.name, right_M())
        fresh = [right_M() for _ in range(seeds)]
        for task in tasks:
            monkeypatch.setitem(RIGHT, FRESH_FOLDER.format(task.name), fresh[task.seed])
        values = {name: right_M.mean() for name, right_M in RIGHT.items()}
        found = claims(tmp_path, seeds, values)
        assert all(
            one.over_images
            for one in (*found.primary.differences, *found.against_fresh.differences)
        )
        claimed += [bool(found.primary.claimed), bool(found.against_fresh.claimed)]
        RIGHT.clear()
    print(f"{seeds} seeds, with predictions: {claimed} of {WITH_IMAGES}")
    assert (claimed / WITH_IMAGES <= 0.08).all()


@pytest.mark.parametrize(("seeds", "errors"), [(3, 9.6), (4, 6.4), (5, 5.3)])
def test_an_effect_of_90_percent_power_is_claimed(seeds, errors, tmp_path):
    """Of one arm over the baseline, one of two comparisons, of so many standard errors (test_compare
    has its power)."""
    generator, claimed, sd = np.random.default_rng(seeds), 0, SD * 2**0.5
    for _ in range(WITH_EFFECT):
        values = drawn(seeds, generator, errors * sd / seeds**0.5)
        found = claims(tmp_path, seeds, values, baseline="a")
        claimed += any(one.comparison.a == "b" and one.mean > 0 for one in found.primary.claimed)
    print(f"{seeds} seeds, {errors} standard errors: {claimed} of {WITH_EFFECT}")
    assert claimed >= 80


def test_a_study_lengthened_three_times_claims_as_often_as_its_levels_allow(tmp_path):
    """Somebody lengthens the study from 3 to 4, 5 and 6 seeds, until it claims something. The first
    end is at 5%, the second at half of it, ...: together at most 5% (1 + 1/2 + 1/3 + 1/4)."""
    generator, claimed, count = np.random.default_rng(0), 0, COUNT // 2
    for _ in range(count):
        values = drawn(6, generator)
        for end, seeds in enumerate((3, 4, 5, 6), 1):
            found = claims(tmp_path, seeds, values, ends=end)
            assert found.primary.size == 3 * end
            if found.primary.claimed:
                claimed += 1
                break
    print(f"four ends: {claimed} of {count}")
    assert claimed / count <= 0.05 * (1 + 1 / 2 + 1 / 3 + 1 / 4)


def test_a_report_of_a_folder_claims_what_its_results_in_memory_do(tmp_path):
    """Through files, from study.json to the sentences on the page."""
    right = {"mpp": (220, 226, 226), "mae": (223, 221, 228), "untrained": (190, 200, 190)}
    content = changed(FROZEN, report__measures=["knn"])
    folder = study(tmp_path / "s", content, counted(right, "knn"))
    written = report.write(folder).verdict
    loaded = results.load(folder)
    for task in loaded.finished:
        path = folder / task / "predictions.npz"
        if path.exists():
            RIGHT[task] = results.read_predictions(path)[2].correct_M
    kept = InMemory(tmp_path / "no such", loaded.plan, loaded.table)
    assert verdict.decide_claims(kept).sentences == written.sentences
    RIGHT.clear()
    text = (folder / "report.md").read_text().splitlines()
    assert [text[2], text[4]] == [*written.sentences]
