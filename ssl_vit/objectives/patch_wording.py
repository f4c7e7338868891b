"""What objectives that predict patches say of them. No torch here."""

from ..recipe import declaration
from ..recipe.schema import Recipe

# What the pictures of a reconstruction show
FIGURE = "held-out images, what was corrupted, what is predicted of it and what is true"


def target_sentence(recipe: Recipe) -> str:
    """What is predicted of a patch."""
    found = declaration.targets().get(recipe.target)
    return found.sentence if found and found.sentence else recipe.target
