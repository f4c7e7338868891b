"""A recipe as it is published, and as it is taken from others. No torch here."""

import copy
from pathlib import Path

from . import recipe_files, schema
from .schema import Recipe
from .validate import check


def without_private(recipe: Recipe) -> Recipe:
    """The recipe without what belongs to one machine or one person: it is neither published nor
    taken from others."""
    public = copy.deepcopy(recipe)
    for key, option in schema.options().items():
        if option.private:
            *groups, name = key.split(".")
            owner = getattr(public, groups[0]) if groups else public
            setattr(owner, name, option.default)
    public.init = public.init_source.public_name
    return public


def from_untrusted(path: Path, out: str, name: str | None) -> Recipe:
    """The public part of a recipe file that others wrote, checked except for its images, which may
    not be here.

    Raises:
        UserError: as `resolve`.
    """
    recipe = without_private(recipe_files.read(path))
    recipe.out = out
    recipe.name = name or recipe.name.replace("/", "_")
    check(recipe)
    return recipe
