"""Choose the recipe keys that tasks of a study set: which keys a tool uses, which keys come from
another run, and what a run with these keys costs.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ... import costs
from ...errors import UserError
from ...recipe import declaration, recipe_files, schema
from ...recipe.check import ONLINE_PROBE_KEYS, has_use
from ...recipe.given import Given, from_values
from ...recipe.images import CROPPING, PART, PLACE
from ...recipe.keys import Values
from ...recipe.load import resolve
from ...recipe.parsing import load_yaml
from ...recipe.recipe_files import file_values, find_recipe
from ...recipe.schema import Recipe, all_keys
from ...recipe.which_images import image_keys, names_images


class Cost(NamedTuple):
    """Steps, warm-up steps and exaFLOP per step of a training run."""

    steps: int
    warmup: int
    exaflop_per_step: float


def resolve_options(options: Values, where: str, check_images: bool = True) -> Recipe:
    """Resolve the options of a task to a recipe.

    Args:
        options: `{dotted key: value}`.
        where: Prefix of error messages, or an empty text.
        check_images: Whether the images must exist on this machine. False if the task runs on
            another machine, or if only the cost of the task is needed.

    Raises:
        UserError: An option is wrong.
    """
    try:
        return resolve(from_values(options), check_images).recipe
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from None


def cost(options: Values, where: str) -> Cost:
    """Return the cost of a training run with these options. The images need not exist.

    Raises:
        UserError: An option is wrong, or ssl_vit cannot count the work of the objective.
    """
    recipe = resolve_options(options, where, check_images=False)
    per_step = costs.exaflop(recipe, recipe.optim.batch)
    if per_step is None:
        raise UserError(
            f"{where}: objective={recipe.objective}: ssl_vit cannot count the exaFLOP of this"
            " objective (docs/extend.md). Leave out `match`."
        )
    return Cost(recipe.optim.steps, recipe.optim.warmup, per_step)


def study_keys() -> list[str]:
    """Return the recipe keys that a command line may set for a whole study."""
    fixed = ("name", "out", "seed", "init", "data.name", "model.name")
    return [key for key in (*all_keys(), "model", "data") if key not in fixed]


def tool_uses(tool: str, key: str, options: Values) -> bool:
    """Return whether a tool uses a recipe key, for example `probe.pool`.

    - `evaluate` uses the keys of probes, images, model and computation, without the keys for probes
      during training.
    - `pretrain` and `finetune` use the keys of probes only if `probe.every` is set. `probe.every`
      itself is always used.
    - `pretrain` and `finetune` use the keys of an optional group, such as `decoder`, only if the
      objective needs the group.
    - `pretrain` and `finetune` use all other keys.

    Args:
        tool: `pretrain`, `finetune` or `evaluate`.
        key: Dotted key of a recipe.
        options: `{dotted key: value}` that the tool is called with.
    """
    group = key.split(".")[0]
    if tool == "evaluate":
        groups = ("probe", "data", "model", "compute")
        return group in groups and key not in ONLINE_PROBE_KEYS
    values = file_values(find_recipe(options.get("recipe"))) | options
    if group == "probe":
        return key == "probe.every" or values.get("probe.every") is not None
    objective = values.get("objective", schema.DEFAULT_OBJECTIVE)
    declared = declaration.objectives().get(objective)
    target = values.get("target", schema.DEFAULT_TARGET)
    needed_groups = declared.groups_with(str(target)) if declared is not None else ()
    return group not in schema.optional_groups() or group in needed_groups


def computed_values(recipe: Recipe) -> Values:
    """Return the values of a recipe that affect what a run computes or its result.

    Keys that only change the logging or the storage of a run, such as its name, are left out. So
    are keys that name weights or images.

    Returns:
        `{dotted key: value}`.
    """
    effects = ("compute", "result")
    excluded = {key for key, recipe_key in all_keys().items() if recipe_key.effect not in effects}
    excluded |= {*recipe.sources()}
    return {key: value for key, value in recipe.values().items() if key not in excluded}


def with_origin(options: Values, origin: Recipe) -> Values:
    """Add the model and image options of the run that a task starts from.

    If the options already set a model or images, these options stay unchanged.

    Args:
        options: `{dotted key: value}` of the task.
        origin: Recipe of the run that the task starts from.
    """
    values: Values = {}
    if not names_images(options):
        values = image_options(origin, image_keys())
    if "model" not in options:
        values |= network_options(origin)
    return values | options


def network_options(recipe: Recipe) -> Values:
    """Return the options that set all sizes of a recipe's network."""
    return {f"model.{key}": value for key, value in recipe.model.network.items()}


def image_options(recipe: Recipe, wanted: Iterable[str]) -> Values:
    """Return the options with which another recipe reads the same images.

    For example, `{"data": "cifar10", "data.path": "photos", "data.size": 64}`.

    Args:
        recipe: Recipe with the images.
        wanted: Further keys, such as `data.size`. Such a key is included only if its value in the
            recipe differs from its default value for the same data set and path.
    """
    options: Values = {}
    if recipe.data.name in load_yaml(recipe_files.TABLES / "datasets.yaml"):
        options["data"] = recipe.data.name
    if recipe.data.path:
        options["data.path"] = recipe.data.path
    elif recipe.data.hub:
        options["data.hub"] = recipe.data.hub
    # values that follow from the data set and its path alone. With here=False the images need not
    # exist on this machine
    defaults = resolve(Given({"recipe": "evaluate", **options}), here=False).recipe.values()
    values = recipe.values()
    changed = [key for key in wanted if key not in PLACE and values[key] != defaults[key]]
    return options | {key: values[key] for key in changed}


def evaluated_images(recipe: Recipe) -> Values:
    """Return the options with which an evaluation reads all images of a recipe.

    Keys that select a part of the images for training, such as `data.share`, are left out. Cropping
    keys, such as `data.eval_crop`, are included if the recipe uses these keys. A recipe for a
    frozen encoder does not use cropping keys, because the encoder brings its own cropping.
    """
    wanted = [key for key in image_keys() if key not in PART]
    wanted += [key for key in CROPPING if has_use(recipe, key)]
    return image_options(recipe, wanted)
