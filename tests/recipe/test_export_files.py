"""What other programs' exports say of pixels."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import ViTImageProcessor

import ssl_vit
from helpers.exports import of_timm
from helpers.hub_runs import refused
from helpers.resolving import resolve
from ssl_vit.recipe import export_files
from ssl_vit.recipe.init_source import InitSource


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_normalize": False},
        {"do_rescale": False},
        {"rescale_factor": 1 / 127.5},
        {"do_normalize": False, "do_rescale": False},
    ],
)
def test_pixels_are_normalised_as_transformers_does_it(options: dict, tmp_path: Path) -> None:
    """A step that the image processor leaves out was done all the same: other features."""
    config = {"model_type": "vit", "num_channels": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ViTImageProcessor(**options).save_pretrained(tmp_path)
    processor = ViTImageProcessor.from_pretrained(tmp_path)
    image_CHW = torch.randint(0, 256, (3, 224, 224), dtype=torch.uint8)
    theirs = torch.as_tensor(processor(image_CHW, return_tensors="pt")["pixel_values"])[0]
    found = export_files.read_normalisation(tmp_path)
    mean, std = (torch.tensor(found[key])[:, None, None] for key in ("mean", "std"))
    torch.testing.assert_close((image_CHW / 255 - mean) / std, theirs.float(), rtol=1e-5, atol=1e-4)


IMPOSSIBLE = {
    "mean": [math.nan, math.inf, -math.inf, 1e300, 1e6],
    "std": [0, -0.5, 1e-40, math.nan, math.inf, 1e39],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, v) for key in IMPOSSIBLE for v in IMPOSSIBLE[key]]
)
def test_a_mean_or_std_that_no_pixels_have_is_refused_where_it_is_read(
    key: str, value: float, tmp_path: Path
) -> None:
    """The same values of a recipe, of timm's config.json and of transformers' files."""
    mapping = {"recipe": "mpp", "data": {key: [value, 0.5, 0.5]}}
    assert f"data.{key}=" in refused(resolve, ["recipe=mpp", f"data.{key}=[{value},0.5,0.5]"])
    assert f"data.{key}=" in refused(ssl_vit.resolve, mapping)
    export = of_timm(tmp_path / "timm")
    content = json.loads((export / "config.json").read_text())
    content["pretrained_cfg"][key][0] = value
    processors = {
        "raw": {"do_rescale": False, f"image_{key}": [value * 255, 0.5, 0.5]},
        "shares": {f"image_{key}": [value, 0.5, 0.5]},
    }
    (export / "config.json").write_text(json.dumps(content))
    places = [export]
    for name, processor in processors.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"")
        config = {"model_type": "vit", **dict.fromkeys(export_files.VIT_KEYS.values(), 4)}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
        places.append(folder)
    for place in places:
        line = refused(resolve, ["recipe=evaluate", f"init={place}"])
        assert f"init={place}: " in line and key in line


@pytest.mark.parametrize(
    "words",
    ["data.range=[5,5]", "data.range=[9,1]", "data.range=[0,70000]", "data.range=[-40000,5]"],
)
def test_an_impossible_range_is_refused(words: str) -> None:
    assert "data.range=" in refused(resolve, ["recipe=mpp", "data.channels=1", words])


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("config.json", "pixels", {"channels": 4, "range": [9, 1]}),
        ("config.json", "pixels", {"channels": 0, "range": [0, 9]}),
        ("config.json", "layer_norm_eps", -1.0),
        ("config.json", "layer_norm_eps", math.nan),
        ("preprocessor_config.json", "rescale_factor", 0.0),
        ("preprocessor_config.json", "rescale_factor", math.inf),
        ("config.json", "pretrained_cfg", None),
    ],
)
def test_other_impossible_values_of_an_export_are_refused(
    name: str, key: str, value: object, tmp_path: Path
) -> None:
    config = {"model_type": "vit", **dict.fromkeys(export_files.VIT_KEYS.values(), 4)}
    files = {"config.json": config, "preprocessor_config.json": {}}
    files[name][key] = value
    for file, content in files.items():
        (tmp_path / file).write_text(json.dumps(content))
    (tmp_path / "model.safetensors").write_bytes(b"")
    line = refused(resolve, ["recipe=evaluate", f"init={tmp_path}"])
    assert f"init={tmp_path}: " in line and key in line


def test_a_cost_that_a_result_lacks_is_not_none(tmp_path: Path) -> None:
    files = {
        "export/config.json": "{}",
        "recipe.yaml": "objective: mpp\n",
        "result.json": '{"steps": 3, "seconds": 1.5, "measurements": [], "finished": "then"}',
    }
    (tmp_path / "export").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert "result.json " in refused(InitSource(str(tmp_path)).upstream_cost)
