"""Hold the state of training, so that a run resumes exactly on any number of processes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from ..data.loaders import StreamReader
from ..data.streaming import Cursor
from ..errors import UserError
from ..formatting import format_count
from ..objectives.base import Objective
from .distributed import WatchedAccelerator
from .metric_sums import Sums, add_processes
from .strategy import Strategy


@dataclass
class State:
    """All values that training changes, from the weights to the sums since the last row."""

    objective: Objective
    strategy: Strategy
    schedule: LRScheduler
    average: AveragedModel | None = None  # averaged weights: optim.average
    stream: StreamReader | None = None  # data.stream
    step: int = 0  # optimiser steps done
    seconds: float = 0.0  # spent training, over all resumptions
    device_seconds: float = 0.0  # seconds times the number of processes
    sums: Sums = field(default_factory=dict)  # sums of the metrics since the last row
    # (2,): sum and count of the gradient norms since the last row
    norm_sum_and_count: Tensor | None = None
    skipped: list[Tensor] = field(default_factory=list)  # bool per step since the last row
    lr: float = 0.0  # learning rate of the last step
    images_seen: int = 0  # images that this process has read
    images_unreadable: int = 0  # images that this process could not read
    # {name of an image: how often this process could not read the image}, since the start or resume
    unreadable: Counter[str] = field(default_factory=Counter)
    best: dict[str, Any] | None = None  # on rank 0, the best evaluation so far (checkpoint.best)
    # with resume=RUN@STEP: the run, the step, and seconds and device_seconds up to the step
    trunk: dict[str, Any] | None = None

    @property
    def accelerator(self) -> WatchedAccelerator:
        """Accelerator of the run."""
        return self.strategy.accelerator

    @contextmanager
    def evaluation_model(self) -> Iterator[Objective]:
        """Yield the objective to evaluate and export, with averaged weights if the run has any.

        All ranks must enter and leave the context together. The objective runs without
        torch.compile. Otherwise, torch would compile two more graphs, for evaluation mode and for
        the smaller last batch, and that would take longer than the evaluation.
        """
        with torch.compiler.set_stance("force_eager"):
            if self.average:
                yield cast(Objective, self.average.module)
                return
            with self.strategy.full_weights() as objective:
                yield objective

    def save(self) -> dict[str, Any]:
        """Return the state of all processes as tensors in plain containers. Collective.

        The state can be loaded on another number of processes and under another strategy, but a
        stream of images (data.stream=true) needs the same number of processes.

        Returns:
            {name: value}, as in the checkpoint. For example, "stream" has the position of each
            process in the stream of images. "norms" has the sum and the count of the gradient norms
            since the last row of metrics. "trunk" has the run and the step at which this run began
            (resume=RUN@STEP).
        """
        accelerator = self.accelerator
        local = torch.tensor([self.images_seen, self.images_unreadable], device=accelerator.device)
        seen, unreadable = accelerator.reduce(local, "sum").tolist()
        cursors = None
        if self.stream:
            cursors = accelerator.gather_parts([list(self.stream.cursor_at(self.step))])
        return {
            "step": self.step,
            "seconds": self.seconds,
            "device_seconds": self.device_seconds,
            **self.strategy.save(),
            "schedule": self.schedule.state_dict(),
            # Store pairs instead of a dictionary: on the Hub, a state is stored as JSON, where a
            # tuple cannot be a key
            "sums": [[*pair] for pair in add_processes(self.sums, accelerator).items()],
            "norms": None if self.norm_sum_and_count is None else self.norm_sum_and_count.cpu(),
            "skipped": [bool(flag) for flag in self.skipped],
            "images_seen": seen,
            "images_unreadable": unreadable,
            "average": self.average.state_dict() if self.average else None,
            "device_batch": self.strategy.batch_layout.device_batch,
            "stream": cursors,
            "best": self.best,
            "trunk": self.trunk,
        }

    def load_weights(self, saved: dict[str, Any]) -> None:
        """Restore weights, moments and averaged weights of a saved state. Collective."""
        self.strategy.load(saved)
        if self.average:
            self.average.load_state_dict(saved["average"])

    def load(self, saved: dict[str, Any]) -> None:
        """Restore a saved state. Collective.

        A saved state has counts of images and sums of metrics, added over all processes. Rank 0
        restores these values. All other ranks start from 0, so that the totals over all processes
        stay the same.

        Args:
            saved: Result of `save`.

        Raises:
            UserError: Another number of processes read the stream, or another device batch would
                change the random draws (`_check_device_batch`).
            Exception: The saved state lacks an entry, or its tensors do not fit the network.
        """
        accelerator = self.accelerator
        if self.stream and len(saved["stream"]) != accelerator.num_processes:
            processes = format_count(len(saved["stream"]), "processes")
            raise UserError(
                f"data.stream=true: the run was stopped on {processes} and cannot "
                f"continue on {accelerator.num_processes}. Use {processes}."
            )
        self._check_device_batch(saved["device_batch"])
        self.load_weights(saved)
        self.schedule.load_state_dict(saved["schedule"])
        lrs = self.schedule.get_last_lr()
        for group, lr in zip(self.schedule.optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
        for name in ("step", "seconds", "device_seconds", "best", "trunk"):
            setattr(self, name, saved[name])
        is_main, device = accelerator.is_main_process, accelerator.device
        self.images_seen = saved["images_seen"] if is_main else 0
        self.images_unreadable = saved["images_unreadable"] if is_main else 0
        saved_sums = saved["sums"] if is_main else ()
        # In a state from the Hub, `names` is a list of lists, because JSON has no tuples
        self.sums = {tuple(map(tuple, names)): rows.to(device) for names, rows in saved_sums}
        self.norm_sum_and_count = None if saved["norms"] is None else saved["norms"].to(device)
        self.skipped = [torch.tensor(flag, device=device) for flag in saved["skipped"]]
        if self.stream:
            self.stream.seek(Cursor(*saved["stream"][accelerator.process_index]))

    def _check_device_batch(self, saved_batch: int) -> None:
        """Check that a resumed run draws the same random numbers as the uninterrupted run.

        The size of a device batch matters if random numbers are drawn for a whole device batch: for
        the masks of dropout and drop path, or to choose patches from other images.

        Args:
            saved_batch: Number of images in a device batch of the saved run.

        Raises:
            UserError: The device batch differs, and random numbers are drawn for a whole device
                batch.
        """
        batch = self.strategy.batch_layout.device_batch
        rates = {name: getattr(self.strategy.settings, name) for name in ("dropout", "drop_path")}
        random_options = [f"optim.{name}={rate:g}" for name, rate in rates.items() if rate > 0]
        # mixing_option is "" if the objective does not mix the images of a device batch
        if self.strategy.objective.mixing_option:
            random_options.append(self.strategy.objective.mixing_option)
        if random_options and saved_batch != batch:
            raise UserError(
                f"compute.batch={batch}: the run was stopped with compute.batch={saved_batch}, and "
                f"the random numbers of {random_options[0]} depend on compute.batch. "
                f"Use compute.batch={saved_batch}."
            )
