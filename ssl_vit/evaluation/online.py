"""Probes of the encoder while it is trained, beside those of what it is compared with.

Legend: M images that are measured on, T trials.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .. import rng
from ..callbacks import Row
from ..data.batching import Batch
from ..metrics import FRESH, PROBE, PROBE_BASELINES, PROBED
from ..objectives.base import Objective
from ..recipe.probe import CHOSEN
from ..recipe.records.run import Measured
from ..recipe.schema import Probe
from ..training.distributed import WatchedAccelerator
from . import probes
from .beside import ENCODER, Right, compared
from .features import Features, Readers, accuracy, extract, feature_reader, run_probes

RATE_KEY = 8  # of the permutation by which images are drawn that choose a learning rate


@dataclass(eq=False, repr=False)
class OnlineProbes:
    """An evaluator: probes on the current encoder, trained on fixed training images and tested on
    held-out ones; and the effective rank and mean norm of the held-out features, which fall when
    features collapse.

    It draws no random number: the same images, identically cropped, in every run.

    Attributes:
        train, held_out: this process's batches.
        probe: what is measured.
        pool: of the features, token or avg.
        classes: that the probes choose from.
        accelerator: of the run.
        paired: as of `compared`.
        beside: {FRESH, START, PIXELS: {measure: whether each held-out image is right}}, as
            `measure` gives it; rank 0 has it.
        right: the same of the encoder, at its last evaluation.
    """

    train: list[Batch]
    held_out: list[Batch]
    probe: Probe
    pool: str
    classes: int
    accelerator: WatchedAccelerator
    paired: bool = True
    beside: dict[str, Right] = field(init=False, default_factory=dict)
    right: dict[str, Tensor] = field(init=False, default_factory=dict)
    has_run: bool = field(init=False, default=False)  # the same on all processes

    def names(self) -> list[str]:
        """The names of the accuracies that it measures."""
        few_shot = [f"few_shot_{shots}" for shots in self.probe.shots]
        measured = self.probe.measures
        found = few_shot if "few_shot" in measured else []
        return found + [name for name in ("linear", "knn") if name in measured]

    def chosen_on(self, images: int) -> int:
        """Of so many training images, on how many the linear probe chooses its learning rate, and
        none learns: a tenth; 0 where it is not measured."""
        return 0 if {*self.probe.measures}.isdisjoint(CHOSEN) else max(1, images // 10)

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        self.right = {}
        self.has_run = True
        readers = {ENCODER: feature_reader(objective.exported, self.pool, self.probe.layer)}
        features = self._extract(readers)
        if not self.accelerator.is_main_process:
            return
        held_out_MD, _ = features["test"][ENCODER]
        if len(held_out_MD):
            yield "features/rank", probes.effective_rank(held_out_MD)
            yield "features/norm", probes.mean_norm(held_out_MD)
        for name, right_TM in self._probe(features, ENCODER):
            self.right[name] = right_TM
            yield f"{PROBE}{name}", accuracy(right_TM)
            if (fresh_TM := self.beside.get(FRESH, {}).get(name)) is not None:
                yield f"{PROBE}{FRESH}{name}", accuracy(fresh_TM)

    def measure(self, readers: Readers, probe: Probe | None = None) -> dict[str, Right]:
        """The same probes, or those of `probe`, of other features of the same images; on other
        processes than rank 0 nothing. All processes call it, under autocast."""
        with torch.no_grad():
            features = self._extract(readers)
        if not self.accelerator.is_main_process:
            return {}
        found: dict[str, Right] = {}
        for name in readers:
            try:
                found[name] = dict(self._probe(features, name, probe))
            except Exception as error:  # as of the encoder's own, it ends no run
                print(f"warning: {PROBE_BASELINES[name]}: not measured: {error}", flush=True)
        return found

    def metrics(self, split: str) -> dict[str, Measured]:
        """Of the last evaluation, beside what it is compared with."""
        right = {ENCODER: self.right, **self.beside}
        return compared(right, self.classes, split, PROBED, self.paired)

    def _extract(self, readers: Readers) -> dict[str, dict[str, Features]]:
        return {
            "train": extract(readers, self.train, self.accelerator),
            "test": extract(readers, self.held_out, self.accelerator),
        }

    def _probe(
        self,
        features: Mapping[str, Mapping[str, Features]],
        name: str,
        probe: Probe | None = None,
    ) -> Iterator[tuple[str, Tensor]]:
        seen = {split: found[name] for split, found in features.items()}
        train_ND, label_N = seen["train"]
        n = len(label_N)
        if count := self.chosen_on(n):
            # drawn, as images may come class by class
            row_N = torch.from_numpy(rng.permute(np.arange(n), n, rng.key(RATE_KEY)))
            held, rest = row_N[:count], row_N[count:].sort().values
            seen["train"] = train_ND[rest], label_N[rest]
            seen["validation"] = train_ND[held], label_N[held]
        return run_probes(seen, probe or self.probe, self.classes)
