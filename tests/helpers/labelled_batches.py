"""A batch with labels, and the objective that learns them."""

import torch

from ssl_vit.data.batching import Batch
from ssl_vit.models import encoder
from ssl_vit.objectives.supervised.network import Supervised
from ssl_vit.recipe.schema import Data, Model

TINY, DATA = Model(patch=4, width=32, depth=2, heads=2, mlp=64), Data(size=16)


def batch(count: int = 6, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=draw)
    label = torch.randint(0, 5, (count,), generator=draw)
    return Batch(
        image, label, torch.arange(count), torch.randint(-(2**62), 2**62, (count,), generator=draw)
    )


def net() -> encoder.Encoder:
    torch.manual_seed(0)
    return encoder.build_encoder(TINY, DATA)


def supervised(on: encoder.Encoder | None = None, **words) -> Supervised:
    made = Supervised(
        on or net(),
        5,
        **({"loss": "softmax", "smoothing": 0.0, "hidden": True, "pool": "token"} | words),
    )
    torch.manual_seed(1)
    torch.nn.init.normal_(made.head.weight)
    return made
