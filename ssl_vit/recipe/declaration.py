"""Declare objectives and targets: what a declaration says, and where declarations are found.

An objective is a folder of ssl_vit/objectives/ whose `__init__.py` has a `DECLARATION`, or a plugin
that calls `declare`. Everything that the workbench does for an objective (options and help, checks,
pages, model cards, which runs are compared) reads the declaration. The network of the objective is
imported only when it is built, so this module does not import torch.
"""

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UserError, suggest
from ..measurements import SUBSTITUTES, Baseline, Metric, Row, has_row, read_flat_name, register
from .keys import Keys

if TYPE_CHECKING:
    from .records.run import Declared
    from .schema import Recipe

G = TypeVar("G")
FOUND_IN = "ssl_vit.objectives"
ADDED = "plugin=FILE.py adds more"  # added to errors about unknown names
# What several objectives use:
# `corruption`: the group of keys for objectives that corrupt patches.
# `target`: for objectives that predict patches.
# `views`: the group of keys for objectives that compare two random views of an image.
# `views.local`: for objectives that also see smaller, local views.
# `data.mixup` (and data.cutmix): for objectives that learn from images blended in pairs
# (Batch.partner_label).
# `probe`: the group of keys for the evaluation.
SHARED = ("corruption", "target", "views", "views.local", "data.mixup", "probe")
POOLS = ("token", "avg")


@dataclass(frozen=True)
class Group:
    """Named group of keys: `name` is the prefix in `NAME.FIELD`, `kind` the pydantic model.

    The first paragraph of the docstring of `kind` is the description of the group in --help.
    """

    name: str
    kind: type[Keys]


def find_group(groups: Mapping[str, Any], kind: type[G]) -> G:
    """Return the group of keys that has the given type.

    Args:
        groups: {name: group of keys}.
        kind: Class of the wanted group.

    Raises:
        KeyError: No group has this type, because the objective does not use it.
    """
    for group in groups.values():
        if isinstance(group, kind):
            return group
    raise KeyError(f"the objective does not use {kind.__name__}")


class ObjectiveDeclaration:
    """Everything known about an objective (`objective=NAME`) without building the network.

    Attributes:
        name: Name of the objective: the name of its folder, or the name that a plugin gives. Also
            used as a tag on the Hub.
        title: What the objective is, used as the first words of a page.
        paper: The paper that the objective comes from, for the model card.
        cite: BibTeX entry of that paper; empty if it is the Vision Transformer paper.
        figure: Caption of the pictures that the network makes of images (`panels`); empty if it
            makes none.
        options: Group of keys that belongs to this objective alone.
        shared: Names from SHARED that the objective uses.
        labels: Whether the objective learns labels. A run that learns labels from trained weights
            is a fine-tuning.
        pool: How the exported encoder pools its tokens into one feature per image: `"token"` (the
            class token) or `"avg"` (the mean of the patch tokens). If `options` has a key `pool`,
            the value of that key counts instead.
        metrics: Metrics and baselines that the objective adds (metrics.py).
        any_length: Whether no step depends on the share of the run that is done (`start_step`,
            `averages`). Runs of different lengths can then share their first steps
            (resume=RUN@STEP).
        no_measure: Names of metrics that collapsed features may optimise. No checkpoint is chosen
            and no runs are ranked by these metrics.
        parts: Names of the objectives that this objective is the sum of.
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
        """Build the network of the objective (objectives.base.Objective) around an encoder.

        By default, call `build` of the file `network.py` in the folder of the declaration. That
        file may import torch. The file of the declaration must not, because commands such as
        `--help` read all declarations and would wait for the import.

        Args:
            settings: objectives.building.Settings.
            encoder: models.encoder.Encoder, or another Backbone.
            classes: Number of classes of the labels; 0 if the objective learns no labels.
        """
        network = importlib.import_module(".network", type(self).__module__)
        return network.build(settings, encoder, classes)

    def check(self, recipe: "Recipe") -> None:
        """Check the relations between the objective's keys and the rest of the recipe.

        Raises:
            UserError: A relation does not hold (`recipe.error`).
        """

    def check_pass(self, recipe: "Recipe", images: int) -> None:
        """Check that the objective can work with this number of images per forward and backward
        pass.

        By default, any number is allowed. An objective that compares the images of a pass, for
        example, refuses a single image.

        Args:
            recipe: The recipe of the run.
            images: Images that one process sees in a pass.

        Raises:
            UserError: The number does not suit the objective (`recipe.error`).
        """

    def check_label_lists(self, recipe: "Recipe", lists: str) -> None:
        """Check that the objective can learn from images that have several labels each.

        By default, raise the error. An objective that learns from lists of labels overrides this
        method and returns.

        Args:
            recipe: The recipe of the run.
            lists: Start of the error: a sentence that says where the lists were found, such as
                "data.label_column=tags holds a list of labels for each image".

        Raises:
            UserError: The objective needs a single label for each image.
        """
        raise UserError(
            f"objective={self.name}: {lists}. This objective needs one label for each image. Choose"
            " another data.label_column=."
        )

    def trained(self, recipe: "Recipe") -> "list[ObjectiveDeclaration]":
        """Return the objectives that are trained: this objective, or all parts with a weight above
        0.
        """
        return [self]

    @property
    def sets_pool(self) -> bool:
        """Return whether a subclass sets `pool` and does not leave the default."""
        classes = type(self).__mro__
        return any(
            "pool" in vars(parent) for parent in classes[: classes.index(ObjectiveDeclaration)]
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups of keys that the objective uses, such as (views, dino).

        Groups that several objectives share come first, then the groups of the parts of a sum of
        objectives, and last the objective's own group.
        """
        own_group = (self.options.name,) if self.options else ()
        # `shared` also has single keys, such as views.local
        shared = (name for name in self.shared if "." not in name)
        of_parts = (group for part in self.parts for group in objective(part).groups)
        return tuple(dict.fromkeys((*shared, *of_parts, *own_group)))

    def groups_with(self, target_name: str) -> tuple[str, ...]:
        """Return the names of the groups of keys that the objective uses with a target.

        These are `groups` and, if the objective predicts patches, the group of the target. A target
        that is unknown here, or that has no keys, adds no group.
        """
        group = targets()[target_name].options if target_name in targets() else None
        if group and self.predicts_patches:
            return (*self.groups, group.name)
        return self.groups

    @property
    def predicts_patches(self) -> bool:
        return "target" in self.groups


class TargetDeclaration(ABC):
    """Description of what is predicted for each patch: `target=NAME`.

    Attributes:
        sentence: What is predicted, for --help: "of each patch the encoder predicts SENTENCE".
        cite: BibTeX entry of the paper that the target comes from; empty if there is none to cite.
        drawn: End of figure captions: how the values of the target are drawn, if not as the colours
            of the patch.
        options: Group of keys that belongs to this target alone.
        patch_multiple: Number of which model.patch must be a multiple.
        any_channels: Whether the target works for images other than 8-bit RGB: any number of
            channels (the length of mean and std) and any range of values.
        any_length: As for an objective. Often false for a target that has a teacher (`averages`).
        metrics, no_measure: As for an objective.
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
        """Build the target as a module (objectives.targets.patch_targets.Target) for the patches of
        an encoder.

        A module that declares a target must not import torch, because commands such as `--help`
        read all declarations. Import torch in this method.

        Args:
            settings: objectives.building.Settings.
            encoder: models.encoder.Encoder.
        """


D = TypeVar("D", ObjectiveDeclaration, TargetDeclaration)
_OBJECTIVES: dict[str, ObjectiveDeclaration] = {}
_TARGETS: dict[str, TargetDeclaration] = {}
# What runs with plugins recorded: the declarations of their objectives, and `no_measure` of their
# targets
_RECORDED: dict[str, ObjectiveDeclaration] = {}
_RECORDED_TARGETS: dict[str, tuple[str, ...]] = {}
RECORDED = (
    "title",
    "paper",
    "cite",
    "figure",
    "labels",
    "no_measure",
)  # attributes that are recorded


def declare(part: ObjectiveDeclaration | TargetDeclaration) -> None:
    """Register an objective or a target.

    Raises:
        UserError: `part` is a class or another object, the name is missing or already taken,
            `shared` has an unknown name, `pool` is neither "token" nor "avg", two rows of metrics
            have the same name, or a baseline is compared with a metric that has no row.
    """
    if not isinstance(part, ObjectiveDeclaration | TargetDeclaration):
        class_name = getattr(part, "__name__", type(part).__name__)
        raise UserError(
            f"declare({class_name}): expected an instance. Write declare({class_name}())."
        )
    registered: dict[str, Any] = _OBJECTIVES if isinstance(part, ObjectiveDeclaration) else _TARGETS
    kind = "objective" if registered is _OBJECTIVES else "target"
    if not part.name:
        raise UserError(f"{type(part).__name__}: the {kind} has no name. Set `name`.")
    before = registered.get(part.name)
    if before is not None and before is not part:
        raise UserError(f"{kind}={part.name}: this name is already taken. Choose another name.")
    for name in getattr(part, "shared", ()):  # a target has no such attribute
        if name not in SHARED:
            raise UserError(f"objective={part.name}: shared={name}: {suggest(name, SHARED)}")
    if isinstance(part, ObjectiveDeclaration) and part.pool not in POOLS:
        raise UserError(f"objective={part.name}: pool={part.pool}: expected token or avg")
    _check_rows(part, f"{kind}={part.name}")
    if not is_from_plugin(type(part)):
        register(*part.metrics)
    registered[part.name] = part


def _check_rows(part: ObjectiveDeclaration | TargetDeclaration, prefix: str) -> None:
    """Check the descriptions of metrics and baselines (`metrics`) of an objective or a target.

    Args:
        part: Objective or target.
        prefix: Start of the error, such as `objective=mae`.

    Raises:
        UserError: Two descriptions have the same name, or a baseline is compared with a metric that
            nobody describes.
    """
    metric_names = [row.name for row in part.metrics if isinstance(row, Metric)]
    for row in part.metrics:
        if not isinstance(row, Baseline):
            continue
        for name in row.compared_with:
            if name not in metric_names and not has_row(read_flat_name(name)):
                near = suggest(name, ["loss", "accuracy", *metric_names])
                text = f"baseline {row.name} is compared with the unknown metric {name}, {near}"
                raise UserError(f"{prefix}: {text}")
    names = [*SUBSTITUTES, *(row.name for row in part.metrics)]
    for name in names:
        if "/" in name:  # separates the part of a joint objective, and held-out columns
            raise UserError(f"{prefix}: the name {name} has a /. Choose another name.")
        if names.count(name) > 1:
            text = f"two metrics or baselines are named {name}. Choose another name"
            raise UserError(f"{prefix}: {text}.")


def plugin_rows(objective_name: str, target_name: str) -> list[Row]:
    """Return the rows of metrics that the plugins of an objective and a target declare.

    In a run of this objective and target, the name of a metric means one of these rows first.
    """
    parts = (objectives().get(objective_name), targets().get(target_name))
    return [row for part in parts if part and is_from_plugin(type(part)) for row in part.metrics]


def is_from_plugin(kind: type) -> bool:
    """Return whether a class comes from a plugin and not from this package."""
    return not kind.__module__.startswith(FOUND_IN)


def withdraw(name: str) -> None:
    """Remove the objective and target that a plugin declared under this name, because the plugin
    failed later.
    """
    all_known: tuple[dict[str, Any], ...] = (_OBJECTIVES, _TARGETS)
    for known in all_known:
        if name in known and is_from_plugin(type(known[name])):
            del known[name]


@functools.cache
def _declare_package_objectives() -> None:
    """Declare the objectives and targets of this package, once per process.

    The package of objectives imports this module. An `import` of that package at the top of this
    module would be circular, so the package is imported when the declarations are first needed.
    """
    importlib.import_module(FOUND_IN).declare_all()


def objectives() -> Mapping[str, ObjectiveDeclaration]:
    """Return {name: objective}, including the objectives of plugins that ran."""
    _declare_package_objectives()
    return _OBJECTIVES


def targets() -> Mapping[str, TargetDeclaration]:
    """Return {name: target}, including the targets of plugins that ran."""
    _declare_package_objectives()
    return _TARGETS


def all_declared() -> list[ObjectiveDeclaration | TargetDeclaration]:
    return [*objectives().values(), *targets().values()]


def objective(name: str) -> ObjectiveDeclaration:
    """Return the objective with this name.

    Raises:
        UserError: No objective has this name.
    """
    return _named("objective", name, objectives())


def target(name: str) -> TargetDeclaration:
    """Return the target with this name.

    Raises:
        UserError: No target has this name.
    """
    return _named("target", name, targets())


def find_objective_or_stub(name: str) -> ObjectiveDeclaration:
    """Return the objective with this name, even for an unknown name.

    An objective is unknown if, for example, its plugin has not run. For an unknown objective,
    return what runs with this objective recorded or, without such a record, a declaration that has
    nothing but the name.
    """
    known = objectives().get(name) or _RECORDED.get(name)
    if known is None:
        known = ObjectiveDeclaration()
        known.name = name
    return known


def may_reward_collapse(metric: str, objective_name: str, target_name: str) -> bool:
    """Return whether an encoder with collapsed features may reach the best value of a metric.

    Features have collapsed if they are the same for all images. Objectives and targets list the
    metrics that do not notice the collapse (`no_measure`). A target matters only if the objective
    predicts patches. For the metric `supervised/loss` of a sum of objectives, the part `supervised`
    is the objective.

    Args:
        metric: Full name of the metric.
        objective_name: Objective of the run.
        target_name: Target of the run.
    """
    key = read_flat_name(metric)
    name = key.part or objective_name
    declared = find_objective_or_stub(name)
    if key.name in declared.no_measure:
        return True
    if name in objectives() and not declared.predicts_patches:
        return False
    if target_name in targets():
        return key.name in targets()[target_name].no_measure
    return key.name in _RECORDED_TARGETS.get(target_name, ())


def to_record(objective_name: str, target_name: str | None) -> dict[str, Any]:
    """Return what pages, lists and reports need to know about an objective and a target of a
    plugin.

    Pages, lists and reports do not run plugins. They read this record from environment.json with
    `remember_recorded`. It holds names and titles, the rows of metrics, and `no_measure`, the
    metrics that are good even if the features are the same for all images.

    Raises:
        UserError: No objective has this name.
    """
    declared = objective(objective_name)
    predicted = targets().get(target_name or "")
    rows = [*declared.metrics, *(predicted.metrics if predicted else ())]
    return {
        "objective": declared.name,
        **{key: getattr(declared, key) for key in RECORDED},
        "target": predicted.name if predicted else None,
        "target_no_measure": [*predicted.no_measure] if predicted else [],
        "metrics": [asdict(row) for row in rows if isinstance(row, Metric)],
        "baselines": [asdict(row) for row in rows if isinstance(row, Baseline)],
    }


def remember_recorded(recorded: "Declared") -> None:
    """Remember what a run recorded about the objective and the target of its plugin (`to_record`).

    In a process that does not run the plugin, `find_objective_or_stub` and `may_reward_collapse`
    then answer from the record.
    """
    stub = ObjectiveDeclaration()
    for key in RECORDED:
        setattr(stub, key, recorded[key])
    stub.name = recorded.objective
    _RECORDED[stub.name] = stub
    if recorded.target:
        _RECORDED_TARGETS[recorded.target] = tuple(recorded.target_no_measure)


def describe_targets() -> str:
    """Return the help of `target`: what each target predicts for a patch."""
    sentences = (
        f"{name}: {target.sentence}" for name, target in targets().items() if target.sentence
    )
    return f"What is predicted for each patch. {'; '.join(sentences)}."


def _named(key: str, name: str, known: Mapping[str, D]) -> D:
    if name not in known:
        raise UserError(f"{key}={name}: {suggest(name, known)} ({ADDED})")
    return known[name]


def groups() -> list[Group]:
    """Return the groups of keys of all objectives and targets, each group once.

    A plugin may use the group of another objective, so the same group can be declared several
    times.
    """
    return list(dict.fromkeys(part.options for part in all_declared() if part.options))


def predicts_labels(objective: str) -> bool:
    """Return whether an objective predicts labels and nothing else."""
    declared = find_objective_or_stub(objective)
    return declared.labels and not declared.parts
