"""Measuring a frozen encoder: nothing is trained. No torch here."""

from ...recipe.declaration import ObjectiveDeclaration


class ProbeDeclaration(ObjectiveDeclaration):
    name = "probe"
    title = "Evaluation of a frozen encoder"
    shared = ("probe",)
    labels = True


DECLARATION = ProbeDeclaration()
