"""Declare the targets, which say what the network predicts for a patch.

This file does not import torch.
"""

from typing import Any

from ...measurements import PATCHES, MetricKey, flat_name
from ...recipe.declaration import Group, TargetDeclaration
from ...recipe.keys import Depth, Keys, Share, key

BINS = 8  # bins of a channel: 3 bits
CELL = 8  # side of a histogram's cell in pixels (Wei et al., 2022, section 3.2)
# Text in captions of figures of the target normalized_pixels
NORMALIZED = "pixels normalised within each patch, without brightness and contrast of the patch"
# Text in captions of figures of objectives that predict patches
FIGURE = "held-out images, the corrupted patches, the predicted patches and the true patches"


class MeanColor(TargetDeclaration):
    """Mean colour of a patch (paper, B.1.2)."""

    cells = 1  # number of cells along the side of a patch
    name = "mean_color"
    sentence = "the mean colour in 3 bits per channel (512 classes)"

    def build(self, settings: Any, encoder: Any) -> Any:
        from .patch_targets import Colors

        return Colors(encoder.patch_size, self.cells)


class GridColor(MeanColor):
    name = "grid_color"
    sentence = (
        "the mean colours of 4 x 4 cells of the patch in 3 bits per channel (512 classes each)"
    )
    cells = patch_multiple = 4


class MeanChannels(TargetDeclaration):
    name = "mean_channels"
    sentence = "the mean of each channel of the patch in 3 bits (8 classes each)"
    any_channels = True

    def build(self, settings: Any, encoder: Any) -> Any:
        from . import mean_channels

        pixel_range = settings.pixel_range
        return mean_channels.MeanChannels(encoder.patch_size, len(settings.mean), pixel_range)


class SquaredPixels(TargetDeclaration):
    name = "pixels"
    sentence = "the pixels, compared by squared error"
    any_channels = True
    error = "square"  # name of a function of torch

    def build(self, settings: Any, encoder: Any) -> Any:
        import torch

        from .patch_targets import Pixels

        error = getattr(torch, self.error)
        return Pixels(encoder.patch_size, *settings.pixels, error=error)


class AbsolutePixels(SquaredPixels):
    name = "pixels_l1"
    sentence = "the pixels, compared by absolute error"
    error = "abs"


class NormalizedPixels(TargetDeclaration):
    name = "normalized_pixels"
    sentence = "the pixels, normalised by mean and variance of the patch, compared by squared error"
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
    sentence = (
        "histograms of oriented gradients in cells of 8 x 8 pixels, compared by squared error"
    )
    drawn = "histograms of oriented gradients, drawn as strokes along the edges"
    patch_multiple = CELL
    any_channels = True

    def build(self, settings: Any, encoder: Any) -> Any:
        from .gradients import GradientHistograms

        return GradientHistograms(encoder.patch_size, len(settings.mean))


class TeacherOptions(Keys):
    """The teacher of target=teacher.

    Attributes:
        blocks: Number of last blocks of the teacher whose outputs are averaged. A network with
            fewer blocks averages all blocks.
        momentum: Momentum of the teacher in the first and in the last step, with a linear change in
            between. The teacher is a running average of the encoder.
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
        "features of a teacher that sees the whole image and is a running average of the encoder"
        " (mean over the normalised outputs of the last blocks), compared by smooth L1"
    )
    drawn = (
        "the first three channels of the features as red, green and blue (features of the teacher,"
        " or of the encoder if an export is drawn)"
    )
    options = Group("data2vec", TeacherOptions)
    any_channels = True
    any_length = False  # the teacher's momentum depends on the share of the run that is done
    # A collapsed encoder, with one feature for all patches of all images, has the lowest loss
    no_measure = ("loss", *(flat_name(MetricKey("loss", patches=kind)) for kind in PATCHES))

    def build(self, settings: Any, encoder: Any) -> Any:
        from . import teacher_features

        options = settings.group(TeacherOptions)
        return teacher_features.TeacherFeatures(encoder, options.blocks, options.momentum)


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
