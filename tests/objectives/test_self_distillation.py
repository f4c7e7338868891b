"""What DINO and iBOT share: KoLeo and Sinkhorn's assignment by hand, the head's first weights."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from helpers.options import TINY, altered
from helpers.resolving import resolve
from helpers.self_distillation import plain_sinkhorn
from ssl_vit.objectives.self_distillation import Assignment, Head, koleo


def test_distances_to_the_nearest_by_hand() -> None:
    """Angles 0, 60 and 180 degrees, of any lengths: the chords are 1, 1 and the square root of
    3."""
    angle = torch.deg2rad(torch.tensor([0.0, 60, 180]))
    length = torch.tensor([[1.0], [2], [5]])
    x_BC = length * torch.stack([angle.cos(), angle.sin()], 1)
    found = koleo(x_BC)
    assert found.tolist() == pytest.approx([0, 0, -math.log(3) / 2], abs=1e-6)


def test_the_same_feature_twice_has_a_finite_loss_and_gradient() -> None:
    """The distance is that of KOLEO_EPS in each of 4 channels, 2e-8, and once more."""
    x_BC = torch.ones(2, 4, requires_grad=True)
    found = koleo(x_BC)
    found.sum().backward()
    assert found.tolist() == pytest.approx([-math.log(3e-8)] * 2, rel=1e-5)
    assert x_BC.grad.isfinite().all()


def test_one_image_alone_has_none() -> None:
    assert koleo(torch.ones(1, 4)).tolist() == [0]


def options(*words: str) -> Any:
    own = "recipe=dino", "views.local=0", *words, "name=x"
    return resolve(altered(TINY, *own)).groups["dino"]


def sinkhorn(temperature: float) -> Assignment:
    return Assignment(options("dino.prototypes=6", "dino.balance=sinkhorn"), [temperature] * 2)


def test_sinkhorn_of_a_step_in_which_no_view_is_masked_is_finite() -> None:
    logits = torch.linspace(-1, 1, 240).view(40, 6)
    found = sinkhorn(0.1)(logits, torch.zeros(40, dtype=torch.bool))
    torch.testing.assert_close(found, torch.softmax(logits / 0.1, 1))


def test_sinkhorn_gives_all_prototypes_alike() -> None:
    """At a temperature at which exponentials would leave float32's range, too."""
    torch.manual_seed(0)
    logits = F.normalize(torch.randn(60, 6), dim=1) + torch.tensor([1.0, 0, 0, 0, 0, 0])
    for temperature, within in ((0.1, 1e-5), (0.01, 1e-4)):
        found = sinkhorn(temperature)(logits)
        wanted = plain_sinkhorn(logits.double(), temperature)
        torch.testing.assert_close(found.double(), wanted, rtol=within, atol=1e-6)
        torch.testing.assert_close(found.sum(1), torch.ones(60))
        alone = torch.softmax(logits / temperature, 1).sum(0)
        assert found.sum(0).min() > 5 and found.sum(0).min() > 2 * alone.min()


def test_a_seed_gives_the_same_head_with_every_torch() -> None:
    """torch 2.11 and 2.14 draw trunc_normal_ in different ways: 2.11 alone fails with it."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(*sizes) for sizes in ((6, 24), (24, 24), (24, 10))]
    wanted = [torch.normal(0.0, 0.02, layer.weight.shape) for layer in layers]
    torch.manual_seed(0)
    head = Head(6, options("dino.hidden=24", "dino.width=10", "dino.prototypes=12"))
    for layer, weight in zip(head.mlp[::2], wanted, strict=True):
        assert torch.equal(layer.weight, weight) and not layer.bias.any()
