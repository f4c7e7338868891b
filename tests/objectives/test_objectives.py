"""Labels, and several objectives on one encoder: losses against a slow version, gradients that
reach the shared encoder."""

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from helpers.labelled_batches import DATA, TINY, batch, net, supervised
from helpers.options import altered
from ssl_vit import costs
from ssl_vit.data.batching import Batch
from ssl_vit.jobs import train as train_job
from ssl_vit.models import encoder
from ssl_vit.objectives import building
from ssl_vit.objectives.base import Objective
from ssl_vit.objectives.joint import JointOptions
from ssl_vit.objectives.joint.network import Joint
from ssl_vit.objectives.mpp.network import MaskedPatchPrediction
from ssl_vit.objectives.supervised.network import Supervised
from ssl_vit.objectives.targets import patch_targets
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.schema import Recipe
from ssl_vit.runs.folder import Run
from ssl_vit.training import loop


def mpp(on: encoder.Encoder) -> MaskedPatchPrediction:
    torch.manual_seed(2)
    made = MaskedPatchPrediction(
        on, patch_targets.Colors(4, 1), rate=0.5, mask=0.8, random=0.1, source="image"
    )
    torch.nn.init.normal_(made.head.weight)
    return made


def gradients(objective: Objective, given: Batch) -> dict[str, torch.Tensor]:
    """Of the encoder's parameters."""
    objective.zero_grad()
    objective(given).loss.backward()
    return {name: p.grad.clone() for name, p in objective.encoder.named_parameters()}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_softmax_loss_is_the_smoothed_cross_entropy(smoothing: float) -> None:
    objective, given = supervised(smoothing=smoothing), batch()
    log_probability = log_softmax(objective.logits(given).detach().double().numpy(), axis=1)
    wanted = np.full(log_probability.shape, smoothing / 5)
    wanted[np.arange(6), given.label] += 1 - smoothing
    step = objective(given)
    assert step.loss.item() == pytest.approx(-(wanted * log_probability).sum(1).mean(), rel=1e-5)
    assert step.metrics["accuracy"][0] == (log_probability.argmax(1) == given.label.numpy()).sum()


def test_the_sigmoid_loss_sums_over_classes_and_starts_improbable() -> None:
    objective, given = supervised(loss="sigmoid"), batch()
    logits = objective.logits(given).detach().double().numpy()
    sign = np.where(np.arange(5) == given.label.numpy()[:, None], 1, -1)
    assert objective(given).loss.item() == pytest.approx(
        np.log1p(np.exp(-sign * logits)).sum(1).mean(), rel=1e-5
    )
    fresh = Supervised(net(), 5, loss="sigmoid", smoothing=0.0, hidden=True, pool="token")
    assert fresh(given).loss.item() == pytest.approx(
        10 + math.log1p(math.exp(-10)) + 4 * math.log1p(math.exp(-10)), rel=1e-5
    )


def test_the_head_has_a_hidden_tanh_layer_only_where_asked_for() -> None:
    given = batch()
    plain, deep = supervised(hidden=False), supervised(hidden=True)
    assert (
        sum(p.numel() for p in deep.parameters()) - sum(p.numel() for p in plain.parameters())
        == 32 * 32 + 32
    )
    token = deep.encoder(deep.encoder.patch(given.image))[:, 0]
    by_hand = (
        torch.tanh(token @ deep.hidden[0].weight.T + deep.hidden[0].bias) @ deep.head.weight.T
        + deep.head.bias
    )
    torch.testing.assert_close(deep.logits(given), by_hand)


def test_images_without_a_label_take_no_part() -> None:
    objective, given = supervised(), batch(6)
    some = given._replace(label=torch.where(torch.arange(6) % 2 == 0, given.label, -1))
    known = given.map(lambda x: x[::2])
    assert objective(some).loss.item() == pytest.approx(objective(known).loss.item(), rel=1e-6)
    assert objective(some).metrics["loss"][1] == 3
    none = given._replace(label=torch.full((6,), -1))
    assert objective(none).loss == 0


def test_passes_with_unequal_labels_average_to_the_global_mean() -> None:
    """The sum over labelled images divided by their count in the global batch, however they lie in
    its passes."""
    objective, given = supervised(), batch(8)
    given = given._replace(label=torch.tensor([1, 2, 3, 4, -1, -1, -1, 0]))
    alone = type("Alone", (), {"num_processes": 1, "reduce": staticmethod(lambda x, how: x)})
    passes = loop._with_label_counts(
        [given.map(lambda x: x[:4]), given.map(lambda x: x[4:])], alone
    )
    split = sum(objective(part).loss / 2 for part in passes)
    assert split.item() == pytest.approx(objective(given).loss.item(), rel=1e-6)


def test_both_objectives_reach_every_parameter_of_the_one_encoder() -> None:
    shared, given = net(), batch()
    joint = Joint(shared, {"mpp": (mpp(shared), 1.0), "supervised": (supervised(shared), 1.0)})
    assert len(list(joint.parameters())) == len({id(p) for p in joint.parameters()})
    for part in joint.parts.values():
        assert part.encoder is shared
        assert all(grad.abs().sum() > 0 for grad in gradients(part, given).values())


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0)])
def test_weights_of_one_and_nothing_are_each_objective_alone(weights: tuple[float, float]) -> None:
    shared, given = net(), batch()
    parts = {"mpp": mpp(shared), "supervised": supervised(shared)}
    joint = Joint(
        shared,
        {name: (part, weight) for (name, part), weight in zip(parts.items(), weights, strict=True)},
    )
    alone = parts["mpp" if weights[0] else "supervised"]
    assert joint(given).loss == alone(given).loss
    together, by_itself = gradients(joint, given), gradients(alone, given)
    assert all(torch.equal(together[name], by_itself[name]) for name in by_itself)


@pytest.mark.parametrize(
    ("weights", "idle", "pool"),
    [((1.0, 0.0), "supervised", "avg"), ((0.0, 1.0), "mpp", "token"), ((1.0, 1.0), None, "token")],
)
def test_what_a_part_of_weight_0_has_to_itself_is_frozen(
    weights, idle: str | None, pool: str
) -> None:
    """And nothing else; what is exported as an image's feature is that of the part which runs."""
    shared = net()
    parts = {"mpp": mpp(shared), "supervised": supervised(shared)}
    joint = Joint(
        shared,
        {name: (part, weight) for (name, part), weight in zip(parts.items(), weights, strict=True)},
    )
    own = {
        "mpp": ("mask_token", "head.weight", "head.bias"),
        "supervised": ("hidden.0.weight", "hidden.0.bias", "head.weight", "head.bias"),
    }
    frozen = {name for name, p in joint.named_parameters() if not p.requires_grad}
    assert frozen == {f"parts.{idle}.{name}" for name in own.get(idle, ())}
    words = [f"joint.{name}={weight}" for name, weight in zip(parts, weights, strict=True)]
    assert resolve(["recipe=joint", *words]).pool == pool


@pytest.mark.parametrize(
    "own",
    [
        ["corruption.mask=0", "corruption.random=0.5", "corruption.keep=0.5"],
        ["corruption.rate=0.001"],
        ["model.registers=2", "model.layer_scale=1e-5", "model.qk_norm=true"],
        ["model.activation=swiglu", "model.positions=learned_2d"],
        ["model.positions=sincos_2d"],
        ["model.positions=none"],
        ["model.timm=beit3_base_patch16_224"],  # a norm of timm's own head, which is not ours
        ["recipe=supervised", "supervised.pool=avg"],
        ["recipe=supervised", "optim.drop_path=0.9"],
        ["recipe=joint", "joint.mpp=0"],
        ["recipe=joint", "joint.supervised=0"],
        ["recipe=mae", "model.registers=2", "model.positions=rotary"],
    ],
)
def test_every_weight_that_is_trained_gets_a_gradient(tiny: list[str], own: list[str]) -> None:
    """DDP fails where one does not."""
    recipe = resolve(altered(tiny, *own, "name=x"))
    objective = building.build(
        building.Settings.of(recipe),
        encoder.build_backbone(recipe.model, recipe.data, 0, recipe.optim.drop_path),
        5,
    )
    objective.train()(batch()).loss.backward()
    assert not [
        name for name, p in objective.named_parameters() if p.requires_grad and p.grad is None
    ]


def test_the_joint_loss_is_the_weighted_sum_and_its_metrics_are_the_parts() -> None:
    shared, given = net(), batch()
    joint = Joint(shared, {"mpp": (mpp(shared), 0.5), "supervised": (supervised(shared), 2.0)})
    step = joint(given)
    losses = {name: part(given).loss for name, part in joint.parts.items()}
    assert step.loss.item() == pytest.approx(
        0.5 * losses["mpp"].item() + 2 * losses["supervised"].item(), rel=1e-6
    )
    total, count = step.metrics["loss"]
    assert (total / count).item() == pytest.approx(step.loss.item(), rel=1e-6) and count == 6
    assert {"mpp/loss_masked", "mpp/accuracy", "supervised/accuracy"} <= step.metrics.keys()


def test_dropout_follows_the_dense_layers_but_qkv_and_the_positions() -> None:
    torch.manual_seed(0)
    backbone = encoder.build_encoder(TINY, DATA, dropout=0.25).backbone
    rates = {name: m.p for name, m in backbone.named_modules() if isinstance(m, torch.nn.Dropout)}
    on = {name for name, rate in rates.items() if rate == 0.25}
    blocks = {
        f"blocks.{i}.{name}"
        for i in range(2)
        for name in ("attn.proj_drop", "mlp.drop1", "mlp.drop2")
    }
    assert on == {"pos_drop"} | blocks
    assert all(rate == 0 for name, rate in rates.items() if name not in on)


def test_a_step_without_a_label_is_nothing_to_learn_from() -> None:
    bare = batch()._replace(label=torch.full((6,), -1))
    on = net()
    joint = Joint(on, {"mpp": (mpp(on), 1.0), "supervised": (supervised(on), 1.0)})
    step = joint(bare._replace(loss_denominator=torch.zeros((), dtype=torch.float64)))
    assert torch.isfinite(step.loss) and torch.isfinite(step.metrics["loss"][0])
    alone = mpp(on)(bare).metrics["loss"]
    assert step.metrics["loss"][0] / 6 == pytest.approx(float(alone[0] / alone[1]))


@pytest.mark.parametrize(("loss", "classes"), [("softmax", 5), ("sigmoid", 5), ("sigmoid", 1)])
def test_guessing_is_what_an_even_guess_costs(loss: str, classes: int) -> None:
    """By the loss itself, on the logits that say 1 / C of every class."""
    made = Supervised(net(), classes, loss=loss, smoothing=0.0, hidden=False, pool="token")
    even = 0.0 if loss == "softmax" else -math.log(classes - 1) if classes > 1 else 100.0
    torch.nn.init.constant_(made.head.bias, even)
    drawn = batch()._replace(label=torch.tensor([0, -1, 0, 0, 0, 0]))
    (total, count), (hits, images) = (
        made.baselines(drawn)[name] for name in ("chance_loss", "chance")
    )
    assert float(total / count) == pytest.approx(
        float(made(drawn).metrics["loss"][0] / 5), abs=1e-6
    )
    assert (float(count), float(images), float(hits / images)) == (5, 5, 1 / classes)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(("weights", "alone"), [((1, 0), "mpp"), ((0, 1), "supervised")])
def test_a_whole_run_with_one_weight_is_that_objectives_own(
    tmp_path, tiny, weights, alone, dropout
) -> None:
    """From the initial weights on, dropout included: the same losses and the same encoder, bit for
    bit."""
    common = altered(
        tiny, f"optim.dropout={dropout}", "optim.steps=4", "log.every=1", "optim.weight_decay=0.1"
    )
    joint = [
        "objective=joint",
        f"joint.mpp={weights[0]}",
        f"joint.supervised={weights[1]}",
        "name=joint",
    ]
    runs = []
    for words in (joint, [f"objective={alone}", "name=alone"]):
        runs.append(Run(resolve([*common, *words])))
        train_job.train(runs[-1])
    losses = [
        [row[name] for row in run.rows()]
        for run, name in zip(runs, (f"{alone}/loss", "loss"), strict=True)
    ]
    assert losses[0] == losses[1]
    files = [(run.export / "model.safetensors").read_bytes() for run in runs]
    assert files[0] == files[1]


def test_joint_is_counted_as_many_passes_as_it_makes() -> None:
    def recipe(**joint):
        return Recipe(objective="joint", data=DATA, model=TINY, joint=JointOptions(**joint))

    parts = [
        costs.exaflop(Recipe(objective=name, data=DATA, model=TINY), 1000)
        for name in ("mpp", "supervised")
    ]
    assert costs.exaflop(recipe(), 1000) == pytest.approx(sum(parts))
    alone = [costs.exaflop(recipe(**{name: 0.0}), 1000) for name in ("supervised", "mpp")]
    assert alone == parts
