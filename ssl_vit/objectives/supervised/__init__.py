"""Classification by labels (paper, 3.1 and 4.1), declared. No torch here."""

from typing import Literal

from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Fraction, Keys, Values, key
from ...recipe.schema import Recipe


class SupervisedOptions(Keys):
    loss: Literal["softmax", "sigmoid"] = key(
        "softmax",
        "Classification loss: softmax, or sigmoid, which takes several labels an image too.",
    )
    smoothing: Fraction = key(0.0, "Label smoothing, softmax only.")
    hidden: bool = key(
        True, "A hidden tanh layer in the head; false: one linear layer that starts at zero."
    )
    pool: Literal["token", "avg"] = key(
        "token", "Feature of an image: token (the class token) or avg (the mean of the patches)."
    )


class SupervisedDeclaration(ObjectiveDeclaration):
    name = "supervised"
    title = "Training on labels"
    network = "network:Supervised"
    options = Group("supervised", SupervisedOptions, "Training on labels.")
    labels = True
    mixes = True

    def check(self, recipe: Recipe) -> None:
        own = recipe.group(SupervisedOptions)
        if recipe.model.convolutional and own.pool != "token":
            raise recipe.error("supervised.pool", f"model={recipe.model.name} has no use for it")
        if own.smoothing and own.loss != "softmax":
            raise recipe.error("supervised.smoothing", "supervised.loss=sigmoid has no use for it")

    def fine_tunes(self, recipe: Recipe) -> bool:
        return not recipe.init_source.is_scratch

    def needs_one_label(self, recipe: Recipe) -> tuple[str, str]:
        """The sigmoid loss takes several."""
        if recipe.group(SupervisedOptions).loss == "softmax":
            return "supervised.loss=softmax", "supervised.loss=sigmoid"
        return "", ""

    def sentence(self, recipe: Recipe) -> str:
        own = recipe.group(SupervisedOptions)
        layers = "a hidden tanh layer and a linear one" if own.hidden else "one linear layer"
        on = "class token" if own.pool == "token" else "mean of the patches"
        return f"Classification with {layers} on the {on}, {own.loss} cross-entropy."

    def linear_head(self, recipe: Recipe) -> bool:
        return not recipe.group(SupervisedOptions).hidden and not recipe.model.convolutional

    def of_linear_head(self, pool: str) -> Values:
        return {"objective": self.name, "supervised.hidden": False, "supervised.pool": pool}


DECLARATION = SupervisedDeclaration()
