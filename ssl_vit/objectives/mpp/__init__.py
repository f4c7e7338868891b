"""Declare masked patch prediction (paper, 4.6 and B.1.2).

This file does not import torch.
"""

from ...recipe.declaration import ObjectiveDeclaration
from ..targets import FIGURE


class MppDeclaration(ObjectiveDeclaration):
    name = "mpp"
    title = "Masked patch prediction"
    paper = "Dosovitskiy et al., 2021, section 4.6 and B.1.2, arXiv:2010.11929"
    figure = FIGURE
    shared = ("corruption", "target")
    pool = "avg"  # the class token gets no loss
    any_length = True


DECLARATION = MppDeclaration()
