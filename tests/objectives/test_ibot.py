"""iBOT: its loss and gradients against a plain implementation in float64, its masks, and runs."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn

from helpers.built import Objective, built
from helpers.exactness import (
    Unbroken,
    assert_a_killed_run_ends_as,
    assert_is_plain,
    shaken,
)
from helpers.options import TINY, altered
from helpers.self_distillation import plain_koleo, plain_logits, plain_sinkhorn, plain_tokens
from helpers.view_batches import view_batch
from ssl_vit import rng
from ssl_vit.data.batching import Batch

IBOT = altered(
    TINY, "recipe=ibot", "views.local_size=8", "ibot.prototypes=32", "eval.collapse=null"
)


SIZES = ("ibot.prototypes=12", "ibot.hidden=24", "ibot.width=10", "ibot.weight=0.7")
APART, OWN_HEAD, SINKHORN = "ibot.shared=false", "ibot.own_head=true", "ibot.balance=sinkhorn"


def made(*own: str) -> Objective:
    objective = shaken(built(*IBOT, *SIZES, "ibot.warmup=0.5", *own))
    objective.assign.centre_K.copy_(torch.linspace(-0.2, 0.3, 12))
    objective.assign_patches.centre_K.copy_(torch.linspace(0.4, -0.1, 12))
    objective.start_step(0.6)
    return objective


def of_views(of: nn.Module, tokens: Tensor) -> Tensor:
    return plain_logits(of.head.mlp, of.head.prototypes, tokens[:, 0])


def of_patches(of: nn.Module, tokens: Tensor) -> Tensor:
    head = of.head
    mlp = head.mlp if head.mlp_of_patches is None else head.mlp_of_patches
    prototypes = head.prototypes if head.of_patches is None else head.of_patches
    return plain_logits(mlp, prototypes, tokens[:, 1:])


def plain_loss(
    objective: Objective, given: Batch, masks: list[Tensor], temperature: float
) -> Tensor:
    """The authors' `iBOTLoss`, with `temperature` of the teacher's patches; of views it is 0.04."""
    views = [given.views[:, 0], given.views[:, 1]]
    crops = [] if given.local is None else list(given.local.transpose(0, 1))
    student = [
        plain_tokens(objective.encoder, view, mask, objective.mask_D)
        for view, mask in zip(views, masks, strict=True)
    ]
    local = [plain_tokens(objective.encoder, crop) for crop in crops]
    with torch.no_grad():
        taught = [plain_tokens(objective.teacher.encoder, view) for view in views]
        logits = torch.cat([of_views(objective.teacher, one) for one in taught])
        patches = torch.cat([of_patches(objective.teacher, one) for one in taught])
        if objective.assign.balance == "sinkhorn":
            targets = plain_sinkhorn(logits, 0.04)
            of_each = torch.zeros_like(patches)  # DINOv2's: of masked patches alone
            masked = torch.cat(masks)
            of_each[masked] = plain_sinkhorn(patches[masked], temperature)
        else:
            targets = torch.softmax((logits - objective.assign.centre_K) / 0.04, -1)
            centre = objective.assign_patches.centre_K
            of_each = torch.softmax((patches - centre) / temperature, -1)
    view_loss, pairs, patch_loss = 0.0, 0, 0.0
    for q, (target, wanted) in enumerate(zip(targets.chunk(2), of_each.chunk(2), strict=True)):
        for v, tokens in enumerate([*student, *local]):
            if v != q:
                found = (of_views(objective, tokens) / 0.1).log_softmax(-1)
                view_loss = view_loss - (target * found).sum(-1).mean()
                pairs += 1
        found = (of_patches(objective, student[q]) / 0.1).log_softmax(-1)
        cross = -(wanted * found).sum(-1)
        each = (cross * masks[q]).sum(-1) / masks[q].sum(-1).clamp(min=1)
        patch_loss = patch_loss + each.mean() / 2
    koleo = sum(plain_koleo(tokens[:, 0], objective.koleo_group) for tokens in student)
    return view_loss / pairs + objective.weight * patch_loss + objective.koleo_weight * koleo


@pytest.mark.parametrize(
    ("own", "local", "progress", "temperature"),
    [
        ([], 0, 0.6, 0.07),
        ([], 3, 0.25, 0.055),  # half of the warm-up
        ([APART, SINKHORN], 3, 0.6, 0.07),
        ([APART, OWN_HEAD], 3, 0.6, 0.07),
        (["ibot.koleo=0.2"], 0, 0.6, 0.07),
        # DINOv2's parts
        ([APART, OWN_HEAD, SINKHORN, "ibot.koleo=0.1", "ibot.koleo_group=3"], 3, 0.6, 0.07),
    ],
)
def test_loss_and_gradients_are_those_of_a_plain_implementation(
    own: list[str], local: int, progress: float, temperature: float
) -> None:
    objective, given = made(*own), view_batch(6, local)
    assert (objective.head.mlp_of_patches is None) != (OWN_HEAD in own)
    objective.start_step(progress)
    masks = list(objective.sample_masks(given.key).chunk(2))
    assert 0 < sum(mask.any(1).sum().item() for mask in masks) < 12
    metrics = assert_is_plain(
        objective, given, lambda plain: plain_loss(plain, given, masks, temperature)
    )
    total = {name: float(a / n) for name, (a, n) in metrics.items()}
    koleo = objective.koleo_weight * total.get("koleo_loss", 0)
    parts = total["view_loss"] + 0.7 * total["patch_loss"] + koleo
    assert total["loss"] == pytest.approx(parts)


def test_the_prototypes_of_patches_are_frozen_at_first_too() -> None:
    objective, given = made(APART, "ibot.freeze=0.25"), view_batch(6, 0)
    for progress, frozen in ((0.0, True), (0.25, False)):
        objective.start_step(progress)
        objective.zero_grad()
        objective(given).loss.backward()
        gradient = objective.head.of_patches.weight.grad
        assert (not gradient.any()) == frozen
        held = {id(p) for p in objective.frozen_weights(progress)}
        prototypes = (objective.head.prototypes.weight, objective.head.of_patches.weight)
        assert held == ({id(p) for p in prototypes} if frozen else set())


def test_the_centre_of_patches_is_a_mean_over_all_patches() -> None:
    objective, given = made(APART), view_batch(6, 0)
    plain = deepcopy(objective).double()
    teacher = plain.teacher
    logits = torch.cat(
        [
            of_patches(teacher, plain_tokens(teacher.encoder, view))
            for view in given.views.transpose(0, 1)
        ]
    )
    wanted = 0.9 * plain.assign_patches.centre_K + 0.1 * logits.mean((0, 1))
    objective(given)
    objective.after_step(torch.tensor(False))
    found = objective.assign_patches.centre_K.double()
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


def test_masks_are_of_as_many_patches_as_said() -> None:
    """Half of the views are whole, of others 2 to 8 of 16 patches, each number alike; each view is
    drawn on its own, and by its key alone."""
    objective = made()
    key = torch.from_numpy(rng.key(0, 0, np.arange(3000)))
    found = objective.sample_masks(key)
    count = found.sum(1)
    assert binomtest(int((count == 0).sum()), 6000, 0.5).pvalue > 1e-4
    seen = np.bincount(count[count > 0].numpy(), minlength=9)
    assert seen[:2].sum() == 0 and len(seen) == 9
    for number in range(2, 9):
        assert binomtest(int(seen[number]), int(seen.sum()), 1 / 7).pvalue > 1e-4
    first, second = found.chunk(2)
    assert not torch.equal(first, second)
    assert torch.equal(objective.sample_masks(key[5:7]), torch.cat([first[5:7], second[5:7]]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    words = altered(IBOT, APART, OWN_HEAD)
    return Unbroken.of(words, tmp_path_factory.mktemp("ibot"))


def test_a_killed_run_goes_on_to_the_same_end(whole: Unbroken) -> None:
    assert_a_killed_run_ends_as(whole)
    state = whole.state()
    kept = [name for name in state if "mlp_of_patches" in name and "teacher" in name]
    assert kept and all(state[name].abs().sum() > 0 for name in kept if name.endswith("weight"))
