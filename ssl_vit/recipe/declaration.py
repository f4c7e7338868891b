"""Declare objectives and targets, and look up declarations.

An objective is a folder of ssl_vit/objectives/ whose `__init__.py` has a `DECLARATION`, or a plugin
that calls `declare`. Options and help, checks, pages, model cards and the choice of runs to compare
are based on the declaration. The network of an objective is imported only when it is built, so this
module does not import torch.
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
# Groups of keys and single keys that several objectives use:
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
    """Named group of keys.

    Attributes:
        name: Prefix of the dotted keys: `NAME.FIELD`.
        kind: Pydantic model of the group. Its docstring describes the group in --help.
    """

    name: str
    kind: type[Keys]


def find_group(groups: Mapping[str, Any], kind: type[G]) -> G:
    """Return the group of keys with the given type.

    Args:
        groups: {name: group of keys}.
        kind: Class of the group.

    Raises:
        KeyError: No group has this type, because the objective does not use it.
    """
    for group in groups.values():
        if isinstance(group, kind):
            return group
    raise KeyError(f"the objective does not use {kind.__name__}")


class ObjectiveDeclaration:
    """Description of an objective (`objective=NAME`), available without building the network.

    Attributes:
        name: Name of the objective: the name of its folder, or the name that a plugin gives. Also
            used as a tag on the Hub.
        title: Short description of the objective, used as the first words of a page.
        paper: The paper that the objective comes from, for the model card.
        cite: BibTeX entry of that paper; empty for the Vision Transformer paper.
        figure: Caption of the pictures that the network draws of images (`panels`); empty if there
            are none.
        options: Group of keys that only this objective uses.
        shared: Names from SHARED that the objective uses.
        labels: Whether the objective learns labels. A run that learns labels from trained weights
            is a fine-tuning.
        pool: How the exported encoder pools its tokens into one feature per image: `"token"` (the
            class token) or `"avg"` (the mean of the patch tokens). If `options` has a key `pool`,
            the value of that key counts instead.
        metrics: Metrics and baselines that the objective adds (metrics.py).
        any_length: Whether training steps do not depend on the length of the run. They do if
            `start_step` or `averages` uses the share of the run that is done. Only without this
            dependence can runs of different lengths share their first steps (resume=RUN@STEP).
        no_measure: Names of metrics that may be good although the features have collapsed. These
            metrics neither choose checkpoints nor rank runs.
        parts: Names of the summands, if this objective is a sum of objectives.
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

        By default, call `build` in `network.py`, next to the declaration. Only `network.py` may
        import torch, because commands such as `--help` import all declarations and must be fast.

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
        """Check the number of images per forward and backward pass.

        By default, any number is allowed. Override this method if the objective has a condition.
        For example, DINO refuses a number that `dino.koleo_group` does not divide.

        Args:
            recipe: The recipe of the run.
            images: Images that one process sees in a pass.

        Raises:
            UserError: The number does not suit the objective (`recipe.error`).
        """

    def check_label_lists(self, recipe: "Recipe", lists: str) -> None:
        """Refuse images that have several labels each.

        An objective that supports several labels per image overrides this method and raises no
        error.

        Args:
            recipe: The recipe of the run.
            lists: Sentence for the error that says where lists of labels were found, such as
                "data.label_column=tags holds a list of labels for each image".

        Raises:
            UserError: The objective needs a single label for each image.
        """
        raise UserError(
            f"objective={self.name}: {lists}. This objective needs one label for each image. Choose"
            " another data.label_column=."
        )

    def trained(self, recipe: "Recipe") -> "list[ObjectiveDeclaration]":
        """Return the objectives that the recipe trains.

        By default, return [self]. A sum of objectives overrides this method: it returns the parts
        with a weight above 0. For example, `joint.mpp=0` leaves out the part mpp.
        """
        return [self]

    @property
    def sets_pool(self) -> bool:
        """Return whether the class of this objective, or a parent class of it, sets `pool`.

        Return False if `pool` is only the default in ObjectiveDeclaration.
        """
        classes = type(self).__mro__
        subclasses = classes[: classes.index(ObjectiveDeclaration)]
        return any("pool" in vars(subclass) for subclass in subclasses)

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups of keys that the objective uses, such as (views, dino).

        The order is: groups that several objectives share, groups of the parts (only in a sum of
        objectives), and the objective's own group. No group is repeated.
        """
        own_group = (self.options.name,) if self.options else ()
        # `shared` also has single keys, such as views.local
        shared_groups = (name for name in self.shared if "." not in name)
        part_groups = (group for part in self.parts for group in objective(part).groups)
        return tuple(dict.fromkeys((*shared_groups, *part_groups, *own_group)))

    def groups_with(self, target_name: str) -> tuple[str, ...]:
        """Return the groups of keys of the objective, and the group of a target.

        The group of the target is left out if the objective predicts no patches, if the target has
        no keys, or if the plugin with the target has not run.

        Args:
            target_name: Name of the target, which may be unknown.

        Returns:
            Names of groups, such as ("views", "dino").
        """
        target_group = targets()[target_name].options if target_name in targets() else None
        if target_group and self.predicts_patches:
            return (*self.groups, target_group.name)
        return self.groups

    @property
    def predicts_patches(self) -> bool:
        return "target" in self.groups


class TargetDeclaration(ABC):
    """Description of a target (`target=NAME`), which is what is predicted for each patch.

    Attributes:
        sentence: What is predicted, for --help: "of each patch the encoder predicts SENTENCE".
        cite: BibTeX entry of the paper that the target comes from; empty if there is none.
        drawn: End of figure captions, which says how the values of the target are drawn; empty if
            they are drawn as the colours of the patch.
        options: Group of keys that only this target uses.
        patch_multiple: model.patch must be a multiple of this number.
        any_channels: Whether the target works for images other than 8-bit RGB: any number of
            channels (the length of mean and std) and any range of values.
        any_length: As for an objective. Often false for a target with a teacher (`averages`).
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
        """Build the module of the target (objectives.targets.patch_targets.Target).

        Import torch in this method and not at the top of the file, because commands such as
        `--help` import all declarations and must be fast.

        Args:
            settings: objectives.building.Settings.
            encoder: models.encoder.Encoder.
        """


D = TypeVar("D", ObjectiveDeclaration, TargetDeclaration)
_OBJECTIVES: dict[str, ObjectiveDeclaration] = {}
_TARGETS: dict[str, TargetDeclaration] = {}
# What runs with plugins recorded, by name: the declaration of the objective, and `no_measure` of
# the target
_RECORDED: dict[str, ObjectiveDeclaration] = {}
_RECORDED_TARGETS: dict[str, tuple[str, ...]] = {}
# Attributes of an objective that runs record
RECORDED = ("title", "paper", "cite", "figure", "labels", "no_measure")


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
    existing = registered.get(part.name)
    if existing is not None and existing is not part:
        raise UserError(f"{kind}={part.name}: this name is already taken. Choose another name.")
    for name in getattr(part, "shared", ()):  # a target has no such attribute
        if name not in SHARED:
            near = suggest(name, SHARED)
            raise UserError(f"objective={part.name}: shared={name}: unknown name, {near}")
    if isinstance(part, ObjectiveDeclaration) and part.pool not in POOLS:
        raise UserError(f"objective={part.name}: pool={part.pool}: expected token or avg")
    _check_rows(part, f"{kind}={part.name}")
    if not is_from_plugin(type(part)):
        register(*part.metrics)
    registered[part.name] = part


def _check_rows(part: ObjectiveDeclaration | TargetDeclaration, prefix: str) -> None:
    """Check the names in `metrics` of an objective or a target.

    Args:
        part: Objective or target.
        prefix: Start of the error, such as `objective=mae`.

    Raises:
        UserError: A name is used twice or has a slash, or a baseline is compared with an unknown
            metric.
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
        if "/" in name:  # a slash ends the prefix in names such as validation/loss and mpp/loss
            raise UserError(f"{prefix}: the name {name} has a /. Choose another name.")
        if names.count(name) > 1:
            text = f"two metrics or baselines are named {name}. Choose another name"
            raise UserError(f"{prefix}: {text}.")


def plugin_rows(objective_name: str, target_name: str) -> list[Row]:
    """Return the metrics and baselines of an objective and a target, if plugins declare them.

    An objective or target of this package adds nothing to the result. In a run with the objective
    and target, the returned rows take precedence over rows of this package with the same name.
    """
    parts = (objectives().get(objective_name), targets().get(target_name))
    return [row for part in parts if part and is_from_plugin(type(part)) for row in part.metrics]


def is_from_plugin(kind: type) -> bool:
    """Return whether a plugin, and not this package, defines a class."""
    return not kind.__module__.startswith(FOUND_IN)


def withdraw(name: str) -> None:
    """Remove the objective and the target with this name, if a plugin declared them.

    Used if a plugin first declares an objective or a target and then raises an error.
    """
    registries: tuple[dict[str, Any], ...] = (_OBJECTIVES, _TARGETS)
    for registered in registries:
        if name in registered and is_from_plugin(type(registered[name])):
            del registered[name]


@functools.cache
def _declare_package_objectives() -> None:
    """Declare the objectives and targets of this package, once per process.

    ssl_vit.objectives imports this module, so this module cannot import ssl_vit.objectives at the
    top.
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
    """Return the objective with this name, or a stub for an unknown name.

    An objective is unknown if, for example, its plugin has not run. If a run with this objective
    recorded attributes (`remember_recorded`), the stub has these attributes. Otherwise the stub has
    only the name.
    """
    known = objectives().get(name) or _RECORDED.get(name)
    if known is None:
        known = ObjectiveDeclaration()
        known.name = name
    return known


def may_reward_collapse(metric: str, objective_name: str, target_name: str) -> bool:
    """Return whether an encoder with collapsed features may reach the best value of a metric.

    Features have collapsed if they are the same for all images. Objectives and targets list such
    metrics in `no_measure`. The list of the target counts only if the objective predicts patches,
    or if the objective is unknown. In a sum of objectives, the metric `supervised/loss` belongs to
    the part `supervised`, whose list counts.

    Args:
        metric: Flat name of the metric, such as `loss` or `supervised/loss`.
        objective_name: Objective of the run.
        target_name: Target of the run.
    """
    key = read_flat_name(metric)
    part_name = key.part or objective_name
    declared = find_objective_or_stub(part_name)
    if key.name in declared.no_measure:
        return True
    if part_name in objectives() and not declared.predicts_patches:
        return False
    if target_name in targets():
        return key.name in targets()[target_name].no_measure
    return key.name in _RECORDED_TARGETS.get(target_name, ())


def to_record(objective_name: str, target_name: str | None) -> dict[str, Any]:
    """Return a record of a plugin's objective and target for environment.json.

    Pages, lists and reports do not run plugins. They know the objective from this record (see
    `remember_recorded`).

    Args:
        objective_name: Name of the objective.
        target_name: Name of the target, or None. An unknown target is left out of the record.

    Returns:
        For example {"objective": "mine", "title": "...", "labels": False, "target": None,
        "metrics": [...], ...}. The fields are those of `records.run.Declared`.

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
    """Store the record of a plugin's objective and target (`to_record`) in this process.

    If the plugin has not run, `find_objective_or_stub` and `may_reward_collapse` use the record.
    """
    stub = ObjectiveDeclaration()
    for key in RECORDED:
        setattr(stub, key, recorded[key])
    stub.name = recorded.objective
    _RECORDED[stub.name] = stub
    if recorded.target:
        _RECORDED_TARGETS[recorded.target] = tuple(recorded.target_no_measure)


def describe_targets() -> str:
    """Return the help of the key `target`.

    For example, "What is predicted for each patch. mean_color: SENTENCE; NAME: SENTENCE.".
    """
    sentences = (
        f"{name}: {target.sentence}" for name, target in targets().items() if target.sentence
    )
    return f"What is predicted for each patch. {'; '.join(sentences)}."


def _named(key: str, name: str, known: Mapping[str, D]) -> D:
    """Return the declaration with this name.

    Args:
        key: `objective` or `target`, the start of the error.
        name: Name to look up.
        known: {name: declaration}.

    Raises:
        UserError: The name is unknown. The error suggests the nearest name.
    """
    if name not in known:
        raise UserError(f"{key}={name}: {suggest(name, known)} ({ADDED})")
    return known[name]


def groups() -> list[Group]:
    """Return the groups of keys of all objectives and targets, without duplicates.

    A plugin may use the group of another objective, so a group can be declared several times.
    """
    return list(dict.fromkeys(part.options for part in all_declared() if part.options))


def predicts_labels(objective: str) -> bool:
    """Return whether an objective only predicts labels, such as `supervised`.

    Return False for a sum of objectives, because its other parts may not predict labels.
    """
    declared = find_objective_or_stub(objective)
    return declared.labels and not declared.parts
