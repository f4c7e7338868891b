"""Implement stochastic depth (Huang et al., 2016)."""

import torch
from torch import Tensor, nn


class DropPath(nn.Module):
    """Stochastic depth as in timm: drop a residual branch for some samples, and scale the others.

    The share of samples that are kept is a tensor. If the share were a float, torch.compile would
    compile a graph for each value. Blocks with different rates would exceed the limit of graphs of
    torch.compile, and would run without compilation.
    """

    keep: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.register_buffer("keep", torch.tensor(1 - rate), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        shape = [len(x), *[1] * (x.ndim - 1)]  # a random number for each sample
        is_kept = torch.rand(shape, device=x.device) < self.keep
        return x * (is_kept / self.keep).to(x.dtype)
