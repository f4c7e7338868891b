"""Untrained weights that stand beside an encoder in figures and neighbours."""

from pathlib import Path

import pytest
import torch

import ssl_vit
from helpers.options import SHORT, TINY, altered
from ssl_vit.errors import UserError
from ssl_vit.jobs import encoders
from ssl_vit.recipe.given import Given, from_values


def test_fresh_weights_at_another_size_are_the_runs_own(tmp_path: Path) -> None:
    """At another image size they were other draws, as positions are drawn first."""
    words = altered(TINY, *SHORT, "optim.lr=1e-30", "optim.weight_decay=0", f"out={tmp_path}")
    ssl_vit.pretrain([*words, "name=run"])  # whose weights stay the initial ones
    fresh, trained = encoders.with_fresh_weights(
        str(tmp_path / "run"), from_values({"data.size": 32})
    )
    networks = []
    for one in (fresh, trained):
        images = encoders.find_images(one, Given())
        networks.append(encoders.load_figure_input(one, images, 4, 2).encoder)
    for name, value in networks[0].state_dict().items():
        torch.testing.assert_close(value, networks[1].state_dict()[name], msg=name)


def test_where_no_split_is_a_tests_the_validation_split_is() -> None:
    """As for runs: split=test was refused of train/ and val/."""
    splits = {name: range(count) for name, count in (("train", 3), ("val", 2), ("other", 1))}
    assert encoders.named_split("test", splits) == "val"
    with pytest.raises(UserError, match="split=test: "):
        encoders.named_split("test", {"train": splits["train"]})
    assert encoders.named_split("test", splits | {"eval": range(1)}) == "eval"
