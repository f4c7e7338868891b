"""A frozen encoder measured on labels: its features of a split, the probes on them, and the same while it is pre-trained.

Legend: B batch, N pictures, D width of the features.
"""

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from ..data import batches, loaders, sources
from ..data.batches import Batch
from ..encoder import Backbone
from ..engine import Row, autocast, to_device
from ..objectives import Objective
from ..recipe import Probe, Recipe
from . import probes

SEED = 0  # of the few-shot choices and of the linear probe's batches: the same in every run

Features = tuple[Tensor, Tensor]  # (N, D) float32 and labels (N,)


@torch.no_grad()
def features(net: Backbone, seen: Iterable[Batch], recipe: Recipe, accelerator: Accelerator, pool: str) -> Features:
    """Features and labels of the labelled pictures in all processes' batches, by their place in the split, on the device."""
    parts = []
    with autocast(recipe, accelerator):
        for batch in seen:
            x_BD = net.feature(to_device(batch, accelerator.device).image, pool, recipe.probe.layer)
            parts.append((batch.index.numpy(), batch.label.numpy(), x_BD.float().cpu().numpy()))
    index, label_N, x_ND = (np.concatenate(arrays) for arrays in zip(*gather_object(parts), strict=True))
    order = index.argsort()
    order = order[label_N[order] >= 0]
    return torch.from_numpy(x_ND[order]).to(accelerator.device), torch.from_numpy(label_N[order]).to(accelerator.device)


def measure(seen: Mapping[str, Features], asked: Probe, classes: int) -> Iterator[tuple[str, float]]:
    """(name, accuracy on seen["test"]) of each probe that is asked for, learned from seen["train"]; seen["validation"] chooses
    the linear probe's learning rate."""
    if not seen:
        return
    (train_ND, label_N), (dev_ND, dev_N), (test_ND, test_N) = seen["train"], seen["validation"], seen["test"]

    def accuracy(pred_N: Tensor) -> float:
        return (pred_N == test_N).double().mean().item()

    if "few_shot" in asked.measures:
        for shots in asked.shots:
            drawn = (
                probes.few_shot(train_ND, label_N, test_ND, shots=shots, classes=classes, seed=SEED + trial)
                for trial in range(asked.trials)
            )
            yield f"few_shot_{shots}", fmean(accuracy(pred_N) for pred_N in drawn)
    if "linear" in asked.measures:
        told = probes.linear_probe(
            *(train_ND, label_N, dev_ND, dev_N, test_ND),
            classes=classes,
            rates=asked.rates,
            steps=asked.steps,
            batch=asked.batch,
            seed=SEED,
        )
        yield "linear", accuracy(told.pred_M)
    if "knn" in asked.measures:
        yield "knn", accuracy(probes.knn(train_ND, label_N, test_ND, classes=classes, k=asked.neighbors))


class WhileTraining:
    """An observer: the probes on the encoder as it stands, learned from fixed training pictures, judged on held-out ones.

    It reads no random number: the same pictures, cut alike, in every run. `latest` holds {name: (value, n)} of its last look.
    """

    def __init__(
        self, splits: sources.Splits, held_out: list[Batch], recipe: Recipe, spread: batches.Spread, accelerator: Accelerator
    ):
        self.held_out, self.recipe, self.accelerator = held_out, recipe, accelerator
        self.classes = sources.known_classes(splits, recipe)
        self.learned = loaders.held_out(splits.train, recipe.data, spread, recipe.probe.pictures)
        self.latest: dict[str, tuple[float, int]] = {}

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        self.latest = {}
        pool = self.recipe.probe.pool or objective.pool
        learned, test = (
            features(objective.encoder, seen, self.recipe, self.accelerator, pool) for seen in (self.learned, self.held_out)
        )
        if not self.accelerator.is_main_process:
            return
        count = max(1, len(learned[1]) // 10)  # of these the linear probe's learning rate is chosen on
        seen = {"train": (learned[0][count:], learned[1][count:]), "validation": (learned[0][:count], learned[1][:count])}
        for name, value in measure(seen | {"test": test}, self.recipe.probe, self.classes):
            self.latest[name] = (value, len(test[1]))
            yield f"probe/{name}", value
