"""What a run costs: against the paper's Table 6 and torch's own count."""

import json

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers.launching import launch_ranks, outcome
from helpers.resolving import resolve
from ssl_vit import costs, formatting
from ssl_vit.recipe.operation import Compute
from ssl_vit.recipe.schema import Data, Model, Recipe

B = {"width": 768, "depth": 12, "heads": 12, "mlp": 3072}
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


TINY = {"width": 192, "depth": 12, "heads": 3, "mlp": 768}


@pytest.mark.parametrize(
    ("name", "size", "model"),
    [
        ("vit_base_patch32_224", 224, {"patch": 32, **B}),
        ("vit_huge_patch14_224", 224, {"patch": 14, **H}),
        ("vit_tiny_patch16_224", 384, {"patch": 16, **TINY}),
    ],
)
def test_multiply_adds_are_those_that_torch_counts(name, size, model):
    assert 2 * costs.compute_network_cost(recipe(size, **model)).features == counted(
        name, img_size=size
    )


BY_HAND = {
    # recipe: multiply-adds of a forward pass, floating-point operations of a step, of one image
    "mpp": (53158656, 318951936),
    "mae": (23438592, 140631552),
    "simmim_b16": (17142793728, 102856762368),
    "moco_v3": (228610048, 901988352),
    "dino_s16": (25133723648, 113833476096),
    "ibot_s16": (32549517312, 146527694848),
    "ijepa_h14": (218162237440, 639798108160),
    "lejepa": (170907648, 1025445888),
    "joint": (110176000, 661056000),
    "supervised": (57017344, 342104064),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_work_of_a_recipe_is_what_was_counted_by_hand(name):
    """Layer by layer, of every objective, before networks were counted on the meta device. There a
    backward pass had two forward passes; the patch embedding's input needs no gradient, so a step
    costs up to 3% less. By hand a classifier's head had no part in it."""
    forward, step = BY_HAND[name]
    found = costs.compute_network_cost(
        resolve([f"recipe={name}", *IMAGES.get(name, [])], here=False)
    )
    assert found.forward == pytest.approx(forward, rel=0.001)
    assert 0.97 < 2 * found.training / step < 1.003


IMAGES = {name: ["data=imagenet"] for name in BY_HAND if name.endswith(("16", "14"))}


@pytest.mark.parametrize(
    ("own", "more"),
    [
        ("model.registers=16", 2 * 16 * 128),
        ("model.layer_scale=1e-5", 4 * 2 * 128),
        ("model.qk_norm=true", 4 * 4 * 32),
        ("model.positions=none", -65 * 128),
        ("model.positions=learned_2d", (8 - 65) * 128),
        ("model.positions=sincos_2d", -65 * 128),
    ],
)
def test_parameters_of_the_encoders_options(own, more):
    """Of 4 blocks, 128 wide, with 4 heads, on 8 x 8 patches: a register has a
    token and a position of 128, rows and columns share 8 positions, LayerScale two
    factors a channel and block, norms of queries and keys a scale and a shift of each of a head's
    32 channels."""
    words = ["recipe=mae", "model=vit_n8", "data.size=64"]
    plain, changed = (costs.compute_network_cost(resolve([*words, *one])) for one in ([], [own]))
    assert changed.encoder - plain.encoder == more


def test_momentum_copies_and_frozen_parameters_are_parameters_that_are_not_trained():
    """MoCo v3: an encoder with a projector and a predictor, and a copy of the first two; the patch
    projection is frozen."""
    words = ["recipe=moco_v3", "optim.batch=8", "model=vit_n8", "data.size=64"]
    found = costs.compute_network_cost(resolve(words))
    own = resolve(words).groups["moco"]
    layers = [(128, own.hidden), (own.hidden, own.hidden), (own.hidden, own.width)]
    projector = sum(a * b for a, b in layers) + 2 * 2 * own.hidden
    predictor = 2 * own.hidden * own.width + 2 * own.hidden
    assert found.parameters == 2 * (found.encoder + projector) + predictor
    assert found.trained == found.encoder + projector + predictor - (3 * 8 * 8 + 1) * 128


def test_a_patch_projection_that_is_trained_has_a_backward_pass():
    """Of its weights alone, since nobody trains the pixels: for each of two views 64 patches of 8
    px, 128 wide."""
    words = ["recipe=moco_v3", "optim.batch=8", "model=vit_n8", "data.size=64"]
    frozen, trained = (
        costs.compute_network_cost(resolve([*words, f"moco.freeze_patches={one}"]))
        for one in ("true", "false")
    )
    assert trained.training - frozen.training == 2 * 64 * 3 * 8**2 * 128
    assert trained.forward == frozen.forward


def test_images_that_are_compared_with_a_batch_cost_more_in_a_larger_one():
    """MoCo v3: each of two views with all keys, of moco.width numbers."""
    few, many = (
        costs.compute_network_cost(resolve(["recipe=moco_v3", f"optim.batch={batch}"]))
        for batch in (8, 72)
    )
    assert many.forward - few.forward == 2 * 64 * resolve(["recipe=moco_v3"]).groups["moco"].width


SEVERAL = """
import json, torch.distributed
from ssl_vit import costs
from ssl_vit import resolve
torch.distributed.init_process_group("gloo")
for words in WORDS:
    print(json.dumps(costs.compute_network_cost(resolve(words))), flush=True)
torch.distributed.destroy_process_group()
"""


def test_the_work_is_that_of_a_batch_on_any_number_of_processes():
    """In a process of several the objectives that compare a global batch counted it twice over."""
    words = [["recipe=moco_v3"], ["recipe=dino", "dino.balance=sinkhorn", "dino.koleo=0.1"]]
    statuses, outputs = outcome(launch_ranks(2, "-c", SEVERAL.replace("WORDS", repr(words))))
    assert statuses == [0, 0], outputs
    wanted = [list(costs.compute_network_cost(resolve(one))) for one in words]
    for printed in outputs:
        assert [json.loads(line) for line in printed.splitlines() if line[0] == "["] == wanted


def test_what_dropout_keeps_takes_memory():
    words = ["recipe=mpp", "compute.precision=float32"]
    without, dropped = (
        costs.activation_bytes(resolve([*words, f"optim.dropout={rate}"]), fused=True)
        for rate in (0, 0.1)
    )
    assert dropped > 1.05 * without


def test_counting_draws_no_random_number_and_keeps_no_network():
    before = torch.get_rng_state()
    found = costs.compute_network_cost(resolve(["recipe=dino", "dino.hidden=24"]))
    assert torch.equal(before, torch.get_rng_state())
    assert found is costs.compute_network_cost(
        resolve(["recipe=dino", "dino.hidden=24", "optim.lr=1", "seed=3"])
    )


def test_forward_and_backward_are_three_forwards():
    found = costs.exaflop(recipe(patch=16, **TINY), 10**18)
    assert found == pytest.approx(counted("vit_tiny_patch16_224", backward=True), rel=0.001)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599.7, "1 h 00 min"),
        (3 * 3600 + 5 * 60 + 59, "3 h 05 min"),
        (100 * 3600, "100 h 00 min"),
        (float("inf"), "inf s"),
    ],
)
def test_seconds_are_said_for_people(seconds, text):
    assert formatting.format_duration(seconds) == text
