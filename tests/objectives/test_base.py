"""What an export keeps of an objective."""

import torch
from torch import nn

from helpers.encoders import net
from ssl_vit.data.batching import Batch
from ssl_vit.objectives.base import Objective, Output


class WithText(Objective):
    """A plugin's, with an encoder of its own beside that of images."""

    def __init__(self) -> None:
        super().__init__(net())
        self.text_encoder = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)

    def forward(self, batch: Batch) -> Output:
        raise AssertionError("nothing is trained here")


def test_heads_are_all_but_encoders_of_images() -> None:
    """The name's end alone counted, so that text_encoder was left out in silence."""
    with torch.no_grad():
        names = WithText().heads()
    assert {name.partition(".")[0] for name in names} == {"text_encoder", "head"}
