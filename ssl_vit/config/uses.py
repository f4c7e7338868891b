"""Rejects options that the recipe would ignore. No torch here."""

from ..errors import UserError
from .probe import DENSE
from .schema import EMBEDDED, Recipe, all_groups, options

OF_LABELS = ("data.classes", "data.label_column")
OF_FILES = {  # keys without a use for generated images, and what those lack
    "data.label_column": "columns",
    "data.image_column": "columns",
    "data.mask_column": "columns",
    "data.window": "shards",
}
OF_MASKS = (
    *("data.mask_column", "data.mask_ignore", "data.mask_classes"),
    *("probe.mask_images", "probe.bank"),
)
OF_ONLINE_PROBES = ("probe.every", "probe.images")


def check(recipe: Recipe, given: dict[str, str]) -> None:
    """Check that the recipe uses every given option.

    Raises:
        UserError: the first that it would ignore.
    """
    for key, text in given.items():
        reason = _why_unused(recipe, key)
        if reason:
            raise UserError(f"{key}={text}: {reason}")


def has_use(recipe: Recipe, key: str) -> bool:
    """Whether the recipe uses a dotted key."""
    return _why_unused(recipe, key) is None


def _why_unused(recipe: Recipe, key: str) -> str | None:
    """Why the recipe has no use for a key; None where it has one."""
    option = options()[key]
    _, unused = _groups(recipe)
    labels = any(one.labels for one in recipe.declared.trained(recipe)) or recipe.probe.every
    if key.split(".")[0] in unused or (key in OF_LABELS and not labels):
        return f"objective={recipe.objective} has no use for it{_untrained_part(recipe)}"
    if key in OF_FILES and recipe.data.name == EMBEDDED:
        return f"data={EMBEDDED} is generated and has no {OF_FILES[key]}"
    if key in OF_MASKS and not measures_masks(recipe):
        return "is for masks, which probe.measures=[segmentation,patch_knn] of recipe=segment reads"
    if recipe.objective == "probe" and key in OF_ONLINE_PROBES:
        return "is for probes while pre-training; objective=probe has no use for it"
    if recipe.objective == "probe" and option.training:
        return "objective=probe trains nothing and has no use for it"
    if key.startswith("hub.") and key != "hub.repo" and not recipe.hub.repo:
        return "has no use without hub.repo=USER/NAME"
    if option.requires:
        required, expected = option.requires
        value = recipe.values().get(required)
        if value != expected:
            return f"{required}={str(value).lower()} has no use for it"
    return None


def measures_masks(recipe: Recipe) -> bool:
    """Whether an evaluation reads masks."""
    return recipe.objective == "probe" and not set(DENSE).isdisjoint(recipe.probe.measures)


def chosen_on_held_out(recipe: Recipe) -> list[str]:
    """What a run chooses on its held-out images."""
    if recipe.objective != "probe":
        return ["the checkpoint"] if recipe.checkpoint.best else []
    rates = {"linear": "linear probe", "segmentation": "segmentation probe"}
    names = [rates[name] for name in recipe.probe.measures if name in rates]
    return [f"the learning rate of the {name}" for name in names]


def _groups(recipe: Recipe) -> tuple[set[str], set[str]]:
    """The groups of keys that the objective uses, and those that it does not."""
    used = {group for one in recipe.declared.trained(recipe) for group in one.groups}
    used |= {recipe.declared.options.name} if recipe.declared.options else set()
    if recipe.probe.every:
        used.add("probe")
    known = {one.name for one in all_groups()} | {"target", "probe"}
    return used, known - used


def _untrained_part(recipe: Recipe) -> str:
    """Of a sum of objectives, that a part is not trained."""
    trained = {one.name for one in recipe.declared.trained(recipe)}
    parts = [part for part in recipe.declared.parts if part not in trained]
    return f" with {recipe.objective}.{parts[0]}=0" if parts else ""
