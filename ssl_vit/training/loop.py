"""The one training loop, counted in optimiser steps, and the contract of what watches it.

Numbers stay on the device between logging steps. An observer is called as observer(step, row,
objective) with the objective frozen and yields (name, value); it disturbs no random number and its
failure does not end the run.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import methodcaller
from typing import NamedTuple, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor

from .. import rng
from ..callbacks import Callbacks, Row
from ..config.schema import Data
from ..data.batching import Batch, BatchLayout, check_unreadable
from ..data.loaders import Interrupted
from ..objectives import Objective, Step
from .state import State


class Evaluator(Protocol):
    def __call__(
        self, step: int, row: Row, objective: Objective
    ) -> Iterable[tuple[str, float]]: ...


class Scheduled(NamedTuple):
    """An observer, and after which steps it looks (always after the last)."""

    evaluator: Evaluator
    every: int


@dataclass(frozen=True)
class LoopSettings:
    """The values of a recipe that the loop needs."""

    steps: int  # optimiser steps in total
    batch: int  # images of one optimiser step, over all processes
    log_every: int  # steps
    checkpoint_every: int  # steps
    seed: int
    precision: str  # float32 or bfloat16
    data: Data


class Clock:
    """Seconds of training since the last row, and of them those spent waiting for data. Watches and
    saving do not count."""

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


def train(
    state: State,
    batches: Iterable[Batch],
    settings: LoopSettings,
    batch_layout: BatchLayout,
    accelerator: Accelerator,
    evaluators: Iterable[Scheduled] = (),
    callbacks: Callbacks | None = None,
    save: Callable[[], None] = lambda: None,
    stop: Callable[[int], object] = lambda step: False,
    on_nonfinite: Callable[[list[int]], None] = lambda steps: None,
) -> None:
    """Train from state.step to the last step, or to one at which `stop` says so on all
    processes; save there.

    `batches` brings this process's passes from state.step on, spread.accumulation_steps to a step. An
    update whose loss or gradient is not finite on any process is left out on all, without the host;
    `on_nonfinite` is told of those steps before the next row.

    Raises:
        UserError: too many images cannot be read.
    """
    passes, clock, callbacks = iter(batches), Clock(), callbacks or Callbacks([])
    while state.step < settings.steps:
        if stop(state.step):
            return save()
        try:
            with clock.running(state, batch_layout.processes):
                _update(state, passes, settings, batch_layout, accelerator, clock, callbacks)
                last = state.step == settings.steps
                values = (
                    _read(state, accelerator, on_nonfinite)
                    if last or state.step % settings.log_every == 0
                    else {}
                )
        except Interrupted:  # while data were waited for: nothing of the step was done
            stop(state.step)
            return save()
        row: Row = {}
        if values:
            row, clock = _row(values, state, settings, accelerator, clock), Clock()
        callbacks.notify(methodcaller("on_step", state.step))
        for watch in evaluators:
            if last or state.step % watch.every == 0:
                row |= {"step": state.step} | evaluate(
                    watch.evaluator, state, row, settings, accelerator, callbacks
                )
        if row:
            callbacks.notify(methodcaller("on_row", row))
        if last or state.step % settings.checkpoint_every == 0:
            save()
    return None


def _update(
    state: State,
    passes: Iterator[Batch],
    settings: LoopSettings,
    batch_layout: BatchLayout,
    accelerator: Accelerator,
    clock: Clock,
    callbacks: Callbacks,
) -> None:
    """One optimiser step on spread.accumulation_steps passes."""
    if not state.objective.training:
        state.objective.train()
    step_passes = [
        to_device(clock.wait(passes), accelerator.device)
        for _ in range(batch_layout.accumulation_steps)
    ]
    _note_unread(state, step_passes, settings, callbacks)
    if state.objective.uses_labels:
        step_passes = _counted_labels(step_passes, accelerator)
    made: list[Step] = []
    for micro, batch in enumerate(step_passes):
        # dropout, drop path
        torch.manual_seed(
            int(rng.key(settings.seed, state.step, batch_layout.chunk_index(micro))[0])
        )
        made.append(
            state.strategy.run_pass(
                batch,
                autocast(settings.precision, accelerator),
                last=micro == batch_layout.accumulation_steps - 1,
            )
        )
    norm, bad = state.strategy.update()
    _gather(state, made, norm, bad)
    state.lr = float(max(state.schedule.get_last_lr()))
    state.schedule.step()
    if state.average:
        state.average.update_parameters(state.objective)
    state.step += 1


def _note_unread(
    state: State, passes: list[Batch], settings: LoopSettings, callbacks: Callbacks
) -> None:
    """Name and count the images of this process that could not be read.

    Raises:
        UserError: they are more than the recipe's share of those seen, of 1,000 at least.
    """
    state.images_seen += sum(len(batch.key) for batch in passes)
    for text in (text for batch in passes for text in batch.unreadable):
        state.images_unreadable += 1
        callbacks.warn(f"an image was replaced by the next: {text}")
        check_unreadable(state.images_unreadable, state.images_seen, settings.data, text)


def autocast(precision: str, accelerator: Accelerator) -> torch.autocast:
    """Autocast to bfloat16, or none for float32. Entered outside the objective, so that a compiled one stays one
    graph."""
    return torch.autocast(accelerator.device.type, torch.bfloat16, enabled=precision == "bfloat16")


def to_device(batch: Batch, device: torch.device) -> Batch:
    return batch.map(lambda x: x.to(device, non_blocking=True))


def _counted_labels(passes: list[Batch], accelerator: Accelerator) -> list[Batch]:
    """The passes of a step, told how many labelled images the whole step has for each pass."""
    known = torch.stack([(batch.label >= 0).sum() for batch in passes]).sum().double()
    share = accelerator.reduce(known, "sum") / (len(passes) * accelerator.num_processes)
    return [batch._replace(labels_per_pass=share) for batch in passes]


def _gather(state: State, made: list[Step], norm: Tensor, bad: Tensor) -> None:
    """Add up a step's metrics and its gradient's norm, unless its update is left out."""
    for step in made:
        sums = torch.stack(
            [torch.stack([a.double(), b.double()]) for a, b in step.metrics.values()]
        )
        sums = sums.masked_fill(bad, 0)
        state.names = list(step.metrics)
        state.sums = sums if state.sums is None else state.sums + sums
    norms = torch.stack([norm, torch.ones_like(norm)]).masked_fill(bad, 0)
    state.norms = norms if state.norms is None else state.norms + norms
    state.skipped.append(bad)


def means(names: list[str], sums: Tensor, accelerator: Accelerator) -> dict[str, tuple[float, int]]:
    """{name: (mean, count)} over all processes of (metrics, 2) sums and counts. The one place where
    the host waits."""
    total = accelerator.reduce(sums, "sum").tolist()
    return {name: (a / n, round(n)) for name, (a, n) in zip(names, total, strict=True) if n}


def _read(
    state: State, accelerator: Accelerator, on_nonfinite: Callable[[list[int]], None]
) -> dict[str, float]:
    """The means of the metrics and of the gradient's norm since the last row, whose steps not
    finite are told."""
    assert state.sums is not None and state.norms is not None
    values = {
        name: value for name, (value, _) in means(state.names, state.sums, accelerator).items()
    }
    norm, count = state.norms.tolist()
    steps = len(state.skipped)
    bad = [
        state.step - steps + i for i, flag in enumerate(torch.stack(state.skipped).tolist()) if flag
    ]
    state.sums, state.norms, state.skipped = None, None, []
    if bad:
        on_nonfinite(bad)
    unread = int(
        accelerator.reduce(torch.tensor(state.images_unreadable, device=accelerator.device), "sum")
    )
    grad_norm = {"grad_norm": norm / count} if count else {}
    counts = {"unreadable": unread, "left_out": len(bad)}
    return (
        values
        | grad_norm
        | {"steps": steps}
        | {name: number for name, number in counts.items() if number}
    )


def _row(
    values: dict[str, float],
    state: State,
    settings: LoopSettings,
    accelerator: Accelerator,
    clock: Clock,
) -> Row:
    """A row of metrics.jsonl: where the run is, the means since the last row, and how it went."""
    steps, batch = values.pop("steps"), settings.batch
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


def evaluate(
    evaluator: Evaluator,
    state: State,
    row: Row,
    settings: LoopSettings,
    accelerator: Accelerator,
    callbacks: Callbacks,
) -> Row:
    """What an observer says of the frozen objective; nothing, with a warning, if it fails."""
    gpus = [accelerator.device] if accelerator.device.type == "cuda" else []
    with state.evaluation_model() as watched:
        try:
            with (
                torch.no_grad(),
                autocast(settings.precision, accelerator),
                torch.random.fork_rng(gpus),
            ):
                return dict(evaluator(state.step, row, watched.eval()))
        except Exception as error:
            callbacks.warn(f"{type(evaluator).__name__} failed at step {state.step}: {error!r}")
            return {}
        finally:
            watched.train()


def seconds_per_step(
    state: State,
    batch: Batch,
    settings: LoopSettings,
    batch_layout: BatchLayout,
    accelerator: Accelerator,
) -> float:
    """Measured here: forward and backward of one batch (the second of two, the first warms up)
    times the accumulation. Running means, which a forward moves, are put back."""
    batch = _as_trained(batch, state, settings, accelerator)
    took, kept = 0.0, [(buffer, buffer.clone()) for buffer in state.objective.buffers()]
    for _ in range(2):
        start = time.perf_counter()
        state.strategy.dry_run(batch, autocast(settings.precision, accelerator))
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize(accelerator.device)
        took = time.perf_counter() - start
    for buffer, value in kept:
        buffer.copy_(value)
    return took * batch_layout.accumulation_steps


def _as_trained(
    batch: Batch, state: State, settings: LoopSettings, accelerator: Accelerator
) -> Batch:
    """A batch with all that a training pass has, so that no graph is compiled for the rehearsal
    alone."""
    batch = to_device(batch, accelerator.device)
    if max(settings.data.mixup, settings.data.cutmix) > 0:
        share = torch.ones(len(batch.key), device=accelerator.device)
        batch = batch._replace(partner_label=batch.label.clone(), own_share=share)
    return _counted_labels([batch], accelerator)[0] if state.objective.uses_labels else batch
