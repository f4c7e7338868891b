"""The network that is counted without memory for it."""

import pytest

import ssl_vit
from ssl_vit import costs


@pytest.mark.parametrize("channels", ["data.channels=1", "data.channels=4"])
@pytest.mark.parametrize("pixels", ["data.range=null", "data.range=[0,200]", "data.range=[0,4095]"])
def test_images_of_any_channels_and_range_are_counted(channels: str, pixels: str) -> None:
    """8 bits in other than 3 channels ended every run with a traceback, before its first step."""
    words = ["recipe=mae", "data.size=32", "model.patch=8", "data.path=/", channels, pixels]
    mean = {"data.channels=1": "[0.5]", "data.channels=4": "[0.5,0.5,0.5,0.5]"}[channels]
    recipe = ssl_vit.resolve([*words, f"data.mean={mean}", f"data.std={mean}"])
    assert costs.work(recipe).training > 0
