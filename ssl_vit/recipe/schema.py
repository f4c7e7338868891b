"""The recipe: typed values that define a run. Each key is described here, in the files of its group
or by its objective, and nowhere else; docs/options.md lists them all. No torch here."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import ConfigDict, Field, ValidationError, create_model

from ..errors import UserError
from ..formatting import FEW_IMAGES, format_value
from ..metrics import Row
from . import declaration
from .images import Data
from .init_source import InitSource
from .keys import Key, Keys, OneOf, Values, convert, key, keys_of, summary, validated
from .model import Model
from .names import NewFolder, PathText, RunAtStep, RunName, has_control
from .operation import Checkpoint, Compute, Eval, Hub, Log
from .optimisation import Optim
from .parsing import flatten, nested, yaml_text
from .probe import CHOSEN, SEGMENTATION, Probe
from .shared_groups import GROUPS as SHARED_GROUPS
from .shared_groups import ViewOptions

DEFAULT_OBJECTIVE = "mpp"
DEFAULT_TARGET = "mean_color"
LARGE_SHARE = 0.2  # of the training images, held out
# Of one machine or one person: not published, not taken from others. Of groups all keys
PRIVATE = ("out", "resume", "plugin", "data.path", "eval.real", "hub")

G = TypeVar("G")


def group(kind: type[Keys]) -> Any:
    """A field for a group of keys; its docstring begins with what these are."""
    return Field(default_factory=kind, description=summary(kind))


class Trunk(NamedTuple):
    """The run that another one goes on from, and at which step."""

    folder: Path
    step: int


class Recipe(Keys):
    """The keys that every recipe has; `recipe_class` adds the groups that an objective uses.

    Attributes:
        name: The run's folder; default: the recipe's name and the options that change what is
            computed.
        out: Folder that holds the runs.
        seed: Seed of every random choice.
        resume: Resume the run in the folder; false: refuse a folder that holds a run; RUN@STEP:
            begin a run of another length, of optim.schedule=wsd, at that checkpoint of another.
        plugin: Python file that adds objectives or targets (docs/extend.md).
        init: Initial weights: scratch, a run's folder, an export, timm:NAME, hf-hub:USER/NAME or a
            Google .npz file.
        objective: What the encoder is trained on.
        target: What is predicted of a patch.
    """

    name: RunName = key("", effect="run")
    out: NewFolder = key("runs", effect="run")
    seed: int = key(0, ge=-(2**63), lt=2**63)
    resume: bool | RunAtStep = key(True, effect="run")
    plugin: PathText | None = key(None, effect="run")
    init: PathText = key("scratch", from_init=True, names_weights=True)
    objective: Annotated[str, OneOf(declaration.objectives, declaration.ADDED)] = key(
        DEFAULT_OBJECTIVE
    )
    data: Data = group(Data)
    model: Model = group(Model)
    target: Annotated[str, OneOf(declaration.targets, declaration.ADDED)] = key(DEFAULT_TARGET)
    probe: Probe = group(Probe)
    optim: Optim = group(Optim)
    compute: Compute = group(Compute)
    checkpoint: Checkpoint = group(Checkpoint)
    eval: Eval = group(Eval)
    log: Log = group(Log)
    hub: Hub = group(Hub)

    def __new__(cls, **values: Any) -> "Recipe":
        """`Recipe(objective=NAME)` has the groups of that objective too."""
        if cls is Recipe:
            cls = recipe_class(values.get("objective", DEFAULT_OBJECTIVE), values)
        return super().__new__(cls)

    def __reduce__(self) -> Any:
        """Pickled by its values: the class of an objective's recipes is in no module."""
        return _unpickled, (self.model_dump(),)

    @property
    def groups(self) -> dict[str, Any]:
        """{name: group of keys} of those that the objective uses."""
        own = [name for name in type(self).model_fields if name not in Recipe.model_fields]
        return {name: getattr(self, name) for name in own} | (self.model_extra or {})

    def group(self, kind: type[G]) -> G:
        """The group of keys of that type.

        Raises:
            KeyError: the objective does not use it.
        """
        return declaration.find_group(self.groups, kind)

    @property
    def declared(self) -> declaration.ObjectiveDeclaration:
        """What its objective declares.

        Raises:
            UserError: its objective is not known here.
        """
        return declaration.objective(self.objective)

    @property
    def own_rows(self) -> list[Row]:
        """Return the metrics and baselines that the plugins of its objective and target declare."""
        return declaration.own_rows(self.objective, self.target)

    def holds(self, key: str) -> bool:
        """Whether a dotted key is in use: not one of a group that the objective has no use for."""
        top = key.split(".")[0]
        if top == "target":
            return uses_target(self.objective)
        if top == "probe":
            return self.objective == "probe" or self.probe.every is not None
        return top in type(self).model_fields or top in (self.model_extra or {})

    def values(self) -> Values:
        """{dotted key: value} of the keys in use, in the order of `all_keys`.

        Raises:
            UserError: a group of keys was replaced by something else.
        """
        for name, info in type(self).model_fields.items():
            kind = info.annotation
            if not (isinstance(kind, type) and issubclass(kind, Keys)):
                continue
            if not isinstance(getattr(self, name), kind):
                raise UserError(f"{name}: expected {kind.__name__}; set its keys one by one")
        flat = flatten(self.model_dump(warnings=False))
        order = {key: place for place, key in enumerate(all_keys())}
        held = sorted(filter(self.holds, flat), key=lambda key: order.get(key, len(order)))
        return {key: flat[key] for key in held}

    def value(self, key: str) -> Any:
        """The value of a dotted key."""
        return functools.reduce(getattr, key.split("."), self)

    def set(self, key: str, value: Any) -> None:
        """Give a dotted key another value, which is not checked."""
        group, _, name = key.rpartition(".")
        setattr(self.value(group) if group else self, name, value)

    def error(self, key: str, reason: str, value: Any = None) -> UserError:
        """The error of a value that does not go with others.

        Args:
            key: the dotted key, whose value the line shows.
            reason: what is expected.
            value: in place of the key's.
        """
        shown = format_value(self.value(key)) if value is None else value
        return UserError(f"{key}={shown}: {reason}")

    def refuse(self, key: str, reason: str, wrong: object, value: Any = None) -> None:
        """Check a relation between values.

        Args:
            key, reason, value: as of `error`.
            wrong: whether it does not hold.

        Raises:
            UserError: it does not.
        """
        if wrong:
            raise self.error(key, reason, value)

    @property
    def patches(self) -> int:
        """Patches of a training image."""
        return (self.data.size // self.model.patch) ** 2

    @property
    def trains(self) -> bool:
        """Whether anything is trained; an evaluation trains nothing."""
        return self.objective != "probe"

    @property
    def trunk(self) -> Trunk | None:
        """The run and the step of resume=RUN@STEP."""
        if isinstance(self.resume, bool):
            return None
        run, _, step = self.resume.rpartition("@")
        return Trunk(Path(run), int(step))

    @property
    def own_steps(self) -> int:
        """Its steps without those of its trunk."""
        return self.optim.steps - (self.trunk.step if self.trunk else 0)

    @property
    def pool(self) -> str:
        """An image's feature in the export: token (the class token) or avg (the patches' mean)."""
        trained = self.declared.trained(self)[-1]
        own = trained.options and getattr(self.groups[trained.options.name], "pool", None)
        return str(own or trained.pool)

    @property
    def fine_tunes(self) -> bool:
        """Whether it is a fine-tuning: trained weights learn labels, and nothing else."""
        found = declaration.known_or_bare(self.objective)
        learns = found.labels and not found.parts and self.trains
        return learns and not self.init_source.is_scratch

    @property
    def init_source(self) -> InitSource:
        return InitSource(self.init)

    def sources(self) -> dict[str, InitSource]:
        """{dotted key: what it names} of the keys that name weights; without those that name
        none."""
        return sources(self.values())

    @property
    def training_tool(self) -> str:
        """The tool that trains it, also where its plugin is not here."""
        return "finetune" if self.fine_tunes else "pretrain"


class _Foreign(Recipe):
    """Of an objective or a target that is not known here, as without its plugin: keys are taken as
    they are."""

    model_config = ConfigDict(extra="allow")
    target: str = key(DEFAULT_TARGET)
    objective: str = key(DEFAULT_OBJECTIVE)


def _unpickled(values: dict[str, Any]) -> Recipe:
    return recipe_class(values["objective"], values).model_validate(values)


def recipe_class(objective: str, given: Values) -> type[Recipe]:
    """The model of an objective's recipes.

    Args:
        objective: its name; one that is not known here has the groups that `given` names.
        given: {dotted key: value} of the recipe.
    """
    found = declaration.objectives().get(objective)
    target = given.get("target", DEFAULT_TARGET)
    used = {name.split(".")[0] for name in given}
    if found is not None:
        used = {*found.groups_with(str(target))}
    is_foreign = found is None or (isinstance(target, str) and target not in declaration.targets())
    groups = (one for one in all_groups() if one.name in used)
    return _class(_Foreign if is_foreign else Recipe, *groups)


@functools.cache
def _class(base: type[Recipe], *groups: declaration.Group) -> type[Recipe]:
    fields: dict[str, Any] = {one.name: (one.kind, group(one.kind)) for one in groups}
    found: type[Recipe] = create_model("Recipe", __base__=base, **fields)
    return found


def build(values: Values, where: str = "", typed: Mapping[str, str] | None = None) -> Recipe:
    """The typed recipe from {dotted key: value}; keys that are absent have their default, and those
    of groups that its objective does not use are left out.

    Args:
        values: of the keys.
        where: opens the error of a value that was not typed.
        typed: {dotted key: text} of values as they were typed, which the error shows.

    Raises:
        UserError: a value of another type, or out of bounds.
    """
    known = all_keys()
    objective = values.get("objective", DEFAULT_OBJECTIVE)
    if not isinstance(objective, str):
        raise UserError(f"{where}objective={objective}: expected a text")
    model = recipe_class(objective, values)
    foreign = issubclass(model, _Foreign)
    taken: Values = {}
    for name, value in values.items():
        if isinstance(value, str) and has_control(value):
            raise UserError(f"{where}{name}={' '.join(value.split())}: cannot be taken as a value")
        if foreign or name.split(".")[0] in model.model_fields:
            taken[name] = convert(known[name], value) if name in known else value
    found: Recipe = validated(model, nested(taken), known, where, typed)
    return found


def all_groups() -> list[declaration.Group]:
    """The groups of keys that not every recipe has: shared ones, then those of each objective and
    target."""
    return [*SHARED_GROUPS, *declaration.groups()]


def uses_target(objective: str) -> bool:
    """Whether an objective predicts patches; of one that is not known here, that it may."""
    found = declaration.objectives().get(objective)
    return found is None or "target" in found.groups


def all_keys() -> dict[str, Key]:
    """{dotted key: its description} of every key of every objective.

    Raises:
        UserError: a plugin's keys are called as others.
    """
    return _keys(*all_groups())


def _check_group(group: declaration.Group) -> None:
    """Check that the keys of an objective's group can be those of recipes.

    Raises:
        UserError: the group or a key has a name that is taken, or a default is out of bounds.
    """
    if not group.name.isidentifier() or group.name[0] == "_" or hasattr(Recipe, group.name):
        raise UserError(f"{group.name}.: no name of a group of keys; take another one")
    for name in group.kind.model_fields:
        if hasattr(Keys, name):
            raise UserError(f"{group.name}.{name}: no name of a key; take another one")
    try:
        group.kind.model_validate(group.kind().model_dump(warnings=False))
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"][:1]))
        text = "expected a default within the bounds"
        raise UserError(f"{group.name}.{where}: {text}") from None


@functools.cache
def _keys(*own: declaration.Group) -> dict[str, Key]:
    found: dict[str, Key] = {}
    names = [*Recipe.model_fields, *(one.name for one in own)]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name}.: an objective's group of keys has the name of another one")
    for used in own:
        _check_group(used)
    for name, one in keys_of(Recipe).items():
        kind = one.info.annotation
        if name == "target":  # what an objective is about stands beside it
            for used in own:
                found |= keys_of(used.kind, f"{used.name}.")
        if isinstance(kind, type) and issubclass(kind, Keys):
            found |= keys_of(kind, f"{name}.")
        else:
            found[name] = one
    return found


def sources(values: Mapping[str, Any]) -> dict[str, InitSource]:
    """`Recipe.sources` of {dotted key: value}."""
    named = (name for name, one in all_keys().items() if one.names_weights)
    return {name: InitSource(str(values[name]), name) for name in named if values.get(name)}


def defaults() -> Values:
    """{dotted key: its default}."""
    return {name: one.default for name, one in all_keys().items()}


def is_private(key: str) -> bool:
    """Whether a dotted key is of one machine or one person."""
    return key in PRIVATE or key.split(".")[0] in PRIVATE


def learns_labels(recipe: Recipe) -> bool:
    """Whether the objective needs labels and trains on them; a joint one may give them weight 0."""
    return any(one.labels for one in recipe.declared.trained(recipe))


def uses_labels(recipe: Recipe) -> bool:
    """Whether a run learns labels of images, or measures on them."""
    if recipe.objective == "probe":
        return not set(recipe.probe.measures) <= {SEGMENTATION}
    return learns_labels(recipe) or bool(recipe.probe.every)


def measures_masks(recipe: Recipe) -> bool:
    """Whether an evaluation reads masks."""
    return recipe.objective == "probe" and SEGMENTATION in recipe.probe.measures


def chosen_on_held_out(recipe: Recipe) -> list[str]:
    """What a run chooses on its held-out images."""
    if recipe.objective != "probe":
        return ["the checkpoint"] if recipe.checkpoint.best else []
    return [CHOSEN[name] for name in recipe.probe.measures if name in CHOSEN]


def more_held_out(recipe: Recipe) -> str:
    """The option by which a run like this one holds out more images; empty where another one limits
    them, or it holds out as many as that."""
    given = recipe.data.validation
    limited = recipe.objective != "probe" and recipe.eval.images < FEW_IMAGES
    if limited or recipe.data.stream or given == 0:
        return ""
    large = isinstance(given, float) and given >= LARGE_SHARE
    return "" if large else f"data.validation={LARGE_SHARE}"


def compared_views(recipe: Recipe) -> ViewOptions | None:
    """How the views of an image are made that the objective compares; None where it compares
    none."""
    return recipe.group(ViewOptions) if "views" in recipe.groups else None


def dump(recipe: Recipe) -> str:
    """The recipe as YAML, the keys in use alone; that text repeats the run
    (`recipe=runs/NAME/recipe.yaml`)."""
    return yaml_text(nested(recipe.values()))


def without_private(recipe: Recipe) -> Recipe:
    """The recipe without what belongs to one machine or one person: it is neither published nor
    taken from others."""
    kept = {key: value for key, value in recipe.values().items() if not is_private(key)}
    return build(kept | {key: one.public_name for key, one in recipe.sources().items()})
