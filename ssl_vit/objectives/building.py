"""Build the network of a recipe's objective."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ..errors import UserError
from ..models.encoder import Backbone, Encoder
from ..recipe import declaration
from ..recipe.declaration import G, ObjectiveDeclaration, TargetDeclaration
from ..recipe.images import BYTES
from ..recipe.schema import Recipe
from .base import Objective, describe_class
from .targets.patch_targets import Target


@dataclass(frozen=True)
class Settings:
    """Settings of a recipe from which the network of an objective is built.

    Attributes:
        objective: Name of the objective.
        groups: {name: group of keys} for the groups that the objective uses.
        target: Name of the target, which says what is predicted of a patch.
        mean: Mean of each channel for the normalisation of images, in [0, 1].
        std: Standard deviation of each channel for the normalisation of images, in [0, 1].
        pixel_range: The pixel values that correspond to 0 and 1.
        seed: Seed of the run.
        pool: How the encoder pools tokens into an image's feature, "token" or "avg". The export
            uses this pooling, and so does `encoder.feature` if the caller names no pooling.
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
    def from_recipe(cls, recipe: Recipe) -> "Settings":
        """Select the settings from a recipe."""
        data = recipe.data
        return cls(
            recipe.objective,
            recipe.groups,
            recipe.target,
            data.mean,
            data.std,
            data.pixel_range,
            recipe.seed,
            recipe.pool,
        )

    @property
    def pixels(self) -> tuple[list[float], list[float], tuple[int, int]]:
        """Return mean, std and pixel_range, the arguments of targets that predict pixels."""
        return self.mean, self.std, self.pixel_range

    def group(self, kind: type[G]) -> G:
        """Return the group of keys of this type."""
        return declaration.find_group(self.groups, kind)

    def build_target(self, encoder: Encoder) -> Target:
        """Build the target, which computes the ground truth of patches.

        Raises:
            UserError: The declaration (perhaps a plugin's) builds an object that is no Target.
        """
        declared = declaration.target(self.target)
        built = cast(Target, declared.build(self, encoder))
        _check_built(declared, built, Target)
        # Captions of figures say with this text how the target's values are drawn
        built.drawn = declared.drawn
        return built


def build_objective(
    settings: Settings, encoder: Backbone, classes: int, part: str = ""
) -> Objective:
    """Build an objective around `encoder`, and set how the encoder pools features (`encoder.pool`).

    Args:
        settings: Name and options of the objective.
        encoder: The network to train.
        classes: Number of classes of the labels.
        part: Name of the part of a joint objective to build. "" builds the whole objective.

    Raises:
        UserError: The objective is not declared, or the declaration (perhaps a plugin's) builds an
            object that is no Objective.
    """
    declared = declaration.objective(part or settings.objective)
    encoder.pool = settings.pool
    built = cast(Objective, declared.build(settings, encoder, classes))
    _check_built(declared, built, Objective)
    return built


def _check_built(
    declared: ObjectiveDeclaration | TargetDeclaration, built: object, kind: type
) -> None:
    """Raise a UserError if a declaration has built something other than an instance of `kind`."""
    if not isinstance(built, kind):
        raise UserError(
            f"{describe_class(type(declared))}: build returns {type(built).__name__}. "
            f"Return an instance of {kind.__name__}."
        )
