"""Extracts features of a frozen encoder and runs the probes on them, after training and during it.

Legend: B batch, N images, D width of the features.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from ..callbacks import Row
from ..data.batching import Batch
from ..data.source import Source
from ..models.encoder import Backbone
from ..objectives.base import Objective
from ..recipe.schema import Probe
from ..training.loop import to_device
from . import probes

SEED = 0  # of the few-shot choices and of the linear probe's batches: the same in every run

Features = tuple[Tensor, Tensor]  # (N, D) float32 and labels (N,)
Reader = Callable[[Tensor], Tensor]  # uint8 images (B, 3, H, W) -> features (B, D)
Picks = dict[tuple[int, int], Tensor]  # (shots, trial) -> rows of the training features


def feature_reader(net: Backbone, pool: str, layer: int | None) -> Reader:
    return lambda image_B3HW: net.feature(image_B3HW, pool, layer)


def extract(read: Reader, batches: Iterable[Batch], accelerator: Accelerator) -> Features:
    """Features and labels of the labelled images in all processes' batches, in the order of the
    split, on the device. The caller enters autocast."""
    _, label_N, x_ND = gathered(read, batches, accelerator)
    known_N = label_N >= 0
    device = accelerator.device
    return torch.from_numpy(x_ND[known_N]).to(device), torch.from_numpy(label_N[known_N]).to(device)


@torch.no_grad()
def gathered(
    read: Reader, batches: Iterable[Batch], accelerator: Accelerator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index (N,), ascending, label (N,) and features (N, D) of all processes' batches."""
    parts = []
    for batch in batches:
        x_BD = read(to_device(batch, accelerator.device).image)
        parts.append((batch.index.numpy(), batch.label.numpy(), x_BD.float().cpu().numpy()))
    index, label_N, x_ND = (
        np.concatenate(arrays) for arrays in zip(*gather_object(parts), strict=True)
    )
    order = index.argsort()
    return index[order], label_N[order], x_ND[order]


class FewShotSamples(NamedTuple):
    """The training images that few-shot draws: their features, which of them each trial takes, and
    how many images were forwarded."""

    features: Features
    picks: Picks
    images: int


def sample_few_shot(
    read: Reader,
    source: Source,
    load_rows: Callable[[np.ndarray], Iterable[Batch]],
    probe: Probe,
    classes: int,
    accelerator: Accelerator,
) -> FewShotSamples:
    """Choose images by their labels, then extract features of those alone: on ImageNet, 5 shots in
    3 trials are 15,000 of 1.28 million images. An unreadable image is replaced by the next of its
    class.

    `load_rows` gives this process's batches of some rows of `source`. The caller enters autocast.

    Raises:
        UserError: a class has fewer images than shots.
    """
    label_N = source.label_of(np.arange(len(source)))
    place_L = np.flatnonzero(label_N >= 0)  # `sample_shots` counts labelled images only
    label_L = torch.from_numpy(label_N[place_L])
    unreadable_L = np.zeros(len(place_L), bool)
    read_L = np.zeros(len(place_L), bool)
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    while True:
        picks = _picks(label_L, probe, classes, unreadable_L)
        row_S = np.unique(np.concatenate([rows.numpy() for rows in picks.values()]))
        new = row_S[~read_L[row_S]]
        if not len(new):
            break
        _, found, x_ND = gathered(read, load_rows(place_L[new]), accelerator)
        read_L[new] = True
        unreadable_L[new] = found < 0
        parts.append((new, x_ND))
    row_N, x_ND = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = row_N.argsort()
    row_N = row_N[order]
    device = accelerator.device
    places = {
        key: torch.from_numpy(np.searchsorted(row_N, rows.numpy())) for key, rows in picks.items()
    }
    return FewShotSamples(
        (torch.from_numpy(x_ND[order]).to(device), label_L[row_N].to(device)), places, len(row_N)
    )


def _picks(
    label_N: Tensor, probe: Probe, classes: int, unreadable_N: np.ndarray | None = None
) -> Picks:
    trials = range(probe.trials)
    return {
        (shots, trial): probes.sample_shots(label_N, shots, classes, SEED + trial, unreadable_N)
        for shots in probe.shots
        for trial in trials
    }


def run_probes(
    seen: Mapping[str, Features], probe: Probe, classes: int, picks: Picks | None = None
) -> Iterator[tuple[str, float]]:
    """(name, accuracy on seen["test"]) of each of probe.measures, trained on seen["train"]. The
    linear probe's learning rate is chosen on seen["validation"]. `picks`: few-shot's rows, where
    they are sampled already."""
    if not seen:
        return
    (train_ND, label_N), (test_ND, test_N) = seen["train"], seen["test"]

    def accuracy(pred_N: Tensor) -> float:
        return (pred_N == test_N).double().mean().item()

    if "few_shot" in probe.measures:
        rows = _picks(label_N, probe, classes) if picks is None else picks
        for shots in probe.shots:
            chosen = [rows[shots, trial] for trial in range(probe.trials)]
            predictions = (
                probes.least_squares(train_ND[row_S], label_N[row_S], test_ND, classes=classes)
                for row_S in chosen
            )
            yield f"few_shot_{shots}", fmean(accuracy(pred_N) for pred_N in predictions)
    if "linear" in probe.measures:
        dev_ND, dev_N = seen["validation"]
        predicted_N = probes.linear_probe(
            *(train_ND, label_N, dev_ND, dev_N, test_ND),
            classes=classes,
            rates=probe.rates,
            steps=probe.steps,
            batch=probe.batch,
            seed=SEED,
        )
        yield "linear", accuracy(predicted_N)
    if "knn" in probe.measures:
        yield (
            "knn",
            accuracy(probes.knn(train_ND, label_N, test_ND, classes=classes, k=probe.neighbors)),
        )


@dataclass(eq=False, repr=False)
class ProbesDuringTraining:
    """An evaluator: probes on the current encoder, trained on fixed training images and tested on
    held-out ones; and the effective rank and mean norm of the held-out features, which fall when
    features collapse.

    It draws no random number: the same images, identically cropped, in every run. `latest` holds
    {name: (value, n)} of its last evaluation.
    """

    train: list[Batch]
    held_out: list[Batch]
    probe: Probe
    pool: str
    classes: int
    accelerator: Accelerator
    latest: dict[str, tuple[float, int]] = field(init=False, default_factory=dict)
    has_run: bool = field(init=False, default=False)  # the same on all processes

    def names(self) -> list[str]:
        """The names of the accuracies that it measures."""
        few_shot = [f"few_shot_{shots}" for shots in self.probe.shots]
        measured = self.probe.measures
        found = few_shot if "few_shot" in measured else []
        return found + [name for name in ("linear", "knn") if name in measured]

    def chosen_on(self, images: int) -> int:
        """Of so many training images, on how many the linear probe's learning rate is chosen: the
        first tenth."""
        return max(1, images // 10)

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        self.latest = {}
        self.has_run = True
        read = feature_reader(objective.exported, self.pool, self.probe.layer)
        train_ND, label_N = extract(read, self.train, self.accelerator)
        test = extract(read, self.held_out, self.accelerator)
        if not self.accelerator.is_main_process:
            return
        if len(test[0]):
            yield "features/rank", probes.effective_rank(test[0])
            yield "features/norm", probes.mean_norm(test[0])
        count = self.chosen_on(len(label_N))
        seen = {
            "train": (train_ND[count:], label_N[count:]),
            "validation": (train_ND[:count], label_N[:count]),
            "test": test,
        }
        for name, value in run_probes(seen, self.probe, self.classes):
            self.latest[name] = (value, len(test[1]))
            yield f"probe/{name}", value
