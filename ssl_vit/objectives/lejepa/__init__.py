"""Declare LeJEPA, which trains all views of an image to have the same, normally distributed
embedding (Balestriero and LeCun, 2025).

This file does not import torch.
"""

from ...measurements import LOSS, Metric
from ...recipe.check import check_patches
from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Keys, Width, key
from ...recipe.schema import Recipe


class LejepaOptions(Keys):
    """LeJEPA: weights of the losses, directions and projector.

    Attributes:
        weight: Weight of SIGReg (lambda of the paper). The prediction loss has weight 1 - lambda.
        slices: Number of random directions along which embeddings are compared with a normal
            distribution. Each step draws new directions.
        hidden: Width of the two hidden layers of the projector.
        width: Width of the embeddings.
    """

    # Defaults: section 6.1 of the paper; hidden: the authors' MINIMAL.md; width: lightly's head
    weight: float = key(0.05, gt=0, lt=1)
    slices: int = key(1024, gt=0, le=2**20)
    hidden: Width = key(2048)
    width: Width = key(64)


class LejepaDeclaration(ObjectiveDeclaration):
    name = "lejepa"
    title = "Normally distributed embeddings of views (LeJEPA)"
    paper = "Balestriero and LeCun, 2025, arXiv:2511.08544"
    cite = """@article{balestriero2025lejepa,
  title     = {{LeJEPA}: Provable and Scalable Self-Supervised Learning Without the
               Heuristics},
  author    = {Balestriero, Randall and LeCun, Yann},
  journal   = {arXiv preprint arXiv:2511.08544},
  year      = {2025}
}"""
    options = Group("lejepa", LejepaOptions)
    shared = ("views", "views.local")
    no_measure = ("prediction_loss",)  # 0 if all images have the same embedding
    metrics = (
        Metric("prediction_loss", higher=False, unit=LOSS),
        Metric("sigreg", "SIGReg", higher=False, unit=LOSS),
    )

    def check(self, recipe: Recipe) -> None:
        check_patches(recipe)


DECLARATION = LejepaDeclaration()
