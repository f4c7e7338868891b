"""How an encoder knows where its patches are: what is added to them, and what its blocks receive.

Legend: B batch, N patches (R rows of C), V visible patches of each image, M patches of a smaller
grid, P prefix tokens, T = P + N tokens, D width, d width of a head.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from einops import rearrange
from timm.layers import RotaryEmbeddingDinoV3, build_rotary_pos_embed
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from torch import Tensor, nn
from torch.nn import functional as F

from .full_precision import full_precision

# Of first embeddings, as timm's. timm cuts at 100 STD, which no draw reaches: normal_ is the same,
# and unlike trunc_normal_ gives the same weights with every version of torch.
STD = 0.02


def with_prefix(backbone: Any, x_BND: Tensor) -> Tensor:
    """The class token, the registers and the patches: (B, T, D)."""
    tokens = [backbone.cls_token, getattr(backbone, "reg_token", None)]
    prefix = [token.expand(len(x_BND), -1, -1) for token in tokens if token is not None]
    return torch.cat([*prefix, x_BND], 1)


def resize_positions(positions_1TD: Tensor, grid: tuple[int, int], prefix: int) -> Tensor:
    """Position embeddings (1, T, D) for another grid of patches (paper, 3.2): 2D interpolation,
    bilinear with aligned corners, as the authors' code (scipy's zoom). Those of the `prefix`
    leading tokens stay. The old grid must be square.

    Raises:
        ValueError: it is not.
    """
    old = positions_1TD.shape[1] - prefix
    side = round(old**0.5)
    if side * side != old:
        raise ValueError(f"{old} positions are no square grid")
    if (side, side) == grid:
        return positions_1TD
    square = rearrange(positions_1TD[:, prefix:].float(), "1 (h w) d -> 1 d h w", h=side)
    resized = F.interpolate(square, grid, mode="bilinear", align_corners=True)
    new = rearrange(resized, "1 d h w -> 1 (h w) d").to(positions_1TD)
    return torch.cat([positions_1TD[:, :prefix], new], 1)


def _table_at(table_ND: Tensor, grid: tuple[int, int]) -> Tensor:
    """Embeddings of a grid's patches (M, D) as `resize_positions`, by a product of matrices: on a
    GPU the gradient of an interpolation is added up in no fixed order."""
    unit_1NN = torch.eye(len(table_ND), device=table_ND.device)[None]
    with full_precision(table_ND.device):
        return resize_positions(unit_1NN, grid, 0)[0] @ table_ND


def rotary_angles(rope: Any, grid: tuple[int, int]) -> Tensor:
    """Sines, then cosines, of the patches' rotations in a grid (N, 2d), as timm's rotary positions
    have them for images of that size."""
    if isinstance(rope, RotaryEmbeddingDinoV3):
        return rope.get_embed(list(grid))
    names = ("dim", "max_res", "temperature", "linear_bands", "in_pixels", "ref_feat_shape")
    given = {name: getattr(rope, name) for name in (*names, "grid_offset", "grid_indexing")}
    if getattr(rope, "rotate_half", False):
        given["rotate_half"] = True
    sines_and_cosines = build_rotary_pos_embed(list(grid), **given, device=rope.pos_embed.device)
    return torch.cat(sines_and_cosines, -1)


class Positions(nn.Module):
    """Those of a timm network itself: one learned embedding for each token; or of an Eva rotary
    ones, with or without learned ones; or none. By rotary ones queries and keys of patches, not of
    prefix tokens, are rotated by angles that follow from row and column; the blocks' attention
    alone uses them. A smaller grid has the angles that timm has for images of its size."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind  # a value of model.positions

    def embed(self, backbone: Any, x_BND: Tensor) -> Tensor:
        """Tokens (B, T, D) that the first block receives."""
        token_BTD = backbone._pos_embed(x_BND)
        if isinstance(token_BTD, tuple):  # an Eva's: with the angles of `block_arguments`
            token_BTD = token_BTD[0]
        return backbone.norm_pre(token_BTD)

    def embed_at(self, backbone: Any, x_BMD: Tensor, grid: tuple[int, int]) -> Tensor:
        """As `embed`, of the patches of a grid other than the encoder's: those that are added are
        interpolated, so that a grid's corners keep theirs."""
        table_TD = self.table()
        if table_TD is None and getattr(backbone, "pos_embed", None) is not None:
            table_TD = backbone.pos_embed[0]
        prefix = with_prefix(backbone, x_BMD[:, :0])
        if table_TD is not None:
            alone = self.table() is not None or backbone.no_embed_class
            count = 0 if alone else prefix.shape[1]  # of prefix tokens that have positions
            prefix = prefix + table_TD[:count] if count else prefix
            x_BMD = x_BMD + _table_at(table_TD[count:], grid)
        return backbone.norm_pre(backbone.pos_drop(torch.cat([prefix, x_BMD], 1)))

    def block_arguments(
        self,
        backbone: Any,
        visible_BV: Tensor | None = None,
        grid: tuple[int, int] | None = None,
    ) -> dict[str, Tensor]:
        """Keyword arguments of every block, which sees the prefix tokens and all patches, or the
        visible ones; of the encoder's grid, or of another one."""
        rope = getattr(backbone, "rope", None)
        if rope is None:
            return {}
        angle_Nd = rope.get_embed() if grid is None else rotary_angles(rope, grid)
        # for all heads
        return {"rope": angle_Nd if visible_BV is None else angle_Nd[visible_BV][:, None]}

    def table(self) -> Tensor | None:
        """What is added to the patches, (N, D); None where the backbone holds it, or nothing is."""
        return None


class Added(Positions, ABC):
    """Embeddings that are added to the patches, not to prefix tokens. An export holds them as a
    learned table."""

    def embed(self, backbone: Any, x_BND: Tensor) -> Tensor:
        token_BTD = with_prefix(backbone, x_BND + self.table())
        return backbone.norm_pre(backbone.pos_drop(token_BTD))

    @abstractmethod
    def table(self) -> Tensor: ...

    @abstractmethod
    def load_table(self, table_ND: Tensor, old_ND: Tensor) -> None:
        """Take over the embeddings of an export.

        Args:
            table_ND: interpolated to this grid.
            old_ND: as they are in the export, on a square grid.

        Raises:
            ValueError: they are of another kind.
        """


class Learned2d(Added):
    """Half of the channels are learned for each column, half for each row (paper, D.4)."""

    def __init__(self, kind: str, grid: tuple[int, int], width: int) -> None:
        super().__init__(kind)
        rows, columns = grid
        self.column_Ch = nn.Parameter(torch.empty(columns, width // 2))
        self.row_Rh = nn.Parameter(torch.empty(rows, width - width // 2))
        nn.init.normal_(self.column_Ch, std=STD)
        nn.init.normal_(self.row_Rh, std=STD)

    def table(self) -> Tensor:
        rows = len(self.row_Rh)
        columns = len(self.column_Ch)
        column_RCh = self.column_Ch.expand(rows, -1, -1)
        row_RCh = self.row_Rh[:, None].expand(-1, columns, -1)
        return torch.cat([column_RCh, row_RCh], -1).flatten(0, 1)

    def load_table(self, table_ND: Tensor, old_ND: Tensor) -> None:
        rows = len(self.row_Rh)
        half = self.column_Ch.shape[1]
        table_RCD = table_ND.unflatten(0, (rows, -1)).to(self.row_Rh)
        with torch.no_grad():
            self.column_Ch.copy_(table_RCD[0, :, :half])
            self.row_Rh.copy_(table_RCD[:, 0, half:])
        if not torch.allclose(self.table(), table_RCD.flatten(0, 1), atol=1e-5):
            raise ValueError("its positions are not of rows and columns")


class Sincos2d(Added):
    """Sines and cosines of the column, then of the row, fixed, in the order of MAE's code (He et
    al., 2022); in MoCo v3's (Chen et al., 2021) the row is first."""

    table_ND: Tensor

    def __init__(self, kind: str, grid: tuple[int, int], width: int) -> None:
        super().__init__(kind)
        self.register_buffer("table_ND", self._build(grid, width), persistent=False)

    @staticmethod
    def _build(grid: tuple[int, int], width: int) -> Tensor:
        row_first_ND = build_sincos2d_pos_embed(list(grid), width, interleave_sin_cos=True)
        return row_first_ND.roll(width // 2, 1)

    def table(self) -> Tensor:
        return self.table_ND

    def load_table(self, table_ND: Tensor, old_ND: Tensor) -> None:
        side = round(len(old_ND) ** 0.5)
        wanted_ND = self._build((side, side), old_ND.shape[1])
        if not torch.allclose(wanted_ND.to(old_ND), old_ND, atol=1e-3):
            raise ValueError("its positions are not sines and cosines")


def build_positions(kind: str, grid: tuple[int, int], width: int) -> Positions:
    """The positions that a value of model.positions names."""
    if kind == "learned_2d":
        return Learned2d(kind, grid, width)
    if kind == "sincos_2d":
        return Sincos2d(kind, grid, width)
    return Positions(kind)
