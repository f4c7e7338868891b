"""Read and write positions in files of weights.

Positions are exported as a table, and fitted to another grid or another kind of positions.

Legend: N patches, P prefix tokens, T = P + N tokens, D width.
"""

from collections.abc import Mapping
from typing import Any

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor

from .encoder import Backbone, Encoder
from .positions import Added, resize_positions

POSITIONS = "pos_embed"  # end of the names of tensors whose shape depends on the grid


def exported_state(encoder: Backbone) -> dict[str, Tensor]:
    """Return the backbone's state with all positions in timm's format, {name: tensor}.

    Positions that the encoder adds to patches become a learned table, with zeros for prefix tokens.

    Args:
        encoder: The encoder to export.
    """
    state: dict[str, Tensor] = encoder.backbone.state_dict()
    if isinstance(encoder, Encoder) and isinstance(encoder.positions, Added):
        table_ND = encoder.positions.table().detach()
        zero_PD = table_ND.new_zeros(encoder.prefix, table_ND.shape[1])
        state[POSITIONS] = torch.cat([zero_PD, table_ND])[None]
    return state


def find_position_kind(state: Mapping[str, Tensor], without_tensors: str | None) -> str | None:
    """Return the value of model.positions with which an encoder can load weights.

    Weights with a position table need "learned", unless the network also has rotary positions.

    Args:
        state: The weights, {name: tensor}.
        without_tensors: The value for weights without a position table. "rotary" for a network with
            rotary positions, with or without a table. None if the value is unknown.
    """
    if without_tensors != "rotary" and any(name.endswith(POSITIONS) for name in state):
        return "learned"
    return without_tensors


def fit_positions(
    state: Mapping[str, Tensor], encoder: Encoder, timms_rule: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """Return weights whose position table is interpolated to the encoder's grid.

    Positions that the encoder adds itself are also loaded into the encoder. If the table has
    positions for prefix tokens and the encoder does not, these positions are added to the tokens
    themselves, which gives the same features.

    Args:
        state: The weights, {name: tensor}.
        encoder: The encoder that the weights are for.
        timms_rule: Arguments of timm's `resample_abs_pos_embed`, to interpolate as timm does. None:
            interpolate as in the paper's code.

    Raises:
        ValueError: The positions cannot be fitted.
    """
    state = dict(state)
    if POSITIONS not in state:
        return state
    has_prefix = not (isinstance(encoder.positions, Added) or encoder.backbone.no_embed_class)
    new_prefix = encoder.prefix if has_prefix else 0
    old_prefix = _prefix_positions(state[POSITIONS].shape[1], encoder)
    old_1ND = state[POSITIONS][:, old_prefix:]
    if timms_rule is not None and _is_square(old_1ND.shape[1]):
        grid = list(encoder.grid)
        table_1TD = resample_abs_pos_embed(
            state[POSITIONS], grid, num_prefix_tokens=old_prefix, **timms_rule
        )
    else:
        table_1TD = resize_positions(state[POSITIONS], encoder.grid, old_prefix)
    prefix_1PD = table_1TD[:, :old_prefix]
    patch_1ND = table_1TD[:, old_prefix:]
    if old_prefix < new_prefix:  # only the encoder has positions for prefix tokens
        prefix_1PD = patch_1ND.new_zeros(1, new_prefix, patch_1ND.shape[-1])
    if old_prefix > new_prefix:  # only the table has positions for prefix tokens
        state["cls_token"] = state["cls_token"] + prefix_1PD[:, :1]
        if "reg_token" in state:
            state["reg_token"] = state["reg_token"] + prefix_1PD[:, 1:]
        prefix_1PD = prefix_1PD[:, :0]
    state[POSITIONS] = torch.cat([prefix_1PD, patch_1ND], 1)
    if isinstance(encoder.positions, Added):
        try:
            encoder.positions.load_table(patch_1ND[0], old_1ND[0])
        except ValueError as error:
            raise ValueError(f"{error}. Use model.positions=learned.") from None
    return state


def _prefix_positions(rows: int, encoder: Encoder) -> int:
    """Return the number of rows of a position table that belong to prefix tokens.

    Either all prefix tokens or no prefix token has a row. The remaining rows are those of patches,
    so their number is that of the encoder's grid or of another square grid.

    Args:
        rows: Number of rows of the table.
        encoder: The encoder that the table is for.
    """
    for prefix in (encoder.prefix, 0):
        if rows - prefix == encoder.patches:
            return prefix
    # another grid: the number of the encoder's own table is the most probable
    expected = 0 if encoder.backbone.no_embed_class else encoder.prefix
    for prefix in (expected, 0, encoder.prefix):
        if _is_square(rows - prefix):
            return prefix
    return expected


def _is_square(number: int) -> bool:
    return number > 0 and round(number**0.5) ** 2 == number
