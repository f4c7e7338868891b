"""Train a part of an encoder (`model.train`): the last blocks, or low-rank updates (LoRA).

Legend: B batch, T tokens, K wanted tokens of each image, C inputs, D width, E = 2 D.
"""

from typing import Any

from torch import Tensor, nn

from .attention import PackedLinear, gather_tokens
from .encoder import Backbone


class LowRankLinear(PackedLinear):
    """Frozen linear layer with a trained low-rank update (LoRA: Hu et al., 2022, section 4.1).

    The output is W x + B A x, where `down` holds A and `up` holds B. The scale alpha / r of the
    paper is 1.
    """

    down: nn.Linear
    up: nn.Linear

    def forward(  # type: ignore[override]
        self, x_BTC: Tensor, wanted_BK: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the output of the frozen layer plus the low-rank update.

        Args:
            x_BTC: All tokens.
            wanted_BK: As in `PackedLinear`, for a layer that computes queries, keys and values.
        """
        update = self.up(self.down(x_BTC))
        if wanted_BK is None:
            return super().forward(x_BTC) + update
        query_BKD, key_value_BTE = super().forward(x_BTC, wanted_BK)
        query_update_BTD, key_value_update_BTE = update.tensor_split([query_BKD.shape[-1]], -1)
        query_BKD = query_BKD + gather_tokens(query_update_BTD, wanted_BK)
        return query_BKD, key_value_BTE + key_value_update_BTE

    def merged_weight(self) -> Tensor:
        """Return W + B A, the weight of a plain linear layer with the same output."""
        return self.weight.detach() + self.up.weight.detach() @ self.down.weight.detach()


def freeze_untrained(encoder: Backbone) -> None:
    """Freeze the weights that `model.train` leaves out, and add the factors of `lora:RANK`.

    Call this function after the weights of `init=` are loaded and the objective is built. So the
    objective's heads get the same initial weights for each value of `model.train`, and its teachers
    are plain networks.

    Args:
        encoder: The encoder of an objective, changed in place.
    """
    if encoder.model.train == "all":
        return
    backbone, trained = encoder.backbone, set()
    if count := encoder.model.number_of("blocks"):
        parts = (*backbone.blocks[-count:], backbone.norm)
        trained = {p for part in parts for p in part.parameters() if p.requires_grad}
    for p in encoder.parameters():
        p.requires_grad_(p in trained)
    if rank := encoder.model.number_of("lora"):
        _add_factors(backbone.blocks, rank)


def _add_factors(blocks: nn.Module, rank: int) -> None:
    """Turn the linear layers of all attention modules into `LowRankLinear`.

    A gets PyTorch's initial weights of a linear layer and B is 0, as in the paper's code and in
    peft. So the network computes the same as before.

    Args:
        blocks: Blocks of a network of timm, changed in place.
        rank: Rank of the updates.
    """
    for attention in [module for module in blocks.modules() if hasattr(module, "num_heads")]:
        if hasattr(attention, "qkv_bias_separate"):
            # Otherwise timm's Eva reads the weight of `qkv` and does not call the module
            attention.qkv_bias_separate = True  # type: ignore[assignment]
        for layer in [child for child in attention.children() if isinstance(child, nn.Linear)]:
            low_rank: Any = layer
            low_rank.__class__ = LowRankLinear
            low_rank.down = nn.Linear(layer.in_features, rank, bias=False)
            low_rank.up = nn.Linear(rank, layer.out_features, bias=False)
            nn.init.zeros_(low_rank.up.weight)


def low_rank_layers(module: nn.Module) -> dict[str, LowRankLinear]:
    """Return {name of the weight: layer} of all layers with a low-rank update."""
    return {
        f"{name}.weight": layer
        for name, layer in module.named_modules()
        if isinstance(layer, LowRankLinear)
    }


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the state of a module, in which low-rank updates are added to the weights."""
    state: dict[str, Tensor] = module.state_dict()
    for name, layer in low_rank_layers(module).items():
        state[name] = layer.merged_weight()
        prefix = name.removesuffix("weight")
        del state[f"{prefix}down.weight"], state[f"{prefix}up.weight"]
    return state
