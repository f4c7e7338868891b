"""Patch colours: what masked patch prediction must tell, computed in integers from the bytes, so no precision can change them.

Legend: B batch, N patches (row by row), P patch side in pixels, H = W picture side.
"""

import torch
from einops import rearrange, reduce
from torch import Tensor

COLORS = 512  # 3 bits per channel


def patch_sums(image_B3HW: Tensor, patch: int) -> Tensor:
    """Sum of each channel's bytes over each patch: uint8 (B, 3, H, W) -> int64 (B, N, 3)."""
    return reduce(image_B3HW.long(), "b c (h p) (w q) -> b (h w) c", "sum", p=patch, q=patch)


def color_class(sum_3: Tensor, pixels: Tensor | int) -> Tensor:
    """Class 64 R + 8 G + B of mean colours given as byte sums (..., 3) over `pixels` pixels: int64 (...,), 0 .. 511.

    A channel's bin is floor(8 v) of its mean v in [0, 1], with 1.0 in bin 7 (paper, B.1.2: "3-bit mean color"), here
    floor(8 S / (255 n)): exact for every sum, edges included.
    """
    bin_3 = (8 * sum_3 // (255 * torch.as_tensor(pixels, device=sum_3.device).unsqueeze(-1))).clamp(max=7)
    return 64 * bin_3[..., 0] + 8 * bin_3[..., 1] + bin_3[..., 2]


def mean_color(image_B3HW: Tensor, patch: int) -> Tensor:
    """Class of each patch's mean colour (paper, B.1.2, target 1): uint8 (B, 3, H, W) -> int64 (B, N)."""
    return color_class(patch_sums(image_B3HW, patch), patch * patch)


def class_color(class_N: Tensor) -> Tensor:
    """The middle of each class's bin as RGB bytes: int64 (...,) -> uint8 (..., 3)."""
    bins = torch.stack([class_N // 64, class_N // 8 % 8, class_N % 8], -1)
    return (bins * 255 // 8 + 16).to(torch.uint8)


def neighbor_color(image_B3HW: Tensor, patch: int, hidden_BN: Tensor) -> Tensor:
    """Class of the mean colour of each patch's uncorrupted neighbours, the guess that MPP must beat: int64 (B, N).

    Neighbours are the patches not in `hidden_BN` (bool) on the nearest square ring around the patch that has one. A
    picture with every patch hidden has none: its guess is class 0.
    """
    rows, columns = image_B3HW.shape[-2] // patch, image_B3HW.shape[-1] // patch
    sums_BN3 = patch_sums(image_B3HW, patch).double()  # exact: sums stay far below 2^53
    y, x = (rearrange(a, "h w -> (h w)") for a in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))
    ring_NN = torch.maximum((y[:, None] - y).abs(), (x[:, None] - x).abs()).to(image_B3HW.device)
    ring_BNN = ring_NN.masked_fill(ring_NN == 0, rows + columns).masked_fill(hidden_BN[:, None, :], rows + columns)
    nearest_BNN = (ring_BNN == ring_BNN.amin(-1, keepdim=True)) & ~hidden_BN[:, None, :]
    count_BN = nearest_BNN.sum(-1).clamp(min=1)
    return color_class((nearest_BNN.double() @ sums_BN3).long(), count_BN * patch * patch)
