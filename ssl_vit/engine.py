"""The one training loop, counted in optimiser steps, and the contract of what watches it.

Numbers stay on the device between logging steps. An observer is called as observer(step, row, objective) with the objective
frozen and yields (name, value); it disturbs no random number and its failure does not end the run.
"""

import math
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, NamedTuple, Protocol, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from . import counted, optim
from .data.batches import Batch, Spread, check_unread
from .objectives import Objective, Step
from .recipe import Recipe, UserError

Row = dict[str, Any]


class Observer(Protocol):
    def __call__(self, step: int, row: Row, objective: Objective) -> Iterable[tuple[str, float]]: ...


class Listener:
    """Told of each step, each row and each warning; not of the model. Every method may be left out."""

    def on_step(self, step: int) -> None: ...
    def on_row(self, row: Row) -> None: ...
    def on_warning(self, text: str) -> None: ...
    def close(self) -> None: ...


class Watch(NamedTuple):
    """An observer, and after which steps it looks (always after the last)."""

    observer: Observer
    every: int


@dataclass
class State:
    """Everything that a run must find again to go on as if it had never stopped."""

    objective: Objective  # as built, for its state and for observers
    prepared: nn.Module  # as Accelerate wrapped it, for training
    optimizer: Any
    schedule: Any
    average: AveragedModel | None = None  # of the objective's weights, where the recipe asks for one
    step: int = 0
    seconds: float = 0.0  # spent training, over all resumptions
    names: list[str] = field(default_factory=list)  # of the metrics gathered since the last row
    sums: Tensor | None = None  # (metrics, 2): their sums and counts
    norms: Tensor | None = None  # (2,): sum and count of gradient norms
    lr: float = 0.0  # of the last step
    seen: int = 0  # pictures that this process saw
    unread: int = 0  # of them not to be read

    @property
    def watched(self) -> Objective:
        """What is looked at and exported: the averaged weights where there are any."""
        return cast(Objective, self.average.module) if self.average else self.objective

    def save(self) -> dict[str, Any]:
        sums = {k: None if v is None else v.cpu() for k, v in (("sums", self.sums), ("norms", self.norms))}
        return {
            "step": self.step,
            "seconds": self.seconds,
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "names": self.names,
            "seen": self.seen,
            "unread": self.unread,
            "average": self.average.state_dict() if self.average else None,
            **sums,
        }

    def load(self, saved: dict[str, Any], device: torch.device) -> None:
        self.objective.load_state_dict(saved["objective"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        if self.average:
            self.average.load_state_dict(saved["average"])
        for name in ("step", "seconds", "names", "seen", "unread"):
            setattr(self, name, saved[name])
        for name in ("sums", "norms"):
            setattr(self, name, None if saved[name] is None else saved[name].to(device))


class Clock:
    """Seconds of training since the last row, and of them those spent waiting for data. Watches and saving do not count."""

    def __init__(self) -> None:
        self.spent = self.waited = 0.0

    @contextmanager
    def running(self, state: State) -> Iterator[None]:
        start = time.perf_counter()
        yield
        took = time.perf_counter() - start
        self.spent += took
        state.seconds += took

    def wait(self, batches: Iterator[Batch]) -> Batch:
        start = time.perf_counter()
        batch = next(batches)
        self.waited += time.perf_counter() - start
        return batch


class Audience:
    """The listeners of a run. One that fails is dropped with a warning; training goes on."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self.listeners = list(listeners)

    def tell(self, tell: Callable[[Listener], None]) -> None:
        for listener in list(self.listeners):
            try:
                tell(listener)
            except Exception as error:
                self.listeners.remove(listener)
                self.warn(f"{type(listener).__name__} failed and is left out from here on: {error!r}")

    def warn(self, text: str) -> None:
        self.tell(methodcaller("on_warning", text))


def train(
    state: State,
    batches: Iterable[Batch],
    recipe: Recipe,
    spread: Spread,
    accelerator: Accelerator,
    watches: Iterable[Watch] = (),
    listeners: Iterable[Listener] = (),
    save: Callable[[], None] = lambda: None,
) -> None:
    """Train from state.step to the recipe's last step.

    `batches` brings this process's passes from state.step on, spread.accumulation to a step.

    Raises:
        UserError: the loss is no number any more, or too many pictures cannot be read.
    """
    passes, clock, audience = iter(batches), Clock(), Audience(listeners)
    while state.step < recipe.optim.steps:
        with clock.running(state):
            _update(state, passes, recipe, spread, accelerator, clock, audience)
            last = state.step == recipe.optim.steps
            values = _read(state, accelerator) if last or state.step % recipe.log.every == 0 else {}
        row: Row = {}
        if values:
            row, clock = _row(values, state, recipe, accelerator, clock), Clock()
        audience.tell(methodcaller("on_step", state.step))
        for watch in watches:
            if last or state.step % watch.every == 0:
                row |= {"step": state.step} | _observe(watch.observer, state, row, recipe, accelerator, audience)
        if row:
            audience.tell(methodcaller("on_row", row))
        if last or state.step % recipe.checkpoint.every == 0:
            save()


def _update(
    state: State,
    passes: Iterator[Batch],
    recipe: Recipe,
    spread: Spread,
    accelerator: Accelerator,
    clock: Clock,
    audience: Audience,
) -> None:
    """One optimiser step on spread.accumulation passes."""
    state.prepared.train()
    step_passes = [to_device(clock.wait(passes), accelerator.device) for _ in range(spread.accumulation)]
    _note_unread(state, step_passes, recipe, audience)
    if state.objective.uses_labels:
        step_passes = _counted_labels(step_passes, accelerator)
    for micro, batch in enumerate(step_passes):
        torch.manual_seed(int(counted.key(recipe.seed, state.step, spread.chunk(micro))[0]))  # dropout, drop path
        joined = micro == spread.accumulation - 1
        with nullcontext() if joined else accelerator.no_sync(state.prepared):
            with autocast(recipe, accelerator):
                step = state.prepared(batch)
            accelerator.backward(step.loss / spread.accumulation)
        _gather(state, step)
    norm = optim.clip(state.prepared, recipe.optim.clip).double()
    norms = torch.stack([norm, torch.ones_like(norm)])
    state.norms = norms if state.norms is None else state.norms + norms
    state.lr = max(state.schedule.get_last_lr())
    state.optimizer.step()
    state.schedule.step()
    state.optimizer.zero_grad()
    if state.average:
        state.average.update_parameters(state.objective)
    state.step += 1


def _note_unread(state: State, passes: list[Batch], recipe: Recipe, audience: Audience) -> None:
    """Name and count the pictures of this process that could not be read.

    Raises:
        UserError: they are more than the recipe's share of those seen, of 1,000 at least.
    """
    state.seen += sum(len(batch.key) for batch in passes)
    for text in (text for batch in passes for text in batch.unread):
        state.unread += 1
        audience.warn(f"a picture was replaced by the next: {text}")
        check_unread(state.unread, state.seen, recipe.data, text)


def autocast(recipe: Recipe, accelerator: Accelerator) -> torch.autocast:
    """The recipe's precision. Entered outside the objective, so that a compiled one stays one graph."""
    return torch.autocast(accelerator.device.type, torch.bfloat16, enabled=recipe.compute.precision == "bfloat16")


def to_device(batch: Batch, device: torch.device) -> Batch:
    return batch.map(lambda x: x.to(device, non_blocking=True))


def _counted_labels(passes: list[Batch], accelerator: Accelerator) -> list[Batch]:
    """The passes of a step, told how many labelled pictures the whole step has for each pass."""
    known = torch.stack([(batch.label >= 0).sum() for batch in passes]).sum().double()
    share = accelerator.reduce(known, "sum") / (len(passes) * accelerator.num_processes)
    return [batch._replace(labelled=share) for batch in passes]


def _gather(state: State, step: Step) -> None:
    sums = torch.stack([torch.stack([a.double(), b.double()]) for a, b in step.metrics.values()])
    state.names = list(step.metrics)
    state.sums = sums if state.sums is None else state.sums + sums


def means(names: list[str], sums: Tensor, accelerator: Accelerator) -> dict[str, tuple[float, int]]:
    """{name: (mean, count)} over all processes of (metrics, 2) sums and counts. The one place where the host waits."""
    total = accelerator.reduce(sums, "sum").tolist()
    return {name: (a / n, round(n)) for name, (a, n) in zip(names, total, strict=True) if n}


def _read(state: State, accelerator: Accelerator) -> dict[str, float]:
    """The means of the metrics since the last row, and of the gradient's norm.

    Raises:
        UserError: the loss is no number.
    """
    assert state.sums is not None and state.norms is not None
    values = {name: value for name, (value, _) in means(state.names, state.sums, accelerator).items()}
    norm, count = state.norms.tolist()
    state.sums = state.norms = None
    if not math.isfinite(values.get("loss", 0.0)):  # none where no picture had a label
        text = "a lower optim.lr= or a longer optim.warmup= may help"
        raise UserError(f"step {state.step}: the loss is {values['loss']}; {text}")
    unread = int(accelerator.reduce(torch.tensor(state.unread, device=accelerator.device), "sum"))
    return values | {"grad_norm": norm / count, "steps": count} | ({"unreadable": unread} if unread else {})


def _row(values: dict[str, float], state: State, recipe: Recipe, accelerator: Accelerator, clock: Clock) -> Row:
    """A row of metrics.jsonl: where the run is, the means since the last row, and how it went."""
    steps, batch = values.pop("steps"), recipe.optim.batch
    return {
        "step": state.step,
        "images": state.step * batch,
        **values,
        "lr": state.lr,
        "images_per_s": round(steps * batch / clock.spent, 1),
        "data_wait": round(clock.waited / clock.spent, 4),
        "memory_gib": round(_memory(accelerator.device), 3),
        "seconds": round(state.seconds, 2),
    }


def _memory(device: torch.device) -> float:
    """The most memory held so far, in GiB: the device's, or on CPU this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _observe(observer: Observer, state: State, row: Row, recipe: Recipe, accelerator: Accelerator, audience: Audience) -> Row:
    """What an observer says of the frozen objective; nothing, with a warning, if it fails."""
    state.watched.eval()
    try:
        gpus = [accelerator.device] if accelerator.device.type == "cuda" else []
        with torch.no_grad(), autocast(recipe, accelerator), torch.random.fork_rng(gpus):
            return dict(observer(state.step, row, state.watched))
    except Exception as error:
        audience.warn(f"{type(observer).__name__} failed at step {state.step}: {error!r}")
        return {}
    finally:
        state.watched.train()


def seconds_per_step(state: State, batch: Batch, recipe: Recipe, spread: Spread, accelerator: Accelerator) -> float:
    """Measured here: forward and backward of one batch (the second of two, the first warms up) times the accumulation."""
    took = 0.0
    for _ in range(2):
        start = time.perf_counter()
        with autocast(recipe, accelerator):
            loss = state.prepared(to_device(batch, accelerator.device)).loss
        accelerator.backward(loss)
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize(accelerator.device)
        took = time.perf_counter() - start
    state.prepared.zero_grad()
    return took * spread.accumulation
