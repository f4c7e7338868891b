"""The keys on the optimiser and its schedule. No torch here."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from .keys import Fraction, Keys, OneOf, Part, Steps, key


class Optim(Keys):
    """Optimisation.

    Attributes:
        name: Optimiser.
        steps: Training steps.
        batch: Global batch size.
        lr: Peak learning rate, not scaled by the batch.
        warmup: Steps of linear warm-up.
        schedule: cosine to 0, linear to 1e-5 (to lr / 2 where that is less), steps (a tenth after
            each of optim.drops), or wsd (stable, then to 0 in the last optim.decay).
        decay: Share of the run, at its end, in which the learning rate decays: as 1 - sqrt(x),
            where x goes from 0 to 1.
        drops: Shares of the run after which the learning rate is divided by 10.
        betas: AdamW's betas.
        momentum: SGD's momentum.
        weight_decay: Weight decay.
        weight_decay_end: Weight decay at the end, reached along a cosine; null: constant.
        clip: Largest global gradient norm; null: no clipping.
        dropout: Dropout in the encoder, after every dense layer but qkv and after the position
            embeddings.
        drop_path: Stochastic depth: share of residual branches dropped in the last block, rising
            linearly from 0 in the first.
        layer_decay: Layer-wise learning-rate decay: factor from each block to the one below it;
            null: none.
        nonfinite: Where the loss or a gradient is not finite: stop, or skip that update.
        average: Decay of a running (Polyak) average of the weights and of the statistics of batch
            norms, which is then evaluated and exported; null: none.
    """

    name: Annotated[str, OneOf(lambda: OPTIMISERS)] = key("adamw")
    steps: Steps = key(1000)
    batch: int = key(4096, gt=0, le=2**22)
    lr: float = key(2e-4, gt=0, le=1e4)
    warmup: int = key(0, ge=0)
    schedule: Literal["cosine", "linear", "steps", "wsd"] = key("cosine")
    decay: Part = key(0.2, requires=("optim.schedule", "wsd"))  # Hägele et al., 2024
    # BiT-L: after 10, 23, 30 and 37 of 40 epochs
    drops: list[Annotated[float, Field(gt=0, lt=1)]] = key(
        [0.25, 0.575, 0.75, 0.925], requires=("optim.schedule", "steps")
    )
    betas: list[Fraction] = key(
        [0.9, 0.999], min_length=2, max_length=2, requires=("optim.name", "adamw")
    )
    momentum: Fraction = key(0.9, requires=("optim.name", "sgd"))
    weight_decay: float = key(0.1, ge=0, le=1e4)
    weight_decay_end: float | None = key(None, ge=0, le=1e4)
    clip: float | None = key(1.0, gt=0)
    dropout: Fraction = key(0.0)
    drop_path: Fraction = key(0.0)
    layer_decay: Part | None = key(None)
    nonfinite: Literal["stop", "skip"] = key("stop", effect="result")
    average: float | None = key(None, gt=0, lt=1)

    @property
    def optimiser(self) -> "Optimiser":
        return OPTIMISERS[self.name]

    @property
    def decay_from(self) -> int:
        """Of wsd: the step before which the learning rate begins to decay."""
        return self.steps - max(1, round(self.decay * self.steps))


class Optimiser(NamedTuple):
    """An optimiser that `optim.name` can choose.

    Attributes:
        label: What a run's first lines call it.
        made_by: MODULE:CLASS, an optimiser of torch's interface. The class must have a fused
            kernel that reads `found_inf`, which is how an update is skipped.
        settings: Return the arguments of the class, besides the weights, `lr` and `fused`.
        moments: Return the names of the state tensors that have the shape of their weight.
        counts_steps: Whether the state of each weight has a counter `step`.
        fuses_shards: Whether the fused kernel also takes the shards of FSDP2.
    """

    label: str
    made_by: str
    settings: Callable[[Optim], dict[str, Any]]
    moments: Callable[[Optim], tuple[str, ...]]
    counts_steps: bool
    fuses_shards: bool


OPTIMISERS = {
    "adamw": Optimiser(
        "AdamW",
        "torch.optim:AdamW",
        settings=lambda optim: {"betas": tuple(optim.betas)},
        moments=lambda optim: ("exp_avg", "exp_avg_sq"),
        counts_steps=True,
        fuses_shards=True,
    ),
    "sgd": Optimiser(
        "SGD with momentum",
        "torch.optim:SGD",
        settings=lambda optim: {"momentum": optim.momentum},
        moments=lambda optim: ("momentum_buffer",) if optim.momentum else (),
        counts_steps=False,
        fuses_shards=False,  # it does not support DTensor
    ),
}
