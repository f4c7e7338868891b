"""Declare classification by labels (paper, 3.1 and 4.1).

This file does not import torch.
"""

from typing import Literal

from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Fraction, Keys, key
from ...recipe.schema import Recipe


class SupervisedOptions(Keys):
    """Training on labels.

    Attributes:
        loss: Classification loss: softmax, or sigmoid, which also allows several labels per image.
        smoothing: Label smoothing, only for loss=softmax.
        hidden: Use a hidden tanh layer in the head. false: a single linear layer that starts at
            zero.
        pool: Feature of an image: token (the class token) or avg (the mean of the patches). The
            default of recipe=finetune is the pooling of the weights in init=.
    """

    loss: Literal["softmax", "sigmoid"] = key("softmax")
    smoothing: Fraction = key(0.0)
    hidden: bool = key(True)
    pool: Literal["token", "avg"] = key("token", from_init=True)


class SupervisedDeclaration(ObjectiveDeclaration):
    name = "supervised"
    title = "Training on labels"
    options = Group("supervised", SupervisedOptions)
    shared = ("data.mixup",)
    labels = True
    any_length = True

    def check(self, recipe: Recipe) -> None:
        options = recipe.group(SupervisedOptions)
        if recipe.model.convolutional and options.pool != "token":
            raise recipe.error(
                "supervised.pool",
                f"model={recipe.model.name} has no patch tokens. Use supervised.pool=token.",
            )
        if options.smoothing and options.loss != "softmax":
            raise recipe.error(
                "supervised.smoothing",
                "supervised.loss=sigmoid has no label smoothing. Use supervised.smoothing=0.",
            )

    def check_label_lists(self, recipe: Recipe, lists: str) -> None:
        if recipe.group(SupervisedOptions).loss == "softmax":
            raise recipe.error("supervised.loss", f"{lists}. Use supervised.loss=sigmoid.")


DECLARATION = SupervisedDeclaration()
