"""The one training loop, counted in optimiser steps, and the contract of what watches it.

Numbers stay on the device between logging steps. An observer is called as observer(step, row, objective) with the objective
frozen and yields (name, value); it disturbs no random number and its failure does not end the run.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from typing import Any, NamedTuple, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor

from . import counted
from .data.batches import Batch, Spread, check_unread
from .data.loaders import Interrupted
from .objectives import Objective, Step
from .recipe import Recipe
from .state import State

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


class Clock:
    """Seconds of training since the last row, and of them those spent waiting for data. Watches and saving do not count."""

    def __init__(self) -> None:
        self.spent = self.waited = 0.0

    @contextmanager
    def running(self, state: State, processes: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        took = time.perf_counter() - start
        self.spent += took
        state.seconds += took
        state.device_seconds += took * processes

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

    def close(self) -> None:
        self.tell(methodcaller("close"))


def train(
    state: State,
    batches: Iterable[Batch],
    recipe: Recipe,
    spread: Spread,
    accelerator: Accelerator,
    watches: Iterable[Watch] = (),
    audience: Audience | None = None,
    save: Callable[[], None] = lambda: None,
    stop: Callable[[int], object] = lambda step: False,
    trouble: Callable[[list[int]], None] = lambda steps: None,
) -> None:
    """Train from state.step to the recipe's last step, or to one at which `stop` says so on all processes; save there.

    `batches` brings this process's passes from state.step on, spread.accumulation to a step. An update whose loss or gradient
    is not finite on any process is left out on all, without the host; `trouble` is told of those steps before the next row.

    Raises:
        UserError: too many pictures cannot be read.
    """
    passes, clock, audience = iter(batches), Clock(), audience or Audience([])
    while state.step < recipe.optim.steps:
        if stop(state.step):
            return save()
        try:
            with clock.running(state, spread.processes):
                _update(state, passes, recipe, spread, accelerator, clock, audience)
                last = state.step == recipe.optim.steps
                values = _read(state, accelerator, trouble) if last or state.step % recipe.log.every == 0 else {}
        except Interrupted:  # while data were waited for: nothing of the step was done
            stop(state.step)
            return save()
        row: Row = {}
        if values:
            row, clock = _row(values, state, recipe, accelerator, clock), Clock()
        audience.tell(methodcaller("on_step", state.step))
        for watch in watches:
            if last or state.step % watch.every == 0:
                row |= {"step": state.step} | observe(watch.observer, state, row, recipe, accelerator, audience)
        if row:
            audience.tell(methodcaller("on_row", row))
        if last or state.step % recipe.checkpoint.every == 0:
            save()
    return None


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
    if not state.objective.training:
        state.objective.train()
    step_passes = [to_device(clock.wait(passes), accelerator.device) for _ in range(spread.accumulation)]
    _note_unread(state, step_passes, recipe, audience)
    if state.objective.uses_labels:
        step_passes = _counted_labels(step_passes, accelerator)
    made: list[Step] = []
    for micro, batch in enumerate(step_passes):
        torch.manual_seed(int(counted.key(recipe.seed, state.step, spread.chunk(micro))[0]))  # dropout, drop path
        made.append(state.learner.learn(batch, autocast(recipe, accelerator), last=micro == spread.accumulation - 1))
    norm, bad = state.learner.update()
    _gather(state, made, norm, bad)
    state.lr = float(max(state.schedule.get_last_lr()))
    state.schedule.step()
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


def _gather(state: State, made: list[Step], norm: Tensor, bad: Tensor) -> None:
    """Add up a step's metrics and its gradient's norm, unless its update is left out."""
    for step in made:
        sums = torch.stack([torch.stack([a.double(), b.double()]) for a, b in step.metrics.values()])
        sums = sums.masked_fill(bad, 0)
        state.names = list(step.metrics)
        state.sums = sums if state.sums is None else state.sums + sums
    norms = torch.stack([norm, torch.ones_like(norm)]).masked_fill(bad, 0)
    state.norms = norms if state.norms is None else state.norms + norms
    state.left_out.append(bad)


def means(names: list[str], sums: Tensor, accelerator: Accelerator) -> dict[str, tuple[float, int]]:
    """{name: (mean, count)} over all processes of (metrics, 2) sums and counts. The one place where the host waits."""
    total = accelerator.reduce(sums, "sum").tolist()
    return {name: (a / n, round(n)) for name, (a, n) in zip(names, total, strict=True) if n}


def _read(state: State, accelerator: Accelerator, trouble: Callable[[list[int]], None]) -> dict[str, float]:
    """The means of the metrics and of the gradient's norm since the last row, whose steps not finite are told."""
    assert state.sums is not None and state.norms is not None
    values = {name: value for name, (value, _) in means(state.names, state.sums, accelerator).items()}
    norm, count = state.norms.tolist()
    steps = len(state.left_out)
    bad = [state.step - steps + i for i, flag in enumerate(torch.stack(state.left_out).tolist()) if flag]
    state.sums, state.norms, state.left_out = None, None, []
    if bad:
        trouble(bad)
    unread = int(accelerator.reduce(torch.tensor(state.unread, device=accelerator.device), "sum"))
    told = {"grad_norm": norm / count} if count else {}
    counts = {"unreadable": unread, "left_out": len(bad)}
    return values | told | {"steps": steps} | {name: number for name, number in counts.items() if number}


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
    unit = 2**30 if sys.platform == "darwin" else 2**20  # bytes on macOS, else KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def observe(observer: Observer, state: State, row: Row, recipe: Recipe, accelerator: Accelerator, audience: Audience) -> Row:
    """What an observer says of the frozen objective; nothing, with a warning, if it fails."""
    gpus = [accelerator.device] if accelerator.device.type == "cuda" else []
    with state.watched() as watched:
        try:
            with torch.no_grad(), autocast(recipe, accelerator), torch.random.fork_rng(gpus):
                return dict(observer(state.step, row, watched.eval()))
        except Exception as error:
            audience.warn(f"{type(observer).__name__} failed at step {state.step}: {error!r}")
            return {}
        finally:
            watched.train()


def seconds_per_step(state: State, batch: Batch, recipe: Recipe, spread: Spread, accelerator: Accelerator) -> float:
    """Measured here: forward and backward of one batch (the second of two, the first warms up) times the accumulation. Running
    means, which a forward moves, are put back."""
    batch = _as_trained(batch, state, recipe, accelerator)
    took, kept = 0.0, [(buffer, buffer.clone()) for buffer in state.objective.buffers()]
    for _ in range(2):
        start = time.perf_counter()
        state.learner.rehearse(batch, autocast(recipe, accelerator))
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize(accelerator.device)
        took = time.perf_counter() - start
    for buffer, value in kept:
        buffer.copy_(value)
    return took * spread.accumulation


def _as_trained(batch: Batch, state: State, recipe: Recipe, accelerator: Accelerator) -> Batch:
    """A batch with all that a training pass has, so that no graph is compiled for the rehearsal alone."""
    batch = to_device(batch, accelerator.device)
    if max(recipe.data.mixup, recipe.data.cutmix) > 0:
        share = torch.ones(len(batch.key), device=accelerator.device)
        batch = batch._replace(partner=batch.label.clone(), share=share)
    return _counted_labels([batch], accelerator)[0] if state.objective.uses_labels else batch
