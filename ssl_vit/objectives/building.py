"""Builds the network of a recipe's objective."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ..errors import UserError
from ..models.encoder import Backbone, Encoder
from ..recipe import declaration
from ..recipe.declaration import G, ObjectiveDeclaration, TargetDeclaration
from ..recipe.images import BYTES
from ..recipe.schema import Recipe
from .base import Objective, place
from .targets.patch_targets import Target


@dataclass(frozen=True)
class Settings:
    """What of a recipe a network is built from.

    Attributes:
        objective: its name.
        groups: {name: group of keys} that the objective uses.
        target: name of what is predicted of a patch.
        mean, std: normalise the encoder's input, one value a channel in [0, 1].
        pixel_range: the values of a pixel that stand for 0 and 1.
        seed: of the run.
        pool: an image's feature in the export, and what `encoder.feature` gives where none is
            named.
    """

    objective: str
    groups: Mapping[str, Any]
    target: str
    mean: list[float]
    std: list[float]
    pixel_range: tuple[int, int] = BYTES
    seed: int = 0
    pool: str = "token"

    @classmethod
    def of(cls, recipe: Recipe) -> "Settings":
        data = recipe.data
        others = (data.mean, data.std, data.pixel_range, recipe.seed, recipe.pool)
        return cls(recipe.objective, recipe.groups, recipe.target, *others)

    @property
    def pixels(self) -> tuple[list[float], list[float], tuple[int, int]]:
        """Mean, std and pixel_range."""
        return self.mean, self.std, self.pixel_range

    def group(self, kind: type[G]) -> G:
        """The group of keys of that type."""
        return declaration.find_group(self.groups, kind)

    def build_target(self, encoder: Encoder) -> Target:
        """What is predicted of a patch of the encoder.

        Raises:
            UserError: a plugin's declaration builds something else.
        """
        declared = declaration.target(self.target)
        found = cast(Target, declared.build(self, encoder))
        _check_built(declared, found, Target)
        found.drawn = declared.drawn
        return found


def build(settings: Settings, encoder: Backbone, classes: int, part: str = "") -> Objective:
    """The objective that `settings` name, or a part of it, around `encoder`, for labels of
    `classes` classes.

    Raises:
        UserError: it is not declared, or a plugin's declaration builds something else.
    """
    declared = declaration.objective(part or settings.objective)
    encoder.pool = settings.pool
    found = cast(Objective, declared.build(settings, encoder, classes))
    _check_built(declared, found, Objective)
    return found


def _check_built(
    declared: ObjectiveDeclaration | TargetDeclaration, built: object, kind: type
) -> None:
    """Check that a declaration has built one of that type.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(built, kind):
        text = f"build gives {type(built).__name__}; expected {kind.__name__}"
        raise UserError(f"{place(type(declared))}: {text}")
