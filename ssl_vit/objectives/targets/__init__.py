"""Targets: what is predicted of a patch, declared. No torch here."""

from typing import Any

from ...recipe.declaration import TargetDeclaration

BINS = 8  # of a channel: 3 bits
# How NormalizedPixels are drawn
NORMALIZED = "normalised pixels, without each patch's own brightness and contrast"
# What the pictures of objectives that predict patches show
FIGURE = "held-out images, what was corrupted, what is predicted of it and what is true"


class MeanColor(TargetDeclaration):
    """Paper, B.1.2."""

    name = "mean_color"
    sentence = "its mean colour, 3 bits a channel (one of 512)"

    def build(self, patch: int, mean: list[float], std: list[float], *more: Any) -> Any:
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

    def build(self, patch: int, mean: list[float], std: list[float], *more: Any) -> Any:
        from . import mean_channels

        return mean_channels.MeanChannels(patch, mean, std, *more)


class SquaredPixels(TargetDeclaration):
    name = "pixels"
    sentence = "its pixels, by squared error"
    any_channels = True

    def build(self, patch: int, mean: list[float], std: list[float], *more: Any) -> Any:
        from .patch_targets import Pixels

        return Pixels(patch, mean, std, *more)


class AbsolutePixels(TargetDeclaration):
    name = "pixels_l1"
    sentence = "its pixels, by absolute error"
    any_channels = True

    def build(self, patch: int, mean: list[float], std: list[float], *more: Any) -> Any:
        from torch import abs as absolute

        from .patch_targets import Pixels

        return Pixels(patch, mean, std, *more, error=absolute)


class NormalizedPixels(TargetDeclaration):
    name = "normalized_pixels"
    sentence = "its pixels, normalised by the patch's own mean and variance, by squared error"
    drawn = NORMALIZED
    any_channels = True

    def build(self, patch: int, mean: list[float], std: list[float], *more: Any) -> Any:
        from . import patch_targets

        return patch_targets.NormalizedPixels(patch, mean, std, *more)


DECLARATIONS = (
    MeanColor(),
    GridColor(),
    MeanChannels(),
    SquaredPixels(),
    AbsolutePixels(),
    NormalizedPixels(),
)
