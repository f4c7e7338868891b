"""Train in optimiser steps, and run evaluators.

Metrics stay on the device between logging steps. An evaluator is called as evaluator(step, row,
objective), with the objective in evaluation mode, and yields (name, value). An evaluator does not
affect training's random state, and a failing evaluator does not end the run.
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
    """Function that measures the objective during training and yields (name, value)."""

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
    """Clock of the training steps since the last row of metrics.

    Only training steps count, not evaluations and checkpoints.

    Attributes:
        steps: Number of steps.
        spent: Seconds spent in steps.
        waited: Part of `spent` in which this process waited for data, in seconds.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.spent = 0.0
        self.waited = 0.0

    @contextmanager
    def running(self, state: State) -> Iterator[None]:
        """Time the body of the context, one training step, for this clock and for the state."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.steps += 1
        self.spent += seconds
        state.seconds += seconds
        state.device_seconds += seconds * state.accelerator.num_processes

    def next_batch(self, batches: Iterator[Batch]) -> Batch:
        """Return the next batch, and add the time of waiting to `waited`."""
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

    If the loss or gradient is not finite on any process, all processes skip the update.

    Args:
        state: State of training, changed in place.
        batches: Batches of this process from state.step on. A step takes one batch per accumulation
            step (`BatchLayout`).
        settings: Values of the recipe.
        evaluators: Evaluators to call at their intervals.
        callbacks: Receive steps, rows and warnings.
        save: Writes a checkpoint of `state`.
        is_best: Takes the row of a step after the evaluators ran, and returns whether to save a
            checkpoint of this best step.
        stop: Takes a step, and returns a true value if all processes stop before this step.
        on_nonfinite: Receives the steps with skipped updates, before the next row.

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
                is_last = state.step == settings.steps
                if is_last or state.step % settings.log_every == 0:
                    row = _read(state, clock, on_nonfinite)
        except Interrupted:  # raised while waiting for data, before any part of the step was done
            stop(state.step)
            save()
            return
        if row:
            row = _row(row, state, settings, clock)
            clock = Clock()
        callbacks.notify(methodcaller("on_step", state.step))
        due_evaluators = [
            scheduled.evaluator
            for scheduled in evaluators
            if is_last or state.step % scheduled.every == 0
        ]
        for evaluator in due_evaluators:
            row |= {"step": state.step} | evaluate(evaluator, state, row, settings, callbacks)
        if row:
            callbacks.notify(methodcaller("on_row", row))
        saves_best = bool(due_evaluators) and is_best(row)
        if is_last or saves_best or state.step % settings.checkpoint_every == 0:
            save()


def _update(
    state: State,
    batches: Iterator[Batch],
    settings: LoopSettings,
    clock: Clock,
    callbacks: Callbacks,
) -> None:
    """Do one optimiser step: load its micro-batches, compute the gradient, update the weights.

    Args:
        state: State of training, changed in place.
        batches: Batches of this process, of which the step takes one per accumulation step.
        settings: Values of the recipe.
        clock: Counts the time that the step waits for data.
        callbacks: Receive warnings about unreadable images.
    """
    objective, strategy = state.objective, state.strategy
    accelerator = state.accelerator
    layout = strategy.batch_layout
    if not objective.training:  # after an evaluation
        objective.train()
    # Load all micro-batches before the first forward pass, for two reasons. An interruption while
    # waiting for data must not leave half a step. The labels of the whole step must be counted
    # before the first loss
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
        optim.freeze_next_update(state.schedule.optimizer)
    outputs: list[Output] = []
    last = len(micro_batches) - 1
    for i, batch in enumerate(micro_batches):
        # Seed by chunk of the global batch, so that dropout and drop path do not depend on the
        # number of processes
        seed = int(rng.key(settings.seed, state.step, layout.chunk_index(i))[0])
        torch.manual_seed(seed)
        cast = autocast(settings.precision, accelerator)
        outputs.append(strategy.run_pass(batch, cast, last=i == last))
    norm, found_inf = strategy.update()
    strategy.reset_moments(frozen)
    strategy.update_momentum((state.step + 1) / settings.steps, found_inf)
    _add_step_to_sums(state, outputs, norm, found_inf)
    state.lr = float(max(state.schedule.get_last_lr()))
    state.schedule.step()
    decay = strategy.settings.average
    if state.average and decay:
        optim.update_average(state.average, objective, decay)
    state.step += 1


def _report_unreadable(
    state: State, micro_batches: list[Batch], data: Data, callbacks: Callbacks
) -> None:
    """Count the images that this process read, and count and report the unreadable images.

    An image that is unreadable in several epochs is counted each time, but reported only once.

    Args:
        state: State of training. Its counts of images are updated.
        micro_batches: Batches of the step.
        data: Group `data` of the recipe, which says how many images may be unreadable.
        callbacks: Receive a warning for each unreadable image.

    Raises:
        UserError: Too many images cannot be read (`check_unreadable`).
    """
    for batch in micro_batches:
        # An item of a batch is one image, or a mixture of two images (mixup, cutmix)
        images_per_item = 1 if batch.partner_label is None else 2  # mixing reads a partner, too
        state.images_seen += len(batch.key) * images_per_item
    counts_by_name = state.unreadable
    for batch in micro_batches:
        for name in batch.unreadable:
            state.images_unreadable += 1
            if name not in counts_by_name:
                callbacks.warn(f"an unreadable image was replaced by the next image: {name}")
            counts_by_name[name] += 1
            check_unreadable(state.images_unreadable, state.images_seen, data, counts_by_name)


def autocast(precision: str, accelerator: Accelerator) -> torch.autocast:
    """Return a context that casts to bfloat16, or does nothing if `precision` is float32.

    Enter the context outside the objective, so that a compiled objective stays one graph.
    """
    return torch.autocast(accelerator.device.type, torch.bfloat16, enabled=precision == "bfloat16")


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with all tensors on the device."""
    return batch.map(lambda x: x.to(device, non_blocking=True))


def _with_label_counts(micro_batches: list[Batch], accelerator: Accelerator) -> list[Batch]:
    """Return the batches of a step with `loss_denominator`, the divisor of the supervised loss.

    The denominator is the number of labelled images in the global batch, divided by the number of
    micro-batches on all processes. All labelled images thus have the same weight, although some
    micro-batches have more labelled images than others. For example, 6 labelled images in 2
    micro-batches give the denominator 3. Collective.

    Args:
        micro_batches: Batches of this process in the step.
        accelerator: Processes of the run.
    """
    labelled_images = torch.stack([is_labelled(batch.label).sum() for batch in micro_batches])
    total = accelerator.reduce(labelled_images.sum().double(), "sum")
    mean_per_micro_batch = total / (len(micro_batches) * accelerator.num_processes)
    return [batch._replace(loss_denominator=mean_per_micro_batch) for batch in micro_batches]


def _add_step_to_sums(state: State, outputs: list[Output], norm: Tensor, found_inf: Tensor) -> None:
    """Add the metrics and the gradient norm of a step to the running sums in `state`.

    The next row of metrics has the means that result from these sums (`_read`). A step whose update
    was skipped adds 0 to all sums. All sums stay on the device, so the host does not wait.

    Args:
        state: State of training. Its sums and its list of skipped updates are changed.
        outputs: Outputs of all forward passes of the step.
        norm: Gradient norm, a scalar on the device.
        found_inf: Whether the update was skipped, a bool scalar on the device.
    """
    for output in outputs:
        add_metrics(state.sums, output.metrics, found_inf)
    # (norm, 1) after an update, (0, 0) after a skipped update
    norm_and_count = torch.stack([norm, torch.ones_like(norm)]).masked_fill(found_inf, 0)
    if state.norm_sum_and_count is None:
        state.norm_sum_and_count = norm_and_count
    else:
        state.norm_sum_and_count = state.norm_sum_and_count + norm_and_count
    state.skipped.append(found_inf)


def _read(state: State, clock: Clock, on_nonfinite: Callable[[list[int]], None]) -> Row:
    """Read the sums since the last row from the device, reset the sums, and return the means.

    The host waits for the device only here and in evaluations. Collective.

    Args:
        state: State of training. Its sums since the last row are set to 0.
        clock: Clock of the steps since the last row. `clock.waited` is set to the longest waiting
            time of any process, because all processes wait for the slowest process.
        on_nonfinite: Receives the steps with skipped updates, if any.

    Returns:
        Means of the metrics and of the gradient norm, number of unreadable images, number of
        skipped steps, and peak memory in GiB, over all processes.

    Raises:
        UserError: A metric that is a share is not between 0 and 1.
    """
    assert state.norm_sum_and_count is not None
    row: Row = {}
    for name, (value, _) in means(state.objective, state.sums, state.accelerator).items():
        check_share(state.objective, name, value)
        row[name] = value
    norm_sum, norm_count = state.norm_sum_and_count.tolist()
    skip_flags = torch.stack(state.skipped).tolist()
    # `skip_flags` has a flag for each step since the last row, and state.step is the next step
    first_step = state.step - len(skip_flags)
    skipped = [step for step, is_skipped in enumerate(skip_flags, first_step) if is_skipped]
    state.sums = {}
    state.norm_sum_and_count = None
    state.skipped = []
    if skipped:
        on_nonfinite(skipped)
    local_values = (state.images_unreadable, clock.waited, _memory(state.accelerator.device))
    all_values = state.accelerator.gather_parts([local_values])
    unreadable, waited, memory = zip(*all_values, strict=True)
    clock.waited = max(waited)
    if norm_count:
        row["grad_norm"] = norm_sum / norm_count
    if sum(unreadable):
        row["unreadable"] = sum(unreadable)
    if skipped:
        row["left_out"] = len(skipped)
    return row | {"memory_gib": round(max(memory), 3)}


def _row(values: Row, state: State, settings: LoopSettings, clock: Clock) -> Row:
    """Build a row of metrics.jsonl: step and images so far, metrics, throughput and time.

    Args:
        values: {name: value} of the metrics.
        state: State of training.
        settings: Values of the recipe.
        clock: Clock of the steps since the last row.
    """
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
    """Return the peak memory in GiB of the device, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    units_per_gib = 2**30 if sys.platform == "darwin" else 2**20  # bytes on macOS, else KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units_per_gib


def evaluate(
    evaluator: Evaluator, state: State, row: Row, settings: LoopSettings, callbacks: Callbacks
) -> Row:
    """Run an evaluator on the objective in evaluation mode, and return {name: value}. Collective.

    If the evaluator fails on any process, warn and return the values that it yielded before.

    Args:
        evaluator: Evaluator to run.
        state: State of training.
        row: Row of the current step, which the evaluator may read.
        settings: Values of the recipe.
        callbacks: Receive the warning.
    """
    values: Row = {}
    device = state.accelerator.device
    with state.evaluation_model() as model:
        try:
            with (
                torch.no_grad(),
                autocast(settings.precision, state.accelerator),
                torch.random.fork_rng([device] if device.type == "cuda" else []),
                state.accelerator.raise_on_all(),
            ):
                values.update(evaluator(state.step, row, model.eval()))
        except distributed.FailedError as error:
            if state.accelerator.is_main_process:
                callbacks.warn(f"{type(evaluator).__name__} failed at step {state.step}: {error}")
        finally:
            model.train()
    return values


def seconds_per_step(state: State, batch: Batch, settings: LoopSettings) -> float:
    """Measure how many seconds a step takes, without changing the state.

    The time of the forward and backward pass of a batch is multiplied by the accumulation steps. A
    first pass warms up, and a second pass is timed. Buffers, such as running means, are restored.

    Args:
        state: State of training.
        batch: Batch of this process.
        settings: Values of the recipe.
    """
    accelerator = state.accelerator
    batch = to_device(batch, accelerator.device)
    # Add the same fields to the batch as training does for mixup, cutmix and a supervised loss, so
    # that torch.compile sees the same graph
    if max(settings.data.mixup, settings.data.cutmix) > 0:
        mix_lambda = torch.ones(len(batch.key), device=accelerator.device)
        batch = batch._replace(partner_label=batch.label.clone(), mix_lambda=mix_lambda)
    if settings.learns_labels:
        (batch,) = _with_label_counts([batch], accelerator)
    seconds = 0.0
    buffers = [(buffer, buffer.clone()) for buffer in state.objective.buffers()]
    for _ in range(2):  # `seconds` of the second pass stays
        start = time.perf_counter()
        state.strategy.dry_run(batch, autocast(settings.precision, accelerator))
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize(accelerator.device)
        seconds = time.perf_counter() - start
    for buffer, value_before in buffers:
        buffer.copy_(value_before)
    return seconds * state.strategy.batch_layout.accumulation_steps
