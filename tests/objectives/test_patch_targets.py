"""Baselines of targets."""

import pytest
import torch

from ssl_vit.objectives.targets.patch_targets import Pixels


def test_the_mean_of_training_images_is_of_images_and_not_of_batches() -> None:
    """The last, smaller batch counted as a whole one: a baseline that was too easy to beat."""
    image_B3HW = torch.zeros(3, 3, 4, 4, dtype=torch.uint8)
    image_B3HW[2] = 255
    target = Pixels(2, [0.0] * 3, [1.0] * 3)
    target.fit_baselines([image_B3HW[:2], image_B3HW[2:]])
    assert target.mean_3.tolist() == pytest.approx([1 / 3] * 3)
