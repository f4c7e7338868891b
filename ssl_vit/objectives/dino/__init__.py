"""Self-distillation without labels (DINO: Caron et al., 2021), declared. No torch here."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ... import costs
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

    def parameters(self, recipe: Recipe) -> int:
        own = recipe.group(DinoOptions)
        return self._head_parameters(recipe) + (own.prototypes if own.lengths else 0)

    def _head_parameters(self, recipe: Recipe) -> int:
        """Without the prototypes' lengths."""
        own = recipe.group(DinoOptions)
        linear = sum(a * b for a, b in _layers(recipe))
        return linear + 2 * own.hidden + own.width

    def momentum_parameters(self, recipe: Recipe) -> int:
        prototypes = recipe.group(DinoOptions).prototypes
        head = self._head_parameters(recipe) + prototypes
        return costs.encoder_parameters(recipe) + head

    def multiply_adds(self, recipe: Recipe) -> int:
        """Of all views through the student, of two through the teacher, and of each of these
        compared with each of those; with KoLeo of each image compared with all of a step."""
        taught = costs.encoder_multiply_adds(recipe) + self._head(recipe)
        spread = recipe.optim.batch * recipe.model.width if recipe.group(DinoOptions).koleo else 0
        return self._student(recipe) + VIEWS * taught + self._comparisons(recipe) + spread

    def training_multiply_adds(self, recipe: Recipe) -> int:
        """A backward pass costs two forward passes; the teacher has none, and a comparison one for
        the student."""
        backward = 2 * self._student(recipe) + self._comparisons(recipe)
        return self.multiply_adds(recipe) + backward

    def _student(self, recipe: Recipe) -> int:
        shown = compared_views(recipe)
        assert shown is not None
        whole = VIEWS * costs.encoder_multiply_adds(recipe)
        part = shown.local * costs.encoder_multiply_adds(recipe, size=shown.local_size)
        return whole + part + _all_views(recipe) * self._head(recipe)

    def _head(self, recipe: Recipe) -> int:
        return sum(a * b for a, b in _layers(recipe))

    def _comparisons(self, recipe: Recipe) -> int:
        return VIEWS * _all_views(recipe) * recipe.group(DinoOptions).prototypes

    def head_bytes(self, recipe: Recipe, value: int, fused: bool) -> int:
        """Of the student's head: inputs of the linear layers and GELUs, what is normalised, and
        similarities twice, in float32; the teacher's probabilities."""
        own = recipe.group(DinoOptions)
        each = value * (recipe.model.width + 4 * own.hidden + own.width) + 8 * own.width
        return _all_views(recipe) * (each + 8 * own.prototypes) + VIEWS * 8 * own.prototypes

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


def _layers(recipe: Recipe) -> list[tuple[int, int]]:
    """Inputs and outputs of the head's linear layers."""
    own = recipe.group(DinoOptions)
    widths = [recipe.model.width, own.hidden, own.hidden, own.width, own.prototypes]
    return list(itertools.pairwise(widths))


DECLARATION = DinoDeclaration()
