"""Compute with the images of all processes: gathered tensors, means and batch normalisation.

Every process must hold the same number of images. On the meta device, each process counts a whole
batch by itself, and other processes do not take part.

Legend: B images of this process, G images of all processes, C channels.
"""

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from .base import StepHooks


def processes() -> int:
    """Return the number of processes, or 1 without a process group."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return distributed.get_rank() if distributed.is_initialized() else 0


@torch.no_grad()
def gather(x_BC: Tensor) -> Tensor:
    """Return the rows (G, C) of all processes, in the order of processes, without a gradient.

    All processes must call this function together. A tensor on the meta device is returned
    unchanged, because a process uses such tensors alone, to count the operations of a step.
    """
    num_processes = processes()
    if num_processes == 1 or x_BC.is_meta:
        return x_BC
    x_BC = x_BC.contiguous()
    parts = [torch.empty_like(x_BC) for _ in range(num_processes)]
    distributed.all_gather(parts, x_BC)
    return torch.cat(parts)


class _Sum(torch.autograd.Function):
    """Sum of a tensor over all processes. The gradient is the sum of all processes' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone()
        distributed.all_reduce(total)
        return total


def gather_with_gradient(x_BC: Tensor) -> Tensor:
    """Return the rows (G, C) of all processes, in the order of processes, with a gradient.

    All processes must call this function together, and run backward together. Each process computes
    the mean loss of its own images, and the gradients are averaged over processes. The result is
    the gradient of the mean loss of all images, as in a single process with all images. As in
    `gather`, a tensor on the meta device is returned unchanged.
    """
    num_processes = processes()
    if num_processes == 1 or x_BC.is_meta:
        return x_BC
    rows_before = len(x_BC) * rank()
    rows_after = len(x_BC) * (num_processes - 1) - rows_before
    columns = [0, 0] * (x_BC.ndim - 1)  # F.pad begins at the last dimension
    # Each process puts zeros where other processes have rows, so the sum contains the rows of all.
    # In backward, `_Sum` adds up the gradients of all processes' losses
    return _Sum.apply(F.pad(x_BC, (*columns, rows_before, rows_after)))


def global_rows(x_BC: Tensor, training: bool) -> tuple[Tensor, Tensor]:
    """Return the rows that a loss compares, and which of them are the rows of this process.

    In training, the rows are those of all processes (`gather_with_gradient`). In evaluation, the
    rows are those of this process, because processes hold different numbers of held-out images.

    Args:
        x_BC: Rows of this process.
        training: Whether this is a training step (`self.training`).

    Returns:
        The rows (G, C), or (B, C) in evaluation, and the indices (B,) of this process's rows.
    """
    index_B = torch.arange(len(x_BC), device=x_BC.device)
    if not training:
        return x_BC, index_B
    return gather_with_gradient(x_BC), index_B + len(x_BC) * rank()


def mean(x_BC: Tensor) -> Tensor:
    """Return the mean (C,) over the rows of all processes, with a gradient.

    All processes must call this function together. As in `gather`, a tensor on the meta device is
    averaged over the rows of this process only.
    """
    mean_C = x_BC.mean(0)
    num_processes = processes()
    if num_processes == 1 or x_BC.is_meta:
        return mean_C
    return _Sum.apply(mean_C) / num_processes


class GlobalBatchNorm(StepHooks):
    """Batch normalisation with mean and variance of the global batch, in float32.

    The result is the same for any number of processes. torch's SyncBatchNorm does the same, but
    needs GPUs. In training, `forward` updates the running mean and variance. In evaluation,
    `forward` normalises with them. If the optimiser skips a step, `after_step` undoes the update.

    Args:
        channels: Number of channels C.
        affine: Whether to learn a scale and a shift.
    """

    running_mean: Tensor
    running_var: Tensor
    mean_before: Tensor
    var_before: Tensor
    EPS = 1e-5  # torch's default
    MOMENTUM = 0.1  # of the running mean and variance, torch's default

    def __init__(self, channels: int, affine: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        # Values before a step, to restore if the step is skipped
        self.register_buffer("mean_before", torch.zeros(channels), persistent=False)
        self.register_buffer("var_before", torch.ones(channels), persistent=False)

    def start_step(self, progress: float) -> None:
        """Save the running mean and variance, to restore them if the step is skipped."""
        self.mean_before.copy_(self.running_mean)
        self.var_before.copy_(self.running_var)

    def after_step(self, found_inf: Tensor) -> None:
        """Restore the saved running mean and variance if the optimiser skipped the step.

        Args:
            found_inf: True if the optimiser skipped the step. Bool, on the device.
        """
        self.running_mean.copy_(torch.where(found_inf, self.mean_before, self.running_mean))
        self.running_var.copy_(torch.where(found_inf, self.var_before, self.running_var))

    def forward(self, x_BC: Tensor) -> Tensor:
        x_BC = x_BC.float()
        if self.training:
            mean_C = mean(x_BC)
            centred_BC = x_BC - mean_C
            var_C = mean(centred_BC.square())
            self._update(mean_C.detach(), var_C.detach(), len(x_BC) * processes())
        else:
            centred_BC = x_BC - self.running_mean
            var_C = self.running_var
        y_BC = centred_BC * torch.rsqrt(var_C + self.EPS)
        if self.weight is None or self.bias is None:
            return y_BC
        return y_BC * self.weight + self.bias

    @torch.no_grad()
    def _update(self, mean_C: Tensor, var_C: Tensor, images: int) -> None:
        """Move the running mean and variance towards those of the batch, as torch's batch norm.

        As in torch, the running variance follows the unbiased variance.

        Args:
            mean_C: Mean of the global batch.
            var_C: Biased variance of the global batch.
            images: Number of images G in the global batch.
        """
        unbiased_C = var_C * (images / max(1, images - 1))
        self.running_mean.lerp_(mean_C, self.MOMENTUM)
        self.running_var.lerp_(unbiased_C, self.MOMENTUM)
