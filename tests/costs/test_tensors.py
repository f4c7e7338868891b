"""What a run needs, counted, against what torch and the data hold: training images, bytes of
tensors."""

import pytest
import torch

from helpers.options import altered
from helpers.resolving import resolve
from ssl_vit import costs
from ssl_vit.data import batching, run_splits
from ssl_vit.models import attention, encoder
from ssl_vit.objectives import building
from ssl_vit.recipe.schema import Data, compared_views
from ssl_vit.training import optim

SMALL = (
    "data=shapes",
    "data.size=32",
    "model=vit_p8",
    "optim.warmup=0",
    "compute.precision=float32",
)


@pytest.mark.parametrize(
    "words",
    [{"share": 0.1}, {"validation": 0.2}, {"share": 0.03, "validation": 0.01}, {"validation": 0.0}],
)
def test_training_images_are_those_that_a_run_finds(words):
    data = Data(**{"validation": "validation"} | words)
    assert costs.training_images(data) == len(run_splits.load(data).train)


def test_the_attentive_probe_reads_its_images_once_more():
    """It was planned as nothing beside others."""
    words = ["recipe=evaluate", "init=scratch", "data=cifar10", "probe.token_images=1000"]
    asked = ("[attentive]", "[linear,attentive]", "[attentive,few_shot,knn]")
    recipes = [resolve([*words, f"probe.measures={one}"], here=False) for one in asked]
    assert [*map(costs.images_seen, recipes)] == [11_000, 71_000, 71_000]


def held(words, size, fused=False):
    """Bytes of weights, gradients, optimiser state and averaged weights after a step on `size`
    images, and of what autograd keeps for it, parameters aside."""
    recipe = resolve([*words, f"optim.batch={size}"])
    torch.manual_seed(0)
    net = encoder.build_backbone(recipe.model, recipe.data, recipe.optim.dropout)
    objective = building.build_objective(building.Settings.from_recipe(recipe), net, 10)
    for module in objective.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    averaged, (optimizer, _) = (
        optim.build_average(objective, recipe.optim.average),
        optim.build_optimizer(objective, recipe.optim),
    )
    images = batching.ImageDataset(
        run_splits.load(recipe.data).train, recipe.data, train=True, views=compared_views(recipe)
    )
    batch = images.__getitems__(batching.samples_at(0, size, 50_000, 0))
    own, kept = {p.untyped_storage().data_ptr() for p in objective.parameters()}, {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            # held, so that no address is used twice
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    low = recipe.compute.precision == "bfloat16"
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=low),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x),
    ):
        loss = objective(batch).loss
    loss.backward()
    optimizer.step()
    state = [
        x
        for values in optimizer.state.values()
        for x in values.values()
        if isinstance(x, torch.Tensor) and x.ndim
    ]
    found = {
        "weights": list(objective.parameters()),
        "gradients": [p.grad for p in objective.parameters() if p.grad is not None],
        "moments": state,
        "averaged": list(averaged.module.parameters()) if averaged else [],
    }
    return (
        recipe,
        {k: sum(x.untyped_storage().nbytes() for x in v) for k, v in found.items()},
        sum(n for n, _ in kept.values()),
    )


@pytest.mark.parametrize(
    ("words", "fused"),
    [
        (["recipe=mpp", "optim.average=0.99"], False),
        (["recipe=mpp", "target=pixels", "model=vit_n4", "compute.precision=bfloat16"], True),
        (["recipe=mae", "optim.average=0.99"], False),
        (["recipe=mae", "data.size=64", "compute.precision=bfloat16"], True),
        (["recipe=ijepa", "optim.average=0.99"], False),
        (["recipe=moco_v3", "optim.average=0.99"], False),
        (["recipe=lejepa", "views.local_size=16"], False),
        (["recipe=dinov2", "views.local_size=16", "ibot.koleo_group=16"], False),
        (["recipe=supervised"], False),  # with dropout, whose masks take one byte on a GPU alone
        (["recipe=mpp", "model.registers=4", "model.positions=rotary"], True),
        (["recipe=mae", "model.layer_scale=0.1"], False),
        (["recipe=mpp", "model.activation=swiglu", "model.qk_norm=true"], False),
        (["recipe=finetune", "data.size=64"], True),  # SGD
    ],
)
def test_tensors_take_the_bytes_that_are_predicted(words, fused, monkeypatch):
    """Weights, gradients, moments and averaged weights exactly; activations within 10%, and so the
    sum."""
    # fused stands for a GPU, where it does not depend on the precision
    monkeypatch.setattr(attention, "fused_is_faster", lambda query: fused)
    recipe, found, activations = held(altered(SMALL, *words), size=16, fused=fused)
    needed = costs.memory_bytes(recipe, processes=1, zero=0, batch=16, fused=fused)
    assert {name: needed[name] for name in found} == found
    assert needed["activations"] + needed["copies"] == pytest.approx(activations, rel=0.1)
    assert sum(needed.values()) == pytest.approx(sum(found.values()) + activations, rel=0.1)


def test_zero_shards_by_its_papers_formula(monkeypatch):
    """Rajbhandari et al., 2020, Figure 1: 7.5B parameters at 16 bytes on 64 devices, 120 GB and 1.9
    GB. Here weights and gradients have 4 bytes, the moments 8, so that ZeRO-2's 4 + 12 / 64 bytes
    are 31.4 GB and ZeRO-1's 8 + 8 / 64 are 60.9."""
    size = 7_500_000_000
    found = costs.NetworkCost(size, size, size, 0, 0, 0)
    monkeypatch.setattr(costs, "compute_network_cost", lambda recipe: found)
    recipe = resolve(["recipe=mpp", "compute.precision=float32"])
    found = [
        costs.memory_bytes(recipe, processes=64, zero=zero, batch=0, fused=True)
        for zero in range(4)
    ]
    buckets = [each.pop("buckets") / 1e9 for each in found]
    assert buckets == [30, 0, 0, 0]  # DDP's, for its gradients
    assert [sum(each.values()) / 1e9 for each in found] == pytest.approx(
        [120, 60.94, 31.41, 1.875], abs=0.01
    )
    assert (
        found[1]["moments"] == 60e9 / 64
        and found[2]["gradients"] == found[3]["weights"] == 30e9 / 64
    )
