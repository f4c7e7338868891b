"""Read and write positions in files of weights.

Positions are exported as a table, and fitted to another grid or another kind of positions.

Legend: N patches, R prefix tokens (class token and registers), T = R + N tokens, D width.
"""

from collections.abc import Mapping
from typing import Any

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor

from .encoder import Backbone, Encoder
from .positions import Added, resize_positions
from .trained_part import merged_state

POSITIONS = "pos_embed"  # end of the names of tensors whose shape depends on the grid


def exported_state(encoder: Backbone) -> dict[str, Tensor]:
    """Return the backbone's state with all positions in timm's format, {name: tensor}.

    Positions that the encoder itself adds to patches (learned_2d, sincos_2d) become a learned table
    (1, T, D), with zeros for the prefix tokens. Low-rank updates (`model.train=lora:RANK`) are
    added to the weights.

    Args:
        encoder: The encoder to export.
    """
    state = merged_state(encoder.backbone)
    if isinstance(encoder, Encoder) and isinstance(encoder.positions, Added):
        table_ND = encoder.positions.table().detach()
        zero_RD = table_ND.new_zeros(encoder.prefix, table_ND.shape[1])
        state[POSITIONS] = torch.cat([zero_RD, table_ND])[None]
    return state


def find_position_kind(state: Mapping[str, Tensor], stated_kind: str | None) -> str | None:
    """Return the value of model.positions that weights need, or None if it is unknown.

    - "rotary", if the weights' files say so. The weights may also have a learned position table.
    - "learned", if the weights have a position table and their files do not say "rotary".
    - Otherwise `stated_kind`, which is "none" or None.

    Args:
        state: The weights, {name: tensor}.
        stated_kind: What the files say about the network: "rotary" or "none". None if they say
            nothing.
    """
    has_table = any(name.endswith(POSITIONS) for name in state)
    if has_table and stated_kind != "rotary":
        return "learned"
    return stated_kind


def fit_positions(
    state: Mapping[str, Tensor],
    encoder: Encoder,
    timm_interpolation: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """Return weights whose position table is interpolated to the encoder's grid.

    If the encoder adds positions itself (learned_2d, sincos_2d), the table is also loaded into the
    encoder.

    The table may have positions for prefix tokens although the encoder has none for them. Then
    these positions are added to the class token and the registers. The features stay the same.

    Args:
        state: The weights, {name: tensor}.
        encoder: The encoder that the weights are for.
        timm_interpolation: Arguments of timm's `resample_abs_pos_embed`, to interpolate as timm
            does. None: interpolate as in the paper's code.

    Raises:
        ValueError: The positions cannot be fitted.
    """
    state = dict(state)
    if POSITIONS not in state:
        return state
    has_prefix = not (isinstance(encoder.positions, Added) or encoder.backbone.no_embed_class)
    new_prefix = encoder.prefix if has_prefix else 0
    old_prefix = _count_prefix_positions(state[POSITIONS].shape[1], encoder)
    old_1ND = state[POSITIONS][:, old_prefix:]
    # `resize_positions` raises an error for positions that do not form a square grid
    if timm_interpolation is not None and _is_square(old_1ND.shape[1]):
        grid = list(encoder.grid)
        table_1TD = resample_abs_pos_embed(
            state[POSITIONS], grid, num_prefix_tokens=old_prefix, **timm_interpolation
        )
    else:
        table_1TD = resize_positions(state[POSITIONS], encoder.grid, old_prefix)
    prefix_1RD = table_1TD[:, :old_prefix]
    patch_1ND = table_1TD[:, old_prefix:]
    if old_prefix < new_prefix:  # only the encoder has positions for prefix tokens
        prefix_1RD = patch_1ND.new_zeros(1, new_prefix, patch_1ND.shape[-1])
    if old_prefix > new_prefix:  # only the table has positions for prefix tokens
        state["cls_token"] = state["cls_token"] + prefix_1RD[:, :1]
        if "reg_token" in state:
            state["reg_token"] = state["reg_token"] + prefix_1RD[:, 1:]
        prefix_1RD = prefix_1RD[:, :0]
    state[POSITIONS] = torch.cat([prefix_1RD, patch_1ND], 1)
    if isinstance(encoder.positions, Added):
        try:
            encoder.positions.load_table(patch_1ND[0], old_1ND[0])
        except ValueError as error:
            raise ValueError(f"{error}. Use model.positions=learned.") from None
    return state


def _count_prefix_positions(rows: int, encoder: Encoder) -> int:
    """Guess how many rows of a position table belong to prefix tokens.

    Prefix tokens are the class token and the registers. Either all of them have a row, or none. All
    other rows belong to patches. So the result is the number of the encoder's prefix tokens, or 0.
    The following numbers are tried in this order.

    Accepted if the number of remaining rows is the number of the encoder's patches:
    1. the number of prefix tokens
    2. 0

    Accepted if the number of remaining rows is a square number, as for another image size:
    3. the number in the encoder's own table (the number of prefix tokens, or 0)
    4. 0
    5. the number of prefix tokens

    If all are rejected, the result is the number in the encoder's own table. For example, an
    encoder with 1 prefix token and 4 x 4 patches gets 1 for a table of 17 rows (rule 1) and of 50
    rows (rule 3 or 5), and 0 for a table of 16 rows (rule 2).

    Args:
        rows: Number of rows of the table.
        encoder: The encoder that the table is for.
    """
    for prefix in (encoder.prefix, 0):
        if rows - prefix == encoder.patches:
            return prefix
    prefix_in_own_table = 0 if encoder.backbone.no_embed_class else encoder.prefix
    for prefix in (prefix_in_own_table, 0, encoder.prefix):
        if _is_square(rows - prefix):
            return prefix
    return prefix_in_own_table


def _is_square(number: int) -> bool:
    return number > 0 and round(number**0.5) ** 2 == number
