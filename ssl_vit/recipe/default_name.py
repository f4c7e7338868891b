"""The name that a run has where its options give none. No torch here."""

import hashlib
from typing import Any

from . import schema
from .identity import computed_values
from .schema import Recipe

LONGEST_DEFAULT_NAME = 120  # characters; of bytes, which file systems count, twice as many


def default_name(parts: list[str], before: Recipe, recipe: Recipe) -> str:
    """The name of a run: the recipe's, the presets', and each option that changes what is computed,
    sorted, since their order does not matter. Long ones end in a hash."""
    was = computed_values(before)
    now = computed_values(recipe)
    default = schema.defaults()
    apart = {"data.hub"}  # of what `parts` has
    for key, source in recipe.sources().items():
        apart |= {key, source.network_key}
    changed = sorted(
        key for key in now.keys() - apart if now[key] != was.get(key, default.get(key))
    )
    words = [*parts, *(f"{key}={_name_text(now[key])}" for key in changed)]
    name = "-".join(words).replace("/", "_").strip()
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    if len(name) > LONGEST_DEFAULT_NAME:
        return f"{name[:110]}-{digest}"
    if len(name.encode(errors="replace")) > 2 * LONGEST_DEFAULT_NAME:
        return f"{name[:50]}-{digest}"
    return name


def _name_text(value: Any) -> str:
    """A value without what a shell or a file system gives a meaning, as brackets and quotes."""
    if isinstance(value, dict):
        value = [f"{name}={_name_text(one)}" for name, one in sorted(value.items())]
    if isinstance(value, list):
        return ",".join(map(_name_text, value)) or "empty"
    text = str(value)
    return text.lower() if isinstance(value, bool) or value is None else text
