"""The recipe: typed values that define a run. Each key is described here and nowhere else (see
`fields.Option`); docs/options.md lists them all. No torch here; resolve.py reads them."""

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from ..errors import UserError
from ..formatting import FEW_IMAGES
from . import declaration
from .declaration import Names
from .fields import (
    NOT_BESIDE,
    Option,
    Values,
    group,
    is_folder_name,
    is_new_path,
    is_path,
    option,
    options_of,
)
from .images import Data
from .init_source import InitSource
from .model import Model
from .operation import Checkpoint, Compute, Eval, Hub, Log
from .optimisation import Optim
from .parsing import flatten, yaml_text
from .probe import CHOSEN, SEGMENTATION, Probe
from .shared_groups import GROUPS as SHARED_GROUPS
from .shared_groups import ViewOptions

LARGE_SHARE = 0.2  # of the training images, held out

G = TypeVar("G")


@dataclass
class Recipe:
    name: str = option(
        "",
        "The run's folder; default: the recipe's name and the options that change what is "
        "computed.",
        identity=False,
        check=lambda v: len(v) <= 200 and is_folder_name(v),
        expected=f"a folder's name of at most 200 printable characters, {NOT_BESIDE}",
    )
    out: str = option(
        "runs",
        "Folder that holds the runs.",
        identity=False,
        private=True,
        per_process=True,
        check=is_new_path,
        expected="a folder",
    )
    seed: int = option(
        0,
        "Seed of every random choice.",
        minimum=-(2**63),
        below=2**63,
        expected="a whole number of 64 bits",
        pace=False,
    )
    resume: bool = option(
        True,
        "Resume the run in the folder; false: refuse a folder that holds a run.",
        identity=False,
        private=True,
    )
    plugin: str | None = option(
        None,
        "Python file that adds objectives or targets (docs/extend.md).",
        check=is_path,
        identity=False,
        private=True,
        per_process=True,
    )
    init: str = option(
        "scratch",
        "First weights: scratch, a run's folder, an export, timm:NAME, hf-hub:USER/NAME or a Google"
        " .npz file.",
        check=is_path,
        brought="always",
        per_process=True,
        pace=False,
    )
    objective: str = option(
        "mpp", "What the encoder is trained on.", choices=Names(declaration.objectives)
    )
    data: Data = group(
        Data, "Images and their preprocessing; data=NAME: recipes/tables/datasets.yaml."
    )
    model: Model = group(
        Model, "The encoder; model=NAME: recipes/tables/models.yaml.", brought="always"
    )
    # {name: dataclass} of the groups that the objective uses
    groups: dict[str, Any] = dataclasses.field(default_factory=dict)
    target: str = option(
        "mean_color",
        declaration.describe_targets,
        choices=Names(declaration.targets),
    )
    probe: Probe = group(Probe, "Measuring a frozen encoder.")
    optim: Optim = group(Optim, "Optimisation.", training=True)
    compute: Compute = group(Compute, "Devices, precision and processes.", identity=False)
    checkpoint: Checkpoint = group(Checkpoint, "Checkpoints.", identity=False, training=True)
    eval: Eval = group(Eval, "Evaluation while training and after it.", identity=False)
    log: Log = group(Log, "Logging.", identity=False, training=True)
    hub: Hub = group(
        Hub,
        "Pushing to the Hugging Face Hub.",
        identity=False,
        private=True,
        training=True,
        per_process=True,
    )

    def __post_init__(self) -> None:
        for one in _groups_of(self.objective):
            self.groups.setdefault(one.name, one.kind())

    def __getattr__(self, name: str) -> Any:
        """A group of keys that the objective uses, by its name; `group` keeps its type."""
        groups = self.__dict__.get("groups", {})
        if name in groups:
            return groups[name]
        objective = self.__dict__.get("objective")
        raise AttributeError(f"a recipe of objective={objective} has no {name}")

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

    def holds(self, key: str) -> bool:
        """Whether a dotted key is in use: not one of a group that the objective has no use for."""
        top = key.split(".")[0]
        if top == "target":
            return uses_target(self.objective)
        if top == "probe":
            return self.objective == "probe" or self.probe.every is not None
        return top in self.groups or top in FIXED_TOP

    def values(self) -> Values:
        """{dotted key: value} of the keys in use, in the order of `options`."""
        values = asdict(self)
        flat = flatten(values | values.pop("groups"))
        order = {key: place for place, key in enumerate(options())}
        held = sorted(filter(self.holds, flat), key=lambda key: order.get(key, len(order)))
        return {key: flat[key] for key in held}

    @property
    def patches(self) -> int:
        """Patches of a training image."""
        return (self.data.size // self.model.patch) ** 2

    @property
    def init_source(self) -> InitSource:
        return InitSource(self.init)

    @property
    def training_tool(self) -> str:
        """The tool that trains it, also where its plugin is not here."""
        found = declaration.objectives().get(self.objective)
        return "finetune" if found and found.fine_tunes(self) else "pretrain"


# Keys and groups that every recipe has
FIXED_TOP = {field.name for field in dataclasses.fields(Recipe)} - {"groups", "target", "probe"}


def _groups_of(objective: str) -> Iterator[declaration.Group]:
    """The groups of keys that an objective uses; none of one that is not known here."""
    found = declaration.objectives().get(objective)
    used = found.groups if found else ()
    yield from (one for one in all_groups() if one.name in used)


def all_groups() -> list[declaration.Group]:
    """The groups of keys that not every recipe has: shared ones, then those of each objective."""
    return [*SHARED_GROUPS, *declaration.groups()]


def uses_target(objective: str) -> bool:
    """Whether an objective predicts patches; of one that is not known here, that it may."""
    found = declaration.objectives().get(objective)
    return found is None or "target" in found.groups


@functools.cache
def options() -> dict[str, Option]:
    """{dotted key: its description} of every key of every objective.

    Raises:
        UserError: a plugin's keys are called as others.
    """
    found: dict[str, Option] = {}
    names = [*FIXED_TOP, "target", "probe", *(one.name for one in all_groups())]
    for name in {name for name in names if names.count(name) > 1}:
        raise UserError(f"{name}.: an objective's group of keys has the name of another one")
    for field in dataclasses.fields(Recipe):
        if field.name == "groups":
            for one in all_groups():
                found |= options_of(one.kind, f"{one.name}.")
        else:
            found |= options_of(Recipe, only=field.name)
    return found


declaration.on_change(options.cache_clear)


def defaults() -> Values:
    """{dotted key: its default}."""
    return {key: option.default for key, option in options().items()}


def learns_labels(recipe: Recipe) -> bool:
    """Whether the objective needs labels and trains on them; a joint one may give them weight 0."""
    return recipe.declared.learns_labels(recipe)


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
    return (
        ""
        if isinstance(given, float) and given >= LARGE_SHARE
        else f"data.validation={LARGE_SHARE}"
    )


def compared_views(recipe: Recipe) -> ViewOptions | None:
    """How the views of an image are made that the objective compares; None where it compares
    none."""
    return recipe.group(ViewOptions) if "views" in recipe.groups else None


def dump(recipe: Recipe) -> str:
    """The recipe as YAML, the keys in use alone; that text repeats the run
    (`recipe=runs/NAME/recipe.yaml`)."""
    nested: dict[str, Any] = {}
    for key, value in recipe.values().items():
        group, dot, name = key.partition(".")
        if dot:
            nested.setdefault(group, {})[name] = value
        else:
            nested[group] = value
    return yaml_text(nested)
