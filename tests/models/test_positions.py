"""Position embeddings against other implementations, on crops, and brought to another grid."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.ndimage import zoom
from torch.nn import functional as F

from helpers.encoders import DATA, MODEL, load, net, pixels
from ssl_vit.inspection import embeddings
from ssl_vit.models import encoder, weights
from ssl_vit.models.architectures import init_registers
from ssl_vit.models.encoder import Encoder
from ssl_vit.models.position_weights import exported_state, resize_positions
from ssl_vit.objectives.supervised.network import Supervised
from ssl_vit.recipe.model import POSITIONS
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.training import optim

GRID, SIDE = 4, 4


def made(kind: str, size: int = GRID * SIDE, seed: int = 0, **options) -> Encoder:
    return net(Model(**vars(MODEL) | {"positions": kind} | options), Data(size=size), seed)


def test_sines_and_cosines_are_those_of_maes_code() -> None:
    """util/pos_embed.py of He et al.: half for the column, half for the row, sines first."""
    table_ND = made("sincos_2d").positions.table()
    omega = 1 / 10000 ** (np.arange(8) / 8)
    for n in range(GRID**2):
        angles = [n % GRID * omega, n // GRID * omega]
        wanted = np.concatenate([f(angle) for angle in angles for f in (np.sin, np.cos)])
        np.testing.assert_allclose(table_ND[n].numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize("grid", [(8, 8), (3, 3), (6, 10), (4, 4)])
def test_positions_are_zoomed_as_the_authors_zoom_them(grid: tuple[int, int]) -> None:
    """Bilinear with aligned corners is scipy's zoom of order 1 (paper.md, Fine-tuning); the class
    token's stays."""
    old = torch.randn(1, 1 + 16, 5, generator=torch.Generator().manual_seed(0))
    new = resize_positions(old, grid, prefix=1)
    assert new.shape == (1, 1 + grid[0] * grid[1], 5) and torch.equal(new[:, 0], old[:, 0])
    square, shape = old[0, 1:].reshape(4, 4, 5).numpy(), (grid[0] / 4, grid[1] / 4, 1)
    wanted = zoom(square, shape, order=1, grid_mode=False)
    np.testing.assert_allclose(new[0, 1:].reshape(*grid, 5).numpy(), wanted, atol=3e-6)


@pytest.mark.parametrize("kind", POSITIONS)
def test_initial_weights_fit_another_image_size(tmp_path: Path, kind: str) -> None:
    """All others stay."""
    small, large = made(kind), made(kind, size=32, seed=1)
    weights.export(tmp_path / "export", small, {}, Model(**vars(MODEL) | {"positions": kind}), DATA, "avg")  # fmt: skip
    load(large, tmp_path / "export")
    ours, theirs = exported_state(large), exported_state(small)
    changed = {name for name, value in theirs.items() if not torch.equal(ours[name], value)}
    assert large.grid == (8, 8) and changed == {"pos_embed"} & theirs.keys()
    if kind == "sincos_2d":  # the formula's, not interpolated
        assert torch.equal(ours["pos_embed"][0, 1 + 8 + 1], theirs["pos_embed"][0, 1 + 4 + 1])
    elif changed:
        wanted = resize_positions(theirs["pos_embed"], (8, 8), 1)
        torch.testing.assert_close(ours["pos_embed"], wanted)


def images(count: int, rows: int, columns: int) -> torch.Tensor:
    return pixels(count, GRID * SIDE)[:, :, : rows * SIDE, : columns * SIDE]


@pytest.mark.parametrize("kind", ["learned", "learned_2d", "sincos_2d"])
def test_positions_of_a_crop_are_interpolated_with_their_corners_kept(kind: str) -> None:
    """As torch interpolates the whole table bilinearly; prefix tokens keep theirs. Gradients reach
    the table."""
    one = made(kind, registers=1)
    seen: list[torch.Tensor] = []
    one.backbone.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    given = images(1, 2, 3)
    one.crop_tokens(given).sum().backward()
    one.tokens(images(1, GRID, GRID))
    table = one.positions.table()
    if table is None:
        assert (one.backbone.pos_embed.grad[0, [-16, -14, -1]].abs().sum(-1) > 0).all()
        table = one.backbone.pos_embed[0, -GRID * GRID :]
    square = table.T.reshape(1, -1, GRID, GRID)
    wanted = F.interpolate(square, (2, 3), mode="bilinear", align_corners=True)[0].flatten(1).T
    plain = one.patch_pixels(encoder.cut_patches(given, SIDE))[0]
    torch.testing.assert_close(seen[0][0, one.prefix :], plain + wanted)
    torch.testing.assert_close(wanted[[0, -1]], table[[0, -1]])
    torch.testing.assert_close(seen[0][0, : one.prefix], seen[1][0, : one.prefix])


@pytest.mark.parametrize("kind", ["rotary", "none"])
@torch.no_grad()
def test_distances_within_a_crop_stay_as_they_are(kind: str) -> None:
    """A crop has the features of an image of which its corner alone is visible."""
    one, given = made(kind, registers=1), images(2, GRID, GRID)
    visible = torch.tensor([0, 1, 2, GRID, GRID + 1, GRID + 2]).expand(2, -1)
    wanted = one(one.patch(given), visible)
    found = one.crop_tokens(given[:, :, : 2 * SIDE, : 3 * SIDE])
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(GRID + 1, GRID), (GRID, GRID + 1)])
def test_a_crop_of_more_patches_or_parts_of_some_is_refused(shape: tuple[int, int]) -> None:
    one = made("learned")
    rows, columns = (side * SIDE for side in shape)
    with pytest.raises(ValueError, match="at most 16 pixels"):
        one.crop_tokens(torch.zeros(1, 3, rows, columns, dtype=torch.uint8))
    with pytest.raises(ValueError, match="multiples of 4"):
        one.crop_tokens(images(1, 3, 3)[:, :, 1:])


@pytest.mark.parametrize("kind", ["learned_2d", "rotary"])
def test_tokens_positions_and_scales_do_not_decay(kind: str) -> None:
    """And with a decay of rates by layer, positions learn as the other embeddings."""
    one = made(kind, registers=2, layer_scale=0.1, qk_norm=True, activation="swiglu")
    objective = Supervised(one, 5, loss="softmax", smoothing=0, hidden=False, pool="avg")
    groups = optim.parameter_groups(objective, 0.1, lr=1.0, layer_decay=0.5)
    names = {id(p): name for name, p in objective.named_parameters()}
    found = {names[id(p)]: group for group in groups for p in group["params"]}
    ends = ("qkv.weight", "attn.proj.weight", "fc1.weight", "fc2.weight", "head.weight")
    decayed = {name for name, group in found.items() if group["weight_decay"]}
    assert decayed == {name for name in found if name.endswith((*ends, "patch_embed.proj.weight"))}
    tables = ("positions.", "cls_token", "reg_token")
    embeddings_of = [name for name in found if any(part in name for part in tables)]
    assert len(embeddings_of) == (4 if kind == "learned_2d" else 2)
    assert {found[name]["lr"] for name in embeddings_of} == {0.5**3}


def test_a_seed_gives_the_same_embeddings_with_every_torch() -> None:
    """torch 2.11 and 2.14 draw trunc_normal_ in different ways: 2.11 alone fails with it."""
    learned_2d = type(made("learned_2d").positions)
    torch.manual_seed(0)
    wanted = [torch.normal(0.0, 0.02, shape) for shape in ((5, 16), (3, 16), (1, 4, 32))]
    torch.manual_seed(0)
    table = learned_2d("learned_2d", grid=(3, 5), width=32)
    backbone = SimpleNamespace(reg_token=torch.empty(1, 4, 32))
    init_registers(backbone)
    found = [table.column_Ch, table.row_Rh, backbone.reg_token]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_similarity_is_that_of_what_is_added() -> None:
    one = made("learned_2d")
    found = embeddings.position_similarity(one)
    table_ND = F.normalize(one.positions.table().double(), dim=1)
    torch.testing.assert_close(found, table_ND @ table_ND.T)
