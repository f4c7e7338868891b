"""Encoders of other images than RGB: exported, loaded by timm and transformers, and begun with the
weights of an RGB encoder."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from timm.models import adapt_input_conv

from ssl_vit.errors import UserError
from ssl_vit.jobs.api import load_encoder
from ssl_vit.models import encoder, interop, weights
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.load import resolve_encoder
from ssl_vit.recipe.schema import Data, Model

MODEL = Model(name="tiny", patch=4, width=32, depth=2, heads=2, mlp=64)
RANGE = (100, 4000)


def data(channels: int) -> Data:
    share = [0.1 + 0.1 * n for n in range(channels)]
    return Data(size=16, channels=channels, range=list(RANGE), mean=share, std=share[::-1])


def pixels(channels: int) -> torch.Tensor:
    """Some beyond the range."""
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 5000, (5, channels, 16, 16), generator=random, dtype=torch.int32)


def normalised(pixel: torch.Tensor, made: Data) -> torch.Tensor:
    lowest, highest = RANGE
    share = (pixel.double().clamp(lowest, highest) - lowest) / (highest - lowest)
    mean, std = (torch.tensor(v)[:, None, None] for v in (made.mean, made.std))
    return ((share - mean) / std).float()


def exported(folder: Path, channels: int, positions: str = "learned") -> encoder.Encoder:
    torch.manual_seed(0)
    model = Model(**(vars(MODEL) | {"positions": positions}))
    made = encoder.build_encoder(model, data(channels)).eval()
    weights.export(folder, made, {}, model, data(channels), "avg")
    return made


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_timm_and_transformers_give_the_encoders_features(
    tmp_path: Path, channels: int, positions: str
) -> None:
    from transformers import AutoModel

    folder = tmp_path / "export"
    made = exported(folder, channels, positions)
    image = pixels(channels)
    inputs = normalised(image, data(channels))
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        wanted = made.feature(image, "avg")
        torch.testing.assert_close(loaded(inputs), wanted, atol=1e-5, rtol=0)
        auto = AutoModel.from_pretrained(folder).eval()
        torch.testing.assert_close(auto(inputs).pooler_output, wanted, atol=1e-5, rtol=0)
        again = load_encoder(folder)
        assert torch.equal(again.feature(image), wanted)
        array = image.numpy().astype(np.uint16)
        assert torch.equal(again.feature(torch.from_numpy(array)), wanted)
    config = timm.data.resolve_model_data_config(loaded)
    assert list(config["input_size"]) == [channels, 16, 16]
    assert list(config["mean"]) == data(channels).mean


def test_transformers_own_vit_gives_them_too_and_comes_back(tmp_path: Path) -> None:
    from transformers import AutoModel

    made = exported(tmp_path / "export", 4)
    interop.to_transformers(tmp_path / "export", tmp_path / "vit")
    assert not (tmp_path / "vit" / "preprocessor_config.json").exists()
    image = pixels(4)
    native = AutoModel.from_pretrained(tmp_path / "vit").eval()
    with torch.no_grad():
        wanted = made(made.patch(image))
        found = native(pixel_values=normalised(image, data(4))).last_hidden_state
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    back = resolve_encoder(str(tmp_path / "vit"), {"data.size": "16"}).data
    wanted = data(4)
    assert (back.channels, back.range, back.mean) == (4, list(RANGE), wanted.mean)
    assert back.std == wanted.std


def test_arrays_of_a_caller_are_resized_and_cropped() -> None:
    made = encoder.build_encoder(MODEL, data(4)).eval()
    array = pixels(4).numpy().astype(np.uint16)
    lists = [one.transpose(1, 2, 0) for one in array]
    with torch.no_grad():
        assert torch.equal(made.feature(array), made.feature(lists))
        assert torch.equal(made.feature(lists[0]), made.feature(lists[:1]))
    for wrong, kind in ((array.astype(np.float32), ValueError), ("an image", TypeError)):
        with pytest.raises(kind, match="whole numbers"):
            made.feature(wrong)
    with pytest.raises(TypeError, match=r"torch\.uint8; expected torch\.int32 or torch\.uint16"):
        made.feature(torch.zeros(1, 4, 16, 16, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"expected \(B, 4, 16, 16\)"):
        made.feature(torch.zeros(1, 3, 16, 16, dtype=torch.int32))


@pytest.fixture
def rgb(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    made = encoder.build_encoder(MODEL, Data(size=16)).eval()
    weights.export(tmp_path / "rgb", made, {}, MODEL, Data(size=16), "avg")
    return tmp_path / "rgb"


@pytest.mark.parametrize("channels", [1, 4, 7])
def test_rgb_weights_are_adapted_by_timms_rule(rgb: Path, channels: int) -> None:
    model = Model(**(vars(MODEL) | {"adapt_channels": True}))
    made = encoder.build_encoder(model, data(channels))
    weights.load_weights(made, InitSource(str(rgb)))
    first = timm.create_model(f"local-dir:{rgb}", pretrained=True).patch_embed.proj.weight
    found = made.backbone.patch_embed.proj.weight
    assert torch.equal(found, adapt_input_conv(channels, first.detach()))
    if channels == 4:
        assert torch.equal(found[:, 3], found[:, 0])
        torch.testing.assert_close(found[:, 0], first[:, 0] * 3 / 4)


def test_without_the_rule_rgb_weights_are_refused(rgb: Path, tmp_path: Path) -> None:
    text = "data.channels=4: init=.* was made with 3; model.adapt_channels=true"
    with pytest.raises(UserError, match=text):
        weights.load_weights(encoder.build_encoder(MODEL, data(4)), InitSource(str(rgb)))
    exported(tmp_path / "four", 4)
    model = Model(**(vars(MODEL) | {"adapt_channels": True}))
    with pytest.raises(UserError, match=r"data\.channels=7: .* was made with 4$"):
        four = InitSource(str(tmp_path / "four"))
        weights.load_weights(encoder.build_encoder(model, data(7)), four)
