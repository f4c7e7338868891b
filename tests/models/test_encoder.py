"""An encoder's tokens and features: those of timm's blocks, of images that a caller gives as arrays
and PIL images, and of some patches alone."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

import ssl_vit
from helpers.encoders import MODEL, net, pixels
from ssl_vit.data.decoding import decode
from ssl_vit.models import encoder, weights
from ssl_vit.models.encoder import Encoder
from ssl_vit.recipe.model import POSITIONS
from ssl_vit.recipe.schema import Data, Model

ALL = {"registers": 2, "layer_scale": 0.1, "qk_norm": True, "activation": "swiglu"}
VISIBLE = torch.tensor([[9, 2, 15, 4], [0, 7, 8, 3], [11, 10, 1, 12]])
CROPPED = Data(size=16, eval_crop=0.5)
BANDS = Data(size=16, channels=4, range=[0, 4095], mean=[0.5] * 4, std=[0.2] * 4)


def with_all(kind: str) -> Encoder:
    return net(Model(**vars(MODEL) | ALL | {"positions": kind}))


@pytest.mark.parametrize("kind", POSITIONS)
@torch.no_grad()
def test_visible_patches_keep_their_positions(kind: str) -> None:
    """Against the blocks on all patches, whose attention is kept from the others."""
    made = with_all(kind)
    prefix = made.prefix
    seen_BT = torch.zeros(3, prefix + 16, dtype=torch.bool)
    seen_BT[:, :prefix] = True
    seen_BT.scatter_(1, VISIBLE + prefix, True)
    hidden_B11T = torch.zeros(3, 1, 1, prefix + 16).masked_fill(~seen_BT[:, None, None], -1e9)
    x_BND = made.patch(pixels())
    found_BTD = made(x_BND, VISIBLE)
    x_BTD = made.embed(x_BND)
    for block in made.backbone.blocks:
        x_BTD = block(x_BTD, attn_mask=hidden_B11T, **made.block_arguments())
    whole_BTD = made.backbone.norm(x_BTD)
    index_BVD = (VISIBLE + prefix)[..., None].expand(-1, -1, 32)
    wanted_BTD = torch.cat([whole_BTD[:, :prefix], whole_BTD.gather(1, index_BVD)], 1)
    torch.testing.assert_close(found_BTD, wanted_BTD, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", POSITIONS)
def test_wanted_patches_are_those_of_the_whole_pass(kind: str) -> None:
    """Also of visible patches alone, and their gradients."""
    made = with_all(kind)
    own = type(made.backbone.blocks[-1]).__module__.startswith("ssl_vit")
    assert own == (kind != "rotary")
    for visible, wanted_BK in (
        (None, torch.tensor([[3, 15, 0], [8, 7, 1], [2, 9, 4]])),
        (VISIBLE, torch.tensor([[3, 1], [0, 2], [1, 2]])),
    ):
        for fused in (False, True):
            for block in made.backbone.blocks:
                block.attn.fused_attn = fused
            x_BND = made.patch(pixels()).detach().requires_grad_()
            whole_BND = made(x_BND, visible)[:, made.prefix :]
            theirs = whole_BND.gather(1, wanted_BK[..., None].expand(-1, -1, 32))
            ours = made(x_BND, visible, wanted_BK)
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
            weight = torch.linspace(-1, 1, ours.numel()).view_as(ours)
            gradients = [torch.autograd.grad((h * weight).sum(), x_BND)[0] for h in (ours, theirs)]
            torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_timms(dtype: torch.dtype) -> None:
    """Outputs, and gradients of input and weights; by plain products in bfloat16 on a CPU."""
    ours = net(Model(**vars(MODEL) | {"qk_norm": True})).backbone.blocks[0].attn.to(dtype)
    norm = timm.layers.LayerNorm
    theirs = timm.layers.attention.Attention(32, 2, qkv_bias=True, qk_norm=True, norm_layer=norm)
    assert type(ours) is not type(theirs)
    theirs.to(dtype).load_state_dict(ours.state_dict())
    theirs.fused_attn = False
    x_BTD = torch.randn(3, 17, 32, dtype=dtype, requires_grad=True)
    found = []
    for attention in (ours, theirs):
        read_BTD = attention(x_BTD)
        gradients = torch.autograd.grad(read_BTD.square().sum(), [x_BTD, *attention.parameters()])
        found.append([read_BTD, *gradients])
    within = 1e-4 if dtype == torch.float32 else 0
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=within, rtol=within)


@pytest.mark.parametrize(("width", "mlp"), [(208, 120), (208, 480), (36, 26)])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_the_mlp_is_as_wide_as_it_says(width: int, mlp: int, activation: str) -> None:
    """mlp / width times width is less than mlp in floats."""
    sizes = Model(patch=8, width=width, depth=1, heads=2, mlp=mlp, activation=activation)
    with torch.device("meta"):
        made = encoder.build_encoder(sizes, Data(size=16))
    assert made.backbone.blocks[0].mlp.fc2.in_features == mlp


def exported(folder: Path, pool: str = "avg", data: Data = CROPPED) -> Encoder:
    """An encoder as `load_encoder` reads it back from an export."""
    weights.export(folder, net(data=data), {}, MODEL, data, pool)
    return ssl_vit.load_encoder(folder)


def arrays() -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, 256, (*side, 3), np.uint8) for side in ((16, 16), (40, 30), (20, 64))]


@pytest.mark.parametrize("pool", ["avg", "token"])
@torch.no_grad()
def test_the_feature_without_a_pool_is_the_one_that_the_export_gives(
    tmp_path: Path, pool: str
) -> None:
    made = exported(tmp_path / "export", pool)
    other = {"avg": "token", "token": "avg"}[pool]
    assert torch.equal(made.feature(pixels()), made.feature(pixels(), pool))
    assert not torch.allclose(made.feature(pixels()), made.feature(pixels(), other))
    chosen = ssl_vit.load_encoder(tmp_path / "export", f"probe.pool={other}")
    assert torch.equal(chosen.feature(pixels()), made.feature(pixels(), other))
    with pytest.raises(ValueError, match="pool=mean: expected token or avg"):
        made.feature(pixels(), "mean")


@pytest.mark.parametrize("data", [CROPPED, Data(size=16, eval_mode="squash")])
@torch.no_grad()
def test_arrays_and_pil_images_are_cut_as_in_the_evaluation_and_as_timm_cuts_them(
    tmp_path: Path, data: Data
) -> None:
    """Those of the encoder's own size too."""
    made = exported(tmp_path / "export", data=data)
    theirs = timm.create_model(f"local-dir:{tmp_path}/export", pretrained=True).eval()
    transform = create_transform(**resolve_model_data_config(theirs), is_training=False)
    images = [Image.fromarray(one) for one in arrays()]
    wanted = theirs(torch.stack([transform(one) for one in images]))
    torch.testing.assert_close(made.feature(images), wanted, atol=0.03, rtol=0)  # Pillow rounds
    for given in (arrays(), tuple(arrays()), [images[0], *arrays()[1:]]):
        assert torch.equal(made.feature(given), made.feature(images))
    for image, array in zip(images, arrays(), strict=True):
        alone = made.feature([image])
        for given in (image, array, array[None], array[None].transpose(0, 3, 1, 2)):
            assert torch.equal(made.feature(given), alone)
        assert torch.equal(made.feature(array[::-1]), made.feature(array[::-1].copy()))
        assert torch.equal(made.tokens([image]), made.tokens(array))


@torch.no_grad()
def test_a_pil_image_of_any_mode_has_the_feature_of_its_file(tmp_path: Path) -> None:
    made = net(data=CROPPED)
    turned = Image.Exif()
    turned[0x0112] = 6
    grey = Image.fromarray(arrays()[1][..., 0])
    clear = Image.fromarray(arrays()[1]).convert("RGBA")
    for name, image in (("turned", clear.convert("RGB")), ("grey", grey), ("clear", clear)):
        image.save(tmp_path / f"{name}.png", **({"exif": turned} if name == "turned" else {}))
        read = decode((tmp_path / f"{name}.png").read_bytes()).permute(1, 2, 0).numpy()
        with Image.open(tmp_path / f"{name}.png") as opened:
            assert torch.equal(made.feature(opened), made.feature(read)), name


@torch.no_grad()
def test_arrays_of_channels_are_resized_and_cropped() -> None:
    made = net(data=BANDS)
    array = np.random.default_rng(0).integers(0, 5000, (3, 4, 16, 16)).astype(np.uint16)
    lists = [one.transpose(1, 2, 0) for one in array]
    assert torch.equal(made.feature(array), made.feature(lists))
    assert torch.equal(made.feature(lists[0]), made.feature(lists[:1]))


RGB = pixels(2)
WRONG: list[tuple[Any, type, list[str]]] = [
    (RGB.float() / 255, TypeError, ["torch.float32", "uint8"]),
    (RGB.long(), TypeError, ["torch.int64", "uint8"]),
    (RGB.numpy() / 255, TypeError, ["float64", "uint8"]),
    ([RGB.numpy()[0].transpose(1, 2, 0) / 255], TypeError, ["float64", "uint8"]),
    (list(RGB), TypeError, ["Tensor", "tensor (B, 3, H, W)"]),
    ("image.png", TypeError, ["str", "PIL image"]),
    (None, TypeError, ["NoneType", "PIL image"]),
    ([], ValueError, ["no images"]),
    (RGB[0], ValueError, ["(3, 16, 16)", "(B, 3, 16, 16)"]),
    (RGB[:, :1], ValueError, ["(2, 1, 16, 16)", "(B, 3, 16, 16)"]),
    (RGB[..., :8], ValueError, ["(2, 3, 16, 8)", "(B, 3, 16, 16)"]),
    # of as many patches, whose places would be others
    (RGB.reshape(2, 3, 8, 32), ValueError, ["(2, 3, 8, 32)", "(B, 3, 16, 16)"]),
    (RGB.numpy()[0], ValueError, ["(3, 16, 16)", "(H, W, 3)"]),
    (RGB.numpy()[0, 0], ValueError, ["(16, 16)", "(H, W, 3)"]),
    (RGB.numpy()[:, :, :3, :3], ValueError, ["(2, 3, 3, 3)", "(B, H, W, 3)"]),
    (np.zeros((0, 4, 3), np.uint8), ValueError, ["(0, 4, 3)", "(H, W, 3)"]),
    (Image.new("F", (4, 4)), ValueError, ["32 bits"]),
]
WRONG_BANDS: list[tuple[Any, type, list[str]]] = [
    (np.zeros((1, 4, 16, 16), np.float32), ValueError, ["whole numbers"]),
    ("an image", TypeError, ["whole numbers"]),
    (torch.zeros(1, 4, 16, 16).byte(), TypeError, ["torch.uint8", "torch.int32 or torch.uint16"]),
    (torch.zeros(1, 3, 16, 16).int(), ValueError, ["(B, 4, 16, 16)"]),
]


@pytest.mark.parametrize(
    ("data", "images", "error", "names"),
    [*((Data(size=16), *row) for row in WRONG), *((BANDS, *row) for row in WRONG_BANDS)],
)
def test_other_images_are_refused_in_one_line(
    data: Data, images: Any, error: type, names: list[str]
) -> None:
    made = net(data=data)
    for given in (made.feature, made.tokens):
        with pytest.raises(error) as caught:
            given(images)
        assert "\n" not in str(caught.value)
        assert all(name in str(caught.value) for name in names), caught.value


@pytest.mark.parametrize("images", [RGB.float() / 255, RGB.numpy(), [RGB], None])
def test_what_takes_tensors_alone_refuses_others(images: Any) -> None:
    made = net()
    for given in (made.patch, made.normalize):
        with pytest.raises(TypeError, match=r"Pass torch\.uint8"):
            given(images)


@torch.no_grad()
def test_a_convolutional_network_takes_and_refuses_the_same() -> None:
    made = ssl_vit.load_encoder("scratch", "model=bit_r14x05 data.size=32")
    wanted = made.feature(torch.from_numpy(np.stack(arrays()[:1])).permute(0, 3, 1, 2))
    assert wanted.shape == (1, made.width)
    assert made.feature(arrays()).shape == (3, made.width)
    for images in (RGB.float() / 255, None):
        with pytest.raises(TypeError, match="uint8"):
            made.feature(images)
    with pytest.raises(ValueError, match=re.escape("(2, 1, 16, 16)")):
        made.feature(RGB[:, :1])
