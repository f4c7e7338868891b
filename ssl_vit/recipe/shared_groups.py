"""Groups of keys that several objectives use. This module does not import torch."""

from typing import Annotated, Literal

from pydantic import Field

from .declaration import Group
from .keys import Keys, Part, Share, key


class CorruptionOptions(Keys):
    """Which patches are corrupted, and what replaces them.

    Attributes:
        rate: Share of the patches to corrupt.
        mask: Share of the corrupted patches to replace with the mask token.
        random: Share of the corrupted patches to replace with another patch.
        keep: Share of the corrupted patches to leave unchanged.
        source: Where replacement patches come from: the same image, or all images that the device
            processes at once.
        shape: Which patches are corrupted together: patches (squares of corruption.side) or blocks
            (rectangles, as in BEiT).
        side: Side of the square in patches. 1: single patches.
    """

    rate: Part = key(0.5)
    mask: Share = key(0.8)
    random: Share = key(0.1)
    keep: Share = key(0.1)
    source: Literal["image", "batch"] = key("image")
    shape: Literal["patches", "blocks"] = key("patches")
    side: int = key(1, gt=0, requires=("corruption.shape", "patches"))


class ViewOptions(Keys):
    """Random views of an image that the objective compares.

    Attributes:
        jitter: Probability of changing the colours of a view.
        brightness: Largest change of brightness, as a share.
        contrast: Largest change of contrast, as a share.
        saturation: Largest change of saturation, as a share.
        hue: Largest rotation of the hue, as a share of the colour wheel.
        grayscale: Probability of turning a view grey.
        blur: Probabilities of Gaussian blur, for the first and the second view.
        blur_sigma: Smallest and largest standard deviation of the blur, in pixels.
        solarize: Probabilities of inverting bright pixels, for the first and the second view.
        local: Number of local views in addition to the two views: smaller crops, which no teacher
            sees.
        local_size: Side of a local view in pixels, a multiple of model.patch.
        local_area: Smallest and largest share of the image's area in a local view.
        local_blur: Probability of Gaussian blur for a local view.
    """

    jitter: Share = key(0.8)
    brightness: Share = key(0.4)
    contrast: Share = key(0.4)
    saturation: Share = key(0.2)
    hue: float = key(0.1, ge=0, le=0.5)
    grayscale: Share = key(0.2)
    blur: list[Share] = key([1.0, 0.1], min_length=2, max_length=2)
    blur_sigma: list[Annotated[float, Field(gt=0, le=1000)]] = key(
        [0.1, 2.0], min_length=2, max_length=2
    )
    solarize: list[Share] = key([0.0, 0.2], min_length=2, max_length=2)
    local: int = key(0, ge=0, le=64)
    local_size: int = key(96, gt=0, le=2**12)
    local_area: list[Part] = key([0.05, 0.4], min_length=2, max_length=2)
    local_blur: Share = key(0.5)


GROUPS = (
    Group("corruption", CorruptionOptions),
    Group("views", ViewOptions),
)
