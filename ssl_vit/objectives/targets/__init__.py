"""Targets: what is predicted of a patch, declared. No torch here."""

from ...recipe.declaration import TargetDeclaration

COLORS = 512  # of 3 bits a channel
BINS = 8  # of a channel: 3 bits
# How NormalizedPixels are drawn
NORMALIZED = "normalised pixels, without each patch's own brightness and contrast"


class MeanColor(TargetDeclaration):
    """Paper, B.1.2."""

    name = "mean_color"
    network = "patch_targets:mean_color_target"
    sentence = "its mean colour, 3 bits a channel (one of 512)"


class GridColor(TargetDeclaration):
    name = "grid_color"
    network = "patch_targets:grid_color_target"
    sentence = "the 3-bit mean colours of 4 x 4 cells (512 each)"
    cells = 4


class MeanChannels(TargetDeclaration):
    name = "mean_channels"
    network = "mean_channels:MeanChannels"
    sentence = "the mean of each channel, 3 bits each (one of 8)"
    any_channels = True


class SquaredPixels(TargetDeclaration):
    name = "pixels"
    any_channels = True
    network = "patch_targets:Pixels"
    sentence = "its pixels, by squared error"


class AbsolutePixels(TargetDeclaration):
    name = "pixels_l1"
    any_channels = True
    network = "patch_targets:absolute_pixels_target"
    sentence = "its pixels, by absolute error"


class NormalizedPixels(TargetDeclaration):
    name = "normalized_pixels"
    any_channels = True
    network = "patch_targets:NormalizedPixels"
    sentence = "its pixels, normalised by the patch's own mean and variance, by squared error"
    drawn = NORMALIZED


DECLARATIONS = (
    MeanColor(),
    GridColor(),
    MeanChannels(),
    SquaredPixels(),
    AbsolutePixels(),
    NormalizedPixels(),
)
