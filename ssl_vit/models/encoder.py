"""Run a timm Vision Transformer in two steps: patch(pixels) -> x_BND, forward(x_BND) -> h_BTD.

Objectives can corrupt the patch embeddings between the two steps.

Legend: B batch, N patches, V visible and K wanted patches of each image, M patches of a smaller
image, T tokens (prefix + N or V), D width, H W height and width of the image, X values of a patch's
pixels.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import timm
import torch
from einops import rearrange
from PIL import Image
from timm.layers import HybridEmbed, PatchEmbed
from timm.models import named_apply
from timm.models.vision_transformer import init_weights_vit_jax
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.pixel_values import check_integers, evaluation_images, normalisation
from ..errors import UserError
from ..recipe.images import BYTES, Data
from ..recipe.schema import Model
from ..recipe.timm_models import positions_of, why_unsupported
from .architectures import (
    build_timm_args,
    check_architecture,
    check_sizes,
    create,
    init_registers,
    is_eva,
)
from .attention import Block, choose_attention, enable_wanted_tokens, gather_tokens
from .drop_path import DropPath
from .positions import Positions, build_positions

# Images that `feature` accepts
Images = Tensor | np.ndarray | Image.Image | Sequence[np.ndarray | Image.Image]
EXPECTED = "Use a Vision Transformer or an Eva of timm that cuts images into patches."


class Backbone(nn.Module, ABC):
    """Network of timm that takes integer images and normalises them.

    Args:
        backbone: The network of timm.
        data: Size, channels, range and normalisation of images, and how an evaluation resizes and
            crops images.

    Attributes:
        width: Width D of the features.
        pool: Pooling that `feature` uses if the caller names no pooling, "token" or "avg".
        adapt_channels: Whether weights for RGB may be adapted to the channels of the images.
        model: The keys of model= that the network was built from.
    """

    backbone: Any  # timm's classes share no type that names their parts
    model: Model
    mean: Tensor
    std: Tensor
    width: int
    pool: str = "token"
    adapt_channels: bool = False

    def __init__(self, backbone: Any, data: Data) -> None:
        super().__init__()
        self.backbone = backbone
        self.data = data
        self.channels = data.channels
        self.pixel_range = data.pixel_range
        mean_C11, std_C11 = normalisation(data.mean, data.std, data.pixel_range)
        self.register_buffer("mean", mean_C11, persistent=False)
        self.register_buffer("std", std_C11, persistent=False)

    def normalize(self, pixels: Tensor) -> Tensor:
        """Return images or patches as float32, normalised by mean and std of the channels.

        Args:
            pixels: Images (B, channels, H, W), or patches (B, N, channels, P, P) with P pixels on a
                side. Images of 8 bits are uint8. Images of 16 bits are int32 or uint16 and are
                clipped to `pixel_range`.

        Raises:
            TypeError: The values have another type.
        """
        check_integers(pixels, self.data)
        values = pixels.float()
        if self.pixel_range != BYTES:  # values of 8 bits are always inside the range
            values = values.clamp(*self.pixel_range)
        return values.sub_(self.mean).div_(self.std)

    def pixels(self, images: Images) -> Tensor:
        """Return images as an integer tensor (B, 3, H, W).

        A tensor is returned unchanged. Arrays and PIL images are resized and cropped as in an
        evaluation, and moved to the encoder's device.

        Args:
            images: A tensor, or arrays or PIL images.

        Raises:
            TypeError: The images are neither a tensor, nor arrays or PIL images of the expected
                type.
            ValueError: An array has another shape, an image has no pixels, or there are no images.
        """
        if isinstance(images, Tensor):
            return images
        return evaluation_images(images, self.data).to(self.mean.device)

    @abstractmethod
    def feature(self, images: Images, pool: str | None = None, layer: int | None = None) -> Tensor:
        """Return a feature of each image, (B, D).

        Args:
            images: Images that `pixels` accepts.
            pool: How tokens are pooled, "token" or "avg". None: the attribute `pool`.
            layer: Number of the block after which the feature is taken, from 1. None: the last.
        """


class PatchProjection(nn.Conv2d):
    """timm's convolution of non-overlapping patches, computed as a matrix product.

    The matrix product takes less time on a CPU (docs/speed.md).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the embeddings of patches.

        Args:
            x: Pixels (B, N, X) of patches from `cut_patches`, or images (B, C, H, W). timm's own
                code passes images.

        Returns:
            (B, N, D) for pixels of patches. For images, timm's convolution (B, D, rows, columns).
        """
        if x.ndim == 4:
            return super().forward(x)
        return F.linear(x, self.weight.flatten(1), self.bias)


def cut_patches(image_BCHW: Tensor, side: int) -> Tensor:
    """Cut images into patches, and return the pixels of each patch, (B, N, X).

    Args:
        image_BCHW: The images.
        side: Side of a patch in pixels. The X values of a patch are ordered by channel, row and
            column.
    """
    return rearrange(image_BCHW, "b c (h p) (w q) -> b (h w) (c p q)", p=side, q=side)


def join_patches(pixel_BNX: Tensor, grid: tuple[int, int]) -> Tensor:
    """Join patches from `cut_patches` to RGB images (B, 3, H, W).

    Args:
        pixel_BNX: Pixels of the patches.
        grid: Rows and columns of patches.
    """
    side = math.isqrt(pixel_BNX.shape[-1] // 3)  # of a patch, in pixels
    return rearrange(pixel_BNX, "b (h w) (c p q) -> b c (h p) (w q)", h=grid[0], c=3, p=side)


class Convolutional(Backbone):
    """Convolutional network as a baseline (BiT's ResNets, EfficientNets), without classifier.

    The network has no patches to corrupt.
    """

    def __init__(self, backbone: Any, data: Data) -> None:
        super().__init__(backbone, data)
        self.width = backbone.num_features

    def feature(self, images: Images, pool: str | None = None, layer: int | None = None) -> Tensor:
        """Return the output of the network's pooling, (B, D).

        Args:
            images: Images that `pixels` accepts.
            pool: Ignored.
            layer: Ignored.

        Raises:
            TypeError: The images have another type.
            ValueError: The images have another shape, an image has no pixels, or there are no
                images.
        """
        pixels_B3HW = self.pixels(images)
        if pixels_B3HW.ndim != 4 or pixels_B3HW.shape[1] != 3:
            shape = tuple(pixels_B3HW.shape)
            raise ValueError(f"the images have shape {shape}. Use images of shape (B, 3, H, W).")
        return self.backbone(self.normalize(pixels_B3HW))


class Encoder(Backbone):
    """Vision Transformer whose patch embeddings can be corrupted before positions are added.

    Args:
        backbone: The network of timm, with or without positions.
        data: Size, channels, range and normalisation of images, and how an evaluation resizes and
            crops images.
        positions: Module that adds positions to tokens. None: timm's backbone adds them.
    """

    def __init__(self, backbone: Any, data: Data, positions: Positions | None = None) -> None:
        super().__init__(backbone, data)
        self.positions = positions or Positions(positions_of(backbone))
        self.width = backbone.embed_dim
        self.grid: tuple[int, int] = backbone.patch_embed.grid_size
        self.patch_size: int = backbone.patch_embed.img_size[0] // self.grid[0]
        self.prefix: int = backbone.num_prefix_tokens

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def has_class_token(self) -> bool:
        return self.backbone.cls_token is not None

    def patch(self, pixels_B3HW: Tensor) -> Tensor:
        """Return the patch embeddings (B, N, D) of integer images, without positions.

        In the paper (3.1), this step is the linear projection E.

        Args:
            pixels_B3HW: Images of the encoder's size, as for `normalize`.

        Raises:
            TypeError: The images are no tensor of the expected integer type.
            ValueError: The images have another size or other channels than the encoder expects.
        """
        check_integers(pixels_B3HW, self.data)
        shape = tuple(pixels_B3HW.shape)
        height, width = (self.patch_size * side for side in self.grid)
        if shape[1:] != (self.channels, height, width):
            raise ValueError(
                f"the images have shape {shape}. Use images of shape"
                f" (B, {self.channels}, {height}, {width})."
            )
        return self.patch_pixels(cut_patches(pixels_B3HW, self.patch_size))

    def patch_pixels(self, pixel_BNX: Tensor) -> Tensor:
        """Return patch embeddings (B, N, D) of patches' pixels.

        Args:
            pixel_BNX: Pixels of the patches, in the order of `cut_patches`.
        """
        embed = self.backbone.patch_embed
        # The convolutional stem of a hybrid reads beyond the edges of a patch, so join the patches
        # to images again
        if not isinstance(embed.proj, PatchProjection):
            return embed(self.normalize(join_patches(pixel_BNX, self.grid)))
        square = (self.channels, self.patch_size, self.patch_size)
        x_BNX = self.normalize(pixel_BNX.unflatten(-1, square)).flatten(2)
        return embed.norm(embed.proj(x_BNX))

    def forward(
        self,
        x_BND: Tensor,
        visible_BV: Tensor | None = None,
        wanted_BK: Tensor | None = None,
    ) -> Tensor:
        """Add class token and positions, and apply the blocks and the final norm (paper, 3.1).

        Args:
            x_BND: Embeddings of all patches, without positions.
            visible_BV: Indices of the patches that the blocks see, int64 (He et al., 2022, section
                3). Positions are added before these patches are selected. The visible patches
                follow the prefix tokens, in the order of `visible_BV`. None: all patches.
            wanted_BK: Indices of the patches whose features are returned, int64. With `visible_BV`,
                index 0 is the first visible patch. None: all tokens are returned.

        Returns:
            Features of all tokens (B, T, D), or of the wanted patches (B, K, D).
        """
        blocks = self.backbone.blocks
        if wanted_BK is None:
            return self.backbone.norm(self._tokens_after(x_BND, len(blocks), visible_BV))
        token_BTD = self._tokens_after(x_BND, len(blocks) - 1, visible_BV)
        index_BK = wanted_BK + self.prefix
        # To save time, a `Block` computes only the wanted tokens (`enable_wanted_tokens`). Other
        # blocks compute all tokens
        if isinstance(blocks[-1], Block):
            return self.backbone.norm(blocks[-1](token_BTD, index_BK))
        token_BTD = blocks[-1](token_BTD, **self.block_arguments(visible_BV))
        return self.backbone.norm(gather_tokens(token_BTD, index_BK))

    def embed(self, x_BND: Tensor) -> Tensor:
        """Add class token and positions to patch embeddings, and return all tokens (B, T, D).

        The first block receives these tokens (paper, equation 1).
        """
        return self.positions.embed(self.backbone, x_BND)

    def block_arguments(self, visible_BV: Tensor | None = None) -> dict[str, Tensor]:
        """Return the keyword arguments of each block: the angles of rotary positions, if any."""
        return self.positions.block_arguments(self.backbone, visible_BV)

    def crop_tokens(self, pixels_B3HW: Tensor) -> Tensor:
        """Return all tokens (B, T, D) of images that are smaller than the encoder's images.

        The tokens are taken after the final norm. Prefix tokens come first. Position embeddings are
        interpolated to the smaller size. Rotary angles are computed for the smaller size.

        Args:
            pixels_B3HW: Images as for `normalize`.

        Raises:
            TypeError: The images are no tensor of the expected integer type.
            ValueError: The images have more patches than the encoder's images, or their sides are
                not multiples of the side of a patch.
        """
        check_integers(pixels_B3HW, self.data)
        height, width = pixels_B3HW.shape[2:]
        rows, columns = height // self.patch_size, width // self.patch_size
        is_multiple = (rows * self.patch_size, columns * self.patch_size) == (height, width)
        if not is_multiple or rows > self.grid[0] or columns > self.grid[1]:
            largest = self.patch_size * self.grid[0]
            raise ValueError(
                f"the images have {height} x {width} pixels. Use sides of at most {largest} pixels"
                f" that are multiples of {self.patch_size}."
            )
        if (rows, columns) == self.grid:
            return self.tokens(pixels_B3HW)
        x_BMD = self.patch_pixels(cut_patches(pixels_B3HW, self.patch_size))
        token_BTD = self.positions.embed_at(self.backbone, x_BMD, (rows, columns))
        arguments = self.positions.block_arguments(self.backbone, grid=(rows, columns))
        for block in self.backbone.blocks:
            token_BTD = block(token_BTD, **arguments)
        return self.backbone.norm(token_BTD)

    def _tokens_after(self, x_BND: Tensor, layer: int, visible_BV: Tensor | None = None) -> Tensor:
        """Return the tokens (B, T, D) after a block, without the final norm.

        Args:
            x_BND: Embeddings of all patches, without positions.
            layer: Number of the block, from 1. 0: the tokens that the first block receives.
            visible_BV: Indices of the patches that the blocks see, int64. None: all patches.
        """
        token_BTD = self.embed(x_BND)
        if visible_BV is not None:
            visible_BVD = gather_tokens(token_BTD[:, self.prefix :], visible_BV)
            token_BTD = torch.cat([token_BTD[:, : self.prefix], visible_BVD], 1)
        arguments = self.block_arguments(visible_BV)
        for block in self.backbone.blocks[:layer]:
            token_BTD = block(token_BTD, **arguments)
        return token_BTD

    def feature(self, images: Images, pool: str | None = None, layer: int | None = None) -> Tensor:
        """Return a feature of each image, (B, D): the class token or the mean of the patches.

        The final norm is applied to the tokens before they are pooled. A network of timm with
        `fc_norm` has no final norm and normalises the pooled feature instead.

        Args:
            images: Images that `pixels` accepts.
            pool: "token" for the class token, or "avg" for the mean of the patches. None: the
                attribute `pool`.
            layer: Number of the block after which the feature is taken, from 1, without the norm.
                None: after the last block, with the norm.

        Raises:
            TypeError: The images have another type.
            ValueError: The images have another shape, an image has no pixels, there are no images,
                or `pool` has another value.
        """
        if pool is None:
            pool = self.pool
        return self.pooled(self.tokens(images, layer), pool, layer)

    def tokens(self, images: Images, layer: int | None = None) -> Tensor:
        """Return all tokens (B, T, D) of images, prefix tokens first.

        Args:
            images: Images that `pixels` accepts.
            layer: Number of the block after which the tokens are taken, from 1, without the norm.
                None: after the last block, with the norm.
        """
        x_BND = self.patch(self.pixels(images))
        return self(x_BND) if layer is None else self._tokens_after(x_BND, layer)

    def last_outputs(self, pixels_B3HW: Tensor, count: int) -> list[Tensor]:
        """Return all tokens (B, T, D) after each of the last blocks, without the final norm.

        Args:
            pixels_B3HW: Integer images.
            count: Number of last blocks. If the encoder has fewer blocks, all blocks are used.
        """
        blocks = self.backbone.blocks
        token_BTD = self._tokens_after(self.patch(pixels_B3HW), max(0, len(blocks) - count))
        arguments = self.block_arguments()
        outputs = []
        for block in blocks[-count:]:
            token_BTD = block(token_BTD, **arguments)
            outputs.append(token_BTD)
        return outputs

    def pooled(self, h_BTD: Tensor, pool: str, layer: int | None = None) -> Tensor:
        """Pool tokens into a feature of each image, (B, D), as `feature` does.

        Args:
            h_BTD: Tokens after the final norm, or after the block `layer`.
            pool: "token" or "avg".
            layer: Number of the block that returned the tokens. Then the feature is not normalised.
                None: the tokens come from the final norm, and `fc_norm` is applied to the feature.
                In most networks, `fc_norm` is an identity.

        Raises:
            ValueError: `pool` has another value.
        """
        if pool not in ("token", "avg"):
            raise ValueError(f"pool={pool}: expected token or avg")
        h_BD = h_BTD[:, 0] if pool == "token" else h_BTD[:, self.prefix :].mean(1)
        return self.backbone.fc_norm(h_BD) if layer is None else h_BD


def build_backbone(
    model: Model,
    data: Data,
    dropout: float = 0.0,
    drop_path: float = 0.0,
) -> Backbone:
    """Build the encoder or convolutional network of a model, with random weights.

    Args:
        model: The keys of model=.
        data: The images.
        dropout: Rate of dropout in training. Convolutional networks have no dropout.
        drop_path: Rate of drop path in the last block, in training.

    Raises:
        UserError: model.timm is unsuitable, or has other sizes than the keys of model=.
    """
    if not model.convolutional:
        return build_encoder(model, data, dropout, drop_path)
    backbone = create(model, drop_path_rate=drop_path, **build_timm_args(model, data.size))
    check_sizes({"width": backbone.num_features}, model)
    network = Convolutional(backbone, data)
    network.model = model
    return network


def build_encoder(
    model: Model,
    data: Data,
    dropout: float = 0.0,
    drop_path: float = 0.0,
) -> Encoder:
    """Build an encoder without classifier, with random weights (timm's `weight_init="jax"`).

    Weights are drawn from torch's global generator. Dropout is applied after the positions and
    after every dense layer except qkv (paper, appendix B.1). The rate of drop path is 0 in the
    first block and rises linearly to `drop_path` in the last block (Huang et al., 2016).

    Args:
        model: The keys of model=.
        data: Size, channels and normalisation of the images.
        dropout: Rate of dropout in training.
        drop_path: Rate of drop path in the last block, in training.

    Raises:
        UserError: model.timm is unsuitable, or differs from the keys of model=.
    """
    args = build_timm_args(model, data.size, data.channels, exported=False)
    args |= {"proj_drop_rate": dropout, "pos_drop_rate": dropout, "drop_path_rate": drop_path}
    # By default, some architectures of timm do not return patches as (B, N, D)
    args["dynamic_img_size"] = False
    if not is_eva(model):  # Eva has no argument weight_init
        args["weight_init"] = "jax"
    backbone = create(model, EXPECTED, **args)
    reason = why_unsupported(backbone)
    if reason:
        raise UserError(f"model.timm={model.timm}: {reason}")
    if isinstance(backbone.patch_embed, HybridEmbed) != model.hybrid:
        raise UserError(f"model.timm={model.timm}: this architecture is not supported. {EXPECTED}")
    if is_eva(model):
        named_apply(init_weights_vit_jax, backbone)
        if backbone.cls_token is not None:
            nn.init.normal_(backbone.cls_token, std=1e-6)
    init_registers(backbone)
    grid = backbone.patch_embed.grid_size
    positions = build_positions(model.positions, grid, model.width)
    encoder = Encoder(backbone, data, positions)
    encoder.model, encoder.adapt_channels = model, model.adapt_channels
    check_architecture(backbone, encoder.patch_size, model)
    for parent in list(backbone.modules()):
        for child_name, child in parent.named_children():
            if isinstance(child, timm.layers.DropPath):
                setattr(parent, child_name, DropPath(child.drop_prob))
    # Few objectives use a pooled feature, so most objectives would give `fc_norm` no gradient.
    # Its scale and shift are not needed: a linear layer after the norm can learn them
    backbone.fc_norm.requires_grad_(False)
    choose_attention(backbone)
    enable_wanted_tokens(backbone.blocks)
    if type(backbone.patch_embed) is PatchEmbed:
        backbone.patch_embed.proj.__class__ = PatchProjection
    return encoder
