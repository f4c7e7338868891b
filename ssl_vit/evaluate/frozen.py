"""A frozen encoder measured on labels: its features of a split, the probes on them, and the same while it is pre-trained.

Legend: B batch, N pictures, D width of the features.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from ..data import batches, loaders, sources
from ..data.batches import Batch
from ..data.parts import Source, labels_of
from ..encoder import Backbone
from ..engine import Row, autocast, to_device
from ..objectives import Objective
from ..recipe import Probe, Recipe
from . import probes

SEED = 0  # of the few-shot choices and of the linear probe's batches: the same in every run

Features = tuple[Tensor, Tensor]  # (N, D) float32 and labels (N,)
Reader = Callable[[Tensor], Tensor]  # uint8 images (B, 3, H, W) -> features (B, D)
Picks = dict[tuple[int, int], Tensor]  # (shots, trial) -> rows of the training features


def reader(net: Backbone, pool: str, layer: int | None) -> Reader:
    return lambda image_B3HW: net.feature(image_B3HW, pool, layer)


def features(read: Reader, seen: Iterable[Batch], recipe: Recipe, accelerator: Accelerator) -> Features:
    """Features and labels of the labelled pictures in all processes' batches, by their place in the split, on the device."""
    _, label_N, x_ND = _gathered(read, seen, recipe, accelerator)
    known_N = label_N >= 0
    device = accelerator.device
    return torch.from_numpy(x_ND[known_N]).to(device), torch.from_numpy(label_N[known_N]).to(device)


@torch.no_grad()
def _gathered(
    read: Reader, seen: Iterable[Batch], recipe: Recipe, accelerator: Accelerator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index (N,), ascending, label (N,) and features (N, D) of all processes' batches."""
    parts = []
    with autocast(recipe, accelerator):
        for batch in seen:
            x_BD = read(to_device(batch, accelerator.device).image)
            parts.append((batch.index.numpy(), batch.label.numpy(), x_BD.float().cpu().numpy()))
    index, label_N, x_ND = (np.concatenate(arrays) for arrays in zip(*gather_object(parts), strict=True))
    order = index.argsort()
    return index[order], label_N[order], x_ND[order]


class Drawn(NamedTuple):
    """The training images that few-shot draws: their features, which of them each trial takes, and
    how many images were forwarded."""

    features: Features
    picks: Picks
    images: int


def drawn(
    read: Reader, source: Source, recipe: Recipe, spread: batches.Spread, accelerator: Accelerator, classes: int
) -> Drawn:
    """Draw from the labels first, then read the images drawn: on ImageNet, 5 shots in 3 trials are
    15,000 of 1.28 million. One that cannot be read gives way to the next of its class.

    Raises:
        UserError: a class has fewer images than shots.
    """
    label_N = labels_of(source, np.arange(len(source)))
    place_L = np.flatnonzero(label_N >= 0)  # `pick` counts labelled images only
    label_L = torch.from_numpy(label_N[place_L])
    unread_L = np.zeros(len(place_L), bool)
    read_L = np.zeros(len(place_L), bool)
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    while True:
        picks = _picks(label_L, recipe.probe, classes, unread_L)
        row_S = np.unique(np.concatenate([rows.numpy() for rows in picks.values()]))
        new = row_S[~read_L[row_S]]
        if not len(new):
            break
        loader = loaders.chosen(source, place_L[new], recipe.data, spread, recipe.compute.workers or 0)
        _, found, x_ND = _gathered(read, loader, recipe, accelerator)
        read_L[new] = True
        unread_L[new] = found < 0
        parts.append((new, x_ND))
    row_N, x_ND = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = row_N.argsort()
    row_N = row_N[order]
    device = accelerator.device
    places = {key: torch.from_numpy(np.searchsorted(row_N, rows.numpy())) for key, rows in picks.items()}
    return Drawn((torch.from_numpy(x_ND[order]).to(device), label_L[row_N].to(device)), places, len(row_N))


def _picks(label_N: Tensor, asked: Probe, classes: int, unread_N: np.ndarray | None = None) -> Picks:
    trials = range(asked.trials)
    return {
        (shots, trial): probes.pick(label_N, shots, classes, SEED + trial, unread_N)
        for shots in asked.shots
        for trial in trials
    }


def measure(
    seen: Mapping[str, Features], asked: Probe, classes: int, picks: Picks | None = None
) -> Iterator[tuple[str, float]]:
    """(name, accuracy on seen["test"]) of each probe that is asked for, learned from seen["train"]; seen["validation"] chooses
    the linear probe's learning rate. `picks`: few-shot's rows, if they are drawn already."""
    if not seen:
        return
    (train_ND, label_N), (test_ND, test_N) = seen["train"], seen["test"]

    def accuracy(pred_N: Tensor) -> float:
        return (pred_N == test_N).double().mean().item()

    if "few_shot" in asked.measures:
        rows = _picks(label_N, asked, classes) if picks is None else picks
        for shots in asked.shots:
            chosen = [rows[shots, trial] for trial in range(asked.trials)]
            told = (probes.least_squares(train_ND[row_S], label_N[row_S], test_ND, classes=classes) for row_S in chosen)
            yield f"few_shot_{shots}", fmean(accuracy(pred_N) for pred_N in told)
    if "linear" in asked.measures:
        dev_ND, dev_N = seen["validation"]
        fitted = probes.linear_probe(
            *(train_ND, label_N, dev_ND, dev_N, test_ND),
            classes=classes,
            rates=asked.rates,
            steps=asked.steps,
            batch=asked.batch,
            seed=SEED,
        )
        yield "linear", accuracy(fitted.pred_M)
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
        self.looked = False  # all processes alike

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        self.latest, self.looked = {}, True
        pool = self.recipe.probe.pool or objective.pool
        read = reader(objective.encoder, pool, self.recipe.probe.layer)
        learned, test = (features(read, seen, self.recipe, self.accelerator) for seen in (self.learned, self.held_out))
        if not self.accelerator.is_main_process:
            return
        count = max(1, len(learned[1]) // 10)  # of these the linear probe's learning rate is chosen on
        seen = {"train": (learned[0][count:], learned[1][count:]), "validation": (learned[0][:count], learned[1][:count])}
        for name, value in measure(seen | {"test": test}, self.recipe.probe, self.classes):
            self.latest[name] = (value, len(test[1]))
            yield f"probe/{name}", value
