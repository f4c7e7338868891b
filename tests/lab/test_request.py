"""What a study is asked for: its measures, its tries, and options of the command line."""

from typing import Any

import pytest

from ssl_vit.errors import UserError
from ssl_vit.lab.study.request import Request, requested

PRE = {"tool": "pretrain", "options": {"recipe": "mpp", "optim.steps": 20, "optim.warmup": 2}}
PROBED = {**PRE, "options": {**PRE["options"], "probe.every": 10, "probe.measures": ["knn"]}}
FIN = {"tool": "finetune", "over": ["arm"], "options": {"recipe": "finetune", "init": "{pre}"}}
FROZEN = {"tool": "evaluate", "options": {"recipe": "evaluate", "init": "{pre}"}}
STUDY: dict[str, Any] = {
    "title": "made up",
    "axes": {"arm": {"a": {}, "b": {"fin": {"optim.clip": 2.0}}}},
    "options": {"data": "shapes"},
    "runs": {"pre": PRE, "fin": FIN},
    "report": {"test": "fin"},
}


def asked(*words: str, **changed: Any) -> Request:
    return requested(["name=made", *words], STUDY | changed)


def own(run: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A run with options over its own."""
    names = {key.replace("__", "."): value for key, value in options.items()}
    return run | {"options": run["options"] | names}


# ---- measures


EVERY = {"probe__every": 10, "probe__measures": ["knn", "few_shot"], "probe__shots": [1]}


@pytest.mark.parametrize("measure", ["probe_knn", "probe_few_shot_1", "accuracy", "top1"])
def test_a_fine_tuning_has_its_probes_under_names_of_their_own(measure: str) -> None:
    """A refusal of `probe_knn`, which result.json of a fine-tuning with probe.every has."""
    runs = {"pre": PRE, "fin": own(FIN, **EVERY)}
    assert asked(runs=runs, report={"test": "fin", "measures": [measure]}).tasks


@pytest.mark.parametrize(
    ("fin", "measure"),
    [(own(FIN, **EVERY), "knn"), (own(FIN, **EVERY), "probe_linear"), (FIN, "probe_knn")],
)
def test_a_measure_that_no_fine_tuning_will_have_is_refused(
    fin: dict[str, Any], measure: str
) -> None:
    """A report that fails after all runs have finished."""
    with pytest.raises(UserError, match=f"{measure}: it does not measure that"):
        asked(runs={"pre": PRE, "fin": fin}, report={"test": "fin", "measures": [measure]})


# ---- tries

TRY = {"optim.lr": [0.1, 0.2]}
TUNE = FIN | {"seeds": [0], "try": TRY}
TUNED = {"pre": PRE, "tune": TUNE, "fin": FIN | {"best": "tune"}}
OF_AN_ARM = {"arm": {"a": {"tune": {"optim.lr": 0.7}}, "b": {}}}


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"axes": OF_AN_ARM}, "axes.arm.a.tune"),
        ({"axes": {"arm": {"a": {"all": {"optim.lr": 0.7}}, "b": {}}}}, "axes.arm.a.all"),
        ({"runs": TUNED | {"tune": own(TUNE, optim__lr=0.7)}}, "runs.tune"),
    ],
)
def test_an_option_does_not_vanish_beside_values_that_are_tried(
    changed: dict[str, Any], place: str
) -> None:
    """Two names that run alike, and whose difference is reported, as their option was dropped."""
    with pytest.raises(UserError) as caught:
        asked(**{"runs": TUNED, **changed})
    assert str(caught.value) == f"{place}: optim.lr: run tune tries it; leave one out"


def test_values_that_are_tried_at_a_name_go_over_what_holds_for_all() -> None:
    """The order of what is said for all, and of what is said for one."""
    tries = {"arm": {"a": {"tune": {"try": TRY}}, "b": {"tune": {"try": {"optim.lr": [0.3]}}}}}
    options = STUDY["options"] | {"optim.lr": 0.7}
    tasks = asked(runs=TUNED, axes=tries, options=options).tasks.values()
    rates = {task.options["optim.lr"] for task in tasks if task.run == "tune"}
    assert rates == {"0.1", "0.2", "0.3"}
    assert {task.options.get("optim.lr") for task in tasks if task.run == "pre"} == {"0.7"}


def test_a_probe_that_chooses_is_measured() -> None:
    """Tries that all run before the run that takes the best of them fails."""
    shared = {"over": [], "try": TRY}
    tries = own(PROBED, probe__measures=["linear"]) | shared
    best = PRE | {"best": {"of": "tries", "by": "probe_knn"}}
    text = r"run pre: best\.by: probe_knn: tries does not measure that; .*probe_linear"
    with pytest.raises(UserError, match=text):
        asked(runs={"tries": tries, "pre": best, "fin": FIN})
    for tries in (PROBED, PRE):  # k-NN is measured without probe.every too
        assert asked(runs={"tries": tries | shared, "pre": best, "fin": FIN}).tasks


# ---- options of the command line


@pytest.mark.parametrize(
    ("word", "having"),
    [
        ("probe.every=5", {"pre", "fin"}),
        ("probe.measures=[knn]", {"pre", "frozen"}),
        ("probe.neighbors=5", {"pre", "frozen"}),
        ("probe.images=100", {"pre"}),
    ],
)
def test_probes_are_of_the_runs_that_make_them(word: str, having: set[str]) -> None:
    """Options that go to an evaluation which refuses them, and pass by the runs that use them."""
    key, _, text = word.partition("=")
    tasks = asked(word, runs={"pre": PROBED, "fin": FIN, "frozen": FROZEN}).tasks.values()
    assert {task.run for task in tasks if task.options.get(key) == text} == having


def test_probes_may_be_asked_for_on_the_command_line_alone() -> None:
    """Keys of probes beside the probe.every that makes them."""
    tasks = asked("probe.every=5", "probe.neighbors=5").tasks.values()
    assert all(task.options["probe.neighbors"] == "5" for task in tasks)
