"""Keys for the optimiser and its schedule. This module does not import torch."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from .keys import Fraction, Keys, NamedChoice, Part, Steps, key


class Optim(Keys):
    """Optimisation.

    Attributes:
        name: Optimiser.
        steps: Number of training steps.
        batch: Number of images per step, over all processes.
        lr: Peak learning rate. It is not scaled with the batch size.
        warmup: Steps in which the learning rate rises linearly from 0.
        schedule: Course of the learning rate after the warm-up: cosine (to 0), linear (to 1e-5, or
            to lr / 2 if that is less), steps (divided by 10 at each of optim.drops) or wsd
            (constant, then to 0 during the last optim.decay).
        decay: Share of the run, at its end, in which the learning rate falls to 0 as 1 - sqrt(x),
            with x from 0 to 1.
        drops: Shares of the run after which the learning rate is divided by 10.
        betas: Decay rates of the two moments.
        momentum: Momentum.
        weight_decay: Weight decay. In adamw it is decoupled and scaled by the learning rate; in sgd
            it is an L2 term.
        weight_decay_end: Weight decay at the end of the run, approached along a cosine. null:
            constant weight decay.
        clip: Largest global gradient norm; larger gradients are scaled down. null: no clipping.
        dropout: Dropout rate in the encoder, after the position embeddings and after every dense
            layer except qkv.
        drop_path: Stochastic depth: share of residual branches to drop in the last block, rising
            linearly from 0 in the first block.
        layer_decay: Factor by which the learning rate falls from each block to the one below.
            Useful for fine-tuning. null: the same learning rate for all layers.
        nonfinite: What to do if the loss or a gradient is not finite: stop the run, or skip that
            update.
        average: Decay of a running (Polyak) average of the weights and batch-norm statistics, which
            is evaluated and exported instead of the last weights. null: no average.
    """

    name: Annotated[str, NamedChoice(lambda: OPTIMISERS)] = key("adamw")
    steps: Steps = key(1000)
    batch: int = key(4096, gt=0, le=2**22)
    lr: float = key(2e-4, gt=0, le=1e4)
    warmup: int = key(0, ge=0)
    schedule: Literal["cosine", "linear", "steps", "wsd"] = key("cosine")
    decay: Part = key(0.2, requires=("optim.schedule", "wsd"))  # Hägele et al., 2024
    # Schedule of BiT-L: drops after 10, 23, 30 and 37 of 40 epochs
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
        """Step at which the schedule wsd begins to lower the learning rate."""
        return self.steps - max(1, round(self.decay * self.steps))


class Optimiser(NamedTuple):
    """Optimiser that `optim.name` can choose.

    Attributes:
        label: Name in the first lines that a run prints.
        made_by: MODULE:CLASS of an optimiser with torch's interface. The class must have a fused
            kernel that reads `found_inf`, because this package skips updates with `found_inf`.
        settings: Function that returns the arguments of the class, except the weights, `lr` and
            `fused`. A key of Optim that only some optimisers use must name the optimisers in
            `requires`.
        moments: Function that returns the names of the state tensors with the shape of the weight.
        counts_steps: Whether the state of each weight has a counter `step`.
        fuses_shards: Whether the fused kernel works on weights sharded by FSDP2. If it does not, a
            run with FSDP2 on two processes raises an error about DTensor.
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
        fuses_shards=False,  # the fused kernel does not support DTensor
    ),
}
