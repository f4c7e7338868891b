"""A small encoder, pixels for it, and the names and shapes of Google's weights."""

import torch

from ssl_vit.models import encoder
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


def google_shapes(model: Model, size: int) -> dict[str, tuple[int, ...]]:
    d, h, n = model.width, model.heads, (size // model.patch) ** 2
    shapes: dict[str, tuple[int, ...]] = {
        "cls": (1, 1, d),
        "embedding/kernel": (model.patch, model.patch, 3, d),
        "embedding/bias": (d,),
        "Transformer/posembed_input/pos_embedding": (1, n + 1, d),
        "Transformer/encoder_norm/scale": (d,),
        "Transformer/encoder_norm/bias": (d,),
        "pre_logits/kernel": (d, d),
        "pre_logits/bias": (d,),
        "head/kernel": (d, 21),
        "head/bias": (21,),
    }
    for i in range(model.depth):
        block = f"Transformer/encoderblock_{i}/"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{block}{norm}/scale": (d,), f"{block}{norm}/bias": (d,)}
        for part in ("query", "key", "value"):
            attention = f"{block}MultiHeadDotProductAttention_1/{part}"
            shapes |= {f"{attention}/kernel": (d, h, d // h), f"{attention}/bias": (h, d // h)}
        out = f"{block}MultiHeadDotProductAttention_1/out"
        shapes |= {f"{out}/kernel": (h, d // h, d), f"{out}/bias": (d,)}
        shapes |= {
            f"{block}MlpBlock_3/Dense_0/kernel": (d, model.mlp),
            f"{block}MlpBlock_3/Dense_0/bias": (model.mlp,),
        }
        shapes |= {
            f"{block}MlpBlock_3/Dense_1/kernel": (model.mlp, d),
            f"{block}MlpBlock_3/Dense_1/bias": (d,),
        }
    return shapes
