"""Groups of keys on what an objective corrupts, predicts and weighs. No torch here."""

# ruff: noqa: RUF009 (option() returns dataclass fields)
from dataclasses import dataclass

from .fields import option


@dataclass
class Corruption:
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
class Mae:
    rate: float = option(0.75, "Share of the patches that are masked.", above=0, below=1)
    width: int = option(512, "Decoder: embedding width.", above=0, maximum=65536)
    depth: int = option(8, "Decoder: number of transformer blocks.", above=0, maximum=1000)
    heads: int = option(16, "Decoder: attention heads.", above=0, maximum=65536)


@dataclass
class Moco:
    temperature: float = option(0.2, "What similarities are divided by.", above=0, maximum=1e3)
    momentum: float = option(
        0.99,
        "Momentum of the encoder's running average in the first step; it rises to 1 along a"
        " cosine.",
        minimum=0,
        maximum=1,
    )
    hidden: int = option(
        4096, "Width of the hidden layers of projector and predictor.", above=0, maximum=65536
    )
    width: int = option(256, "Width of the vectors that are compared.", above=0, maximum=65536)
    freeze_patches: bool = option(
        True, "Do not train the patch projection: it stays as drawn, or as init= has it."
    )


@dataclass
class Views:
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


@dataclass
class Supervised:
    loss: str = option(
        "softmax",
        "Classification loss: softmax, or sigmoid, which takes several labels an image too.",
        choices=("softmax", "sigmoid"),
    )
    smoothing: float = option(0.0, "Label smoothing, softmax only.", minimum=0, below=1)
    hidden: bool = option(
        True, "A hidden tanh layer in the head; false: one linear layer that starts at zero."
    )
    pool: str = option(
        "token",
        "Feature of an image: token (the class token) or avg (the mean of the patches).",
        choices=("token", "avg"),
    )


@dataclass
class Joint:
    mpp: float = option(1.0, "Weight of the MPP loss.", minimum=0, maximum=1e9)
    supervised: float = option(1.0, "Weight of the supervised loss.", minimum=0, maximum=1e9)
