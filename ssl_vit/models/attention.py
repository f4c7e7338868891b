"""Speed up timm's attention and block, and compute outputs for only some tokens.

Legend: B batch, T tokens, K wanted tokens of each image, D width, H heads, d = D / H, E = 2 D.
"""

from typing import Any

import torch
from timm.models import vision_transformer
from timm.models.vision_transformer import Attention
from torch import Tensor, nn
from torch.nn import functional as F


def gather_tokens(x_BTD: Tensor, index_BK: Tensor) -> Tensor:
    """Select K tokens of each image by index, and return (B, K, D).

    The result is that of torch's `gather` along the tokens. On a CPU, `gather` looks up every
    single value, and this function is faster: it copies the D values of a token at once
    (docs/speed.md).

    Args:
        x_BTD: All tokens.
        index_BK: Indices of tokens in each image, in any order, int64.
    """
    rows = token_rows(index_BK, x_BTD.shape[1])
    return x_BTD.flatten(0, 1).index_select(0, rows).view(*index_BK.shape, x_BTD.shape[-1])


def token_rows(index_BK: Tensor, tokens: int) -> Tensor:
    """Convert indices of tokens in each image to row numbers in the flattened batch, (B K,).

    For example, with T = 5 tokens, the indices [[0, 2], [1, 3]] of two images become the rows
    [0, 2, 6, 8].

    Args:
        index_BK: Indices of tokens in each image, int64.
        tokens: Number of tokens T of an image. The flattened batch has B T rows, image after image.
    """
    first_B = tokens * torch.arange(len(index_BK), device=index_BK.device)
    return (index_BK + first_B[:, None]).flatten()


class PackedLinear(nn.Linear):
    """Linear layer that computes queries, keys and values by one matrix, like timm's `qkv`.

    This module also computes the queries of wanted tokens. The attention could not do this with
    this module's weights: ZeRO 3 provides a module's weights only during the module's forward.
    """

    def forward(  # type: ignore[override]
        self, x_BTD: Tensor, wanted_BK: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Compute queries, keys and values.

        Args:
            x_BTD: All tokens.
            wanted_BK: Indices of the tokens that need queries, int64. None: all tokens.

        Returns:
            Queries, keys and values together (B, T, 3 D). With `wanted_BK`, the queries (B, K, D)
            and the keys and values (B, T, 2 D).
        """
        if wanted_BK is None:
            return super().forward(x_BTD)
        sizes = [self.out_features // 3, 2 * self.out_features // 3]
        query_weight, key_value_weight = self.weight.split(sizes)
        query_bias, key_value_bias = None, None
        if self.bias is not None:
            query_bias, key_value_bias = self.bias.split(sizes)
        query_BKD = F.linear(gather_tokens(x_BTD, wanted_BK), query_weight, query_bias)
        return query_BKD, F.linear(x_BTD, key_value_weight, key_value_bias)


class QueryAttention(Attention):
    """timm's Attention, with the fused kernel only where the kernel is faster.

    With `wanted_BK`, only the wanted tokens attend and are projected. This needs a PackedLinear
    `qkv`.

    Queries, keys and values are slices of the output of `qkv`, viewed as (B, T, 3, H, d). Their
    gradients are written directly into a tensor of this order. timm uses the order (3, B, H, T, d),
    for which the gradients are copied once more.
    """

    def forward(  # type: ignore[override]
        self, x_BTD: Tensor, wanted_BK: Tensor | None = None, **mask: Any
    ) -> Tensor:
        # timm passes attn_mask=None and is_causal=False if there is no mask
        has_mask = any(value is not None and value is not False for value in mask.values())
        if has_mask:
            return super().forward(x_BTD, **mask)
        if wanted_BK is None:
            qkv_BT3Hd = self.qkv(x_BTD).unflatten(-1, (3, self.num_heads, -1))
            query_BKHd, key_BTHd, value_BTHd = qkv_BT3Hd.unbind(2)
        else:
            query_BKD, key_value_BTE = self.qkv(x_BTD, wanted_BK)
            query_BKHd = query_BKD.unflatten(-1, (self.num_heads, -1))
            key_value_BT2Hd = key_value_BTE.unflatten(-1, (2, self.num_heads, -1))
            key_BTHd, value_BTHd = key_value_BT2Hd.unbind(2)
        query_BHKd = self.q_norm(query_BKHd.transpose(1, 2))
        key_BHTd = self.k_norm(key_BTHd.transpose(1, 2))
        value_BHTd = value_BTHd.transpose(1, 2)
        if self.fused_attn and fused_is_faster(query_BHKd):
            output_BHKd = F.scaled_dot_product_attention(query_BHKd, key_BHTd, value_BHTd)
        else:
            weight_BHKT = (query_BHKd * self.scale @ key_BHTd.transpose(-2, -1)).softmax(-1)
            output_BHKd = weight_BHKT @ value_BHTd
        return self.proj_drop(self.proj(output_BHKd.transpose(1, 2).flatten(2)))


class Block(vision_transformer.Block):
    """Block of timm. With `wanted_BK`, only the wanted tokens attend and pass through the MLP.

    The class has the same name as timm's, because launch files tell FSDP by name what to shard.
    """

    def forward(  # type: ignore[override]
        self, x_BTD: Tensor, wanted_BK: Tensor | None = None, **arguments: Any
    ) -> Tensor:
        if wanted_BK is None:
            return super().forward(x_BTD, **arguments)
        x_BKD = gather_tokens(x_BTD, wanted_BK)
        attended_BKD = self.attn(self.norm1(x_BTD), wanted_BK)
        x_BKD = x_BKD + self.drop_path1(self.ls1(attended_BKD))
        return x_BKD + self.drop_path2(self.ls2(self.mlp(self.norm2(x_BKD))))


def fused_is_faster(query: Tensor) -> bool:
    """Return whether the fused attention kernel is at least as fast as plain matrix products.

    On a GPU, the answer is always true. On a CPU, the answer is true only for float32, because the
    kernel took more time than matrix products in bfloat16 (docs/speed.md).
    """
    return query.device.type != "cpu" or query.dtype == torch.float32


def fuse_on_gpus(network: nn.Module) -> None:
    """Let attention use fused kernels if there is a GPU, and plain matrix products otherwise."""
    for module in network.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = torch.cuda.is_available()  # type: ignore[assignment]


def choose_attention(network: nn.Module) -> None:
    """Choose for each attention module whether it uses a fused kernel, keeping all weights.

    - timm's plain Attention becomes a QueryAttention, which decides in each call whether the fused
      kernel is faster (`fused_is_faster`), also on a CPU.
    - Attention with dropout, a gate or a norm, and attention of other classes, is not changed. It
      uses a fused kernel on a GPU and plain matrix products on a CPU.

    Args:
        network: A network of timm, which is changed in place.
    """
    fuse_on_gpus(network)
    for module in network.modules():
        attention: Any = module
        if type(attention) is not Attention or getattr(attention, "gate", None) is not None:
            continue
        if isinstance(attention.norm, nn.Identity) and attention.attn_drop.p == 0:
            attention.__class__ = QueryAttention
            # allows the fused kernel, and leaves the decision to QueryAttention
            attention.fused_attn = True  # type: ignore[misc]


def enable_wanted_tokens(blocks: nn.Sequential | nn.ModuleList) -> None:
    """Let the last block compute only some of the tokens, for example the masked patches.

    The last block gets the class `Block` of this file, whose `forward` takes the indices of the
    tokens to compute, `wanted_BK`. The weights stay the same. Nothing changes unless the last block
    is exactly of timm's class `Block` and has a QueryAttention.

    Args:
        blocks: The blocks of a network of timm. The last block is changed in place.
    """
    last: Any = blocks[-1]
    if type(last) is vision_transformer.Block and isinstance(last.attn, QueryAttention):
        last.__class__ = Block
        last.attn.qkv.__class__ = PackedLinear
