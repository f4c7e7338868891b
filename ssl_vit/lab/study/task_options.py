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
    exaflop_a_step: float


def resolve_options(options: Values, where: str, here: bool = True) -> Recipe:
    """Resolve the options of a task to a recipe.

    Args:
        options: `{dotted key: value}`.
        where: Prefix of error messages, or an empty text.
        here: Check that images are on this machine.

    Raises:
        UserError: An option is wrong.
    """
    try:
        return resolve(from_values(options), here).recipe
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from None


def cost(options: Values, where: str) -> Cost:
    """Return the cost of a training run from options. The images need not exist.

    Raises:
        UserError: An option is wrong, or the work of the objective is not counted.
    """
    recipe = resolve_options(options, where, here=False)
    a_step = costs.exaflop(recipe, recipe.optim.batch)
    if a_step is None:
        raise UserError(
            f"{where}: objective={recipe.objective}: ssl_vit cannot count the exaFLOP of this"
            " objective (docs/extend.md). Leave out `match`."
        )
    return Cost(recipe.optim.steps, recipe.optim.warmup, a_step)


def study_keys() -> list[str]:
    """Return the recipe keys that a command line may set for a whole study."""
    fixed = ("name", "out", "seed", "init", "data.name", "model.name")
    return [key for key in (*all_keys(), "model", "data") if key not in fixed]


def tool_uses(tool: str, key: str, options: Values) -> bool:
    """Return whether a tool with these options also uses the recipe key `key`.

    Args:
        tool: `pretrain`, `finetune` or `evaluate`.
        key: Dotted key of a recipe.
        options: `{dotted key: value}` of the tool.
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
    used = declared.groups_with(str(target)) if declared is not None else ()
    return group not in schema.optional_groups() or group in used


def computed_values(recipe: Recipe) -> Values:
    """Return `{dotted key: value}` of the keys that decide a run's computation or its result.

    Keys that name weights or images are left out.
    """
    effects = ("compute", "result")
    excluded = {key for key, recipe_key in all_keys().items() if recipe_key.effect not in effects}
    excluded |= {*recipe.sources()}
    return {key: value for key, value in recipe.values().items() if key not in excluded}


def with_origin(options: Values, origin: Recipe) -> Values:
    """Add the model and the images of the run that a task starts from to the task's options.

    Options that already name the model or the images are kept.
    """
    values: Values = {}
    if not names_images(options):
        values = image_options(origin, image_keys())
    if "model" not in options:
        values |= network_options(origin)
    return values | options


def network_options(recipe: Recipe) -> Values:
    """Return the options that set all sizes of a recipe's network."""
    network = recipe.model.model_dump()
    return {f"model.{key}": network[key] for key in network if key != "name"}


def image_options(recipe: Recipe, wanted: Iterable[str]) -> Values:
    """Return the options with which another recipe reads the images of a recipe.

    Args:
        recipe: Recipe with the images.
        wanted: Keys of `data` to add if the place of the images does not already imply the same
            value.
    """
    options: Values = {}
    if recipe.data.name in load_yaml(recipe_files.TABLES / "datasets.yaml"):
        options["data"] = recipe.data.name
    if place := [key for key in ("path", "hub") if getattr(recipe.data, key)]:
        options[f"data.{place[0]}"] = getattr(recipe.data, place[0])
    implied = resolve(Given({"recipe": "evaluate", **options}), here=False).recipe.values()
    values = recipe.values()
    changed = [key for key in wanted if key not in PLACE and values[key] != implied[key]]
    return options | {key: values[key] for key in changed}


def evaluated_images(recipe: Recipe) -> Values:
    """Return the options with which an evaluation reads all images of a recipe.

    The options include the recipe's cropping and ignore which part of the images the recipe trains
    on.
    """
    wanted = [key for key in image_keys() if key not in PART]
    # a frozen encoder brings values of its own for these keys
    return image_options(recipe, [*wanted, *(key for key in CROPPING if has_use(recipe, key))])
