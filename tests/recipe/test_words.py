"""Options as Python gives them: the same recipe as on the command line, and errors of one line."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

import ssl_vit
from helpers.hub_runs import refused
from helpers.options import TINY
from helpers.resolving import parse_request, resolve
from ssl_vit.formatting import option_text
from ssl_vit.lab.options import PlanOptions, ReportOptions
from ssl_vit.lab.study import request
from ssl_vit.lab.study.options import StudyOptions
from ssl_vit.recipe import given
from ssl_vit.recipe.given import python_arguments
from ssl_vit.recipe.parsing import nested
from ssl_vit.recipe.tool import from_python
from ssl_vit.recipe.tools import EmbedOptions, PretrainOptions

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "data.size": st.sampled_from([32, 64]),
    "data.path": st.sampled_from([None, "some/folder", Path("a folder/x=y")]),
    "data.share": st.floats(0.01, 1),
    "optim.steps": st.integers(200, 10**6),
    "optim.lr": st.floats(1e-9, 1),
    "optim.betas": st.lists(st.floats(0, 0.99), min_size=2, max_size=2),
    "optim.clip": st.none() | st.floats(0.1, 10),
    "checkpoint.background": st.booleans(),
    "checkpoint.every": st.integers(1, 1000),
    "model.args": st.dictionaries(
        st.sampled_from(["layers", "qkv_bias", "norm_eps"]),
        st.booleans() | st.integers(0, 9) | st.floats(0, 9) | st.lists(st.integers(0, 9)),
    ),
    "name": st.sampled_from(["run", "a b", "üñ"]),
    "seed": st.integers(0, 2**31),
}


@settings(max_examples=30)
@hypothesis_given(st.fixed_dictionaries({}, optional=VALUES), st.booleans())
def test_nested_dotted_and_typed_options_are_the_same_recipe(
    options: dict[str, Any], halved: bool
) -> None:
    typed = [f"{key}={option_text(value)}" for key, value in options.items()]
    recipe = resolve(["recipe=mpp", *typed], here=False)
    keys = list(options)[: len(options) // 2 if halved else None]
    first = {key: options[key] for key in keys}
    rest = nested({key: value for key, value in options.items() if key not in keys})
    assert ssl_vit.resolve({"recipe": "mpp", **options}) == recipe
    assert ssl_vit.resolve(recipe="mpp", **nested(options)) == recipe
    assert ssl_vit.resolve(first, recipe="mpp", **rest) == recipe
    assert ssl_vit.resolve(typed, recipe="mpp") == recipe


def test_a_preset_stands_beside_the_keys_of_its_group() -> None:
    given_ = {"data": {"name": "cifar10", "size": 32}, "model": {"name": "vit_ti16"}}
    assert ssl_vit.resolve(recipe="mpp", **given_) == resolve(
        ["recipe=mpp", "data=cifar10", "data.size=32", "model=vit_ti16"], here=False
    )


def test_numbers_of_numpy_are_those_that_they_show() -> None:
    """A learning rate of float32 became 0.0010000000474974513, and another run."""
    given_ = {"lr": np.float32(1e-3), "steps": np.int64(40), "clip": np.float64(0.5)}
    found = ssl_vit.resolve(recipe="mpp", optim=given_, data={"flip": np.bool_(False)})
    assert (found.optim.lr, found.optim.steps, found.optim.clip) == (0.001, 40, 0.5)
    assert found.data.flip is False


DATA_SET = datasets.Dataset.from_dict({"image": [0]})
NOT_OPTIONS = "expected a mapping, a list of words or a text"
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    ({"optim.steps": 1}, {"optim": {"steps": 2}}, "optim.steps is given twice: 1 and 2"),
    ({"optim": {"steps": 1}, "optim.steps": 2}, {}, "optim.steps is given twice: 1 and 2"),
    ("seed=1", {"seed": 2}, "seed is given twice: 1 and 2"),
    ((), {"optim": {"stepz": 2}}, "unknown key optim.stepz; did you mean optim.steps?"),
    ((), {"optim": {"steps": "many"}}, "optim.steps=many: expected a whole number"),
    ((), {"optim": 3}, "optim is a group of keys"),
    ((), {"seed": object()}, "seed=<object object at "),
    ((), {"sweep": 3}, "sweep: this function makes a single run"),
    ((), {"optim": {"lr": {"a": 1}}}, "optim.lr={a: 1}: expected a number"),
    ((), {"optim": {"steps": np.array([5])}}, "optim.steps=array([5]): expected a text, a number"),
    ((), {"name": ["a"]}, "name=[a]: expected a folder's name"),
    # texts of a mapping stay texts
    ((), {"model": {"args": {"x": "true"}}}, 'model.args={x: "true"}: expected {name: value}'),
    # None of a key that takes no null became the text null, and a run of that name was trained; or
    # the key was left out, and 900 steps were
    ({"name": None}, {}, "name=null: expected a folder's name"),
    ({"out": None}, {}, "out=null: expected a folder"),
    ({"optim": {"steps": None}}, {}, "optim.steps=null: expected a whole number above 0"),
    ({"data": {"name": None}}, {}, "data=null: expected a name"),
    # were a TypeError, a ValueError, and what other options stood for
    (5, {}, f"5: {NOT_OPTIONS}"),
    ({"data": DATA_SET}, {}, "data=Dataset({ features: ['image'], num_rows: 1 }): expected a"),
    (None, {}, f"None: {NOT_OPTIONS}"),
    ("name='x", {}, '"name=\'x": No closing quotation'),
    (Path("place"), {}, "place: expected key=value"),
]


@pytest.mark.parametrize(("options", "keywords", "says"), WRONG)
def test_what_is_wrong_is_one_line(options: Any, keywords: dict[str, Any], says: str) -> None:
    resolve_options = partial(ssl_vit.resolve, options, recipe="mpp", **keywords)
    assert refused(resolve_options).startswith(says)


@pytest.mark.parametrize(
    "word",
    [
        *("optim.clip=#1", "optim.steps=12 # foo", "optim.steps= 12", "optim.steps=--- 12"),
        *("optim.steps=&a 12", 'optim.steps=!!int "12"', "compute.compile=!!bool yes"),
        *("optim.clip=!!null x", "optim.steps=[1] #"),
    ],
)
def test_a_word_is_a_plain_scalar(word: str) -> None:
    """Words were read as documents: `#1` was a comment, and turned clipping off."""
    assert refused(resolve, ["recipe=mpp", word]).startswith(word.partition("=")[0])
    text = resolve(["recipe=mpp", "data.validation=0.1 #x"], here=False)
    assert text.data.validation == "0.1 #x"


def test_a_recipe_is_complete_and_checked() -> None:
    """A group that was replaced by a mapping took the other keys' defaults: 300 steps became
    1,000; another objective took the defaults of its own keys."""

    for key, value, says in (
        ("optim", {"lr": 1}, "optim: "),
        ("objective", "mae", "objective=mae: the Recipe was made for another"),
    ):
        recipe = ssl_vit.resolve(TINY)
        setattr(recipe, key, value)
        assert refused(ssl_vit.pretrain, recipe).startswith(says)
    recipe = ssl_vit.resolve(TINY)
    with_keywords = partial(ssl_vit.pretrain, recipe, seed=1, name="x")
    assert refused(with_keywords).startswith("seed, name: a Recipe")
    for function in (ssl_vit.plan, ssl_vit.embed, ssl_vit.resolve):
        assert refused(function, recipe).startswith("a Recipe: ")
    recipe.optim.lr = "0.1"
    assert refused(ssl_vit.pretrain, recipe).startswith('optim.lr="0.1": expected a number')
    recipe.optim.lr, recipe.optim.warmup = 0.1, recipe.optim.steps + 1
    assert refused(ssl_vit.pretrain, recipe).startswith("optim.warmup=")


def test_a_recipe_is_pickled_with_its_groups() -> None:
    recipe = ssl_vit.resolve(TINY)
    again = pickle.loads(pickle.dumps(recipe))
    assert again == recipe and type(again) is type(recipe)


# Options of tools


def test_lists_paths_and_flags_of_tools_arrive_as_they_are(tmp_path: Path) -> None:
    images = ["cat.png", "010", "a,b", "[a]", "?a", Path("a b/dog.png")]
    found = from_python(EmbedOptions, "runs/mpp", {"query": images, "split": None})
    assert found.query == [*map(str, images)] and found.split is None
    planned = from_python(PlanOptions, {"recipe": "mpp"}, {"probe": True, "device": None})
    assert planned.model_dump(exclude_unset=True) == {"probe": True}
    assert planned.given.values == {"recipe": "mpp"}
    assert not from_python(PlanOptions, {"recipe": "mpp"}, {"probe": False}).probe
    empty = from_python(StudyOptions, {"name": None, "hours": None}, {})
    assert empty.model_dump(exclude_unset=True) == {}
    own = {"query": Path("a,b"), "patches": True}
    embedded = from_python(EmbedOptions, Path("a=b"), own)
    assert (embedded.init, embedded.query, embedded.patches) == ("a=b", ["a,b"], True)
    options = "--time=4:00:00 --exclude=n1,n2 --comment='a: b'"
    made = from_python(StudyOptions, {"recipe": "study/gap", "slurm": options}, {})
    assert made.slurm == options
    line = refused(from_python, PlanOptions, (), {"probe": 1})
    assert line.startswith("probe=1: expected True or False")


def test_a_text_alone_is_a_path_where_the_tool_takes_one(tmp_path: Path) -> None:
    """An open quote was a ValueError, and a blank made two words."""
    for name in ("my runs", "bob's runs"):
        assert refused(ssl_vit.report, name).startswith(f"{name}: no such folder")
    folder = tmp_path / "with a blank"
    folder.mkdir()
    assert from_python(ReportOptions, str(folder), {}).folder == folder
    assert from_python(ReportOptions, folder, {}).folder == folder
    seeds = [f"seeds={','.join(map(str, range(200)))}", "recipe=mpp"]  # longer than any file's name
    assert from_python(StudyOptions, " ".join(seeds), {}).recipe == "mpp"
    assert from_python(EmbedOptions, "runs/mpp patches=true", {}).patches


@pytest.mark.parametrize(
    ("kind", "key", "word"),
    [
        (PretrainOptions, "json", "--json"),
        (StudyOptions, "only", "only=1"),
        (ReportOptions, "json", "--json"),
    ],
)
def test_what_is_for_the_command_line_is_refused(kind: type, key: str, word: str) -> None:
    for options, keywords in (((), {key: True}), ([word], {})):
        line = refused(from_python, kind, options, keywords)
        assert line.startswith(f"{key}: only for the command line")


def test_a_flag_without_dashes_starts_no_study() -> None:
    """check=true was taken for an option, and the study ran."""
    line = refused(parse_request, ["recipe=mpp", "sweep", "optim.lr=1,2", "check=true"])
    assert line.startswith("unknown key check; did you mean --check?")


# Sweeps


def test_a_sweep_is_the_one_of_the_command_line(tmp_path: Path) -> None:
    swept = {"corruption": {"rate": [0.3, 0.5]}, "optim.lr": [1e-3, 0.01]}
    options = {"recipe": "mpp", "seeds": [0, 2], "out": tmp_path, "sweep": swept}
    found = request.parse_request(python_arguments({}, options))
    typed = ["recipe=mpp", "seeds=0,2", f"out={tmp_path}"]
    other = parse_request([*typed, "sweep", "corruption.rate=0.3,0.5", "optim.lr=0.001,0.01"])
    assert found.tasks == other.tasks and len(found.tasks) == 16
    one = request.parse_request(python_arguments({}, options | {"seeds": [5]}))
    assert {task.seed for task in one.tasks.values()} == {5}


@pytest.mark.parametrize(
    "options",
    [{"sweep": {"optim.lr": [1.0, 2.0]}}, "sweep optim.lr=1,2", ["sweep", "optim.lr=1,2"]],
)
def test_options_of_every_arm_may_stand_anywhere(options: Any) -> None:
    """Keywords became axes."""
    arguments = python_arguments(options, {"recipe": "mpp", "data.size": 32})
    tasks = request.parse_request(arguments).tasks.values()
    trained = [task.options for task in tasks if task.tool == "pretrain"]
    assert [(one["data.size"], one["optim.lr"]) for one in trained] == [(32, 1.0), (32, 2.0)]


def test_a_text_from_python_stays_a_text() -> None:
    """A group of images called none became no group."""
    recipe = ssl_vit.resolve(recipe="mpp", data={"path": "photos", "group": "none"})
    assert recipe.data.group == "none"
    typed = given.from_python({"recipe": "mpp", "data.path": "photos", "data.group": "none"}, {})
    assert resolve(typed.words, here=False).data.group == "none"
    assert given.from_words(['data.group=""none""']).values == {"data.group": '"none"'}
    line = refused(ssl_vit.resolve, {"recipe": "mpp", "optim": {"steps": "3"}})
    assert line.startswith('optim.steps="3": ')


TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)


@settings(max_examples=200)
@hypothesis_given(
    st.fixed_dictionaries(
        {},
        optional=VALUES
        | {
            "data.group": st.sampled_from([None, "none", "null", '"null"', "a b", "1"]) | TEXTS,
            "resume": st.booleans() | st.just("runs/a@3"),
            "data.validation": st.floats(0, 0.9) | st.sampled_from(["0.1", "true", "val"]),
            "data.classes": st.lists(TEXTS | st.sampled_from(["010", "null", "a,b"]), min_size=2),
        },
    )
)
def test_the_words_of_values_give_these_values(values: dict[str, Any]) -> None:
    found = given.from_values(values)
    assert given.from_words(found.words).values == found.values


def test_the_recipe_file_is_not_blamed_for_a_control_character_from_python():
    line = refused(ssl_vit.resolve, {"recipe": "mpp", "name": "a\nb"})
    assert line.startswith("name=a b: a line break")
