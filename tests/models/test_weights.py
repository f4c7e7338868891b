"""What is exported is what timm and transformers read, with no code of this project."""

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file

from ssl_vit.errors import UserError
from ssl_vit.models import encoder, interop, weights
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.schema import Data, Model

MODEL = Model(name="tiny", patch=4, width=32, depth=2, heads=2, mlp=80)


@pytest.fixture(params=["avg", "token"])
def pool(request: pytest.FixtureRequest) -> str:
    return request.param


def exported(folder: Path, pool: str, data: Data) -> encoder.Encoder:
    torch.manual_seed(0)
    made = encoder.build_encoder(MODEL, data).eval()
    torch.nn.init.normal_(made.backbone.norm.weight)  # so that a norm in the wrong place shows
    weights.export(folder, made, {"mask_token": torch.ones(32)}, MODEL, data, pool)
    return made


def own_feature(made: encoder.Encoder, pixels: torch.Tensor, pool: str) -> torch.Tensor:
    h_BTD = made(made.patch(pixels))
    return h_BTD[:, 0] if pool == "token" else h_BTD[:, made.prefix :].mean(1)


@pytest.mark.parametrize("mean", [0.5, 0.4])
def test_timm_gives_the_encoders_own_features(tmp_path: Path, pool: str, mean: float) -> None:
    made = exported(tmp_path / "export", pool, Data(size=16, mean=[mean] * 3, std=[0.25] * 3))
    loaded = timm.create_model(f"local-dir:{tmp_path}/export", pretrained=True).eval()
    config = timm.data.resolve_model_data_config(loaded)
    assert list(config["input_size"]) == [3, 16, 16] and list(config["mean"]) == [mean] * 3
    pixels = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    normal = (pixels / 255 - mean) / 0.25
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(normal), own_feature(made, pixels, pool), atol=1e-5, rtol=0
        )
        torch.testing.assert_close(
            loaded.forward_features(normal), made(made.patch(pixels)), atol=1e-5, rtol=0
        )


def test_transformers_gives_the_encoders_own_features(tmp_path: Path, pool: str) -> None:
    from transformers import AutoModel

    made = exported(tmp_path / "export", pool, Data(size=16))
    loaded = AutoModel.from_pretrained(tmp_path / "export").eval()
    pixels = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    with torch.no_grad():
        features = loaded(pixels / 127.5 - 1)
        torch.testing.assert_close(
            features.last_hidden_state, made(made.patch(pixels)), atol=1e-5, rtol=0
        )
        torch.testing.assert_close(
            features.pooler_output, own_feature(made, pixels, pool), atol=1e-5, rtol=0
        )


def test_an_export_replaces_an_older_one_whole(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    exported(folder, "token", Data(size=16))
    (folder / "stale").write_text("left over")
    exported(folder, "avg", Data(size=16))
    assert {p.name for p in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "heads.safetensors",
    }
    assert json.loads((folder / "config.json").read_text())["model_args"]["global_pool"] == "avg"
    assert load_file(folder / "heads.safetensors")["mask_token"].shape == (32,)
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("written_as", ["timm", "transformers"])
def test_one_flipped_bit_is_refused(tmp_path: Path, written_as: str) -> None:
    made = exported(tmp_path / "export", "token", Data(size=16))
    folder = tmp_path / "export"
    if written_as == "transformers":
        folder = tmp_path / "vit"
        interop.to_transformers(tmp_path / "export", folder)
    source = InitSource(str(folder))
    weights.load_weights(made, source)
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        weights.load_weights(made, source)
    assert str(caught.value).startswith(f"init={folder}: {file} is damaged or was replaced: ")
    assert "\n" not in str(caught.value)
    config = json.loads((folder / "config.json").read_text())
    del config["sha256"]  # as in what others wrote
    (folder / "config.json").write_text(json.dumps(config))
    weights.load_weights(made, source)


def test_a_feature_of_another_pooling_is_refused() -> None:
    made = encoder.build_encoder(MODEL, Data(name="own", size=16))
    pixels = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    with pytest.raises(ValueError, match="pool=mean: expected token or avg"):
        made.feature(pixels, "mean")
