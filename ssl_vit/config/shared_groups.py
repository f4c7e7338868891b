"""Groups of keys that several objectives use. No torch here."""

from dataclasses import dataclass

from .declaration import Group
from .fields import option


@dataclass
class CorruptionOptions:
    rate: float = option(0.5, "Share of the patches that are corrupted.", above=0, maximum=1)
    mask: float = option(0.8, "Share of those replaced by the mask token.", minimum=0, maximum=1)
    random: float = option(0.1, "Share of those replaced by another patch.", minimum=0, maximum=1)
    keep: float = option(0.1, "Share of those left unchanged.", minimum=0, maximum=1)
    source: str = option(
        "image",
        "Where a random patch comes from: the same image, or the whole device batch.",
        choices=("image", "batch"),
    )
    shape: str = option(
        "patches",
        "Which patches are corrupted together: patches (squares of corruption.side) or blocks"
        " (rectangles, as BEiT).",
        choices=("patches", "blocks"),
    )
    side: int = option(
        1,
        "Patches on the side of such a square; 1: single patches.",
        above=0,
        requires=("corruption.shape", "patches"),
    )


@dataclass
class ViewOptions:
    jitter: float = option(0.8, "Chance that a view's colours are changed.", minimum=0, maximum=1)
    brightness: float = option(
        0.4, "Largest change of a view's brightness, as a share.", minimum=0, maximum=1
    )
    contrast: float = option(
        0.4, "Largest change of a view's contrast, as a share.", minimum=0, maximum=1
    )
    saturation: float = option(
        0.2, "Largest change of a view's saturation, as a share.", minimum=0, maximum=1
    )
    hue: float = option(
        0.1, "Largest turn of a view's hue, as a share of the colour wheel.", minimum=0, maximum=0.5
    )
    grayscale: float = option(0.2, "Chance that a view is grey.", minimum=0, maximum=1)
    blur: list[float] = option(
        [1.0, 0.1],
        "Chances of Gaussian blur, of the first and of the second view.",
        length=2,
        minimum=0,
        maximum=1,
    )
    blur_sigma: list[float] = option(
        [0.1, 2.0],
        "Smallest and largest standard deviation of the blur in pixels.",
        length=2,
        above=0,
        maximum=1000,
    )
    solarize: list[float] = option(
        [0.0, 0.2],
        "Chances that bright pixels are inverted, of the first and of the second view.",
        length=2,
        minimum=0,
        maximum=1,
    )
    local: int = option(
        0,
        "Local views beside the two: smaller crops, which no teacher sees.",
        minimum=0,
        maximum=64,
    )
    local_size: int = option(
        96, "Side of a local view in pixels, a multiple of model.patch.", above=0, maximum=4096
    )
    local_area: list[float] = option(
        [0.05, 0.4],
        "Smallest and largest share of the image that a local view shows.",
        length=2,
        above=0,
        maximum=1,
    )
    local_blur: float = option(
        0.5, "Chance of Gaussian blur of a local view.", minimum=0, maximum=1
    )


GROUPS = (
    Group("corruption", CorruptionOptions, "Which patches are corrupted, and what replaces them."),
    Group("views", ViewOptions, "The random views of an image that are compared."),
)
