"""Train in optimiser steps, and run evaluators.

Metrics stay on the device between logging steps. An evaluator is called as evaluator(step, row,
objective) with the objective in evaluation mode, and yields (name, value). An evaluator does not
affect the random state, and a failing evaluator does not end the run.
"""

import resource
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import methodcaller
from typing import NamedTuple, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor

from .. import rng
from ..callbacks import Callbacks, Row
from ..data.batching import Batch, check_unreadable, is_labelled
from ..data.workers import Interrupted
from ..objectives.base import Objective, Output, check_share
from ..recipe.schema import Data
from . import distributed, optim
from .metric_sums import add_metrics, means
from .state import State


class Evaluator(Protocol):
    """Function that measures the objective during training."""

    def __call__(
        self, step: int, row: Row, objective: Objective
    ) -> Iterable[tuple[str, float]]: ...


class Scheduled(NamedTuple):
    """Evaluator with an interval in steps. Every evaluator also runs after the last step."""

    evaluator: Evaluator
    every: int


@dataclass(frozen=True)
class LoopSettings:
    """Values of a recipe that the loop needs."""

    steps: int  # optimiser steps in total
    batch: int  # images per optimiser step, over all processes
    log_every: int  # steps
    checkpoint_every: int  # steps
    seed: int
    precision: str  # float32 or bfloat16
    data: Data
    learns_labels: bool = False  # whether batches need Batch.loss_denominator


class Clock:
    """Clock of training since the last row: steps, seconds, and seconds spent waiting for data.

    Evaluation and checkpoints are not included.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.spent = 0.0
        self.waited = 0.0

    @contextmanager
    def running(self, state: State) -> Iterator[None]:
        start = time.perf_counter()
        yield
        took = time.perf_counter() - start
        self.steps += 1
        self.spent += took
        state.seconds += took
        state.device_seconds += took * state.accelerator.num_processes

    def next_batch(self, batches: Iterator[Batch]) -> Batch:
        start = time.perf_counter()
        batch = next(batches)
        self.waited += time.perf_counter() - start
        return batch


def train(
    state: State,
    batches: Iterable[Batch],
    settings: LoopSettings,
    evaluators: Collection[Scheduled] = (),
    callbacks: Callbacks | None = None,
    save: Callable[[], None] = lambda: None,
    is_best: Callable[[Row], bool] = lambda row: False,
    stop: Callable[[int], object] = lambda step: False,
    on_nonfinite: Callable[[list[int]], None] = lambda steps: None,
) -> None:
    """Train from state.step to settings.steps or until `stop`, and save at the end.

    If the loss or gradient is not finite on any process, the update is skipped on all processes, on
    the device.

    Args:
        state: What is trained.
        batches: Batches of this process from state.step on; each step takes as many as the batch
            layout has accumulation steps.
        settings: Values of the recipe.
        evaluators: Evaluators to call at their intervals.
        callbacks: Receive steps, rows and warnings.
        save: Write a checkpoint of `state`.
        is_best: Return whether to save a step, given its row after the evaluators ran.
        stop: Return whether all processes stop before a step.
        on_nonfinite: Called with the skipped steps, before the next row.

    Raises:
        UserError: Too many images cannot be read.
    """
    batches = iter(batches)
    clock = Clock()
    callbacks = callbacks or Callbacks([])
    while state.step < settings.steps:
        if stop(state.step):
            save()
            return
        row: Row = {}
        try:
            with clock.running(state):
                _update(state, batches, settings, clock, callbacks)
                last = state.step == settings.steps
                if last or state.step % settings.log_every == 0:
                    row = _read(state, clock, on_nonfinite)
        except Interrupted:  # interrupted while waiting for data: no part of the step was done
            stop(state.step)
            save()
            return
        if row:
            row = _row(row, state, settings, clock)
            clock = Clock()
        callbacks.notify(methodcaller("on_step", state.step))
        scheduled = [
            schedule.evaluator
            for schedule in evaluators
            if last or state.step % schedule.every == 0
        ]
        for evaluator in scheduled:
            row |= {"step": state.step} | evaluate(evaluator, state, row, settings, callbacks)
        if row:
            callbacks.notify(methodcaller("on_row", row))
        best = bool(scheduled) and is_best(row)
        if last or best or state.step % settings.checkpoint_every == 0:
            save()


def _update(
    state: State,
    batches: Iterator[Batch],
    settings: LoopSettings,
    clock: Clock,
    callbacks: Callbacks,
) -> None:
    """Do one optimiser step on the micro-batches of this process."""
    objective, strategy, accelerator = state.objective, state.strategy, state.accelerator
    layout = strategy.batch_layout
    if not objective.training:
        objective.train()
    # Load all micro-batches before the first forward pass: an interruption while waiting for data
    # must not leave half a step behind, and the labels of the whole step are counted first.
    micro_batches = [
        to_device(clock.next_batch(batches), accelerator.device)
        for _ in range(layout.accumulation_steps)
    ]
    _report_unreadable(state, micro_batches, settings.data, callbacks)
    if settings.learns_labels:
        micro_batches = _with_label_counts(micro_batches, accelerator)
    progress = state.step / settings.steps
    objective.start_step(progress)
    optim.set_weight_decay(state.schedule.optimizer, strategy.settings, state.step)
    frozen = objective.frozen_weights(progress)
    if frozen:
        optim.hold(state.schedule.optimizer)
    outputs: list[Output] = []
    for i, batch in enumerate(micro_batches):
        # Dropout and drop path depend on the chunk of the global batch, not on the process.
        torch.manual_seed(int(rng.key(settings.seed, state.step, layout.chunk_index(i))[0]))
        cast = autocast(settings.precision, accelerator)
        outputs.append(strategy.run_pass(batch, cast, last=i == len(micro_batches) - 1))
    norm, found_inf = strategy.update()
    strategy.reset_moments(frozen)
    strategy.update_momentum((state.step + 1) / settings.steps, found_inf)
    _accumulate(state, outputs, norm, found_inf)
    state.lr = float(max(state.schedule.get_last_lr()))
    state.schedule.step()
    if state.average and (decay := strategy.settings.average):
        optim.update_average(state.average, objective, decay)
    state.step += 1


def _report_unreadable(
    state: State, micro_batches: list[Batch], data: Data, callbacks: Callbacks
) -> None:
    """Count the images of this process that could not be read, and report each once.

    Raises:
        UserError: As in `check_unreadable`.
    """
    # with mixing, the partner of each image is read as well
    state.images_seen += sum(
        len(batch.key) * (1 if batch.partner_label is None else 2) for batch in micro_batches
    )
    for batch in micro_batches:
        for text in batch.unreadable:
            state.images_unreadable += 1
            if text not in state.unreadable:
                callbacks.warn(f"an unreadable image was replaced by the next image: {text}")
            state.unreadable[text] += 1
            names = state.unreadable
            check_unreadable(state.images_unreadable, state.images_seen, data, names, len(names))


def autocast(precision: str, accelerator: Accelerator) -> torch.autocast:
    """Return a context for autocast to bfloat16, which does nothing for float32.

    Enter the context outside the objective, so that a compiled objective stays one graph.
    """
    return torch.autocast(accelerator.device.type, torch.bfloat16, enabled=precision == "bfloat16")


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with all tensors on the device."""
    return batch.map(lambda x: x.to(device, non_blocking=True))


def _with_label_counts(micro_batches: list[Batch], accelerator: Accelerator) -> list[Batch]:
    """Return the micro-batches of a step with `loss_denominator`: labelled images of the global
    batch per micro-batch.
    """
    local = torch.stack([is_labelled(batch.label).sum() for batch in micro_batches]).sum().double()
    total = accelerator.reduce(local, "sum")
    per_pass = total / (len(micro_batches) * accelerator.num_processes)
    return [batch._replace(loss_denominator=per_pass) for batch in micro_batches]


def _accumulate(state: State, outputs: list[Output], norm: Tensor, found_inf: Tensor) -> None:
    """Add the metrics and gradient norm of a step to the sums since the last row, unless the update
    was skipped (`found_inf`).
    """
    for output in outputs:
        add_metrics(state.sums, output.metrics, found_inf)
    norms = torch.stack([norm, torch.ones_like(norm)]).masked_fill(found_inf, 0)
    state.norms = norms if state.norms is None else state.norms + norms
    state.skipped.append(found_inf)


def _read(state: State, clock: Clock, on_nonfinite: Callable[[list[int]], None]) -> Row:
    """Return the means of metrics and gradient norm since the last row over all processes, the time
    spent loading, and the memory used. Report skipped steps.

    The host waits for the device only here and in evaluations.

    Raises:
        UserError: A share is not between 0 and 1.
    """
    assert state.norms is not None
    row: Row = {}
    for name, (value, _) in means(state.objective, state.sums, state.accelerator).items():
        check_share(state.objective, name, value)
        row[name] = value
    norm, count = state.norms.tolist()
    flags = torch.stack(state.skipped).tolist()
    skipped = [step for step, flag in enumerate(flags, state.step - len(flags)) if flag]
    state.sums, state.norms, state.skipped = {}, None, []
    if skipped:
        on_nonfinite(skipped)
    used = (state.images_unreadable, clock.waited, _memory(state.accelerator.device))
    unreadable, waited, memory = zip(*state.accelerator.gather_parts([used]), strict=True)
    # take the slowest loader, because all processes wait for it in the step
    clock.waited = max(waited)
    if count:
        row["grad_norm"] = norm / count
    if sum(unreadable):
        row["unreadable"] = sum(unreadable)
    if skipped:
        row["left_out"] = len(skipped)
    return row | {"memory_gib": round(max(memory), 3)}


def _row(values: Row, state: State, settings: LoopSettings, clock: Clock) -> Row:
    """Return a row of metrics.jsonl: the position, means since the last row, and throughput."""
    return {
        "step": state.step,
        "images": state.step * settings.batch,
        **values,
        "lr": state.lr,
        "images_per_s": round(clock.steps * settings.batch / clock.spent, 1),
        "data_wait": round(clock.waited / clock.spent, 4),
        "seconds": round(state.seconds, 2),
    }


def _memory(device: torch.device) -> float:
    """Return the peak memory in GiB of the device, or of the process itself on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 2**30 if sys.platform == "darwin" else 2**20  # bytes on macOS, else KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def evaluate(
    evaluator: Evaluator, state: State, row: Row, settings: LoopSettings, callbacks: Callbacks
) -> Row:
    """Run an evaluator on the objective in evaluation mode and return {name: value}.

    If the evaluator fails on any process, warn and return what was measured before. All processes
    call this function.
    """
    found: Row = {}
    device = state.accelerator.device
    with state.evaluation_model() as model:
        try:
            with (
                torch.no_grad(),
                autocast(settings.precision, state.accelerator),
                torch.random.fork_rng([device] if device.type == "cuda" else []),
                state.accelerator.together(),
            ):
                found.update(evaluator(state.step, row, model.eval()))
        except distributed.FailedError as error:
            if state.accelerator.is_main_process:
                callbacks.warn(f"{type(evaluator).__name__} failed at step {state.step}: {error}")
        finally:
            model.train()
    return found


def seconds_per_step(state: State, batch: Batch, settings: LoopSettings) -> float:
    """Measure the seconds of one step.

    Time the forward and backward pass of a batch (the second of two passes, because the first warms
    up) and multiply by the accumulation steps. Buffers, such as running means, are restored.
    """
    accelerator = state.accelerator
    batch = to_device(batch, accelerator.device)
    # Add every field of a training batch, so that torch.compile sees the same graph.
    if max(settings.data.mixup, settings.data.cutmix) > 0:
        share = torch.ones(len(batch.key), device=accelerator.device)
        batch = batch._replace(partner_label=batch.label.clone(), mix_lambda=share)
    if settings.learns_labels:
        (batch,) = _with_label_counts([batch], accelerator)
    took = 0.0
    kept = [(buffer, buffer.clone()) for buffer in state.objective.buffers()]
    for _ in range(2):
        start = time.perf_counter()
        state.strategy.dry_run(batch, autocast(settings.precision, accelerator))
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize(accelerator.device)
        took = time.perf_counter() - start
    for buffer, value in kept:
        buffer.copy_(value)
    return took * state.strategy.batch_layout.accumulation_steps
