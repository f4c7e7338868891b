"""A row of the rules: what a recipe must not be. No torch here."""

from collections.abc import Callable
from typing import NamedTuple

from ...errors import UserError
from ...formatting import format_value
from ..schema import Recipe

Text = str | Callable[[Recipe], str]


class Rule(NamedTuple):
    """What a recipe must not be.

    Attributes:
        key: that the error names, with its value.
        broken: whether a recipe is it.
        reason: the end of the error; `{r.model.name}` is that value of the recipe.
        value: in place of the key's.
    """

    key: str
    broken: Callable[[Recipe], object]
    reason: Text
    value: Text | None = None

    def check(self, recipe: Recipe) -> None:
        """
        Raises:
            UserError: the recipe is what it must not be.
        """
        if self.broken(recipe):
            if self.value is None:
                value = format_value(value_of(recipe, self.key))
            else:
                value = _filled(self.value, recipe)
            raise UserError(f"{self.key}={value}: {_filled(self.reason, recipe)}")


def _filled(text: Text, recipe: Recipe) -> str:
    """A text of a rule with the recipe's values."""
    return text.format(r=recipe) if isinstance(text, str) else text(recipe)


def value_of(recipe: Recipe, key: str) -> object:
    """The value of a dotted key, of a group that the objective does not use too."""
    top, _, rest = key.partition(".")
    owner = recipe.groups[top] if top in recipe.groups else getattr(recipe, top)
    return getattr(owner, rest) if rest else owner


def fewer_than(patches: int) -> str:
    """The masking rates that leave one of an image's patches (`selected_count` below all)."""
    return f"expected less than {1 - 0.5 / patches:g}"
