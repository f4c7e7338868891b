"""Options as Python gives them: the same recipe as on the command line, and errors of one line."""

import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ssl_vit
from helpers.options import TINY
from ssl_vit.errors import UserError
from ssl_vit.formatting import option_text
from ssl_vit.lab.options import PlanOptions, ReportOptions
from ssl_vit.lab.study.options import StudyOptions
from ssl_vit.lab.study.request import parse_request
from ssl_vit.recipe import words as word_module
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.parsing import nested
from ssl_vit.recipe.tool import ToolOptions, from_python, parse
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


def words(options: Any, keywords: dict[str, Any], kind: type[ToolOptions] | None = None) -> list:
    if kind is None:
        return word_module.from_python(options, keywords, {})
    return from_python(kind, options, keywords)


@settings(max_examples=30)
@given(st.fixed_dictionaries({}, optional=VALUES), st.booleans())
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
    ((), {"sweep": 3}, "sweep=3: expected a mapping"),
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
    with pytest.raises(UserError) as caught:
        ssl_vit.resolve(options, recipe="mpp", **keywords)
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)


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
    with pytest.raises(UserError) as caught:
        resolve(["recipe=mpp", word])
    assert str(caught.value).startswith(word.partition("=")[0])
    text = resolve(["recipe=mpp", "data.validation=0.1 #x"], here=False)
    assert text.data.validation == "0.1 #x"


def test_a_recipe_is_complete_and_checked() -> None:
    """A group that was replaced by a mapping took the other keys' defaults: 300 steps became
    1,000; another objective took the defaults of its own keys."""

    def refused(says: str, **changes: Any) -> None:
        recipe = ssl_vit.resolve(TINY)
        for key, value in changes.items():
            setattr(recipe, key, value)
        with pytest.raises(UserError, match=rf"^{says}"):
            ssl_vit.pretrain(recipe)

    refused("optim: expected Optim", optim={"lr": 1})
    refused("objective=mae: the Recipe was made for another", objective="mae")
    recipe = ssl_vit.resolve(TINY)
    recipe.optim.lr = "0.1"
    with pytest.raises(UserError, match=r'^optim.lr="0.1": expected a number above 0'):
        ssl_vit.pretrain(recipe)
    with pytest.raises(UserError, match=r"^seed, name: a Recipe"):
        ssl_vit.pretrain(ssl_vit.resolve(TINY), seed=1, name="x")
    for function in (ssl_vit.plan, ssl_vit.embed, ssl_vit.resolve):
        with pytest.raises(UserError, match="a Recipe: expected options"):
            function(ssl_vit.resolve(TINY))


def test_a_recipe_is_pickled_with_its_groups() -> None:
    recipe = ssl_vit.resolve(TINY)
    again = pickle.loads(pickle.dumps(recipe))
    assert again == recipe and type(again) is type(recipe)


# Options of tools


def test_lists_paths_and_flags_of_tools_arrive_as_they_are(tmp_path: Path) -> None:
    images = ["cat.png", "010", "a,b", "[a]", "?a", Path("a b/dog.png")]
    found = parse(EmbedOptions, words("runs/mpp", {"query": images, "split": None}, EmbedOptions))
    assert found.query == [*map(str, images)] and found.split is None
    assert words({"recipe": "mpp"}, {"probe": True, "device": None}, PlanOptions) == [
        "recipe=mpp",
        "--probe",
    ]
    assert words({"recipe": "mpp"}, {"probe": False}, PlanOptions) == ["recipe=mpp"]
    assert words({"name": None, "hours": None}, {}, StudyOptions) == []
    own = {"query": Path("a,b"), "patches": True}
    embedded = parse(EmbedOptions, words(Path("a=b"), own, EmbedOptions))
    assert (embedded.init, embedded.query, embedded.patches) == ("a=b", ["a,b"], True)
    options = "--time=4:00:00 --exclude=n1,n2 --comment='a: b'"
    made = parse(StudyOptions, words({"recipe": "study/gap", "slurm": options}, {}, StudyOptions))
    assert made.slurm == options
    with pytest.raises(UserError, match=r"^probe=1: expected True or False"):
        words((), {"probe": 1}, PlanOptions)


def test_a_text_alone_is_a_path_where_the_tool_takes_one(tmp_path: Path) -> None:
    """An open quote was a ValueError, and a blank made two words."""
    for name in ("my runs", "bob's runs"):
        with pytest.raises(UserError, match=rf"^{name}: no such folder"):
            ssl_vit.report(name)
    folder = tmp_path / "with a blank"
    folder.mkdir()
    assert parse(ReportOptions, words(str(folder), {}, ReportOptions)).folder == folder
    assert words(tmp_path, {}, StudyOptions) == words(str(tmp_path), {}, StudyOptions)
    seeds = [f"seeds={','.join(map(str, range(200)))}", "recipe=mpp"]  # longer than any file's name
    assert words(" ".join(seeds), {}, StudyOptions) == seeds
    assert words("runs/mpp --patches", {}, EmbedOptions) == ["runs/mpp", "--patches"]


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
        with pytest.raises(UserError, match=rf"^{key}: only for the command line"):
            words(options, keywords, kind)


def test_a_flag_without_dashes_starts_no_study() -> None:
    """check=true was taken for an option, and the study ran."""
    with pytest.raises(UserError, match=r"^unknown key check; did you mean --check\?"):
        parse_request(["recipe=mpp", "sweep", "optim.lr=1,2", "check=true"])


# Sweeps


def test_a_sweep_is_the_one_of_the_command_line(tmp_path: Path) -> None:
    swept = {"corruption": {"rate": [0.3, 0.5]}, "optim.lr": [1e-3, 0.01]}
    options = {"recipe": "mpp", "seeds": [0, 2], "out": tmp_path, "sweep": swept}
    found = parse_request(words({}, options, StudyOptions))
    typed = ["recipe=mpp", "seeds=0,2", f"out={tmp_path}"]
    other = parse_request([*typed, "sweep", "corruption.rate=0.3,0.5", "optim.lr=0.001,0.01"])
    assert found.tasks == other.tasks and len(found.tasks) == 16
    one = parse_request(words({}, options | {"seeds": [5]}, StudyOptions))
    assert {task.seed for task in one.tasks.values()} == {5}


@pytest.mark.parametrize(
    "options", [{"sweep": {"optim.lr": [1, 2]}}, "sweep optim.lr=1,2", ["sweep", "optim.lr=1,2"]]
)
def test_options_of_every_arm_stand_before_the_sweep(options: Any) -> None:
    """Keywords stood behind it, and became axes."""
    found = words(options, {"recipe": "mpp", "data.size": 32}, StudyOptions)
    assert found == ["recipe=mpp", "data.size=32", "sweep", "optim.lr=1,2"]
    both = words(options, {"seed": 3, "sweep": {"name": ["a", "b"]}}, StudyOptions)
    assert both == ["seed=3", "sweep", "optim.lr=1,2", "name=a,b"]


@pytest.mark.parametrize("value", ["a,b", Path("a,b"), None])
def test_a_swept_value_that_would_be_another_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match=r"^sweep: out=.*: expected"):
        words((), {"sweep": {"out": [value, "c"]}}, StudyOptions)
    betas = {"optim.betas": [[0.9, 0.95], "[0.9,0.99]"]}
    found = words((), {"sweep": betas}, StudyOptions)
    assert found == ["sweep", "optim.betas=[0.9,0.95],[0.9,0.99]"]
