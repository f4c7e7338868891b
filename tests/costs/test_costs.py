"""What a run costs: against the paper's Table 6 and torch's own count."""

import dataclasses
from contextlib import nullcontext

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from ssl_vit import costs, formatting
from ssl_vit.config.operation import Compute
from ssl_vit.config.resolve import resolve
from ssl_vit.config.schema import Data, Model, Recipe
from ssl_vit.data.batching import Batch
from ssl_vit.jobs.setup import objective_settings
from ssl_vit.lab.study import read, tasks
from ssl_vit.models import encoder
from ssl_vit.objectives import building

JFT, IMAGENET = 303_000_000, 1_281_167
B = {"width": 768, "depth": 12, "heads": 12, "mlp": 3072}
L = {"width": 1024, "depth": 24, "heads": 16, "mlp": 4096}
H = {"width": 1280, "depth": 32, "heads": 16, "mlp": 5120}


def recipe(size=224, precision="float32", **model):
    """Supervised: MPP's last block computes less."""
    return Recipe(
        objective="supervised",
        data=Data(size=size),
        model=Model(**model),
        compute=Compute(precision=precision),
    )


def counted(name, backward=False, **options):
    """Floating-point operations of one image's pass as torch counts them."""
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=0, **options)
        image = torch.empty(1, 3, *model.patch_embed.img_size)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    with FlopCounterMode(display=False) as counter:
        out = model(image)
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("model", "patch", "images", "exaflop", "within"),
    [
        (B, 16, 7 * JFT, 224, 0.01),
        (L, 32, 7 * JFT, 196, 0.01),
        (L, 16, 7 * JFT, 783, 0.01),
        (H, 14, 14 * JFT, 4262, 0.01),
        (B, 32, 7 * JFT, 55, 0.03),
        (B, 16, 10**6 * 4096, 432, 0.01),  # MPP, 1M steps; the rest of paper.md's Compute
        (B, 16, 10**5 * 4096, 43, 0.01),
        (B, 16, 300 * IMAGENET, 40.5, 0.01),
    ],
)
def test_the_papers_table_6(model, patch, images, exaflop, within):
    assert costs.exaflop(recipe(patch=patch, **model), images) == pytest.approx(exaflop, rel=within)


@pytest.mark.parametrize(
    ("name", "size", "model"),
    [
        (
            "vit_small_patch16_224",
            224,
            {"patch": 16, "width": 384, "depth": 12, "heads": 6, "mlp": 1536},
        ),
        ("vit_base_patch32_224", 224, {"patch": 32, **B}),
        ("vit_huge_patch14_224", 224, {"patch": 14, **H}),
        (
            "vit_tiny_patch16_224",
            384,
            {"patch": 16, "width": 192, "depth": 12, "heads": 3, "mlp": 768},
        ),
    ],
)
def test_multiply_adds_are_those_that_torch_counts(name, size, model):
    assert 2 * costs.multiply_adds(recipe(size, **model)) == pytest.approx(
        counted(name, img_size=size), rel=0.01
    )


def on_meta(recipe):
    """The recipe's objective without memory, its attention not fused, so that torch counts it."""
    with torch.device("meta"):
        net = encoder.build_encoder(recipe.model, recipe.data)
        objective = building.build(objective_settings(recipe), net, 0)
    for module in objective.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    return objective


def objective_count(own):
    """The recipe, the objective, and the floating-point operations of its pass on one image."""
    recipe = resolve([*own, "compute.precision=float32"], here=False)
    objective = on_meta(recipe)
    with torch.device("meta"):
        image = torch.empty(1, 3, recipe.data.size, recipe.data.size, dtype=torch.uint8)
        one = torch.zeros(1, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        objective(Batch(image, one, one, one))
    return recipe, objective, counter.get_total_flops()


@pytest.mark.parametrize("recipe_name", ["simmim_b16", "mae_b16"])
@pytest.mark.parametrize(
    "own",
    [
        [
            *("model.positions=learned", "model.registers=16", "model.layer_scale=1e-5"),
            "model.qk_norm=true",
        ],
        ["model.activation=swiglu", "model.positions=learned_2d"],
        ["model.positions=rotary", "model.activation=swiglu", "model.mlp=2048"],
        ["model.positions=sincos_2d"],
    ],
)
def test_options_of_the_encoder_are_counted_as_torch_counts_them(recipe_name, own):
    recipe, objective, flops = objective_count([f"recipe={recipe_name}", *own])
    assert 2 * costs.multiply_adds(recipe) == pytest.approx(flops, rel=0.01)
    assert costs.parameters(recipe) == sum(
        p.numel() for p in objective.parameters() if p.requires_grad
    )


@pytest.mark.parametrize("target", ["mean_color", "grid_color", "pixels"])
def test_a_target_is_counted_with_its_head(target):
    """As torch counts it: of a small encoder, the head of 4 x 4 colours is half of the work."""
    own = ["recipe=mpp", "model=vit_p8", "data.size=32", f"target={target}"]
    recipe, objective, flops = objective_count(own)
    assert 2 * costs.multiply_adds(recipe) == pytest.approx(flops, rel=0.001)
    share = 8 * objective.head.weight.numel() / costs.multiply_adds(recipe)
    assert (share > 0.45) == (target == "grid_color")


@pytest.mark.parametrize("own", [["recipe=mae"], ["recipe=mae_b16"]])
def test_a_masked_autoencoder_is_counted_as_torch_counts_it(own):
    """Forward, of the encoder on the visible patches and the decoder on all, with its head; and its
    parameters."""
    mae, objective, flops = objective_count(own)
    assert 2 * costs.multiply_adds(mae) == pytest.approx(flops, rel=0.01)
    assert costs.parameters(mae) == sum(
        p.numel() for p in objective.parameters() if p.requires_grad
    )
    assert costs.exaflop(mae, 10**18) == pytest.approx(6 * costs.multiply_adds(mae))
    whole = costs.encoder_multiply_adds(mae)
    assert costs.multiply_adds(mae) < whole
    assert costs.multiply_adds(dataclasses.replace(mae, objective="probe")) == whole


@pytest.mark.parametrize("name", ["moco_v3", "moco_v3_b16"])
def test_moco_is_counted_as_torch_counts_it(name, monkeypatch):
    """Forward and backward, of two views through the encoder and its momentum copy, with projector,
    predictor and the similarities of the whole batch; and its parameters."""
    words = [f"recipe={name}", "optim.batch=8", "compute.precision=float32"]
    moco = resolve(words, here=False)
    objective = on_meta(moco)
    monkeypatch.setattr(torch, "autocast", lambda *given, **how: nullcontext())  # none on meta
    size = moco.data.size
    with torch.device("meta"):
        one = torch.zeros(8, dtype=torch.int64)
        views = torch.empty(8, 2, 3, size, size, dtype=torch.uint8)
    with FlopCounterMode(display=False) as forward:
        step = objective(Batch(views[:, 0], one, one, one, views=views))
    with FlopCounterMode(display=False) as backward:
        step.loss.backward()
    counted = [counter.get_total_flops() for counter in (forward, backward)]
    assert 2 * 8 * costs.multiply_adds(moco) == pytest.approx(counted[0], rel=0.01)
    assert costs.exaflop(moco, 8 * 10**18) == pytest.approx(sum(counted), rel=0.01)
    numbers = [p.numel() for p in objective.parameters() if p.requires_grad]
    frozen = objective.encoder.backbone.patch_embed.proj.weight
    assert costs.parameters(moco) == sum(numbers) + frozen.numel() + len(frozen)
    copy = objective.momentum.parameters()
    assert costs.momentum_parameters(moco) == sum(p.numel() for p in copy)


def test_a_patch_projection_that_is_trained_has_a_backward_pass():
    """Two passes for each of two views: 64 patches of 8 px, 128 wide."""
    words = ["recipe=moco_v3", "optim.batch=8", "model=vit_n8", "data.size=64"]
    frozen, trained = (resolve([*words, f"moco.freeze_patches={one}"]) for one in ("true", "false"))
    more = costs.exaflop(trained, 10**18) - costs.exaflop(frozen, 10**18)
    assert more == pytest.approx(2 * 2 * 2 * 64 * 3 * 8**2 * 128)


def test_arms_at_equal_exaflop_give_a_masked_autoencoder_more_steps():
    """As many as its cost has fewer multiply-adds than MPP's."""
    arms = {name: {"pretrain": {"objective": name}} for name in ("mpp", "mae")}
    options = {"recipe": "mae", "objective": "mpp"}
    study = {
        "title": "t",
        "match": {"exaflop": "arm"},
        "axes": {"arm": arms},
        "runs": {"pretrain": {"tool": "pretrain", "over": ["arm"], "options": options}},
    }
    plan = tasks.plan(read.build(study, "x"), {}, {})
    steps = {task.at["arm"]: int(task.options["optim.steps"]) for task in plan.values()}
    words = (["recipe=mae", "objective=mpp"], ["recipe=mae"])
    cost = [costs.multiply_adds(resolve(one)) for one in words]
    ratio = cost[0] / cost[1]
    assert sorted(steps.values()) == [900, round(900 * ratio)] and ratio > 1.5


def test_forward_and_backward_are_three_forwards():
    small = recipe(patch=16, width=384, depth=12, heads=6, mlp=1536)
    assert costs.exaflop(small, 10**18) == pytest.approx(
        counted("vit_small_patch16_224", backward=True), rel=0.02
    )


def test_tokens_are_the_patches_and_one():
    assert [
        costs.tokens(recipe(size, patch=patch)) for size, patch in ((224, 16), (224, 14), (32, 4))
    ] == [197, 257, 65]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (45, "45 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (250, "4 min 10 s"),
        (3599, "59 min 59 s"),
        (3599.7, "1 h 00 min"),
        (3 * 3600 + 5 * 60 + 59, "3 h 05 min"),
        (100 * 3600, "100 h 00 min"),
        (float("inf"), "inf s"),
    ],
)
def test_seconds_are_said_for_people(seconds, text):
    assert formatting.duration(seconds) == text
