"""The recipes of recipes/tables/paper.yaml against a table of the paper's own, and models against
Table 1."""

from typing import Any

import pytest
import torch

from helpers.resolving import resolve
from ssl_vit.errors import UserError
from ssl_vit.models import encoder
from ssl_vit.recipe import recipe_files
from ssl_vit.recipe.parsing import load_yaml
from ssl_vit.recipe.schema import Recipe

IMAGES = {"jft": 303_000_000, "imagenet21k": 14_197_122, "imagenet": 1_281_167}
# Table 3: model, data, epochs, base learning rate, decay, weight decay, dropout. The rates of the
# rows bit_*_jft_14 are from 4.4 and Table 6
TABLE_3 = """
b16                jft           7 8e-4 linear 0.1  0.0
b32                jft           7 8e-4 linear 0.1  0.0
r50_b16            jft           7 8e-4 linear 0.1  0.0
r50_b32            jft           7 8e-4 linear 0.1  0.0
l32                jft           7 6e-4 linear 0.1  0.0
l16                jft           7 4e-4 linear 0.1  0.0
h14                jft          14 3e-4 linear 0.1  0.0
r50_l32            jft           7 2e-4 linear 0.1  0.0
r50_l16            jft           7 4e-4 linear 0.1  0.0
l16_jft_14         jft          14 4e-4 linear 0.1  0.0
r50_l16_jft_14     jft          14 4e-4 linear 0.1  0.0
bit_r50x1          jft           7 1e-3 linear 0.1  0.0
bit_r50x2          jft           7 1e-3 linear 0.1  0.0
bit_r101x1         jft           7 8e-4 linear 0.1  0.0
bit_r152x1         jft           7 6e-4 linear 0.1  0.0
bit_r152x2         jft           7 6e-4 linear 0.1  0.0
bit_r152x2_jft_14  jft          14 6e-4 linear 0.1  0.0
bit_r200x3_jft_14  jft          14 4e-4 linear 0.1  0.0
l16_imagenet21k_30 imagenet21k  30 1e-3 linear 0.03 0.1
l32_imagenet21k_30 imagenet21k  30 1e-3 linear 0.03 0.1
b16                imagenet21k  90 1e-3 linear 0.03 0.1
b32                imagenet21k  90 1e-3 linear 0.03 0.1
l16                imagenet21k  90 1e-3 linear 0.03 0.1
l32                imagenet21k  90 1e-3 linear 0.03 0.1
b16                imagenet    300 3e-3 cosine 0.3  0.1
b32                imagenet    300 3e-3 cosine 0.3  0.1
l16                imagenet    300 3e-3 cosine 0.3  0.1
l32                imagenet    300 3e-3 cosine 0.3  0.1
"""
# Table 4: data, steps, learning rates swept; the share that the sweep is judged on (4.1) and the
# warm-up (authors' code)
TABLE_4 = """
imagenet   20000 0.003,0.01,0.03,0.06  0.01 500
cifar10    10000 0.001,0.003,0.01,0.03 0.02 500
cifar100   10000 0.001,0.003,0.01,0.03 0.02 500
pets         500 0.001,0.003,0.01,0.03 0.1  100
flowers102   500 0.001,0.003,0.01,0.03 0.1  100
"""


def value(text: str) -> Any:
    numbers = [float(part) for part in text.split(",") if part[0].isdigit()]
    return text if not numbers else numbers if "," in text else numbers[0]


def rows(table: str) -> list[list[Any]]:
    """The rows of a table: names, numbers, and lists of numbers."""
    return [list(map(value, line.split())) for line in table.split("\n")[1:-1]]


PAPER = sorted(load_yaml(recipe_files.PAPER))
SGD = ("bit_r50x1_jft_sgd", "bit_r152x2_jft_sgd")  # appendix D.1


def paper(name: str) -> Recipe:
    return resolve([f"recipe=paper/{name}", "init=scratch"], here=False)


def test_every_recipe_of_the_paper_is_in_these_tables() -> None:
    pretraining = {row[0] if row[1] in row[0] else f"{row[0]}_{row[1]}" for row in rows(TABLE_3)}
    tables = {f"supervised_{row}" for row in (*pretraining, *SGD)} | {
        f"finetune_{row[0]}" for row in rows(TABLE_4)
    }
    assert set(PAPER) == tables | {"mpp_b16_imagenet", "mpp_b16_jft"}


@pytest.mark.parametrize(
    ("model", "data", "epochs", "lr", "decay", "weight_decay", "dropout"), rows(TABLE_3)
)
def test_a_supervised_recipe_is_its_row_of_table_3(
    model, data, epochs, lr, decay, weight_decay, dropout
) -> None:
    row = model if data in model else f"{model}_{data}"
    recipe = paper(f"supervised_{row}")
    o = recipe.optim
    assert (recipe.data.name, recipe.data.size, recipe.objective) == (data, 224, "supervised")
    assert (o.batch, o.warmup, o.betas) == (4096, 10_000, [0.9, 0.999])
    assert (o.lr, o.schedule, o.weight_decay, o.dropout) == (lr, decay, weight_decay, dropout)
    assert o.steps == round(epochs * IMAGES[data] / 4096)
    assert o.clip == (1.0 if data == "imagenet" else None)
    model = row.removesuffix("_14").removesuffix("_30").removesuffix(f"_{data}")
    resnet = model.startswith("bit_")
    assert recipe.supervised.loss == ("softmax" if data == "imagenet" else "sigmoid")
    assert recipe.supervised.hidden != resnet
    transformer = f"r50_vit_{model[4:]}" if model.startswith("r50") else f"vit_{model}"
    assert recipe.model.name == (model if resnet else transformer)


@pytest.mark.parametrize("row", SGD)
def test_a_resnet_with_sgd_has_the_values_of_big_transfer(row: str) -> None:
    """Appendix D.1: the same 7 epochs with the values of Kolesnikov et al. (2020), section 3."""
    o = paper(f"supervised_{row}").optim
    assert (o.name, o.momentum, o.weight_decay, o.warmup, o.clip) == ("sgd", 0.9, 1e-4, 5000, None)
    assert (o.lr, o.steps) == (0.03 * 4096 / 256, round(7 * IMAGES["jft"] / 4096))
    assert o.schedule == "steps" and o.drops == [10 / 40, 23 / 40, 30 / 40, 37 / 40]


@pytest.mark.parametrize(("name", "steps"), [("imagenet", 100_000), ("jft", 1_000_000)])
def test_an_mpp_recipe_is_that_of_the_appendix(name: str, steps: int) -> None:
    recipe = paper(f"mpp_b16_{name}")
    o, own = recipe.optim, recipe.corruption
    assert (own.rate, own.mask, own.random, own.keep) == (0.5, 0.8, 0.1, 0.1)
    assert (o.steps, o.batch, o.lr, o.warmup, o.schedule) == (steps, 4096, 2e-4, 10_000, "cosine")
    assert recipe.target == "mean_color"


@pytest.mark.parametrize(("data", "steps", "rates", "dev", "warmup"), rows(TABLE_4))
def test_a_fine_tuning_recipe_is_its_row_of_table_4(data, steps, rates, dev, warmup) -> None:
    recipe = paper(f"finetune_{data}")
    o, images = recipe.optim, recipe.data
    assert (images.name, images.size, images.validation) == (data, 384, dev)
    assert (images.crop_area, images.eval_mode) == (0.05, "squash")  # authors' code
    assert recipe.eval.test and recipe.objective == "supervised"
    assert (recipe.supervised.hidden, recipe.supervised.pool) == (False, "token")
    assert (o.name, o.momentum, o.batch, o.weight_decay, o.clip) == ("sgd", 0.9, 512, 0.0, 1.0)
    assert (o.steps, o.warmup, o.schedule) == (steps, warmup, "cosine") and o.lr in rates


def test_a_size_that_h14_cannot_be_cut_into_names_both_that_it_can() -> None:
    """And the patch next to its own that divides the size."""
    words = ["recipe=paper/finetune_imagenet", "init=scratch", "model=vit_h14"]
    with pytest.raises(
        UserError, match=r"^data\.size=384: .* data\.size=378 or 392, or model\.patch=12\.$"
    ):
        resolve(words, here=False)


def built(model: str) -> encoder.Encoder:
    recipe = resolve(["recipe=paper/supervised_b16_jft", f"model={model}"], here=False)
    with torch.device("meta"):
        return encoder.build_encoder(recipe.model, recipe.data)


@pytest.mark.parametrize(
    ("name", "millions"), [("vit_b16", 86), ("vit_l32", 307), ("vit_h14", 632)]
)
def test_parameters_are_those_of_table_1(name: str, millions: int) -> None:
    """With the hidden layer of the head. Of the two L, the table's 307M is L/32's; L/16 has
    304M."""
    net = built(name)
    count = sum(p.numel() for p in net.parameters()) + net.width**2 + net.width
    assert round(count / 1e6) == millions


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        *((f"r50_vit_{name}16", (3, 4, 9)) for name in "bl"),
        *((f"r50_vit_{name}32", (3, 4, 6, 3)) for name in "bl"),
    ],
)
def test_a_hybrid_cuts_its_patches_from_a_resnet(name: str, stages: tuple[int, ...]) -> None:
    resnet = built(name).backbone.patch_embed.backbone
    assert tuple(len(stage.blocks) for stage in resnet.stages) == stages
