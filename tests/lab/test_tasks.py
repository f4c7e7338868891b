"""A study's tasks: names, seeds, what each needs, places that are not given, equal compute."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.launchers import GAP, SMALL
from helpers.resolving import resolve
from ssl_vit.costs import exaflop
from ssl_vit.errors import UserError
from ssl_vit.lab.study.read import build
from ssl_vit.lab.study.tasks import Tasks, plan_tasks, without_missing
from ssl_vit.recipe.given import Given, from_words
from ssl_vit.recipe.words import write_all


def with_run(name: str, **new: Any) -> dict[str, Any]:
    return GAP | {"runs": GAP["runs"] | {name: GAP["runs"][name] | new}}


def planned(raw: dict[str, Any], places: dict[str, str] | None = None, **options: str) -> Tasks:
    words = [f"{key.replace('__', '.')}={text}" for key, text in options.items()]
    return plan_tasks(build(raw, "x"), places or {}, from_words(words))


def test_the_tasks_of_a_gap() -> None:
    found = planned(GAP)
    assert len(found) == 4 + 6 + 4 + 4
    shared = {"optim.steps": 20, "optim.warmup": 2}
    assert found["pretrain-mpp-1"].options == shared | {"recipe": "mpp"}
    sweep = found["sweep-mpp-0-lr=0.1"]
    assert (sweep.tried, sweep.needs) == ({"optim.lr": 0.1}, ("pretrain-mpp-0",))
    assert sweep.options["optim.lr"] == 0.1
    final = found["final-mpp-1"]
    assert final.options["init"] == "{pretrain-mpp-1}" and "optim.lr" not in final.options
    among = tuple(f"sweep-mpp-0-lr={rate}" for rate in (0.01, 0.03, 0.1))
    assert final.best == (among, "accuracy") and {*final.needs} == {"pretrain-mpp-1", *among}
    assert (final.at, final.seed, final.run) == ({"arm": "mpp"}, 1, "final")


@given(st.data())
def test_every_task_stands_after_its_needs(data: st.DataObject) -> None:
    """Runs in any order in the file, each needing any of those before it in another order."""
    names = data.draw(st.permutations("abcde"))
    needs = {
        name: data.draw(st.lists(st.sampled_from(names[:i]), unique=True)) if i else []
        for i, name in enumerate(names)
    }
    runs = {
        name: {
            "tool": "evaluate",
            "over": ["arm"],
            "options": {"recipe": "evaluate"}
            | {f"x{n}": f"{{{need}}}" for n, need in enumerate(needs[name])},
        }
        for name in sorted(names)
    }
    raw = {"title": "t", "seeds": [0, 1], "axes": {"arm": {"p": {}, "q": {}}}, "runs": runs}
    found = planned(raw)
    order = list(found)
    assert len(order) == 5 * 2 * 2
    for name, task in found.items():
        at = f"{task.at['arm']}-{task.seed}"
        assert {*task.needs} == {f"{need}-{at}" for need in needs[task.run]}
        assert all(order.index(need) < order.index(name) for need in task.needs)


def test_a_run_has_its_seeds_and_those_of_the_runs_that_need_it() -> None:
    """Unless it says its own; then a seed that it lacks gets its first."""
    found = planned(with_run("sweep", seeds=[7]))
    assert {task.seed for task in found.values() if task.run == "pretrain"} == {0, 1, 7}
    assert found["sweep-mpp-7-lr=0.1"].needs == ("pretrain-mpp-7",)
    found = planned(with_run("pretrain", seeds=[4, 1]))
    assert found["probe-mpp-0"].needs == ("pretrain-mpp-1",)  # the first
    assert found["probe-mpp-1"].needs == ("pretrain-mpp-1",)


def test_only_leaves_out_names_and_what_needs_them_is_one_line() -> None:
    raw = with_run("pretrain", only={"arm": ["mpp"]})
    with pytest.raises(UserError, match=r"^run sweep, arm scratch: .* run pretrain"):
        planned(raw)
    runs = raw["runs"] | {"probe": raw["runs"]["probe"] | {"only": {"arm": ["mpp"]}}}
    del runs["sweep"], runs["final"]
    assert [*planned(raw | {"runs": runs, "seeds": [0]})] == ["pretrain-mpp-0", "probe-mpp-0"]


def test_options_of_the_command_line_go_to_those_that_use_them() -> None:
    found = planned(GAP, optim__batch="8", optim__steps="5", probe__shots="[1]")
    for task in found.values():
        of_training = {"optim.batch", *SMALL}
        trained = {key: text for key, text in task.options.items() if key in of_training}
        is_probe = task.tool == "evaluate"
        assert ("probe.shots" in task.options) == is_probe
        assert not trained if is_probe else trained.items() >= {"optim.batch": 8}.items()
        assert is_probe or task.options["optim.steps"] == 5
    with pytest.raises(UserError, match=r"^mae\.rate=1: "):
        planned(GAP, corruption__rate="0.5", mae__rate="1")


@pytest.mark.parametrize(
    ("key", "text", "having"),
    [
        ("probe__every", "5", {"pretrain", "final", "sweep"}),
        ("probe__measures", "[knn]", {"pretrain", "probe"}),
        ("probe__neighbors", "5", {"pretrain", "probe"}),
        ("probe__images", "100", {"pretrain"}),
    ],
)
def test_probes_are_of_the_runs_that_make_them(key: str, text: str, having: set[str]) -> None:
    """Options that go to an evaluation which refuses them, and pass by the runs that use them."""
    probed = with_run("pretrain", options=SMALL | {"probe.every": 10})
    for task in planned(probed, **{key: text}).values():
        value = from_words([f"{key.replace('__', '.')}={text}"]).values[key.replace("__", ".")]
        assert (task.options.get(key.replace("__", ".")) == value) == (task.run in having)
    # keys of probes beside the probe.every that makes them
    found = planned(GAP, **{key: text, "probe__every": "5"}).values()
    assert all(key.replace("__", ".") in task.options for task in found if task.run == "final")


def test_what_gives_no_folder_of_its_own_is_refused() -> None:
    """Two values of one name were one run, and one value was lost."""
    raw = with_run("sweep", **{"try": {"data.path": ["q/x", "q_x"]}})
    with pytest.raises(UserError, match=r"q/x.*q_x"):
        planned(raw)
    raw = GAP | {"axes": {"arm": {"a": {}}}, "runs": {"p" * 260: GAP["runs"]["pretrain"]}}
    with pytest.raises(UserError, match="name=ppp"):
        planned(raw)


SETS: dict[str, Any] = {
    "title": "t",
    "places": ["init", "a", "b"],
    "axes": {"set": {"a": {"all": {"data.path": "{a}"}}, "b": {"all": {"data.path": "{b}/x"}}}},
    "options": {"init": "{init}"},
    "runs": {"final": {"tool": "finetune", "over": ["set"], "options": {"recipe": "finetune"}}},
    "report": {"test": "final", "baseline": "a", "pairs": ["a:b"]},
}


def test_names_whose_place_is_not_given_are_left_out_and_named(tmp_path: Path) -> None:
    """And what the report compares with them."""
    study = build(SETS, "x")
    places = {"init": "/e", "a": "/a"}
    found, lines = without_missing(study, places)
    assert lines == ["set b is left out: b= is missing"]
    assert [*plan_tasks(found, places, Given())] == ["final-a-0"]
    assert found.report.pairs == () and found.report.baseline == "a"
    places |= {"b": str(tmp_path)}
    assert without_missing(study, places)[1] == [f"set b is left out: {tmp_path}/x does not exist"]
    (tmp_path / "x").mkdir()
    assert without_missing(study, places) == (study, [])


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ({"init": "/e"}, ": a= is missing, b= is missing"),
        ({"a": "/a", "b": "/"}, "init= is missing"),
    ],
)
def test_a_place_that_all_need_is_asked_for(places: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        without_missing(build(SETS, "x"), places)


@pytest.mark.parametrize("given_options", [{}, {"optim__steps": "70", "optim__warmup": "7"}])
def test_names_at_equal_compute_cost_what_the_run_costs_without_the_axis(
    given_options: dict[str, str],
) -> None:
    """In whole steps; the warm-up keeps its share of them."""
    own = {"recipe": "mpp", "optim.steps": 200, "optim.warmup": 20}
    models = {"deep": {"pretrain": {"model.depth": 8}}, "fine": {"pretrain": {"model.patch": 4}}}
    models["large"] = {"pretrain": {"optim.batch": 256}}
    models["sparse"] = {"pretrain": {"recipe": "mae"}}
    raw = {
        "title": "t",
        "match": {"exaflop": "model"},
        "axes": {"model": models},
        "runs": {"pretrain": {"tool": "pretrain", "over": ["model"], "options": own}},
    }
    steps = int(given_options.get("optim__steps", 200))
    base = resolve(["recipe=mpp", f"optim.steps={steps}", f"optim.warmup={steps // 10}"])
    whole = exaflop(base, base.optim.steps * base.optim.batch)
    for task in planned(raw, **given_options).values():
        recipe = resolve(write_all(task.options))
        step = exaflop(recipe, recipe.optim.batch)
        assert abs(recipe.optim.steps * step - whole) <= step / 2 * (1 + 1e-9)
        assert abs(recipe.optim.warmup - recipe.optim.steps / 10) <= 0.5
    models["odd"] = {"pretrain": {"optim.steps": 100}}
    with pytest.raises(UserError, match=r"match: run pretrain, model odd: optim\.steps=100: "):
        planned(raw)
