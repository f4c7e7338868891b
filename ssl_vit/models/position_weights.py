"""Positions in files of weights: as an export holds them, and fitted to another grid or another way
of holding them.

Legend: N patches, P prefix tokens, T = P + N tokens, D width.
"""

from collections.abc import Mapping
from typing import Any

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor

from .encoder import Backbone, Encoder
from .positions import Added, resize_positions

POSITIONS = "pos_embed"  # the end of a name whose shape follows the grid


def exported_state(encoder: Backbone) -> dict[str, Tensor]:
    """The backbone's tensors as timm reads them: positions that the encoder adds to the patches are
    a learned table, which is zero for prefix tokens."""
    state: dict[str, Tensor] = encoder.backbone.state_dict()
    if isinstance(encoder, Encoder) and isinstance(encoder.positions, Added):
        table_ND = encoder.positions.table().detach()
        zero_PD = table_ND.new_zeros(encoder.prefix, table_ND.shape[1])
        state[POSITIONS] = torch.cat([zero_PD, table_ND])[None]
    return state


def kind_there(state: Mapping[str, Tensor], without_tensors: str | None) -> str | None:
    """The value of model.positions that belongs to weights; `without_tensors` where no name shows
    one. A table is "learned", however it was made, unless it stands beside rotary ones."""
    if without_tensors != "rotary" and any(name.endswith(POSITIONS) for name in state):
        return "learned"
    return without_tensors


def fit_positions(
    state: Mapping[str, Tensor], encoder: Encoder, timms_rule: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """Weights of an export whose positions have the encoder's grid. Positions that the encoder adds
    itself are loaded into it. What a table holds for prefix tokens that have no position here is
    added to the tokens themselves, which gives the same features.

    Args:
        state: the weights.
        encoder: whose grid it is.
        timms_rule: a table is interpolated as timm does it with these arguments; None: as the
            paper's code.

    Raises:
        ValueError: they cannot be fitted.
    """
    state = dict(state)
    if POSITIONS not in state:
        return state
    added = isinstance(encoder.positions, Added)
    tables_prefix = 0 if added or encoder.backbone.no_embed_class else encoder.prefix
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
    if old_prefix < tables_prefix:
        prefix_1PD = patch_1ND.new_zeros(1, tables_prefix, patch_1ND.shape[-1])
    if old_prefix > tables_prefix:
        state["cls_token"] = state["cls_token"] + prefix_1PD[:, :1]
        if "reg_token" in state:
            state["reg_token"] = state["reg_token"] + prefix_1PD[:, 1:]
        prefix_1PD = prefix_1PD[:, :0]
    state[POSITIONS] = torch.cat([prefix_1PD, patch_1ND], 1)
    if isinstance(encoder.positions, Added):
        try:
            encoder.positions.load_table(patch_1ND[0], old_1ND[0])
        except ValueError as error:
            raise ValueError(f"{error}; expected model.positions=learned") from None
    return state


def _prefix_positions(rows: int, encoder: Encoder) -> int:
    """How many of a table's rows belong to prefix tokens: to all or to none."""
    for prefix in (encoder.prefix, 0):
        if rows - prefix == encoder.patches:
            return prefix
    own = 0 if encoder.backbone.no_embed_class else encoder.prefix
    others = (own, 0, encoder.prefix)
    return next((prefix for prefix in others if _is_square(rows - prefix)), own)


def _is_square(number: int) -> bool:
    return number > 0 and round(number**0.5) ** 2 == number
