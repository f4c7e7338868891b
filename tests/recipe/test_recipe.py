"""How words become a recipe: which value wins, what is refused and how that is said, what names a
run."""

import itertools
import math
import re
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.options import FREE, ROOT
from ssl_vit.errors import UserError
from ssl_vit.formatting import option_text
from ssl_vit.objectives.mae import MaeOptions
from ssl_vit.objectives.moco_v3 import MocoOptions
from ssl_vit.recipe import parsing, recipe_files
from ssl_vit.recipe.identity import computed_values
from ssl_vit.recipe.load import resolve, warmup_notice
from ssl_vit.recipe.operation import Checkpoint
from ssl_vit.recipe.schema import Data, Model, Optim, all_keys, dump

MODELS, DATASETS, MPP = (
    yaml.safe_load((ROOT / "recipes" / f"{name}.yaml").read_text())
    for name in ("tables/models", "tables/datasets", "mpp")
)
STEPS = MPP["optim"]["steps"]


def refusal(*words):
    """What the answer to wrong words is: one line."""
    with pytest.raises(UserError) as caught:
        resolve(words)
    text = str(caught.value)
    assert text and "\n" not in text
    return text


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


def test_a_recipes_presets_go_over_the_schema_and_its_values_over_those(mine):
    recipe = resolve([f"recipe={mine}"])
    row = MODELS["vit_n8"]
    assert (
        row["depth"] != 7
        and row["width"] != Model().width
        and DATASETS["shapes"]["crop_area"] != 0.9
    )
    assert recipe.model == Model(name="vit_n8", timm="vit_small_patch16_224", **row | {"depth": 7})
    assert recipe.data == Data(name="shapes", **DATASETS["shapes"] | {"crop_area": 0.9})
    assert recipe.optim == Optim(steps=500, lr=1e-3) and recipe.checkpoint == Checkpoint()
    assert recipe.corruption.rate == 0.25 and recipe.corruption.mask == 0.8


def test_a_preset_on_the_command_line_replaces_all_that_the_recipe_said_of_it(mine, images):
    recipe = resolve([f"recipe={mine}", "model=vit_s8", "data=cifar10", f"data.path={images}"])
    assert recipe.model == Model(name="vit_s8", **MODELS["vit_s8"])
    assert recipe.data == Data(name="cifar10", path=str(images), **DATASETS["cifar10"])
    assert recipe.optim == Optim(steps=500, lr=1e-3)
    again = resolve([f"recipe={mine}", "model=vit_n8"])  # even where it names the same one
    assert again.model == Model(name="vit_n8", **MODELS["vit_n8"])
    assert again.data.crop_area == 0.9


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


def test_words_go_over_everything(mine, images):
    recipe = resolve(
        [
            f"recipe={mine}",
            "model.depth=3",
            "model=vit_s8",
            "optim.lr=0.5",
            "data.crop_area=1",
            "corruption.rate=1",
        ]
    )
    assert recipe.model == Model(name="vit_s8", **MODELS["vit_s8"] | {"depth": 3})
    assert recipe.optim == Optim(steps=500, lr=0.5)
    assert recipe.data == Data(name="shapes", **DATASETS["shapes"] | {"crop_area": 1.0})
    assert recipe.corruption.rate == 1


def test_the_shipped_recipe_is_read_as_written():
    recipe = resolve(["recipe=mpp"])
    assert recipe.name == "mpp" and recipe.out == "runs" and recipe.seed == 0
    flat = recipe.values()
    for key, value in MPP.items():
        for inner, v in value.items() if isinstance(value, dict) else []:
            assert flat[f"{key}.{inner}"] == v
    assert recipe.model == Model(name=MPP["model"], **MODELS[MPP["model"]])
    assert recipe.data == Data(name=MPP["data"], **DATASETS[MPP["data"]])


@pytest.mark.parametrize("name", MODELS)
def test_every_model_fits_some_image(name):
    recipe = resolve(
        [
            "recipe=mpp",
            "objective=supervised",
            f"model={name}",
            f"data.size={16 * MODELS[name].get('patch', 16)}",
        ]
    )
    assert recipe.model == Model(name=name, **MODELS[name])


WORDS = [
    *(
        "recipe=mpp",
        "model=vit_s4",
        "data=cifar10",
        f"data.path={ROOT}",
        "corruption.rate=0.15",
        "optim.steps=1e3",
    ),
    *(
        "model.depth=2",
        "data.size=48",
        "seed=3",
        "data.mean=[0.4,0.5,0.6]",
        "optim.clip=null",
        "optim.steps=1e3",
    ),
]


@settings(max_examples=12)
@given(st.permutations(WORDS))
def test_the_order_of_words_never_matters(words):
    recipe = resolve(words)
    assert recipe == resolve(WORDS)
    assert recipe.model.depth == 2 and recipe.data.size == 48 and recipe.optim.clip is None
    assert recipe.data.mean == [0.4, 0.5, 0.6] and recipe.seed == 3


def test_a_word_may_not_say_two_things():
    text = refusal("recipe=mpp", "optim.lr=1e-3", "optim.lr=2e-3")
    assert "optim.lr" in text and "1e-3" in text and "2e-3" in text
    assert "model" in refusal("recipe=mpp", "model=vit_n4", "model=vit_n8")
    assert "recipe" in refusal("recipe=mpp", "recipe=other")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e6", 10**6), ("1000000", 10**6), ("2.5e3", 2500), ("300.0", 300), ("1E3", 1000)],
)
def test_whole_numbers_may_be_written_as_floats(text, value):
    recipe = resolve(["recipe=mpp", f"optim.steps={text}", f"probe.every={text}"])
    assert recipe.optim.steps == value and type(recipe.optim.steps) is int
    assert recipe.probe.every == value and type(recipe.probe.every) is int
    assert recipe == resolve(["recipe=mpp", f"optim.steps={value}", f"probe.every={value}"])


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *(
            (f"optim.steps={text}", "a whole number")
            for text in ("1.5", "1e-1", "many", "true", "[1]", "inf", "", "[", "1e400")
        ),
        *((f"optim.lr={text}", "a number") for text in ("fast", "true", "[1]", "{a: 1}", "'", "")),
        *((f"eval.test={text}", "true or false") for text in ("maybe", "1.5", "[true]", "")),
        *(
            (f"optim.betas={text}", "a list in brackets of 2 numbers")
            for text in ("0.9", "[a, b]", "[0.9")
        ),
        *((f"compute.batch={text}", "a whole number above 0 or null") for text in ("1.5", "all")),
        ("log.trackers=wandb", "a list in brackets: some of tensorboard, wandb, trackio"),
    ],
)
def test_the_wrong_type_is_refused(word, expected):
    text = refusal("recipe=mpp", word)
    assert text.startswith(word) and expected in text


@pytest.mark.parametrize(
    ("word", "near", "choices"),
    [
        ("corruption.rat=0.5", "corruption.rate", ["corruption.mask", "corruption.keep"]),
        ("optm.lr=1", "optim.lr", ["optim.", "model.", "seed"]),
        ("sed=1", "seed", ["seed", "recipe"]),
        ("lr=0.1", "optim.lr", ["optim.", "model."]),
        ("steps=9", "probe.steps or optim.steps", ["optim."]),
        ("model.with=64", "model.width", ["model.depth"]),
        ("model=vit_s9", "vit_s", list(MODELS)[:20]),
        ("data=cifar", "cifar10", list(DATASETS)),
        ("target=mean_colour", "mean_color", ["mean_color"]),
        ("objective=mmp", "mpp", ["mpp"]),
        ("optim.schedule=cosin", "cosine", ["linear"]),
        ("corruption.source=images", "image", ["batch"]),
        ("compute.precision=bf16", "bfloat16", ["auto", "float32"]),
    ],
)
def test_a_misspelling_is_answered_with_the_nearest_name_and_the_choices(word, near, choices):
    text = refusal("recipe=mpp", word)
    assert word.partition("=")[0] in text and f"did you mean {near}" in text
    for choice in choices:
        assert choice in text.partition("choices: ")[2]


def test_a_recipe_that_is_not_there_is_answered_with_those_that_are(tmp_path):
    text = refusal("recipe=mp")
    assert text.startswith("recipe=mp") and "did you mean mpp?" in text and "choices: " in text
    assert "recipe= is missing" in refusal("seed=1") and "mpp" in refusal("seed=1")
    assert "no such file" in refusal(f"recipe={tmp_path}/none.yaml")
    for table in ("models", "datasets"):
        assert "unknown" in refusal(f"recipe={table}")


@pytest.mark.parametrize("word", ["help", "=3", "--seed", ""])
def test_what_is_no_word_is_said(word):
    assert "key=value" in refusal("recipe=mpp", word)


@pytest.mark.parametrize("group", ["optim", "corruption", "compute"])
def test_a_group_is_no_key(group):
    text = refusal("recipe=mpp", f"{group}=1")
    assert group in text and all(key in text for key in all_keys() if key.startswith(f"{group}."))


@pytest.mark.parametrize(
    "word",
    [
        *(f"corruption.rate={value}" for value in (0, -0.1, 1.0001, "nan", "inf")),
        *(
            f"corruption.{name}={value}"
            for name in ("mask", "random", "keep")
            for value in (-0.1, 1.1, "nan")
        ),
        *(f"data.{name}={value}" for name in ("crop_area", "eval_crop") for value in (0, -1, 1.01)),
        *(f"data.validation={value}" for value in ("1.0", -0.5, 1, 2, "0.10.1", "--", "nan")),
        *("data.mean=[0.5,0.5]", "data.std=[0.5,0.5,0]", "data.std=[1,1]", "data.std=[]"),
        *(
            f"optim.{name}={value}"
            for name in ("steps", "batch", "lr", "clip")
            for value in (0, -1)
        ),
        *("optim.warmup=-1", f"optim.warmup={STEPS}", "optim.weight_decay=-0.1", "optim.lr=nan"),
        *("optim.betas=[0.9]", "optim.betas=[0.9,1.0]", "optim.betas=[-0.1,0.9]", "optim.betas=[]"),
        *(
            f"{key}={value}"
            for key in ("checkpoint.every", "checkpoint.keep", "eval.every", "log.every")
            for value in (0, -1)
        ),
        *(
            "eval.images=0",
            "compute.batch=0",
            "compute.batch=-1",
            "compute.batch=33",
            "compute.threads=0",
            "compute.workers=-1",
            "compute.patience=9.9",
        ),
        *(f"model.{name}=0" for name in ("patch", "width", "depth", "heads", "mlp")),
        *(
            "model.heads=5",
            "data.size=0",
            "data.size=-8",
            "data.size=8",
            "data.size=60",
            "data.size=1000000001",
        ),
        "data.path=/no/such/folder",
    ],
)
def test_what_is_out_of_bounds_is_refused(word):
    text = refusal("recipe=mpp", word)
    key = "model.width" if word == "model.heads=5" else word.partition("=")[0]
    assert text.startswith(key)


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["corruption.rate=1"],
            ["corruption.rate=1e-9"],
            ["data.crop_area=1", "data.eval_crop=1"],
            ["optim.betas=[0,0]"],
        ),
        *(
            ["corruption.mask=1", "corruption.random=0", "corruption.keep=0"],
            ["optim.warmup=0"],
            [f"optim.warmup={STEPS - 1}"],
        ),
        *(
            ["optim.weight_decay=0"],
            ["data.size=16"],
            ["compute.workers=0"],
            ["compute.patience=10"],
            ["compute.batch=128"],
            ["data.validation=train"],
        ),
        *(
            ["data.validation=0.5"],
            ["data.validation=0"],
            ["data.validation=null"],
            ["optim.clip=null"],
            ["optim.steps=1", "optim.warmup=0"],
            ["seed=-1"],
        ),
    ],
)
def test_what_lies_on_a_bound_is_taken(words):
    flat = resolve(["recipe=mpp", *words]).values()
    for word in words:
        key, _, text = word.partition("=")
        assert flat[key] == (
            text if text == "train" else yaml.safe_load(text.replace("1e-9", "1.0e-9"))
        )


def test_the_three_shares_sum_to_one():
    text = refusal("recipe=mpp", "corruption.mask=0.7")
    assert "corruption.mask" in text and "0.9" in text and "sum to 1" in text
    assert (
        resolve(["recipe=mpp", "corruption.mask=0.7", "corruption.keep=0.2"]).corruption.keep == 0.2
    )


@settings(max_examples=25)
@given(size=st.integers(1, 300), patch=st.integers(1, 40))
def test_the_sizes_named_as_nearest_are_accepted_and_none_is_nearer(size, patch):
    words = ["recipe=mpp", f"model.patch={patch}"]
    fits = range(2 * patch, 400, patch)
    if size in fits:
        assert resolve([*words, f"data.size={size}"]).data.size == size
        return
    named = re.search(r"nearest (?:is|are) (.*)$", refusal(*words, f"data.size={size}"))[1]
    near = [int(side) for side in named.split(" and ")]
    below = [side for side in fits if side < size]
    above = [side for side in fits if side > size]
    assert near == below[-1:] + above[:1]
    for side in near:
        assert resolve([*words, f"data.size={side}"]).data.size == side


def test_own_images_get_a_name_and_the_recipes_size(mine, images):
    for size, words in (
        (64, ["recipe=mpp"]),
        (64, [f"recipe={mine}"]),
        (48, ["recipe=mpp", "data.size=48"]),
    ):
        recipe = resolve([*words, f"data.path={images}"])
        # the recipe's
        cut = {key: getattr(resolve(words).data, key) for key in ("crop_area", "eval_crop")}
        assert recipe.data == Data(name="holiday images", path=str(images), size=size, **cut)
    assert recipe.name == "mpp-holiday images-data.size=48"
    file = images / "cats.parquet"
    file.touch()
    assert resolve(["recipe=mpp", f"data.path={file}"]).data.name == "cats"
    hub = resolve(["recipe=mpp", "data.hub=someone/cats"]).data
    assert hub == Data(name="someone--cats", hub="someone/cats", size=64, **cut)


def test_a_folders_name_may_have_a_dot(tmp_path):
    (tmp_path / "images.v2").mkdir()
    assert resolve(["recipe=mpp", f"data.path={tmp_path}/images.v2"]).data.name == "images.v2"


def test_own_images_with_a_recipe_that_names_no_data(tmp_path, images):
    path = tmp_path / "bare.yaml"
    path.write_text("model: vit_b16\n")
    assert resolve([f"recipe={path}"]).data == Data()
    assert resolve([f"recipe={path}", f"data.path={images}"]).data == Data(
        name=images.name, path=str(images)
    )


def test_own_images_with_a_recipe_that_has_a_name(tmp_path, images):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\ndata: shapes\nmodel: vit_n8\n")
    recipe = resolve([f"recipe={path}", f"data.path={images}"])
    cut = {key: DATASETS["shapes"][key] for key in ("size", "crop_area", "eval_crop")}
    assert recipe.data == Data(name=images.name, path=str(images), **cut)


def test_a_local_copy_of_the_data_set_that_a_recipe_names(images):
    recipe = resolve(["recipe=paper/supervised_b16_jft", f"data.path={images}"])
    assert (recipe.data.name, recipe.data.classes, recipe.name) == (
        "jft",
        18291,
        "supervised_b16_jft",
    )


def test_names_stay_short_enough_for_a_folder(tmp_path):
    words = [
        "recipe=mpp",
        *(f"{key}=[0.1234567,0.2345678,0.3456789]" for key in ("data.mean", "data.std")),
        "optim.betas=[0.91,0.951]",
    ]
    one, other = (resolve([*words, f"optim.lr={lr}"]).name for lr in (0.1, 0.2))
    assert len(one) <= 120 and len(other) <= 120 and one != other
    assert "name" in refusal("recipe=mpp", "name=" + "a" * 300)
    names = set()
    for place in (tmp_path / f"{'猫' * 84}{end}" for end in "ab"):  # 253 bytes, 85 characters
        place.mkdir()
        names.add(resolve(["recipe=mpp", f"data.path={place}"]).name)
    assert len(names) == 2 and max(len(name.encode()) for name in names) <= 240


def test_no_word_is_ignored():
    assert "corruption.rate" in refusal("recipe=mpp", "objective=supervised", "corruption.rate=0.3")
    assert "supervised.hidden" in refusal("recipe=mpp", "supervised.hidden=false")
    assert "target" in refusal("recipe=supervised", "target=pixels")
    assert "joint.mpp" in refusal("recipe=mpp", "joint.mpp=2")
    assert "supervised.smoothing" in refusal(
        "recipe=supervised", "supervised.loss=sigmoid", "supervised.smoothing=0.1"
    )
    assert "data=" in refusal("recipe=mpp", "data.name=cifar10")
    assert "data.hub" in refusal("recipe=mpp", "data=cifar10", "data.path=recipes", "data.hub=a/b")


def test_what_does_not_suit_an_objective_is_refused():
    assert "r50_vit_b16" in refusal("recipe=mpp", "model=r50_vit_b16", "data.size=224")
    assert "grid_color" in refusal(
        "recipe=mpp", "target=grid_color", "model.patch=2", "data.size=32"
    )


def test_a_group_that_the_objective_does_not_use_is_not_in_its_recipe():
    recipe = resolve(["recipe=mae"])
    assert recipe.group(MaeOptions) is recipe.mae
    with pytest.raises(KeyError, match="the objective does not use MocoOptions"):
        recipe.group(MocoOptions)


def test_whole_numbers_are_read_in_tens():
    assert resolve(["recipe=mpp", "seed=010"]).seed == 10


def test_a_relative_place_is_made_absolute(images, monkeypatch):
    monkeypatch.chdir(images.parent)
    assert resolve(["recipe=mpp", f"data.path={images.name}"]).data.path == str(images)


def test_a_data_set_without_a_place_is_refused():
    text = refusal("recipe=mpp", "data=jft")
    assert "jft" in text and "data.path=" in text


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "mpp"),
        (
            ["data=cifar10", f"data.path={ROOT}", "corruption.rate=0.15"],
            "mpp-cifar10-corruption.rate=0.15",
        ),
        (
            ["corruption.rate=0.15", f"data.path={ROOT}", "data=cifar10", "model=vit_s4"],
            "mpp-cifar10-vit_s4-corruption.rate=0.15",
        ),
        (["optim.steps=1e6", "seed=2"], "mpp-optim.steps=1000000-seed=2"),
        (
            [
                "seed=0",
                "corruption.rate=0.5",
                "out=x",
                "log.every=1",
                "compute.batch=4",
                "checkpoint.every=3",
            ],
            "mpp",
        ),
        (["compute.precision=bfloat16", "optim.clip=null", "data.flip=false"], None),
        (["name=mine", "seed=2"], "mine"),
    ],
)
def test_a_run_is_named_after_what_its_words_change(words, name):
    made = resolve(["recipe=mpp", *words]).name
    assert made == (name or "mpp-compute.precision=bfloat16-data.flip=false-optim.clip=none")
    assert "/" not in made


def test_a_preset_word_that_says_what_the_recipe_says_is_still_a_name():
    assert resolve(["recipe=mpp", "data=shapes", "model=vit_n8"]).name == "mpp-shapes-vit_n8"


@pytest.mark.parametrize(
    "option, name",
    [
        ("probe.measures=[top1]", "evaluate-probe.measures=top1"),
        ("probe.measures=[linear,knn]", "evaluate-probe.measures=linear,knn"),
        ("probe.rates=[0.1,1]", "evaluate-probe.rates=0.1,1.0"),
    ],
)
def test_a_default_name_has_lists_without_brackets_and_quotes(option: str, name: str) -> None:
    assert resolve(["recipe=evaluate", option], here=False).name == name


def test_a_default_name_has_the_arguments_of_a_builder_in_one_order() -> None:
    names = {
        resolve(["recipe=mpp", f"model.args={text}"]).name
        for text in ("{qkv_bias: false, layers: [1, 2]}", "{layers: [1,2], qkv_bias: false}")
    }
    assert names == {"mpp-model.args=layers=1,2,qkv_bias=false"}


def test_a_whole_number_of_a_builder_is_one_however_it_is_written() -> None:
    """The run's name and the hash of its recipe are the same, as its values are."""
    one, other = (
        resolve(["recipe=mpp", f"model.args={text}"])
        for text in ("{a: 2.0, b: [1e2, 0.5], c: true}", "{a: 2, b: [100, 0.5], c: true}")
    )
    assert option_text(one.model.args) == "{a: 2, b: [100,0.5], c: true}"
    assert dump(one) == dump(other) and one.name == other.name


@pytest.mark.parametrize(
    "text",
    [
        *("{act_layer: gelu}", "{a: null}", "{a: {b: 1}}", "{a: [1, [2]]}", "{a: [x]}", "{1: 2}"),
        *("{a b: 1}", "{a: 1, a: 2}", "{a: .inf}", "{a: 1e9}", "{a: [1e9]}", "[1]", "3", "null"),
        *("{a: 1", "{a:1}", f"{{a: [{','.join('1' * 101)}]}}"),
    ],
)
def test_arguments_of_a_builder_are_numbers(text: str) -> None:
    """A text may name what timm downloads."""
    found = refusal("recipe=mpp", f"model.args={text}")
    assert found.startswith("model.args=") and "expected names in braces with numbers" in found


def test_computed_leaves_out_what_changes_no_number(images):
    recipe = resolve(["recipe=mpp"])
    kept, flat = computed_values(recipe), recipe.values()
    expected = {key: value for key, value in flat.items() if key not in FREE}
    assert kept == expected and "optim.lr" in kept and "data.hub" in kept and "model.timm" in kept
    same = [
        "name=x",
        "out=y",
        "resume=false",
        "compute.batch=16",
        "compute.workers=1",
        "compute.resident=false",
        "compute.threads=1",
        "compute.compile=true",
    ]
    same += [
        "log.every=1",
        "log.trackers=[tensorboard]",
        "checkpoint.every=7",
        "checkpoint.keep=3",
        "eval.every=9",
        "eval.images=5",
    ]
    assert computed_values(resolve(["recipe=mpp", *same])) == kept
    for word in (
        "seed=1",
        "compute.precision=bfloat16",
        "optim.lr=2",
        "data.size=32",
        "model.depth=1",
        "corruption.rate=0.1",
    ):
        other = computed_values(resolve(["recipe=mpp", word]))
        assert [k for k in kept if kept[k] != other[k]] == [word.partition("=")[0]]
    here, there = (["recipe=mpp", "data=cifar10", f"data.path={place}"] for place in (images, ROOT))
    assert computed_values(resolve(here)) == computed_values(resolve(there))


VALUES = {
    "name": st.sampled_from(
        [
            "x",
            "1e6",
            "null",
            "yes",
            "a: b",
            "007",
            "#1",
            "é",
            "- x",
            "2020-01-01",
            "'",
            'x"y',
            "~",
            "[a]",
        ]
    ),
    "out": st.sampled_from(["runs", "1", "../elsewhere", "true"]),
    "seed": st.integers(-(2**31), 2**31),
    "resume": st.sampled_from(["true", "false"]),
    "model": st.sampled_from(["vit_n4", "vit_s8"]),
    "model.args": st.sampled_from(["{}", "{qkv_bias: false, layers: [1,2.5], rate: 1e-3}"]),
    "data.path": st.just(str(ROOT)),
    "data.size": st.sampled_from([16, 48, 64]),
    "data.validation": st.sampled_from(["validation", "null", "0.25", "1e-3", "test"]),
    "data.mean": st.sampled_from(["[0.1,0.2,0.3]", "[0,1,0]"]),
    "data.flip": st.sampled_from(["true", "false"]),
    "corruption.rate": st.floats(1e-6, 1),
    "corruption.source": st.sampled_from(["image", "batch"]),
    "optim.steps": st.sampled_from(["1e6", "1201"]),
    "optim.lr": st.floats(1e-9, 10),
    "optim.clip": st.sampled_from(["null", "0.5", "3"]),
    "compute.batch": st.sampled_from(["null", "32"]),
    "compute.compile": st.sampled_from(["null", "true", "false"]),
    "compute.precision": st.sampled_from(["auto", "float32", "bfloat16"]),
}


@settings(max_examples=30)
@given(st.fixed_dictionaries({}, optional=VALUES))
def test_a_dumped_recipe_is_read_as_it_was(chosen):
    recipe = resolve(["recipe=mpp", *(f"{key}={value}" for key, value in chosen.items())])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(dump(recipe))
        again = resolve([f"recipe={path}"])
        assert again == recipe and dump(again) == dump(recipe)
        kinds = [
            {key: type(value) for key, value in one.values().items()} for one in (again, recipe)
        ]
        assert kinds[0] == kinds[1]


def test_a_runs_own_recipe_keeps_its_name_and_its_data(tmp_path, images):
    recipe = resolve(["recipe=mpp", "data=cifar10", f"data.path={ROOT}", "corruption.rate=0.15"])
    path = tmp_path / "recipe.yaml"
    path.write_text(dump(recipe))
    moved = resolve([f"recipe={path}", f"data.path={images}", "out=elsewhere"])
    assert moved.name == recipe.name == "mpp-cifar10-corruption.rate=0.15"
    assert moved.data.path == str(images) and computed_values(moved) == computed_values(recipe)
    altered = resolve([f"recipe={path}", "optim.lr=0.002"])
    assert altered.name == recipe.name + "-optim.lr=0.002" and altered.optim.lr == 0.002


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("optim: {step: 5}", "optim.steps"),
        ("optim: {steps: many}", "a whole number"),
        ("model: vit_s9", "vit_s"),
        ("data: [1, 2]", "data"),
        ("optim: 5", "optim"),
        ("optim: {steps: 5", "mine.yaml"),
        ("- optim", "mine.yaml"),
        ("corruption: {rate: 1.5}", "mine.yaml: corruption.rate=1.5: expected a number above 0"),
        ("data: jft", "data.path="),
    ],
)
def test_a_recipe_file_that_is_wrong_is_answered_in_one_line(tmp_path, text, says):
    path = tmp_path / "mine.yaml"
    path.write_text(text + "\n")
    assert says in refusal(f"recipe={path}")


@settings(max_examples=100)
@given(
    key=st.sampled_from([*all_keys(), "recipe", "model", "data", "nothing"]),
    value=st.one_of(
        st.sampled_from(
            [
                "",
                "null",
                "[",
                "{a: 1}",
                "${x}",
                "*a",
                "!x",
                "%",
                "=",
                "1e400",
                "-0.0",
                "9" * 25,
                "[1,null]",
                "'",
                "@",
            ]
        ),
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


@pytest.mark.parametrize("word", ["optim.schedule=???", "data.path=???"])
def test_odd_texts_are_refused_in_one_line(word):
    assert word.partition("=")[0] in refusal("recipe=mpp", word)


@pytest.mark.parametrize(
    "word", ["seed=99999999999999999999", "optim.lr=inf", "optim.weight_decay=inf"]
)
def test_numbers_too_large_are_refused(word):
    assert refusal("recipe=mpp", word).startswith(word.partition("=")[0])


def test_a_number_is_taken_for_a_text_where_a_text_is_expected(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("objective: mpp\nname: 2024\n")
    assert resolve([f"recipe={path}"]).name == "2024"


@pytest.mark.parametrize(
    "option",
    [
        "recipe=supervised eval.test=true eval.real={}",
        "recipe=mpp data.path={}",
        "recipe=mpp plugin={}",
        "recipe=mpp init={}",
        "recipe={}.yaml",
    ],
)
def test_no_file_has_that_path(option: str, tmp_path: Path) -> None:
    """eval.real= was a mistake after the training that it follows, a base a traceback."""
    long = "a" * 300
    with pytest.raises(UserError, match=r"='?a{60}\.\.\.'?: expected a path"):
        resolve(option.format(long).split())
    file = tmp_path / "own.yaml"
    file.write_text(f"base: {long}.yaml\n")
    with pytest.raises(UserError, match=r"own\.yaml: base='a{60}\.\.\.': expected a path of names"):
        resolve([f"recipe={file}"])


def test_a_key_nested_and_dotted_in_one_file_is_refused(tmp_path: Path) -> None:
    """The later one won in silence."""
    path = tmp_path / "own.yaml"
    for text in ("optim: {lr: 1}\noptim.lr: 2\n", "optim.lr: 1\noptim: {lr: 2}\n"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"own\.yaml: optim\.lr is given twice: 1 and 2$"):
            resolve([f"recipe={path}"])


PARTS = st.sampled_from(
    [
        *("mpp", "study", "tables", "methods", "models", "paper", "mpp_b16_jft"),
        *("..", ".", "", "é", "\0"),
    ]
)


@given(
    st.one_of(
        st.lists(PARTS, max_size=4).map("/".join),
        st.builds(str.__mul__, st.sampled_from(["x", "é", "x/"]), st.integers(100, 5000)),
        st.text(max_size=8),
    )
)
def test_a_name_is_a_recipe_where_it_is_listed_and_else_refused(name: str) -> None:
    if name in recipe_files.recipe_names():
        file = recipe_files.RECIPES / f"{name}.yaml"
        row = recipe_files.PAPER / name.removeprefix("paper/")
        assert recipe_files.find_recipe(name) == (row if name.startswith("paper/") else file)
    else:
        with pytest.raises(UserError):
            recipe_files.find_recipe(name)


@pytest.mark.parametrize("length", [250, 251, 255, 256])
def test_a_name_too_long_for_a_file_is_unknown(length: int) -> None:
    with pytest.raises(UserError, match="unknown"):
        recipe_files.find_recipe("x" * length)


def test_plain_scalars_of_a_file_are_those_of_yaml_1_2(tmp_path):
    """`yaml.safe_load` leaves 2e-4 a text, and makes 8 of 010, false of no and a date."""
    file = tmp_path / "own.yaml"
    file.write_text(
        "a: 2e-4\nb: 010\nc: no\nd: 2001-01-01\ne: [1_000, .5, ~, -.inf]\nf: {g: '1', h: 1:30}\n"
        "i: &own {j: 1, k: true}\nl: {<<: *own, j: TRUE}\nm:\n"
    )
    assert parsing.load_yaml(file) == {
        "a": 2e-4,
        "b": 10,
        "c": "no",
        "d": "2001-01-01",
        "e": ["1_000", 0.5, None, -math.inf],
        "f": {"g": "1", "h": "1:30"},
        "i": {"j": 1, "k": True},
        "l": {"j": True, "k": True},
        "m": None,
    }


def test_what_is_written_is_read_as_it_was(tmp_path):
    """Texts that look like something else too; by other programs' YAML 1.1 as well."""
    texts = ["2e-4", "no", "010", "~", "", "1:30", "<<", "null", "a: b", "# x", "é", "2026-01-01"]
    content = {"texts": texts, "numbers": [1, 2e-05, 1e30, -math.inf], "others": [None, True, []]}
    file = tmp_path / "own.yaml"
    file.write_text(parsing.yaml_text(content))
    assert parsing.load_yaml(file) == content
    assert yaml.safe_load(file.read_text()) == content


def test_aliases_that_would_fill_the_memory_are_refused(tmp_path):
    file = tmp_path / "own.yaml"
    lines = [
        "a: &a [1, 2]",
        *(
            f"{two}: &{two} [*{one}, *{one}, *{one}, *{one}]"
            for one, two in itertools.pairwise("abcdefghijklmnopqrstu")
        ),
    ]
    file.write_text("\n".join(lines))
    with pytest.raises(UserError, match="more than 100,000 values"):
        parsing.load_yaml(file)


def test_the_warmup_of_a_shortened_recipe_is_cut_and_that_is_said():
    """People shorten recipes; a tenth of the steps is what most of them warm up for."""
    words = ["recipe=mpp", f"optim.steps={WARMUP}"]
    assert resolve(words).optim.warmup == WARMUP // 10
    line = warmup_notice(words, resolve(words))
    assert line == f"warm-up     {WARMUP // 10} steps, a tenth; the recipe has {WARMUP} for more"
    for kept in (["recipe=mpp"], [*words, "optim.warmup=2"], ["recipe=mpp", "optim.steps=100"]):
        assert warmup_notice(kept, resolve(kept)) is None
    with pytest.raises(UserError, match=f"optim.warmup={WARMUP}: not below optim.steps={WARMUP}"):
        resolve([*words, f"optim.warmup={WARMUP}"])


WARMUP = resolve(["recipe=mpp"]).optim.warmup
