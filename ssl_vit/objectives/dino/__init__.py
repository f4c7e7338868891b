"""Self-distillation without labels (DINO: Caron et al., 2021), declared. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass

from ...config.declaration import Group, ObjectiveDeclaration
from ...config.fields import option
from ...config.rules import Rule
from ...config.schema import Recipe, compared_views
from ...metrics import LOSS, SHARE, Baseline, Metric

VIEWS = 2  # of an image, beside local ones


@dataclass
class DinoOptions:
    prototypes: int = option(
        65536, "Prototypes that teacher and student choose from.", above=1, maximum=2**20
    )
    hidden: int = option(2048, "Width of the head's hidden layers.", above=0, maximum=65536)
    width: int = option(
        256, "Width of what is compared with the prototypes.", above=0, maximum=65536
    )
    lengths: bool = option(False, "Train the prototypes' lengths; false: all are 1.")
    freeze: float = option(
        0.01,
        "Share of the run at whose beginning the prototypes stay as drawn.",
        minimum=0,
        below=1,
    )
    temperature: float = option(
        0.1, "What the student's similarities are divided by.", above=0, maximum=1e3
    )
    teacher_temperature: list[float] = option(
        [0.04, 0.04],
        "What the teacher's are divided by, at first and after the warm-up; it rises linearly.",
        length=2,
        above=0,
        maximum=1e3,
    )
    warmup: float = option(0.1, "Share of the run after which it has risen.", minimum=0, maximum=1)
    momentum: float = option(
        0.996,
        "Momentum of the teacher, a running average of encoder and head, in the first step; it"
        " rises to 1 along a cosine.",
        minimum=0,
        maximum=1,
    )
    balance: str = option(
        "centre",
        "What keeps the teacher from one prototype for all images: centre (a running mean of its"
        " similarities is taken off) or sinkhorn (all are equally likely in a batch).",
        choices=("centre", "sinkhorn"),
    )
    centre_momentum: float = option(
        0.9,
        "Momentum of that running mean; 1: nothing is taken off.",
        minimum=0,
        maximum=1,
        requires=("dino.balance", "centre"),
    )
    koleo: float = option(
        0.0,
        "Weight of KoLeo, which keeps the features of different images apart; 0: none.",
        minimum=0,
        maximum=1e6,
    )


class DinoDeclaration(ObjectiveDeclaration):
    name = "dino"
    title = "Self-distillation (DINO)"
    tag = "dino"
    network = "network:SelfDistillation"
    options = Group("dino", DinoOptions, "DINO: head, temperatures and the teacher.")
    shared = ("views",)
    views = VIEWS
    local_views = True
    # The loss is at least the entropy of the teacher's assignments, of one prototype for all 0
    no_measure: tuple[str, ...] = ("loss", "same_prototype")
    rules: tuple[Rule, ...] = (
        Rule(
            "model",
            lambda r: r.model.convolutional or r.model.hybrid,
            "objective={r.objective} needs patches of pixels; model={r.model.name} has none",
            "{r.model.name}",
        ),
    )
    metrics: tuple[Metric | Baseline, ...] = (
        Metric(
            "same_prototype",
            SHARE,
            "views whose first prototype student and teacher share",
            independent=True,
            compared=False,
            chart="Prototypes that student and teacher share",
        ),
        Metric("koleo_loss", LOSS, higher=False, compared=False),
    )

    def warnings(self, recipe: Recipe, classes: int) -> Iterator[str]:
        prototypes = recipe.group(DinoOptions).prototypes
        if prototypes < classes:
            yield (
                f"{self.name}.prototypes={prototypes}: fewer than the {classes:,} classes of"
                f" data={recipe.data.name}, which then share prototypes"
            )

    def sentence(self, recipe: Recipe) -> str:
        own = recipe.group(DinoOptions)
        return (
            f"Self-distillation (DINO; Caron et al., 2021): of {_all_views(recipe)} random views of"
            f" an image, the encoder gives each the same of {own.prototypes:,} prototypes as a"
            f" teacher, a running average of itself, gives another view. The export is the"
            f" teacher's encoder."
            + (" KoLeo keeps the features of different images apart." if own.koleo else "")
        )


def _all_views(recipe: Recipe) -> int:
    """Views of an image, local ones included."""
    shown = compared_views(recipe)
    assert shown is not None
    return VIEWS + shown.local


DECLARATION = DinoDeclaration()
