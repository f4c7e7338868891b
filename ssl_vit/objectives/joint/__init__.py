"""Declare a weighted sum of objectives on one encoder.

This file does not import torch.
"""

from ...recipe import declaration
from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Keys, key
from ...recipe.schema import Recipe


class JointOptions(Keys):
    """Weights of the losses in objective=joint.

    Attributes:
        mpp: Weight of the loss of masked patch prediction.
        supervised: Weight of the supervised loss.
    """

    mpp: float = key(1.0, ge=0, le=1e9)
    supervised: float = key(1.0, ge=0, le=1e9)


class JointDeclaration(ObjectiveDeclaration):
    name = "joint"
    title = "Masked patch prediction and supervised training together"
    options = Group("joint", JointOptions)
    labels = True
    parts = ("mpp", "supervised")

    def check(self, recipe: Recipe) -> None:
        weights = recipe.group(JointOptions)
        if not (weights.mpp or weights.supervised):
            raise recipe.error(
                "joint.mpp=0 joint.supervised",
                "both weights are 0, so nothing would be trained. Set at least one weight above 0.",
                "0",
            )

    def trained(self, recipe: Recipe) -> list[ObjectiveDeclaration]:
        weights = recipe.group(JointOptions)
        return [declaration.objective(part) for part in self.parts if getattr(weights, part)]


DECLARATION = JointDeclaration()
