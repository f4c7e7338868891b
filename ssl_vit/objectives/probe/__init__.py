"""Measuring a frozen encoder: nothing is trained. No torch here."""

from ... import costs
from ...config.declaration import ObjectiveDeclaration
from ...config.schema import Recipe


class ProbeDeclaration(ObjectiveDeclaration):
    name = "probe"
    title = "Evaluation of a frozen encoder"
    shared = ("probe",)
    trains = False
    labels = True

    def multiply_adds(self, recipe: Recipe) -> int:
        return costs.encoder_multiply_adds(recipe)


DECLARATION = ProbeDeclaration()
