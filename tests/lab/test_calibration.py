"""How often a report claims what is not so, and misses what is: made-up studies by the hundred."""

from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

from ssl_vit.lab import results, verdict
from ssl_vit.lab.results import Results
from ssl_vit.lab.study import read, record
from ssl_vit.lab.study import tasks as tasks_

pytestmark = pytest.mark.slow

ARMS = ("a", "b", "c")
SD = 0.01  # of a value over seeds; an effect of each seed is common to all arms
IMAGES = 500
COUNT, WITH_IMAGES, WITH_EFFECT = 400, 60, 100


class WithImages(Results):
    """With predictions in memory."""

    def correct(self, tasks):
        return {name: self.right[name] for name in tasks} if self.right else {}


def plan(seeds, tool, report):
    """study.json of three arms: trained ones, and fresh weights beside them."""
    options = {"recipe": "evaluate" if tool == "evaluate" else "finetune", "init": "trained"}
    axes = {"arm": {arm: {} for arm in ARMS}}
    runs = {"test": {"tool": tool, "over": ["arm"], "options": options}}
    runs["untrained"] = {"tool": tool, "options": {**options, "init": "scratch"}}
    content = {"title": "Made up", "seeds": [*range(seeds)], "axes": axes, "runs": runs}
    study = read.build(content | {"report": {"test": "test", **report}}, "made")
    found = record.content(study, tasks_.plan(study, {}, {}))
    return record.StudyRecord.model_validate(found)


def decide(folder, of, values, right=None):
    """The verdict of {task: its top-1}."""
    rows = [
        {"run": task.run, **task.at, "seed": task.seed, "split": "test", "metric": "top1"}
        | {"value": values[task.name], "n": IMAGES, "folder": task.name, "fingerprint": "x"}
        for task in of.tasks
    ]
    made = WithImages(folder, of, results.frame(rows, ["arm"]))
    object.__setattr__(made, "right", right)
    (folder / verdict.LOOKS).unlink(missing_ok=True)
    return verdict.decide(made)


def drawn(of, generator, gain=None):
    """{task: its value}, where nothing but seeds makes a difference; or so much more of an arm."""
    common = generator.normal(0.5, 0.03, 10)
    return {
        task.name: common[task.seed]
        + generator.normal(0, SD)
        + (gain or {}).get(task.at.get("arm"), 0)
        for task in of.tasks
    }


@pytest.mark.parametrize("seeds", [3, 4, 5])
@pytest.mark.parametrize("report", [{}, {"baseline": "a"}], ids=["all_pairs", "baseline"])
def test_without_an_effect_5_percent_claim_one(seeds, report, tmp_path: Path):
    """By the pairs and by fresh weights, each with its own 5%."""
    of, generator = plan(seeds, "evaluate", report), np.random.default_rng(seeds)
    found = [decide(tmp_path, of, drawn(of, generator)) for _ in range(COUNT)]
    pairs = sum(bool(one.found.claimed) for one in found) / COUNT
    fresh = sum(bool(one.fresh.claimed) for one in found) / COUNT
    print(f"{seeds} seeds, {report}: pairs {pairs:.1%}, fresh weights {fresh:.1%}")
    assert {one.found.family for one in found} == {2 if report else 3}
    assert 0.025 <= pairs <= 0.08 and 0.025 <= fresh <= 0.08


@pytest.mark.parametrize("seeds", [3, 4, 5])
def test_with_predictions_at_most_8_percent_do(seeds, tmp_path):
    """Images of different difficulty, the same for all networks."""
    of, generator = plan(seeds, "finetune", {}), np.random.default_rng(seeds)
    claims = np.zeros(2)
    for _ in range(WITH_IMAGES):
        hard = generator.normal(0, 1.5, IMAGES)
        right = {
            task.name: generator.random(IMAGES) < 1 / (1 + np.exp(hard - generator.normal(0, 0.1)))
            for task in of.tasks
        }
        values = {name: one.mean() for name, one in right.items()}
        found = decide(tmp_path, of, values, right)
        assert all(one.resampled for one in found.found.differences)
        claims += [bool(found.found.claimed), bool(found.fresh.claimed)]
    print(f"{seeds} seeds, with predictions: {claims / WITH_IMAGES}")
    assert (claims / WITH_IMAGES <= 0.08).all()


@pytest.mark.parametrize(("seeds", "errors"), [(3, 9.6), (4, 6.4), (5, 5.3)])
def test_an_effect_of_90_percent_power_is_claimed(seeds, errors, tmp_path):
    """Of one arm over the baseline, one of two comparisons."""
    limit = stats.t.ppf(1 - 0.025 / 2, seeds - 1)
    exact = optimize.brentq(lambda x: stats.nct.sf(limit, seeds - 1, x) - 0.9, 1, 20)
    assert round(exact, 1) == errors
    gain = {"b": exact * SD * 2**0.5 / seeds**0.5}
    of, generator = plan(seeds, "evaluate", {"baseline": "a"}), np.random.default_rng(seeds)
    claimed = 0
    for _ in range(WITH_EFFECT):
        found = decide(tmp_path, of, drawn(of, generator, gain))
        claimed += any(one.asked.a == "b" and one.mean > 0 for one in found.found.claimed)
    print(f"{seeds} seeds, {errors} standard errors: {claimed} of {WITH_EFFECT}")
    assert claimed >= 80


def test_four_looks_claim_as_often_as_their_levels_allow(tmp_path):
    """Whoever looks after 3, 4, 5 and 6 seeds, and stops at the first claim. The first look is at
    5%, the second at half of it, ...: together at most 5% (1 + 1/2 + 1/3 + 1/4)."""
    generator, claimed = np.random.default_rng(0), 0
    for _ in range(COUNT // 2):
        values = drawn(plan(6, "evaluate", {}), generator)
        for look, seeds in enumerate((3, 4, 5, 6), 1):
            of = plan(seeds, "evaluate", {})
            rows = [
                {"run": task.run, **task.at, "seed": task.seed, "split": "test", "metric": "knn"}
                | {"value": values[task.name], "folder": task.name}
                for task in of.tasks
            ]
            found = verdict.decide(Results(tmp_path, of, results.frame(rows, ["arm"])))
            assert found.looks == look
            if found.found.claimed:
                claimed += 1
                break
        (tmp_path / verdict.LOOKS).unlink()
    print(f"four looks: {claimed} of {COUNT // 2}")
    assert claimed / (COUNT // 2) <= 0.05 * (1 + 1 / 2 + 1 / 3 + 1 / 4)
