"""The network that is counted without memory for it."""

from typing import Any

import pytest

import ssl_vit
from ssl_vit import costs
from ssl_vit.costs import on_meta
from ssl_vit.recipe.schema import Recipe


@pytest.mark.parametrize("channels", ["data.channels=1", "data.channels=4"])
@pytest.mark.parametrize("pixels", ["data.range=null", "data.range=[0,200]", "data.range=[0,4095]"])
def test_images_of_any_channels_and_range_are_counted(channels: str, pixels: str) -> None:
    """8 bits in other than 3 channels ended every run with a traceback, before its first step."""
    words = ["recipe=mae", "data.size=32", "model.patch=8", "data.path=/", channels, pixels]
    mean = {"data.channels=1": "[0.5]", "data.channels=4": "[0.5,0.5,0.5,0.5]"}[channels]
    recipe = ssl_vit.resolve([*words, f"data.mean={mean}", f"data.std={mean}"])
    assert costs.compute_network_cost(recipe).training > 0


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("recipe=mae mae.depth=2 optim.batch=4", "model.depth"),
        ("recipe=mae model.depth=2", "mae.depth"),
        ("recipe=ijepa model.depth=2", "ijepa.depth"),
        ("recipe=mpp target=teacher data2vec.blocks=3 optim.drop_path=0.1", "model.depth"),
        ("recipe=dino views.local=0", "model.depth"),
        ("recipe=evaluate init=scratch", "model.depth"),
    ],
)
def test_a_deep_network_is_counted_from_two_that_are_not(
    words: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the number, and no network of 1000 blocks is built."""
    small = "model.patch=4 model.width=32 model.heads=2 model.mlp=64 data.size=16"
    recipe = ssl_vit.resolve([*words.split(), *small.split(), f"{key}=15"])
    direct = on_meta.count_operations(recipe), on_meta.activation_bytes(recipe, True)
    monkeypatch.setattr(costs, "DEEP", 14)
    monkeypatch.setattr(costs, "_COSTS", {})
    monkeypatch.setattr(costs, "_ACTIVATION_BYTES", {})
    depths, build = [], on_meta._build

    def recorded(one: Recipe) -> Any:
        depths.append(one.value(key))
        return build(one)

    monkeypatch.setattr(on_meta, "_build", recorded)
    assert (costs.compute_network_cost(recipe), costs._float32_bytes(recipe, True)) == direct
    recipe.set(key, 1000)
    assert costs.compute_network_cost(recipe).parameters > 50 * direct[0].parameters / 15
    assert costs.activation_bytes(recipe, True) > 0
    assert {*depths} == {4, 5}
