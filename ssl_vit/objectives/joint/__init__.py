"""A weighted sum of objectives on one encoder, declared. No torch here."""

from ...recipe import declaration
from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Keys, key
from ...recipe.schema import Recipe


class JointOptions(Keys):
    mpp: float = key(1.0, "Weight of the MPP loss.", ge=0, le=1e9)
    supervised: float = key(1.0, "Weight of the supervised loss.", ge=0, le=1e9)


class JointDeclaration(ObjectiveDeclaration):
    name = "joint"
    title = "Masked patch prediction and supervised training together"
    network = "network:Joint"
    options = Group("joint", JointOptions, "Weights of the losses of objective=joint.")
    labels = True
    parts = ("mpp", "supervised")

    def check(self, recipe: Recipe) -> None:
        weights = recipe.group(JointOptions)
        if not (weights.mpp or weights.supervised):
            text = "expected at least one weight above 0"
            raise recipe.error("joint.mpp + .supervised", text, "0")

    def trained(self, recipe: Recipe) -> list[ObjectiveDeclaration]:
        weights = recipe.group(JointOptions)
        return [declaration.objective(part) for part in self.parts if getattr(weights, part)]

    def learns_labels(self, recipe: Recipe) -> bool:
        return any(part.learns_labels(recipe) for part in self.trained(recipe))

    def needs_one_label(self, recipe: Recipe) -> tuple[str, str]:
        found = (part.needs_one_label(recipe) for part in self.trained(recipe) if part.labels)
        return next(found, ("", ""))

    def sentence(self, recipe: Recipe) -> str:
        parts = (declaration.objective(part).sentence(recipe) for part in self.parts)
        return f"The weighted sum of two losses. {' '.join(parts)}"


DECLARATION = JointDeclaration()
