"""Tell an encoder where patches are, by embeddings that are added or by arguments of blocks.

Legend: B batch, N patches (R rows and C columns), V visible patches of each image, M patches of a
smaller grid, P prefix tokens, T = P + N tokens, D width, d width of a head.
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

# Standard deviation of initial embeddings, as in timm. timm truncates at 100 STD, which no draw
# reaches. normal_ is used because trunc_normal_ gives other weights in other versions of torch.
STD = 0.02


def with_prefix(backbone: Any, x_BND: Tensor) -> Tensor:
    """Put class token and registers in front of the patches, and return all tokens (B, T, D)."""
    tokens = [backbone.cls_token, getattr(backbone, "reg_token", None)]
    prefix = [token.expand(len(x_BND), -1, -1) for token in tokens if token is not None]
    return torch.cat([*prefix, x_BND], 1)


def resize_positions(positions_1TD: Tensor, grid: tuple[int, int], prefix: int) -> Tensor:
    """Interpolate position embeddings (1, T, D) to another grid of patches (paper, 3.2).

    Interpolation is bilinear with aligned corners, as in the authors' code (scipy's zoom).

    Args:
        positions_1TD: Embeddings of prefix tokens, then of patches on a square grid.
        grid: New rows and columns.
        prefix: Number of prefix tokens, whose embeddings stay the same.

    Raises:
        ValueError: The old grid is not square.
    """
    old_patches = positions_1TD.shape[1] - prefix
    side = round(old_patches**0.5)
    if side * side != old_patches:
        raise ValueError(f"{old_patches} positions do not form a square grid")
    if (side, side) == grid:
        return positions_1TD
    old_1DHW = rearrange(positions_1TD[:, prefix:].float(), "1 (h w) d -> 1 d h w", h=side)
    new_1DHW = F.interpolate(old_1DHW, grid, mode="bilinear", align_corners=True)
    new_1ND = rearrange(new_1DHW, "1 d h w -> 1 (h w) d").to(positions_1TD)
    return torch.cat([positions_1TD[:, :prefix], new_1ND], 1)


def _table_at(table_ND: Tensor, grid: tuple[int, int]) -> Tensor:
    """Interpolate position embeddings (N, D) to another grid, with a reproducible gradient.

    The result (M, D) equals that of `resize_positions`. It is computed as the matrix product
    W @ table, where W (M, N) is the interpolated identity matrix. Then the gradient is a matrix
    product too. On a GPU, torch's interpolation adds up gradients in no fixed order, so results
    would differ between runs.

    Args:
        table_ND: Embeddings of N patches on a square grid.
        grid: New rows and columns of patches, M in all.
    """
    identity_1NN = torch.eye(len(table_ND), device=table_ND.device)[None]
    with full_precision(table_ND.device):
        weight_MN = resize_positions(identity_1NN, grid, 0)[0]
        return weight_MN @ table_ND


def rotary_angles(rope: Any, grid: tuple[int, int]) -> Tensor:
    """Return the sines, then the cosines, of each patch's rotary angles, (N, 2d).

    A timm network that is built for images of this grid size has the same angles.

    Args:
        rope: Rotary positions of a timm network: RotaryEmbeddingDinoV3, which has a method for
            other grids, or RotaryEmbeddingCat, whose settings are copied.
        grid: Rows and columns of patches.
    """
    if isinstance(rope, RotaryEmbeddingDinoV3):
        return rope.get_embed(list(grid))
    names = (
        "dim",
        "max_res",
        "temperature",
        "linear_bands",
        "in_pixels",
        "ref_feat_shape",
        "grid_offset",
        "grid_indexing",
    )
    settings = {name: getattr(rope, name) for name in names}
    if getattr(rope, "rotate_half", False):
        settings["rotate_half"] = True
    sines_and_cosines = build_rotary_pos_embed(list(grid), **settings, device=rope.pos_embed.device)
    return torch.cat(sines_and_cosines, -1)


class Positions(nn.Module):
    """Positions that are part of a timm network.

    The network has a learned embedding for each token, rotary positions (Eva), both kinds, or no
    positions. Rotary positions are used only in the attention. The queries and keys of patches are
    rotated by angles that follow from row and column. Those of prefix tokens are not rotated. A
    smaller grid has the angles that timm uses for images of that size.

    Args:
        kind: Value of model.positions.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def embed(self, backbone: Any, x_BND: Tensor) -> Tensor:
        """Return the tokens (B, T, D) that the first block receives.

        Args:
            backbone: The network of timm.
            x_BND: Patch embeddings without positions.
        """
        token_BTD = backbone._pos_embed(x_BND)
        # timm's Eva returns (tokens, rotary angles). `block_arguments` returns the angles instead
        if isinstance(token_BTD, tuple):
            token_BTD = token_BTD[0]
        return backbone.norm_pre(token_BTD)

    def embed_at(self, backbone: Any, x_BMD: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return the tokens that the first block receives for another grid of patches.

        Position embeddings are interpolated. The corner patches of the new grid get the embeddings
        of the corner patches of the old grid.

        Args:
            backbone: The network of timm.
            x_BMD: Patch embeddings without positions.
            grid: Rows and columns of the M patches.
        """
        no_patches_B0D = x_BMD[:, :0]
        prefix_BPD = with_prefix(backbone, no_patches_B0D)  # only the prefix tokens
        table_ND = self.table()
        if table_ND is None and getattr(backbone, "pos_embed", None) is not None:
            table_ND = backbone.pos_embed[0]
            if not backbone.no_embed_class:  # the table begins with rows for prefix tokens
                prefix = prefix_BPD.shape[1]
                if prefix:
                    prefix_BPD = prefix_BPD + table_ND[:prefix]
                table_ND = table_ND[prefix:]
        if table_ND is not None:
            x_BMD = x_BMD + _table_at(table_ND, grid)
        return backbone.norm_pre(backbone.pos_drop(torch.cat([prefix_BPD, x_BMD], 1)))

    def block_arguments(
        self,
        backbone: Any,
        visible_BV: Tensor | None = None,
        grid: tuple[int, int] | None = None,
    ) -> dict[str, Tensor]:
        """Return the keyword arguments of each block: the angles of rotary positions, if any.

        Args:
            backbone: The network of timm.
            visible_BV: Indices of the patches that the blocks see, int64. None: all patches.
            grid: Rows and columns of patches. None: the encoder's grid.
        """
        rope = getattr(backbone, "rope", None)
        if rope is None:
            return {}
        angle_Nd = rope.get_embed() if grid is None else rotary_angles(rope, grid)
        if visible_BV is None:
            return {"rope": angle_Nd}
        return {"rope": angle_Nd[visible_BV][:, None]}  # the new dimension broadcasts over heads

    def table(self) -> Tensor | None:
        """Return the embeddings that the encoder adds to patches, (N, D).

        None if the backbone adds embeddings or if no embeddings are added.
        """
        return None


class Added(Positions, ABC):
    """Positions that the encoder adds to patches, but not to prefix tokens.

    Exports hold these positions as a learned table.
    """

    def embed(self, backbone: Any, x_BND: Tensor) -> Tensor:
        token_BTD = with_prefix(backbone, x_BND + self.table())
        return backbone.norm_pre(backbone.pos_drop(token_BTD))

    @abstractmethod
    def table(self) -> Tensor: ...

    @abstractmethod
    def load_table(self, table_ND: Tensor, old_ND: Tensor) -> None:
        """Load the position embeddings of an export, after checking their kind.

        Args:
            table_ND: Embeddings, interpolated to the grid of the encoder.
            old_ND: Embeddings as in the export, on a square grid that may have another size. The
                check of fixed embeddings uses `old_ND`, because interpolation changes the values.

        Raises:
            ValueError: The embeddings are of another kind, for example learned for each patch.
        """


class Learned2d(Added):
    """Learned positions: half of the channels depend on the column, the other half on the row.

    These are the 2D positions of the paper (D.4).
    """

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
        # Read the parts for columns from the first row, and the parts for rows from the first
        # column. In a table of this kind, all other rows and columns have the same parts
        with torch.no_grad():
            self.column_Ch.copy_(table_RCD[0, :, :half])
            self.row_Rh.copy_(table_RCD[:, 0, half:])
        if not torch.allclose(self.table(), table_RCD.flatten(0, 1), atol=1e-5):
            raise ValueError(
                "the position embeddings cannot be split into a part for the column and a part for"
                " the row"
            )


class Sincos2d(Added):
    """Fixed sines and cosines of the column, then of the row, as in MAE's code (He et al., 2022).

    MoCo v3 (Chen et al., 2021) puts the row first.
    """

    table_ND: Tensor

    def __init__(self, kind: str, grid: tuple[int, int], width: int) -> None:
        super().__init__(kind)
        self.register_buffer("table_ND", self._build(grid, width), persistent=False)

    @staticmethod
    def _build(grid: tuple[int, int], width: int) -> Tensor:
        # timm puts the row first
        row_first_ND = build_sincos2d_pos_embed(list(grid), width, interleave_sin_cos=True)
        return row_first_ND.roll(width // 2, 1)

    def table(self) -> Tensor:
        return self.table_ND

    def load_table(self, table_ND: Tensor, old_ND: Tensor) -> None:
        side = round(len(old_ND) ** 0.5)
        expected_ND = self._build((side, side), old_ND.shape[1])
        if not torch.allclose(expected_ND.to(old_ND), old_ND, atol=1e-3):
            raise ValueError("the position embeddings are not sines and cosines")


def build_positions(kind: str, grid: tuple[int, int], width: int) -> Positions:
    """Build the positions for a value of model.positions."""
    if kind == "learned_2d":
        return Learned2d(kind, grid, width)
    if kind == "sincos_2d":
        return Sincos2d(kind, grid, width)
    return Positions(kind)
