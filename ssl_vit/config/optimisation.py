"""The keys on the optimiser and its schedule. No torch here."""

from dataclasses import dataclass

from .fields import option


@dataclass
class Optim:
    name: str = option("adamw", "Optimiser.", choices=("adamw", "sgd"))
    steps: int = option(1000, "Training steps.", above=0, maximum=2**40, pace=False)
    batch: int = option(4096, "Global batch size.", above=0, maximum=2**22)
    lr: float = option(
        2e-4, "Peak learning rate, not scaled by the batch.", above=0, maximum=1e4, pace=False
    )
    warmup: int = option(0, "Steps of linear warm-up.", pace=False)
    schedule: str = option(
        "cosine",
        "cosine to 0, linear to 1e-5 (to lr / 2 where that is less), or steps (a tenth after each"
        " of optim.drops).",
        choices=("cosine", "linear", "steps"),
    )
    drops: list[float] = option(
        [0.25, 0.575, 0.75, 0.925],  # BiT-L: after 10, 23, 30 and 37 of 40 epochs
        "Shares of the run after which the learning rate is divided by 10.",
        above=0,
        below=1,
        requires=("optim.schedule", "steps"),
    )
    betas: list[float] = option(
        [0.9, 0.999],
        "AdamW's betas.",
        length=2,
        minimum=0,
        below=1,
        requires=("optim.name", "adamw"),
    )
    momentum: float = option(
        0.9, "SGD's momentum.", minimum=0, below=1, requires=("optim.name", "sgd")
    )
    weight_decay: float = option(0.1, "Weight decay.", minimum=0, maximum=1e4)
    weight_decay_end: float | None = option(
        None,
        "Weight decay at the end, reached along a cosine; null: constant.",
        minimum=0,
        maximum=1e4,
    )
    clip: float | None = option(1.0, "Largest global gradient norm; null: no clipping.", above=0)
    dropout: float = option(
        0.0,
        "Dropout in the encoder, after every dense layer but qkv and after the position"
        " embeddings.",
        minimum=0,
        below=1,
    )
    drop_path: float = option(
        0.0,
        "Stochastic depth: share of residual branches dropped in the last block, rising linearly"
        " from 0 in the first.",
        minimum=0,
        below=1,
    )
    layer_decay: float | None = option(
        None,
        "Layer-wise learning-rate decay: factor from each block to the one below it; null: none.",
        above=0,
        maximum=1,
    )
    nonfinite: str = option(
        "stop",
        "Where the loss or a gradient is not finite: stop, or skip that update.",
        choices=("stop", "skip"),
        identity=False,
        in_result=True,
    )
    average: float | None = option(
        None,
        "Decay of a running (Polyak) average of the weights, which is then evaluated and exported;"
        " null: none.",
        above=0,
        below=1,
    )
