"""Declare self-distillation without labels (DINO: Caron et al., 2021).

This file does not import torch.
"""

from typing import Annotated, Literal

from pydantic import Field

from ...measurements import LOSS, Baseline, Metric
from ...recipe.check import check_patches
from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Fraction, Keys, Share, Width, key
from ...recipe.schema import Recipe


class DinoOptions(Keys):
    """DINO: head, temperatures and teacher.

    Attributes:
        prototypes: Number of prototypes that teacher and student choose from.
        hidden: Width of the hidden layers of the head.
        width: Width of the vectors that are compared with the prototypes.
        lengths: Train the lengths of the prototypes. false: all lengths are 1.
        freeze: Share of the run, from the beginning, during which the prototypes are not trained.
        temperature: Temperature of the student, which divides the similarities.
        teacher_temperature: Temperature of the teacher in the first step and after the warm-up. The
            temperature rises linearly.
        warmup: Share of the run during which the temperature of the teacher rises.
        momentum: Momentum of the teacher in the first step, which rises to 1 along a cosine. The
            teacher is a running average of encoder and head.
        balance: How the teacher is kept from one prototype for all images: centre (subtract a
            running mean of the similarities) or sinkhorn (make all prototypes equally likely in
            a batch).
        centre_momentum: Momentum of the running mean for balance=centre. 1: nothing is subtracted.
        koleo: Weight of the KoLeo loss, which pushes the features of different images apart, for
            each of the two global views. 0: no KoLeo loss.
        koleo_group: Number of consecutive images among which KoLeo searches the nearest image. Must
            divide the images of a process in a forward pass. null: search the images of all
            processes.
    """

    prototypes: int = key(65536, gt=1, le=2**20)
    hidden: Width = key(2048)
    width: Width = key(256)
    lengths: bool = key(False)
    freeze: Fraction = key(0.01)
    temperature: float = key(0.1, gt=0, le=1e3)
    teacher_temperature: list[Annotated[float, Field(gt=0, le=1e3)]] = key(
        [0.04, 0.04], min_length=2, max_length=2
    )
    warmup: Share = key(0.1)
    momentum: Share = key(0.996)
    balance: Literal["centre", "sinkhorn"] = key("centre")
    centre_momentum: Share = key(0.9, requires=("dino.balance", "centre"))
    koleo: float = key(0.0, ge=0, le=1e6)
    koleo_group: int | None = key(None, ge=2, le=2**20)


class DinoDeclaration(ObjectiveDeclaration):
    name = "dino"
    title = "Self-distillation (DINO)"
    paper = "Caron et al., 2021, arXiv:2104.14294"
    cite = r"""@inproceedings{caron2021emerging,
  title     = {Emerging Properties in Self-Supervised Vision Transformers},
  author    = {Caron, Mathilde and Touvron, Hugo and Misra, Ishan and J{\'e}gou, Herv{\'e} and
               Mairal, Julien and Bojanowski, Piotr and Joulin, Armand},
  booktitle = {IEEE/CVF International Conference on Computer Vision},
  year      = {2021}
}"""
    options = Group("dino", DinoOptions)
    shared = ("views", "views.local")
    # A collapsed teacher, with one prototype for all images, has the lowest loss: the loss is at
    # least the entropy of the teacher's assignments, which is then 0
    no_measure: tuple[str, ...] = ("loss", "same_prototype")
    metrics: tuple[Metric | Baseline, ...] = (
        Metric(
            "same_prototype", "share of views where student and teacher choose the same prototype"
        ),
        Metric("koleo_loss", higher=False, unit=LOSS),
    )

    def check(self, recipe: Recipe) -> None:
        check_patches(recipe)

    def check_pass(self, recipe: Recipe, images: int) -> None:
        group = recipe.group(DinoOptions).koleo_group
        if group and images % group:
            raise recipe.error(
                f"{self.name}.koleo_group",
                f"a process has {images} images in a forward pass, and {group} does not divide "
                f"this number. Use a divisor of {images}, or null.",
            )


DECLARATION = DinoDeclaration()
