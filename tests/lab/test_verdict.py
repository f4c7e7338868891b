"""What a study's report claims, by the rule of its study.json."""

import shutil

import pytest
from scipy import stats

from helpers.made_studies import (
    ENCODER,
    FROZEN,
    IMAGES,
    RIGHT,
    TUNED,
    alter,
    changed,
    counted,
    finish,
    study,
    write,
)
from ssl_vit.errors import UserError
from ssl_vit.lab import results, verdict
from ssl_vit.lab.study import check, read, record
from ssl_vit.lab.study import tasks as tasks_
from ssl_vit.recipe.given import Given

# of 400, by seed
FRESH = {**RIGHT, "untrained": (190, 200, 190)}
MPP = {"pretrain": {"recipe": "mpp"}}
LEVEL = {"mpp": (220, 226, 226), "mae": (223, 221, 228)}
TRAINED = changed(
    TUNED,
    axes={"arm": {name: TUNED["axes"]["arm"][name] for name in LEVEL}},
    runs__pretrain__only={},
)


def decide(folder):
    return verdict.decide_claims(results.load(folder))


def frozen(folder, right=FRESH, content=FROZEN, metric="knn"):
    return decide(study(folder, content, counted(right, metric)))


def tuned(folder, right=RIGHT, content=TUNED):
    """Without predictions: intervals are over seeds."""
    study(folder, content, counted(right))
    for path in folder.glob("*/predictions.npz"):
        path.unlink()
    return decide(folder)


def without_mae(task):
    return None if task.at["arm"] == "mae" else counted()(task)


def interval(a, b, family):
    """SciPy's of two names in points."""
    apart = [100 * (x - y) / IMAGES for x, y in zip(RIGHT[a], RIGHT[b], strict=True)]
    return stats.t.interval(
        1 - 0.05 / family, len(apart) - 1, sum(apart) / len(apart), stats.sem(apart)
    )


def asked(family):
    return [str(one.comparison) for one in family.differences]


def means(family):
    return {str(one.comparison): round(one.mean, 6) for one in family.differences}


def test_every_name_is_compared_with_the_baseline(tmp_path):
    found = tuned(tmp_path / "s")
    low, high = interval("mpp", "scratch", 2)
    assert found.sentences == (
        f"By top-1 on test images, mpp is 5.00 points above scratch ({low:+.2f} to {high:+.2f}, 3 seeds);"
        " mae is 25.50 points above scratch (+23.71 to +27.29, 3 seeds). Intervals: 95%"
        " (Bonferroni over 2 comparisons).",
    )
    assert found.primary.size == 2


def test_names_that_are_measured_by_other_features_are_said(tmp_path):
    """Untrained weights by the class token, and others minus these, as if by one measure."""
    content = changed(
        FROZEN,
        axes__arm={"fresh": {"probe": {"init": "scratch", "model": "vit_p8"}}, "mpp": MPP},
        runs__pretrain__only={"arm": ["mpp"]},
        report__baseline="fresh",
    )
    right = {"fresh": RIGHT["scratch"], "mpp": RIGHT["mpp"]}
    folder = study(tmp_path / "s", content, counted(right, "knn"))
    assert not any("probe.pool" in text for text in decide(folder).sentences)
    for path in folder.glob("probe-fresh-*/result.json"):
        alter(path, pool="token")
    first, second, *_ = decide(folder).sentences
    assert "above fresh" in first
    assert "fresh with probe.pool=token" in second and "mpp with probe.pool=avg" in second


def test_pairs_go_before_the_baseline(tmp_path):
    found = tuned(tmp_path / "s", content=changed(TUNED, report__pairs=["mae:mpp"]))
    assert found.primary.differences[0].interval == pytest.approx(interval("mae", "mpp", 1))
    assert asked(found.primary) == ["mae minus mpp"]
    assert (found.primary.size, found.against_fresh.size) == (1, 2)


def test_the_best_is_claimed_above_every_other_name(tmp_path):
    """Not where it is not distinguished from one; nor of two names, nor against a baseline alone,
    where the others are not compared."""
    best, content = "mae is the best of all.", changed(TUNED, report={"test": "final"})
    found = tuned(tmp_path / "s", content=content)
    assert found.primary.size == 3 and best in found.sentences[0]
    found = tuned(tmp_path / "a", {"scratch": (100, 104, 102), **LEVEL}, content)
    assert "best" not in found.sentences[0]
    said = " mpp minus mae (mean +0.00, interval -4.81 to +4.81, 3 seeds)."
    assert found.sentences[0].endswith(said)
    assert "best" not in tuned(tmp_path / "b").sentences[0]
    assert "best" not in frozen(tmp_path / "c").sentences[0]


def test_nothing_that_is_distinguished_is_a_result(tmp_path):
    """The mean difference, how far it may reach and of how many seeds is said."""
    first, second = frozen(tmp_path / "s", {**LEVEL, "untrained": (224, 220, 226)}).sentences
    said = "mpp minus mae (mean +0.00, interval -2.71 to +2.71, 3 seeds)."
    assert first.endswith(f"distinguished from mae at 95%: {said}")
    assert "from untrained weights at 95% (Bonferroni over 2 comparisons)" in second


def test_at_every_place_of_the_other_axes(tmp_path):
    shares = {"1%": {"final": {"data.share": 0.01}}, "10%": {"final": {"data.share": 0.1}}}
    content = changed(TUNED, axes__share=shares, runs__final__over=["arm", "share"])
    content["report"] = {"test": "final", "pairs": ["mpp:scratch"]}

    def measured(task):
        if task.at.get("share") == "10%" and task.at["arm"] == "mpp":
            return {"top1": (RIGHT["scratch"][task.seed] / IMAGES, "test")}
        return counted()(task)

    folder = study(tmp_path / "s", content, measured)
    for path in folder.glob("*/predictions.npz"):
        path.unlink()
    found = decide(folder)
    assert (found.primary.num_comparisons, found.against_fresh.num_comparisons) == (2, 4)
    assert [str(one.comparison) for one in found.primary.claimed] == ["mpp minus scratch at 1%"]
    assert "Not distinguished from zero: mpp minus scratch at 10% (" in found.sentences[0]
    claimed = [one.comparison for one in found.against_fresh.claimed]
    assert [f"{one.a}{one.place}" for one in claimed] == ["mpp at 1%", "mae at 1%", "mae at 10%"]


def test_of_many_claims_the_first_are_said(tmp_path):
    """Six rates, each apart from the others: 15 comparisons."""
    rates = {f"0.{rate}": {"pretrain": {"corruption.rate": rate / 10}} for rate in range(1, 7)}
    content = changed(FROZEN, axes={"rate": rates}, report={"test": "probe"})
    content["runs"]["pretrain"]["options"]["recipe"] = "mpp"
    for run in content["runs"].values():
        run["over"] = ["rate"]

    def measured(task):
        rate = float(task.at.get("rate", 0))
        return {"knn": (rate + task.seed * (1 + rate) / 10000, "test")}

    first = decide(study(tmp_path / "s", content, measured)).sentences[0]
    assert first.count("points below") == 4 and "; 11 more in the table. " in first
    assert first.endswith("0.6 is the best of all.")


def test_a_loss_is_better_where_it_is_lower(tmp_path):
    content = changed(TUNED, report__measures=["loss"])
    loss = {"scratch": (2.0, 2.1, 2.2), "mpp": (1.9, 2.0, 2.11), "mae": (2.5, 2.61, 2.7)}

    def measured(task):
        if task.tool == "pretrain":
            return {"loss": (1.0, "validation")}
        return {"loss": (loss[task.at["arm"]][task.seed] + task.seed / 1000, "test")}

    found = decide(study(tmp_path / "s", content, measured))
    assert "mae is 0.5033 above scratch (worse)" in found.sentences[0]
    assert "mpp is 0.0967 below scratch (better)" in found.sentences[0]


def test_a_claim_needs_three_independent_seeds(tmp_path):
    """Seeds from one pre-training count once."""
    found = frozen(tmp_path / "s", content=changed(FROZEN, seeds=[0, 1]))
    for sentence, others in zip(found.sentences, ("mae", "untrained weights"), strict=True):
        assert f"no difference from {others} is claimed, because" in sentence
    found = frozen(tmp_path / "t", content=changed(FROZEN, runs__pretrain__seeds=[0]))
    assert [one.n for one in (*found.primary.differences, *found.against_fresh.differences)] == [
        1,
        1,
        1,
    ]
    assert "3 independent seeds on both sides and there are 1." in found.sentences[0]


def test_what_is_missing_counts_in_the_family(tmp_path):
    """And before all runs of the test have finished nothing is claimed."""
    found = decide(study(tmp_path / "s", TUNED, without_mae))
    assert not found.primary.claimed and "mpp minus scratch (mean +5.00" in found.sentences[0]
    assert (found.primary.size, len(found.primary.missing)) == (2, 1)
    assert "(Bonferroni over 2 comparisons, 1 without results yet)" in found.sentences[0]


def test_a_value_that_is_not_finite_makes_no_other_measure_decide(tmp_path):
    def measured(task):
        found = counted(FRESH, "knn")(task)
        if task.name == "probe-mpp-0":
            found = {"knn": (float("nan"), "test")}
        return found | ({"few_shot_5": (0.5, "test")} if task.run == "probe" else {})

    found = decide(study(tmp_path / "s", FROZEN, measured))
    assert found.measure.name == "knn" and [one.n for one in found.primary.differences] == [2]


def test_what_cannot_be_decided_is_one_line(tmp_path):
    content = changed(FROZEN, report__measures=["linear"])
    with pytest.raises(UserError, match="no finished run of probe has measured linear "):
        frozen(tmp_path / "s", content=content)
    content = {key: value for key, value in FROZEN.items() if key != "report"}
    with pytest.raises(UserError, match=r"Add report: \{test: RUN\}"):
        frozen(tmp_path / "t", content=content)


# ---- other images


def on_images_of_its_own(folder, arm):
    for path in folder.glob(f"*-{arm}-*/environment.json"):
        alter(path, data={"train": "t", "validation": "v", "test": f"of {arm}"})


@pytest.mark.parametrize("report", [{"baseline": "scratch"}, {"pairs": ["mpp:scratch"]}])
def test_names_that_are_tested_on_different_images_are_refused(tmp_path, report):
    folder = study(tmp_path / "s", changed(TUNED, report={"test": "final", **report}), counted())
    on_images_of_its_own(folder, "mpp")
    with pytest.raises(UserError, match="mpp and scratch were tested on different images"):
        decide(folder)


def test_where_all_pairs_are_meant_nothing_is_compared(tmp_path):
    """As data sets are that one encoder is fine-tuned on."""
    content = changed(FROZEN, report={"test": "probe"})
    folder = study(tmp_path / "s", content, counted(FRESH, "knn"))
    on_images_of_its_own(folder, "mpp")
    found = decide(folder)
    assert found.sentences[0] == "Nothing is compared: mpp and mae were tested on different images."
    assert found.primary.differences == ()


# ---- the planned end


def replan(folder, content):
    """Give a study again in its folder, as the tool does, with nothing run."""
    made = read.build(content, "x")
    tasks = tasks_.plan_tasks(made, {}, Given())
    tasks = check.add_recipe_values(tasks, check.recipes(made, tasks, check_images=False))
    history = record.update_history(folder, made, tasks)
    write(folder / "study.json", record.content(made, tasks, history))
    return made, tasks, history


def finish_missing(folder, tasks, right=RIGHT):
    for task in tasks.values():
        if not (folder / task.name).exists():
            finish(folder, task, tasks, counted(right)(task))


PAIR = changed(TUNED, report__pairs=["mpp:scratch"])
FIVE = {arm: (*values, *values[:2]) for arm, values in RIGHT.items()}


def test_nothing_is_claimed_before_the_planned_end(tmp_path):
    """A report may be made as often as one likes: only the planned end makes the claim."""
    folder = study(tmp_path / "s", PAIR, counted())
    held = folder / "final-mpp-2", tmp_path / "held"
    for _ in range(2):
        shutil.move(*held)
        found = decide(folder)
        assert not found.primary.claimed and not found.against_fresh.claimed
        assert "nothing is claimed before the planned end. So far: mpp minus" in found.sentences[0]
        assert found.primary.differences[0].n == 2
        shutil.move(*reversed(held))
    found = decide(folder)
    assert found.primary.claimed and found.primary.size == 1


def test_a_lengthened_study_divides_its_level_by_the_number_of_ends(tmp_path):
    """First at three seeds, then at five: 5% + 5% / 2."""
    folder = study(tmp_path / "s", PAIR, counted())
    assert decide(folder).primary.claimed
    content = changed(PAIR, seeds=[0, 1, 2, 3, 4])
    _, tasks, history = replan(folder, content)
    assert history.ends == 2 and not decide(folder).primary.claimed
    finish_missing(folder, tasks, FIVE)
    for path in folder.glob("*/predictions.npz"):
        path.unlink()
    found = decide(folder)
    apart = [100 * (x - y) / IMAGES for x, y in zip(FIVE["mpp"], FIVE["scratch"], strict=True)]
    low, high = stats.t.interval(1 - 0.05 / 2, 4, sum(apart) / 5, stats.sem(apart))
    assert found.primary.differences[0].interval == pytest.approx((low, high))
    assert found.primary.claimed and found.primary.size == 2
    assert any("at most 7.5%" in text for text in found.sentences)
    assert replan(folder, content)[2].ends == 2, "the same command again changes nothing"


def test_another_baseline_or_measure_after_results_is_another_end(tmp_path):
    folder = study(tmp_path / "s", TUNED, counted())
    assert replan(folder, changed(TUNED, report__baseline="mpp"))[2].ends == 2
    assert replan(folder, changed(TUNED, report__measures=["top1"]))[2].ends == 3
    assert decide(folder).primary.size == 2 * 3


def test_a_study_that_was_shortened_claims_nothing(tmp_path):
    """Else one could stop as soon as the seeds that have finished agree."""
    five = changed(PAIR, seeds=[0, 1, 2, 3, 4])
    folder = study(tmp_path / "s", five, lambda task: counted()(task) if task.seed < 3 else None)
    replan(folder, PAIR)
    found = decide(folder)
    assert not results.load(folder).missing and not found.primary.claimed
    assert found.primary.differences[0].interval and "exploratory" in found.sentences[-1]
    _, tasks, _ = replan(folder, five)
    finish_missing(folder, tasks, FIVE)
    assert decide(folder).primary.claimed, "all that was planned has finished after all"


def test_more_hours_after_results_are_another_end(tmp_path):
    folder = study(tmp_path / "s", PAIR, counted())
    ledger = {"hours": 1.0, "used": 0.9, "took": {}, "decisions": [], "left_out": {}}
    write(folder / "hours.json", ledger | {"ended": "planned", "lengthened": 0})
    assert decide(folder).primary.size == 1
    write(folder / "hours.json", ledger | {"ended": "planned", "lengthened": 2})
    assert decide(folder).primary.size == 3


# ---- untrained weights


def test_those_that_each_evaluation_has_measured(tmp_path):
    """Worse than they is said too."""
    found = frozen(tmp_path / "s")
    assert asked(found.against_fresh) == [
        "mpp minus untrained weights",
        "mae minus untrained weights",
    ]
    assert found.against_fresh.differences[0].mean == pytest.approx(
        100 * (30 + 26 + 36) / 3 / IMAGES
    )
    assert "mpp is 7.67 points above untrained weights" in found.sentences[1]
    assert found.sentences[1].endswith(". Intervals: 95% (Bonferroni over 2 comparisons).")
    found = frozen(tmp_path / "t", {**FRESH, "mpp": (100, 110, 101)})
    assert "mpp is 22.42 points below untrained weights" in found.sentences[1]


def test_each_name_is_paired_with_its_own_at_its_place(tmp_path):
    """As of names that are pooled otherwise, and of two sets of images; seed by seed."""
    content = changed(
        FROZEN,
        axes__set={name: {"probe": {"data.path": f"/{name}/train"}} for name in "ab"},
        options={"data.size": 32},
        runs__probe__over=["arm", "set"],
    )
    low = {"mpp": 0.1, "mae": 0.2}

    def measured(task):
        if task.tool == "pretrain":
            return {"loss": (2.0, "validation")}
        own = {"a": 0.3, "b": 0.6}[task.at["set"]] + task.seed / 100
        return {"knn": (own, "test"), "fresh_knn": (own - low[task.at["arm"]], "test")}

    found = decide(study(tmp_path / "s", content, measured)).against_fresh
    wanted = [(f"{arm} minus untrained weights at {name}", arm) for name in "ab" for arm in low]
    assert means(found) == {text: 100 * low[arm] for text, arm in wanted}
    assert all(one.n == 3 and one.sd < 1e-9 for one in found.differences)


def test_fresh_weights_of_another_run_are_not_the_tests(tmp_path):
    """Of the same names, metric and split."""
    beside = changed(FROZEN["runs"]["probe"], options__data__share=0.1)
    content = changed(FROZEN, runs__few=beside, report__beside=["few"])

    def measured(task):
        found = counted(FRESH, "knn")(task)
        return dict.fromkeys(found, (0.01, "test")) if task.run == "few" else found

    found = decide(study(tmp_path / "s", content, measured))
    assert found.sentences == frozen(tmp_path / "t").sentences


@pytest.mark.parametrize("before", ["loss", "accuracy_masked"])
def test_what_is_measured_beside_decides_nothing(tmp_path, before):
    """Of a test of pre-training that has measured k-NN too, after its own metrics."""
    found = {before: 2.0, "probe_knn": 0.5, "fresh_probe_knn": 0.3, "pixels_probe_knn": 0.4}
    found |= {"start_probe_knn": 0.2, "commonest_probe_knn": 0.1}

    def measured(task):
        values = found if task.tool == "pretrain" else {"pixels_knn": 0.4, "knn": 0.5}
        split = "validation" if task.tool == "pretrain" else "test"
        return {name: (value + task.seed / 100, split) for name, value in values.items()}

    of_training = decide(
        study(tmp_path / "s", changed(FROZEN, report={"test": "pretrain"}), measured)
    )
    assert (of_training.measure.name, of_training.measure.split) == (before, "validation")
    assert len(of_training.sentences) == 1 and of_training.against_fresh.num_comparisons == 0
    assert decide(study(tmp_path / "t", FROZEN, measured)).measure.name == "knn"


def test_a_name_without_pre_training_is_compared_and_does_not_take_their_place(tmp_path):
    """It may be pooled, or measured, otherwise; what a trained task has measured beside its own is
    of its own network."""
    axes = {
        "mpp": {"pretrain": {"recipe": "mpp"}},
        "random": {"probe": {"init": "scratch", "model": "vit_p8", "probe.pool": "token"}},
    }
    content = changed(FROZEN, axes={"arm": axes}, runs__pretrain__only={"arm": ["mpp"]})
    right = {"mpp": (220, 226, 226), "random": (150, 151, 150), "untrained": (190, 200, 190)}
    found = frozen(tmp_path / "s", right, content)
    assert asked(found.primary) == ["mpp minus random"]
    assert asked(found.against_fresh) == ["mpp minus untrained weights"]


def test_a_test_of_pre_training_has_fresh_weights_beside_it(tmp_path):
    """By the probe that its runs have measured while they trained."""

    def measured(task):
        of = {"probe_knn": 0.5, "fresh_probe_knn": 0.3} if task.tool == "pretrain" else {"knn": 0.5}
        return {name: (value + task.seed / 100, "validation") for name, value in of.items()}

    content = changed(FROZEN, report={"test": "pretrain", "measures": ["probe_knn"]})
    found = decide(study(tmp_path / "s", content, measured))
    assert means(found.against_fresh) == {
        f"{arm} minus untrained weights": 20 for arm in ("mpp", "mae")
    }
    assert found.sentences[0].startswith("By k-NN on held-out images, no arm can be distinguished")


def test_without_any_it_was_not_measured(tmp_path):
    said = "The study measured nothing with untrained weights for comparison."
    assert frozen(tmp_path / "s", RIGHT).sentences[1] == said
    content = changed(TRAINED, report={"test": "final"})
    assert tuned(tmp_path / "t", content=content).sentences[1] == said
    # a frozen evaluation is another measure than fine-tuning
    options = {"recipe": "evaluate", "init": "scratch", "model": "vit_p8"}
    probe = {"tool": "evaluate", "options": options}
    beside = changed(content, runs__random=probe, report__beside=["random"])
    found = tuned(tmp_path / "u", {**RIGHT, "random": (200, 200, 200)}, beside)
    assert found.sentences[1] == said


def test_fine_tuning_from_scratch_beside_the_test(tmp_path):
    options = {**TUNED["runs"]["final"]["options"], "init": "scratch", "model": "vit_p8"}
    content = changed(
        TRAINED,
        runs__direct={"tool": "finetune", "options": options},
        report={"test": "final", "beside": ["direct"]},
    )
    found = tuned(tmp_path / "s", {**RIGHT, "direct": (200, 208, 204)}, content)
    assert asked(found.against_fresh) == ["mpp minus direct", "mae minus direct"]


def test_a_run_beside_the_test_is_compared_at_its_own_name(tmp_path):
    """As of two image sizes, of which one alone is 40 points above the other."""
    final = TUNED["runs"]["final"]["options"]
    own = {"tool": "finetune", "over": ["arm"]}
    content = changed(
        TUNED,
        axes={"arm": {size: {"all": {"data.size": int(size)}} for size in ("32", "64")}},
        options={"data": "shapes"},
        runs={
            "pretrain": own | {"tool": "pretrain", "options": {"recipe": "mae", **ENCODER}},
            "final": own | {"options": final},
            "direct": own | {"options": {**final, "init": "scratch", "model": "vit_p8"}},
        },
        report={"test": "final", "beside": ["direct"]},
    )

    def measured(task):
        low = {"32": 0.1, "64": 0.5}[task.at["arm"]]
        return {"top1": (low + 0.2 * (task.run == "final") + task.seed / 400, "test")}

    found = decide(study(tmp_path / "s", content, measured)).against_fresh
    assert means(found) == {"32 minus direct": 20, "64 minus direct": 20}


def test_names_that_are_not_trained_say_nothing_of_it(tmp_path):
    fresh = {
        arm: {"probe": {"init": "scratch", "model": model}}
        for arm, model in (("small", "vit_p8"), ("other", "vit_n8"))
    }
    content = changed(FROZEN, axes={"arm": fresh})
    content["runs"].pop("pretrain")
    content["runs"]["probe"]["options"].pop("init")
    found = frozen(tmp_path / "s", {"small": (200, 208, 204), "other": (220, 228, 225)}, content)
    assert len(found.sentences) == 1


def test_a_study_without_axes_is_compared_with_fresh_weights(tmp_path):
    content = changed(FROZEN, axes={}, runs__pretrain__options__recipe="mpp")
    for run in content["runs"].values():
        run.pop("over")
    right = {"probe": (220, 226, 226), "untrained": (190, 200, 190)}
    first, second = frozen(tmp_path / "s", right, content).sentences
    assert first == "Nothing is compared."
    named = "By k-NN on test images, probe is 7.67 points above untrained weights (+4.54"
    assert second.startswith(named)  # the first sentence names no measure


def test_what_the_rule_compares_with_fresh_weights_is_said_once(tmp_path):
    """Each trained name with scratch, by which it is compared anyway; with a pair left out, the
    second family has both."""
    assert len(tuned(tmp_path / "a").sentences) == 1
    found = tuned(tmp_path / "b", content=changed(TUNED, report__pairs=["mpp:scratch"]))
    assert asked(found.against_fresh) == ["mpp minus scratch", "mae minus scratch"]
    assert found.sentences[1].startswith(
        "Compared with untrained weights, mpp is 5.00 points above scratch"
    )


@pytest.mark.parametrize(
    ("ways", "second"),
    [
        (["{pretrain}", "{other}"], "measured nothing with untrained weights"),
        (["scratch", "{other}"], None),  # the better of two ways, one of them without training
    ],
)
def test_a_name_that_chose_its_start_is_fresh_where_scratch_was_a_choice(tmp_path, ways, second):
    axes = {"arm": {"chosen": {"tune": {"try": {"init": ways}}, "final": {}}}}
    axes["arm"]["mae"] = {run: {"init": "{other}"} for run in ("tune", "final")}
    axes["arm"]["mae"]["tune"]["try"] = {"optim.lr": [0.01, 0.03]}
    runs = {
        name: {"tool": "pretrain", "options": {**ENCODER, "recipe": recipe}}
        for name, recipe in (("pretrain", "mpp"), ("other", "mae"))
    }
    tune = {"tool": "finetune", "over": ["arm"], "options": {**ENCODER, "recipe": "finetune"}}
    runs |= {"tune": tune | {"seeds": [0]}, "final": tune | {"best": "tune"}}
    content = changed(TUNED, axes=axes, runs=runs, report={"test": "final"})

    def measured(task):
        if task.run == "tune":
            return {"accuracy": (0.5, "validation")}
        return counted({"chosen": (200, 208, 204), "mae": (300, 312, 306)})(task)

    found = decide(study(tmp_path / "s", content, measured))
    assert "chosen is 25.50 points below mae" in found.sentences[0]
    assert found.sentences[1:] == () if second is None else second in found.sentences[1]


def test_a_measure_whose_better_side_is_not_known_decides_nothing(tmp_path):
    """Of a plugin that declares no row of it the higher value was the better one."""
    with pytest.raises(UserError, match="lower values of agreement are better"):
        frozen(tmp_path / "made", metric="agreement")


def test_what_was_changed_of_a_study_with_results_is_told(tmp_path):
    """Another baseline, once it was seen which one gives a claim."""
    folder = study(tmp_path / "made", TUNED, counted(RIGHT))
    tasks = results.load(folder).plan.by_name

    def told(content):
        return record.update_history(folder, read.build(content, "x"), tasks)

    other = changed(TUNED, report__baseline="mpp")
    assert told(TUNED) == record.History()
    assert (
        told(changed(TUNED, runs__final__seeds=[0, 1])).changes[0].endswith(": runs.final.seeds.")
    )
    history = told(other)
    (line,) = history.changes
    assert "15 of 15 runs" in line and line.endswith(": report.baseline.")
    record.write(folder, record.content(read.build(other, "x"), tasks, history))
    assert line in decide(folder).sentences
    assert told(other) == history
    for path in folder.glob("*/result.json"):
        path.unlink()
    assert told(TUNED) == history, "nothing was seen yet"
