"""Declare the targets, which say what the network predicts for a patch.

This file does not import torch.
"""

from typing import Any

from ...metrics import KINDS
from ...recipe.declaration import Group, TargetDeclaration
from ...recipe.keys import Depth, Keys, Share, key

BINS = 8  # bins of a channel: 3 bits
CELL = 8  # side of a histogram's cell in pixels (Wei et al., 2022, section 3.2)
# Explains figures of the target normalized_pixels
NORMALIZED = "normalised pixels, without each patch's own brightness and contrast"
# Explains figures of objectives that predict patches
FIGURE = "held-out images, what was corrupted, what is predicted of it and what is true"


class MeanColor(TargetDeclaration):
    """Mean colour of a patch (paper, B.1.2)."""

    cells = 1  # number of cells along the side of a patch
    name = "mean_color"
    sentence = "its mean colour, 3 bits a channel (one of 512)"

    def build(self, settings: Any, encoder: Any) -> Any:
        from .patch_targets import Colors

        return Colors(encoder.patch_size, self.cells)


class GridColor(MeanColor):
    name = "grid_color"
    sentence = "the 3-bit mean colours of 4 x 4 cells (512 each)"
    cells = patch_multiple = 4


class MeanChannels(TargetDeclaration):
    name = "mean_channels"
    sentence = "the mean of each channel, 3 bits each (one of 8)"
    any_channels = True

    def build(self, settings: Any, encoder: Any) -> Any:
        from . import mean_channels

        pixel_range = settings.pixel_range
        return mean_channels.MeanChannels(encoder.patch_size, len(settings.mean), pixel_range)


class SquaredPixels(TargetDeclaration):
    name = "pixels"
    sentence = "its pixels, by squared error"
    any_channels = True
    error = "square"  # name of a function of torch

    def build(self, settings: Any, encoder: Any) -> Any:
        import torch

        from .patch_targets import Pixels

        error = getattr(torch, self.error)
        return Pixels(encoder.patch_size, *settings.pixels, error=error)


class AbsolutePixels(SquaredPixels):
    name = "pixels_l1"
    sentence = "its pixels, by absolute error"
    error = "abs"


class NormalizedPixels(TargetDeclaration):
    name = "normalized_pixels"
    sentence = "its pixels, normalised by the patch's own mean and variance, by squared error"
    drawn = NORMALIZED
    any_channels = True

    def build(self, settings: Any, encoder: Any) -> Any:
        from . import patch_targets

        return patch_targets.NormalizedPixels(encoder.patch_size, *settings.pixels)


class Gradients(TargetDeclaration):
    name = "hog"
    cite = """@inproceedings{wei2022masked,
  title     = {Masked Feature Prediction for Self-Supervised Visual Pre-Training},
  author    = {Wei, Chen and Fan, Haoqi and Xie, Saining and Wu, Chao-Yuan and Yuille, Alan and
               Feichtenhofer, Christoph},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year      = {2022}
}"""
    sentence = "histograms of its oriented gradients, in cells of 8 x 8 pixels, by squared error"
    drawn = "histograms of oriented gradients as strokes along the edges"
    patch_multiple = CELL
    any_channels = True

    def build(self, settings: Any, encoder: Any) -> Any:
        from .gradients import GradientHistograms

        return GradientHistograms(encoder.patch_size, len(settings.mean))


class TeacherOptions(Keys):
    """The teacher of target=teacher.

    Attributes:
        blocks: Blocks of the teacher, the last ones, whose outputs are averaged; of a network with
            fewer, all.
        momentum: Momentum of the teacher, a running average of the encoder, in the first and in the
            last step; it changes linearly between them.
    """

    blocks: Depth = key(6)
    momentum: list[Share] = key([0.99, 0.999], min_length=2, max_length=2)


class TeacherFeatures(TargetDeclaration):
    name = "teacher"
    cite = """@inproceedings{baevski2022data2vec,
  title     = {data2vec: A General Framework for Self-supervised Learning in Speech,
               Vision and Language},
  author    = {Baevski, Alexei and Hsu, Wei-Ning and Xu, Qiantong and Babu, Arun and Gu, Jiatao
               and Auli, Michael},
  booktitle = {International Conference on Machine Learning},
  year      = {2022}
}"""
    sentence = (
        "what a running average of the encoder gives it in the whole image, the mean of its last"
        " normalised blocks, by smooth L1"
    )
    drawn = (
        "three channels of the features as colours, of the teacher's or, where an export is drawn,"
        " the exported encoder's"
    )
    options = Group("data2vec", TeacherOptions)
    any_channels = True
    any_length = False  # the teacher's momentum depends on the share of the run that is done
    # A collapsed encoder, with one feature for all patches of all images, has the lowest loss
    no_measure = ("loss", *(f"loss_{kind}" for kind in KINDS))

    def build(self, settings: Any, encoder: Any) -> Any:
        from . import teacher_features

        own = settings.group(TeacherOptions)
        return teacher_features.TeacherFeatures(encoder, own.blocks, own.momentum)


DECLARATIONS = (
    MeanColor(),
    GridColor(),
    MeanChannels(),
    SquaredPixels(),
    AbsolutePixels(),
    NormalizedPixels(),
    Gradients(),
    TeacherFeatures(),
)
