"""Images of fewer patches than the encoder's: what is added to each patch is interpolated, and what
depends on the distance of two patches stays as it is."""

import pytest
import torch
from torch.nn import functional as F

from ssl_vit.models import encoder
from ssl_vit.models.encoder import Encoder
from ssl_vit.recipe.schema import Data, Model

GRID, SIDE = 4, 4
KINDS = ("learned", "learned_2d", "sincos_2d", "rotary", "none")


def made(kind: str) -> Encoder:
    torch.manual_seed(0)
    model = Model(patch=SIDE, width=32, depth=2, heads=4, mlp=64, positions=kind, registers=1)
    net = encoder.build_encoder(model, Data(size=GRID * SIDE)).eval()
    for p in net.parameters():
        p.data += 0.05 * torch.randn_like(p)
    return net


def images(count: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (count, 3, rows * SIDE, columns * SIDE)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("kind", KINDS)
def test_a_crop_of_the_whole_size_has_the_tokens_of_an_image(kind: str) -> None:
    net, given = made(kind), images(2, GRID, GRID)
    assert torch.equal(net.crop_tokens(given), net.tokens(given))


@pytest.mark.parametrize("kind", ["learned", "learned_2d", "sincos_2d"])
def test_added_positions_are_interpolated_with_their_corners_kept(kind: str) -> None:
    """As torch interpolates the whole table bilinearly; prefix tokens keep theirs."""
    net = made(kind)
    seen: list[torch.Tensor] = []
    net.backbone.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    given = images(1, 2, 3)
    net.crop_tokens(given)
    net.tokens(images(1, GRID, GRID))
    table = net.positions.table()
    if table is None:
        table = net.backbone.pos_embed[0, -GRID * GRID :]
    square = table.T.reshape(1, -1, GRID, GRID)
    wanted = F.interpolate(square, (2, 3), mode="bilinear", align_corners=True)[0].flatten(1).T
    plain = net.patch_pixels(encoder.cut_patches(given, SIDE))[0]
    torch.testing.assert_close(seen[0][0, net.prefix :], plain + wanted)
    torch.testing.assert_close(wanted[0], table[0])
    torch.testing.assert_close(wanted[-1], table[-1])
    torch.testing.assert_close(seen[0][0, : net.prefix], seen[1][0, : net.prefix])


@pytest.mark.parametrize("kind", ["rotary", "none"])
def test_distances_stay_as_they_are(kind: str) -> None:
    """A crop has the features of an image of which its corner alone is visible."""
    net, given = made(kind), images(2, GRID, GRID)
    visible = torch.tensor([0, 1, 2, GRID, GRID + 1, GRID + 2]).expand(2, -1)
    wanted = net(net.patch(given), visible)
    found = net.crop_tokens(given[:, :, : 2 * SIDE, : 3 * SIDE])
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-5)


def test_gradients_reach_the_table() -> None:
    net = made("learned")
    net.crop_tokens(images(2, 2, 2)).sum().backward()
    assert (net.backbone.pos_embed.grad[0, [2, 5, -1]].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("shape", [(GRID + 1, GRID), (GRID, GRID + 1)])
def test_more_patches_or_parts_of_some_are_refused(shape: tuple[int, int]) -> None:
    net = made("learned")
    with pytest.raises(ValueError, match="expected at most 16 x 16"):
        net.crop_tokens(images(1, *shape))
    with pytest.raises(ValueError, match="multiples of 4"):
        net.crop_tokens(images(1, 3, 3)[:, :, 1:])
