"""Self-distillation of views and of masked patches (iBOT: Zhou et al., 2022), declared. No torch
here."""

from dataclasses import dataclass

from ...config.declaration import Group
from ...config.fields import option
from ...config.rules import Rule
from ...config.schema import Recipe
from ...metrics import LOSS, Metric
from ..dino import DinoDeclaration, DinoOptions


@dataclass
class IbotOptions(DinoOptions):
    prototypes: int = option(
        8192, "Prototypes that teacher and student choose from.", above=1, maximum=2**20
    )
    patch_temperature: list[float] = option(
        [0.04, 0.07], "The same of patches.", length=2, above=0, maximum=1e3
    )
    centre_momentum: float = option(
        0.9,
        "Momentum of that running mean; 1: nothing is taken off.",
        minimum=0,
        maximum=1,
        requires=("ibot.balance", "centre"),
    )
    rate: list[float] = option(
        [0.1, 0.5],
        "Smallest and largest share of a view's patches that are masked, in rectangles.",
        length=2,
        above=0,
        below=1,
    )
    whole: float = option(0.5, "Chance that nothing of a view is masked.", minimum=0, below=1)
    shared: bool = option(True, "Patches have the prototypes of images; false: their own.")
    own_head: bool = option(
        False,
        "Patches have a whole head of their own, as in DINOv2.",
        requires=("ibot.shared", False),
    )
    weight: float = option(1.0, "Weight of the loss of patches.", above=0, maximum=1e6)


class IbotDeclaration(DinoDeclaration):
    name = "ibot"
    title = "Self-distillation with masked patches (iBOT)"
    tag = "ibot"
    network = "network:MaskedSelfDistillation"
    no_measure = (*DinoDeclaration.no_measure, "view_loss", "patch_loss")
    options = Group("ibot", IbotOptions, "iBOT: as DINO, and what is masked.")
    rules = (
        *DinoDeclaration.rules,
        Rule(
            "ibot.rate",
            lambda r: r.group(IbotOptions).rate[0] > r.group(IbotOptions).rate[1],
            "expected the smaller share first",
        ),
    )
    metrics = (
        Metric("view_loss", LOSS, higher=False),
        Metric("patch_loss", LOSS, higher=False),
    )

    def sentence(self, recipe: Recipe) -> str:
        own = recipe.group(IbotOptions)
        return (
            f"{super().sentence(recipe)} With {1 - own.whole:.0%} of the larger views masked in"
            f" part, each masked patch is given the prototypes that the teacher gives it in the"
            f" whole view (iBOT; Zhou et al., 2022)."
        )


DECLARATION = IbotDeclaration()
