"""How words become a recipe: which value wins, what is refused and how that is said, what names a
run."""

import itertools
import re
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import ssl_vit
from helpers.hub_runs import refused
from helpers.options import FREE, ROOT
from helpers.resolving import resolve, resolved
from ssl_vit.errors import UserError
from ssl_vit.formatting import option_text
from ssl_vit.recipe.notices import warmup_notice
from ssl_vit.recipe.operation import Checkpoint
from ssl_vit.recipe.schema import Data, Model, Optim, all_keys, computed_values, dump
from ssl_vit.runs.identity import recipe_hash

MODELS, DATASETS, MPP = (
    yaml.safe_load((ROOT / "recipes" / f"{name}.yaml").read_text())
    for name in ("tables/models", "tables/datasets", "mpp")
)
STEPS, WARMUP = MPP["optim"]["steps"], MPP["optim"]["warmup"]


def mpp(*words):
    return resolve(["recipe=mpp", *words])


def refusal(*words):
    return refused(resolve, words)


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "holiday images"
    folder.mkdir()
    return folder


@pytest.fixture
def mine(tmp_path):
    """A recipe with presets, and values over some of their fields."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "data: shapes\nmodel: vit_n8\nmodel.depth: 7\nmodel.timm: "
        "vit_small_patch16_224\ndata.crop_area: 0.9\n"
        "optim: {steps: 500, lr: 1.0e-3}\ncorruption.rate: 0.25\n"
    )
    return path


# Which value wins


def test_words_go_over_the_recipe_and_it_over_its_presets_and_these_over_defaults(mine, images):
    file = resolve([f"recipe={mine}"])
    timm = "vit_small_patch16_224"
    assert file.model == Model(name="vit_n8", timm=timm, **MODELS["vit_n8"] | {"depth": 7})
    assert file.data == Data(name="shapes", **DATASETS["shapes"] | {"crop_area": 0.9})
    assert file.optim == Optim(steps=500, lr=1e-3) and file.checkpoint == Checkpoint()
    assert (file.corruption.rate, file.corruption.mask) == (0.25, 0.8)

    # a preset on the command line replaces all that the recipe said of it, the same one too
    place = f"data.path={images}"
    other = resolve([f"recipe={mine}", "model=vit_s8", "data=cifar10", place])
    assert other.model == Model(name="vit_s8", **MODELS["vit_s8"])
    assert other.data == Data(name="cifar10", path=str(images), **DATASETS["cifar10"])
    assert other.optim == Optim(steps=500, lr=1e-3)
    again = resolve([f"recipe={mine}", "model=vit_n8"])
    assert again.model == Model(name="vit_n8", **MODELS["vit_n8"]) and again.data.crop_area == 0.9

    words = ["model.depth=3", "model=vit_s8", "optim.lr=0.5", "data.crop_area=1"]
    typed = resolve([f"recipe={mine}", *words, "corruption.rate=1"])
    assert typed.model == Model(name="vit_s8", **MODELS["vit_s8"] | {"depth": 3})
    assert typed.optim == Optim(steps=500, lr=0.5) and typed.corruption.rate == 1
    assert typed.data == Data(name="shapes", **DATASETS["shapes"] | {"crop_area": 1.0})


def test_other_images_keep_what_a_recipe_does_with_them_in_training(mine, images):
    """finetune_modern on other images is not fine-tuning without mixup and cutmix."""
    for place in (["data=cifar10"], ["data=cifar10", f"data.path={images}"]):
        data = resolve(["recipe=finetune_modern", *place], here=False).data
        assert (data.mixup, data.cutmix) == (0.8, 1.0)
        assert data.crop_area == DATASETS["cifar10"]["crop_area"]
    mine.write_text("objective: supervised\ndata: shapes\ndata.mixup: 0.5\n")
    for place in ([f"data.path={images}"], ["data.hub=me/images"]):
        assert resolve([f"recipe={mine}", *place], here=False).data.mixup == 0.5
    assert resolve(["recipe=finetune_modern", "data=cifar10", "data.mixup=0"]).data.mixup == 0


@pytest.mark.parametrize("name", MODELS)
def test_every_model_fits_some_image(name):
    size = 16 * MODELS[name].get("patch", 16)
    recipe = mpp("objective=supervised", f"model={name}", f"data.size={size}")
    assert recipe.model == Model(name=name, **MODELS[name])


WORDS = [
    *("recipe=mpp", "model=vit_s4", "data=cifar10", f"data.path={ROOT}", "corruption.rate=0.15"),
    *("model.depth=2", "data.size=48", "seed=3", "data.mean=[0.4,0.5,0.6]", "optim.clip=null"),
    *("optim.steps=1e3", "optim.steps=1e3"),
]


@settings(max_examples=12)
@given(st.permutations(WORDS))
def test_the_order_of_words_never_matters(words):
    recipe = resolve(words)
    assert recipe == resolve(WORDS)
    assert recipe.model.depth == 2 and recipe.data.size == 48 and recipe.optim.clip is None
    assert recipe.data.mean == [0.4, 0.5, 0.6] and recipe.seed == 3


def test_the_warmup_of_a_shortened_recipe_is_cut_and_that_is_said():
    """People shorten recipes; a tenth of the steps is what most of them warm up for."""
    words = ["recipe=mpp", f"optim.steps={WARMUP}"]
    assert resolve(words).optim.warmup == WARMUP // 10
    line = warmup_notice(resolved(words))
    assert f"{WARMUP // 10} steps" in line and f"takes {WARMUP} steps" in line
    for kept in (
        ["recipe=mpp"],
        [*words, "optim.warmup=2"],
        ["recipe=mpp", f"optim.steps={STEPS}0"],
    ):
        assert warmup_notice(resolved(kept)) is None
    above = ["recipe=mpp", f"optim.steps={2 * WARMUP}"]  # which leaves half of them to it
    assert f"{WARMUP} of {2 * WARMUP} steps" in warmup_notice(resolved(above))
    assert resolve(above).optim.warmup == WARMUP
    assert refusal(*words, f"optim.warmup={WARMUP}").startswith(f"optim.warmup={WARMUP}: ")


# Values as they are typed


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e6", 10**6), ("2.5e3", 2500), ("300.0", 300), ("1E3", 1000), ("010000", 10_000)],
)
def test_whole_numbers_may_be_written_as_floats_and_in_tens(text, value):
    recipe = mpp(f"optim.steps={text}", f"probe.every={text}")
    for found in (recipe.optim.steps, recipe.probe.every):
        assert found == value and type(found) is int
    assert recipe == mpp(f"optim.steps={value}", f"probe.every={value}")


ON_BOUNDS = f"""
corruption.rate=1 data.crop_area=1 data.eval_crop=1
corruption.rate=0.000000001 optim.betas=[0,0] optim.weight_decay=0
corruption.mask=1 corruption.random=0 corruption.keep=0
corruption.mask=0.7 corruption.keep=0.2
optim.warmup=0 data.size=16 seed=-1 compute.workers=0
optim.warmup={STEPS - 1} compute.patience=10 compute.batch=128
optim.steps=1 optim.warmup=0 optim.clip=null
data.validation=train
data.validation=0.5
data.validation=0
data.validation=null
"""


@pytest.mark.parametrize("line", ON_BOUNDS.split("\n")[1:-1])
def test_what_lies_on_a_bound_is_taken(line):
    words = line.split()
    flat = mpp(*words).values()
    for word in words:
        key, _, text = word.partition("=")
        assert flat[key] == yaml.safe_load(text)


def test_a_number_is_taken_for_a_text_where_a_text_is_expected(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("objective: mpp\nname: 2024\n")
    assert resolve([f"recipe={path}"]).name == "2024"
    path.write_text("objective: mpp\nname: 007\noptim.steps: 0200\n")
    found = resolve([f"recipe={path}"])
    assert (found.name, found.optim.steps) == ("007", 200)


# A word, and what the error expects
WRONG = f"""
optim.steps=1.5 -> a whole number above 0
optim.steps=many -> a whole number above 0
optim.steps= -> a whole number above 0
optim.steps=[ -> a whole number above 0
optim.lr=true -> a number
eval.test=1.5 -> true or false
optim.betas=0.9 -> a list in brackets of 2 numbers
compute.batch=all -> a whole number above 0 or null
log.trackers=wandb -> some of tensorboard, wandb, trackio
corruption.rate=0 -> above 0
corruption.rate=1.0001 -> at most 1
corruption.rate=nan -> a number
optim.lr=inf -> a number
optim.warmup=-1 -> at least 0
optim.betas=[0.9] -> 2 numbers
optim.betas=[0.9,1.0] -> below 1
data.std=[] -> numbers
data.size=1000000001 -> at most
seed=99999999999999999999 -> below 9,
data.validation=1.0
data.validation=-0.5
data.validation=2
data.validation=0.10.1
data.validation=--
data.validation=nan
optim.warmup={STEPS} -> optim.steps={STEPS}
data.path=/no/such/folder -> no such file
name={"a" * 300} -> at most 200
corruption.rat=0.5 -> did you mean corruption.rate?
optm.lr=1 -> did you mean optim.lr?
data.sise=32 -> unknown key data.sise; did you mean data.size?
optim.name=adamm -> optim.name=adamm: did you mean adamw?
lr=0.1 -> did you mean optim.lr?
steps=9 -> did you mean probe.steps or optim.steps?
model=vit_s9 -> did you mean vit_s
data=cifar -> did you mean cifar10?
target=mean_colour -> did you mean mean_color?
nothing=1 -> choices:
optim=1 -> a group of keys
data.name=cifar10 -> data=NAME
help -> key=value
=3 -> key=value
 -> key=value
init={"a" * 300} -> a path
data=jft -> data.path=
"""


@pytest.mark.parametrize("line", WRONG.split("\n")[1:-1])
def test_a_wrong_word_is_one_line_with_what_is_expected(line):
    word, _, expected = line.partition(" -> ")
    text = refusal("recipe=mpp", word)
    assert word.partition("=")[0][:60] in text and expected in text


def test_all_unknown_keys_are_named_each_with_the_nearest(tmp_path: Path) -> None:
    """The same in words, in Python, in a recipe's file, in a study and in a plan."""
    line = (
        "unknown key corruption.rat; did you mean corruption.rate? "
        "unknown key optim.stps; did you mean optim.steps?"
    )
    words = ["recipe=mpp", "corruption.rat=0.5", "optim.stps=3"]
    mapping = {"recipe": "mpp", "corruption": {"rat": 0.5}, "optim.stps": 3}
    assert refusal(*words) == line
    file = tmp_path / "mine.yaml"
    file.write_text("base: mpp\ncorruption: {rat: 0.5}\noptim: {stps: 3}\n")
    assert refusal(f"recipe={file}") == f"{file}: {line}"
    for call in (
        lambda: ssl_vit.pretrain(mapping),
        lambda: ssl_vit.plan(words),
        lambda: ssl_vit.study([*words, "sweep", "optim.lr=1e-3,1e-4", "--check"]),
        lambda: ssl_vit.study(["recipe=study/gap", *words[1:], "--check"]),
    ):
        assert refused(call) == line


TOGETHER = f"""
recipe=mpp optim.lr=1e-3 optim.lr=2e-3 -> optim.lr|1e-3|2e-3
recipe=mpp model=vit_n4 model=vit_n8 -> model|vit_n4|vit_n8
recipe=mpp recipe=other -> recipe|mpp|other
recipe=mp -> recipe=mp|did you mean mpp?
seed=1 -> recipe= is missing|mpp
recipe=/nowhere/none.yaml -> no such file
recipe=models -> recipe=models:
recipe=study/gap -> study recipe=study/gap
recipe={"a" * 300}.yaml -> a path
recipe=mpp data=cifar10 data.path=recipes data.hub=a/b -> data.hub=a/b
"""


@pytest.mark.parametrize("line", TOGETHER.split("\n")[1:-1])
def test_words_that_do_not_go_together_are_named(line):
    words, _, named = line.partition(" -> ")
    text = refusal(*words.split())
    assert all(one in text for one in named.split("|"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("optim: {step: 5}", "mine.yaml: unknown key optim.step; did you mean optim.steps"),
        ("optim: {steps: many}", "a whole number"),
        ("model: vit_s9", "did you mean vit_s"),
        ("data: [1, 2]", "data"),
        ("optim: 5", "optim"),
        ("optim: {steps: 5", "mine.yaml"),
        ("- optim", "mine.yaml"),
        ("corruption: {rate: 1.5}", "mine.yaml: corruption.rate=1.5: expected a number above 0"),
        ("data: jft", "data.path="),
        # the later one won in silence
        ("optim: {lr: 1}\noptim.lr: 2", "mine.yaml: optim.lr is given twice: 1 and 2"),
        ("optim.lr: 1\noptim: {lr: 2}", "mine.yaml: optim.lr is given twice: 1 and 2"),
        (f"base: {'a' * 300}.yaml", "a path"),  # was a traceback
    ],
)
def test_a_recipe_file_that_is_wrong_is_answered_in_one_line(tmp_path, text, says):
    path = tmp_path / "mine.yaml"
    path.write_text(text + "\n")
    assert says in refusal(f"recipe={path}")


ODD = ["", "<<", "null", "[", "{a: 1}", "${x}", "*a", "!x", "%", "=", "1e400", "-0.0", "9" * 25]


@settings(max_examples=100)
@given(
    key=st.sampled_from([*all_keys(), "recipe", "model", "data", "nothing"]),
    value=st.one_of(
        st.sampled_from([*ODD, "[1,null]", "'", "@"]),
        st.text(st.characters(exclude_categories=["C", "Z"]), max_size=6),
        st.integers().map(str),
        st.floats().map(str),
    ),
)
def test_whatever_is_typed_is_a_recipe_or_one_line(key, value):
    words = [f"{key}={value}"] if key == "recipe" else ["recipe=mpp", f"{key}={value}"]
    try:
        recipe = resolve(words)
    except UserError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert resolve(words) == recipe and yaml.safe_load(dump(recipe))


@settings(max_examples=25)
@given(size=st.integers(1, 300), patch=st.integers(1, 40))
def test_the_sizes_named_as_nearest_are_accepted_and_none_is_nearer(size, patch):
    words = ["recipe=mpp", f"model.patch={patch}"]
    fits = range(2 * patch, 400, patch)
    if size in fits:
        assert resolve([*words, f"data.size={size}"]).data.size == size
        return
    named = re.search(r"Use data.size=(\d+(?: or \d+)?)", refusal(*words, f"data.size={size}"))[1]
    near = [int(side) for side in named.split(" or ")]
    below = [side for side in fits if side < size]
    above = [side for side in fits if side > size]
    assert near == below[-1:] + above[:1]
    for side in near:
        assert resolve([*words, f"data.size={side}"]).data.size == side


# Arguments of a model's builder


def test_a_number_of_a_builder_is_one_however_and_in_whatever_order_it_is_written() -> None:
    """The run's name and the hash of its recipe are the same, as its values are."""
    texts = "{a: 2.0, b: [1e2, 0.5], c: true}", "{c: true, b: [100, 0.5], a: 2}"
    one, other = (mpp(f"model.args={text}") for text in texts)
    assert option_text(one.model.args) == "{a: 2, b: [100,0.5], c: true}"
    assert one.name == other.name == "mpp-model.args=a=2,b=100,0.5,c=true"
    assert computed_values(one) == computed_values(other)


@pytest.mark.parametrize(
    "text",
    [
        *("{act_layer: mish}", "{a: null}", "{a: {b: 1}}", "{a: [1, [2]]}", "{a: [x]}", "{1: 2}"),
        *("{a b: 1}", "{a: 1, a: 2}", "{a: .inf}", "{a: 1e9}", "{a: [1e9]}", "[1]", "3", "null"),
        *("{a: 1", "{a:1}", f"{{a: [{','.join('1' * 101)}]}}"),
    ],
)
def test_arguments_of_a_builder_are_numbers(text: str) -> None:
    """A text may name what timm downloads; but words that it has for parts."""
    found = refusal("recipe=mpp", f"model.args={text}")
    assert found.startswith("model.args=") and "expected {name: value} with numbers" in found
    assert resolve(["recipe=mpp", "model.args={act_layer: gelu}"]).model.args["act_layer"] == "gelu"


# Own images, and the name of a run


def test_own_images_get_a_name_and_the_recipes_size_and_crops(mine, images):
    crops = ("crop_area", "eval_crop")
    for size, words in (
        (64, ["recipe=mpp"]),
        (64, [f"recipe={mine}"]),
        (48, ["recipe=mpp", "data.size=48"]),
    ):
        recipe = resolve([*words, f"data.path={images}"])
        cut = {key: getattr(resolve(words).data, key) for key in crops}
        assert recipe.data == Data(name="holiday images", path=str(images), size=size, **cut)
    assert recipe.name == "mpp-holiday images-data.size=48"
    hub = mpp("data.hub=someone/cats").data
    assert hub == Data(name="someone--cats", hub="someone/cats", size=64, **cut)
    for place, name in (("cats.parquet", "cats"), ("images.v2", "images.v2")):
        (images / place).touch() if name == "cats" else (images / place).mkdir()
        assert mpp(f"data.path={images / place}").data.name == name
    bare = images / "bare.yaml"
    bare.write_text("name: mine\nmodel: vit_b16\n")
    assert resolve([f"recipe={bare}"]).data == Data()
    own = resolve([f"recipe={bare}", f"data.path={images}"])
    assert own.data == Data(name=images.name, path=str(images))


def test_a_local_copy_of_the_data_set_that_a_recipe_names(images, monkeypatch):
    """Its place is made absolute, so that recipe.yaml repeats the run from any folder."""
    monkeypatch.chdir(images.parent)
    recipe = resolve(["recipe=paper/supervised_b16_jft", f"data.path={images.name}"])
    data = recipe.data
    assert (data.name, data.classes, data.path) == ("jft", 18291, str(images))
    assert recipe.name == "supervised_b16_jft"


NAMED = f"""
recipe=mpp -> mpp
recipe=mpp data=shapes model=vit_n8 -> mpp-shapes-vit_n8
recipe=mpp corruption.rate=0.15 data.path={ROOT} data=cifar10 model=vit_s4 -> mpp-cifar10-vit_s4-corruption.rate=0.15
recipe=mpp optim.steps=1e6 seed=2 -> mpp-optim.steps=1000000-seed=2
recipe=mpp seed=0 corruption.rate=0.5 out=x log.every=1 compute.batch=4 -> mpp
recipe=mpp optim.clip=null data.flip=false -> mpp-data.flip=false-optim.clip=none
recipe=mpp name=mine seed=2 -> mine
recipe=evaluate probe.measures=[linear,knn] -> evaluate-probe.measures=linear,knn
recipe=evaluate probe.rates=[0.1,1] -> evaluate-probe.rates=0.1,1.0
"""


@pytest.mark.parametrize("line", NAMED.split("\n")[1:-1])
def test_a_run_is_named_after_what_its_words_change(line):
    words, _, name = line.partition(" -> ")
    assert resolve(words.split(), here=False).name == name


def test_names_stay_short_enough_for_a_folder(tmp_path):
    words = [f"{key}=[0.1234567,0.2345678,0.3456789]" for key in ("data.mean", "data.std")]
    words += ["optim.betas=[0.91,0.951]", "optim.weight_decay=0.123456789"]
    one, other = (mpp(*words, f"optim.lr={lr}").name for lr in (0.1, 0.2))
    assert len(one) <= 120 and len(other) <= 120 and one != other
    assert "optim.lr" not in one, "cut, and a hash in its place"
    names = set()
    for place in (tmp_path / f"{'猫' * 84}{end}" for end in "ab"):  # 253 bytes, 85 characters
        place.mkdir()
        names.add(mpp(f"data.path={place}").name)
    assert len(names) == 2 and max(len(name.encode()) for name in names) <= 240


# What a run was computed from, and its recipe.yaml


def test_computed_leaves_out_what_changes_no_number(images):
    recipe = mpp()
    kept = computed_values(recipe)
    assert kept == {key: value for key, value in recipe.values().items() if key not in FREE}
    assert {"optim.lr", "data.hub", "model.timm"} <= kept.keys()
    same = ["name=x", "out=y", "resume=false", "compute.batch=16", "compute.compile=true"]
    same += ["log.trackers=[tensorboard]", "checkpoint.every=7", "eval.every=9", "eval.images=5"]
    assert computed_values(mpp(*same)) == kept
    for word in ("seed=1", "compute.precision=bfloat16", "data.size=32", "corruption.rate=0.1"):
        other = computed_values(mpp(word))
        assert [k for k in kept if kept[k] != other[k]] == [word.partition("=")[0]]
    here, there = (mpp("data=cifar10", f"data.path={place}") for place in (images, ROOT))
    assert computed_values(here) == computed_values(there)


NAMES = ["x", "1e6", "null", "yes", "a: b", "007", "#1", "é", "- x", "2020-01-01", "'", 'x"y', "~"]
VALUES = {
    "name": st.sampled_from([*NAMES, "[a]"]),
    "out": st.sampled_from(["runs", "1", "../elsewhere", "true"]),
    "seed": st.integers(-(2**31), 2**62),
    "resume": st.sampled_from(["true", "false"]),
    "model": st.sampled_from(["vit_n4", "vit_s8"]),
    "model.args": st.sampled_from(["{}", "{qkv_bias: false, layers: [1,2.5], rate: 1e-3}"]),
    "data.path": st.just(str(ROOT)),
    "data.size": st.sampled_from([16, 48, 64]),
    "data.validation": st.sampled_from(["null", "0.25", "1e-3", "test-A", "prüfung", "val 2"]),
    "data.mean": st.sampled_from(["[0.1,0.2,0.3]", "[0,1,0]"]),
    "corruption.rate": st.floats(1e-6, 1),
    "optim.steps": st.sampled_from(["1e6", "1201"]),
    "optim.lr": st.floats(1e-12, 1e3),
    "optim.weight_decay": st.floats(0, 1e3),
    "optim.betas": st.tuples(*[st.floats(0, 0.999999)] * 2).map(list).map(str),
    "optim.clip": st.sampled_from(["null", "0.5", "3"]),
    "compute.compile": st.sampled_from(["null", "true", "false"]),
}


@settings(max_examples=30)
@given(st.fixed_dictionaries({}, optional=VALUES))
def test_a_dumped_recipe_is_read_as_it_was(chosen):
    recipe = mpp(*(f"{key}={value}" for key, value in chosen.items()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(dump(recipe))
        again = resolve([f"recipe={path}"])
    assert again == recipe and dump(again) == dump(recipe)
    assert recipe_hash(again) == recipe_hash(recipe)
    pairs = itertools.zip_longest(again.values().items(), recipe.values().items())
    assert all(one == other and type(one[1]) is type(other[1]) for one, other in pairs)


def test_a_runs_own_recipe_keeps_its_name_and_its_data(tmp_path, images):
    recipe = mpp("data=cifar10", f"data.path={ROOT}", "corruption.rate=0.15")
    path = tmp_path / "recipe.yaml"
    path.write_text(dump(recipe))
    moved = resolve([f"recipe={path}", f"data.path={images}", "out=elsewhere"])
    assert moved.name == recipe.name == "mpp-cifar10-corruption.rate=0.15"
    assert moved.data.path == str(images) and computed_values(moved) == computed_values(recipe)
    altered = resolve([f"recipe={path}", "optim.lr=0.002"])
    assert altered.name == recipe.name + "-optim.lr=0.002" and altered.optim.lr == 0.002
