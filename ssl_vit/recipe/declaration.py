"""What an objective or a target declares of itself, and where declarations are found. No torch.

An objective is a folder of ssl_vit/objectives/ whose `__init__.py` has a `DECLARATION`, or a
plugin that calls `declare`. All that the workbench does for an objective (options and their help,
checks, pages, cards, which runs compare) reads the declaration. Its network is imported when
it is built.
"""

import functools
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UserError, suggest
from ..metrics import Baseline, Metric, register
from .keys import Keys

if TYPE_CHECKING:
    from .schema import Recipe

G = TypeVar("G")
FOUND_IN = "ssl_vit.objectives"
# Groups of keys that are not of one objective: those that corrupt patches use `corruption`, those
# that predict them `target` (a key without a dot), those that compare views of an image `views`.
SHARED = ("corruption", "target", "views")


@dataclass(frozen=True)
class Group:
    """Keys `NAME.FIELD`: their model, and what they are about."""

    name: str
    kind: type[Keys]
    about: str


def find_group(groups: Mapping[str, Any], kind: type[G]) -> G:
    """Of {name: group of keys} the one of a type.

    Raises:
        KeyError: there is none; the objective does not use it.
    """
    for one in groups.values():
        if isinstance(one, kind):
            return one
    raise KeyError(f"the objective does not use {kind.__name__}")


class ObjectiveDeclaration:
    """An objective. `name` is its folder's, `objective=NAME`; a plugin gives it.

    Attributes:
        title: what it is, as the first words of a page.
        tag: on the Hub.
        network: "MODULE:CLASS" of its network, MODULE relative to the declaration's package; empty
            for one that trains nothing, and for a plugin in one file, which overrides `build`.
        options: its own group of keys.
        shared: groups of SHARED that it uses.
        trains: whether it trains anything.
        labels: needs labelled images.
        mixes: can learn from images that are blended in pairs (mixup, CutMix).
        views: random views of an image that a step compares; 0: it takes images as they are.
        local_views: whether it takes local views beside those.
        parts: the objectives that it is a sum of.
        metrics: rows of its own metrics and baselines (metrics.py).
        pool: an image's feature in the exported encoder: token (the class token) or avg (the mean
            of the patches); of one whose own group of keys has a `pool`, that is it.
        no_measure: names of metrics whose best value may be that of collapsed features; no
            checkpoint is chosen and no runs are ranked by them.
        figure: what the pictures show that its network makes of images (objectives.base, `panels`),
            as the caption of figures/predictions.png; empty: it makes none.
    """

    name: str = ""
    title: str = ""
    tag: str = ""
    network: str = ""
    figure: str = ""
    pool: str = "token"
    trains: bool = True
    options: Group | None = None
    shared: tuple[str, ...] = ()
    labels: bool = False
    mixes: bool = False
    views: int = 0
    local_views: bool = False
    parts: tuple[str, ...] = ()
    metrics: tuple[Metric | Baseline, ...] = ()
    no_measure: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of keys that it uses, its own and shared ones."""
        own = (self.options.name,) if self.options else ()
        of_parts = (group for part in self.parts for group in objective(part).groups)
        return tuple(dict.fromkeys((*self.shared, *of_parts, *own)))

    @property
    def predicts_patches(self) -> bool:
        return "target" in self.groups

    def trained(self, recipe: "Recipe") -> "list[ObjectiveDeclaration]":
        """The objectives that are trained: itself, or its parts whose weight is not 0."""
        return [self]

    def learns_labels(self, recipe: "Recipe") -> bool:
        """Whether it trains on labels, so that a test split can be classified."""
        return self.labels

    def fine_tunes(self, recipe: "Recipe") -> bool:
        """Whether a run from trained weights is a fine-tuning."""
        return False

    def build(self, settings: Any, encoder: Any, classes: int) -> Any:
        """Its network (objectives.base.Objective) around an encoder, for labels of `classes`
        classes; `settings` are an objectives.building.Settings. Torch is imported here at the
        earliest."""
        return imported(self.network, self).build(settings, encoder, classes)

    def needs_one_label(self, recipe: "Recipe") -> tuple[str, str]:
        """Where lists of labels cannot be learned: the option that says so, and what is expected
        instead."""
        return f"objective={self.name}", "a column of one label"

    def check(self, recipe: "Recipe") -> None:
        """Check the relations between its keys and the rest of the recipe.

        Raises:
            UserError: one does not hold (`recipe.error`).
        """

    def warnings(self, recipe: "Recipe", classes: int) -> Iterable[str]:
        """What is likely a mistake, a line each, said before a run. `classes` of its images; 0:
        not known."""
        return ()

    # What pages, cards and reports say

    def sentence(self, recipe: "Recipe") -> str:
        """What was trained, for the model card."""
        return ""

    def linear_head(self, recipe: "Recipe") -> bool:
        return False

    def of_linear_head(self, pool: str) -> dict[str, Any]:
        """{dotted key: value} of a recipe whose run exports such a classifier on the feature
        `pool`; empty where none does."""
        return {}

    @property
    def class_token_is_trained(self) -> bool:
        """Whether the class token gets a loss."""
        return True


class TargetDeclaration:
    """What is predicted of a patch: `target=NAME`.

    Attributes:
        network: as of an objective: what it names takes (patch side, mean, std); of
            `any_channels` the lowest and the highest value of a pixel as the fourth, too.
        sentence: what is predicted, for cards and --help: "of each patch the encoder predicts
            SENTENCE".
        drawn: how its values are drawn, where they are not the patch's own colours: ends captions.
        cells: cells of a patch's side that it is cut into; model.patch is a multiple.
        any_channels: whether it is for images other than RGB of 8 bits: of any number of channels,
            the length of mean and std, and any range of values.
        metrics: as of an objective.
    """

    name: str = ""
    network: str = ""
    sentence: str = ""
    drawn: str = ""
    cells: int = 1
    any_channels: bool = False
    metrics: tuple[Metric | Baseline, ...] = ()

    def build(self, patch: int, mean: list[float], std: list[float], *more: Any) -> Any:
        """It as a module (objectives.targets.patch_targets.Target) for patches of a side, in the
        model's input range; `more`: what else `network` takes."""
        return imported(self.network, self)(patch, mean, std, *more)


D = TypeVar("D", ObjectiveDeclaration, TargetDeclaration)
_OBJECTIVES: dict[str, ObjectiveDeclaration] = {}
_TARGETS: dict[str, TargetDeclaration] = {}


def declare(found: ObjectiveDeclaration | TargetDeclaration) -> None:
    """Add an objective or a target.

    Raises:
        UserError: another one has its name, or it has none.
    """
    known: dict[str, Any] = _OBJECTIVES if isinstance(found, ObjectiveDeclaration) else _TARGETS
    what = "objective" if known is _OBJECTIVES else "target"
    if not found.name:
        raise UserError(f"{type(found).__name__}: the declaration of an {what} lacks its name")
    before = known.get(found.name)
    if before is not None and before is not found:
        raise UserError(f"{what}={found.name}: declared twice")
    register(*found.metrics)
    known[found.name] = found


def withdraw(name: str) -> None:
    """Take back the objective or target of that name, as of a plugin that fails after it."""
    _OBJECTIVES.pop(name, None)
    _TARGETS.pop(name, None)


@functools.cache
def _find_own() -> None:
    """Declare what the package has: by name, as the folder stands above what reads recipes."""
    importlib.import_module(FOUND_IN).declare_all()


def objectives() -> Mapping[str, ObjectiveDeclaration]:
    """{name: objective}, those of plugins that ran included."""
    _find_own()
    return _OBJECTIVES


def targets() -> Mapping[str, TargetDeclaration]:
    """{name: target}."""
    _find_own()
    return _TARGETS


def objective(name: str) -> ObjectiveDeclaration:
    """The objective of that name.

    Raises:
        UserError: there is none.
    """
    return _named("objective", name, objectives())


def target(name: str) -> TargetDeclaration:
    """The target of that name. Raises as `objective`."""
    return _named("target", name, targets())


def known_or_bare(name: str) -> ObjectiveDeclaration:
    """The objective of that name; of one that is not known here, as a plugin's, a declaration of
    its name and nothing else."""
    found = objectives().get(name)
    if found is None:
        found = ObjectiveDeclaration()
        found.name = name
    return found


def describe_targets() -> str:
    """What each target predicts of a patch, for the help of `target`."""
    found = (f"{name}: {one.sentence}" for name, one in targets().items() if one.sentence)
    return f"What is predicted of a patch. {'; '.join(found)}."


def _named(key: str, name: str, known: Mapping[str, D]) -> D:
    if name not in known:
        raise UserError(f"{key}={name}: {suggest(name, known)}; plugin=FILE.py adds others")
    return known[name]


def groups() -> list[Group]:
    """The groups of keys of all objectives, each once: a plugin may take another's."""
    return list(dict.fromkeys(one.options for one in objectives().values() if one.options))


def imported(reference: str, declared: object) -> Any:
    """What a declaration names as its network.

    Args:
        reference: "MODULE:NAME" with MODULE relative to the declaration's package.
        declared: the declaration.
    """
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(f".{module}", type(declared).__module__), name)
