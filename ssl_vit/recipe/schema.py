"""Define the recipe: the typed values that define a run.

A key is described only once: here, in the module of a group, or in the declaration of an objective.
docs/options.md lists all keys. This module does not import torch.
"""

import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import ConfigDict, Field, ValidationError, create_model

from ..errors import UserError
from ..formatting import FEW_IMAGES, format_value, option_text
from ..measurements import Row
from ..metrics import held_out_choices
from . import declaration
from .images import Data
from .init_source import InitSource
from .keys import (
    Effect,
    Key,
    Keys,
    NamedChoice,
    Values,
    build_validated,
    convert,
    key,
    keys_of,
    summary,
)
from .model import Model
from .names import NO_CONTROL, NewFolder, PathText, RunAtStep, RunName, has_control
from .operation import Checkpoint, Compute, Eval, Hub, Log
from .optimisation import Optim
from .parsing import flatten, nested, yaml_text
from .probe import Probe
from .shared_groups import GROUPS as SHARED_GROUPS
from .shared_groups import ViewOptions

DEFAULT_OBJECTIVE = "mpp"
DEFAULT_TARGET = "mean_color"
LARGE_SHARE = 0.2  # a run that holds out at least this share need not hold out more images
# Keys and groups that describe the machine or the user. They are neither published nor taken over
# from recipes of other people.
PRIVATE = ("out", "resume", "plugin", "data.path", "eval.real", "hub")

G = TypeVar("G")
V = TypeVar("V")


def group(kind: type[Keys]) -> Any:
    """Return a pydantic field for a group of keys.

    The first paragraph of the group's docstring is the description of the field.
    """
    return Field(default_factory=kind, description=summary(kind))


class Trunk(NamedTuple):
    """Run that a new run continues, and the step at which the new run begins.

    resume=runs/mpp@1000 gives the folder runs/mpp and the step 1000.
    """

    folder: Path
    step: int


class Recipe(Keys):
    """Keys that every recipe has. `recipe_class` adds the groups that an objective uses.

    Attributes:
        name: Name of the run's folder. Default: the recipe's name and every option that changes
            what is computed.
        out: Folder that holds the runs.
        seed: Seed of every random choice.
        resume: What to do if the run's folder already holds a run. true: resume it. false: refuse.
            RUN@STEP: begin a new run of another length from this checkpoint of another run; needs
            optim.schedule=wsd.
        plugin: Python file that adds objectives or targets (docs/extend.md).
        init: Initial weights: scratch (random weights), a run's folder, an export's folder,
            timm:NAME, hf-hub:USER/NAME or a Google .npz file.
        objective: What the encoder is trained to do.
        target: What is predicted for each patch.
    """

    name: RunName = key("", effect="run")
    out: NewFolder = key("runs", effect="run")
    seed: int = key(0, ge=-(2**63), lt=2**63)
    resume: bool | RunAtStep = key(True, effect="run")
    plugin: PathText | None = key(None, effect="run")
    init: PathText = key("scratch", from_init=True, names_weights=True)
    objective: Annotated[str, NamedChoice(declaration.objectives, declaration.ADDED)] = key(
        DEFAULT_OBJECTIVE
    )
    data: Data = group(Data)
    model: Model = group(Model)
    target: Annotated[str, NamedChoice(declaration.targets, declaration.ADDED)] = key(
        DEFAULT_TARGET
    )
    probe: Probe = group(Probe)
    optim: Optim = group(Optim)
    compute: Compute = group(Compute)
    checkpoint: Checkpoint = group(Checkpoint)
    eval: Eval = group(Eval)
    log: Log = group(Log)
    hub: Hub = group(Hub)

    def __new__(cls, **values: Any) -> "Recipe":
        """Create a recipe with the groups of keys of the objective.

        `Recipe(objective=NAME)` returns an instance of the subclass `recipe_class(NAME, ...)`.
        """
        if cls is Recipe:
            cls = recipe_class(values.get("objective", DEFAULT_OBJECTIVE), values)
        return super().__new__(cls)

    def __reduce__(self) -> Any:
        """Pickle only the values.

        `recipe_class` makes the class at run time, so pickle would not find the class in a module.
        """
        return _unpickle, (self.model_dump(),)

    @property
    def groups(self) -> dict[str, Any]:
        """Groups of keys that not every recipe has, as {name: group}.

        For example {"corruption": CorruptionOptions(...)}. Unknown keys, which belong to a plugin
        that has not run, are included.
        """
        names = [name for name in type(self).model_fields if name not in Recipe.model_fields]
        return {name: getattr(self, name) for name in names} | (self.model_extra or {})

    def group(self, kind: type[G]) -> G:
        """Return the group of keys with the given type.

        Raises:
            KeyError: The objective does not use this group.
        """
        return declaration.find_group(self.groups, kind)

    @property
    def declared(self) -> declaration.ObjectiveDeclaration:
        """Declaration of the objective.

        Raises:
            UserError: The objective is unknown in this process.
        """
        return declaration.objective(self.objective)

    @property
    def plugin_rows(self) -> list[Row]:
        """Metrics and baselines of the objective and the target that plugins declare."""
        return declaration.plugin_rows(self.objective, self.target)

    def uses_key(self, key: str) -> bool:
        """Return whether the recipe uses a dotted key.

        - `target`: used if the objective predicts patches.
        - Group `probe`: used by evaluations, and by training with `probe.every`.
        - Groups of objectives and targets, such as `corruption`: used if this recipe has the group.
        - All other keys: used.
        """
        group = key.split(".")[0]
        if group == "target":
            return uses_target(self.objective)
        if group == "probe":
            return self.objective == "probe" or self.probe.every is not None
        return group in type(self).model_fields or group in (self.model_extra or {})

    def values(self) -> Values:
        """Return {dotted key: value} for the keys in use (`uses_key`), in the order of `all_keys`.

        For example {"name": "mpp", ..., "optim.lr": 0.001, ...}.

        Raises:
            UserError: A group of keys holds a single value, for example after `recipe.data = 3`.
        """
        for name, info in type(self).model_fields.items():
            kind = info.annotation
            if not (isinstance(kind, type) and issubclass(kind, Keys)):
                continue
            if not isinstance(getattr(self, name), kind):
                raise UserError(
                    f"{name}: this is a group of keys ({kind.__name__}) and has no value of its"
                    f" own. Set each key, as in {name}.KEY=VALUE."
                )
        flat = flatten(self.model_dump(warnings=False))
        ranks = {key: rank for rank, key in enumerate(all_keys())}
        # unknown keys, of a plugin that has not run, come last
        keys = sorted(filter(self.uses_key, flat), key=lambda key: ranks.get(key, len(ranks)))
        return {key: flat[key] for key in keys}

    def value(self, key: str) -> Any:
        """Return the value of a dotted key."""
        return functools.reduce(getattr, key.split("."), self)

    def set(self, key: str, value: Any) -> None:
        """Set a dotted key to another value, without checking the value."""
        group, _, name = key.rpartition(".")
        setattr(self.value(group) if group else self, name, value)

    def error(self, key: str, reason: str, value: Any = None) -> UserError:
        """Return an error about a value that contradicts the rest of the recipe: KEY=VALUE: REASON.

        Args:
            key: Dotted key.
            reason: What is wrong or expected.
            value: Value to show. Default: the value of the key.
        """
        shown = format_value(self.value(key)) if value is None else value
        return UserError(f"{key}={shown}: {reason}")

    def refuse(self, key: str, reason: str, wrong: object, value: Any = None) -> None:
        """Raise the error about a key (see `error`) if `wrong` is true.

        Args:
            key, reason, value: As in `error`.
            wrong: Whether the value of the key contradicts the rest of the recipe.

        Raises:
            UserError: `wrong` is true.
        """
        if wrong:
            raise self.error(key, reason, value)

    @property
    def patches(self) -> int:
        """Number of patches of a training image."""
        return (self.data.size // self.model.patch) ** 2

    @property
    def trains(self) -> bool:
        """Return whether the run trains anything. An evaluation does not."""
        return self.objective != "probe"

    @property
    def trunk(self) -> Trunk | None:
        """Run and step of resume=RUN@STEP, or None for a run that starts at step 0."""
        if isinstance(self.resume, bool):
            return None
        run, _, step = self.resume.rpartition("@")
        return Trunk(Path(run), int(step))

    @property
    def new_steps(self) -> int:
        """Number of steps that this run trains itself, without the steps of the trunk."""
        return self.optim.steps - (self.trunk.step if self.trunk else 0)

    @property
    def pool(self) -> str:
        """Return how the exported encoder pools tokens into a feature.

        The result is "token" (the class token) or "avg" (the mean of the patch tokens). If the
        objective has an option `pool` and its value is not null, this value decides. Otherwise
        `pool` in the declaration of the objective decides. In a sum of objectives, the last part
        with a weight above 0 counts as the objective.
        """
        last_objective = self.declared.trained(self)[-1]
        options = self.groups[last_objective.options.name] if last_objective.options else None
        pool = getattr(options, "pool", None)  # None if there is no such option, or if it is null
        return str(pool or last_objective.pool)

    @property
    def fine_tunes(self) -> bool:
        """Return whether the run trains on labels only, starting from trained weights."""
        declared_objective = declaration.find_objective_or_stub(self.objective)
        learns_labels = declared_objective.labels and not declared_objective.parts and self.trains
        return learns_labels and not self.init_source.is_scratch

    @property
    def init_source(self) -> InitSource:
        return InitSource(self.init)

    def sources(self) -> dict[str, InitSource]:
        """Return {dotted key: source of weights} for the keys that name weights, such as `init`."""
        named = (key for key, declared in all_keys().items() if declared.names_weights)
        return sources({key: self.value(key) for key in named if self.uses_key(key)})

    @property
    def training_tool(self) -> str:
        """Name of the tool that trains this recipe: "finetune" or "pretrain".

        The plugin of the recipe need not have run.
        """
        return "finetune" if self.fine_tunes else "pretrain"


class _UnknownObjectiveRecipe(Recipe):
    """Recipe with an unknown objective or target, whose plugin has not run.

    Unknown keys are kept without checks.
    """

    model_config = ConfigDict(extra="allow")
    target: str = key(DEFAULT_TARGET)
    objective: str = key(DEFAULT_OBJECTIVE)


def _unpickle(values: dict[str, Any]) -> Recipe:
    return recipe_class(values["objective"], values).model_validate(values)


def recipe_class(objective: str, values: Values) -> type[Recipe]:
    """Return the class of recipes for an objective, which has the groups of keys of the objective.

    If the plugin with the objective or the target has not run, the objective or target is unknown.
    The class then accepts unknown keys without checks.

    Args:
        objective: Name of the objective. If the objective is unknown, the class has the known
            groups that `values` mentions.
        values: {dotted key: value} of the recipe. The target is read from `values`.
    """
    declared = declaration.objectives().get(objective)
    target = values.get("target", DEFAULT_TARGET)
    used_groups = {name.split(".")[0] for name in values}
    if declared is not None:
        used_groups = {*declared.groups_with(str(target))}
    is_unknown = declared is None or (
        isinstance(target, str) and target not in declaration.targets()
    )
    groups = (part for part in all_groups() if part.name in used_groups)
    return _class(_UnknownObjectiveRecipe if is_unknown else Recipe, *groups)


@functools.cache
def _class(base: type[Recipe], *groups: declaration.Group) -> type[Recipe]:
    """Return a subclass of `base` that also has the given groups of keys."""
    fields: dict[str, Any] = {part.name: (part.kind, group(part.kind)) for part in groups}
    made: type[Recipe] = create_model("Recipe", __base__=base, **fields)
    return made


def build(values: Values, where: str = "", typed: Mapping[str, str] | None = None) -> Recipe:
    """Build a recipe from {dotted key: value}.

    Missing keys get the default. Groups that the objective does not use are left out. If the plugin
    with the objective or the target has not run, all keys are kept, and unknown keys are not
    checked.

    Args:
        values: {dotted key: value}.
        where: Start of an error about a value that is not in `typed`, such as the path of a file.
        typed: {dotted key: text} for values that the user typed. An error shows this text.

    Raises:
        UserError: A value has the wrong type or is out of bounds.
    """
    known = all_keys()
    objective = values.get("objective", DEFAULT_OBJECTIVE)
    if not isinstance(objective, str):
        raise UserError(f"{where}objective={objective}: expected a text")
    model = recipe_class(objective, values)
    keeps_all_keys = issubclass(model, _UnknownObjectiveRecipe)
    taken: Values = {}
    for name, value in values.items():
        if isinstance(value, str) and has_control(value):
            start = "" if name in (typed or {}) else where
            raise UserError(f"{start}{name}={' '.join(value.split())}: {NO_CONTROL}")
        if keeps_all_keys or name.split(".")[0] in model.model_fields:
            taken[name] = convert(known[name], value) if name in known else value
    recipe: Recipe = build_validated(model, nested(taken), known, where, typed)
    return recipe


def all_groups() -> list[declaration.Group]:
    """Return the groups of keys that only some recipes have.

    Groups that objectives share come first, then the groups of single objectives and targets.
    """
    return [*SHARED_GROUPS, *declaration.groups()]


def optional_groups() -> set[str]:
    """Return the names of the groups of keys that not every recipe has."""
    return {"target", *(group.name for group in all_groups())}


def uses_target(objective: str) -> bool:
    """Return whether an objective predicts patches. For an unknown objective, return True."""
    declared = declaration.objectives().get(objective)
    return declared is None or "target" in declared.groups


def all_keys() -> dict[str, Key]:
    """Return {dotted key: Key} for all keys of recipes, whatever the objective.

    Raises:
        UserError: A key or group of a plugin has a name that already exists.
    """
    return _keys(*all_groups())


def _check_group(group: declaration.Group) -> None:
    """Check the names and defaults in a group of keys that an objective declares.

    Raises:
        UserError: The name of the group or of a key already exists, or a default is out of bounds.
    """
    if not group.name.isidentifier() or group.name[0] == "_" or hasattr(Recipe, group.name):
        raise UserError(
            f"{group.name}.: no group of keys can have this name, because it is taken or is no"
            " Python name that begins with a letter. Use another name."
        )
    for name in group.kind.model_fields:
        if hasattr(Keys, name):
            raise UserError(f"{group.name}.{name}: this name is reserved. Use another name.")
    try:
        # pydantic does not check defaults by itself, so validate the defaults like given values
        defaults = group.kind().model_dump(warnings=False)
        group.kind.model_validate(defaults)
    except ValidationError as error:
        mistake = error.errors()[0]
        path = mistake["loc"]  # the key, then positions inside a list or mapping
        key_name = str(path[0]) if path else ""
        if mistake["type"] == "missing":
            problem = "key(...) declares no default. Write a default"
        else:
            problem = (
                f"the default {option_text(mistake['input'])} has the wrong type or is out of"
                " bounds. Change the default, the type or the bounds"
            )
        raise UserError(f"{group.name}.{key_name}: {problem}.") from None


@functools.cache
def _keys(*option_groups: declaration.Group) -> dict[str, Key]:
    """Return {dotted key: Key} for the keys of every recipe and for the keys of more groups.

    Args:
        option_groups: Groups of objectives and targets, such as `corruption`.

    Raises:
        UserError: A name of a group or key is already taken, or a default is out of bounds.
    """
    keys: dict[str, Key] = {}
    names = [*Recipe.model_fields, *(part.name for part in option_groups)]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name}.: two groups of keys have this name. Rename one group.")
    for option_group in option_groups:
        _check_group(option_group)
    for name, recipe_key in keys_of(Recipe).items():
        kind = recipe_key.info.annotation
        if name == "target":  # list the groups of objectives and targets before the key `target`
            for option_group in option_groups:
                keys |= keys_of(option_group.kind, f"{option_group.name}.")
        if isinstance(kind, type) and issubclass(kind, Keys):
            keys |= keys_of(kind, f"{name}.")
        else:
            keys[name] = recipe_key
    return keys


def sources(values: Mapping[str, Any]) -> dict[str, InitSource]:
    """Return {dotted key: source of weights} for the keys of `values` that name weights.

    For example, {"init": "runs/mpp", "seed": 1} gives {"init": InitSource("runs/mpp")}.
    """
    named = (name for name, recipe_key in all_keys().items() if recipe_key.names_weights)
    return {name: InitSource(str(values[name]), name) for name in named if values.get(name)}


def defaults() -> Values:
    """Return {dotted key: default} for all keys of recipes."""
    return {name: recipe_key.default for name, recipe_key in all_keys().items()}


def is_private(key: str) -> bool:
    """Return whether a dotted key describes the machine or the user, and not the experiment."""
    return key in PRIVATE or key.split(".")[0] in PRIVATE


def learns_labels(recipe: Recipe) -> bool:
    """Return whether a trained objective of the run learns labels."""
    return any(part.labels for part in recipe.declared.trained(recipe))


def uses_labels(recipe: Recipe) -> bool:
    """Return whether a run learns labels of images, or is measured on labels of images."""
    if recipe.objective == "probe":
        return bool(recipe.probe.measures_that_read("feature", "tokens", "head"))
    probed = recipe.probe.measures_that_read("feature") if recipe.probe.every else []
    return learns_labels(recipe) or bool(probed)


def measures_masks(recipe: Recipe) -> bool:
    """Return whether the recipe is an evaluation with a measure that reads masks."""
    return recipe.objective == "probe" and bool(recipe.probe.measures_that_read("mask"))


def describe_held_out_choices(recipe: Recipe) -> list[str]:
    """Return what a run chooses by its results on held-out images, such as ["the checkpoint"]."""
    if recipe.objective != "probe":
        return ["the checkpoint"] if recipe.checkpoint.best else []
    return held_out_choices(recipe.probe.measures)


def option_for_more_held_out(recipe: Recipe) -> str:
    """Return the option to suggest to a run with few held-out images: "data.validation=0.2".

    Return an empty string in these cases, in which the option would not help:
    - `data.validation=0`: the user wants no held-out images.
    - The run already holds out this share or more.
    - The run reads a stream, which cannot hold out a share.
    - The run trains and measures only a few of its held-out images (`eval.images`).
    """
    held_out = recipe.data.validation
    measures_few = recipe.objective != "probe" and recipe.eval.images < FEW_IMAGES
    if measures_few or recipe.data.stream or held_out == 0:
        return ""
    if isinstance(held_out, float) and held_out >= LARGE_SHARE:
        return ""
    return f"data.validation={LARGE_SHARE}"


def compared_views(recipe: Recipe) -> ViewOptions | None:
    """Return the group `views`, or None if the objective compares no views."""
    return recipe.group(ViewOptions) if "views" in recipe.groups else None


def dump(recipe: Recipe) -> str:
    """Return the keys in use as YAML.

    A file with this text repeats the run: `recipe=runs/NAME/recipe.yaml`.
    """
    return yaml_text(nested(recipe.values()))


def without_private(recipe: Recipe) -> Recipe:
    """Return the recipe without information about the machine or the user.

    Private keys (`is_private`), such as `data.path`, get their defaults. Of local paths of weights,
    only the last part remains: init=/home/me/runs/mpp becomes init=mpp.
    """
    public = {key: value for key, value in recipe.values().items() if not is_private(key)}
    return build(public | {key: source.public_name for key, source in recipe.sources().items()})


def changes_experiment(key: str, free: Collection[str] = ()) -> bool:
    """Return whether a dotted key changes the experiment, which is what a run computes.

    For example, `optim.lr` changes the experiment, but `compute.workers` and `name` do not.

    Args:
        key: Dotted key.
        free: More keys that do not change the experiment, from the record of a plugin.
    """
    return bool(experiment_values({key: None}, free))


def experiment_values(values: Mapping[str, V], free: Collection[str] = ()) -> dict[str, V]:
    """Return the items of {dotted key: value} that define the experiment.

    Two runs are the same experiment if these items are equal. The items are the keys with the
    effect "compute", such as `optim.lr`. Keys that only change how weights are measured (effect
    "result") or how the run is carried out (effect "run") are left out.

    Args:
        values: {dotted key: value} of a recipe, or of a part of a recipe.
        free: More keys to leave out. A run with a plugin records which of the plugin's keys do not
            change the experiment, because the plugin may not have run in this process.
    """
    known = all_keys()
    # an unknown key, of a plugin that has not run, counts unless it is in `free`
    return {
        key: value
        for key, value in values.items()
        if (known[key].effect == "compute" if key in known else key not in free)
    }


def keys_with_effect(effect: Effect) -> list[str]:
    """Return the dotted keys with the given effect."""
    return [key for key, declared in all_keys().items() if declared.effect == effect]


def computed_values(recipe: Recipe) -> Values:
    """Return {dotted key: value} for the keys that change what a run computes."""
    return experiment_values(recipe.values())
