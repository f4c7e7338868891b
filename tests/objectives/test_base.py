"""What an export keeps of an objective, and which say rightly that their steps do not depend on the
share of the run that is done."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.built import Objective, built
from helpers.encoders import net
from helpers.exports import of_timm
from helpers.options import TINY, altered
from helpers.resolving import resolve
from ssl_vit.data.batching import Batch
from ssl_vit.errors import UserError
from ssl_vit.objectives.base import Output, sums
from ssl_vit.objectives.targets.patch_targets import Target
from ssl_vit.recipe import declaration


class WithText(Objective):
    """A plugin's objective, whose decoder and text encoder are networks of the plugin."""

    def __init__(self) -> None:
        super().__init__(net())
        self.text_encoder = nn.Linear(2, 2)
        self.decoder = nn.ModuleDict({"encoder": nn.Linear(2, 2)})
        self.teacher = built("recipe=ijepa").teacher
        self.head = nn.Linear(2, 2)

    def forward(self, batch: Batch) -> Output:
        raise AssertionError("nothing is trained here")


def test_heads_are_all_but_encoders_of_images() -> None:
    """Tensors were left out by their name, so that decoder.encoder was missing in the export."""
    with torch.no_grad():
        names = WithText().heads()
    kept = {"text_encoder", "decoder.encoder", "head"}
    assert names.keys() == {f"{module}.{kind}" for module in kept for kind in ("weight", "bias")}


def test_an_objective_may_lack_frozen_weights_and_assignments() -> None:
    objective = WithText()
    assert objective.frozen_weights(0.0) == []
    assert objective.assignments([]) == {}


def test_a_wrong_shape_names_the_method_that_gave_it() -> None:
    """Which of several files the line was about was not said."""
    with pytest.raises(UserError, match=f"^{re.escape(__file__)}: test_a_wrong.*sums.two="):
        sums(one=torch.ones(2), two=torch.ones(2, 3))


TARGETS = [f"mpp target={name} model.patch=8" for name in sorted(declaration.targets())]


@pytest.mark.parametrize(
    "asked",
    [*sorted(declaration.objectives().keys() - {"probe"}), *TARGETS, "joint target=teacher"],
)
def test_steps_of_any_length_do_not_know_how_much_is_done(asked: str, tmp_path: Path) -> None:
    """A teacher of target=teacher was moved by the share that is done, and mpp said otherwise."""
    name, *others = asked.split()
    words = altered(TINY, f"recipe={name}", *others)
    if name == "distill":
        words.append(f"distill.teacher={of_timm(tmp_path, embed_dim=48, num_heads=3)}")
    if "views.local" in declaration.objectives()[name].shared:
        words.append("views.local_size=8")
    recipe = resolve(words)
    objective = built(*words)

    def scheduled(progress: float) -> list[object]:
        objective.start_step(progress)
        buffers = [one.tolist() for one in objective.buffers()]
        return [buffers, objective.averages(progress)[0], len(objective.frozen_weights(progress))]

    alike = scheduled(0.0) == scheduled(0.002)
    parts = recipe.declared.trained(recipe)
    known = all(one.any_length for one in parts)
    if any(one.predicts_patches for one in parts):
        declared = declaration.target(recipe.target)
        known = known and declared.any_length
        drawn = [one.drawn for one in objective.modules() if isinstance(one, Target)]
        assert drawn == [declared.drawn]  # which figures say
    assert alike == known
