"""Several objectives on one encoder: losses, gradients and whole runs against each of them alone."""

import pytest
import torch

from helpers.built import Objective, built
from helpers.labelled_batches import batch
from helpers.options import altered
from helpers.runs import rows, run
from ssl_vit.training import metric_sums
from ssl_vit.training.distributed import WatchedAccelerator


def joint_of(mpp: float, supervised: float) -> Objective:
    made = built("recipe=joint", f"joint.mpp={mpp}", f"joint.supervised={supervised}")
    for part in made.parts.values():
        torch.nn.init.normal_(part.head.weight)
    return made


@pytest.mark.parametrize(
    ("weights", "idle", "pool"),
    [((1.0, 0.0), "supervised", "avg"), ((0.0, 1.0), "mpp", "token"), ((1.0, 1.0), None, "token")],
)
def test_what_a_part_of_weight_0_has_to_itself_is_frozen(
    weights, idle: str | None, pool: str
) -> None:
    """And nothing else; what is exported as an image's feature is that of the part which runs."""
    joint = joint_of(*weights)
    own = {
        "mpp": ("mask_token", "head.weight", "head.bias"),
        "supervised": ("hidden.0.weight", "hidden.0.bias", "head.weight", "head.bias"),
    }
    frozen = {name for name, p in joint.named_parameters() if not p.requires_grad}
    assert frozen == {f"parts.{idle}.{name}" for name in own.get(idle, ())}
    assert joint.encoder.pool == pool


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
def test_every_weight_that_is_trained_gets_a_gradient(own: list[str]) -> None:
    """DDP fails where one does not."""
    objective = built(*own)
    objective.train()(batch()).loss.backward()
    trained = [(name, p) for name, p in objective.named_parameters() if p.requires_grad]
    assert trained and not [name for name, p in trained if p.grad is None]


def test_the_joint_loss_is_the_weighted_sum_and_its_metrics_are_the_parts() -> None:
    joint, given = joint_of(0.5, 2.0), batch()
    step = joint(given)
    losses = {name: part(given).loss for name, part in joint.parts.items()}
    assert step.loss.item() == pytest.approx(
        0.5 * losses["mpp"].item() + 2 * losses["supervised"].item(), rel=1e-6
    )
    assert step.metrics["loss"][1] == 6
    assert {"mpp/loss_masked", "mpp/accuracy", "supervised/accuracy"} <= step.metrics.keys()


def test_a_step_without_a_label_is_nothing_to_learn_from() -> None:
    none = torch.zeros((), dtype=torch.float64)
    bare = batch()._replace(label=torch.full((6,), -1), loss_denominator=none)
    joint = joint_of(0.5, 2.0)
    assert joint(bare).loss.item() == pytest.approx(0.5 * joint.parts["mpp"](bare).loss.item())


def test_batches_with_different_metrics_are_added_by_name() -> None:
    """They were added by position, so that an accuracy became part of a loss."""
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    sums: metric_sums.Sums = {}
    metric_sums.add_metrics(sums, {"loss": (one, one), "accuracy": (two, two)})
    metric_sums.add_metrics(sums, {"accuracy": (one, two), "loss": (two, one)})
    metric_sums.add_metrics(sums, {"loss": (3 * one, one)}, skipped=torch.tensor(False))
    metric_sums.add_metrics(sums, {"loss": (9 * one, one)}, skipped=torch.tensor(True))
    found = metric_sums.means(built(), sums, WatchedAccelerator(cpu=True))
    assert found == {"loss": (2.0, 3), "accuracy": (0.75, 4)}


def test_the_logged_loss_is_the_weighted_sum_of_the_parts_means() -> None:
    """It was a mean over device batches, which depends on how labels are spread over them. A part
    without a label adds nothing; without any part there is no loss."""
    joint = joint_of(0.5, 2.0)
    means = {"loss": (9.0, 40), "mpp/loss": (3.0, 80), "supervised/loss": (0.7, 5)}
    assert joint.combine_means(means) == means | {"loss": (pytest.approx(2.9), 40)}
    del means["supervised/loss"]
    assert joint.combine_means(means) == means | {"loss": (1.5, 40)}
    del means["mpp/loss"]
    assert joint.combine_means(means) == {}


@pytest.mark.parametrize(("weights", "alone"), [((1, 0), "mpp"), ((0, 1), "supervised")])
def test_a_whole_run_with_one_weight_is_that_objectives_own(tiny, weights, alone) -> None:
    """From the initial weights on, dropout included: the same losses and the same encoder, bit for
    bit."""
    common = altered(tiny, "optim.dropout=0.3", "optim.steps=4", "optim.weight_decay=0.1")
    joint = [f"joint.mpp={weights[0]}", f"joint.supervised={weights[1]}"]
    whole = run([*common, "objective=joint", *joint, "name=joint"]).folder
    own = run([*common, f"objective={alone}", "name=alone"]).folder
    losses = [row["loss"] for row in rows(own)]
    assert [row[f"{alone}/loss"] for row in rows(whole)] == losses
    files = [(folder / "export" / "model.safetensors").read_bytes() for folder in (whole, own)]
    assert files[0] == files[1]
