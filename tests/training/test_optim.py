"""The optimiser: what decays, how fast it learns at each step, and one step worked out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.built import Objective, built
from helpers.resolving import resolve
from ssl_vit import costs
from ssl_vit.errors import UserError
from ssl_vit.recipe.optimisation import OPTIMISERS
from ssl_vit.recipe.schema import Optim
from ssl_vit.training import optim

# Every linear and convolution weight of a two-block encoder with MPP's head, by name
DECAYED = {
    "head.weight",
    "encoder.backbone.patch_embed.proj.weight",
    *(
        f"encoder.backbone.blocks.{block}.{layer}.weight"
        for block in (0, 1)
        for layer in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    ),
}


@pytest.fixture
def objective() -> Objective:
    return built()


def learning_rates(**settings) -> list[float]:
    """The learning rates of step 0 to the last, from the real thing."""
    how = Optim(**settings)
    optimizer, schedule = optim.build_optimizer(nn.Linear(1, 1), how)
    found = []
    for _ in range(how.steps + 1):
        (rate,) = {group["lr"] for group in optimizer.param_groups}
        found.append(rate)
        optimizer.step()
        schedule.step()
    return found


def test_frozen_parameters_are_left_out_and_convolutions_of_any_dimension_decay():
    others = nn.BatchNorm1d(2), nn.Embedding(3, 2), nn.Linear(2, 2)
    module = nn.Sequential(nn.Conv1d(2, 2, 1), nn.Conv3d(2, 2, 1), *others)
    module[4].weight.requires_grad_(False)
    decayed, free = optim.parameter_groups(module, 0.1, lr=1.0)
    assert {id(p) for p in decayed["params"]} == {id(module[0].weight), id(module[1].weight)}
    assert len(free["params"]) == 6 and not any(p is module[4].weight for p in free["params"])


BY_HAND = {
    # as BiT: the warm-up lies within the first part
    "steps": (
        {"steps": 200, "lr": 0.48, "drops": [0.25, 0.575, 0.75, 0.925]},
        {0: 0, 5: 0.24, 10: 0.48, 49: 0.48, 50: 0.048, 114: 0.048, 115: 0.0048}
        | {149: 0.0048, 150: 0.00048, 184: 0.00048, 185: 0.000048, 200: 0.000048},
    ),
    # the roots of 4/16 and 9/16 are 1/2 and 3/4
    "wsd": (
        {"steps": 80, "lr": 2e-4, "decay": 0.2},
        {0: 0, 5: 1e-4, 10: 2e-4, 37: 2e-4, 64: 2e-4, 68: 1e-4, 73: 0.5e-4, 80: 0},
    ),
}


@pytest.mark.parametrize("schedule", BY_HAND)
def test_the_schedules_by_hand(schedule: str) -> None:
    settings, wanted = BY_HAND[schedule]
    rates = learning_rates(schedule=schedule, warmup=10, **settings)
    assert {step: rates[step] for step in wanted} == pytest.approx(wanted, rel=1e-9, abs=1e-15)


@settings(max_examples=15)
@given(st.data(), st.integers(2, 200), st.floats(1e-6, 1), st.sampled_from(["cosine", "linear"]))
def test_the_whole_schedule(data, steps, lr, schedule):
    """Linear from 0 over the warm-up, then the formula of each schedule over the rest."""
    warmup = data.draw(st.integers(0, steps - 1))
    end = 0 if schedule == "cosine" else min(1e-5, lr / 2)

    def by_hand(step):
        if step < warmup:
            return lr * step / warmup
        left = 1 - (step - warmup) / (steps - warmup)
        share = (1 - math.cos(math.pi * left)) / 2 if schedule == "cosine" else left
        return end + (lr - end) * share

    rates = learning_rates(steps=steps, warmup=warmup, lr=lr, schedule=schedule)
    wanted = [by_hand(step) for step in range(steps + 1)]
    assert rates == pytest.approx(wanted, rel=1e-9, abs=1e-12 * lr)


def test_steps_are_adam_with_the_decay_beside_it():
    """Loshchilov and Hutter, 2019, algorithm 2, in float64: p <- p - lr (m^ / (sqrt v^ + 1e-8) + wd
    p), on weights alone."""
    how = Optim(steps=10, warmup=3, lr=0.02, betas=[0.8, 0.95], weight_decay=0.3)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)).double()
    mine = {name: p.detach().numpy().copy() for name, p in module.named_parameters()}
    moments = {name: (np.zeros_like(p), np.zeros_like(p)) for name, p in mine.items()}
    optimizer, schedule = optim.build_optimizer(module, how)
    for step in range(7):
        optimizer.zero_grad()
        (module(torch.randn(5, 4, dtype=torch.float64)) ** 3).sum().backward()
        lr = how.lr * (step / 3 if step < 3 else (1 + math.cos(math.pi * (step - 3) / 7)) / 2)
        for name, parameter in module.named_parameters():
            gradient, (m, v), p = parameter.grad.numpy(), moments[name], mine[name]
            m += (1 - 0.8) * (gradient - m)
            v += (1 - 0.95) * (gradient**2 - v)
            decay = 0.3 if name == "0.weight" else 0
            adam = (m / (1 - 0.8 ** (step + 1))) / (np.sqrt(v / (1 - 0.95 ** (step + 1))) + 1e-8)
            p -= lr * (adam + decay * p)
        optimizer.step()
        schedule.step()
        for name, parameter in module.named_parameters():
            found = parameter.detach().numpy()
            np.testing.assert_allclose(found, mine[name], rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("limit", "left"), [(1.0, 1.0), (12.9, 12.9), (13.1, 13.0), (None, 13.0)])
def test_the_norm_is_that_before_clipping(limit, left):
    module = nn.Linear(2, 1)
    # 3, 4, 12: norm 13
    module.weight.grad, module.bias.grad = torch.tensor([[3.0, -4.0]]), torch.tensor([12.0])
    assert optim.clip(module.parameters(), limit).item() == pytest.approx(13)
    assert torch.cat([module.weight.grad[0], module.bias.grad]).tolist() == pytest.approx(
        [x * left / 13 for x in (3, -4, 12)]
    )


@pytest.mark.parametrize("decay", [0.65, 0.9, 1.0])
def test_layers_learn_as_slowly_as_in_beit_and_mae(objective: Objective, decay: float) -> None:
    """Their numbers of layers: 0 the embeddings, 1 to L the blocks, L + 1 all else; the rate is lr
    decay^(L + 1 - number)."""
    groups = optim.parameter_groups(objective, 0.1, lr=2.0, layer_decay=decay)
    rates = {
        id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]
    }
    assert len(rates) == len(list(objective.parameters()))
    for name, p in objective.named_parameters():
        number = 3
        if "patch_embed" in name or name.endswith(("cls_token", "pos_embed")):
            number = 0
        elif ".blocks." in name:
            number = 1 + int(name.split(".blocks.")[1][0])
        assert rates[id(p)] == (
            pytest.approx(2.0 * decay ** (3 - number)),
            0.1 if name in DECAYED else 0.0,
        ), name


def test_two_steps_of_sgd_by_hand():
    """v <- m v + g, w <- w - lr v, with g the gradient and the L2 term."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    how = Optim(name="sgd", lr=0.5, momentum=0.8, weight_decay=0.1, steps=10**9, warmup=0)
    optimizer, _ = optim.build_optimizer(module, how)
    w, v = 1.0, 0.0
    for gradient in (0.3, -0.2):
        module.weight.grad = torch.tensor([[gradient]])
        optimizer.step()
        v = 0.8 * v + gradient + 0.1 * w
        w -= 0.5 * v
    assert module.weight.item() == pytest.approx(w, rel=1e-6)


def test_the_running_mean_by_hand():
    """And that of batch norms' statistics: with those of the last weights averages lost their
    accuracy."""
    own = type(built("recipe=moco_v3").projector[1])
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1), own(1))
    mean = optim.build_average(module, 0.9)
    wanted = 1.0  # it starts at the first step's
    for value in (1.0, 3.0, -2.0):
        for one in (module[0].weight, module[1].running_mean, module[2].running_var):
            nn.init.constant_(one, value)
        optim.update_average(mean, module, 0.9)
        wanted = 0.9 * wanted + 0.1 * value
    found = (mean.module[0].weight, mean.module[1].running_mean, mean.module[2].running_var)
    assert [one.item() for one in found] == pytest.approx([wanted] * 3)
    assert optim.build_average(module, None) is None


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_table_of_optimisers_says_what_torch_keeps(name: str, momentum: float) -> None:
    """Names and shapes of each weight's state after an update, which memory plans count."""
    how = Optim(name=name, momentum=momentum)
    layer = nn.Linear(3, 2)
    optimizer, _ = optim.build_optimizer(layer, how)
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    for weight in layer.parameters():
        state = {k: v for k, v in optimizer.state[weight].items() if v is not None}
        initial = optim.initial_state(how, weight)
        assert {k: v.shape for k, v in state.items()} == {k: v.shape for k, v in initial.items()}
        moments = [value for value in state.values() if value.shape == weight.shape]
        assert len(moments) == len(how.optimiser.moments(how))


def test_an_optimiser_is_one_entry_of_a_table(monkeypatch) -> None:
    """With an entry it can be chosen, trains as its class does and is counted; without one it cannot
    be chosen."""
    with pytest.raises(UserError, match=r"optim.name=adam: did you mean adamw\?"):
        resolve(["recipe=mpp", "optim.name=adam"])
    entry = OPTIMISERS["adamw"]._replace(label="Adam", made_by="torch.optim:Adam")
    monkeypatch.setitem(OPTIMISERS, "adam", entry)
    recipe = resolve(["recipe=mpp", "optim.name=adam"])
    with pytest.raises(UserError, match=r"optim.momentum=0.5: has no effect with optim.name=adam"):
        resolve(["recipe=mpp", "optim.name=adam", "optim.momentum=0.5"])
    optimizer, _ = optim.build_optimizer(nn.Linear(1, 1), recipe.optim)
    assert type(optimizer) is torch.optim.Adam
    adamw = resolve(["recipe=mpp", "optim.name=adamw"])
    plans = [costs.memory_bytes(one, 1, 0, 8, True)["moments"] for one in (recipe, adamw)]
    assert plans[0] == plans[1] > 0
