"""Groups of keys that several objectives use. No torch here."""

from typing import Annotated, Literal

from pydantic import Field

from .declaration import Group
from .keys import Keys, Part, Share, key


class CorruptionOptions(Keys):
    """Which patches are corrupted, and what replaces them.

    Attributes:
        rate: Share of the patches that are corrupted.
        mask: Share of those replaced by the mask token.
        random: Share of those replaced by another patch.
        keep: Share of those left unchanged.
        source: Where a random patch comes from: the same image, or the whole device batch.
        shape: Which patches are corrupted together: patches (squares of corruption.side) or blocks
            (rectangles, as BEiT).
        side: Patches on the side of such a square; 1: single patches.
    """

    rate: Part = key(0.5)
    mask: Share = key(0.8)
    random: Share = key(0.1)
    keep: Share = key(0.1)
    source: Literal["image", "batch"] = key("image")
    shape: Literal["patches", "blocks"] = key("patches")
    side: int = key(1, gt=0, requires=("corruption.shape", "patches"))


class ViewOptions(Keys):
    """The random views of an image that are compared.

    Attributes:
        jitter: Chance that a view's colours are changed.
        brightness: Largest change of a view's brightness, as a share.
        contrast: Largest change of a view's contrast, as a share.
        saturation: Largest change of a view's saturation, as a share.
        hue: Largest turn of a view's hue, as a share of the colour wheel.
        grayscale: Chance that a view is grey.
        blur: Chances of Gaussian blur, of the first and of the second view.
        blur_sigma: Smallest and largest standard deviation of the blur in pixels.
        solarize: Chances that bright pixels are inverted, of the first and of the second view.
        local: Local views beside the two: smaller crops, which no teacher sees.
        local_size: Side of a local view in pixels, a multiple of model.patch.
        local_area: Smallest and largest share of the image that a local view shows.
        local_blur: Chance of Gaussian blur of a local view.
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
