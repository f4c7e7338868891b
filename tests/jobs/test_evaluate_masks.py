"""The segmentation probe's own baseline."""

import pytest
import torch

from ssl_vit.evaluation.dense import PatchFeatures, SegmentationTask
from ssl_vit.jobs import evaluate_masks
from ssl_vit.recipe.schema import Probe


@pytest.mark.parametrize("ignore", [-1, 256])
def test_an_ignored_value_beyond_a_byte_is_no_other_class(ignore: int) -> None:
    """In bytes -1 was 255, and 256 was 0, the commonest class, which then did not count."""
    common = 255 if ignore == -1 else 0
    mask_ISS = torch.full((2, 4, 4), common, dtype=torch.uint8)
    mask_ISS[0, 0, 0] = 1
    train = PatchFeatures(torch.randn(2, 4, 3), mask_ISS)
    probe = Probe(measures=["segmentation"], steps=1, batch=2, rates=[0.1])
    task = SegmentationTask(common + 2, ignore, (2, 2))
    fitted = evaluate_masks._fit(train, task, probe, torch.device("cpu"))
    assert fitted.pixel_class == common
