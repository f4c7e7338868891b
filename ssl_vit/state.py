"""What a run must find again to go on as if it had never stopped, however many processes it stopped on and goes on with."""

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from .objectives import Objective


@dataclass
class State:
    objective: Objective  # as built, for its state and for observers
    prepared: nn.Module  # as Accelerate wrapped it, for training
    optimizer: Any
    schedule: Any
    average: AveragedModel | None = None  # of the objective's weights, where the recipe asks for one
    step: int = 0
    detour: int = 0  # how often the run went back and took other samples from there
    seconds: float = 0.0  # spent training, over all resumptions
    names: list[str] = field(default_factory=list)  # of the metrics gathered since the last row
    sums: Tensor | None = None  # (metrics, 2): their sums and counts
    norms: Tensor | None = None  # (2,): sum and count of gradient norms
    left_out: list[Tensor] = field(default_factory=list)  # for each step since the last row: its update was left out (bool)
    lr: float = 0.0  # of the last step
    seen: int = 0  # pictures that this process saw
    unread: int = 0  # of them not to be read

    @property
    def watched(self) -> Objective:
        """What is looked at and exported: the averaged weights where there are any."""
        return cast(Objective, self.average.module) if self.average else self.objective

    def save(self, accelerator: Accelerator) -> dict[str, Any]:
        """The state of all processes as tensors in plain containers; each of them calls this."""
        counts = torch.tensor([self.seen, self.unread], device=accelerator.device)
        seen, unread = accelerator.reduce(counts, "sum").tolist()
        return {
            "step": self.step,
            "detour": self.detour,
            "seconds": self.seconds,
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "names": self.names,
            "sums": None if self.sums is None else accelerator.reduce(self.sums, "sum").cpu(),
            "norms": None if self.norms is None else self.norms.cpu(),
            "left_out": [bool(flag) for flag in self.left_out],
            "seen": seen,
            "unread": unread,
            "average": self.average.state_dict() if self.average else None,
        }

    def load(self, saved: dict[str, Any], accelerator: Accelerator) -> None:
        """Go on from there. What was summed over processes is the first one's from here on."""
        main, device = accelerator.is_main_process, accelerator.device
        self.objective.load_state_dict(saved["objective"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        if self.average:
            self.average.load_state_dict(saved["average"])
        for name in ("step", "detour", "seconds", "names"):
            setattr(self, name, saved[name])
        self.seen, self.unread = (saved["seen"], saved["unread"]) if main else (0, 0)
        self.sums = None if saved["sums"] is None else saved["sums"].to(device) * main
        self.norms = None if saved["norms"] is None else saved["norms"].to(device)
        self.left_out = [torch.tensor(flag, device=device) for flag in saved["left_out"]]
