"""What an objective or a target declares of itself, and where declarations are found. No torch.

An objective is a folder of ssl_vit/objectives/ whose `__init__.py` has a `DECLARATION`, or a
plugin that calls `declare`. All that the workbench does for an objective (options and their help,
checks, pages, cards, which runs compare) reads the declaration. Its network is imported when
it is built.
"""

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UserError, suggest
from ..metrics import Baseline, Metric, Row, has_row, register
from .keys import Keys

if TYPE_CHECKING:
    from .records.run import Declared
    from .schema import Recipe

G = TypeVar("G")
FOUND_IN = "ssl_vit.objectives"
ADDED = "plugin=FILE.py adds others"  # ends errors of names
# What several objectives use: `corruption.` of those that corrupt patches, `target` of those that
# predict them, `views.` of those that compare two random views of an image, `views.local` of those
# that see smaller ones beside them, `data.mixup` (and data.cutmix) of those that learn from images
# blended in pairs (Batch.partner_label), `probe.` of the evaluation.
SHARED = ("corruption", "target", "views", "views.local", "data.mixup", "probe")
POOLS = ("token", "avg")


@dataclass(frozen=True)
class Group:
    """Keys `NAME.FIELD`, and their model, whose docstring begins with what they are about."""

    name: str
    kind: type[Keys]


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
    """An objective, `objective=NAME`: what of it is known without its network.

    Attributes:
        name: its folder's; a plugin gives it. Also its tag on the Hub.
        title: what it is, as the first words of a page.
        paper: where it is from, for the model card.
        cite: the BibTeX entry of that paper; empty where it is the Vision Transformer's.
        figure: the caption of the pictures that its network makes of images (`panels`); empty where
            it makes none.
        options: its own group of keys.
        shared: what of SHARED it uses.
        labels: learns labels; one that starts from trained weights is a fine-tuning.
        pool: an image's feature in the exported encoder: token (the class token) or avg (the mean
            of the patches); of one whose own group of keys has a `pool`, that is it.
        metrics: its own metrics and baselines (metrics.py).
        any_length: no step depends on the share of the run that is done (`start_step`, `averages`),
            so that runs of other lengths can share their beginning (resume=RUN@STEP).
        no_measure: names of metrics whose best value may be that of collapsed features; no
            checkpoint is chosen and no runs are ranked by them.
        parts: the objectives that it is a sum of.
    """

    name: str = ""
    title: str = ""
    paper: str = ""
    cite: str = ""
    figure: str = ""
    options: Group | None = None
    shared: tuple[str, ...] = ()
    labels: bool = False
    pool: str = "token"
    metrics: tuple[Metric | Baseline, ...] = ()
    any_length: bool = False
    no_measure: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    def build(self, settings: Any, encoder: Any, classes: int) -> Any:
        """Its network (objectives.base.Objective) around an encoder: by default what `build` of
        `network.py` beside the declaration gives. Torch is imported here at the earliest.

        Args:
            settings: objectives.building.Settings.
            encoder: models.encoder.Encoder, or another Backbone.
            classes: of the labels; 0 of an objective that learns none.
        """
        network = importlib.import_module(".network", type(self).__module__)
        return network.build(settings, encoder, classes)

    def check(self, recipe: "Recipe") -> None:
        """Check the relations between its keys and the rest of the recipe.

        Raises:
            UserError: one does not hold (`recipe.error`).
        """

    def check_pass(self, recipe: "Recipe", images: int) -> None:
        """Check that the images of a pass suit it, of which a process has so many.

        Raises:
            UserError: they do not (`recipe.error`).
        """

    def check_label_lists(self, recipe: "Recipe", found: str) -> None:
        """Check that it learns from images with a list of labels each, as `found` says of them.

        Raises:
            UserError: it does not, as most.
        """
        raise UserError(f"objective={self.name}: {found}; expected a column of one label")

    def trained(self, recipe: "Recipe") -> "list[ObjectiveDeclaration]":
        """The objectives that are trained: itself, or its parts whose weight is not 0."""
        return [self]

    @property
    def says_pool(self) -> bool:
        """Whether its class says what `pool` is."""
        classes = type(self).__mro__
        return any("pool" in vars(one) for one in classes[: classes.index(ObjectiveDeclaration)])

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of keys that it uses, its own and shared ones."""
        own = (self.options.name,) if self.options else ()
        shared = (name for name in self.shared if "." not in name)
        of_parts = (group for part in self.parts for group in objective(part).groups)
        return tuple(dict.fromkeys((*shared, *of_parts, *own)))

    def groups_with(self, target_name: str) -> tuple[str, ...]:
        """`groups`, and that of what is predicted of a patch, where it is known here."""
        own = targets()[target_name].options if target_name in targets() else None
        return (*self.groups, own.name) if own and self.predicts_patches else self.groups

    @property
    def predicts_patches(self) -> bool:
        return "target" in self.groups


class TargetDeclaration(ABC):
    """What is predicted of a patch: `target=NAME`.

    Attributes:
        sentence: what is predicted, for --help: "of each patch the encoder predicts SENTENCE".
        cite: the BibTeX entry of the paper that it is from; empty where none is cited for it.
        drawn: how its values are drawn, where they are not the patch's own colours: ends captions.
        options: its own group of keys.
        patch_multiple: model.patch is a multiple of it.
        any_channels: whether it is for images other than RGB of 8 bits: of any number of channels,
            the length of mean and std, and any range of values.
        any_length: as of an objective: of one with a teacher (`averages`) often not so.
        metrics, no_measure: as of an objective.
    """

    name: str = ""
    sentence: str = ""
    cite: str = ""
    drawn: str = ""
    options: Group | None = None
    patch_multiple: int = 1
    any_channels: bool = False
    any_length: bool = True
    metrics: tuple[Metric | Baseline, ...] = ()
    no_measure: tuple[str, ...] = ()

    @abstractmethod
    def build(self, settings: Any, encoder: Any) -> Any:
        """It as a module (objectives.targets.patch_targets.Target) of the encoder's patches.
        Torch is imported here at the earliest.

        Args:
            settings: objectives.building.Settings.
            encoder: models.encoder.Encoder.
        """


D = TypeVar("D", ObjectiveDeclaration, TargetDeclaration)
_OBJECTIVES: dict[str, ObjectiveDeclaration] = {}
_TARGETS: dict[str, TargetDeclaration] = {}
# What runs of plugins have recorded of their objectives, and of their targets `no_measure`
_RECORDED: dict[str, ObjectiveDeclaration] = {}
_RECORDED_TARGETS: dict[str, tuple[str, ...]] = {}
RECORDED = (
    "title",
    "paper",
    "cite",
    "figure",
    "labels",
    "no_measure",
)  # attributes that these have


def declare(found: ObjectiveDeclaration | TargetDeclaration) -> None:
    """Add an objective or a target.

    Raises:
        UserError: it is a class or something else, another one has its name, it has none, `shared`
            names what is not shared, `pool` is no pool, or a baseline is compared with what has no
            row.
    """
    if not isinstance(found, ObjectiveDeclaration | TargetDeclaration):
        called = getattr(found, "__name__", type(found).__name__)
        raise UserError(f"declare({called}): expected an instance, as declare({called}())")
    known: dict[str, Any] = _OBJECTIVES if isinstance(found, ObjectiveDeclaration) else _TARGETS
    what = "objective" if known is _OBJECTIVES else "target"
    if not found.name:
        raise UserError(f"{type(found).__name__}: the declaration of an {what} lacks its name")
    before = known.get(found.name)
    if before is not None and before is not found:
        raise UserError(f"{what}={found.name}: declared twice")
    for name in getattr(found, "shared", ()):
        if name not in SHARED:
            raise UserError(f"objective={found.name}: shared={name}: {suggest(name, SHARED)}")
    if isinstance(found, ObjectiveDeclaration) and found.pool not in POOLS:
        raise UserError(f"objective={found.name}: pool={found.pool}: expected token or avg")
    own = [row.name for row in found.metrics if isinstance(row, Metric)]
    for row in found.metrics:
        for name in row.compared_with if isinstance(row, Baseline) else ():
            if name not in own and not has_row(name):
                near = suggest(name, ["loss", "accuracy", *own])
                text = f"baseline {row.name}: compared with {name}, which has no row; {near}"
                raise UserError(f"{what}={found.name}: {text}")
    names = [row.name for row in found.metrics]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UserError(f"{what}={found.name}: metrics: two rows are named {twice}")
    if not is_plugins(type(found)):
        register(*found.metrics)
    known[found.name] = found


def own_rows(objective_name: str, target_name: str) -> list[Row]:
    """Return the rows that an objective and a target of plugins declare: names in a run of them
    mean these rows first."""
    found = (objectives().get(objective_name), targets().get(target_name))
    return [row for one in found if one and is_plugins(type(one)) for row in one.metrics]


def is_plugins(kind: type) -> bool:
    """Whether a class is not the package's own."""
    return not kind.__module__.startswith(FOUND_IN)


def withdraw(name: str) -> None:
    """Take back what a plugin has declared of that name, as one that fails after it."""
    all_known: tuple[dict[str, Any], ...] = (_OBJECTIVES, _TARGETS)
    for known in all_known:
        if name in known and is_plugins(type(known[name])):
            del known[name]


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


def all_declared() -> list[ObjectiveDeclaration | TargetDeclaration]:
    return [*objectives().values(), *targets().values()]


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
    """The objective of that name; of one that is not known here, as a plugin's, what its runs have
    recorded of it, else a declaration of its name and nothing else."""
    found = objectives().get(name) or _RECORDED.get(name)
    if found is None:
        found = ObjectiveDeclaration()
        found.name = name
    return found


def tells_nothing(metric: str, objective_name: str, target_name: str) -> bool:
    """Whether the best value of a metric may be that of collapsed features (`no_measure`)."""
    part, _, last = metric.rpartition("/")
    name = part or objective_name
    found = known_or_bare(name)
    if last in found.no_measure:
        return True
    if name in objectives() and not found.predicts_patches:
        return False  # such as the labels' part of a sum
    predicted = targets().get(target_name)
    recorded = _RECORDED_TARGETS.get(target_name, ())
    return last in (predicted.no_measure if predicted else recorded)


def to_record(objective_name: str, target_name: str | None) -> dict[str, Any]:
    """What pages, lists and reports have to know of a plugin's objective and target, which they do
    not run: `adopt` reads it from environment.json.

    Raises:
        UserError: there is no such objective.
    """
    found = objective(objective_name)
    predicted = targets().get(target_name or "")
    rows = [*found.metrics, *(predicted.metrics if predicted else ())]
    return {
        "objective": found.name,
        **{key: getattr(found, key) for key in RECORDED},
        "target": predicted.name if predicted else None,
        "target_no_measure": [*predicted.no_measure] if predicted else [],
        "metrics": [asdict(row) for row in rows if isinstance(row, Metric)],
        "baselines": [asdict(row) for row in rows if isinstance(row, Baseline)],
    }


def adopt(recorded: "Declared") -> None:
    """Know what `to_record` has written of an objective and a target that are not known here."""
    found = ObjectiveDeclaration()
    for key in RECORDED:
        setattr(found, key, recorded[key])
    found.name = recorded.objective
    _RECORDED[found.name] = found
    if recorded.target:
        _RECORDED_TARGETS[recorded.target] = tuple(recorded.target_no_measure)


def describe_targets() -> str:
    """What each target predicts of a patch, for the help of `target`."""
    found = (f"{name}: {one.sentence}" for name, one in targets().items() if one.sentence)
    return f"What is predicted of a patch. {'; '.join(found)}."


def _named(key: str, name: str, known: Mapping[str, D]) -> D:
    if name not in known:
        raise UserError(f"{key}={name}: {suggest(name, known)}; {ADDED}")
    return known[name]


def groups() -> list[Group]:
    """The groups of keys of all objectives and targets, each once: a plugin may take another's."""
    return list(dict.fromkeys(one.options for one in all_declared() if one.options))
