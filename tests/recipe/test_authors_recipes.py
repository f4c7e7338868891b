"""The recipes of other papers: how they mask, and that they train in small. Their values, whose
sources stand in the recipes, are frozen (tests/freeze)."""

import math
from pathlib import Path

import pytest

from helpers.runs import run
from ssl_vit.recipe.split_counts import selected_count


def test_as_many_patches_are_masked_as_in_maes_code_on_every_square_grid_at_75_percent() -> None:
    """Theirs keeps int(N * (1 - rate)) of N patches."""
    for side in range(2, 65):
        patches = side * side
        assert selected_count(0.75, patches) == patches - int(patches * (1 - 0.75))
    assert selected_count(0.9, 196) == 176 and 196 - int(196 * (1 - 0.9)) == 177


def test_simmims_code_masks_two_patches_more_at_224_px() -> None:
    """Theirs masks ceil(0.6 * 49) whole squares of four patches."""
    assert (4 * math.ceil(0.6 * 49), selected_count(0.6, 196)) == (120, 118)


SMALL = [
    *("data=shapes", "data.size=32", "model.width=32", "model.depth=2", "model.heads=2"),
    *("model.mlp=64", "model.patch=8", "optim.batch=8", "optim.steps=2", "optim.warmup=0"),
    *("eval.every=2", "eval.images=8", "checkpoint.every=2", "log.every=1"),
    *("compute.precision=float32", "compute.compile=false"),
]
HEADS = {
    "dinov2_l14": [
        *("ibot.prototypes=16", "ibot.hidden=16", "ibot.width=8", "ibot.koleo_group=4"),
        "views.local_size=16",
    ],
    "finetune_modern": ["init=scratch", "eval.test=false"],
}


@pytest.mark.parametrize("name", HEADS)
def test_a_recipe_trains_in_small(name: str, tmp_path: Path) -> None:
    """Those with what no golden curve has: KoLeo beside a Sinkhorn teacher, mixed images."""
    words = [f"recipe={name}", *SMALL, *HEADS[name], f"out={tmp_path}"]
    losses = [row["loss"] for row in run(words).rows() if "loss" in row]
    assert losses and all(math.isfinite(loss) for loss in losses)
