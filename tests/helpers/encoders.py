"""A small encoder, and pixels for it."""

from pathlib import Path

import torch

from ssl_vit.models import encoder, weights
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.schema import Data, Model

MODEL = Model(name="tiny", patch=4, width=32, depth=2, heads=2, mlp=80)
DATA = Data(size=16)


def net(model: Model = MODEL, data: Data = DATA, seed: int = 0) -> encoder.Encoder:
    torch.manual_seed(seed)
    made = encoder.build_encoder(model, data).eval()
    for parameter in made.parameters():  # so that nothing is zero or one by accident
        torch.nn.init.normal_(parameter, std=0.1)
    return made


def pixels(count: int = 3, size: int = 16) -> torch.Tensor:
    return torch.randint(
        0,
        256,
        (count, 3, size, size),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(1),
    )


def load(made: encoder.Encoder, place: Path | str) -> str:
    """Give an encoder the weights that `init=place` names; their hash."""
    return weights.load_weights(made, InitSource(str(place)))
