"""Groups of keys on what an objective corrupts, predicts and weighs. No torch here."""

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
class Supervised:
    loss: str = option("softmax", "Classification loss.", choices=("softmax", "sigmoid"))
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
