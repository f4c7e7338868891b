"""What an encoder of `ssl_vit.load_encoder` takes as images, and which feature it gives of them."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

import ssl_vit
from ssl_vit.data.decoding import decode
from ssl_vit.models import encoder, weights
from ssl_vit.models.encoder import Encoder
from ssl_vit.recipe.schema import Data, Model

MODEL = Model(patch=8, width=32, depth=2, heads=2, mlp=64)
CROPPED = Data(size=16, eval_crop=0.5)
SIDES = [(16, 16), (40, 30), (20, 64)]


def exported(folder: Path, pool: str = "avg", data: Data = CROPPED) -> Encoder:
    """An encoder of random weights as `load_encoder` reads it back from an export."""
    torch.manual_seed(0)
    made = encoder.build_encoder(MODEL, data)
    weights.export(folder, made, {}, MODEL, data, pool)
    return ssl_vit.load_encoder(folder)


def arrays() -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, 256, (*side, 3), np.uint8) for side in SIDES]


@pytest.mark.parametrize("pool", ["avg", "token"])
@torch.no_grad()
def test_the_feature_without_a_pool_is_the_one_that_the_export_gives(
    tmp_path: Path, pool: str
) -> None:
    made = exported(tmp_path / "export", pool)
    other = {"avg": "token", "token": "avg"}[pool]
    image = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    assert torch.equal(made.feature(image), made.feature(image, pool))
    assert not torch.allclose(made.feature(image), made.feature(image, other))
    chosen = ssl_vit.load_encoder(tmp_path / "export", f"probe.pool={other}")
    assert torch.equal(chosen.feature(image), made.feature(image, other))


@pytest.mark.parametrize("mode", ["crop", "squash"])
@torch.no_grad()
def test_arrays_and_pil_images_are_cut_as_in_the_evaluation_and_as_timm_cuts_them(
    tmp_path: Path, mode: str
) -> None:
    """Those of the encoder's own size too."""
    data = CROPPED if mode == "crop" else Data(size=16, eval_mode="squash")
    made = exported(tmp_path / "export", data=data)
    theirs = timm.create_model(f"local-dir:{tmp_path}/export", pretrained=True).eval()
    transform = create_transform(**resolve_model_data_config(theirs), is_training=False)
    images = [Image.fromarray(one) for one in arrays()]
    wanted = theirs(torch.stack([transform(one) for one in images]))
    torch.testing.assert_close(made.feature(images), wanted, atol=0.02, rtol=0)  # Pillow rounds
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
    made = exported(tmp_path / "export")
    turned = Image.Exif()
    turned[0x0112] = 6
    grey = Image.fromarray(arrays()[1][..., 0])
    clear = Image.fromarray(arrays()[1]).convert("RGBA")
    for name, image in (("turned", clear.convert("RGB")), ("grey", grey), ("clear", clear)):
        image.save(tmp_path / f"{name}.png", **({"exif": turned} if name == "turned" else {}))
        pixels = decode((tmp_path / f"{name}.png").read_bytes()).permute(1, 2, 0).numpy()
        with Image.open(tmp_path / f"{name}.png") as opened:
            assert torch.equal(made.feature(opened), made.feature(pixels)), name


PIXELS = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("images", "error", "names"),
    [
        (PIXELS.float() / 255, TypeError, ["torch.float32", "uint8"]),
        (PIXELS.float(), TypeError, ["torch.float32", "uint8"]),
        (PIXELS.half(), TypeError, ["torch.float16", "uint8"]),
        (PIXELS.long(), TypeError, ["torch.int64", "uint8"]),
        (PIXELS.numpy() / 255, TypeError, ["float64", "uint8"]),
        ([PIXELS.numpy()[0].transpose(1, 2, 0) / 255], TypeError, ["float64", "uint8"]),
        (list(PIXELS), TypeError, ["Tensor", "tensor (B, 3, H, W)"]),
        ([str], TypeError, ["type", "PIL image"]),
        ("image.png", TypeError, ["str", "PIL image"]),
        (None, TypeError, ["NoneType", "PIL image"]),
        ([], ValueError, ["no images"]),
        (PIXELS[0], ValueError, ["(3, 16, 16)", "(B, 3, 16, 16)"]),
        (PIXELS[:, :1], ValueError, ["(2, 1, 16, 16)", "(B, 3, 16, 16)"]),
        (PIXELS[..., :8], ValueError, ["(2, 3, 16, 8)", "(B, 3, 16, 16)"]),
        (PIXELS.numpy()[0], ValueError, ["(3, 16, 16)", "(H, W, 3)"]),
        (PIXELS.numpy()[0, 0], ValueError, ["(16, 16)", "(H, W, 3)"]),
        (PIXELS.numpy()[:, :, :3, :3], ValueError, ["(2, 3, 3, 3)", "(B, H, W, 3)"]),
        (np.zeros((0, 4, 3), np.uint8), ValueError, ["(0, 4, 3)", "(H, W, 3)"]),
        (Image.new("F", (4, 4)), ValueError, ["32 bits"]),
    ],
)
def test_other_images_are_refused_in_one_line(
    tmp_path: Path, images: object, error: type, names: list[str]
) -> None:
    made = exported(tmp_path / "export")
    for given in (made.feature, made.tokens):
        with pytest.raises(error) as caught:
            given(images)
        assert "\n" not in str(caught.value)
        assert all(name in str(caught.value) for name in names), caught.value


@pytest.mark.parametrize("images", [PIXELS.float() / 255, PIXELS.numpy(), [PIXELS], None])
def test_what_takes_tensors_alone_refuses_others_in_one_line(
    tmp_path: Path, images: object
) -> None:
    made = exported(tmp_path / "export")
    for given in (made.patch, made.normalize):
        with pytest.raises(TypeError, match=r"expected a tensor of torch\.uint8"):
            given(images)


@torch.no_grad()
def test_a_convolutional_network_takes_and_refuses_the_same(tmp_path: Path) -> None:
    made = ssl_vit.load_encoder("scratch", "model=bit_r14x05 data.size=32")
    wanted = made.feature(torch.from_numpy(np.stack(arrays()[:1])).permute(0, 3, 1, 2))
    assert wanted.shape == (1, made.width)
    assert made.feature(arrays()).shape == (3, made.width)
    for images in (PIXELS.float() / 255, None):
        with pytest.raises(TypeError, match="uint8"):
            made.feature(images)
    with pytest.raises(ValueError, match=r"\(2, 1, 16, 16\)"):
        made.feature(PIXELS[:, :1])
