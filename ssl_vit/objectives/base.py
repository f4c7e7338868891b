"""What every objective gives: a Step."""

from typing import NamedTuple

from torch import Tensor


class Step(NamedTuple):
    """`loss`, a scalar to go down; `metrics`, name -> (sum, count), tensors that add up over passes and processes."""

    loss: Tensor
    metrics: dict[str, tuple[Tensor, Tensor]]
