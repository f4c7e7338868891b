"""Declare the evaluation of a frozen encoder, which trains nothing.

This file does not import torch.
"""

from ...recipe.declaration import ObjectiveDeclaration


class ProbeDeclaration(ObjectiveDeclaration):
    name = "probe"
    title = "Evaluation of a frozen encoder"
    shared = ("probe",)
    labels = True


DECLARATION = ProbeDeclaration()
