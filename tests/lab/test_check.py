"""The recipes of a study's tasks: resolved and checked before any of them starts."""

from pathlib import Path
from typing import Any

import pytest

from helpers.images import put
from helpers.refusals import refusal
from ssl_vit.data import run_splits
from ssl_vit.lab.study import check
from ssl_vit.lab.study.read import build
from ssl_vit.lab.study.tasks import plan_tasks, warn_about_other_tries
from ssl_vit.recipe.given import Given

PRE = {
    "tool": "pretrain",
    "over": ["arm"],
    "options": {"recipe": "mpp", "optim.steps": 20, "optim.warmup": 2},
}
FIN = {"tool": "finetune", "over": ["arm"], "options": {"recipe": "finetune", "init": "{pre}"}}
PROBE = {"tool": "evaluate", "over": ["arm"], "options": {"recipe": "evaluate", "init": "{pre}"}}
TRY = {"optim.lr": [0.1, 0.2]}
TUNE = FIN | {"try": TRY}
ARMS = {"a": {"pre": {"optim.lr": 0.1}}, "b": {"pre": {"optim.lr": 0.2}}}
STUDY: dict[str, Any] = {
    "title": "made up",
    "axes": {"arm": ARMS},
    "runs": {"pre": PRE, "fin": FIN},
    "report": {"test": "fin", "baseline": "a"},
}


def planned(**changed: Any) -> Any:
    study = build(STUDY | changed, "x")
    return study, plan_tasks(study, {}, Given())


def checked(**changed: Any) -> dict[str, Any]:
    return check.recipes(*planned(**changed))


def own(run: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A run with options over its own."""
    names = {key.replace("__", "."): value for key, value in options.items()}
    return run | {"options": run["options"] | names}


def runs(**changed: Any) -> dict[str, Any]:
    return STUDY["runs"] | changed


def test_a_run_has_the_model_and_the_images_of_the_one_that_it_starts_from() -> None:
    """24 pixels suit patches of 8, the needed run's, and not those of 16 that the recipe itself
    would name."""
    small = own(PRE, data__size=48, model="vit_n8")
    found = checked(runs=runs(pre=small))
    assert (found["fin-a-0"].data.size, found["fin-a-0"].model.patch) == (48, 8)
    assert checked(runs=runs(pre=small, fin=own(FIN, data__size=24)))["fin-a-0"].data.size == 24
    said = refusal(checked, runs=runs(pre=small, fin=own(FIN, data__size=20)))
    assert said.startswith("run fin, arm a: data.size=20: ") and "patch=8" in said


def test_every_seed_has_its_own_options_also_from_the_run_before() -> None:
    shares = own(PRE, data__share=0.1, data__share_seed="{seed}", optim__batch="1{seed}")
    found = checked(seeds=[1, 2], runs=runs(pre=shares, probe=PROBE))
    assert [found[f"pre-a-{seed}"].optim.batch for seed in (1, 2)] == [11, 12]
    assert [found[f"probe-a-{seed}"].data.share_seed for seed in (1, 2)] == [1, 2]


def test_in_place_of_the_best_values_stand_the_first_that_are_tried() -> None:
    found = checked(runs=runs(tune=TUNE, fin=FIN | {"best": "tune"}))
    assert found["fin-a-0"].optim.lr == found["tune-a-0-lr=0.1"].optim.lr == 0.1


TRIES = PRE | {"over": [], "try": TRY}
LINEAR = own(TRIES, probe__every=10, probe__measures=["linear"])
BY_KNN = PRE | {"over": [], "best": {"of": "tries", "by": "probe_knn"}}


@pytest.mark.parametrize(
    "changed",
    [
        {"tries": own(TRIES, recipe="supervised"), "fin": FIN | {"best": "tries"}},
        {"tries": TRIES, "fin": FIN | {"best": {"of": "tries", "by": "loss"}}},
        {"tries": own(LINEAR, probe__measures=["knn"]), "best": BY_KNN},
        {"tries": TRIES, "best": BY_KNN},  # k-NN is measured without probe.every too
    ],
)
def test_tries_that_learn_labels_or_say_by_what_are_chosen_from(changed: dict[str, Any]) -> None:
    assert checked(runs=runs(**changed))


def test_values_that_are_tried_at_a_name_go_over_what_holds_for_all() -> None:
    """The order of what is said for all, and of what is said for one."""
    tries = {"arm": {"a": {"tune": {"try": TRY}}, "b": {"tune": {"try": {"optim.lr": [0.3]}}}}}
    changed = {"runs": runs(tune=TUNE), "axes": tries, "options": {"optim.lr": 0.7}}
    tasks = planned(**changed)[1].values()
    rates = {task.options["optim.lr"] for task in tasks if task.run == "tune"}
    assert rates == {0.1, 0.2, 0.3}
    assert {task.options.get("optim.lr") for task in tasks if task.run == "pre"} == {0.7}


KNN = own(PROBE, probe__measures=["knn"])
PROBED = own(FIN, probe__every=10, probe__measures=["knn", "few_shot"], probe__shots=[1])


def measuring(measure: str, fin: dict[str, Any]) -> dict[str, Any]:
    return {"runs": runs(fin=fin), "report": {"test": "fin", "measures": [measure]}}


# {the place and the key ... the metrics that the run measures: changes}
MISTAKES: dict[str, dict[str, Any]] = {
    "run pre, arm b: unknown key corruption.rat": {
        "axes": {"arm": ARMS | {"b": {"pre": {"corruption.rat": 0.5}}}}
    },
    "run tune, arm a: optim.lr=-1.0: ": {
        "runs": runs(tune=TUNE | {"try": {"optim.lr": [0.1, -1.0]}})
    },
    "run pre, arm a: optim.warmup=50: ": {"runs": runs(pre=own(PRE, optim__warmup=50))},
    "run pre, arm a: data.path=/no/such: ": {"options": {"data.path": "/no/such"}},
    "run fin, arm a: eval.test=false: ": {"runs": runs(fin=own(FIN, eval__test=False))},
    "run fin, arm a: report.measures: few_shot_5: ... choices: knn": (measuring("few_shot_5", KNN)),
    "run fin, arm a: report.measures: few_shot_5: ... did you mean few": (
        measuring("few_shot_5", own(PROBE, probe__shots=[1, 10]))
    ),
    "run fin, arm a: report.measures: top_1: ... did you mean top1?": (measuring("top_1", FIN)),
    # a fine-tuning's probes have names of their own; a report that fails after all runs have finished
    "run fin, arm a: report.measures: knn: ": measuring("knn", PROBED),
    "run fin, arm a: report.measures: probe_linear: ": (measuring("probe_linear", PROBED)),
    "run fin, arm a: report.measures: probe_knn: ": (measuring("probe_knn", FIN)),
    # as of a plugin's objective that declares no such metric, of which `linear` is another
    "run pre, arm a: report.measures: linear_spread: ": {
        "report": {"test": "pre", "measures": ["linear_spread"]}
    },
    # the rate of the lowest loss: the one that predicts best, whatever its features are
    "run fin, arm a: best: tries: ": {"runs": runs(tries=TRIES, fin=FIN | {"best": "tries"})},
    "run best: best.by: probe_knn: ... did you mean probe_linear": {
        "runs": runs(tries=LINEAR, best=BY_KNN)
    },
    # it was found after all tries had run
    "run best: best.by: knn: ... choices: probe_knn": {
        "runs": runs(tries=TRIES, best=BY_KNN | {"best": {"of": "tries", "by": "knn"}})
    },
    "run fin, arm a: best.by: knn: ... choices:": {
        "runs": runs(tune=TUNE, fin=FIN | {"best": {"of": "tune", "by": "knn"}})
    },
    # it was left out of the report without a word
    "run fin, arm a: report.measures: lineal: ... did you mean linear": {
        **measuring("knn", PROBE) | {"report": {"test": "fin", "measures": ["knn", "lineal"]}}
    },
    "run pre, arm a: report.measures: knn: ... choices: probe_knn": {
        "report": {"test": "pre", "measures": ["knn"]}
    },
    # two names that run alike, and whose difference is reported, as their option was dropped
    "axes.arm.a.tune: optim.lr: ": {
        "runs": runs(tune=TUNE),
        "axes": {"arm": ARMS | {"a": {"tune": {"optim.lr": 0.7}}}},
    },
    "axes.arm.a.all: optim.lr: ": {
        "runs": runs(tune=TUNE),
        "axes": {"arm": ARMS | {"a": {"all": {"optim.lr": 0.7}}}},
    },
    "runs.tune: optim.lr: ": {"runs": runs(tune=own(TUNE, optim__lr=0.7))},
    "run fin, arm a: best.by: accuracy: ... choices: knn": {
        "runs": runs(tries=KNN | {"try": {"data.share": [0.5, 1.0]}}, fin=FIN | {"best": "tries"})
    },
    # each was run, and counted as another
    "run pre, arm b: ... run pre, arm a": {
        "axes": {"arm": {"a": {"pre": {"optim.lr": 0.1}}, "b": {"pre": {"optim.lr": 1e-1}}}}
    },
    "run tune, arm a: data.validation=0: ": {
        "runs": runs(tune=own(TUNE, data__validation=0), fin=FIN | {"best": "tune"})
    },
}


@pytest.mark.parametrize(("says", "changed"), MISTAKES.items(), ids=MISTAKES)
def test_the_first_mistake_is_one_line_with_run_and_names(
    says: str, changed: dict[str, Any]
) -> None:
    start, _, nearest = says.partition("... ")
    said = refusal(checked, **changed)
    assert said.startswith(start) and nearest in said


@pytest.mark.parametrize(
    ("fin", "measure"),
    [
        (KNN, "knn"),
        (KNN, "mean_cosine"),
        (own(PROBE, probe__shots=[7]), "few_shot_7"),
        (own(PROBE, recipe="segment", data="shapes"), "miou"),
        (FIN, "top5"),
        (FIN, "accuracy"),
        (PROBED, "probe_knn"),
        (PROBED, "probe_few_shot_1"),
        (PRE, "loss_masked"),
    ],
)
def test_what_a_test_measures_can_decide(fin: dict[str, Any], measure: str) -> None:
    test = "pre" if fin is PRE else "fin"
    assert checked(runs=runs(**{test: fin}), report={"test": test, "measures": [measure]})


# ---- images


def images(**changed: Any) -> list[str]:
    study, tasks = planned(**changed)
    return check.images(study, tasks, check.recipes(study, tasks))


def test_a_split_that_a_run_needs_is_looked_for_before_anything_starts(tmp_path: Path) -> None:
    """It was missed after all pre-training; data.test as a share needs no split."""
    for kind in ("cat", "dog"):
        put(tmp_path / "train" / kind, 20)
    place = {"data.path": str(tmp_path)}
    said = refusal(images, options=place)
    assert said.startswith("run fin, arm a: data.test=test: ")
    assert "eval.test" not in said  # the report needs what it measures
    assert "eval.test=false" in refusal(images, options=place, report={})
    assert images(options=place | {"data.test": 0.2})


def test_few_images_are_said_once_and_each_set_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("cat", "dog"):
        put(tmp_path / kind, 60)
    place = {"data.path": str(tmp_path), "data.test": 0.1, "data.validation": 0.1}
    calls: list[str] = []
    load = run_splits.load

    def counted(*given: Any, **named: Any) -> run_splits.Splits:
        calls.append(f"{given} {named}")
        return load(*given, **named)

    monkeypatch.setattr(run_splits, "load", counted)
    chosen = "The choice of the best tried values depends on these images"
    lines = images(options=place, runs=runs(tune=TUNE, fin=FIN | {"best": "tune"}))
    assert [line.split(". An")[0] for line in lines] == [
        "run pre, arm a: held-out images: 10",
        "run tune, arm a: held-out images: 10",
        "run tune, arm a: test images: 16",
    ]
    assert chosen in lines[1] and len({*calls}) == len(calls) == 2
    assert not any(chosen in line for line in images(options=place, runs=runs(tune=TUNE)))
    linear = own(PROBE, probe__measures=["linear"])
    lines = images(options=place, runs={"pre": PRE, "knn": KNN, "linear": linear}, report={})
    assert any("run linear" in line and "the linear probe depends on" in line for line in lines)
    assert not any("run knn" in line and "held out" in line for line in lines)


# ---- encoders


def compared(**changed: Any) -> list[str]:
    study, tasks = planned(**changed)
    return [*check.architectures(study, tasks, check.recipes(study, tasks))]


@pytest.mark.parametrize(
    ("pre", "arm", "says"),
    [
        ({}, {}, "a model.width=128, b model.width=96"),  # a has the recipe's own
        ({}, {"model": "vit_p8"}, ""),
        ({}, {"model": "vit_p8", "model.depth": 2}, "a model.depth=2, b model.depth=4"),
    ],
)
def test_arms_that_end_in_other_encoders_are_named(
    pre: dict[str, Any], arm: dict[str, Any], says: str
) -> None:
    """What was reported as the gain of pre-training was one of another model."""
    arms = {"a": {"fin": {"init": "scratch"} | arm}, "b": {"pre": pre}}
    trained = own(PRE, model="vit_p8") | {"only": {"arm": ["b"]}}
    lines = compared(axes={"arm": arms}, runs={"pre": trained, "fin": FIN})
    assert [line.partition("architectures: ")[2] for line in lines] == ([says] if says else [])


@pytest.mark.parametrize("pool", [None, "avg"])
def test_encoders_that_are_read_by_other_features_are_named(pool: str | None) -> None:
    """Untrained weights by their class token, beside those whose patches are averaged."""
    arms = {"a": {"fin": {"init": "scratch", "model": "vit_n8"}}, "b": {}}
    trained = own(PRE, model="vit_n8") | {"only": {"arm": ["b"]}}
    probe = own(PROBE, probe__pool=pool)
    lines = compared(axes={"arm": arms}, runs={"pre": trained, "fin": probe})
    ends = [] if pool else ["b probe.pool=avg, a probe.pool=token"]
    assert [line.partition("pooling: ")[2] for line in lines] == ends


def test_tries_of_another_experiment_are_said() -> None:
    """A rate that is best for another corruption; not what is held out, or drawn by the seed."""
    arms = {"a": {"tries": {"corruption.rate": 0.4}}, "b": {"all": {"corruption.rate": 0.6}}}
    tries = own(TRIES, data__validation=0.2, data__share_seed="{seed}")
    best = own(BY_KNN, data__share_seed="{seed}")
    over = {"tries": tries | {"over": ["arm"], "seeds": [0]}, "best": best | {"over": ["arm"]}}
    study, tasks = planned(axes={"arm": arms}, runs=over, seeds=[1, 2], report={})
    (line,) = warn_about_other_tries(check.add_recipe_values(tasks, check.recipes(study, tasks)))
    assert line.startswith("run best, arm a: this run takes the best optim.lr from run tries, ")
    assert "corruption.rate (0.4 there, 0.5 here)" in line and not line.endswith(".")


def test_a_study_about_the_model_compares_encoders_without_a_line() -> None:
    arms = {"a": {"pre": {"model": "vit_p8"}}, "b": {"pre": {"model.depth": 2}}}
    assert compared(axes={"arm": arms}) == []
