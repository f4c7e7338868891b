"""Groups of keys that several objectives use. No torch here."""

from typing import Annotated, Literal

from pydantic import Field

from .declaration import Group
from .keys import Keys, Part, Share, key


class CorruptionOptions(Keys):
    rate: Part = key(0.5, "Share of the patches that are corrupted.")
    mask: Share = key(0.8, "Share of those replaced by the mask token.")
    random: Share = key(0.1, "Share of those replaced by another patch.")
    keep: Share = key(0.1, "Share of those left unchanged.")
    source: Literal["image", "batch"] = key(
        "image", "Where a random patch comes from: the same image, or the whole device batch."
    )
    shape: Literal["patches", "blocks"] = key(
        "patches",
        "Which patches are corrupted together: patches (squares of corruption.side) or blocks"
        " (rectangles, as BEiT).",
    )
    side: int = key(
        1,
        "Patches on the side of such a square; 1: single patches.",
        gt=0,
        requires=("corruption.shape", "patches"),
    )


class ViewOptions(Keys):
    jitter: Share = key(0.8, "Chance that a view's colours are changed.")
    brightness: Share = key(0.4, "Largest change of a view's brightness, as a share.")
    contrast: Share = key(0.4, "Largest change of a view's contrast, as a share.")
    saturation: Share = key(0.2, "Largest change of a view's saturation, as a share.")
    hue: float = key(
        0.1, "Largest turn of a view's hue, as a share of the colour wheel.", ge=0, le=0.5
    )
    grayscale: Share = key(0.2, "Chance that a view is grey.")
    blur: list[Share] = key(
        [1.0, 0.1],
        "Chances of Gaussian blur, of the first and of the second view.",
        min_length=2,
        max_length=2,
    )
    blur_sigma: list[Annotated[float, Field(gt=0, le=1000)]] = key(
        [0.1, 2.0],
        "Smallest and largest standard deviation of the blur in pixels.",
        min_length=2,
        max_length=2,
    )
    solarize: list[Share] = key(
        [0.0, 0.2],
        "Chances that bright pixels are inverted, of the first and of the second view.",
        min_length=2,
        max_length=2,
    )
    local: int = key(
        0, "Local views beside the two: smaller crops, which no teacher sees.", ge=0, le=64
    )
    local_size: int = key(
        96, "Side of a local view in pixels, a multiple of model.patch.", gt=0, le=2**12
    )
    local_area: list[Part] = key(
        [0.05, 0.4],
        "Smallest and largest share of the image that a local view shows.",
        min_length=2,
        max_length=2,
    )
    local_blur: Share = key(0.5, "Chance of Gaussian blur of a local view.")


GROUPS = (
    Group("corruption", CorruptionOptions, "Which patches are corrupted, and what replaces them."),
    Group("views", ViewOptions, "The random views of an image that are compared."),
)
