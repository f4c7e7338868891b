"""Targets: what is predicted of a patch, declared. No torch here."""

from typing import Any

from ...recipe.declaration import TargetDeclaration

Ends = tuple[int, int]  # the values of a pixel that stand for 0 and 1
BINS = 8  # of a channel: 3 bits
# How NormalizedPixels are drawn
NORMALIZED = "normalised pixels, without each patch's own brightness and contrast"
# What the pictures of objectives that predict patches show
FIGURE = "held-out images, what was corrupted, what is predicted of it and what is true"


class MeanColor(TargetDeclaration):
    """Paper, B.1.2."""

    name = "mean_color"
    sentence = "its mean colour, 3 bits a channel (one of 512)"

    def build(self, patch: int, mean: list[float], std: list[float], pixel_range: Ends) -> Any:
        from .patch_targets import Colors

        return Colors(patch, self.cells)


class GridColor(MeanColor):
    name = "grid_color"
    sentence = "the 3-bit mean colours of 4 x 4 cells (512 each)"
    cells = 4


class MeanChannels(TargetDeclaration):
    name = "mean_channels"
    sentence = "the mean of each channel, 3 bits each (one of 8)"
    any_channels = True

    def build(self, patch: int, mean: list[float], std: list[float], pixel_range: Ends) -> Any:
        from . import mean_channels

        return mean_channels.MeanChannels(patch, mean, std, pixel_range)


class SquaredPixels(TargetDeclaration):
    name = "pixels"
    sentence = "its pixels, by squared error"
    any_channels = True
    error = "square"  # of torch

    def build(self, patch: int, mean: list[float], std: list[float], pixel_range: Ends) -> Any:
        import torch

        from .patch_targets import Pixels

        return Pixels(patch, mean, std, pixel_range, error=getattr(torch, self.error))


class AbsolutePixels(SquaredPixels):
    name = "pixels_l1"
    sentence = "its pixels, by absolute error"
    error = "abs"


class NormalizedPixels(TargetDeclaration):
    name = "normalized_pixels"
    sentence = "its pixels, normalised by the patch's own mean and variance, by squared error"
    drawn = NORMALIZED
    any_channels = True

    def build(self, patch: int, mean: list[float], std: list[float], pixel_range: Ends) -> Any:
        from . import patch_targets

        return patch_targets.NormalizedPixels(patch, mean, std, pixel_range)


DECLARATIONS = (
    MeanColor(),
    GridColor(),
    MeanChannels(),
    SquaredPixels(),
    AbsolutePixels(),
    NormalizedPixels(),
)
