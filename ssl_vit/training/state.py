"""Training state for exact resume on any number of processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from ..config.parsing import NUMBER, fits
from ..data.loaders import StreamReader
from ..data.streaming import Cursor
from ..errors import UserError
from ..objectives import Objective
from .strategy import Strategy

SHAPE = {  # of what is saved, but for the parts' own states
    "step": int,
    "rollbacks": int,
    "seconds": NUMBER,
    "device_seconds": NUMBER,
    "names": [str],
    "sums": (Tensor, type(None)),
    "norms": (Tensor, type(None)),
    "skipped": [bool],
    "images_seen": int,
    "images_unreadable": int,
}


@dataclass
class State:
    objective: Objective  # as built
    strategy: Strategy  # which trains it
    schedule: LRScheduler
    # of the objective's weights, where the recipe asks for one
    average: AveragedModel | None = None
    stream: StreamReader | None = None  # of a stream, where one is trained on
    step: int = 0
    rollbacks: int = 0  # how often the run went back and took other samples from there
    seconds: float = 0.0  # spent training, over all resumptions
    device_seconds: float = 0.0  # times the processes that there were
    names: list[str] = field(default_factory=list)  # of the metrics gathered since the last row
    sums: Tensor | None = None  # (metrics, 2): their sums and counts
    norms: Tensor | None = None  # (2,): sum and count of gradient norms
    # for each step since the last row: its update was left out (bool)
    skipped: list[Tensor] = field(default_factory=list)
    lr: float = 0.0  # of the last step
    images_seen: int = 0  # images that this process saw
    images_unreadable: int = 0  # of them not to be read

    @contextmanager
    def evaluation_model(self) -> Iterator[Objective]:
        """The objective to evaluate and export, with the averaged weights if there are any.
        Collective: all ranks enter and exit together.

        Not compiled: evaluation mode and a last batch that is smaller would be two graphs more,
        for a few images now and then.
        """
        with torch.compiler.set_stance("force_eager"):
            if self.average:
                yield cast(Objective, self.average.module)
                return
            with self.strategy.full_weights() as objective:
                yield objective

    def save(self, accelerator: Accelerator) -> dict[str, Any]:
        """The state of all processes as tensors in plain containers; each of them calls this."""
        counts = torch.tensor([self.images_seen, self.images_unreadable], device=accelerator.device)
        seen, unread = accelerator.reduce(counts, "sum").tolist()
        return {
            "step": self.step,
            "rollbacks": self.rollbacks,
            "seconds": self.seconds,
            "device_seconds": self.device_seconds,
            **self.strategy.save(),
            "schedule": self.schedule.state_dict(),
            "names": self.names,
            "sums": None if self.sums is None else accelerator.reduce(self.sums, "sum").cpu(),
            "norms": None if self.norms is None else self.norms.cpu(),
            "skipped": [bool(flag) for flag in self.skipped],
            "images_seen": seen,
            "images_unreadable": unread,
            "average": self.average.state_dict() if self.average else None,
            "device_batch": self.strategy.batch_layout.device_batch,
            "stream": gather_object([list(self.stream.cursor_at(self.step))])
            if self.stream
            else None,
        }

    def _check_masks(self, saved: dict[str, Any]) -> None:
        """That dropout and drop path draw what the unbroken run would: their masks are seeded by
        pass.

        Raises:
            UserError: passes are of another size than those before.
        """
        settings, now = self.strategy.settings, self.strategy.batch_layout.device_batch
        was = saved.get("device_batch", now)  # older checkpoints do not tell
        used = {name: getattr(settings, name) for name in ("dropout", "drop_path")}
        drawn = [f"optim.{name}={rate:g}" for name, rate in used.items() if rate > 0]
        if drawn and was != now:
            why = f"the run was stopped with {was} images a pass, and masks of {drawn[0]} are drawn by pass"
            raise UserError(
                f"compute.batch={now}: {why}; say compute.batch={was}, on any number of processes that it suits"
            )

    def load(self, saved: dict[str, Any], accelerator: Accelerator) -> None:
        """Restore a saved state. Sums over processes are kept on rank 0 from here on.

        Raises:
            UserError: an older version saved it; a stream was read by another number of processes;
            or
                dropout would draw other masks.
        """
        if "moments" not in saved:
            raise UserError(
                "resume=true: the checkpoint is an older version's; go on with that one, or begin again, name=NEW"
            )
        if not fits(saved, SHAPE):
            raise UserError("resume=true: the checkpoint holds no training state; remove it")
        if self.stream and len(saved["stream"]) != accelerator.num_processes:
            stopped = f"{len(saved['stream'])} processes, and a stream goes on only on as many, not {accelerator.num_processes}"
            raise UserError(f"data.stream=true: the run was stopped on {stopped}")
        self._check_masks(saved)
        main, device = accelerator.is_main_process, accelerator.device
        self.strategy.load(saved)
        self.schedule.load_state_dict(saved["schedule"])
        for group, lr in zip(
            self.schedule.optimizer.param_groups, self.schedule.get_last_lr(), strict=True
        ):
            group["lr"] = lr
        if self.average:
            self.average.load_state_dict(saved["average"])
        for name in ("step", "rollbacks", "seconds", "device_seconds", "names"):
            setattr(self, name, saved[name])
        self.images_seen = saved["images_seen"] if main else 0
        self.images_unreadable = saved["images_unreadable"] if main else 0
        self.sums = None if saved["sums"] is None else saved["sums"].to(device) * main
        self.norms = None if saved["norms"] is None else saved["norms"].to(device)
        if self.stream:
            self.stream.seek(self.step, Cursor(*saved["stream"][accelerator.process_index]))
        self.skipped = [torch.tensor(flag, device=device) for flag in saved["skipped"]]
