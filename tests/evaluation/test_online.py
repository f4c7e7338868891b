"""Probes of a training run: which images they learn from."""

import pytest
import torch

from ssl_vit.data.batching import Batch
from ssl_vit.evaluation import online
from ssl_vit.recipe.schema import Probe
from ssl_vit.training.distributed import WatchedAccelerator

CLASSES, EACH = 5, 4


def batch(first: int, label_B: torch.Tensor) -> Batch:
    """Images whose one pixel is their class, at rows from `first` on."""
    index_B = torch.arange(first, first + len(label_B))
    image = label_B.to(torch.uint8)[:, None, None, None]
    return Batch(image=image, label=label_B, index=index_B, key=index_B)


def read(image: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(image.flatten().long(), CLASSES).float()


@pytest.mark.parametrize("measures", [["knn"], ["knn", "linear"]])
def test_all_classes_are_learned_from_images_that_come_class_by_class(measures: list[str]) -> None:
    """The first tenth was held back for the linear probe's learning rate: of a folder the first
    classes, which k-NN then knew nothing of, also where no linear probe was measured."""
    ordered = torch.arange(CLASSES).repeat_interleave(EACH)
    probe = Probe(measures=measures, neighbors=2, steps=20, batch=8)
    probes = online.OnlineProbes(
        [batch(0, ordered)],
        [batch(0, torch.arange(CLASSES))],
        probe,
        "avg",
        CLASSES,
        WatchedAccelerator(cpu=True),
    )
    right = probes.measure({"one": read})["one"]
    assert right["knn"].all()
    assert probes.chosen_on(CLASSES * EACH) == (2 if "linear" in measures else 0)
