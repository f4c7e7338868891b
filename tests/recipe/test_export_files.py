"""What other programs' exports say of pixels."""

import json
from pathlib import Path

import pytest
import torch
from transformers import ViTImageProcessor

from ssl_vit.recipe import export_files


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
    found = export_files.normalisation(tmp_path)
    mean, std = (torch.tensor(found[key])[:, None, None] for key in ("mean", "std"))
    torch.testing.assert_close((image_CHW / 255 - mean) / std, theirs.float(), rtol=1e-5, atol=1e-4)
