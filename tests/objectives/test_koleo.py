"""KoLeo by hand; that of an objective is in the tests of DINO and iBOT."""

import math

import pytest
import torch

from helpers.koleo import plain_koleo
from ssl_vit.objectives.self_distillation import koleo


def test_distances_to_the_nearest_by_hand() -> None:
    """Angles 0, 60 and 180 degrees, of any lengths: the chords are 1, 1 and the square root of
    3."""
    angle = torch.deg2rad(torch.tensor([0.0, 60, 180]))
    length = torch.tensor([[1.0], [2], [5]])
    x_BC = length * torch.stack([angle.cos(), angle.sin()], 1)
    found = koleo(x_BC)
    assert found.tolist() == pytest.approx([0, 0, -math.log(3) / 2], abs=1e-6)


def test_values_and_gradients_are_those_of_a_plain_implementation() -> None:
    torch.manual_seed(0)
    x_BC = torch.randn(12, 7, requires_grad=True)
    y_BC = x_BC.detach().double().requires_grad_()
    found, wanted = koleo(x_BC).mean(), plain_koleo(y_BC)
    found.backward()
    wanted.backward()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert (x_BC.grad - y_BC.grad).norm() / y_BC.grad.norm() < 1e-5


def test_the_same_feature_twice_has_a_finite_loss_and_gradient() -> None:
    """The distance is that of KOLEO_EPS in each of 4 channels, 2e-8, and once more."""
    x_BC = torch.ones(2, 4, requires_grad=True)
    found = koleo(x_BC)
    found.sum().backward()
    assert found.tolist() == pytest.approx([-math.log(3e-8)] * 2, rel=1e-5)
    assert x_BC.grad.isfinite().all()


def test_one_image_alone_has_none() -> None:
    assert koleo(torch.ones(1, 4)).tolist() == [0]
