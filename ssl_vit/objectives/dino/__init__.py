"""Declare self-distillation without labels (DINO: Caron et al., 2021).

This file does not import torch.
"""

from typing import Annotated, Literal

from pydantic import Field

from ...metrics import LOSS, Baseline, Metric
from ...recipe.check import check_patches
from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Fraction, Keys, Share, Width, key
from ...recipe.schema import Recipe


class DinoOptions(Keys):
    """DINO: head, temperatures and the teacher.

    Attributes:
        prototypes: Prototypes that teacher and student choose from.
        hidden: Width of the head's hidden layers.
        width: Width of what is compared with the prototypes.
        lengths: Train the prototypes' lengths; false: all are 1.
        freeze: Share of the run at whose beginning the prototypes stay as drawn.
        temperature: What the student's similarities are divided by.
        teacher_temperature: What the teacher's are divided by, at first and after the warm-up; it
            rises linearly.
        warmup: Share of the run after which it has risen.
        momentum: Momentum of the teacher, a running average of encoder and head, in the first step;
            it rises to 1 along a cosine.
        balance: What keeps the teacher from one prototype for all images: centre (a running mean of
            its similarities is taken off) or sinkhorn (all are equally likely in a batch).
        centre_momentum: Momentum of that running mean; 1: nothing is taken off.
        koleo: Weight of KoLeo, which keeps the features of different images apart, of each of the
            two larger views; 0: none.
        koleo_group: Images, one after the other in a batch, among which KoLeo looks for the
            nearest: a divisor of a process's; null: those of all processes.
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
            "same_prototype", "share of views whose first prototype student and teacher have alike"
        ),
        Metric("koleo_loss", higher=False, unit=LOSS),
    )

    def check(self, recipe: Recipe) -> None:
        check_patches(recipe)

    def check_pass(self, recipe: Recipe, images: int) -> None:
        group = recipe.group(DinoOptions).koleo_group
        if group and images % group:
            text = f"expected a divisor of the {images} images that a process has in a step"
            raise recipe.error(f"{self.name}.koleo_group", text)


DECLARATION = DinoDeclaration()
